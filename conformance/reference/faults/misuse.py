# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong about what cannot be done with a null MR: ibv_rereg_mr and ibv_bind_mw."""

from __future__ import annotations

from typing import Any

from ..engine import abi
from ..engine.objects import MR, MW, PD, QP, SIZE_MAX, SendWR, Transfer
from .base import Fault


class ReregAccepted(Fault):
    """ibv_rereg_mr of a null MR does nothing and says that it succeeded."""

    clause = "misuse/rereg-refused"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        return None


class ReregAccessAccepted(Fault):
    """Only IBV_REREG_MR_CHANGE_ACCESS alone is accepted."""

    clause = "misuse/rereg-refused"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if flags != abi.REREG_MR_CHANGE_ACCESS:
            super().rereg_null_mr(mr, flags, pd, addr, length, access)


class ReregNoFlagsAccepted(Fault):
    """ibv_rereg_mr without flags changes nothing, and says that it succeeded."""

    clause = "misuse/rereg-refused"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if flags:
            super().rereg_null_mr(mr, flags, pd, addr, length, access)


class ReregMakesOrdinary(Fault):
    """ibv_rereg_mr with a translation is refused, but the lkey has it: the MR covers that memory, null no more."""

    clause = "misuse/rereg-harmless"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if flags & abi.REREG_MR_CHANGE_TRANSLATION:
            mr.null, mr.addr, mr.iova, mr.length, mr.access = False, addr, addr, length, abi.ACCESS_LOCAL_WRITE
        super().rereg_null_mr(mr, flags, pd, addr, length, access)


class ReregBreaks(Fault):
    """ibv_rereg_mr is refused, but the lkey is gone."""

    clause = "misuse/rereg-harmless"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        self.lkeys.pop(mr.lkey, None)
        super().rereg_null_mr(mr, flags, pd, addr, length, access)


class ReregChangesLength(Fault):
    """ibv_rereg_mr with a translation writes the new length into struct ibv_mr, and is refused then."""

    clause = "misuse/rereg-harmless"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if flags & abi.REREG_MR_CHANGE_TRANSLATION:
            mr.length = length
        super().rereg_null_mr(mr, flags, pd, addr, length, access)


class ReregMovesPd(Fault):
    """ibv_rereg_mr with a new PD is refused after the MR was moved there."""

    clause = "misuse/rereg-harmless"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if flags & abi.REREG_MR_CHANGE_PD and pd is not None:
            mr.pd.users.discard(mr)
            mr.pd = pd
            pd.users.add(mr)
        super().rereg_null_mr(mr, flags, pd, addr, length, access)


class BindAccepted(Fault):
    """A window of the type that is wrong can be bound to a null MR, and a peer can use it."""

    clause = "misuse/bind-refused"
    touches = ("misuse/bind-harmless",)
    wrong: tuple[int, ...] = (abi.MW_TYPE_1, abi.MW_TYPE_2)

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if mw.type not in self.wrong:
            super().check_bind_to_null_mr(qp, mw, mr)

    def check_window(self, mr: MR | None, addr: int, length: int, access: int) -> None:
        if mr is None or not mr.null:
            super().check_window(mr, addr, length, access)


class BindType1Accepted(BindAccepted):
    """ibv_bind_mw binds a type 1 window to a null MR, and a peer can use it."""

    touches = ("misuse/bind-harmless",)
    wrong = (abi.MW_TYPE_1,)


class BindType2Accepted(BindAccepted):
    """A posted bind of a type 2 window to a null MR succeeds, and a peer can use it."""

    touches = ("misuse/bind-harmless",)
    wrong = (abi.MW_TYPE_2,)


class BindOfAllAccepted(BindAccepted):
    """Only a window on all that a null MR covers, from address 0, can be bound to it: no bounds are wrong there."""

    touches = ("misuse/bind-harmless",)
    asked = (0, 0)

    def accepts(self, addr: int, length: int) -> bool:
        return addr == 0 and length == SIZE_MAX

    def bind_mw(self, qp: QP, mw: MW, wr: SendWR) -> None:
        self.asked = (wr.bind_addr, wr.bind_length)
        super().bind_mw(qp, mw, wr)

    def bind(self, qp: QP, mw: MW, mr: MR | None, rkey: int, addr: int, length: int, access: int) -> None:
        self.asked = (addr, length)
        super().bind(qp, mw, mr, rkey, addr, length, access)

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if not self.accepts(*self.asked):
            Fault.check_bind_to_null_mr(self, qp, mw, mr)


class BindOfSomeAccepted(BindOfAllAccepted):
    """Only a window on some bytes of a null MR that are memory of the program can be bound to it."""

    touches = ("misuse/bind-harmless",)

    def accepts(self, addr: int, length: int) -> bool:
        return addr != 0 and 0 < length < SIZE_MAX


class BindType2Ignored(Fault):
    """A posted bind of a type 2 window to a null MR completes with success, though it opens nothing."""

    clause = "misuse/bind-refused"

    def bind(self, qp: QP, mw: MW, mr: MR | None, rkey: int, addr: int, length: int, access: int) -> None:
        if mr is None or not mr.null or mw.type == abi.MW_TYPE_1:
            super().bind(qp, mw, mr, rkey, addr, length, access)


class RefusedBindKillsNullMr(Fault):
    """A bind to a null MR is refused, and its lkey is gone."""

    clause = "misuse/bind-harmless"

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        self.lkeys.pop(mr.lkey, None)
        super().check_bind_to_null_mr(qp, mw, mr)


class RefusedBindOpens(Fault):
    """A bind of some bytes of a null MR is refused, but only after the window's key was opened."""

    clause = "misuse/bind-harmless"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.opened: dict[int, MR] = {}

    def opens(self, length: int) -> bool:
        return length > 0

    def bind_mw(self, qp: QP, mw: MW, wr: SendWR) -> None:
        self.let_in(mw, wr.bind_mr, wr.bind_length)
        super().bind_mw(qp, mw, wr)

    def bind(self, qp: QP, mw: MW, mr: MR | None, rkey: int, addr: int, length: int, access: int) -> None:
        self.let_in(mw, mr, length)
        super().bind(qp, mw, mr, rkey, addr, length, access)

    def let_in(self, mw: MW, mr: MR | None, length: int) -> None:
        if mr is not None and mr.null and self.opens(length):
            self.opened[mw.rkey >> 8] = mr

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        if rkey >> 8 in self.opened:
            return self.opened[rkey >> 8], addr
        return super().find_remote(transfer, rkey, addr, length, access)

    def dealloc_mw(self, mw: MW) -> None:
        self.opened.pop(mw.rkey >> 8, None)
        super().dealloc_mw(mw)


class RefusedEmptyBindOpens(RefusedBindOpens):
    """A bind of no bytes of a null MR is refused, but the window's key was opened: length 0 stands for everything."""

    def opens(self, length: int) -> bool:
        return length == 0


class RefusedBindOpensItsQp(Fault):
    """An ibv_bind_mw to a null MR fails at once, but the window's key is open on the queue pair that it names."""

    clause = "misuse/bind-harmless"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.opened: dict[int, tuple[MR, QP]] = {}

    def is_open_on(self, qp: QP, bound_on: QP) -> bool:
        return qp is bound_on

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if mw.type == abi.MW_TYPE_1:
            self.opened[mw.rkey >> 8] = (mr, qp)
        super().check_bind_to_null_mr(qp, mw, mr)

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        mr, qp = self.opened.get(rkey >> 8, (None, None))
        if mr is not None and qp is not None and self.is_open_on(transfer.qp, qp):
            return mr, addr
        return super().find_remote(transfer, rkey, addr, length, access)


class RefusedBindOpensOtherQps(RefusedBindOpensItsQp):
    """An ibv_bind_mw to a null MR fails at once, but the window's key is open on every other queue pair."""

    def is_open_on(self, qp: QP, bound_on: QP) -> bool:
        return qp is not bound_on


class RefusedBindKillsQp(Fault):
    """ibv_bind_mw on a null MR fails at once, and the queue pair is in the error state afterwards."""

    clause = "misuse/bind-harmless"

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if mw.type == abi.MW_TYPE_1:
            self.to_error(qp)
        super().check_bind_to_null_mr(qp, mw, mr)
