# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""KTAP (Documentation/dev-tools/ktap.rst of the kernel), for kernel CI: a test per target, its checks as subtests."""

from collections.abc import Iterator

from conformance.report.document import Report
from conformance.report.junit import summary
from conformance.results import Result
from conformance.verdicts import Verdict


def render(report: Report) -> str:
    by_target: dict[str, list[Result]] = {}
    for run in report.runs:
        for result in run.all_results:
            by_target.setdefault(result.target, []).append(result)
    lines = ["KTAP version 1", f"1..{len(by_target)}"]
    for number, (target, results) in enumerate(by_target.items(), 1):
        lines += [f"  {line}" for line in _subtest(target, results)]
        failed = any(result.verdict in (Verdict.FAIL, Verdict.BROKEN) for result in results)
        lines.append(f"{'not ok' if failed else 'ok'} {number} {_plain(target)}")
    return "\n".join(lines) + "\n"


def _subtest(target: str, results: list[Result]) -> Iterator[str]:
    yield "KTAP version 1"
    yield f"# Subtest: {target}"
    yield f"1..{len(results)}"
    for number, result in enumerate(results, 1):
        bad = result.verdict in (Verdict.FAIL, Verdict.BROKEN)
        if bad or result.verdict is Verdict.OBSERVED:
            yield from (f"# {line}" for line in result.text.splitlines())
        if result.kernel_log:
            yield from (f"# kernel: {line}" for line in result.kernel_log.splitlines())
        name = _plain(f"{result.clause} {result.nodeid.partition('::')[2]}")
        yield f"{'not ok' if bad else 'ok'} {number} {name}{_directive(result)}"


def _directive(result: Result) -> str:
    # A waived failure is SKIP and not XFAIL: parsers count "not ok" before they look at what follows.
    reason = _plain(result.text.partition("\n")[0])
    if result.verdict is Verdict.BROKEN:
        return f" # ERROR {_plain(summary(result.text))}"
    if result.verdict is Verdict.SKIPPED:
        return f" # SKIP {reason}"
    if result.verdict is Verdict.WAIVED:
        return f" # SKIP waived: {reason}"
    return ""


def _plain(text: str) -> str:
    """ "#" begins a directive."""
    return " ".join(text.replace("#", "").split())
