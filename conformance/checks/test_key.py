# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A null MR is not exposed as an rkey."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from pyverbs.mr import MR

from conformance.capabilities import capabilities
from conformance.checks import tables
from conformance.judging import Bench
from conformance.scenarios import ATOMIC_LENGTH, Operation, Queue, Scenario, Side, Transport, mem
from conformance.verbs.closing import close
from conformance.verbs.null_mr import NullMR
from conformance.verdicts import Failure

REMOTE = (
    tables.rc(Operation.RDMA_WRITE, [mem(64)], ()),
    tables.rc(Operation.RDMA_WRITE_WITH_IMM, [mem(64)], [mem(8)]),
    tables.rc(Operation.RDMA_READ, (), [mem(64)]),
    tables.rc(Operation.CMP_AND_SWP, (), [mem(ATOMIC_LENGTH)]),
    tables.rc(Operation.FETCH_AND_ADD, (), [mem(ATOMIC_LENGTH)]),
)
COVERED = 4 * 4096
"""Bytes at the start of an arena, in which the remote memory of these scenarios is."""


def remote_operations(cases: tables.Cases) -> list[Scenario]:
    """Each operation that names memory by rkey on each transport, as far as the device has it."""
    able = capabilities(cases.target)
    return [
        replace(scenario, transport=transport, queue=Queue.SRQ if transport is Transport.XRC else Queue.RQ)
        for transport in able.transports
        if able.srq or transport is not Transport.XRC
        for scenario in REMOTE
        if scenario.operation in able.operations(transport)
    ]


@contextmanager
def among_ordinary(bench: Bench) -> Iterator[tuple[NullMR, tuple[int, ...]]]:
    """A null MR, and the rkeys of all ordinary MRs: one is registered right before it and one right after it, on the
    memory that a peer would name, and lives as long.

    A provider that leaves the field as it was gives it a key that was handed out a moment ago.
    """
    arena = bench.arenas[Side.RESPONDER]
    before = MR(bench.pd, COVERED, bench.access, address=arena.address)
    null_mr = NullMR(bench.pd)
    after = MR(bench.pd, COVERED, bench.access, address=arena.address)
    try:
        yield null_mr, (before.rkey, after.rkey, *(each.rkey for each in bench.arenas.values()))
    finally:
        for mr in (after, null_mr, before):
            close(mr)


@pytest.mark.clause("key/no-rkey")
@tables.over(remote_operations)
def test_its_rkey_gives_a_peer_nothing(bench: Bench, scenario: Scenario) -> None:
    """At an address with live memory of the same PD: a device that translated it would find something there."""
    bench.control(scenario)
    with among_ordinary(bench) as (null_mr, _):
        bench.check_refused(scenario, null_mr.rkey, "by the null MR's rkey")


@pytest.mark.clause("key/no-rkey")
@tables.over(remote_operations)
def test_its_rkey_opens_no_address_at_all(bench: Bench, scenario: Scenario) -> None:
    """At address 0, where an MR that covers everything would begin."""
    bench.control(scenario)
    with among_ordinary(bench) as (null_mr, _):
        bench.check_refused(scenario, null_mr.rkey, "by the null MR's rkey at address 0", address=0)


@pytest.mark.clause("key/no-rkey")
def test_its_rkey_is_not_that_of_a_live_mr(bench: Bench) -> None:
    """Any other number will do, 0 too: nothing is behind it."""
    with among_ordinary(bench) as (null_mr, rkeys):
        if null_mr.rkey in rkeys:
            raise Failure(f"{bench.where}\n=> its rkey {null_mr.rkey:#x} opens an ordinary MR of the same PD")
