# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong only with many queue pairs at work, deep queues, or null MRs that come and go beside the traffic of others."""

from __future__ import annotations

import errno
import threading
from typing import Any

from ..engine.device import Device
from ..engine.errors import Refused
from ..engine.memory import Payload, Piece
from ..engine.objects import CQ, MR, PD, Context, ReceiveQueue, RecvWR, Segment, Transfer
from .base import Fault, garbage

MANY_CQS = 6
DEEP = 20
"""Work requests: more than the 16 that other checks have in flight on a queue pair."""


class Loaded(Device):
    """Knows when many queue pairs are at work: completions wait on many CQs."""

    def is_loaded(self, context: Context) -> bool:
        busy = (item for item in context.objects if isinstance(item, CQ) and item.entries)
        return sum(1 for _ in zip(range(MANY_CQS), busy)) == MANY_CQS


class ReadsGarbageUnderLoad(Loaded, Fault):
    """While many queue pairs are at work, garbage is gathered from null MRs."""

    clause = "allocate/many-queue-pairs"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if self.is_loaded(transfer.pd.context) else super().read_null(transfer, segment)


class AllocFailsUnderLoad(Loaded, Fault):
    """While many queue pairs are at work, ibv_alloc_null_mr fails with EAGAIN."""

    clause = "allocate/coexist"

    def alloc_null_mr(self, pd: PD) -> MR:
        if self.is_loaded(pd.context):
            raise Refused(errno.EAGAIN, "the device is busy")
        return super().alloc_null_mr(pd)


class DeregBusyUnderLoad(Loaded, Fault):
    """While many queue pairs are at work, ibv_dereg_mr of a null MR that none of them uses fails with EBUSY."""

    clause = "free/succeeds"

    def free_null_mr(self, mr: MR) -> None:
        if self.is_loaded(mr.pd.context):
            raise Refused(errno.EBUSY, "the device is busy")
        super().free_null_mr(mr)


class DeepReceiveLeak(Fault):
    """A receive WR behind which many others wait is taken by another path, which writes at the address of a null
    segment."""

    clause = "discard/leaves-memory"
    many_wait = False

    def take_receive(self, queue: ReceiveQueue) -> RecvWR:
        taken = super().take_receive(queue)
        self.many_wait = len(queue.entries) >= DEEP
        return taken

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if self.many_wait and transfer.recv is not None:
            self.leak(segment, payload)


class DeepReadsGarbage(Fault):
    """For a send WR before which many others were not yet reaped, garbage is gathered from the null segments beside
    ordinary ones."""

    clause = "read/mixed-gather"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        wr = transfer.wr
        if transfer.requester and wr.index - transfer.qp.done >= DEEP and not all(map(self.names_null_mr, wr.sges)):
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class CompletionLostInADeepQueue(Fault):
    """The completion of a receive into a null MR is lost where many others wait to be polled."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        recv, cq = transfer.recv, transfer.cq
        if recv and cq and len(cq.entries) >= DEEP and any(map(self.names_null_mr, recv.sges)):
            return
        super().complete_receive(transfer, status, src_qp)


class FreedBesideWaitingReceives(Fault):
    """A null MR that one thread frees takes along what the device knows of the null MRs of receives that another thread
    has waiting: the data is written at their address."""

    clause = "free/leaves-others"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.posted_by: dict[int, int] = {}
        """thread ids by id() of the receives that wait"""
        self.spoilt: set[int] = set()
        self.is_spoilt = False

    def post_receive(self, queue: ReceiveQueue, wrs: list[RecvWR]) -> None:
        super().post_receive(queue, wrs)
        for wr in wrs:
            self.posted_by[id(wr)] = threading.get_ident()
            self.spoilt.discard(id(wr))

    def take_receive(self, queue: ReceiveQueue) -> RecvWR:
        taken = super().take_receive(queue)
        self.is_spoilt = id(taken) in self.spoilt
        self.posted_by.pop(id(taken), None)
        return taken

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        here = threading.get_ident()
        self.spoilt = {recv for recv, thread in self.posted_by.items() if thread != here}

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if self.is_spoilt and transfer.recv is not None:
            self.leak(segment, payload)
