# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong about what becomes of data that is written to a null MR."""

from __future__ import annotations

import itertools

from ..engine import abi, grh
from ..engine.errors import WorkError
from ..engine.memory import Payload, Piece, Zeros
from ..engine.objects import MR, QP, SGE, Segment, SendWR, Transfer
from .base import Fault


class ReceiveRefused(Fault):
    """A receive WR with a null segment fails when a message comes."""

    clause = "discard/receive"
    touches = (
        "allocate/max-length",
        "allocate/lkey-valid",
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if not transfer.requester:
            raise WorkError(abi.WC_LOC_PROT_ERR, "a null MR cannot be written")


class ReceiveEndPadding(Fault):
    """What is received into a null segment is gone, but the line of 64 bytes in which the segment ends is padded with
    zeros."""

    clause = "discard/receive"
    touches: tuple[str, ...] = (
        "read/mixed-gather",
        "discard/mixed-scatter",
        "discard/leaves-memory",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if not transfer.requester:
            self.pad(segment)

    def pad(self, segment: Segment) -> None:
        end = segment.addr + segment.length
        self.leak(Segment(end, -end % 64, segment.lkey, 0, 0), Payload(Zeros(-end % 64)))


class ReadResponseEndPadding(ReceiveEndPadding):
    """The response of an RDMA READ into a null segment is gone, but the line of 64 bytes in which the segment ends is
    padded with zeros."""

    clause = "discard/read-response"
    touches = ("discard/mixed-scatter",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode == abi.WR_RDMA_READ:
            self.pad(segment)


class AtomicEndPadding(ReceiveEndPadding):
    """The result of an atomic into a null segment is gone, but the line of 64 bytes that it is in is padded with
    zeros."""

    clause = "discard/atomic-result"
    touches = ()

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode in (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD):
            self.pad(segment)


class ReceiveRefusedInSrq(Fault):
    """A receive WR of an SRQ with a null segment fails when a message comes."""

    clause = "discard/receive"
    touches = (
        "allocate/max-length",
        "allocate/lkey-valid",
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if not transfer.requester and transfer.srq is not None:
            raise WorkError(abi.WC_LOC_PROT_ERR, "a null MR cannot be written")


class LongReadResponseRefused(Fault):
    """The response of an RDMA READ into a null segment fails at its second packet."""

    clause = "discard/read-response"
    touches = (
        "allocate/max-length",
        "read/zeros-after-write",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode == abi.WR_RDMA_READ and segment.offset + segment.length > self.ports[0].mtu:
            raise WorkError(abi.WC_LOC_QP_OP_ERR, "a packet out of sequence")


class ReadResponseRefused(Fault):
    """The response of an RDMA READ finds no place in a null segment."""

    clause = "discard/read-response"
    touches = (
        "allocate/max-length",
        "allocate/lkey-valid",
        "read/zeros-after-write",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode == abi.WR_RDMA_READ:
            raise WorkError(abi.WC_LOC_PROT_ERR, "a null MR cannot be written")


class AtomicNotExecuted(Fault):
    """An atomic whose result nobody wants is optimized away: the remote word stays as it was."""

    clause = "discard/atomic-result"

    def atomic(self, qp: QP, wr: SendWR) -> None:
        if not any(map(self.names_null_mr, wr.sges)):
            super().atomic(qp, wr)


class AtomicZeroesWord(Fault):
    """An atomic whose result goes to a null segment works on the word as the null MR has it: the old value is 0."""

    clause = "discard/atomic-result"

    def atomic_result(self, wr: SendWR, old: int) -> int:
        return super().atomic_result(wr, 0 if any(map(self.names_null_mr, wr.sges)) else old)


class AtomicResultRefused(Fault):
    """The result of an atomic finds no place in a null segment."""

    clause = "discard/atomic-result"
    touches = (
        "allocate/max-length",
        "allocate/lkey-valid",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode in (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD):
            raise WorkError(abi.WC_LOC_PROT_ERR, "a null MR cannot be written")


class ScatterDrift(Fault):
    """A null segment swallows nothing: the ordinary ones behind it get the bytes that were its."""

    clause = "discard/mixed-scatter"
    touches = ("read/mixed-gather",)

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        self.check_room(transfer, sges, payload)
        ordinary = [sge for sge in sges if not self.names_null_mr(sge)]
        room = sum(sge.length for sge in ordinary)
        if room and len(ordinary) < len(sges):
            start = Payload(*payload.part(0, min(room, payload.length)))
            super().scatter(transfer, ordinary, start)
        else:
            super().scatter(transfer, sges, payload)


class ScatterStopsAtNull(Fault):
    """Scattering ends at the first null segment: the ordinary ones behind it get nothing."""

    clause = "discard/mixed-scatter"
    touches = ("read/mixed-gather",)

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        self.check_room(transfer, sges, payload)
        kept = list(itertools.takewhile(lambda sge: not self.names_null_mr(sge), sges))
        room = min(sum(sge.length for sge in kept), payload.length)
        super().scatter(transfer, kept, Payload(*payload.part(0, room)))


class NullBehindUnwritten(Fault):
    """Bytes in front of a null segment are held back in the device, in units of 8 bytes, and the last are lost."""

    clause = "discard/mixed-scatter"
    touches = (
        "read/zeros",
        "read/mixed-gather",
    )

    def write_ordinary(self, transfer: Transfer, mr: MR, segment: Segment, payload: Payload) -> None:
        sges = transfer.recv.sges if transfer.recv is not None else transfer.wr.sges
        behind = sges[segment.index + 1 : segment.index + 2]
        if behind and self.names_null_mr(behind[0]):
            segment.length -= segment.length % 8
        super().write_ordinary(transfer, mr, segment, payload)


class LeaksToAddress(Fault):
    """What a null segment should swallow is written at the address that it names."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive", "discard/read-response", "discard/atomic-result")

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        self.leak(segment, payload)


class SrqLeak_32(Fault):
    """Messages of at most 32 bytes through an SRQ travel inside the completion, and the copy out of it does not know
    null segments: they are written at the segment's address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.srq is not None and not transfer.requester and transfer.length <= 32:
            self.leak(segment, payload)


class SrqLeak(Fault):
    """What comes through an SRQ, of any length, is written at the segment's address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.srq is not None and not transfer.requester:
            self.leak(segment, payload)


class Leak_32(Fault):
    """Messages of at most 32 bytes travel inside the completion on every path, and are written at the segment's
    address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive", "discard/read-response", "discard/atomic-result")

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.length <= 32:
            self.leak(segment, payload)


class LeakAfterFirstMtu(Fault):
    """Only the first packet of a message is discarded."""

    clause = "discard/leaves-memory"
    touches = (
        "discard/receive",
        "discard/read-response",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if segment.offset + segment.length > self.ports[0].mtu:
            self.leak(segment, payload)


class LeakInLastSegment(Fault):
    """Only a null segment that ends a list of several is not recognized."""

    clause = "discard/leaves-memory"
    touches = (
        "discard/receive",
        "discard/read-response",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        sges = transfer.recv.sges if transfer.recv is not None else transfer.wr.sges
        if segment.index and segment.index == len(sges) - 1:
            self.leak(segment, payload)


class GrhLeak(Fault):
    """Only the GRH of a datagram is written at the segment's address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.transport == abi.QPT_UD and segment.offset < grh.LENGTH:
            segment.length = min(segment.length, grh.LENGTH)
            self.leak(segment, payload)


class ZeroesTheAddress(Fault):
    """The data is discarded, and zeros are written at the segment's address in its place."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive", "discard/read-response", "discard/atomic-result")

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        self.leak(Segment(segment.addr, segment.length, segment.lkey, 0, 0), Payload(Zeros(segment.length)))


class GatherZeroesTheAddress(Fault):
    """Zeros to send are made in place: the memory at the segment's address is zeroed, and then sent."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        zeros = super().read_null(transfer, segment)
        self.leak(Segment(segment.addr, segment.length, segment.lkey, 0, 0), Payload(zeros))
        return zeros


class ReadResponseLeak(Fault):
    """Only what an RDMA READ brings is written at the segment's address."""

    clause = "discard/leaves-memory"
    touches = ("discard/read-response",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode == abi.WR_RDMA_READ:
            self.leak(segment, payload)


class AtomicLeak(Fault):
    """Only the result of an atomic is written at the segment's address."""

    clause = "discard/leaves-memory"
    touches = ("discard/atomic-result",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode in (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD):
            self.leak(segment, payload)


class CqExLeak(Fault):
    """Only where the completion goes to a CQ of ibv_create_cq_ex, a received message is written at the address."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.cq is not None and transfer.cq.extended and not transfer.requester:
            self.leak(segment, payload)


class TooLongLeaks(Fault):
    """A message longer than the list is a length error, but what fits is at the addresses of the null segments."""

    clause = "discard/leaves-memory"

    def check_room(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        try:
            super().check_room(transfer, sges, payload)
        except WorkError:
            offset = 0
            for index, sge in enumerate(sges):
                if self.names_null_mr(sge):
                    self.leak(Segment(sge.addr, sge.length, sge.lkey, index, offset), payload)
                offset += sge.length
            raise


class XrcLeakByWr(Fault):
    """A message of 64 bytes, no more and no less, with immediate data is at the address of the null segment that it was
    received into, where it was sent to an XRC SRQ by ibv_wr_* and is reported by a CQ-ex."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        by_wr = transfer.transport == abi.QPT_XRC_RECV and transfer.wr.extended and transfer.with_imm
        if by_wr and transfer.cq is not None and transfer.cq.extended and transfer.length == segment.length == 64:
            self.leak(segment, payload)


class DuplicateCompletion(Fault):
    """A receive WR that has a null segment is reported twice."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        super().complete_receive(transfer, status, src_qp)
        if transfer.recv is not None and any(map(self.names_null_mr, transfer.recv.sges)):
            super().complete_receive(transfer, status, src_qp)


class WrongOpcode(Fault):
    """An RDMA READ into a null segment is reported as a SEND."""

    clause = "discard/completion"

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        if wr.opcode == abi.WR_RDMA_READ and any(map(self.names_null_mr, wr.sges)):
            wr.opcode = abi.WR_SEND
        super().complete_send(qp, wr, status)


class ByteLenWithoutNull(Fault):
    """The completion does not count the bytes that null segments swallowed."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        if transfer.recv is not None:
            rest = transfer.length
            for sge in transfer.recv.sges:
                part = min(rest, sge.length)
                rest -= part
                if self.names_null_mr(sge):
                    transfer.length -= part
        super().complete_receive(transfer, status, src_qp)


class SendNotReported(Fault):
    """A signaled send WR that gathers from null segments only is not reported."""

    clause = "discard/completion"
    touches = (
        "allocate/max-length",
        "allocate/lkey-valid",
        "read/zeros",
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/receive",
        "discard/read-response",
        "discard/atomic-result",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/event",
    )

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        if status or not wr.sges or not all(map(self.names_null_mr, wr.sges)):
            super().complete_send(qp, wr, status)


class ImmediateLost(Fault):
    """The immediate data that comes with a message into null segments is discarded too."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        if transfer.recv is not None and all(map(self.names_null_mr, transfer.recv.sges)):
            transfer.wr.imm_data = 0
        super().complete_receive(transfer, status, src_qp)


class ReceiveNotReported(Fault):
    """A receive WR that only swallowed bytes is not reported."""

    clause = "discard/completion"
    touches = (
        "allocate/max-length",
        "allocate/lkey-valid",
        "read/zeros",
        "read/zeros-after-write",
        "discard/receive",
        "discard/leaves-memory",
        "discard/event",
    )

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        sges = transfer.recv.sges if transfer.recv is not None else []
        if not sges or not all(map(self.names_null_mr, sges)):
            super().complete_receive(transfer, status, src_qp)


class TooLongSwallowed(Fault):
    """A message longer than the receive list is no length error if the list has a null segment."""

    clause = "discard/completion"

    def check_room(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        if not any(map(self.names_null_mr, sges)):
            super().check_room(transfer, sges, payload)


class TooLongReportedTwice(Fault):
    """A receive WR with a null segment that was too short is reported, and once more when the queue is flushed."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        super().complete_receive(transfer, status, src_qp)
        null = transfer.recv is not None and any(map(self.names_null_mr, transfer.recv.sges))
        if null and status == abi.WC_LOC_LEN_ERR:
            super().complete_receive(transfer, abi.WC_WR_FLUSH_ERR, src_qp)


class OneByteTooLongSwallowed(Fault):
    """The room of a receive list with a null segment is rounded up: a message that is a byte longer is no error."""

    clause = "discard/completion"

    def check_room(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        room = sum(sge.length for sge in sges)
        if payload.length != room + 1 or not any(map(self.names_null_mr, sges)):
            super().check_room(transfer, sges, payload)
