# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""JUnit XML as Jenkins and GitLab show it: a suite per target, a class per clause.

GitLab reads a file of up to 30 MB, and of a job's files 100 MB in all; since 17.6 a file may not have more than 250000
objects either. A target has some 2500 cases and 1.4 MB: `Form` is for runs of many.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from xml.etree import ElementTree

from conformance.report.document import Report, Run
from conformance.report.file_names import of_target
from conformance.results import Result
from conformance.verdicts import Verdict

_NAME = "null MR conformance"
_ROOT = f'<testsuites name="{_NAME}"'.encode()
# XML 1.0 has no way to write these.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Form:
    """How much is written, and into how many files."""

    short: bool = False
    """checks that pass, and those that are skipped for one reason, as a case of their clause with their number"""
    per_target: bool = False
    """a file for each target"""


WHOLE = Form()


def files(report: Report, name: str = "junit.xml", form: Form = WHOLE) -> dict[str, str]:
    """Names and texts of the files: one of this name, or with the target's name in it, junit-mlx5_0-1.xml."""
    if not form.per_target:
        return {name: render(report, form)}
    plain = PurePath(name)
    targets = dict.fromkeys(result.target for run in report.runs for result in run.all_results)
    return {
        f"{plain.stem}-{of_target(target)}{plain.suffix}": render(_of_target(report, target), form)
        for target in targets
    }


def left_over(folder: Path, name: str = "junit.xml") -> set[Path]:
    """The files of this name that runs with any form wrote into a folder: a CI server that reads them all would take
    those of an earlier run for this one's."""
    plain = PurePath(name)
    found = {folder / name, *folder.glob(f"{plain.stem}-*{plain.suffix}")}
    return {path for path in found if path.is_file() and _ROOT in path.read_bytes()[:200]}


def _of_target(report: Report, target: str) -> Report:
    runs = (
        replace(
            run,
            results=tuple(result for result in run.results if result.target == target),
            not_run=tuple(missing for missing in run.not_run if missing.target == target),
        )
        for run in report.runs
    )
    return replace(report, runs=tuple(runs))


def render(report: Report, form: Form = WHOLE) -> str:
    root = ElementTree.Element("testsuites", name=_NAME)
    for run in report.runs:
        by_target: dict[str, list[Result]] = {}
        for result in run.all_results:
            by_target.setdefault(result.target, []).append(result)
        for target, results in by_target.items():
            root.append(_suite(run, target, results, form))
    ElementTree.indent(root)
    return "<?xml version='1.0' encoding='utf-8'?>\n" + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(run: Run, target: str, results: list[Result], form: Form) -> ElementTree.Element:
    cases = list(_short(results) if form.short else map(_case, results))
    tags = Counter(child.tag for case in cases for child in case)
    suite = ElementTree.Element(
        "testsuite",
        name=target,
        tests=str(len(cases)),
        failures=str(tags["failure"]),
        errors=str(tags["error"]),
        skipped=str(tags["skipped"]),
        time=f"{sum(result.seconds for result in results):.3f}",
        timestamp=run.circumstances.started.partition("+")[0],
        hostname=run.circumstances.label,
    )
    facts = next((facts for facts in run.circumstances.targets if facts.id == target), None)
    about = {"simulated": run.circumstances.simulated, "kernel": run.circumstances.machine.kernel}
    if facts is not None:
        about |= {"device": facts.device, "driver": facts.driver, "firmware": facts.firmware}
    _properties(suite, about)
    suite.extend(cases)
    return suite


def _short(results: list[Result]) -> Iterator[ElementTree.Element]:
    """Results that need no looking at are counted in one case, which stands where the first of them would."""
    alike: dict[tuple[str, Verdict, str], list[Result]] = {}
    for result in results:
        if _is_counted(result):
            alike.setdefault(_kind(result), []).append(result)
    for result in results:
        if not _is_counted(result):
            yield _case(result)
        elif (same := alike[_kind(result)])[0] is result:
            yield _case_of_many(same)


def _is_counted(result: Result) -> bool:
    return result.verdict in (Verdict.PASS, Verdict.SKIPPED) and not result.kernel_log


def _kind(result: Result) -> tuple[str, Verdict, str]:
    return result.clause, result.verdict, summary(result.text)


def _case_of_many(same: list[Result]) -> ElementTree.Element:
    """Its name does not say how many they are, so that it is the same case from run to run."""
    clause, verdict, reason = _kind(same[0])
    name = "checks that pass" if verdict is Verdict.PASS else f"checks that are skipped: {reason}"
    seconds = sum(result.seconds for result in same)
    return _case(Result(f"::{name}", clause, same[0].target, verdict, same[0].text, seconds=seconds), str(len(same)))


def _case(result: Result, checks: str = "") -> ElementTree.Element:
    """The class begins with the target: Jenkins and GitLab tell cases apart by class and name.

    `checks` is how many this one stands for, if it is not one.
    """
    path, _, name = result.nodeid.partition("::")
    case = ElementTree.Element(
        "testcase",
        classname=_xml(f"{result.target}.{result.clause}".rstrip(".")),
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
            "checks": checks,
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
