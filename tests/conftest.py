# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The tests of the suite run on the reference device."""

from hypothesis import settings

from conformance import reference
from conformance.verbs import shim

settings.register_profile("tests", derandomize=True, deadline=None)
settings.load_profile("tests")


def pytest_pycollect_makemodule() -> None:
    """Before the first test module is imported, and pyverbs with it. (pytest may read this file for the checks too.)"""
    shim.load()
    reference.load(devices=2)
    library = reference.library_path()
    assert library is not None
    shim.forward_to(library)
