# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The scenario model: ids, layout, prediction."""

import pytest

from conformance.scenarios import (
    CANARY_OFFSET,
    TRANSPORT_OPERATIONS,
    Address,
    Operation,
    Plan,
    Poll,
    Post,
    Prediction,
    Queue,
    Scenario,
    Side,
    Transport,
    mem,
    null,
    pattern,
    plan,
    predict,
)

SEND = Scenario(Transport.RC, Operation.SEND, (null(5), mem(3), null(2)), (mem(4), null(1), mem(16)))
UD = Scenario(Transport.UD, Operation.SEND, (mem(8),), (null(30), mem(18)))
READ = Scenario(Transport.RC, Operation.RDMA_READ, (), (null(4), mem(6)))
WRITE = Scenario(Transport.RC, Operation.RDMA_WRITE, (null(4), mem(6)), ())
SWAP = Scenario(Transport.RC, Operation.CMP_AND_SWP, (), (null(8),))
ADD = Scenario(Transport.RC, Operation.FETCH_AND_ADD, (), (mem(8),))
TOO_LONG = Scenario(Transport.RC, Operation.SEND, (mem(9),), (null(4), mem(4)))


def predicted(scenario: Scenario) -> tuple[Plan, Prediction]:
    layout = plan(scenario)
    return layout, predict(scenario, layout, "little")


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        (SEND, "rc-send-n5+m3+n2-m4+n1+m16-rq-post_send-poll_cq"),
        (READ, "rc-read-remote-n4+m6-rq-post_send-poll_cq"),
        (
            Scenario(
                Transport.XRC,
                Operation.SEND_WITH_IMM,
                (null(1),) * 3 + (mem(1), null(64, Address.TOP)),
                (null(1024, Address.UNMAPPED),),
                Queue.SRQ,
                Post.WR_SET_SGE_LIST,
                Poll.CQ_EX,
            ),
            "xrc-send_imm-3*n1+m1+n64@top-n1024@unmapped-srq-wr_set_sge_list-cq_ex",
        ),
    ],
)
def test_an_id_reads_back_as_the_scenario(scenario: Scenario, text: str) -> None:
    assert str(scenario) == text
    assert Scenario.parse(text) == scenario


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rc-send", "7 fields"),
        ("rc-send-x5-m5-rq-post_send-poll_cq", "starts with n"),
        ("rc-send-n0-m5-rq-post_send-poll_cq", "at least 1 byte"),
        ("ud-read-remote-n5-rq-post_send-poll_cq", "UD has no RDMA_READ"),
        ("rc-send-remote-n5-rq-post_send-poll_cq", "SEND with gather list"),
        ("rc-write-n5-m5-rq-post_send-poll_cq", "RDMA_WRITE with scatter list"),
        ("rc-cmp_swp-remote-n4-rq-post_send-poll_cq", "8 bytes"),
        ("rc-send-n4-m4@zero-rq-post_send-poll_cq", "only a null segment"),
        ("xrc-send-n4-m4-rq-post_send-poll_cq", "SRQ only"),
        ("uc-send-n5-m4-rq-post_send-poll_cq", "reliable transports only"),
        ("rc-send-n5+n4-m9-rq-wr_set_sge-poll_cq", "one segment"),
    ],
)
def test_what_no_work_request_can_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scenario.parse(text)


def test_each_transport_has_the_operations_of_the_standard() -> None:
    sends = {Operation.SEND, Operation.SEND_WITH_IMM}
    writes = {Operation.RDMA_WRITE, Operation.RDMA_WRITE_WITH_IMM}
    assert {transport: set(operations) for transport, operations in TRANSPORT_OPERATIONS.items()} == {
        Transport.RC: set(Operation),
        Transport.XRC: set(Operation),
        Transport.UC: sends | writes,
        Transport.UD: sends,
    }


@pytest.mark.parametrize("scenario", [SEND, UD, READ, WRITE, SWAP, TOO_LONG], ids=str)
def test_regions_cover_the_arena_without_gaps(scenario: Scenario) -> None:
    layout = plan(scenario)
    for side in Side:
        end = 0
        for region in layout.regions(side):
            assert region.offset == end
            end = region.end
        assert layout.size(side) == end
        assert layout.regions(side)[-1].name == "guard"


def test_the_first_canary_is_always_at_the_same_address() -> None:
    for scenario in (SEND, WRITE, READ):
        layout = plan(scenario)
        first = next(p for p in (*layout.gather, *layout.scatter) if p.segment.null)
        assert first.region is not None
        assert first.region.offset == CANARY_OFFSET


def test_segments_follow_one_another_unaligned_with_guards_between_them() -> None:
    layout = plan(Scenario(Transport.RC, Operation.SEND, (mem(3), mem(5)), (mem(8),)))
    assert [(region.name, region.offset, region.length) for region in layout.regions(Side.REQUESTER)] == [
        ("guard", 0, 4096),
        ("gather[0]", 4096, 3),
        ("guard", 4099, 64),
        ("gather[1]", 4163, 5),
        ("guard", 4168, 64),
    ]


def test_no_stretch_of_memory_is_like_another() -> None:
    layout, prediction = predicted(Scenario(Transport.RC, Operation.SEND, (mem(64), null(64), mem(64)), (mem(192),)))
    everything = prediction.before[Side.REQUESTER] + prediction.before[Side.RESPONDER]
    for side in Side:
        for region in layout.regions(side):
            start = bytes(prediction.before[side][region.offset : region.offset + 16])
            assert everything.count(start) == 1, region


def test_no_byte_of_the_memory_is_zero_before() -> None:
    _, prediction = predicted(SEND)
    assert all(0 not in image for image in prediction.before.values())


def test_null_segments_give_zeros_and_swallow_their_part() -> None:
    layout, prediction = predicted(SEND)
    own = layout.gather[1].region
    first, last = layout.scatter[0].region, layout.scatter[2].region
    assert own is not None
    assert first is not None
    assert last is not None
    sent = prediction.before[Side.REQUESTER][own.offset : own.end]
    after = prediction.after[Side.RESPONDER]
    message = bytes(5) + sent + bytes(2)
    assert after[first.offset : first.end] == message[:4]
    assert after[last.offset : last.offset + 5] == message[5:]
    rest = slice(last.offset + 5, last.end)
    assert after[rest] == prediction.before[Side.RESPONDER][rest]
    assert prediction.after[Side.REQUESTER] == prediction.before[Side.REQUESTER]


def test_only_the_ordinary_scatter_segments_change() -> None:
    layout, prediction = predicted(SEND)
    expected = bytearray(prediction.before[Side.RESPONDER])
    for index in (0, 2):
        region = layout.scatter[index].region
        assert region is not None
        expected[region.offset : region.end] = prediction.after[Side.RESPONDER][region.offset : region.end]
    assert prediction.after[Side.RESPONDER] == expected


def test_a_ud_receive_has_40_bytes_of_grh_first() -> None:
    layout, prediction = predicted(UD)
    region, source = layout.scatter[1].region, layout.gather[0].region
    assert region is not None
    assert source is not None
    assert [(r.offset, r.length) for r in prediction.unspecified] == [(region.offset, 10)]
    assert (
        prediction.after[Side.RESPONDER][region.offset + 10 : region.end]
        == prediction.before[Side.REQUESTER][source.offset : source.end]
    )
    assert prediction.responder is not None
    assert prediction.responder.byte_len == 48


def test_a_write_puts_zeros_into_remote_memory() -> None:
    layout, prediction = predicted(WRITE)
    assert layout.remote is not None
    written = prediction.after[Side.RESPONDER][layout.remote.offset : layout.remote.end]
    assert written[:4] == bytes(4)
    assert 0 not in written[4:]
    assert prediction.responder is None


def test_a_read_leaves_remote_memory_and_fills_the_ordinary_segment() -> None:
    layout, prediction = predicted(READ)
    region = layout.scatter[1].region
    assert layout.remote is not None
    assert region is not None
    source = prediction.before[Side.RESPONDER][layout.remote.offset : layout.remote.end]
    assert prediction.after[Side.REQUESTER][region.offset : region.end] == source[4:]
    assert prediction.after[Side.RESPONDER] == prediction.before[Side.RESPONDER]
    assert prediction.requester.byte_len == 10


@pytest.mark.parametrize("scenario", [SWAP, ADD], ids=str)
def test_an_atomic_updates_the_remote_word(scenario: Scenario) -> None:
    layout, prediction = predicted(scenario)
    assert layout.remote is not None
    assert layout.remote.offset % 8 == 0
    word = slice(layout.remote.offset, layout.remote.end)
    assert prediction.after[Side.RESPONDER][word] != prediction.before[Side.RESPONDER][word]
    result = layout.scatter[0].region
    assert result is not None
    returned = prediction.after[Side.REQUESTER][result.offset : result.end]
    old_word = prediction.before[Side.RESPONDER][word]
    assert returned == (prediction.before[Side.REQUESTER][result.offset : result.end] if scenario is SWAP else old_word)


def test_a_message_longer_than_the_list_is_a_length_error() -> None:
    layout, prediction = predicted(TOO_LONG)
    assert prediction.responder is not None
    assert prediction.responder.statuses == {"IBV_WC_LOC_LEN_ERR", "IBV_WC_LOC_QP_OP_ERR"}
    assert prediction.requester.statuses == {"IBV_WC_REM_INV_REQ_ERR", "IBV_WC_REM_OP_ERR"}
    assert prediction.unspecified == (layout.scatter[1].region,)


def test_immediate_data_is_expected_where_it_is_sent() -> None:
    scenario = Scenario(Transport.RC, Operation.RDMA_WRITE_WITH_IMM, (null(4),), (mem(8),))
    _, prediction = predicted(scenario)
    assert prediction.responder is not None
    assert prediction.responder.imm_data == scenario.imm_data is not None
    assert prediction.responder.byte_len == 4
    assert predicted(SEND)[1].responder.imm_data is None  # type: ignore[union-attr]


@pytest.mark.parametrize("length", range(1, 9))
def test_immediate_data_shows_both_ends_of_its_word(length: int) -> None:
    scenario = Scenario(Transport.RC, Operation.SEND_WITH_IMM, (null(length),), (mem(length),))
    assert scenario.imm_data is not None
    assert scenario.imm_data & 0x80000001 == 0x80000001
    assert scenario.imm_data < 1 << 32


def test_the_control_has_the_same_lengths_and_no_null() -> None:
    control = SEND.on_ordinary_memory()
    assert not control.has_null
    assert [s.length for s in control.segments] == [s.length for s in SEND.segments]


@pytest.mark.parametrize("length", [1, 65520, 65521, 65522, 200_000])
def test_patterns_have_no_zero_and_differ_from_start_to_start(length: int) -> None:
    assert len(pattern(length, 5)) == length
    assert 0 not in pattern(length, 70_000)
    if length > 1:
        assert pattern(length, 5) != pattern(length, 4104)
