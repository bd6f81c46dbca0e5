# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Sequences carried out, on a context of their own, up to the first step that does not end as it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.inventory import Target
from conformance.outcome import Run
from conformance.scenarios import Side
from conformance.sequences import MOST_SEGMENTS, Sequence, State, Step, Verb
from conformance.verbs import windows
from conformance.verbs.closing import close
from conformance.verbs.end import Patience
from conformance.verbs.executor import Job, Pending
from conformance.verbs.link import Link
from conformance.verbs.names import e
from conformance.verbs.null_mr import NullMR, NullMRError, errno_name
from conformance.verbs.pair import Pair
from conformance.verdicts import Failure
from conformance.watch import limit, watch

BYTES = 4 * 4096
"""Of an ordinary MR, of a bound window and of what ibv_rereg_mr asks for: the start of an arena."""
OF_NULL_MRS = (Verb.ALLOC, Verb.FREE, Verb.REREG, Verb.BIND)


@dataclass(frozen=True)
class Wrong:
    """A step that did not end as it must. `run`, of traffic: the work request that shows it."""

    step: Step
    text: str
    run: Run | None = None

    @property
    def may_be_lost(self) -> bool:
        """Did an unreliable transport lose a message, as it may, or may it have?"""
        return self.run is not None and (self.run.is_lost or self.run.may_be_displaced)


def play(target: Target, sequence: Sequence, patience: Patience, ordinary: bool = False) -> Wrong | None:
    """Do what the steps say, and end what they leave; the first that is wrong, if any is.

    `ordinary`: with ordinary memory in place of each null segment, and without what is done to null MRs.
    Raises BrokenError, LackingError where the device has no such queue pairs, and Failure for a sequence that ended a
    process before.
    """
    with watch.over(limit(target.timeout), str(sequence)):
        player = _Player(target, patience, ordinary)
        try:
            for step in (*sequence.steps, *sequence.ending):
                if wrong := player.do(step):
                    return wrong
        finally:
            player.close()
    return None


class _Player:
    """The objects of a sequence by their numbers."""

    def __init__(self, target: Target, patience: Patience, ordinary: bool) -> None:
        self._target = target
        self._patience = patience
        self._ordinary = ordinary
        self._state = State()
        first = Pair(target)
        self._domain = first.domain
        self._pairs: dict[int, Pair] = {}
        self._null_mrs: dict[int, NullMR] = {}
        self._mrs: dict[int, MR] = {}
        self._links: dict[int, Link] = {}
        self._waiting: dict[int, list[Pending]] = {}
        self._sent: dict[int, list[Pending]] = {}
        self._keep(0, first)

    def do(self, step: Step) -> Wrong | None:
        if self._ordinary and step.verb in OF_NULL_MRS:
            self._state.take(step)
            return None
        wrong = _DO[step.verb](self, step)
        self._state.take(step)
        return wrong if wrong is None or isinstance(wrong, Wrong) else Wrong(step, wrong)

    def close(self) -> None:
        """Free what is left where it ended early; nobody looks how."""
        for number in list(self._links):
            self.destroy(Step(Verb.DESTROY, number))
        for mr in (*self._null_mrs.values(), *self._mrs.values()):
            close(mr)
        for pair in self._pairs.values():
            pair.close_traffic()
            pair.dealloc_pd()
        self._domain.close_context()

    def _keep(self, number: int, pair: Pair) -> None:
        pair.domain.patience = self._patience
        self._pairs[number] = pair

    # Each gives what is wrong, in words or as Wrong.

    def alloc_pd(self, step: Step) -> None:
        self._keep(step.number, Pair(self._target, self._domain.context))

    def dealloc_pd(self, step: Step) -> str | None:
        pair = self._pairs.pop(step.number)
        pair.close_traffic()
        error = pair.dealloc_pd()
        return f"ibv_dealloc_pd: {error}" if error else None

    def alloc(self, step: Step) -> str | None:
        try:
            self._null_mrs[step.number] = NullMR(self._pairs[step.other].pd)
        except NullMRError as error:
            return str(error)
        return None

    def free(self, step: Step) -> str | None:
        try:
            self._null_mrs.pop(step.number).close()
        except PyverbsRDMAError as error:
            return f"ibv_dereg_mr of the null MR returned {errno_name(error.error_code)}"
        return None

    def reg(self, step: Step) -> str | None:
        pair = self._pairs[step.other]
        try:
            self._mrs[step.number] = MR(pair.pd, BYTES, pair.access, address=pair.arenas[Side.RESPONDER].address)
        except PyverbsRDMAError as error:
            return f"ibv_reg_mr: {errno_name(error.error_code)}"
        return None

    def dereg(self, step: Step) -> str | None:
        error = close(self._mrs.pop(step.number))
        return f"ibv_dereg_mr of an ordinary MR: {error}" if error else None

    def rereg(self, step: Step) -> str | None:
        """To another PD, if there is one."""
        own = self._state.null_mrs[step.number]
        other = self._pairs[self._state.other_pd(own)]
        address = self._pairs[own].arenas[Side.REQUESTER].address
        try:
            self._null_mrs[step.number].rereg(step.other, other.pd, address, BYTES, e.IBV_ACCESS_LOCAL_WRITE)
        except PyverbsRDMAError:
            return None
        return f"ibv_rereg_mr with flags {step.other} returned 0"

    def bind(self, step: Step) -> str | None:
        pair = self._pairs[self._state.null_mrs[step.number]]
        address = pair.arenas[Side.RESPONDER].address
        try:
            with windows.bind(pair, step.other, self._null_mrs[step.number], address, BYTES) as (_, refused):
                return None if refused else f"the bind of a window of type {step.other} completed with success"
        except Failure as failure:
            return str(failure)

    def connect(self, step: Step) -> None:
        assert step.kind is not None
        number = 1 + step.number  # 0 is that of binds
        self._links[step.number] = self._pairs[step.other].link(step.kind, MOST_SEGMENTS, number)
        self._waiting[step.number], self._sent[step.number] = [], []

    def destroy(self, step: Step) -> None:
        pair = self._pairs[self._state.links[step.number].pd]
        pair.drop(self._links.pop(step.number))
        for pending in self._waiting.pop(step.number) + self._sent.pop(step.number):
            pending.abandon()

    def error(self, step: Step) -> str | None:
        try:
            self._links[step.number].end_in_error()
        except PyverbsRDMAError as error:
            return f"ibv_modify_qp to the error state: {error}"
        for pending in self._waiting[step.number]:
            pending.expect_flush()
        return None

    def reset(self, step: Step) -> str | None:
        try:
            self._links[step.number].reset()
        except PyverbsRDMAError as error:
            return f"ibv_modify_qp to the reset state and back: {error}"
        for pending in self._waiting[step.number]:
            pending.abandon()
        self._waiting[step.number] = []
        return None

    def recv(self, step: Step) -> None:
        lkey = None if self._ordinary else self._null_mrs[step.other].lkey
        scenarios = [each.on_ordinary_memory() if self._ordinary else each for each in step.scenarios]
        pending = Pending(self._links[step.number], [Job(scenario, lkey) for scenario in scenarios])
        self._waiting[step.number].append(pending)
        if self._state.links[step.number].in_error:
            pending.expect_flush()
        pending.post_receives(chain=True)

    def send(self, step: Step) -> None:
        waiting = self._waiting[step.number]
        for pending in waiting:
            pending.post_sends(chain=True)
        self._sent[step.number] += waiting
        self._waiting[step.number] = []

    def wait(self, step: Step) -> Wrong | None:
        runs: list[Run] = []
        while self._sent[step.number]:
            runs += self._sent[step.number].pop(0).collect()
        return next((Wrong(step, found.text, run) for run in runs for found in run.findings), None)


_DO: dict[Verb, Callable[[_Player, Step], Wrong | str | None]] = {
    Verb.ALLOC_PD: _Player.alloc_pd,
    Verb.DEALLOC_PD: _Player.dealloc_pd,
    Verb.ALLOC: _Player.alloc,
    Verb.FREE: _Player.free,
    Verb.REG: _Player.reg,
    Verb.DEREG: _Player.dereg,
    Verb.REREG: _Player.rereg,
    Verb.BIND: _Player.bind,
    Verb.CONNECT: _Player.connect,
    Verb.DESTROY: _Player.destroy,
    Verb.ERROR: _Player.error,
    Verb.RESET: _Player.reset,
    Verb.RECV: _Player.recv,
    Verb.SEND: _Player.send,
    Verb.WAIT: _Player.wait,
}
