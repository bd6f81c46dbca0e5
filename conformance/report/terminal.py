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
        is_known = any(each.is_waived_broken for each in results if (each.target, each.group) == (target, group))
        rows.append([target, group, *(of[verdict] or "" for verdict in COLUMNS), _shown(of, is_known)])
    return tabulate(rows, ["target", "clauses", *(verdict.value for verdict in COLUMNS), "verdict"])


def _shown(of: Mapping[Verdict, int], is_waived_broken: bool) -> str:
    """The verdict of some checks; one that speaks of fewer than half of them says so."""
    verdict, every = overall(of), sum(of.values())
    words = "WAIVED (BROKEN)" if verdict is Verdict.WAIVED and is_waived_broken else verdict.value
    tried = every - of.get(Verdict.SKIPPED, 0)
    return f"{words}, only {tried} of {every} tried" if 0 < tried < every / 2 else words


def mostly_skipped(results: Sequence[Result]) -> Iterator[str]:
    """Each target most of whose checks were skipped."""
    for target in dict.fromkeys(result.target for result in results):
        of = [result.verdict for result in results if result.target == target]
        skipped = of.count(Verdict.SKIPPED)
        if skipped > len(of) / 2:
            rest = f"the verdict speaks of the other {len(of) - skipped}"
            yield f"{target}: {skipped} of {len(of)} checks were SKIPPED; {rest}"


def overall(of: Mapping[Verdict, int]) -> Verdict:
    """The verdict that decides, given how many there are of each; SKIPPED for none at all."""
    return worse_of(Verdict.SKIPPED, *(verdict for verdict, count in of.items() if count))


def skip_reasons(results: Sequence[Result]) -> Iterator[str]:
    """Each thing that a device lacks, or other reason for which checks were skipped, with their number and clauses.

    The reports have the reason of each check.
    """
    clauses: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.verdict is Verdict.SKIPPED:
            reason = f"the device has no {result.lacks}" if result.lacks else result.text
            clauses.setdefault((result.target, reason), []).append(result.clause)
    for (target, reason), of in clauses.items():
        yield f"{target}: {len(of)} SKIPPED ({', '.join(dict.fromkeys(of))}): {reason}"


def observations(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.verdict is Verdict.OBSERVED:
            yield f"{result.target}: {result.clause}: {result.text}"


def rates(results: Sequence[Result]) -> Iterator[str]:
    """What was measured under stress."""
    for result in results:
        if result.rate:
            yield f"{result.target}: stress: {result.text}"


def waivers(reviewed: Review) -> Iterator[str]:
    """One line for each waiver that did something, has nothing to do here, or should be mended."""
    yield from (f"waiver {line}" for line in reviewed.used)
    yield from (f"waiver not used {line}" for line in reviewed.idle)
    yield from (f"STALE WAIVER {line}" for line in reviewed.stale)
