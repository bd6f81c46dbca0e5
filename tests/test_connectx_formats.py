# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work and completion queue entries lie in memory as the installed <infiniband/mlx5dv.h> says."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import native
from conformance.reference.engine import abi
from conformance.reference.engine.objects import CQE, SGE
from connectx import cqe as entries
from connectx import wqe

_TYPES = """
struct mlx5_wqe_ctrl_seg { uint32_t opmod_idx_opcode; uint32_t qpn_ds; uint8_t fm_ce_se; uint32_t imm; ...; };
struct mlx5_wqe_raddr_seg { uint64_t raddr; uint32_t rkey; ...; };
struct mlx5_wqe_atomic_seg { uint64_t swap_add; uint64_t compare; ...; };
struct mlx5_wqe_data_seg { uint32_t byte_count; uint32_t lkey; uint64_t addr; ...; };
struct mlx5_wqe_srq_next_seg { uint16_t next_wqe_index; ...; };
struct mlx5_wqe_umr_ctrl_seg { uint8_t flags; uint64_t mkey_mask; ...; };
struct mlx5_wqe_mkey_context_seg {
    uint8_t free; uint8_t access_flags; uint32_t qpn_mkey; uint64_t start_addr; uint64_t len; ...;
};
struct mlx5_wqe_umr_klm_seg { uint32_t byte_count; uint32_t mkey; uint64_t address; ...; };
struct mlx5_wqe_av {
    uint32_t dqp_dct; uint8_t stat_rate_sl; uint8_t fl_mlid; uint16_t rlid; uint8_t tclass; uint8_t hop_limit;
    uint32_t grh_gid_fl; uint8_t rgid[16]; ...;
};
struct mlx5_cqe64 {
    uint8_t ml_path; uint16_t slid; uint32_t flags_rqpn; uint32_t srqn_uidx; uint32_t imm_inval_pkey;
    uint32_t byte_cnt; uint64_t timestamp; uint32_t sop_drop_qpn; uint16_t wqe_counter; uint8_t op_own; ...;
};
enum { MLX5_OPCODE_SEND_INVAL, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND,
    MLX5_OPCODE_SEND_IMM, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_UMR,
    MLX5_CQE_REQ, MLX5_CQE_RESP_WR_IMM, MLX5_CQE_RESP_SEND, MLX5_CQE_RESP_SEND_IMM, MLX5_CQE_RESP_SEND_INV,
    MLX5_CQE_REQ_ERR, MLX5_CQE_RESP_ERR, MLX5_CQE_RESIZE_CQ, MLX5_INLINE_SCATTER_32, MLX5_INLINE_SCATTER_64,
    MLX5_WQE_CTRL_CQ_UPDATE, MLX5_WQE_CTRL_SOLICITED, MLX5_INVALID_LKEY, MLX5_WQE_MKEY_CONTEXT_FREE, ... };
"""


@pytest.fixture(scope="module")
def header() -> Any:
    """The cffi module of the installed header."""
    source = "#include <stdint.h>\n#include <stddef.h>\n#include <infiniband/mlx5dv.h>\n"
    return native.extension("connectx_test_mlx5dv", _TYPES, source)


def big(value: int, size: int) -> int:
    return int.from_bytes(value.to_bytes(size, "big"), "little")


def segment(header: Any, kind: str, **fields: Any) -> bytes:
    return bytes(header.ffi.buffer(header.ffi.new(f"struct {kind} *", fields)))


def control(header: Any, opcode: int, units: int, imm: int = 0, flags: int = 0, index: int = 0x1234) -> bytes:
    return segment(
        header,
        "mlx5_wqe_ctrl_seg",
        opmod_idx_opcode=big(index << 8 | opcode, 4),
        qpn_ds=big(0x77 << 8 | units, 4),
        fm_ce_se=flags,
        imm=imm,
    )


def data(header: Any, addr: int, length: int, lkey: int) -> bytes:
    return segment(header, "mlx5_wqe_data_seg", byte_count=big(length, 4), lkey=big(lkey, 4), addr=big(addr, 8))


def test_a_send_with_immediate_is_read(header: Any) -> None:
    lib = header.lib
    lies = control(header, lib.MLX5_OPCODE_SEND_IMM, 3, 0xAABBCCDD, lib.MLX5_WQE_CTRL_CQ_UPDATE)
    lies += data(header, 0x1000, 7, 0x500) + data(header, 0x2000, 0, 0x600)
    read = wqe.send_wqe(lies.ljust(64, b"\0"), abi.QPT_RC)
    assert (read.wr.opcode, read.wr.wr_id, read.blocks) == (abi.WR_SEND_WITH_IMM, 0x1234, 1)
    assert read.wr.imm_data == 0xAABBCCDD
    assert read.wr.flags == abi.SEND_SIGNALED
    assert read.wr.sges == [SGE(0x1000, 7, 0x500), SGE(0x2000, 2**31, 0x600)]


def test_an_rkey_to_invalidate_is_a_number_and_immediate_data_are_bytes(header: Any) -> None:
    lies = control(header, header.lib.MLX5_OPCODE_SEND_INVAL, 1, big(0x1234500, 4))
    assert wqe.send_wqe(lies.ljust(64, b"\0"), abi.QPT_RC).wr.imm_data == 0x1234500


@pytest.mark.parametrize(
    ("name", "opcode", "compare", "swap"),
    [
        ("MLX5_OPCODE_ATOMIC_CS", abi.WR_ATOMIC_CMP_AND_SWP, 5, 6),
        ("MLX5_OPCODE_ATOMIC_FA", abi.WR_ATOMIC_FETCH_AND_ADD, 6, 0),
    ],
)
def test_an_atomic_is_read(header: Any, name: str, opcode: int, compare: int, swap: int) -> None:
    lies = control(header, getattr(header.lib, name), 4)
    lies += segment(header, "mlx5_wqe_raddr_seg", raddr=big(0x4000, 8), rkey=big(0x900, 4))
    lies += segment(header, "mlx5_wqe_atomic_seg", swap_add=big(6, 8), compare=big(5, 8))
    lies += data(header, 0x1000, 8, 0x500)
    wr = wqe.send_wqe(lies, abi.QPT_RC).wr
    assert (wr.opcode, wr.remote_addr, wr.rkey, wr.compare_add, wr.swap) == (opcode, 0x4000, 0x900, compare, swap)
    assert wr.sges == [SGE(0x1000, 8, 0x500)]


def test_inline_data_are_taken_from_the_wqe(header: Any) -> None:
    lies = (
        control(header, header.lib.MLX5_OPCODE_SEND, 3) + big(1 << 31 | 13, 4).to_bytes(4, "little") + b"thirteen byte"
    )
    read = wqe.send_wqe(lies.ljust(64, b"\0"), abi.QPT_RC)
    assert read.wr.inline == b"thirteen byte"
    assert not read.wr.sges


def test_an_xrc_message_names_its_srq(header: Any) -> None:
    lies = control(header, header.lib.MLX5_OPCODE_SEND, 3) + big(0x42, 4).to_bytes(4, "little") + bytes(12)
    read = wqe.send_wqe((lies + data(header, 0x1000, 7, 0x500)).ljust(64, b"\0"), abi.QPT_XRC_SEND)
    assert read.wr.remote_srqn == 0x42
    assert read.wr.sges == [SGE(0x1000, 7, 0x500)]


def test_a_datagram_says_where_it_goes(header: Any) -> None:
    av = segment(
        header,
        "mlx5_wqe_av",
        dqp_dct=big(1 << 31 | 0x99, 4),
        stat_rate_sl=3,
        fl_mlid=1,
        rlid=big(0x10, 2),
        tclass=4,
        hop_limit=64,
        grh_gid_fl=big(1 << 30 | 2 << 20 | 0x12345, 4),
        rgid=list(range(16)),
    )
    lies = control(header, header.lib.MLX5_OPCODE_SEND, 4) + big(0x11111111, 4).to_bytes(4, "little") + av[4:]
    to = wqe.send_wqe(lies, abi.QPT_UD).datagram
    assert to == wqe.Datagram(0x11111111, 0x99, 3, 1, 0x10, 4, 64, True, 2, 0x12345, bytes(range(16)))


def test_a_wqe_has_as_many_blocks_as_its_size_needs(header: Any) -> None:
    lies = control(header, header.lib.MLX5_OPCODE_SEND, 5) + data(header, 0x1000, 1, 0x500) * 4
    read = wqe.send_wqe(lies.ljust(128, b"\0"), abi.QPT_RC)
    assert (read.blocks, len(read.wr.sges)) == (2, 4)


def test_a_window_is_bound_by_a_umr_wqe(header: Any) -> None:
    lies = control(header, header.lib.MLX5_OPCODE_UMR, 12, big(0x700, 4))
    lies += segment(header, "mlx5_wqe_umr_ctrl_seg", flags=1 << 7 | 1 << 5)
    lies += segment(
        header,
        "mlx5_wqe_mkey_context_seg",
        access_flags=1 << 4 | 1 << 5,
        qpn_mkey=big(0x77 << 8 | 3, 4),
        start_addr=big(0x4000, 8),
        len=big(64, 8),
    )
    lies += segment(header, "mlx5_wqe_umr_klm_seg", byte_count=big(64, 4), mkey=big(0x900, 4), address=big(0x4000, 8))
    read = wqe.send_wqe(lies.ljust(192, b"\0"), abi.QPT_RC)
    assert read.wr.opcode == abi.WR_BIND_MW
    access = abi.ACCESS_REMOTE_READ | abi.ACCESS_REMOTE_WRITE
    assert read.bind == wqe.Bind(0x700, 3, False, 0x900, 0x4000, 64, access)


def test_a_list_of_receives_ends_before_the_wqe_does(header: Any) -> None:
    lies = data(header, 0x1000, 7, 0x500) + data(header, 0, 0, header.lib.MLX5_INVALID_LKEY) + bytes(32)
    assert wqe.receive_wqe(5, lies).sges == [SGE(0x1000, 7, 0x500)]


def test_a_wqe_of_an_srq_names_the_next(header: Any) -> None:
    lies = segment(header, "mlx5_wqe_srq_next_seg", next_wqe_index=big(9, 2)) + data(header, 0x1000, 7, 0x500)
    read, following = wqe.srq_wqe(5, lies)
    assert (read.wr_id, read.sges, following) == (5, [SGE(0x1000, 7, 0x500)], 9)


class _Numbered:
    qp_num = 0x77


def completion(status: int = 0, opcode: int = abi.WC_RECV, **fields: Any) -> CQE:
    return CQE(5, status, opcode, _Numbered(), **fields)  # type: ignore[arg-type]  # its number is all that is asked


def ring(size: int = 64) -> entries.Ring:
    return entries.Ring(1, 0x10000, 16, size, 0x20000, number=3)


def read_entry(header: Any, lies: bytes) -> Any:
    assert len(lies) in (64, 128)
    owner = header.ffi.new("struct mlx5_cqe64 *")
    header.ffi.memmove(owner, lies[-64:], 64)
    return owner


def test_a_completed_receive_is_told(header: Any) -> None:
    cqe = completion(byte_len=33, imm_data=0xAABBCCDD, wc_flags=abi.WC_WITH_IMM | abi.WC_GRH, src_qp=0x99, sl=3)
    found = read_entry(header, entries.entry(ring(), cqe, 8, None, False, True))
    assert found.op_own >> 4 == header.lib.MLX5_CQE_RESP_SEND_IMM
    assert (found.srqn_uidx, found.byte_cnt) == (big(8, 4), big(33, 4))
    assert (found.wqe_counter, found.sop_drop_qpn) == (big(5, 2), big(0x77, 4))
    assert found.imm_inval_pkey == 0xAABBCCDD
    assert found.flags_rqpn == big(1 << 28 | 3 << 24 | 0x99, 4)


def test_a_completed_read_is_told(header: Any) -> None:
    found = read_entry(header, entries.entry(ring(), completion(0, abi.WC_RDMA_READ, byte_len=9), 8, None, False, True))
    assert found.op_own >> 4 == header.lib.MLX5_CQE_REQ
    assert found.sop_drop_qpn == big(header.lib.MLX5_OPCODE_RDMA_READ << 24 | 0x77, 4)


@pytest.mark.parametrize(("opcode", "name"), [(abi.WC_SEND, "MLX5_CQE_REQ_ERR"), (abi.WC_RECV, "MLX5_CQE_RESP_ERR")])
def test_a_failure_is_told(header: Any, opcode: int, name: str) -> None:
    lies = entries.entry(ring(), completion(abi.WC_WR_FLUSH_ERR, opcode), 8, None, False, True)
    found = read_entry(header, lies)
    assert found.op_own >> 4 == getattr(header.lib, name)
    assert lies[55] == abi.WC_WR_FLUSH_ERR  # syndrome of struct mlx5_err_cqe
    assert found.srqn_uidx == big(8, 4)


def test_a_message_of_32_bytes_is_in_the_entry(header: Any) -> None:
    lies = entries.entry(ring(), completion(byte_len=32), 8, b"x" * 32, False, True)
    assert lies[:32] == b"x" * 32
    assert read_entry(header, lies).op_own & header.lib.MLX5_INLINE_SCATTER_32


def test_a_message_of_64_bytes_is_in_front_of_the_entry(header: Any) -> None:
    lies = entries.entry(ring(128), completion(byte_len=64), 8, b"x" * 64, False, True)
    assert lies[:64] == b"x" * 64
    assert read_entry(header, lies).op_own & header.lib.MLX5_INLINE_SCATTER_64


@pytest.mark.parametrize("in_front", [True, False])
def test_where_a_small_message_is_in_a_large_entry_can_be_chosen(header: Any, in_front: bool) -> None:
    lies = entries.entry(ring(128), completion(byte_len=4), 8, b"data", False, in_front)
    assert lies.index(b"data") == (0 if in_front else 64)


def test_the_owner_bit_flips_with_each_turn() -> None:
    turning = ring()
    owners = []
    for _ in range(48):
        owners.append(entries.entry(turning, completion(), 8, None, False, True)[-1] & 1)
        turning.advance(False)
    assert owners == [0] * 16 + [1] * 16 + [0] * 16


def test_a_ring_is_full_when_the_program_has_taken_none() -> None:
    full = ring()
    for _ in range(16):
        assert not full.is_full()
        full.advance(False)
    assert full.is_full()
    full.consumer = 1
    assert not full.is_full()


def test_an_armed_ring_wants_an_event_for_what_comes_after() -> None:
    armed = ring()
    armed.advance(False)
    assert not armed.wants_event()
    armed.armed = 1  # the program has seen one entry
    assert not armed.wants_event()
    armed.advance(False)
    assert armed.wants_event()
    armed.answered = armed.armed
    assert not armed.wants_event()


def test_a_ring_armed_for_solicited_events_waits_for_one() -> None:
    armed = ring()
    armed.armed = 1 << 24
    armed.advance(False)
    assert not armed.wants_event()
    armed.advance(True)
    assert armed.wants_event()
