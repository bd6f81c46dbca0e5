# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Judging scenarios: what is tried again, what is waited for, and who is blamed."""

from __future__ import annotations

import errno
import re
import resource
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.capabilities import capabilities
from conformance.judging import MOST_FAILURES, Bench, control_of
from conformance.outcome import MEMORY, Aspect
from conformance.reference.engine import abi
from conformance.reference.engine.device import Device
from conformance.reference.engine.errors import Nak
from conformance.scenarios import CANARY_OFFSET, LONGEST_CONTROL, Operation, Scenario, Side, Transport, mem, null
from conformance.traffic import Batch
from conformance.verbs import hints
from conformance.verbs.names import e
from conformance.verbs.null_mr import NullMR
from conformance.verbs.wr import SGE, RecvWR
from conformance.verdicts import BrokenError, Failure, LackingError
from tests.rig import TIMEOUT, Calls, Patch, nothing, protection_error, refused, target

PATH = "rq-post_send-poll_cq"
SEND = Scenario.parse(f"rc-send-n8-m8-{PATH}")
WRITE = Scenario.parse(f"rc-write-n8-remote-{PATH}")
READ = Scenario.parse(f"rc-read-remote-n8-{PATH}")
LONG = Scenario.parse(f"rc-send-n100+m100-m200-{PATH}")


UNRELIABLE = [f"uc-send-n8-m8-{PATH}", f"uc-write-n8-remote-{PATH}", f"ud-send-n8-m48-{PATH}"]


@pytest.mark.parametrize("id", UNRELIABLE)
def test_what_an_unreliable_transport_loses_is_sent_again(bench: Bench, patch: Patch, id: str) -> None:
    scenario = Scenario.parse(id)
    bench.control(scenario)
    lost = Calls(nothing, last=2)
    patch("deliver", lost)
    bench.check(scenario, *Aspect)
    assert lost.count == 3


@pytest.mark.parametrize("id", [*UNRELIABLE, f"uc-send-m8-n8-{PATH}", f"uc-write_imm-n8-n8-{PATH}"])
def test_what_has_arrived_is_not_sent_again(bench: Bench, patch: Patch, id: str) -> None:
    scenario = Scenario.parse(id)
    bench.control(scenario)
    sent = Calls(nothing, last=0)
    patch("deliver", sent)
    bench.check(scenario, *Aspect)
    assert sent.count == 1


@pytest.mark.parametrize("id", UNRELIABLE)
def test_a_device_that_loses_it_each_time_is_wrong(bench: Bench, patch: Patch, id: str) -> None:
    scenario = Scenario.parse(id)
    bench.control(scenario)
    patch("deliver", Calls(nothing, last=3))
    with pytest.raises(Failure, match="no completion within" if scenario.operation.is_send else "8 of 8 bytes wrong"):
        bench.check(scenario, *Aspect)


def test_what_a_reliable_transport_loses_is_not_sent_again(bench: Bench, patch: Patch) -> None:
    bench.control(SEND)
    patch("deliver", Calls(nothing, last=1))
    with pytest.raises(Failure, match="responder: no completion within"):
        bench.check(SEND)


def test_a_wrong_completion_of_an_unreliable_message_is_not_taken_for_a_loss(bench: Bench, patch: Patch) -> None:
    scenario = Scenario.parse(UNRELIABLE[0])
    bench.control(scenario)
    patch("read_null", Calls(protection_error, last=1))
    with pytest.raises(Failure, match="IBV_WC_LOC_PROT_ERR"):
        bench.check(scenario)


def test_data_of_a_write_may_come_after_its_completion(patch: Patch) -> None:
    bench = Bench(target())
    bench.control(WRITE)
    patch("deliver", lambda method, *arguments: threading.Timer(0.02, method, arguments).start())
    bench.check(WRITE, *MEMORY)
    bench.close()


def test_a_receive_may_complete_after_the_send(patch: Patch) -> None:
    bench = Bench(target())
    bench.control(SEND)

    def complete(method: Callable[..., None], device: Device, cq: Any, cqe: Any, *rest: Any) -> None:
        seconds = 0.1 if cqe.opcode == abi.WC_RECV else 0
        threading.Timer(seconds, method, (device, cq, cqe, *rest)).start()

    patch("complete", complete)
    bench.check(SEND, *Aspect)
    bench.close()


@pytest.mark.parametrize("scenario", [SEND, WRITE, READ], ids=str)
def test_the_wait_gets_shorter_once_several_completions_were_lost(
    bench: Bench, patch: Patch, scenario: Scenario
) -> None:
    bench.control(scenario)
    assert bench.patience == TIMEOUT
    patch("complete", nothing)
    for _ in range(3):
        assert bench.patience == TIMEOUT
        outcome = bench.run(scenario).outcome
        assert outcome.completions == {Side.REQUESTER: (), Side.RESPONDER: ()}
        assert outcome.waited[Side.REQUESTER] == TIMEOUT
    assert bench.patience == TIMEOUT / 10


def test_a_completion_that_nobody_asked_for_is_found_on_the_responder_too(bench: Bench, patch: Patch) -> None:
    bench.control(WRITE)
    arena = bench.arenas[Side.RESPONDER]
    bench.link(WRITE.link).responder.post_recv(RecvWR(1 << 20, (SGE(arena.address, 8, arena.lkey),)))

    def write_and_receive(method: Callable[..., None], device: Device, *arguments: Any) -> None:
        method(device, *arguments)
        device.receive(*arguments)

    patch("receive_write", Calls(write_and_receive, last=1))
    with pytest.raises(Failure, match="responder: a completion where none is due"):
        bench.check(WRITE, Aspect.COMPLETION)


@pytest.mark.parametrize("scenario", [SEND, WRITE, READ], ids=str)
def test_repetitions_that_are_timed_must_go_well(bench: Bench, patch: Patch, scenario: Scenario) -> None:
    assert bench.seconds(scenario, 5) > 0
    patch("find_local", Calls(protection_error, first=3))
    with pytest.raises(BrokenError, match=r"does not go on: .*IBV_WC_LOC_PROT_ERR"):
        bench.seconds(scenario, 5)


def test_repetitions_that_are_timed_must_not_be_refused(bench: Bench, patch: Patch) -> None:
    bench.seconds(SEND, 1)
    patch("check_send", Calls(refused(errno.EINVAL), first=3))
    with pytest.raises(BrokenError, match=r"^ref0/1 .*does not go on: errno 22 \(EINVAL"):
        bench.seconds(SEND, 5)


@pytest.mark.parametrize("scenario", [SEND, WRITE, READ], ids=str)
def test_repetitions_that_are_timed_must_complete(bench: Bench, patch: Patch, scenario: Scenario) -> None:
    bench.seconds(scenario, 1)
    patch("complete", nothing)
    with pytest.raises(BrokenError, match="does not go on: no completion"):
        bench.seconds(scenario, 2)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOMEM, r"ENOMEM.*is the memlock limit of 65536 bytes high enough"),
        (errno.EAGAIN, r"EAGAIN.*is a limit of the rdma cgroup reached"),
        (errno.EACCES, r"EACCES.*does SELinux allow the access"),
        (errno.EIO, r"^ref0/1: .*EIO: Input/output error\)\)$"),
    ],
)
def test_what_cannot_be_had_on_a_target_says_why(
    patch: Patch, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    monkeypatch.setattr(hints, "memlock_limit", lambda: 65536)
    patch("alloc_pd", refused(number))
    with pytest.raises(BrokenError, match=text):
        Bench(target())


@pytest.mark.parametrize(
    ("limit", "capabilities", "bytes_"),
    [
        (65536, "0000000000000000", 65536),
        (65536, "0000000000004000", None),  # CAP_IPC_LOCK
        (65536, "000001ffffffffff", None),
        (65536, "000001ffffffbfff", 65536),
        (resource.RLIM_INFINITY, "0000000000000000", None),
    ],
)
def test_the_memlock_limit_is_a_reason_only_where_it_binds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, capabilities: str, bytes_: int | None
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nCapPrm:\tffffffffffffffff\nCapEff:\t{capabilities}\nCapBnd:\t0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert hints.memlock_limit(status) == bytes_


def test_what_no_limit_binds_is_not_told_of_limits(patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "memlock_limit", lambda: None)
    patch("alloc_pd", refused(errno.ENOMEM))
    with pytest.raises(BrokenError, match=r"ENOMEM: Cannot allocate memory\)\)?$"):
        Bench(target())


@pytest.mark.parametrize(
    ("sges", "number", "kind"),
    [
        (1, errno.EINVAL, BrokenError),
        (4, errno.ENOMEM, BrokenError),
        (5, errno.ENOMEM, LackingError),
        (5, errno.EINVAL, LackingError),
        (5, errno.EIO, BrokenError),
    ],
)
def test_only_long_lists_may_be_more_than_a_queue_takes(
    bench: Bench, patch: Patch, sges: int, number: int, kind: type[Exception]
) -> None:
    patch("create_qp", refused(number))
    with pytest.raises(kind, match="no link rc-rq-post_send-poll_cq of"):
        bench.link(SEND.link, sges)


def test_a_queue_is_made_for_few_segments_or_for_all_that_there_can_be(bench: Bench) -> None:
    assert bench.link(SEND.link, 1) is bench.link(SEND.link, 4)
    assert bench.link(SEND.link, 5) is bench.link(SEND.link, 30)
    assert bench.link(SEND.link, 5) is not bench.link(SEND.link, 4)
    small = Bench(target(max_sge=2))
    assert small.link(SEND.link, 1) is small.link(SEND.link, 2)
    small.close()


@pytest.mark.parametrize(("scenario", "kept"), [(SEND, True), (Scenario.parse(f"rc-send-m9-n8-{PATH}"), False)])
def test_a_link_is_used_again_unless_its_queue_pair_may_be_in_error(
    bench: Bench, scenario: Scenario, kept: bool
) -> None:
    link = bench.link(SEND.link)
    assert bench.run(scenario).findings == ()
    assert (bench.link(SEND.link) is link) == kept


def test_the_control_is_run_once_for_each_operation_and_kind_of_link(bench: Bench, patch: Patch) -> None:
    sent = Calls(nothing, last=0)
    patch("deliver", sent)
    for _ in range(2):
        bench.check(SEND)
        bench.check(WRITE)
    assert sent.count == 6


def test_a_device_that_cannot_do_it_on_ordinary_memory_is_broken(bench: Bench, patch: Patch) -> None:
    patch("read_ordinary", protection_error)
    for _ in range(2):
        with pytest.raises(BrokenError, match="the control, ordinary memory only, does not pass"):
            bench.check(SEND)


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, BrokenError), (errno.EOPNOTSUPP, LackingError)])
def test_a_link_that_cannot_be_had_is_tried_once(
    bench: Bench, patch: Patch, number: int, kind: type[Exception]
) -> None:
    made = Calls(refused(number))
    patch("create_qp", made)
    for _ in range(2):
        with pytest.raises(kind):
            bench.check(SEND)
    assert made.count == 1


def test_what_fails_on_ordinary_memory_too_is_no_failure_of_the_null_mr(bench: Bench, patch: Patch) -> None:
    bench.control(LONG)
    patch("gather", protection_error)
    with pytest.raises(BrokenError, match="the same work request fails on ordinary memory too") as broken:
        bench.check(LONG)
    assert "With the null MR:" in str(broken.value)


def test_a_failure_says_that_ordinary_memory_passes(bench: Bench, patch: Patch) -> None:
    bench.control(LONG)
    patch("read_null", protection_error)
    with pytest.raises(Failure, match="control: the same work request on ordinary memory ends as it must"):
        bench.check(LONG)


def test_completions_of_others_come_after_the_own_one(bench: Bench, patch: Patch) -> None:
    """What a failure is about is shown first, and what came besides it after that."""
    bench.control(SEND)

    def complete(method: Callable[..., None], device: Device, cq: Any, cqe: Any, *rest: Any) -> None:
        method(device, cq, replace(cqe, wr_id=1 << 40), *rest)
        method(device, cq, cqe, *rest)

    patch("complete", complete)
    outcome = bench.run(SEND).outcome
    for side in Side:
        assert [wc.wr_id for wc in outcome.completions[side]] == [outcome.wr_id, 1 << 40]


def test_a_failure_shows_where_what_and_how_it_can_be_run_again(bench: Bench, patch: Patch) -> None:
    bench.control(SEND)
    patch("read_null", lambda method, device, transfer, segment: b"\xa5" * segment.length)
    with pytest.raises(Failure) as failure:
        bench.check(SEND, *MEMORY)
    lines = str(failure.value).splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        "ref0/1", "RC", "gather:", "scatter:", "keys:", "requester", "responder", "=>", "before", "scenario:",
        "control:",
    ]  # fmt: skip
    assert lines[0] == bench.where
    arena = bench.arenas[Side.RESPONDER]
    assert lines[4] == f"keys:    null MR lkey {bench.null_mr.lkey:#x}; memory lkey {arena.lkey:#x}"
    assert lines[5] == "requester completed: IBV_WC_SUCCESS IBV_WC_SEND"  # whose byte_len means nothing
    assert lines[6].startswith("responder completed: IBV_WC_SUCCESS IBV_WC_RECV byte_len=8")
    assert lines[8].startswith("before it, latest first: rc-send-m32-m32-")
    assert lines[9] == f"scenario: {SEND}"


def read_memory(_: object, device: Device, transfer: Any, segment: Any) -> bytes:
    return bytes(device.memory.read(segment.addr, segment.length))


@pytest.mark.parametrize(
    ("id", "method", "wrong", "words"),
    [
        (
            f"rc-send-n8-m8-{PATH}",
            "read_null",
            read_memory,
            "those of the requester's canary of gather[0] from offset 0",
        ),
        (
            f"rc-send-m8+m64-m8+n64-{PATH}",
            "write_null",
            lambda _, device, __, segment, payload: device.write_pieces(segment.addr, payload, segment.offset, 64),
            "those of the requester's gather[1] from offset 0",
        ),
        (f"rc-write-n64-remote-{PATH}", "write_remote", nothing, "as they were before the work request"),
        (f"rc-send-n64-m64-{PATH}", "read_null", lambda *_: b"\xa5" * 64, ""),
    ],
)
def test_a_failure_says_what_the_wrong_bytes_are(
    bench: Bench, patch: Patch, id: str, method: str, wrong: Callable[..., Any], words: str
) -> None:
    scenario = Scenario.parse(id)
    bench.control(scenario)
    patch(method, Calls(wrong, last=1))
    with pytest.raises(Failure) as failure:
        bench.check(scenario, *MEMORY)
    (line,) = (line for line in str(failure.value).splitlines() if line.startswith("=> "))
    assert ("they are " in line) == bool(words)
    assert line.endswith(words)


def test_a_failure_names_the_earlier_work_request_whose_bytes_come_back_and_what_was_freed(
    bench: Bench, patch: Patch
) -> None:
    kept: list[bytes] = []
    patch("write_null", lambda *arguments: kept.append(bytes(arguments[-1])))
    patch("read_null", lambda _, __, ___, segment: kept[0])
    first = Scenario.parse(f"rc-send-m64-n64-{PATH}")
    second = Scenario.parse(f"rc-send-n64-m64-{PATH}")
    assert bench.null_mr
    bench.check(first)
    NullMR(bench.pd).close()
    with pytest.raises(Failure) as failure:
        bench.check(second, *MEMORY)
    text = str(failure.value)
    assert f"they are stale: those of the requester's gather[0] from offset 0 in {first}, 1 before" in text
    assert f"before it, latest first: ibv_dereg_mr of a null MR, ibv_alloc_null_mr, {first}" in text


def test_a_message_too_long_for_ordinary_memory_fails_without_that(bench: Bench, patch: Patch) -> None:
    bench.control(SEND)
    patch("read_null", protection_error)
    long = replace(SEND, gather=(null(LONGEST_CONTROL + 1),), scatter=(null(LONGEST_CONTROL + 1),))
    with pytest.raises(Failure) as failure:
        bench.check(long)
    assert "control" not in str(failure.value)


def test_only_what_a_check_asks_about_fails_it(bench: Bench, patch: Patch) -> None:
    bench.control(SEND)
    patch("read_null", lambda method, device, transfer, segment: b"\xa5" * segment.length)
    bench.check(SEND, Aspect.COMPLETION, Aspect.CANARY)
    with pytest.raises(Failure, match="0xa5, expected 0x00"):
        bench.check(SEND, Aspect.PAYLOAD)


@pytest.mark.parametrize(
    ("id", "limits", "text"),
    [
        (f"rc-send-3*n1-m3-{PATH}", {"max_sge": 2}, r"lists of 2 segments \(max_sge\)"),
        (f"rc-send-n3-3*m1-{PATH}", {"max_sge": 2}, r"lists of 2 segments \(max_sge\)"),
        (f"rc-read-remote-3*n1-{PATH}", {"max_sge_rd": 2}, r"lists of 2 for a READ \(max_sge_rd\)"),
        (f"rc-read-remote-2*n1-{PATH}", {"max_sge_rd": 0}, r"lists of 0 for a READ \(max_sge_rd\)"),
        ("rc-send-n3-3*m1-srq-post_send-poll_cq", {"max_srq_sge": 2}, r"lists of 2 in an SRQ \(max_srq_sge\)"),
        (f"rc-send-n9-n9-{PATH}", {"max_msg_sz": 8}, r"messages of 8 bytes \(max_msg_sz\)"),
        (f"rc-cmp_swp-remote-n8-{PATH}", {"atomic": "NONE"}, r"^ref0/1 has no atomics"),
        ("xrc-write-n8-remote-srq-post_send-poll_cq", {"srq": False}, r"^ref0 has no SRQ \(max_srq 0\)$"),
    ],
)
def test_what_is_more_than_a_device_takes_is_skipped(id: str, limits: dict[str, int], text: str) -> None:
    bench = Bench(target(**limits))
    with pytest.raises(LackingError, match=text):
        bench.check(Scenario.parse(id))
    bench.close()


@pytest.mark.parametrize(
    ("id", "limits"),
    [
        (f"rc-send-2*n1-2*m1-{PATH}", {"max_sge": 2}),
        (f"rc-read-remote-2*n1-{PATH}", {"max_sge_rd": 2}),
        (f"rc-read-remote-n1-{PATH}", {"max_sge_rd": 0}),
        ("rc-send-3*n1-m1+m2-srq-post_send-poll_cq", {"max_srq_sge": 2}),
        ("xrc-read-remote-3*n1-srq-post_send-poll_cq", {"max_srq_sge": 2}),
        (f"rc-send-n8-n8-{PATH}", {"max_msg_sz": 8}),
    ],
)
def test_what_a_device_just_takes_is_run(id: str, limits: dict[str, int]) -> None:
    bench = Bench(target(**limits))
    bench.check(Scenario.parse(id), *Aspect)
    bench.close()


@pytest.mark.parametrize(("post", "verb"), [("post_send", "ibv_post_send"), ("wr_set_sge_list", "ibv_wr_complete")])
def test_a_work_request_that_is_refused_names_the_verb_and_errno(
    bench: Bench, patch: Patch, post: str, verb: str
) -> None:
    scenario = Scenario.parse(f"rc-write-n8-remote-rq-{post}-poll_cq")
    bench.control(scenario)
    patch("check_send", Calls(refused(errno.EINVAL), last=1))
    with pytest.raises(Failure, match=rf"{verb} refused it: errno 22 \(EINVAL"):
        bench.check(scenario)


def test_a_receive_that_is_refused_names_the_verb(bench: Bench, patch: Patch) -> None:
    scenario = Scenario.parse(f"rc-send-m8-n8-{PATH}")
    bench.control(scenario)
    patch("post_recv", Calls(refused(errno.ENOMEM), last=1))
    with pytest.raises(Failure, match=r"ibv_post_recv refused it: errno 12 \(ENOMEM"):
        bench.check(scenario)


def test_a_null_segment_points_where_the_scenario_says(bench: Bench) -> None:
    ids = [f"rc-send-n8@{where}-m8-{PATH}" for where in ("zero", "top", "unmapped")]
    runs = [bench.run(Scenario.parse(id)) for id in (*ids, str(SEND))]
    zero, top, unmapped, canary = (run.addresses.gather[0] for run in runs)
    assert zero == 0
    assert top == 2**64 - 8
    maps = [(*line.split()[0].split("-"), line.split()[1]) for line in Path("/proc/self/maps").read_text().splitlines()]
    (access,) = (access for start, end, access in maps if int(start, 16) <= unmapped < int(end, 16))
    assert access == "---p"
    assert canary == bench.arenas[Side.REQUESTER].address + CANARY_OFFSET


@pytest.mark.parametrize("scenario", [WRITE, READ, Scenario.parse(f"rc-write_imm-n8-m8-{PATH}")], ids=str)
def test_refused_means_that_the_requester_hears_of_it_and_nothing_changes(bench: Bench, scenario: Scenario) -> None:
    ordinary = scenario.on_ordinary_memory()
    bench.check_refused(ordinary, 0x1234, "by a key that nobody has")
    with pytest.raises(Failure, match=r"by a live key \(0x.*\):") as failure:
        bench.check_refused(ordinary, bench.arenas[Side.RESPONDER].rkey, "by a live key")
    assert "expected IBV_WC_REM_ACCESS_ERR or" in str(failure.value)
    assert "of 8 bytes wrong" in str(failure.value)


@pytest.mark.parametrize("text", ["uc-write-m8-remote", "uc-write_imm-m8-m8"])
def test_over_uc_refused_means_that_nothing_changes_and_nothing_is_received(bench: Bench, text: str) -> None:
    scenario = Scenario.parse(f"{text}-{PATH}")
    bench.check_refused(scenario, 0x1234, "by a key that nobody has")
    with pytest.raises(Failure, match=r"by a live key \(0x.*\):") as failure:
        bench.check_refused(scenario, bench.arenas[Side.RESPONDER].rkey, "by a live key")
    assert "of 8 bytes wrong" in str(failure.value)
    assert ("responder: completed with IBV_WC_SUCCESS" in str(failure.value)) == ("imm" in text)


def test_a_kind_of_memory_that_does_not_pass_is_lacking_and_no_broken_rig(bench: Bench, patch: Patch) -> None:
    def reg_mr(method: Callable[..., Any], device: Device, *arguments: Any) -> Any:
        return method(device, *arguments[:-1], arguments[-1] & ~abi.ACCESS_ZERO_BASED)

    patch("reg_mr", reg_mr)
    for text in ("rc-send-n8-m8", "rc-send-n100-m100"):
        with pytest.raises(LackingError, match="does no RC SEND on a zero-based MR"):
            bench.check(Scenario.parse(f"{text}-{PATH}-zero_based"))
    bench.check(SEND, *Aspect)


@pytest.mark.parametrize(
    ("status", "is_refusal"),
    [
        (e.IBV_WC_REM_ACCESS_ERR, True),
        (e.IBV_WC_REM_OP_ERR, True),
        (e.IBV_WC_REM_INV_REQ_ERR, True),
        (e.IBV_WC_REM_INV_RD_REQ_ERR, True),
        (e.IBV_WC_RETRY_EXC_ERR, False),
        (e.IBV_WC_LOC_PROT_ERR, False),
    ],
)
def test_a_requester_learns_of_a_refused_key_by_one_of_several_statuses(
    bench: Bench, patch: Patch, status: int, is_refusal: bool
) -> None:
    def refuse(method: Callable[..., Any], device: Device, transfer: Any, rkey: int, *rest: Any) -> Any:
        if rkey == 0x1234:
            raise Nak(status, "no")
        return method(device, transfer, rkey, *rest)

    patch("find_remote", refuse)
    with nullcontext() if is_refusal else pytest.raises(Failure, match="by some key"):
        bench.check_refused(READ.on_ordinary_memory(), 0x1234, "by some key")


def retries_exceeded(method: Callable[..., None], device: Device, qp: Any) -> None:
    while qp.sq:
        device.complete_send(qp, qp.sq.popleft(), abi.WC_RETRY_EXC_ERR)


DYING: dict[str, tuple[str, Callable[..., Any], str]] = {
    "silent": ("run", nothing, "no completion within"),
    "unplugged": ("run", retries_exceeded, "IBV_WC_RETRY_EXC_ERR"),
    "in error": ("check_send", refused(errno.EIO), r"refused it: errno 5 \(EIO"),
}


@pytest.mark.parametrize("dying", DYING)
@pytest.mark.parametrize("scenario", [WRITE, READ], ids=str)
def test_a_rig_that_has_died_neither_refuses_a_key_nor_lets_it_through(
    bench: Bench, patch: Patch, scenario: Scenario, dying: str
) -> None:
    method, wrong, words = DYING[dying]
    bench.control(scenario)
    patch(method, wrong)
    with pytest.raises(BrokenError, match=f"ordinary memory does not pass any more(?s:.*)Before that(?s:.*){words}"):
        bench.check_refused(scenario.on_ordinary_memory(), 0x1234, "by some key")


@pytest.mark.parametrize(("number", "means_the_key"), [(errno.EINVAL, True), (errno.EIO, False), (errno.ENOMEM, False)])
def test_a_refusal_to_post_is_one_of_the_key_if_it_is_about_the_arguments_and_others_are_posted(
    bench: Bench, patch: Patch, number: int, means_the_key: bool
) -> None:
    patch("check_send", Calls(refused(number), last=1))
    with nullcontext() if means_the_key else pytest.raises(BrokenError, match="that is no refusal of a key"):
        bench.check_refused(READ.on_ordinary_memory(), 0x1234, "by some key")


def test_a_verb_that_fails_on_a_device_that_is_gone_is_no_failure_of_the_null_mr(bench: Bench, patch: Patch) -> None:
    with pytest.raises(Failure, match=r"^ref0/1 .*\n=> it failed$"):
        bench.fail("it failed")
    patch("create_qp", refused(errno.EIO))
    with pytest.raises(BrokenError, match=r"EIO(?s:.*)Before that:\n.*\n=> it failed$"):
        bench.fail("it failed")


def test_a_remote_address_can_be_chosen(bench: Bench) -> None:
    ordinary = WRITE.on_ordinary_memory()
    own = bench.arenas[Side.RESPONDER]
    run = bench.run(ordinary, address=own.address + 8192)
    assert [finding.aspect for finding in run.findings] == [Aspect.PAYLOAD]
    assert run.layout.remote is not None
    expected = run.prediction.after[Side.RESPONDER][run.layout.remote.offset : run.layout.remote.end]
    assert own.read(8, 8192) == expected


def test_atomics_are_left_out_of_the_access_of_memory_where_there_are_none() -> None:
    with_atomics, without = Bench(target()), Bench(target(atomic="NONE"))
    assert with_atomics.access & ~without.access == abi.ACCESS_REMOTE_ATOMIC
    for bench in (with_atomics, without):
        bench.close()


@pytest.mark.parametrize(
    ("link_layer", "text"),
    [
        ("ETHERNET", r"^ref0/1 \(reference\), GID \d+ \(RoCE v2, [0-9a-f:]+\), MTU 1024, with A=1$"),
        ("INFINIBAND", r"^ref0/1 \(reference\), LID 0x7, P_Key 0xffff at index 0, MTU 1024, with A=1$"),
    ],
)
def test_a_target_is_described_by_its_address(link_layer: str, text: str) -> None:
    one = target()
    port = replace(one.port, link_layer=link_layer, lid=7)
    gid = one.gid if link_layer == "ETHERNET" else None
    bench = Bench(replace(one, port=port, gid=gid, environment=(("A", "1"),)))
    bench.close()
    assert re.match(text, bench.where)


def test_ordinary_memory_takes_the_place_of_null_mrs_in_a_control_run(patch: Patch) -> None:
    bench = Bench(target(), control_only=True)
    patch("read_null", protection_error)
    bench.check(SEND)
    with pytest.raises(LackingError, match="is too long for ordinary memory"):
        bench.check(replace(SEND, gather=(null(LONGEST_CONTROL + 1),), scatter=(null(LONGEST_CONTROL + 1),)))
    patch("gather", Calls(protection_error))
    with pytest.raises(Failure, match="the model's prediction does not hold on ordinary memory"):
        bench.check(SEND)
    bench.close()


def test_another_null_mr_can_take_the_place_of_the_benchs_own(bench: Bench, patch: Patch) -> None:
    other = NullMR(bench.pd)
    bench.check(SEND)
    own = bench.null_mr.lkey

    def without_own(method: Any, device: Any, transfer: Any, segment: Any, write: bool) -> Any:
        return protection_error() if segment.lkey == own else method(device, transfer, segment, write)

    patch("find_local", without_own)
    bench.check(SEND, null_mr=other)
    with pytest.raises(Failure):
        bench.check(SEND)
    other.close()


def test_memory_is_exchanged_between_the_sides(bench: Bench) -> None:
    requester, responder = bench.arenas[Side.REQUESTER], bench.arenas[Side.RESPONDER]
    bench.exchange_arenas()
    assert bench.arenas == {Side.REQUESTER: responder, Side.RESPONDER: requester}


def test_a_pd_that_cannot_be_deallocated_says_why(bench: Bench, patch: Patch) -> None:
    sibling = bench.sibling()
    assert sibling.context is bench.context
    sibling.close_traffic()
    patch("dealloc_pd", Calls(refused(errno.EBUSY), last=1))
    error = sibling.dealloc_pd()
    assert error is not None
    assert "Device or resource busy" in error


def test_the_transports_that_have_no_atomics_are_not_asked_for_them(bench: Bench) -> None:
    assert Operation.FETCH_AND_ADD in bench.offered(SEND.link)
    assert Operation.FETCH_AND_ADD not in bench.offered(replace(SEND.link, transport=Transport.UC))


def test_a_control_that_passes_on_one_kind_of_link_says_nothing_of_another(bench: Bench, patch: Patch) -> None:
    other = Scenario.parse(f"uc-send-n8-m8-{PATH}")
    bench.control(SEND)
    patch("read_ordinary", protection_error)
    bench.control(SEND)
    with pytest.raises(BrokenError):
        bench.control(other)


@pytest.mark.parametrize(
    ("id", "control"),
    [
        (f"rc-send-n1-m1-{PATH}", f"rc-send-m32-m32-{PATH}"),
        (f"rc-send-n32-2*m16-{PATH}", f"rc-send-m32-m32-{PATH}"),
        (f"rc-write-n8+m25-remote-{PATH}", f"rc-write-m64-remote-{PATH}"),
        (f"rc-read-remote-n64-{PATH}", f"rc-read-remote-m64-{PATH}"),
        (f"rc-read-remote-n65-{PATH}", f"rc-read-remote-m1024-{PATH}"),
        (f"ud-send-n1024-n1064-{PATH}", f"ud-send-m1024-m1064-{PATH}"),
        (f"uc-write_imm-n1025-n1-{PATH}", f"uc-write_imm-m1025-m1025-{PATH}"),
        ("xrc-send-n65536-m65536-srq-post_send-cq_ex", "xrc-send-m1025-m1025-srq-post_send-cq_ex"),
        (f"rc-cmp_swp-remote-n8-{PATH}", f"rc-cmp_swp-remote-m8-{PATH}"),
    ],
)
def test_the_control_is_on_the_same_side_of_each_size_at_which_devices_change_their_way(id: str, control: str) -> None:
    assert str(control_of(Scenario.parse(id), capabilities(target()))) == control


def test_the_control_is_no_longer_than_the_messages_that_the_port_takes() -> None:
    short = capabilities(target(max_msg_sz=1000))
    assert control_of(Scenario.parse(f"rc-send-n1000-m1000-{PATH}"), short).length == 1000


def test_what_is_broken_on_ordinary_memory_is_broken_alone(bench: Bench, patch: Patch) -> None:
    patch("read_remote", lambda method, *arguments: bytes(arguments[-1].length))
    for broken in (READ, replace(READ, scatter=(null(64),))):
        with pytest.raises(BrokenError, match="the control, ordinary memory only, does not pass"):
            bench.check(broken)
    bench.check(SEND)
    bench.check(WRITE)


# Traffic of one kind in one check

TRAFFIC = [Batch((replace(SEND, gather=(null(8 + i),), scatter=(mem(8 + i),)),)) for i in range(5)]


def everything(_: Scenario) -> bool:
    return True


def garbage(*lengths: int) -> Callable[..., Any]:
    def read(method: Any, device: Any, transfer: Any, segment: Any) -> Any:
        return b"\xa5" * segment.length if segment.length in lengths else method(device, transfer, segment)

    return read


def test_what_was_right_in_every_respect_is_not_run_again(bench: Bench, patch: Patch) -> None:
    bench.control(SEND)
    runs = Calls(nothing, first=1 << 30)
    patch("send", runs)
    for aspect in (Aspect.PAYLOAD, Aspect.CANARY, Aspect.COMPLETION):
        assert bench.check_each(TRAFFIC, everything, aspect) == {}
    assert runs.count == 5


def test_what_was_wrong_in_some_respect_is_run_anew_for_another(bench: Bench, patch: Patch) -> None:
    patch("read_null", garbage(9))
    bench.check_each(TRAFFIC, everything, Aspect.CANARY)
    with pytest.raises(Failure, match="control: the same work request on ordinary memory ends as it must"):
        bench.check_each(TRAFFIC, everything, Aspect.PAYLOAD)


def test_the_first_that_fails_is_shown_and_all_others_are_named(bench: Bench, patch: Patch) -> None:
    patch("read_null", garbage(9, 11, 12))
    with pytest.raises(Failure) as failed:
        bench.check_each(TRAFFIC, everything, Aspect.PAYLOAD)
    assert failed.value.scenario == TRAFFIC[1].scenarios[0]
    others = str(failed.value).partition("these fail too:\n")[2]
    assert others.split() == [str(TRAFFIC[index].scenarios[0]) for index in (3, 4)]


def test_a_device_on_which_nothing_works_is_not_tried_to_the_end(bench: Bench, patch: Patch) -> None:
    patch("read_null", garbage(*range(8, 40)))
    many = [Batch((replace(SEND, gather=(null(8 + i),), scatter=(mem(8 + i),)),)) for i in range(30)]
    with pytest.raises(Failure, match="and no more were tried") as failed:
        bench.check_each(many, everything, Aspect.PAYLOAD)
    assert len(str(failed.value).partition("these fail too:\n")[2].splitlines()) == MOST_FAILURES


def test_of_those_in_flight_only_the_wanted_are_judged(bench: Bench, patch: Patch) -> None:
    at_once = Batch(tuple(batch.scenarios[0] for batch in TRAFFIC))
    patch("read_null", garbage(9))
    bench.check_each([at_once], lambda scenario: scenario.length != 9, Aspect.PAYLOAD)
    with pytest.raises(Failure):
        bench.check_each([at_once], lambda scenario: scenario.length == 9, Aspect.PAYLOAD)


def test_what_an_error_of_another_flushes_is_not_blamed(bench: Bench, patch: Patch) -> None:
    def refuse(method: Any, device: Any, transfer: Any, segment: Any) -> Any:
        return protection_error() if segment.length == 9 else method(device, transfer, segment)

    at_once = Batch(tuple(batch.scenarios[0] for batch in TRAFFIC))
    patch("read_null", refuse)
    bench.check_each([at_once], lambda scenario: scenario.length > 9, Aspect.PAYLOAD)
    with pytest.raises(Failure, match="IBV_WC_LOC_PROT_ERR") as failed:
        bench.check_each([at_once], everything, Aspect.PAYLOAD)
    assert failed.value.scenario == TRAFFIC[1].scenarios[0]


def test_what_is_wrong_beside_others_only_says_so_and_is_not_shown_by_its_scenario(bench: Bench, patch: Patch) -> None:
    def in_a_chain(method: Any, device: Any, transfer: Any, segment: Any) -> Any:
        return b"\xa5" * segment.length if transfer.wr.index % 8 == 3 else method(device, transfer, segment)

    at_once = Batch(tuple(batch.scenarios[0] for batch in TRAFFIC))
    bench.control(SEND)  # has index 0 on its link
    patch("read_null", in_a_chain)
    with pytest.raises(Failure, match="alone, the work request with the null MR ends as it must") as failed:
        bench.check_each([at_once], everything, Aspect.PAYLOAD)
    assert not failed.value.shown_by_scenario


def test_what_a_device_lacks_for_some_is_told_and_for_all_raised(bench: Bench) -> None:
    bench.able = replace(bench.able, max_sge=1)
    lists = [Batch((Scenario.parse(f"rc-send-n{length}+m1-m9-{PATH}"),)) for length in (3, 4)]
    (why,) = bench.check_each([*TRAFFIC, *lists], everything, Aspect.PAYLOAD).items()
    assert why[0].endswith("takes lists of 1 segments (max_sge)")
    assert why[1] == 2
    with pytest.raises(LackingError, match="max_sge"):
        bench.check_each(lists, everything, Aspect.PAYLOAD)


def test_memory_that_cannot_be_registered_is_no_failure_of_the_null_mr(bench: Bench, patch: Patch) -> None:
    bench.control(SEND)
    patch("reg_mr", refused(errno.ENOMEM))
    with pytest.raises(BrokenError, match=r"no MR of \d+ bytes: .*ENOMEM"):
        bench.run(Scenario.parse(f"rc-send-m1048576-m1048576-{PATH}"))
