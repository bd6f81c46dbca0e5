# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Where wrong bytes come from, where they can be recognized: each scenario fills its memory with bytes of its own."""

import itertools
import sys
from collections.abc import Iterator, Sequence

from conformance.model import predict
from conformance.outcome import Finding, Run
from conformance.scenarios import Region, Scenario, Side, plan

SHORTEST, LONGEST = 4, 32
"""Bytes that are looked for: fewer may be the same by chance, and more may be only half of what was copied."""
LARGEST = 1 << 14
"""Bytes of a region in which they are looked for: a longer one has nearly every sequence of the pattern."""


def origin(run: Run, finding: Finding, earlier: Sequence[Scenario] = ()) -> str:
    """What the wrong bytes of a finding were before; empty if that is not known.

    `earlier`: what was run before, latest first.
    """
    if finding.side is None or finding.region is None:
        return ""
    wrong, start = _first_wrong(run, finding.side, finding.region)
    if not any(wrong):
        return "" if len(wrong) < SHORTEST else "they are zeros"
    before = run.prediction.before[finding.side][start : start + len(wrong)]
    if wrong == before:
        return "they are as they were before the work request"
    if len(wrong) < SHORTEST:
        return ""
    where = _find(wrong, run.scenario)
    if where:
        return f"they are those of {where}"
    for count, scenario in enumerate(earlier, 1):
        where = _find(wrong, scenario)
        if where:
            return f"they are stale: those of {where} in {scenario}, {count} before"
    return ""


def _first_wrong(run: Run, side: Side, region: Region) -> tuple[bytes, int]:
    """The first wrong bytes in a row, and where they begin in the arena."""
    got, due = run.outcome.memory[side], run.prediction.after[side]
    start = next(index for index in range(region.offset, region.end) if got[index] != due[index])
    wrong = itertools.takewhile(lambda index: got[index] != due[index], range(start, min(region.end, start + LONGEST)))
    return bytes(got[start : 1 + max(wrong)]), start


def _find(wrong: bytes, scenario: Scenario) -> str:
    """Where a scenario's memory had these bytes."""
    layout = plan(scenario)
    before = predict(scenario, layout, sys.byteorder).before
    for side, region in _regions(layout.requester, layout.responder):
        found = before[side].find(wrong, region.offset, region.end)
        if found >= 0:
            return f"the {side.value}'s {region.name} from offset {found - region.offset}"
    return ""


def _regions(requester: Sequence[Region], responder: Sequence[Region]) -> Iterator[tuple[Side, Region]]:
    for side, regions in ((Side.REQUESTER, requester), (Side.RESPONDER, responder)):
        yield from ((side, region) for region in regions if region.length <= LARGEST)
