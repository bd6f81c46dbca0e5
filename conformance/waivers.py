# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Known failures: which checks the waivers of providers.yaml cover, and which waivers have had their day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from conformance import versions
from conformance.config import Waiver, is_named
from conformance.inventory import AnyTarget
from conformance.results import Result
from conformance.verdicts import Verdict


@dataclass(frozen=True)
class Standing:
    """What one waiver came to in a run. A worker sends it to the controller as plain data."""

    where: str
    """file, line and key"""
    why: str
    """its reason and ticket"""
    until: str
    """the last day on which it holds"""
    verdict: str
    """what it waives: FAIL or BROKEN"""
    expired: bool
    fits: bool
    """some target that can be tried is one that it is about"""
    collected: bool
    """every check that it could cover was collected, so that `checks` has all that it covers"""
    checks: tuple[str, ...]
    """node ids of the checks that it covers, also those that were deselected later (-k)"""


@dataclass(frozen=True)
class Review:
    """What there is to say of the waivers at the end of a run, one line for each waiver."""

    used: tuple[str, ...]
    idle: tuple[str, ...]
    """about none of the targets of this run, as a file may serve many machines; or about BROKEN, without saying so"""
    stale: tuple[str, ...]
    """to be mended or removed; with --conformance-strict they fail the run"""


def fits(waiver: Waiver, target: AnyTarget, kernel: str) -> bool:
    """Is the waiver about this device, with its firmware, on this kernel (as uname -r gives it)?"""
    device = target.device
    return (
        (not waiver.devices or is_named(device.name, waiver.devices))
        and waiver.driver in ("", device.driver)
        and (not waiver.firmware or versions.within(device.fw_ver, waiver.firmware))
        and (not waiver.kernel or versions.within(kernel, waiver.kernel))
    )


def covers(waiver: Waiver, clause: str, name: str) -> bool:
    """Is the waiver about this check? `name` is the check's, with its target and scenario in brackets."""
    return (not waiver.clauses or any(fnmatchcase(clause, pattern) for pattern in waiver.clauses)) and (
        not waiver.checks or any(_is_part(pattern, name) for pattern in waiver.checks)
    )


def _is_part(pattern: str, name: str) -> bool:
    """A bracket is itself here and begins no character class: names are full of them."""
    return fnmatchcase(name, f"*{pattern.replace('[', '[[]')}*")


def review(standings: Sequence[Standing], gathered: Iterable[Result]) -> Review:
    """Compare what the waivers cover with what the checks came to.

    A waiver is stale if it is past its date, if it covers no check of a target that it is about, or if all checks that
    it covers were run and passed (or were skipped, but not all of them). Of a run that collected only a part of the
    checks, only the date is told.
    """
    verdicts: dict[str, set[Verdict]] = {}
    waived_as: dict[str, set[str]] = {}
    for result in gathered:
        verdicts.setdefault(result.nodeid, set()).add(result.verdict)
        waived_as.setdefault(result.nodeid, set()).add(result.waived)
    used, idle, stale = [], [], []
    for standing in standings:
        came_to = [verdicts.get(check, set()) for check in standing.checks]
        waived = sum(standing.verdict in waived_as.get(check, ()) for check in standing.checks)
        broken = sum(Verdict.BROKEN in each for each in came_to)
        passed = sum(each == {Verdict.PASS} for each in came_to)
        skipped = sum(each == {Verdict.SKIPPED} for each in came_to)
        subject = f"{standing.where}: {standing.why}, until {standing.until}"
        if standing.expired:
            stale.append(f"{subject}: it is past its date and waives nothing; remove it, or renew it")
        elif waived:
            what = "WAIVED (BROKEN)" if standing.verdict == Verdict.BROKEN.value else "WAIVED"
            used.append(f"{subject}: {waived} of {len(came_to)} checks {what}")
        elif not standing.fits:
            idle.append(f"{subject}: no target of this run fits it")
        elif broken and broken + passed + skipped == len(came_to):
            idle.append(f"{subject}: {broken} of its checks are BROKEN, which only `verdict: BROKEN` waives")
        elif standing.collected and not standing.checks:
            stale.append(f"{subject}: it matches no check of the targets that it is about; correct or remove it")
        elif standing.collected and passed and passed + skipped == len(came_to):
            stale.append(f"{subject}: all its checks pass ({passed}, and {skipped} are skipped); remove it")
    return Review(tuple(used), tuple(idle), tuple(stale))


def why(waiver: Waiver) -> str:
    """A waiver in a few words."""
    return f"{waiver.reason} ({waiver.ticket})"
