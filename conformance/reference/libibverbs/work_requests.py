# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work requests by ibv_post_send(3), ibv_post_recv(3) and ibv_post_srq_recv(3)."""

import errno
from collections.abc import Sequence
from typing import Any

from ..engine import abi
from ..engine.device import Device
from ..engine.errors import BadWorkRequest, Refused
from ..engine.memory import MemoryFault
from ..engine.objects import QP, RecvWR, SendWR
from .calls import verb
from .memory_regions import set_bind
from .structs import qps, sges_of, srqs, structs


def _nth(wr: Any, index: int) -> Any:
    for _ in range(index):
        wr = wr.next
    return wr


def inline_data(device: Device, buffers: Sequence[tuple[int, int]]) -> bytes:
    """Inline data is read by the CPU when it is posted, whatever the lkey (ibv_post_send(3))."""
    try:
        return b"".join(device.memory.read(addr, length) for addr, length in buffers if length)
    except MemoryFault as fault:
        raise Refused(errno.EFAULT, f"no inline data at {fault}") from fault


_RDMA = (abi.WR_RDMA_WRITE, abi.WR_RDMA_WRITE_WITH_IMM, abi.WR_RDMA_READ)
_ATOMICS = (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD)


def _send_wr(qp: QP, struct: Any) -> SendWR:
    opcode = int(struct.opcode)
    wr = SendWR(struct.wr_id, opcode, struct.send_flags, sges_of(struct.sg_list, struct.num_sge), struct.imm_data)
    if opcode in _RDMA:
        wr.remote_addr, wr.rkey = struct.wr.rdma.remote_addr, struct.wr.rdma.rkey
    elif opcode in _ATOMICS:
        atomic = struct.wr.atomic
        wr.remote_addr, wr.rkey = atomic.remote_addr, atomic.rkey
        wr.compare_add, wr.swap = atomic.compare_add, atomic.swap
    elif opcode == abi.WR_BIND_MW:
        wr.mw, wr.rkey = structs.maybe(struct.bind_mw.mw), struct.bind_mw.rkey
        set_bind(wr, struct.bind_mw.bind_info)
    if qp.qp_type == abi.QPT_UD:
        ud = struct.wr.ud
        wr.ah, wr.remote_qpn, wr.remote_qkey = structs.maybe(ud.ah), ud.remote_qpn, ud.remote_qkey
    elif qp.qp_type == abi.QPT_XRC_SEND:
        wr.remote_srqn = struct.qp_type.xrc.remote_srqn
    if wr.flags & abi.SEND_INLINE:
        wr.inline = inline_data(qp.device, [(sge.addr, sge.length) for sge in wr.sges])
    return wr


@verb
def post_send(pointer: Any, first: Any, bad: Any) -> int:
    qp = qps[pointer.handle]
    wrs = []
    struct = first
    bad[0] = first
    while struct:
        wrs.append(_send_wr(qp, struct))
        struct = struct.next
    try:
        qp.device.post_send(qp, wrs)
    except BadWorkRequest as refused:
        bad[0] = _nth(first, refused.index)
        raise
    return 0


def _recv_wrs(first: Any) -> list[RecvWR]:
    wrs = []
    struct = first
    while struct:
        wrs.append(RecvWR(struct.wr_id, sges_of(struct.sg_list, struct.num_sge)))
        struct = struct.next
    return wrs


@verb
def post_recv(pointer: Any, first: Any, bad: Any) -> int:
    qp = qps[pointer.handle]
    try:
        qp.device.post_recv(qp, _recv_wrs(first))
    except BadWorkRequest as refused:
        bad[0] = _nth(first, refused.index)
        raise
    return 0


@verb
def post_srq_recv(pointer: Any, first: Any, bad: Any) -> int:
    srq = srqs[pointer.handle]
    try:
        srq.pd.context.device.post_srq_recv(srq, _recv_wrs(first))
    except BadWorkRequest as refused:
        bad[0] = _nth(first, refused.index)
        raise
    return 0
