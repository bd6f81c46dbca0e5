# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Which checks are run, on what, and in which order."""

import argparse
import gc
from collections.abc import Iterable
from functools import cache
from itertools import compress
from typing import Union

import pytest

from conformance.capabilities import Capabilities, capabilities
from conformance.checks import tables
from conformance.scenarios import Scenario
from conformance.session.properties import CLAUSE, SCENARIO, TARGET, clause_of, target_of
from conformance.session.run import inventory_of, runs_checks

Case = Union[Scenario, tables.Sweep]
"""What a check runs."""
ONLY_IN_TRAFFIC = "discard/event"
"""The clause whose checks run scenarios in sweeps alone: of other clauses, one that is named is run by itself."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clause(id): the requirement that a check proves")
    config.addinivalue_line("markers", "scenarios(select): run once per scenario of select(target)")
    config.addinivalue_line("markers", "sweeps(select): run once per sweep of select(cases of a target)")
    config.addinivalue_line("markers", "control(only=False): run with --control too, or only then")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" not in metafunc.fixturenames:
        return
    found = inventory_of(metafunc.config)
    scenarios = metafunc.definition.get_closest_marker("scenarios")
    sweeps = metafunc.definition.get_closest_marker("sweeps")
    marker = scenarios or sweeps
    if marker is None:
        metafunc.parametrize("target", found.targets, ids=[target.id for target in found.targets])
        return
    option, targets = metafunc.config.option, found.usable  # of one that is broken the other checks say so
    if option.control and metafunc.definition.get_closest_marker("control") is None:
        targets = ()  # it is not wanted, and thousands of scenarios take a while to collect

    @cache  # most targets of a run differ in nothing that decides
    def of(able: Capabilities) -> list[tuple[Case, str]]:
        run = _run(able, option)
        selected: Iterable[Case] = marker.args[0](run)
        return [(case, str(case)) for case in selected if _is_asked_for(run, case)]

    cases = [
        (target, case, name)
        for target in targets
        if target.null_mr != "absent" or option.control  # a target without null MRs has nothing to try them on
        for case, name in of(capabilities(target))
    ]
    metafunc.parametrize(
        ("target", "scenario" if scenarios else "sweep"),
        [(target, case) for target, case, _ in cases],
        ids=[f"{target.id}-{name}" for target, _, name in cases],
    )


def _is_asked_for(run: tables.Cases, case: Case) -> bool:
    if isinstance(case, tables.Sweep):
        return True
    return case in run.matrix if run.is_narrowed else run.able.has_null_mr_for(case)


def _run(able: Capabilities, option: argparse.Namespace) -> tables.Cases:
    named = tuple(each for each in option.scenario if isinstance(each, Scenario))
    globs = tuple(each for each in option.scenario if isinstance(each, str))
    return _cases(able, option.exhaustive, named, globs)


_cases = cache(tables.Cases)


@pytest.hookimpl(tryfirst=True)  # before xdist starts workers, which all would say it
def pytest_sessionstart(session: pytest.Session) -> None:
    """Raises UsageError for a glob of scenarios that chooses none."""
    option = session.config.option
    if not runs_checks(session.config) or not any(isinstance(each, str) for each in option.scenario):
        return
    targets = inventory_of(session.config).usable
    runs = [_run(capabilities(target), option) for target in targets]
    for glob in dict.fromkeys(glob for run in runs for glob in run.globs):
        if not any(_chooses(_cases(run.able, run.exhaustive, (), (glob,))) for run in runs):
            of = "the whole product" if option.exhaustive else "the matrix (of the whole product with --exhaustive)"
            names = ", ".join(target.id for target in targets)
            raise pytest.UsageError(
                f"--scenario {glob}: it fits none of the ids of {of} on {names}, which are like {tables.BOTH_WAYS[0]}"
            )


def _chooses(run: tables.Cases) -> bool:
    return bool(run.matrix) or (run.exhaustive and any(run.product.values()))


@pytest.hookimpl(tryfirst=True)  # before -k chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [_is_wanted(item, config) for item in items]
    if not all(wanted):
        config.hook.pytest_deselected(items=[item for item, is_wanted in zip(items, wanted) if not is_wanted])
        items[:] = compress(items, wanted)
    items.sort(key=_danger)
    if runs_checks(config):  # one device after the other: a process holds the lock of one at a time
        devices = {target.device.name: place for place, target in enumerate(inventory_of(config).targets)}
        items.sort(key=lambda item: devices.get(_device(item), -1))
    for item in items:
        clause = clause_of(item)
        if clause is None:
            continue
        params = item.callspec.params  # type: ignore[attr-defined]  # every check is parametrized with its target
        item.extra_keyword_matches.add(clause)  # so that -k takes a clause's id
        item.user_properties.append((CLAUSE, clause))
        item.user_properties.append((TARGET, params["target"].id))
        if "scenario" in params:
            item.user_properties.append((SCENARIO, str(params["scenario"])))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import what searches need, which takes long, before any check is watched: it is no provider's time."""
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.option.search and "search" in fixtures:
        import conformance.search
    if session.config.option.sequences and "try_sequences" in fixtures:
        import conformance.sequence_search  # noqa: F401
    gc.freeze()  # all that stays to the end, and need not be looked through whenever there is garbage


def _device(item: pytest.Item) -> str:
    """The name of the device that a check tries; empty for other tests."""
    target = target_of(item)
    return target.device.name if target is not None else ""


def _danger(item: pytest.Item) -> int:
    """Checks that name live memory come first: others may crash a process that could have shown a leak."""
    if clause_of(item) is None:
        return 0
    scenario = item.callspec.params.get("scenario")  # type: ignore[attr-defined]
    if isinstance(scenario, Scenario):
        return int(any(not segment.address.is_live for segment in scenario.segments))
    sweep = item.callspec.params.get("sweep")  # type: ignore[attr-defined]
    if isinstance(sweep, tables.Sweep):
        return int(sweep.is_dangerous)
    return 2 if {"search", "try_sequences", "stress"} & set(item.fixturenames) else 0  # type: ignore[attr-defined]


def _is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    """With --scenario or --sequence, the checks that run such; with --control, those marked so; never one that stands
    for an empty selection."""
    if clause_of(item) is None:
        return True
    if target_of(item) is None:
        return False
    control = item.get_closest_marker("control")
    if config.option.control and control is None:
        return False
    if not config.option.control and control is not None and control.kwargs.get("only"):
        return False
    if "stress" in item.fixturenames and not config.option.stress:  # type: ignore[attr-defined]
        return False
    named = {"scenarios": config.option.scenario, "sequences": config.option.sequence}
    if not any(named.values()):
        return True
    if "try_sequences" in item.fixturenames:  # type: ignore[attr-defined]
        return bool(named["sequences"])
    runs_scenarios = item.get_closest_marker("scenarios") is not None or clause_of(item) == ONLY_IN_TRAFFIC
    runs_scenarios |= config.option.exhaustive and item.get_closest_marker("sweeps") is not None
    return runs_scenarios and bool(named["scenarios"])
