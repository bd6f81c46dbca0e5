# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Does a null MR still work, after what a check did?"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.checks import tables
from conformance.inventory import Target
from conformance.judging import Bench
from conformance.outcome import MEMORY, Aspect
from conformance.scenarios import Scenario
from conformance.verbs.null_mr import NullMR, NullMRError
from conformance.verdicts import Failure, LackingError


def require_working(bench: Bench, null_mr: NullMR | None = None) -> None:
    """Let data go through a null MR (None: the bench's own) both ways; what must not be there must not be there.

    Raises Failure if it is wrong. Where a null MR of a fresh context is wrong too, that is no consequence of what the
    check did, and the clauses read/* and discard/*, which run the same scenarios, judge it: LackingError.
    """
    for scenario in tables.BOTH_WAYS:
        try:
            bench.check(scenario, *MEMORY, null_mr=null_mr)
        except Failure:
            if _is_wrong_anyway(bench.target, scenario):
                text = "a null MR to which nothing was done is wrong too, which read/* and discard/* judge"
                raise LackingError(f"{text}: {scenario}") from None
            raise


def check_at_once(bench: Bench, scenarios: Sequence[Scenario], queue_pairs: int) -> None:
    """Check scenarios that are in flight at once on so many pairs of queue pairs, as far as each is right alone.

    Raises Failure if one is wrong; LackingError where it is wrong alone too, which other clauses judge.
    """
    try:
        bench.check_at_once(scenarios, *Aspect, queue_pairs=queue_pairs)
    except Failure:
        for scenario in scenarios:
            try:
                bench.check(scenario, *Aspect)
            except Failure:
                raise LackingError(f"{scenario} is wrong alone too, which other clauses judge") from None
        raise


def _is_wrong_anyway(target: Target, scenario: Scenario) -> bool:
    fresh = Bench(target)
    try:
        fresh.check(scenario, *MEMORY)
    except Failure as failure:
        return not isinstance(failure, NullMRError)
    finally:
        fresh.close()
    return False
