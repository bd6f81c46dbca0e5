# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Sequences are plain data: read back from their text, valid by construction, reduced to what fails."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import sequences
from conformance.model import predict
from conformance.outcome import NOT_KNOWN, Aspect, Finding, Outcome, Run
from conformance.scenarios import LinkKind, Scenario, Side, plan
from conformance.sequence_search import CHAIN, Kit, clause_of, drawn, smallest, work_requests
from conformance.sequences import DEPTH, Sequence, State, Step, Verb
from conformance.verbs.player import Wrong
from tests.test_matrix import DEVICES

RC, SRQ = "rq-post_send-poll_cq", "srq-post_send-poll_cq"
INTO = f"rc-send-m64-n64-{RC}"
TOO_LONG = f"rc-send-m65-n64-{RC}"
START = f"alloc:n0:p0,connect:q0:p0:rc-{RC}"
ONCE = f"recv:q0:n0:{INTO},send:q0,wait:q0"
SHARED = f"alloc:n0:p0,connect:q0:p0:rc-{SRQ},recv:q0:n0:rc-send-m64-n64-{SRQ}"


def kit(name: str) -> Kit:
    fit: dict[LinkKind, list[Scenario]] = {}
    for scenario in work_requests(DEVICES[name]):
        fit.setdefault(scenario.link, []).append(scenario)
    return Kit({kind: tuple(of) for kind, of in fit.items()}, (1, 2))


@settings(max_examples=20)
@given(st.data(), st.sampled_from([name for name, able in DEVICES.items() if any(work_requests(able))]))
def test_what_is_drawn_is_read_back_and_within_the_limits(data: st.DataObject, name: str) -> None:
    sequence = data.draw(drawn(kit(name)))
    assert Sequence.parse(str(sequence)) == sequences.parse(str(sequence)) == sequence
    assert all(DEVICES[name].lacks(scenario) is None for step in sequence.steps for scenario in step.scenarios)
    assert max((len(step.scenarios) for step in sequence.steps), default=0) <= max(CHAIN, DEPTH)


@settings(max_examples=20)
@given(st.data())
def test_nothing_is_left_at_the_end(data: st.DataObject) -> None:
    sequence = data.draw(drawn(kit("full")))
    state = State()
    for step in (*sequence.steps, *sequence.ending):
        state.take(step)
    assert state == State(pds=set())


@settings(max_examples=20)
@given(st.data())
def test_any_steps_of_a_sequence_make_one(data: st.DataObject) -> None:
    steps = data.draw(drawn(kit("full"))).steps
    kept = data.draw(st.lists(st.sampled_from(steps), max_size=20))
    assert {*Sequence.of(kept).steps} <= {*kept}


@pytest.mark.parametrize(
    ("id", "reason"),
    [
        ("", "'' is not a valid Verb"),
        ("alloc:n0", "'alloc' has 2 operands, not 1"),
        ("alloc:m0:p0", "'m0': a number behind n, as in n0"),
        ("rereg:n0:x", "'x': a number, as in 0"),
        ("connect:q0:p0:rc-rq", "transport, queue, posting and polling API"),
        ("free:n0", "n0 is not there"),
        ("alloc:n0:p1", "p1 is not there"),
        ("alloc:n0:p0,alloc:n0:p0", "n0 is there already"),
        ("alloc:n0:p0,dealloc_pd:p0", "something is left on it"),
        ("alloc:n0:p0,rereg:n0:8", "flags are 0 to 7"),
        ("alloc:n0:p0,bind:n0:3", "windows are of type 1 or 2"),
        (f"{START},recv:q0:n0:rc-send-m64-n64-{SRQ}", "scenarios are for a link rc-rq"),
        (f"{START},alloc_pd:p1,alloc:n1:p1,recv:q0:n1:{INTO}", "n1 is of another PD"),
        (f"{START},recv:q0:n0:rc-send-m9-9*n1-{RC}", "lists have 4 segments at most"),
        (f"{START},recv:q0:n0:{'/'.join(17 * [INTO])}", "16 are in flight at most"),
        (f"{START},recv:q0:n0:{TOO_LONG}/{INTO}", "what ends in error comes last"),
        (f"{START},recv:q0:n0:{TOO_LONG},recv:q0:n0:{INTO}", "what ends in error comes last"),
        (f"{START},recv:q0:n0:{INTO},free:n0", "a work request in flight names it"),
        (f"{START},recv:q0:n0:{INTO},send:q0,reset:q0", "what was sent is to be waited for"),
        (f"{START},recv:q0:n0:{INTO},send:q0,destroy:q0", "what was sent is to be waited for"),
        (f"{START},recv:q0:n0:{INTO},error:q0,reset:q0", "what is flushed is to be waited for"),
        (f"{START},send:q0", "nothing is to be sent"),
        (f"{START},wait:q0", "nothing was sent"),
        (f"{START},error:q0,error:q0", "it is in error already"),
        (f"{SHARED},error:q0", "the receives of an SRQ are not flushed"),
        (f"{SHARED},reset:q0", "the receives of an SRQ are not forgotten"),
        (f"{SHARED},send:q0,wait:q0,error:q0,{SHARED.split(',')[2]}", "nobody takes receives from an SRQ in error"),
    ],
)
def test_what_is_not_to_be_done_is_refused_and_said(id: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        Sequence.parse(id)


def test_a_message_that_is_too_long_leaves_a_link_in_error() -> None:
    state = State()
    for step in Sequence.parse(f"{START},recv:q0:n0:{TOO_LONG},send:q0,wait:q0").steps:
        state.take(step)
    assert state.links[0].in_error
    state.take(Step.parse("reset:q0"))
    assert not state.links[0].in_error


def test_the_smallest_sequence_that_fails_has_no_step_too_many() -> None:
    def fails(sequence: Sequence) -> bool:
        """After a reset, a READ into a null MR is wrong."""
        was_reset = False
        for step in sequence.steps:
            was_reset = was_reset or step.verb is Verb.RESET
            if was_reset and any(scenario.operation.name == "RDMA_READ" for scenario in step.scenarios):
                return True
        return False

    read = f"rc-read-remote-n64-{RC}"
    long = Sequence.parse(
        f"{START},alloc:n1:p0,{ONCE},reg:m0:p0,reset:q0,rereg:n0:7,recv:q0:n1:{INTO}/{read}/{INTO},send:q0,dereg:m0,wait:q0"
    )
    assert str(smallest(long, fails)) == f"connect:q0:p0:rc-{RC},alloc:n1:p0,reset:q0,recv:q0:n1:{read}"


def wrong(id: str, aspect: Aspect) -> Wrong:
    """Traffic that shows something about an aspect."""
    scenario = Scenario.parse(id)
    layout = plan(scenario)
    run = Run(scenario, layout, predict(scenario, layout, "little"), Outcome(1, dict.fromkeys(Side, ()), {}), NOT_KNOWN)
    vars(run)["findings"] = (Finding(aspect, "wrong"),)
    return Wrong(Step(Verb.WAIT, 0), "wrong", run)


FROM = f"rc-send-n64-m64-{RC}"


@pytest.mark.parametrize(
    ("more", "id", "aspect", "clause"),
    [
        ("", INTO, Aspect.ACCEPTED, "allocate/lkey-valid"),
        ("", INTO, Aspect.CANARY, "discard/leaves-memory"),
        ("", INTO, Aspect.SURROUNDINGS, "discard/leaves-memory"),
        ("", INTO, Aspect.PAYLOAD, "discard/mixed-scatter"),
        ("", INTO, Aspect.COMPLETION, "discard/completion"),
        ("", FROM, Aspect.PAYLOAD, "read/zeros"),
        (f",connect:q1:p0:rc-{SRQ}", INTO, Aspect.CANARY, "allocate/many-queue-pairs"),
        (",alloc:n1:p0,free:n1", FROM, Aspect.PAYLOAD, "free/leaves-others"),
        (",bind:n0:1", FROM, Aspect.PAYLOAD, "misuse/bind-harmless"),
        (",rereg:n0:0", FROM, Aspect.PAYLOAD, "misuse/rereg-harmless"),
    ],
)
def test_what_the_smallest_sequence_has_in_it_says_which_clause_is_broken(
    more: str, id: str, aspect: Aspect, clause: str
) -> None:
    assert clause_of(Sequence.parse(START + more), wrong(id, aspect)) == clause
