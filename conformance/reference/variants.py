# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices that are right about null MRs in other ways than the default: the freedoms that ibv_alloc_null_mr(3) leaves.

A variant is a class that is put in front of the engine's Device; its name in `VARIANTS` is that of the class with
hyphens.
"""

from __future__ import annotations

import errno
from typing import Any

from .engine import abi
from .engine.attributes import DeviceAttributes
from .engine.device import Device
from .engine.errors import Refused, WorkError
from .engine.objects import MR, MW, PD, QP, SIZE_MAX, SRQ, Segment, Transfer
from .faults import name_of


class Variant(Device):
    """A conforming device."""


class RkeyZeroHandleZero(Variant):
    """rkey and handle of a null MR are 0."""

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.rkey = mr.handle = 0
        return mr


class LikeMlx5(Variant):
    """One lkey for the whole device that works before and after any allocation and on every PD, rkey and handle 0, no
    reference to the PD; type 1 binds are refused with EOPNOTSUPP."""

    null_mr_holds_pd = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.null_lkey = self.new_key()

    def new_null_mr(self, pd: PD) -> MR:
        return MR(pd, 0, SIZE_MAX, 0, 0, self.null_lkey, 0, 0, null=True)

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        if segment.lkey == self.null_lkey:
            return self.new_null_mr(transfer.pd)
        return super().find_local(transfer, segment, write)

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if mw.type == abi.MW_TYPE_1:
            raise Refused(errno.EOPNOTSUPP, "a memory window cannot be bound to a null MR")
        super().check_bind_to_null_mr(qp, mw, mr)


class BindFailsInCompletion(Variant):
    """Both types of bind to a null MR are posted and fail in the completion."""

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        raise WorkError(abi.WC_MW_BIND_ERR, "a memory window cannot be bound to a null MR")


class BindRefusedAtOnce(Variant):
    """Neither type of bind to a null MR can be posted: EPERM."""

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        raise Refused(errno.EPERM, "a memory window cannot be bound to a null MR")

    def check_send(self, qp: QP, wr: Any) -> None:
        super().check_send(qp, wr)
        if wr.opcode == abi.WR_BIND_MW and wr.bind_mr is not None and wr.bind_mr.null:
            self.check_bind_to_null_mr(qp, wr.mw, wr.bind_mr)


class NoSrq(Variant):
    """There are no shared receive queues."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_srq = attr.max_srq_wr = attr.max_srq_sge = 0
        attr.device_cap_flags &= ~(abi.DEVICE_SRQ_RESIZE | abi.DEVICE_XRC)
        return attr

    def create_srq(self, *arguments: Any, **named: Any) -> SRQ:
        raise Refused(errno.EOPNOTSUPP, "no shared receive queues")


class NoNullMr(Variant):
    """A device that has no null MRs and says so as libibverbs does: the operation is missing."""

    unsupported = frozenset({"alloc_null_mr"})


class RefusesNullMr(Variant):
    """A device that has no null MRs and says so itself."""

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(errno.EOPNOTSUPP, "no null MRs")


VARIANTS: dict[str, type[Variant]] = {name_of(variant): variant for variant in Variant.__subclasses__()}
