# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A pytest plugin, `-p tests.leftovers`: each process that had the reference device writes how many keys and QPs are
left on it into a file of its own in the folder $LEFTOVERS."""

import os
from pathlib import Path

import pytest

from conformance.reference.libibverbs.devices import fabric


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    left = [(len(device.lkeys), len(device.qps)) for device in fabric.devices]
    Path(os.environ["LEFTOVERS"], str(os.getpid())).write_text(str(left))
