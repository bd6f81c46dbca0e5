# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong only after something else was done: one request alone, on fresh objects, shows nothing."""

from __future__ import annotations

import errno
from typing import Any

from ..engine import abi
from ..engine.device import Device
from ..engine.errors import Refused, WorkError
from ..engine.memory import Payload, Piece
from ..engine.objects import MR, MW, PD, QP, SGE, Segment, Transfer
from .base import Fault, garbage
from .misuse import BindAccepted


class Resets(Device):
    """Knows which queue pairs were reset after they had been in use."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.used_before: set[QP] = set()

    def reset(self, qp: QP) -> None:
        if qp.state in (abi.QPS_RTS, abi.QPS_ERR):
            self.used_before.add(qp)
        super().reset(qp)

    def destroy_qp(self, qp: QP) -> None:
        super().destroy_qp(qp)
        self.used_before.discard(qp)


class LkeyRefusedAfterReset(Resets, Fault):
    """A queue pair that was reset and connected again does not know the lkeys of null MRs."""

    clause = "allocate/lkey-valid"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and transfer.qp in self.used_before:
            raise WorkError(abi.WC_LOC_PROT_ERR, f"lkey {segment.lkey:#x} is not known any more")
        return mr


class ReadsGarbageAfterReset(Resets, Fault):
    """A queue pair that was reset and connected again gathers from null MRs what is left of its old messages."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if transfer.qp in self.used_before else super().read_null(transfer, segment)


class ScatterStopsAfterReset(Resets, Fault):
    """On a queue pair that was reset and connected again, scattering ends at the first null segment."""

    clause = "discard/mixed-scatter"

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        self.check_room(transfer, sges, payload)
        if transfer.qp in self.used_before:
            nulls = [index for index, sge in enumerate(sges) if self.names_null_mr(sge)]
            room = sum(sge.length for sge in sges[: nulls[0]]) if nulls else payload.length
            payload = Payload(*payload.part(0, min(room, payload.length)))
        super().scatter(transfer, sges, payload)


class NoByteLenAfterReset(Resets, Fault):
    """On a queue pair that was reset and connected again, byte_len of what null MRs take is 0."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        recv = transfer.recv
        if transfer.qp in self.used_before and recv and all(map(self.names_null_mr, recv.sges)):
            transfer.length = 0
        super().complete_receive(transfer, status, src_qp)


class ResetSpoilsOthers(Fault):
    """A queue pair that is reset takes the zeros along: the others of its PD gather garbage from null MRs."""

    clause = "allocate/many-queue-pairs"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.spoilt: set[QP] = set()

    def modify_qp(self, qp: QP, mask: int, attr: dict[str, Any]) -> None:
        super().modify_qp(qp, mask, attr)
        if qp.state == abi.QPS_RESET:
            self.spoilt |= {other for other in self.qps.values() if other.pd is qp.pd and other.state == abi.QPS_RTS}

    def reset(self, qp: QP) -> None:
        super().reset(qp)
        self.spoilt.discard(qp)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if transfer.qp in self.spoilt else super().read_null(transfer, segment)


class AllocFailsBesideAnError(Fault):
    """ibv_alloc_null_mr fails with ENOMEM while a queue pair of the context is in the error state."""

    clause = "allocate/coexist"

    def alloc_null_mr(self, pd: PD) -> MR:
        if any(qp.context is pd.context and qp.state == abi.QPS_ERR for qp in self.qps.values()):
            raise Refused(errno.ENOMEM, "the device recovers from an error")
        return super().alloc_null_mr(pd)


class LeaksOnceMemoryIsRegistered(Fault):
    """A receive that waits while an ordinary MR is registered on its PD takes the null segment's address for real."""

    clause = "discard/leaves-memory"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.waited: list[Any] = []

    def reg_mr(self, pd: PD, addr: int, length: int, iova: int, access: int) -> MR:
        self.waited = [recv for qp in self.qps.values() if qp.pd is pd for recv in qp.rq.entries]
        return super().reg_mr(pd, addr, length, iova, access)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.recv is not None and any(recv is transfer.recv for recv in self.waited):
            self.leak(segment, payload)
        super().write_null(transfer, segment, payload)


class ReregAcceptedAfterUse(Fault):
    """ibv_rereg_mr of a null MR is refused until the first work request uses it."""

    clause = "misuse/rereg-refused"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.used: set[MR] = set()

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        self.used.add(mr)
        return mr

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if mr not in self.used:
            super().rereg_null_mr(mr, flags, pd, addr, length, access)


class ReregTwiceBreaks(Fault):
    """ibv_rereg_mr of a null MR is refused; but the second time, the lkey is gone."""

    clause = "misuse/rereg-harmless"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.refused: set[MR] = set()

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if mr in self.refused:
            self.lkeys.pop(mr.lkey, None)
        self.refused.add(mr)
        super().rereg_null_mr(mr, flags, pd, addr, length, access)


class BindAcceptedTheSecondTime(BindAccepted):
    """A window can be bound to a null MR to which a bind was refused before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.refused: set[MR] = set()

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if mr not in self.refused:
            self.refused.add(mr)
            Fault.check_bind_to_null_mr(self, qp, mw, mr)


class BindSpoilsWaitingReceives(Fault):
    """A bind to a null MR is refused, and receives that wait and name it are spoilt."""

    clause = "misuse/bind-harmless"

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        for other in self.qps.values():
            for recv in other.rq.entries:
                recv.sges = [sge._replace(lkey=0) if sge.lkey == mr.lkey else sge for sge in recv.sges]
        super().check_bind_to_null_mr(qp, mw, mr)


class DeregBusyAfterFlush(Fault):
    """A null MR that a flushed receive named counts as in use for ever: ibv_dereg_mr returns EBUSY."""

    clause = "free/succeeds"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.flushed: set[int] = set()

    def flush_receives(self, qp: QP) -> None:
        self.flushed.update(sge.lkey for recv in qp.rq.entries for sge in recv.sges)
        super().flush_receives(qp)

    def free_null_mr(self, mr: MR) -> None:
        if mr.lkey in self.flushed:
            raise Refused(errno.EBUSY, "a receive names the null MR")
        super().free_null_mr(mr)


class DeregSpoilsWaitingReceives(Fault):
    """Null MRs are kept in a list: when one is freed, receives that wait and name a later one name none any more."""

    clause = "free/leaves-others"

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        for qp in self.qps.values():
            for recv in qp.rq.entries if qp.pd is mr.pd else ():
                recv.sges = [
                    sge._replace(lkey=mr.lkey) if self.names_null_mr(sge) and sge.lkey > mr.lkey else sge
                    for sge in recv.sges
                ]


class SecondUseOfAnLkeyLeaks(Fault):
    """Lkeys of freed null MRs are given again. An SRQ that knows one from its first use then takes it for that of an
    ordinary MR: what is received is written at the segment's address."""

    clause = "free/leaves-others"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.freed: list[int] = []
        self.known: dict[tuple[object, int], MR] = {}

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        if self.freed:
            mr.lkey = self.freed.pop()
        return mr

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        self.freed.append(mr.lkey)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        now = self.lkeys[segment.lkey]
        if transfer.srq is not None and self.known.setdefault((transfer.srq, segment.lkey), now) is not now:
            self.leak(segment, payload)
        super().write_null(transfer, segment, payload)


class HoldsPdAfterAnError(Fault):
    """A null MR that is freed while a queue pair of its PD is in the error state counts as a user of it for ever."""

    clause = "free/releases-pd"

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        if any(qp.pd is mr.pd and qp.state == abi.QPS_ERR for qp in self.qps.values()):
            mr.pd.users.add(mr)
