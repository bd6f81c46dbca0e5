# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How a check can end."""

from __future__ import annotations

from enum import Enum

from conformance.load import Load
from conformance.outcome import Aspect
from conformance.scenarios import Scenario
from conformance.sequences import Sequence


class Verdict(Enum):
    """From the least that a check can say to the worst."""

    SKIPPED = "SKIPPED"
    """the device lacks what the check needs; the reason says what"""
    OBSERVED = "OBSERVED"
    """recorded, not judged"""
    PASS = "PASS"
    WAIVED = "WAIVED"
    """a known failure that providers.yaml lists"""
    BROKEN = "BROKEN"
    """the rig, not the device: port down, no GID, or the control on ordinary memory does not pass"""
    FAIL = "FAIL"
    """the device breaks the clause"""


_FROM_LEAST = tuple(Verdict)


def worse_of(*verdicts: Verdict) -> Verdict:
    """The one of them that decides. Raises ValueError for none."""
    return max(verdicts, key=_FROM_LEAST.index)


class Failure(AssertionError):
    """The device breaks a clause: FAIL. The text is the whole proof.

    `scenario` is the work request or the sequence that was run, if it was one; `shown_by_scenario`: alone it shows the
    failure again. `aspects`: what it shows something about. `clause`: the one that is broken, where it is not that of
    the check. `load`: the stress that shows it.
    """

    def __init__(
        self,
        text: str,
        scenario: Scenario | Sequence | None = None,
        shown_by_scenario: bool = True,
        aspects: frozenset[Aspect] = frozenset(),
    ) -> None:
        super().__init__(text)
        self.scenario = scenario
        self.shown_by_scenario = shown_by_scenario
        self.aspects = aspects
        self.clause: str | None = None
        self.load: Load | None = None


class BrokenError(Exception):
    """The rig does not allow a verdict: BROKEN, which pytest shows as an error. `scenario` is what was run, if anything
    was."""

    def __init__(self, text: str, scenario: Scenario | Sequence | None = None) -> None:
        super().__init__(text)
        self.scenario = scenario


class LackingError(Exception):
    """The device lacks what the check needs: SKIPPED. `lacks` is that thing, where it has a short name."""

    def __init__(self, text: str, lacks: str = "") -> None:
        super().__init__(text)
        self.lacks = lacks
