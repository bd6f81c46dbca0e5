# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks of the checks: change one thing in the suite's own code, and see whether the tests notice.

`python -m tests.mutants` makes mutants of the modules that decide a verdict. Each is one change: a condition negated, a
comparison or operator swapped, a `raise` or a call whose result nobody takes removed, an aspect, element or argument
left out of a list, a number off by one. A mutant is killed by the unit tests of its module, by the correct device
failing, by a fault that the check which was changed no longer finds (tests/kill_matrix.py says which it must), or by a
device whose ordinary memory is wrong passing. It prints those that survive; docs/mutants.md has the last numbers.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.reference.faults import FAULTS
from tests.kill_matrix import CHECKS, OPTIONS, SEARCHES, on_fault, on_variant
from tests.suite import ROOT

PROCESSES = 2
COPIED = ("conformance", "tests", "vm", "docs", "conftest.py", "providers.yaml", "pyproject.toml", ".build")
DOCUMENT = ROOT / "docs" / "mutants.md"
DETECTED = CHECKS | SEARCHES
INNOCENT = {
    "test_lkey_outlives_ordinary_mrs_and_other_pds": ("second-alloc-fails",),
    "test_rereg_leaves_it_as_it_was": ("reads-garbage",),
    "test_other_null_mrs_go_on_working": ("reads-garbage", "second-alloc-fails"),
    "test_a_loop_of_alloc_and_free_holds_nothing_back": ("second-alloc-fails",),
    "test_it_is_not_slower_than_ordinary_memory": ("read-response-refused", "duplicate-completion"),
}
"""Checks, and faults that they must not fail for: what is wrong there is for others to judge."""
UNSOUND = {
    "Garbled": ("test_what_is_gathered_arrives_as_zeros", "test_ordinary_mrs_go_on_working", "test_bind_fails"),
    "LongGarbled": ("test_each_gathered_segment_gives_its_own_bytes",),
    "NothingRemote": ("test_its_rkey_gives_a_peer_nothing", "test_its_rkey_opens_no_address_at_all"),
}
"""Devices of tests/unsound.py, and checks that must find each broken."""
OF_DATA = (
    "null-mr-not-permitted",
    "length-max-mr-size",
    "no-atomics",
    "no-srq",
    "max-sge-1",
    "max-msg-sz-8192",
)
OF_WINDOWS = (
    "no-mw",
    "mw-type-1-only",
    "bind-fails-in-completion",
    "bind-fails-qp-goes-on",
    "bind-refused-with-einval",
)
OF_LINKS = ("no-wr-api", "no-cq-ex", "max-sge-2")
"""Variants that make the suite go another way: around data, memory windows, and what links there are."""
UNIT_TESTS = {
    "conformance/scenarios.py": ("tests/test_scenarios.py", "tests/test_model.py", "tests/test_outcome.py"),
    "conformance/model.py": ("tests/test_model.py", "tests/test_outcome.py"),
    "conformance/outcome.py": ("tests/test_outcome.py", "tests/test_judging.py"),
    "conformance/capabilities.py": ("tests/test_capabilities.py", "tests/test_matrix.py", "tests/test_judging.py"),
    "conformance/matrix.py": ("tests/test_matrix.py", "tests/test_tables.py"),
    "conformance/judging.py": ("tests/test_judging.py", "tests/test_executor.py"),
    "conformance/verbs/end.py": ("tests/test_judging.py", "tests/test_executor.py"),
    "conformance/verbs/executor.py": ("tests/test_executor.py", "tests/test_judging.py"),
    "conformance/verbs/pair.py": ("tests/test_judging.py", "tests/test_executor.py"),
    "conformance/verbs/remote_window.py": ("tests/test_remote_window.py", "tests/test_windows.py"),
    "conformance/verbs/windows.py": ("tests/test_windows.py",),
    "conformance/checks/windows.py": ("tests/test_windows.py",),
    "conformance/checks/tables.py": ("tests/test_tables.py",),
    "conformance/checks/test_key.py": ("tests/test_tables.py",),
}
SHARED = {
    "conformance/scenarios.py": ("allocate/max", "allocate/lkey", "read/", "discard/"),
    "conformance/model.py": ("allocate/max", "allocate/lkey", "read/", "discard/"),
    "conformance/outcome.py": ("read/", "discard/"),
    "conformance/capabilities.py": (),
    "conformance/matrix.py": (),
    "conformance/judging.py": ("",),
    "conformance/verbs/end.py": ("",),
    "conformance/verbs/executor.py": ("",),
    "conformance/verbs/pair.py": ("",),
    "conformance/verbs/remote_window.py": ("discard/completion", "key/no-rkey", "misuse/bind"),
    "conformance/verbs/windows.py": ("misuse/bind",),
    "conformance/checks/windows.py": ("misuse/bind",),
}
"""The modules that all checks share, and the beginnings of the clauses for whose checks each decides something: the
matrix only chooses scenarios, and a target lacks something for none of those."""
TESTS = {
    "test_where_there_is_none_errno_says_so_and_the_pd_stays_usable": (
        "tests/test_run.py",
        "tests/test_kill_matrix.py",
        "-k",
        "null_mrs_may or promises_none or fail_cleanly or whatever_its_entry",
    ),
    "test_it_is_not_slower_than_ordinary_memory": ("tests/test_kill_matrix.py", "-k", "should_clause"),
    "test_ordinary_memory_takes_a_window": ("tests/test_control.py",),
    "test_a_process_that_dies_with_them_leaves_nothing": ("tests/test_checks.py", "-k", "kernel or process"),
    "test_a_loop_of_alloc_and_free_holds_nothing_back": ("tests/test_checks.py", "-k", "loop"),
}
"""Checks, and tests that are about them alone."""
VARIANTS_OF = {
    "conformance/judging.py": (*OF_DATA, *OF_LINKS),
    "conformance/verbs/end.py": (*OF_DATA, *OF_LINKS),
    "conformance/verbs/executor.py": (*OF_DATA, *OF_LINKS),
    "conformance/verbs/pair.py": (*OF_DATA, *OF_LINKS),
    "conformance/verbs/windows.py": OF_WINDOWS,
    "conformance/checks/windows.py": OF_WINDOWS,
}
"""Variants that each module is tried on."""
CHECKS_FOLDER = "conformance/checks"
HELPERS = (f"{CHECKS_FOLDER}/tables.py", f"{CHECKS_FOLDER}/working.py")
SWAPPED: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip


CORRECT = (*OPTIONS, "--thin=8", "--search=3")
LONGEST = 20
"""Seconds for one run: a mutant that hangs is noticed."""


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    place: str
    """the function, class or constant that the change is in"""
    change: str
    checks: tuple[str, ...]
    """the checks that use that place; none if all may"""
    original: str
    """the module as it is"""
    node: int
    choice: int
    """which of the changes of which node"""

    @property
    def key(self) -> str:
        """What the mutant is called in docs/mutants.md, where lines would soon be wrong."""
        return f"{self.path.removeprefix('conformance/')}, {self.place}: {self.change}"

    def source(self) -> str:
        """The module with the change."""
        tree = ast.parse(self.original)
        _, statement, node = [each for item in tree.body for each in _with_places(item)][self.node]
        mutate = list(changes(node, statement))[self.choice][1]
        mutate(node)
        return ast.unparse(ast.fix_missing_locations(tree))

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.place}: {self.change}"


def mutants(path: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    original = (ROOT / path).read_text()
    tree = ast.parse(original)
    not_judged = set(_types(tree))
    numbers = itertools.count()
    for item in tree.body:
        checks = checks_using(path, item)
        for place, statement, node in _with_places(item):
            number = next(numbers)
            for choice, (change, _) in enumerate(changes(node, statement) if node not in not_judged else ()):
                yield Mutant(path, getattr(node, "lineno", 0), place, change, checks, original, number, choice)


def _with_places(item: ast.stmt) -> Iterator[tuple[str, ast.stmt, ast.AST]]:
    """Each node of a top-level statement: the function, method or constant that it is in, and its statement."""

    def walk(node: ast.AST, place: str, statement: ast.stmt) -> Iterator[tuple[str, ast.stmt, ast.AST]]:
        statement = node if isinstance(node, ast.stmt) else statement
        if isinstance(node, ast.FunctionDef) and node is not item:
            place = f"{place}.{node.name}"
        yield place, statement, node
        for child in ast.iter_child_nodes(node):
            yield from walk(child, place, statement)

    return walk(item, ", ".join(_names(item)), item)


def _types(tree: ast.Module) -> Iterator[ast.AST]:
    """What only says a type: annotations, module-level names of types, imports for these."""
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if (annotation := getattr(node, field, None)) is not None:
                yield from ast.walk(annotation)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Subscript):
            yield from ast.walk(statement)
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from ast.walk(statement)


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def _names(item: ast.stmt) -> tuple[str, ...]:
    """What a top-level statement defines."""
    if isinstance(item, (ast.FunctionDef, ast.ClassDef)):
        return (item.name,)
    targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
    return tuple(node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


@cache
def _uses() -> dict[str, set[str]]:
    """For each name that the modules of the checks define at top level: the names in its definition.

    One dictionary for all modules: two of them do not define the same name with different users.
    """
    found: dict[str, set[str]] = {}
    for module in sorted((ROOT / CHECKS_FOLDER).glob("*.py")):
        for item in ast.parse(module.read_text()).body:
            inside = {node.id for node in ast.walk(item) if isinstance(node, ast.Name)}
            inside |= {node.attr for node in ast.walk(item) if isinstance(node, ast.Attribute)}
            for name in _names(item):
                found[name] = found.get(name, set()) | inside
    return found


def checks_using(path: str, item: ast.stmt) -> tuple[str, ...]:
    """The checks that are, or use, what a top-level statement of a module of the checks defines."""
    if path in SHARED:
        return ()
    names = set(_names(item))
    while more := {name for name, inside in _uses().items() if inside & names} - names:
        names |= more
    return tuple(check for check in files_of_checks() if check in names)


def changes(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    """What can be changed in a node of a statement: a description, and a function that changes a copy of it."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield f"`{_shown(node.test)}` negated", _negate
    if isinstance(node, ast.comprehension) and node.ifs:
        yield f"filter `{_shown(node.ifs[0])}` removed", lambda twin: twin.ifs.clear()  # type: ignore[attr-defined]
    if isinstance(node, (ast.Compare, ast.BoolOp, ast.BinOp)):
        operator = node.ops[0] if isinstance(node, ast.Compare) else node.op
        if type(operator) in SWAPPED:
            yield f"{SWAPPED[type(operator)].__name__} for {type(operator).__name__} in `{_shown(node)}`", _swap
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        if isinstance(statements, list) and not isinstance(node, ast.ClassDef):
            for index, inner in enumerate(statements):
                if isinstance(inner, ast.Raise) or _is_call(inner):
                    yield f"`{_shown(inner)}` removed", _remover(field, index)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and len(node.elts) > 1 and isinstance(_load(node), ast.Load):
        for index, element in enumerate(node.elts):
            yield f"`{_shown(element)}` left out of `{_shown(node)}`", _dropper("elts", index)
    if isinstance(node, ast.Call):
        for index, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred) or "Aspect." in ast.unparse(argument):
                yield f"`{_shown(argument)}` left out of `{_shown(node)}`", _dropper("args", index)
    if isinstance(node, ast.Constant) and type(node.value) is int and node not in _lengths(statement):
        yield f"{node.value + 1} for {node.value} in `{_shown(statement)}`", _add_one


def _lengths(statement: ast.stmt) -> list[ast.expr]:
    """The lengths of segments in a statement: any other length would do."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return [argument for call in calls if ast.unparse(call.func) in ("mem", "null") for argument in call.args]


def _add_one(twin: ast.AST) -> None:
    twin.value += 1  # type: ignore[attr-defined]


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


def _nodeid(check: str) -> str:
    return f"{files_of_checks()[check]}::{check}"


@cache
def files_of_checks() -> dict[str, str]:
    """The file of each check, from the root of the checkout."""
    files = sorted((ROOT / CHECKS_FOLDER).glob("test_*.py"))
    items = [(item, file) for file in files for item in ast.parse(file.read_text()).body]
    checks = [(item.name, file) for item, file in items if isinstance(item, ast.FunctionDef)]
    return {name: str(file.relative_to(ROOT)) for name, file in checks if name.startswith("test_")}


def killers(mutant: Mutant) -> Iterator[Run]:
    """What can notice, the cheapest first. All of it is what the selftest asserts, in runs as small as possible."""
    if mutant.path in UNIT_TESTS:
        yield UNIT_TESTS[mutant.path]
    if mutant.checks:
        yield from _runs_of_checks(mutant.checks)
        return
    yield *CORRECT, CHECKS_FOLDER
    every = mutant.path.endswith("/windows.py")  # few checks use it, and nothing else of them can be wrong
    for check, fault in [(check, fault) for check, faults in DETECTED.items() for fault in faults]:
        if (every or fault in _first_of_clause()) and FAULTS[fault].clause.startswith(SHARED[mutant.path]):
            yield _on_fault(check, fault)
    for variant in VARIANTS_OF.get(mutant.path, ()):
        yield *CORRECT, *on_variant(variant), "--thin=32", CHECKS_FOLDER
    for device, broken in UNSOUND.items():
        yield _on_unsound(device, broken)


def _runs_of_checks(checks: tuple[str, ...]) -> Iterator[Run]:
    chosen = tuple(map(_nodeid, checks))
    yield *CORRECT, *chosen
    for check in checks:
        if check in TESTS:
            yield TESTS[check]
    for check in checks:
        for fault in DETECTED.get(check, ()):
            yield _on_fault(check, fault)
    for check in checks:
        for fault in INNOCENT.get(check, ()):
            yield *CORRECT, f"--reference-fault={fault}", _nodeid(check)
    for variant in OF_WINDOWS if "test_misuse" in files_of_checks()[checks[0]] else OF_DATA:
        yield *CORRECT, *on_variant(variant), *chosen
    for device, broken in UNSOUND.items():
        for check in set(broken) & set(checks):
            yield _on_unsound(device, (check,))


def _on_unsound(device: str, checks: tuple[str, ...]) -> Run:
    return *CORRECT, f"--reference-fault=tests.unsound:{device}", *map(_nodeid, checks)


def _on_fault(check: str, fault: str) -> Run:
    whole = f"--whole={FAULTS[fault].clause}"
    examples = 40 if check in SEARCHES else 0
    return *CORRECT, "--conformance-strict", *on_fault(fault), whole, f"--search={examples}", _nodeid(check)


@cache
def _first_of_clause() -> set[str]:
    """For each clause, the fault that its first check is proven by."""
    return set({FAULTS[faults[0]].clause: faults[0] for faults in reversed(DETECTED.values())}.values())


def every_path() -> tuple[str, ...]:
    """The modules that have mutants; test_observe.py judges nothing."""
    files = dict.fromkeys(sorted(files_of_checks().values()))
    return (*(file for file in files if not file.endswith("test_observe.py")), *HELPERS, *SHARED)


def survives(mutant: Mutant, tree: Path, unchanged: Callable[[Run], tuple[int, ...] | None]) -> bool:
    """Do all killers end as they do where nothing is changed, in this copy of the suite with the mutant?"""
    path = tree / mutant.path
    original = path.read_text()
    path.write_text(mutant.source())
    try:
        return all(ends(run, tree) == unchanged(run) for run in killers(mutant))
    finally:
        path.write_text(original)


def explained() -> set[str]:
    """The keys of the survivors of which docs/mutants.md says why they survive."""
    survivors = DOCUMENT.read_text().partition("## Survivors")[2]
    return {line.removeprefix("- ") for line in survivors.splitlines() if line.startswith("- ")}


def copy_of_suite(folder: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("places", nargs="*", help="modules, from the root of the checkout, or path:line")
    parser.add_argument("--sample", type=int, metavar="N", help="try only N mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the mutants and do nothing")
    option = parser.parse_args()
    places = option.places or every_path()
    paths = dict.fromkeys(place.partition(":")[0] for place in places)
    every = [mutant for path in paths for mutant in mutants(path)]
    chosen = [mutant for mutant in every if mutant.path in places or f"{mutant.path}:{mutant.line}" in places]
    if option.sample is not None:
        chosen = random.Random(option.seed).sample(chosen, min(option.sample, len(chosen)))
    if option.list:
        print(*chosen, sep="\n")
        return 0
    start = time.monotonic()
    known, alive = explained(), set()
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

        judged = {pool.submit(judge, mutant): mutant for mutant in chosen}
        for done in as_completed(judged):
            mutant = judged[done]
            if done.result():
                alive.add(mutant.key)
            words = ("explained" if mutant.key in known else "SURVIVES") if done.result() else "killed"
            print(f"{words:9} {mutant}", flush=True)
    stale = {mutant.key for mutant in chosen} & known - alive
    print(*(f"killed, though {DOCUMENT.name} explains why it survives: {key}" for key in sorted(stale)), sep="\n")
    print(f"{len(chosen)} mutants, {len(alive)} survive, {len(alive - known)} of them unexplained", end=", ")
    print(f"{time.monotonic() - start:.0f} s")
    return bool(stale or alive - known)


if __name__ == "__main__":
    sys.exit(main())
