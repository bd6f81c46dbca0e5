# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What goes wrong on the reference device goes wrong as IBTA says: status on both sides, states, flushes, waiting."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.mem_alloc import free, posix_memalign
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE

from conformance.verbs.names import e
from tests.pairs import ALL, REMOTE, SIZE, Pair

ONE_SIDED = [
    (e.IBV_WR_RDMA_WRITE, e.IBV_ACCESS_REMOTE_WRITE),
    (e.IBV_WR_RDMA_READ, e.IBV_ACCESS_REMOTE_READ),
    (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_ACCESS_REMOTE_ATOMIC),
]


def aim(wr: Any, opcode: int, rkey: int, address: int) -> Any:
    if opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
        wr.set_wr_atomic(rkey, address, 5, 0)
    else:
        wr.set_wr_rdma(rkey, address)
    return wr


def test_bad_lkey_of_the_requester_is_a_local_protection_error() -> None:
    with Pair() as pair:
        pair.right.receive(pair.right.sge())
        bad = SGE(pair.left.mr.buf, 8, 0x5A5A5A)
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 8), bad, pair.left.sge(16, 8))
        assert pair.left.poll().status == e.IBV_WC_LOC_PROT_ERR
        assert pair.left.state == e.IBV_QPS_ERR
        assert pair.right.poll_all() == []
        assert pair.right.state == e.IBV_QPS_RTS


def test_bad_lkey_of_the_responder_is_reported_on_both_sides() -> None:
    with Pair() as pair:
        bad = SGE(pair.right.mr.buf + 8, 8, 0x5A5A5A)
        pair.right.receive(pair.right.sge(0, 8), bad, pair.right.sge(16, 8))
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 24))
        assert pair.right.poll().status == e.IBV_WC_LOC_PROT_ERR
        assert pair.left.poll().status == e.IBV_WC_REM_OP_ERR
        assert pair.right.read(24) == b"\x11" * 8 + b"\x22" * 16


def test_bad_lkey_behind_the_end_of_the_message_does_not_matter() -> None:
    with Pair() as pair:
        pair.right.receive(pair.right.sge(0, 8), SGE(0, 8, 0x5A5A5A))
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 8))
        assert pair.right.poll().status == e.IBV_WC_SUCCESS


@pytest.mark.parametrize("opcode", [e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD])
def test_mr_without_local_write_takes_no_response(opcode: int) -> None:
    with Pair() as pair, MR(pair.left.pd, 64, e.IBV_ACCESS_REMOTE_READ) as mr:
        pair.left.send(opcode, SGE(mr.buf, 8, mr.lkey))
        assert pair.left.poll().status == e.IBV_WC_LOC_PROT_ERR


@pytest.mark.parametrize(("before", "length"), [(8, 64), (0, SIZE + 1), (-SIZE, 1)])
def test_segment_outside_its_mr_is_refused(before: int, length: int) -> None:
    with Pair() as pair:
        pair.left.send(e.IBV_WR_SEND, SGE(pair.left.mr.buf - before, length, pair.left.mr.lkey))
        assert pair.left.poll().status == e.IBV_WC_LOC_PROT_ERR


def test_mr_of_another_pd_is_refused() -> None:
    with Pair() as pair, PD(pair.left.context) as other, MR(other, 64, ALL) as mr:
        pair.left.send(e.IBV_WR_SEND, SGE(mr.buf, 64, mr.lkey))
        assert pair.left.poll().status == e.IBV_WC_LOC_PROT_ERR


def test_memory_that_was_freed_is_an_error_and_no_crash() -> None:
    size = 1 << 22
    with Pair() as pair:
        buffer = posix_memalign(size, 4096)
        with MR(pair.left.pd, size, ALL, buffer) as mr:
            free(buffer)  # so large a block goes back to the kernel
            pair.left.send(e.IBV_WR_SEND, SGE(buffer + 8192, 64, mr.lkey))
            assert pair.left.poll().status == e.IBV_WC_LOC_PROT_ERR


def test_message_longer_than_the_receive_fails_on_both_sides() -> None:
    with Pair() as pair:
        pair.right.receive(pair.right.sge(0, 63))
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 64))
        assert pair.right.poll().status == e.IBV_WC_LOC_LEN_ERR
        assert pair.left.poll().status == e.IBV_WC_REM_INV_REQ_ERR
        assert {pair.left.state, pair.right.state} == {e.IBV_QPS_ERR}
        assert pair.right.read(63) == b"\x22" * 63


@pytest.mark.parametrize(("opcode", "access"), ONE_SIDED)
def test_rkey_that_lacks_the_access_is_refused(opcode: int, access: int) -> None:
    rest = e.IBV_ACCESS_LOCAL_WRITE | (REMOTE & ~access)
    with Pair() as pair, MR(pair.right.pd, 64, rest) as mr:
        mr.write(b"\x22" * 64, 64)
        pair.left.qp.post_send(aim(pair.left.wr(opcode, pair.left.sge(0, 8)), opcode, mr.rkey, mr.buf))
        assert pair.left.poll().status == e.IBV_WC_REM_ACCESS_ERR
        assert pair.right.state == e.IBV_QPS_ERR
        assert mr.read(64, 0) == b"\x22" * 64
        assert pair.left.read(8) == b"\x11" * 8


@pytest.mark.parametrize(("opcode", "access"), ONE_SIDED)
@pytest.mark.parametrize(("rkey", "offset"), [(0x5A5A5A, 0), (None, SIZE), (None, SIZE - 4), (None, -8)])
def test_remote_access_outside_what_the_rkey_opens_is_refused(
    opcode: int, access: int, rkey: int | None, offset: int
) -> None:
    with Pair() as pair:
        mr = pair.right.mr
        wr = pair.left.wr(opcode, pair.left.sge(0, 8))
        pair.left.qp.post_send(aim(wr, opcode, mr.rkey if rkey is None else rkey, mr.buf + offset))
        status = pair.left.poll().status
        misaligned = opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD and offset % 8
        assert status == (e.IBV_WC_REM_INV_REQ_ERR if misaligned else e.IBV_WC_REM_ACCESS_ERR)


@pytest.mark.parametrize(("opcode", "access"), ONE_SIDED)
def test_queue_pair_that_lacks_the_access_refuses(opcode: int, access: int) -> None:
    with Pair() as pair:
        attr = QPAttr()
        attr.qp_access_flags = REMOTE & ~access
        pair.right.qp.modify(attr, e.IBV_QP_ACCESS_FLAGS)
        pair.left.send(opcode, pair.left.sge(0, 8))
        assert pair.left.poll().status == e.IBV_WC_REM_INV_REQ_ERR


def test_unreliable_write_that_is_refused_is_lost_in_silence() -> None:
    with Pair(e.IBV_QPT_UC) as pair:
        wr = pair.left.wr(e.IBV_WR_RDMA_WRITE, pair.left.sge())
        wr.set_wr_rdma(0x5A5A5A, pair.right.mr.buf)
        pair.left.qp.post_send(wr)
        assert pair.left.poll().status == e.IBV_WC_SUCCESS
        assert pair.right.state == e.IBV_QPS_RTS


def test_unreliable_requester_error_stops_the_send_queue_only() -> None:
    with Pair(e.IBV_QPT_UC) as pair:
        pair.left.send(e.IBV_WR_SEND, SGE(0, 8, 0x5A5A5A))
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        assert [wc.status for wc in pair.left.poll_all()] == [e.IBV_WC_LOC_PROT_ERR, e.IBV_WC_WR_FLUSH_ERR]
        assert pair.left.state == e.IBV_QPS_SQE
        pair.left.receive(pair.left.sge())
        pair.right.send(e.IBV_WR_SEND, pair.right.sge())
        assert pair.left.poll().status == e.IBV_WC_SUCCESS


def test_error_state_flushes_what_is_posted_and_what_comes() -> None:
    with Pair() as pair:
        pair.left.receive(pair.left.sge(), wr_id=10)
        pair.left.receive(pair.left.sge(), wr_id=11)
        attr = QPAttr(qp_state=e.IBV_QPS_ERR)
        pair.left.qp.modify(attr, e.IBV_QP_STATE)
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(), wr_id=12, flags=0)
        pair.left.receive(pair.left.sge(), wr_id=13)
        flushed = pair.left.poll_all()
        assert [wc.wr_id for wc in flushed] == [10, 11, 12, 13]
        assert {wc.status for wc in flushed} == {e.IBV_WC_WR_FLUSH_ERR}


def test_reset_forgets_what_was_posted_and_completed() -> None:
    with Pair() as pair:
        pair.right.receive(pair.right.sge())
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        pair.right.receive(pair.right.sge())
        for side in (pair.left, pair.right):
            side.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
            assert side.poll_all() == []
            assert side.state == e.IBV_QPS_RESET


def test_sender_waits_for_a_receive_for_ever() -> None:
    with Pair(rnr_retry=7) as pair:
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 8), wr_id=1)
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 16), wr_id=2)
        assert pair.left.poll_all() == []
        pair.right.receive(pair.right.sge(), wr_id=3)
        assert [wc.wr_id for wc in pair.left.poll_all()] == [1]
        pair.right.receive(pair.right.sge(), wr_id=4)
        assert [wc.wr_id for wc in pair.left.poll_all()] == [2]
        assert [(wc.wr_id, wc.byte_len) for wc in pair.right.poll_all()] == [(3, 8), (4, 16)]


def test_sender_gives_up_when_its_rnr_retries_are_used_up() -> None:
    with Pair(rnr_retry=2) as pair:
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        assert pair.left.poll().status == e.IBV_WC_RNR_RETRY_EXC_ERR
        assert pair.left.state == e.IBV_QPS_ERR


def test_waiting_sender_hears_that_its_peer_is_gone() -> None:
    with Pair(rnr_retry=7) as pair:
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        pair.right.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        assert pair.left.poll().status == e.IBV_WC_RETRY_EXC_ERR


@pytest.mark.parametrize("gone", ["not connected", "destroyed"])
def test_sender_gives_up_when_nobody_answers(gone: str) -> None:
    with Pair(connect=gone == "destroyed") as pair:
        if gone == "destroyed":
            pair.right.qp.close()
        else:
            pair.left.connect(pair.right)
        pair.left.send(e.IBV_WR_RDMA_WRITE, pair.left.sge())
        assert pair.left.poll().status == e.IBV_WC_RETRY_EXC_ERR


def test_gids_of_other_types_do_not_reach_each_other() -> None:
    with Pair(connect=False) as pair:
        pair.right.connect(pair.left)
        attr = pair.left.path(pair.right, pair.right.qp.qp_num)
        roce_v2 = pair.right.context.query_gid(1, 1)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=roce_v2, sgid_index=0))
        pair.left.qp.to_rts(attr)
        pair.left.send(e.IBV_WR_RDMA_WRITE, pair.left.sge())
        assert pair.left.poll().status == e.IBV_WC_RETRY_EXC_ERR


def test_send_queue_is_full_until_a_completion_is_polled() -> None:
    with Pair() as pair:
        for _ in range(16):
            pair.left.send(e.IBV_WR_RDMA_WRITE, pair.left.sge())
        with pytest.raises(PyverbsRDMAError) as refused:
            pair.left.send(e.IBV_WR_RDMA_WRITE, pair.left.sge())
        assert refused.value.error_code == errno.ENOMEM
        assert len(pair.left.poll_all()) == 16
        pair.left.send(e.IBV_WR_RDMA_WRITE, pair.left.sge())


def test_receive_queue_takes_what_it_was_made_for() -> None:
    with Pair() as pair:
        for _ in range(16):
            pair.left.receive(pair.left.sge())
        with pytest.raises(PyverbsRDMAError) as refused:
            pair.left.receive(pair.left.sge())
        assert refused.value.error_code == errno.ENOMEM


def test_more_segments_than_the_queue_was_made_for_are_refused() -> None:
    with Pair() as pair:
        sges = [pair.left.sge(0, 1)] * 9
        with pytest.raises(PyverbsRDMAError) as refused:
            pair.left.send(e.IBV_WR_SEND, *sges)
        assert refused.value.error_code == errno.EINVAL
        with pytest.raises(PyverbsRDMAError) as refused:
            pair.left.receive(*sges)
        assert refused.value.error_code == errno.EINVAL


@pytest.mark.parametrize(
    ("transport", "opcode"),
    [
        (e.IBV_QPT_UC, e.IBV_WR_RDMA_READ),
        (e.IBV_QPT_UC, e.IBV_WR_ATOMIC_FETCH_AND_ADD),
        (e.IBV_QPT_UD, e.IBV_WR_RDMA_WRITE),
    ],
)
def test_opcodes_that_a_transport_lacks_are_refused(transport: int, opcode: int) -> None:
    with Pair(transport) as pair, pytest.raises(PyverbsRDMAError) as refused:
        pair.left.send(opcode, pair.left.sge(0, 8))
    assert refused.value.error_code == errno.EINVAL


def test_queue_pair_that_is_not_ready_takes_no_sends() -> None:
    with Pair(connect=False) as pair, pytest.raises(PyverbsRDMAError) as refused:
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
    assert refused.value.error_code == errno.EINVAL


def test_transition_without_its_attributes_is_refused() -> None:
    with Pair(connect=False) as pair:
        attr = pair.left.path(pair.right, pair.right.qp.qp_num)
        attr.qp_state = e.IBV_QPS_RTR
        mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_RQ_PSN
        with pytest.raises(PyverbsRDMAError) as refused:
            pair.left.qp.modify(attr, mask)
        assert refused.value.error_code == errno.EINVAL
        assert pair.left.state == e.IBV_QPS_INIT
