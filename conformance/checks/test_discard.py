# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A null MR discards all data written to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from conformance.checks import tables
from conformance.checks.whole import check_whole
from conformance.judging import Bench
from conformance.outcome import MEMORY, Aspect
from conformance.scenarios import Scenario

if TYPE_CHECKING:  # Hypothesis takes long to import: only a search needs it
    from conformance.search import Search

CheckSweep = Callable[..., None]


@pytest.mark.clause("discard/receive")
@tables.where(tables.receives_into_null)
def test_a_message_received_into_it_is_gone(bench: Bench, scenario: Scenario) -> None:
    """Not the payload: that of an RDMA WRITE with immediate data goes to ordinary memory."""
    bench.check(scenario, Aspect.CANARY, Aspect.SURROUNDINGS)


@pytest.mark.clause("discard/read-response")
@tables.where(tables.response_into_null)
def test_the_response_of_a_read_is_gone(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *MEMORY)


@pytest.mark.clause("discard/atomic-result")
@tables.where(tables.result_into_null)
def test_the_result_of_an_atomic_is_gone_and_the_remote_word_updated(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *MEMORY)


@pytest.mark.clause("discard/mixed-scatter")
@tables.where(tables.scatters_mixed)
def test_each_ordinary_segment_gets_its_own_bytes(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, Aspect.PAYLOAD, Aspect.SURROUNDINGS)


@pytest.mark.clause("discard/mixed-scatter")
def test_no_scatter_list_can_be_found_that_is_filled_wrong(bench: Bench, search: Search) -> None:
    from conformance.search import scattering

    search.run(bench, scattering, Aspect.PAYLOAD, Aspect.SURROUNDINGS)


@pytest.mark.clause("discard/leaves-memory")
@tables.where(tables.names_live_memory)
def test_nothing_is_written_at_the_address_that_it_names(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, Aspect.CANARY)


@pytest.mark.clause("discard/leaves-memory")
def test_no_work_request_can_be_found_that_writes_there(bench: Bench, search: Search) -> None:
    from conformance.search import anything

    search.run(bench, anything, Aspect.CANARY)


@pytest.mark.clause("discard/completion")
@pytest.mark.control
@tables.where(tables.has_null)
def test_the_completion_is_that_of_an_ordinary_mr(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, Aspect.COMPLETION)


@pytest.mark.clause("discard/completion")
@pytest.mark.control
@tables.over(tables.too_long)
def test_a_message_longer_than_the_list_is_a_length_error(bench: Bench, scenario: Scenario) -> None:
    check_whole(bench, scenario, Aspect.COMPLETION)


@pytest.mark.clause("discard/completion")
@pytest.mark.control
def test_no_work_request_can_be_found_that_completes_otherwise(bench: Bench, search: Search) -> None:
    from conformance.search import anything

    search.run(bench, anything, Aspect.COMPLETION)


# In traffic


@pytest.mark.clause("discard/receive")
@tables.in_traffic(tables.receives_into_null)
def test_what_is_received_in_traffic_is_gone(check_sweep: CheckSweep) -> None:
    check_sweep(Aspect.CANARY, Aspect.SURROUNDINGS)


@pytest.mark.clause("discard/read-response")
@tables.in_traffic(tables.response_into_null)
def test_responses_in_traffic_are_gone(check_sweep: CheckSweep) -> None:
    check_sweep(*MEMORY)


@pytest.mark.clause("discard/atomic-result")
@tables.in_traffic(tables.result_into_null)
def test_results_of_atomics_in_traffic_are_gone(check_sweep: CheckSweep) -> None:
    check_sweep(*MEMORY)


@pytest.mark.clause("discard/mixed-scatter")
@tables.in_traffic(tables.scatters_mixed)
def test_ordinary_segments_in_traffic_get_their_own_bytes(check_sweep: CheckSweep) -> None:
    check_sweep(Aspect.PAYLOAD, Aspect.SURROUNDINGS)


@pytest.mark.clause("discard/leaves-memory")
@tables.in_traffic(tables.names_live_memory)
def test_no_traffic_writes_at_the_address_that_it_names(check_sweep: CheckSweep) -> None:
    check_sweep(Aspect.CANARY)


@pytest.mark.clause("discard/completion")
@pytest.mark.control
@tables.in_traffic(tables.has_null)
def test_traffic_completes_as_on_ordinary_memory(check_sweep: CheckSweep) -> None:
    check_sweep(Aspect.COMPLETION)


@pytest.mark.clause("discard/event")
@pytest.mark.control
@tables.in_traffic(tables.waits_for_event)
def test_the_completion_channel_is_told_as_on_ordinary_memory(check_sweep: CheckSweep) -> None:
    check_sweep(Aspect.EVENT)


@pytest.mark.clause("discard/leaves-memory")
def test_no_sequence_can_be_found_after_which_memory_is_written(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("discard/mixed-scatter")
def test_no_sequence_can_be_found_after_which_a_list_is_filled_wrong(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("discard/completion")
def test_no_sequence_can_be_found_after_which_it_completes_otherwise(try_sequences: Callable[[], None]) -> None:
    try_sequences()
