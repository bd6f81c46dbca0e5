# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Protection domains, memory regions, memory windows."""

import errno
from collections.abc import Callable
from typing import Any

from ..engine import abi
from ..engine.errors import Refused
from ..engine.objects import MR, MW, PD, SendWR
from . import c
from .calls import verb
from .devices import context_of
from .structs import qps, sges_of, structs


@verb
def ibv_alloc_pd(pointer: Any) -> Any:
    context = context_of(pointer)
    pd = context.device.alloc_pd(context)
    struct = structs.make("struct ibv_pd", pd)
    struct.context = pointer
    struct.handle = pd.handle
    return struct


@verb
def alloc_parent_domain(pointer: Any, attr: Any) -> Any:
    """Its allocators are for memory that a driver needs; this one needs none."""
    if attr.td:
        raise Refused(errno.EOPNOTSUPP, "no thread domains")
    pd = context_of(pointer).device.alloc_parent_domain(structs.of(attr.pd))
    struct = structs.make("struct ibv_pd", pd)
    struct.context = pointer
    struct.handle = pd.handle
    return struct


def pd_of(pointer: Any) -> PD:
    """The PD that things made on this one belong to."""
    pd: PD = structs.of(pointer)
    return pd.parent or pd


@verb
def ibv_dealloc_pd(pointer: Any) -> int:
    pd = structs.of(pointer)
    pd.context.device.dealloc_pd(pd)
    structs.drop(pointer)
    return 0


@verb
def ibv_import_pd(pointer: Any, handle: int) -> Any:
    context = context_of(pointer)
    pd = context.device.import_pd(context, handle)
    struct = structs.make("struct ibv_pd", pd)
    struct.context = pointer
    struct.handle = pd.handle
    return struct


@verb
def ibv_unimport_pd(pointer: Any) -> None:
    structs.drop(pointer)


@verb
def ibv_import_mr(pointer: Any, handle: int) -> Any:
    pd = pd_of(pointer)
    return _mr_struct(pointer, pd.context.device.import_mr(pd.context, handle))


@verb
def ibv_unimport_mr(pointer: Any) -> None:
    structs.drop(pointer)


def _mr_in(struct: Any, make: Callable[..., MR], *arguments: Any) -> MR:
    """The MR that gets this struct, which is freed if there is none."""
    try:
        return make(*arguments)
    except BaseException:
        structs.free(struct)
        raise


def _mr_struct(pd: Any, mr: MR, struct: Any = None) -> Any:
    struct = structs.make("struct ibv_mr", mr, struct)
    struct.context = pd.context if mr.names_context else c.ffi.NULL
    struct.pd = pd
    struct.addr = c.ffi.cast("void *", mr.addr)
    struct.length = mr.length
    struct.handle = mr.handle
    struct.lkey = mr.lkey
    struct.rkey = mr.rkey
    return struct


def _reg_mr(pointer: Any, addr: Any, length: int, iova: int, access: int) -> Any:
    pd = pd_of(pointer)
    struct = structs.allocate("struct ibv_mr")
    if not struct:
        raise Refused(errno.ENOMEM, "no memory for struct ibv_mr")
    mr = _mr_in(struct, pd.context.device.reg_mr, pd, int(c.ffi.cast("uintptr_t", addr)), length, iova, access)
    return _mr_struct(pointer, mr, struct)


@verb
def ibv_reg_mr(pointer: Any, addr: Any, length: int, access: int) -> Any:
    return _reg_mr(pointer, addr, length, int(c.ffi.cast("uintptr_t", addr)), access)


@verb
def ibv_reg_mr_iova(pointer: Any, addr: Any, length: int, iova: int, access: int) -> Any:
    return _reg_mr(pointer, addr, length, iova, access)


@verb
def ibv_reg_mr_iova2(pointer: Any, addr: Any, length: int, iova: int, access: int) -> Any:
    return _reg_mr(pointer, addr, length, iova, access)


@verb
def alloc_null_mr(pointer: Any) -> Any:
    asked: PD = structs.of(pointer)
    device = asked.context.device
    pd = device.null_mr_pd(asked)
    struct = structs.allocate("struct ibv_mr")
    if not struct:
        return _mr_struct(pointer, device.null_mr_without_memory(pd))
    mr = _mr_in(struct, device.alloc_null_mr, pd)
    return _mr_struct(pointer if mr.pd is pd else structs.struct(mr.pd), mr, struct)


@verb
def ibv_rereg_mr(pointer: Any, flags: int, pd: Any, addr: Any, length: int, access: int) -> int:
    mr: MR = structs.of(pointer)
    new_pd = pd_of(pd) if flags & abi.REREG_MR_CHANGE_PD else None  # else the pointer means nothing
    try:
        mr.pd.context.device.rereg_mr(mr, flags, new_pd, int(c.ffi.cast("uintptr_t", addr)), length, access)
        if flags & abi.REREG_MR_CHANGE_PD:
            pointer.pd = pd
            pointer.context = pd.context
    finally:  # a device that changes an MR and then refuses shows it
        pointer.addr = c.ffi.cast("void *", mr.addr)
        pointer.length = mr.length
        pointer.lkey = mr.lkey
        pointer.rkey = mr.rkey
    return 0


@verb
def ibv_dereg_mr(pointer: Any) -> int:
    mr: MR = structs.of(pointer)
    mr.pd.context.device.dereg_mr(mr)
    structs.drop(pointer)
    return 0


@verb
def advise_mr(pointer: Any, advice: int, flags: int, array: Any, number: int) -> int:
    pd = pd_of(pointer)
    pd.context.device.advise_mr(pd, int(advice), flags, sges_of(array, number))
    return 0


@verb
def alloc_mw(pointer: Any, kind: int) -> Any:
    pd = pd_of(pointer)
    mw = pd.context.device.alloc_mw(pd, int(kind))
    struct = structs.make("struct ibv_mw", mw)
    struct.context = pointer.context
    struct.pd = pointer
    struct.rkey = mw.rkey
    struct.handle = mw.handle
    struct.type = mw.type
    return struct


@verb
def dealloc_mw(pointer: Any) -> int:
    mw: MW = structs.of(pointer)
    mw.pd.context.device.dealloc_mw(mw)
    structs.drop(pointer)
    return 0


@verb
def bind_mw(qp_pointer: Any, mw_pointer: Any, bind: Any) -> int:
    qp, mw = qps[qp_pointer.handle], structs.of(mw_pointer)
    wr = SendWR(bind.wr_id, abi.WR_BIND_MW, bind.send_flags, [], mw=mw)
    set_bind(wr, bind.bind_info)
    qp.device.bind_mw(qp, mw, wr)
    mw_pointer.rkey = wr.rkey
    return 0


def set_bind(wr: SendWR, info: Any) -> None:
    wr.bind_mr = structs.maybe(info.mr)
    wr.bind_addr, wr.bind_length, wr.bind_access = info.addr, info.length, info.mw_access_flags
