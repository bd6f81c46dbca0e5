# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""JUnit XML as Jenkins and GitLab show it: a suite per target, a class per clause."""

import re
from collections import Counter
from pathlib import PurePath
from xml.etree import ElementTree

from conformance.report.document import Report, Run
from conformance.results import Result
from conformance.verdicts import Verdict

# XML 1.0 has no way to write these.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    root = ElementTree.Element("testsuites", name="null MR conformance")
    for run in report.runs:
        for target in dict.fromkeys(result.target for result in run.results):
            root.append(_suite(run, target, [result for result in run.results if result.target == target]))
    ElementTree.indent(root)
    return "<?xml version='1.0' encoding='utf-8'?>\n" + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(run: Run, target: str, results: list[Result]) -> ElementTree.Element:
    counts = Counter(result.verdict for result in results)
    suite = ElementTree.Element(
        "testsuite",
        name=target,
        tests=str(len(results)),
        failures=str(counts[Verdict.FAIL]),
        errors=str(counts[Verdict.BROKEN]),
        skipped=str(counts[Verdict.SKIPPED] + counts[Verdict.WAIVED]),
        time=f"{sum(result.seconds for result in results):.3f}",
        timestamp=run.circumstances.started.partition("+")[0],
        hostname=run.circumstances.label,
    )
    facts = next((facts for facts in run.circumstances.targets if facts.id == target), None)
    about = {"simulated": run.circumstances.simulated, "kernel": run.circumstances.machine.kernel}
    if facts is not None:
        about |= {"device": facts.device, "driver": facts.driver, "firmware": facts.firmware}
    _properties(suite, about)
    for result in results:
        suite.append(_case(result))
    return suite


def _case(result: Result) -> ElementTree.Element:
    """The class begins with the target: Jenkins and GitLab tell cases apart by class and name."""
    path, _, name = result.nodeid.partition("::")
    case = ElementTree.Element(
        "testcase",
        classname=_xml(f"{result.target}.{result.clause}"),
        name=_xml(name),
        file=_xml(path),
        time=f"{result.seconds:.4f}",
    )
    _properties(
        case,
        {
            "clause": result.clause,
            "target": result.target,
            "scenario": result.scenario,
            "verdict": result.verdict.value,
            "reproducer": result.reproducer,
        },
    )
    tag = {Verdict.FAIL: "failure", Verdict.BROKEN: "error"}.get(result.verdict)
    if tag:
        found = ElementTree.SubElement(case, tag, message=_xml(summary(result.text)), type=result.verdict.value)
        found.text = _xml(result.text)
    elif result.verdict is Verdict.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_xml(result.text), type="SKIPPED")
    elif result.verdict is Verdict.WAIVED:
        why, _, proof = result.text.partition("\n")
        ElementTree.SubElement(case, "skipped", message=_xml(f"WAIVED: {why}"), type="WAIVED").text = _xml(proof)
    elif result.text:
        ElementTree.SubElement(case, "system-out").text = _xml(result.text)
    if result.reproducer:  # GitLab shows an artifact whose path is written so
        ElementTree.SubElement(case, "system-out").text = f"[[ATTACHMENT|{PurePath(result.reproducer)}]]"
    if result.kernel_log:
        ElementTree.SubElement(case, "system-err").text = _xml(result.kernel_log)
    return case


def _properties(element: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(element, "properties")
    for name, value in values.items():
        if value:
            ElementTree.SubElement(properties, "property", name=name, value=_xml(value))


def _xml(text: str) -> str:
    return _NOT_XML.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def summary(text: str) -> str:
    """The finding in one line: what follows "=>", else the first line."""
    found = re.search(r"^=> (.*)$", text, re.MULTILINE)
    return found[1] if found else text.strip().partition("\n")[0]
