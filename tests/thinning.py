# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A pytest plugin for runs on wrong devices, loaded with `-p tests.thinning`: most scenarios need not be tried.

Of a check that runs once for each scenario or kind of traffic, every N-th case is run (`--thin N`), but all of those
that prove a clause named by `--whole`, or of a check named by it. Once a check has failed in several cases
(`--enough N`), the others are skipped. Checks that have neither are always run.
"""

import gc
from collections import Counter
from collections.abc import Generator

import pytest

FAILURES = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thin", type=int, default=1, metavar="N")
    parser.addoption("--whole", action="append", default=[], metavar="CLAUSE|CHECK")
    parser.addoption("--enough", type=int, metavar="N")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FAILURES] = Counter()


def pytest_collection_finish() -> None:
    """What lives to the end is not looked at again by the many gc.collect() of the checks for leaks: half a second."""
    gc.collect()
    gc.freeze()


def _check(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        clause = item.get_closest_marker("clause")
        scenarios = item.get_closest_marker("scenarios") or item.get_closest_marker("sweeps")
        check = _check(item.nodeid)
        in_turn = seen[check] % config.option.thin == 0
        seen[check] += 1
        named = clause is not None and not {clause.args[0], check.rpartition("::")[2]}.isdisjoint(config.option.whole)
        whole = scenarios is None or clause is None or named
        (kept if whole or in_turn else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    enough = item.config.option.enough
    if enough is not None and item.config.stash[FAILURES][_check(item.nodeid)] >= enough:
        pytest.skip("this check has failed often enough")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.config.stash[FAILURES][_check(item.nodeid)] += 1
    return report
