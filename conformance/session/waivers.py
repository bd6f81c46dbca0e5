# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The waivers of providers.yaml at work: failures that they cover become WAIVED, and what they came to is gathered."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

import pytest

from conformance.config import Config, Waiver
from conformance.inventory import AnyTarget, Target
from conformance.session.endings import waive
from conformance.session.properties import clause_of, result_of, target_of
from conformance.session.run import CHECKS, inventory_of, providers_of, runs_checks
from conformance.verdicts import Verdict
from conformance.waivers import Standing, covers, fits, why

STANDINGS = "null_mr_waivers"
"""Key of the standings in what a worker of xdist sends to the controller when it ends."""
_WAIVERS = pytest.StashKey["Waivers"]()


def waivers_of(config: pytest.Config) -> Waivers:
    """The waivers of this run."""
    if _WAIVERS not in config.stash:
        config.stash[_WAIVERS] = Waivers(providers_of(config), inventory_of(config).targets)
        config.pluginmanager.register(config.stash[_WAIVERS])
    return config.stash[_WAIVERS]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if runs_checks(session.config):
        waivers_of(session.config)


class Waivers:
    """The waivers of a run, as a pytest plugin of the controller and of each worker."""

    def __init__(self, config: Config, targets: Sequence[AnyTarget], today: date | None = None) -> None:
        self._config = config
        self._targets = {target.id: target for target in targets}
        self._today = today or date.today()
        self._kernel = platform.release()
        self._standings: dict[str, Standing] = {}

    @property
    def standings(self) -> tuple[Standing, ...]:
        """In the order of the file. Empty before the checks are collected or, on a controller, workers end."""
        return tuple(self._standings.values())

    def waiver_of(self, clause: str, target: str, nodeid: str, verdict: Verdict = Verdict.FAIL) -> Waiver | None:
        """The first waiver that covers this verdict of the check and is not past its date."""
        if target not in self._targets:
            return None
        name = nodeid.partition("::")[2]
        return next(
            (
                waiver
                for waiver in self._config.waivers
                if self._today <= waiver.until
                and waiver.verdict == verdict.value
                and fits(waiver, self._targets[target], self._kernel)
                and covers(waiver, clause, name)
            ),
            None,
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Before anyone counts it. It is done here because the FAIL of a check that killed its worker is made by the
        controller.
        """
        result = result_of(report)
        if result is None or result.verdict not in (Verdict.FAIL, Verdict.BROKEN):
            return
        waiver = self.waiver_of(result.clause, result.target, result.nodeid, result.verdict)
        if waiver is not None:
            waive(report, why(waiver))

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
                why=why(waiver),
                until=waiver.until.isoformat(),
                verdict=waiver.verdict,
                expired=self._today > waiver.until,
                fits=any(isinstance(self._targets[id], Target) for id in about),
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
            verdict=new.verdict,
            expired=old.expired or new.expired,
            fits=old.fits or new.fits,
            collected=old.collected and new.collected,
            checks=tuple(dict.fromkeys(old.checks + new.checks)),
        )
        self._standings[new.where] = merged


def _check(item: pytest.Item) -> tuple[str, str, str] | None:
    """Clause, target and node id of a check; None for what stands for an empty selection of scenarios."""
    clause, target = clause_of(item), target_of(item)
    return (clause, target.id, item.nodeid) if clause and target is not None else None


def _all_collected(config: pytest.Config, items: Iterable[pytest.Item]) -> bool:
    """Was the whole suite collected? Not if the command line names some of it, or takes last time's failures."""
    option = config.option
    named = option.scenario or option.sequence or any("::" in arg for arg in config.args)
    narrowed = named or getattr(option, "lf", False)
    return not narrowed and {item.path for item in items} >= set(CHECKS.glob("test_*.py"))
