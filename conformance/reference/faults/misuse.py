# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong about what cannot be done with a null MR: ibv_rereg_mr and ibv_bind_mw."""

from __future__ import annotations

from typing import Any

from ..engine import abi
from ..engine.objects import MR, MW, PD, QP, Transfer
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
    """A bind to a null MR is refused, but only after the window's key was opened."""

    clause = "misuse/bind-harmless"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.opened: dict[int, MR] = {}

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        self.opened[mw.rkey >> 8] = mr
        super().check_bind_to_null_mr(qp, mw, mr)

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        if rkey >> 8 in self.opened:
            return self.opened[rkey >> 8], addr
        return super().find_remote(transfer, rkey, addr, length, access)

    def dealloc_mw(self, mw: MW) -> None:
        self.opened.pop(mw.rkey >> 8, None)
        super().dealloc_mw(mw)


class RefusedBindKillsQp(Fault):
    """ibv_bind_mw on a null MR fails at once, and the queue pair is in the error state afterwards."""

    clause = "misuse/bind-harmless"

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if mw.type == abi.MW_TYPE_1:
            self.to_error(qp)
        super().check_bind_to_null_mr(qp, mw, mr)
