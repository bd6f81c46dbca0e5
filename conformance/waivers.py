# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Known failures: which checks the waivers of providers.yaml cover, and which waivers have had their day."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from conformance import versions
from conformance.config import Config, Waiver
from conformance.inventory import Target
from conformance.report import results
from conformance.report.results import Result
from conformance.verdicts import Verdict

CHECKS = Path(__file__).parent / "checks"
STANDINGS = "null_mr_waivers"
"""Key of the standings in what a worker of xdist sends to the controller when it ends."""


@dataclass(frozen=True)
class Standing:
    """What one waiver came to in a run. A worker sends it to the controller as plain data."""

    where: str
    """file, line and key"""
    why: str
    """its reason and ticket"""
    until: str
    """the last day on which it holds"""
    expired: bool
    fits: bool
    """some target that can be tried is one that it is about"""
    collected: bool
    """every check that it could cover was collected, so that `checks` has all that it covers"""
    checks: tuple[str, ...]
    """node ids of the checks that it covers, also those that were deselected later (-k)"""


@dataclass(frozen=True)
class Review:
    """What there is to say of the waivers at the end of a run, one line for each waiver."""

    used: tuple[str, ...]
    idle: tuple[str, ...]
    """about none of the targets of this run: a file may serve many machines"""
    stale: tuple[str, ...]
    """to be mended or removed; with --conformance-strict they fail the run"""


def fits(waiver: Waiver, target: Target, kernel: str) -> bool:
    """Is the waiver about this device, with its firmware, on this kernel (as uname -r gives it)?"""
    device = target.device
    return (
        (not waiver.devices or any(fnmatchcase(device.name, pattern) for pattern in waiver.devices))
        and waiver.driver in ("", device.driver)
        and (not waiver.firmware or versions.within(device.fw_ver, waiver.firmware))
        and (not waiver.kernel or versions.within(kernel, waiver.kernel))
    )


def covers(waiver: Waiver, clause: str, name: str) -> bool:
    """Is the waiver about this check? `name` is the check's, with its target and scenario in brackets."""
    return (not waiver.clauses or any(fnmatchcase(clause, pattern) for pattern in waiver.clauses)) and (
        not waiver.checks or any(_is_part(pattern, name) for pattern in waiver.checks)
    )


def _is_part(pattern: str, name: str) -> bool:
    """A bracket is itself here and begins no character class: names are full of them."""
    return fnmatchcase(name, f"*{pattern.replace('[', '[[]')}*")


def review(standings: Sequence[Standing], gathered: Iterable[Result]) -> Review:
    """Compare what the waivers cover with what the checks came to.

    A waiver is stale if it is past its date, if it covers no check of a target that it is about, or if all checks that
    it covers were run and passed (or were skipped, but not all of them). Of a run that collected only a part of the
    checks, only the date is told.
    """
    verdicts: dict[str, set[Verdict]] = {}
    for result in gathered:
        verdicts.setdefault(result.nodeid, set()).add(result.verdict)
    used, idle, stale = [], [], []
    for standing in standings:
        came_to = [verdicts.get(check, set()) for check in standing.checks]
        waived = sum(Verdict.WAIVED in each for each in came_to)
        passed = sum(each == {Verdict.PASS} for each in came_to)
        skipped = sum(each == {Verdict.SKIPPED} for each in came_to)
        subject = f"{standing.where}: {standing.why}, until {standing.until}"
        if standing.expired:
            stale.append(f"{subject}: it is past its date and waives nothing; remove it, or renew it")
        elif waived:
            used.append(f"{subject}: {waived} of {len(came_to)} checks WAIVED")
        elif not standing.fits:
            idle.append(f"{subject}: no target of this run fits it")
        elif standing.collected and not standing.checks:
            stale.append(f"{subject}: it matches no check of the targets that it is about; correct or remove it")
        elif standing.collected and passed and passed + skipped == len(came_to):
            stale.append(f"{subject}: all its checks pass ({passed}, and {skipped} are skipped); remove it")
    return Review(tuple(used), tuple(idle), tuple(stale))


class Waivers:
    """The waivers of a run, as a pytest plugin of the controller and of each worker."""

    def __init__(self, config: Config, targets: Sequence[Target], today: date | None = None) -> None:
        self._config = config
        self._targets = {target.id: target for target in targets}
        self._today = today or date.today()
        self._kernel = platform.release()
        self._standings: dict[str, Standing] = {}

    @property
    def standings(self) -> tuple[Standing, ...]:
        """In the order of the file. Empty before the checks are collected or, on a controller, workers end."""
        return tuple(self._standings.values())

    def waiver_of(self, clause: str, target: str, nodeid: str) -> Waiver | None:
        """The first waiver that covers the check and is not past its date."""
        if target not in self._targets:
            return None
        name = nodeid.partition("::")[2]
        return next(
            (
                waiver
                for waiver in self._config.waivers
                if self._today <= waiver.until
                and fits(waiver, self._targets[target], self._kernel)
                and covers(waiver, clause, name)
            ),
            None,
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A FAIL that a waiver covers becomes what pytest knows as an expected failure, before anyone counts it.

        It is done here because the FAIL of a check that killed its worker is made by the controller.
        """
        properties = dict(report.user_properties)
        if not (report.failed and report.when == "call" and results.CLAUSE in properties):
            return
        waiver = self.waiver_of(str(properties[results.CLAUSE]), str(properties[results.TARGET]), report.nodeid)
        if waiver is not None:
            report.outcome = "skipped"
            report.wasxfail = f"WAIVED: {_why(waiver)}"
            report.user_properties.append((results.WAIVED, _why(waiver)))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """As an expected failure, whose reasons and proofs -rx and --xfail-tb show, but by its own name."""
        return ("xfailed", "w", "WAIVED") if results.WAIVED in dict(getattr(report, "user_properties", ())) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """What each waiver covers, before -k and its like take checks away."""
        collected = _all_collected(config, items)
        checks = [check for check in map(_check, items) if check is not None]
        for index, waiver in enumerate(self._config.waivers):
            about = {id for id, target in self._targets.items() if fits(waiver, target, self._kernel)}
            covered = tuple(
                nodeid
                for clause, target, nodeid in checks
                if target in about and covers(waiver, clause, nodeid.partition("::")[2])
            )
            # With --control, and where there are no null MRs, many checks are not even collected.
            all_kinds = not config.option.control and any(self._targets[id].null_mr != "absent" for id in about)
            standing = Standing(
                where=self._config.where("waivers", index),
                why=_why(waiver),
                until=waiver.until.isoformat(),
                expired=self._today > waiver.until,
                fits=any(not self._targets[id].broken for id in about),
                collected=collected and (all_kinds or bool(covered)),
                checks=covered,
            )
            self._standings[standing.where] = standing
        if hasattr(config, "workeroutput"):
            config.workeroutput[STANDINGS] = [asdict(standing) for standing in self.standings]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Workers on one machine all collect the same; those of other hosts add their own."""
        for data in getattr(node, "workeroutput", {}).get(STANDINGS, ()):
            self._add(data)

    def _add(self, data: Mapping[str, Any]) -> None:
        new = Standing(**{**data, "checks": tuple(data["checks"])})
        old = self._standings.get(new.where, new)
        merged = Standing(
            where=new.where,
            why=new.why,
            until=new.until,
            expired=old.expired or new.expired,
            fits=old.fits or new.fits,
            collected=old.collected and new.collected,
            checks=tuple(dict.fromkeys(old.checks + new.checks)),
        )
        self._standings[new.where] = merged


def _why(waiver: Waiver) -> str:
    return f"{waiver.reason} ({waiver.ticket})"


def _check(item: pytest.Item) -> tuple[str, str, str] | None:
    """Clause, target and node id of a check; None for what stands for an empty selection of scenarios."""
    marker = item.get_closest_marker("clause")
    callspec = getattr(item, "callspec", None)
    target = callspec.params.get("target") if callspec is not None else None
    return (marker.args[0], target.id, item.nodeid) if marker and isinstance(target, Target) else None


def _all_collected(config: pytest.Config, items: Iterable[pytest.Item]) -> bool:
    """Was the whole suite collected? Not if the command line names some of it, or takes last time's failures."""
    narrowed = config.option.scenario or getattr(config.option, "lf", False) or any("::" in arg for arg in config.args)
    return not narrowed and {item.path for item in items} >= set(CHECKS.glob("test_*.py"))
