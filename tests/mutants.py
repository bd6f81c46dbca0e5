# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks of the checks: change one thing in the suite's own code, and see whether the tests notice.

`python -m tests.mutants` makes mutants of the modules that decide a verdict. Each is one change: a condition negated, a
comparison or operator swapped, a `raise` or a call whose result nobody takes removed, an aspect, element or argument
left out of a list, a number off by one. A mutant is killed by the unit tests of its module, by the correct device
failing, or by a fault that is no longer caught. It prints those that survive; docs/mutants.md has the last numbers.
"""

import argparse
import ast
import copy
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from conformance.reference.faults import FAULTS
from tests.suite import ROOT

PROCESSES = 2
COPIED = ("conformance", "tests", "docs", "conftest.py", "providers.yaml", "pyproject.toml", ".build")
UNIT_TESTS = {
    "conformance/scenarios.py": ("tests/test_scenarios.py",),
    "conformance/outcome.py": ("tests/test_outcome.py",),
    "conformance/matrix.py": ("tests/test_matrix.py",),
    "conformance/search.py": ("tests/test_search.py",),
}
SHARED = ("conformance/scenarios.py", "conformance/outcome.py", "conformance/matrix.py", "conformance/verbs/bench.py",
          "conformance/verbs/windows.py", "conformance/checks/tables.py")  # fmt: skip
SWAPPED: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    change: str
    source: str
    clauses: tuple[str, ...]
    """what the check that was changed proves; empty in a module that all checks share"""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


def mutants(path: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse((ROOT / path).read_text())
    for number, node in enumerate(ast.walk(tree)):
        for change, mutate in changes(node):
            mutated = copy.deepcopy(tree)
            twin = list(ast.walk(mutated))[number]
            before = _shown(twin)
            mutate(twin)
            clauses = _clauses(tree, node)
            line = getattr(node, "lineno", 0)
            yield Mutant(
                path, line, f"{change} in `{before}`", ast.unparse(ast.fix_missing_locations(mutated)), clauses
            )


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:100]


def _clauses(tree: ast.Module, node: ast.AST) -> tuple[str, ...]:
    """The clause markers of the check that a node is in; those of the whole module if it is in none."""
    functions = [item for item in tree.body if isinstance(item, ast.FunctionDef)]
    inside = [function for function in functions if any(child is node for child in ast.walk(function))]
    for scope in (inside, functions):
        text = "\n".join(ast.unparse(mark) for function in scope for mark in function.decorator_list)
        if found := re.findall(r"mark\.clause\('([^']+)'\)", text):
            return tuple(dict.fromkeys(found))
    return ()


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


def killers(mutant: Mutant) -> list[str]:
    """The tests that may notice, the cheapest and likeliest first."""
    faults = [name for name, fault in FAULTS.items() if not mutant.clauses or fault.clause in mutant.clauses]
    if mutant.path in SHARED:  # two of each clause are enough for what all checks share
        seen: Counter[str] = Counter()
        faults = [name for name in faults if seen.update([FAULTS[name].clause]) or seen[FAULTS[name].clause] <= 2]
    module = "tests/test_kill_matrix.py"
    wrong = f"{module}::test_a_wrong_device_fails_the_clause_that_it_breaks_and_no_other"
    correct = f"{module}::test_the_correct_device_passes_everything"
    return [*UNIT_TESTS.get(mutant.path, ()), correct, *(f"{wrong}[{name}]" for name in faults)]


def survives(mutant: Mutant, tree: Path) -> bool:
    """Run the killers on a copy of the suite that has the mutant."""
    path = tree / mutant.path
    original = path.read_text()
    path.write_text(mutant.source)
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *killers(mutant)]
        return subprocess.run(command, cwd=tree, capture_output=True, check=False).returncode == 0
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
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", help="modules, from the root of the checkout")
    parser.add_argument("--sample", type=int, metavar="N", help="try only N mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the mutants and do nothing")
    option = parser.parse_args()
    chosen = [mutant for path in option.paths or (*checks, *SHARED) for mutant in mutants(path)]
    if option.sample is not None:
        chosen = random.Random(option.seed).sample(chosen, min(option.sample, len(chosen)))
    if option.list:
        print(*chosen, sep="\n")
        return 0
    start, survivors = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        free = [copy_of_suite(Path(tempfile.mkdtemp(dir=folder))) for _ in range(PROCESSES)]

        for path in dict.fromkeys(mutant.path for mutant in chosen):
            clauses = {clause for mutant in chosen if mutant.path == path for clause in mutant.clauses}
            unchanged = Mutant(path, 0, "nothing", (ROOT / path).read_text(), tuple(clauses))
            if not survives(unchanged, free[0]):
                parser.error(f"the tests fail without any mutant: {', '.join(killers(unchanged))}")

        def judge(mutant: Mutant) -> bool:
            tree = free.pop()
            try:
                return survives(mutant, tree)
            finally:
                free.append(tree)

        for mutant, alive in zip(chosen, pool.map(judge, chosen), strict=True):
            survivors += alive
            print("SURVIVES" if alive else "killed  ", mutant, flush=True)
    print(f"{len(chosen)} mutants, {survivors} survive, {time.monotonic() - start:.0f} s")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
