# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Where a fatal signal strikes: the address and the native stack, which names the library.

The standard library's faulthandler tells the Python stack, and from Python 3.14 on the native one too; this tells the
native one before it, and hands the signal on.
"""

from conformance import native

_CDEF = """
void null_mr_tell_crash(int file);
"""

_SOURCE = r"""
#include <execinfo.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define LEN(array) (sizeof(array) / sizeof((array)[0]))

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
static struct sigaction earlier[LEN(signals)];
static char stack[1 << 16];
static int file;

static void put(const char *text)
{
    if (write(file, text, strlen(text)) < 0)
        return;
}

static void put_address(uintptr_t address)
{
    char text[2 + 2 * sizeof(address) + 1], *digit = text + sizeof(text);

    *--digit = '\0';
    do
        *--digit = "0123456789abcdef"[address % 16];
    while (address /= 16);
    *--digit = 'x';
    *--digit = '0';
    put(digit);
}

static void *interrupted(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (void *)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (void *)context->uc_mcontext.pc;
#else
    return NULL;
#endif
}

static void put_stack(void *innermost)
{
    void *frames[64];
    int count = backtrace(frames, LEN(frames)), first = 0;

    /* Before it are the frames of the handler. Without it the stack could not be followed. */
    while (first < count && frames[first] != innermost)
        first++;
    if (first == count)
        backtrace_symbols_fd(&innermost, 1, file);
    else
        backtrace_symbols_fd(frames + first, count - first, file);
}

static void tell(int number, siginfo_t *info, void *context)
{
    size_t i = 0;

    while (signals[i] != number)
        i++;
    /* What fails from here on goes to whoever was there before. */
    sigaction(number, &earlier[i], NULL);
    if ((number == SIGSEGV || number == SIGBUS) && info->si_code > 0) {
        put("address: ");
        put_address((uintptr_t)info->si_addr);
        put("\n");
    }
    put_stack(interrupted(context));
    if (earlier[i].sa_flags & SA_SIGINFO)
        earlier[i].sa_sigaction(number, info, context);
    else if (earlier[i].sa_handler != SIG_DFL && earlier[i].sa_handler != SIG_IGN)
        earlier[i].sa_handler(number);
    else
        raise(number);
}

static void null_mr_tell_crash(int fd)
{
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    void *frame;

    file = fd;
    backtrace(&frame, 1); /* the first call loads a library, which a handler must not */
    sigaltstack(&alternative, NULL);
    for (size_t i = 0; i < LEN(signals); i++)
        sigaction(signals[i], &action, &earlier[i]);
}
"""


def tell(file: int) -> None:
    """Let this process write to a file descriptor where a fatal signal or SIGALRM strikes. Call it once, after
    faulthandler has its handlers.

    Lines: `address: 0x0` for a memory fault, then the frames as backtrace_symbols_fd(3) writes them, innermost first.
    Raises native.BuildError.
    """
    native.extension("null_mr_crash", _CDEF, _SOURCE).lib.null_mr_tell_crash(file)
