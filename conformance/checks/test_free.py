# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""ibv_dereg_mr frees a null MR, and nothing else."""

import random
from collections.abc import Callable
from itertools import product

import pytest
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.checks import tables
from conformance.checks.working import require_working
from conformance.judging import Bench
from conformance.scenarios import Operation, Side, mem
from conformance.verbs import orphan
from conformance.verbs.closing import close
from conformance.verbs.memory import LOCAL_AND_REMOTE
from conformance.verbs.null_mr import NullMR, NullMRError, errno_name
from conformance.verbs.resources import held_back, kernel_mrs
from conformance.verdicts import BrokenError, Failure, LackingError

ROUNDS, LOOP = 5, 256
THOUSAND = 1000
ORDINARY = (
    tables.rc(Operation.SEND, [mem(64)], [mem(64)]),
    tables.rc(Operation.RDMA_WRITE, [mem(64)], ()),
    tables.rc(Operation.RDMA_READ, (), [mem(64)]),
)
"""What needs each key of ordinary MRs on both sides."""


@pytest.mark.clause("free/succeeds")
def test_dereg_returns_0(bench: Bench) -> None:
    _dereg(bench, NullMR(bench.pd))


@pytest.mark.clause("free/succeeds")
def test_dereg_returns_0_after_use(bench: Bench) -> None:
    null_mr = NullMR(bench.pd)
    for scenario in tables.BOTH_WAYS:
        bench.run(scenario, null_mr.lkey)  # how it ends is for other clauses to judge
    _dereg(bench, null_mr)


def _dereg(bench: Bench, null_mr: NullMR) -> None:
    try:
        null_mr.close()
    except PyverbsRDMAError as error:
        text = f"ibv_dereg_mr returned {errno_name(error.error_code)} on the null MR with {null_mr.fields}"
        bench.fail(text)


@pytest.mark.clause("free/leaves-others")
def test_other_null_mrs_go_on_working(bench: Bench) -> None:
    """Neighbours before and after, of the same PD and of another."""
    sibling = bench.sibling()
    try:
        before, freed, after = (NullMR(bench.pd) for _ in range(3))
        elsewhere = NullMR(sibling.pd)
        close(freed)
        for owner, null_mr in ((bench, before), (bench, after), (sibling, elsewhere)):
            require_working(owner, null_mr)
            close(null_mr)
    finally:
        sibling.close()


@pytest.mark.clause("free/leaves-others")
def test_ordinary_mrs_go_on_working(bench: Bench) -> None:
    """Of MRs registered before, between and after, none must lose its keys; on a PD on which none was lost before."""
    fresh = bench.sibling()
    try:
        _free_among_ordinary(fresh)
    finally:
        fresh.close()


def _free_among_ordinary(bench: Bench) -> None:
    bench.control(*ORDINARY)
    arena = bench.arenas[Side.RESPONDER]
    first = NullMR(bench.pd)
    mr = MR(bench.pd, 4 * 4096, LOCAL_AND_REMOTE & bench.access, address=arena.address)
    second = NullMR(bench.pd)
    close(first)
    close(second)
    for rkey, scenario in product((arena.rkey, mr.rkey), ORDINARY):
        run = bench.run(scenario, rkey=rkey)
        if run.findings:
            text = f"after two null MRs were freed, rkey {rkey:#x}:\n{bench.text(run, run.findings)}"
            raise Failure(text, scenario, shown_by_scenario=False)
    try:
        mr.close()
    except PyverbsRDMAError as error:
        text = f"ibv_dereg_mr of an ordinary MR registered between two null MRs, which were freed before it: {error}"
        raise Failure(f"{bench.where}\n=> {text}") from None


@pytest.mark.clause("free/leaves-others")
def test_a_thousand_are_freed_in_any_order_while_the_rest_work(bench: Bench) -> None:
    """On one PD, on others of the same context and on other contexts; traffic through survivors goes on in between."""
    benches = [bench, bench.sibling(), Bench(bench.target), Bench(bench.target)]
    chance = random.Random(THOUSAND)
    try:
        null_mrs = [(owner, NullMR(owner.pd)) for owner in chance.choices(benches, weights=(7, 1, 1, 1), k=THOUSAND)]
        chance.shuffle(null_mrs)
        while null_mrs:
            for _, null_mr in null_mrs[:100]:
                close(null_mr)
            null_mrs = null_mrs[100:]
            for owner, null_mr in chance.sample(null_mrs, min(8, len(null_mrs))):
                require_working(owner, null_mr)
    finally:
        for other in benches[1:]:
            other.close()


@pytest.mark.clause("free/no-leak")
def test_a_process_that_dies_with_them_leaves_nothing(bench: Bench) -> None:
    device = bench.target.device.name
    done = orphan.run(device, 16)
    if done.returncode or not done.stdout.strip().isdigit():
        raise BrokenError(f"{bench.where}: a process that allocates 16 null MRs did not end well:\n{done.stderr}")
    require_working(bench)
    left = kernel_mrs(device, int(done.stdout))
    if left is None:
        raise LackingError(f"which kernel MRs {device} keeps for a process cannot be told: rdma-resource(8)")
    if left:
        raise Failure(f"{bench.where}\n=> {left} kernel MRs of process {done.stdout.strip()} are left after its end")


@pytest.mark.clause("free/no-leak")
def test_a_loop_of_alloc_and_free_holds_nothing_back(bench: Bench) -> None:
    times = 0

    def loop() -> None:
        nonlocal times
        for _ in range(LOOP):
            try:
                close(NullMR(bench.pd))
            except NullMRError as error:
                if not times:
                    raise
                bench.fail(f"after {times} times ibv_alloc_null_mr and ibv_dereg_mr: {error}")
            times += 1

    if leaks := held_back(bench.target.device.name, loop, LOOP, ROUNDS):
        raise Failure(f"{bench.where}\n=> {LOOP} times ibv_alloc_null_mr and ibv_dereg_mr hold back {', '.join(leaks)}")


@pytest.mark.clause("free/releases-pd")
def test_the_pd_can_be_deallocated_once_they_are_freed(bench: Bench) -> None:
    sibling = bench.sibling()
    try:
        null_mrs = [NullMR(sibling.pd) for _ in range(8)]
        for null_mr in null_mrs:
            close(null_mr)
        sibling.close_traffic()
        error = sibling.dealloc_pd()
        if error:
            bench.fail(f"ibv_dealloc_pd after 8 null MRs on it were freed: {error}")
    finally:
        sibling.close()


@pytest.mark.clause("free/succeeds")
def test_no_sequence_can_be_found_after_which_it_cannot_be_freed(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("free/leaves-others")
def test_no_sequence_can_be_found_in_which_freeing_one_harms_another(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("free/releases-pd")
def test_no_sequence_can_be_found_after_which_the_pd_is_held(try_sequences: Callable[[], None]) -> None:
    try_sequences()
