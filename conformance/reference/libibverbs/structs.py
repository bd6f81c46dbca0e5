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
        self._owners: dict[int, Any] = {}
        self._structs: dict[Any, Any] = {}

    def make(self, kind: str, item: Any) -> Any:
        """A zeroed struct for an object, alive until `drop`."""
        owner = c.ffi.new("char[]", c.ffi.sizeof(kind) + _PADDING)
        struct = c.ffi.cast(f"{kind} *", owner)
        address = int(c.ffi.cast("uintptr_t", owner))
        self._objects[address] = item
        self._owners[address] = owner
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
        del self._owners[address]
        if int(c.ffi.cast("uintptr_t", self._structs.get(item, c.ffi.NULL))) == address:
            del self._structs[item]


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
