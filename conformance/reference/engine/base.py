# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What every part of a device shares: its attributes, the program's memory, its live objects."""

from __future__ import annotations

import errno
from typing import Any, TypeVar

from .attributes import DeviceAttributes, PortAttributes
from .errors import Refused
from .memory import Memory
from .objects import Context

_T = TypeVar("_T")


class Base:
    name: str
    attr: DeviceAttributes
    ports: list[PortAttributes]
    memory: Memory

    def __init__(self) -> None:
        self._last_handle = 0
        self._counts: dict[type, int] = {}

    def new_handle(self) -> int:
        self._last_handle += 1
        return self._last_handle

    def count(self, context: Context, kind: type, limit: int) -> None:
        """Refuse one more object of this class if the device has `limit` of them."""
        if self._counts.get(kind, 0) >= limit:
            raise Refused(errno.ENOMEM, f"{limit} {kind.__name__}s are the limit of the device")

    def remember(self, context: Context, made: _T) -> _T:
        self._counts[type(made)] = self._counts.get(type(made), 0) + 1
        context.objects[made] = None
        return made

    def forget(self, context: Context, gone: Any) -> None:
        if gone in context.objects:
            del context.objects[gone]
            self._counts[type(gone)] -= 1
