# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What changed between two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from conformance.report.document import Report
from conformance.report.junit import summary
from conformance.results import Result
from conformance.verdicts import Verdict

EXAMPLES = 3
"""Changes that the text shows of each clause and target."""


class Kind(Enum):
    """What a change means. FAILED and LOST are regressions."""

    FAILED = "new failures"
    """FAIL or BROKEN, and not so before"""
    LOST = "promises no longer shown to be kept"
    """passed before; now skipped, or not run at all"""
    FIXED = "fixed"
    """FAIL or BROKEN before, and now PASS"""
    CHANGED = "other changes"
    """another verdict, or another observation"""
    APPEARED = "checks that appeared"
    WENT = "checks that went"


REGRESSIONS = (Kind.FAILED, Kind.LOST)

# The worst first: a check can have two results, a PASS and a BROKEN from its clean-up.
_WORST = (Verdict.FAIL, Verdict.BROKEN, Verdict.WAIVED, Verdict.OBSERVED, Verdict.SKIPPED, Verdict.PASS)
_BAD = (Verdict.FAIL, Verdict.BROKEN)


@dataclass(frozen=True)
class Change:
    """One check that did not end as before; None: it was not run."""

    kind: Kind
    old: Result | None
    new: Result | None

    @property
    def result(self) -> Result:
        result = self.new or self.old
        assert result is not None
        return result

    @property
    def words(self) -> str:
        """PASS -> FAIL"""
        old, new = (result.verdict.value if result else "not run" for result in (self.old, self.new))
        return f"{old} -> {new}"


@dataclass(frozen=True)
class Difference:
    """A fact of the circumstances that changed; "" where it was not there."""

    where: str
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Comparison:
    changes: tuple[Change, ...]
    differences: tuple[Difference, ...]
    same: int = field(default=0)
    """checks that ended as before"""

    def of(self, kind: Kind) -> list[Change]:
        return [change for change in self.changes if change.kind is kind]

    def has_regression(self, allow_missing: bool = False) -> bool:
        """Is anything worse? `allow_missing`: a check that passed and was not run this time does not count."""
        return any(change.kind in REGRESSIONS and not (allow_missing and change.new is None) for change in self.changes)


def compare(old: Report, new: Report) -> Comparison:
    """Match the checks of both reports by target and name."""
    before, after = _by_check(old.results), _by_check(new.results)
    changes = []
    for check in dict.fromkeys((*before, *after)):
        was, is_now = before.get(check), after.get(check)
        kind = _kind(was, is_now)
        if kind is not None:
            changes.append(Change(kind, was, is_now))
    same = len(before.keys() | after.keys()) - len(changes)
    return Comparison(tuple(changes), tuple(_differences(old, new)), same)


def _by_check(results: Iterable[Result]) -> dict[tuple[str, str], Result]:
    found: dict[tuple[str, str], Result] = {}
    for result in results:
        key = (result.target, result.nodeid)
        if key not in found or _WORST.index(result.verdict) < _WORST.index(found[key].verdict):
            found[key] = result
    return found


def _kind(old: Result | None, new: Result | None) -> Kind | None:
    """None: it ended as before."""
    was, now = old.verdict if old else None, new.verdict if new else None
    if old and new and was is now:
        return Kind.CHANGED if was is Verdict.OBSERVED and old.text != new.text else None
    if now in _BAD:
        # From the one to the other is no new failure: it was bad, and still is.
        return Kind.CHANGED if was in _BAD else Kind.FAILED
    if was is Verdict.PASS and now in (None, Verdict.SKIPPED):
        return Kind.LOST
    if was in _BAD and now is Verdict.PASS:
        return Kind.FIXED
    if was is None:
        return Kind.APPEARED
    return Kind.WENT if now is None else Kind.CHANGED


_NO_FACTS = ("started", "results", "targets", "seconds", "exit_status")


def _differences(old: Report, new: Report) -> Iterator[Difference]:
    """Circumstances by run, matched by label, or one with the other where each report has one run; then by target."""
    alone = len(old.runs) == len(new.runs) == 1
    sides = []
    for report in (old, new):
        facts: dict[str, dict[str, str]] = {}
        for run in report.runs:
            where = "run" if alone else f"run {run.circumstances.label}"
            facts[where] = dict(_flat({**asdict(run.circumstances), "interrupted": run.interrupted}))
        facts |= {target.id: dict(_flat(asdict(target))) for target in report.targets}
        sides.append(facts)
    before, after = sides
    for where in dict.fromkeys((*before, *after)):
        if where not in before or where not in after:
            yield Difference(where, "", "there" if where in before else "", "there" if where in after else "")
            continue
        for name in dict.fromkeys((*before[where], *after[where])):
            was, now = before[where].get(name, ""), after[where].get(name, "")
            if was != now:
                yield Difference(where, name, was, now)


def _flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as (dotted name, text); libraries by their names instead of by their numbers."""
    for key, item in value.items():
        if not prefix and key in _NO_FACTS:
            continue
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            yield from _flat(item, f"{name}.")
        elif isinstance(item, tuple) and key == "libraries":
            for library in item:
                yield f"{prefix}{library['name']}", f"{library['package']} {library['path']}".strip()
                yield f"{prefix}{library['name']} build id", library["build_id"]
        elif isinstance(item, tuple) and key == "left_out":
            yield from ((f"left out {out['name']}", out["reason"]) for out in item)
        elif isinstance(item, tuple):
            yield name, " ".join(map(str, item))
        else:
            yield name, "" if item is None else str(item)


def text(comparison: Comparison, allow_missing: bool = False) -> str:
    """The comparison for a terminal or a log: each kind of change by clause and target, regressions with examples."""
    lines = []
    for kind in Kind:
        changes = comparison.of(kind)
        if not changes:
            continue
        lines.append(f"{kind.value}: {len(changes)}")
        for (clause, target, words), of in _grouped(changes).items():
            lines.append(f"  {clause} on {target}: {len(of)} {words}")
            if kind in (*REGRESSIONS, Kind.CHANGED):
                for change in of[:EXAMPLES]:
                    lines += _example(change)
                if len(of) > EXAMPLES:
                    lines.append(f"    ... and {len(of) - EXAMPLES} more")
        lines.append("")
    if comparison.differences:
        lines.append("circumstances that changed:")
        lines += [f"  {_words(difference)}" for difference in comparison.differences]
        lines.append("")
    lines.append(f"{comparison.same} checks ended as before")
    lines.append("REGRESSION" if comparison.has_regression(allow_missing) else "no regression")
    return "\n".join(lines)


def _grouped(changes: list[Change]) -> dict[tuple[str, str, str], list[Change]]:
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        groups.setdefault((change.result.clause, change.result.target, change.words), []).append(change)
    return groups


def _example(change: Change) -> Iterator[str]:
    yield f"    {change.result.nodeid.partition('::')[2]}"
    if change.new is not None and change.new.text:
        yield f"      {summary(change.new.text)}"


def _words(difference: Difference) -> str:
    if not difference.name:
        return f"{difference.where}: {'only in OLD' if difference.old else 'only in NEW'}"
    return f"{difference.where}: {difference.name}: {difference.old or '(nothing)'} -> {difference.new or '(nothing)'}"
