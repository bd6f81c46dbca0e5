# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A null MR is not exposed as an rkey."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from pyverbs.mr import MR

from conformance.checks import tables
from conformance.checks.working import require_working
from conformance.judging import Bench
from conformance.scenarios import ATOMIC_LENGTH, Operation, Queue, Scenario, Side, Transport, mem
from conformance.verbs.closing import close
from conformance.verbs.null_mr import NullMR
from conformance.verbs.remote_window import local_invalidate
from conformance.verdicts import Failure, LackingError

REMOTE = (
    tables.rc(Operation.RDMA_WRITE, [mem(64)], ()),
    tables.rc(Operation.RDMA_WRITE_WITH_IMM, [mem(64)], [mem(8)]),
    tables.rc(Operation.RDMA_READ, (), [mem(64)]),
    tables.rc(Operation.CMP_AND_SWP, (), [mem(ATOMIC_LENGTH)]),
    tables.rc(Operation.FETCH_AND_ADD, (), [mem(ATOMIC_LENGTH)]),
)
SEND_WITH_INV = tables.rc(Operation.SEND_WITH_INV, [mem(64)], [mem(64)])
COVERED = 4 * 4096
"""Bytes at the start of an arena, in which the remote memory of these scenarios is."""


def remote_operations(cases: tables.Cases) -> list[Scenario]:
    """Each operation that names memory by rkey on each transport, as far as the device has it."""
    able = cases.able
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


def by_peer(bench: Bench, rkey: int) -> str:
    run = bench.run(SEND_WITH_INV, rkey=rkey)
    return f"after a peer's SEND that invalidates it\n{bench.text(run, run.findings)}\n"


def by_owner(bench: Bench, rkey: int) -> str:
    link = bench.link(SEND_WITH_INV.link)
    try:
        ended = local_invalidate(link.responder, rkey, 1, bench.patience)
    finally:
        bench.drop(link)
    return f"after IBV_WR_LOCAL_INV of it ({ended}): "


@pytest.mark.clause("key/no-rkey")
@pytest.mark.parametrize("invalidate", [by_peer, by_owner], ids=["by-peer", "by-owner"])
def test_invalidating_its_rkey_does_no_harm(bench: Bench, invalidate: Callable[[Bench, int], str]) -> None:
    """Whatever becomes of the work request: the null MR and the MRs registered before and after it work on."""
    if lacks := bench.able.lacks(SEND_WITH_INV):
        raise LackingError(f"{bench.target.id} {lacks}")
    write = REMOTE[0]
    bench.control(SEND_WITH_INV, write)
    with among_ordinary(bench) as (null_mr, rkeys):
        before = invalidate(bench, null_mr.rkey)
        for which, rkey in zip(("before", "after"), rkeys):
            run = bench.run(write, rkey=rkey)
            if run.findings:
                text = f"{before}the MR registered {which} it is not reached by its rkey"
                raise Failure(f"{text}\n{bench.text(run, run.findings)}", write, shown_by_scenario=False)
        try:
            require_working(bench, null_mr)
        except Failure as failure:
            raise Failure(f"{before}{failure}", failure.scenario, shown_by_scenario=False) from None


@pytest.mark.clause("key/no-rkey")
def test_its_rkey_is_not_that_of_a_live_mr(bench: Bench) -> None:
    """Any other number will do, 0 too: nothing is behind it."""
    with among_ordinary(bench) as (null_mr, rkeys):
        if null_mr.rkey in rkeys:
            raise Failure(f"{bench.where}\n=> its rkey {null_mr.rkey:#x} opens an ordinary MR of the same PD")
