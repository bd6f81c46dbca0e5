# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The ends of a target, and the links between them."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.inventory import Target
from conformance.outcome import Run
from conformance.scenarios import LinkKind, Operation, Scenario, Side, Signal, plain
from conformance.verbs import history
from conformance.verbs.end import Domain, End
from conformance.verbs.executor import Job, Pending, post, seconds
from conformance.verbs.hints import in_words
from conformance.verbs.link import Link
from conformance.verbs.memory import Arena
from conformance.verbs.null_mr import NullMR
from conformance.verdicts import BrokenError, LackingError

FEW_SGES = 4


class Pair:
    """Two ends of one target, on one PD and with one null MR; or of a target and its peer, on a PD each.

    The null MR is the target's. So, of a target with a peer, `near` is the side that the target has: that of the null
    segments, or of the remote memory where there are none.

    Links are made when first needed and kept; one that saw anything but the predicted outcome is closed, so that
    nobody inherits another one's queue pair in error. Raises BrokenError if the target cannot be opened.
    """

    def __init__(
        self,
        target: Target,
        context: Context | None = None,
        parent: PD | None = None,
        imported: int | None = None,
    ) -> None:
        """The rest is what Domain says."""
        self.target = target
        self.domain = Domain(target, context, parent, imported)
        self.ends = {side: End(self.domain) for side in Side}
        self.peer = Domain(target.peer) if target.peer else None
        self._far = {side: End(self.peer) for side in Side} if self.peer else self.ends
        self.near = Side.RESPONDER
        self.able = self.domain.able
        self._links: dict[tuple[LinkKind, int, int, Side], Link] = {}

    @property
    def context(self) -> Context:
        return self.domain.context

    @property
    def pd(self) -> PD:
        return self.domain.pd

    @property
    def null_mr(self) -> NullMR:
        """The null MR of both ends, allocated when first asked for. Raises NullMRError."""
        return self.domain.null_mr

    @property
    def arenas(self) -> dict[Side, Arena]:
        return {side: end.arena for side, end in self.ends.items()}

    @property
    def access(self) -> int:
        """Access flags of the arenas: everything that the device has."""
        return self.domain.access

    @property
    def where(self) -> str:
        """The target as failure texts show it, and who is its peer."""
        if self.peer is None:
            return self.domain.where
        far = Side.REQUESTER if self.near is Side.RESPONDER else Side.RESPONDER
        return f"{self.near.value}, with the null MR: {self.domain.where}\n{far.value}: {self.peer.where}"

    @property
    def patience(self) -> float:
        """Seconds to wait for a completion."""
        return self.domain.patience.seconds

    def face(self, *scenarios: Scenario, otherwise: Side | None = None) -> None:
        """Have the target at the side of the null segments of these; where there are none at `otherwise`, or where it
        was last. It has both sides where it has no peer.
        """
        if self.peer is None:
            return
        sides = {side for scenario in scenarios for side in scenario.null_sides}
        if len(sides) > 1:
            raise ValueError(f"{self.target.id}: null segments on both sides, of which only one has the null MR")
        self.near = sides.pop() if sides else otherwise or self.near

    def offered(self, kind: LinkKind) -> tuple[Operation, ...]:
        """The operations that a kind of link is for."""
        operations = self.able.operations(kind.transport)
        return tuple(operation for operation in operations if operation.gathers or not kind.inline)

    def link(self, kind: LinkKind, sges: int = 1, number: int = 0) -> Link:
        """A link of this kind that takes lists of `sges` segments; `number` tells several apart.

        Raises LackingError, BrokenError.
        """
        capacity = min(FEW_SGES if sges <= FEW_SGES else self.able.max_sge, self.able.max_sge)
        key = (kind, capacity, number, self.near)
        if key not in self._links:
            try:
                ends = {side: self.ends[side] if side is self.near else self._far[side] for side in Side}
                self._links[key] = Link(ends[Side.REQUESTER], ends[Side.RESPONDER], kind, capacity)
            except PyverbsRDMAError as error:
                text = f"{self.where}: no link {kind} of {capacity} SGEs: {in_words(error)}"
                much = capacity > FEW_SGES or kind.inline
                if much and error.error_code in (errno.EINVAL, errno.ENOMEM):
                    # max_sge is the device's bound, not that of every queue; none tells of inline data.
                    lacks = "inline data" if kind.inline else f"queues for lists of {capacity} SGEs"
                    raise LackingError(text, lacks) from None
                if error.error_code == errno.EINVAL and self.target.gid is None:
                    text += "; does the port take an address without a GRH? `gid: 0` in its entry adds one"
                raise BrokenError(text) from error
        return self._links[key]

    def exchange_arenas(self) -> None:
        """Let the next requester use the memory, and so the addresses, that the last responder used."""
        history.note("an exchange of the two sides' memory")
        self.ends[Side.REQUESTER].exchange_arenas(self.ends[Side.RESPONDER])
        if self.peer is not None:
            self._far[Side.REQUESTER].exchange_arenas(self._far[Side.RESPONDER])

    def drop(self, link: Link) -> None:
        """Close a link that may be in error; the next of its kind is made anew."""
        self._links = {key: kept for key, kept in self._links.items() if kept is not link}
        link.close()

    def run(
        self,
        scenario: Scenario,
        lkey: int | None = None,
        rkey: int | None = None,
        address: int | None = None,
        refused: frozenset[str] | None = None,
        gather_lkey: int | None = None,
    ) -> Run:
        """Carry a scenario out alone; the rest is what Job says."""
        (run,) = self.run_at_once([Job(scenario, lkey, rkey, address, refused, gather_lkey)])
        return run

    def run_at_once(self, jobs: Sequence[Job], queue_pairs: int = 1, chain: bool = False) -> tuple[Run, ...]:
        """Post all of these before the first completion is looked at; how each ended, in this order.

        They take turns on `queue_pairs` links of their kind; those on one link are posted as a chain, or one by one.
        Where the last on a link is not signaled, a signaled SEND of ordinary memory follows: how those end comes after
        the others.
        """
        jobs = list(jobs)
        self.face(*(job.scenario for job in jobs))
        sges = max(len(segments) for job in jobs for segments in (job.scenario.gather, job.scenario.scatter))
        on: dict[Link, list[int]] = {}
        for index, job in enumerate(jobs):
            on.setdefault(self.link(job.scenario.link, sges, index % queue_pairs), []).append(index)
        for indices in on.values():
            last = jobs[indices[-1]].scenario
            if last.signal is Signal.UNSIGNALED:
                indices.append(len(jobs))
                jobs.append(Job(plain(last.link, Operation.SEND)))
        pending: dict[Link, Pending] = {}
        runs: dict[int, Run] = {}
        for job in jobs:
            history.note(job.scenario)
        try:
            for link, indices in on.items():
                pending[link] = post(link, *(jobs[index] for index in indices), chain=chain)
            for link, indices in on.items():
                for index, run in enumerate(pending[link].collect()):
                    runs[indices[index]] = run
                del pending[link]
        finally:
            for link, left in pending.items():  # after an exception
                left.abandon()
                self.drop(link)
        for link, indices in on.items():
            if any(_may_be_in_error(jobs[index], runs[index]) for index in indices):
                self.drop(link)
        return tuple(runs[index] for index in range(len(jobs)))

    def run_from_start(self, jobs: Sequence[Job]) -> tuple[Run, ...]:
        """Run these, which are for one kind of link, on a new one: as many at a time as it takes, in turn as a chain
        and one by one.
        """
        sges = max(len(segments) for job in jobs for segments in (job.scenario.gather, job.scenario.scatter))
        self.face(*(job.scenario for job in jobs))
        self.drop(self.link(jobs[0].scenario.link, sges))
        flights = [jobs[start : start + Link.depth] for start in range(0, len(jobs), Link.depth)]
        return tuple(
            run for number, flight in enumerate(flights) for run in self.run_at_once(flight, 1, not number % 2)
        )

    def seconds(self, scenario: Scenario, count: int) -> float:
        """How long `count` repetitions of a scenario take, one after the other, completions included."""
        self.face(scenario)
        link = self.link(scenario.link, max(len(scenario.gather), len(scenario.scatter)))
        return seconds(link, Job(scenario), count)

    def close_traffic(self) -> None:
        """Close links, arenas and the pair's own null MR: everything that stands on the PD."""
        for link in list(self._links.values()):
            self.drop(link)
        self.domain.close_null_mrs()
        for end in dict.fromkeys((*self.ends.values(), *self._far.values())):  # the same where there is no peer
            end.close()

    def dealloc_pd(self) -> str | None:
        """ibv_dealloc_pd; the error in words if it fails."""
        return self.domain.dealloc_pd()

    def close(self) -> None:
        """Free everything. What a faulty device refuses to free is left to the end of the process."""
        self.close_traffic()
        self.dealloc_pd()
        self.domain.close_context()
        if self.peer is not None:
            self.peer.dealloc_pd()
            self.peer.close_context()


def _may_be_in_error(job: Job, run: Run) -> bool:
    return job.scenario.is_too_long or job.refused is not None or bool(run.findings)
