# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A pytest plugin, `-p tests.hidden`: the kernel has a device that libibverbs does not show, for want of permission or
of a provider library."""

import pytest

from conformance import kernel


@pytest.hookimpl(tryfirst=True)
def pytest_addoption() -> None:
    kernel.device_names = lambda sysfs=kernel.SYSFS: ["mlx5_0"]
