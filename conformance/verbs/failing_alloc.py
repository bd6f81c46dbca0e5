# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A process in which ibv_alloc_null_mr runs out of memory, at each allocation that it makes in turn:
`python -m conformance.verbs.failing_alloc DEVICE SIMULATED`.

The library below is preloaded there. While the shim is inside the verb, and in that thread only, it lets the n-th
call of malloc(3) and its kin fail, those that the C library makes for the verb included; or, where the kernel has
fail-nth (CONFIG_FAULT_INJECTION), the kernel's n-th allocation for the system calls of the verb. n grows until the verb
has no allocation left that could fail.

The reference device is Python, which allocates all the time and must not fail. But its library takes the structs that
a program gets from calloc(3), as a provider does. So, with simulated devices, only what that library calls counts.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import conformance
from conformance import native, reference
from conformance.verbs import machine, resources, shim
from conformance.verdicts import BrokenError, LackingError
from conformance.watch import watch

if TYPE_CHECKING:
    from pyverbs.pd import PD

    from conformance.verbs.null_mr import Fields

ROOT = Path(conformance.__file__).parents[1]
FAIL_NTH = Path("/proc/thread-self/fail-nth")
"""Documentation/fault-injection/fault-injection.rst of the kernel."""
CALLS, ROUNDS = 64, 3
"""How often each allocation fails while what is held back is measured."""
TIMEOUT = 60
"""Seconds; the whole takes less than one of processor time."""

_CDEF = """
int failing_alloc_works(void);
const char *failing_alloc_only_in(const char *library);
void failing_alloc_next(int nth, int fail_nth);
int failing_alloc_failed(void);
"""

_SOURCE = r"""
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))
/* A preloaded library has its place in every thread from the beginning: reaching it allocates nothing. */
#define PER_THREAD static __thread __attribute__((tls_model("initial-exec")))

static const struct link_map *only;     /* NULL: whoever calls */
PER_THREAD int nth;                     /* which allocation of a call fails; 0: none */
PER_THREAD int fd;                      /* fail-nth of this thread; -1: the C library's allocations */
PER_THREAD int inside, made, failed;    /* of the present or last call */

void null_mr_before_call(void);
void null_mr_after_call(void);

VISIBLE void null_mr_before_call(void)
{
    char text[16];

    made = failed = 0;
    inside = nth && fd < 0;
    if (nth && fd >= 0 && pwrite(fd, text, snprintf(text, sizeof(text), "%d", nth), 0) < 0)
        abort();
}

VISIBLE void null_mr_after_call(void)
{
    char text[16] = "";

    inside = 0;
    if (nth && fd >= 0) {
        if (pread(fd, text, sizeof(text) - 1, 0) <= 0 || pwrite(fd, "0", 1, 0) < 0)
            abort();
        failed = atoi(text) == 0;
    }
}

static int fails(void *caller)
{
    Dl_info info;
    struct link_map *map;

    if (!inside || (only && (!dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) || map != only)))
        return 0;
    if (++made != nth)
        return 0;
    failed = 1;
    errno = ENOMEM;
    return 1;
}

/* dlsym allocates in some versions of the C library, and does without if that fails. */
static void *next_of(const char *name)
{
    PER_THREAD int looking;
    void *found;

    if (looking)
        return NULL;
    looking = 1;
    found = dlsym(RTLD_NEXT, name);
    looking = 0;
    return found;
}

#define CAN_FAIL(result, name, parameters, arguments, failure)          \
    VISIBLE result name parameters                                      \
    {                                                                   \
        static result (*next) parameters;                               \
                                                                        \
        if (fails(__builtin_return_address(0)))                         \
            return failure;                                             \
        if (!next)                                                      \
            next = (result (*) parameters)next_of(#name);               \
        return next ? next arguments : failure;                         \
    }

CAN_FAIL(void *, malloc, (size_t size), (size), NULL)
CAN_FAIL(void *, calloc, (size_t count, size_t size), (count, size), NULL)
CAN_FAIL(void *, realloc, (void *old, size_t size), (old, size), NULL)
CAN_FAIL(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size), NULL)
CAN_FAIL(void *, memalign, (size_t alignment, size_t size), (alignment, size), NULL)
CAN_FAIL(int, posix_memalign, (void **to, size_t alignment, size_t size), (to, alignment, size), ENOMEM)

static void failing_alloc_next(int new_nth, int fail_nth)
{
    nth = new_nth;
    fd = fail_nth;
}

static int failing_alloc_failed(void)
{
    return failed;
}

/* Does an allocation that the C library makes come by here? */
static int failing_alloc_works(void)
{
    char *copy;

    failing_alloc_next(1, -1);
    null_mr_before_call();
    copy = strdup("text");
    null_mr_after_call();
    failing_alloc_next(0, -1);
    free(copy);
    return !copy && failed;
}

/* Count what is called from this loaded library and from nowhere else. NULL, or what went wrong. */
static const char *failing_alloc_only_in(const char *library)
{
    only = dlopen(library, RTLD_NOW | RTLD_NOLOAD);     /* its struct link_map, by dlinfo(3) */
    return only ? NULL : "it is not loaded";
}
"""


@dataclass(frozen=True)
class Seen:
    """How many allocations of one call were made to fail, of the C library and of the kernel (None where it has no
    fail-nth), and what was wrong then."""

    library: int
    kernel: int | None
    findings: tuple[str, ...]

    def __str__(self) -> str:
        kernel = "none of the kernel (no fail-nth)" if self.kernel is None else f"{self.kernel} of the kernel"
        return f"allocations made to fail: {self.library} of the C library, {kernel}"


def run(device: str) -> Seen:
    """Let such a process live, with the simulated devices of this one.

    Raises BrokenError if the process cannot do its work, LackingError if its calls go wrong where no allocation fails.
    """
    with watch.over(2 * TIMEOUT):  # the watch is else for one call of a provider; the process has a limit of its own
        output, errors, how = _process(device)
    last = (output.splitlines() or [""])[-1]
    if how and last:
        return Seen(0, None, (f"{last}: the process {how}\n{errors}",))
    if how or not last.startswith("{"):
        raise BrokenError(f"a process in which allocations are to fail {how or 'did not end well'}:\n{errors}")
    told = json.loads(last)
    if told["lacking"]:
        raise LackingError(f"also where no allocation fails: {told['lacking']}")
    return Seen(told["library"], told["kernel"], tuple(told["findings"]))


def _process(device: str) -> tuple[str, str, str]:
    """Its output, its errors, and how it died if it did."""
    command = [sys.executable, "-X", "faulthandler", "-m", "conformance.verbs.failing_alloc"]
    command += [device, json.dumps(machine.simulated())]
    preload = [str(native.built("failing_alloc", _CDEF, _SOURCE)), os.environ.get("LD_PRELOAD", "")]
    environment = {
        **os.environ,
        native.BUILD_DIR_VARIABLE: str(native.build_dir()),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "LD_PRELOAD": ":".join(filter(None, preload)),
    }
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            return *process.communicate(), f"does not come back within {TIMEOUT} s"
    if process.returncode < 0:
        return output, errors, f"dies by {signal.Signals(-process.returncode).name}"
    return output, errors, ""


def main(device: str, simulated: Any) -> None:
    """Print a line before each allocation that is made to fail, and what was seen at the end (JSON)."""
    preload = os.environ.pop("LD_PRELOAD", "").partition(":")[2]
    if preload:
        os.environ["LD_PRELOAD"] = preload  # of the programs that this one starts
    module = native.extension("failing_alloc", _CDEF, _SOURCE)
    if not module.lib.failing_alloc_works():
        sys.exit("LD_PRELOAD has no effect: the C library's allocations do not come by the preloaded library")
    shim.load()
    if simulated:
        machine.load_reference(*simulated)
        problem = module.lib.failing_alloc_only_in(str(reference.library_path()).encode())
        assert not problem, module.ffi.string(problem)
    told = _told(device, module.lib)
    if wrong := reference.errors():
        sys.exit("\n".join(wrong))
    print(json.dumps(told), flush=True)
    os._exit(0)  # what destructors of the rest do is not asked here


def _told(device: str, lib: Any) -> dict[str, Any]:
    from pyverbs.device import Context
    from pyverbs.pd import PD

    from conformance.verbs.closing import close

    context = Context(name=device)
    first, pd = PD(context), PD(context)
    if lacking := _trouble(first) or str(close(first) or "") or _trouble(pd):
        return {"lacking": lacking}
    whole = _fields(pd)
    findings: list[str] = []
    library = _let_all_fail(device, pd, whole, lib, None, findings)
    kernel = None
    if FAIL_NTH.exists():
        with FAIL_NTH.open("r+b", buffering=0) as file:
            kernel = _let_all_fail(device, pd, whole, lib, file.fileno(), findings)
    if error := close(pd):
        findings.append(f"after all failed calls: {error}")
    return {"lacking": "", "library": library, "kernel": kernel, "findings": findings}


def _let_all_fail(device: str, pd: PD, whole: Fields, lib: Any, fail_nth: int | None, findings: list[str]) -> int:
    """Each allocation of the C library (or with this file of the kernel) in turn. Returns how many there are."""
    nth = 0
    while (found := _let_fail(device, pd, whole, lib, fail_nth, nth + 1)) is not None:
        findings += found
        nth += 1
    return nth


def _let_fail(device: str, pd: PD, whole: Fields, lib: Any, fail_nth: int | None, nth: int) -> list[str] | None:
    """What is wrong when the nth allocation of a call fails; None if a call has fewer."""
    step = f"with allocation {nth} of {'the C library' if fail_nth is None else 'the kernel'} failing"
    print(step, flush=True)

    def call() -> str:
        return _wrong_answer(pd, whole, in_kernel=fail_nth is not None)

    lib.failing_alloc_next(nth, -1 if fail_nth is None else fail_nth)
    wrong = {call()}
    is_one = lib.failing_alloc_failed()
    leaks = []
    if is_one:
        leaks = resources.held_back(device, lambda: wrong.update(call() for _ in range(CALLS)), CALLS, ROUNDS)
    lib.failing_alloc_next(0, -1)
    if not is_one:
        return None
    found = sorted(filter(None, wrong))
    if leaks:
        found.append(f"{CALLS} calls hold back {', '.join(leaks)}")
    if trouble := _trouble(pd):
        found.append(f"afterwards, on the same PD: {trouble}")
    return [f"{step}: {each}" for each in found]


def _wrong_answer(pd: PD, whole: Fields, in_kernel: bool) -> str:
    """What is wrong about a call in which an allocation fails: it may do without, or else give NULL and say why."""
    from conformance.verbs.closing import close
    from conformance.verbs.null_mr import NullMR, NullMRError, errno_name

    try:
        null_mr = NullMR(pd)
    except NullMRError as error:
        number = error.error_code
        if number > 0 if in_kernel else number == errno.ENOMEM:
            return ""
        return f"NULL, {errno_name(number)}, expected {'a positive errno' if in_kernel else 'ENOMEM'}"
    if refused := close(null_mr):
        return f"an MR that cannot be freed: {refused}"
    fields = null_mr.fields
    differences = []
    if fields.length != whole.length:
        differences.append(f"length {fields.length:#x} in place of {whole.length:#x}")
    if bool(fields.lkey) != bool(whole.lkey):
        differences.append(f"lkey {fields.lkey:#x}")
    if fields.same_pd < whole.same_pd:
        differences.append("pd not that of the call")
    if fields.same_context < whole.same_context:
        differences.append("context not that of the call")
    return f"neither NULL nor a whole MR: {', '.join(differences)}" if differences else ""


def _fields(pd: PD) -> Fields:
    from conformance.verbs.closing import close
    from conformance.verbs.null_mr import NullMR

    null_mr = NullMR(pd)
    close(null_mr)
    return null_mr.fields


def _trouble(pd: PD) -> str:
    """Does the PD give a null MR and an ordinary one, and do they go again? What is wrong, or nothing."""
    from pyverbs.mr import MR
    from pyverbs.pyverbs_error import PyverbsError

    from conformance.verbs.closing import close
    from conformance.verbs.names import e
    from conformance.verbs.null_mr import NullMR, NullMRError

    try:
        mrs = NullMR(pd), MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
    except (NullMRError, PyverbsError) as error:
        return str(error)
    return "; ".join(str(error) for error in map(close, mrs) if error)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
