# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The mutants themselves: what is changed, and that docs/mutants.md speaks of mutants that there are."""

import ast
import sys
from pathlib import Path

import pytest

from conformance.reference.faults import FAULTS
from conformance.reference.variants import VARIANTS
from tests import mutants
from tests.suite import ROOT

MODULE = '''
from typing import Literal

Kind = Literal[1, 2]
LIMIT = 7

def first(items: tuple[int, int]) -> int:
    """No change here: 1, 2."""
    if items and LIMIT > 3:
        record(items)
        raise ValueError("no")
    return sum(x for x in (items, other) if x)

class Second:
    def third(self) -> None:
        check(mem(64), *ARRIVED, Aspect.CANARY)
'''
CHANGES = [
    "LIMIT: 8 for 7 in `LIMIT = 7`",
    "first: `items and LIMIT > 3` negated",
    "first: `record(items)` removed",
    "first: `raise ValueError('no')` removed",
    "first: Or for And in `items and LIMIT > 3`",
    "first: GtE for Gt in `LIMIT > 3`",
    "first: 4 for 3 in `if items and LIMIT > 3: record(items) raise ValueError('no')`",
    "first: filter `x` removed",
    "first: `items` left out of `(items, other)`",
    "first: `other` left out of `(items, other)`",
    "Second.third: `check(mem(64), *ARRIVED, Aspect.CANARY)` removed",
    "Second.third: `*ARRIVED` left out of `check(mem(64), *ARRIVED, Aspect.CANARY)`",
    "Second.third: `Aspect.CANARY` left out of `check(mem(64), *ARRIVED, Aspect.CANARY)`",
]


def test_each_thing_that_decides_is_changed_and_each_in_one_way(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    made = list(mutants.mutants(str(path)))
    assert sorted(f"{mutant.place}: {mutant.change}" for mutant in made) == sorted(CHANGES)
    sources = {mutant.source() for mutant in made}
    assert len(sources) == len(made)
    assert ast.unparse(ast.parse(MODULE)) not in sources


@pytest.mark.parametrize(
    ("place", "checks"),
    [
        ("tables.py, write_by_receive", {"test_what_it_received_does_not_come_back"}),
        ("test_free.py, _dereg", {"test_dereg_returns_0", "test_dereg_returns_0_after_use"}),
        (
            "test_key.py, remote_operations",
            {"test_its_rkey_gives_a_peer_nothing", "test_its_rkey_opens_no_address_at_all"},
        ),
    ],
)
def test_a_change_is_judged_by_the_checks_that_use_what_is_changed(place: str, checks: set[str]) -> None:
    file, name = place.split(", ")
    changed = [mutant for mutant in mutants.mutants(f"{mutants.CHECKS_FOLDER}/{file}") if mutant.place == name]
    assert changed
    assert {check for mutant in changed for check in mutant.checks} == checks


@pytest.mark.skipif(sys.version_info < (3, 11), reason="ast.unparse writes parentheses there, and the list has none")
def test_what_is_said_of_survivors_is_said_of_mutants_that_there_are() -> None:
    keys = {mutant.key for path in mutants.every_path() for mutant in mutants.mutants(path)}
    assert mutants.explained() - keys == set()


def test_all_that_mutants_are_tried_on_exists() -> None:
    checks = {check for group in (mutants.INNOCENT, mutants.TESTS, *mutants.UNSOUND.values()) for check in group}
    assert checks <= mutants.files_of_checks().keys()
    assert {fault for faults in mutants.INNOCENT.values() for fault in faults} <= FAULTS.keys()
    assert {*mutants.OF_DATA, *mutants.OF_WINDOWS, *mutants.OF_LINKS} <= VARIANTS.keys()
    tests = {run[0] for run in (*mutants.UNIT_TESTS.values(), *mutants.TESTS.values())}
    assert all((ROOT / test).is_file() for test in tests)
