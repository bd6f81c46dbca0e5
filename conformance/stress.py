# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A stress of a device, judged; one that fails is repeated with less, to tell what it needs and what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from conformance.judging import Bench
from conformance.load import KINDS, PAIRS, THREADS, Load
from conformance.report import reproducer, stress_program
from conformance.verbs import stress
from conformance.verdicts import BrokenError, Failure, LackingError

OF_OBJECTS = ("allocate/coexist", "free/succeeds", "free/releases-pd")
"""Clauses that are broken by a verb, and not by what became of a request."""


@dataclass(frozen=True)
class Outcome:
    """How a run of the program ended; `told` is its last line, empty if it died."""

    ended: stress.Ended
    told: dict[str, Any]

    @property
    def is_wrong(self) -> bool:
        """Is the device to blame: did it break a clause, or end the process while null MRs were in use?"""
        return self.ended.status == 1 or (self.ended.status is None and "with null MRs:" in self.ended.output)

    @property
    def clause(self) -> str:
        """The clause that speaks of what was seen."""
        return str(self.told["clause"]) if self.told else "allocate/lkey-valid"

    @property
    def posted(self) -> int:
        """Work requests of all pairs until then."""
        return int(self.told["posted"]) if self.told else 0

    def __str__(self) -> str:
        lines = self.ended.output.splitlines()
        return "\n".join((*lines[: -1 if self.told else None], *filter(None, [self.ended.death])))


@dataclass(frozen=True)
class Stress:
    """How long to drive a device, in seconds, what to draw the requests from, and whom to tell how many there were: in
    words, and as a number of requests a second.
    """

    seconds: int
    seed: int
    note: Callable[[str, int], None]

    def run(self, bench: Bench) -> None:
        """Raises Failure, whose `clause` is the one that is broken; LackingError if the device has no queue pairs to
        drive, BrokenError if ordinary memory does not pass.
        """
        kinds = tuple(kind for kind in KINDS if bench.has_link(kind))
        if not kinds:
            raise LackingError(f"{bench.target.id} has no queue pairs to drive")
        load = Load(kinds, self.seed % 2**32, THREADS, PAIRS)
        outcome = self._run(bench, load)
        if not outcome.is_wrong:
            if outcome.ended.status != 0:
                raise BrokenError(f"{bench.where}\n{outcome}")
            self.note(_words(outcome.told), int(outcome.told["rate"]))
            return
        raise self._found(bench, load, outcome)

    def _run(self, bench: Bench, load: Load, *more: str) -> Outcome:
        where = reproducer.where(bench.target)
        text = stress_program.render(Load(load.kinds, 0, THREADS, PAIRS), where)  # for all seeds: it is compiled once
        arguments = (*load.arguments, f"--seconds={self.seconds}", *more)
        try:
            ended = stress.run(text, arguments, stress_program.longest(self.seconds, where.timeout))
        except RuntimeError as error:  # native.BuildError is one
            raise BrokenError(f"{bench.where}\nthe stress cannot be run:\n{error}") from None
        last = (ended.output.splitlines() or [""])[-1]
        return Outcome(ended, json.loads(last) if last.startswith("{") else {})

    def _found(self, bench: Bench, load: Load, outcome: Outcome) -> Failure:
        # Enough for what was seen to be seen again, also where requests come in another order.
        enough = replace(load, requests=10 * outcome.posted + 10_000)
        ordinary = self._run(bench, enough, "--ordinary")
        if ordinary.ended.status != 0:
            raise BrokenError(f"ordinary memory alone does not pass either\n{ordinary}\nWith null MRs:\n{outcome}")
        lines = [bench.where]
        clause = outcome.clause
        if outcome.ended.hung:  # again, that would take as long each time
            lines.append(str(outcome))
        elif (again := self._run(bench, enough)).is_wrong:
            load, outcome = self._reduced(bench, enough, again)
            clause = clause_of(load, outcome)
            lines += [str(outcome), *_needs(load)]
        else:
            lines += [str(outcome), "It did not fail when it was run again."]
        lines += [f"stress: {load} (--search-seed={self.seed})", "control: on ordinary memory the same passes"]
        failure = Failure("\n".join(lines))
        failure.clause, failure.load = clause, load
        return failure

    def _reduced(self, bench: Bench, load: Load, outcome: Outcome) -> tuple[Load, Outcome]:
        """The least that still fails: one thread, whose order is fixed; no null MR that comes or goes; one pair."""
        for reduce in (_on_one_thread, _still, _one_pair):
            for less in reduce(load, outcome):
                tried = self._run(bench, less)
                if tried.is_wrong:
                    load, outcome = less, tried
                    break
        return load, outcome


def clause_of(load: Load, outcome: Outcome) -> str:
    """The clause that is broken where no less than this load shows it."""
    if outcome.clause in OF_OBJECTS:
        return outcome.clause
    if not load.still:
        return "free/leaves-others"
    return "allocate/many-queue-pairs" if load.pairs > 1 else outcome.clause


def _on_one_thread(load: Load, _: Outcome) -> Iterator[Load]:
    yield replace(load, threads=1)


def _still(load: Load, outcome: Outcome) -> Iterator[Load]:
    if outcome.clause not in OF_OBJECTS:
        yield replace(load, still=True)


def _one_pair(load: Load, outcome: Outcome) -> Iterator[Load]:
    """The pair that was seen to be wrong; one of each kind, where the process died before it could tell."""
    if outcome.clause in OF_OBJECTS:
        return
    pairs = [int(outcome.told["pair"])] if outcome.told else range(len(load.kinds))
    yield from (replace(load, pairs=1, first=pair) for pair in pairs)


def _needs(load: Load) -> Iterator[str]:
    """What cannot be left out."""
    if load.threads > 1:
        yield "It needs several threads."
    if not load.still:
        yield "It needs null MRs that are allocated and freed meanwhile."
    if load.pairs > 1:
        yield "It needs several pairs of queue pairs."


def _words(told: dict[str, Any]) -> str:
    lost = f" ({told['lost']} not judged, as UD or UC lost some)" if told["lost"] else ""
    return (
        f"{told['requests']} work requests{lost} in {told['seconds']:.1f} s, {told['rate']} a second, on {PAIRS} pairs "
        f"of queue pairs from {THREADS} threads; {told['null_mrs']} null MRs allocated"
    )
