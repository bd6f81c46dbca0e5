# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Right for null segments at aligned addresses and of one null MR; wrong at others, and where a list names two."""

from __future__ import annotations

from ..engine import abi
from ..engine.errors import WorkError
from ..engine.memory import Payload, Piece
from ..engine.objects import MR, SGE, Segment, Transfer
from .base import Fault, garbage
from .traffic import sges_of

PAGE = 4096
SHORT = 2048
"""Bytes. Longer segments go through another path, which is right."""


# Addresses


class OddAddressLeak(Fault):
    """A null segment that begins at an odd address, and is alone in its list, is written to."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive", "discard/read-response", "discard/atomic-result")

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if segment.addr % 2 and len(sges_of(transfer)) == 1:
            self.leak(segment, payload)


class PageEndGarbage(Fault):
    """What is gathered from a short null segment that ends where a page does is garbage."""

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        end = segment.addr + segment.length
        if segment.length < SHORT and end % PAGE == 0 and end < 1 << 64:
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class AcrossPageLeak(Fault):
    """Of a short null segment only the part in the first page is known to be null: what is behind it is written."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive", "discard/read-response", "discard/atomic-result")

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        left = -segment.addr % PAGE
        if segment.length < SHORT and 0 < left < segment.length:
            rest = Segment(
                segment.addr + left, segment.length - left, segment.lkey, segment.index, segment.offset + left
            )
            self.leak(rest, payload)


class Across_4gibRefused(Fault):
    """The end of a short null segment is computed in 32 bits: one across a multiple of 2^32 is refused."""

    clause = "allocate/max-length"
    touches = (
        "read/zeros",
        "read/mixed-gather",
        "discard/receive",
        "discard/read-response",
        "discard/atomic-result",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
    )

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and segment.length < SHORT and segment.addr >> 32 != (segment.addr + segment.length - 1) >> 32:
            raise WorkError(abi.WC_LOC_PROT_ERR, "it ends before it begins")
        return mr


class OtherMrLeak(Fault):
    """A null segment is known by being in the MR of the list's ordinary segments; in another MR it is written to."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        mrs = [self.lkeys[sge.lkey] for sge in sges_of(transfer)]
        ordinary = [mr for mr in mrs if not mr.null]
        if ordinary and not any(mr.covers(segment.addr, segment.length) for mr in ordinary):
            self.leak(segment, payload)


class AddressSeenBefore(Fault):
    """Addresses are looked up once for a list: a null segment where an ordinary one begins gathers what is there."""

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def is_seen(self, transfer: Transfer, segment: Segment) -> bool:
        before = sges_of(transfer)[: segment.index]
        return any(sge.addr == segment.addr and not self.names_null_mr(sge) for sge in before)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if transfer.requester and self.is_seen(transfer, segment):
            return self.memory.read(segment.addr, segment.length)
        return super().read_null(transfer, segment)


class AddressSeenBeforeWritten(AddressSeenBefore):
    """Addresses are looked up once for a list: a null segment where an ordinary one begins is written to as well."""

    clause = "discard/mixed-scatter"
    touches = ("read/mixed-gather",)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return super(AddressSeenBefore, self).read_null(transfer, segment)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if self.is_seen(transfer, segment):
            self.leak(segment, payload)


# Two null MRs


class OneNullMrAList(Fault):
    """Of a list the lkey of the first null segment alone is compared with: those of another null MR gather garbage."""

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")

    def is_known(self, transfer: Transfer, segment: Segment) -> bool:
        return segment.lkey == next(sge.lkey for sge in sges_of(transfer) if self.names_null_mr(sge))

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return super().read_null(transfer, segment) if self.is_known(transfer, segment) else garbage(segment.length)


class OneNullMrAListLeak(OneNullMrAList):
    """Of a list the lkey of the first null segment alone is compared with: those of another null MR are written to."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive", "discard/read-response")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return super(OneNullMrAList, self).read_null(transfer, segment)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if not self.is_known(transfer, segment):
            self.leak(segment, payload)


class TwoNullMrsCounted(Fault):
    """The completion of a receive counts what goes to the first of two null MRs only."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        sges = transfer.recv.sges if transfer.recv is not None else []
        lkeys = list(dict.fromkeys(sge.lkey for sge in sges if self.names_null_mr(sge)))
        if len(lkeys) > 1:
            transfer.length -= sum(min(sge.length, transfer.length) for sge in sges if sge.lkey in lkeys[1:])
        super().complete_receive(transfer, status, src_qp)


class TwoNullMrsMerged(Fault):
    """Two null segments in a row are made one, which has the length of the first if they are of two null MRs."""

    clause = "discard/mixed-scatter"

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        self.check_room(transfer, sges, payload)
        kept = [sge for index, sge in enumerate(sges) if not index or not self._are_two(sges[index - 1], sge)]
        if len(kept) < len(sges):
            room = sum(sge.length for sge in kept)
            payload = Payload(*payload.part(0, min(room, payload.length)))
        super().scatter(transfer, kept, payload)

    def _are_two(self, one: SGE, next_one: SGE) -> bool:
        return one.lkey != next_one.lkey and self.names_null_mr(one) and self.names_null_mr(next_one)
