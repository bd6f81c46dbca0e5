# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the kernel says is attached to the check that ran, and decides it by the rule."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import kernel_log
from conformance.kernel_log import KernelLog, Line, about, names_of_device, parse, verdict_of
from conformance.results import Result
from conformance.session.kernel_log import Watcher
from conformance.session.properties import CLAUSE, KERNEL_LOG, TARGET, carry, result_of
from conformance.verdicts import Verdict

OWN = frozenset({"rxe0"})
OTHERS = frozenset({"rxe1"})
TARGETS = {"rxe0/1": (("rxe0",), "rxe"), "rxe1/1": (("rxe1",), "rxe")}
TOO_LONG = "rc-send-m65-n64-rq-post_send-poll_cq"
DRIVER_ERROR = "rdma_rxe: cannot find the memory"
WARNING = "WARNING: CPU: 0 PID: 71 at drivers/infiniband/sw/rxe/rxe_mr.c:33 rxe_mr_copy+0x1/0x2 [rdma_rxe]"


def say(log: Path, *texts: str, level: int = 6) -> None:
    """As /dev/kmsg has it, with the facility kern and then with user's, and the device for programs behind it."""
    with log.open("a") as file:
        for number, text in enumerate(texts):
            file.write(f"{level + 8 * (number % 2)},{number},1500000,-;{text}\n SUBSYSTEM=infiniband\n DEVICE=+x\n")


def line(text: str, level: int = 6) -> Line:
    return Line(level, 1.5, text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    say(path, "BUG: before the session")
    return path


def test_only_what_comes_after_the_start_is_read_and_that_once(log: Path) -> None:
    reader = KernelLog(log)
    assert reader.read() == []
    say(log, "first", "second", level=3)
    assert reader.read() == [line("first", 3), line("second", 3)]
    assert reader.read() == []
    reader.close()


def test_a_record_shows_its_time_level_and_text() -> None:
    assert [str(found) for found in parse("4,7,12345678,-,caller=T1;mlx5_core 0000:17:00.0: a;b\n X=y\n")] == [
        "[   12.345678] warning: mlx5_core 0000:17:00.0: a;b"
    ]


@pytest.mark.parametrize(
    ("text", "attached"),
    [
        ("rxe0: set active", True),
        ("net0: link becomes ready", True),
        ("infiniband rxe1: set down", False),
        ("rxe1 and rxe0 are there", True),
        ("net1 speed is unknown, defaulting to 1000", False),
    ],
)
def test_lines_about_another_device_and_noise_are_left_out(text: str, attached: bool) -> None:
    assert about(line(text), OWN, OTHERS, "rxe") == attached


def test_a_device_is_also_known_by_its_pci_address(tmp_path: Path) -> None:
    (tmp_path / "0000:17:00.0").mkdir()
    for name, parent in (("mlx5_0", "0000:17:00.0"), ("rxe0", "")):
        (tmp_path / name).mkdir()
        if parent:
            (tmp_path / name / "device").symlink_to(tmp_path / parent)
    names = names_of_device("mlx5_0", tmp_path)
    assert names == {"mlx5_0", "0000:17:00.0"}
    assert names_of_device("rxe0", tmp_path) == {"rxe0"}
    assert not about(line("mlx5_core 0000:17:00.0: health poll failed"), OWN, names, "rxe")


@pytest.mark.parametrize(
    ("text", "attached"),
    [
        ("mlx5_core 0000:5e:00.0: QUERY_VPORT_COUNTER(0x770) failed, status bad parameter(0x3)", True),
        ("mlx5_core 0000:5e:00.0 (own) and 0000:5e:00.1", True),
        ("mlx5_core 0000:5e:00.1: Port module event[error]: module 1, Cable error", False),  # the other function
        ("mlx5_core 0000:af:00.0 eno1np0: TX timeout detected", False),  # a NIC without an RDMA device
        ("infiniband mlx5_1: reg umr failed (6)", False),  # a device that the file leaves out
        ("mlx5_core: out of memory", True),
        ("nouveau 0000:01:00.0: fifo: fault", True),
        ("INFO: task nfsd:2211 blocked for more than 122 seconds.", True),
    ],
)
def test_lines_of_devices_that_are_not_tried_are_left_out(
    log: Path, monkeypatch: pytest.MonkeyPatch, text: str, attached: bool
) -> None:
    names = {name: frozenset({name, f"0000:5e:00.{name[-1]}"}) for name in ("mlx5_0", "mlx5_1")}
    monkeypatch.setattr("conformance.session.kernel_log.names_of_device", names.get)
    watcher = Watcher({"rxe0/1": (("mlx5_0",), "mlx5")}, controller=False, path=log, present=["mlx5_0", "mlx5_1"])
    say(log, text, level=3)
    made = report()
    watcher.pytest_handlecrashitem(made)
    watcher.pytest_unconfigure()
    assert (made.sections != []) == attached


def test_lines_of_the_device_at_the_other_end_are_attached(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: frozenset({name, f"0000:5e:00.{name[-1]}"}) for name in ("mlx5_0", "mlx5_1")}
    monkeypatch.setattr("conformance.session.kernel_log.names_of_device", names.get)
    watcher = Watcher({"rxe0/1": (("mlx5_0", "mlx5_1"), "mlx5")}, controller=False, path=log)
    say(log, "mlx5_core 0000:5e:00.1: an error", level=3)
    made = report()
    watcher.pytest_handlecrashitem(made)
    watcher.pytest_unconfigure()
    assert made.sections


@pytest.mark.parametrize(
    "lines",
    [
        (WARNING,),
        (
            "BUG: kernel NULL pointer dereference",
            "Modules linked in: nfs",
            "RIP: 0010:rxe_post_send+0x1/0x2 [rdma_rxe]",
        ),
        ("general protection fault: 0000 [#1] SMP", "Call Trace:", " ib_uverbs_write+0x1/0x2 [ib_uverbs 0123abcd]"),
        ("UBSAN: array-index-out-of-bounds in drivers/infiniband/core/cq.c:9:1",),
        ("BUG: KASAN: use-after-free in rxe_get+0x1/0x2 [rdma_rxe]",),
        ("INFO: task python3:7 blocked for more than 120 seconds.", " rxe_destroy_qp+0x1/0x2 [rdma_rxe]"),
    ],
)
def test_a_splat_in_the_driver_or_the_rdma_core_is_a_fail(lines: tuple[str, ...]) -> None:
    for provokes in (False, True):
        decided = verdict_of([line(text) for text in lines], "rxe", OWN, provokes)
        assert decided is not None
        assert decided[0] is Verdict.FAIL
        assert lines[0] in decided[1]


def test_a_splat_elsewhere_is_broken_even_if_the_driver_is_loaded() -> None:
    lines = [line(text) for text in ("Oops: 0002 [#1]", "Modules linked in: rdma_rxe ib_core", " f+0x1/0x2 [nfs]")]
    decided = verdict_of(lines, "rxe", OWN, provokes=False)
    assert decided is not None
    assert decided[0] is Verdict.BROKEN


def test_an_error_line_of_the_driver_is_broken_unless_the_check_provokes_errors() -> None:
    for text in (DRIVER_ERROR, "infiniband rxe0: qp in error"):
        decided = verdict_of([line(text, level=3)], "rxe", OWN, provokes=False)
        assert decided == (Verdict.BROKEN, f"rxe's driver reports an error: {text}")
        assert verdict_of([line(text, level=3)], "rxe", OWN, provokes=True) is None
        assert verdict_of([line(text, level=4)], "rxe", OWN, provokes=False) is None
    assert verdict_of([line("usb 1-1: device descriptor read error", level=3)], "rxe", OWN, provokes=False) is None


def test_keys_misuse_and_messages_that_are_too_long_provoke_errors() -> None:
    assert kernel_log.provokes_errors("key/no-rkey", "")
    assert kernel_log.provokes_errors("misuse/bind-refused", "")
    assert kernel_log.provokes_errors("discard/completion", TOO_LONG)
    assert not kernel_log.provokes_errors("discard/completion", "")
    assert not kernel_log.provokes_errors("read/zeros", "rc-send-n64-m64-rq-post_send-poll_cq")


def report(outcome: Any = "passed", when: Any = "call", text: str | None = None, **more: str) -> pytest.TestReport:
    """A check's report as it is when the kernel's lines are looked at: with a result, if its phase decides anything."""
    properties = {CLAUSE: "read/zeros", TARGET: "rxe0/1", **more}
    made = pytest.TestReport("check", ("", 0, ""), {}, outcome, text, when, user_properties=list(properties.items()))
    if when == "call" or outcome != "passed":
        failed = Verdict.FAIL if when == "call" else Verdict.BROKEN
        verdict = {"passed": Verdict.PASS, "skipped": Verdict.SKIPPED, "failed": failed}[outcome]
        carry(made, Result("check", "read/zeros", "rxe0/1", verdict, text or "", more.get("scenario", "")))
    return made


def attach(log: Path, made: pytest.TestReport, *texts: str, level: int = 6) -> pytest.TestReport:
    """What becomes of a check's report if the kernel says these lines while it runs."""
    watcher = Watcher(TARGETS, controller=False, path=log)
    say(log, *texts, level=level)
    watcher.pytest_handlecrashitem(made)
    watcher.pytest_unconfigure()
    return made


def test_lines_are_attached_to_the_check_and_its_result(log: Path) -> None:
    made = attach(log, report(), "rxe0: hello", "rxe1: not for this check")
    result = result_of(made)
    assert result is not None
    assert (result.verdict, result.kernel_log) == (Verdict.PASS, "[    1.500000] info: rxe0: hello")
    assert made.sections == [("kernel log", "[    1.500000] info: rxe0: hello")]


def test_a_quiet_kernel_leaves_no_trace(log: Path) -> None:
    made = attach(log, report())
    assert made.sections == []
    assert KERNEL_LOG not in dict(made.user_properties)


@pytest.mark.parametrize(
    ("made", "texts", "level", "verdict"),
    [
        (report(), (WARNING,), 4, Verdict.FAIL),
        (report(), (DRIVER_ERROR,), 3, Verdict.BROKEN),
        (report(when="setup"), (WARNING,), 4, Verdict.FAIL),
        (report(when="setup"), (DRIVER_ERROR,), 3, Verdict.BROKEN),
        (report(when="teardown"), (WARNING,), 4, Verdict.BROKEN),
        (report("skipped"), (WARNING,), 4, Verdict.FAIL),
        (report("failed", text="bytes"), (DRIVER_ERROR,), 3, Verdict.FAIL),
        (report("failed", when="setup", text="no port"), (WARNING,), 4, Verdict.FAIL),
        (report(scenario=TOO_LONG), (DRIVER_ERROR,), 3, Verdict.PASS),
    ],
)
def test_the_kernel_decides(
    log: Path, made: pytest.TestReport, texts: tuple[str, ...], level: int, verdict: Verdict
) -> None:
    before = made.longreprtext
    result = result_of(attach(log, made, *texts, level=level))
    assert result is not None
    assert result.verdict is verdict
    assert before in result.text
    assert texts[0] in result.kernel_log


@pytest.mark.parametrize(("is_last", "shown"), [(False, []), (True, ["kernel log"])])
def test_what_comes_between_two_checks_is_left_to_the_second(log: Path, is_last: bool, shown: list[str]) -> None:
    watcher = Watcher(TARGETS, controller=False, path=log)
    item: Any = SimpleNamespace(user_properties=[])
    watcher.pytest_runtest_teardown(None if is_last else item)
    say(log, "rxe0: closed")
    teardown = report(when="teardown")
    steps = watcher.pytest_runtest_makereport(item, pytest.CallInfo.from_call(lambda: None, "teardown"))
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(teardown)
    assert [title for title, _ in teardown.sections] == shown
    watcher.pytest_unconfigure()


def test_a_flood_is_cut(log: Path) -> None:
    made = attach(log, report(), *("rxe0: again" for _ in range(kernel_log.MOST_LINES + 3)))
    assert made.sections[0][1].splitlines()[-1] == "... and 3 lines more"


def test_what_came_before_a_worker_died_is_not_held_against_its_last_check(log: Path) -> None:
    watcher = Watcher(TARGETS, controller=True, path=log)
    say(log, "rxe0: while another check ran")
    watcher.pytest_runtest_logreport()
    say(log, "BUG: unable to handle page fault", " rxe_requester+0x1/0x2 [rdma_rxe]")
    made = report("failed", text="the process died of SIGKILL")
    watcher.pytest_handlecrashitem(made)
    watcher.pytest_unconfigure()
    assert "while another check ran" not in str(dict(made.user_properties)[KERNEL_LOG])
    assert "rxe_requester" in str(dict(made.user_properties)[KERNEL_LOG])


def test_tests_that_are_no_checks_are_left_alone(log: Path) -> None:
    plain = pytest.TestReport("test", ("", 0, ""), {}, "passed", None, "call")
    assert attach(log, plain, WARNING).passed


def test_without_permission_the_header_says_so_and_checks_go_on(tmp_path: Path) -> None:
    watcher = Watcher(TARGETS, controller=False, path=tmp_path / "absent")
    assert watcher.pytest_report_header() == (
        f"kernel log: not watched, {tmp_path}/absent: No such file or directory (it takes root or CAP_SYSLOG)"
    )
    made = report()
    watcher.pytest_handlecrashitem(made)
    assert made.passed
    watcher.pytest_unconfigure()
