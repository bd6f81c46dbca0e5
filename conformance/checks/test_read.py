# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A null MR always returns 0 on read."""

import pytest

from conformance.checks import tables
from conformance.outcome import Aspect
from conformance.scenarios import Operation, Scenario, mem, null
from conformance.verbs.bench import Bench

ARRIVED = (Aspect.PAYLOAD, Aspect.SURROUNDINGS)


@pytest.mark.clause("read/zeros")
@tables.over(tables.read_alone)
def test_what_is_gathered_arrives_as_zeros(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *ARRIVED)


@pytest.mark.clause("read/mixed-gather")
@tables.over(tables.read_mixed)
def test_each_gathered_segment_gives_its_own_bytes(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *ARRIVED)


@pytest.mark.clause("read/zeros-after-write")
@pytest.mark.parametrize("size", [1, 8, 32, 33, 64, 4096, 65536])
@pytest.mark.parametrize("read_back", [Operation.SEND, Operation.RDMA_WRITE], ids=lambda operation: operation.value)
def test_what_was_written_to_it_does_not_come_back(bench: Bench, read_back: Operation, size: int) -> None:
    """The response of a READ goes into the null MR; then the same addresses are sent from."""
    bench.check(tables.rc(Operation.RDMA_READ, (), [null(size)]))
    bench.check(tables.reading(read_back, [null(size)]), *ARRIVED)


@pytest.mark.clause("read/zeros-after-write")
@pytest.mark.parametrize("size", [1, 32, 64, 4096])
def test_what_it_received_does_not_come_back(bench: Bench, size: int) -> None:
    """A message is received into the null MR; then its owner sends from the same addresses."""
    bench.check(tables.rc(Operation.SEND, [mem(size)], [null(size)]))
    bench.exchange_arenas()
    bench.check(tables.reading(Operation.SEND, [null(size)]), *ARRIVED)
