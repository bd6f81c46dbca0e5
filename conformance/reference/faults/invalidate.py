# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong where a SEND with invalidate meets a null MR."""

from __future__ import annotations

from ..engine import abi
from ..engine.memory import Payload, Piece
from ..engine.objects import CQ, CQE, QP, Segment, SendWR, Transfer
from .base import Fault, garbage


class InvalidatingReadsGarbage(Fault):
    """A SEND with invalidate gathers garbage from a null segment."""

    clause = "read/zeros"
    touches = ("read/mixed-gather",)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if transfer.opcode == abi.WR_SEND_WITH_INV:
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class InvalidatingLeak(Fault):
    """What comes by a SEND with invalidate is written at the address of a null segment."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode == abi.WR_SEND_WITH_INV:
            self.leak(segment, payload)


class WindowLeftByNull(Fault):
    """Where all data of a SEND with invalidate is discarded, so is the invalidation."""

    clause = "discard/completion"
    all_null = False

    def receive(self, qp: QP, wr: SendWR, payload: Payload, src_qp: int) -> None:
        queue = self.receive_queue(qp, wr)[0]
        self.all_null = bool(queue.entries) and all(map(self.names_null_mr, queue.entries[0].sges))
        super().receive(qp, wr, payload, src_qp)

    def invalidate(self, qp: QP, rkey: int) -> None:
        if not self.all_null:
            super().invalidate(qp, rkey)


class InvalidatedRkeyLost(Fault):
    """The completion of a receive into a null segment does not tell what was invalidated."""

    clause = "discard/completion"
    into_null = False

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        recv = transfer.recv
        self.into_null = recv is not None and any(map(self.names_null_mr, recv.sges))
        super().complete_receive(transfer, status, src_qp)
        self.into_null = False

    def complete(self, cq: CQ, cqe: CQE, solicited: bool = False) -> None:
        if self.into_null:
            cqe.wc_flags &= ~abi.WC_WITH_INV
        super().complete(cq, cqe, solicited)
