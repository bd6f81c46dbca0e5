# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A provider that dies or hangs costs one check."""

import re
from collections import Counter
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from conformance.report.document import load
from conformance.session.workers import ENOUGH_PENDING, Collected, DeviceScheduling
from conformance.watch import last_step
from tests.suite import SuiteRun, run_suite

FATAL = "rc-write-n64-remote-rq-post_send-poll_cq"
HARMLESS = "rc-read-remote-n64-rq-post_send-poll_cq"


def run_fatal(folder: Path, fault: str, *arguments: str) -> SuiteRun:
    """Two scenarios: in the first the provider dies or hangs, the second comes after it."""
    providers = folder / "providers.yaml"
    providers.write_text("providers:\n  lab: {driver: reference, null_mr: required, timeout: 0.2}\n")
    return run_suite(
        "--reference",
        f"--reference-fault={fault}",
        f"--providers={providers}",
        f"--scenario={FATAL}",
        f"--scenario={HARMLESS}",
        *arguments,
        checks=("conformance/checks/test_discard.py",),
    )


@pytest.mark.parametrize("done", [0, 1, 2, 5, 8, 9, 10])
def test_pending_checks_are_counted_as_far_as_xdist_tells_them_apart(
    done: int, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    units = {"ref0": {str(at): at < done for at in range(5)}, "ref1": {str(at): at < done for at in range(5, 10)}}
    scheduling = DeviceScheduling(pytestconfig, None)
    ours, all_of_them = scheduling._pending_of(units), LoadScopeScheduling._pending_of(scheduling, units)
    assert min(ours, ENOUGH_PENDING) == min(all_of_them, ENOUGH_PENDING)


def test_what_is_collected_has_places() -> None:
    ids = [f"test_{number}" for number in range(10)]
    collected = Collected(ids)
    assert collected == ids
    assert [collected.index(id) for id in ids] == list(range(10))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("crash", "the process died of SIGSEGV inside a verbs call"),
        ("hang", "a verbs call did not return in time; the process was ended (SIGALRM)"),
    ],
)
def test_the_check_fails_with_clause_and_scenario_and_the_rest_is_run(tmp_path: Path, fault: str, words: str) -> None:
    run = run_fatal(tmp_path, fault, "-n", "auto")
    failed = [case for case in run.cases if case.verdict == "FAIL"]
    assert {case.clause for case in failed} == {"discard/leaves-memory", "discard/completion"}
    for case in failed:
        assert case.target == "ref0/1"
        assert f"=> {words}" in case.text
        assert "RC RDMA_WRITE of 64 bytes, posted by ibv_post_send, polled by ibv_poll_cq" in case.text
        assert f"scenario: {FATAL}" in case.text
        assert f"clause {case.clause}: " in case.text
        assert "/verbs/executor.py" in case.text
        assert "/_pytest/" not in case.text
    assert run.clauses("PASS") == {"discard/leaves-memory", "discard/completion", "discard/read-response"}
    assert len(run.cases) == 5
    assert re.search(r"ref0/1 +discard +3 +2 .*FAIL", run.output)
    assert run.status == 1


def test_a_crash_is_told_with_settings_address_library_and_the_stack_of_its_thread(tmp_path: Path) -> None:
    providers = tmp_path / "providers.yaml"
    entry = "{driver: reference, null_mr: required, environments: [{name: big, MLX5_CQE_SIZE: 128}]}"
    providers.write_text(f"providers:\n  lab: {entry}\n")
    arguments = (f"--scenario={FATAL}", f"--providers={providers}", "-n1", "-k", "completion")
    run = run_suite("--reference", "--reference-fault=tests.deadly:DiesInLibc", *arguments)
    (case,) = (case for case in run.cases if case.clause == "discard/completion")
    lines = case.text.splitlines()
    assert "ref0/1/big (reference), with MLX5_CQE_SIZE=128" in lines
    assert "=> the process died of SIGSEGV inside a verbs call, at address 0x8" in lines
    native, python = (lines.index(f"{kind} stack, innermost call first:") for kind in ("native", "Python"))
    assert re.fullmatch(r"  /\S+/libc\.so\.6\(.*\+0x[0-9a-f]+\)", lines[native + 1])
    assert not [line for line in lines[native:python] if re.search(r"/python3[0-9.]*\(|\[0x", line)]
    assert re.fullmatch(r'  File ".*/tests/deadly\.py", line \d+ in read_null', lines[python + 1])
    assert "execnet" not in case.text


def test_devices_that_die_at_the_same_time_cost_one_check_each() -> None:
    run = run_suite(
        "--reference",
        "--reference-devices=2",
        "--reference-fault=crash",
        f"--scenario={FATAL}",
        f"--scenario={HARMLESS}",
        "-n2",
        checks=("conformance/checks/test_discard.py",),
    )
    verdicts = Counter((case.target, case.verdict) for case in run.cases)
    assert verdicts == {
        ("ref0/1", "FAIL"): 2,
        ("ref0/1", "PASS"): 3,
        ("ref1/1", "FAIL"): 2,
        ("ref1/1", "PASS"): 3,
    }
    assert run.status == 1


def test_a_device_whose_processes_die_too_often_is_given_up_and_others_go_on(tmp_path: Path) -> None:
    run = run_suite(
        "--reference",
        "--reference-devices=2",
        "--reference-fault=tests.deadly:FirstDies",
        "--max-worker-restart=1",
        "-n2",
        f"--reports={tmp_path}",
        checks=("conformance/checks/test_key.py",),
    )
    verdicts = Counter((case.target, case.verdict) for case in run.cases)
    assert verdicts == {("ref0/1", "FAIL"): 2, ("ref0/1", "BROKEN"): 25, ("ref1/1", "PASS"): 27}
    for case in run.cases:
        if case.verdict == "BROKEN":
            assert "not run: ref0 is given up, because more than 1 processes died of its checks" in case.text
            assert (
                "the process died of SIGSEGV inside a verbs call (conformance/checks/test_key.py::test_its" in case.text
            )
    assert run.status == 1
    (written,) = load(tmp_path / "results.json").runs
    assert (written.interrupted, written.not_run, len(written.results)) == (False, (), 54)


@pytest.mark.parametrize(("option", "crashes"), [("-x", 1), ("--maxfail=3", 3)])
def test_crashes_count_as_failures_do(option: str, crashes: int) -> None:
    run = run_suite(
        "--reference",
        "--reference-fault=tests.deadly:FirstDies",
        option,
        "-n1",
        checks=("conformance/checks/test_key.py",),
    )
    assert run.counts() == {"FAIL": crashes}
    assert f"stopping after {crashes} failures" in run.output
    assert f"NOT RUN ref0/1: {27 - crashes} checks were not run" in run.output
    assert run.status == pytest.ExitCode.INTERRUPTED


def test_a_hang_in_one_process_ends_with_the_stack(tmp_path: Path) -> None:
    run = run_fatal(tmp_path, "hang", "-n0")
    assert run.status == -14
    assert "/verbs/executor.py" in run.output


def run_vanishing(folder: Path, what: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> SuiteRun:
    """It is gone when a worker looks, and was there when the controller looked."""
    monkeypatch.setenv("VANISHES", what)
    providers = folder / "providers.yaml"
    providers.write_text("providers:\n  lab: {driver: reference, null_mr: required}\n")
    options = ("-p", "tests.vanishing", "--reference", f"--providers={providers}", f"--reports={folder}", "-n2")
    return run_suite(*options, *arguments, checks=("conformance/checks/test_key.py",))


def test_a_worker_that_fails_at_its_start_ends_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with --providers=<(cat FILE), which only the controller can read."""
    run = run_vanishing(tmp_path, "file", monkeypatch)
    assert re.search(
        rf"worker gw\d failed at its start: {tmp_path}/providers.yaml: cannot be read: No such", run.output
    )
    assert run.status == pytest.ExitCode.INTERRUPTED
    (written,) = load(tmp_path / "results.json").runs
    assert (written.interrupted, written.results) == (True, ())


def test_workers_that_see_different_devices_end_the_run_with_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_vanishing(tmp_path, "device", monkeypatch, "--reference-devices=2")
    assert "Different tests were collected between gw" in run.output
    assert "test_its_rkey_is_not_that_of_a_live_mr[ref1/1]" in run.output
    assert run.status == 1


@pytest.mark.parametrize("space", ["", " "], ids=["before glibc 2.41", "since"])
def test_native_frames_are_told_without_their_addresses(space: str, tmp_path: Path) -> None:
    (tmp_path / "gw0.journal").write_text("[]")
    (tmp_path / "gw0.stack").write_text(f"address: 0x0\n/lib/libc.so.6(+0x17c2d8){space}[0x7f996e34aac0]\n")
    assert last_step(tmp_path / "gw0.journal")[1].native == ("/lib/libc.so.6(+0x17c2d8)",)
