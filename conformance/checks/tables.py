# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Which scenarios the checks run: selections for a target, by what the scenarios have in common."""

from collections.abc import Callable, Iterable

import pytest

from conformance.inventory import Target
from conformance.scenarios import (
    ATOMIC_LENGTH,
    Address,
    Operation,
    Queue,
    Scenario,
    Segment,
    Transport,
    mem,
    null,
)

Select = Callable[[Target], Iterable[Scenario]]


def over(select: Select) -> pytest.MarkDecorator:
    """Run a check once for each scenario that `select` names for the target."""
    return pytest.mark.scenarios.with_args(select)


GATHERING = (
    Operation.SEND,
    Operation.SEND_WITH_IMM,
    Operation.RDMA_WRITE,
    Operation.RDMA_WRITE_WITH_IMM,
)
RECEIVING = (Operation.SEND, Operation.SEND_WITH_IMM)


def sizes(target: Target) -> tuple[int, ...]:
    """Lengths at which devices change their way: CQE and WQE inlining, MTU, pages."""
    mtu = target.port.mtu
    return (1, 8, 31, 32, 33, 63, 64, 65, mtu - 1, mtu, mtu + 1, 4096, 65536)


def queues(target: Target) -> tuple[Queue, ...]:
    assert target.device.limits is not None
    return (Queue.RQ, Queue.SRQ) if target.device.limits.srq else (Queue.RQ,)


def rc(
    operation: Operation, gather: Iterable[Segment], scatter: Iterable[Segment], queue: Queue = Queue.RQ
) -> Scenario:
    return Scenario(Transport.RC, operation, tuple(gather), tuple(scatter), queue)


def reading(operation: Operation, gather: Iterable[Segment]) -> Scenario:
    """A gather list whose bytes arrive in ordinary memory."""
    gather = tuple(gather)
    length = sum(segment.length for segment in gather)
    scatter = {
        Operation.RDMA_WRITE: (),
        Operation.RDMA_WRITE_WITH_IMM: (mem(8),),
    }.get(operation, (mem(length),))
    return rc(operation, gather, scatter)


def read_alone(target: Target) -> Iterable[Scenario]:
    """Nothing but null segments is gathered."""
    for operation in GATHERING:
        for size in sizes(target):
            yield reading(operation, [null(size)])


def read_mixed(target: Target) -> Iterable[Scenario]:
    """Null and ordinary segments are gathered together."""
    for operation in GATHERING:
        for size in (1, 8, 33, 64, target.port.mtu + 1):
            for shape in mixtures(target, size):
                yield reading(operation, shape)


def mixtures(target: Target, size: int) -> Iterable[tuple[Segment, ...]]:
    """Null first, last and in the middle, two in a row, alternating; as far as the device takes such lists."""
    assert target.device.limits is not None
    shapes = (
        (null(size), mem(size)),
        (mem(size), null(size)),
        (mem(7), null(size), mem(size + 3)),
        (null(3), mem(size), null(size + 5)),
        (mem(5), null(size), null(9), mem(11)),
        (null(size), mem(2), null(4), mem(size)),
    )
    return (shape for shape in shapes if len(shape) <= target.device.limits.max_sge)


def receive_alone(target: Target) -> Iterable[Scenario]:
    """A message lands in nothing but null segments."""
    for operation in RECEIVING:
        for queue in queues(target):
            for size in sizes(target):
                yield rc(operation, [mem(size)], [null(size)], queue)


def receive_mixed(target: Target) -> Iterable[Scenario]:
    for operation in RECEIVING:
        for queue in queues(target):
            for size in (1, 8, 33, 64, target.port.mtu + 1):
                for shape in mixtures(target, size):
                    yield rc(operation, [mem(sum(segment.length for segment in shape))], shape, queue)


def receive_unused(target: Target) -> Iterable[Scenario]:
    """A WRITE with immediate consumes a receive whose list it does not touch."""
    for queue in queues(target):
        yield rc(Operation.RDMA_WRITE_WITH_IMM, [mem(64)], [null(64)], queue)


def response_alone(target: Target) -> Iterable[Scenario]:
    for size in sizes(target):
        yield rc(Operation.RDMA_READ, (), [null(size)])


def response_mixed(target: Target) -> Iterable[Scenario]:
    assert target.device.limits is not None
    most = max(1, target.device.limits.max_sge_rd)
    for size in (1, 8, 33, 64, target.port.mtu + 1):
        for shape in mixtures(target, size):
            if len(shape) <= most:
                yield rc(Operation.RDMA_READ, (), shape)


def atomic_result(target: Target) -> Iterable[Scenario]:
    assert target.device.limits is not None
    if target.device.limits.atomic != "NONE":
        for operation in (Operation.CMP_AND_SWP, Operation.FETCH_AND_ADD):
            yield rc(operation, (), [null(ATOMIC_LENGTH)])


def scatter_mixed(target: Target) -> Iterable[Scenario]:
    yield from receive_mixed(target)
    yield from response_mixed(target)


def scatter(target: Target) -> Iterable[Scenario]:
    """Every scenario that writes into a null segment."""
    yield from receive_alone(target)
    yield from receive_unused(target)
    yield from response_alone(target)
    yield from atomic_result(target)
    yield from scatter_mixed(target)


def everything(target: Target) -> Iterable[Scenario]:
    yield from read_alone(target)
    yield from read_mixed(target)
    yield from scatter(target)


def too_long(target: Target) -> Iterable[Scenario]:
    """Messages that are a byte longer than the list of null segments that they come to."""
    for queue in queues(target):
        for size in (1, 32, 64, target.port.mtu):
            yield rc(Operation.SEND, [mem(size + 1)], [null(size)], queue)


def far_addresses(target: Target) -> Iterable[Scenario]:
    """Null segments at addresses where nothing is, mildest first."""
    for address in (Address.UNMAPPED, Address.TOP, Address.ZERO):
        for size in (1, 64, target.port.mtu + 1):
            yield reading(Operation.SEND, [null(size, address)])
            yield reading(Operation.RDMA_WRITE, [null(size, address)])
            yield rc(Operation.RDMA_READ, (), [null(size, address)])
            for queue in queues(target):
                yield rc(Operation.SEND, [mem(size)], [null(size, address)], queue)
        if target.device.limits is not None and target.device.limits.atomic != "NONE":
            yield rc(Operation.FETCH_AND_ADD, (), [null(ATOMIC_LENGTH, address)])


def kinds_of_work_request(target: Target) -> Iterable[Scenario]:
    """Each operation that the device offers, null wherever a local key stands."""
    for operation in GATHERING:
        yield reading(operation, [null(64)])
    for queue in queues(target):
        for operation in RECEIVING:
            yield rc(operation, [mem(64)], [null(64)], queue)
    yield rc(Operation.RDMA_READ, (), [null(64)])
    yield from atomic_result(target)
