# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One run at a time on a device: an flock(2) on what the device is called, held by the process that uses it.

The kernel frees the lock when the process ends, however that happens, so that none is ever stale. For real devices the
lock is on the device's folder in sysfs: every user can open it, and nothing has to be made or cleaned up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from conformance import kernel
from conformance.verdicts import BrokenError

LOCKS = Path("/proc/locks")
_LONGEST_COMMAND = 120


class DeviceLock:
    """The lock of the one device that this process uses at the moment, or of the two at the ends of its traffic.

    A process never waits for a device while it holds another, but for a later one of the two, which all ask for in the
    same order: so two runs cannot wait for each other.
    """

    def __init__(self, folder: Path | None, wait: bool, say: Callable[[str], None]) -> None:
        """`folder` has what is locked, by device name (None: no device is locked). `wait` for a device that is in use,
        after telling it by `say`; or else it is BROKEN."""
        self._folder, self._wait, self._say = folder, wait, say
        self._devices: tuple[str, ...] = ()
        self._files: list[int] = []
        self._problem: BrokenError | None = None

    def is_on(self, *devices: str) -> bool:
        """Were these the last that were asked for, whether or not they were to be had?"""
        return self._devices == devices

    def move_to(self, *devices: str) -> None:
        """Release what is held and take these, in this order. Raises BrokenError if one cannot be had, and again for
        each call until others are asked for."""
        if not self.is_on(*devices):
            self.release()
            self._devices = devices
            if self._folder is not None:
                try:
                    for device in devices:
                        self._take(device, self._folder / device)
                except BrokenError as problem:
                    self.release()
                    self._devices, self._problem = devices, problem
        if self._problem is not None:
            raise self._problem

    def release(self) -> None:
        for file in self._files:
            os.close(file)
        self._devices, self._files, self._problem = (), [], None

    def _take(self, device: str, path: Path) -> None:
        try:
            file = _open(path)
            self._files.append(file)
        except OSError as error:
            raise BrokenError(f"{device}: its lock, {path}, cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            used = f"{device} is in use by {_holder(file)}"
            if not self._wait:
                raise BrokenError(f"{used}; --no-wait: it is not waited for") from None
            self._say(f"{used}; waiting until it is free (--no-wait: do not wait)")
            fcntl.flock(file, fcntl.LOCK_EX)
            self._say(f"{device} is free")


def _open(path: Path) -> int:
    """Reading is enough for flock. Only outside of sysfs may a file have to be made."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        if path.parent == kernel.SYSFS:
            raise
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)


def _holder(file: int) -> str:
    """Who has the lock, in words. /proc/locks has a line "1: FLOCK ADVISORY WRITE <pid> <major>:<minor>:<inode> ..."
    for each; a process that waits has "->" in it (proc_locks(5))."""
    status = os.fstat(file)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError):
        for fields in map(str.split, LOCKS.read_text().splitlines()):
            if fields[1] == "FLOCK" and fields[5] == name and int(fields[4]) > 0:
                return _process(int(fields[4]))
    return "a process that cannot be seen from here (of another container?)"


def _process(pid: int) -> str:
    """A process and the one that started it: of a worker, only the parent's command line says what it does."""
    words = [f"process {pid}{_command(pid)}"]
    with suppress(OSError):
        # pid (name) state parent ...; the name may have anything in it, proc_pid_stat(5)
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        words.append(f"started by process {parent}{_command(parent)}")
    return ", ".join(words)


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        line = " ".join(words.split())
        if line:
            return f" ({line if len(line) <= _LONGEST_COMMAND else line[:_LONGEST_COMMAND] + '...'})"
    return ""
