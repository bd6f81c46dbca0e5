# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What failures have in common: on which parts of the path checks fail, and on which they do not."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from conformance.results import Result
from conformance.scenarios import Scenario, Segment
from conformance.verdicts import Verdict

TRIED = {
    Verdict.FAIL: frozenset({Verdict.PASS, Verdict.FAIL, Verdict.WAIVED}),
    Verdict.BROKEN: frozenset({Verdict.PASS, Verdict.FAIL, Verdict.WAIVED, Verdict.BROKEN}),
}
"""Beside which verdicts one is looked at: what was skipped was not tried, and BROKEN says nothing of the device."""
LONGEST_SHAPE = 4

Path = Mapping[str, str]
"""The parts of a path by their names."""


@dataclass(frozen=True)
class Trait:
    """How many of the checks with this part of the path failed."""

    name: str
    value: str
    bad: int
    total: int


@dataclass(frozen=True)
class Common:
    """`traits` are the parts of the path that tell failed checks from others, the best first, all values of a part
    together. `all_have`: part and values of the narrowest path on which all failures are, with all checks on it.
    """

    traits: tuple[Trait, ...]
    all_have: tuple[tuple[str, str], ...]
    bad: int
    total: int


def common(results: Sequence[tuple[Result, Scenario]], verdict: Verdict) -> Common:
    """Compare the checks of one clause that came to a verdict, FAIL or BROKEN, with those that did not."""
    tried = [
        (result, scenario)
        for result, scenario in results
        if result.verdict in TRIED[verdict] and (verdict is Verdict.BROKEN or not result.is_waived_broken)
    ]
    failed = [scenario.length for result, scenario in tried if result.verdict is verdict]
    if not failed:
        return Common((), (), 0, 0)
    lengths = _Lengths(min(failed), max(failed), [scenario.length for _, scenario in tried])
    paths = [(_path(result, scenario, lengths), result.verdict is verdict) for result, scenario in tried]
    bad = [path for path, is_bad in paths if is_bad]
    counts = {name: _count(name, paths) for name in bad[0]}
    telling = [name for name, of in counts.items() if len({trait.bad / trait.total for trait in of}) > 1]
    telling.sort(key=lambda name: _doubt(counts[name]))
    values = {name: dict.fromkeys(trait.value for trait in counts[name] if trait.bad) for name in telling}
    all_have = _narrowest({name: of for name, of in values.items() if len(of) < len(counts[name])}, paths)
    total = sum(all(path[name] in values[name] for name in all_have) for path, _ in paths)
    return Common(
        traits=tuple(trait for name in telling for trait in counts[name]),
        all_have=tuple((name, " or ".join(values[name])) for name in all_have),
        bad=len(bad),
        total=total,
    )


@dataclass(frozen=True)
class _Lengths:
    """Message lengths below, within and above those that failed, by the lengths that were tried."""

    least: int
    most: int
    tried: Sequence[int]

    def group(self, length: int) -> str:
        """In the order of the lengths, as one counts them."""
        return self._groups[self._place(length)]

    @cached_property
    def _groups(self) -> dict[int, str]:
        of: dict[int, list[int]] = {}
        for length in self.tried:
            of.setdefault(self._place(length), []).append(length)
        ends = {place: (min(lengths), max(lengths)) for place, lengths in of.items()}
        return {place: str(low) if low == high else f"{low} to {high}" for place, (low, high) in ends.items()}

    def _place(self, length: int) -> int:
        return (length >= self.least) + (length > self.most)


def _path(result: Result, scenario: Scenario, lengths: _Lengths) -> Path:
    nulls = [segment for segment in scenario.segments if segment.null]
    sides = {"gather": scenario.gather, "scatter": scenario.scatter}
    return {
        "transport": scenario.transport.name,
        "operation": scenario.operation.name,
        "queue": scenario.queue.name,
        "post": scenario.post.value,
        "poll": scenario.poll.value,
        "length": lengths.group(scenario.length),
        "null in": " and ".join(name for name, of in sides.items() if any(segment.null for segment in of)) or "no list",
        "shape": _shape(scenario.scatter if any(segment.null for segment in scenario.scatter) else scenario.gather),
        "address": " and ".join(dict.fromkeys(segment.address.value for segment in nulls)) or "none",
        "environment": _environment(result.target),
    }


def _shape(segments: Sequence[Segment]) -> str:
    kinds = "".join("n" if is_null else "m" for is_null, _ in groupby(segment.null for segment in segments))
    if len(kinds) > LONGEST_SHAPE:
        return "longer"
    return "+".join(kinds) or "remote"


def _environment(target: str) -> str:
    """The environment's part of a target's id: host:device/port/environment, with the peer's device/port after the
    port, if it has one."""
    found = re.match(r"[^/]+/\d+(?:-[^/]+/\d+)?/(.+)", target)
    return found[1] if found else "as it was"


def _count(name: str, paths: Sequence[tuple[Path, bool]]) -> list[Trait]:
    total = Counter(path[name] for path, _ in paths)
    bad = Counter(path[name] for path, is_bad in paths if is_bad)
    return [
        Trait(name, value, bad[value], total[value]) for value in sorted(total, key=lambda value: (-bad[value], value))
    ]


def _doubt(traits: Sequence[Trait]) -> float:
    """What is left to guess of whether a check fails, given its value: the entropy, in bits for all checks together."""

    def bits(share: float) -> float:
        return 0.0 if share in (0.0, 1.0) else -share * math.log2(share) - (1 - share) * math.log2(1 - share)

    return sum(trait.total * bits(trait.bad / trait.total) for trait in traits)


def _narrowest(values: Mapping[str, Mapping[str, object]], paths: Sequence[tuple[Path, bool]]) -> list[str]:
    """The parts, best first, of which each leaves out checks that those before it let in."""
    chosen: list[str] = []
    left = [path for path, _ in paths]
    for name, of in values.items():
        kept = [path for path in left if path[name] in of]
        if len(kept) < len(left):
            chosen.append(name)
            left = kept
    return chosen
