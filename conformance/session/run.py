# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What this process tries: the machine and its targets, found once, before any check is imported."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import inventory
from conformance.config import Config, load
from conformance.device import Machine
from conformance.native import BuildError
from conformance.verbs.machine import open_machine

CHECKS = Path(__file__).resolve().parent.parent / "checks"

_MACHINE = pytest.StashKey[Machine]()
_INVENTORY = pytest.StashKey[inventory.Inventory]()
_PROVIDERS = pytest.StashKey[Config]()


def runs_checks(config: pytest.Config) -> bool:
    """Is any check among what was asked for, or only tests of the suite itself?"""
    asked = [(config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args]
    return any(CHECKS.is_relative_to(path) or path.is_relative_to(CHECKS) for path in asked)


def distributes(config: pytest.Config) -> bool:
    """Do other processes run the checks, those of pytest-xdist?"""
    return getattr(config.option, "dist", "no") != "no" and not is_worker(config)


def is_worker(config: pytest.Config) -> bool:
    """Is this process one of pytest-xdist's?"""
    return hasattr(config, "workerinput")


def is_open(config: pytest.Config) -> bool:
    """Were the targets found? Not if the session ended before that."""
    return _INVENTORY in config.stash


def inventory_of(config: pytest.Config) -> inventory.Inventory:
    """The targets of this run; loads the reference device if it is to stand in. Ends pytest on bad configuration."""
    if not is_open(config):
        _open(config)
    return config.stash[_INVENTORY]


def machine_of(config: pytest.Config) -> Machine:
    inventory_of(config)
    return config.stash[_MACHINE]


def providers_of(config: pytest.Config) -> Config:
    """The providers file."""
    inventory_of(config)
    return config.stash[_PROVIDERS]


def _open(config: pytest.Config) -> None:
    option = config.option
    try:
        providers = load(option.providers)
        machine = open_machine(
            providers,
            reference=option.reference,
            simulate=option.reference_devices,
            faults=tuple(option.reference_fault),
            variant=option.reference_variant,
        )
        found = inventory.targets(providers, machine.devices)
    except (ValueError, BuildError) as error:  # the file, a name of a fault or variant, or no compiler
        raise pytest.UsageError(str(error)) from None
    config.stash[_PROVIDERS], config.stash[_MACHINE], config.stash[_INVENTORY] = providers, machine, found


def pytest_configure(config: pytest.Config) -> None:
    if runs_checks(config):
        signal.signal(signal.SIGTERM, _interrupt)
        if is_worker(config):  # xdist ends one by SIGINT, which what a shell starts in the background ignores
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, _: object) -> None:
    """What CI sends to end a run; its workers get it too, or from the controller what Ctrl-C brings."""
    raise KeyboardInterrupt(signal.Signals(number).name)


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt() -> None:
    _hold_signals_back()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    if runs_checks(session.config):
        _hold_signals_back()
    return (yield)


def _hold_signals_back() -> None:
    """A run that ends already is not to be ended before its reports are written. tox, for one, passes on a Ctrl-C that
    the terminal has sent to all.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """The reference device, if used, must be there before any module of the checks imports pyverbs."""
    if runs_checks(session.config):
        inventory_of(session.config)
