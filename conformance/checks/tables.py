# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Which scenarios the checks run: selections from matrix and traffic by what the scenarios have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product

import pytest

from conformance import matrix, traffic
from conformance.capabilities import Capabilities
from conformance.matrix import NullIn, Role
from conformance.outcome import MEMORY, Aspect
from conformance.scenarios import (
    ATOMIC_LENGTH,
    GRH_LENGTH,
    Address,
    Operation,
    Poll,
    Post,
    Queue,
    Scenario,
    Segment,
    Transport,
    Wait,
    mem,
    null,
    total,
)
from conformance.traffic import Batch

ARRIVED = (Aspect.PAYLOAD, Aspect.SURROUNDINGS)
"""What shows whether each byte came where it belongs."""
LONGEST_SGE = 1 << 31
"""Bytes. Some devices keep 31 bits of a length, and 0 stands for this one."""


@dataclass(frozen=True)
class Sweep:
    """Traffic that one check runs in one go, and which scenarios of it are for that check to judge."""

    name: str
    batches: tuple[Batch, ...]
    wanted: Callable[[Scenario], bool]

    def __str__(self) -> str:
        return self.name

    @cached_property
    def is_dangerous(self) -> bool:
        """Does it name what is no memory?"""
        return any(names_no_memory(scenario) for batch in self.batches for scenario in batch.scenarios)


@dataclass(frozen=True)
class Cases:
    """What a run asks for on targets that can do the same: the pairwise matrix, the whole product beside it, or the
    scenarios that are named by id or chosen by globs of ids.
    """

    able: Capabilities
    exhaustive: bool = False
    named: tuple[Scenario, ...] = ()
    globs: tuple[str, ...] = ()

    @property
    def is_narrowed(self) -> bool:
        return bool(self.named or self.globs)

    @cached_property
    def matrix(self) -> tuple[Scenario, ...]:
        if self.is_narrowed:
            chosen = () if self.exhaustive else filter(self.is_chosen, self._pairwise)
            return tuple(dict.fromkeys((*self.named, *chosen)))
        return self._pairwise

    @property
    def _pairwise(self) -> tuple[Scenario, ...]:
        return tuple(dict.fromkeys((*matrix.matrix(self.able), *BOTH_WAYS)))

    def is_chosen(self, scenario: Scenario) -> bool:
        """By a glob."""
        return any(fnmatchcase(str(scenario), glob) for glob in self.globs)

    def sweeps(self, wanted: Callable[[Scenario], bool]) -> Iterator[Sweep]:
        """Traffic of each dimension and transport, and the depth of the matrix or its product for each role, as far as
        they have wanted scenarios; or the named ones.
        """
        able = self.able
        every: dict[str, tuple[Batch, ...]] = {}
        if self.is_narrowed:
            every = {str(scenario): (Batch((scenario,)),) for scenario in self.matrix}
        else:
            for transport, dimension in product(able.transports, traffic.DIMENSIONS):
                every[f"{transport.value}-{dimension}"] = traffic.batches(able, transport, dimension)
        if self.exhaustive:
            every |= {f"{role}-product": batches for role, batches in self.product.items()}
        elif not self.is_narrowed:
            for role, scenarios in matrix.depth(able).items():
                every[f"{role}-depth"] = tuple(Batch((scenario,)) for scenario in scenarios)
        for name, batches in every.items():
            chosen = [batch for batch in batches if any(map(wanted, batch.scenarios))]
            if not self.is_narrowed:  # of what is named, the check says what the device lacks
                chosen = [
                    batch
                    for batch in chosen
                    if not any(able.lacks_link(each.link) for each in batch.scenarios)
                    and able.has_null_mr_for(*batch.scenarios)
                ]
            if chosen:
                yield Sweep(name, tuple(chosen), wanted)

    @cached_property
    def product(self) -> dict[Role, tuple[Batch, ...]]:
        """All scenarios of each role, or those that globs choose."""
        able = self.able
        made = {}
        for role in matrix.roles(able):
            scenarios: Iterable[Scenario] = matrix.complete(able, role)
            if self.is_narrowed:
                scenarios = filter(self.is_chosen, scenarios)
            made[role] = tuple(Batch((scenario,)) for scenario in scenarios)
        return made


Select = Callable[[Cases], Iterable[Scenario]]


def over(select: Select) -> pytest.MarkDecorator:
    """Run a check once for each scenario that `select` names."""
    return pytest.mark.scenarios.with_args(select)


def where(wanted: Callable[[Scenario], bool]) -> pytest.MarkDecorator:
    """Run a check once for each scenario of the matrix that is `wanted`."""
    return over(lambda cases: filter(wanted, cases.matrix))


def in_traffic(wanted: Callable[[Scenario], bool]) -> pytest.MarkDecorator:
    """Run a check once for each kind of traffic that has `wanted` scenarios, which it judges."""
    return pytest.mark.sweeps.with_args(lambda cases: cases.sweeps(wanted))


def all_null(segments: tuple[Segment, ...]) -> bool:
    return bool(segments) and all(segment.null for segment in segments)


def mixed(segments: tuple[Segment, ...]) -> bool:
    return any(segment.null for segment in segments) and not all_null(segments)


def payload_list(scenario: Scenario) -> tuple[Segment, ...]:
    """The scatter list without the segment that takes the GRH of a UD receive, where that has one of its own."""
    grh_apart = scenario.transport is Transport.UD and scenario.scatter[0].length == GRH_LENGTH
    return scenario.scatter[1:] if grh_apart else scenario.scatter


def is_seen(scenario: Scenario) -> bool:
    """Does what is gathered arrive in ordinary memory?"""
    return scenario.operation.is_write or not all_null(payload_list(scenario))


def reads_zeros(scenario: Scenario) -> bool:
    return all_null(scenario.gather) and is_seen(scenario)


def reads_mixed(scenario: Scenario) -> bool:
    return mixed(scenario.gather) and is_seen(scenario)


def receives_into_null(scenario: Scenario) -> bool:
    return scenario.operation.consumes_receive and all_null(payload_list(scenario))


def response_into_null(scenario: Scenario) -> bool:
    return scenario.operation is Operation.RDMA_READ and all_null(scenario.scatter)


def result_into_null(scenario: Scenario) -> bool:
    return scenario.operation.is_atomic and all_null(scenario.scatter)


def scatters_mixed(scenario: Scenario) -> bool:
    return mixed(scenario.scatter)


def names_live_memory(scenario: Scenario) -> bool:
    return any(segment.null and segment.address.is_live for segment in scenario.segments)


def names_no_memory(scenario: Scenario) -> bool:
    return any(not segment.address.is_live for segment in scenario.segments)


def is_at_special_address(scenario: Scenario) -> bool:
    return any(segment.null and segment.address is not Address.CANARY for segment in scenario.segments)


def waits_for_event(scenario: Scenario) -> bool:
    return scenario.wait is not Wait.POLL and scenario.has_null


def has_null(scenario: Scenario) -> bool:
    return scenario.has_null


JUDGES: tuple[tuple[str, Callable[[Scenario], bool], tuple[Aspect, ...]], ...] = (
    ("discard/leaves-memory", names_live_memory, (Aspect.CANARY,)),
    ("discard/completion", has_null, (Aspect.COMPLETION,)),
    ("read/zeros", reads_zeros, ARRIVED),
    ("read/mixed-gather", reads_mixed, ARRIVED),
    ("discard/mixed-scatter", scatters_mixed, ARRIVED),
    ("discard/read-response", response_into_null, MEMORY),
    ("discard/atomic-result", result_into_null, MEMORY),
    ("discard/receive", receives_into_null, (Aspect.SURROUNDINGS,)),
)
"""Which clause speaks of what a scenario of the matrix shows: the first that fits."""


def clause_about(scenario: Scenario, aspect: Aspect) -> str | None:
    """The clause that speaks of what a scenario shows about this."""
    fitting = (clause for clause, wanted, aspects in JUDGES if aspect in aspects and wanted(scenario))
    return next(fitting, None)


def rc(operation: Operation, gather: Iterable[Segment], scatter: Iterable[Segment]) -> Scenario:
    return Scenario(Transport.RC, operation, tuple(gather), tuple(scatter))


def reading(operation: Operation, gather: Iterable[Segment]) -> Scenario:
    """A gather list whose bytes arrive in ordinary memory, over RC."""
    gather = tuple(gather)
    scatter = {Operation.RDMA_WRITE: (), Operation.RDMA_WRITE_WITH_IMM: (mem(8),)}
    return rc(operation, gather, scatter.get(operation, (mem(total(gather)),)))


BOTH_WAYS = (reading(Operation.SEND, [mem(8), null(64)]), rc(Operation.SEND, [mem(72)], [null(64), mem(8)]))
"""By which checks see that a null MR still works; being in the matrix too, they are judged by themselves."""


def kinds_of_work_request(cases: Cases) -> Iterator[Scenario]:
    """Each operation on each transport, queue and API, with null segments on each side that it has."""
    able = cases.able
    row: matrix.Row = {"shape": matrix.Shape.ALONE, "address": Address.CANARY}
    for role in matrix.roles(able):
        if role.null_in is NullIn.GRH:
            continue
        row |= {"role": role, "size": ATOMIC_LENGTH if role.operation.is_atomic else 64}
        for queue in _queues(able, role):
            for post in Post:
                for poll in Poll:
                    yield matrix.scenario(able, {**row, "queue": queue, "post": post, "poll": poll})


def plain_work_requests(cases: Cases) -> Iterator[Scenario]:
    """The same, posted and polled by one API."""
    every = kinds_of_work_request(cases)
    return (scenario for scenario in every if (scenario.post, scenario.poll) == (Post.POST_SEND, Poll.POLL_CQ))


def _queues(able: Capabilities, role: Role) -> tuple[Queue, ...]:
    return tuple(queue for queue in able.queues if matrix.compatible(able, "role", role, "queue", queue))


def longest(cases: Cases) -> Iterator[Scenario]:
    """The longest message that the port takes, from null to null, where nothing is and at the end of all addresses."""
    length = min(cases.able.max_msg_sz, LONGEST_SGE)
    for transport, queue in ((Transport.RC, Queue.RQ), (Transport.UC, Queue.RQ), (Transport.XRC, Queue.SRQ)):
        for address in (Address.UNMAPPED, Address.TOP):
            segments = (null(length, address),)
            yield Scenario(transport, Operation.SEND, segments, segments, queue)


def too_long(cases: Cases) -> Iterator[Scenario]:
    """Messages that are a byte longer than the list that they come to, which has null segments only, or also."""
    for size in (1, 32, 64, cases.able.mtu, 65536):
        lists: tuple[tuple[Segment, ...], ...] = ((null(size),), (mem(16), null(size)), (null(size), mem(16)))
        for queue in (Queue.RQ, Queue.SRQ):
            for scatter in lists:
                if len(scatter) <= cases.able.max_sge:
                    yield Scenario(Transport.RC, Operation.SEND, (mem(total(scatter) + 1),), scatter, queue)
        yield Scenario(Transport.XRC, Operation.SEND, (mem(size + 1),), (null(size),), Queue.SRQ)


def read_back(cases: Cases) -> Iterator[Scenario]:
    """What could show data that was written to the null MR before: it is gathered again, on each transport."""
    for transport in Transport:
        queue = Queue.SRQ if transport is Transport.XRC else Queue.RQ
        header = GRH_LENGTH if transport is Transport.UD else 0
        sizes = [1, 8, 32, 33, 64, cases.able.mtu]
        if transport is not Transport.UD:
            sizes += [4096, 65536]
            for size in sizes:
                yield Scenario(transport, Operation.RDMA_WRITE, (null(size),), (), queue)
        for size in sizes:
            yield Scenario(transport, Operation.SEND, (null(size),), (mem(header + size),), queue)


def write_by_response(scenario: Scenario) -> Scenario:
    """Before `scenario`: the response of an RDMA READ goes to the addresses that it gathers from."""
    transport = scenario.transport if scenario.transport is Transport.XRC else Transport.RC
    return replace(scenario, transport=transport, operation=Operation.RDMA_READ, gather=(), scatter=scenario.gather)


def write_by_receive(scenario: Scenario) -> Scenario:
    """Before `scenario`: a message is received at the addresses that it gathers from."""
    header = (mem(GRH_LENGTH),) if scenario.transport is Transport.UD else ()
    scatter = (*header, *scenario.gather)
    return replace(scenario, operation=Operation.SEND, gather=(mem(scenario.length),), scatter=scatter)
