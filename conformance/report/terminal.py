# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The verdict at the end of a run, for the terminal."""

from collections.abc import Iterator, Mapping, Sequence

from tabulate import tabulate

from conformance.results import Result, counts
from conformance.verdicts import Verdict, worse_of
from conformance.waivers import Review

COLUMNS = (Verdict.PASS, Verdict.FAIL, Verdict.BROKEN, Verdict.SKIPPED, Verdict.WAIVED, Verdict.OBSERVED)
"""The order in which people read them."""


def table(results: Sequence[Result]) -> str:
    """One line per target and clause group with the counts of each verdict; the last column is the group's own."""
    rows = []
    for (target, group), of in counts(results).items():
        shown = overall(of).value
        if overall(of) is Verdict.WAIVED and any(
            result.is_waived_broken for result in results if (result.target, result.group) == (target, group)
        ):
            shown = "WAIVED (BROKEN)"
        rows.append([target, group, *(of[verdict] or "" for verdict in COLUMNS), shown])
    return tabulate(rows, ["target", "clauses", *(verdict.value for verdict in COLUMNS), "verdict"])


def overall(of: Mapping[Verdict, int]) -> Verdict:
    """The verdict that decides, given how many there are of each; SKIPPED for none at all."""
    return worse_of(Verdict.SKIPPED, *(verdict for verdict, count in of.items() if count))


def skip_reasons(results: Sequence[Result]) -> Iterator[str]:
    """Each reason for which checks were skipped, with their number and clauses."""
    clauses: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.verdict is Verdict.SKIPPED:
            clauses.setdefault((result.target, result.text), []).append(result.clause)
    for (target, reason), of in clauses.items():
        yield f"{target}: {len(of)} SKIPPED ({', '.join(dict.fromkeys(of))}): {reason}"


def observations(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.verdict is Verdict.OBSERVED:
            yield f"{result.target}: {result.clause}: {result.text}"


def waivers(reviewed: Review) -> Iterator[str]:
    """One line for each waiver that did something, has nothing to do here, or should be mended."""
    yield from (f"waiver {line}" for line in reviewed.used)
    yield from (f"waiver not used {line}" for line in reviewed.idle)
    yield from (f"STALE WAIVER {line}" for line in reviewed.stale)
