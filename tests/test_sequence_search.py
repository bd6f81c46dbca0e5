# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Sequences that are drawn find what needs a history; what fails is reduced, and can be run again by its id."""

import re
from pathlib import Path

from conformance.sequences import Sequence, Verb
from tests.suite import SuiteRun, run_suite

FAULT = "--reference-fault=dereg-spoils-waiting-receives"
RC = "rq-post_send-poll_cq"
INTO = f"recv:q0:n0:rc-send-m64-n64-{RC},send:q0,wait:q0"
DEADLY = f"alloc:n0:p0,connect:q0:p0:rc-{RC},{INTO},reset:q0,{INTO}"


def id_of(run: SuiteRun) -> str:
    (id,) = set(re.findall(r"^sequence: (\S+)$", run.output, re.MULTILINE))
    return str(id)


def test_the_same_seed_finds_the_same_and_its_id_shows_it_again() -> None:
    options = ("--reference", FAULT, "--sequences=600", "--search-seed=1", "-k", "no_sequence")
    first, second = run_suite(*options), run_suite(*options)
    assert first.clauses("FAIL") == {"free/leaves-others"}
    id = id_of(first)
    assert id == id_of(second)
    assert "found by --search-seed=1" in first.output
    again = run_suite("--reference", FAULT, f"--sequence={id}")
    assert again.clauses("FAIL") == {"free/leaves-others"}
    assert {case.name.partition("[")[0] for case in again.cases} == {
        case.name.partition("[")[0] for case in first.cases
    }
    assert id_of(again) == id


def test_what_was_drawn_is_reduced_to_the_steps_that_it_needs() -> None:
    run = run_suite(
        "--reference",
        "--reference-fault=dereg-busy-after-flush",
        "--sequences=300",
        "--search-seed=1",
        "-k",
        "no_sequence",
    )
    sequence = Sequence.parse(id_of(run))
    verbs = [step.verb for step in sequence.steps]
    assert sorted(verb.value for verb in verbs if verb is not Verb.FREE) == ["alloc", "connect", "error", "recv"]


def test_a_process_that_dies_in_a_sequence_is_a_failure_with_its_id_and_a_program(tmp_path: Path) -> None:
    deadly = "--reference-fault=tests.deadly:DiesAfterReset"
    run = run_suite("--reference", deadly, "-n1", f"--sequence={DEADLY}", f"--reports={tmp_path}")
    failed = [case for case in run.cases if case.verdict == "FAIL"]
    assert len(failed) == 1, run.output
    assert DEADLY in failed[0].text
    assert "SIGSEGV" in failed[0].text
    assert [case.verdict for case in run.cases if case not in failed] == 13 * ["SKIPPED"]
    (program,) = (tmp_path / "reproducers").iterdir()
    assert f"{DEADLY}\n" in program.read_text()


def test_a_sequence_that_is_none_is_refused_with_a_reason() -> None:
    run = run_suite("--reference", "--sequence=free:n0")
    assert "sequence id 'free:n0': free:n0: n0 is not there" in run.output


def test_no_sequences_is_skipped_and_said() -> None:
    run = run_suite("--reference", "--sequences=0", "-k", "no_sequence or returns_0")
    skipped = [case for case in run.cases if case.verdict == "SKIPPED"]
    assert len(skipped) == 14
    assert all("--sequences 0" in case.text for case in skipped)
