# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The reference device does what applications make of verbs: chains, few signals, events, inline data, no data."""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyverbs.addr import AH
from pyverbs.mr import MW, MWBindInfo
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import DataBuffer, QPAttr
from pyverbs.wr import SGE

from conformance.verbs.names import e
from conformance.verbs.null_mr import NullMR
from tests.pairs import REMOTE, Pair, Side
from tests.test_reference_objects import bind, write_through

SOLICITED = e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED
CONNECTED = [e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_XRC_SEND]
TRANSPORTS = [*CONNECTED, e.IBV_QPT_UD]
NOT_A_KEY = 0x5A5A5A


def batch(side: Side, *wrs: Callable[[Any], None], flags: tuple[int, ...] = (), ah: Any = None) -> None:
    """Post by ibv_wr_start(3) and its family; wr_id counts from 0."""
    qp, peer = side.qp, side.pair.peer_of(side)
    qp.wr_start()
    for qp.wr_id, build in enumerate(wrs):
        qp.wr_flags = flags[qp.wr_id] if flags else e.IBV_SEND_SIGNALED
        build(qp)
        if side.pair.transport == e.IBV_QPT_UD:
            qp.wr_set_ud_addr(ah, peer.qp.qp_num, 0x11111111)
        elif side.pair.transport == e.IBV_QPT_XRC_SEND:
            qp.wr_set_xrc_srqn(peer.srq.get_srq_num())
    qp.wr_complete()


def sending(*sges: SGE) -> Callable[[Any], None]:
    def build(qp: Any) -> None:
        qp.wr_send()
        qp.wr_set_sge_list(len(sges), list(sges))

    return build


# In flight


@pytest.mark.parametrize("transport", CONNECTED)
def test_a_chain_takes_receives_in_order_and_leaves_those_behind_it(transport: int) -> None:
    with Pair(transport, extended=True) as pair:
        left, right = pair.left, pair.right
        for number in range(5):
            right.receive(right.sge(100 * number, 100), wr_id=10 + number)
        batch(left, *(sending(left.sge(0, 8 * (number + 1))) for number in range(3)))
        assert [wc.wr_id for wc in left.poll_all()] == [0, 1, 2]
        assert [(wc.wr_id, wc.byte_len) for wc in right.poll_all()] == [(10, 8), (11, 16), (12, 24)]
        assert [right.read(100, 100 * number).count(0x11) for number in range(5)] == [8, 16, 24, 0, 0]
        batch(left, sending(left.sge(0, 1)), sending(left.sge(0, 2)))
        assert [(wc.wr_id, wc.byte_len) for wc in right.poll_all()] == [(13, 1), (14, 2)]


def test_completions_that_nobody_polled_stay_in_order() -> None:
    with Pair() as pair:
        for number in range(12):
            pair.right.receive(pair.right.sge(), wr_id=number)
            pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, number), wr_id=number)
        for side in (pair.left, pair.right):
            one_by_one = [side.cq.poll(1)[1][0].wr_id for _ in range(5)]
            assert one_by_one + [wc.wr_id for wc in side.poll_all()] == list(range(12))


# Signaling


@pytest.mark.parametrize("flags", [0, e.IBV_SEND_SIGNALED])
def test_with_sq_sig_all_every_send_is_reported(flags: int) -> None:
    with Pair(sig_all=True) as pair:
        pair.left.send(e.IBV_WR_RDMA_WRITE, pair.left.sge(), flags=flags)
        assert pair.left.poll().status == e.IBV_WC_SUCCESS


@pytest.mark.parametrize("signaled", [(0,), (2,), (0, 3), (1, 2, 3), ()])
def test_of_a_chain_those_are_reported_that_are_signaled(signaled: tuple[int, ...]) -> None:
    with Pair(extended=True) as pair:
        left, right = pair.left, pair.right
        for _ in range(4):
            right.receive(right.sge())
        flags = tuple(e.IBV_SEND_SIGNALED if number in signaled else 0 for number in range(4))
        batch(left, *[sending(left.sge(0, 8))] * 4, flags=flags)
        assert tuple(wc.wr_id for wc in left.poll_all()) == signaled
        assert len(right.poll_all()) == 4


def test_one_signaled_send_makes_room_for_those_before_it() -> None:
    with Pair() as pair:
        left = pair.left

        def full() -> bool:
            try:
                left.send(e.IBV_WR_RDMA_WRITE, left.sge(), flags=0)
            except PyverbsRDMAError as refused:
                return bool(refused.error_code == errno.ENOMEM)
            return False

        for _ in range(9):
            assert not full()
        left.send(e.IBV_WR_RDMA_WRITE, left.sge())
        for _ in range(6):
            assert not full()
        assert full()  # 16 are posted
        assert left.poll().status == e.IBV_WC_SUCCESS
        assert [full() for _ in range(11)] == [False] * 10 + [True]


def test_an_unsignaled_send_that_fails_is_reported_and_so_is_what_is_flushed_behind_it() -> None:
    with Pair(extended=True) as pair:
        left = pair.left
        right_key = pair.right.mr.rkey

        def write(rkey: int) -> Callable[[Any], None]:
            def build(qp: Any) -> None:
                qp.wr_rdma_write(rkey, pair.right.mr.buf)
                qp.wr_set_sge(left.sge(0, 8))

            return build

        batch(left, write(right_key), write(NOT_A_KEY), write(right_key), flags=(0, 0, 0))
        statuses = [(wc.wr_id, wc.status) for wc in left.poll_all()]
        assert statuses == [(1, e.IBV_WC_REM_ACCESS_ERR), (2, e.IBV_WC_WR_FLUSH_ERR)]


# Completion events


@pytest.mark.parametrize(
    ("solicited_only", "flags", "due"),
    [(0, e.IBV_SEND_SIGNALED, 1), (0, SOLICITED, 1), (1, e.IBV_SEND_SIGNALED, 0), (1, SOLICITED, 1)],
)
@pytest.mark.parametrize("opcode", [e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM])
def test_a_channel_tells_of_the_next_completion_that_was_asked_for(
    opcode: int, solicited_only: int, flags: int, due: int
) -> None:
    with Pair(events=True) as pair:
        left, right = pair.left, pair.right
        for _ in range(4):
            right.receive(right.sge())
        left.send(opcode, left.sge(), flags=flags)
        assert right.events() == 0  # nobody asked
        right.cq.req_notify(solicited_only)
        assert right.events() == 0  # not for what was there before
        left.send(opcode, left.sge(), flags=flags)
        left.send(opcode, left.sge(), flags=flags)
        assert right.events() == due  # one for each request
        left.send(opcode, left.sge(), flags=SOLICITED)
        assert right.events() == 1 - due
        assert left.events() == 0
        assert len(right.poll_all()) == 4


def test_a_request_for_any_completion_is_not_narrowed_by_one_for_solicited_ones() -> None:
    with Pair(events=True) as pair:
        pair.right.receive(pair.right.sge())
        pair.right.cq.req_notify(False)
        pair.right.cq.req_notify(True)
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        assert pair.right.events() == 1


def test_an_error_is_an_event_for_those_too_who_asked_for_solicited_ones() -> None:
    with Pair(events=True) as pair:
        left, right = pair.left, pair.right
        right.receive(SGE(0, 64, NOT_A_KEY))
        for side in (left, right):
            side.cq.req_notify(True)
        left.send(e.IBV_WR_SEND, left.sge(), flags=0)
        assert (left.events(), right.events()) == (1, 1)
        assert (left.poll().status, right.poll().status) == (e.IBV_WC_REM_OP_ERR, e.IBV_WC_LOC_PROT_ERR)


def test_the_requester_has_events_for_what_it_has_reported() -> None:
    with Pair(events=True) as pair:
        left = pair.left
        left.cq.req_notify(False)
        left.send(e.IBV_WR_RDMA_WRITE, left.sge(), flags=0)
        assert left.events() == 0
        left.send(e.IBV_WR_RDMA_READ, left.sge())
        assert left.events() == 1


def test_a_flush_is_an_event() -> None:
    with Pair(events=True) as pair:
        pair.right.receive(pair.right.sge())
        pair.right.cq.req_notify(True)
        pair.right.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        assert pair.right.events() == 1


def test_who_waits_for_an_event_is_woken_by_a_message() -> None:
    with Pair(events=True) as pair:
        left, right = pair.left, pair.right
        right.receive(right.sge())
        os.set_blocking(right.descriptor, True)
        right.cq.req_notify(False)
        woken = threading.Thread(target=right.channel.get_cq_event, args=(right.cq,))
        woken.start()
        left.send(e.IBV_WR_SEND, left.sge())
        woken.join(timeout=60)
        assert not woken.is_alive()
        right.cq.ack_events(1)
        assert right.poll().byte_len == 64


# Inline data


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("buffers", [[(0, 16)], [(0, 8), (512, 0), (8, 7), (256, 1)], []])
def test_inline_data_of_a_batch_is_read_when_it_is_built(transport: int, buffers: list[tuple[int, int]]) -> None:
    with Pair(transport, extended=True) as pair:
        left, right = pair.left, pair.right
        data = b"".join(left.read(length, offset) for offset, length in buffers)
        skip = 40 if transport == e.IBV_QPT_UD else 0

        def build(qp: Any) -> None:
            qp.wr_send()
            if len(buffers) == 1:
                ((offset, length),) = buffers
                qp.wr_set_inline_data(left.mr.buf + offset, length)
            else:
                gathered = [DataBuffer(left.mr.buf + offset, length) for offset, length in buffers]
                qp.wr_set_inline_data_list(len(gathered), gathered)
            left.mr.write(b"\x33" * 600, 600)

        right.receive(right.sge(0, 100))
        with AH(left.pd, attr=left.address(right)) as ah:
            batch(left, build, ah=ah)
        assert left.poll().status == e.IBV_WC_SUCCESS
        assert right.poll().byte_len == skip + len(data)
        assert right.read(60, skip) == data.ljust(60, b"\x22")


@pytest.mark.parametrize("opcode", [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM])
def test_inline_data_is_written(opcode: int) -> None:
    with Pair() as pair:
        left, right = pair.left, pair.right
        right.receive(right.sge(0, 1))
        sges = [SGE(left.mr.buf, 20, NOT_A_KEY), SGE(left.mr.buf + 64, 44, NOT_A_KEY)]
        left.send(opcode, *sges, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_INLINE)
        assert left.poll().status == e.IBV_WC_SUCCESS
        assert right.read(65, 1024) == b"\x11" * 64 + b"\x22"


def test_inline_data_goes_into_null_segments() -> None:
    with Pair() as pair, NullMR(pair.right.pd) as null:
        left, right = pair.left, pair.right
        right.receive(right.sge(0, 4), SGE(right.mr.buf + 100, 8, null.lkey), right.sge(200, 4))
        left.send(e.IBV_WR_SEND, left.sge(0, 16), flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_INLINE)
        assert right.poll().byte_len == 16
        assert right.read(8) == b"\x11" * 4 + b"\x22" * 4
        assert right.read(8, 100) == b"\x22" * 8
        assert right.read(8, 200) == b"\x11" * 4 + b"\x22" * 4


@pytest.mark.parametrize(("opcode", "length"), [(e.IBV_WR_SEND, 65), (e.IBV_WR_RDMA_READ, 8)])
def test_what_cannot_be_inline_is_refused(opcode: int, length: int) -> None:
    with Pair() as pair, pytest.raises(PyverbsRDMAError) as refused:
        pair.left.send(opcode, pair.left.sge(0, length), flags=e.IBV_SEND_INLINE)  # max_inline_data is 64
    assert refused.value.error_code == errno.EINVAL


def test_inline_data_that_is_not_there_is_refused_when_it_is_posted() -> None:
    with Pair() as pair, pytest.raises(PyverbsRDMAError) as refused:
        pair.left.send(e.IBV_WR_SEND, SGE(8, 8, pair.left.mr.lkey), flags=e.IBV_SEND_INLINE)
    assert refused.value.error_code == errno.EFAULT


def test_a_batch_with_inline_data_that_is_not_there_is_refused() -> None:
    def build(qp: Any) -> None:
        qp.wr_send()
        qp.wr_set_inline_data(8, 8)

    with Pair(extended=True) as pair, pytest.raises(PyverbsRDMAError) as refused:
        batch(pair.left, build)
    assert refused.value.error_code == errno.EFAULT


# SEND with invalidate


def send_and_invalidate(pair: Pair, rkey: int) -> None:
    if pair.extended:

        def build(qp: Any) -> None:
            qp.wr_send_inv(rkey)
            qp.wr_set_sge(pair.left.sge(0, 8))

        batch(pair.left, build)
    else:
        pair.left.send(e.IBV_WR_SEND_WITH_INV, pair.left.sge(0, 8), imm=rkey)


@pytest.mark.parametrize("transport", [e.IBV_QPT_RC, e.IBV_QPT_UC])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("extended", [False, True])
def test_a_send_invalidates_the_window_that_it_names(transport: int, shared: bool, extended: bool) -> None:
    with Pair(transport, shared, extended) as pair, MW(pair.right.pd, e.IBV_MW_TYPE_2) as mw:
        left, right = pair.left, pair.right
        if extended:
            rkey = mw.rkey + 1

            def build(qp: Any) -> None:
                qp.wr_bind_mw(mw, rkey, MWBindInfo(right.mr, right.mr.buf, 64, REMOTE))

            batch(right, build)
            assert right.poll().status == e.IBV_WC_SUCCESS
        else:
            right.window_type = e.IBV_MW_TYPE_2
            assert bind(right, mw, right.mr, right.mr.buf, 64) == e.IBV_WC_SUCCESS
            rkey = right.rkey
        right.receive(right.sge(100, 8))
        send_and_invalidate(pair, rkey)
        received = right.poll()
        assert (received.status, received.opcode, received.wc_flags) == (
            e.IBV_WC_SUCCESS, e.IBV_WC_RECV, e.IBV_WC_WITH_INV,
        )  # fmt: skip
        assert (received.imm_data, received.byte_len) == (rkey, 8)  # one place for both: invalidated_rkey
        assert right.read(9, 100) == b"\x11" * 8 + b"\x22"
        assert left.poll().status == e.IBV_WC_SUCCESS
        status = write_through(pair, rkey, right.mr.buf)
        assert status == (e.IBV_WC_REM_ACCESS_ERR if transport == e.IBV_QPT_RC else e.IBV_WC_SUCCESS)
        assert right.read(8) == b"\x22" * 8


@pytest.mark.parametrize("named", ["nothing", "an MR", "another queue pair's window"])
def test_a_send_that_invalidates_what_is_no_window_of_its_receiver_fails(named: str) -> None:
    with Pair() as pair, MW(pair.left.pd, e.IBV_MW_TYPE_2) as mw:
        left, right = pair.left, pair.right
        left.window_type = e.IBV_MW_TYPE_2
        assert bind(left, mw, left.mr, left.mr.buf, 64) == e.IBV_WC_SUCCESS
        keys = {"nothing": NOT_A_KEY, "an MR": right.mr.rkey, "another queue pair's window": left.rkey}
        right.receive(right.sge())
        send_and_invalidate(pair, keys[named])
        assert right.poll().status != e.IBV_WC_SUCCESS
        assert left.poll().status == e.IBV_WC_REM_OP_ERR
        assert (left.state, right.state) == (e.IBV_QPS_ERR, e.IBV_QPS_ERR)


# No data


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("opcode", [e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM])
@pytest.mark.parametrize("segments", [1, 2])
def test_a_send_of_no_bytes_arrives(transport: int, opcode: int, segments: int) -> None:
    """A segment of 0 bytes names no memory: neither its address nor its key means anything."""
    with Pair(transport) as pair:
        left, right = pair.left, pair.right
        right.receive(right.sge(0, 100))
        left.send(opcode, *[SGE(8, 0, NOT_A_KEY)] * segments)
        assert left.poll().status == e.IBV_WC_SUCCESS
        received = right.poll()
        assert received.status == e.IBV_WC_SUCCESS
        assert received.byte_len == (40 if transport == e.IBV_QPT_UD else 0)
        assert right.read(60, 40) == b"\x22" * 60


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_send_of_an_empty_list_arrives(transport: int) -> None:
    with Pair(transport, extended=True) as pair:
        left, right = pair.left, pair.right
        right.receive(right.sge(0, 100))
        with AH(left.pd, attr=left.address(right)) as ah:
            batch(left, lambda qp: qp.wr_send(), ah=ah)
        assert left.poll().status == e.IBV_WC_SUCCESS
        assert right.poll().byte_len == (40 if transport == e.IBV_QPT_UD else 0)
        assert right.read(60, 40) == b"\x22" * 60


@pytest.mark.parametrize(
    ("transport", "opcode"),
    [
        *((each, opcode) for each in CONNECTED for opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM)),
        (e.IBV_QPT_RC, e.IBV_WR_RDMA_READ),
        (e.IBV_QPT_XRC_SEND, e.IBV_WR_RDMA_READ),
    ],
)
def test_a_one_sided_request_for_no_bytes_needs_no_key(transport: int, opcode: int) -> None:
    """IBTA C9-88: the R_Key of a request for no bytes is not looked at."""
    with Pair(transport) as pair:
        left, right = pair.left, pair.right
        right.receive(right.sge())
        wr = left.wr(opcode, SGE(8, 0, NOT_A_KEY))
        wr.set_wr_rdma(NOT_A_KEY, 8)
        left.qp.post_send(wr)
        assert left.poll().status == e.IBV_WC_SUCCESS
        received = right.poll_all()
        assert [(wc.opcode, wc.byte_len) for wc in received] == (
            [(e.IBV_WC_RECV_RDMA_WITH_IMM, 0)] if opcode == e.IBV_WR_RDMA_WRITE_WITH_IMM else []
        )
        for side, fill in ((left, b"\x11"), (right, b"\x22")):
            assert side.read(4096) == fill * 4096


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("key", ["null", "ordinary", "none"])
def test_segments_of_no_bytes_between_others_are_passed_over(place: int, key: str) -> None:
    with Pair() as pair, NullMR(pair.left.pd) as left_null, NullMR(pair.right.pd) as right_null:
        left, right = pair.left, pair.right
        for side, null in ((left, left_null), (right, right_null)):
            lkey = {"null": null.lkey, "ordinary": side.mr.lkey, "none": NOT_A_KEY}[key]
            sges = [side.sge(0, 10), side.sge(100, 10)]
            sges.insert(place, SGE(side.mr.buf + 50, 0, lkey))
            if side is left:
                gather = sges
            else:
                right.receive(*sges)
        left.send(e.IBV_WR_SEND, *gather)
        assert (left.poll().status, right.poll().byte_len) == (e.IBV_WC_SUCCESS, 20)
        assert right.read(60) == b"\x11" * 10 + b"\x22" * 50
        assert right.read(20, 100) == b"\x11" * 10 + b"\x22" * 10


@pytest.mark.parametrize(("length", "written"), [(9, b"\x11" * 9), (10, b"\x11" * 10), (18, b"\x11" * 10)])
def test_a_message_may_end_before_the_list_does(length: int, written: bytes) -> None:
    """Before a null segment, exactly at its start, and in it."""
    with Pair() as pair, NullMR(pair.right.pd) as null:
        right = pair.right
        right.receive(right.sge(0, 10), SGE(right.mr.buf + 100, 20, null.lkey), right.sge(200, 10))
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, length))
        assert right.poll().byte_len == length
        assert right.read(4096) == written.ljust(4096, b"\x22")
