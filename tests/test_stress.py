# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The stress finds what needs many queue pairs, deep queues or null MRs that come and go, and its C program agrees."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import config
from conformance.load import KINDS, Load
from conformance.reference.faults import FAULTS
from conformance.report import stress_program
from conformance.verbs.machine import open_machine
from tests.kill_matrix import NEED_STRESS
from tests.suite import Case, SuiteRun, run_suite
from tests.test_reproducer import COMPILERS, MLX5_0, REF0, ROOT, Ran, call_main, compile_strictly

LOAD = Load(KINDS, seed=1, threads=4, pairs=16, requests=2000)
LESS = replace(LOAD, threads=1, pairs=1, still=True)
OPTIONS = ("--reference", "--stress=1", "--search-seed=1", "-k", "under_stress")


def stress(*options: str, reports: Path | None = None) -> SuiteRun:
    more = [f"--reports={reports}"] if reports else []
    return run_suite(*OPTIONS, "--providers=tests/kill_matrix_faults.yaml", *options, *more)


def the_case(run: SuiteRun) -> Case:
    assert len(run.cases) == 1, run.output
    return run.cases[0]


def run_on_reference(built: Path, fault: str = "", variant: str | None = None) -> Ran:
    """Run the program in a process with its own reference device."""
    job = {"program": str(built), "faults": [fault] if fault else [], "variant": variant}
    command = [sys.executable, "-m", "tests.test_stress"]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(job), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Ran(**json.loads(done.stdout))


def run_job() -> None:
    """The process that `run_on_reference` starts."""
    job = json.load(sys.stdin)
    providers = config.load(ROOT / "providers.yaml")
    open_machine(providers, reference=True, simulate=1, faults=tuple(job["faults"]), variant=job["variant"])
    json.dump(call_main(job["program"]), sys.stdout)


def program(source: Path) -> Path:
    return compile_strictly(source, "-shared", "-fPIC", "-pthread", suffix=".so")


def test_a_right_device_passes_and_its_rate_is_in_the_summary_and_in_the_results(tmp_path: Path) -> None:
    run = stress(reports=tmp_path)
    assert the_case(run).verdict == "PASS", run.output
    (result,) = json.loads((tmp_path / "results.json").read_text())["runs"][0]["results"]
    assert result["rate"] > 0
    assert f"ref0/1: stress: {result['text']}" in run.output
    assert f"{result['rate']} a second, on 16 pairs of queue pairs from 4 threads" in result["text"]


def test_without_the_option_nothing_of_it_is_seen() -> None:
    run = run_suite("--reference", "-k", "under_stress or returns_0")
    assert not any("stress" in case.name for case in run.cases)
    assert "stress" not in run.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--stress=0",), "argument --stress: found '0'; allowed: a number, 1 or more"),
        (("--stress", "-5"), "argument --stress: found '-5'; allowed: a number, 1 or more"),
        (("--stress=1", "--control"), "--stress drives null MRs, and with --control there are none"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(options: tuple[str, ...], words: str) -> None:
    assert words in run_suite("--reference", *options).output


@pytest.mark.parametrize("fault", sorted(NEED_STRESS))
def test_a_wrong_device_fails_the_clause_that_it_breaks_and_leaves_a_program_that_agrees(
    fault: str, tmp_path: Path
) -> None:
    run = stress(f"--reference-fault={fault}", reports=tmp_path)
    case = the_case(run)
    assert (case.verdict, case.clause) == ("FAIL", FAULTS[fault].clause), run.output
    assert "WRONG: " in case.text
    assert "(--search-seed=1)" in case.text
    (source,) = (tmp_path / "reproducers").iterdir()
    assert FAULTS[fault].clause in source.read_text()
    ran = run_on_reference(program(source), fault)
    assert ran.status == 1, ran.output
    assert run_on_reference(source.with_suffix(".so")).status == 0


def test_what_one_thread_shows_is_the_same_each_time_with_the_first_wrong_byte() -> None:
    first, second = (the_case(stress("--reference-fault=deep-receive-leak")).text for _ in range(2))
    proof = [
        [line for line in text.splitlines() if "WRONG" in line or line.startswith("    ")] for text in (first, second)
    ]
    assert proof[0] == proof[1]
    assert "--threads=1 --pairs=1" in first
    for words in (
        "canary: ",
        "bytes wrong, first at offset ",
        "    got ",
        "    expected ",
        "in flight there",
        "scatter: ",
    ):
        assert words in "\n".join(proof[0])


def test_where_ordinary_memory_fails_under_the_same_load_the_rig_is_broken() -> None:
    case = the_case(stress("--reference-fault=tests.unsound:GarbledUnderLoad"))
    assert case.verdict == "BROKEN"
    assert "=> could not try: on ordinary memory, requests do not end as they must" in case.text


def test_what_unreliable_transports_lose_is_not_judged() -> None:
    run = stress("--reference-fault=tests.sick:Lossy", "--stress=3")
    assert the_case(run).verdict == "PASS", run.output
    assert re.search(r"work requests \(\d+ not judged, as UD or UC lost some\)", run.output)


@pytest.mark.parametrize("processes", ["-n0", "-n1"])
def test_a_process_that_dies_costs_the_check_alone(processes: str, tmp_path: Path) -> None:
    deadly = "--reference-fault=tests.deadly:DiesUnderLoad"
    run = run_suite(*OPTIONS, "-k", "under_stress or returns_0", deadly, processes, f"--reports={tmp_path}")
    failed = [case for case in run.cases if case.verdict == "FAIL"]
    assert [case.name.partition("[")[0] for case in failed] == ["test_many_queue_pairs_use_many_under_stress"]
    assert "the process died of SIGSEGV" in failed[0].text
    assert len(run.cases) > 1
    assert len(list((tmp_path / "reproducers").iterdir())) == 1


def test_a_process_that_does_not_end_is_ended() -> None:
    from conformance.verbs.stress import run

    ended = run(
        "#include <unistd.h>\nint main(int argc, char **argv) { alarm(argc && argv); return pause(); }\n", (), 1
    )
    assert (ended.status, ended.hung) == (None, True)
    assert "the process did not end in time; it was ended (SIGALRM)" in ended.death


def test_a_device_without_null_mrs_is_not_put_under_stress() -> None:
    run = run_suite(*OPTIONS, "--providers=tests/kill_matrix_absent.yaml", "--reference-variant=no-null-mr")
    assert the_case(run).verdict == "SKIPPED"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_program_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    where = replace(MLX5_0, environment=(("MLX5_CQE_SIZE", "128"),))
    source = stress_program.write(tmp_path, LOAD, where, "free/leaves-others", "a /* finding */")
    compile_strictly(source, "-pthread", compiler=compiler)


def test_the_program_agrees_on_a_right_device_and_counts_what_ended(tmp_path: Path) -> None:
    ran = run_on_reference(program(stress_program.write(tmp_path, LOAD, REF0)))
    assert ran.status == 0, ran.output
    told = json.loads(ran.output.splitlines()[-1])
    assert 2000 <= told["requests"] == told["posted"] == sum(told["counts"].values())
    assert all(told["counts"].values()), "each opcode"


@pytest.mark.parametrize("variant", ["infiniband-grh-required", "infiniband-several-pkeys"])
def test_it_addresses_the_port_as_the_suite_does(variant: str) -> None:
    run = run_suite(*OPTIONS, f"--reference-variant={variant}")
    assert the_case(run).verdict == "PASS", run.output


def test_the_clause_is_that_of_what_cannot_be_left_out() -> None:
    from conformance.stress import Outcome, clause_of  # not in the process of `run_job`: it brings pyverbs along
    from conformance.verbs.stress import Ended

    seen = Outcome(Ended(1, ""), {"clause": "read/zeros", "pair": 0, "posted": 1})
    assert clause_of(LESS, seen) == "read/zeros"
    assert clause_of(replace(LESS, pairs=2), seen) == "allocate/many-queue-pairs"
    assert clause_of(replace(LESS, still=False), seen) == "free/leaves-others"
    busy = Outcome(Ended(1, ""), {"clause": "free/succeeds", "pair": -1, "posted": 1})
    assert clause_of(LOAD, busy) == "free/succeeds"


def test_a_program_of_no_queue_pairs_or_an_unknown_clause_is_refused() -> None:
    with pytest.raises(ValueError, match="no kind of queue pair"):
        stress_program.render(replace(LOAD, kinds=()), REF0)
    with pytest.raises(ValueError, match="is no clause"):
        stress_program.render(LOAD, REF0, "read/ones")


if __name__ == "__main__":
    run_job()
