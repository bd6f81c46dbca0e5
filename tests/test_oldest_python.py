# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What Python 3.9 cannot run, and neither ruff, mypy nor vermin notices."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [
    ROOT / "conftest.py",
    *(file for folder in ("conformance", "connectx", "tests", "vm") for file in (ROOT / folder).rglob("*.py")),
]


def is_type(node: ast.expr) -> bool:
    """By its looks: None, int, list[int], Segment, ast.AST."""
    if isinstance(node, ast.Subscript):
        return is_type(node.value)
    if isinstance(node, ast.Constant):
        return node.value is None
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return isinstance(getattr(builtins, name, None), type) or bool(re.match("[A-Z]+[a-z]", name))


def evaluated_unions(source: str) -> Iterator[int]:
    """The lines of unions by | that are evaluated: all but those of annotations, with which ruff deals."""
    tree = ast.parse(source)
    annotations = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    spared = {id(part) for annotation in annotations if annotation for part in ast.walk(annotation)}
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    return (node.lineno for node in joined if id(node) not in spared and (is_type(node.left) or is_type(node.right)))


@pytest.mark.parametrize(
    "source", ["Size = int | None", "isinstance(x, list | Segment)", "Sizes = tuple[int | str, ...]"]
)
def test_an_evaluated_union_is_seen(source: str) -> None:
    assert list(evaluated_unions(source)) == [1]


@pytest.mark.parametrize("source", ["size: int | None", "def f(x: int | str) -> None: ...", "Access.READ | 1", "a | b"])
def test_what_python_3_9_can_run_is_not_taken_for_one(source: str) -> None:
    assert list(evaluated_unions(source)) == []


def test_no_union_is_evaluated() -> None:
    found = [(path, line) for path in MODULES for line in evaluated_unions(path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(f"{path}:{line}: use Union or Optional" for path, line in found)
