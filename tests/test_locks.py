# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Two runs on one machine do not use a device at the same time, and say whom they wait for."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance import kernel, locks
from conformance.locks import DeviceLock
from conformance.verdicts import BrokenError
from tests.suite import ROOT, run_suite

KEY = ("conformance/checks/test_key.py",)
HOLD = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds a lock until its stdin ends."""
    path.touch()
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.kill()


def lock_of(folder: Path, wait: bool = False) -> DeviceLock:
    return DeviceLock(folder, wait, pytest.fail)


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_device_is_locked_until_the_next_one_is_used(tmp_path: Path) -> None:
    lock = lock_of(tmp_path)
    lock.move_to("mlx5_0")
    lock.move_to("mlx5_0")
    assert (lock.is_on("mlx5_0"), is_locked(tmp_path / "mlx5_0")) == (True, True)
    lock.move_to("mlx5_1")
    assert (is_locked(tmp_path / "mlx5_0"), is_locked(tmp_path / "mlx5_1")) == (False, True)
    lock.release()
    assert (lock.is_on("mlx5_1"), is_locked(tmp_path / "mlx5_1")) == (False, False)


def test_without_waiting_a_device_in_use_is_broken_and_names_its_holder(tmp_path: Path) -> None:
    lock = lock_of(tmp_path)
    with held(tmp_path / "mlx5_0") as holder:
        with pytest.raises(BrokenError) as caught:
            lock.move_to("mlx5_0")
        start = f"mlx5_0 is in use by process {holder.pid} ({sys.executable} -c "
        assert str(caught.value).startswith(start)
        assert f"started by process {os.getpid()} (" in str(caught.value)
        assert str(caught.value).endswith("; --no-wait: it is not waited for")
    with pytest.raises(BrokenError, match="mlx5_0 is in use"):  # half of its checks would be no verdict
        lock.move_to("mlx5_0")
    lock.move_to("mlx5_1")
    lock.move_to("mlx5_0")


def test_waiting_says_for_whom_and_how_not_to(tmp_path: Path) -> None:
    with held(tmp_path / "mlx5_0") as holder:
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            holder.kill()  # it leaves nothing stale

        lock = DeviceLock(tmp_path, wait=True, say=say)
        lock.move_to("mlx5_0")
    assert [text.partition(" (")[0] for text in said] == [
        f"mlx5_0 is in use by process {holder.pid}",
        "mlx5_0 is free",
    ]
    assert said[0].endswith("; waiting until it is free (--no-wait: do not wait)")
    assert is_locked(tmp_path / "mlx5_0")
    lock.release()


def test_a_holder_that_cannot_be_seen_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS", tmp_path / "hidden")
    with held(tmp_path / "mlx5_0"), pytest.raises(BrokenError, match="a process that cannot be seen from here"):
        lock_of(tmp_path).move_to("mlx5_0")


def test_a_real_device_is_locked_by_its_folder_in_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any folder of sysfs will do to show that the kernel has locks there."""
    interfaces = Path("/sys/class/net")
    monkeypatch.setattr(kernel, "SYSFS", interfaces)
    first, second = lock_of(interfaces), lock_of(interfaces)
    first.move_to("lo")
    with pytest.raises(BrokenError, match=rf"lo is in use by process {os.getpid()} "):
        second.move_to("lo")
    with pytest.raises(BrokenError, match="no-such: its lock, /sys/class/net/no-such, cannot be opened: No such file"):
        second.move_to("no-such")
    first.release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokenError, match=r"mlx5_0: its lock, .*/file/mlx5_0, cannot be opened: Not a directory"):
        lock_of(tmp_path / "file").move_to("mlx5_0")


def test_no_folder_is_no_lock() -> None:
    lock = DeviceLock(None, wait=False, say=pytest.fail)
    lock.move_to("ref0")
    assert lock.is_on("ref0")


@pytest.mark.parametrize("workers", ["-n0", "-nauto"])
def test_a_run_that_does_not_wait_is_broken_on_that_device_alone(workers: str, tmp_path: Path) -> None:
    with held(tmp_path / "ref0") as holder:
        devices = ("--reference", "--reference-devices=2", f"--lock-dir={tmp_path}", "--no-wait", workers)
        run = run_suite(*devices, checks=KEY)
    assert {(case.target, case.verdict) for case in run.cases} == {("ref0/1", "BROKEN"), ("ref1/1", "PASS")}
    assert f"ref0 is in use by process {holder.pid} (" in run.output
    assert run.status == 1


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_run_waits_with_a_message_and_then_passes(workers: str, tmp_path: Path) -> None:
    with held(tmp_path / "ref0") as holder, started(workers, tmp_path) as run:
        assert run.stderr is not None
        said = next(line for line in run.stderr if "is in use" in line)
        assert said.startswith(f"ref0 is in use by process {holder.pid} (")
        holder.kill()
        output, _ = run.communicate()
    assert "BROKEN" not in output.partition("verdict\n")[2]
    assert run.returncode == 0


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_run_that_waits_can_be_ended(workers: str, tmp_path: Path) -> None:
    with held(tmp_path / "ref0"), started(workers, tmp_path) as run:
        assert run.stderr is not None
        next(line for line in run.stderr if "is in use" in line)
        os.killpg(run.pid, signal.SIGTERM)
        run.communicate()
    assert run.returncode == 2


def started(workers: str, folder: Path) -> "subprocess.Popen[str]":
    options = ("-p", "no:cacheprovider", "-W", "default", "--reference", f"--lock-dir={folder}", workers, *KEY)
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_the_devices_at_both_ends_are_locked_and_released_together(tmp_path: Path) -> None:
    lock = lock_of(tmp_path)
    lock.move_to("mlx5_0", "mlx5_1")
    assert lock.is_on("mlx5_0", "mlx5_1")
    assert not lock.is_on("mlx5_0")
    assert (is_locked(tmp_path / "mlx5_0"), is_locked(tmp_path / "mlx5_1")) == (True, True)
    lock.move_to("mlx5_1")
    assert (is_locked(tmp_path / "mlx5_0"), is_locked(tmp_path / "mlx5_1")) == (False, True)
    lock.release()


def test_one_that_is_in_use_leaves_the_other_free(tmp_path: Path) -> None:
    first, second = lock_of(tmp_path), DeviceLock(tmp_path, wait=False, say=print)
    first.move_to("mlx5_1")
    with pytest.raises(BrokenError, match="mlx5_1 is in use by"):
        second.move_to("mlx5_0", "mlx5_1")
    assert not is_locked(tmp_path / "mlx5_0")
    first.release()
