# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""All that touches pytest, but for the checks themselves: the plugins that make a pytest session a run of the suite."""

pytest_plugins = [
    "conformance.session.options",
    "conformance.session.run",
    "conformance.session.selection",
    "conformance.session.fixtures",
    "conformance.session.endings",
    "conformance.session.giving_up",
    "conformance.session.workers",
    "conformance.session.kernel_log",
    "conformance.session.waivers",
    "conformance.session.recorder",
    "conformance.session.summary",
]
