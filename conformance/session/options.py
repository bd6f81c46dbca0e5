# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The options that the suite adds to pytest's."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.scenarios import Scenario
from conformance.sequences import Sequence

ROOT = Path(__file__).resolve().parent.parent.parent

SEQUENCES = 50
SEED = "null-mr/search-seed"
"""Key of the last run's seed in pytest's cache."""


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
    group.addoption("--exhaustive", action="store_true", help="run the whole product of the scenario matrix, too")
    group.addoption(
        "--scenario",
        action="append",
        default=[],
        type=_scenario,
        metavar="ID",
        help="run only this scenario, or those of the matrix that a glob fits ('*-srq-*'), with every check that they "
        "are for (repeatable); with --exhaustive, a glob chooses from the whole product",
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
    group.addoption(
        "--sequences",
        type=_number(0),
        default=SEQUENCES,
        metavar="N",
        help="random sequences of steps: null MRs come and go while work requests use them (%(default)s; 0: none)",
    )
    group.addoption(
        "--sequence",
        action="append",
        default=[],
        type=_sequence,
        metavar="ID",
        help="run only this sequence of steps (repeatable)",
    )
    group.addoption(
        "--stress",
        type=_number(1),
        metavar="SECONDS",
        help="also drive many queue pairs from several threads in C for so long, while null MRs come and go (off)",
    )
    group.addoption("--search-seed", type=int, metavar="SEED", help="repeat the search, and the stress, of this seed")
    group.addoption(
        "--reports", type=Path, metavar="DIR", help="write results.json, junit.xml and report.html into this folder"
    )
    group.addoption("--junit-short", action="store_true", help="junit.xml has passes and skips as numbers by clause")
    group.addoption("--junit-per-target", action="store_true", help="junit-TARGET.xml for each, in place of junit.xml")
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


def _scenario(text: str) -> Scenario | str:
    """A scenario, or a glob of ids; `3*n8` in an id is none."""
    try:
        return Scenario.parse(text)
    except ValueError as error:
        if set("*?[") & set(text):
            return text
        raise argparse.ArgumentTypeError(f"scenario id {text!r}: {error}") from None


def _sequence(text: str) -> Sequence:
    try:
        return Sequence.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"sequence id {text!r}: {error}") from None


def pytest_configure(config: pytest.Config) -> None:
    if config.option.stress and config.option.control:
        raise pytest.UsageError("--stress drives null MRs, and with --control there are none: leave one of them out")
    if config.option.search_seed is None:  # the workers of xdist get the controller's options
        config.option.search_seed = _search_seed(config)


def _search_seed(config: pytest.Config) -> int:
    """A new seed for each run; with --lf that of the last one, so that what a search found is found again."""
    seed = secrets.randbelow(2**32)
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    if cache is not None:
        if config.option.lf:
            seed = cache.get(SEED, seed)
        cache.set(SEED, seed)
    return seed
