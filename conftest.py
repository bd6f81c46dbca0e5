# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The suite as a pytest plugin: conformance/session/."""

pytest_plugins = ["conformance.session"]
