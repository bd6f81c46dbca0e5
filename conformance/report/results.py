# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Results of a run, gathered from pytest's reports."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ConfigDict

from conformance.clauses import BY_ID, GROUPS, Level
from conformance.verdicts import Verdict

CLAUSE, TARGET, SCENARIO, OBSERVED, NOTE = "clause", "target", "scenario", "observed", "should"
REPRODUCER, KERNEL_LOG = "reproducer", "kernel_log"
WAIVED = "waived"
"""Names of the properties that a check's report carries (JUnit XML has them too)."""


@dataclass(frozen=True)
class Result:
    """How one check of one clause ended on one target."""

    __pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    nodeid: str
    """pytest's name of the check, with its target and scenario in brackets"""
    clause: str
    """the clause's id; `python -m conformance clauses` prints its requirement"""
    target: str
    """the target's id, device/port; after a host and a colon where several hosts took part"""
    verdict: Verdict
    """PASS, FAIL, BROKEN (the rig), SKIPPED, WAIVED or OBSERVED"""
    text: str
    """the failure, the reason of a skip, or what was observed"""
    scenario: str = ""
    """the work request's id, which conformance.scenarios.Scenario.parse reads; empty for checks that have none"""
    seconds: float = 0.0
    """how long the check took, without set-up and clean-up"""
    reproducer: str = ""
    """path of a C program that shows the failure"""
    kernel_log: str = ""
    """what the kernel logged while the check ran"""

    @property
    def group(self) -> str:
        """The clause's group, also where this suite no longer knows the clause."""
        return self.clause.partition("/")[0]


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
    elif verdict is Verdict.WAIVED:
        text = f"{properties[WAIVED]}\n{_failure(report)}"
    elif report.failed:
        text = _failure(report)
    return Result(
        nodeid=report.nodeid,
        clause=properties[CLAUSE],
        target=_host(report) + properties.get(TARGET, ""),
        verdict=verdict,
        text=text,
        scenario=properties.get(SCENARIO) or _found_scenario(text),
        seconds=round(report.duration, 4),
        reproducer=properties.get(REPRODUCER, ""),
        kernel_log=properties.get(KERNEL_LOG, ""),
    )


def _failure(report: pytest.TestReport) -> str:
    """The text of a failure without the line by which pytest-xdist names the worker."""
    return re.sub(r"\A\[gw\d+\] .*\n", "", report.longreprtext)


def _found_scenario(text: str) -> str:
    """The scenario that a random search ended at: only its failure names it."""
    found = re.search(r"^scenario: (\S+)$", text, re.MULTILINE)
    return found[1] if found else ""


def _host(report: pytest.TestReport) -> str:
    """ "host:" for a report that pytest-xdist brought from another host; workers on this one add nothing."""
    node = getattr(report, "node", None)
    return f"{host_of(node.gateway.spec)}:" if node is not None and not node.gateway.spec.popen else ""


def host_of(spec: Any) -> str:
    """What to call the other end of an execnet specification: its id if it was given one, else its address."""
    return str(spec.id if spec.id and not re.fullmatch(r"gw\d+", spec.id) else spec.ssh or spec.socket or spec.id)


def _verdict(report: pytest.TestReport, properties: dict[str, str]) -> Verdict | None:
    if report.failed:
        return Verdict.FAIL if report.when == "call" else Verdict.BROKEN
    if report.skipped:
        return Verdict.WAIVED if WAIVED in properties else Verdict.SKIPPED
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
