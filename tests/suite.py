# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Running the conformance suite in a process of its own, and reading what it reported."""

import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from conformance.session.properties import CLAUSE, NOT_MET, TARGET

ROOT = Path(__file__).parent.parent
CHECKS = "conformance/checks"


@dataclass(frozen=True)
class Case:
    """One check as JUnit XML has it."""

    name: str
    clause: str
    target: str
    verdict: str
    text: str
    note: str


@dataclass(frozen=True)
class SuiteRun:
    status: int
    output: str
    cases: tuple[Case, ...]

    def clauses(self, verdict: str) -> set[str]:
        return {case.clause for case in self.cases if case.verdict == verdict}

    def counts(self) -> Counter[str]:
        return Counter(case.verdict for case in self.cases)


def run_suite(*arguments: str, checks: tuple[str, ...] = (CHECKS,)) -> SuiteRun:
    """Run the checks with -n0 on the reference device, with more arguments for pytest."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder, "junit.xml")
        options = ["-n0", "-p", "no:cacheprovider", f"--junitxml={junit}", "-W", "default"]
        command = [sys.executable, "-m", "pytest", *options, *arguments, *checks]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        cases = tuple(map(_case, ElementTree.parse(junit).iter("testcase"))) if junit.exists() else ()
    return SuiteRun(done.returncode, done.stdout + done.stderr, cases)


def _case(element: ElementTree.Element) -> Case:
    properties = {p.get("name", ""): p.get("value", "") for p in element.iter("property")}
    verdict, text = "PASS", ""
    for tag, name in (("failure", "FAIL"), ("error", "BROKEN"), ("skipped", "SKIPPED")):
        child = element.find(tag)
        if child is not None:
            waived = child.get("type") == "pytest.xfail"
            verdict, text = "WAIVED" if waived else name, f"{child.get('message', '')}\n{child.text or ''}"
    clause, target, note = (properties.get(name, "") for name in (CLAUSE, TARGET, NOT_MET))
    return Case(element.get("name", ""), clause, target, verdict, text, note)
