# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wiring of the suite into pytest: options, fixtures, parametrization, verdicts."""

import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import __version__, inventory
from conformance.config import load
from conformance.native import BuildError
from conformance.report import results, terminal
from conformance.verdicts import BrokenError, LackingError

ROOT = Path(__file__).parent
CHECKS = ROOT / "conformance" / "checks"

RESULTS = pytest.StashKey[results.Results]()
MACHINE = pytest.StashKey[inventory.Machine]()
INVENTORY = pytest.StashKey[inventory.Inventory]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("null MR conformance")
    group.addoption(
        "--providers", type=Path, default=ROOT / "providers.yaml", help="which devices to try (%(default)s)"
    )
    group.addoption("--reference", action="store_true", help="try the simulated reference device")
    group.addoption("--reference-devices", type=int, metavar="N", help="how many reference devices")
    group.addoption(
        "--reference-fault",
        action="append",
        default=[],
        metavar="NAME",
        help="break the reference device in this way (repeatable); see conformance/reference/faults.py",
    )
    group.addoption("--reference-variant", metavar="NAME", help="another conforming reference device")
    group.addoption("--conformance-strict", action="store_true", help="what a SHOULD clause finds fails the run too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clause(id): the requirement that a check proves")
    config.addinivalue_line("markers", "scenarios(select): run once per scenario of select(target)")
    config.stash[RESULTS] = results.Results()
    config.pluginmanager.register(config.stash[RESULTS])


def runs_checks(config: pytest.Config) -> bool:
    """Is any check among what was asked for, or only tests of the suite itself?"""
    asked = [(config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args]
    return any(CHECKS.is_relative_to(path) or path.is_relative_to(CHECKS) for path in asked)


def inventory_of(config: pytest.Config) -> inventory.Inventory:
    """The targets of this run; loads the reference device if it is to stand in. Ends pytest on bad configuration."""
    if INVENTORY not in config.stash:
        option = config.option
        try:
            providers = load(option.providers)
            machine = inventory.open_machine(
                providers,
                reference=option.reference,
                simulate=option.reference_devices,
                faults=tuple(option.reference_fault),
                variant=option.reference_variant,
            )
            config.stash[INVENTORY] = inventory.targets(providers, machine.devices)
        except (ValueError, BuildError) as error:  # the file, a name of a fault or variant, or no compiler
            raise pytest.UsageError(str(error)) from None
        config.stash[MACHINE] = machine
    return config.stash[INVENTORY]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """The reference device, if used, must be there before any module of the checks imports pyverbs."""
    if runs_checks(session.config):
        inventory_of(session.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not runs_checks(config):
        return []
    found = inventory_of(config)
    lines = [f"null MR conformance {__version__}, {config.option.providers}"]
    simulated = config.stash[MACHINE].simulated
    if simulated:
        lines.append(f"NOTE: {simulated}")
    lines += [f"target {target.id}: {_words(target)}" for target in found.targets]
    lines += [f"left out {name}: {reason}" for name, reason in found.left_out]
    return lines


def _words(target: inventory.Target) -> str:
    gid = f"GID {target.gid.index} {target.gid.type}" if target.gid else f"LID {target.port.lid:#x}"
    broken = f", BROKEN: {target.broken}" if target.broken else ""
    return f"{target.device.driver}, firmware {target.device.fw_ver}, {gid}, null MR {target.null_mr}{broken}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" not in metafunc.fixturenames:
        return
    targets = inventory_of(metafunc.config).targets
    marker = metafunc.definition.get_closest_marker("scenarios")
    if marker is None:
        metafunc.parametrize("target", targets, ids=[target.id for target in targets])
        return
    cases = [(target, scenario) for target in targets for scenario in marker.args[0](target)]
    ids = [f"{target.id}-{scenario}" for target, scenario in cases]
    metafunc.parametrize(("target", "scenario"), cases, ids=ids)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("clause")
        callspec = getattr(item, "callspec", None)
        if marker is None or callspec is None or "target" not in callspec.params:
            continue
        item.user_properties.append((results.CLAUSE, marker.args[0]))
        item.user_properties.append((results.TARGET, callspec.params["target"].id))
        if "scenario" in callspec.params:
            item.user_properties.append((results.SCENARIO, str(callspec.params["scenario"])))


@pytest.fixture(scope="session")
def benches() -> Iterator[dict[inventory.Target, Any]]:
    """The bench of each target, made when first needed; a target that cannot be opened keeps its BrokenError."""
    opened: dict[inventory.Target, Any] = {}
    yield opened
    for bench in opened.values():
        if not isinstance(bench, BrokenError):
            bench.close()


@pytest.fixture
def bare_bench(target: inventory.Target, benches: dict[inventory.Target, Any]) -> Any:
    """The target's bench, whether or not the device has a null MR."""
    from conformance.verbs.bench import Bench

    if target not in benches:
        try:
            benches[target] = Bench(target)
        except BrokenError as broken:
            benches[target] = broken
    if isinstance(benches[target], BrokenError):
        raise benches[target]
    return benches[target]


@pytest.fixture
def bench(bare_bench: Any) -> Any:
    """The target's bench with a null MR; skips where the device gives none."""
    from conformance.verbs.null_mr import NullMRError

    try:
        bare_bench.null_mr  # noqa: B018
    except NullMRError as error:
        pytest.skip(f"the device gives no null MR ({error}); its entry promises {bare_bench.target.null_mr}")
    return bare_bench


@pytest.fixture
def strict(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.option.conformance_strict)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """What a device lacks skips the check; an exception inside the reference device breaks it."""
    try:
        return (yield)
    except LackingError as lacking:
        pytest.skip(str(lacking))
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
    """A check shows the text of its failure and not our code; BROKEN in the middle of a check is an error too."""
    report = yield
    if call.excinfo is not None and report.failed and item.get_closest_marker("clause"):
        if call.excinfo.errisinstance(BrokenError):
            report.when = "setup"
        if call.excinfo.errisinstance((BrokenError, AssertionError)):
            report.longrepr = item._repr_failure_py(call.excinfo, style="value")
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput") or not runs_checks(session.config):
        return
    green = exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly
    if green and session.config.stash[RESULTS].decided_nothing():
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    gathered = config.stash[RESULTS]
    if not gathered.results:
        return
    terminalreporter.section("null MR conformance")
    if config.stash[MACHINE].simulated:
        terminalreporter.line(f"NOTE: {config.stash[MACHINE].simulated}")
    for line in (*terminal.skip_reasons(gathered), *terminal.observations(gathered)):
        terminalreporter.line(line)
    terminalreporter.line("")
    terminalreporter.line(terminal.table(gathered))
    if gathered.decided_nothing():
        terminalreporter.line("No check came to a verdict on any device: this run says nothing, and is not green.")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One worker per device and not per core: checks of one device do not run beside each other."""
    if not runs_checks(config):
        return None
    return max(1, len({target.device.name for target in inventory_of(config).targets}))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All checks of a device stay on one worker."""
    from xdist.scheduler import LoadScopeScheduling

    if not runs_checks(config):
        return None

    class DeviceScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            device = re.search(r"\[([^/\]]+)/", nodeid)
            return device[1] if device else nodeid

    return DeviceScheduling(config, log)
