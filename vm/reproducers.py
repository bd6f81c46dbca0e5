# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Do the C reproducers and the suite come to the same verdict on a real kernel? `python -m vm.reproducers`

Ordinary memory only, as soft-RoCE has no null MRs: scenarios of every transport, operation, queue, posting and polling
API, and one that soft-RoCE's provider gets wrong. This machine compiles the programs, the guest runs them.

Exit status: 0 if all verdicts agree, 1 if not; else that of `python -m vm`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conformance import config, inventory
from conformance.report import reproducer
from conformance.scenarios import Scenario
from conformance.verbs.machine import open_machine
from conformance.verdicts import BrokenError, Failure, LackingError

if TYPE_CHECKING:
    from conformance.judging import Bench

FOLDER = Path(__file__).resolve().parent.parent / ".build/vm/reproducers"
WHERE = reproducer.Where("rxe0", port=1, gid_index=1, timeout=2.0)

SCENARIOS = (
    "rc-send-m64-m64-rq-post_send-poll_cq",
    "rc-send-m8+m1025+m31-m40+m1024-srq-post_send-cq_ex",
    "rc-send_imm-m33-m1+m32-rq-wr_set_sge-poll_cq",
    "rc-send-m65-m64-rq-post_send-poll_cq",
    "rc-write-m4096+m1-remote-rq-post_send-poll_cq",
    "rc-write_imm-m64-m8-srq-wr_set_sge-cq_ex",
    "rc-read-remote-m3+m5-rq-post_send-cq_ex",
    "rc-cmp_swp-remote-m8-rq-post_send-poll_cq",
    "rc-fetch_add-remote-m8-rq-wr_set_sge-cq_ex",
    "uc-send-m65536-m65536-rq-post_send-poll_cq",
    "uc-write-m64-remote-rq-wr_set_sge-poll_cq",
    "uc-write_imm-m16+m8-m8-rq-wr_set_sge_list-poll_cq",
    "ud-send-m64-m40+m64-rq-post_send-poll_cq",
    "ud-send_imm-m1000-m1040-srq-wr_set_sge-cq_ex",
    "xrc-send-m64-m64-srq-post_send-poll_cq",
    "rc-send-m7+m24-m31-rq-wr_set_sge_list-poll_cq",  # before rdma-core's pull request 1744, a wrong length
)


def main(arguments: list[str]) -> int:
    if arguments == ["--in-guest"]:
        return compare()
    shutil.rmtree(FOLDER, ignore_errors=True)
    for scenario in SCENARIOS:
        source = reproducer.write(FOLDER, Scenario.parse(scenario), WHERE)
        subprocess.run(["cc", "-Wall", "-o", program(scenario), source, "-libverbs"], check=True)
    command = [sys.executable, "-m", "vm", "--exec", "--", sys.executable, "-m", "vm.reproducers", "--in-guest"]
    return subprocess.run(command, cwd=FOLDER.parent.parent.parent, check=False).returncode


def program(scenario: str) -> Path:
    return FOLDER / scenario


def compare() -> int:
    """Run every program, and its scenario by the suite, side by side."""
    providers = config.load(Path(__file__).with_name("providers.yaml"))
    machine = open_machine(providers)
    from conformance.judging import Bench  # not before open_machine: it imports pyverbs

    target = next(t for t in inventory.targets(providers, machine.devices).usable if t.device.name == WHERE.device)
    assert target.gid is not None
    bench = Bench(target, control_only=True)
    differences = 0
    for scenario in SCENARIOS:
        command = [str(program(scenario)), WHERE.device, str(WHERE.port), str(target.gid.index)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        by_suite, why = verdict(bench, Scenario.parse(scenario))
        agree = done.returncode == by_suite
        differences += not agree
        print(f"{'agree' if agree else 'DIFFER'}: program {done.returncode}, suite {by_suite}: {scenario}", flush=True)
        if not agree:
            print(done.stdout, done.stderr, why, sep="\n", flush=True)
    bench.close()
    print(f"{len(SCENARIOS)} scenarios, {differences} differences")
    return int(differences > 0)


def verdict(bench: Bench, scenario: Scenario) -> tuple[int, str]:
    """What the suite says, as the exit status that the program should have, and why."""
    try:
        bench.check(scenario)
    except Failure as failure:
        return 1, str(failure)
    except (BrokenError, LackingError) as problem:
        return 2, str(problem)
    return 0, ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
