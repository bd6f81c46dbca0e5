# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Attaches what the kernel says to the check that runs."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from pathlib import Path

import pytest

from conformance.kernel import device_names
from conformance.kernel_log import KMSG, KernelLog, about, names_of_device, provokes_errors, shown, verdict_of
from conformance.session.endings import hear_kernel
from conformance.session.properties import CLAUSE, KERNEL_LOG, SCENARIO, TARGET, properties_of
from conformance.session.run import distributes, inventory_of, machine_of, runs_checks


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """No kernel drives a simulated device."""
    config = session.config
    if runs_checks(config) and not machine_of(config).simulated:
        devices = {target.id: (target.devices, target.device.driver) for target in inventory_of(config).targets}
        config.pluginmanager.register(Watcher(devices, controller=distributes(config), present=device_names()))


class Watcher:
    """A pytest plugin that attaches the kernel's lines to checks, and lets them decide.

    `targets`: id -> (devices, driver). `controller`: checks run in other processes of this machine, which have a
    watcher each; left for this one are those that died. `present`: all RDMA devices of this machine, also those that
    are not tried.
    """

    def __init__(
        self,
        targets: Mapping[str, tuple[tuple[str, ...], str]],
        controller: bool,
        path: Path = KMSG,
        present: Iterable[str] = (),
    ) -> None:
        self._targets = targets
        self._controller = controller
        self._names = {
            device: names_of_device(device)
            for device in (*present, *(device for devices, _ in targets.values() for device in devices))
        }
        self._is_last = False
        self._log: KernelLog | None = None
        try:
            self._log = KernelLog(path)
        except OSError as error:
            self.header = f"kernel log: not watched, {path}: {error.strerror} (it takes root or CAP_SYSLOG)"
        else:
            self.header = "kernel log: watched, each check has what the kernel says while it runs"

    def pytest_report_header(self) -> str:
        return self.header

    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        self._is_last = nextitem is None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when != "teardown" or self._is_last:  # what comes between two checks is left to the second
            lines = self._attach(report)
            if lines:
                item.user_properties.append((KERNEL_LOG, lines))
        return report

    def pytest_runtest_logreport(self) -> None:
        """What came while a check ran whose worker lives is that worker's to attach."""
        if self._controller and self._log:
            self._log.read()

    @pytest.hookimpl(trylast=True, optionalhook=True)
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        self._attach(report)

    def _attach(self, report: pytest.TestReport) -> str:
        """Add what the kernel said to the report of a check; returns it."""
        known = properties_of(report)
        if self._log is None or known.get(TARGET) not in self._targets or CLAUSE not in known:
            return ""
        devices, driver = self._targets[known[TARGET]]
        own = frozenset().union(*(self._names[name] for name in devices))
        others = frozenset().union(*(names for name, names in self._names.items() if name not in devices))
        lines = [line for line in self._log.read() if about(line, own, others, driver)]
        if not lines:
            return ""
        provokes = provokes_errors(known[CLAUSE], known.get(SCENARIO, ""))
        hear_kernel(report, shown(lines), verdict_of(lines, driver, own, provokes))
        return shown(lines)

    def pytest_unconfigure(self) -> None:
        if self._log:
            self._log.close()
