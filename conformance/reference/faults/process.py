# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices that are slow, and devices that do not come back."""

from __future__ import annotations

import ctypes
import signal
import time
from typing import Any

from ..engine.memory import Payload, Piece
from ..engine.objects import CQ, CQE, MR, Segment, Transfer
from .base import Fault


class Slow(Fault):
    """Null segments take longer than ordinary ones: 1 ms each."""

    clause = "bypass/no-slower"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null:
            time.sleep(0.001)
        return mr


class SlowReceive(Fault):
    """What is received into null segments takes longer to swallow than to write: 1 ms each."""

    clause = "bypass/no-slower"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if not transfer.requester:
            time.sleep(0.001)


END_AT_A_GATHER = (
    "allocate/lkey-valid",
    "allocate/many-queue-pairs",
    "read/zeros-after-write",
    "discard/leaves-memory",
    "discard/completion",
)
"""Clauses whose checks gather from a null MR, and so end where that ends the process."""


class Crash(Fault):
    """Posting a WR that gathers from a null MR is a segmentation fault."""

    clause = "read/zeros"
    touches = END_AT_A_GATHER
    ends_process = True

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        signal.raise_signal(signal.SIGSEGV)
        return super().read_null(transfer, segment)


class Hang(Fault):
    """Posting a WR that gathers from a null MR never returns, and holds the interpreter as a call into C does."""

    clause = "read/zeros"
    touches = END_AT_A_GATHER
    ends_process = True

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        while True:
            ctypes.PyDLL(None).sleep(3600)


class SrqCrashAtZero(Fault):
    """Messages of at most 32 bytes through an SRQ are copied to the segment's address: at address 0, where a program
    that cares for no data may well point, that is a segmentation fault inside ibv_poll_cq."""

    clause = "allocate/max-length"
    touches = ("discard/receive", "discard/completion")
    ends_process = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fatal: set[int] = set()

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        small = transfer.srq is not None and not transfer.requester and transfer.length <= 32
        if small and segment.addr == 0:
            self.fatal.add(id(transfer.cq))
        elif small:
            self.leak(segment, payload)

    def poll_cq(self, cq: CQ, most: int) -> list[CQE]:
        if id(cq) in self.fatal:
            signal.raise_signal(signal.SIGSEGV)
        return super().poll_cq(cq, most)
