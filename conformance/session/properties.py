# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What pytest carries of a check, from where it is collected to where it is reported.

Names of user properties (pytest's own --junitxml has them too), and the check's result, which is plain data on the
report: pytest-xdist sends it to the controller.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from conformance.inventory import AnyTarget, BrokenTarget, Target
from conformance.results import Result
from conformance.verdicts import Verdict

CLAUSE, TARGET, SCENARIO, VERDICT = "clause", "target", "scenario", "verdict"
OBSERVED = "observed"
NOT_MET = "should"
"""a SHOULD clause that is not met, where that does not fail the run"""
LACKS = "lacks"
RATE = "rate"
REPRODUCER, KERNEL_LOG = "reproducer", "kernel_log"
_RESULT = "result_of_check"


def clause_of(item: pytest.Item) -> str | None:
    """The id of the clause that an item checks; None for other tests."""
    marker = item.get_closest_marker("clause")
    return None if marker is None else str(marker.args[0])


def target_of(item: pytest.Item) -> AnyTarget | None:
    """What an item tries; None for other tests, and for one that stands for an empty selection of scenarios."""
    callspec = getattr(item, "callspec", None)
    target = callspec.params.get("target") if callspec is not None else None
    return target if isinstance(target, (Target, BrokenTarget)) else None


def properties_of(report: pytest.TestReport) -> dict[str, str]:
    return {name: str(value) for name, value in report.user_properties}


def carry(report: pytest.TestReport, result: Result) -> None:
    """Let a report carry a result."""
    vars(report)[_RESULT] = {**asdict(result), "verdict": result.verdict.value}
    others = [(name, value) for name, value in report.user_properties if name != VERDICT]
    report.user_properties = [*others, (VERDICT, result.verdict.value)]


def drop(report: pytest.TestReport) -> None:
    """Let a report carry no result."""
    vars(report).pop(_RESULT, None)


def result_of(report: pytest.TestReport) -> Result | None:
    """What a report says of a check; None for phases that decide nothing, for tests that are no checks, and where
    pytest-rerunfailures runs the check again: the last time counts.
    """
    carried: dict[str, Any] | None = None if str(report.outcome) == "rerun" else vars(report).get(_RESULT)
    return None if carried is None else Result(**{**carried, "verdict": Verdict(carried["verdict"])})
