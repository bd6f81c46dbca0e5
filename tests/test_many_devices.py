# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Sixteen devices in one run are each tried whole and by one process, on as many workers as the machine can feed."""

import os
import re
from collections import Counter
from itertools import groupby

from tests.suite import SuiteRun, run_suite

KEY = ("conformance/checks/test_key.py",)
SIXTEEN = ("--reference", "--reference-devices=16")


def targets(run: SuiteRun) -> Counter[tuple[str, str]]:
    return Counter((case.target, case.verdict) for case in run.cases)


def test_each_of_sixteen_devices_is_tried_whole_by_one_worker() -> None:
    run = run_suite(*SIXTEEN, "-n2", "-v", checks=KEY)
    workers: dict[str, set[str]] = {}
    for worker, device in re.findall(r"^\[(gw\d)\] .* PASSED .*\[(ref\d+)/1", run.output, re.M):
        workers.setdefault(device, set()).add(worker)
    assert sorted(workers) == sorted(f"ref{number}" for number in range(16))
    assert all(len(of) == 1 for of in workers.values())
    assert set.union(*workers.values()) == {"gw0", "gw1"}
    alone = targets(run_suite("--reference", checks=KEY))["ref0/1", "PASS"]
    assert targets(run) == {(f"ref{number}/1", "PASS"): alone for number in range(16)}
    assert run.status == 0


def test_one_process_tries_one_device_after_the_other() -> None:
    run = run_suite(*SIXTEEN, "-n0", checks=KEY)
    assert [target for target, _ in groupby(case.target for case in run.cases)] == [f"ref{n}/1" for n in range(16)]


def test_simulated_devices_get_no_more_workers_than_there_are_cores() -> None:
    run = run_suite(*SIXTEEN, "-nauto", "-v", checks=KEY)
    workers = set(re.findall(r"^\[(gw\d+)\]", run.output, re.M))
    assert len(workers) == min(16, len(os.sched_getaffinity(0)))
