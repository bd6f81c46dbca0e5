# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A null MR always returns 0 on read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from conformance.checks import tables
from conformance.checks.whole import check_whole
from conformance.judging import Bench
from conformance.scenarios import Scenario

if TYPE_CHECKING:  # Hypothesis takes long to import: only a search needs it
    from conformance.search import Search

CheckSweep = Callable[..., None]


@pytest.mark.clause("read/zeros")
@tables.where(tables.reads_zeros)
def test_what_is_gathered_arrives_as_zeros(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *tables.ARRIVED)


@pytest.mark.clause("read/zeros")
@tables.in_traffic(tables.reads_zeros)
def test_zeros_arrive_in_traffic_of_each_kind(check_sweep: CheckSweep) -> None:
    check_sweep(*tables.ARRIVED)


@pytest.mark.clause("read/mixed-gather")
@tables.in_traffic(tables.reads_mixed)
def test_each_gathered_segment_arrives_in_traffic_of_each_kind(check_sweep: CheckSweep) -> None:
    check_sweep(*tables.ARRIVED)


@pytest.mark.clause("read/mixed-gather")
@tables.where(tables.reads_mixed)
def test_each_gathered_segment_gives_its_own_bytes(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *tables.ARRIVED)


@pytest.mark.clause("read/mixed-gather")
def test_no_gather_list_can_be_found_that_arrives_wrong(bench: Bench, search: Search) -> None:
    from conformance.search import gathering

    search.run(bench, gathering, *tables.ARRIVED)


@pytest.mark.clause("read/zeros-after-write")
@tables.over(tables.read_back)
def test_the_response_of_a_read_into_it_does_not_come_back(bench: Bench, scenario: Scenario) -> None:
    check_whole(bench, tables.write_by_response(scenario))
    check_whole(bench, scenario, *tables.ARRIVED)


@pytest.mark.clause("read/zeros-after-write")
@tables.over(tables.read_back)
def test_what_it_received_does_not_come_back(bench: Bench, scenario: Scenario) -> None:
    check_whole(bench, tables.write_by_receive(scenario))
    bench.exchange_arenas()
    check_whole(bench, scenario, *tables.ARRIVED)


@pytest.mark.clause("read/zeros")
def test_no_sequence_can_be_found_after_which_it_reads_as_something_else(try_sequences: Callable[[], None]) -> None:
    try_sequences()
