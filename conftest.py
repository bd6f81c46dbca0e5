# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wiring of the suite into pytest: options, fixtures, parametrization, verdicts."""

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import __version__, containment, inventory, kernel, kernel_log
from conformance.checks import tables
from conformance.config import load
from conformance.locks import DeviceLock
from conformance.native import BuildError
from conformance.report import provenance, recorder, results, terminal
from conformance.report.document import CIRCUMSTANCES, Circumstances
from conformance.scenarios import Address, Scenario
from conformance.verdicts import BrokenError, Failure, LackingError
from conformance.waivers import Review, Waivers, review

ROOT = Path(__file__).parent
CHECKS = ROOT / "conformance" / "checks"

CONTROL = (
    "--control: ordinary memory in place of every null MR; this tries the suite's model on the device, "
    "and says of its null MRs only whether they can be had"
)

SEED = "null-mr/search-seed"
"""Key of the last run's seed in pytest's cache."""

RESULTS = pytest.StashKey[results.Results]()
MACHINE = pytest.StashKey[inventory.Machine]()
INVENTORY = pytest.StashKey[inventory.Inventory]()
WAIVERS = pytest.StashKey[Waivers]()
RECORDER = pytest.StashKey[recorder.Recorder]()
UNWRITTEN = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("null MR conformance")
    group.addoption(
        "--providers", type=Path, default=ROOT / "providers.yaml", help="which devices to try (%(default)s)"
    )
    group.addoption("--reference", action="store_true", help="try the simulated reference device")
    group.addoption(
        "--reference-devices", type=_number(1, 64), metavar="N", help="how many reference devices, up to 64"
    )
    group.addoption(
        "--reference-fault",
        action="append",
        default=[],
        metavar="NAME",
        help="break the reference device in this way (repeatable); see conformance/reference/faults",
    )
    group.addoption("--reference-variant", metavar="NAME", help="another conforming reference device")
    group.addoption("--exhaustive", action="store_true", help="run the whole product of the scenario matrix")
    group.addoption(
        "--scenario",
        action="append",
        default=[],
        type=_scenario,
        metavar="ID",
        help="run only this scenario (repeatable), with every check that it is for",
    )
    group.addoption(
        "--control",
        action="store_true",
        help="run every scenario on ordinary memory alone: does the suite's model hold on this device?",
    )
    group.addoption(
        "--search",
        type=_number(0),
        default=100,
        metavar="N",
        help="random scenarios of each search (%(default)s; 0: none)",
    )
    group.addoption("--search-seed", type=int, metavar="SEED", help="repeat the search of this seed")
    group.addoption(
        "--reports", type=Path, metavar="DIR", help="write results.json, junit.xml and report.html into this folder"
    )
    group.addoption("--ktap", type=Path, metavar="FILE", help="write the results as KTAP")
    group.addoption("--anonymous", action="store_true", help="leave host names and addresses out of these reports")
    group.addoption(
        "--no-wait", action="store_true", help="a device that another run uses is BROKEN; do not wait until it is free"
    )
    group.addoption(
        "--lock-dir",
        type=Path,
        metavar="DIR",
        help="lock files in this folder, in place of the devices' folders in sysfs: for containers that share it",
    )
    group.addoption(
        "--conformance-strict",
        action="store_true",
        help="what a SHOULD clause finds fails the run too, and so does a waiver that is out of date or needless",
    )


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            allowed = f"{least} to {most}" if most is not None else f"{least} or more"
            raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number, {allowed}")
        return int(text)

    return number


def _scenario(text: str) -> Scenario:
    try:
        return Scenario.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"scenario id {text!r}: {error}") from None


def _search_seed(config: pytest.Config) -> int:
    """A new seed for each run; with --lf that of the last one, so that what a search found is found again."""
    seed = secrets.randbelow(2**32)
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    if cache is not None:
        if config.option.lf:
            seed = cache.get(SEED, seed)
        cache.set(SEED, seed)
    return seed


def pytest_configure(config: pytest.Config) -> None:
    if config.option.search_seed is None:  # the workers of xdist get the controller's options
        config.option.search_seed = _search_seed(config)
    config.addinivalue_line("markers", "clause(id): the requirement that a check proves")
    config.addinivalue_line("markers", "scenarios(select): run once per scenario of select(target)")
    config.addinivalue_line("markers", "control(only=False): run with --control too, or only then")
    config.stash[RESULTS] = results.Results()
    config.pluginmanager.register(config.stash[RESULTS])
    config.stash[RECORDER] = recorder.Recorder()
    config.pluginmanager.register(config.stash[RECORDER])
    if runs_checks(config):
        signal.signal(signal.SIGTERM, _interrupt)
        distributes = _distributes(config)
        if distributes and config.option.maxworkerrestart is None:
            config.option.maxworkerrestart = str(containment.MAX_CRASHES)
        if not distributes:
            config.pluginmanager.register(containment.Worker(config))
        else:
            config.pluginmanager.register(containment.Controller(config))


def _interrupt(number: int, _: object) -> None:
    """What CI sends to end a run; its workers get it too, or from the controller what Ctrl-C brings."""
    raise KeyboardInterrupt(signal.Signals(number).name)


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
        config.stash[WAIVERS] = Waivers(providers, config.stash[INVENTORY].targets)
        config.pluginmanager.register(config.stash[WAIVERS])
        if not machine.simulated:
            config.pluginmanager.register(_kernel_log(config))
    return config.stash[INVENTORY]


def _kernel_log(config: pytest.Config) -> kernel_log.Watcher:
    targets = config.stash[INVENTORY].targets
    return kernel_log.Watcher(
        {target.id: (target.device.name, target.device.driver) for target in targets},
        controller=_distributes(config),
    )


def _distributes(config: pytest.Config) -> bool:
    """Do other processes run the checks, those of pytest-xdist?"""
    return getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")


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
    if config.option.control:
        lines.append(f"NOTE: {CONTROL}")
    lines += [f"target {target.id}: {_words(target)}" for target in found.targets]
    lines.append(f"random search: {config.option.search} scenarios each, --search-seed={config.option.search_seed}")
    lines += [f"left out {name}: {reason}" for name, reason in found.left_out]
    return lines


def _words(target: inventory.Target) -> str:
    gid = f"GID {target.gid.index} {target.gid.type}" if target.gid else f"LID {target.port.lid:#x}"
    broken = f", BROKEN: {target.broken}" if target.broken else ""
    settings = f", with {target.settings}" if target.settings else ""
    return f"{target.device.driver}, firmware {target.device.fw_ver}, {gid}, null MR {target.null_mr}{settings}{broken}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" not in metafunc.fixturenames:
        return
    targets = inventory_of(metafunc.config).targets
    marker = metafunc.definition.get_closest_marker("scenarios")
    if marker is None:
        metafunc.parametrize("target", targets, ids=[target.id for target in targets])
        return
    option = metafunc.config.option
    if option.control and metafunc.definition.get_closest_marker("control") is None:
        targets = ()  # it is not wanted, and thousands of scenarios take a while to collect
    runs = (tables.Cases(target, option.exhaustive, tuple(option.scenario)) for target in targets)
    cases = [
        (run.target, scenario)
        for run in runs
        if run.target.device.limits is not None  # it was opened; if not, the other checks say so
        if run.target.null_mr != "absent" or option.control  # a target without null MRs has nothing to try them on
        for scenario in marker.args[0](run)
        if not run.named or scenario in run.named
    ]
    ids = [f"{target.id}-{scenario}" for target, scenario in cases]
    metafunc.parametrize(("target", "scenario"), cases, ids=ids)


@pytest.hookimpl(tryfirst=True)  # before -k chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not _is_wanted(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_wanted(item, config)]
    items.sort(key=_danger)
    if runs_checks(config):  # one device after the other: a process holds the lock of one at a time
        devices = {target.device.name: place for place, target in enumerate(inventory_of(config).targets)}
        items.sort(key=lambda item: devices.get(_device(item), -1))
    for item in items:
        marker = item.get_closest_marker("clause")
        if marker is None:
            continue
        params = item.callspec.params  # type: ignore[attr-defined]  # every check is parametrized with its target
        item.extra_keyword_matches.add(marker.args[0])  # so that -k takes a clause's id
        item.user_properties.append((results.CLAUSE, marker.args[0]))
        item.user_properties.append((results.TARGET, params["target"].id))
        if "scenario" in params:
            item.user_properties.append((results.SCENARIO, str(params["scenario"])))


def _device(item: pytest.Item) -> str:
    """The name of the device that a check tries; empty for other tests."""
    target = item.callspec.params.get("target") if hasattr(item, "callspec") else None
    return target.device.name if isinstance(target, inventory.Target) else ""


def _danger(item: pytest.Item) -> int:
    """Checks that name live memory come first: others may crash a process that could have shown a leak."""
    if item.get_closest_marker("clause") is None:
        return 0
    scenario = item.callspec.params.get("scenario")  # type: ignore[attr-defined]
    if isinstance(scenario, Scenario):
        return int(any(segment.address is not Address.CANARY for segment in scenario.segments))
    return 2 if "search" in item.fixturenames else 0  # type: ignore[attr-defined]


def _is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    """With --scenario, the checks that run scenarios; with --control, those marked so; never one that stands for an
    empty selection."""
    clause = item.get_closest_marker("clause")
    if clause is None:
        return True
    if not isinstance(item.callspec.params["target"], inventory.Target):  # type: ignore[attr-defined]
        return False
    control = item.get_closest_marker("control")
    if config.option.control and control is None:
        return False
    if not config.option.control and control is not None and control.kwargs.get("only"):
        return False
    return item.get_closest_marker("scenarios") is not None or not config.option.scenario


@pytest.fixture(scope="session")
def device_lock(pytestconfig: pytest.Config) -> Iterator[DeviceLock]:
    """The lock of the device that is tried. A simulated device is its process's own, and needs none."""
    inventory_of(pytestconfig)
    option = pytestconfig.option
    folder = option.lock_dir or (None if pytestconfig.stash[MACHINE].simulated else kernel.SYSFS)
    lock = DeviceLock(folder, wait=not option.no_wait, say=lambda text: _say(pytestconfig, text))
    yield lock
    lock.release()


def _say(config: pytest.Config, text: str) -> None:
    """Tell people something while checks run. A worker has no terminal, but the controller's stderr."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{text}", file=sys.stderr, flush=True)


@pytest.fixture(scope="session")
def benches(device_lock: DeviceLock) -> Iterator[dict[inventory.Target, Any]]:
    """The benches of the locked device's targets, made when first needed; a target that cannot be opened keeps its
    BrokenError."""
    opened: dict[inventory.Target, Any] = {}
    yield opened
    _close(opened)


def _close(benches: dict[inventory.Target, Any]) -> None:
    while benches:
        _, bench = benches.popitem()
        if not isinstance(bench, BrokenError):
            bench.close()


@pytest.fixture
def environment(target: inventory.Target) -> Iterator[None]:
    """The target's environment variables. A provider reads some when it opens a device, some when it makes a CQ."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in target.environment:
            patch.setenv(variable, value)
        yield


@pytest.fixture
def bare_bench(
    target: inventory.Target,
    environment: None,
    benches: dict[inventory.Target, Any],
    device_lock: DeviceLock,
    pytestconfig: pytest.Config,
) -> Any:
    """The target's bench, whether or not the device has a null MR."""
    from conformance.verbs.bench import Bench

    if not device_lock.is_on(target.device.name):
        _close(benches)
    if target not in benches:
        try:
            if not target.broken:
                device_lock.move_to(target.device.name)
            benches[target] = Bench(target, control_only=pytestconfig.option.control)
        except BrokenError as broken:
            benches[target] = broken
    if isinstance(benches[target], BrokenError):
        raise benches[target].with_traceback(None)  # it would grow with each check that raises it again
    return benches[target]


@pytest.fixture
def bench(bare_bench: Any) -> Any:
    """The target's bench with a null MR; skips where the device gives none."""
    from conformance.verbs.null_mr import NullMRError

    if bare_bench.control_only:
        return bare_bench
    try:
        bare_bench.null_mr  # noqa: B018
    except NullMRError as error:
        pytest.skip(f"the device gives no null MR ({error}); its entry promises {bare_bench.target.null_mr}")
    return bare_bench


@pytest.fixture
def search(request: pytest.FixtureRequest, target: inventory.Target) -> Any:
    """How to search; skips where searching is switched off."""
    from conformance.search import Search

    option = request.config.option
    if not option.search:
        pytest.skip("--search 0")
    clause = request.node.get_closest_marker("clause").args[0]

    def is_waived(nodeid: str) -> bool:
        return request.config.stash[WAIVERS].waiver_of(clause, target.id, nodeid) is not None

    def is_known(scenario: Scenario) -> bool:
        """Does a waiver name this scenario? One that covers the whole search waives what that finds."""
        nodeid = request.node.nodeid
        return not is_waived(nodeid) and is_waived(f"{nodeid.removesuffix(']')}-{scenario}]")

    return Search(option.search, option.search_seed, is_known)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Add a property to the check's report."""
    return lambda name, value: request.node.user_properties.append((name, value))


@pytest.fixture
def strict(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.option.conformance_strict)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """What a device lacks skips the check, and so does another null MR that it does not give, but where that is what
    the clause is about; an exception inside the reference device breaks it.
    """
    from conformance.verbs.null_mr import NullMRError

    clause = pyfuncitem.get_closest_marker("clause")
    try:
        return (yield)
    except (LackingError, NullMRError) as reason:
        if clause is None:  # a test of the suite itself, which nothing lets off
            raise
        if isinstance(reason, NullMRError) and clause.args[0].startswith("allocate/"):
            raise
        pytest.skip(str(reason))
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
        if not call.excinfo.errisinstance(Failure):  # nobody said that the device is to blame
            report.when = "setup"
        if call.excinfo.errisinstance((BrokenError, Failure)):
            report.longrepr = item._repr_failure_py(call.excinfo, style="value")
        if isinstance(call.excinfo.value, Failure) and call.excinfo.value.scenario and item.config.option.reports:
            _add_reproducer(report, item.config, call.excinfo.value.scenario, str(call.excinfo.value))
    return report


@pytest.hookimpl(trylast=True)
def pytest_handlecrashitem(report: pytest.TestReport, sched: Any) -> None:
    scenario = dict(report.user_properties).get(results.SCENARIO)
    if scenario and sched.config.option.reports:
        _add_reproducer(report, sched.config, Scenario.parse(str(scenario)), report.longreprtext)


def _add_reproducer(report: pytest.TestReport, config: pytest.Config, scenario: Scenario, finding: str) -> None:
    """Write a C program that shows the failure, and say where."""
    from conformance.report import reproducer  # few runs need it, and it takes long to import

    properties = dict(report.user_properties)
    target = next(target for target in inventory_of(config).targets if target.id == properties[results.TARGET])
    folder = config.option.reports / "reproducers"
    try:
        path = reproducer.write_for(folder, target, scenario, str(properties[results.CLAUSE]), finding)
    except OSError as error:
        report.sections.append(("C reproducer", f"not written: {error}"))
        return
    report.user_properties.append((results.REPRODUCER, str(path)))
    report.sections.append(("C reproducer", str(path)))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not runs_checks(session.config) or INVENTORY not in session.config.stash:
        return
    if hasattr(session.config, "workerinput"):
        if session.config.workerinput.get(recorder.HAND_OVER):
            known = CIRCUMSTANCES.dump_json(_circumstances(session.config)).decode()
            session.config.workeroutput[recorder.HAND_OVER] = known  # type: ignore[attr-defined]  # xdist adds it
        return
    green = exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly
    if green and session.config.stash[RESULTS].decided_nothing():
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    elif green and session.config.option.conformance_strict and _review(session.config).stale:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    unwritten = _write_reports(session)
    session.config.stash[UNWRITTEN] = unwritten
    if unwritten and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _write_reports(session: pytest.Session) -> list[str]:
    """What could not be written, and why."""
    config, option = session.config, session.config.option
    if option.collectonly or not (option.reports or option.ktap):
        return []
    report = config.stash[RECORDER].report(
        _circumstances(config),
        config.stash[RESULTS],
        exit_status=int(session.exitstatus),
        stopped=bool(session.shouldfail or session.shouldstop),
    )
    return recorder.write(report, option.reports, option.ktap, option.anonymous)


def _circumstances(config: pytest.Config) -> Circumstances:
    return provenance.circumstances(
        config.stash[INVENTORY],
        config.stash[MACHINE],
        started=config.stash[RECORDER].started_at,
        taint_before=config.stash[RECORDER].taint_before,
        arguments=config.invocation_params.args,
        seed=config.option.search_seed,
        waivers=tuple(terminal.waivers(_review(config))),
    )


def _review(config: pytest.Config) -> Review:
    return review(config.stash[WAIVERS].standings, config.stash[RESULTS].results)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    gathered = config.stash[RESULTS]
    for problem in config.stash.get(UNWRITTEN, ()):
        terminalreporter.line(f"ERROR: {problem}; the verdict stands, but this report is missing", red=True)
    if not gathered.results:
        return
    terminalreporter.section("null MR conformance")
    if config.stash[MACHINE].simulated:
        terminalreporter.line(f"NOTE: {config.stash[MACHINE].simulated}")
    if config.option.control:
        terminalreporter.line(f"NOTE: {CONTROL}")
    for line in (
        *terminal.skip_reasons(gathered),
        *terminal.observations(gathered),
        *terminal.waivers(_review(config)),
    ):
        terminalreporter.line(line)
    terminalreporter.line("")
    terminalreporter.line(terminal.table(gathered))
    if gathered.decided_nothing():
        terminalreporter.line("No check came to a verdict on any device: this run says nothing, and is not green.")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One worker per device and not per core: checks of one device do not run beside each other."""
    if not runs_checks(config):
        return None
    devices = len({target.device.name for target in inventory_of(config).targets})
    if config.stash[MACHINE].simulated:  # by this machine's cores
        devices = min(devices, len(os.sched_getaffinity(0)))
    return max(1, devices)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # With --dist each, every host runs everything.
    scheduled = runs_checks(config) and config.option.dist != "each"
    return containment.DeviceScheduling(config, log) if scheduled else None
