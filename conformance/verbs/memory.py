# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory that work requests name: registered arenas, and a stretch of addresses where nothing is."""

from __future__ import annotations

import ctypes
import mmap

from pyverbs.mr import MR
from pyverbs.pd import PD

from conformance.scenarios import ACROSS_4GIB_OFFSET, PAGE, Ordinary
from conformance.verbs.names import e

_SMALLEST = 64 * PAGE
_4GIB = 1 << 32
_MAP_NORESERVE = 0x4000
"""Addresses of which few are used cost no memory."""
_MAP_HUGETLB = 0x40000
_HUGE_PAGE = 1 << 21
_ACCESS = {
    Ordinary.ODP: e.IBV_ACCESS_ON_DEMAND,
    Ordinary.IMPLICIT_ODP: e.IBV_ACCESS_ON_DEMAND,
    Ordinary.ZERO_BASED: e.IBV_ACCESS_ZERO_BASED,
    Ordinary.RELAXED_ORDERING: e.IBV_ACCESS_RELAXED_ORDERING,
    Ordinary.HUGE_PAGES: e.IBV_ACCESS_HUGETLB,
}

LOCAL_AND_REMOTE = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC
)


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Arena:
    """Memory of one side, all of it in one ordinary MR registered for local and remote access.

    A device that wrongly translates the address of a null segment therefore finds memory there to write to and to
    read from. Where the device has no atomics the MR is registered without them. `across_4gib`: a multiple of 2^32 is
    at ACROSS_4GIB_OFFSET. `ordinary`: how the MR is registered.
    """

    def __init__(
        self,
        pd: PD,
        access: int = LOCAL_AND_REMOTE,
        across_4gib: bool = False,
        ordinary: Ordinary = Ordinary.PLAIN,
    ) -> None:
        self._pd = pd
        self._access = access | _ACCESS.get(ordinary, 0)
        self.across_4gib = across_4gib
        self.ordinary = ordinary
        self._memory: mmap.mmap | None = None
        self.size = self._start = 0
        self.mr: MR | None = None
        self.reserve(_SMALLEST)

    def reserve(self, size: int) -> None:
        """Have at least `size` bytes; what was in the arena is lost if it grows. Raises PyverbsRDMAError, and OSError
        if there are no addresses for it.
        """
        if self._memory is not None and self.size >= size:
            return
        self.close()
        self.size = 1 << (size - 1).bit_length()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_NORESERVE if self.across_4gib else 0)
        if self.ordinary is Ordinary.HUGE_PAGES:
            self.size = max(self.size, _HUGE_PAGE)
            flags |= _MAP_HUGETLB
        self._memory = mmap.mmap(-1, self.size + (_4GIB if self.across_4gib else 0), flags=flags)
        mapped = address_of(self._memory)
        self._start = -(mapped + ACROSS_4GIB_OFFSET) % _4GIB if self.across_4gib else 0
        self.address = mapped + self._start
        if self.ordinary is Ordinary.IMPLICIT_ODP:
            self.mr = MR(self._pd, 0, self._access, implicit=True)
        else:
            self.mr = MR(self._pd, self.size, self._access, address=self.address)

    @property
    def iova(self) -> int:
        """What SGEs and peers call the first byte."""
        return 0 if self.ordinary is Ordinary.ZERO_BASED else self.address

    @property
    def lkey(self) -> int:
        assert self.mr is not None
        return int(self.mr.lkey)

    @property
    def rkey(self) -> int:
        assert self.mr is not None
        return int(self.mr.rkey)

    def write(self, image: bytes | bytearray, offset: int = 0) -> None:
        assert self._memory is not None
        start = self._start + offset
        self._memory[start : start + len(image)] = image

    def read(self, length: int, offset: int = 0) -> bytes:
        assert self._memory is not None
        start = self._start + offset
        return self._memory[start : start + length]

    def close(self) -> None:
        if self.mr is not None:
            self.mr.close()
            self.mr = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None


class Unmapped:
    """Addresses that this process has reserved and cannot touch (PROT_NONE): no later mapping can land there."""

    _PROT_NONE = 0

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(3 * [ctypes.c_int]), ctypes.c_long)
        self._reserved: dict[int, int] = {}

    def address(self, length: int) -> int:
        """The start of at least `length` such bytes. Raises OSError if the address space has no room for them."""
        for start, size in self._reserved.items():
            if size >= length:
                return start
        size = max(length, 1 << 26)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        start = self._libc.mmap(None, size, self._PROT_NONE, flags, -1, 0)
        if start == ctypes.c_void_p(-1).value:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot reserve {size} bytes of addresses")
        self._reserved[start] = size
        return int(start)
