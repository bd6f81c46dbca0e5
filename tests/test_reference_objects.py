# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Objects of the reference device: null MRs, windows, shared queues, events, limits, order of destruction."""

import errno
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr
from pyverbs.srq import SrqAttr
from pyverbs.wr import SGE, SendWR

from conformance.verbs.names import e
from conformance.verbs.null_mr import NullMR
from tests.pairs import ALL, REMOTE, Pair

SIZE_MAX = 2**64 - 1
ADDRESSES = [0, 0x1000, SIZE_MAX - 63]


@pytest.mark.parametrize("address", ADDRESSES)
def test_null_mr_reads_as_zeros(address: int) -> None:
    with Pair() as pair, NullMR(pair.left.pd) as null:
        pair.right.receive(pair.right.sge(0, 100))
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 4), SGE(address, 8, null.lkey), pair.left.sge(0, 4))
        assert pair.right.poll().byte_len == 16
        assert pair.right.read(17) == b"\x11" * 4 + bytes(8) + b"\x11" * 4 + b"\x22"


@pytest.mark.parametrize("address", ADDRESSES)
def test_null_mr_swallows_what_it_receives(address: int) -> None:
    with Pair() as pair, NullMR(pair.right.pd) as null:
        pair.right.receive(pair.right.sge(0, 4), SGE(address, 8, null.lkey), pair.right.sge(4, 4))
        pair.left.mr.write(bytes(range(16)), 16)
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 16))
        assert pair.right.poll().byte_len == 16
        assert pair.right.read(9) == bytes([0, 1, 2, 3, 12, 13, 14, 15]) + b"\x22"


def test_null_segment_leaves_memory_at_its_address_alone() -> None:
    with Pair() as pair, NullMR(pair.right.pd) as null:
        pair.right.receive(SGE(pair.right.mr.buf, 64, null.lkey))
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        assert pair.right.poll().status == e.IBV_WC_SUCCESS
        assert pair.right.read() == b"\x22" * 64


def test_gigabyte_from_null_to_null_costs_nothing() -> None:
    with Pair() as pair, NullMR(pair.left.pd) as source, NullMR(pair.right.pd) as sink:
        pair.right.receive(SGE(0, 2**30, sink.lkey))
        pair.left.send(e.IBV_WR_SEND, SGE(0, 2**30, source.lkey))
        assert pair.right.poll().byte_len == 2**30


def test_null_mr_has_no_rkey() -> None:
    with Pair() as pair, NullMR(pair.right.pd) as null:
        for key in (null.rkey, null.lkey):
            wr = pair.left.wr(e.IBV_WR_RDMA_READ, pair.left.sge())
            wr.set_wr_rdma(key, 0x1000)
            pair.left.qp.post_send(wr)
            assert pair.left.poll_all()[0].status != e.IBV_WC_SUCCESS


def test_null_mr_of_another_pd_is_refused() -> None:
    with Pair() as pair, PD(pair.left.context) as other, NullMR(other) as null:
        pair.left.send(e.IBV_WR_SEND, SGE(0, 8, null.lkey))
        assert pair.left.poll().status == e.IBV_WC_LOC_PROT_ERR


def test_freed_null_mr_is_gone_and_others_stay() -> None:
    with Pair() as pair, NullMR(pair.left.pd) as kept:
        gone = NullMR(pair.left.pd)
        lkey = gone.lkey
        gone.close()
        pair.right.receive(pair.right.sge())
        pair.left.send(e.IBV_WR_SEND, SGE(0, 8, kept.lkey))
        assert pair.left.poll().status == e.IBV_WC_SUCCESS
        pair.left.send(e.IBV_WR_SEND, SGE(0, 8, lkey))
        assert pair.left.poll().status == e.IBV_WC_LOC_PROT_ERR


def test_null_mrs_come_and_go_in_threads_while_traffic_runs() -> None:
    def churn(pd: Any) -> None:
        for _ in range(50):
            NullMR(pd).close()

    with Pair() as pair, NullMR(pair.left.pd) as null, ThreadPoolExecutor(4) as pool:
        done = [pool.submit(churn, pair.left.pd) for _ in range(4)]
        for _ in range(100):
            pair.right.receive(pair.right.sge())
            pair.left.send(e.IBV_WR_SEND, SGE(0, 8, null.lkey))
            assert pair.left.poll().status == pair.right.poll().status == e.IBV_WC_SUCCESS
        for future in done:
            future.result()


def bind(side: Any, mw: Any, mr: Any, address: int, length: int, access: int = REMOTE) -> int:
    """Bind and return the status of the completion."""
    info = MWBindInfo(mr, address, length, access)
    if side.window_type == e.IBV_MW_TYPE_1:
        side.qp.bind_mw(mw, MWBind(info, e.IBV_SEND_SIGNALED))
        side.rkey = mw.rkey
    else:
        wr = SendWR(opcode=e.IBV_WR_BIND_MW)
        wr.set_bind_wr(mw, info)
        side.qp.post_send(wr)
        side.rkey = wr.rkey
    return int(side.poll().status)


def write_through(pair: Pair, rkey: int, address: int, length: int = 8) -> int:
    wr = pair.left.wr(e.IBV_WR_RDMA_WRITE, pair.left.sge(0, length))
    wr.set_wr_rdma(rkey, address)
    pair.left.qp.post_send(wr)
    return int(pair.left.poll().status)


@pytest.mark.parametrize("window_type", [e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2])
class TestWindows:
    def test_window_opens_its_bytes_and_no_others(self, window_type: int) -> None:
        with Pair() as pair, MR(pair.right.pd, 64, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND) as mr:
            pair.right.window_type = window_type
            mr.write(bytes(64), 64)
            with MW(pair.right.pd, window_type) as mw:
                assert bind(pair.right, mw, mr, mr.buf + 16, 16) == e.IBV_WC_SUCCESS
                assert write_through(pair, pair.right.rkey, mr.buf + 24) == e.IBV_WC_SUCCESS
                assert mr.read(64, 0) == bytes(24) + b"\x11" * 8 + bytes(32)
                assert write_through(pair, pair.right.rkey, mr.buf + 25) == e.IBV_WC_REM_ACCESS_ERR

    def test_closed_window_opens_nothing(self, window_type: int) -> None:
        with Pair() as pair:
            pair.right.window_type = window_type
            mw = MW(pair.right.pd, window_type)
            assert bind(pair.right, mw, pair.right.mr, pair.right.mr.buf, 64) == e.IBV_WC_SUCCESS
            mw.close()
            assert write_through(pair, pair.right.rkey, pair.right.mr.buf) == e.IBV_WC_REM_ACCESS_ERR

    def test_mr_must_allow_windows(self, window_type: int) -> None:
        with Pair() as pair, MR(pair.right.pd, 64, e.IBV_ACCESS_LOCAL_WRITE) as mr:
            pair.right.window_type = window_type
            with MW(pair.right.pd, window_type) as mw:
                assert bind(pair.right, mw, mr, mr.buf, 64) == e.IBV_WC_MW_BIND_ERR

    def test_bound_mr_cannot_be_deregistered(self, window_type: int) -> None:
        with Pair() as pair:
            pair.right.window_type = window_type
            mr = MR(pair.right.pd, 64, ALL)
            mw = MW(pair.right.pd, window_type)
            assert bind(pair.right, mw, mr, mr.buf, 64) == e.IBV_WC_SUCCESS
            mr_lkey = mr.lkey
            with pytest.raises(PyverbsRDMAError) as refused:
                mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=ALL)
            assert refused.value.error_code == errno.EBUSY
            mw.close()
            assert mr.lkey == mr_lkey
            mr.close()


def test_type_1_window_is_unbound_by_length_zero() -> None:
    with Pair() as pair, MW(pair.right.pd, e.IBV_MW_TYPE_1) as mw:
        pair.right.window_type = e.IBV_MW_TYPE_1
        assert bind(pair.right, mw, pair.right.mr, pair.right.mr.buf, 64) == e.IBV_WC_SUCCESS
        old = pair.right.rkey
        assert bind(pair.right, mw, pair.right.mr, 0, 0) == e.IBV_WC_SUCCESS
        assert write_through(pair, old, pair.right.mr.buf) == e.IBV_WC_REM_ACCESS_ERR


def test_type_2_window_is_bound_once_and_invalidated() -> None:
    with Pair() as pair, MW(pair.right.pd, e.IBV_MW_TYPE_2) as mw:
        pair.right.window_type = e.IBV_MW_TYPE_2
        assert bind(pair.right, mw, pair.right.mr, pair.right.mr.buf, 64) == e.IBV_WC_SUCCESS
        wr = SendWR(opcode=e.IBV_WR_LOCAL_INV)
        wr.imm_data = pair.right.rkey
        pair.right.qp.post_send(wr)
        assert pair.right.poll().opcode == e.IBV_WC_LOCAL_INV
        assert write_through(pair, pair.right.rkey, pair.right.mr.buf) == e.IBV_WC_REM_ACCESS_ERR


@pytest.mark.parametrize("window_type", [e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2])
def test_bind_to_a_null_mr_is_refused(window_type: int) -> None:
    with Pair() as pair, NullMR(pair.right.pd) as null, MW(pair.right.pd, window_type) as mw:
        pair.right.window_type = window_type
        if window_type == e.IBV_MW_TYPE_1:
            with pytest.raises(PyverbsRDMAError) as refused:
                bind(pair.right, mw, null, 0x1000, 64)
            assert refused.value.error_code == errno.EINVAL
        else:
            assert bind(pair.right, mw, null, 0x1000, 64) == e.IBV_WC_MW_BIND_ERR


def test_rereg_moves_an_mr_and_refuses_a_null_mr() -> None:
    with Pair() as pair, PD(pair.left.context) as other:
        with MR(pair.left.pd, 64, ALL) as mr:
            mr.rereg(e.IBV_REREG_MR_CHANGE_PD, other)
            pair.left.send(e.IBV_WR_SEND, SGE(mr.buf, 8, mr.lkey))
            assert pair.left.poll().status == e.IBV_WC_LOC_PROT_ERR
        with NullMR(pair.left.pd) as null, pytest.raises(PyverbsRDMAError) as refused:
            null.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, pair.left.pd, access=ALL)
        assert refused.value.error_code == errno.EINVAL


def test_srq_says_when_it_falls_below_its_limit() -> None:
    with Pair(shared=True) as pair:
        pair.right.srq.modify(SrqAttr(srq_limit=2), e.IBV_SRQ_LIMIT)
        for _ in range(3):
            pair.right.receive(pair.right.sge())
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        event = pair.right.context.get_async_event()
        assert event.event_type == e.IBV_EVENT_SRQ_LIMIT_REACHED
        event.ack()


def test_queue_pair_of_an_srq_says_that_it_took_its_last_receive() -> None:
    with Pair(shared=True) as pair:
        pair.right.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        event = pair.right.context.get_async_event()
        assert event.event_type == e.IBV_EVENT_QP_LAST_WQE_REACHED
        event.ack()


def test_responder_says_that_a_peer_tried_a_bad_key() -> None:
    with Pair() as pair:
        assert write_through(pair, 0x5A5A5A, 0) == e.IBV_WC_REM_ACCESS_ERR
        event = pair.right.context.get_async_event()
        assert event.event_type == e.IBV_EVENT_QP_ACCESS_ERR
        event.ack()


def test_limits_of_the_device_are_kept() -> None:
    with Context(name="ref0") as context:
        attr = context.query_device()
        for cqe in (0, attr.max_cqe + 1):
            with pytest.raises(PyverbsRDMAError) as refused:
                CQ(context, cqe)
            assert refused.value.error_code == errno.EINVAL


@pytest.mark.parametrize("access", [e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_ATOMIC])
def test_remote_changes_need_local_write_access(access: int) -> None:
    with Context(name="ref0") as context, PD(context) as pd, pytest.raises(PyverbsRDMAError) as refused:
        MR(pd, 64, access)
    assert refused.value.error_code == errno.EINVAL
