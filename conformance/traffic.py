# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Traffic as applications make it: what the matrix does not have, where one work request is alone and is waited for.

A dimension is a way in which traffic differs from that. Each gives batches: scenarios that are in flight at once on one
link, mostly just one. They are chosen so that each place that a null segment can take meets each value of the
dimension, with the sizes at which devices change their way; APIs take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, count, cycle, product

from conformance.capabilities import Capabilities
from conformance.matrix import NullIn, Role, Row, Shape, compatible, roles, scenario
from conformance.scenarios import (
    ATOMIC_LENGTH,
    GRH_LENGTH,
    INLINE_LENGTH,
    MORE_OPERATIONS,
    Address,
    Operation,
    Ordinary,
    Poll,
    Post,
    Queue,
    Scenario,
    Segment,
    Signal,
    Transport,
    Wait,
    mem,
    null,
    other_null,
    total,
)


@dataclass(frozen=True)
class Batch:
    """Scenarios that are in flight at once on one link, posted as a chain or one by one.

    `fresh`: on new queue pairs, as many at a time as the queues take: from the start of each ring over its end.
    """

    scenarios: tuple[Scenario, ...]
    chain: bool = False
    fresh: bool = False


FULL_QUEUE = 16
"""Work requests that the queues of a link take."""
Dimension = Callable[[Capabilities, Transport], Iterator[Batch]]

_APIS = tuple(product(Post, Poll))


def _alone(scenarios: Iterator[Scenario]) -> Iterator[Batch]:
    return (Batch((each,)) for each in scenarios)


def _roles(able: Capabilities, transport: Transport) -> tuple[Role, ...]:
    return tuple(role for role in roles(able) if role.transport is transport)


def _queues(able: Capabilities, role: Role) -> tuple[Queue, ...]:
    return tuple(queue for queue in able.queues if compatible(able, "role", role, "queue", queue))


def _small(able: Capabilities, role: Role, more: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Bytes: within a CQE, beyond it, and more."""
    if role.operation.is_atomic:
        return (ATOMIC_LENGTH,)
    return tuple(size for size in (32, 65, *more) if role.transport is not Transport.UD or size <= able.mtu)


def _of_each_role(
    able: Capabilities, transport: Transport, polls: tuple[Poll, ...] = tuple(Poll)
) -> Iterator[Scenario]:
    """A few work requests for each place of a null segment, alone and in a list, in each queue; APIs take turns."""
    apis = cycle(product(Post, polls))
    for role in _roles(able, transport):
        sizes = _small(able, role, (able.mtu + 1,))
        for queue, size, shape in product(_queues(able, role), sizes, (Shape.ALONE, Shape.MIDDLE)):
            row = {"role": role, "size": size, "shape": shape, "address": Address.CANARY, "queue": queue}
            post, row["poll"] = next(apis)
            row["post"] = post if shape is Shape.ALONE or post is not Post.WR_SET_SGE else Post.WR_SET_SGE_LIST
            if all(compatible(able, a, row[a], b, row[b]) for a, b in (("role", "shape"), ("shape", "size"))):
                yield scenario(able, row)


def _receive(transport: Transport, segments: tuple[Segment, ...], number: int = 0) -> tuple[Segment, ...]:
    """A receive's list: that of a datagram begins with room for the GRH, null or ordinary in turn."""
    if transport is not Transport.UD:
        return segments
    return ((null if number % 2 else mem)(GRH_LENGTH), *segments)


def _with_header(transport: Transport, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The same, with as many segments: the first takes the GRH too."""
    if transport is not Transport.UD:
        return segments
    return (replace(segments[0], length=GRH_LENGTH + segments[0].length), *segments[1:])


def short(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """Messages shorter than the list: they end in a null segment, before it or exactly at its start."""
    return _alone(_short(able, transport))


def _short(able: Capabilities, transport: Transport) -> Iterator[Scenario]:
    apis = cycle(_APIS)
    for queue, size in product(able.queues, (1, 8, 31, 32, 33, 64, 65, able.mtu + 1)):
        if (transport is Transport.XRC and queue is Queue.RQ) or (transport is Transport.UD and size > able.mtu):
            continue
        lists = (
            (null(size + 32),),
            (null(size + 8), mem(16)),
            (mem(4), null(size + 8), mem(8)),
            (mem(size + 8), null(16)),
            (mem(size), null(16)),
            (mem(size), null(16), mem(8)),
            (null(size), mem(16)),
        )
        for number, segments in enumerate(lists):
            post, poll = next(apis)
            gather = (null(size),) if number == 4 else (mem(size),)
            operation = Operation.SEND_WITH_IMM if number % 2 else Operation.SEND
            scatter = _receive(transport, segments, number)
            if len(scatter) <= able.most_received(queue):
                yield Scenario(transport, operation, gather, scatter, queue, post, poll)


def inline(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """The message is in the work request, and goes into a null segment."""
    return _alone(_inline(able, transport))


def _inline(able: Capabilities, transport: Transport) -> Iterator[Scenario]:
    polls = cycle(Poll)
    for role in _roles(able, transport):
        if role.null_in is not NullIn.SCATTER:
            continue
        if not role.operation.gathers:
            continue
        for queue, post, size in product(_queues(able, role), Post, (1, 32, 33, INLINE_LENGTH)):
            gather = (mem(size),) if post is Post.WR_SET_SGE or size < 8 else (mem(3), mem(size - 3))
            if len(gather) > able.max_sge:
                continue
            for segments in ((null(size),), (null(size), mem(8)), (mem(1), null(size))):
                scatter = _receive(transport, segments)
                if len(scatter) <= able.most_received(queue):
                    yield Scenario(transport, role.operation, gather, scatter, queue, post, next(polls), inline=True)


def signaling(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """sq_sig_all is 0: signaled, not signaled, and a chain of which the third alone is signaled."""
    chains: dict[object, list[Scenario]] = {}
    for each in _of_each_role(able, transport):
        for signal in (Signal.SIGNALED, Signal.UNSIGNALED):
            yield Batch((replace(each, signal=signal),))
        if each.post is not Post.WR_SET_SGE:
            chains.setdefault(each.link, []).append(each)
    for scenarios in chains.values():
        for start in range(0, len(scenarios) - 3, 4):
            signals = (Signal.UNSIGNALED, Signal.UNSIGNALED, Signal.SIGNALED, Signal.UNSIGNALED)
            chain = zip(scenarios[start : start + 4], signals)
            yield Batch(tuple(replace(each, signal=signal) for each, signal in chain), chain=True)


def waiting(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """Completions are waited for on a completion channel, any or solicited ones; messages are solicited or not."""
    manners = cycle(((Wait.SOLICITED_EVENT, True), (Wait.SOLICITED_EVENT, False), (Wait.POLL, True)))
    for each in _of_each_role(able, transport, (Poll.POLL_CQ,)):
        yield Batch((replace(each, wait=Wait.EVENT),))
        if each.operation.consumes_receive:
            wait, solicited = next(manners)
            yield Batch((replace(each, wait=wait, solicited=solicited),))


def in_flight(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """Two at once, and a full queue, each as a chain and one by one: receives wait behind the one that is taken, and
    completions on the CQ.
    """
    by_link = _by_link(able, transport)
    for many, chain in product((2, FULL_QUEUE), (False, True)):
        for scenarios in by_link.values():
            for start in range(0, len(scenarios) - many + 1, many):
                yield Batch(tuple(scenarios[start : start + many]), chain)


def _by_link(able: Capabilities, transport: Transport) -> dict[object, list[Scenario]]:
    """Work requests of all kinds, mixed, for each link whose lists can have several segments."""
    made: dict[object, list[Scenario]] = {}
    shapes = (Shape.ALONE, Shape.FIRST, Shape.MIDDLE, Shape.LAST, Shape.ALTERNATING)
    for (shape, size), post in product(zip(shapes, (32, 8, 65, 64, able.mtu + 1)), _LISTS):
        polls = cycle(Poll)
        for role in _roles(able, transport):
            row = {"role": role, "shape": shape, "size": size, "address": Address.CANARY, "post": post}
            if role.operation.is_atomic:
                row.update(shape=Shape.ALONE, size=ATOMIC_LENGTH)
            for row["queue"], row["poll"] in zip(_queues(able, role), polls):
                if _fits(able, row):
                    each = scenario(able, row)
                    made.setdefault(each.link, []).append(each)
    return made


_LISTS = (Post.POST_SEND, Post.WR_SET_SGE_LIST)


def _fits(able: Capabilities, row: Row) -> bool:
    return all(compatible(able, a, row[a], b, row[b]) for a, b in combinations(row, 2))


def ring(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """Null segments in each place of each ring, at its end and across it.

    Lists of one segment and of four take turns by three, so that three turns of a ring of 16 have each kind in each
    place. Where a send queue is counted in blocks of 64 bytes, as mlx5 does, a list of one takes one block and a list
    of four two (but in datagrams): five blocks in three work requests, so that its first two ends, after 32 and 64
    blocks, are each in the middle of a list of four.
    """
    if able.max_sge < 4 or any(able.most_received(queue) < 4 for queue in able.queues):
        return
    one, four = (null(32),), (mem(13), null(16), mem(15), null(20))
    ordinary = tuple(mem(each.length) for each in four)
    gathers = (one, four, ordinary)
    scatters = ((mem(32),), tuple(reversed(four)), (null(64),))
    polls = cycle(Poll)
    for queue, post in product(able.queues, _LISTS):
        if transport is Transport.XRC and queue is Queue.RQ:
            continue
        poll = next(polls)
        turns = range(3 * FULL_QUEUE)
        yield Batch(
            tuple(
                Scenario(
                    transport,
                    Operation.SEND,
                    gathers[number % 3],
                    _with_header(transport, scatters[number % 3]),
                    queue,
                    post,
                    poll,
                )
                for number in turns
            ),
            fresh=True,
        )
        if (transport, queue) in ((Transport.RC, Queue.RQ), (Transport.XRC, Queue.SRQ)) and able.most_read >= 4:
            lists = (one, four, tuple(null(each.length) for each in four))
            read = Scenario(transport, Operation.RDMA_READ, (), one, queue, post, poll)
            reads = (replace(read, scatter=lists[number % 3]) for number in turns)
            yield Batch(tuple(reads), fresh=True)


def zero_length(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """Segments of 0 bytes, null and ordinary, first, between and last; and messages of 0 bytes."""
    return _alone(_zero_length(able, transport)) if able.zero_length else iter(())


def _zero_length(able: Capabilities, transport: Transport) -> Iterator[Scenario]:
    apis = cycle(product(_LISTS, Poll))
    for queue, operation in product(able.queues, able.operations(transport)):
        if queue is Queue.SRQ and transport is not Transport.XRC and not operation.consumes_receive:
            continue
        if operation.is_atomic or (transport is Transport.XRC and queue is Queue.RQ):
            continue
        for segments in (*_ZERO_SEGMENTS, *_ZERO_BYTES):
            ordinary = (mem(total(segments)),)
            pairs: list[tuple[tuple[Segment, ...], tuple[Segment, ...]]] = [
                (segments, _receive(transport, ordinary)),
                (ordinary, _receive(transport, segments)),
            ]
            if operation is Operation.RDMA_READ:
                pairs = [((), segments)]
            elif operation is Operation.RDMA_WRITE:
                pairs = [(segments, ())]
            elif segments in _ZERO_BYTES:  # into room for more, too
                pairs.append((segments, _receive(transport, (null(8), mem(8)))))
            for gather, scatter in pairs:
                each = Scenario(transport, operation, gather, scatter, queue, *next(apis))
                if each.has_null and able.lacks(each) is None:
                    yield each


_ZERO_SEGMENTS = (
    (null(0), mem(8)),
    (mem(8), null(0)),
    (mem(3), null(0), mem(5)),
    (null(0), null(8)),
    (null(8), null(0)),
    (mem(0), null(8)),
    (null(8), mem(0)),
    (null(3), mem(0), null(5)),
    (mem(0), mem(3), null(5)),
)
_ZERO_BYTES = ((null(0),), (mem(0),), (null(0), mem(0)))


def addresses(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """Null segments at odd addresses, at the ends of pages, across these and across a multiple of 2^32, in an MR of
    the other side, and where the segment before them is; and ordinary ones at such addresses beside them.
    """

    def lists(size: int) -> Iterator[tuple[Segment, ...]]:
        less = max(1, size // 3)
        for address in (Address.ODD, Address.PAGE_END, Address.ACROSS_PAGE, Address.ACROSS_4GIB, Address.OTHER_MR):
            yield (null(size, address),)
            yield (mem(less), null(size - less, address))
            if address is not Address.OTHER_MR:
                yield (null(size - less), mem(less, address))
        yield (mem(size - less), null(less, Address.AGAIN))
        yield (mem(less), null(size - 2 * less), null(less, Address.AGAIN))

    return _alone(_of_lists(able, transport, lists))


def null_mrs(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """Segments of two null MRs in one list, also where the one before is, which is of the other null MR; and of the
    second alone.
    """

    def lists(size: int) -> Iterator[tuple[Segment, ...]]:
        less = max(1, size // 3)
        yield (other_null(size),)
        yield (null(less), other_null(size - less))
        yield (other_null(less), mem(size - 2 * less), null(less))
        yield (null(less), other_null(less), mem(size - 2 * less))
        yield (null(size - less), other_null(less, Address.AGAIN))

    return _alone(_of_lists(able, transport, lists))


def invalidate(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """SEND with invalidate: a memory window of the responder is closed while the data is read or discarded."""
    if Operation.SEND_WITH_INV not in MORE_OPERATIONS.get(transport, ()):
        return iter(())
    places = (NullIn.GATHER, NullIn.SCATTER, NullIn.BOTH)
    roles = tuple(Role(transport, Operation.SEND_WITH_INV, null_in) for null_in in places)

    def lists(size: int) -> Iterator[tuple[Segment, ...]]:
        less = max(1, size // 3)
        for _ in range(len(_APIS)):
            yield (null(size),)
            yield (mem(less), null(size - 2 * less), mem(less))

    return _alone(_of_lists(able, transport, lists, roles))


def ordinary(able: Capabilities, transport: Transport) -> Iterator[Batch]:
    """Ordinary memory of each kind that devices may have, beside null segments and at the other end: on demand,
    zero-based, with relaxed ordering, in huge pages, named by a window.
    """

    def lists(size: int) -> Iterator[tuple[Segment, ...]]:
        less = max(1, size // 3)
        yield (null(size),)
        yield (mem(less), null(size - 2 * less), mem(less))

    for kind in Ordinary:
        if kind is Ordinary.PLAIN:
            continue
        for each in _of_lists(able, transport, lists):
            if kind is Ordinary.WINDOW and (transport is not Transport.RC or each.operation.is_send):
                continue
            made = replace(each, ordinary=kind)
            if able.lacks(made) is None:
                yield Batch((made,))


Lists = Callable[[int], Iterable[tuple[Segment, ...]]]
"""Lists of so many bytes."""


def _of_lists(
    able: Capabilities, transport: Transport, lists: Lists, roles: tuple[Role, ...] | None = None
) -> Iterator[Scenario]:
    """Each list in each place that null segments can take, and in each queue; sizes and APIs take turns."""
    apis = cycle(_APIS)
    turns = count()
    for role in roles or _roles(able, transport):
        every = [list(lists(size)) for size in _small(able, role, (able.mtu + 1,))]
        for queue, turn in zip(_queues(able, role), turns):
            for number in range(len(every[0])):
                post, poll = next(apis)
                each = _of_list(role, every[(number + turn) % len(every)][number], queue, post, poll)
                if each is not None and able.lacks(each) is None:
                    yield each


def _of_list(role: Role, made: tuple[Segment, ...], queue: Queue, post: Post, poll: Poll) -> Scenario | None:
    """This list where the role has null segments; None if it takes no such list."""
    operation, plain = role.operation, (mem(total(made)),)
    gather = made if role.null_in in (NullIn.GATHER, NullIn.BOTH) else plain
    scatter = made if role.null_in in (NullIn.SCATTER, NullIn.BOTH) else plain
    if role.null_in is NullIn.GRH:
        if len(made) > 1:
            return None
        scatter = (replace(made[0], length=GRH_LENGTH), *plain)
    elif role.transport is Transport.UD:
        scatter = (mem(GRH_LENGTH), *scatter)
    if not operation.gathers:
        gather = ()
    if operation is Operation.RDMA_WRITE:
        scatter = ()
    if operation.is_atomic and len(scatter) > 1:
        return None
    if post is Post.WR_SET_SGE and len(gather or scatter) > 1:
        post = Post.WR_SET_SGE_LIST
    return Scenario(role.transport, operation, gather, scatter, queue, post, poll)


DIMENSIONS: dict[str, Dimension] = {
    "short": short,
    "inline": inline,
    "signaling": signaling,
    "waiting": waiting,
    "in-flight": in_flight,
    "ring": ring,
    "zero-length": zero_length,
    "addresses": addresses,
    "null-mrs": null_mrs,
    "invalidate": invalidate,
    "ordinary": ordinary,
}
"""By the names that checks show."""


@cache
def batches(able: Capabilities, transport: Transport, dimension: str) -> tuple[Batch, ...]:
    """All batches of a dimension on a transport, each once."""
    return tuple(dict.fromkeys(DIMENSIONS[dimension](able, transport)))
