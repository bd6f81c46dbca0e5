# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A null MR is not exposed as an rkey."""

import pytest

from conformance.capabilities import capabilities
from conformance.checks import tables
from conformance.judging import Bench
from conformance.scenarios import ATOMIC_LENGTH, Operation, Scenario, Transport, mem
from conformance.verbs.closing import close
from conformance.verbs.null_mr import NullMR
from conformance.verdicts import Failure

REMOTE = {
    Operation.RDMA_WRITE: tables.rc(Operation.RDMA_WRITE, [mem(64)], ()),
    Operation.RDMA_WRITE_WITH_IMM: tables.rc(Operation.RDMA_WRITE_WITH_IMM, [mem(64)], [mem(8)]),
    Operation.RDMA_READ: tables.rc(Operation.RDMA_READ, (), [mem(64)]),
    Operation.CMP_AND_SWP: tables.rc(Operation.CMP_AND_SWP, (), [mem(ATOMIC_LENGTH)]),
    Operation.FETCH_AND_ADD: tables.rc(Operation.FETCH_AND_ADD, (), [mem(ATOMIC_LENGTH)]),
}


def remote_operations(cases: tables.Cases) -> list[Scenario]:
    """Each operation that names memory by rkey, as far as the device has it."""
    offered = capabilities(cases.target).operations(Transport.RC)
    return [scenario for operation, scenario in REMOTE.items() if operation in offered]


@pytest.mark.clause("key/no-rkey")
@tables.over(remote_operations)
def test_its_rkey_gives_a_peer_nothing(bench: Bench, scenario: Scenario) -> None:
    """At an address with live memory of the same PD: a device that translated it would find something there."""
    bench.control(scenario.link)
    bench.check_refused(scenario, bench.null_mr.rkey, "by the null MR's rkey")


@pytest.mark.clause("key/no-rkey")
@tables.over(remote_operations)
def test_its_rkey_opens_no_address_at_all(bench: Bench, scenario: Scenario) -> None:
    """At address 0, where an MR that covers everything would begin."""
    bench.control(scenario.link)
    bench.check_refused(scenario, bench.null_mr.rkey, "by the null MR's rkey at address 0", address=0)


@pytest.mark.clause("key/no-rkey")
def test_its_rkey_is_not_that_of_a_live_mr(bench: Bench) -> None:
    """Any other number will do, 0 too: nothing is behind it."""
    null_mr = NullMR(bench.pd)
    rkey = null_mr.rkey
    close(null_mr)
    for side, arena in bench.arenas.items():
        if arena.rkey == rkey:
            raise Failure(f"{bench.where}\n=> its rkey {rkey:#x} opens the ordinary MR of the {side.value}")
