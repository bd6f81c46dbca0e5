# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The processes of pytest-xdist: a worker for each device, and what becomes of one that a provider ends.

xdist replaces a worker process that is gone, and cannot tell why it went. So each worker has a watch with a journal
(conformance.watch), from which the controller makes the check's FAIL.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from operator import not_
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from conformance import crash
from conformance.session.endings import die, in_words
from conformance.session.giving_up import device_of
from conformance.session.properties import CLAUSE, TARGET, drop
from conformance.session.run import distributes, inventory_of, machine_of, runs_checks
from conformance.watch import Death, Journal, Stack, Step, last_step, limit, tell_stack_of_hang, watch

FOLDER = "null_mr_journals"
"""Key of the journals' folder in what the controller sends to its workers."""
DEADLY = "null_mr_deadly"
"""Key of the scenarios that ended a process in this run: (target, scenario, how)."""
GONE_WITHIN = 5
"""Seconds from the end of what connects a process to us until it is gone; it is so at once."""
RUNS_MANY = {"search", "check_sweep"}
"""Fixtures of checks that run many scenarios, and go on when one has ended their process."""
GOES_ON = pytest.StashKey["Counter[str | None]"]()
"""How often each of these ended its process."""
ENOUGH_PENDING = 3
"""Checks: xdist tells no greater numbers of them apart."""
MAX_CRASHES = 4


def pytest_configure(config: pytest.Config) -> None:
    if not runs_checks(config):
        return
    if not distributes(config):
        config.pluginmanager.register(Worker(config))
        return
    config.pluginmanager.register(Controller(config))


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # xdist's own comes first where -p names the suite
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One worker per device and not per core: checks of one device do not run beside each other."""
    if not runs_checks(config):
        return None
    devices = len(set(inventory_of(config).groups.values()))
    if machine_of(config).simulated:  # by this machine's cores
        devices = min(devices, len(os.sched_getaffinity(0)))
    return max(1, devices)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # With --dist each, every host runs everything.
    return DeviceScheduling(config, log) if runs_checks(config) and config.option.dist != "each" else None


class Controller:
    """The side of the controller, as a pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._crashed: list[pytest.TestReport] = []
        self._deadly: dict[tuple[str, str], str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="null-mr-"))
        self._started: set[str] = set()
        self._death = Death(Step(), "", Stack())

    def pytest_configure_node(self, node: Any) -> None:
        if node.gateway.spec.popen:  # other hosts do not have the folder
            node.workerinput[FOLDER] = str(self._folder)
        node.workerinput[DEADLY] = [(*scenario, how) for scenario, how in self._deadly.items()]

    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        self._started.add(node.gateway.id)

    @pytest.hookimpl(tryfirst=True)  # before xdist shows the traceback of what is told here in words
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Why it went. One that fails before it has any check would fail again: that ends the run."""
        if not error:
            return
        code = _exit_code(node)
        if node.gateway.id not in self._started:
            reason = _last_words(str(error)) if code is None else _ending(code, "")
            pytest.exit(f"worker {node.gateway.id} failed at its start: {reason}", pytest.ExitCode.INTERRUPTED)
        step, stack = last_step(self._folder / f"{node.gateway.id}.journal")
        left = f"its worker left the run: {_last_words(str(error))}"
        self._death = Death(step, left if code is None else _ending(code, "inside a verbs call"), stack)
        if step.scenario:
            self._deadly[step.target, step.scenario] = in_words(self._death, self._config)
            if step.goes_on:
                self._config.stash.setdefault(GOES_ON, Counter())[step.nodeid] += 1

    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        if self._death.step.nodeid == crashitem:  # else it died before its first check, or between two
            die(report, self._config, self._death)
        self._crashed.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """xdist leaves crashes out of what -x and --maxfail count; and JUnit XML takes a test's properties from the
        report of its teardown, which a crash leaves out.
        """
        if report not in self._crashed:
            return
        self._crashed.remove(report)
        if report.failed:  # and no waiver covers it
            session = self._config.pluginmanager.getplugin("dsession")
            session.countfailures += 1
            if session.maxfail and session.countfailures >= session.maxfail and not session.shouldstop:
                session.shouldstop = f"stopping after {session.countfailures} failures"
        teardown = copy.copy(report)
        teardown.when, teardown.outcome, teardown.longrepr = "teardown", "passed", None
        vars(teardown).pop("wasxfail", None)
        drop(teardown)
        self._config.hook.pytest_runtest_logreport(report=teardown)

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _exit_code(node: Any) -> int | None:
    """That of a worker's process, negative for a signal; None if it is still there, or on another host."""
    # execnet has no public way to the process of a gateway; one on another host has none here.
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    try:
        return None if process is None else int(process.wait(GONE_WITHIN))
    except subprocess.TimeoutExpired:
        return None


def _ending(code: int, where: str) -> str:
    if code >= 0:
        return f"the process ended {where or 'early'} (exit status {code})"
    name = signal.Signals(-code).name
    if -code == signal.SIGALRM:
        return "a verbs call did not return in time; the process was ended (SIGALRM)"
    return f"the process died of {name} {where}".rstrip()


def _last_words(traceback: str) -> str:
    """What an error says of which a worker sent the traceback."""
    *_, said = re.split(r"^(?:\w+\.)*UsageError: ", traceback, flags=re.MULTILINE)
    return said.strip() if said != traceback else traceback.strip().rpartition("\n")[2]


class Collected(list[str]):
    """The node ids that a worker has collected. xdist asks for the place of each."""

    def __init__(self, ids: Iterable[str]) -> None:
        super().__init__(ids)
        self._places = {id: place for place, id in enumerate(self)}

    def index(self, id: str, *_: object) -> int:
        return self._places[id]


class DeviceScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """All checks of a device and its peers go to one worker; what a dead one left goes to the one in its place."""

    def _split_scope(self, nodeid: str) -> str:
        device = device_of(nodeid)
        return inventory_of(self.config).groups.get(device, device) or nodeid

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        """How many checks are left of units that are run from their beginnings, of each up to ENOUGH_PENDING. xdist
        asks whenever it hears of a check, and a device with many targets has 100,000 of them.
        """
        left = (takewhile(not_, reversed(unit.values())) for unit in workload.values())
        return sum(len(list(islice(of_unit, ENOUGH_PENDING))) for of_unit in left)

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
        if node in self.registered_collections:
            self.registered_collections[node] = Collected(collection)
        else:
            # It does not see what the one before it saw, such as a device that is gone. Others finish what they know.
            node.shutdown()
            if all(other.shutting_down for other in self.nodes):
                self.workqueue.clear()

    def remove_node(self, node: Any) -> str | None:
        """The check that killed the worker. xdist's own would give it to the next worker again, which here only one is
        that runs many scenarios: it leaves out what was deadly.
        """
        pending = (
            (unit, nodeid)
            for unit in self.assigned_work[node].values()
            for nodeid, completed in unit.items()
            if not completed
        )
        unit, crashed = next(pending, (None, None))
        goes_on = 0 < self.config.stash.get(GOES_ON, Counter())[crashed] < MAX_CRASHES
        if unit is not None and not goes_on:
            unit[crashed] = True
        super().remove_node(node)
        return None if goes_on else crashed


class Worker:
    """The side of a worker (or of pytest alone, with -n0), as a pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        sent = getattr(config, "workerinput", {})
        if FOLDER in sent:
            watch.journal = Journal(Path(sent[FOLDER]) / f"{os.environ['PYTEST_XDIST_WORKER']}.journal")
        else:
            self._stderr = os.fdopen(os.dup(2), "w")  # pytest will redirect 2 itself
            tell_stack_of_hang(self._stderr)
        if config.option.usepdb or config.option.trace:
            watch.disable()
        watch.deadly = {(target, scenario): how for target, scenario, how in sent.get(DEADLY, ())}

    def pytest_sessionstart(self) -> None:
        if watch.journal:
            watch.journal.enable()
        else:
            crash.tell(self._stderr.fileno())

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
    if CLAUSE not in properties:
        yield
        return
    goes_on = bool(RUNS_MANY & set(item.fixturenames))  # type: ignore[attr-defined]  # every check is a function
    watch.step = Step(str(properties[CLAUSE]), str(properties[TARGET]), item.nodeid, goes_on=goes_on)
    with watch.over(limit(item.callspec.params["target"].timeout)):  # type: ignore[attr-defined]  # each has one
        yield
