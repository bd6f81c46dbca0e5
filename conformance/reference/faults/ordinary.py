# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Right beside plain memory, wrong where the ordinary memory of a transfer is registered or named in another way."""

from __future__ import annotations

from ..engine import abi
from ..engine.memory import Payload, Piece, Zeros
from ..engine.objects import MR, MW, SIZE_MAX, Segment, Transfer
from .base import Fault, garbage
from .traffic import sges_of

RELAXED_ORDERING = 1 << 20
"""enum ibv_access_flags"""


def beside(fault: Fault, transfer: Transfer) -> list[MR]:
    """The ordinary MRs that the list of a transfer names."""
    mrs = (fault.lkeys.get(sge.lkey) for sge in sges_of(transfer))
    return [mr for mr in mrs if mr is not None and not mr.null]


class OnDemandBesideNull(Fault):
    """In a list with memory on demand, a null segment is taken for a page that is not there yet: it gathers garbage."""

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if any(mr.access & abi.ACCESS_ON_DEMAND and mr.length < SIZE_MAX for mr in beside(self, transfer)):
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class ImplicitMrLeak(Fault):
    """In a list with an implicit MR, which covers every address, a null segment is taken for one of that MR."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if any(mr.access & abi.ACCESS_ON_DEMAND and mr.length == SIZE_MAX for mr in beside(self, transfer)):
            self.leak(segment, payload)


class ZeroBasedLeak(Fault):
    """In a list with a zero-based MR, a null segment is written to."""

    clause = "discard/leaves-memory"
    touches = ("discard/receive",)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if any(mr.access & abi.ACCESS_ZERO_BASED for mr in beside(self, transfer)):
            self.leak(segment, payload)


class RelaxedOrderingBehindNull(Fault):
    """An ordinary segment with relaxed ordering behind a null one does not get its bytes."""

    clause = "discard/mixed-scatter"
    touches = ("read/mixed-gather",)

    def write_ordinary(self, transfer: Transfer, mr: MR, segment: Segment, payload: Payload) -> None:
        before = sges_of(transfer)[: segment.index]
        if not (mr.access & RELAXED_ORDERING and any(map(self.names_null_mr, before))):
            super().write_ordinary(transfer, mr, segment, payload)


class NothingByWindow(Fault):
    """What is gathered from a null segment, and written by the rkey of a window, does not arrive."""

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")

    def write_remote(self, transfer: Transfer, mr: MR, segment: Segment, payload: Payload) -> None:
        by_window = isinstance(self.rkeys.get(transfer.wr.rkey), MW)
        if not by_window or not any(isinstance(piece, Zeros) for piece in payload.pieces):
            super().write_remote(transfer, mr, segment, payload)


class ReadByWindowLeak(Fault):
    """What an RDMA READ or an atomic gets by the rkey of a window is written at the address of a null segment."""

    clause = "discard/leaves-memory"
    touches = ("discard/read-response", "discard/atomic-result")

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.requester and isinstance(self.rkeys.get(transfer.wr.rkey), MW):
            self.leak(segment, payload)
