# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What checks are given."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance import kernel
from conformance.inventory import AnyTarget, BrokenTarget, Target
from conformance.locks import DeviceLock
from conformance.scenarios import Scenario
from conformance.session.giving_up import given_up_of
from conformance.session.properties import NOT_MET, OBSERVED, RATE, clause_of
from conformance.session.run import machine_of, providers_of
from conformance.session.waivers import waivers_of
from conformance.verdicts import BrokenError, Failure, LackingError

# pyverbs, and with it conformance.verbs, must not be imported before the reference device is loaded.


@pytest.fixture(scope="session")
def device_lock(pytestconfig: pytest.Config) -> Iterator[DeviceLock]:
    """The lock of the device that is tried. A simulated device is its process's own, and needs none."""
    option = pytestconfig.option
    folder = option.lock_dir or (None if machine_of(pytestconfig).simulated else kernel.SYSFS)
    lock = DeviceLock(folder, wait=not option.no_wait, say=lambda text: _say(pytestconfig, text))
    yield lock
    lock.release()


def _say(config: pytest.Config, text: str) -> None:
    """Tell people something while checks run. A worker has no terminal, but the controller's stderr."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{text}", file=sys.stderr, flush=True)


@pytest.fixture(scope="session")
def benches(device_lock: DeviceLock) -> Iterator[dict[AnyTarget, Any]]:
    """The benches of the locked device's targets, made when first needed; a target that cannot be opened keeps its
    BrokenError."""
    opened: dict[AnyTarget, Any] = {}
    yield opened
    _close(opened)


def _close(benches: dict[AnyTarget, Any]) -> None:
    while benches:
        _, bench = benches.popitem()
        if not isinstance(bench, BrokenError):
            bench.close()


@pytest.fixture
def environment(target: AnyTarget) -> Iterator[None]:
    """The target's environment variables. A provider reads some when it opens a device, some when it makes a CQ."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in target.environment:
            patch.setenv(variable, value)
        yield


@pytest.fixture
def bare_bench(
    target: AnyTarget,
    environment: None,
    benches: dict[AnyTarget, Any],
    device_lock: DeviceLock,
    pytestconfig: pytest.Config,
) -> Any:
    """The target's bench, whether or not the device has a null MR."""
    from conformance.judging import Bench

    if not device_lock.is_on(*target.devices):
        _close(benches)
    if target not in benches:
        try:
            if isinstance(target, BrokenTarget):
                raise BrokenError(f"{target.id}: {target.reason}")
            device_lock.move_to(*target.devices)
            benches[target] = Bench(target, control_only=pytestconfig.option.control)
        except BrokenError as broken:
            benches[target] = broken
    if isinstance(benches[target], BrokenError):
        raise benches[target].with_traceback(None)  # it would grow with each check that raises it again
    given_up_of(pytestconfig).look_at(benches[target])
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
def is_known(request: pytest.FixtureRequest, target: AnyTarget) -> Callable[[Scenario], bool]:
    """Does a waiver name this scenario, of those that a check runs beside others?"""
    waivers, clause = waivers_of(request.config), str(clause_of(request.node))
    if not providers_of(request.config).waivers:
        return lambda scenario: False

    def is_waived(nodeid: str) -> bool:
        return waivers.waiver_of(clause, target.id, nodeid) is not None

    def is_known(scenario: Scenario) -> bool:
        """One that covers the whole check waives what that finds."""
        nodeid = request.node.nodeid
        return not is_waived(nodeid) and is_waived(f"{nodeid.removesuffix(']')}-{scenario}]")

    return is_known


@pytest.fixture
def search(request: pytest.FixtureRequest, is_known: Callable[[Scenario], bool], observe: Callable[[str], None]) -> Any:
    """How to search; skips where searching is switched off."""
    from conformance.search import Search

    option = request.config.option
    if not option.search:
        pytest.skip("--search 0")
    return Search(option.search, option.search_seed, is_known, observe)


@pytest.fixture(scope="session")
def found_by_sequences() -> dict[AnyTarget, Any]:
    """What the sequences of a target came to: a list of findings, or why there is none. They are run once for all
    clauses."""
    return {}


def _skip_with_a_peer(target: AnyTarget, what: str) -> None:
    if isinstance(target, Target) and target.peer is not None:
        pytest.skip(f"{what} run where both ends of the traffic are on one port")


@pytest.fixture
def try_sequences(
    request: pytest.FixtureRequest, target: AnyTarget, bench: Any, found_by_sequences: dict[AnyTarget, Any]
) -> Callable[[], None]:
    """Raises the Failure of a sequence that breaks the check's clause; skips where no sequences are to be tried."""
    from conformance.sequence_search import SequenceSearch

    option, clause = request.config.option, clause_of(request.node)
    search = SequenceSearch(option.sequences, option.search_seed, tuple(option.sequence))

    def judge() -> None:
        _skip_with_a_peer(target, "sequences are")
        if not option.sequences and not option.sequence:
            pytest.skip("--sequences 0")
        if target not in found_by_sequences:
            try:
                found_by_sequences[target] = search.run(bench)
            except (BrokenError, LackingError) as reason:
                found_by_sequences[target] = reason
        found = found_by_sequences[target]
        if isinstance(found, Exception):
            raise found.with_traceback(None)
        for each in found:
            if each.clause == clause:
                raise each.failure.with_traceback(None)

    return judge


@pytest.fixture
def stress(request: pytest.FixtureRequest, target: AnyTarget) -> Any:
    """How to put the target under stress; the rate that was measured goes to the reports."""
    from conformance.stress import Stress

    _skip_with_a_peer(target, "a stress is")
    option, properties = request.config.option, request.node.user_properties

    def note(words: str, rate: int) -> None:
        properties.extend([(OBSERVED, words), (RATE, rate)])

    return Stress(option.stress, option.search_seed, note)


@pytest.fixture
def check_sweep(
    bench: Any, sweep: Any, is_known: Callable[[Scenario], bool], observe: Callable[[str], None]
) -> Callable[..., None]:
    """Check the traffic of this check for some aspects, but for what waivers name."""

    def check(*aspects: Any) -> None:
        batches = [batch for batch in sweep.batches if not any(map(is_known, batch.scenarios))]
        lacking = bench.check_each(batches, sweep.wanted, *aspects)
        if lacking:
            observe("; ".join(f"{count} of {len(batches)} not tried: {why}" for why, count in lacking.items()))

    return check


@pytest.fixture
def observe(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Record what was seen, for a clause that is not judged or beside its verdict."""
    return lambda text: request.node.user_properties.append((OBSERVED, text))


@pytest.fixture
def not_met(request: pytest.FixtureRequest) -> Callable[[Failure], None]:
    """A SHOULD clause is not met: raises the failure with --conformance-strict, else the check is OBSERVED."""

    def tell(failure: Failure) -> None:
        if request.config.option.conformance_strict:
            raise failure
        request.node.user_properties.append((NOT_MET, "not met"))

    return tell
