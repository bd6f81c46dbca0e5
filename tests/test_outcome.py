# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Judging an outcome: each difference is found, named and put under the right aspect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.model import Completion, predict
from conformance.outcome import MEMORY, Addresses, Aspect, Finding, Outcome, Refusal, WorkCompletion, describe, judge
from conformance.scenarios import Operation, Place, Scenario, Side, Transport, Wait, mem, null, plan

SCENARIO = Scenario(Transport.RC, Operation.SEND_WITH_IMM, (null(4), mem(4)), (mem(6), null(8)))
LAYOUT = plan(SCENARIO)
PREDICTION = predict(SCENARIO, LAYOUT, "little")


def completion(expected: Completion | None) -> tuple[WorkCompletion, ...]:
    if expected is None:
        return ()
    status = min(expected.statuses)
    return (WorkCompletion(1, status, 0, 17, expected.opcode, expected.byte_len, expected.imm_data),)


CONFORMING = Outcome(
    1,
    {Side.REQUESTER: completion(PREDICTION.requester), Side.RESPONDER: completion(PREDICTION.responder)},
    PREDICTION.after,
)


def with_byte(side: Side, offset: int, value: int) -> Outcome:
    memory = bytearray(CONFORMING.memory[side])
    memory[offset] = value
    return replace(CONFORMING, memory={**CONFORMING.memory, side: bytes(memory)})


def with_completions(side: Side, *completions: WorkCompletion) -> Outcome:
    return replace(CONFORMING, completions={**CONFORMING.completions, side: completions})


def findings(outcome: Outcome) -> tuple[Finding, ...]:
    return judge(SCENARIO, LAYOUT, PREDICTION, outcome)


def offset_of(place: Place) -> int:
    assert place.region is not None
    return place.region.offset


def test_what_was_predicted_has_no_findings() -> None:
    assert findings(CONFORMING) == ()


@pytest.mark.parametrize(
    ("side", "offset", "aspect", "name"),
    [
        (Side.RESPONDER, offset_of(LAYOUT.scatter[0]) + 2, Aspect.PAYLOAD, "responder's scatter[0]: 1 of 6 bytes"),
        (Side.RESPONDER, offset_of(LAYOUT.scatter[1]), Aspect.CANARY, "responder's canary of scatter[1]: 1 of 8"),
        (Side.REQUESTER, offset_of(LAYOUT.gather[0]), Aspect.CANARY, "requester's canary of gather[0]: 1 of 4"),
        (Side.REQUESTER, offset_of(LAYOUT.gather[1]), Aspect.SURROUNDINGS, "requester's gather[1]: 1 of 4"),
        (Side.RESPONDER, offset_of(LAYOUT.scatter[0]) + 6, Aspect.SURROUNDINGS, "responder's guard: 1 of 64"),
        (Side.RESPONDER, 0, Aspect.SURROUNDINGS, "responder's guard: 1 of 4096"),
    ],
)
def test_one_wrong_byte_is_found_where_it_is(side: Side, offset: int, aspect: Aspect, name: str) -> None:
    wrong = with_byte(side, offset, CONFORMING.memory[side][offset] ^ 0xFF)
    (finding,) = findings(wrong)
    assert finding.aspect is aspect
    assert finding.text.startswith(name)


def test_the_text_has_offset_and_values_and_the_bytes_around() -> None:
    offset = offset_of(LAYOUT.scatter[0])
    (finding,) = findings(with_byte(Side.RESPONDER, offset + 1, 0x5A))
    expected = CONFORMING.memory[Side.RESPONDER][offset : offset + 6]
    assert "first at offset 1: 0x5a, expected 0x00" in finding.text
    assert f"expected {expected.hex(' ')}" in finding.text


def test_the_text_counts_offsets_from_the_start_of_the_segment() -> None:
    scenario = Scenario(Transport.RC, Operation.SEND, (mem(40),), (mem(40),))
    layout = plan(scenario)
    prediction = predict(scenario, layout, "little")
    memory = bytearray(prediction.after[Side.RESPONDER])
    start = offset_of(layout.scatter[0])
    due = bytes(memory[start : start + 40])
    memory[start + 20 : start + 30] = bytes(10)
    outcome = Outcome(
        1,
        {Side.REQUESTER: completion(prediction.requester), Side.RESPONDER: completion(prediction.responder)},
        {**prediction.after, Side.RESPONDER: bytes(memory)},
    )
    (finding,) = judge(scenario, layout, prediction, outcome)
    assert finding.text == (
        f"responder's scatter[0]: 10 of 40 bytes wrong, first at offset 20: 0x00, expected 0x{due[20]:02x}; "
        f"bytes 12..27 are {due[12:20].hex(' ')}{8 * ' 00'}, expected {due[12:28].hex(' ')}"
    )


@pytest.mark.parametrize(
    ("scenario", "aspect"),
    [
        (Scenario(Transport.RC, Operation.RDMA_WRITE, (null(8),), ()), Aspect.PAYLOAD),
        (Scenario(Transport.RC, Operation.FETCH_AND_ADD, (), (null(8),)), Aspect.PAYLOAD),
        (Scenario(Transport.RC, Operation.RDMA_READ, (), (null(8),)), Aspect.SURROUNDINGS),
    ],
    ids=str,
)
def test_remote_memory_is_payload_unless_it_is_only_read(scenario: Scenario, aspect: Aspect) -> None:
    layout = plan(scenario)
    prediction = predict(scenario, layout, "little")
    assert layout.remote is not None
    memory = bytearray(prediction.after[Side.RESPONDER])
    memory[layout.remote.offset] ^= 0xFF
    completions = {Side.REQUESTER: completion(prediction.requester), Side.RESPONDER: ()}
    outcome = Outcome(1, completions, {**prediction.after, Side.RESPONDER: bytes(memory)})
    assert [finding.aspect for finding in judge(scenario, layout, prediction, outcome)] == [aspect]


def test_memory_is_every_aspect_that_is_not_about_completions() -> None:
    assert set(MEMORY) == set(Aspect) - {Aspect.ACCEPTED, Aspect.COMPLETION, Aspect.EVENT}


@pytest.mark.parametrize(
    ("wait", "solicited", "came", "text"),
    [
        (Wait.EVENT, False, False, "responder: no completion event, but a completion"),
        (Wait.EVENT, False, True, ""),
        (Wait.SOLICITED_EVENT, True, False, "responder: no completion event, but a completion"),
        (Wait.SOLICITED_EVENT, False, False, ""),
        (Wait.SOLICITED_EVENT, False, True, "responder: a completion event that nobody asked for"),
    ],
)
def test_an_event_is_due_where_it_was_asked_for(wait: Wait, solicited: bool, came: bool, text: str) -> None:
    scenario = replace(SCENARIO, wait=wait, solicited=solicited)
    layout = plan(scenario)
    prediction = predict(scenario, layout, "little")
    completions = {Side.REQUESTER: completion(prediction.requester), Side.RESPONDER: completion(prediction.responder)}
    notified = {Side.REQUESTER: True, Side.RESPONDER: came}
    outcome = Outcome(1, completions, prediction.after, notified=notified)
    found = judge(scenario, layout, prediction, outcome)
    assert [(finding.aspect, finding.text) for finding in found] == ([(Aspect.EVENT, text)] if text else [])


def test_a_wrong_status_is_named_with_vendor_err() -> None:
    wrong = WorkCompletion(1, "IBV_WC_LOC_PROT_ERR", 0x51, 17)
    (finding,) = findings(with_completions(Side.REQUESTER, wrong))
    assert finding.aspect is Aspect.ACCEPTED
    assert finding.text == (
        "requester: completed with IBV_WC_LOC_PROT_ERR vendor_err=0x51 qp_num=0x11, expected IBV_WC_SUCCESS"
    )


RECEIVED = CONFORMING.completions[Side.RESPONDER][0]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("opcode", replace(RECEIVED, opcode="IBV_WC_SEND")),
        ("byte_len", replace(RECEIVED, byte_len=3)),
        ("imm_data", replace(RECEIVED, imm_data=3)),
    ],
)
def test_a_wrong_field_of_the_completion_is_found(field: str, wrong: WorkCompletion) -> None:
    (finding,) = findings(with_completions(Side.RESPONDER, wrong))
    assert finding.aspect is Aspect.COMPLETION
    assert f"responder: {field} " in finding.text


def test_a_missing_completion_says_how_long_it_was_waited_for() -> None:
    (finding,) = findings(replace(with_completions(Side.RESPONDER), waited={Side.RESPONDER: 2.0, Side.REQUESTER: 10.0}))
    assert finding.aspect is Aspect.ACCEPTED
    assert finding.text == "responder: no completion within 2.0 s, expected IBV_WC_SUCCESS"


def test_a_short_wait_is_not_called_a_long_one() -> None:
    (finding,) = findings(replace(with_completions(Side.RESPONDER), waited={Side.RESPONDER: 0.05}))
    assert finding.text == "responder: no completion within 50 ms, expected IBV_WC_SUCCESS"


def test_a_second_completion_is_one_too_many() -> None:
    (good,) = CONFORMING.completions[Side.REQUESTER]
    (finding,) = findings(with_completions(Side.REQUESTER, good, good))
    assert finding.aspect is Aspect.COMPLETION
    assert "one completion too many" in finding.text


def test_a_completion_of_another_work_request_is_found_and_does_not_count() -> None:
    stranger = replace(RECEIVED, wr_id=7)
    finding, missing = findings(replace(with_completions(Side.RESPONDER, stranger), waited={Side.RESPONDER: 1.0}))
    assert finding.aspect is Aspect.COMPLETION
    assert finding.text.startswith("responder: a completion of wr_id 7, not of 1: IBV_WC_SUCCESS")
    assert missing.text == "responder: no completion within 1.0 s, expected IBV_WC_SUCCESS"


def test_a_completion_where_none_is_due_is_found() -> None:
    scenario = Scenario(Transport.RC, Operation.RDMA_WRITE, (null(4),), ())
    layout = plan(scenario)
    prediction = predict(scenario, layout, "little")
    good = completion(prediction.requester)
    outcome = Outcome(1, {Side.REQUESTER: good, Side.RESPONDER: good}, prediction.after)
    (finding,) = judge(scenario, layout, prediction, outcome)
    assert finding.aspect is Aspect.COMPLETION
    assert "where none is due" in finding.text


def test_a_refusal_is_all_there_is_to_say() -> None:
    refused = replace(CONFORMING, refusal=Refusal("ibv_post_send", "errno 22 (EINVAL: Invalid argument)"))
    (finding,) = findings(refused)
    assert finding.aspect is Aspect.ACCEPTED
    assert finding.text == "ibv_post_send refused it: errno 22 (EINVAL: Invalid argument)"


def test_what_was_not_posted_for_another_ones_refusal_says_so() -> None:
    (finding,) = findings(replace(CONFORMING, refusal=Refusal("ibv_post_send", "errno 22", of_another=True)))
    assert finding.aspect is Aspect.ACCEPTED
    assert finding.text == "not posted, as ibv_post_send refused the one before it: errno 22"


def test_the_grh_may_be_anything() -> None:
    scenario = Scenario(Transport.UD, Operation.SEND, (mem(8),), (mem(48),))
    layout = plan(scenario)
    prediction = predict(scenario, layout, "little")
    memory = bytearray(prediction.after[Side.RESPONDER])
    start = offset_of(layout.scatter[0])
    memory[start : start + 40] = bytes(40)
    outcome = Outcome(
        1,
        {Side.REQUESTER: completion(prediction.requester), Side.RESPONDER: completion(prediction.responder)},
        {**prediction.after, Side.RESPONDER: bytes(memory)},
    )
    assert judge(scenario, layout, prediction, outcome) == ()
    memory[start + 40] ^= 0xFF
    wrong = replace(outcome, memory={**outcome.memory, Side.RESPONDER: bytes(memory)})
    assert [finding.aspect for finding in judge(scenario, layout, prediction, wrong)] == [Aspect.PAYLOAD]
    sent = bytearray(prediction.after[Side.REQUESTER])
    sent[start] ^= 0xFF  # at the same place of the other arena
    wrong = replace(outcome, memory={**outcome.memory, Side.REQUESTER: bytes(sent)})
    assert [finding.aspect for finding in judge(scenario, layout, prediction, wrong)] == [Aspect.SURROUNDINGS]


def test_a_work_request_is_described_with_all_that_decides_its_path() -> None:
    send = Scenario.parse("rc-send_imm-m8+n64-m72-srq-wr_set_sge_list-cq_ex")
    layout = plan(send)
    addresses = Addresses((0x1000, 0x2000), (0x3000,))
    assert describe(send, layout, addresses).splitlines() == [
        f"RC SEND_WITH_IMM of 72 bytes, imm_data {send.imm_data:#010x}, posted by ibv_wr_set_sge_list, "
        "polled by ibv_start_poll (CQ-ex)",
        "gather:  [0] memory 8 at 0x1000, [1] NULL MR 64 at 0x2000 (canary)",
        "scatter: [0] memory 72 at 0x3000 (SRQ)",
    ]


def test_a_read_is_described_by_its_local_list() -> None:
    read = Scenario.parse("rc-read-remote-n64-rq-post_send-poll_cq")
    assert describe(read, plan(read)).splitlines() == [
        "RC RDMA_READ of 64 bytes, posted by ibv_post_send, polled by ibv_poll_cq",
        "remote:  64 bytes of ordinary memory by rkey",
        "scatter: [0] NULL MR 64 (canary) (local list)",
    ]


def test_a_receive_queue_is_described_as_one() -> None:
    send = Scenario.parse("rc-send-m8-n8-rq-post_send-poll_cq")
    assert describe(send, plan(send)).splitlines()[-1] == "scatter: [0] NULL MR 8 (canary) (receive queue)"
