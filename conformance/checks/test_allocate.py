# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""ibv_alloc_null_mr gives a null MR whose lkey is valid and whose length is the longest."""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsError

from conformance.checks import tables
from conformance.checks.whole import check_whole
from conformance.checks.working import check_at_once, require_working
from conformance.judging import Bench
from conformance.scenarios import Operation, Scenario, Side, null
from conformance.stress import Stress
from conformance.verbs import failing_alloc
from conformance.verbs.closing import close
from conformance.verbs.memory import LOCAL_AND_REMOTE
from conformance.verbs.null_mr import NullMR, NullMRError, errno_name
from conformance.verdicts import Failure, LackingError

MANY = 64
THREADS, ROUNDS = 4, 50


@pytest.mark.clause("allocate/returns-mr")
@pytest.mark.control
def test_an_mr_comes_back(bare_bench: Bench) -> None:
    bench = bare_bench
    try:
        close(NullMR(bench.pd))
    except NullMRError as error:
        if bench.target.null_mr == "required":
            bench.fail(f"{error}; its entry in providers.yaml says null_mr: required")
        raise LackingError(f"{error}; its entry promises {bench.target.null_mr}") from None


@pytest.mark.clause("allocate/returns-mr")
def test_it_is_tied_to_its_pd_and_context(bench: Bench) -> None:
    """On several PDs of several contexts: that of none of them may be given for that of another."""
    others = (bench.sibling(), bench.sibling(), Bench(bench.target))
    try:
        for null_mr in [other.null_mr for other in others]:
            for field, is_same in (("pd", null_mr.fields.same_pd), ("context", null_mr.fields.same_context)):
                if not is_same:
                    raise Failure(f"{bench.where}\n=> mr->{field} is not that of the PD it was allocated on: {null_mr}")
    finally:
        for other in others:
            other.close()


@pytest.mark.clause("allocate/max-length")
def test_length_is_the_longest(bench: Bench) -> None:
    longest = bench.target.device.limits.max_mr_size
    length = bench.null_mr.fields.length
    if length < longest:  # SIZE_MAX never is
        raise Failure(f"{bench.where}\n=> length {length:#x} is neither SIZE_MAX nor at least max_mr_size {longest:#x}")


@pytest.mark.clause("allocate/max-length")
@tables.where(tables.names_no_memory)
def test_it_covers_every_address(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario)


@pytest.mark.clause("allocate/max-length")
@tables.in_traffic(tables.is_at_special_address)
def test_it_covers_every_address_in_each_list(check_sweep: Callable[..., None]) -> None:
    check_sweep()


@pytest.mark.clause("allocate/max-length")
@tables.over(tables.longest)
def test_it_covers_the_longest_message(bench: Bench, scenario: Scenario) -> None:
    check_whole(bench, scenario)


@pytest.mark.clause("allocate/lkey-valid")
@tables.over(tables.kinds_of_work_request)
def test_lkey_is_accepted_by_every_kind_of_work_request(bench: Bench, scenario: Scenario) -> None:
    check_whole(bench, scenario)


def _lose_ordinary_mr(bench: Bench) -> None:
    MR(bench.pd, 4096, LOCAL_AND_REMOTE & bench.access, address=bench.arenas[Side.REQUESTER].address).close()


def _lose_pd(bench: Bench) -> None:
    bench.sibling().close()


def _one_more(bench: Bench) -> NullMR:
    """A null MR beside the bench's own; raises LackingError if there is none to be had."""
    try:
        return NullMR(bench.pd)
    except NullMRError as error:
        raise LackingError(f"{error} beside the first, which allocate/coexist judges") from None


@pytest.mark.clause("allocate/lkey-valid")
@pytest.mark.parametrize("lose", [_lose_ordinary_mr, _lose_pd], ids=["ordinary-mr", "pd"])
def test_lkey_outlives_ordinary_mrs_and_other_pds(bench: Bench, lose: Callable[[Bench], None]) -> None:
    null_mr = _one_more(bench)
    lose(bench)
    check_whole(bench, tables.rc(Operation.SEND, [null(64)], [null(64)]), null_mr=null_mr)
    close(null_mr)


def _another(bench: Bench, number: int) -> NullMR:
    try:
        return NullMR(bench.pd)
    except NullMRError as error:
        bench.fail(f"null MR {number} beside the first: {error}")


@pytest.mark.clause("allocate/coexist")
def test_many_live_side_by_side_on_one_pd(bench: Bench) -> None:
    null_mrs = [_another(bench, number + 2) for number in range(MANY)]
    for null_mr in null_mrs:
        require_working(bench, null_mr)
    for null_mr in null_mrs:
        close(null_mr)


@pytest.mark.clause("allocate/coexist")
@pytest.mark.parametrize("apart", [Bench.sibling, lambda bench: Bench(bench.target)], ids=["pds", "contexts"])
def test_they_live_side_by_side_on_several(bench: Bench, apart: Callable[[Bench], Bench]) -> None:
    """Each null MR on a PD of its own (of one context, or of several), used in turn while the others live."""
    others = [apart(bench) for _ in range(3)]
    try:
        null_mrs = [_another(other, number) for number, other in enumerate(others, 2)]
        for other, null_mr in zip((*others, bench), (*null_mrs, bench.null_mr)):
            require_working(other, null_mr)
    finally:
        for other in others:
            other.close()


@pytest.mark.clause("allocate/coexist")
def test_threads_allocate_and_free_beside_each_other(bench: Bench) -> None:
    """On one PD, each thread holding a few at a time; afterwards one that was there before still works."""
    start = threading.Barrier(THREADS)

    def allocate_and_free(_: int) -> None:
        start.wait()
        for _ in range(ROUNDS):
            for null_mr in [NullMR(bench.pd) for _ in range(4)]:
                null_mr.close()

    before = _another(bench, 2)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(allocate_and_free, range(THREADS)))
    except (NullMRError, PyverbsError) as error:
        bench.fail(f"{THREADS} threads allocate and free null MRs on one PD: {error}")
    require_working(bench, before)
    close(before)


@pytest.mark.clause("allocate/many-queue-pairs")
@tables.over(tables.plain_work_requests)
def test_two_pairs_of_queue_pairs_use_one_at_the_same_time(bench: Bench, scenario: Scenario) -> None:
    check_at_once(bench, [scenario, scenario], queue_pairs=2)


@pytest.mark.clause("allocate/many-queue-pairs")
@tables.over(tables.plain_work_requests)
def test_an_error_on_one_queue_pair_is_not_seen_on_another(bench: Bench, scenario: Scenario) -> None:
    too_long = tables.rc(Operation.SEND, [null(65)], [null(64)])
    check_at_once(bench, [too_long, scenario], queue_pairs=2)


def _check_derived(bench: Bench, derived: Bench, what: str) -> None:
    """Its lkey on queue pairs of the PD, that of the PD's on queue pairs of the derived one, and its end."""
    try:
        try:
            null_mr = derived.null_mr
        except NullMRError as error:
            close(_one_more(bench))
            raise Failure(f"{bench.where}\n=> on {what}: {error}") from None
        require_working(bench, null_mr)
        require_working(derived, bench.null_mr)
        require_working(derived)
        derived.close_traffic()
        if problem := derived.dealloc_pd():
            raise Failure(f"{bench.where}\n=> {what} whose null MR was freed cannot be deallocated: {problem}")
    finally:
        derived.close()


@pytest.mark.clause("allocate/derived-pd")
def test_on_a_parent_domain_it_is_as_on_the_pd(bench: Bench) -> None:
    _check_derived(bench, bench.on_parent_domain(), "a parent domain")


@pytest.mark.clause("allocate/derived-pd")
def test_on_an_imported_pd_it_is_as_on_the_pd(bench: Bench) -> None:
    """The PD's own null MR goes on working when the imported one is gone."""
    _check_derived(bench, bench.on_imported_pd(), "an imported PD")
    require_working(bench)


@pytest.mark.clause("allocate/fails-cleanly")
@pytest.mark.control
def test_where_there_is_none_errno_says_so_and_the_pd_stays_usable(bare_bench: Bench) -> None:
    bench = bare_bench
    try:
        close(NullMR(bench.pd))
    except NullMRError as error:
        number = error.error_code
    else:
        if bench.target.null_mr == "absent":
            raise Failure(
                f"{bench.where}\n=> ibv_alloc_null_mr gave a null MR, but its entry in providers.yaml says "
                "null_mr: absent; say optional or required if the device has them now"
            )
        raise LackingError("ibv_alloc_null_mr did not fail; where it runs out of memory, another check judges")
    if number <= 0 or (bench.target.null_mr == "absent" and number != errno.EOPNOTSUPP):
        wanted = "EOPNOTSUPP" if bench.target.null_mr == "absent" else "a positive errno"
        raise Failure(f"{bench.where}\n=> ibv_alloc_null_mr returned NULL, {errno_name(number)}, expected {wanted}")
    fresh = bench.sibling()
    if fresh.simplest is not None:
        fresh.control(fresh.simplest)
    for _ in range(3):
        with suppress(NullMRError):
            close(NullMR(fresh.pd))
    if fresh.simplest is not None:
        run = fresh.run(fresh.simplest)
        if run.findings:
            raise Failure(f"after failed allocations, ordinary memory:\n{fresh.text(run, run.findings)}")
    else:
        _register(fresh)
    _free(fresh)


@pytest.mark.clause("allocate/fails-cleanly")
def test_where_memory_runs_out_it_says_so_and_holds_nothing_back(bench: Bench, observe: Callable[[str], None]) -> None:
    """Each allocation inside the call is made to fail in turn, in a process of its own."""
    seen = failing_alloc.run(bench.target.device.name)
    if seen.findings:
        raise Failure("\n=> ".join([bench.where, *seen.findings]))
    if not seen.library and not seen.kernel:
        raise LackingError(f"ibv_alloc_null_mr makes no allocation that could fail ({seen})")
    observe(str(seen))


def _register(bench: Bench) -> None:
    """Register ordinary memory on a PD that had failed allocations."""
    try:
        _lose_ordinary_mr(bench)
    except PyverbsError as error:
        raise Failure(
            f"{bench.where}\n=> after failed allocations, ordinary memory cannot be registered: {error}"
        ) from None


def _free(bench: Bench) -> None:
    """Close a bench that had failed allocations on its PD; the PD must not be busy."""
    bench.close_traffic()
    error = bench.dealloc_pd()
    if error:
        raise Failure(f"{bench.where}\n=> ibv_dealloc_pd after failed allocations: {error}")


@pytest.mark.clause("allocate/lkey-valid")
def test_no_sequence_can_be_found_after_which_its_lkey_is_refused(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("allocate/many-queue-pairs")
def test_no_sequence_can_be_found_in_which_queue_pairs_disturb_each_other(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("allocate/coexist")
def test_no_sequence_can_be_found_after_which_there_is_no_more(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("allocate/many-queue-pairs")
def test_many_queue_pairs_use_many_under_stress(bench: Bench, stress: Stress) -> None:
    """What fails names the clause that is broken, which may be another."""
    stress.run(bench)
