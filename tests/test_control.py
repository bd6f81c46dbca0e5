# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""--control tries the model on ordinary memory, whether or not the device has null MRs."""

import re
from pathlib import Path

import pytest

from conformance import config
from tests.suite import run_suite
from vm import reproducers

PROVIDERS = """\
providers: {reference: {driver: reference, simulate: 1, null_mr: %s}}
waivers: [{%s, reason: small messages, ticket: T-1, until: 2999-12-31}]
"""
LEAVES_MEMORY = "conformance/checks/test_discard.py::test_no_work_request_can_be_found_that_writes_there"


def providers(folder: Path, promise: str, waiver: str) -> str:
    path = folder / "providers.yaml"
    path.write_text(PROVIDERS % (promise, waiver))
    return f"--providers={path}"


def test_every_scenario_windows_and_the_promise_are_tried_on_a_device_without_null_mrs(tmp_path: Path) -> None:
    file = providers(tmp_path, "absent", "clauses: [free/no-leak]")
    run = run_suite("--reference", "--reference-variant=no-null-mr", "--control", "--search=5", file)
    assert run.status == 0, run.output
    assert run.clauses("PASS") == {
        "discard/completion",
        "discard/event",
        "allocate/fails-cleanly",
        "misuse/bind-refused",
    }
    assert run.counts()["PASS"] > 500


def test_a_promise_that_is_not_kept_fails_the_control_run_too(tmp_path: Path) -> None:
    file = providers(tmp_path, "required", "clauses: [free/no-leak]")
    run = run_suite("--reference", "--reference-variant=no-null-mr", "--control", "--search=0", "-k", "allocate", file)
    assert run.clauses("FAIL") == {"allocate/returns-mr"}


def test_the_control_of_windows_runs_only_with_control() -> None:
    run = run_suite("--reference", "-k", "ordinary_memory_takes_a_window")
    assert run.cases == ()


def test_windows_that_open_nothing_on_ordinary_memory_are_broken() -> None:
    options = ("--reference", "--control", "--reference-fault=tests.unsound:NothingRemote")
    run = run_suite(*options, "-k", "takes_a_window")
    assert run.counts() == {"BROKEN": 2}


@pytest.mark.parametrize(
    ("waiver", "verdict"),
    [
        ("checks: ['-srq-']", "PASS"),  # names every scenario that fails: they are passed over
        ("checks: ['-rq-']", "FAIL"),
        ("clauses: [discard/leaves-memory]", "WAIVED"),  # covers the search itself
        ("checks: ['writes_there']", "WAIVED"),
        ("checks: ['q-']", "SKIPPED"),  # names every scenario that there is
    ],
)
def test_a_search_passes_over_the_scenarios_that_a_waiver_names(tmp_path: Path, waiver: str, verdict: str) -> None:
    file = providers(tmp_path, "required", waiver)
    options = ("--reference", "--reference-fault=srq-leak-32", "--search=300", "--search-seed=1", file)
    run = run_suite(*options, checks=(LEAVES_MEMORY,))
    assert run.counts() == {verdict: 1}, run.output


def test_the_guests_known_failures_are_of_one_posting_api_and_none_of_the_others() -> None:
    waivers = config.load(Path(reproducers.__file__).with_name("providers.yaml")).waivers
    assert {waiver.driver for waiver in waivers} == {"rxe"}
    (waiver,) = (waiver for waiver in waivers if waiver.verdict == "FAIL")
    assert all("wr_set_sge_list" in pattern for pattern in waiver.checks)


def test_the_reproducers_that_are_compared_in_the_guest_are_of_all_kinds() -> None:
    parts = {part for scenario in reproducers.SCENARIOS for part in re.split("-", scenario)}
    assert parts >= {"rc", "uc", "ud", "xrc", "rq", "srq", "poll_cq", "cq_ex"}
    assert parts >= {"post_send", "wr_set_sge", "wr_set_sge_list"}
    assert parts >= {"send", "send_imm", "write", "write_imm", "read", "cmp_swp", "fetch_add"}


@pytest.mark.parametrize("promise", ["absent", "required"])
def test_a_waiver_of_checks_that_a_control_run_leaves_out_is_not_called_stale(tmp_path: Path, promise: str) -> None:
    file = providers(tmp_path, promise, "clauses: [free/no-leak]")
    variant = ("--reference-variant=no-null-mr",) if promise == "absent" else ()
    run = run_suite("--reference", *variant, "--control", "--search=0", "--conformance-strict", file)
    assert run.status == 0, run.output


def test_an_operation_that_is_broken_on_ordinary_memory_breaks_only_the_checks_that_use_it(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text("providers: {a: {driver: reference, null_mr: required, environments: [{MLX5_CQE_SIZE: 128}]}}")
    options = ("--reference", "--reference-fault=tests.unsound:SmallResultsWrong", "--search-seed=1")
    run = run_suite(
        *options, f"--providers={file}", "-k", "(key or misuse or found or come_back or (lkey and rc)) and not sequence"
    )
    assert run.clauses("FAIL") == set(), run.output
    broken = {case.name for case in run.cases if case.verdict == "BROKEN"}
    assert {case.clause for case in run.cases if case.name in broken} == {
        "key/no-rkey",
        "misuse/bind-harmless",
        "read/zeros-after-write",
        "allocate/lkey-valid",
        "observe/lkey-as-rkey",
    }
    for name in broken:
        assert re.search(r"read|cmp_swp|fetch_add|test_the_response", name), name
    found = [case for case in run.cases if "can_be_found" in case.name]
    assert [case.verdict for case in found] == 4 * ["PASS"]
