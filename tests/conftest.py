# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The tests of the suite run on the reference device."""


def pytest_pycollect_makemodule() -> None:
    """Before the first test module is imported, and pyverbs with it. (pytest reads this file for the checks too: they
    must neither get the reference device from here nor wait for Hypothesis.)"""
    from hypothesis import settings

    from conformance.verbs import machine

    settings.register_profile("tests", derandomize=True, deadline=None)
    settings.load_profile("tests")
    machine.load_reference(devices=2)
