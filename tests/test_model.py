# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The model: what must be in memory and in the completions."""

from dataclasses import replace

import pytest

from conformance.model import Prediction, predict
from conformance.scenarios import Operation, Plan, Scenario, Side, Signal, Transport, Wait, mem, null, plan
from tests.work_requests import ADD, READ, SEND, SWAP, TOO_LONG, UD, WRITE


def predicted(scenario: Scenario) -> tuple[Plan, Prediction]:
    layout = plan(scenario)
    return layout, predict(scenario, layout, "little")


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
    assert prediction.requester is not None
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
    assert prediction.requester is not None
    assert prediction.requester.statuses == {"IBV_WC_REM_INV_REQ_ERR", "IBV_WC_REM_OP_ERR"}
    assert prediction.unspecified == (layout.scatter[1].region,)


def test_immediate_data_is_expected_where_it_is_sent() -> None:
    scenario = Scenario(Transport.RC, Operation.RDMA_WRITE_WITH_IMM, (null(4),), (mem(8),))
    _, prediction = predicted(scenario)
    assert prediction.responder is not None
    assert prediction.responder.imm_data == scenario.imm_data is not None
    assert prediction.responder.byte_len == 4
    assert predicted(SEND)[1].responder.imm_data is None  # type: ignore[union-attr]


def test_what_is_not_signaled_completes_at_the_responder_alone_unless_it_fails() -> None:
    _, prediction = predicted(replace(SEND, signal=Signal.UNSIGNALED))
    assert prediction.requester is None
    assert prediction.responder is not None
    assert predicted(replace(TOO_LONG, signal=Signal.UNSIGNALED))[1].requester is not None


@pytest.mark.parametrize(
    ("scenario", "notified"),
    [
        (SEND, ()),
        (replace(SEND, wait=Wait.EVENT), tuple(Side)),
        (replace(SEND, wait=Wait.EVENT, signal=Signal.UNSIGNALED), (Side.RESPONDER,)),
        (replace(SEND, wait=Wait.SOLICITED_EVENT), (Side.REQUESTER,)),
        (replace(SEND, wait=Wait.SOLICITED_EVENT, solicited=True), tuple(Side)),
        (replace(TOO_LONG, wait=Wait.SOLICITED_EVENT), tuple(Side)),
        (replace(READ, wait=Wait.SOLICITED_EVENT), (Side.REQUESTER,)),
    ],
    ids=str,
)
def test_a_channel_is_told_of_what_it_was_asked_for_and_of_errors(
    scenario: Scenario, notified: tuple[Side, ...]
) -> None:
    assert predicted(scenario)[1].notified == set(notified)


@pytest.mark.parametrize("length", [1, 7])
def test_a_message_shorter_than_the_list_leaves_the_rest_as_it_was(length: int) -> None:
    layout, prediction = predicted(replace(SEND, gather=(mem(length),), scatter=(mem(4), null(2), mem(8))))
    source = prediction.before[Side.REQUESTER][layout.gather[0].region.offset :][:length]  # type: ignore[union-attr]
    expected = bytearray(prediction.before[Side.RESPONDER])
    first, last = layout.scatter[0].region, layout.scatter[2].region
    assert first is not None
    assert last is not None
    expected[first.offset : first.offset + len(source[:4])] = source[:4]
    expected[last.offset : last.offset + len(source[6:])] = source[6:]
    assert prediction.after[Side.RESPONDER] == expected
    assert prediction.responder is not None
    assert prediction.responder.byte_len == length
