# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices whose queue pairs the suite cannot connect: what needs traffic is SKIPPED and says why, the rest is judged.

Some of the devices are wrong: --reference-fault=tests.test_transports:Absent.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from conformance.reference.engine.device import Device
from conformance.reference.engine.errors import Refused
from conformance.reference.engine.objects import MR, PD
from tests.suite import SuiteRun, run_suite

ALLOCATION = ("conformance/checks/test_allocate.py",)
MISUSE = ("conformance/checks/test_misuse.py",)


class Absent(Device):
    """It has no null MRs."""

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(errno.EOPNOTSUPP, "no null MRs")


class AbsentWithEinval(Device):
    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(errno.EINVAL, "no null MRs")


class AbsentAndSpoilsThePd(Absent):
    """No memory can be registered on a PD any more on which it was asked for one."""

    def alloc_null_mr(self, pd: PD) -> MR:
        pd.users.add("spoilt")
        return super().alloc_null_mr(pd)

    def reg_mr(self, pd: PD, *rest: Any, **named: Any) -> MR:
        if "spoilt" in pd.users:
            raise Refused(errno.EINVAL, "spoilt")
        return super().reg_mr(pd, *rest, **named)


class DiesOfRereg(Device):
    """It refuses ibv_rereg_mr, as it refuses everything from then on."""

    is_dead = False

    def rereg_null_mr(self, *arguments: Any) -> None:
        type(self).is_dead = True
        raise Refused(errno.EIO, "dead")

    def reg_mr(self, *arguments: Any, **named: Any) -> MR:
        if self.is_dead:
            raise Refused(errno.EIO, "dead")
        return super().reg_mr(*arguments, **named)


def run(folder: Path, null_mr: str, variant: str, fault: str, checks: tuple[str, ...], *more: str) -> SuiteRun:
    providers = folder / "providers.yaml"
    providers.write_text(f"providers: {{a: {{driver: reference, null_mr: {null_mr}}}}}")
    options = [f"--providers={providers}", "--reference", f"--reference-variant={variant}", "--search=0"]
    options += [f"--reference-fault=tests.test_transports:{fault}"] if fault else []
    return run_suite(*options, "--sequences=0", *more, checks=checks)


@pytest.mark.parametrize("variant", ["iwarp", "ud-and-its-own"])
@pytest.mark.parametrize(("fault", "verdict"), [("Absent", "PASS"), ("AbsentWithEinval", "FAIL")])
def test_absence_is_judged_without_a_connection(variant: str, fault: str, verdict: str, tmp_path: Path) -> None:
    ended = run(tmp_path, "absent", variant, fault, ALLOCATION, "-k", "errno_says_so")
    assert [case.verdict for case in ended.cases] == [verdict], ended.output


@pytest.mark.parametrize("variant", ["iwarp", "ud-and-its-own"])
def test_a_pd_that_a_failed_allocation_spoils_fails(variant: str, tmp_path: Path) -> None:
    ended = run(tmp_path, "absent", variant, "AbsentAndSpoilsThePd", ALLOCATION, "-k", "errno_says_so")
    assert [case.verdict for case in ended.cases] == ["FAIL"], ended.output


def test_a_device_that_died_of_it_has_not_refused(tmp_path: Path) -> None:
    ended = run(tmp_path, "required", "iwarp", "DiesOfRereg", MISUSE, "-k", "rereg_fails")
    assert ended.counts().keys() == {"BROKEN"}
    assert "ibv_rereg_mr with no flags was refused" in ended.output


def test_what_needs_a_connection_is_skipped_and_says_why(tmp_path: Path) -> None:
    ended = run(tmp_path, "required", "iwarp", "", ("conformance/checks",), "-k", "rc-send-m64-n64 or test_free")
    assert ended.counts().keys() == {"PASS", "SKIPPED"}
    assert ended.status == 0
    assert "the device has no RC that ibv_modify_qp connects" in ended.output
    texts = [case.text for case in ended.cases if case.verdict == "SKIPPED"]
    assert any("ref0 is iWARP, where a connection manager connects queue pairs" in text for text in texts)


def test_by_control_datagrams_are_tried_where_there_is_nothing_else(tmp_path: Path) -> None:
    ended = run(tmp_path, "optional", "ud-and-its-own", "", ("conformance/checks/test_discard.py",), "--control")
    passed = {case.name.partition("[ref0/1-")[2].partition("-")[0] for case in ended.cases if case.verdict == "PASS"}
    assert passed == {"ud"}
    assert "BROKEN" not in ended.counts()
