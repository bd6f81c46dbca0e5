# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A provider that dies or hangs inside a check costs that check only.

xdist replaces a worker process that is gone. What it cannot tell is why: so each worker keeps a journal, a small file
with the check and the scenario that it is about to run, and the Python stack at the moment of death. The controller
turns that into the check's FAIL. A call that does not return is ended by SIGALRM, which ends the process even inside C.
"""

import copy
import faulthandler
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest
from xdist.scheduler import LoadScopeScheduling

from conformance.outcome import describe
from conformance.report import results
from conformance.scenarios import Scenario, plan
from conformance.verdicts import Failure

FOLDER = "null_mr_journals"
"""Key of the journals' folder in what the controller sends to its workers."""
DEADLY = "null_mr_deadly"
"""Key of the scenarios that ended a process in this run."""
MAX_CRASHES = 64
"""Workers replaced in one run; xdist's own limit is four for each."""


class Journal:
    """What this process runs at the moment. Two lines of text, rewritten in place: a few microseconds each."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._stack = path.with_suffix(".stack").open("w")
        _tell_stack_of_hang(self._stack)

    def enable(self) -> None:
        """Write the stack of a fatal signal here from now on; pytest has its own place for that at first."""
        faulthandler.enable(self._stack)

    def note(self, check: str, scenario: str) -> None:
        text = f"{check}\n{scenario}\n".encode()
        os.ftruncate(self._file, len(text))
        os.pwrite(self._file, text, 0)


def _tell_stack_of_hang(file: TextIO) -> None:
    # chain: the default action of SIGALRM, which ends the process, comes after the stack is written.
    faulthandler.register(signal.SIGALRM, file, all_threads=False, chain=True)


@dataclass
class Watch:
    """The watch of this process over the calls of a provider."""

    journal: Journal | None = None
    check: str = ""
    target: str = ""
    deadly: dict[str, str] = field(default_factory=dict)
    """how scenarios ended a process of this run before, by target and scenario"""
    _enabled: bool = True
    _scenario: str = ""
    _seconds: float = 0

    @contextmanager
    def over(self, seconds: float, scenario: str = "") -> Iterator[None]:
        """End the process if what is inside takes longer than `seconds`. An outer watch starts anew afterwards.

        Raises Failure for a scenario that ended a process before.
        """
        if death := self.deadly.get(f"{self.target} {scenario}"):
            raise Failure(f"{self.target}\n{death}\nIt ended a process before, and was not run again.")
        outer = self._scenario, self._seconds
        self._set(scenario, seconds)
        try:
            yield
        finally:
            self._set(*outer)

    def _set(self, scenario: str, seconds: float) -> None:
        self._scenario, self._seconds = scenario, seconds
        if self.journal:
            self.journal.note(self.check, scenario)
        if self._enabled:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def disable(self) -> None:
        """Nobody ends a process that is being looked at."""
        self._enabled = False
        signal.setitimer(signal.ITIMER_REAL, 0)


watch = Watch()


def limit(timeout: float) -> float:
    """Seconds that one scenario may take: both sides' completions may take the timeout, and a call a moment more."""
    return 2 * timeout + 1


class Controller:
    """The side of the controller, as a pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._crashed: list[pytest.TestReport] = []
        self._deadly: dict[str, str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="null-mr-"))
        self._death = ""

    def pytest_configure_node(self, node: Any) -> None:
        if node.gateway.spec.popen:  # other hosts do not have the folder
            node.workerinput[FOLDER] = str(self._folder)
        node.workerinput[DEADLY] = list(self._deadly.items())

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._death = _death(node, self._folder / f"{node.gateway.id}.journal")
            check, scenario, text = self._death.split("\n", 2)
            if scenario:
                self._deadly[f"{check.split(' ')[1]} {scenario}"] = _in_words(scenario, text)

    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """The check that killed its worker: the report that xdist made of it becomes a FAIL of its clause."""
        check, scenario, text = self._death.split("\n", 2)
        if not check.endswith(f" {crashitem}"):  # it died before its first check, or between two
            return
        clause, target, _ = check.split(" ", 2)
        report.when = "call"
        report.user_properties = [(results.CLAUSE, clause), (results.TARGET, target)]
        if scenario:
            report.user_properties.append((results.SCENARIO, scenario))
            text = _in_words(scenario, text)
        report.longrepr = f"{target}\n{text}"
        self._crashed.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """JUnit XML takes a test's properties from the report of its teardown, which a crash leaves out."""
        if report in self._crashed:
            self._crashed.remove(report)
            teardown = copy.copy(report)
            teardown.when, teardown.outcome, teardown.longrepr = "teardown", "passed", None
            self._config.hook.pytest_runtest_logreport(report=teardown)

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _in_words(scenario: str, ending: str) -> str:
    run = Scenario.parse(scenario)
    return f"{describe(run, plan(run), {})}\n{ending}\nscenario: {scenario}"


def _death(node: Any, journal: Path) -> str:
    """Three lines and more: the check, the scenario, how the process ended and where."""
    check, scenario, stack = "", "", ""
    with suppress(OSError, ValueError):
        check, scenario = journal.read_text().splitlines()
        stack = journal.with_suffix(".stack").read_text()
    frames = [line for line in stack.splitlines() if line.startswith("  File ")]
    ours = itertools.takewhile(lambda line: "/_pytest/" not in line, frames)
    return "\n".join((check, scenario, f"=> {_ending(node)}", "Python stack, innermost call first:", *ours))


def _ending(node: Any) -> str:
    # execnet has no public way to the process of a gateway; one on another host has none here.
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    code = process.wait() if process is not None else None
    if code is None or code >= 0:
        return f"the process ended in the middle of the check (exit status {code})"
    name = signal.Signals(-code).name
    if -code == signal.SIGALRM:
        return "a verbs call did not return in time; the process was ended (SIGALRM)"
    return f"the process died of {name} inside a verbs call"


class DeviceScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """All checks of a device go to one worker; what a worker that died left over goes to the one in its place."""

    def _split_scope(self, nodeid: str) -> str:
        device = re.search(r"\[([^/\]]+)/", nodeid)
        return device[1] if device else nodeid

    def _reschedule(self, node: Any) -> None:
        """A worker in a dead one's place gets work when it has collected: what xdist hands it before is lost.

        A worker runs a check only when it knows what comes after it. So one that is left with a single check gets more,
        or is told that there is no more.
        """
        if node not in self.registered_collections or node.shutting_down:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def add_node_collection(self, node: Any, collection: Any) -> None:
        super().add_node_collection(node, collection)
        if node not in self.registered_collections:
            raise RuntimeError(f"worker {node.gateway.id} collected other checks than the one before it")

    def remove_node(self, node: Any) -> str | None:
        """The check that killed the worker. xdist's own would give it to the next worker again."""
        pending = (
            (unit, nodeid)
            for unit in self.assigned_work[node].values()
            for nodeid, completed in unit.items()
            if not completed
        )
        unit, crashed = next(pending, (None, None))
        if unit is not None:
            unit[crashed] = True
        super().remove_node(node)
        return crashed


class Worker:
    """The side of a worker (or of pytest alone, with -n0), as a pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        folder = getattr(config, "workerinput", {}).get(FOLDER)
        if folder:
            watch.journal = Journal(Path(folder) / f"{os.environ['PYTEST_XDIST_WORKER']}.journal")
        else:
            _tell_stack_of_hang(os.fdopen(os.dup(2), "w"))  # pytest will redirect 2 itself
        if config.option.usepdb or config.option.trace:
            watch.disable()
        watch.deadly = dict(getattr(config, "workerinput", {}).get(DEADLY, ()))

    def pytest_sessionstart(self) -> None:
        if watch.journal:
            watch.journal.enable()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        with _watched(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with _watched(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        with _watched(item):
            return (yield)

    def pytest_enter_pdb(self) -> None:
        watch.disable()


@contextmanager
def _watched(item: pytest.Item) -> Iterator[None]:
    """Watch one phase of a check: its fixtures open the device and allocate, and the last one closes everything."""
    properties = dict(item.user_properties)
    if results.CLAUSE not in properties:
        yield
        return
    watch.check = f"{properties[results.CLAUSE]} {properties[results.TARGET]} {item.nodeid}"
    watch.target = str(properties[results.TARGET])
    with watch.over(limit(item.callspec.params["target"].timeout)):  # type: ignore[attr-defined]  # each has one
        yield
