# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How a check ends: the one place where an exception, a death, the kernel's words or a waiver become a verdict.

A verdict is data that the check's report carries. What pytest shows and counts follows from it: FAIL is a failure,
BROKEN an error (which is what pytest makes of a failing set-up), WAIVED an expected failure.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace

import pytest

from conformance.clauses import BY_ID, Level
from conformance.kernel_log import Saying
from conformance.outcome import describe
from conformance.results import Result
from conformance.scenarios import plan
from conformance.sequences import Sequence, parse
from conformance.session.properties import (
    CLAUSE,
    KERNEL_LOG,
    LACKS,
    NOT_MET,
    OBSERVED,
    RATE,
    REPRODUCER,
    SCENARIO,
    TARGET,
    carry,
    clause_of,
    properties_of,
    result_of,
)
from conformance.session.reproducers import leave_reproducer
from conformance.session.run import inventory_of
from conformance.verdicts import BrokenError, Failure, LackingError, Verdict, worse_of
from conformance.watch import Death


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Nothing is left of an earlier time, where a check is run again (pytest-rerunfailures)."""
    clause = clause_of(item)
    if clause is not None:
        item.user_properties[:] = [
            (name, clause if name == CLAUSE else value)
            for name, value in item.user_properties
            if name in (CLAUSE, TARGET, SCENARIO)
        ]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """What a device lacks skips the check, and so does another null MR that it does not give, but where that is what
    the clause is about; an exception inside the reference device breaks it.
    """
    from conformance.verbs.null_mr import NullMRError

    clause = clause_of(pyfuncitem)
    try:
        return (yield)
    except (LackingError, NullMRError) as reason:
        if clause is None:  # a test of the suite itself, which nothing lets off
            raise
        if isinstance(reason, NullMRError) and BY_ID[clause].about_allocation:
            raise
        if isinstance(reason, LackingError) and reason.lacks:
            pyfuncitem.user_properties.append((LACKS, reason.lacks))
        pytest.skip(str(reason))
    finally:
        _raise_errors_of_reference()


def _raise_errors_of_reference() -> None:
    from conformance import reference

    errors = reference.take_errors()
    if errors:
        raise BrokenError("an exception inside the reference device:\n" + "\n".join(map(str, errors)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A check shows the text of its failure and not our code, in which pytest would look for lines for long."""
    clause = clause_of(item)
    error = call.excinfo.value if call.excinfo is not None else None
    if clause is not None and isinstance(error, Failure):
        clause = error.clause or clause
        item.user_properties = [(name, clause if name == CLAUSE else value) for name, value in item.user_properties]
        if call.when == "call":
            error.args = (f"{error}\n{_requirement(clause)}",)
    style = item.config.option.tbstyle
    if clause is not None and isinstance(error, (BrokenError, Failure)):
        item.config.option.tbstyle = "value"
    try:
        report = yield
    finally:
        item.config.option.tbstyle = style
    if clause is None:
        return report
    if isinstance(error, (BrokenError, Failure)) and error.scenario is not None:
        if SCENARIO not in properties_of(report):
            report.user_properties.append((SCENARIO, str(error.scenario)))  # that of a search, for instance
        if isinstance(error, Failure) and error.shown_by_scenario:
            leave_reproducer(report, item.config, error.scenario, str(error))
    if isinstance(error, Failure) and error.load is not None:
        leave_reproducer(report, item.config, error.load, str(error))
    verdict = _verdict(report, clause, error)
    if verdict is not None:
        _end(report, verdict, _text(report))
    if error is not None and not item.config.option.usepdb:
        _let_go(error)
    return report


def _let_go(error: BaseException) -> None:
    """Empty the frames that an exception keeps: pytest and its plugins hold it until the interpreter ends, which would
    crash while it frees what pyverbs made.
    """
    left, done = [error], set()
    while left:
        each = left.pop()
        if id(each) in done:
            continue
        done.add(id(each))
        left += filter(None, (each.__cause__, each.__context__))
        for frame, _ in traceback.walk_tb(each.__traceback__):
            with suppress(RuntimeError):  # it is running
                frame.clear()
                frame.f_locals  # noqa: B018  # a copy that was made when pytest asked is made anew, and is empty then


def _requirement(clause: str) -> str:
    """What the device does not keep, in the clause's words."""
    return f"clause {clause}: {BY_ID[clause].requirement} ({BY_ID[clause].source})"


def _verdict(report: pytest.TestReport, clause: str, error: BaseException | None) -> Verdict | None:
    """What a phase of a check comes to; None if it decides nothing."""
    if report.skipped:
        return Verdict.SKIPPED
    if report.failed:
        # Of anything but a Failure nobody said that the device is to blame.
        return Verdict.FAIL if report.when == "call" and isinstance(error, Failure) else Verdict.BROKEN
    if report.when != "call":
        return None
    is_open = BY_ID[clause].level is Level.OBSERVE or NOT_MET in properties_of(report)
    return Verdict.OBSERVED if is_open else Verdict.PASS


def _text(report: pytest.TestReport) -> str:
    """The failure, the reason of a skip, or what was observed."""
    if report.failed:
        return report.longreprtext
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return properties_of(report).get(OBSERVED, "")


def _end(report: pytest.TestReport, verdict: Verdict, text: str) -> None:
    """Let a report carry this verdict, and pytest show it. An error of a teardown is one to pytest as it is."""
    properties = properties_of(report)
    if verdict in (Verdict.FAIL, Verdict.BROKEN):
        report.outcome = "failed"
        if report.when != "teardown":
            report.when = "call" if verdict is Verdict.FAIL else "setup"
    carry(
        report,
        Result(
            nodeid=report.nodeid,
            clause=properties[CLAUSE],
            target=properties[TARGET],
            verdict=verdict,
            text=text,
            scenario=properties.get(SCENARIO, ""),
            seconds=round(report.duration, 4),
            reproducer=properties.get(REPRODUCER, ""),
            kernel_log=properties.get(KERNEL_LOG, ""),
            lacks=properties.get(LACKS, ""),
            rate=int(properties.get(RATE, 0)),
        ),
    )


def die(report: pytest.TestReport, config: pytest.Config, death: Death) -> None:
    """The check that killed its process: the report that xdist made of it becomes a FAIL of its clause."""
    step = death.step
    report.when = "call"
    report.user_properties = [(CLAUSE, step.clause), (TARGET, step.target)]
    report.longrepr = text = f"{in_words(death, config)}\n{_requirement(step.clause)}"
    if step.scenario:
        report.user_properties.append((SCENARIO, step.scenario))
        leave_reproducer(report, config, parse(step.scenario), text)
    _end(report, Verdict.FAIL, text)


def in_words(death: Death, config: pytest.Config) -> str:
    """A death with its target, and with the scenario or the sequence that was run, if there was one."""
    step, stack = death.step, death.stack
    target = next((target for target in inventory_of(config).targets if target.id == step.target), None)
    settings = f", with {target.settings}" if target is not None and target.settings else ""
    lines = [f"{step.target}{f' ({target.device.driver})' if target else ''}{settings}"]
    traffic = parse(step.scenario) if step.scenario else None
    if isinstance(traffic, Sequence):
        lines.append(traffic.in_lines())
    elif traffic is not None:
        lines.append(describe(traffic, plan(traffic)))
    lines.append(f"=> {death.ending}{f', at address {stack.address}' if stack.address else ''}")
    if stack.native:
        lines += ["native stack, innermost call first:", *(f"  {line}" for line in stack.native)]
    if stack.python:
        lines += ["Python stack, innermost call first:", *stack.python]
    if traffic is not None:
        lines.append(f"{'sequence' if isinstance(traffic, Sequence) else 'scenario'}: {traffic}")
    return "\n".join(lines)


def hear_kernel(report: pytest.TestReport, lines: str, saying: Saying | None) -> None:
    """Attach what the kernel said while a check ran, and let it decide: nothing takes a FAIL back, and what came when
    the check was over is no FAIL.
    """
    report.sections.append(("kernel log", lines))
    report.user_properties.append((KERNEL_LOG, lines))
    result = result_of(report)
    if saying is None or (report.failed and saying.verdict is Verdict.BROKEN):
        if result is not None:
            carry(report, replace(result, kernel_log=lines))
        return
    verdict = saying.verdict if result is None else worse_of(result.verdict, saying.verdict)
    text = f"=> {saying.why}"
    if report.failed and result is not None:
        text = f"{result.text}\n{text}"
    report.longrepr = text
    _end(report, Verdict.BROKEN if report.when == "teardown" else verdict, text)


def waive(report: pytest.TestReport, why: str) -> None:
    """A FAIL or BROKEN that a waiver covers becomes what pytest knows as an expected failure."""
    result = result_of(report)
    assert result is not None
    waived = replace(result, verdict=Verdict.WAIVED, waived=result.verdict.value)
    report.outcome = "skipped"
    report.wasxfail = f"{_shown(waived)}: {why}"
    first = f"BROKEN: {why}" if waived.is_waived_broken else why
    carry(report, replace(waived, text=f"{first}\n{result.text}"))


def _shown(waived: Result) -> str:
    return "WAIVED (BROKEN)" if waived.is_waived_broken else "WAIVED"


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """WAIVED is an expected failure, whose reasons and proofs -rx and --xfail-tb show, but by its own name."""
    result = result_of(report) if isinstance(report, pytest.TestReport) else None
    if result is None or result.verdict is not Verdict.WAIVED:
        return None
    return "xfailed", "w", _shown(result)
