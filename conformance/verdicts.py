# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How a check can end."""

from enum import Enum

from conformance.scenarios import Scenario


class Verdict(Enum):
    PASS = "PASS"
    FAIL = "FAIL"
    """the device breaks the clause"""
    BROKEN = "BROKEN"
    """the rig, not the device: port down, no GID, or the control on ordinary memory does not pass"""
    SKIPPED = "SKIPPED"
    """the device lacks what the check needs; the reason says what"""
    WAIVED = "WAIVED"
    """a known failure that providers.yaml lists"""
    OBSERVED = "OBSERVED"
    """recorded, not judged"""


class Failure(AssertionError):
    """The device breaks a clause: FAIL. The text is the whole proof; `scenario` shows it again, if there is one."""

    def __init__(self, text: str, scenario: Scenario | None = None) -> None:
        super().__init__(text)
        self.scenario = scenario


class BrokenError(Exception):
    """The rig does not allow a verdict: BROKEN, which pytest shows as an error."""


class LackingError(Exception):
    """The device lacks what the check needs: SKIPPED."""
