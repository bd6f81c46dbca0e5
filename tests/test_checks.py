# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks whose verdict hangs on a kernel, which the reference device does not have."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.checks import test_allocate, test_free, test_key, test_misuse
from conformance.checks.working import check_at_once
from conformance.judging import CONTROL, Bench
from conformance.reference.engine.device import Device
from conformance.reference.engine.memory import Payload
from conformance.reference.engine.objects import Segment, Transfer
from conformance.scenarios import Scenario
from conformance.verbs import machine, resources
from conformance.verbs.resources import SETTLING, Held
from conformance.verdicts import BrokenError, Failure, LackingError
from tests.rig import Calls, protection_error, refused, target, wrap
from tests.suite import run_suite

SEND = Scenario.parse("rc-send-n8-m8-rq-post_send-poll_cq")
dies = test_free.test_a_process_that_dies_with_them_leaves_nothing
loops = test_free.test_a_loop_of_alloc_and_free_holds_nothing_back


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(target())
    yield bench
    bench.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """For which processes the kernel was asked; it has nothing left of them."""
    calls: list[tuple[str, int]] = []

    def kernel_mrs(device: str, process: int) -> int:
        calls.append((device, process))
        return 0

    monkeypatch.setattr(test_free, "kernel_mrs", kernel_mrs)
    return calls


def test_the_kernel_is_asked_for_the_process_that_died(bench: Bench, asked: list[tuple[str, int]]) -> None:
    dies(bench)
    ((device, process),) = asked
    assert device == "ref0"
    assert not Path("/proc", str(process)).exists()


def test_what_the_kernel_keeps_of_a_dead_process_is_a_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_free, "kernel_mrs", lambda *_: 3)
    with pytest.raises(Failure, match=r"3 kernel MRs of process \d+ are left after its end"):
        dies(bench)


def test_a_kernel_that_does_not_tell_is_no_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_free, "kernel_mrs", lambda *_: None)
    with pytest.raises(LackingError, match="cannot be told"):
        dies(bench)


@pytest.mark.parametrize(
    "program",
    ["import sys; sys.exit('no device')", "print('no number')", "print(1); import sys; sys.exit('no device')"],
)
def test_a_process_that_does_not_end_well_says_nothing_of_the_device(
    bench: Bench, asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda _, **how: run([sys.executable, "-c", program], **how))
    with pytest.raises(BrokenError, match="did not end well:" + ("\nno device" if "no device" in program else "")):
        dies(bench)
    assert asked == []


def test_a_process_that_takes_the_null_mrs_of_others_with_it_is_a_failure(
    bench: Bench, asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = bench.null_mr.lkey

    def without_own(method: Callable[..., object], *arguments: Any) -> object:
        *_, segment, _ = arguments
        return protection_error() if segment.lkey == own else method(*arguments)

    wrap(monkeypatch, "find_local", without_own)
    with pytest.raises(Failure, match="IBV_WC_LOC_PROT_ERR"):
        dies(bench)


def test_the_process_has_the_simulated_devices_that_this_one_has() -> None:
    assert machine.simulated_devices() == 2  # tests/conftest.py


@pytest.mark.parametrize(("devices", "simulated"), [(2, ["2"]), (0, [])])
def test_the_process_simulates_only_a_simulated_device(
    bench: Bench, asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, devices: int, simulated: list[str]
) -> None:
    monkeypatch.setattr(machine, "simulated_devices", lambda: devices)
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "17\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    dies(bench)
    assert commands == [[sys.executable, "-m", "conformance.verbs.orphan", "ref0", "16", *simulated]]
    assert asked == [("ref0", 17)]


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (Held(heap=4096, fds=0, kernel=0), r"4096 bytes of C heap \(16 each\)"),
        (Held(heap=4095, fds=0, kernel=0), None),
        (Held(heap=0, fds=1, kernel=0), "1 file descriptors"),
        (Held(heap=0, fds=0, kernel=2), "2 kernel MRs"),
        (Held(heap=0, fds=0, kernel=None), None),
        (Held(heap=5000, fds=1, kernel=1), r"5000 bytes of C heap \(20 each\), 1 file descriptors, 1 kernel MRs"),
    ],
)
def test_what_a_loop_holds_back_is_told_by_its_kind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lost: Held, words: str | None
) -> None:
    """A kernel that does not tell is asked too."""
    calls = 0

    def held(device: str) -> Held:
        nonlocal calls
        assert device == "ref0"
        calls += 1
        more = lost if calls % 2 == 0 else Held(0, 0, None if lost.kernel is None else 0)
        freed_at_first = 100_000 - 10_000 * min(calls, 2 * SETTLING)
        return Held(freed_at_first + more.heap, 10 + more.fds, None if more.kernel is None else 5 + more.kernel)

    monkeypatch.setattr(resources, "held", held)
    if words is None:
        loops(bench)
    else:
        with pytest.raises(Failure, match=f"hold back {words}$"):
            loops(bench)
    assert calls == 2 * (SETTLING + test_free.ROUNDS)


def test_a_loop_in_which_an_allocation_fails_says_after_how_many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, "alloc_null_mr", Calls(refused(errno.ENOMEM), first=300))
    with pytest.raises(Failure, match=r"after 300 times ibv_alloc_null_mr and ibv_dereg_mr: .*ENOMEM"):
        loops(bench)


def test_what_is_wrong_alone_too_is_no_failure_of_several(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.control(SEND)
    calls = Calls(protection_error, first=2)
    wrap(monkeypatch, "read_null", calls)
    with pytest.raises(LackingError, match="is wrong alone too, which other clauses judge"):
        check_at_once(bench, [SEND, SEND, SEND], queue_pairs=3)
    wrap(monkeypatch, "read_null", Calls(protection_error, first=1, last=2))
    calls.first = 1 << 30
    with pytest.raises(Failure, match="IBV_WC_LOC_PROT_ERR") as failure:
        check_at_once(bench, [SEND, SEND], queue_pairs=2)
    assert failure.value.scenario == SEND


def test_a_device_that_has_begun_to_refuse_everything_says_nothing_by_refusing_rereg(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.control(CONTROL)
    test_misuse.test_rereg_fails(bench, 0)
    wrap(monkeypatch, "check_send", refused(errno.EIO))
    with pytest.raises(BrokenError, match="ordinary memory does not pass any more"):
        test_misuse.test_rereg_fails(bench, 0)


GIVES_NOTHING = (test_key.test_its_rkey_gives_a_peer_nothing, test_key.REMOTE[0])
IS_NO_LIVE_ONE = (test_key.test_its_rkey_is_not_that_of_a_live_mr,)


@pytest.mark.parametrize("check", [GIVES_NOTHING, IS_NO_LIVE_ONE], ids=["by use", "by number"])
@pytest.mark.parametrize("grown", [False, True])
def test_an_rkey_left_over_from_another_mr_is_found_at_any_moment_of_a_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, check: tuple[Any, ...], grown: bool
) -> None:
    """Memory that was registered anew, or elsewhere, since the bench's null MR was allocated."""
    keys: list[int] = []

    def reg_mr(method: Callable[..., Any], *arguments: Any) -> Any:
        mr = method(*arguments)
        keys.append(mr.rkey)
        return mr

    def new_null_mr(method: Callable[..., Any], *arguments: Any) -> Any:
        mr = method(*arguments)
        mr.rkey = keys[-1] if keys else mr.rkey
        return mr

    wrap(monkeypatch, "reg_mr", reg_mr)
    wrap(monkeypatch, "new_null_mr", new_null_mr)
    assert bench.null_mr.rkey
    if grown:
        bench.check(Scenario.parse("rc-send-n1048576-m1048576-rq-post_send-poll_cq"))
        bench.sibling().close()
    function, *scenario = check
    with pytest.raises(Failure, match="rkey"):
        function(bench, *scenario)


def leak(_: object, device: Device, transfer: Transfer, segment: Segment, payload: Payload) -> None:
    device.write_pieces(segment.addr, payload, segment.offset, segment.length)


def lose_immediate(method: Callable[..., None], device: Device, transfer: Transfer, *rest: Any) -> None:
    transfer.wr.imm_data = 0
    method(device, transfer, *rest)


def read_ones(_: object, device: Device, transfer: Transfer, segment: Segment) -> bytes:
    return b"\xff" * segment.length


@pytest.mark.parametrize(
    ("id", "method", "wrong", "clause"),
    [
        ("rc-send-m64-n64-srq-wr_set_sge-cq_ex", "write_null", leak, "discard/leaves-memory"),
        ("rc-send-n64-m64-rq-wr_set_sge-cq_ex", "read_null", read_ones, "read/zeros"),
        ("rc-send_imm-m64-n64-srq-wr_set_sge-cq_ex", "complete_receive", lose_immediate, "discard/completion"),
        ("rc-send-m64-n64-srq-wr_set_sge-cq_ex", "write_null", protection_error, None),
    ],
)
def test_all_that_a_check_of_the_lkey_sees_is_judged_by_the_clause_that_speaks_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, id: str, method: str, wrong: Callable[..., Any], clause: str | None
) -> None:
    scenario = Scenario.parse(id)
    bench.control(scenario)
    calls = Calls(wrong, last=1)
    wrap(monkeypatch, method, calls)
    with pytest.raises(Failure) as failure:
        test_allocate.test_lkey_is_accepted_by_every_kind_of_work_request(bench, scenario)
    assert failure.value.clause == clause


def test_a_failure_of_another_clause_is_counted_and_explained_as_that() -> None:
    options = ("--reference", "--reference-fault=xrc-leak-by-wr", "--search=0")
    run = run_suite(*options, "-k", "test_lkey_is_accepted and xrc-send_imm")
    assert run.clauses("FAIL") == {"discard/leaves-memory"}
    for case in run.cases:
        if case.verdict == "FAIL":
            assert "clause discard/leaves-memory: nothing is ever written" in case.text
    assert re.search(r"^ref0/1 +discard +4 +FAIL$", run.output, re.MULTILINE), run.output
