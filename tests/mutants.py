# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks of the checks: change one thing in the suite's own code, and see whether the tests notice.

`python -m tests.mutants` makes mutants of the modules that decide a verdict. Each is one change: a condition negated, a
comparison or operator swapped, a `raise` or a call whose result nobody takes removed, an aspect, element or argument
left out of a list, a number off by one. A mutant is killed by the unit tests of its module, by the correct device
failing, by a fault that the check which was changed no longer finds (tests/kill_matrix.py says which it must), or by a
device whose ordinary memory is wrong passing. It prints those that survive; docs/mutants.md has the last numbers.
"""

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.reference.faults import FAULTS
from tests.kill_matrix import CHECKS, SEARCHES
from tests.suite import ROOT

PROCESSES = 2
COPIED = ("conformance", "tests", "docs", "conftest.py", "providers.yaml", "pyproject.toml", ".build")
DETECTED = CHECKS | {check: (fault,) for check, fault in SEARCHES.items()}
UNSOUND = {
    "garbled": ("test_what_is_gathered_arrives_as_zeros", "test_ordinary_mrs_go_on_working", "test_bind_fails"),
    "long-garbled": ("test_each_gathered_segment_gives_its_own_bytes",),
    "nothing-remote": ("test_its_rkey_gives_a_peer_nothing", "test_its_rkey_opens_no_address_at_all"),
}
"""Devices of tests/unsound.py, and checks that must find each broken."""
NOT_TO_BLAME = ("test_rereg_leaves_it_as_it_was", "test_other_null_mrs_go_on_working")
"""Checks that must not fail a device which is wrong about every null MR, whatever is done to it."""
UNIT_TESTS = {
    "conformance/scenarios.py": ("tests/test_scenarios.py",),
    "conformance/outcome.py": ("tests/test_outcome.py",),
    "conformance/matrix.py": ("tests/test_matrix.py",),
    "conformance/search.py": ("tests/test_search.py",),
}
CHECKED_BY = {
    "conformance/scenarios.py": ("allocate/max", "allocate/lkey", "read/", "discard/"),
    "conformance/outcome.py": ("read/", "discard/"),
    "conformance/matrix.py": ("allocate/max", "allocate/lkey", "read/", "discard/"),
    "conformance/verbs/bench.py": ("",),
    "conformance/verbs/windows.py": ("misuse/bind",),
    "conformance/checks/tables.py": ("allocate/", "read/", "discard/"),
    "conformance/checks/working.py": ("allocate/coexist", "misuse/", "free/leaves"),
}
"""The modules that checks share, and the beginnings of the clauses for whose checks each decides something."""
SWAPPED: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip


CORRECT = ("--reference", "--search-seed=1", "-p", "tests.thinning", "--thin=8", "--search=3")
ALL = "conformance/checks"
LONGEST = 120
"""Seconds for one run: a mutant that hangs is noticed."""


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    change: str
    source: str
    check: str
    """the check in which the change is; empty if it is in what checks share"""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


def mutants(path: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse((ROOT / path).read_text())
    types = set(_types(tree))
    for number, node in enumerate(ast.walk(tree)):
        if node in types:
            continue
        for change, mutate in changes(node):
            mutated = copy.deepcopy(tree)
            twin = list(ast.walk(mutated))[number]
            text = f"{change} in `{_shown(twin)}`"
            mutate(twin)
            source = ast.unparse(ast.fix_missing_locations(mutated))
            yield Mutant(path, getattr(node, "lineno", 0), text, source, _check(tree, node))


def _types(tree: ast.Module) -> Iterator[ast.AST]:
    """What only says a type: annotations, and module-level names of types."""
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if (annotation := getattr(node, field, None)) is not None:
                yield from ast.walk(annotation)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Subscript):
            yield from ast.walk(statement)


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:100]


def _check(tree: ast.Module, node: ast.AST) -> str:
    """The name of the check that a node is in."""
    for item in tree.body:
        if (
            isinstance(item, ast.FunctionDef)
            and item.name.startswith("test_")
            and any(n is node for n in ast.walk(item))
        ):
            return item.name
    return ""


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    """What can be changed in a node: a description, and a function that changes a copy of it."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "condition negated", _negate
    if isinstance(node, ast.comprehension) and node.ifs:
        yield "filter removed", lambda twin: twin.ifs.clear()  # type: ignore[attr-defined]
    if isinstance(node, (ast.Compare, ast.BoolOp, ast.BinOp)):
        operator = node.ops[0] if isinstance(node, ast.Compare) else node.op
        if type(operator) in SWAPPED:
            yield f"{type(operator).__name__} is {SWAPPED[type(operator)].__name__}", _swap
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        if isinstance(statements, list) and not isinstance(node, ast.ClassDef):
            for index, statement in enumerate(statements):
                if isinstance(statement, ast.Raise) or _is_call(statement):
                    yield f"statement {index + 1} removed (`{_shown(statement)}`)", _remover(field, index)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and len(node.elts) > 1 and isinstance(_load(node), ast.Load):
        for index in range(len(node.elts)):
            yield f"element {index + 1} left out", _dropper("elts", index)
    if isinstance(node, ast.Call):
        for index, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred) or "Aspect." in ast.unparse(argument):
                yield f"argument {index + 1} left out", _dropper("args", index)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "number plus 1", lambda twin: setattr(twin, "value", twin.value + 1)  # type: ignore[attr-defined]


def _load(node: ast.AST) -> object:
    return getattr(node, "ctx", ast.Load())


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, (ast.Call, ast.Yield, ast.YieldFrom))


def _negate(twin: ast.AST) -> None:
    twin.test = ast.UnaryOp(ast.Not(), twin.test)  # type: ignore[attr-defined]


def _swap(twin: ast.AST) -> None:
    if isinstance(twin, ast.Compare):
        twin.ops[0] = SWAPPED[type(twin.ops[0])]()
    else:
        twin.op = SWAPPED[type(twin.op)]()  # type: ignore[attr-defined]


def _remover(field: str, index: int) -> Callable[[ast.AST], None]:
    return lambda twin: getattr(twin, field).__setitem__(index, ast.Pass())


def _dropper(field: str, index: int) -> Callable[[ast.AST], None]:
    return lambda twin: getattr(twin, field).__delitem__(index)


Run = tuple[str, ...]
"""Arguments for pytest."""


def ends(run: Run, tree: Path) -> tuple[int, ...] | None:
    """How a run ends: the exit status, and whether a check failed (FAIL) or could not judge (BROKEN), which are both
    status 1. None if it takes too long.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *run]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return None
    summary = done.stdout.rstrip().rpartition("\n")[2]
    return done.returncode, "failed" in summary, "error" in summary


def file_of(clause: str) -> str:
    return f"{ALL}/test_{clause.partition('/')[0]}.py"


def killers(mutant: Mutant) -> Iterator[Run]:
    """What can notice, the cheapest first. All of it is what the selftest asserts, in runs as small as possible."""
    if mutant.path in UNIT_TESTS:
        yield UNIT_TESTS[mutant.path]
    yield (*CORRECT, mutant.path, "-k", mutant.check) if mutant.check else (*CORRECT, ALL)
    if mutant.check:
        pairs = [(mutant.check, fault) for fault in DETECTED.get(mutant.check, ())]
    else:  # a helper of the checks of one module serves no others
        clauses = CHECKED_BY.get(mutant.path, (f"{Path(mutant.path).stem.removeprefix('test_')}/",))
        first = {FAULTS[faults[0]].clause: (check, faults[0]) for check, faults in reversed(DETECTED.items())}
        pairs = [pair for clause, pair in first.items() if clause.startswith(clauses)]
    for check, fault in pairs:
        clause = FAULTS[fault].clause
        kind = "absent" if clause == "allocate/fails-cleanly" else "faults"
        wrong = ("--conformance-strict", f"--providers=tests/kill_matrix_{kind}.yaml", f"--reference-fault={fault}")
        yield (*CORRECT, *wrong, f"--whole={clause}", file_of(clause), "-k", check)
    if mutant.path == "conformance/checks/working.py":
        for check in NOT_TO_BLAME:
            yield (*CORRECT, "--reference-fault=reads-garbage", ALL, "-k", check)
    if mutant.path in ("conformance/matrix.py", "conformance/checks/tables.py", "conformance/verbs/bench.py"):
        yield "tests/test_kill_matrix.py", "-k", "conforming and (max-sge or no-srq or no-atomics or max-msg)"
    for device, broken in UNSOUND.items():
        for check in broken:
            if mutant.check in ("", check):
                yield (*CORRECT, "-p", "tests.unsound", f"--reference-fault={device}", ALL, "-k", check)


def survives(mutant: Mutant, tree: Path, unchanged: Callable[[Run], tuple[int, ...] | None]) -> bool:
    """Do all killers end as they do where nothing is changed, in this copy of the suite with the mutant?"""
    path = tree / mutant.path
    original = path.read_text()
    path.write_text(mutant.source)
    try:
        return all(ends(run, tree) == unchanged(run) for run in killers(mutant))
    finally:
        path.write_text(original)


def copy_of_suite(folder: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder


def main() -> int:
    checks = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "conformance" / "checks").glob("test_*.py"))
    checks.remove("conformance/checks/test_observe.py")  # judges nothing
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", help="modules, from the root of the checkout")
    parser.add_argument("--sample", type=int, metavar="N", help="try only N mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the mutants and do nothing")
    option = parser.parse_args()
    chosen = [mutant for path in option.paths or (*checks, *CHECKED_BY) for mutant in mutants(path)]
    if option.sample is not None:
        chosen = random.Random(option.seed).sample(chosen, min(option.sample, len(chosen)))
    if option.list:
        print(*chosen, sep="\n")
        return 0
    start, survivors = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        sound = copy_of_suite(Path(tempfile.mkdtemp(dir=folder)))
        unchanged = cache(lambda run: ends(run, sound))
        free = [copy_of_suite(Path(tempfile.mkdtemp(dir=folder))) for _ in range(PROCESSES)]

        def judge(mutant: Mutant) -> bool:
            tree = free.pop()
            try:
                return survives(mutant, tree, unchanged)
            finally:
                free.append(tree)

        for mutant, alive in zip(chosen, pool.map(judge, chosen), strict=True):
            survivors += alive
            print("SURVIVES" if alive else "killed  ", mutant, flush=True)
    print(f"{len(chosen)} mutants, {survivors} survive, {time.monotonic() - start:.0f} s")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
