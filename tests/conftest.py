# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The tests of the suite run on the reference device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conformance.judging import Bench
    from tests.rig import Patch


def pytest_pycollect_makemodule() -> None:
    """Before the first test module is imported, and pyverbs with it. (pytest reads this file for the checks too: they
    must neither get the reference device from here nor wait for Hypothesis.)"""
    from hypothesis import settings

    from conformance.verbs import machine

    settings.register_profile("tests", derandomize=True, deadline=None)
    settings.load_profile("tests")
    machine.load_reference(devices=2)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """The first reference device, by itself. What is lost is not waited for for long."""
    from conformance.judging import Bench
    from tests.rig import TIMEOUT, target

    bench = Bench(replace(target(), timeout=TIMEOUT))
    yield bench
    bench.close()


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """What makes the device do wrong: the name of one of its methods, and what is called in its place."""
    from tests.rig import wrap

    return partial(wrap, monkeypatch)
