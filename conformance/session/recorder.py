# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Gathers what a run finds and under which circumstances, and has its reports written."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import pytest

from conformance.report import files, junit, provenance, terminal
from conformance.report.document import CIRCUMSTANCES, Circumstances, NotRun, Report, Run, report_of
from conformance.results import Result, decided_nothing
from conformance.session.properties import result_of
from conformance.session.run import inventory_of, is_open, is_worker, machine_of, runs_checks
from conformance.session.waivers import waivers_of
from conformance.waivers import Review, review

HAND_OVER = "null_mr_circumstances"
"""Key of what the controller asks of a worker on another host, and of what that sends."""


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Recorder:
    """Made when pytest starts; registered with pytest, it hears every report in the order in which they come, and takes
    what workers on other hosts hand over.
    """

    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    clock: float = field(default_factory=time.monotonic)
    taint_before: str = field(default_factory=provenance.taint)
    results: list[Result] = field(default_factory=list)
    collected: dict[str, list[str]] = field(default_factory=dict)
    """node ids of all that is to be run, by host ("": this one)"""
    hosts: dict[str, Circumstances] = field(default_factory=dict)
    unwritten: tuple[str, ...] = ()
    """the reports that could not be written, and why"""

    @property
    def started_at(self) -> str:
        return self.started.isoformat(timespec="seconds")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        result = result_of(report)
        if result is not None:
            host = host_of(report.node) if hasattr(report, "node") else ""
            self.results.append(replace(result, target=f"{host}:{result.target}" if host else result.target))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # a controller has none
            self.collected[""] = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.collected.setdefault(host_of(node), ids)  # a later one may no longer see all

    def not_run(self, host: str, targets: Sequence[str]) -> tuple[NotRun, ...]:
        """The targets of a host ("": this one) of which checks came to no verdict."""
        by_length = sorted(targets, key=len, reverse=True)  # one may begin like another
        prefix = f"{host}:" if host else ""
        done = {(result.target, result.nodeid) for result in self.results}
        left: Counter[str] = Counter()
        for nodeid in self.collected.get(host, ()):
            parameters = prefix + nodeid.partition("[")[2]
            target = next((id for id in by_length if parameters.startswith((f"{id}-", f"{id}]"))), None)
            if target is not None and (target, nodeid) not in done:
                left[target] += 1
        return tuple(NotRun(target, left[target]) for target in targets if left[target])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """What a worker on this host knows the controller knows itself."""
        node.workerinput[HAND_OVER] = not node.gateway.spec.popen

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        handed_over = getattr(node, "workeroutput", {}).get(HAND_OVER)
        if handed_over:
            host = host_of(node)
            known = CIRCUMSTANCES.validate_json(handed_over)
            targets = tuple(replace(target, id=f"{host}:{target.id}") for target in known.targets)
            self.hosts[host] = replace(known, label=host, targets=targets)

    def report(self, here: Circumstances, exit_status: int, stopped: bool) -> Report:
        """All results, those of other hosts in runs of their own. `stopped`: by -x or its like."""
        seconds = round(time.monotonic() - self.clock, 2)
        ended_early = stopped or exit_status in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        by_host: dict[str, list[Result]] = {"": [], **{host: [] for host in self.hosts}}
        for result in self.results:
            host = result.target.rpartition(":")[0]
            by_host[host if host in self.hosts else ""].append(result)
        if self.hosts and not by_host[""]:
            del by_host[""]
        runs = []
        for host, results in by_host.items():
            about = self.hosts.get(host, here)
            not_run = self.not_run(host, [target.id for target in about.targets])
            interrupted = ended_early or bool(not_run)
            runs.append(Run(about, seconds, exit_status, interrupted, tuple(results), not_run))
        return report_of(tuple(runs))


_RECORDER = pytest.StashKey[Recorder]()


def recorder_of(config: pytest.Config) -> Recorder:
    return config.stash[_RECORDER]


def host_of(node: Any) -> str:
    """What to call the host of a worker: the id that it was given on the command line, else its address. "" for this
    host, to whose workers pytest-xdist gives ids of its own.
    """
    spec = node.gateway.spec
    if spec.popen:
        return ""
    return str(spec.id if spec.id and not re.fullmatch(r"gw\d+", spec.id) else spec.ssh or spec.socket or spec.id)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RECORDER] = Recorder()
    config.pluginmanager.register(config.stash[_RECORDER])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """The exit status that fits the verdicts, then the reports."""
    config = session.config
    if not runs_checks(config) or not is_open(config):
        return
    if is_worker(config):
        if config.workerinput.get(HAND_OVER):  # type: ignore[attr-defined]  # xdist adds it
            known = CIRCUMSTANCES.dump_json(_circumstances(config)).decode()
            config.workeroutput[HAND_OVER] = known  # type: ignore[attr-defined]
        return
    recorder = recorder_of(config)
    green = exitstatus == pytest.ExitCode.OK and not config.option.collectonly
    if green and decided_nothing(recorder.results):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    elif green and not_run_of(config):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    elif green and config.option.conformance_strict and review_of(config).stale:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    recorder.unwritten = tuple(_write_reports(session))
    if recorder.unwritten and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _write_reports(session: pytest.Session) -> list[str]:
    """What could not be written, and why."""
    config, option = session.config, session.config.option
    if option.collectonly or not (option.reports or option.ktap):
        return []
    report = recorder_of(config).report(
        _circumstances(config),
        exit_status=int(session.exitstatus),
        stopped=bool(session.shouldfail or session.shouldstop),
    )
    form = junit.Form(option.junit_short, option.junit_per_target)
    return files.write(report, option.reports, option.ktap, option.anonymous, form)


def _circumstances(config: pytest.Config) -> Circumstances:
    recorder = recorder_of(config)
    return provenance.circumstances(
        inventory_of(config),
        machine_of(config),
        started=recorder.started_at,
        taint_before=recorder.taint_before,
        arguments=config.invocation_params.args,
        seed=config.option.search_seed,
        waivers=tuple(terminal.waivers(review_of(config))),
    )


def not_run_of(config: pytest.Config) -> tuple[NotRun, ...]:
    """What came to no verdict so far, on this host and others."""
    recorder = recorder_of(config)
    here = [target.id for target in inventory_of(config).targets]
    others = [
        missing
        for host, about in recorder.hosts.items()
        for missing in recorder.not_run(host, [target.id for target in about.targets])
    ]
    return (*recorder.not_run("", here), *others)


def review_of(config: pytest.Config) -> Review:
    """What there is to say of the waivers so far."""
    return review(waivers_of(config).standings, recorder_of(config).results)
