# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Completion queues in the format of <infiniband/mlx5dv.h>: entries written, and doorbell records read."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from conformance.reference.engine import abi
from conformance.reference.engine.objects import CQE

SIZE = 64
"""Bytes: of an entry, or of the second half of one that has 128; the first half then has nothing but data."""

# Opcodes of an entry.
_REQ, _RESP_WR_IMM, _RESP_SEND, _RESP_SEND_IMM, _RESP_SEND_INV, _RESIZE, _REQ_ERR, _RESP_ERR = 0, 1, 2, 3, 4, 5, 13, 14
_OWNER, _SOLICITED, _SCATTER_32, _SCATTER_64 = 1, 1 << 1, 0x4, 0x8
IN_ENTRY = 32
"""Bytes of a message that an entry of 64 has room for ..."""
IN_FRONT = 64
"""... and one of 128."""

# struct mlx5_cqe64: ml_path, slid, flags_rqpn; srqn_uidx, imm_inval_pkey, byte_cnt, timestamp, sop_drop_qpn,
# wqe_counter, signature, op_own
_HEAD = struct.Struct(">17xB4xHI4x")
_TAIL = struct.Struct(">I4s4xIQIHBB")
# struct mlx5_err_cqe: srqn, vendor_err_synd, syndrome, s_wqe_opcode_qpn, wqe_counter, signature, op_own
_ERROR = struct.Struct(">32xI18xBBIHBB")

_SYNDROMES = {
    abi.WC_LOC_LEN_ERR: 0x01,
    abi.WC_LOC_QP_OP_ERR: 0x02,
    abi.WC_LOC_PROT_ERR: 0x04,
    abi.WC_WR_FLUSH_ERR: 0x05,
    abi.WC_MW_BIND_ERR: 0x06,
    abi.WC_BAD_RESP_ERR: 0x10,
    abi.WC_LOC_ACCESS_ERR: 0x11,
    abi.WC_REM_INV_REQ_ERR: 0x12,
    abi.WC_REM_ACCESS_ERR: 0x13,
    abi.WC_REM_OP_ERR: 0x14,
    abi.WC_RETRY_EXC_ERR: 0x15,
    abi.WC_RNR_RETRY_EXC_ERR: 0x16,
}
_OTHER_SYNDROME = 0x30
_OPCODES = {
    abi.WC_SEND: 0x0A,
    abi.WC_RDMA_WRITE: 0x08,
    abi.WC_RDMA_READ: 0x10,
    abi.WC_COMP_SWAP: 0x11,
    abi.WC_FETCH_ADD: 0x12,
    abi.WC_BIND_MW: 0x25,
    abi.WC_LOCAL_INV: 0x25,
}
"""What a send WQE was, as its completion says."""

NEVER_ARMED = 0xFFFFFFFF
"""What the device puts into the arm word of a new CQ: the first arming may write 0, which the provider began with."""
_ARM_SOLICITED = 1 << 24
_INDEX_MASK = (1 << 24) - 1


@dataclass
class Ring:
    """The entries of a CQ in the memory of process `pid`, and how far the device and the program are."""

    pid: int
    buffer: int
    entries: int
    size: int
    """Of one entry, 64 or 128 bytes."""
    record: int
    """Address of the doorbell record: the consumer index, then what arming the CQ writes."""
    number: int
    producer: int = 0
    consumer: int = 0
    """As last read; 24 bits, as `producer` wraps at 2**24."""
    armed: int = NEVER_ARMED
    """The arm word as last read ..."""
    answered: int = NEVER_ARMED
    """... and that for which there was an event."""
    solicited: int = 0
    """The producer index behind the last entry that is an event for those who wait for solicited ones."""

    @property
    def slot(self) -> int:
        """Address of the next entry."""
        return self.buffer + self.producer % self.entries * self.size

    @property
    def owner(self) -> int:
        """The owner bit of the next entry; it flips with each turn."""
        return int(self.producer & self.entries != 0)

    def advance(self, solicited: bool) -> None:
        self.producer = (self.producer + 1) % 2**24
        if solicited:
            self.solicited = self.producer

    def is_full(self) -> bool:
        return (self.producer - self.consumer) % 2**24 >= self.entries

    def resize(self, buffer: int, entries: int) -> None:
        self.buffer, self.entries = buffer, entries

    def wants_event(self) -> bool:
        """Was the CQ armed, and is there an entry that the program had not seen then?"""
        if self.armed == self.answered:
            return False
        newest = self.solicited if self.armed & _ARM_SOLICITED else self.producer
        return 0 < (newest - (self.armed & _INDEX_MASK)) % 2**24 < 2**23


def entry(ring: Ring, cqe: CQE, number: int, data: bytes | None, solicited: bool, small_in_front: bool) -> bytes:
    """A completion as it lies in memory.

    `number` is the user index of the queue pair or XRC SRQ (CQE version 1), or the number of the SRQ (version 0).
    `data` is the message, if it is so small that it is scattered to the entry; `small_in_front` says where 32 bytes
    and less go in an entry of 128.
    """
    front = b""
    if ring.size > SIZE:
        front = bytes(SIZE)
    own = ring.owner
    index = cqe.wr_id & 0xFFFF
    received = bool(cqe.opcode & abi.WC_RECV)
    if cqe.status:
        code = _RESP_ERR if received else _REQ_ERR
        syndrome = _SYNDROMES.get(cqe.status, _OTHER_SYNDROME)
        last = code << 4 | own
        operation = cqe.qp.qp_num if received else _OPCODES.get(cqe.opcode, 0) << 24 | cqe.qp.qp_num
        return front + _ERROR.pack(number, cqe.vendor_err or syndrome, syndrome, operation, index, 0, last)
    scatter = 0
    head = _HEAD.pack(cqe.dlid_path_bits, cqe.slid, (cqe.wc_flags & abi.WC_GRH) << 28 | cqe.sl << 24 | cqe.src_qp)
    if data is not None:
        if front and (small_in_front or len(data) > IN_ENTRY):
            scatter, front = _SCATTER_64, data.ljust(SIZE, b"\0")
        else:
            scatter, head = _SCATTER_32, data.ljust(IN_ENTRY, b"\0")
    if received:
        code, imm = _received(cqe)
        operation = cqe.qp.qp_num
    else:
        code, imm = _REQ, bytes(4)
        operation = _OPCODES.get(cqe.opcode, 0) << 24 | cqe.qp.qp_num
    last = code << 4 | scatter | (_SOLICITED if solicited else 0) | own
    return front + head + _TAIL.pack(number, imm, cqe.byte_len, cqe.timestamp, operation, index, 0, last)


def _received(cqe: CQE) -> tuple[int, bytes]:
    """The opcode of a receive completion, and its immediate data, invalidated rkey or P_Key index."""
    if cqe.opcode == abi.WC_RECV_RDMA_WITH_IMM:
        return _RESP_WR_IMM, cqe.imm_data.to_bytes(4, "little")
    if cqe.wc_flags & abi.WC_WITH_IMM:
        return _RESP_SEND_IMM, cqe.imm_data.to_bytes(4, "little")
    if cqe.wc_flags & abi.WC_WITH_INV:
        return _RESP_SEND_INV, cqe.imm_data.to_bytes(4, "big")
    return _RESP_SEND, cqe.pkey_index.to_bytes(4, "big")


def resize_entry(ring: Ring) -> bytes:
    """The last entry in a buffer that the program is about to replace."""
    last = bytes([_RESIZE << 4 | ring.owner])
    return bytes(ring.size - 1) + last
