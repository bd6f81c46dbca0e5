# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Scenarios in flight: each is predicted, judged and blamed for itself."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from conformance.judging import Bench
from conformance.outcome import MEMORY, Aspect, Run
from conformance.reference.engine import abi
from conformance.scenarios import CANARY_OFFSET, PAGE, Scenario, Side, Signal, Wait, mem, null
from conformance.verbs.end import Domain, End
from conformance.verbs.executor import Job, post
from conformance.verbs.link import Link
from conformance.verbs.null_mr import NullMR, NullMRError
from conformance.verdicts import BrokenError, Failure, LackingError
from conformance.watch import watch
from tests.rig import TIMEOUT, Calls, Patch, nothing, protection_error, refused, target

PATH = "rq-post_send-poll_cq"
SEND = Scenario.parse(f"rc-send-n8-m8-{PATH}")
WRITE = Scenario.parse(f"rc-write-n8-remote-{PATH}")
READ = Scenario.parse(f"rc-read-remote-n8-{PATH}")

KINDS = [
    f"{transport}-{queue}-{post}-{poll}"
    for transport in ("rc", "uc", "ud", "xrc")
    for queue, post, poll in (
        ("rq", "post_send", "poll_cq"),
        ("srq", "post_send", "cq_ex"),
        ("rq", "wr_set_sge_list", "cq_ex"),
        ("srq", "wr_set_sge_list", "poll_cq"),
    )
    if transport != "xrc" or queue == "srq"
]


def different(kind: str, count: int) -> list[Scenario]:
    """Scenarios for one kind of link, of all its operations and of different lengths, null on each side in turn."""
    transport, path = kind.split("-", 1)
    header = "m40+" if transport == "ud" else ""
    shapes = [
        "send-m{0}+n{1}-{header}n{1}+m{0}",
        "send_imm-n{0}+m{1}-{header}m{0}+n{1}",
        "write-m{0}+n{1}-remote",
        "write_imm-n{0}+m{1}-n8",
        "read-remote-n{0}+m{1}",
        "cmp_swp-remote-n8",
        "fetch_add-remote-m8",
    ][: {"ud": 2, "uc": 4}.get(transport)]
    ids = (shapes[i % len(shapes)].format(3 * i + 1, 5 * i + 2, header=header) for i in range(count))
    return [Scenario.parse(f"{transport}-{id}-{path}") for id in ids]


def run_at_once(bench: Bench, scenarios: list[Scenario], chain: bool = False) -> tuple[Run, ...]:
    return bench.run_at_once([Job(scenario) for scenario in scenarios], chain=chain)


@pytest.mark.parametrize("chain", [False, True], ids=["one-by-one", "chain"])
@pytest.mark.parametrize("count", [2, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_scenarios_in_flight_on_one_link_all_end_as_predicted(
    bench: Bench, patch: Patch, kind: str, count: int, chain: bool
) -> None:
    scenarios = different(kind, count)
    calls: list[str] = []

    def noted(name: str, method: Any, *arguments: Any) -> Any:
        calls.append(name)
        return method(*arguments)

    for name in ("post_send", "post_batch", "post_recv", "post_srq_recv", "poll_cq"):
        patch(name, partial(noted, name))
    runs = run_at_once(bench, scenarios, chain)
    assert [run.scenario for run in runs] == scenarios
    assert [finding.text for run in runs for finding in run.findings] == []
    receives = sum(scenario.operation.consumes_receive for scenario in scenarios)
    posts = calls[: calls.index("poll_cq")] if "poll_cq" in calls else calls
    verb = "post_send" if "-post_send-" in kind else "post_batch"
    sends = posts.count(verb)
    assert len(posts) == (2 if chain else receives + count)
    assert sends == (1 if chain else count)
    assert posts[-sends:] == [verb] * sends


AT_ONCE = [replace(SEND, gather=(null(8 + i), mem(3)), scatter=(mem(5), null(6 + i))) for i in range(16)]
"""Told apart by the lengths of their null segments."""


def found(runs: tuple[Run, ...]) -> dict[int, set[Aspect]]:
    """What was found, by the place of the scenario in flight."""
    return {index: {finding.aspect for finding in run.findings} for index, run in enumerate(runs) if run.findings}


@pytest.mark.parametrize("chain", [False, True], ids=["one-by-one", "chain"])
@pytest.mark.parametrize(("count", "wrong"), [(2, 0), (2, 1), (16, 0), (16, 9), (16, 15)])
def test_what_is_wrong_with_one_is_found_in_that_one(
    bench: Bench, patch: Patch, count: int, wrong: int, chain: bool
) -> None:
    def garbage(method: Any, device: Any, transfer: Any, segment: Any) -> bytes:
        read: bytes = method(device, transfer, segment)
        return b"\xa5" * segment.length if segment.length == 8 + wrong else read

    patch("read_null", garbage)
    assert found(run_at_once(bench, AT_ONCE[:count], chain)) == {wrong: {Aspect.PAYLOAD}}


def test_what_one_writes_at_the_address_of_its_null_segment_is_found_in_that_one(bench: Bench, patch: Patch) -> None:
    def leak(method: Any, device: Any, transfer: Any, segment: Any, data: bytes) -> None:
        method(device, transfer, segment, data)
        if segment.length == 6 + 9:
            device.memory.write(segment.addr, bytes(segment.length))

    patch("write_null", leak)
    assert found(run_at_once(bench, AT_ONCE)) == {9: {Aspect.CANARY}}


def test_a_completion_that_one_lacks_or_has_too_many_is_found_in_that_one(bench: Bench, patch: Patch) -> None:
    lengths = {8 + 3 + 3: 0, 8 + 6 + 3: 2}

    def complete(method: Any, device: Any, cq: Any, cqe: Any, *rest: Any) -> None:
        for _ in range(lengths.get(cqe.byte_len, 1)):
            method(device, cq, cqe, *rest)

    patch("complete", complete)
    assert found(run_at_once(bench, AT_ONCE)) == {3: {Aspect.ACCEPTED}, 6: {Aspect.COMPLETION}}


def test_a_completion_of_nobody_is_found_once(bench: Bench, patch: Patch) -> None:
    def complete(method: Any, device: Any, cq: Any, cqe: Any, *rest: Any) -> None:
        method(device, cq, cqe, *rest)
        if cqe.byte_len == 8 + 2 + 3:
            method(device, cq, replace(cqe, wr_id=1 << 40), *rest)

    patch("complete", complete)
    first, *others = run_at_once(bench, AT_ONCE)
    assert [finding.aspect for finding in first.findings] == [Aspect.COMPLETION]
    assert f"a completion of wr_id {1 << 40}" in first.findings[0].text
    assert not any(run.findings for run in others)


def test_the_failure_names_the_one_and_what_was_in_flight_beside_it(bench: Bench, patch: Patch) -> None:
    def garbage(method: Any, device: Any, transfer: Any, segment: Any) -> bytes:
        read: bytes = method(device, transfer, segment)
        return b"\xa5" * segment.length if segment.length == 9 else read

    bench.check_at_once(AT_ONCE, *Aspect)
    patch("read_null", garbage)
    with pytest.raises(Failure) as failure:
        bench.check_at_once(AT_ONCE[:3], *MEMORY)
    assert failure.value.scenario == AT_ONCE[1]
    lines = str(failure.value).splitlines()
    assert f"in flight at the same time: {AT_ONCE[0]}, {AT_ONCE[2]}" in lines
    assert f"scenario: {AT_ONCE[1]}" in lines
    assert lines[-1] == "control: the same work request on ordinary memory ends as it must"
    bench.check_at_once(AT_ONCE[:3], Aspect.COMPLETION)


def test_what_fails_at_once_on_ordinary_memory_too_is_no_failure_of_the_null_mr(bench: Bench, patch: Patch) -> None:
    bench.control(SEND)
    at_once = Calls(protection_error, first=1)  # the second of two gather lists, and all after it
    patch("gather", at_once)
    with pytest.raises(BrokenError, match="the same work request fails on ordinary memory too"):
        bench.check_at_once(AT_ONCE[:2])


def test_ordinary_memory_takes_the_place_of_the_null_mr_of_all_in_a_control_run(patch: Patch) -> None:
    bench = Bench(replace(target(), timeout=TIMEOUT), control_only=True)
    patch("read_null", protection_error)
    bench.check_at_once(AT_ONCE[:3])
    bench.control(SEND)
    patch("gather", Calls(protection_error, first=2))
    with pytest.raises(Failure, match="the model's prediction does not hold on ordinary memory") as failure:
        bench.check_at_once(AT_ONCE[:3])
    assert failure.value.scenario == AT_ONCE[2].on_ordinary_memory()
    bench.close()


@pytest.mark.parametrize("transport", ["uc", "ud"])
def test_what_an_unreliable_transport_loses_of_several_is_all_sent_again(
    bench: Bench, patch: Patch, transport: str
) -> None:
    scenarios = different(f"{transport}-{PATH}", 4)
    bench.control(*scenarios)
    lost = Calls(nothing, first=1, last=2)
    patch("deliver", lost)
    bench.check_at_once(scenarios, *Aspect)
    assert lost.count == 8


def test_each_has_memory_to_itself_that_is_aligned_as_if_it_were_alone(bench: Bench) -> None:
    large = replace(SEND, gather=(null(8), mem(2 * PAGE + 1)), scatter=(mem(2 * PAGE + 9),))
    scenarios = [SEND, large, SEND]
    alone = [bench.run(scenario).addresses for scenario in scenarios]
    at_once = [run.addresses for run in run_at_once(bench, scenarios)]
    start = bench.arenas[Side.REQUESTER].address
    assert at_once[0] == alone[0]
    assert [each.gather[0] - start - CANARY_OFFSET for each in at_once] == [0, 2 * PAGE, 6 * PAGE]
    for mine, at_home in zip(at_once, alone):
        shift = mine.gather[0] - at_home.gather[0]
        assert shift % PAGE == 0
        assert mine.gather == tuple(address + shift for address in at_home.gather)


@pytest.mark.parametrize("scenario", [SEND, WRITE, READ], ids=str)
def test_one_null_mr_serves_two_links_at_once(bench: Bench, patch: Patch, scenario: Scenario) -> None:
    """On the memory of another arena, as the first is in use until its work requests are collected."""
    used: list[int] = []

    def note(method: Any, device: Any, transfer: Any, segment: Any, *rest: Any) -> Any:
        if segment.lkey == bench.null_mr.lkey:
            used.append(transfer.qp.qp_num)
        return method(device, transfer, segment, *rest)

    patch("find_local", note)
    links = [bench.link(scenario.link, number=number) for number in range(2)]
    first, second = [post(link, Job(scenario)) for link in links]
    (two,), (one,) = second.collect(), first.collect()
    assert one.findings == two.findings == ()
    assert len(set(used)) == 2
    arena = bench.arenas[Side.REQUESTER]
    places = (run.addresses.gather or run.addresses.scatter for run in (one, two))
    assert [place[0] == arena.address + CANARY_OFFSET for place in places] == [True, False]


def test_what_is_wrong_on_one_of_two_links_is_found_there(bench: Bench, patch: Patch) -> None:
    def refuse_second(method: Any, device: Any, transfer: Any, segment: Any, *rest: Any) -> Any:
        second = bench.link(SEND.link, number=1)
        if transfer.qp.qp_num == second.requester.qp.qp_num:
            protection_error()
        return method(device, transfer, segment, *rest)

    bench.link(SEND.link, number=1)
    patch("find_local", refuse_second)
    runs = bench.run_at_once([Job(scenario) for scenario in AT_ONCE[:4]], queue_pairs=2)
    assert sorted(found(runs)) == [1, 3]


def test_what_is_posted_apart_is_collected_apart_and_its_memory_given_back(bench: Bench) -> None:
    link = bench.link(SEND.link)
    addresses = []
    for _ in range(2):
        first, second = post(link, Job(SEND)), post(link, Job(SEND))
        later = second.collect()
        runs = first.collect() + later
        assert [run.findings for run in runs] == [(), ()]
        addresses.append([run.addresses for run in runs])
    assert addresses[0] == addresses[1]


def test_memory_is_given_back_when_nothing_could_be_posted(bench: Bench, patch: Patch) -> None:
    patch("alloc_null_mr", Calls(refused(errno.ENOMEM), last=1))
    with pytest.raises(NullMRError):
        bench.run(SEND)
    assert bench.run(SEND).addresses.gather[0] == bench.arenas[Side.REQUESTER].address + CANARY_OFFSET


def test_a_link_takes_its_own_kind_and_no_more_than_its_depth(bench: Bench) -> None:
    link = bench.link(SEND.link)
    with pytest.raises(ValueError, match="is not for a link rc-rq-post_send-poll_cq"):
        post(link, Job(Scenario.parse("rc-send-n8-m8-srq-post_send-poll_cq")))
    for count in (0, 17):
        with pytest.raises(ValueError, match=rf"{count} more scenarios beside 0: a link takes 16 at once"):
            post(link, *[Job(SEND)] * count)
    pending = post(link, *[Job(SEND)] * 15)
    with pytest.raises(ValueError, match="2 more scenarios beside 15"):
        post(link, Job(SEND), Job(SEND))
    last = post(link, Job(SEND))
    assert [run.findings for run in (*pending.collect(), *last.collect())] == [()] * 16


@pytest.mark.parametrize("id", ["rc-send-n8+m8-m8+n8", "ud-send-n8+m8-m40+m8+n8", "rc-read-remote-m8+n8"])
def test_the_ends_of_a_link_may_be_on_two_devices(id: str) -> None:
    """Each with a PD and a null MR of its own."""
    scenario = Scenario.parse(f"{id}-{PATH}")
    domains = [Domain(target(number=number)) for number in (0, 1)]
    requester, responder = [End(domain) for domain in domains]
    link = Link(requester, responder, scenario.link, 4)
    (run,) = post(link, Job(scenario)).collect()
    assert run.findings == ()
    link.close()
    for end in (requester, responder):
        end.close()
    for domain in domains:
        domain.close_null_mrs()
        assert domain.dealloc_pd() is None
        domain.close_context()


@pytest.mark.parametrize(
    ("verb", "words", "posted"),
    [("check_send", "ibv_post_send refused it: errno 12", 2), ("post_recv", "ibv_post_recv refused it: errno 12", 2)],
)
def test_nothing_is_posted_after_what_is_refused(
    bench: Bench, patch: Patch, verb: str, words: str, posted: int
) -> None:
    patch(verb, Calls(refused(errno.ENOMEM), first=posted, last=posted + 1))
    runs = run_at_once(bench, AT_ONCE[:5])
    assert [bool(run.findings) for run in runs] == [False] * posted + [True] * (5 - posted)
    texts = [run.findings[0].text for run in runs[posted:]]
    assert texts[0].startswith(words)
    assert all(text.startswith(f"not posted, as {words.split()[0]} refused the one before it") for text in texts[1:])


def test_a_chain_is_refused_as_a_whole(bench: Bench, patch: Patch) -> None:
    patch("post_send", refused(errno.ENOMEM))
    runs = run_at_once(bench, AT_ONCE[:3], chain=True)
    assert [run.findings[0].text.partition(":")[0] for run in runs] == ["ibv_post_send refused it"] * 3


def test_the_wait_that_is_told_is_the_wait_that_was_made(bench: Bench, patch: Patch) -> None:
    """A responder is not waited for once the requester has failed, and that is no loss which shortens the next wait."""
    patch("gather", protection_error)
    for _ in range(5):
        outcome = bench.run(SEND).outcome
        assert outcome.completions[Side.REQUESTER][0].status == "IBV_WC_LOC_PROT_ERR"
        assert outcome.waited == {Side.RESPONDER: TIMEOUT / 100}
    assert bench.patience == TIMEOUT


def test_a_lost_completion_is_waited_for_on_its_side(bench: Bench, patch: Patch) -> None:
    def receives_are_lost(method: Any, device: Any, cq: Any, cqe: Any, *rest: Any) -> None:
        if cqe.opcode != abi.WC_RECV:
            method(device, cq, cqe, *rest)

    patch("complete", receives_are_lost)
    outcome = bench.run(SEND).outcome
    assert outcome.waited == {Side.RESPONDER: TIMEOUT}
    assert len(outcome.completions[Side.REQUESTER]) == 1


@pytest.mark.parametrize(("scenarios", "name"), [([SEND], str(SEND)), ([SEND, SEND], str(SEND)), (AT_ONCE[:2], "")])
def test_the_watch_names_a_scenario_only_where_it_can_be_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, scenarios: list[Scenario], name: str
) -> None:
    watched: list[str] = []

    def over(seconds: float, scenario: str = "") -> AbstractContextManager[None]:
        assert seconds == 2 * TIMEOUT + 1
        watched.append(scenario)
        return nullcontext()

    monkeypatch.setattr(watch, "over", over)
    run_at_once(bench, scenarios)
    assert watched == [name, name]  # while it is posted, and while it is collected


def test_another_null_mr_can_be_used_on_a_link_beside_the_own_one(bench: Bench) -> None:
    other = NullMR(bench.pd)
    runs = bench.run_at_once([Job(SEND), Job(SEND, lkey=other.lkey)])
    assert [run.findings for run in runs] == [(), ()]
    other.close()


def test_one_of_several_may_be_refused_by_its_key(bench: Bench) -> None:
    """As the last one, whose queue pair is in error then."""
    statuses = frozenset({"IBV_WC_REM_ACCESS_ERR"})
    link = bench.link(WRITE.link)
    jobs = [Job(WRITE), Job(READ), Job(WRITE.on_ordinary_memory(), rkey=0x1234, refused=statuses)]
    runs = bench.run_at_once(jobs)
    assert [run.findings for run in runs] == [(), (), ()]
    assert bench.link(WRITE.link) is not link


# Not signaled, and waited for by events


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_signaled_is_followed_by_what_is(bench: Bench, kind: str) -> None:
    scenarios = [replace(scenario, signal=Signal.UNSIGNALED) for scenario in different(kind, 4)]
    *runs, closing = run_at_once(bench, scenarios, chain=True)
    assert [run.scenario for run in runs] == scenarios
    assert [finding.text for run in (*runs, closing) for finding in run.findings] == []
    assert [run.outcome.completions[Side.REQUESTER] for run in runs] == [()] * 4
    assert not closing.scenario.has_null


def test_what_is_posted_must_end_with_what_is_signaled(bench: Bench) -> None:
    link = bench.link(replace(SEND.link, selective=True))
    with pytest.raises(ValueError, match="nothing would tell when it is done"):
        post(link, Job(replace(SEND, signal=Signal.UNSIGNALED)))


def test_a_completion_of_what_is_not_signaled_is_found(bench: Bench, patch: Patch) -> None:
    def report(method: Any, device: Any, qp: Any, wr: Any, status: int) -> None:
        if any(device.lkeys[sge.lkey].null for sge in wr.sges):
            wr.flags |= abi.SEND_SIGNALED
        method(device, qp, wr, status)

    patch("complete_send", report)
    with pytest.raises(Failure, match="requester: a completion where none is due"):
        bench.check(replace(WRITE, signal=Signal.UNSIGNALED), Aspect.COMPLETION)


@pytest.mark.parametrize(
    ("scenario", "events"),
    [
        (replace(SEND, wait=Wait.EVENT), {Side.REQUESTER: True, Side.RESPONDER: True}),
        (replace(SEND, wait=Wait.SOLICITED_EVENT), {Side.REQUESTER: True, Side.RESPONDER: False}),
        (replace(SEND, wait=Wait.SOLICITED_EVENT, solicited=True), {Side.REQUESTER: True, Side.RESPONDER: True}),
        (replace(READ, wait=Wait.EVENT), {Side.REQUESTER: True}),
        (replace(READ, wait=Wait.EVENT, signal=Signal.UNSIGNALED), {}),
    ],
    ids=str,
)
def test_events_are_asked_for_and_taken(bench: Bench, scenario: Scenario, events: dict[Side, bool]) -> None:
    for _ in range(3):
        run = run_at_once(bench, [scenario])[0]
        assert run.outcome.notified == events
        assert run.findings == ()


def test_events_of_several_in_flight_are_one(bench: Bench) -> None:
    runs = run_at_once(bench, [replace(scenario, wait=Wait.EVENT) for scenario in AT_ONCE])
    assert [finding.text for run in runs for finding in run.findings] == []


@pytest.mark.parametrize("side", Side)
def test_an_event_that_does_not_come_is_found_and_the_completion_too(bench: Bench, patch: Patch, side: Side) -> None:
    link = bench.link(replace(SEND.link, channel=True))
    silent = link.requester.qp.qp_num if side is Side.REQUESTER else link.responder.qp.qp_num

    def complete(method: Any, device: Any, cq: Any, cqe: Any, *rest: Any) -> None:
        if cqe.qp.qp_num == silent:
            cq.armed = 0
        method(device, cq, cqe, *rest)

    patch("complete", complete)
    (run,) = run_at_once(bench, [replace(SEND, wait=Wait.EVENT)])
    assert [finding.aspect for finding in run.findings] == [Aspect.EVENT]
    assert run.findings[0].text.startswith(side.value)


def test_a_segment_across_4_gib_is_there(bench: Bench) -> None:
    run = bench.run(Scenario.parse(f"rc-send-m8@across_4gib+n8@odd-n16@across_4gib-{PATH}"))
    assert not run.findings
    for address, length in ((run.addresses.gather[0], 8), (run.addresses.scatter[0], 16)):
        assert address >> 32 != (address + length - 1) >> 32
    assert run.addresses.gather[1] % 2


def test_only_the_first_in_flight_can_be_across_4_gib(bench: Bench) -> None:
    far = Scenario.parse(f"rc-send-n8@across_4gib-m8-{PATH}")
    assert not any(run.findings for run in bench.run_at_once([Job(far), Job(SEND)]))
    with pytest.raises(ValueError, match="only the first"):
        bench.run_at_once([Job(SEND), Job(far)])


def test_a_null_segment_in_another_mr_is_in_that_of_the_other_side(bench: Bench) -> None:
    run = bench.run(Scenario.parse(f"rc-send-m8+n8@other_mr-m8+n8@other_mr-{PATH}"))
    (own, other), (peers, others) = run.addresses
    assert abs(own - others) < PAGE
    assert abs(peers - other) < PAGE


def test_two_null_mrs_of_a_list_are_two(bench: Bench) -> None:
    run = bench.run(Scenario.parse(f"rc-send-n8+o8-m16-{PATH}"))
    assert not run.findings
    assert run.keys.startswith(f"null MR lkey {bench.null_mr.lkey:#x}; other null MR lkey ")
    assert bench.domain.other_null_mr.lkey != bench.null_mr.lkey


def test_where_there_is_no_second_null_mr_that_is_lacking(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.null_mr  # noqa: B018

    def none(*_: object) -> None:
        raise NullMRError(errno.ENOMEM)

    monkeypatch.setattr(NullMR, "__init__", none)
    with pytest.raises(LackingError, match="beside the first"):
        bench.run(Scenario.parse(f"rc-send-o8-m8-{PATH}"))


@pytest.mark.parametrize("path", [PATH, "srq-wr_set_sge_list-cq_ex"])
def test_a_send_with_invalidate_tells_what_it_invalidated(bench: Bench, path: str) -> None:
    run = bench.run(Scenario.parse(f"rc-send_inv-n8-n8-{path}"))
    assert not run.findings
    (completion,) = run.outcome.completions[Side.RESPONDER]
    assert run.prediction.responder is not None
    assert completion.invalidated_rkey == run.prediction.responder.invalidated_rkey
    assert completion.invalidated_rkey


def test_a_window_that_is_not_invalidated_is_told_of(bench: Bench, patch: Patch) -> None:
    patch("invalidate", Calls(nothing))
    run = bench.run(Scenario.parse(f"rc-send_inv-n8-n8-{PATH}"))
    assert [found.text for found in run.findings] == ["responder: the window is as it was, not invalidated"]


def test_a_message_that_is_too_long_invalidates_nothing(bench: Bench) -> None:
    assert not bench.run(Scenario.parse(f"rc-send_inv-m16-n8-{PATH}")).findings


def test_where_no_window_can_be_bound_the_rig_is_broken(bench: Bench, patch: Patch) -> None:
    patch("bind", Calls(protection_error))
    with pytest.raises(BrokenError, match="a memory window cannot be bound to ordinary memory"):
        bench.run(Scenario.parse(f"rc-send_inv-n8-n8-{PATH}"))


def test_what_is_gathered_can_be_named_by_another_lkey(bench: Bench) -> None:
    scenario = Scenario.parse(f"rc-send-m8-m8-{PATH}")
    run = bench.run(scenario, gather_lkey=bench.null_mr.lkey)
    place = run.layout.scatter[0].region
    assert place is not None
    assert run.outcome.memory[Side.RESPONDER][place.offset : place.end] == bytes(8)


def test_a_zero_based_mr_is_named_from_0_and_a_canary_in_it_by_its_address(bench: Bench) -> None:
    run = bench.run(Scenario.parse(f"rc-write-m8+n8-remote-{PATH}-zero_based"))
    assert not run.findings
    ordinary, canary = run.addresses.gather
    assert ordinary < 1 << 20
    assert canary > 1 << 20


def test_remote_memory_is_named_by_the_window(bench: Bench, patch: Patch) -> None:
    named: list[int] = []

    def find_remote(method: Any, device: Any, transfer: Any, rkey: int, *rest: Any) -> Any:
        named.append(rkey)
        return method(device, transfer, rkey, *rest)

    patch("find_remote", find_remote)
    assert not bench.run(Scenario.parse(f"rc-write-n8-remote-{PATH}-window")).findings
    (rkey,) = named
    assert rkey not in {arena.rkey for arena in bench.arenas.values()}


@pytest.mark.parametrize("kind", ["odp", "implicit_odp", "zero_based", "relaxed_ordering"])
def test_memory_that_cannot_be_registered_is_lacking_and_asked_for_once(bench: Bench, patch: Patch, kind: str) -> None:
    bench.check(SEND)
    calls = Calls(refused(errno.EOPNOTSUPP))
    patch("reg_mr", calls)
    for _ in range(2):
        with pytest.raises(LackingError, match="cannot register "):
            bench.run(Scenario.parse(f"rc-send-n8-m8-{PATH}-{kind}"))
    assert calls.count == 1


def test_a_machine_without_huge_pages_lacks_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **named: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    bench.check(SEND)
    monkeypatch.setattr("mmap.mmap", none)
    with pytest.raises(LackingError, match=r"no huge pages .* to spare"):
        bench.run(Scenario.parse(f"rc-send-n8-m8-{PATH}-huge_pages"))
