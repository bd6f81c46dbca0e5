# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The C program for a sequence compiles without a warning, and on the reference device its verdict is the suite's."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import config, inventory
from conformance.report import reproducer, sequence_program
from conformance.sequences import Sequence
from conformance.verbs.machine import open_machine
from tests.test_reproducer import COMPILERS, MLX5_0, REF0, ROOT, TIMEOUT, Ran, call_main, compile_strictly

RC, SRQ = "rq-post_send-poll_cq", "srq-wr_set_sge_list-cq_ex"
INTO, FROM = f"rc-send-m64-n64-{RC}", f"rc-send-n64-m64-{RC}"
ALL_STEPS = Sequence.parse(
    f"alloc:n0:p0,connect:q0:p0:rc-{RC},recv:q0:n0:{INTO}/rc-write-n64-remote-{RC},recv:q0:n0:{FROM},error:q0,send:q0,"
    f"wait:q0,recv:q0:n0:{INTO},send:q0,wait:q0,reset:q0,recv:q0:n0:{INTO},reset:q0,alloc_pd:p1,rereg:n0:7,bind:n0:1,"
    f"bind:n0:2,reg:m0:p0,alloc:n1:p1,connect:q1:p1:xrc-{SRQ},connect:q2:p1:ud-{RC},connect:q3:p0:uc-{SRQ},"
    f"recv:q0:n0:rc-read-remote-n8+m64-{RC}/rc-cmp_swp-remote-n8-{RC}/rc-fetch_add-remote-n8-{RC}/{INTO},"
    f"recv:q1:n1:xrc-send_imm-m72-n64+m8-{SRQ}/xrc-write_imm-n64-n8-{SRQ}/xrc-send-m65-n64-{SRQ},"
    f"recv:q2:n1:ud-send_imm-n64@zero-m40+m64-{RC},recv:q3:n0:uc-send-m8+n64@top-m8+n64-{SRQ},dereg:m0,"
    "send:q3,send:q2,send:q1,send:q0,wait:q0,wait:q1,wait:q2,wait:q3,destroy:q1,destroy:q2,free:n1,dealloc_pd:p1"
)
"""Each kind of step, each transport, each operation."""

ONCE = f"recv:q0:n0:{INTO},send:q0,wait:q0"
START = f"alloc:n0:p0,connect:q0:p0:rc-{RC}"
AGAIN = f"recv:q0:n0:rc-send-m64-n64-{SRQ},send:q0,wait:q0"
WRONG = (
    ("lkey-refused-after-reset", f"{START},reset:q0,{ONCE}", "ends with local protection error"),
    (
        "reads-garbage-after-reset",
        f"{START},reset:q0,recv:q0:n0:{FROM},send:q0,wait:q0",
        "responder's scatter list of rc-send-n64-m64",
    ),
    ("no-byte-len-after-reset", f"{START},reset:q0,{ONCE}", "byte_len 0 of rc-send"),
    (
        "reset-spoils-others",
        f"{START},connect:q1:p0:uc-{SRQ},reset:q1,recv:q0:n0:{FROM},send:q0,wait:q0",
        "responder's scatter list of rc-send-n64-m64",
    ),
    ("alloc-fails-beside-an-error", f"{START},error:q0,alloc:n1:p0", "ibv_alloc_null_mr returned NULL, errno 12"),
    (
        "leaks-once-memory-is-registered",
        f"{START},recv:q0:n0:{INTO},reg:m0:p0,send:q0,wait:q0",
        "responder's canary of rc-send-m64-n64",
    ),
    ("rereg-accepted-after-use", f"{START},{ONCE},rereg:n0:0", "ibv_rereg_mr of a null MR with flags 0 returned 0"),
    ("rereg-twice-breaks", f"{START},rereg:n0:0,rereg:n0:0,{ONCE}", "ends with local protection error"),
    (
        "bind-accepted-the-second-time",
        "alloc:n0:p0,bind:n0:2,bind:n0:2",
        "the bind of a window of type 2 to a null MR completed with success",
    ),
    (
        "bind-spoils-waiting-receives",
        f"{START},recv:q0:n0:{INTO},bind:n0:1,send:q0,wait:q0",
        "responder: rc-send-m64-n64-rq-post_send-poll_cq ends with local protection error",
    ),
    (
        "dereg-busy-after-flush",
        f"{START},recv:q0:n0:{INTO},error:q0,send:q0,wait:q0,free:n0",
        "ibv_dereg_mr of a null MR: errno 16",
    ),
    (
        "dereg-spoils-waiting-receives",
        f"alloc:n1:p0,{START},recv:q0:n0:{INTO},free:n1,send:q0,wait:q0",
        "ends with local protection error",
    ),
    (
        "second-use-of-an-lkey-leaks",
        f"alloc:n0:p0,connect:q0:p0:rc-{SRQ},{AGAIN},free:n0,alloc:n0:p0,{AGAIN}",
        "responder's canary of rc-send-m64-n64",
    ),
    ("holds-pd-after-an-error", f"{START},error:q0,free:n0,destroy:q0,dealloc_pd:p0", "ibv_dealloc_pd: errno 16"),
)
"""A fault, the smallest sequence that shows it, and what the program must say of it."""


def program(folder: Path, sequence: Sequence, where: reproducer.Where = REF0) -> Path:
    source = sequence_program.write(folder, sequence, where, finding="a /* finding */")
    return compile_strictly(source, "-shared", "-fPIC", suffix=".so")


def run_on_reference(sequence: Sequence, built: Path, fault: str = "", variant: str | None = None) -> Ran:
    """Run the program, and the sequence by the suite, in one process with its own reference device."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_sequence_program"],
        cwd=ROOT,
        input=json.dumps(
            {
                "sequence": str(sequence),
                "program": str(built),
                "faults": [fault] if fault else [],
                "variant": variant,
            }
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Ran(**json.loads(done.stdout))


def run_job() -> None:
    """The process that `run_on_reference` starts."""
    job = json.load(sys.stdin)
    providers = config.load(ROOT / "providers.yaml")
    machine = open_machine(providers, reference=True, simulate=1, faults=tuple(job["faults"]), variant=job["variant"])
    result = call_main(job["program"])
    from conformance.judging import Bench
    from conformance.sequence_search import SequenceSearch

    [target] = inventory.targets(providers, machine.devices).usable
    bench = Bench(replace(target, timeout=TIMEOUT))
    for found in SequenceSearch(0, 0, (Sequence.parse(job["sequence"]),)).run(bench):
        result["failure"] = f"{found.clause}: {found.failure}"
    bench.close()
    json.dump(result, sys.stdout)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_program_of_all_steps_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    compile_strictly(sequence_program.write(tmp_path, ALL_STEPS, REF0), compiler=compiler)


def test_on_a_conforming_device_program_and_suite_find_nothing(tmp_path: Path) -> None:
    ran = run_on_reference(ALL_STEPS, program(tmp_path, ALL_STEPS))
    assert ran.status == 0, ran.output
    assert not ran.failure


@pytest.mark.parametrize(("variant", "pkey_index"), [("infiniband-grh-required", 0), ("infiniband-several-pkeys", 2)])
def test_it_addresses_the_port_as_the_suite_does(variant: str, pkey_index: int, tmp_path: Path) -> None:
    where = replace(REF0, gid_index=None, pkey_index=pkey_index)
    ran = run_on_reference(ALL_STEPS, program(tmp_path, ALL_STEPS, where), variant=variant)
    assert ran.status == 0, ran.output
    assert not ran.failure


@pytest.mark.parametrize(("fault", "id", "words"), WRONG, ids=[wrong[0] for wrong in WRONG])
def test_on_a_wrong_device_program_and_suite_find_the_same(fault: str, id: str, words: str, tmp_path: Path) -> None:
    sequence = Sequence.parse(id)
    ran = run_on_reference(sequence, program(tmp_path, sequence), fault)
    from conformance.reference.faults import FAULTS

    assert ran.failure.startswith(FAULTS[fault].clause), ran.failure
    assert ran.status == 1, ran.output
    assert words in ran.output, ran.output


def test_without_its_device_a_program_could_not_try(tmp_path: Path) -> None:
    path = compile_strictly(sequence_program.write(tmp_path, ALL_STEPS, REF0))
    done = subprocess.run([path, "no_such_device"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no device no_such_device" in done.stdout


def test_the_first_comment_says_what_the_program_shows() -> None:
    text = sequence_program.render(ALL_STEPS, MLX5_0, "free/leaves-others", "32 of 32 bytes wrong")
    comment = text[: text.index("*/")]
    for words in ("2. connect:q0:p0", "free/leaves-others: freeing one", "32 of 32 bytes", str(ALL_STEPS)):
        assert words in comment


if __name__ == "__main__":
    run_job()
