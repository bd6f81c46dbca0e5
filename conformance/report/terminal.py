# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The verdict at the end of a run, for the terminal."""

from collections.abc import Iterator

from tabulate import tabulate

from conformance.report.results import Results
from conformance.verdicts import Verdict
from conformance.waivers import Review


def table(results: Results) -> str:
    """One line per target and clause group with the counts of each verdict; the last column is the group's own."""
    rows = []
    for (target, group), counts in results.counts().items():
        rows.append([target, group, *(counts[verdict] or "" for verdict in Verdict), overall(counts).value])
    return tabulate(rows, ["target", "clauses", *(verdict.value for verdict in Verdict), "verdict"])


def overall(counts: dict[Verdict, int]) -> Verdict:
    """The verdict that decides: the worst; SKIPPED only if nothing else came."""
    for verdict in (Verdict.FAIL, Verdict.BROKEN, Verdict.WAIVED, Verdict.PASS, Verdict.OBSERVED):
        if counts.get(verdict):
            return verdict
    return Verdict.SKIPPED


def skip_reasons(results: Results) -> Iterator[str]:
    """Each reason for which checks were skipped, with their number and clauses."""
    clauses: dict[tuple[str, str], list[str]] = {}
    for result in results.results:
        if result.verdict is Verdict.SKIPPED:
            clauses.setdefault((result.target, result.text), []).append(result.clause)
    for (target, reason), of in clauses.items():
        yield f"{target}: {len(of)} SKIPPED ({', '.join(dict.fromkeys(of))}): {reason}"


def observations(results: Results) -> Iterator[str]:
    for result in results.results:
        if result.verdict is Verdict.OBSERVED:
            yield f"{result.target}: {result.clause}: {result.text}"


def waivers(reviewed: Review) -> Iterator[str]:
    """One line for each waiver that did something, has nothing to do here, or should be mended."""
    yield from (f"waiver {line}" for line in reviewed.used)
    yield from (f"waiver not used {line}" for line in reviewed.idle)
    yield from (f"STALE WAIVER {line}" for line in reviewed.stale)
