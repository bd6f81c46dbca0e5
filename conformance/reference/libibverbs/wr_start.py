# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work requests by ibv_wr_start(3) and its family: collected here, posted by ibv_wr_complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine import abi
from ..engine.errors import Refused
from ..engine.objects import SGE, SendWR
from . import c
from .calls import verb
from .memory_regions import set_bind
from .structs import qps, sges_of, structs
from .work_requests import inline_data


@dataclass
class _Batch:
    wrs: list[SendWR] = field(default_factory=list)
    refused: Refused | None = None


batches: dict[int, _Batch] = {}


def _add(qp: Any, opcode: int, **fields: Any) -> None:
    base = qp.qp_base
    batches[base.handle].wrs.append(SendWR(qp.wr_id, opcode, qp.wr_flags, [], extended=True, **fields))


def _latest(qp: Any) -> SendWR:
    return batches[qp.qp_base.handle].wrs[-1]


@verb
def wr_start(qp: Any) -> None:
    batches[qp.qp_base.handle] = _Batch()


@verb
def wr_abort(qp: Any) -> None:
    batches[qp.qp_base.handle] = _Batch()


@verb
def wr_complete(qp: Any) -> int:
    handle = qp.qp_base.handle
    batch = batches.pop(handle)
    if batch.refused:
        raise batch.refused
    qps[handle].device.post_batch(qps[handle], batch.wrs)
    return 0


@verb
def wr_send(qp: Any) -> None:
    _add(qp, abi.WR_SEND)


@verb
def wr_send_imm(qp: Any, imm_data: int) -> None:
    _add(qp, abi.WR_SEND_WITH_IMM, imm_data=imm_data)


@verb
def wr_send_inv(qp: Any, rkey: int) -> None:
    _add(qp, abi.WR_SEND_WITH_INV, imm_data=rkey)


@verb
def wr_rdma_read(qp: Any, rkey: int, remote_addr: int) -> None:
    _add(qp, abi.WR_RDMA_READ, rkey=rkey, remote_addr=remote_addr)


@verb
def wr_rdma_write(qp: Any, rkey: int, remote_addr: int) -> None:
    _add(qp, abi.WR_RDMA_WRITE, rkey=rkey, remote_addr=remote_addr)


@verb
def wr_rdma_write_imm(qp: Any, rkey: int, remote_addr: int, imm_data: int) -> None:
    _add(qp, abi.WR_RDMA_WRITE_WITH_IMM, rkey=rkey, remote_addr=remote_addr, imm_data=imm_data)


@verb
def wr_atomic_cmp_swp(qp: Any, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
    _add(qp, abi.WR_ATOMIC_CMP_AND_SWP, rkey=rkey, remote_addr=remote_addr, compare_add=compare, swap=swap)


@verb
def wr_atomic_fetch_add(qp: Any, rkey: int, remote_addr: int, add: int) -> None:
    _add(qp, abi.WR_ATOMIC_FETCH_AND_ADD, rkey=rkey, remote_addr=remote_addr, compare_add=add)


@verb
def wr_local_inv(qp: Any, rkey: int) -> None:
    _add(qp, abi.WR_LOCAL_INV, imm_data=rkey)


@verb
def wr_bind_mw(qp: Any, mw: Any, rkey: int, info: Any) -> None:
    _add(qp, abi.WR_BIND_MW, mw=structs.maybe(mw), rkey=rkey)
    set_bind(_latest(qp), info)


@verb
def wr_set_ud_addr(qp: Any, ah: Any, remote_qpn: int, remote_qkey: int) -> None:
    wr = _latest(qp)
    wr.ah, wr.remote_qpn, wr.remote_qkey = structs.maybe(ah), remote_qpn, remote_qkey


@verb
def wr_set_xrc_srqn(qp: Any, remote_srqn: int) -> None:
    _latest(qp).remote_srqn = remote_srqn


@verb
def wr_set_sge(qp: Any, lkey: int, addr: int, length: int) -> None:
    _latest(qp).sges = [SGE(addr, length, lkey)]


@verb
def wr_set_sge_list(qp: Any, number: int, array: Any) -> None:
    _latest(qp).sges = sges_of(array, number)


def _set_inline(qp: Any, buffers: Sequence[tuple[int, int]]) -> None:
    handle = qp.qp_base.handle
    try:
        _latest(qp).inline = inline_data(qps[handle].device, buffers)
    except Refused as refused:
        batches[handle].refused = refused


@verb
def wr_set_inline_data(qp: Any, addr: Any, length: int) -> None:
    _set_inline(qp, [(int(c.ffi.cast("uintptr_t", addr)), length)])


@verb
def wr_set_inline_data_list(qp: Any, number: int, array: Any) -> None:
    _set_inline(qp, [(int(c.ffi.cast("uintptr_t", array[index].addr)), array[index].length) for index in range(number)])
