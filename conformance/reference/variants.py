# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices that are right about null MRs in other ways than the default: the freedoms that ibv_alloc_null_mr(3) leaves,
and what devices lack or have in another way.

A variant is a class that is put in front of the engine's Device; its name in `VARIANTS` is that of the class with
hyphens.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, ClassVar

from .engine import abi
from .engine.attributes import DeviceAttributes, PortAttributes
from .engine.device import Device
from .engine.errors import Refused, WorkError
from .engine.objects import (
    CQ,
    GID,
    MR,
    MW,
    PD,
    QP,
    SIZE_MAX,
    SRQ,
    XRCD,
    Context,
    EventQueue,
    Segment,
    SendWR,
    Transfer,
)
from .faults import name_of


class Variant(Device):
    """A conforming device."""


# What a null MR looks like


class RkeyZeroHandleZero(Variant):
    """rkey and handle of a null MR are 0."""

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.rkey = mr.handle = 0
        return mr


class RkeyIsLkey(Variant):
    """rkey has the number of the lkey, and opens nothing."""

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.rkey = mr.lkey
        return mr


class AddrNotNull(Variant):
    """addr is not NULL, which says nothing: the MR covers every address."""

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.addr = 0x1000
        return mr


class LengthMaxMrSize(Variant):
    """length is the device's max_mr_size, 2^48."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_mr_size = 2**48
        return attr

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.length = self.attr.max_mr_size
        return mr


class NoPdReference(Variant):
    """A null MR of its own, but without a kernel object: it does not keep the PD from being deallocated."""

    null_mr_holds_pd = False


class LkeyOfPd(Variant):
    """The null MRs of a PD share one lkey, which works as long as there is one of them."""

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.lkey = next((key for key, other in self.lkeys.items() if other.null and other.pd is pd), mr.lkey)
        return mr

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        for other in mr.pd.users:
            if isinstance(other, MR) and other.lkey == mr.lkey:
                self.lkeys[mr.lkey] = other


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


# How misuse is refused


class ReregReturnsErrno(Variant):
    """ibv_rereg_mr returns a positive errno and not one of IBV_REREG_MR_ERR_*."""

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        raise Refused(errno.EOPNOTSUPP, "a null MR cannot be re-registered")


class BindFailsInCompletion(Variant):
    """Both types of bind to a null MR are posted and fail in the completion; the queue pair is in error then."""

    status = abi.WC_MW_BIND_ERR

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        raise WorkError(self.status, "a memory window cannot be bound to a null MR")


class BindFailsWithProtectionError(BindFailsInCompletion):
    """Both types of bind fail in the completion, with IBV_WC_LOC_PROT_ERR."""

    status = abi.WC_LOC_PROT_ERR


class BindFailsQpGoesOn(BindFailsInCompletion):
    """Both types of bind fail in the completion, and the queue pair goes on as if nothing had been posted."""

    refused_on: QP | None = None

    def bind_window(self, qp: QP, wr: SendWR) -> None:
        try:
            super().bind_window(qp, wr)
        except WorkError:
            self.refused_on = qp
            raise

    def stop_sending(self, qp: QP) -> None:
        if self.refused_on is not qp:
            super().stop_sending(qp)
        self.refused_on = None


class BindRefusedAtOnce(Variant):
    """Neither type of bind to a null MR can be posted: EPERM."""

    error = errno.EPERM

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        raise Refused(self.error, "a memory window cannot be bound to a null MR")

    def check_send(self, qp: QP, wr: SendWR) -> None:
        super().check_send(qp, wr)
        if wr.opcode == abi.WR_BIND_MW and wr.mw is not None and wr.bind_mr is not None and wr.bind_mr.null:
            self.check_bind_to_null_mr(qp, wr.mw, wr.bind_mr)


class BindRefusedWithEinval(BindRefusedAtOnce):
    """Neither type of bind to a null MR can be posted: EINVAL."""

    error = errno.EINVAL


class BindRefusedWithEnotsup(BindRefusedAtOnce):
    """Neither type of bind to a null MR can be posted: ENOTSUP."""

    error = errno.ENOTSUP


class OtherStatuses(Variant):
    """Requesters learn of the same faults by other statuses than most devices report."""

    _OTHER: ClassVar = {
        abi.WC_REM_INV_REQ_ERR: abi.WC_REM_OP_ERR,
        abi.WC_REM_ACCESS_ERR: abi.WC_REM_INV_REQ_ERR,
        abi.WC_MW_BIND_ERR: abi.WC_LOC_QP_OP_ERR,
    }

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        super().complete_send(qp, wr, self._OTHER.get(status, status))


class UcTellsOfRefusals(Variant):
    """A requester over UC, which need not learn that its rkey was refused, learns it."""

    def deliver(self, qp: QP, wr: SendWR, respond: Callable[[QP], Any]) -> Any:
        peer = self.find_peer(qp, wr) if qp.qp_type == abi.QPT_UC else None
        return respond(peer) if peer is not None else super().deliver(qp, wr, respond)


class NothingToInvalidate(Variant):
    """To invalidate a key that is no window's, a null MR's for instance, does nothing, and is no error."""

    def invalidate(self, qp: QP, rkey: int) -> None:
        if isinstance(self.rkeys.get(rkey), MW):
            super().invalidate(qp, rkey)


# What a device lacks


class NoNullMr(Variant):
    """A device that has no null MRs and says so as libibverbs does: the operation is missing."""

    unsupported = frozenset({"alloc_null_mr"})


class RefusesNullMr(Variant):
    """A device that has no null MRs and says so itself."""

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(errno.EOPNOTSUPP, "no null MRs")


class NullMrNotPermitted(Variant):
    """A function of a device that may have no null MRs: they are refused with EPERM."""

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(errno.EPERM, "no null MRs for this function")


class NoSrq(Variant):
    """There are no shared receive queues, and so no XRC."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_srq = attr.max_srq_wr = attr.max_srq_sge = 0
        attr.device_cap_flags &= ~(abi.DEVICE_SRQ_RESIZE | abi.DEVICE_XRC)
        return attr

    def create_srq(self, *arguments: Any, **named: Any) -> SRQ:
        raise Refused(errno.EOPNOTSUPP, "no shared receive queues")


class NoXrc(Variant):
    """There is no XRC."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.device_cap_flags &= ~abi.DEVICE_XRC
        return attr


class NoXrcOperations(NoXrc):
    """There is no XRC, and the provider does not have its operations: ENOSYS."""

    unsupported = frozenset({"open_xrcd", "close_xrcd", "create_srq_ex"})

    def open_xrcd(self, context: Context, key: object | None) -> XRCD:
        raise Refused(errno.ENOSYS, "no XRC")


class NoMw(Variant):
    """There are no memory windows."""

    unsupported = frozenset({"alloc_mw", "dealloc_mw", "bind_mw"})

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_mw = 0
        attr.device_cap_flags &= ~(abi.DEVICE_MEM_WINDOW | abi.DEVICE_MEM_WINDOW_TYPE_2B)
        return attr


class MwType_1Only(Variant):
    """There are no memory windows of type 2."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.device_cap_flags &= ~abi.DEVICE_MEM_WINDOW_TYPE_2B
        return attr


class NoAtomics(Variant):
    """There are no atomics, and no MR or queue pair may allow them."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.atomic_cap = abi.ATOMIC_NONE
        return attr

    def check_region(self, addr: int, length: int, access: int) -> None:
        if access & abi.ACCESS_REMOTE_ATOMIC:
            raise Refused(errno.EOPNOTSUPP, "no atomics")
        super().check_region(addr, length, access)

    def check_send(self, qp: QP, wr: SendWR) -> None:
        if wr.opcode in (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD):
            raise Refused(errno.EINVAL, "no atomics")
        super().check_send(qp, wr)


class NoOdp(Variant):
    """There is no on-demand paging."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.odp_general_caps = attr.rc_odp_caps = attr.uc_odp_caps = attr.ud_odp_caps = attr.xrc_odp_caps = 0
        return attr


class NoImplicitOdp(Variant):
    """On-demand paging is of MRs with an address and a length."""

    def check_region(self, addr: int, length: int, access: int) -> None:
        if access & abi.ACCESS_ON_DEMAND and length == SIZE_MAX:
            raise Refused(errno.EOPNOTSUPP, "no implicit MRs")
        super().check_region(addr, length, access)


class ZeroBasedIgnored(Variant):
    """IBV_ACCESS_ZERO_BASED is taken and has no effect: an MR begins at its address."""

    def reg_mr(self, pd: PD, addr: int, length: int, iova: int, access: int) -> MR:
        return super().reg_mr(pd, addr, length, iova, access & ~abi.ACCESS_ZERO_BASED)


class NoWrApi(Variant):
    """Queue pairs cannot be made for ibv_wr_start(3) and its family."""

    def create_qp(self, *arguments: Any, **named: Any) -> QP:
        if named.get("extended") or arguments[-1] is True:
            raise Refused(errno.EOPNOTSUPP, "no ibv_wr_start")
        return super().create_qp(*arguments, **named)


class NoCqEx(Variant):
    """There is no ibv_create_cq_ex(3)."""

    def create_cq(self, context: Context, cqe: int, channel: EventQueue | None, extended: bool) -> CQ:
        if extended:
            raise Refused(errno.EOPNOTSUPP, "no extended CQs")
        return super().create_cq(context, cqe, channel, extended)


# Limits


class MaxSge_1(Variant):
    """A list has one segment."""

    most = 1

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_sge = attr.max_sge_rd = attr.max_srq_sge = self.most
        return attr


class MaxSge_2(MaxSge_1):
    """A list has at most two segments."""

    most = 2


class MaxSge_6MaxSgeRd_1(MaxSge_1):
    """A list has at most six segments, that of an RDMA READ one."""

    most = 6

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_sge_rd = 1
        return attr


class MaxSgeRd_0(Variant):
    """max_sge_rd is 0, which means 1."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_sge_rd = 0
        return attr


class MaxSrqSge_2(Variant):
    """The lists of an SRQ are shorter than those of a receive queue."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_srq_sge = 2
        return attr


class MaxMsgSz_8192(Variant):
    """A message has at most 8 KiB."""

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.max_msg_sz = 8192
        return port


class Mtu_256(Variant):
    """The MTU is 256 bytes."""

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.active_mtu = abi.MTU_1024 - 2
        return port


class Mtu_4096(Variant):
    """The MTU is 4096 bytes."""

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.active_mtu = abi.MTU_4096
        return port


# Ports


class InfinibandPort(Variant):
    """The port is InfiniBand, with a LID."""

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.link_layer = abi.LINK_LAYER_INFINIBAND
        port.lid, port.sm_lid = 4 * self.number + port_num, 1
        port.gids = [GID(port.gids[0].raw, abi.GID_TYPE_IB)]
        return port


class InfinibandGrhRequired(InfinibandPort):
    """InfiniBand, where every address must have a GRH (IBV_QPF_GRH_REQUIRED)."""

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.flags = abi.QPF_GRH_REQUIRED
        return port


class InfinibandSeveralPkeys(InfinibandPort):
    """InfiniBand, limited member of the default partition and full member of another."""

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.pkeys = [0x7FFF, 0, 0x8001, 0x8002]
        port.pkey_tbl_len = len(port.pkeys)
        return port


class ManyGids(Variant):
    """The GID of an IPv4 address is far behind in a table with holes."""

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        v1, v2 = port.gids
        hole = GID(bytes(16), abi.GID_TYPE_ROCE_V1)
        port.gids = [v1, GID(v1.raw, abi.GID_TYPE_ROCE_V2), *[hole] * 201, GID(v2.raw, abi.GID_TYPE_ROCE_V1), v2]
        port.gid_tbl_len = 256
        return port


class RoceV1Only(Variant):
    """The port has GIDs of RoCE v1 only."""

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.gids = [gid for gid in port.gids if gid.type == abi.GID_TYPE_ROCE_V1]
        return port


class Iwarp(Variant):
    """An RNIC: RC alone, which a connection manager connects, and no SRQ, atomics or memory windows."""

    node_type = abi.NODE_RNIC
    transport_type = abi.TRANSPORT_IWARP

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.max_srq = attr.max_srq_wr = attr.max_srq_sge = attr.max_mw = 0
        attr.max_sge_rd = 1
        attr.atomic_cap = abi.ATOMIC_NONE
        attr.device_cap_flags &= ~(abi.DEVICE_SRQ_RESIZE | abi.DEVICE_XRC)
        attr.device_cap_flags &= ~(abi.DEVICE_MEM_WINDOW | abi.DEVICE_MEM_WINDOW_TYPE_2B)
        return attr

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.gids = [GID(port.gids[0].raw, abi.GID_TYPE_IB)]
        port.pkeys, port.pkey_tbl_len = [], 0
        return port

    def create_qp(self, context: Context, pd: PD | None, qp_type: int, *rest: Any, **named: Any) -> QP:
        if qp_type != abi.QPT_RC:
            raise Refused(errno.EOPNOTSUPP, "iWARP has RC alone")
        return super().create_qp(context, pd, qp_type, *rest, **named)

    def modify_qp(self, qp: QP, mask: int, attr: dict[str, Any]) -> None:
        if attr.get("qp_state") in (abi.QPS_RTR, abi.QPS_RTS):
            raise Refused(errno.EINVAL, "without a connection manager there is no connection")
        super().modify_qp(qp, mask, attr)

    def check_region(self, addr: int, length: int, access: int) -> None:
        if access & abi.ACCESS_REMOTE_ATOMIC:
            raise Refused(errno.EOPNOTSUPP, "no atomics")
        super().check_region(addr, length, access)


class UdAndItsOwn(Variant):
    """Of the transports of InfiniBand there is UD alone, beside one that is no part of verbs."""

    node_type = abi.NODE_UNSPECIFIED
    transport_type = abi.TRANSPORT_UNSPECIFIED

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.link_layer = abi.LINK_LAYER_UNSPECIFIED
        port.gids = [GID(port.gids[0].raw, abi.GID_TYPE_IB)]
        return port

    def create_qp(self, context: Context, pd: PD | None, qp_type: int, *rest: Any, **named: Any) -> QP:
        if qp_type != abi.QPT_UD:
            raise Refused(errno.EINVAL, "only UD")
        return super().create_qp(context, pd, qp_type, *rest, **named)


class TwoPortsOneDown(Variant):
    """There are two ports, the first of which is down."""

    def describe_device(self) -> DeviceAttributes:
        attr = super().describe_device()
        attr.phys_port_cnt = 2
        return attr

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        if port_num == 1:
            port.state = abi.PORT_DOWN
        return port


VARIANTS: dict[str, type[Variant]] = {
    name_of(value): value
    for value in list(vars().values())
    if isinstance(value, type) and issubclass(value, Variant) and value is not Variant
}
