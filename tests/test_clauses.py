# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Every clause has a check, and every check a clause."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import checks
from conformance.clauses import BY_ID, CLAUSES, GROUPS, Clause

CHANGES = Path(__file__).parent.parent / "docs" / "changes.md"


def functions() -> Iterator[tuple[str, list[str]]]:
    """Each test function of the checks, with the clauses that it is marked with."""
    for module_info in pkgutil.iter_modules(checks.__path__):
        if not module_info.name.startswith("test_"):
            continue
        module = importlib.import_module(f"conformance.checks.{module_info.name}")
        for name, function in vars(module).items():
            if name.startswith("test_"):
                marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "clause"]
                yield f"{module_info.name}.{name}", [mark.args[0] for mark in marks]


CHECKS = dict(functions())


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.id)
def test_every_clause_has_a_check(clause: Clause) -> None:
    assert any(clause.id in of for of in CHECKS.values())


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_has_one_clause_of_its_file(check: str) -> None:
    (clause,) = CHECKS[check]
    assert clause in BY_ID
    assert check.startswith(f"test_{BY_ID[clause].group}.")


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.id)
def test_the_page_of_changes_names_every_clause(clause: Clause) -> None:
    assert clause.id in re.findall(r"[a-z]+/[a-z-]+", CHANGES.read_text()), "docs/changes.md: say that it is new"


def test_ids_are_unique_and_grouped() -> None:
    assert len(BY_ID) == len(CLAUSES)
    assert [clause.group for clause in CLAUSES] == sorted((clause.group for clause in CLAUSES), key=GROUPS.index)


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.id)
def test_what_a_clause_says_of_its_checks_is_said_of_the_whole_group(clause: Clause) -> None:
    """A check of misuse does what a driver may complain of; only one of allocate fails for a null MR not given."""
    assert clause.about_allocation == (clause.group == "allocate")
    assert clause.provokes_kernel_errors == (clause.group in ("key", "misuse", "observe"))
