# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A pytest plugin, `-p tests.vanishing`: what $VANISHES names is gone when a worker looks, after the controller has:
the providers file, or the last reference device."""

import os
from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    if os.environ["VANISHES"] == "file":
        config.option.providers.unlink()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if os.environ["VANISHES"] == "device" and worker.get("workerid") == "gw1":
        config.option.reference_devices -= 1
