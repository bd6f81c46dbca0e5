# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A pytest plugin that runs the checks in another order each: `-p tests.shuffle` with SHUFFLE_SEED set."""

import os
import random

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    random.Random(os.environ["SHUFFLE_SEED"]).shuffle(items)
