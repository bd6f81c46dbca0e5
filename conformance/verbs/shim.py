# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The way from stock pyverbs to ibv_alloc_null_mr.

pyverbs has no binding for the verb, and a distribution's package keeps its C pointers out of reach. But
`MR.__init__` calls ibv_reg_mr or ibv_reg_mr_iova2 with a C pointer to the PD and keeps the MR that comes back.
The library built here defines these two functions. Loaded before pyverbs it comes first in symbol lookup; armed by
`ibv_alloc_null_mr`'s caller it allocates a null MR, else it calls on to the reference device or to the libibverbs that
pyverbs has loaded. It loads none itself: pyverbs' modules may have been built against another one than the system's.

Nothing here imports pyverbs: `load` must run before anything does.
"""

import functools
import sys
from typing import Any

from conformance import native

_CDEF = """
struct null_mr_call {
    int consumed;
    int error;
    int same_pd;
    int same_context;
    uint64_t addr;
    uint64_t length;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
};
void null_mr_arm(void);
struct null_mr_call null_mr_disarm(void);
const char *null_mr_forward_to(const char *library);
size_t null_mr_heap_in_use(void);
"""

_SOURCE = r"""
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <infiniband/verbs.h>
#undef ibv_reg_mr

#define VISIBLE __attribute__((visibility("default")))

struct null_mr_call {
    int consumed;
    int error;
    int same_pd;
    int same_context;
    uint64_t addr;
    uint64_t length;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
};

typedef struct ibv_mr *reg_mr_fn(struct ibv_pd *, void *, size_t, int);
typedef struct ibv_mr *reg_mr_iova2_fn(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);

static reg_mr_fn *next_reg_mr;
static reg_mr_iova2_fn *next_reg_mr_iova2;
static __thread int armed;
static __thread struct null_mr_call call;

/* NULL, or what went wrong. */
static const char *forward_to(const char *library, int flags)
{
    void *handle = dlopen(library, RTLD_NOW | flags);

    if (!handle)
        return dlerror();
    next_reg_mr = (reg_mr_fn *)dlsym(handle, "ibv_reg_mr");
    next_reg_mr_iova2 = (reg_mr_iova2_fn *)dlsym(handle, "ibv_reg_mr_iova2");
    return next_reg_mr && next_reg_mr_iova2 ? NULL : "it lacks ibv_reg_mr or ibv_reg_mr_iova2";
}

static const char *null_mr_forward_to(const char *library)
{
    return forward_to(library, 0);
}

/* The libibverbs that pyverbs brought with it: only its modules know which one that is (RUNPATH, LD_LIBRARY_PATH), and
 * one loaded by name before them would be theirs too. */
static int forwards(void)
{
    return next_reg_mr_iova2 || !forward_to("libibverbs.so.1", RTLD_NOLOAD);
}

static void null_mr_arm(void)
{
    armed = 1;
    call = (struct null_mr_call){0};
}

static struct null_mr_call null_mr_disarm(void)
{
    armed = 0;
    return call;
}

/* There only where failing_alloc.py's library is preloaded. */
void null_mr_before_call(void) __attribute__((weak));
void null_mr_after_call(void) __attribute__((weak));

static struct ibv_mr *alloc_null_mr(struct ibv_pd *pd)
{
    struct ibv_mr *mr;
    int error;

    armed = 0;
    call.consumed = 1;
    if (!pd) {
        errno = call.error = EINVAL;
        return NULL;
    }
    if (null_mr_before_call)
        null_mr_before_call();
    errno = 0;
    mr = ibv_alloc_null_mr(pd);
    error = errno;
    if (null_mr_after_call)
        null_mr_after_call();
    if (!mr) {
        errno = call.error = error;
        return NULL;
    }
    call.same_pd = mr->pd == pd;
    call.same_context = mr->context == pd->context;
    call.addr = (uintptr_t)mr->addr;
    call.length = mr->length;
    call.handle = mr->handle;
    call.lkey = mr->lkey;
    call.rkey = mr->rkey;
    return mr;
}

VISIBLE struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    if (armed)
        return alloc_null_mr(pd);
    if (forwards())
        return next_reg_mr(pd, addr, length, access);
    errno = ELIBACC;
    return NULL;
}

VISIBLE struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                        unsigned int access)
{
    if (armed)
        return alloc_null_mr(pd);
    if (forwards())
        return next_reg_mr_iova2(pd, addr, length, iova, access);
    errno = ELIBACC;
    return NULL;
}

/* Bytes that malloc has handed out, those it took by mmap included. */
static size_t null_mr_heap_in_use(void)
{
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    struct mallinfo2 info = mallinfo2();
#else
    struct mallinfo info = mallinfo();
#endif
    return (size_t)info.uordblks + (size_t)info.hblkhd;
}
"""


class ImportedTooEarlyError(RuntimeError):
    """pyverbs was imported before the shim was loaded, so its MR class cannot reach ibv_alloc_null_mr."""

    def __init__(self) -> None:
        super().__init__(
            "pyverbs.mr was imported, or libibverbs made global (LD_PRELOAD), before conformance.verbs: its calls no "
            "longer come by the shim that reaches ibv_alloc_null_mr. Import conformance.verbs.null_mr before any "
            "pyverbs module, and do not preload libibverbs"
        )


@functools.cache
def _module() -> Any:
    if "pyverbs.mr" in sys.modules:
        raise ImportedTooEarlyError
    return native.extension("null_mr_shim", _CDEF, _SOURCE)


def load() -> Any:
    """The shim's library (a cffi `lib`), loaded on the first call.

    Raises ImportedTooEarlyError if pyverbs.mr is there already, native.BuildError if the shim does not compile.
    """
    return _module().lib


def forward_to(library: str) -> None:
    """Let ordinary registrations go to the verbs library at this path. Raises OSError if it is none."""
    problem = load().null_mr_forward_to(library.encode())
    if problem:
        raise OSError(f"{library}: {_module().ffi.string(problem).decode()}")


def heap_in_use() -> int:
    """Bytes of the C heap in use in this process (mallinfo(3))."""
    return int(load().null_mr_heap_in_use())
