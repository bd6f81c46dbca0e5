# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The memory of other processes, by process_vm_readv(2) and process_vm_writev(2)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance import native
from conformance.reference.engine.memory import MemoryFault

PAGE = os.sysconf("SC_PAGESIZE")

_CDEF = """
int memory_read(int pid, void *to, uint64_t from, size_t length);
int memory_write(int pid, uint64_t to, const void *from, size_t length);
int memory_zero(int pid, uint64_t to, size_t length);
int memory_write_last_byte_last(int pid, uint64_t to, const void *from, size_t length);
int memory_changed(int pid, const uint64_t *pages, size_t count, size_t size, char *now, const char *before);
"""

_SOURCE = """
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/uio.h>

/* Returns 0 or an errno. */
static int copy(int pid, uint64_t local, uint64_t remote, size_t length, int write)
{
    while (length) {
        struct iovec here = { (void *)local, length }, there = { (void *)remote, length };
        ssize_t done = write ? process_vm_writev(pid, &here, 1, &there, 1, 0)
                             : process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (done <= 0)
            return done ? errno : EFAULT;
        local += done;
        remote += done;
        length -= done;
    }
    return 0;
}

static int memory_read(int pid, void *to, uint64_t from, size_t length)
{
    return copy(pid, (uint64_t)to, from, length, 0);
}

static int memory_write(int pid, uint64_t to, const void *from, size_t length)
{
    return copy(pid, (uint64_t)from, to, length, 1);
}

static int memory_zero(int pid, uint64_t to, size_t length)
{
    static const char zeros[1 << 16];
    while (length) {
        size_t part = length < sizeof(zeros) ? length : sizeof(zeros);
        int error = copy(pid, (uint64_t)zeros, to, part, 1);
        if (error)
            return error;
        to += part;
        length -= part;
    }
    return 0;
}

/* Who sees the last byte sees the others, too. */
static int memory_write_last_byte_last(int pid, uint64_t to, const void *from, size_t length)
{
    int error = copy(pid, (uint64_t)from, to, length - 1, 1);
    return error ? error : copy(pid, (uint64_t)from + length - 1, to + length - 1, 1, 1);
}

/* Read pages of `size` bytes to `now`. Returns 1 if that is other than `before`, 0 if not, or a negative errno. */
static int memory_changed(int pid, const uint64_t *pages, size_t count, size_t size, char *now, const char *before)
{
    for (size_t first = 0; first < count; first += IOV_MAX) {
        size_t part = count - first < IOV_MAX ? count - first : IOV_MAX;
        struct iovec here = { now + first * size, part * size }, there[IOV_MAX];
        ssize_t done;

        for (size_t i = 0; i < part; i++)
            there[i] = (struct iovec){ (void *)pages[first + i], size };
        done = process_vm_readv(pid, &here, 1, there, part, 0);
        if (done != (ssize_t)(part * size))
            return done < 0 ? -errno : -EFAULT;
    }
    return memcmp(now, before, count * size) != 0;
}
"""

_REFUSED = """\
the memory of process {pid} cannot be accessed (process_vm_readv(2): {reason}).
Who may do so is in /proc/sys/kernel/yama/ptrace_scope (here: {scope}): 0 and 1 are enough, 2 needs CAP_SYS_PTRACE, 3 \
forbids it to everyone. In a container the seccomp profile must allow process_vm_readv and process_vm_writev."""


class AccessRefusedError(Exception):
    """This machine does not let one process access the memory of another; the message says what to do."""


def load() -> Any:
    """The C part, with `.ffi` and `.lib`. Raises native.BuildError if it does not compile."""
    return native.extension("connectx_memory", _CDEF, _SOURCE)


class ProgramMemory:
    """The memory of the process that is `pid` now (conformance.reference.engine.memory.Memory)."""

    def __init__(self) -> None:
        module = load()
        self.ffi, self.lib = module.ffi, module.lib
        self.pid = 0

    @contextlib.contextmanager
    def of(self, pid: int) -> Iterator[None]:
        before = self.pid
        self.pid = pid
        try:
            yield
        finally:
            self.pid = before

    def read(self, address: int, length: int) -> bytes:
        data = bytearray(length)
        self._check(self.lib.memory_read(self.pid, self.ffi.from_buffer(data), address % 2**64, length), address)
        return bytes(data)

    def write(self, address: int, data: bytes | memoryview) -> None:
        self._check(self.lib.memory_write(self.pid, address % 2**64, self.ffi.from_buffer(data), len(data)), address)

    def zero(self, address: int, length: int) -> None:
        self._check(self.lib.memory_zero(self.pid, address % 2**64, length), address)

    def publish(self, address: int, data: bytes) -> None:
        """Write so that who sees the last byte sees the others, too."""
        wrong = self.lib.memory_write_last_byte_last(self.pid, address, self.ffi.from_buffer(data), len(data))
        self._check(wrong, address)

    def _check(self, error: int, address: int) -> None:
        if error in (errno.EFAULT, errno.ESRCH):  # no such memory; the process is gone and all its memory with it
            raise MemoryFault(f"{address:#x}")
        if error:
            raise refusal(self.pid, error)


def refusal(pid: int, error: int) -> AccessRefusedError:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "no Yama"
    return AccessRefusedError(_REFUSED.format(pid=pid, reason=os.strerror(error), scope=scope))


class Pages:
    """Pages of a process, read to see what changed. `data` is what they held when last looked at."""

    def __init__(self, memory: ProgramMemory, pid: int) -> None:
        self._memory, self._pid = memory, pid
        self.places: dict[int, int] = {}
        """Address of a page -> offset in `data`."""
        self._set([])

    def _set(self, pages: list[int]) -> None:
        ffi = self._memory.ffi
        self.places = {page: number * PAGE for number, page in enumerate(pages)}
        self._addresses = ffi.new("uint64_t[]", pages)
        self._now, self._before = bytearray(len(pages) * PAGE), bytearray(len(pages) * PAGE)
        self._buffers = [ffi.from_buffer(self._now), ffi.from_buffer(self._before)]
        self.data = self._before

    def watch(self, addresses: list[int]) -> None:
        """Look at the pages of these addresses from now on."""
        pages = sorted({address // PAGE * PAGE for address in addresses})
        if pages != list(self.places):
            self._set(pages)

    def offset(self, address: int) -> int:
        """Where in `data` the memory at an address is."""
        return self.places[address // PAGE * PAGE] + address % PAGE

    def changed(self) -> bool:
        """Look again: is anything different? Raises MemoryFault if a page is gone."""
        now, before = self._buffers
        result = self._memory.lib.memory_changed(self._pid, self._addresses, len(self.places), PAGE, now, before)
        if result == 1:
            self._now, self._before = self._before, self._now
            self._buffers.reverse()
            self.data = self._before
        elif result in (-errno.EFAULT, -errno.ESRCH):
            raise MemoryFault("a page of doorbell records")
        elif result < 0:
            raise refusal(self._pid, -result)
        return bool(result)
