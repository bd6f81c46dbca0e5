# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The one executor of scenarios: posts them on a link, and collects what came of each.

    (run,) = post(link, Job(scenario)).collect()

Whatever is posted before the first `collect` is in flight at once: several scenarios on one link, or on several links.
Each has a stretch of memory to itself on both sides, so that each is predicted and judged as if it were alone.
"""

from __future__ import annotations

import errno
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.model import FLUSHED, SUCCESS, Completion, Prediction, atomic_operands, predict
from conformance.outcome import UNRELIABLE, Addresses, Outcome, Refusal, Run, WorkCompletion
from conformance.scenarios import (
    PAGE,
    Address,
    Operation,
    Place,
    Plan,
    Post,
    Scenario,
    Segment,
    Side,
    Signal,
    Wait,
    plan,
    scatter_side,
)
from conformance.verbs.completions import has_all
from conformance.verbs.hints import in_words
from conformance.verbs.link import Link
from conformance.verbs.memory import Arena, Unmapped
from conformance.verbs.null_mr import errno_name
from conformance.verbs.remote_window import RemoteWindow
from conformance.verbs.wr import SGE, RecvWR, Remote, SendWR
from conformance.verdicts import BrokenError, LackingError
from conformance.watch import limit, watch

SHORT_WAIT = 0.05
"""Seconds, if that is not too much of the timeout: one side's completion, once the other side is known to have
failed; and what must not come, of which no completion tells."""
ARRIVAL_WAIT = 0.2
"""Seconds, if that is not too much of the timeout: the data of a WRITE, of which no completion tells the responder."""

_wr_ids = itertools.count(1)
_unmapped = Unmapped()


@dataclass(frozen=True)
class Job:
    """A scenario to be carried out, and what is special about it.

    `lkey`: that of its null segments (None: of each side's own null MR), but for those of the other null MR.
    `gather_lkey`: that of the ordinary memory it gathers from (None: the memory's own). `rkey`, `address`: name remote
    memory so (None: the responder's arena), and what is to be invalidated (None: a window that the responder has
    bound). `refused`: it must end with one of these statuses and change nothing; over an unreliable transport it may
    also succeed, as nobody tells the requester.
    """

    scenario: Scenario
    lkey: int | None = None
    rkey: int | None = None
    address: int | None = None
    refused: frozenset[str] | None = None
    gather_lkey: int | None = None


@dataclass(eq=False)
class Flight:
    """One job under way. `start` is where its stretch begins in the arena of each side."""

    job: Job
    layout: Plan
    prediction: Prediction
    start: dict[Side, int]
    addresses: Addresses
    send_wr: SendWR
    recv_wr: RecvWR | None
    keys: str
    refusal: Refusal | None = None
    window: RemoteWindow | None = None
    """what the responder has bound for a SEND with invalidate"""
    window_left: bool = False
    memory: dict[Side, bytes] = field(default_factory=dict)

    @property
    def wr_id(self) -> int:
        """Of its work requests on both sides."""
        return self.send_wr.wr_id


def post(link: Link, *jobs: Job, chain: bool = False) -> Pending:
    """Post scenarios on one link: all receives, then all sends, each in this order.

    `chain`: all receives in one call, and all sends; or else a call for each. Nothing is posted after what is refused;
    a chain is refused as a whole. What ends the queue pair in error must come last, and so must a signaled one: its
    completion tells that those before it are done.

    Raises ValueError for what the link cannot take, BrokenError if there is no memory for it, NullMRError, LackingError
    for memory or a second null MR that the device lacks, and Failure for a scenario that ended a process before.
    """
    if not 1 <= len(jobs) <= link.depth - len(link.in_flight):
        raise ValueError(f"{len(jobs)} more scenarios beside {len(link.in_flight)}: a link takes {link.depth} at once")
    for job in jobs:
        if job.scenario.link != link.kind:
            raise ValueError(f"{job.scenario} is not for a link {link.kind}")
    if jobs[-1].scenario.signal is Signal.UNSIGNALED:
        raise ValueError(f"{jobs[-1].scenario}: nothing would tell when it is done")
    pending = Pending(link, jobs)
    try:
        with pending.watched():
            pending.post(chain)
    except BaseException:
        pending.abandon()
        raise
    return pending


def seconds(link: Link, job: Job, count: int) -> float:
    """How long `count` repetitions of a scenario take, one after the other, completions included.

    Raises BrokenError if one does not end well.
    """
    pending = Pending(link, [job])
    try:
        return pending.repeat(count)
    finally:
        pending.abandon()


class Pending:
    """Scenarios in flight on a link, whose memory nobody else is given until they are collected or abandoned."""

    def __init__(self, link: Link, jobs: Sequence[Job]) -> None:
        layouts = [plan(job.scenario) for job in jobs]
        if any(layout.is_across_4gib for layout in layouts[1:]):
            raise ValueError("of several in flight only the first can be at a multiple of 2^32")
        sizes = {side: [layout.size(side) for layout in layouts] for side in Side}
        starts = {side: _starts(of_side) for side, of_side in sizes.items()}
        names = {str(job.scenario) for job in jobs}
        self._name = names.pop() if len(names) == 1 else ""
        self._link = link
        self._arenas: dict[Side, Arena] = {}
        self._wr_ids: set[int] = set()
        self._flights: list[Flight] = []
        try:
            for side, end in link.ends.items():
                self._arenas[side] = end.lend(
                    starts[side][-1] + sizes[side][-1], layouts[0].is_across_4gib, jobs[0].scenario.ordinary
                )
            self._flights = [
                self._prepare(job, layouts[index], {side: starts[side][index] for side in Side})
                for index, job in enumerate(jobs)
            ]
        except BaseException:
            self.abandon()
            raise
        self._wr_ids = {flight.wr_id for flight in self._flights}
        link.in_flight |= self._wr_ids

    def abandon(self) -> None:
        """Give the memory back. Work requests that are still in flight may use it: close their link."""
        for flight in self._flights:
            if flight.window is not None:
                flight.window.close()
        self._link.in_flight -= self._wr_ids
        while self._arenas:
            side, arena = self._arenas.popitem()
            self._link.ends[side].give_back(arena)

    def watched(self) -> AbstractContextManager[None]:
        """The watch over what a device does with these scenarios; it names none where it could be any of several."""
        return watch.over(limit(self._link.patience.timeout), self._name)

    def _prepare(self, job: Job, layout: Plan, start: dict[Side, int]) -> Flight:
        """Fill the memory, and say what is to be posted."""
        scenario = job.scenario
        prediction = predict(scenario, layout, sys.byteorder)
        if job.refused is not None:
            requester = Completion(job.refused | (SUCCESS if scenario.transport in UNRELIABLE else frozenset()))
            prediction = replace(prediction, after=prediction.before, requester=requester, responder=None)
        for side, arena in self._arenas.items():
            arena.write(prediction.before[side], start[side])
        gather = self._sges(job, layout.gather, Side.REQUESTER, start)
        if job.gather_lkey is not None:
            named = zip(gather, scenario.gather)
            gather = tuple(sge if each.null else sge._replace(lkey=job.gather_lkey) for sge, each in named)
        scatter = self._sges(job, layout.scatter, scatter_side(scenario.operation), start)
        wr_id = next(_wr_ids)
        compare_add, swap = 0, 0
        if layout.remote is not None and scenario.operation.is_atomic:
            word = prediction.before[Side.RESPONDER][layout.remote.offset : layout.remote.end]
            operands = atomic_operands(scenario, int.from_bytes(word, sys.byteorder))
            compare_add, swap = operands.compare_add, operands.swap
        remote = self._remote(job, layout, start)
        send_wr = SendWR(
            wr_id,
            scenario.operation,
            gather if scenario.operation.gathers else scatter,
            scenario.imm_data,
            remote,
            compare_add,
            swap,
            scenario.signal is not Signal.UNSIGNALED,
            scenario.solicited,
            scenario.inline,
        )
        recv_wr = RecvWR(wr_id, scatter) if scenario.operation.consumes_receive else None
        addresses = Addresses(tuple(sge.addr for sge in gather), tuple(sge.addr for sge in scatter))
        keys = _keys(zip((*layout.gather, *layout.scatter), (*gather, *scatter)), remote)
        return Flight(job, layout, prediction, start, addresses, send_wr, recv_wr, keys)

    def _sges(self, job: Job, places: tuple[Place, ...], side: Side, start: dict[Side, int]) -> tuple[SGE, ...]:
        """The list of one side."""
        lkey = self._arenas[side].lkey
        return tuple(
            SGE(
                self._address(place, start),
                place.segment.length,
                self._null_lkey(job, place.segment, side) if place.segment.null else lkey,
            )
            for place in places
        )

    def _address(self, place: Place, start: dict[Side, int]) -> int:
        if place.region is None:
            return _outside(place.segment)
        arena = self._arenas[place.side]
        first = arena.address if place.segment.null else arena.iova
        return first + start[place.side] + place.region.offset

    def _null_lkey(self, job: Job, segment: Segment, side: Side) -> int:
        domain = self._link.ends[side].domain
        if segment.other:
            return int(domain.other_null_mr.lkey)
        return int(domain.null_mr.lkey) if job.lkey is None else job.lkey

    def _remote(self, job: Job, layout: Plan, start: dict[Side, int]) -> Remote | None:
        """The remote memory, if the operation names any."""
        if layout.remote is None:
            return None
        arena = self._arenas[Side.RESPONDER]
        return Remote(
            arena.iova + start[Side.RESPONDER] + layout.remote.offset if job.address is None else job.address,
            arena.rkey if job.rkey is None else job.rkey,
        )

    def post(self, chain: bool) -> None:
        for flight in self._flights:
            if flight.job.scenario.needs_window and flight.job.rkey is None:
                self._open_window(flight)
            elif flight.job.scenario.operation is Operation.SEND_WITH_INV and flight.job.rkey is not None:
                flight.send_wr = replace(flight.send_wr, invalidate=flight.job.rkey)
        self.post_receives(chain)
        self.post_sends(chain)

    def _open_window(self, flight: Flight) -> None:
        """Bind what the SEND invalidates, or by what the remote memory is named. Raises BrokenError, LackingError."""
        domain = self._link.ends[Side.RESPONDER].domain
        arena = self._arenas[Side.RESPONDER]
        try:
            window = RemoteWindow(domain.pd, self._link.responder, arena, domain.access)
        except PyverbsRDMAError as error:
            if error.error_code in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise LackingError(f"{domain.where}: no memory window of type 2: {error}", "type 2 windows") from None
            raise BrokenError(f"{domain.where}: no memory window of type 2: {in_words(error)}") from error
        flight.window = window
        if problem := window.bind(next(_wr_ids), self._link.patience.seconds):
            raise BrokenError(f"{domain.where}: a memory window cannot be bound to ordinary memory: {problem}")
        if flight.send_wr.remote is not None:
            flight.send_wr = replace(flight.send_wr, remote=flight.send_wr.remote._replace(rkey=window.rkey))
            return
        flight.send_wr = replace(flight.send_wr, invalidate=window.rkey)
        responder = flight.prediction.responder
        if responder is not None and responder.is_success:
            responder = replace(responder, invalidated_rkey=window.rkey)
            flight.prediction = replace(flight.prediction, responder=responder)

    def _look_at_windows(self, received: list[WorkCompletion]) -> None:
        """Is what was to be invalidated free to be bound again?"""
        done = {wc.wr_id for wc in received if wc.status in SUCCESS}
        for flight in self._flights:
            invalidates = flight.job.scenario.operation is Operation.SEND_WITH_INV
            if invalidates and flight.window is not None and flight.wr_id in done:
                flight.window_left = bool(flight.window.bind(next(_wr_ids), self._link.patience.seconds))

    def post_receives(self, chain: bool) -> None:
        requester, responder = self._link.requester, self._link.responder
        if self._link.kind.channel:
            requester.cq.notify()
            if any(flight.recv_wr for flight in self._flights):
                waits = {flight.job.scenario.wait for flight in self._flights}
                responder.cq.notify(solicited_only=waits == {Wait.SOLICITED_EVENT})
        self._post_each(
            [flight for flight in self._flights if flight.recv_wr],
            "ibv_post_recv",
            chain,
            lambda group: responder.post_recv(*(flight.recv_wr for flight in group if flight.recv_wr)),
        )

    def post_sends(self, chain: bool) -> None:
        requester = self._link.requester
        self._post_each(
            [flight for flight in self._flights if not flight.refusal],
            "ibv_post_send" if self._link.kind.post is Post.POST_SEND else "ibv_wr_complete",
            chain,
            lambda group: requester.post_send(*(flight.send_wr for flight in group)),
        )

    def _post_each(
        self, flights: list[Flight], verb: str, chain: bool, post: Callable[[Sequence[Flight]], None]
    ) -> None:
        groups = [flights] if chain else [[flight] for flight in flights]
        for group in filter(None, groups):
            try:
                post(group)
            except PyverbsRDMAError as error:
                refusal = Refusal(verb, errno_name(error.error_code), error_code=error.error_code)
                for flight in self._flights[self._flights.index(group[0]) :]:
                    flight.refusal = refusal if flight in group else replace(refusal, of_another=True)
                return

    def expect_flush(self) -> None:
        """The link is in error: from now on its work requests complete with a flush error, and change nothing."""
        flushed = Completion(FLUSHED)
        for flight in self._flights:
            prediction = flight.prediction
            responder = flushed if flight.recv_wr else None
            flight.prediction = replace(
                prediction, after=prediction.before, unspecified=(), requester=flushed, responder=responder
            )

    def repeat(self, count: int) -> float:
        (flight,) = self._flights
        requester, responder, patience = self._link.requester, self._link.responder, self._link.patience
        requests = []
        for wr_id in itertools.islice(_wr_ids, count):
            recv = replace(flight.recv_wr, wr_id=wr_id) if flight.recv_wr else None
            requests.append((replace(flight.send_wr, wr_id=wr_id), recv))
        where = self._link.ends[Side.REQUESTER].domain.where
        start = time.perf_counter()
        for send, recv in requests:
            try:
                if recv:
                    responder.post_recv(recv)
                requester.post_send(send)
            except PyverbsRDMAError as error:
                refused = errno_name(error.error_code)
                raise BrokenError(f"{where}: {flight.job.scenario} does not go on: {refused}") from None
            completions = requester.cq.wait([send.wr_id], patience.seconds)
            if recv:
                completions += responder.cq.wait([send.wr_id], patience.seconds)
            if [wc.status for wc in completions] != (2 if recv else 1) * [*SUCCESS]:
                found = completions or "no completion"
                raise BrokenError(f"{where}: {flight.job.scenario} does not go on: {found}")
        return time.perf_counter() - start

    def collect(self) -> tuple[Run, ...]:
        """Wait for what must complete, and say how each scenario ended, in the order of posting. Only once."""
        completions: dict[Side, list[WorkCompletion]] = {side: [] for side in Side}
        waited: dict[Side, float] = {}
        notified: dict[Side, bool] = {}
        posted = [flight for flight in self._flights if not flight.refusal]
        try:
            with self.watched():
                if posted:
                    self._wait(posted, completions, waited, notified)
                    self._look_at_windows(completions[Side.RESPONDER])
            return self._runs(posted, completions, waited, notified)
        finally:
            self.abandon()

    def _runs(
        self,
        posted: list[Flight],
        completions: dict[Side, list[WorkCompletion]],
        waited: dict[Side, float],
        notified: dict[Side, bool],
    ) -> tuple[Run, ...]:
        """How each ended. No provider takes part in it, so it may take its time."""
        self._read_memory([flight for flight in posted if flight.job.scenario.operation is Operation.RDMA_WRITE])
        return tuple(
            Run(
                flight.job.scenario,
                flight.layout,
                flight.prediction,
                Outcome(
                    flight.wr_id,
                    {side: self._own(flight, found) for side, found in completions.items()},
                    flight.memory,
                    flight.refusal,
                    waited,
                    {side: came for side, came in notified.items() if self._tells_of(side, flight)},
                    flight.window_left,
                ),
                flight.addresses,
                flight.keys,
            )
            for flight in self._flights
        )

    def _due(self, side: Side) -> bool:
        """Must there be a completion event for one of these?"""
        return any(side in flight.prediction.notified for flight in self._flights)

    def _tells_of(self, side: Side, flight: Flight) -> bool:
        """Is it told by what came of all together whether an event came for this one?"""
        return side in flight.prediction.notified or not self._due(side)

    def _is_refused(self) -> bool:
        """Must one of these be refused?"""
        return any(flight.job.refused is not None for flight in self._flights)

    @property
    def _short_wait(self) -> float:
        return min(SHORT_WAIT, self._link.patience.seconds / 100)

    def _own(self, flight: Flight, completions: list[WorkCompletion]) -> tuple[WorkCompletion, ...]:
        """The completions of one; those of nobody are shown with the first, after its own."""
        own = [wc for wc in completions if wc.wr_id == flight.wr_id]
        if flight is self._flights[0]:
            own += [wc for wc in completions if wc.wr_id not in self._wr_ids]
        return tuple(own)

    def _wait(
        self,
        posted: list[Flight],
        completions: dict[Side, list[WorkCompletion]],
        waited: dict[Side, float],
        notified: dict[Side, bool],
    ) -> None:
        """Fill in what completes, for how long a side's completions were waited for in vain, and where events came."""
        patience = self._link.patience
        seconds = patience.seconds
        if self._link.kind.channel:
            notified[Side.REQUESTER] = self._link.requester.cq.wait_for_event(seconds)
        due = [flight.wr_id for flight in posted if flight.prediction.requester]
        sent = self._wait_for(Side.REQUESTER, due, seconds if notified.get(Side.REQUESTER, True) else 0)
        if not has_all(sent, due):
            waited[Side.REQUESTER] = seconds
        statuses = {wc.wr_id: wc.status for wc in reversed(sent)}
        ended_well = all(
            statuses.get(flight.wr_id) in flight.prediction.requester.statuses
            for flight in posted
            if flight.prediction.requester
        )
        due = [flight.wr_id for flight in posted if flight.recv_wr]
        due_in = seconds if ended_well and not self._is_refused() else self._short_wait
        if due and self._link.kind.channel and self._due(Side.RESPONDER):
            notified[Side.RESPONDER] = self._link.responder.cq.wait_for_event(due_in)
        received = self._wait_for(Side.RESPONDER, due, due_in if notified.get(Side.RESPONDER, True) else 0)
        if not has_all(received, due):
            waited[Side.RESPONDER] = due_in
        elif due and self._link.kind.channel and not self._due(Side.RESPONDER):
            notified[Side.RESPONDER] = self._link.responder.cq.wait_for_event(0)
        if seconds in waited.values() or any(not notified.get(side, True) and self._due(side) for side in Side):
            patience.lose()
        completions[Side.REQUESTER] = sent + self._wait_for(Side.REQUESTER, (), 0)
        completions[Side.RESPONDER] = received

    def _wait_for(self, side: Side, due: Sequence[int], seconds: float) -> list[WorkCompletion]:
        """Wait for the completions of these work requests; all that came, but for those that others wait for."""
        link = self._link
        cq = (link.requester if side is Side.REQUESTER else link.responder).cq
        early = link.early[side]
        found = early + cq.wait(set(due).difference(wc.wr_id for wc in early), seconds)
        others = link.in_flight - self._wr_ids
        link.early[side] = [wc for wc in found if wc.wr_id in others]
        return [wc for wc in found if wc.wr_id not in others]

    def _read_memory(self, writes: list[Flight]) -> None:
        """Read all memory, and again while data of these WRITEs is missing, of which no completion tells the responder:
        a UC WRITE completes when it is sent (IBTA 9.8), and the acknowledgement of an RC WRITE does not say that the
        CPU sees it.
        """
        if self._is_refused() and self._link.kind.transport in UNRELIABLE:
            time.sleep(self._short_wait)
        deadline = time.monotonic() + min(ARRIVAL_WAIT, self._link.patience.seconds / 20)
        while True:
            for flight in self._flights:
                flight.memory = {
                    side: arena.read(flight.layout.size(side), flight.start[side])
                    for side, arena in self._arenas.items()
                }
            if all(flight.memory == flight.prediction.after for flight in writes) or time.monotonic() >= deadline:
                return
            time.sleep(0.001)


_KEY_OF = {"n": "null MR", "o": "other null MR", "m": "memory"}


def _keys(named: Iterable[tuple[Place, SGE]], remote: Remote | None) -> str:
    """The keys of a work request as texts show them."""
    lkeys: dict[str, dict[str, None]] = {}
    for place, sge in named:
        lkeys.setdefault(_KEY_OF[place.segment.kind], {})[f"{sge.lkey:#x}"] = None
    words = [f"{what} lkey {', '.join(keys)}" for what, keys in lkeys.items()]
    return "; ".join([*words, f"rkey {remote.rkey:#x}"] if remote else words)


def _starts(sizes: list[int]) -> list[int]:
    """Where stretches of these sizes begin that follow one another, each as aligned as if it were alone."""
    return list(itertools.accumulate((-(-size // PAGE) * PAGE for size in sizes[:-1]), initial=0))


def _outside(segment: Segment) -> int:
    """The address of a null segment that does not point at memory."""
    if segment.address is Address.ZERO:
        return 0
    if segment.address is Address.TOP:
        return -segment.length % 2**64
    return _unmapped.address(segment.length)
