# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Self-contained HTML pages: one file, no script, nothing from the network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import jinja2

from conformance.clauses import BY_ID, CLAUSES
from conformance.report.common import Common, Trait, common
from conformance.report.compare import REGRESSIONS, Change, Comparison, Kind
from conformance.report.document import Report, Run, TargetFacts
from conformance.report.junit import summary
from conformance.report.terminal import COLUMNS, overall
from conformance.results import Result
from conformance.scenarios import Operation, Poll, Post, Queue, Scenario, Segment, Transport
from conformance.verdicts import Verdict

BAD = (Verdict.FAIL, Verdict.BROKEN)
LKEY_AS_RKEY = "observe/lkey-as-rkey"
"""Shown at once: by a device that accepts it, a peer reads zeros from addresses that nobody gave it."""
SHOWN_WHOLE = 200
"""How many failures a page shows with their whole text, shared out among the clauses; at least one each."""
SHOWN_IN_A_LINE = 2000
"""How many more have a line; beyond that only results.json has them."""
LONGEST_PROGRAM = 1 << 18
"""Characters of a reproducer that a page takes in."""

_T = TypeVar("_T")

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Piece:
    """Equal neighbours of a segment list, as one piece of a bar. `weight` is its share of the bar's width."""

    segment: Segment
    count: int

    @property
    def weight(self) -> float:
        return round(1 + math.log2(1 + self.segment.length * self.count), 1)


@dataclass(frozen=True)
class Bars:
    """A scenario as it is drawn."""

    scenario: Scenario
    gather: tuple[Piece, ...]
    scatter: tuple[Piece, ...]


@dataclass(frozen=True)
class Shown:
    """One failure with everything that there is to show, and the targets on which the same check fails."""

    result: Result
    targets: tuple[str, ...]
    bars: Bars | None
    program: str


@dataclass(frozen=True)
class Trouble:
    """The failures of one clause. `total` and `common` are of the targets that have any."""

    clause: str
    requirement: str
    source: str
    verdict: Verdict
    bad: int
    total: int
    targets: tuple[Trait, ...]
    common: Common
    shown: tuple[Shown, ...]
    lines: tuple[tuple[str, str, int], ...]
    """name, finding and number of targets"""
    left: int


@dataclass(frozen=True)
class Cell:
    """Some checks: how many there are, how they ended, and the verdict that decides."""

    counts: Counter[Verdict]

    @property
    def verdict(self) -> Verdict:
        return overall(self.counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def bad(self) -> int:
        return sum(self.counts[verdict] for verdict in BAD)


@dataclass(frozen=True)
class Coverage:
    """Checks by path: a row for each transport and operation, a column for each queue and API. None: not tried."""

    columns: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def render(report: Report, folder: Path | None = None, clean: Callable[[str], str] = str) -> str:
    """The page of a report.

    `folder` is where relative paths of reproducers begin (None: the page takes none in); `clean` is applied to their
    text.
    """
    results = list(report.results)
    targets = list(dict.fromkeys(result.target for result in results))
    facts = {target.id: target for target in report.targets}
    by_target = {target: [r for r in results if r.target == target] for target in targets}
    by_clause: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_clause.setdefault((result.clause, result.target), []).append(result)
    return _ENVIRONMENT.get_template("report.html.j2").render(
        report=report,
        total=_cell(results) if results else None,
        targets=[(target, facts.get(target), _cell(of)) for target, of in by_target.items()],
        untried=[target for target in facts.values() if target.id not in by_target],
        troubles=_troubles(by_clause, lambda result: clean(_program(result, folder)) if folder else ""),
        matrix=_matrix(by_clause, targets),
        coverage=_coverage(by_target),
        lkey_as_rkey=_remarks([result for result in results if result.clause == LKEY_AS_RKEY], Verdict.OBSERVED),
        remarks=[(verdict, _remarks(results, verdict)) for verdict in _REMARKED],
        columns=COLUMNS,
        vendor=_vendor,
        duration=duration,
        run_facts=run_facts,
    )


def _vendor(facts: TargetFacts) -> str:
    return f"{facts.vendor_id:#06x}:{facts.vendor_part_id}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _cell(results: Iterable[Result]) -> Cell:
    return Cell(Counter(result.verdict for result in results))


def scenario_of(result: Result) -> Scenario | None:
    """None where a check has no scenario, or one that this version of the suite cannot read."""
    return _parsed(result.scenario)


@cache  # every target has the same few thousand
def _parsed(scenario: str) -> Scenario | None:
    try:
        return Scenario.parse(scenario)
    except ValueError:
        return None


def bars(scenario: Scenario) -> Bars:
    return Bars(scenario, _pieces(scenario.gather), _pieces(scenario.scatter))


def _pieces(segments: Sequence[Segment]) -> tuple[Piece, ...]:
    return tuple(Piece(segment, len(list(equal))) for segment, equal in groupby(segments))


def _troubles(by_clause: dict[tuple[str, str], list[Result]], program: Callable[[Result], str]) -> list[Trouble]:
    """By clause, whatever the target: what many targets have in common is read once. FAIL before BROKEN, then in the
    order of the page."""
    wrong: dict[tuple[Verdict, str], list[list[Result]]] = {}
    for (clause, _), of in by_clause.items():
        for verdict in BAD:
            if any(result.verdict is verdict for result in of):
                wrong.setdefault((verdict, clause), []).append(of)
    share = min(10, max(1, SHOWN_WHOLE // max(1, len(wrong))))
    line_share = SHOWN_IN_A_LINE // max(1, len(wrong))
    order = sorted(wrong, key=lambda key: (BAD.index(key[0]), _place(key[1])))
    return [_trouble(key, wrong[key], share, line_share, program) for key in order]


def _trouble(
    key: tuple[Verdict, str], by_target: list[list[Result]], whole: int, lines: int, program: Callable[[Result], str]
) -> Trouble:
    """`whole` failures with all there is, `lines` more in short; `program` gives a failure's reproducer."""
    verdict, clause = key
    known = BY_ID.get(clause)
    tried = [result for of in by_target for result in of]
    bad = [result for result in tried if result.verdict is verdict]
    alike: dict[str, list[Result]] = {}
    for result in bad:
        alike.setdefault(_check(result), []).append(result)
    in_short = list(alike.values())[whole : whole + lines]
    return Trouble(
        clause=clause,
        requirement=known.requirement if known else "(a clause that this version of the suite does not have)",
        source=known.source if known else "",
        verdict=verdict,
        bad=len(bad),
        total=len(tried),
        targets=tuple(
            Trait("target", of[0].target, sum(result.verdict is verdict for result in of), len(of)) for of in by_target
        ),
        common=common([(result, scenario) for result in tried if (scenario := scenario_of(result))], verdict),
        # The first brings its program along, so that the page can be handed on alone.
        shown=tuple(
            _shown(same, program(same[0]) if same[0] is bad[0] else "") for same in list(alike.values())[:whole]
        ),
        lines=tuple((_name(same[0]), summary(same[0].text), len(same)) for same in in_short),
        left=max(0, len(alike) - whole - lines),
    )


def _check(result: Result) -> str:
    """The check, whatever the target: its name there is without the host."""
    return result.nodeid.replace(result.target.rpartition(":")[2], "", 1)


def _name(result: Result) -> str:
    return result.scenario or result.nodeid.partition("::")[2]


def _shown(same: list[Result], program: str) -> Shown:
    scenario = scenario_of(same[0])
    return Shown(same[0], tuple(result.target for result in same), bars(scenario) if scenario else None, program)


def _program(result: Result, folder: Path) -> str:
    """The text of a result's reproducer; empty if it has none, or if that is gone."""
    if not result.reproducer:
        return ""
    # As written, relative to where pytest ran; or beside the results, wherever they were copied to.
    written = Path(result.reproducer)
    for path in (folder / written.parent.name / written.name, written):
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")[:LONGEST_PROGRAM]
    return ""


@dataclass(frozen=True)
class Matrix:
    """Cells by clause (id, level, requirement) and by targets that do not differ in any. None: nothing was tried."""

    columns: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, str, str, tuple[Cell | None, ...]], ...]


def _matrix(by_clause: dict[tuple[str, str], list[Result]], targets: list[str]) -> Matrix:
    known = [(clause.id, clause.level.value, clause.requirement) for clause in CLAUSES]
    foreign = sorted({clause for clause, _ in by_clause} - BY_ID.keys())
    clauses = [*known, *((id, "", "unknown to this version") for id in foreign)]
    columns = _alike(
        {
            target: [_cell(of) if (of := by_clause.get((id, target))) else None for id, _, _ in clauses]
            for target in targets
        }
    )
    return Matrix(
        tuple(alike for alike, _ in columns),
        tuple((*clause, tuple(cells[row] for _, cells in columns)) for row, clause in enumerate(clauses)),
    )


def _alike(of_targets: Mapping[str, _T]) -> list[tuple[tuple[str, ...], _T]]:
    """Targets of which the same is to be said, together. There are few kinds, however many targets."""
    groups: list[tuple[list[str], _T]] = []
    for target, value in of_targets.items():
        for targets, same in groups:
            if value == same:
                targets.append(target)
                break
        else:
            groups.append(([target], value))
    return [(tuple(targets), value) for targets, value in groups]


def _coverage(by_target: dict[str, list[Result]]) -> list[tuple[tuple[str, ...], Coverage]]:
    """Of all targets together, if there are several, and of each kind of target, if they differ."""
    found = {target: covered for target, of in by_target.items() if (covered := _coverage_of(of))}
    kinds = _alike(found)
    if len(found) < 2:
        return kinds
    together = _coverage_of([result for of in by_target.values() for result in of])
    assert together is not None  # one of them alone has paths
    return [(tuple(found), together), *(kinds if len(kinds) > 1 else ())]


def _coverage_of(results: list[Result]) -> Coverage | None:
    """None: no check took any path."""
    counts: dict[tuple[Transport, Operation], dict[tuple[Queue, Post, Poll], Counter[Verdict]]] = {}
    for result in results:
        scenario = scenario_of(result)
        if scenario is not None:
            row = counts.setdefault((scenario.transport, scenario.operation), {})
            row.setdefault((scenario.queue, scenario.post, scenario.poll), Counter())[result.verdict] += 1
    paths = [(queue, post, poll) for queue in Queue for post in Post for poll in Poll]
    columns = [path for path in paths if any(path in row for row in counts.values())]
    rows = [
        (
            f"{transport.name} {operation.name}",
            tuple(Cell(found[path]) if path in found else None for path in columns),
        )
        for transport in Transport
        for operation in Operation
        if (found := counts.get((transport, operation)))
    ]
    return Coverage(tuple((q.name, post.value, poll.value) for q, post, poll in columns), tuple(rows)) if rows else None


_REMARKED = (Verdict.WAIVED, Verdict.SKIPPED, Verdict.OBSERVED)


def _remarks(results: list[Result], verdict: Verdict) -> list[tuple[tuple[str, ...], str, str, int]]:
    """Targets, clause, first line of the text and how many checks have it."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        if result.verdict is verdict:
            counts.setdefault((result.clause, result.text.partition("\n")[0]), Counter())[result.target] += 1
    return [(tuple(of), *key, sum(of.values())) for key, of in counts.items()]


def _place(clause: str) -> tuple[int, str]:
    known = list(BY_ID)
    return (known.index(clause) if clause in BY_ID else len(known), clause)


def run_facts(run: Run) -> list[tuple[str, str]]:
    """The circumstances of a run as name and text, without what its targets and libraries say."""
    about, host = run.circumstances, run.circumstances.machine
    facts = [
        ("suite", f"{about.suite} {about.commit}"),
        ("started", about.started),
        ("took", duration(run.seconds)),
        ("pytest", f"exit status {run.exit_status}, arguments: {' '.join(about.arguments) or 'none'}"),
        ("seed", "" if about.seed is None else str(about.seed)),
        ("host", host.host),
        ("system", host.system),
        ("kernel", host.kernel),
        ("taint", f"{host.taint_before} before, {host.taint_after} after"),
        ("Python", host.python),
        ("memlock", f"{host.memlock} bytes (soft/hard)"),
        ("variables", " ".join(f"{name}={value}" for name, value in host.variables.items()) or "none"),
        ("waivers", "; ".join(about.waivers) or "none"),
    ]
    return [(name, text) for name, text in facts if text]


def render_comparison(
    comparison: Comparison, old: Report, new: Report, old_name: str, new_name: str, allow_missing: bool = False
) -> str:
    """The page of a comparison; the names say which files were compared."""
    groups = max(1, len({(change.kind, change.result.clause, change.result.target) for change in comparison.changes}))
    return _ENVIRONMENT.get_template("compare.html.j2").render(
        comparison=comparison,
        regression=comparison.has_regression(allow_missing),
        old=old,
        new=new,
        old_name=old_name,
        new_name=new_name,
        kinds=list(Kind),
        regressions=REGRESSIONS,
        grouped=_grouped,
        limit=max(1, min(20, SHOWN_WHOLE // groups)),
    )


def _grouped(changes: list[Change]) -> list[tuple[tuple[str, str], list[Change]]]:
    """Changes by (clause, target)."""
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        groups.setdefault((change.result.clause, change.result.target), []).append(change)
    return list(groups.items())
