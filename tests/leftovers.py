# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A pytest plugin, `-p tests.leftovers`: what each process of a run leaves on the reference devices, written into the
folder $LEFTOVERS: (keys, queue pairs) of each device.

It looks when the process ends. An interrupt may come in the middle of a check, whose own objects pyverbs closes when
Python lets go of it; what is there after that, nobody has.
"""

import atexit
import gc
import os
from pathlib import Path

import pytest

from conformance.reference.libibverbs.devices import fabric


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    atexit.register(_look)


def _look() -> None:
    gc.collect()
    left = [(len(device.lkeys), len(device.qps)) for device in fabric.devices]
    Path(os.environ["LEFTOVERS"], str(os.getpid())).write_text(str(left))
