# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A null MR discards all data written to it."""

import pytest

from conformance.checks import tables
from conformance.outcome import MEMORY, Aspect
from conformance.scenarios import Scenario
from conformance.verbs.bench import Bench


@pytest.mark.clause("discard/receive")
@tables.over(tables.receive_alone)
def test_a_message_received_into_it_is_gone(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *MEMORY)


@pytest.mark.clause("discard/receive")
@tables.over(tables.receive_unused)
def test_a_write_with_immediate_consumes_a_receive_into_it(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *MEMORY)


@pytest.mark.clause("discard/read-response")
@tables.over(tables.response_alone)
def test_the_response_of_a_read_is_gone(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *MEMORY)


@pytest.mark.clause("discard/atomic-result")
@tables.over(tables.atomic_result)
def test_the_result_of_an_atomic_is_gone_and_the_remote_word_updated(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, *MEMORY)


@pytest.mark.clause("discard/mixed-scatter")
@tables.over(tables.scatter_mixed)
def test_each_ordinary_segment_gets_its_own_bytes(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, Aspect.PAYLOAD, Aspect.SURROUNDINGS)


@pytest.mark.clause("discard/leaves-memory")
@tables.over(tables.everything)
def test_nothing_is_written_at_the_address_that_it_names(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, Aspect.CANARY)


@pytest.mark.clause("discard/completion")
@tables.over(tables.scatter)
def test_the_completion_is_that_of_an_ordinary_mr(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, Aspect.COMPLETION)


@pytest.mark.clause("discard/completion")
@tables.over(tables.too_long)
def test_a_message_longer_than_the_list_is_a_length_error(bench: Bench, scenario: Scenario) -> None:
    bench.check(scenario, Aspect.COMPLETION)
