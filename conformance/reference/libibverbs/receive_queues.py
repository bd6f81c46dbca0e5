# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Shared receive queues and XRC domains."""

import os
from typing import Any

from ..engine import abi
from ..engine.objects import SRQ, XRCD
from .calls import verb
from .devices import context_of
from .memory_regions import pd_of
from .structs import cqs, next_handle, srqs, structs


def _srq_struct(context: Any, pd: Any, srq_context: Any, srq: SRQ) -> Any:
    struct = structs.make("struct ibv_srq", srq)
    struct.context = context
    struct.srq_context = srq_context
    struct.pd = pd
    struct.handle = next_handle()
    srqs[struct.handle] = srq
    return struct


@verb
def ibv_create_srq(pointer: Any, init: Any) -> Any:
    pd = pd_of(pointer)
    attr = init.attr
    srq = pd.context.device.create_srq(pd, attr.max_wr, attr.max_sge)
    attr.max_wr, attr.max_sge = srq.max_wr, srq.max_sge
    return _srq_struct(pointer.context, pointer, init.srq_context, srq)


@verb
def create_srq_ex(pointer: Any, init: Any) -> Any:
    pd = pd_of(init.pd)
    attr = init.attr
    xrc = init.srq_type == abi.SRQT_XRC
    srq = pd.context.device.create_srq(
        pd,
        attr.max_wr,
        attr.max_sge,
        type=int(init.srq_type),
        xrcd=structs.maybe(init.xrcd) if xrc else None,
        cq=cqs[init.cq.handle] if xrc and init.cq else None,
    )
    attr.max_wr, attr.max_sge = srq.max_wr, srq.max_sge
    return _srq_struct(pointer, init.pd, init.srq_context, srq)


@verb
def get_srq_num(pointer: Any, number: Any) -> int:
    number[0] = srqs[pointer.handle].number
    return 0


@verb
def ibv_modify_srq(pointer: Any, attr: Any, mask: int) -> int:
    srq = srqs[pointer.handle]
    srq.pd.context.device.modify_srq(srq, mask, attr.max_wr, attr.srq_limit)
    return 0


@verb
def ibv_query_srq(pointer: Any, attr: Any) -> int:
    srq = srqs[pointer.handle]
    attr.max_wr, attr.max_sge, attr.srq_limit = srq.max_wr, srq.max_sge, srq.limit
    return 0


@verb
def ibv_destroy_srq(pointer: Any) -> int:
    srq = srqs[pointer.handle]
    srq.pd.context.device.destroy_srq(srq)
    del srqs[pointer.handle]
    structs.drop(pointer)
    return 0


@verb
def open_xrcd(pointer: Any, attr: Any) -> Any:
    context = context_of(pointer)
    key = None
    if attr.fd != -1:
        status = os.fstat(attr.fd)
        key = (status.st_dev, status.st_ino)
    xrcd = context.device.open_xrcd(context, key)
    struct = structs.make("struct ibv_xrcd", xrcd)
    struct.context = pointer
    return struct


@verb
def close_xrcd(pointer: Any) -> int:
    xrcd: XRCD = structs.of(pointer)
    context = context_of(pointer.context)
    context.device.close_xrcd(context, xrcd)
    structs.drop(pointer)
    return 0
