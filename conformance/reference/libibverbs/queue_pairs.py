# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Queue pairs and address handles."""

import errno
from typing import Any

from ..engine import abi, grh, states
from ..engine.errors import Refused
from ..engine.objects import AH, QP, AddressVector, Capabilities
from ..engine.transfers import OPCODES
from . import c
from .calls import verb
from .devices import context_of, port_of
from .memory_regions import pd_of
from .structs import cqs, fill, next_handle, qps, srqs, structs
from .wr_start import batches


def _cap(struct: Any) -> Capabilities:
    return Capabilities(
        struct.max_send_wr, struct.max_recv_wr, struct.max_send_sge, struct.max_recv_sge, struct.max_inline_data
    )


def _create_qp(pointer: Any, pd: Any, xrcd: Any, init: Any, extended: bool) -> Any:
    context = context_of(pointer)
    qp = context.device.create_qp(
        context,
        pd_of(pd) if pd else None,
        int(init.qp_type),
        _cap(init.cap),
        cqs[init.send_cq.handle] if init.send_cq else None,
        cqs[init.recv_cq.handle] if init.recv_cq else None,
        srqs[init.srq.handle] if init.srq else None,
        structs.maybe(xrcd),
        bool(init.sq_sig_all),
        extended,
    )
    struct = _qp_struct(pointer, qp, init.qp_context)
    struct.pd = pd
    struct.send_cq, struct.recv_cq, struct.srq = init.send_cq, init.recv_cq, init.srq
    return struct


def _qp_struct(pointer: Any, qp: QP, qp_context: Any) -> Any:
    whole = structs.make("struct ibv_qp_ex", qp)
    if qp.extended:
        c.lib.fill_qp(whole)
    struct = c.ffi.addressof(whole, "qp_base")
    struct.context = pointer
    struct.qp_context = qp_context
    struct.handle = next_handle()
    struct.qp_num = qp.qp_num
    struct.qp_type = qp.qp_type
    struct.state = qp.state
    qps[struct.handle] = qp
    return struct


@verb
def ibv_create_qp(pd: Any, init: Any) -> Any:
    return _create_qp(pd.context, pd, c.ffi.NULL, init, False)


# enum ibv_qp_init_attr_mask, ibv_qp_create_flags
_INIT_PD, _INIT_XRCD, _INIT_CREATE_FLAGS, _INIT_SEND_OPS = 1 << 0, 1 << 1, 1 << 2, 1 << 6
_BLOCK_SELF_MULTICAST = 1 << 1


@verb
def create_qp_ex(pointer: Any, init: Any) -> Any:
    mask = init.comp_mask
    if mask & ~(_INIT_PD | _INIT_XRCD | _INIT_CREATE_FLAGS | _INIT_SEND_OPS):
        raise Refused(errno.EOPNOTSUPP, f"comp_mask {mask:#x}")
    # There is no multicast, so none comes back.
    if mask & _INIT_CREATE_FLAGS and init.create_flags & ~_BLOCK_SELF_MULTICAST:
        raise Refused(errno.EOPNOTSUPP, f"create_flags {init.create_flags:#x}")
    extended = bool(mask & _INIT_SEND_OPS)
    if extended:
        _check_send_ops(int(init.qp_type), init.send_ops_flags)
    pd = init.pd if mask & _INIT_PD else c.ffi.NULL
    xrcd = init.xrcd if mask & _INIT_XRCD else c.ffi.NULL
    return _create_qp(pointer, pd, xrcd, init, extended)


# enum ibv_qp_create_send_ops_flags, by bit.
_SEND_OPS = (
    abi.WR_RDMA_WRITE,
    abi.WR_RDMA_WRITE_WITH_IMM,
    abi.WR_SEND,
    abi.WR_SEND_WITH_IMM,
    abi.WR_RDMA_READ,
    abi.WR_ATOMIC_CMP_AND_SWP,
    abi.WR_ATOMIC_FETCH_AND_ADD,
    abi.WR_LOCAL_INV,
    abi.WR_BIND_MW,
    abi.WR_SEND_WITH_INV,
)


def _check_send_ops(qp_type: int, flags: int) -> None:
    if flags >> len(_SEND_OPS):
        raise Refused(errno.EOPNOTSUPP, f"send_ops_flags {flags:#x}")
    for bit, opcode in enumerate(_SEND_OPS):
        if flags >> bit & 1 and opcode not in OPCODES.get(qp_type, ()):
            raise Refused(errno.EOPNOTSUPP, f"send_ops_flags bit {bit} on a queue pair of type {qp_type}")


@verb
def open_qp(pointer: Any, attr: Any) -> Any:
    qp = context_of(pointer).device.open_qp(structs.of(attr.xrcd), attr.qp_num)
    return _qp_struct(pointer, qp, attr.qp_context)


@verb
def ibv_qp_to_qp_ex(pointer: Any) -> Any:
    extended = qps[pointer.handle].extended
    return c.ffi.cast("struct ibv_qp_ex *", pointer) if extended else c.ffi.NULL


@verb
def ibv_destroy_qp(pointer: Any) -> int:
    qp = qps[pointer.handle]
    qp.device.destroy_qp(qp)
    batches.pop(pointer.handle, None)
    del qps[pointer.handle]
    structs.drop(pointer)
    return 0


def address_vector(struct: Any) -> AddressVector:
    route = struct.grh
    return AddressVector(
        struct.port_num,
        struct.is_global,
        bytes(route.dgid.raw),
        route.sgid_index,
        route.hop_limit,
        route.traffic_class,
        route.flow_label,
        struct.dlid,
        struct.sl,
        struct.src_path_bits,
        struct.static_rate,
    )


def _fill_address(struct: Any, av: AddressVector) -> None:
    struct.grh.dgid.raw = av.dgid
    for name in ("sgid_index", "hop_limit", "traffic_class", "flow_label"):
        setattr(struct.grh, name, getattr(av, name))
    for name in ("port_num", "is_global", "dlid", "sl", "src_path_bits", "static_rate"):
        setattr(struct, name, getattr(av, name))


@verb
def ibv_modify_qp(pointer: Any, attr: Any, mask: int) -> int:
    qp = qps[pointer.handle]
    given = {}
    for bit, names in states.FIELDS.items():
        if mask & bit:
            for name in names:
                value = getattr(attr, name)
                given[name] = address_vector(value) if name.endswith("ah_attr") else value
    qp.device.modify_qp(qp, mask, given)
    pointer.state = qp.state
    return 0


@verb
def ibv_query_qp(pointer: Any, attr: Any, mask: int, init: Any) -> int:
    qp = qps[pointer.handle]
    c.ffi.memmove(attr, bytes(c.ffi.sizeof("struct ibv_qp_attr")), c.ffi.sizeof("struct ibv_qp_attr"))
    c.ffi.memmove(init, bytes(c.ffi.sizeof("struct ibv_qp_init_attr")), c.ffi.sizeof("struct ibv_qp_init_attr"))
    for name, value in qp.attr.items():
        if isinstance(value, AddressVector):
            _fill_address(getattr(attr, name), value)
        else:
            setattr(attr, name, value)
    attr.qp_state = attr.cur_qp_state = pointer.state = qp.state
    for cap in (attr.cap, init.cap):
        fill(cap, qp.cap)
    init.qp_context = pointer.qp_context
    init.send_cq, init.recv_cq, init.srq = pointer.send_cq, pointer.recv_cq, pointer.srq
    init.qp_type = qp.qp_type
    init.sq_sig_all = qp.sq_sig_all
    return 0


@verb
def ibv_query_qp_data_in_order(pointer: Any, opcode: int, flags: int) -> int:
    return 0


def _ah_struct(pd: Any, ah: AH) -> Any:
    struct = structs.make("struct ibv_ah", ah)
    struct.context = pd.context
    struct.pd = pd
    struct.handle = ah.handle
    return struct


@verb
def ibv_create_ah(pointer: Any, attr: Any) -> Any:
    pd = pd_of(pointer)
    return _ah_struct(pointer, pd.context.device.create_ah(pd, address_vector(attr)))


@verb
def ibv_create_ah_from_wc(pointer: Any, wc: Any, header: Any, port_num: int) -> Any:
    pd = pd_of(pointer)
    av = AddressVector(port_num, dlid=wc.slid, sl=wc.sl, src_path_bits=wc.dlid_path_bits)
    if wc.wc_flags & abi.WC_GRH:
        av = _answer(pointer.context, port_num, bytes(c.ffi.buffer(header, grh.LENGTH)))
    return _ah_struct(pointer, pd.context.device.create_ah(pd, av))


def _answer(context: Any, port_num: int, header: bytes) -> AddressVector:
    """The address of who sent a UD message, from the header in front of it (ibv_create_ah_from_wc(3))."""
    source, destination, traffic_class, flow_label, hop_limit = grh.parse(header)
    for index, gid in enumerate(port_of(context, port_num).gids):
        if gid.raw == destination:
            return AddressVector(port_num, 1, source, index, hop_limit, traffic_class, flow_label)
    raise Refused(errno.EINVAL, "the GRH is not for this port")


@verb
def ibv_destroy_ah(pointer: Any) -> int:
    ah: AH = structs.of(pointer)
    ah.pd.context.device.destroy_ah(ah)
    structs.drop(pointer)
    return 0
