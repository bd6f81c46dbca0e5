# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Waivers: what they cover, what becomes of a failure, and which are stale."""

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from conformance import config
from conformance.config import Waiver
from conformance.device import Device, Place, Port
from conformance.inventory import BrokenTarget
from conformance.report.document import load
from conformance.results import Result
from conformance.session.waivers import Waivers
from conformance.verdicts import Verdict
from conformance.waivers import Review, Standing, covers, fits, review
from tests.suite import SuiteRun, run_suite

PORT = Port(1, "ACTIVE", "INFINIBAND", 7, 4096, 1 << 30, ())
DEVICE = Device("mlx5_0", "mlx5", "IB", "22.41.1000", 0x2C9, 4129, (PORT,), (), Place())
TARGET = BrokenTarget("lab", DEVICE, PORT, "required", 10, (), "", "not opened")
KERNEL = "6.12.0-1-amd64"
NAME = "test_what_is_received[mlx5_0/1/cqe128-rc-send-m8-n8-srq-post_send-poll_cq]"


def waiver(**keys: object) -> Waiver:
    return Waiver.model_validate({"checks": ["x"], "reason": "r", "ticket": "t", "until": "2027-01-31", **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"devices": ["mlx5_1", "mlx5_0"]},
        {"devices": ["mlx5_*"]},
        {"driver": "mlx5"},
        {"firmware": ">=22.36, <22.41.1002"},
        {"kernel": "==6.12.*"},
        {"devices": ["mlx5_?"], "driver": "mlx5", "firmware": "==22.41.1000", "kernel": "<6.13"},
    ],
)
def test_a_waiver_fits_a_target_if_all_that_it_gives_fits(keys: dict[str, object]) -> None:
    assert fits(waiver(**keys), TARGET, KERNEL)


@pytest.mark.parametrize(
    "keys",
    [
        {"devices": ["mlx5_1"]},
        {"driver": "rxe"},
        {"firmware": "<22.41.1000"},
        {"kernel": ">=6.13"},
        {"driver": "mlx5", "kernel": "<6.12"},
    ],
)
def test_a_waiver_does_not_fit_a_target_if_anything_differs(keys: dict[str, object]) -> None:
    assert not fits(waiver(**keys), TARGET, KERNEL)


@pytest.mark.parametrize(
    "keys",
    [
        {"clauses": ["discard/receive"], "checks": ()},
        {"clauses": ["read/zeros", "discard/*"], "checks": ()},
        {"checks": ["what_is_received"]},
        {"checks": ["nothing", "rc-send-*-srq"]},
        {"checks": ["cqe128-rc-send-m?-n8"]},
        {"checks": [NAME]},  # as it can be copied from a report
        {"clauses": ["discard/*"], "checks": ["srq"]},
    ],
)
def test_a_waiver_covers_a_check_by_its_clause_or_a_part_of_its_name(keys: dict[str, object]) -> None:
    keys = {key: value for key, value in keys.items() if value != ()}
    known = Waiver.model_validate({"reason": "r", "ticket": "t", "until": "2027-01-31", **keys})
    assert covers(known, "discard/receive", NAME)


@pytest.mark.parametrize(
    "keys",
    [{"clauses": ["read/*"]}, {"checks": ["rc-write"]}, {"clauses": ["discard/*"], "checks": ["-rq-"]}],
)
def test_a_waiver_does_not_cover_a_check_if_anything_differs(keys: dict[str, object]) -> None:
    known = Waiver.model_validate({"reason": "r", "ticket": "t", "until": "2027-01-31", **keys})
    assert not covers(known, "discard/receive", NAME)


@pytest.mark.parametrize(("today", "holds"), [(date(2027, 1, 31), True), (date(2027, 2, 1), False)])
def test_a_waiver_holds_up_to_and_on_its_last_day(today: date, holds: bool) -> None:
    known = config.Config(Path("providers.yaml"), {}, {(): 1}, (waiver(checks=["received"]),))
    waivers = Waivers(known, [TARGET], today)
    found = waivers.waiver_of("discard/receive", TARGET.id, f"conformance/checks/test_discard.py::{NAME}")
    assert (found is not None) == holds


def test_a_waiver_may_name_a_device_that_looks_like_a_glob() -> None:
    odd = replace(TARGET, device=replace(DEVICE, name="bnxt_re[1]"))
    assert fits(waiver(devices=["bnxt_re[1]"]), odd, KERNEL)


STANDING = Standing("f:9: waivers[0]", "known (#1)", "2999-01-01", "FAIL", False, True, True, ("a", "b", "c"))
SUBJECT = "f:9: waivers[0]: known (#1), until 2999-01-01: "


def reviewed(verdicts: dict[str, Verdict], waives: str = "FAIL", **changes: object) -> Review:
    standing = replace(STANDING, **changes)  # type: ignore[arg-type]
    waived = {Verdict.WAIVED: waives, Verdict.FAIL: ""}
    gathered = [
        Result(check, "read/zeros", "t", verdict, "", waived=waived.get(verdict, ""))
        for check, verdict in verdicts.items()
    ]
    return review([standing], gathered)


PASSES = {"a": Verdict.PASS, "b": Verdict.PASS, "c": Verdict.PASS}


def test_a_waiver_that_was_needed_is_told_with_its_reason() -> None:
    found = reviewed({**PASSES, "b": Verdict.WAIVED})
    assert found == Review(used=(f"{SUBJECT}1 of 3 checks WAIVED",), idle=(), stale=())


def test_a_waiver_is_stale_if_all_its_checks_pass() -> None:
    assert reviewed(PASSES).stale == (f"{SUBJECT}all its checks pass (3, and 0 are skipped); remove it",)
    assert reviewed({**PASSES, "c": Verdict.SKIPPED}).stale == (
        f"{SUBJECT}all its checks pass (2, and 1 are skipped); remove it",
    )


@pytest.mark.parametrize(
    "verdicts",
    [
        {"a": Verdict.PASS, "b": Verdict.PASS},  # c was not selected, or not reached
        {},
        {**PASSES, "c": Verdict.OBSERVED},
        dict.fromkeys("abc", Verdict.SKIPPED),
    ],
)
def test_a_waiver_is_not_stale_while_one_of_its_checks_has_not_passed(verdicts: dict[str, Verdict]) -> None:
    assert reviewed(verdicts) == Review((), (), ())


def test_a_waiver_of_broken_checks_is_used_if_it_says_so_and_listed_if_not() -> None:
    found = reviewed({**PASSES, "b": Verdict.WAIVED}, waives="BROKEN", verdict="BROKEN")
    assert found == Review(used=(f"{SUBJECT}1 of 3 checks WAIVED (BROKEN)",), idle=(), stale=())
    found = reviewed({**PASSES, "b": Verdict.BROKEN})
    assert found.idle == (f"{SUBJECT}1 of its checks are BROKEN, which only `verdict: BROKEN` waives",)
    assert reviewed({**PASSES, "b": Verdict.BROKEN, "c": Verdict.FAIL}) == Review((), (), ())
    assert reviewed({**PASSES, "b": Verdict.WAIVED}, waives="BROKEN") == Review((), (), ())
    assert len(reviewed(PASSES, verdict="BROKEN").stale) == 1


def test_a_waiver_is_stale_if_it_matches_no_check() -> None:
    [line] = reviewed(PASSES, checks=()).stale
    assert line.startswith(f"{SUBJECT}it matches no check")


def test_of_a_part_of_the_checks_nothing_is_concluded() -> None:
    assert reviewed(PASSES, collected=False) == Review((), (), ())
    assert reviewed(PASSES, collected=False, checks=()) == Review((), (), ())


def test_a_waiver_for_other_machines_is_not_stale() -> None:
    found = reviewed(PASSES, checks=(), fits=False)
    assert found == Review((), (f"{SUBJECT}no target of this run fits it",), ())


def test_a_waiver_past_its_date_is_stale_wherever_it_is_read() -> None:
    [line] = reviewed({}, expired=True, fits=False, collected=False).stale
    assert "it is past its date and waives nothing" in line


FAULT = ("--reference", "--reference-fault=leaks-to-address", "--search=0", "-k", "rc-send")
NEVER = "reason: known, ticket: '#7', until: 2999-01-01"


def run_with(folder: Path, waivers: list[str], *arguments: str, checks: tuple[str, ...] = ()) -> SuiteRun:
    path = folder / "providers.yaml"
    lines = ["providers: {lab: {driver: reference, null_mr: required}}", "waivers:", *(f"- {{{w}}}" for w in waivers)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return run_suite(f"--providers={path}", *arguments, checks=checks or ("conformance/checks",))


DISCARD = ("conformance/checks/test_discard.py",)


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_waived_failure_leaves_the_run_green_and_is_listed(workers: str, tmp_path: Path) -> None:
    run = run_with(tmp_path, [f"clauses: ['discard/*'], {NEVER}"], *FAULT, workers, checks=DISCARD)
    waived = run.counts()["WAIVED"]
    assert run.status == 0, run.output
    assert waived > 0
    assert run.counts()["FAIL"] == 0
    assert {case.text.splitlines()[0] for case in run.cases if case.verdict == "WAIVED"} == {"WAIVED: known (#7)"}
    line = rf"^waiver .*providers\.yaml:3: waivers\[0\]: known \(#7\), until 2999-01-01: {waived} of \d+ checks WAIVED$"
    assert re.search(line, run.output, re.M), run.output
    assert re.search(r"^ref0/1 +discard .* WAIVED$", run.output, re.M)
    assert re.search(rf"^=+ .*\b{waived} xfailed in ", run.output, re.M)


def test_a_waived_crash_counts_once(tmp_path: Path) -> None:
    """One of the two checks dies, and the other is not run again."""
    fatal = ("--reference", "--reference-fault=crash", "--scenario=rc-write-n64-remote-rq-post_send-poll_cq", "-n1")
    run = run_with(tmp_path, [f"clauses: ['discard/*'], {NEVER}"], *fatal, checks=DISCARD)
    assert run.counts() == {"WAIVED": 2}
    assert re.search("^=+ 2 xfailed in ", run.output, re.M)
    assert run.status == 0


def test_a_waiver_waives_only_what_it_covers(tmp_path: Path) -> None:
    run = run_with(tmp_path, [f"clauses: [discard/leaves-memory], checks: [-srq-], {NEVER}"], *FAULT, checks=DISCARD)
    assert run.status == 1
    covered = {case for case in run.cases if case.clause == "discard/leaves-memory" and "-srq-" in case.name}
    assert {case.verdict for case in covered} == {"PASS", "WAIVED"}
    assert {case.verdict for case in set(run.cases) - covered} == {"PASS", "FAIL"}


def test_a_waiver_for_another_device_waives_nothing(tmp_path: Path) -> None:
    run = run_with(tmp_path, [f"clauses: ['discard/*'], devices: [ref1], {NEVER}"], *FAULT, checks=DISCARD)
    assert run.status == 1
    assert run.counts()["WAIVED"] == 0
    assert "waivers[0]: known (#7), until 2999-01-01: no target of this run fits it" in run.output


def test_a_waiver_past_its_date_waives_nothing_and_is_told(tmp_path: Path) -> None:
    expired = "clauses: ['discard/*'], reason: known, ticket: '#7', until: 2020-01-01"
    run = run_with(tmp_path, [expired], *FAULT, checks=DISCARD)
    assert run.status == 1
    assert run.counts()["WAIVED"] == 0
    assert "STALE WAIVER" in run.output
    assert "it is past its date and waives nothing" in run.output


def test_the_proof_of_a_waived_failure_can_be_shown(tmp_path: Path) -> None:
    run = run_with(tmp_path, [f"clauses: ['discard/*'], {NEVER}"], *FAULT, "-rx", "--xfail-tb", checks=DISCARD)
    assert run.status == 0
    assert re.search(r"^WAIVED .* - WAIVED: known \(#7\)$", run.output, re.M)
    assert re.search(r"=> responder's canary of scatter\[0\]: .* bytes wrong", run.output)


SMALL = "providers: {a: {driver: reference, null_mr: required, environments: [{name: cqe128, MLX5_CQE_SIZE: 128}]}}"
WRONG = ("--reference", "--reference-fault=tests.unsound:SmallResultsWrong", "--search=20", "--search-seed=1")


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_known_broken_is_waived_where_the_waiver_says_so(workers: str, tmp_path: Path) -> None:
    """Read and atomic results in large completions, which some libraries get wrong on ordinary memory."""
    path = tmp_path / "providers.yaml"
    path.write_text(f"{SMALL}\nwaivers:\n- {{checks: [/cqe128], verdict: BROKEN, {NEVER}}}")
    selected = ("-k", "key or gone or bind or found", workers, f"--reports={tmp_path}")
    run = run_suite(*WRONG, *selected, f"--providers={path}", checks=("conformance/checks",))
    assert run.status == 0, run.output
    waived = run.counts()["WAIVED"]
    assert run.counts().keys() - {"SKIPPED"} == {"PASS", "WAIVED"}  # on demand they cannot be told from lacking
    assert re.search(rf": {waived} of \d+ checks WAIVED \(BROKEN\)$", run.output, re.M), run.output
    assert re.search(r"^ref0/1/cqe128 +key .* WAIVED \(BROKEN\)$", run.output, re.M), run.output
    (written,) = load(tmp_path / "results.json").runs
    known = [result for result in written.results if result.verdict is Verdict.WAIVED]
    assert {result.waived for result in known} == {"BROKEN"}
    assert all(result.text.startswith("BROKEN: known (#7)\n") for result in known)
    assert len(known) == waived


def test_a_waiver_of_broken_hides_no_failure(tmp_path: Path) -> None:
    both = (*FAULT, "--reference-fault=tests.unsound:SmallResultsWrong")
    run = run_with(tmp_path, [f"clauses: ['discard/*'], verdict: BROKEN, {NEVER}"], *both, checks=DISCARD)
    assert run.status == 1
    assert run.counts()["FAIL"] > 0
    assert run.counts()["WAIVED"] == 0


def test_a_run_in_which_all_is_waived_as_broken_is_not_green(tmp_path: Path) -> None:
    path = tmp_path / "providers.yaml"
    known = f"waivers: [{{checks: [test], verdict: BROKEN, {NEVER}}}]"
    path.write_text(f"providers: {{lab: {{driver: reference, null_mr: required, gid: 7}}}}\n{known}", encoding="utf-8")
    run = run_suite("--reference", f"--providers={path}", checks=("conformance/checks/test_key.py",))
    assert run.status == 5, run.output
    assert set(run.counts()) == {"WAIVED"}
    assert "is not green" in run.output


def test_broken_is_waived_by_no_waiver_that_does_not_say_so(tmp_path: Path) -> None:
    path = tmp_path / "providers.yaml"
    known = f"waivers: [{{checks: [test], {NEVER}}}]"
    path.write_text(f"providers: {{lab: {{driver: reference, null_mr: required, gid: 7}}}}\n{known}", encoding="utf-8")
    run = run_suite("--reference", f"--providers={path}", checks=("conformance/checks/test_allocate.py",))
    assert run.status == 1
    assert set(run.counts()) == {"BROKEN"}


STALE = [
    f"clauses: [read/zeros], {NEVER}",
    f"checks: [no-such-check], {NEVER}",
    "clauses: [read/zeros], reason: old, ticket: t, until: 2020-01-01",
]


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
@pytest.mark.parametrize("known", STALE)
def test_a_stale_waiver_fails_only_a_strict_run(known: str, workers: str, tmp_path: Path) -> None:
    options = ("--reference", workers, "-k", "read/zeros")  # all that the first waiver covers, and little more
    lenient = run_with(tmp_path, [known], *options)
    strict = run_with(tmp_path, [known], *options, "--conformance-strict")
    assert (lenient.status, strict.status) == (0, 1), strict.output
    assert lenient.output.count("STALE WAIVER") == strict.output.count("STALE WAIVER") == 1


@pytest.mark.parametrize(
    "selection",
    [
        ("-k", "rereg"),  # none of its checks
        ("-k", "arrives_as_zeros and rc-send and srq"),  # a part of its checks, which pass
    ],
)
@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_selection_makes_no_waiver_stale(selection: tuple[str, str], workers: str, tmp_path: Path) -> None:
    known = [f"clauses: [read/zeros], {NEVER}"]
    run = run_with(tmp_path, known, "--reference", "--search=0", "--conformance-strict", workers, *selection)
    assert run.status == 0, run.output
    assert run.counts()["PASS"] > 0
    assert "STALE WAIVER" not in run.output


def test_one_file_of_checks_makes_no_waiver_stale(tmp_path: Path) -> None:
    known = [f"clauses: [discard/receive], {NEVER}", f"checks: [test_the_result], {NEVER}"]
    checks = ("conformance/checks/test_read.py",)
    run = run_with(tmp_path, known, "--reference", "--search=0", "--conformance-strict", checks=checks)
    assert run.status == 0, run.output
    assert "STALE WAIVER" not in run.output
