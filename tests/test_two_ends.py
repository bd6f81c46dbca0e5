# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The two ends of the traffic on two ports: each device is judged for its own null MR, in both roles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.capabilities import capabilities
from conformance.checks.tables import BOTH_WAYS, Cases
from conformance.judging import Bench
from conformance.outcome import MEMORY
from conformance.reference import faults_of
from conformance.reference.engine.device import Device
from conformance.reference.faults import FAULTS, Fault
from conformance.scenarios import Scenario, Side
from conformance.verdicts import Failure, LackingError
from tests.kill_matrix import OPTIONS
from tests.rig import target, wrap
from tests.suite import run_suite

PATH = "rq-post_send-poll_cq"
AT_REQUESTER = Scenario.parse(f"rc-send-n64-m64-{PATH}")
AT_RESPONDER = Scenario.parse(f"rc-send-m64-n64-{PATH}")
AT_BOTH = Scenario.parse(f"rc-send-n64-n64-{PATH}")
WRONG = (
    "length-zero",
    "unmapped-addresses-refused",
    "lkey-refused-in-srq",
    "second-alloc-kills-first",
    "reads-the-address",
    "wrong-by-wr-start-only",
    "zeroes-next-bytes",
    "receive-refused",
    "read-response-refused",
    "atomic-not-executed",
    "scatter-drift",
    "read-response-leak",
    "cq-ex-leak",
    "duplicate-completion",
    "byte-len-without-null",
    "rkey-writes",
    "rkey-of-the-next-mr",
    "rereg-accepted",
    "rereg-breaks",
    "bind-accepted",
    "refused-bind-kills-qp",
    "dereg-fails",
)
FAST = "not loop and not thousand and not runs_out and not fork and not slower and not dies"


def providers(folder: Path, entry: str) -> str:
    path = folder / "providers.yaml"
    path.write_text(f"providers:\n  lab: {entry}\n")
    return f"--providers={path}"


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(replace(target(), peer=target(number=1), timeout=0.05))
    yield bench
    bench.close()


@pytest.mark.parametrize(
    ("scenario", "near"),
    [
        (AT_REQUESTER, Side.REQUESTER),
        (AT_RESPONDER, Side.RESPONDER),
        (Scenario.parse(f"rc-write-n8-remote-{PATH}"), Side.REQUESTER),
        (Scenario.parse(f"rc-read-remote-n8-{PATH}"), Side.REQUESTER),
        (Scenario.parse(f"rc-fetch_add-remote-n8-{PATH}"), Side.REQUESTER),
        (Scenario.parse(f"rc-write_imm-m8-n8-{PATH}"), Side.RESPONDER),
        (Scenario.parse(f"ud-send-m8-n40+m8-{PATH}"), Side.RESPONDER),
        (Scenario.parse("xrc-send-m8-n8-srq-post_send-poll_cq"), Side.RESPONDER),
    ],
    ids=str,
)
def test_the_device_is_at_the_side_of_the_null_segments_and_its_peer_at_the_other(
    bench: Bench, scenario: Scenario, near: Side
) -> None:
    bench.check(scenario)
    link = bench.link(scenario.link)
    far = Side.REQUESTER if near is Side.RESPONDER else Side.RESPONDER
    assert bench.near is near
    assert link.ends[near].domain.target.device.name == "ref0"
    assert link.ends[far].domain.target.device.name == "ref1"


def test_the_control_has_the_device_on_the_same_side(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[str] = []

    def post_send(method: Any, device: Any, *arguments: Any) -> None:
        posts.append(device.name)
        method(device, *arguments)

    wrap(monkeypatch, "post_send", post_send)
    bench.check(AT_REQUESTER)
    assert posts == ["ref0", "ref0"]
    posts.clear()
    bench.check(AT_RESPONDER)
    assert posts == ["ref1", "ref1"]


def test_a_failure_names_both_ends_and_whose_null_mr_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.control(AT_RESPONDER)
    wrap(monkeypatch, "write_null", lambda _, *arguments: FAULTS["leaks-to-address"].write_null(*arguments))
    monkeypatch.setattr(Device, "leak", Fault.leak, raising=False)
    with pytest.raises(Failure) as caught:
        bench.check(AT_RESPONDER, *MEMORY)
    lines = str(caught.value).splitlines()
    assert re.match(r"responder, with the null MR: ref0/1 \(reference\), GID 1 ", lines[0])
    assert re.match(r"requester: ref1/1 \(reference\), GID 1 ", lines[1])
    assert "control: the same work request on ordinary memory ends as it must" in lines


def test_a_peer_whose_ordinary_memory_is_wrong_makes_it_broken(tmp_path: Path) -> None:
    entry = providers(tmp_path, "{driver: reference, simulate: 2, devices: [ref0], peer: ref1/1, null_mr: required}")
    run = run_suite("--reference", entry, "--reference-fault=ref1:tests.unsound:Garbled", f"--scenario={AT_RESPONDER}")
    assert run.clauses("FAIL") == set()
    assert "discard/receive" in run.clauses("BROKEN")


def test_null_segments_on_both_sides_are_for_one_port(bench: Bench) -> None:
    assert not bench.able.has_null_mr_for(AT_BOTH)
    assert all(map(bench.able.has_null_mr_for, BOTH_WAYS))
    assert capabilities(target()).has_null_mr_for(AT_BOTH)
    assert not [scenario for scenario in Cases(bench.able).matrix if len(scenario.null_sides) > 1]
    with pytest.raises(LackingError, match="has the null MR, and its peer has none"):
        bench.check(AT_BOTH)


def test_scenarios_in_flight_on_one_link_have_their_null_segments_on_one_side(bench: Bench) -> None:
    for sweep in Cases(bench.able).sweeps(lambda scenario: scenario.has_null):
        for batch in sweep.batches:
            assert len(frozenset().union(*(scenario.null_sides for scenario in batch.scenarios))) <= 1
    with pytest.raises(LackingError, match="on one side only"):
        bench.check_at_once([AT_REQUESTER, AT_RESPONDER])


def test_a_queue_that_is_lacking_is_told_as_on_one_port() -> None:
    bench = Bench(replace(target(srq=False), peer=target(number=1)))
    with pytest.raises(LackingError, match="has no SRQ"):
        bench.check(Scenario.parse("rc-send-m64-n64-srq-post_send-poll_cq"))
    bench.close()


def test_what_both_ends_can_is_tried() -> None:
    able = capabilities(replace(target(max_sge=9, mtu=4096), peer=target(number=1, max_sge=5, srq=False)))
    assert (able.max_sge, able.mtu, able.srq, able.apart) == (5, 1024, False, True)


def test_each_is_judged_by_its_own_null_mr_alone(tmp_path: Path) -> None:
    """A ring: each device but the first is wrong in a way of its own, and so is the peer of each but the last."""
    entry = f"{{driver: reference, simulate: {len(WRONG) + 1}, peer: next, null_mr: required, timeout: 1}}"
    wrong = [f"--reference-fault=ref{number}:{name}" for number, name in enumerate(WRONG, 1)]
    run = run_suite(
        *OPTIONS, providers(tmp_path, entry), *wrong, "--thin=40", "--search=0", "--sequences=0", "-k", FAST
    )
    failed: dict[str, set[str]] = {case.target: set() for case in run.cases}
    for case in run.cases:
        assert case.verdict != "BROKEN", case
        if case.verdict == "FAIL":
            failed[case.target].add(case.clause)
    ends = [f"ref{number}/1" for number in range(len(WRONG) + 1)]
    names = dict(zip((f"{near}-{far}" for near, far in zip(ends, [*ends[1:], ends[0]])), ("", *WRONG)))
    assert set(failed) == set(names)
    for id, name in names.items():
        if not name:
            assert failed[id] == set()
            continue
        assert failed[id], (id, name)
        assert failed[id] <= {FAULTS[name].clause, *FAULTS[name].touches}, (id, name)


@pytest.mark.parametrize(("peer", "verdict"), [("", "PASS"), ("peer: next, ", "FAIL")])
def test_what_is_wrong_between_devices_alone_is_found_with_a_peer(tmp_path: Path, peer: str, verdict: str) -> None:
    run = run_suite(
        "--reference",
        providers(tmp_path, f"{{driver: reference, simulate: 2, {peer}null_mr: required}}"),
        "--reference-fault=ref0:tests.wire:GarbageForOthers",
        f"--scenario={AT_REQUESTER}",
    )
    found = {case.target: case.verdict for case in run.cases if case.clause == "read/zeros"}
    assert found == (
        {"ref0/1-ref1/1": "FAIL", "ref1/1-ref0/1": "PASS"} if peer else {"ref0/1": "PASS", "ref1/1": "PASS"}
    )


def test_a_fault_of_a_device_that_is_not_there_is_a_usage_error() -> None:
    run = run_suite("--reference", "--reference-devices=2", "--reference-fault=ref2:leaks-to-address")
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert "fault 'ref2:leaks-to-address': there is no such device, but ref0 to ref1" in run.output


def test_what_is_for_one_port_is_skipped_and_says_so(tmp_path: Path) -> None:
    entry = providers(tmp_path, "{driver: reference, simulate: 2, devices: [ref0], peer: ref1/1, null_mr: required}")
    run = run_suite("--reference", entry, "--stress=1", "-k", "under_stress or (sequence and zeros) or comes_back")
    assert run.counts() == {"PASS": 1, "SKIPPED": 2}
    assert "run where both ends of the traffic are on one port" in run.output


def test_a_fault_may_be_of_one_device() -> None:
    faults = ("a", "ref1:b", "ref12:tests.wire:C", "tests.wire:D")
    assert faults_of(0, faults) == ("a", "tests.wire:D")
    assert faults_of(1, faults) == ("a", "b", "tests.wire:D")
    assert faults_of(12, faults) == ("a", "tests.wire:C", "tests.wire:D")
