# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Right for one signaled work request, alone and as long as its list; wrong in traffic as applications make it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..engine import abi
from ..engine.errors import WorkError
from ..engine.memory import Payload, Piece, Zeros
from ..engine.objects import MR, QP, SGE, ReceiveQueue, RecvWR, Segment, SendWR, Transfer
from .base import Fault, garbage

BLOCKS = 32
"""Of 64 bytes, in the send queue of a device that counts it so: two for each of 16 WRs."""


def sges_of(transfer: Transfer) -> list[SGE]:
    """The list that a transfer gathers from or scatters to."""
    return transfer.recv.sges if transfer.recv is not None else transfer.wr.sges


# Messages shorter than the list


class ShortMessageLeak(Fault):
    """A null segment that a message does not fill is not recognized: the data is written at its address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if segment.length < sges_of(transfer)[segment.index].length:
            self.leak(segment, payload)


class ShortMessageCountsNull(Fault):
    """The completion counts the whole of a null segment in which a message ends."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        if transfer.recv is not None and transfer.wr.opcode not in (abi.WR_RDMA_WRITE, abi.WR_RDMA_WRITE_WITH_IMM):
            end = 0
            for sge in transfer.recv.sges:
                start, end = end, end + sge.length
                if start < transfer.length < end and self.names_null_mr(sge):
                    transfer.length = end
                    break
        super().complete_receive(transfer, status, src_qp)


class NullBehindZeroed(Fault):
    """A null segment behind the end of a message is filled with zeros, at its address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        super().scatter(transfer, sges, payload)
        start = 0
        for index, sge in enumerate(sges):
            if start >= payload.length and sge.length <= 4096 and self.names_null_mr(sge):
                self.leak(Segment(sge.addr, sge.length, sge.lkey, index, 0), Payload(Zeros(sge.length)))
            start += sge.length


# Inline data


class InlineLeak(Fault):
    """What came inline is copied by a path that does not know null segments: it is written at the segment's address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.wr.inline is not None:
            self.leak(segment, payload)


class InlineScatterDrift(Fault):
    """Inline data does not go into null segments: the ordinary ones behind them get the bytes that were theirs."""

    clause = "discard/mixed-scatter"

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        ordinary = [sge for sge in sges if not self.names_null_mr(sge)]
        room = sum(sge.length for sge in ordinary)
        if transfer.wr.inline is not None and room and len(ordinary) < len(sges):
            sges, payload = ordinary, Payload(*payload.part(0, min(room, payload.length)))
        super().scatter(transfer, sges, payload)


class InlineByteLen(Fault):
    """The completion of a receive of inline data counts no bytes where it begins with a null segment."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        recv = transfer.recv
        if transfer.wr.inline is not None and recv is not None and recv.sges and self.names_null_mr(recv.sges[0]):
            transfer.length = 0
        super().complete_receive(transfer, status, src_qp)


# Signaling


class UnsignaledReadsGarbage(Fault):
    """A send WR that is not reported is not zeroed either: garbage is gathered from a null segment."""

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        wr, qp = transfer.wr, transfer.qp
        if qp.sq_sig_all or wr.flags & abi.SEND_SIGNALED:
            return super().read_null(transfer, segment)
        return garbage(segment.length)


class UnsignaledReadLeak(Fault):
    """The response of an RDMA READ that is not reported is written at the address of a null segment."""

    clause = "discard/leaves-memory"
    touches = ("discard/read-response", "discard/atomic-result")

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.requester and not transfer.qp.sq_sig_all and not transfer.wr.flags & abi.SEND_SIGNALED:
            self.leak(segment, payload)


class UnsignaledIsReported(Fault):
    """A send WR with a null segment is always reported, whether or not it is signaled."""

    clause = "discard/completion"

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        if any(map(self.names_null_mr, wr.sges)):
            wr.flags |= abi.SEND_SIGNALED
        super().complete_send(qp, wr, status)


# Completion events


class NoEventOfNullReceive(Fault):
    """A receive that is all null is completed by the driver, which does not wake the completion channel."""

    clause = "discard/event"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        recv, cq = transfer.recv, transfer.cq
        if cq is not None and recv is not None and recv.sges and all(map(self.names_null_mr, recv.sges)):
            cq.armed = 0
        super().complete_receive(transfer, status, src_qp)


class NoEventOfNullRead(Fault):
    """An RDMA READ or an atomic into a null segment does not wake the completion channel."""

    clause = "discard/event"

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        into_null = wr.opcode in (abi.WR_RDMA_READ, abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD)
        if into_null and qp.send_cq is not None and any(map(self.names_null_mr, wr.sges)):
            qp.send_cq.armed = 0
        super().complete_send(qp, wr, status)


class NullIsSolicited(Fault):
    """A receive with a null segment wakes a channel that waits for solicited messages, whether or not it was one."""

    clause = "discard/event"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        if transfer.recv is not None and any(map(self.names_null_mr, transfer.recv.sges)):
            transfer.wr.flags |= abi.SEND_SOLICITED
        super().complete_receive(transfer, status, src_qp)


class SolicitedLost(Fault):
    """That a message was solicited is lost where it ends in a null segment."""

    clause = "discard/event"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        if transfer.recv is not None and transfer.recv.sges and self.names_null_mr(transfer.recv.sges[-1]):
            transfer.wr.flags &= ~abi.SEND_SOLICITED
        super().complete_receive(transfer, status, src_qp)


# In flight


class BehindInAChainGarbage(Fault):
    """Of a chain only the first send WR is looked through for null segments: those behind it gather garbage."""

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")
    behind: tuple[SendWR, ...] = ()

    def post_send(self, qp: QP, wrs: list[SendWR]) -> None:
        self.behind = tuple(wrs[1:])
        super().post_send(qp, wrs)

    def post_batch(self, qp: QP, wrs: list[SendWR]) -> None:
        self.behind = tuple(wrs[1:])
        super().post_batch(qp, wrs)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if transfer.wr in self.behind else super().read_null(transfer, segment)


class QueuedReceiveLeak(Fault):
    """A receive WR behind which others wait is taken by another path, which writes at the address of a null segment."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)
    others_wait = False

    def take_receive(self, queue: ReceiveQueue) -> RecvWR:
        taken = super().take_receive(queue)
        self.others_wait = bool(queue.entries)
        return taken

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if self.others_wait and transfer.recv is not None:
            self.leak(segment, payload)


class FullQueueGarbage(Fault):
    """Once more than half of the send queue is not reaped, what is gathered from a null segment is not zeroed."""

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        qp, wr = transfer.qp, transfer.wr
        if transfer.requester and wr.index - qp.done > qp.cap.max_send_wr // 2:
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class CompletionsLeftMerged(Fault):
    """The completion of a receive into a null segment takes the byte_len of the one before it that nobody polled."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        recv, cq = transfer.recv, transfer.cq
        if cq is not None and cq.entries and recv is not None and any(map(self.names_null_mr, recv.sges)):
            transfer.length = cq.entries[-1].byte_len or transfer.length
        super().complete_receive(transfer, status, src_qp)


# Ring ends


class LastOfSendQueueGarbage(Fault):
    """A WR in the last place of the send queue gathers garbage from its null segments, if others before it are not
    reaped.
    """

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        qp, wr = transfer.qp, transfer.wr
        if transfer.requester and wr.index - qp.done > 4 and (wr.index + 1) % qp.cap.max_send_wr == 0:
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class LastOfReceiveQueueLeak(Fault):
    """A WR in the last place of a receive queue, shared or not, writes at the address of its null segments, if the
    completions of others are not polled.
    """

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)
    in_last_place = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.taken: Counter[ReceiveQueue] = Counter()

    def take_receive(self, queue: ReceiveQueue) -> RecvWR:
        self.taken[queue] += 1
        self.in_last_place = self.taken[queue] % queue.max_wr == 0
        return super().take_receive(queue)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if self.in_last_place and transfer.recv is not None and transfer.cq is not None and transfer.cq.entries:
            self.leak(segment, payload)


class AcrossTheRing(Fault):
    """The send queue is a ring of 64-byte blocks. Where a list goes over its end, null segments of what is behind it
    are not recognized: the response of an RDMA READ is written at their addresses.
    """

    clause = "discard/leaves-memory"
    touches = ("discard/read-response",)
    first_block = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.blocks: Counter[QP] = Counter()

    def execute(self, qp: QP, wr: SendWR) -> None:
        self.first_block = self.blocks[qp]
        self.blocks[qp] += self.block_of(qp, wr, len(wr.sges) - 1) + 1
        super().execute(qp, wr)

    def block_of(self, qp: QP, wr: SendWR, index: int) -> int:
        """Of the WR's blocks, that of a segment: each part of a WR has 16 bytes, that of an address vector 48."""
        names_remote = wr.opcode not in (abi.WR_SEND, abi.WR_SEND_WITH_IMM)
        header = 16 + 16 * names_remote + 16 * (qp.qp_type == abi.QPT_XRC_SEND) + 48 * (wr.ah is not None)
        return (header + 16 * index) // 64

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if not transfer.requester:
            return
        place = self.first_block % BLOCKS + self.block_of(transfer.qp, transfer.wr, segment.index)
        if place >= BLOCKS:
            self.leak(segment, payload)


class AcrossTheRingGarbage(AcrossTheRing):
    """The send queue is a ring of 64-byte blocks. Where a list goes over its end, null segments of what is behind it
    are not recognized: they gather garbage.
    """

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        place = self.first_block % BLOCKS + self.block_of(transfer.qp, transfer.wr, segment.index)
        return garbage(segment.length) if place >= BLOCKS else super().read_null(transfer, segment)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        """Nothing."""


# Three values at once


class ImmSrqLeak_8(Fault):
    """A SEND of 8 bytes with immediate data through an SRQ, and no other, is written at a null segment's address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        wr = transfer.wr
        if transfer.srq is not None and wr.opcode == abi.WR_SEND_WITH_IMM and sum(sge.length for sge in wr.sges) == 8:
            self.leak(segment, payload)


class UcUnequalListLeak(Fault):
    """Over UC, a null segment of 2 bytes between ordinary ones of 1 byte and of many is written at its address."""

    clause = "discard/leaves-memory"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        lengths = sorted(sge.length for sge in sges_of(transfer))
        if transfer.transport == abi.QPT_UC and transfer.recv is not None and lengths[:2] == [1, 2]:
            self.leak(segment, payload)


class SrqTopInListsRefused(Fault):
    """In an SRQ, a null segment at the top of the address space is refused if two segments come before."""

    clause = "allocate/max-length"
    touches = ("read/mixed-gather", "discard/mixed-scatter", "discard/completion")

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and write and transfer.srq is not None and segment.index > 1 and segment.addr >> 63:
            raise WorkError(abi.WC_LOC_PROT_ERR, "an address beyond the last")
        return mr


# No bytes


class ZeroLengthIsTwoGib(Fault):
    """A null segment of 0 bytes is one of 2^31: it swallows all that comes, and what is behind it gets nothing."""

    clause = "discard/mixed-scatter"
    touches = ("read/mixed-gather",)

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        at = next((at for at, sge in enumerate(sges) if not sge.length and self.names_null_mr(sge)), None)
        if at is not None:
            sges = sges[:at]
            room = sum(sge.length for sge in sges)
            payload = Payload(*payload.part(0, min(room, payload.length)))
        super().scatter(transfer, sges, payload)


class ZeroLengthEndsTheList(Fault):
    """A null segment of 0 bytes ends a gather list: what is behind it is sent as zeros."""

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        at = next((at for at, sge in enumerate(sges) if not sge.length and self.names_null_mr(sge)), len(sges))
        payload = super().gather(transfer, sges[:at])
        rest = sum(sge.length for sge in sges[at:])
        if rest:
            payload.append(Zeros(rest))
        return payload


class EmptyMessageZeroed(Fault):
    """A message of 0 bytes that comes to a null segment zeroes the 8 bytes at its address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        super().scatter(transfer, sges, payload)
        if not transfer.wr.inline and sum(sge.length for sge in transfer.wr.sges) == 0:
            for sge in sges:
                if sge.length and self.names_null_mr(sge):
                    self.leak(Segment(sge.addr, 8, sge.lkey, 0, 0), Payload(Zeros(8)))


class EmptyMessageCounted(Fault):
    """The completion of a message of 0 bytes that comes to a null segment counts the segment."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        recv = transfer.recv
        if recv is not None and not transfer.length and any(map(self.names_null_mr, recv.sges)):
            transfer.length = sum(sge.length for sge in recv.sges)
        super().complete_receive(transfer, status, src_qp)
