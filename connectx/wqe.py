# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work queues: the engine's work requests out of work queue entries in the format of <infiniband/mlx5dv.h>."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from conformance.reference.engine import abi
from conformance.reference.engine.objects import SGE, RecvWR, SendWR

BLOCK = 64
"""Bytes: MLX5_SEND_WQE_BB, the unit of a send queue."""
UNIT = 16
"""Bytes: the unit in which the size of a send WQE is given, that of a data segment."""
INDEX_MASK = 0xFFFF
LIST_ENDS = 0x100
"""MLX5_INVALID_LKEY: the lkey behind the last segment of a receive WQE that is not full."""
_INLINE = 1 << 31
LONGEST_SEGMENT = 1 << 31
"""Bytes: what a length of 0 means in a data segment."""

# enum of opcodes
NOP = 0x00
UMR = 0x25
_OPCODES = {
    0x01: abi.WR_SEND_WITH_INV,
    0x08: abi.WR_RDMA_WRITE,
    0x09: abi.WR_RDMA_WRITE_WITH_IMM,
    0x0A: abi.WR_SEND,
    0x0B: abi.WR_SEND_WITH_IMM,
    0x10: abi.WR_RDMA_READ,
    0x11: abi.WR_ATOMIC_CMP_AND_SWP,
    0x12: abi.WR_ATOMIC_FETCH_AND_ADD,
}
UNKNOWN = -1
"""An opcode that no queue pair can carry out."""

# struct mlx5_wqe_ctrl_seg: opmod_idx_opcode, qpn_ds, signature, dci_stream_channel_id, fm_ce_se; imm is taken apart
_CONTROL = struct.Struct(">IIBxxB")
_IMM_AT = 12
_CQ_UPDATE, _SOLICITED = 2 << 2, 1 << 1
_DS_MASK = 0x3F
_REMOTE = struct.Struct(">QI4x")  # struct mlx5_wqe_raddr_seg
_ATOMIC = struct.Struct(">QQ")  # struct mlx5_wqe_atomic_seg: swap_add, compare
_DATA = struct.Struct(">IIQ")  # struct mlx5_wqe_data_seg: byte_count, lkey, addr
_XRC = struct.Struct(">I12x")  # srqn
# struct mlx5_wqe_av: qkey, dqp_dct, stat_rate_sl, fl_mlid, rlid, rmac, tclass, hop_limit, grh_gid_fl, rgid
_DATAGRAM = struct.Struct(">I4xIBBH4x6sBBI16s")
_EXTENDED_AV = 1 << 31
_SRQ_NEXT = struct.Struct(">2xH12x")  # struct mlx5_wqe_srq_next_seg
# struct mlx5_wqe_umr_ctrl_seg, then struct mlx5_wqe_mkey_context_seg: free, access_flags, qpn_mkey, start_addr, len
_UMR_CONTROL = struct.Struct(">B3xHHQ32x")
_CONTEXT = struct.Struct(">BxBxI8xQQ")
_CONTEXT_SIZE = 64
_UMR_CHECK_QPN = 1 << 3
_MASK_QPN = 1 << 14
_FREE = 1 << 6
_WINDOW_ACCESS = (
    (1 << 3, abi.ACCESS_LOCAL_WRITE),
    (1 << 4, abi.ACCESS_REMOTE_READ),
    (1 << 5, abi.ACCESS_REMOTE_WRITE),
    (1 << 6, abi.ACCESS_REMOTE_ATOMIC),
)


class Datagram(NamedTuple):
    """Where a UD message goes."""

    qkey: int
    qp_num: int
    sl: int
    path_bits: int
    dlid: int
    traffic_class: int
    hop_limit: int
    has_grh: bool
    sgid_index: int
    flow_label: int
    dgid: bytes


class Bind(NamedTuple):
    """A change of a memory window's mkey (UMR WQE of the provider)."""

    mkey: int
    """The window's key so far."""
    tag: int
    """The low byte of its new key."""
    invalidate: bool
    """It is a local invalidation, by a queue pair that must have bound the window."""
    lkey: int
    addr: int
    length: int
    access: int


@dataclass
class SendWqe:
    """A WQE of a send queue: the work request, and what must be looked up for it."""

    wr: SendWR
    blocks: int
    datagram: Datagram | None = None
    bind: Bind | None = None


def send_wqe(data: bytes, qp_type: int) -> SendWqe:
    """The WQE at the beginning of `data`, which has all its blocks. Its index is the `wr_id`."""
    operation, size, _, flags = _CONTROL.unpack_from(data)
    units = size & _DS_MASK
    blocks = max(1, (units * UNIT + BLOCK - 1) // BLOCK)
    code = operation & 0xFF
    opcode = _OPCODES.get(code, UNKNOWN)
    send_flags = (abi.SEND_SIGNALED if flags & _CQ_UPDATE else 0) | (abi.SEND_SOLICITED if flags & _SOLICITED else 0)
    wr = SendWR(operation >> 8 & INDEX_MASK, opcode, send_flags, [])
    wqe = SendWqe(wr, blocks)
    if opcode == abi.WR_SEND_WITH_INV:
        wr.imm_data = int.from_bytes(data[_IMM_AT : _IMM_AT + 4], "big")
    else:
        wr.imm_data = int.from_bytes(data[_IMM_AT : _IMM_AT + 4], "little")
    if code == UMR:
        wqe.bind = _bind(data)
        wr.opcode = abi.WR_LOCAL_INV if wqe.bind.invalidate else abi.WR_BIND_MW
        return wqe
    at = UNIT
    if qp_type == abi.QPT_XRC_SEND:
        (wr.remote_srqn,) = _XRC.unpack_from(data, at)
        at += UNIT
    elif qp_type == abi.QPT_UD:
        wqe.datagram = _datagram(data, at)
        at += _DATAGRAM.size
    if opcode in _ONE_SIDED:
        wr.remote_addr, wr.rkey = _REMOTE.unpack_from(data, at)
        at += UNIT
        if opcode == abi.WR_ATOMIC_CMP_AND_SWP:
            wr.swap, wr.compare_add = _ATOMIC.unpack_from(data, at)
            at += UNIT
        elif opcode == abi.WR_ATOMIC_FETCH_AND_ADD:
            wr.compare_add, _ = _ATOMIC.unpack_from(data, at)
            at += UNIT
    _read_list(wr, data, at, units * UNIT)
    return wqe


_ONE_SIDED = (
    abi.WR_RDMA_WRITE, abi.WR_RDMA_WRITE_WITH_IMM, abi.WR_RDMA_READ, abi.WR_ATOMIC_CMP_AND_SWP,
    abi.WR_ATOMIC_FETCH_AND_ADD,
)  # fmt: skip


def _read_list(wr: SendWR, data: bytes, at: int, end: int) -> None:
    """The gather list, or inline data: segments of data with a length in front, each padded to 16 bytes."""
    while at + UNIT <= end:
        length, lkey, addr = _DATA.unpack_from(data, at)
        if length & _INLINE:
            length &= _INLINE - 1
            wr.inline = (wr.inline or b"") + data[at + 4 : at + 4 + length]
            wr.flags |= abi.SEND_INLINE
            at += (4 + length + UNIT - 1) // UNIT * UNIT
        else:
            wr.sges.append(SGE(addr, length or LONGEST_SEGMENT, lkey))
            at += UNIT


def _datagram(data: bytes, at: int) -> Datagram:
    qkey, qp_num, rate_sl, path_bits, dlid, _, traffic_class, hop_limit, grh, dgid = _DATAGRAM.unpack_from(data, at)
    return Datagram(
        qkey, qp_num & ~_EXTENDED_AV & 0xFFFFFF, rate_sl & 0xF, path_bits & 0x7F, dlid, traffic_class, hop_limit,
        bool(grh >> 30 & 1), grh >> 20 & 0xFF, grh & 0xFFFFF, dgid,
    )  # fmt: skip


def _bind(data: bytes) -> Bind:
    mkey = int.from_bytes(data[_IMM_AT : _IMM_AT + 4], "big")
    at = UNIT
    flags, _, _, mask = _UMR_CONTROL.unpack_from(data, at)
    at += _UMR_CONTROL.size
    free, access_flags, qpn_mkey, addr, length = _CONTEXT.unpack_from(data, at)
    at += _CONTEXT_SIZE
    if free & _FREE:
        return Bind(mkey, qpn_mkey & 0xFF, bool(mask & _MASK_QPN and flags & _UMR_CHECK_QPN), 0, 0, 0, 0)
    access = 0
    for bit, flag in _WINDOW_ACCESS:
        access |= flag if access_flags & bit else 0
    _, lkey, start = _DATA.unpack_from(data, at)
    if addr != start:
        access |= abi.ACCESS_ZERO_BASED
    return Bind(mkey, qpn_mkey & 0xFF, False, lkey, start, length, access)


def receive_wqe(index: int, data: bytes) -> RecvWR:
    """A WQE of a receive queue. `wr_id` is its index."""
    return RecvWR(index, list(_segments(data)))


def srq_wqe(index: int, data: bytes) -> tuple[RecvWR, int]:
    """A WQE of a shared receive queue, and the index of the next one."""
    (following,) = _SRQ_NEXT.unpack_from(data)
    return RecvWR(index, list(_segments(data[_SRQ_NEXT.size :]))), following


def srq_wqe_size(max_sge: int) -> int:
    """Bytes: the next power of two."""
    size = max(2 * UNIT, _SRQ_NEXT.size + max_sge * UNIT)
    return 1 << (size - 1).bit_length()


def _segments(data: bytes) -> Iterator[SGE]:
    for length, lkey, addr in _DATA.iter_unpack(data):
        if lkey == LIST_ENDS and not length:
            return
        yield SGE(addr, length or LONGEST_SEGMENT, lkey)
