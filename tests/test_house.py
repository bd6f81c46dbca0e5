# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The house: arrows go one way, and each thing is touched in one room."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "conformance"

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"scenarios", "sequences", "load", "clauses", "device", "versions", "native", "elf", "__init__"}),
    frozenset({"config", "crash", "kernel", "model"}),
    frozenset({"outcome"}),
    frozenset({"verdicts"}),
    frozenset({"results", "locks", "kernel_log", "watch", "inventory"}),
    frozenset({"capabilities", "waivers", "origin"}),
    frozenset({"matrix", "traffic"}),
    frozenset({"verbs"}),
    frozenset({"judging", "report"}),
    frozenset({"search", "sequence_search", "stress"}),
    frozenset({"session", "checks"}),
    frozenset({"__main__"}),
)
"""From below: a module imports from its own floor and from those below it. Packages are one room each."""

FENCED = {
    "pytest": {"session", "checks"},
    "_pytest": set(),
    "pluggy": set(),
    "xdist": {"session"},
    "pyverbs": {"verbs", "checks"},
    "jinja2": {"report"},
    "cffi": {"native"},
    "elftools": {"elf"},
}
"""Which rooms may import what the others must do without."""


def room_of(path: Path) -> str:
    """The folder or, beside the folders, the module."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import, also of those in functions and for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level or room_of(path) == "reference", f"{path}:{node.lineno}: a relative import"
            if not node.level:
                yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


MODULES = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = [(path, line, name) for path in MODULES for line, name in imports(path)]


def own(name: str) -> str:
    """The room that an import of ours leads to; empty for other packages'."""
    parts = name.split(".")
    return parts[1] if parts[0] == "conformance" and len(parts) > 1 else ""


def told(wrong: list[tuple[Path, int, str]]) -> str:
    return "\n".join(f"{path.relative_to(ROOT)}:{line}: {name}" for path, line, name in wrong)


@pytest.mark.parametrize("package", FENCED)
def test_a_package_is_touched_in_its_rooms_only(package: str) -> None:
    found = [each for each in EVERYTHING if each[2].split(".")[0] == package]
    assert not told([each for each in found if room_of(each[0]) not in FENCED[package]])


def test_the_root_conftest_names_the_session_and_does_nothing() -> None:
    assert [name for _, name in imports(ROOT / "conftest.py")] == []


def test_each_module_has_a_floor() -> None:
    rooms = {room_of(path) for path in MODULES} - {"reference"}
    assert rooms == set().union(*FLOORS)
    assert len(rooms) == sum(map(len, FLOORS))


def test_arrows_go_down() -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    ours = [each for each in EVERYTHING if own(each[2]) in floor and room_of(each[0]) in floor]
    assert not told([each for each in ours if floor[own(each[2])] > floor[room_of(each[0])]])


def test_the_reference_device_knows_nothing_of_the_suite() -> None:
    inside = [each for each in EVERYTHING if room_of(each[0]) == "reference" and own(each[2])]
    assert not told([each for each in inside if own(each[2]) not in ("reference", "native")])


def test_the_suite_knows_nothing_of_the_reference_device_but_its_name() -> None:
    outside = [each for each in EVERYTHING if room_of(each[0]) != "reference" and own(each[2]) == "reference"]
    assert not told([each for each in outside if each[2] != "conformance.reference"])
