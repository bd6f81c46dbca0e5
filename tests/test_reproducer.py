# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The C programs compile without a warning, and on the reference device their verdict is that of the suite.

A program cannot be linked against the reference device, which lives in a Python process. So it is compiled as a
shared object too, and that process calls its main(): the same text, bound to the same ibv_* symbols as pyverbs.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from conformance import config, inventory
from conformance.outcome import Aspect
from conformance.reference.engine.memory import Payload
from conformance.reference.engine.objects import Context, Segment
from conformance.reference.faults.discard import LeaksToAddress
from conformance.report import reproducer
from conformance.report.file_names import LONGEST_PART
from conformance.scenarios import Address, Operation, Ordinary, Poll, Post, Queue, Scenario, Signal, Transport, Wait
from conformance.verbs.machine import open_machine
from conformance.verdicts import Failure

ROOT = Path(__file__).parent.parent
STRICT = ("-Wall", "-Wextra", "-Werror", "-std=c11", "-O1")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
TIMEOUT = 1.0
"""Seconds that the programs wait for a completion: only a lost one is waited for."""
REF0 = reproducer.Where("ref0", 1, 1, TIMEOUT)
MLX5_0 = reproducer.Where("mlx5_0", 1, 3, 5.0)
CQE128 = replace(MLX5_0, environment=(("MLX5_CQE_SIZE", "128"), ("MLX5_SCATTER_TO_CQE", "1")), label="cqe128")

SCENARIOS = (
    "rc-send-m32-n32-srq-post_send-poll_cq",
    "rc-send-m8+n8+m8-m4+n16+m4-rq-wr_set_sge_list-cq_ex",
    "rc-send-n4+m4-n8-rq-post_send-poll_cq",
    "rc-send-m1025-n1024-srq-post_send-cq_ex",
    "rc-send-m65-m32+n32-rq-post_send-poll_cq",
    "rc-send-8*n3+m5-m20+n9-rq-post_send-poll_cq",
    "rc-send-n1073741824@unmapped-n1073741824@unmapped-rq-post_send-poll_cq",
    "rc-send_imm-n32@zero-m64-rq-wr_set_sge-poll_cq",
    "rc-write-n7@top+m9-remote-rq-post_send-cq_ex",
    "rc-write-m64-remote-rq-post_send-poll_cq",
    "rc-write_imm-n1025-m8-srq-wr_set_sge-poll_cq",
    "rc-read-remote-n33+m31-rq-post_send-poll_cq",
    "rc-read-remote-n4096@zero-rq-wr_set_sge_list-cq_ex",
    "rc-cmp_swp-remote-n8-rq-post_send-cq_ex",
    "rc-cmp_swp-remote-m8-rq-wr_set_sge-poll_cq",
    "rc-fetch_add-remote-n8@unmapped-rq-wr_set_sge_list-poll_cq",
    "rc-fetch_add-remote-m8-srq-post_send-poll_cq",
    "uc-send-m64-n32+m32-srq-post_send-poll_cq",
    "uc-send_imm-n1-m1-rq-wr_set_sge_list-cq_ex",
    "uc-write-m8+n8-remote-rq-post_send-poll_cq",
    "uc-write_imm-n64@top-n64-rq-wr_set_sge-cq_ex",
    "ud-send-m64-n40+m64-rq-post_send-poll_cq",
    "ud-send_imm-n64+m8-m40+n72@zero-srq-wr_set_sge_list-cq_ex",
    "xrc-send-m33-n33-srq-post_send-poll_cq",
    "xrc-send_imm-n33-m64-srq-wr_set_sge-cq_ex",
    "xrc-write-n64+m1-remote-srq-post_send-poll_cq",
    "xrc-write_imm-n64-n8-srq-wr_set_sge_list-poll_cq",
    "xrc-read-remote-m8+n64-srq-post_send-cq_ex",
    "xrc-cmp_swp-remote-n8@top-srq-wr_set_sge-poll_cq",
    "xrc-fetch_add-remote-n8-srq-post_send-poll_cq",
    "rc-send-m8-n64+m8-rq-post_send-poll_cq",
    "rc-send-n0+m3-m1+n0+m2-rq-wr_set_sge_list-poll_cq",
    "uc-write-n0-remote-rq-post_send-poll_cq",
    "ud-send-m0-m40+n8-rq-post_send-cq_ex",
    "rc-read-remote-n0-rq-post_send-poll_cq",
    "rc-write-n64-remote-rq-post_send-poll_cq-unsignaled",
    "ud-send-m8-m40+n8-rq-wr_set_sge-cq_ex-unsignaled",
    "xrc-read-remote-n64-srq-wr_set_sge_list-poll_cq-unsignaled-event",
    "rc-send-m8-n8-srq-wr_set_sge-poll_cq-signaled-inline-solicited-solicited_event",
    "uc-send-m3+m5-n8-rq-wr_set_sge_list-poll_cq-inline-solicited_event",
    "rc-send_imm-m3+m5-n4+m4-rq-post_send-poll_cq-inline-event",
    "rc-send_inv-n33-m33-srq-post_send-poll_cq",
    "rc-send_inv-m33-n33-rq-wr_set_sge-cq_ex",
    "rc-send_inv-m8+n8-n16-rq-wr_set_sge_list-poll_cq-event",
    "rc-send-n8+m8-m8+n8-srq-post_send-poll_cq-odp",
    "uc-write-n8+m8-remote-rq-post_send-poll_cq-implicit_odp",
    "rc-cmp_swp-remote-n8-rq-wr_set_sge-poll_cq-zero_based",
    "rc-write_imm-m8+n8-n8-srq-post_send-poll_cq-zero_based",
    "xrc-read-remote-n8+m8-srq-wr_set_sge_list-cq_ex-relaxed_ordering",
    "rc-write-n8+m8-remote-rq-post_send-poll_cq-window",
    "rc-fetch_add-remote-n8-rq-wr_set_sge-cq_ex-window",
    "rc-send-m33-n20@odd+m13@odd-rq-post_send-poll_cq",
    "rc-send-n32@page_end-m32@page_end-srq-wr_set_sge-cq_ex",
    "rc-read-remote-m8+n24@across_page-rq-post_send-poll_cq",
    "uc-send-n9000@across_4gib-m9000@across_page-rq-post_send-poll_cq",
    "rc-write-m8@across_4gib+n24@other_mr-remote-rq-post_send-poll_cq",
    "rc-fetch_add-remote-n8@odd-rq-post_send-poll_cq",
    "ud-send-m64-m40+n5000@other_mr-srq-post_send-poll_cq",
    "rc-send-m32+n16@again-m40+n8@again+o8@again-rq-wr_set_sge_list-poll_cq",
    "xrc-send-n8+o8+m8-o16+n8@odd-srq-post_send-poll_cq",
)

COMPILED = (*SCENARIOS, "rc-send-m8-n8-rq-post_send-poll_cq-huge_pages")
"""Those that few machines can run, too."""

WRONG = (
    ("leaks-to-address", "rc-send-m32-n32-srq-post_send-poll_cq", "responder's canary of scatter[0]: 32 of 32 bytes"),
    ("srq-leak-32", "xrc-send-m8-n4+m4-srq-post_send-cq_ex", "responder's canary of scatter[0]: 4 of 4 bytes"),
    ("read-response-leak", "rc-read-remote-m8+n9-rq-wr_set_sge_list-poll_cq", "canary of scatter[1]: 9 of 9 bytes"),
    ("atomic-leak", "rc-fetch_add-remote-n8-rq-post_send-poll_cq", "requester's canary of scatter[0]: 8 of 8 bytes"),
    ("cq-ex-leak", "uc-send-m70-n64+m6-rq-post_send-cq_ex", "responder's canary of scatter[0]: 64 of 64 bytes"),
    ("reads-the-address", "ud-send-n9+m3-n40+m12-rq-post_send-poll_cq", "responder's scatter[1]: 9 of 12 bytes"),
    ("stale-bytes", "rc-write-n64-remote-rq-post_send-poll_cq", "responder's remote: 64 of 64 bytes"),
    ("scatter-drift", "rc-send-m32-n8+m24-rq-post_send-poll_cq", "responder's scatter[1]"),
    ("address-zero-refused", "rc-send-n8@zero-m8-rq-post_send-poll_cq", "expected success"),
    ("duplicate-completion", "rc-send-m8-n8-rq-post_send-poll_cq", "responder: 2 completions, expected 1"),
    ("wrong-opcode", "rc-read-remote-n8-rq-post_send-cq_ex", "requester: opcode 0, expected 2 (IBV_WC_RDMA_READ)"),
    ("byte-len-without-null", "rc-send_imm-m32-n8+m24-rq-post_send-poll_cq", "byte_len 24, expected 32"),
    ("receive-not-reported", "rc-send-m8-n8-rq-post_send-poll_cq", "responder: no completion within 1.0 s"),
    ("too-long-swallowed", "rc-send-m9-n8-rq-post_send-poll_cq", "responder: success, expected IBV_WC_LOC_LEN_ERR"),
    ("short-message-leak", "rc-send-m8-n64-srq-post_send-poll_cq", "responder's canary of scatter[0]: 8 of 64 bytes"),
    ("inline-leak", "rc-send-m8-n8-rq-wr_set_sge-poll_cq-inline", "responder's canary of scatter[0]: 8 of 8 bytes"),
    ("inline-leak", "uc-send-m8-n8-rq-post_send-poll_cq-inline", "responder's canary of scatter[0]: 8 of 8 bytes"),
    ("unsignaled-read-leak", "rc-read-remote-n8-rq-post_send-poll_cq-unsignaled", "requester's canary of scatter[0]"),
    (
        "unsignaled-is-reported",
        "rc-write-n8-remote-rq-wr_set_sge-cq_ex-unsignaled",
        "requester: 1 completions, expected",
    ),
    ("no-event-of-null-receive", "rc-send-m8-n8-rq-post_send-poll_cq-event", "responder: no completion event within"),
    ("null-is-solicited", "ud-send-m8-n48-rq-post_send-poll_cq-solicited_event", "the message was not solicited"),
    ("odd-address-leak", "rc-send-m9-n9@odd-rq-post_send-poll_cq", "responder's canary of scatter[0]: 9 of 9 bytes"),
    ("across-page-leak", "rc-read-remote-n8@across_page-rq-post_send-poll_cq", "canary of scatter[0]: 4 of 8 bytes"),
    ("across-4gib-refused", "rc-write-n8@across_4gib-remote-rq-post_send-poll_cq", "expected success"),
    ("other-mr-leak", "rc-send-m16-m8+n8@other_mr-rq-post_send-poll_cq", "requester's memory around the segments"),
    ("address-seen-before", "rc-send-m8+n8@again-m16-rq-post_send-poll_cq", "responder's scatter[0]: 8 of 16 bytes"),
    ("address-seen-before-written", "rc-send-m16-m8+n8@again-rq-post_send-cq_ex", "responder's scatter[0]: 8 of 8"),
    ("one-null-mr-a-list", "uc-write-n8+o8-remote-rq-post_send-poll_cq", "responder's remote: 8 of 16 bytes"),
    ("two-null-mrs-counted", "rc-send-m16-n8+o8-srq-post_send-poll_cq", "byte_len 8, expected 16"),
    ("window-left-by-null", "rc-send_inv-m8-n8-rq-post_send-poll_cq", "the window is as it was, not invalidated"),
    ("invalidated-rkey-lost", "rc-send_inv-m8-n8-srq-post_send-cq_ex", "responder: invalidated_rkey"),
    ("invalidating-leak", "rc-send_inv-m8-n8-rq-wr_set_sge-poll_cq", "responder's canary of scatter[0]: 8 of 8 bytes"),
    ("on-demand-beside-null", "rc-write-m8+n8-remote-rq-post_send-poll_cq-odp", "responder's remote: 8 of 16 bytes"),
    ("zero-based-leak", "rc-read-remote-m8+n8-rq-post_send-poll_cq-zero_based", "canary of scatter[1]: 8 of 8 bytes"),
    ("nothing-by-window", "rc-write-n8-remote-rq-post_send-poll_cq-window", "responder's remote: 8 of 8 bytes wrong"),
    ("atomic-not-executed", "rc-cmp_swp-remote-n8-rq-post_send-poll_cq", "responder's remote: 8 of 8 bytes"),
)
"""A fault, a scenario that shows it, and what the program must say of it."""


@dataclass(frozen=True)
class Ran:
    """What a program did (exit status, negative for a signal), and the suite's failure, if any, in the same process."""

    status: int
    output: str
    failure: str


def write(folder: Path, scenario: str, clause: str = "", environment: config.Variables = (), **changes: Any) -> Path:
    finding = "a /* finding */ and 'quotes\" \\\nof two lines"
    where = replace(REF0, environment=environment, **changes)
    return reproducer.write(folder, Scenario.parse(scenario), where, clause, finding)


def compile_strictly(source: Path, *options: str, compiler: str = COMPILERS[0], suffix: str = "") -> Path:
    built = source.with_suffix(suffix)
    subprocess.run([compiler, *STRICT, *options, str(source), "-o", str(built), "-libverbs"], check=True)
    return built


def program(folder: Path, scenario: str, clause: str = "", environment: config.Variables = ()) -> Path:
    """The program for a scenario as a shared object."""
    return compile_strictly(write(folder, scenario, clause, environment), "-shared", "-fPIC", suffix=".so")


def programs(folder: Path, scenarios: tuple[str, ...]) -> list[Path]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda scenario: program(folder, scenario), scenarios))


def run_on_reference(
    scenarios: tuple[str, ...], built: list[Path], fault: str = "", variant: str = "", ask_suite: bool = True
) -> list[Ran]:
    """Run the programs, and the scenarios by the suite, in one process with its own reference device."""
    job = {
        "scenarios": scenarios,
        "programs": [str(path) for path in built],
        "faults": [fault] if fault else [],
        "variant": variant or None,
        "ask_suite": ask_suite,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_reproducer"],
        cwd=ROOT,
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Ran(**result) for result in json.loads(done.stdout)]


class LeaksIfTold(LeaksToAddress):
    """Wrong only with REF_LEAKS=1 in the environment when the device is opened, as a provider in C finds it there."""

    def open(self) -> Context:
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        self.leaks = libc.getenv(b"REF_LEAKS") == b"1"
        return super().open()

    def leak(self, segment: Segment, payload: Payload) -> None:
        if self.leaks:
            super().leak(segment, payload)


def run_jobs() -> None:
    """The process that `run_on_reference` starts."""
    job = json.load(sys.stdin)
    providers = config.load(ROOT / "providers.yaml")
    machine = open_machine(providers, reference=True, simulate=1, faults=tuple(job["faults"]), variant=job["variant"])
    results = [call_main(path) for path in job["programs"]]
    if job["ask_suite"]:
        from conformance.judging import Bench

        [target] = inventory.targets(providers, machine.devices).usable
        bench = Bench(replace(target, timeout=TIMEOUT))
        for scenario, result in zip(job["scenarios"], results):
            try:
                bench.check(Scenario.parse(scenario), *Aspect)
            except Failure as failure:
                result["failure"] = str(failure)
        bench.close()
    json.dump(results, sys.stdout)


def call_main(path: str) -> dict[str, Any]:
    """Call a program's main() in a child process."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            argv = (ctypes.c_char_p * 2)(b"reproducer", None)
            status = ctypes.CDLL(path).main(1, argv)
            ctypes.CDLL(None).fflush(None)
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return {"status": status, "output": output.read().decode(), "failure": ""}


@pytest.mark.parametrize("dimension", [Transport, Operation, Queue, Post, Poll, Address, Signal, Wait, Ordinary])
def test_every_value_of_every_dimension_is_among_the_scenarios(dimension: type[Enum]) -> None:
    scenarios = [Scenario.parse(text) for text in COMPILED]
    used: set[Any] = {segment.address for scenario in scenarios for segment in scenario.segments}
    for scenario in scenarios:
        used |= {scenario.transport, scenario.operation, scenario.queue, scenario.post, scenario.poll}
        used |= {scenario.signal, scenario.wait, scenario.ordinary}
    assert used >= set(dimension)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("scenario", COMPILED)
def test_a_program_compiles_without_a_warning(scenario: str, compiler: str, tmp_path: Path) -> None:
    compile_strictly(write(tmp_path, scenario), compiler=compiler)


def test_without_its_device_a_program_could_not_try(tmp_path: Path) -> None:
    path = compile_strictly(write(tmp_path, SCENARIOS[0]))
    done = subprocess.run([path, "no_such_device"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no device no_such_device" in done.stdout


def test_on_a_conforming_device_programs_and_suite_find_nothing(tmp_path: Path) -> None:
    results = run_on_reference(SCENARIOS, programs(tmp_path, SCENARIOS))
    shown = "\n".join(f"{scenario}: {ran}" for scenario, ran in zip(SCENARIOS, results))
    assert [ran.status for ran in results] == [0] * len(SCENARIOS), shown
    assert not any(ran.failure for ran in results), shown


@pytest.mark.parametrize(("fault", "scenario", "words"), WRONG)
def test_on_a_wrong_device_program_and_suite_find_the_same(
    fault: str, scenario: str, words: str, tmp_path: Path
) -> None:
    [ran] = run_on_reference((scenario,), [program(tmp_path, scenario)], fault)
    assert ran.failure
    assert ran.status == 1, ran.output
    assert words in ran.output


def test_the_first_wrong_byte_is_shown_with_those_around_it(tmp_path: Path) -> None:
    scenario = "rc-send-n20-m20-rq-post_send-poll_cq"
    [ran] = run_on_reference((scenario,), [program(tmp_path, scenario)], "reads-the-address")
    assert re.search(
        r"WRONG: responder's scatter\[0\]: 20 of 20 bytes wrong, first at offset 0: 0x(..), expected 0x00\n"
        r" +bytes 0\.\.7:\n"
        r" +got +\1( [89a-f].){7}\n"
        r" +expected ( 00){8}\n"
        r"=> NOT CONFORMING",
        ran.output,
    ), ran.output


def test_byte_len_is_printed_of_the_completions_in_which_it_is_defined(tmp_path: Path) -> None:
    scenarios = (
        "rc-send-m8-n8-rq-post_send-cq_ex",
        "rc-write-n8-remote-rq-post_send-poll_cq",
        "rc-read-remote-n8-rq-post_send-poll_cq",
    )
    results = run_on_reference(scenarios, programs(tmp_path, scenarios), ask_suite=False)
    passes = [re.findall(r"^  (.*) completes: success \(status 0\), opcode (.*)$", ran.output, re.M) for ran in results]
    assert passes == [
        [("requester", "0"), ("responder", "128, byte_len 8")] * 2,
        [("requester", "1")] * 2,
        [("requester", "2, byte_len 8")] * 2,
    ]


@pytest.mark.parametrize(("fault", "status"), [("", 0), ("keeps-what-was-written", 1)])
def test_what_was_written_first_is_looked_for_where_the_clause_is_about_that(
    fault: str, status: int, tmp_path: Path
) -> None:
    scenario = "rc-send-n32-m32-rq-post_send-poll_cq"
    built = [program(tmp_path, scenario, "read/zeros-after-write")]
    [ran] = run_on_reference((scenario,), built, fault, ask_suite=False)
    assert ran.status == status, ran.output


@pytest.mark.parametrize(("fault", "signal"), [("crash", -11), ("hang", -14)])
def test_a_provider_that_crashes_or_hangs_ends_the_program_by_a_signal(fault: str, signal: int, tmp_path: Path) -> None:
    scenario = "rc-send-n32-m32-rq-post_send-poll_cq"
    source = write(tmp_path, scenario)
    text, count = re.subn(r"alarm\(\d+\)", "alarm(2)", source.read_text())
    assert count == 1
    source.write_text(text)
    built = compile_strictly(source, "-shared", "-fPIC", suffix=".so")
    [ran] = run_on_reference((scenario,), [built], fault, ask_suite=False)
    assert ran.status == signal, ran.output
    assert "with the null MR:" in ran.output


@pytest.mark.parametrize(
    ("variant", "fault", "words"),
    [("", "alloc-fails", "ibv_alloc_null_mr fails: errno"), ("no-srq", "", "ibv_create_srq fails: errno")],
)
def test_what_the_device_lacks_could_not_be_tried(variant: str, fault: str, words: str, tmp_path: Path) -> None:
    scenario = "rc-send-m32-n32-srq-post_send-poll_cq"
    [ran] = run_on_reference((scenario,), [program(tmp_path, scenario)], fault, variant, ask_suite=False)
    assert ran.status == 2, ran.output
    assert words in ran.output


@pytest.mark.parametrize(
    ("variant", "changes", "status", "words"),
    [
        ("infiniband-port", {}, 0, "port 1, LID 0x1"),
        ("infiniband-port", {"gid_index": 0, "traffic_class": 8, "sl": 3}, 0, "port 1, GID index 0"),
        ("infiniband-grh-required", {}, 0, "port 1, GID index 0"),
        ("infiniband-several-pkeys", {"pkey_index": 2}, 0, "port 1, LID 0x1"),
        ("infiniband-several-pkeys", {}, 2, "IBV_WC_RETRY_EXC_ERR|transport retry"),
    ],
    ids=["by LID", "by GID", "GRH required", "full member", "limited member"],
)
def test_a_program_addresses_the_port_as_the_suite_did(
    variant: str, changes: dict[str, Any], status: int, words: str, tmp_path: Path
) -> None:
    scenario = "rc-send-m32-n32-srq-post_send-poll_cq"
    source = write(tmp_path, scenario, **{"gid_index": None, **changes})
    built = compile_strictly(source, "-shared", "-fPIC", suffix=".so")
    [ran] = run_on_reference((scenario,), [built], variant=variant, ask_suite=False)
    assert ran.status == status, ran.output
    assert re.search(words, ran.output), ran.output


def test_the_first_comment_says_what_the_program_shows() -> None:
    scenario = Scenario.parse("rc-send-m32-n32-srq-post_send-poll_cq")
    finding = "responder's canary of scatter[0]: 32 of 32 bytes wrong"
    text = reproducer.render(scenario, replace(MLX5_0, port=2), "discard/leaves-memory", finding)
    comment = " ".join(text[: text.index("*/")].replace("\n *", " ").split())
    for words in (
        "RC SEND of 32 bytes",
        "discard/leaves-memory: nothing is ever written at the address",
        "Found on mlx5_0, port 2, GID index 3: responder's canary of scatter[0]",
        "-libverbs",
        "Exit status: 0 conforming, 1 not conforming, 2 could not try.",
        str(scenario),
    ):
        assert words in comment
    assert 'argv[1] : "mlx5_0"' in text


def test_what_a_scenario_does_not_need_is_not_in_its_program() -> None:
    text = reproducer.render(Scenario.parse("rc-send-m32-n32-rq-post_send-poll_cq"), MLX5_0)
    for word in ("ibv_wr_", "srq", "xrc", "ibv_ah *", "GRH_LENGTH", "imm", "ibv_cq_ex", "ATOMIC_", "mmap", "ADD", "UD"):
        assert word not in text.partition("*/")[2]


def test_a_file_is_named_after_target_and_scenario_and_not_too_long(tmp_path: Path) -> None:
    short = Scenario.parse("rc-send-3*n8@zero-m24-rq-post_send-poll_cq")
    long = Scenario.parse(f"rc-send-{'+'.join(f'n{n}' for n in range(1, 33))}-m528-rq-post_send-poll_cq")
    longer = Scenario.parse(f"rc-send-{'+'.join(f'n{n}' for n in range(1, 33))}-m600-rq-post_send-poll_cq")
    path = reproducer.write(tmp_path / "reproducers", short, replace(MLX5_0, gid_index=None))
    assert path == tmp_path / "reproducers" / "mlx5_0-1-rc-send-3xn8.zero-m24-rq-post_send-poll_cq.c"
    assert path.read_text() == reproducer.render(short, replace(MLX5_0, gid_index=None))
    names = {reproducer.file_name(scenario, MLX5_0) for scenario in (long, longer)}
    assert len(names) == 2
    assert all(len(name) <= len("mlx5_0-1-") + LONGEST_PART + len(".c") for name in names)


def test_the_same_scenario_in_another_environment_is_another_file() -> None:
    scenario = Scenario.parse("rc-send-m32-n32-srq-post_send-poll_cq")
    labels = ("", "cqe64", "cqe128", "A=x,B=y", "A=x/B=y", "MLX5_CQE_SIZE=" + 200 * "1", "MLX5_CQE_SIZE=" + 201 * "1")
    names = [reproducer.file_name(scenario, replace(MLX5_0, label=label)) for label in labels]
    assert names[:3] == [
        f"mlx5_0-1-{label}rc-send-m32-n32-srq-post_send-poll_cq.c" for label in ("", "cqe64-", "cqe128-")
    ]
    assert len(set(names)) == len(labels)
    assert all(re.fullmatch(r"[\w.+-]{1,255}", name, re.ASCII) for name in names)


def test_the_environment_is_named_where_the_program_says_what_it_is() -> None:
    scenario = Scenario.parse("rc-send-m32-n32-srq-post_send-poll_cq")
    text = reproducer.render(scenario, CQE128, "discard/leaves-memory", "32 of 32 bytes wrong")
    comment = " ".join(text[: text.index("*/")].replace("\n *", " ").split())
    assert "Found on mlx5_0, port 1, GID index 3, with MLX5_CQE_SIZE=128 MLX5_SCATTER_TO_CQE=1: 32 of 32" in comment
    assert "It sets MLX5_CQE_SIZE=128 MLX5_SCATTER_TO_CQE=1, except what is set already." in comment
    assert "cc -Wall -o reproducer 'mlx5_0-1-cqe128-rc-send-" in comment
    assert "environment" not in reproducer.render(scenario, MLX5_0)


def test_any_value_of_a_variable_is_what_the_program_sets(tmp_path: Path) -> None:
    value = "\"a\\nb\\\" ??/ %s */ é 'x'"
    path = compile_strictly(write(tmp_path, SCENARIOS[0], environment=(("REF_X", value),)))
    for outer, seen in ((None, value), ("of the shell", "of the shell"), ("", "")):
        shell = {name: text for name, text in {**os.environ, "REF_X": outer}.items() if text is not None}
        done = subprocess.run([path, "no_such_device"], env=shell, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[0] == f"REF_X={seen}"


@pytest.mark.parametrize(("value", "status"), [("1", 1), ("0", 0)])
def test_the_provider_finds_the_environment_of_the_check_when_the_device_is_opened(
    value: str, status: int, tmp_path: Path
) -> None:
    scenario = "rc-send-m32-n32-srq-post_send-poll_cq"
    built = [program(tmp_path, scenario, environment=(("REF_LEAKS", value),))]
    [ran] = run_on_reference((scenario,), built, "tests.test_reproducer:LeaksIfTold", ask_suite=False)
    assert ran.status == status, ran.output


def test_an_unknown_clause_is_refused() -> None:
    with pytest.raises(ValueError, match="'read/zero' is no clause"):
        reproducer.render(Scenario.parse(SCENARIOS[0]), MLX5_0, "read/zero")


if __name__ == "__main__":
    run_jobs()
