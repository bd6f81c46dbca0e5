# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The suite passes the correct reference device and fails wrong ones, in the clause that they break."""

import pytest

from conformance.reference.faults import FAULTS
from tests.suite import run_suite

PROOF = (
    "second-alloc-fails",
    "address-zero-refused",
    "reads-the-address",
    "keeps-what-was-written",
    "leaks-to-address",
    "byte-len-without-null",
    "rkey-reads",
    "rkey-writes",
    "rereg-accepted",
    "bind-type2-accepted",
    "dereg-fails",
    "leaks-heap",
)


def test_the_correct_device_passes_everything() -> None:
    run = run_suite("--reference")
    assert run.clauses("FAIL") | run.clauses("BROKEN") == set()
    assert run.clauses("SKIPPED") == {"allocate/fails-cleanly"}
    assert run.status == 0


@pytest.mark.parametrize("fault", PROOF)
def test_a_wrong_device_fails_the_clause_that_it_breaks(fault: str) -> None:
    clause = FAULTS[fault].clause
    group = clause.partition("/")[0]
    run = run_suite("--reference", f"--reference-fault={fault}", checks=(f"conformance/checks/test_{group}.py",))
    assert clause in run.clauses("FAIL"), run.output
    assert run.clauses("BROKEN") == set(), run.output
    assert run.status == 1


def test_there_are_two_faults_for_each_group_of_clauses() -> None:
    groups = [FAULTS[fault].clause.partition("/")[0] for fault in PROOF]
    assert {group: groups.count(group) for group in groups} == dict.fromkeys(
        ("allocate", "read", "discard", "key", "misuse", "free"), 2
    )
