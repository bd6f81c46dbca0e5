# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Random search draws within the limits, finds what is wrong, shrinks it, and can be repeated."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.capabilities import Capabilities
from conformance.inventory import Target
from conformance.judging import Bench
from conformance.outcome import Aspect
from conformance.report.document import load
from conformance.scenarios import GRH_LENGTH, LinkKind, Operation, Poll, Post, Queue, Scenario, Transport, total
from conformance.search import Draw, Search, anything, gathering, link_kinds, scattering, simpler
from conformance.verdicts import Failure, LackingError
from tests import rig
from tests.suite import run_suite
from tests.test_matrix import DEVICES


@given(st.data(), st.sampled_from(list(DEVICES.values())), st.sampled_from([anything, gathering, scattering]))
def test_what_is_drawn_stays_within_the_limits(data: st.DataObject, able: Capabilities, draw: Draw) -> None:
    if able.max_sge == 1 and draw is not anything:
        with pytest.raises(LackingError, match="max_sge 1"):
            draw(able, link_kinds(able))
        return
    run: Scenario = data.draw(draw(able, link_kinds(able)))
    assert len(run.gather) <= able.max_sge
    assert len(run.scatter) <= (able.max_srq_sge if run.queue is Queue.SRQ else able.max_sge)
    assert not run.is_too_long
    if run.operation is Operation.RDMA_READ:
        assert len(run.scatter) <= able.max_sge_rd
    if run.transport is Transport.UD:
        assert run.length <= able.mtu
        assert total(run.scatter) >= run.length + GRH_LENGTH
    assert able.atomics or not run.operation.is_atomic
    assert able.lacks(run) is None


def found(*arguments: str) -> str:
    """The scenario that the search for writes to live memory ends with, on a device that leaks in lists."""
    run = run_suite(
        "--reference",
        "--reference-fault=srq-leak",
        "--search=1000",
        *arguments,
        checks=("conformance/checks/test_discard.py::test_no_work_request_can_be_found_that_writes_there",),
    )
    assert run.clauses("FAIL") == {"discard/leaves-memory"}, run.output
    (scenario,) = set(re.findall(r"^scenario: (\S+)$", run.output, re.MULTILINE))
    return str(scenario)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_failure_shrinks_to_the_smallest_scenario(seed: int) -> None:
    scenario = Scenario.parse(found(f"--search-seed={seed}"))
    assert scenario.queue is Queue.SRQ
    assert total(scenario.gather) <= 1  # none over UD, where the GRH leaks
    assert len(scenario.scatter) <= 2
    assert any(segment.null for segment in scenario.scatter)


def test_the_same_seed_finds_the_same() -> None:
    assert found("--search-seed=7") == found("--search-seed=7")


@dataclass
class Device:
    """What a search asks of a bench. `fails` says which scenarios are wrong."""

    fails: Callable[[Scenario], bool] = lambda scenario: False
    target: Target = field(default_factory=rig.target)
    tried: list[Scenario] = field(default_factory=list)

    def has_link(self, kind: LinkKind) -> bool:
        return True

    def check(self, scenario: Scenario, *aspects: Aspect) -> None:
        self.tried.append(scenario)
        if self.fails(scenario):
            raise Failure("wrong", scenario)


def search_on(device: Device) -> None:
    Search(60, 1, lambda scenario: False, lambda text: None).run(cast(Bench, device), anything, Aspect.CANARY)


def test_targets_that_can_do_the_same_are_tried_with_the_same() -> None:
    right, other = Device(), Device()
    search_on(right)
    search_on(other)
    assert right.tried == other.tried
    assert len(right.tried) == 60


def test_what_was_drawn_for_another_target_and_fails_is_shrunk_too() -> None:
    search_on(Device())
    wrong = Device(fails=lambda scenario: scenario.transport is Transport.UC)
    with pytest.raises(Failure, match="found by --search-seed=1") as failure:
        search_on(wrong)
    assert isinstance(failure.value.scenario, Scenario)
    assert failure.value.scenario.transport is Transport.UC
    assert failure.value.scenario.length <= 1


def test_what_fails_only_once_is_told_whoever_it_was_drawn_for() -> None:
    search_on(Device())
    device = Device()
    device.fails = lambda scenario: len(device.tried) == 3
    with pytest.raises(Failure, match="wrong"):
        search_on(device)


def test_the_header_says_how_to_repeat_the_search() -> None:
    run = run_suite("--reference", "--search=20", "-k", "found")
    seed = re.search(
        r"^random search: \d+ scenarios each, \d+ sequences, --search-seed=(\d+)$", run.output, re.MULTILINE
    )
    assert seed
    assert run.status == 0


def test_a_failure_can_be_run_again_by_its_id() -> None:
    scenario = found("--search-seed=3")
    run = run_suite("--reference", "--reference-fault=srq-leak", f"--scenario={scenario}")
    assert "discard/leaves-memory" in run.clauses("FAIL")
    assert all(scenario in case.name for case in run.cases)


def test_no_search_is_skipped_and_said() -> None:
    run = run_suite("--reference", "--search=0", "-k", "found or zeros")
    assert {case.name.partition("[")[0] for case in run.cases if case.verdict == "SKIPPED"} == {
        "test_no_gather_list_can_be_found_that_arrives_wrong",
        "test_no_scatter_list_can_be_found_that_is_filled_wrong",
        "test_no_work_request_can_be_found_that_writes_there",
        "test_no_work_request_can_be_found_that_completes_otherwise",
    }


def test_what_is_wrong_on_ordinary_memory_too_is_left_out_and_said(tmp_path: Path) -> None:
    options = ("--reference", "--reference-fault=tests.unsound:LongGarbled", "--search=60", "--search-seed=1")
    run = run_suite(*options, f"--reports={tmp_path}", "-k", "can_be_found and not sequence")
    assert run.counts() == {"PASS": 4}, run.output
    (written,) = load(tmp_path / "results.json").runs
    for found in written.results:
        assert re.match(r"left out \d+ of \d+ work requests, which are BROKEN; ", found.text)


def test_a_search_in_which_nothing_passes_on_ordinary_memory_is_broken() -> None:
    run = run_suite("--reference", "--reference-fault=tests.unsound:Garbled", "--search=60", "-k", "arrives_wrong")
    assert run.counts() == {"BROKEN": 1}
    assert "the control, ordinary memory only, does not pass" in run.cases[0].text


def test_a_crash_that_is_found_is_made_simpler_by_the_processes_that_come_after() -> None:
    run = run_suite("--reference", "--reference-fault=crash", "--search-seed=1", "-n1", "-k", "arrives_wrong")
    (case,) = filter(
        lambda case: case.name, run.cases
    )  # pytest's own XML has a nameless one for each process that died
    assert (case.verdict, case.clause) == ("FAIL", "read/mixed-gather"), run.output
    assert "the process died of SIGSEGV inside a verbs call" in case.text
    assert "found by --search-seed=1" in case.text
    (name,) = set(re.findall(r"^scenario: (\S+)$", case.text, re.MULTILINE))
    scenario = Scenario.parse(name)
    assert (total(scenario.gather), scenario.post, scenario.poll) == (1, Post.POST_SEND, Poll.POLL_CQ)
    assert run.output.count("node down") <= 2


@given(st.data())
def test_what_is_simpler_is_simpler_and_can_be_run(data: st.DataObject) -> None:
    able = DEVICES["full"]
    scenario = data.draw(anything(able, link_kinds(able)))
    for variant in simpler(scenario, able):
        assert variant != scenario
        assert able.lacks(variant) is None
        assert not variant.is_too_long
        assert (variant.transport, variant.operation, variant.queue) == (
            scenario.transport,
            scenario.operation,
            scenario.queue,
        )


ONE_SEGMENT = [kind for kind in link_kinds(DEVICES["full"]) if kind.post is Post.WR_SET_SGE]


@settings(max_examples=1000)
@given(gathering(DEVICES["full"], ONE_SEGMENT))
def test_a_message_of_no_bytes_is_not_drawn_inline(scenario: Scenario) -> None:
    assert scenario.length > 0 or not scenario.inline
