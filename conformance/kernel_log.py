# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the kernel says while a check runs: attached to the check, and able to decide it.

The rule, for the lines that came between the end of the check before and the end of this one:

    a splat (BUG, WARNING, Oops, Call Trace, ...) in the device's driver or in the RDMA core      FAIL
    any other splat                                                                               BROKEN
    a line of level "err" or worse of the device's driver, unless the check provokes errors       BROKEN
    anything else                                                                                 only attached

A device is not asked to be silent: checks of some clauses (`provokes_kernel_errors`), and messages longer than the list
that they come to, provoke errors that a driver may report. What names another device than the one that is tried is left
out; a splat that names none counts for every check that runs when it comes. A line that comes late is found at the
next check, and one that comes while everything is closed, after the last check of a device, is BROKEN at the most.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from conformance.clauses import BY_ID
from conformance.kernel import MODULE_NAMES, SYSFS
from conformance.scenarios import Scenario
from conformance.verdicts import Verdict

KMSG = Path("/dev/kmsg")
LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""By number, as in syslog(2)."""
ERR = LEVELS.index("err")
LONGEST_RECORD = 8192
"""Bytes; a shorter read of /dev/kmsg fails with EINVAL."""
MOST_LINES = 200
"""Lines attached to one check."""

SPLAT = re.compile(
    r"\bBUG\b|\bWARNING: |\bOops\b|Call Trace:|general protection fault|\bKASAN\b|\bUBSAN\b|Internal error: "
    r"|INFO: task .* blocked for more than|INFO: rcu\w* .*stall"
)
NOISE = re.compile(r"speed is unknown, defaulting to 1000")
"""Lines of no meaning: RDMA core asks a virtual netdev for its speed."""
PCI_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
"""Domain, bus, device and function, as the kernel writes them."""
CORE_MODULES = frozenset({"ib_core", "ib_uverbs", "ib_cm", "iw_cm", "rdma_cm", "rdma_ucm"})


@dataclass(frozen=True)
class Line:
    """A record of the kernel's log. `level` is an index of LEVELS, `seconds` count from the boot."""

    level: int
    seconds: float
    text: str

    def __str__(self) -> str:
        return f"[{self.seconds:12.6f}] {LEVELS[self.level]}: {self.text}"


class KernelLog:
    """Reads what the kernel logs from now on. Raises OSError where that is not allowed."""

    def __init__(self, path: Path = KMSG) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._file, 0, os.SEEK_END)

    def read(self) -> list[Line]:
        """The lines since the last call."""
        found: list[Line] = []
        while True:
            try:
                records = os.read(self._file, LONGEST_RECORD)
            except BlockingIOError:
                return found
            except BrokenPipeError:  # the kernel has overwritten what was next; reading goes on behind it
                continue
            if not records:
                return found
            found += parse(records.decode(errors="replace"))

    def close(self) -> None:
        os.close(self._file)


def parse(records: str) -> list[Line]:
    """Lines of records as /dev/kmsg has them (Documentation/ABI/testing/dev-kmsg): "4,1234,56789012,-;text"."""
    pattern = re.compile(r"^(\d+),\d+,(\d+),[^;\n]*;(.*)$", re.MULTILINE)
    # The lowest three bits are the level. Continuation lines, which begin with a blank, name the device for programs.
    return [Line(int(m[1]) & 7, int(m[2]) / 1e6, m[3]) for m in pattern.finditer(records)]


def names_of_device(name: str, sysfs: Path = SYSFS) -> frozenset[str]:
    """What the kernel may call a device: its own name and the PCI address of its function, if it has one."""
    parent = sysfs / name / "device"
    return frozenset({name, parent.resolve().name} if parent.exists() else {name})


def names_of_driver(driver: str) -> frozenset[str]:
    """The driver and the modules that it may be made of."""
    return frozenset({driver, f"{driver}_core", *(name.format(driver) for name in MODULE_NAMES)})


def about(line: Line, own: Collection[str], others: Collection[str], driver: str) -> bool:
    """Is it worth attaching to a check of the device with the names `own` and this driver, and not only about another:
    one with the names `others`, or any other PCI function that the driver names?
    """
    if NOISE.search(line.text):
        return False
    words = _words(line.text)
    if not words.isdisjoint(own):
        return True
    of_driver = not words.isdisjoint(names_of_driver(driver))
    return words.isdisjoint(others) and not (of_driver and PCI_ADDRESS.search(line.text))


def _words(text: str) -> set[str]:
    """With and without the punctuation in names: a PCI address has colons and a dot."""
    return {*re.findall(r"\w+", text), *(word.strip(":,()[]") for word in text.split())}


class Saying(NamedTuple):
    """What the kernel's lines come to, and why."""

    verdict: Verdict
    why: str


def verdict_of(lines: Sequence[Line], driver: str, own: Collection[str], provokes: bool) -> Saying | None:
    """The verdict that the kernel's lines come to, and why; None if they do not decide anything.

    `own`: the device's names. `provokes`: the check provokes errors.
    """
    driver_names = names_of_driver(driver)
    splat = next((line for line in lines if SPLAT.search(line.text)), None)
    if splat is not None:
        if any(_is_in(line.text, driver_names | CORE_MODULES) for line in lines):
            return Saying(
                Verdict.FAIL, f"the kernel reports a fault in {driver}'s driver or the RDMA core: {splat.text}"
            )
        return Saying(
            Verdict.BROKEN, f"the kernel reports a fault, not in {driver}'s driver or the RDMA core: {splat.text}"
        )
    error = next(
        (line for line in lines if line.level <= ERR and not _words(line.text).isdisjoint(driver_names | set(own))),
        None,
    )
    if error is not None and not provokes:
        return Saying(Verdict.BROKEN, f"{driver}'s driver reports an error: {error.text}")
    return None


def _is_in(text: str, modules: Collection[str]) -> bool:
    """Does a line of a splat place it in one of the modules? "Modules linked in" lists all that there are."""
    if text.startswith("Modules linked in:"):
        return False
    return "drivers/infiniband/" in text or any(name in modules for name in re.findall(r"\[(\w+)[^\]]*\]", text))


def provokes_errors(clause: str, scenario: str) -> bool:
    """Does a check of this clause, or with this scenario, do what a driver may report as an error?"""
    return BY_ID[clause].provokes_kernel_errors or (bool(scenario) and Scenario.parse(scenario).is_too_long)


def shown(lines: list[Line]) -> str:
    more = [f"... and {len(lines) - MOST_LINES} lines more"] if len(lines) > MOST_LINES else []
    return "\n".join([*map(str, lines[:MOST_LINES]), *more])
