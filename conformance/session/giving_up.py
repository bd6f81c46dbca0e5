# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What is given up: of a device on which process after process died, the checks that are left are BROKEN at once."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from conformance.report.junit import summary
from conformance.session.properties import clause_of
from conformance.session.recorder import host_of
from conformance.session.run import distributes, runs_checks
from conformance.verdicts import BrokenError

GIVEN_UP = "null_mr_given_up"
"""Key of the given up devices, with the reasons, in what the controller sends to a worker."""
MAX_CRASHES = 64
"""Processes that may die of the checks of one device; --max-worker-restart gives another number."""


def pytest_configure(config: pytest.Config) -> None:
    if not runs_checks(config):
        return
    if distributes(config):
        given = config.option.maxworkerrestart
        config.pluginmanager.register(Crashes(MAX_CRASHES if given is None else int(given)))
        config.option.maxworkerrestart = str(2**31)  # xdist's own limit is for all devices together
    else:
        config.pluginmanager.register(GivenUp(getattr(config, "workerinput", {}).get(GIVEN_UP, {})))


def device_of(nodeid: str) -> str:
    """The device that a check tries, from its name; empty for other tests."""
    found = re.search(r"\[([^/\]]+)/", nodeid)
    return found[1] if found else ""


class Crashes:
    """Counts the processes that died by device, as a pytest plugin of the controller; tells the ones in their place."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[str, dict[str, str]] = {}

    @pytest.hookimpl(trylast=True, optionalhook=True)  # when the report says what it died of
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        host, device = host_of(report.node), device_of(crashitem)
        self._counts[host, device] += 1
        if self._counts[host, device] > self._most:
            self._reasons.setdefault(host, {})[device] = (
                f"=> not run: {device} is given up, because more than {self._most} processes died of its checks "
                f"(--max-worker-restart). The last of them: {summary(report.longreprtext)} ({crashitem})"
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[GIVEN_UP] = self._reasons.get(host_of(node), {})


class GivenUp:
    """What is given up, as a pytest plugin of a process that runs checks. `reasons`: by device."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self._reasons = dict(reasons)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Raises BrokenError before any fixture touches what is given up."""
        if clause_of(item) is not None and device_of(item.nodeid) in self._reasons:
            raise BrokenError(self._reasons[device_of(item.nodeid)])
