# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Results of a run, gathered from pytest's reports."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from conformance.clauses import BY_ID, GROUPS, Level
from conformance.verdicts import Verdict

CLAUSE, TARGET, SCENARIO, OBSERVED, NOTE = "clause", "target", "scenario", "observed", "should"
"""Names of the properties that a check's report carries (JUnit XML has them too)."""


@dataclass(frozen=True)
class Result:
    nodeid: str
    clause: str
    target: str
    verdict: Verdict
    text: str
    """the failure, the reason of a skip, or what was observed"""


def result_of(report: pytest.TestReport) -> Result | None:
    """What a report says of a clause; None for phases that decide nothing and for tests that are no checks."""
    properties = {name: str(value) for name, value in report.user_properties}
    if CLAUSE not in properties:
        return None
    verdict = _verdict(report, properties)
    if verdict is None:
        return None
    text = properties.get(OBSERVED, "")
    if verdict is Verdict.SKIPPED and isinstance(report.longrepr, tuple):
        text = report.longrepr[2].removeprefix("Skipped: ")
    elif report.failed:
        text = report.longreprtext
    return Result(report.nodeid, properties[CLAUSE], properties.get(TARGET, ""), verdict, text)


def _verdict(report: pytest.TestReport, properties: dict[str, str]) -> Verdict | None:
    if report.failed:
        return Verdict.FAIL if report.when == "call" else Verdict.BROKEN
    if report.skipped:
        return Verdict.SKIPPED
    if report.when != "call":
        return None
    if BY_ID[properties[CLAUSE]].level is Level.OBSERVE or NOTE in properties:
        return Verdict.OBSERVED
    return Verdict.PASS


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Results:
    """All results of a session, in the order in which they came. Registered with pytest, it hears every report."""

    results: list[Result] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        result = result_of(report)
        if result is not None:
            self.results.append(result)

    def counts(self) -> dict[tuple[str, str], Counter[Verdict]]:
        """Verdicts by (target, clause group), targets in order of appearance and groups in the order of the page."""
        counts: dict[tuple[str, str], Counter[Verdict]] = {}
        targets = dict.fromkeys(result.target for result in self.results)
        for target in targets:
            for group in GROUPS:
                of = [r.verdict for r in self.results if r.target == target and BY_ID[r.clause].group == group]
                if of:
                    counts[target, group] = Counter(of)
        return counts

    def decided_nothing(self) -> bool:
        """No check came to a verdict on any device: such a run must not be green."""
        return not any(r.verdict in (Verdict.PASS, Verdict.FAIL, Verdict.WAIVED) for r in self.results)
