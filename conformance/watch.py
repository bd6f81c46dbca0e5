# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The watch over a process in which a provider may die or hang.

A worker keeps a journal, a small file with the check and the scenario that it is about to run, and beside it the Python
stack at the moment of death: what is left of it tells what it died in. A call that does not return is ended by SIGALRM,
which ends the process even inside C.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import mmap
import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from conformance import crash
from conformance.sequences import parse
from conformance.verdicts import Failure


@dataclass(frozen=True)
class Step:
    """What a process is about to do. `scenario` is the id of a scenario or of a sequence, empty outside of these.

    `goes_on`: the check runs many scenarios, and can go on from one that ended its process.
    """

    clause: str = ""
    target: str = ""
    nodeid: str = ""
    scenario: str = ""
    goes_on: bool = False


class DeadlyError(Failure):
    """The scenario ended a process of this run before."""


@dataclass(frozen=True)
class Stack:
    """Where a process was: frames of the thread that ended it, innermost first, without those of the test runner.

    `address`: what a memory fault was about. `native`: functions and their libraries, as far as the Python interpreter.
    """

    address: str = ""
    native: tuple[str, ...] = ()
    python: tuple[str, ...] = ()


@dataclass(frozen=True)
class Death:
    """How a process ended, in words, in what, and where."""

    step: Step
    ending: str
    stack: Stack


JOURNAL_LENGTH = 1 << 20
"""Bytes: more than the longest id of a sequence."""


class Journal:
    """What this process runs at the moment: the first line of a file, which is in memory that outlives the process."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, JOURNAL_LENGTH)  # or else a full disk would be SIGBUS one day
            self._memory = mmap.mmap(file.fileno(), JOURNAL_LENGTH)
        self._stack = path.with_suffix(".stack").open("w")
        tell_stack_of_hang(self._stack)

    def enable(self) -> None:
        """Write the stack of a fatal signal here from now on; pytest has its own place for that at first."""
        faulthandler.enable(self._stack, all_threads=False)
        crash.tell(self._stack.fileno())

    def note(self, step: Step) -> None:
        text = json.dumps((step.clause, step.target, step.nodeid, step.scenario, step.goes_on)).encode() + b"\n"
        self._memory[: len(text)] = text


def last_step(journal: Path) -> tuple[Step, Stack]:
    """The last step of a process that is gone, and where it was.

    An empty step if the journal cannot be read: it died before its first check.
    """
    try:
        step = Step(*json.loads(journal.read_bytes().partition(b"\n")[0]))
        lines = journal.with_suffix(".stack").read_text(errors="backslashreplace").splitlines()
    except (OSError, ValueError):
        return Step(), Stack()
    return step, Stack(
        address=next((line.partition(": ")[2] for line in lines if line.startswith("address: ")), ""),
        native=_until(_INTERPRETER, (found[1] or found[0] for line in lines if (found := _NATIVE.match(line)))),
        python=_until(_RUNNER, (line for line in lines if line.startswith("  File "))),
    )


# backtrace_symbols_fd(3): "FILE(FUNCTION+OFFSET)[ADDRESS]", since glibc 2.41 with a space before the address, which
# is another one in each process.
_NATIVE = re.compile(r"([^ ].*?|) ?\[0x[0-9a-f]+\]$")
_INTERPRETER = re.compile(r"^[^(]*/(lib)?python[0-9.]*(\.so[0-9.]*)?(\(|$)")
_RUNNER = re.compile("/_pytest/")


def _until(end: re.Pattern[str], lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(itertools.takewhile(lambda line: not end.search(line), lines))


def tell_stack_of_hang(file: TextIO) -> None:
    """Write the stack there when SIGALRM comes, whose default action, the end of the process, comes after that."""
    faulthandler.register(signal.SIGALRM, file, all_threads=False, chain=True)


@dataclass
class Watch:
    """The watch of this process over the calls of a provider."""

    journal: Journal | None = None
    deadly: dict[tuple[str, str], str] = field(default_factory=dict)
    """how scenarios and sequences ended a process of this run before, in words, by target and id"""
    step: Step = field(default_factory=Step)
    _enabled: bool = True
    _seconds: float = 0

    @contextmanager
    def over(self, seconds: float, scenario: str = "") -> Iterator[None]:
        """End the process if what is inside takes longer than `seconds`. An outer watch starts anew afterwards, and
        what that names is what is run: a sequence, and not one of its scenarios.

        Raises DeadlyError for what ended a process before.
        """
        named = self.step.scenario or scenario
        if death := self.deadly.get((self.step.target, named)):
            text = f"{death}\nIt ended a process before, and was not run again."
            raise DeadlyError(text, parse(named))
        outer = self.step, self._seconds
        self._begin(self.step if named == self.step.scenario else replace(self.step, scenario=named), seconds)
        try:
            yield
        finally:
            self._begin(*outer)

    def _begin(self, step: Step, seconds: float) -> None:
        self.step, self._seconds = step, seconds
        if self.journal:
            self.journal.note(step)
        if self._enabled:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def disable(self) -> None:
        """Nobody ends a process that is being looked at."""
        self._enabled = False
        signal.setitimer(signal.ITIMER_REAL, 0)


watch = Watch()


def limit(timeout: float) -> float:
    """Seconds that one scenario may take: both sides' completions may take the timeout, and a call a moment more."""
    return 2 * timeout + 1
