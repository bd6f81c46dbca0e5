# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The suite fails wrong devices, in the clause that they break and in no other, and passes every conforming one."""

import ast
import difflib

import pytest

from conformance.clauses import BY_ID, Clause, Level
from conformance.reference.faults import FAULTS, Fault
from conformance.reference.variants import VARIANTS
from tests import kill_matrix
from tests.suite import Case, SuiteRun, run_suite

WITHOUT = set(kill_matrix.JUDGED) - {"allocate/fails-cleanly"}
"""What a device without null MRs does not show."""
WITHOUT_TRAFFIC = {
    "allocate/fails-cleanly",
    "allocate/returns-mr",
    "free/no-leak",
    "free/releases-pd",
    "free/succeeds",
    "misuse/rereg-refused",
}
"""What a device shows whose queue pairs are not connected."""
LACKS = {
    "no-null-mr": WITHOUT,
    "refuses-null-mr": WITHOUT,
    "null-mr-not-permitted": WITHOUT,
    "no-mw": {"misuse/bind-refused", "misuse/bind-harmless"},
    "no-atomics": {"discard/atomic-result"},
    "max-msg-sz-8192": {"bypass/no-slower"},
    "max-sge-1": {
        "allocate/coexist",
        "allocate/derived-pd",
        "discard/mixed-scatter",
        "misuse/rereg-harmless",
        "read/mixed-gather",
    },
    "iwarp": set(kill_matrix.JUDGED) - {*WITHOUT_TRAFFIC, "allocate/max-length", "key/no-rkey"},
    "ud-and-its-own": {
        "allocate/coexist",
        "allocate/derived-pd",
        "bypass/no-slower",
        "discard/atomic-result",
        "discard/event",
        "discard/read-response",
        "free/leaves-others",
        "misuse/bind-harmless",
        "misuse/bind-refused",
        "misuse/rereg-harmless",
    },
}
"""The clauses of which a variant passes no check; of every other clause it must pass one."""


def test_the_correct_device_passes_everything() -> None:
    run = run_suite("--reference", "--search=10")
    assert run.clauses("FAIL") | run.clauses("BROKEN") == set()
    assert set(kill_matrix.JUDGED) - run.clauses("PASS") == set()
    assert run.status == 0
    judged = {case.name.partition("[")[0] for case in run.cases if case.clause in kill_matrix.JUDGED}
    proven = {*kill_matrix.CHECKS, *kill_matrix.SEARCHES, *kill_matrix.SEQUENCES, kill_matrix.ONLY_A_KERNEL}
    assert judged == proven, "a fault for each check"


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_device_fails_the_clause_that_it_breaks_and_no_other(name: str) -> None:
    problems = list(kill_matrix.fault_problems(name, kill_matrix.run_fault(name, kill_matrix.QUICK)))
    if problems:
        # Tell all at once: what the scenarios that are left out here show is told by this run, too.
        run = kill_matrix.run_fault(name, kill_matrix.WHOLE)
        every = list(kill_matrix.fault_problems(name, run)) or [*problems, "A second run did not show it."]
        pytest.fail("\n\n".join(every), pytrace=False)


def test_all_that_a_fault_must_declare_is_told_at_once_as_text_to_paste() -> None:
    fails = ["read/mixed-gather", "free/no-leak", "free/no-leak", "allocate/coexist", "discard/receive", "read/zeros"]
    cases = [Case(f"test_{at}", clause, "ref0", "FAIL", f"text {at}", "") for at, clause in enumerate(fails)]
    broken = Case("test_broken", "read/zeros", "ref0", "BROKEN", "no control", "")
    run = SuiteRun(1, "", (*cases, broken))
    touches, ordinary = kill_matrix.fault_problems("zero-only-first-segment", run)
    pasted = touches[touches.index("touches = (") : touches.index("\n\nfree/no-leak")]
    assert ast.literal_eval(pasted.partition("=")[2].strip()) == (
        "allocate/coexist",
        "read/zeros",
        "discard/receive",
        "discard/mixed-scatter",
        "free/no-leak",
    )
    assert "conformance/reference/faults/read.py, class ZeroOnlyFirstSegment" in touches
    assert "free/no-leak: 2 FAIL, the first of them test_1\ntext 1" in touches
    assert "    breaks_ordinary = True\n" in ordinary
    assert "no control" in ordinary


def test_text_to_paste_is_one_line_where_that_is_not_too_long() -> None:
    run = SuiteRun(
        1, "", tuple(Case("t", clause, "ref0", "FAIL", "", "") for clause in ("free/no-leak", "key/no-rkey"))
    )
    assert '\n    touches = ("key/no-rkey",)\n' in "".join(kill_matrix.fault_problems("leaks-heap", run))


def test_a_new_fault_or_clause_changes_no_other_line_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kill_matrix.document().splitlines()

    class New(Fault):
        """It is wrong."""

        clause = "new/clause"
        touches = ("read/zeros",)

    monkeypatch.setattr(kill_matrix, "FAULTS", {**FAULTS, "new": New})
    monkeypatch.setattr(kill_matrix, "JUDGED", (*kill_matrix.JUDGED, "new/clause"))
    monkeypatch.setattr(
        kill_matrix, "BY_ID", {**BY_ID, "new/clause": Clause("new/clause", Level.MUST, "it is", "here")}
    )
    changes = [line for line in difflib.ndiff(before, kill_matrix.document().splitlines()) if line[0] in "-?+"]
    assert [line for line in changes if line[2:]] == [
        "+ ### new/clause",
        "+ MUST: it is.",
        "+ - `new`: It is wrong. *Touches read/zeros.*",
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_another_conforming_device_passes_all_that_it_has(name: str) -> None:
    run = kill_matrix.run_variant(name, kill_matrix.QUICK)
    assert list(kill_matrix.variant_problems(name, run)) == []
    assert set(kill_matrix.JUDGED) - run.clauses("PASS") == LACKS.get(name, set())


def test_a_device_whose_ordinary_memory_is_wrong_is_broken_whatever_its_entry_says() -> None:
    absent = "--providers=tests/kill_matrix_absent.yaml"
    run = kill_matrix.run_unsound("Garbled", absent, "--reference-variant=no-null-mr", "-k", "fails-cleanly")
    # The check of allocations that fail inside the call has nothing to try without a null MR.
    assert sorted(case.verdict for case in run.cases) == ["BROKEN", "SKIPPED"]


def test_what_a_should_clause_finds_is_noted_and_fails_a_strict_run_only() -> None:
    run = run_suite("--reference", "--reference-fault=slow", "-k", "not_slower or returns_0")
    assert run.status == 0
    assert "times as long as on ordinary memory" in run.output
    assert "not met" in {case.note for case in run.cases}


@pytest.mark.parametrize(
    ("check", "fault"), [(check, fault) for check, faults in kill_matrix.SEARCHES.items() for fault in faults]
)
def test_the_random_search_finds_what_is_wrong(check: str, fault: str) -> None:
    run = run_suite("--reference", f"--reference-fault={fault}", "--search=40", "--search-seed=1", "-k", check)
    assert kill_matrix.failing_checks(run) == {check}


@pytest.mark.parametrize("device", ["Garbled", "LongGarbled", "NothingRemote"])
def test_a_device_whose_ordinary_memory_is_wrong_is_broken_and_not_wrong_about_null_mrs(device: str) -> None:
    run = kill_matrix.run_unsound(device)
    assert run.clauses("FAIL") == set()
    assert run.clauses("BROKEN")


def test_no_refusal_counts_where_nothing_is_ever_granted() -> None:
    run = kill_matrix.run_unsound("NothingRemote", "-k", "gives_a_peer or no_address or window")
    assert run.counts().keys() == {"BROKEN"}


@pytest.mark.parametrize("clause", kill_matrix.JUDGED)
def test_the_checks_of_each_clause_can_fail(clause: str) -> None:
    faults = [name for name, fault in FAULTS.items() if fault.clause == clause]
    assert len(faults) >= (2 if BY_ID[clause].level is Level.MUST else 1)


def test_faults_and_variants_say_what_they_are() -> None:
    for kind in (*FAULTS.values(), *VARIANTS.values()):
        assert "__doc__" in vars(kind), kind.__name__
    for name, fault in FAULTS.items():
        assert {fault.clause, *fault.touches} <= set(kill_matrix.JUDGED), name
        assert fault.clause not in fault.touches, name


def test_the_page_is_current() -> None:
    assert kill_matrix.DOCUMENT.read_text() == kill_matrix.document(), "run python -m tests.kill_matrix --page"
