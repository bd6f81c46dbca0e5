# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a run found, as data."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import ConfigDict

from conformance.clauses import GROUPS, group_of
from conformance.verdicts import Verdict


@dataclass(frozen=True)
class Result:
    """How one check of one clause ended on one target."""

    __pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    nodeid: str
    """pytest's name of the check, with its target and scenario in brackets"""
    clause: str
    """the clause's id; `python -m conformance clauses` prints its requirement"""
    target: str
    """the target's id, device/port; after a host and a colon where several hosts took part"""
    verdict: Verdict
    """PASS, FAIL, BROKEN (the rig), SKIPPED, WAIVED or OBSERVED"""
    text: str
    """the failure, the reason of a skip, or what was observed"""
    scenario: str = ""
    """id of the work request or of the sequence of steps, which conformance.sequences.parse reads; empty for checks
    that have none"""
    seconds: float = 0.0
    """how long the check took, without set-up and clean-up"""
    reproducer: str = ""
    """path of a C program that shows the failure"""
    kernel_log: str = ""
    """what the kernel logged while the check ran"""
    lacks: str = ""
    """what the device lacks, if that is why the check was skipped and the thing has a short name, such as XRC"""
    rate: int = 0
    """work requests a second under stress; 0 for checks that measure none"""
    waived: str = ""
    """what a waiver covers, FAIL or BROKEN; empty if none does"""

    @property
    def is_waived_broken(self) -> bool:
        """Did the rig allow no verdict, which is known?"""
        return self.waived == Verdict.BROKEN.value

    @property
    def group(self) -> str:
        """The clause's group, also where this suite no longer knows the clause."""
        return group_of(self.clause)


def counts(results: Sequence[Result]) -> dict[tuple[str, str], Counter[Verdict]]:
    """Verdicts by (target, clause group), targets in order of appearance and groups in the order of the page."""
    found: dict[tuple[str, str], Counter[Verdict]] = {}
    for target in dict.fromkeys(result.target for result in results):
        for group in GROUPS:
            of = [r.verdict for r in results if r.target == target and r.group == group]
            if of:
                found[target, group] = Counter(of)
    return found


def decided_nothing(results: Iterable[Result]) -> bool:
    """No check came to a verdict on any device: such a run must not be green."""
    decided = {Verdict.PASS, Verdict.FAIL, Verdict.WAIVED}
    return not any(result.verdict in decided and not result.is_waived_broken for result in results)
