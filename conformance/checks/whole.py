# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Scenarios that no other check runs: all that they show is judged, each thing by the clause that speaks of it."""

from __future__ import annotations

from conformance.checks.tables import clause_about
from conformance.judging import Bench
from conformance.outcome import Aspect
from conformance.scenarios import Scenario
from conformance.verbs.null_mr import NullMR
from conformance.verdicts import Failure


def check_whole(bench: Bench, scenario: Scenario, *own: Aspect, null_mr: NullMR | None = None) -> None:
    """Like `Bench.check` with the aspects of which the check's own clause speaks; what is only about others is a
    Failure of the clause that speaks of them.
    """
    others = {aspect: clause for aspect in Aspect if (clause := clause_about(scenario, aspect))}
    try:
        bench.check(scenario, *own, *others, null_mr=null_mr)
    except Failure as failure:
        if failure.aspects and failure.aspects.isdisjoint({Aspect.ACCEPTED, *own}):
            failure.clause = next(clause for aspect, clause in others.items() if aspect in failure.aspects)
        raise
