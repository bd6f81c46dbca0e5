# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The reference device moves what verbs say, and reports it."""

import errno
import socket
import sys

import pytest
from pyverbs.addr import AH
from pyverbs.cq import PollCqAttr
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.wr import SGE

from conformance.verbs.names import e
from tests.pairs import Pair

CONNECTED = [e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_XRC_SEND]
RELIABLE = [e.IBV_QPT_RC, e.IBV_QPT_XRC_SEND]
QUEUES = [
    (e.IBV_QPT_RC, False),
    (e.IBV_QPT_RC, True),
    (e.IBV_QPT_UC, False),
    (e.IBV_QPT_UC, True),
    (e.IBV_QPT_XRC_SEND, True),
]


@pytest.mark.parametrize(("transport", "shared"), QUEUES)
@pytest.mark.parametrize("two_devices", [False, True])
def test_send_arrives_and_both_sides_complete(transport: int, shared: bool, two_devices: bool) -> None:
    with Pair(transport, shared, two_devices=two_devices) as pair:
        pair.right.receive(pair.right.sge(128, 16), pair.right.sge(512, 100), wr_id=77)
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 40), pair.left.sge(200, 24), wr_id=99)
        sent, received = pair.left.poll(), pair.right.poll()
        assert (sent.wr_id, sent.status, sent.opcode) == (99, e.IBV_WC_SUCCESS, e.IBV_WC_SEND)
        assert (received.wr_id, received.status, received.opcode) == (77, e.IBV_WC_SUCCESS, e.IBV_WC_RECV)
        assert (received.byte_len, received.qp_num) == (64, pair.right.receiver.qp_num)
        assert pair.right.read(20, 126) == b"\x22" * 2 + b"\x11" * 16 + b"\x22" * 2
        assert pair.right.read(49, 512) == b"\x11" * 48 + b"\x22"


@pytest.mark.parametrize(("transport", "shared"), QUEUES)
def test_send_with_immediate_delivers_it(transport: int, shared: bool) -> None:
    with Pair(transport, shared) as pair:
        pair.right.receive(pair.right.sge())
        pair.left.send(e.IBV_WR_SEND_WITH_IMM, pair.left.sge(), imm=0x12345678)
        received = pair.right.poll()
        assert (received.imm_data, received.wc_flags) == (0x12345678, e.IBV_WC_WITH_IMM)


@pytest.mark.parametrize("transport", CONNECTED)
def test_rdma_write_takes_no_receive(transport: int) -> None:
    with Pair(transport) as pair:
        pair.left.send(e.IBV_WR_RDMA_WRITE, pair.left.sge(0, 10), pair.left.sge(0, 10))
        sent = pair.left.poll()
        assert (sent.status, sent.opcode) == (e.IBV_WC_SUCCESS, e.IBV_WC_RDMA_WRITE)
        assert pair.right.poll_all() == []
        assert pair.right.read(22, 1023) == b"\x22" + b"\x11" * 20 + b"\x22"


@pytest.mark.parametrize(("transport", "shared"), QUEUES)
def test_rdma_write_with_immediate_takes_a_receive(transport: int, shared: bool) -> None:
    with Pair(transport, shared) as pair:
        pair.right.receive(pair.right.sge(0, 4))
        pair.left.send(e.IBV_WR_RDMA_WRITE_WITH_IMM, pair.left.sge(), imm=5)
        received = pair.right.poll()
        assert (received.opcode, received.byte_len, received.imm_data) == (e.IBV_WC_RECV_RDMA_WITH_IMM, 64, 5)
        assert pair.right.read(64, 1024) == b"\x11" * 64
        assert pair.right.read(4) == b"\x22" * 4


@pytest.mark.parametrize("transport", RELIABLE)
def test_rdma_read_scatters_what_the_peer_has(transport: int) -> None:
    with Pair(transport) as pair:
        pair.left.send(e.IBV_WR_RDMA_READ, pair.left.sge(0, 8), pair.left.sge(100, 8))
        sent = pair.left.poll()
        assert (sent.status, sent.opcode, sent.byte_len) == (e.IBV_WC_SUCCESS, e.IBV_WC_RDMA_READ, 16)
        assert pair.left.read(9) == b"\x22" * 8 + b"\x11"
        assert pair.left.read(9, 100) == b"\x22" * 8 + b"\x11"


@pytest.mark.parametrize("transport", RELIABLE)
@pytest.mark.parametrize(
    ("opcode", "wc_opcode", "old", "new"),
    [
        (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WC_COMP_SWAP, 7, 9),
        (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WC_COMP_SWAP, 8, 8),
        (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WC_FETCH_ADD, 7, 12),
        (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WC_FETCH_ADD, 2**64 - 1, 4),
    ],
)
def test_atomics_return_the_old_value(transport: int, opcode: int, wc_opcode: int, old: int, new: int) -> None:
    with Pair(transport) as pair:
        pair.right.mr.write(old.to_bytes(8, sys.byteorder), 8, 1024)
        pair.left.send(opcode, pair.left.sge(0, 8))
        sent = pair.left.poll()
        assert (sent.status, sent.opcode, sent.byte_len) == (e.IBV_WC_SUCCESS, wc_opcode, 8)
        assert int.from_bytes(pair.left.read(8), sys.byteorder) == old
        assert int.from_bytes(pair.right.read(8, 1024), sys.byteorder) == new


@pytest.mark.parametrize("index", [0, 1])
def test_ud_delivers_a_header_of_40_bytes_that_leads_back(index: int) -> None:
    with Pair(e.IBV_QPT_UD, two_devices=True) as pair:
        left, right = pair.left, pair.right
        right.receive(right.sge(0, 40), right.sge(256, 64))
        wr = left.wr(e.IBV_WR_SEND_WITH_IMM, left.sge(), imm=3)
        with AH(left.pd, attr=left.address(right, index)) as ah:
            wr.set_wr_ud(ah, right.qp.qp_num, 0x11111111)
            left.qp.post_send(wr)
        received = right.poll()
        assert (received.byte_len, received.src_qp) == (104, left.qp.qp_num)
        assert received.wc_flags == e.IBV_WC_GRH | e.IBV_WC_WITH_IMM
        assert right.read(64, 256) == b"\x11" * 64
        assert right.read(40) != b"\x22" * 40
        left.receive(left.sge(0, 200))
        answer = right.wr(e.IBV_WR_SEND, right.sge(2048, 8))
        with AH(right.pd, wc=received, port_num=1, grh=right.mr.buf) as ah:
            answer.set_wr_ud(ah, received.src_qp, 0x11111111)
            right.qp.post_send(answer)
        left.poll_all()
        assert left.read(8, 40) == b"\x22" * 8


def test_ud_drops_what_has_the_wrong_qkey_or_no_receive() -> None:
    with Pair(e.IBV_QPT_UD) as pair:
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        assert pair.left.poll().status == e.IBV_WC_SUCCESS
        pair.right.receive(pair.right.sge(0, 200))
        wr = pair.left.wr(e.IBV_WR_SEND, pair.left.sge())
        with AH(pair.left.pd, attr=pair.left.address(pair.right)) as ah:
            wr.set_wr_ud(ah, pair.right.qp.qp_num, 0x22)
            pair.left.qp.post_send(wr)
        assert pair.left.poll().status == e.IBV_WC_SUCCESS
        assert pair.right.poll_all() == []


def test_ud_message_longer_than_the_mtu_fails() -> None:
    with Pair(e.IBV_QPT_UD) as pair:
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(0, 1025))
        assert pair.left.poll().status == e.IBV_WC_LOC_LEN_ERR


def test_uc_drops_what_has_no_receive() -> None:
    with Pair(e.IBV_QPT_UC) as pair:
        pair.left.send(e.IBV_WR_SEND, pair.left.sge())
        assert pair.left.poll().status == e.IBV_WC_SUCCESS
        assert pair.right.poll_all() == []


def test_inline_data_is_read_when_posted_whatever_the_lkey() -> None:
    with Pair() as pair:
        sge = SGE(pair.left.mr.buf, 32, 0xDEAD)
        pair.left.send(e.IBV_WR_SEND, sge, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_INLINE)
        pair.left.mr.write(b"\x33" * 32, 32)
        pair.right.receive(pair.right.sge())
        assert pair.right.poll().byte_len == 32
        assert pair.right.read(32) == b"\x11" * 32


def test_unsignaled_sends_are_not_reported() -> None:
    with Pair() as pair:
        pair.right.receive(pair.right.sge())
        pair.left.send(e.IBV_WR_SEND, pair.left.sge(), flags=0)
        assert pair.left.poll_all() == []
        assert pair.right.poll().status == e.IBV_WC_SUCCESS


@pytest.mark.parametrize("transport", [e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD, e.IBV_QPT_XRC_SEND])
def test_wr_start_posts_lists_and_single_segments(transport: int) -> None:
    with Pair(transport, extended=True) as pair:
        left, right, qp = pair.left, pair.right, pair.left.qp
        skip = 40 if transport == e.IBV_QPT_UD else 0
        with AH(left.pd, attr=left.address(right)) as ah:
            for sges in ([left.sge(0, 16)], [left.sge(0, 8), left.sge(8, 8)]):
                right.receive(right.sge(0, 100))
                qp.wr_start()
                qp.wr_id, qp.wr_flags = 5, e.IBV_SEND_SIGNALED
                qp.wr_send_imm(6)
                if transport == e.IBV_QPT_UD:
                    qp.wr_set_ud_addr(ah, right.qp.qp_num, 0x11111111)
                elif transport == e.IBV_QPT_XRC_SEND:
                    qp.wr_set_xrc_srqn(right.srq.get_srq_num())
                if len(sges) == 1:
                    qp.wr_set_sge(sges[0])
                else:
                    qp.wr_set_sge_list(len(sges), sges)
                qp.wr_complete()
                assert (left.poll().wr_id, socket.htonl(right.poll().imm_data)) == (5, 6)
                assert right.read(17, skip) == b"\x11" * 16 + b"\x22"
                right.mr.write(b"\x22" * 100, 100)


def test_wr_abort_posts_nothing() -> None:
    with Pair(extended=True) as pair:
        pair.right.receive(pair.right.sge())
        pair.left.qp.wr_start()
        pair.left.qp.wr_send()
        pair.left.qp.wr_set_sge(pair.left.sge())
        pair.left.qp.wr_abort()
        assert pair.left.poll_all() == []
        assert pair.right.poll_all() == []


def test_wr_complete_posts_all_or_nothing() -> None:
    with Pair(extended=True) as pair:
        qp = pair.left.qp
        for number in range(17):
            qp.wr_start()
            qp.wr_flags = e.IBV_SEND_SIGNALED
            for qp.wr_id in (2 * number, 2 * number + 1):
                qp.wr_rdma_write(pair.right.mr.rkey, pair.right.mr.buf)
                qp.wr_set_sge(pair.left.sge(0, 8))
            if number < 8:
                qp.wr_complete()
                continue
            with pytest.raises(PyverbsRDMAError) as refused:  # there is room for 16
                qp.wr_complete()
            assert refused.value.error_code == errno.ENOMEM
        assert [wc.wr_id for wc in pair.left.poll_all()] == list(range(16))


@pytest.mark.parametrize("refused_at", [0, 1, 2])
def test_one_bad_work_request_of_a_batch_keeps_the_others_from_being_posted(refused_at: int) -> None:
    with Pair(extended=True) as pair:
        left, right, qp = pair.left, pair.right, pair.left.qp
        qp.wr_start()
        for number in range(3):
            qp.wr_rdma_write(right.mr.rkey, right.mr.buf)
            qp.wr_set_sge_list(9 if number == refused_at else 1, [left.sge(0, 1)] * 9)  # of at most 8
        with pytest.raises(PyverbsRDMAError) as refused:
            qp.wr_complete()
        assert refused.value.error_code == errno.EINVAL
        assert right.read(9) == b"\x22" * 9
        for _ in range(16):
            left.send(e.IBV_WR_RDMA_WRITE, left.sge(0, 1))  # all of the queue is free


def test_cq_ex_tells_of_a_completion_what_poll_cq_does() -> None:
    with Pair(cq_ex=True) as pair:
        pair.right.receive(pair.right.sge(), wr_id=8)
        pair.left.send(e.IBV_WR_SEND_WITH_IMM, pair.left.sge(), imm=9)
        cq = pair.right.cq
        assert cq.start_poll(PollCqAttr()) == 0
        assert (cq.wr_id, cq.status) == (8, e.IBV_WC_SUCCESS)
        assert (cq.read_opcode(), cq.read_byte_len(), cq.read_imm_data()) == (e.IBV_WC_RECV, 64, 9)
        assert cq.read_wc_flags() == e.IBV_WC_WITH_IMM
        assert cq.read_qp_num() == pair.right.qp.qp_num
        assert cq.poll_next() == errno.ENOENT
        cq.end_poll()


def test_long_messages_keep_every_byte() -> None:
    with Pair() as pair, MR(pair.left.pd, 1 << 20, 1) as source, MR(pair.right.pd, 1 << 20, 1) as sink:
        data = bytes(range(256)) * 4096
        source.write(data, len(data))
        pair.right.receive(SGE(sink.buf, 1000, sink.lkey), SGE(sink.buf + 1000, (1 << 20) - 1000, sink.lkey))
        pair.left.send(e.IBV_WR_SEND, SGE(source.buf, 1 << 20, source.lkey))
        assert pair.right.poll().byte_len == 1 << 20
        assert sink.read(1 << 20, 0) == data
