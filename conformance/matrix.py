# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The scenario matrix: every value, and every pair of values, of everything that decides a null MR's path.

A device can be right on one path and wrong on the next. The full product of transports, operations, sides, queues,
APIs, list shapes, sizes and addresses is far too long to run each time; `pairwise` chooses rows such that each two
values that can stand together do so in at least one row. `exhaustive` is the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, product
from typing import Any

from conformance.capabilities import Capabilities
from conformance.scenarios import (
    ADDRESSES,
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
    Word,
    mem,
    null,
)

Row = dict[str, Any]
"""A value for each parameter, by the parameter's name."""
Parameters = Mapping[str, Sequence[Any]]
Compatible = Callable[[str, Any, str, Any], bool]
"""Can these two values, each named by its parameter, stand in one row?"""


def exhaustive(parameters: Parameters, compatible: Compatible) -> Iterator[Row]:
    """Every row whose values can all stand together."""
    names = list(parameters)
    for values in product(*parameters.values()):
        row = dict(zip(names, values))
        if all(compatible(a, row[a], b, row[b]) for a, b in combinations(names, 2)):
            yield row


def pairs(row: Row) -> Iterator[tuple[str, Any, str, Any]]:
    """Each two values of a row."""
    for a, b in combinations(row, 2):
        yield a, row[a], b, row[b]


def pairwise(parameters: Parameters, compatible: Compatible) -> list[Row]:
    """Rows that have each pair of values at least once, if any row can have it. The same rows every time.

    Greedy: each row starts from a pair that is still missing and takes, parameter by parameter, the value that adds
    most of the missing pairs.
    """
    names = list(parameters)
    missing = {
        (a, value_a, b, value_b): None
        for a, b in combinations(names, 2)
        for value_a, value_b in product(parameters[a], parameters[b])
        if compatible(a, value_a, b, value_b)
    }
    order = {name: index for index, name in enumerate(names)}
    rows = []
    while missing:
        a, value_a, b, value_b = next(iter(missing))
        row = _complete({a: value_a, b: value_b}, parameters, compatible, missing, order)
        if row is None:  # no third value goes with both
            del missing[a, value_a, b, value_b]
            continue
        row = {name: row[name] for name in names}
        for pair in pairs(row):
            missing.pop(pair, None)
        rows.append(row)
    return rows


def _complete(
    row: Row,
    parameters: Parameters,
    compatible: Compatible,
    missing: Mapping[tuple[str, Any, str, Any], None],
    order: Mapping[str, int],
) -> Row | None:
    """The row with a value for every parameter, or None if there is no such row."""
    name = next((name for name in parameters if name not in row), None)
    if name is None:
        return row

    def gain(value: Any) -> int:
        return sum(
            ((name, value, other, row[other]) if order[name] < order[other] else (other, row[other], name, value))
            in missing
            for other in row
        )

    fitting = [v for v in parameters[name] if all(compatible(name, v, other, row[other]) for other in row)]
    for value in sorted(fitting, key=gain, reverse=True) if missing else fitting:
        completed = _complete({**row, name: value}, parameters, compatible, missing, order)
        if completed is not None:
            return completed
    return None


class NullIn(Word):
    """Which lists have null segments."""

    GATHER = "gather"
    SCATTER = "scatter"
    BOTH = "both"
    GRH = "grh"
    """UD: the GRH goes into a null segment, the payload into an ordinary one"""


@dataclass(frozen=True)
class Role:
    """What the null segments have to do with the work request."""

    transport: Transport
    operation: Operation
    null_in: NullIn

    def __str__(self) -> str:
        return f"{self.transport.value}-{self.operation.value}-{self.null_in.value}"

    @property
    def receives_null(self) -> bool:
        """Is there a null segment in a receive?"""
        return self.operation.consumes_receive and self.null_in is not NullIn.GATHER


def roles(able: Capabilities) -> tuple[Role, ...]:
    """Every place that a null segment can take."""
    return tuple(
        Role(transport, operation, null_in)
        for transport in able.transports
        if able.srq or transport is not Transport.XRC
        for operation in able.operations(transport)
        for null_in in _sides(transport, operation)
        if null_in is not NullIn.GRH or _most_received(able) > 1
        if null_in is not NullIn.BOTH or not able.apart
    )


def _sides(transport: Transport, operation: Operation) -> tuple[NullIn, ...]:
    if transport is Transport.UD:
        return tuple(NullIn)
    if operation.is_send or operation is Operation.RDMA_WRITE_WITH_IMM:
        return (NullIn.GATHER, NullIn.SCATTER, NullIn.BOTH)
    return (NullIn.GATHER,) if operation.is_write else (NullIn.SCATTER,)


class Shape(Word):
    """How a list of null and ordinary segments is made up."""

    ALONE = "alone"
    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    SEVERAL = "several"
    ALTERNATING = "alternating"
    UNEQUAL = "unequal"
    FULL = "full"
    """as many segments as the device takes"""


@cache
def segments(shape: Shape, size: int, address: Address, most: int) -> tuple[Segment, ...] | None:
    """A list of `size` bytes in all and at most `most` segments; None if it cannot be had."""
    nul = partial(null, address=address)
    small = max(1, min(13, size // 4))
    if shape is Shape.ALONE:
        return (nul(size),)
    if shape is Shape.FULL:
        return _fill((nul, mem), size, most) if most > 1 else None
    makers: dict[Shape, tuple[Callable[[int], Segment], ...]] = {
        Shape.FIRST: (nul, mem),
        Shape.LAST: (mem, nul),
        Shape.MIDDLE: (mem, nul, mem),
        Shape.SEVERAL: (nul, nul, mem, nul),
        Shape.ALTERNATING: (mem, nul, mem, nul),
        Shape.UNEQUAL: (mem, nul, mem),
    }
    made = makers[shape]
    lengths = [small + index for index in range(len(made))]
    if shape is Shape.UNEQUAL:
        lengths = [1, 2, 1]
    largest = made.index(nul) if shape is not Shape.UNEQUAL else len(made) - 1
    lengths[largest] = size - sum(lengths) + lengths[largest]
    if lengths[largest] < 1:
        lengths = [1] * len(made)
        lengths[largest] = size - len(made) + 1
    if lengths[largest] < 1 or len(made) > most:
        return None
    return tuple(make(length) for make, length in zip(made, lengths))


def _fill(makers: tuple[Callable[[int], Segment], ...], size: int, count: int) -> tuple[Segment, ...] | None:
    """`count` segments in turn, of one byte each but for the first, which has the rest."""
    if size < count:
        return None
    first = size - count + 1
    return tuple(makers[index % len(makers)](first if index == 0 else 1) for index in range(count))


def sizes(mtu: int) -> tuple[int, ...]:
    """Message lengths at which devices change their way: CQE and WQE inlining, MTU, pages, 16 and 20 bits."""
    around_mtu = (mtu - 1, mtu, mtu + 1)
    return tuple(sorted({1, 8, 31, 32, 33, 63, 64, 65, *around_mtu, 4096, 65535, 65536, 1 << 20}))


def parameters(able: Capabilities) -> Parameters:
    return {
        "role": roles(able),
        "size": tuple(size for size in sizes(able.mtu) if size <= able.max_msg_sz),
        "shape": tuple(Shape),
        "address": ADDRESSES,
        "post": tuple(Post),
        "queue": able.queues,
        "poll": tuple(Poll),
    }


def compatible(able: Capabilities, a: str, value_a: Any, b: str, value_b: Any) -> bool:
    """Which two values can stand in one scenario."""
    rule = _RULES.get((a, b))
    if rule is not None:
        return rule(able, value_a, value_b)
    rule = _RULES.get((b, a))
    return rule is None or rule(able, value_b, value_a)


def _role_and_size(able: Capabilities, role: Role, size: int) -> bool:
    if role.operation.is_atomic and size != ATOMIC_LENGTH:
        return False
    return role.transport is not Transport.UD or size <= able.mtu


def _role_and_shape(able: Capabilities, role: Role, shape: Shape) -> bool:
    if (role.operation.is_atomic or role.null_in is NullIn.GRH) and shape is not Shape.ALONE:
        return False
    return segments(shape, 1 << 20, Address.ZERO, _most(able, role)) is not None


def _role_and_queue(_: Capabilities, role: Role, queue: Queue) -> bool:
    if role.transport is Transport.XRC:
        return queue is Queue.SRQ
    return role.operation.consumes_receive or queue is Queue.RQ


def _shape_and_size(able: Capabilities, shape: Shape, size: int) -> bool:
    return segments(shape, size, Address.ZERO, able.max_sge) is not None


def _post_and_shape(_: Capabilities, post: Post, shape: Shape) -> bool:
    return post is not Post.WR_SET_SGE or shape is Shape.ALONE


_RULES: dict[tuple[str, str], Callable[[Capabilities, Any, Any], bool]] = {
    ("role", "size"): _role_and_size,
    ("role", "shape"): _role_and_shape,
    ("role", "queue"): _role_and_queue,
    ("shape", "size"): _shape_and_size,
    ("post", "shape"): _post_and_shape,
}
"""Of any other two parameters, each two values stand together."""


def _most(able: Capabilities, role: Role) -> int:
    """How many segments a list with null ones may have."""
    most = able.max_sge
    if role.operation is Operation.RDMA_READ:
        most = able.most_read
    if role.receives_null:
        most = min(most, _most_received(able))
    grh_apart = role.transport is Transport.UD and role.receives_null and most > 1
    return most - 1 if grh_apart else most


def _most_received(able: Capabilities) -> int:
    """By the shorter of the queues: the matrix pairs each list with both."""
    return min(map(able.most_received, able.queues))


def scenario(able: Capabilities, row: Row) -> Scenario:
    """The scenario of a row."""
    role: Role = row["role"]
    size, operation, null_in = row["size"], role.operation, role.null_in
    most = _most(able, role)
    made = segments(row["shape"], size, row["address"], most)
    assert made is not None, row
    plain = (mem(size),)
    gather = made if null_in in (NullIn.GATHER, NullIn.BOTH) else plain
    scatter = tuple(reversed(made)) if null_in in (NullIn.SCATTER, NullIn.BOTH) else plain
    if role.transport is Transport.UD:
        into_null = null_in in (NullIn.GRH, NullIn.BOTH)
        if _most_received(able) > 1:
            scatter = (null(GRH_LENGTH, row["address"]) if into_null else mem(GRH_LENGTH), *scatter)
        else:  # one segment takes both
            scatter = (replace(scatter[0], length=GRH_LENGTH + size),)
    if not operation.is_send and not operation.is_write:
        gather = ()
    if operation is Operation.RDMA_WRITE:
        scatter = ()
    return Scenario(role.transport, operation, gather, scatter, row["queue"], row["post"], row["poll"])


@cache
def rows(able: Capabilities) -> tuple[Row, ...]:
    """The pairwise rows."""
    return tuple(pairwise(parameters(able), partial(compatible, able)))


TRIPLES = (("role", "queue", "size"), ("role", "shape", "address"))
"""Parameters of which each three values stand together in `rows` or in `deep`: one opens the path, and the other two
choose the branch."""


def deep(able: Capabilities) -> Iterator[Row]:
    """Rows that have each three values of TRIPLES that stand together in no row of `rows`, if any row can have them.

    They come role by role. Each has a triple of either kind, as long as there are any that fit.
    """
    names, fits = parameters(able), partial(compatible, able)
    had = {triple(row, three) for row in rows(able) for three in TRIPLES}
    order = {name: place for place, name in enumerate(names)}
    turn = 0
    for role in names["role"]:
        missing = [
            [
                dict(zip(three, (role, *values)))
                for values in product(*(names[name] for name in three[1:]))
                if (role, *values) not in had
            ]
            for three in TRIPLES
        ]
        while any(missing):
            start = next(left for left in missing if left).pop(0)
            for left in missing:
                more = next((each for each in left if _all_fit({**start, **each}, fits)), None)
                if more is not None and not set(more) <= set(start):
                    left.remove(more)
                    start |= more
            taken = {**names, **{name: _turned(names[name], turn) for name in ("post", "poll")}}
            turn += 1
            row = _complete(start, taken, fits, {}, order) if _all_fit(start, fits) else None
            if row is not None:
                yield {name: row[name] for name in names}


def triple(row: Row, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def _all_fit(row: Row, fits: Compatible) -> bool:
    return all(fits(a, row[a], b, row[b]) for a, b in combinations(row, 2))


def _turned(values: Sequence[Any], turn: int) -> Sequence[Any]:
    """The same, each time with another one first."""
    first = turn % len(values)
    return (*values[first:], *values[:first])


@cache
def depth(able: Capabilities) -> dict[Role, tuple[Scenario, ...]]:
    """The scenarios of `deep`, by role, those at live addresses first."""
    made: dict[Role, dict[Scenario, None]] = {}
    for row in deep(able):
        made.setdefault(row["role"], {})[scenario(able, row)] = None
    return {role: tuple(sorted(scenarios, key=_danger)) for role, scenarios in made.items()}


def _danger(scenario: Scenario) -> int:
    """By the address that most could crash the process."""
    return max(ADDRESSES.index(segment.address) for segment in scenario.segments)


@cache
def matrix(able: Capabilities) -> tuple[Scenario, ...]:
    """The scenarios to run on a target, those at live addresses before those that could crash the process."""
    made = dict.fromkeys(scenario(able, row) for row in rows(able))
    return tuple(sorted(made, key=_danger))


@cache
def complete(able: Capabilities, role: Role) -> tuple[Scenario, ...]:
    """All scenarios of a role, in the same order: thousands."""
    every = exhaustive({**parameters(able), "role": (role,)}, partial(compatible, able))
    return tuple(sorted(dict.fromkeys(scenario(able, row) for row in every), key=_danger))
