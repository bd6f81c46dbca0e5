# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Events that a program reads from a file descriptor, as from the kernel's: structs of <rdma/ib_user_verbs.h>."""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Any

from conformance.reference.engine.objects import EventQueue

_COMPLETION = struct.Struct("=Q")  # struct ib_uverbs_comp_event_desc: cq_handle
_ASYNCHRONOUS = struct.Struct("=QII")  # struct ib_uverbs_async_event_desc: element, event_type, reserved


class Pipe(EventQueue):
    """A pipe to the program. `handles` has what the program calls its objects (user_handle of its commands)."""

    layout: struct.Struct

    def __init__(self, handles: dict[object, int]) -> None:
        self.handles = handles
        self.fd, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # A description of its own: whether the program's end blocks is the program's choice.
        self._reader = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._sent: dict[int, int] = {}
        """Events per user_handle."""

    def give(self) -> int:
        """The program's end, once it was passed on: ours to close."""
        return self.fd

    def put(self, *event: Any) -> None:
        handle = self.handles.get(event[-1], 0)
        self._sent[handle] = self._sent.get(handle, 0) + 1
        self._write(self.pack(handle, *event))

    def pack(self, handle: int, *event: Any) -> bytes:
        raise NotImplementedError

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # thousands of events that nobody reads
            os.write(self._writer, data)

    def forget(self, item: object) -> None:
        """Take back what the program has not read about an object that is destroyed."""
        handle = self.handles.get(item, 0)
        if not self._sent.get(handle):
            return
        kept = b""
        try:
            while data := os.read(self._reader, self.layout.size * 64):
                for event in self.layout.iter_unpack(data):
                    if event[0] == handle:
                        self._sent[handle] -= 1
                    else:
                        kept += self.layout.pack(*event)
        except BlockingIOError:
            pass
        if kept:
            self._write(kept)

    def reported(self, handle: int) -> int:
        """How many events of an object the program has read, once `forget` took back the others."""
        return self._sent.pop(handle, 0)

    def close(self) -> None:
        for fd in (self.fd, self._writer, self._reader):
            os.close(fd)


class CompletionEvents(Pipe):
    """What ibv_get_cq_event(3) reads."""

    layout = _COMPLETION

    def pack(self, handle: int, *event: Any) -> bytes:
        return _COMPLETION.pack(handle)


class AsynchronousEvents(Pipe):
    """What ibv_get_async_event(3) reads."""

    layout = _ASYNCHRONOUS

    def pack(self, handle: int, *event: Any) -> bytes:
        return _ASYNCHRONOUS.pack(handle, event[0], 0)
