# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A whole run of the suite: which devices it tries, how it ends, and what it says."""

import os
import re
import sys
from pathlib import Path

import pytest

from conformance.report.document import load
from conformance.verdicts import Verdict
from tests.suite import ROOT, run_suite

KEY = ("conformance/checks/test_key.py",)
ALLOCATE = ("conformance/checks/test_allocate.py",)
READ = ("conformance/checks/test_read.py",)


def providers(folder: Path, entry: str) -> str:
    path = folder / "providers.yaml"
    path.write_text(f"providers:\n  lab: {entry}\n")
    return f"--providers={path}"


def test_the_header_and_the_summary_say_that_the_device_is_simulated() -> None:
    run = run_suite("--reference", checks=ALLOCATE)
    notes = re.findall("^NOTE: the reference device .simulated. is used, because it was asked for$", run.output, re.M)
    assert len(notes) == 2


def test_the_summary_has_a_line_for_each_target_and_group() -> None:
    run = run_suite("--reference", "--reference-devices=2", checks=ALLOCATE)
    assert re.search(r"^ref0/1 +allocate +\d+ .*PASS$", run.output, re.M)
    assert re.search(r"^ref1/1 +allocate +\d+ .*PASS$", run.output, re.M)
    assert {case.target for case in run.cases} == {"ref0/1", "ref1/1"}


def test_a_selection_that_matches_nothing_is_not_green() -> None:
    run = run_suite("--reference", "-k", "no-such-check")
    assert run.status == 5


def test_a_run_in_which_everything_is_skipped_is_not_green(tmp_path: Path) -> None:
    entry = providers(tmp_path, "{driver: reference, null_mr: optional}")
    run = run_suite("--reference", "--reference-variant=no-null-mr", entry, checks=READ)
    assert set(run.counts()) == {"SKIPPED"}
    assert run.status == 5
    assert "this run says nothing, and is not green" in run.output


def test_a_test_of_the_suite_is_not_let_off_where_a_check_would_be(tmp_path: Path) -> None:
    path = tmp_path / "test_own.py"
    path.write_text(
        "from conformance.verdicts import LackingError\n\ndef test_own():\n    raise LackingError('no such thing')\n"
    )
    run = run_suite("-p", "conftest", f"--rootdir={ROOT}", checks=(str(path),))
    assert run.counts() == {"FAIL": 1}


@pytest.mark.parametrize("promise", ["optional", "absent"])
def test_a_device_without_null_mrs_may_have_none_if_it_promises_none(tmp_path: Path, promise: str) -> None:
    entry = providers(tmp_path, f"{{driver: reference, null_mr: {promise}}}")
    run = run_suite("--reference", "--reference-variant=no-null-mr", entry)
    assert run.status == 0
    assert run.clauses("PASS") == {"allocate/fails-cleanly"}
    assert f"errno 95 (EOPNOTSUPP: Operation not supported)); its entry promises {promise}" in run.output


def test_a_device_that_must_have_null_mrs_fails_one_clause_without(tmp_path: Path) -> None:
    entry = providers(tmp_path, "{driver: reference, null_mr: required}")
    run = run_suite("--reference", "--reference-variant=no-null-mr", entry)
    assert run.status == 1
    assert run.clauses("FAIL") == {"allocate/returns-mr"}
    assert "; its entry in providers.yaml says null_mr: required" in run.output


def test_a_device_that_promises_none_and_has_them_fails(tmp_path: Path) -> None:
    entry = providers(tmp_path, "{driver: reference, null_mr: absent}")
    run = run_suite("--reference", entry, checks=ALLOCATE)
    assert run.status == 1
    assert run.clauses("FAIL") == {"allocate/fails-cleanly"}
    assert "say optional or required if the device has them now" in run.output


@pytest.mark.parametrize(
    ("promise", "fault", "words"),
    [
        ("absent", "errno-unset", "errno 0 (not set), expected EOPNOTSUPP"),
        ("absent", "errno-negative", "errno -95 (negative; -ENOTSUP), expected EOPNOTSUPP"),
        ("absent", "failed-alloc-holds-pd", "ibv_dealloc_pd after failed allocations: "),
        ("optional", "errno-unset", "errno 0 (not set), expected a positive errno"),
        ("optional", "errno-negative", "errno -95 (negative; -ENOTSUP), expected a positive errno"),
    ],
)
def test_a_failing_allocation_must_fail_cleanly(tmp_path: Path, promise: str, fault: str, words: str) -> None:
    entry = providers(tmp_path, f"{{driver: reference, null_mr: {promise}}}")
    run = run_suite("--reference", f"--reference-fault={fault}", entry, checks=ALLOCATE)
    assert run.clauses("FAIL") == {"allocate/fails-cleanly"}
    assert run.status == 1
    assert words in run.output


def test_a_port_that_the_file_names_and_cannot_be_used_is_broken(tmp_path: Path) -> None:
    entry = providers(tmp_path, "{driver: reference, null_mr: required, gid: 7}")
    run = run_suite("--reference", entry, checks=ALLOCATE)
    assert run.status == 1
    assert set(run.counts()) == {"BROKEN"}
    assert "ref0/1" in run.output
    assert "GID" in run.output
    assert not [case.name for case in run.cases if "-post_send-" in case.name]  # a broken target has no scenarios


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reference", "--reference-fault=no-such-fault"), "no-such-fault"),
        (("--reference", "--reference-variant=no-such-variant"), "no-such-variant"),
        (("--providers=/nowhere/providers.yaml",), "/nowhere/providers.yaml"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_names_it(arguments: tuple[str, ...], message: str) -> None:
    run = run_suite(*arguments)
    assert run.status == 4
    assert re.search(f"^ERROR: .*{re.escape(message)}", run.output, re.M)
    assert "Traceback" not in run.output


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({}, "/pyverbs/__init__.py was built for another Python (No module named 'pyverbs.device')"),
        (
            {"device.py": "raise ImportError('IBVERBS_PRIVATE_59 not found')"},
            "it needs the libibverbs that it was built with; see PYTHONPATH and LD_LIBRARY_PATH (IBVERBS_PRIVATE_59 no",
        ),
    ],
)
@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_pyverbs_that_does_not_fit_is_one_line(
    workers: str, device: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyverbs").mkdir()
    for name, text in {"__init__.py": "", **device}.items():
        (tmp_path / "pyverbs" / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    run = run_suite("--reference", workers)
    assert run.status == 4
    (line,) = run.output.strip().splitlines()
    assert line.startswith(f"ERROR: {sys.executable} cannot load pyverbs: ")
    assert words in line


def test_all_mistakes_of_the_file_are_told_at_once(tmp_path: Path) -> None:
    entry = providers(tmp_path, "{driver: reference, null_mr: maybe, gidd: 3}")
    run = run_suite("--reference", entry)
    assert run.status == 4
    assert "providers.lab.null_mr" in run.output
    assert "providers.lab.gidd" in run.output


def test_each_device_has_a_worker_of_its_own() -> None:
    run = run_suite("--reference", "--reference-devices=2", "-n", "auto", "-v", checks=ALLOCATE)
    workers: dict[str, set[str]] = {}
    for worker, device in re.findall(r"^\[(gw\d+)\].*\[(ref\d+)/1", run.output, re.M):
        workers.setdefault(device, set()).add(worker)
    assert sorted(workers) == ["ref0", "ref1"]
    assert all(len(of) == 1 for of in workers.values())
    assert workers["ref0"] != workers["ref1"]
    assert run.status == 0


def test_one_device_has_one_worker_however_many_cores_there_are() -> None:
    """With the suite named as tox.ini names it."""
    run = run_suite("-p", "conformance.session", "--reference", "-n", "auto", checks=KEY)
    assert "created: 1/1 worker" in run.output
    assert run.status == 0


def test_a_failure_shows_the_whole_proof() -> None:
    scenario = "rc-send-m64-n64-rq-post_send-poll_cq"
    run = run_suite("--reference", "--reference-fault=leaks-to-address", f"--scenario={scenario}")
    assert run.status == 1
    for line in (
        r"ref0/1 \(reference\), GID 1 \(RoCE v2, [0-9a-f:]+\), MTU 1024",
        "RC SEND of 64 bytes, posted by ibv_post_send, polled by ibv_poll_cq",
        r"gather:  \[0\] memory 64 at 0x[0-9a-f]+",
        r"scatter: \[0\] NULL MR 64 at 0x[0-9a-f]+ \(canary\) \(receive queue\)",
        "requester completed: IBV_WC_SUCCESS IBV_WC_SEND\n",
        r"responder completed: IBV_WC_SUCCESS IBV_WC_RECV byte_len=64",
        r"=> responder's canary of scatter\[0\]: 63 of 64 bytes wrong, first at offset 0: "
        r"0x[0-9a-f]{2}, expected 0x[0-9a-f]{2}; bytes 0..7 are",
        f"scenario: {scenario}",
        "control: the same work request on ordinary memory ends as it must",
        r"clause discard/leaves-memory: nothing is ever written .* \(ibv_alloc_null_mr\(3\) DESCRIPTION: ",
    ):
        assert re.search(line, run.output), f"{line}\n{run.output}"


def test_k_takes_the_id_of_a_clause() -> None:
    run = run_suite("--reference", "-k", "discard/atomic-result or free/succeeds")
    assert {case.clause for case in run.cases} == {"discard/atomic-result", "free/succeeds"}
    assert run.status == 0


def test_live_memory_comes_first_and_searches_last() -> None:
    run = run_suite("--reference", "--collect-only", "-q")
    # The names of checks that run many scenarios do not tell which addresses they try.
    lines = [line for line in run.output.splitlines() if "::" in line]
    names = [line for line in lines if "traffic" not in line and not line.endswith("-depth]")]
    ranks = [2 if "found" in name else int("@" in name.partition("[")[2]) for name in names]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}


@pytest.mark.parametrize(("variant", "thing"), [("no-xrc", "XRC"), ("no-wr-api", "ibv_wr_*"), ("no-cq-ex", "CQ-ex")])
def test_what_a_device_lacks_is_one_line_of_the_summary_and_whole_in_the_reports(
    variant: str, thing: str, tmp_path: Path
) -> None:
    options = ("--reference", f"--reference-variant={variant}", f"--reports={tmp_path}", "-k", "lkey_is_accepted")
    run = run_suite(*options, checks=("conformance/checks/test_allocate.py",))
    skipped = run.counts()["SKIPPED"]
    lines = [line for line in run.output.splitlines() if " SKIPPED (" in line]
    assert lines == [f"ref0/1: {skipped} SKIPPED (allocate/lkey-valid): the device has no {thing}"]
    (written,) = load(tmp_path / "results.json").runs
    reasons = {result.text for result in written.results if result.verdict is Verdict.SKIPPED}
    assert len(reasons) > 1
    assert all(reason.startswith("ref0 has no") for reason in reasons)
