# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""C structs that the program holds pointers to, and the engine's objects behind them."""

import errno
from typing import Any

from ..engine.errors import Refused
from ..engine.objects import CQ, QP, SGE, SRQ
from . import c

# libibverbs and providers keep private data behind the public structs and may read it.
_PADDING = 512


class Structs:
    """C structs that the program has pointers to, each with the engine's object behind it."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._structs: dict[Any, Any] = {}

    def allocate(self, kind: str) -> Any:
        """A zeroed struct of the C library's memory, as a provider takes it; NULL if there is none."""
        return c.ffi.cast(f"{kind} *", c.lib.calloc(1, c.ffi.sizeof(kind) + _PADDING))

    def free(self, struct: Any) -> None:
        c.lib.free(struct)

    def make(self, kind: str, item: Any, struct: Any = None) -> Any:
        """The struct of an object, alive until `drop`: the one given, else a new one. Refused if there is no memory."""
        struct = struct or self.allocate(kind)
        if not struct:
            raise Refused(errno.ENOMEM, f"no memory for {kind}")
        self._objects[int(c.ffi.cast("uintptr_t", struct))] = item
        self._structs.setdefault(item, struct)
        return struct

    def of(self, pointer: Any) -> Any:
        """The object behind a pointer. Refused if there is none (any more)."""
        try:
            return self._objects[int(c.ffi.cast("uintptr_t", pointer))]
        except KeyError:
            raise Refused(errno.EINVAL, f"{pointer} is no live object of the reference device") from None

    def maybe(self, pointer: Any) -> Any:
        return self.of(pointer) if pointer else None

    def struct(self, item: Any) -> Any:
        return self._structs[item]

    def drop(self, pointer: Any) -> None:
        address = int(c.ffi.cast("uintptr_t", pointer))
        item = self._objects.pop(address)
        if int(c.ffi.cast("uintptr_t", self._structs.get(item, c.ffi.NULL))) == address:
            del self._structs[item]
        self.free(c.ffi.cast("void *", address))


structs = Structs()
# The busiest objects by the handle in their struct.
qps: dict[int, QP] = {}
cqs: dict[int, CQ] = {}
srqs: dict[int, SRQ] = {}
_last_handle = 0


def next_handle() -> int:
    global _last_handle
    _last_handle += 1
    return _last_handle


def fill(struct: Any, values: object) -> None:
    """Copy the attributes of an object to the fields of the same names."""
    for name in vars(values):
        if hasattr(struct, name):
            value = getattr(values, name)
            setattr(struct, name, value.encode() if isinstance(value, str) else value)


def copy_out(struct: Any, whole: Any, size: int) -> None:
    """Fill a caller's struct, which may be of an older or newer header than ours."""
    data = bytes(c.ffi.buffer(whole))
    c.ffi.memmove(struct, data[:size].ljust(size, b"\0"), size)


def sges_of(array: Any, number: int) -> list[SGE]:
    sges = []
    for index in range(number):
        sge = array[index]
        sges.append(SGE(sge.addr, sge.length, sge.lkey))
    return sges
