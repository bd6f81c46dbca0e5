# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Traffic of each kind has every place of a null segment, and stays within a device's limits."""

from dataclasses import replace
from itertools import product

import pytest

from conformance.capabilities import Capabilities
from conformance.matrix import NullIn, Role, roles
from conformance.scenarios import (
    ADDRESSES,
    GRH_LENGTH,
    PLACES,
    Address,
    Operation,
    Ordinary,
    Post,
    Queue,
    Scenario,
    Signal,
    Transport,
    Wait,
    total,
)
from conformance.traffic import DIMENSIONS, FULL_QUEUE, Batch, batches
from conformance.verbs.link import Link
from tests.test_matrix import DEVICES, FULL


def of(dimension: str, able: Capabilities = FULL) -> list[Batch]:
    return [batch for transport in able.transports for batch in batches(able, transport, dimension)]


def role(scenario: Scenario) -> Role:
    scatter = scenario.scatter[1:] if scenario.transport is Transport.UD else scenario.scatter
    sides = any(each.null for each in scenario.gather), any(each.null for each in scatter)
    where = {(True, True): NullIn.BOTH, (True, False): NullIn.GATHER, (False, True): NullIn.SCATTER}
    return Role(scenario.transport, scenario.operation, where.get(sides, NullIn.GRH))


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("able", DEVICES.values(), ids=DEVICES)
def test_a_device_can_run_all_of_it(able: Capabilities, dimension: str) -> None:
    for batch in of(dimension, able):
        for scenario in batch.scenarios:
            if scenario.transport is not Transport.XRC or able.srq:
                assert able.lacks(scenario) is None, scenario
            assert scenario.has_null or len(batch.scenarios) > 1
            assert Scenario.parse(str(scenario)) == scenario
        assert len({scenario.link for scenario in batch.scenarios}) == 1


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_each_batch_is_there_once(dimension: str) -> None:
    made = of(dimension)
    assert len(set(made)) == len(made)


def position(scenario: Scenario) -> str:
    """Where a message ends in the list that it comes to."""
    end = scenario.scatter_length
    for segment in scenario.scatter:
        if segment.length > end:
            kind = "null" if segment.null else "ordinary"
            return f"at its start, {kind}" if end == 0 else f"in it, {kind}"
        end -= segment.length
    return "at the end"


def test_short_messages_end_in_a_null_segment_before_one_and_at_its_start() -> None:
    expected = {"in it, null", "in it, ordinary", "at its start, null"}
    for transport in Transport:
        for queue in Queue:
            if transport is Transport.XRC and queue is Queue.RQ:
                continue
            made = [batch.scenarios[0] for batch in batches(FULL, transport, "short")]
            made = [scenario for scenario in made if scenario.queue is queue]
            assert {position(scenario) for scenario in made} >= expected
            assert {scenario.length for scenario in made} >= {1, 8, 31, 32, 33, 63 + 1, 65}
            assert all(scenario.scatter_length < total(scenario.scatter) for scenario in made)


def test_inline_data_goes_by_each_api_into_null_segments_of_each_queue() -> None:
    made = [batch.scenarios[0] for batch in of("inline")]
    assert all(scenario.inline and any(each.null for each in scenario.scatter) for scenario in made)
    kinds = {(scenario.transport, scenario.operation, scenario.queue, scenario.post) for scenario in made}
    receiving = [each for each in roles(FULL) if each.null_in is NullIn.SCATTER and each.operation.consumes_receive]
    assert kinds == {
        (each.transport, each.operation, queue, post)
        for each in receiving
        for queue in Queue
        for post in Post
        if each.transport is not Transport.XRC or queue is Queue.SRQ
    }


@pytest.mark.parametrize("signal", [Signal.SIGNALED, Signal.UNSIGNALED])
def test_each_role_is_signaled_and_not_where_not_all_are(signal: Signal) -> None:
    made = {role(batch.scenarios[0]) for batch in of("signaling") if batch.scenarios[0].signal is signal}
    assert made == set(roles(FULL))


def test_of_a_chain_some_are_signaled() -> None:
    chains = [batch for batch in of("signaling") if len(batch.scenarios) > 1]
    assert all(batch.chain for batch in chains)
    for batch in chains:
        assert [scenario.signal for scenario in batch.scenarios].count(Signal.SIGNALED) == 1
    assert {batch.scenarios[0].transport for batch in chains} == set(Transport)


def test_each_role_is_waited_for_by_events_and_each_receive_by_solicited_ones() -> None:
    made = [batch.scenarios[0] for batch in of("waiting")]
    assert {role(scenario) for scenario in made if scenario.wait is Wait.EVENT} == set(roles(FULL))
    operations = {(each.transport, each.operation) for each in roles(FULL) if each.operation.consumes_receive}
    for wait, solicited in ((Wait.SOLICITED_EVENT, True), (Wait.SOLICITED_EVENT, False), (Wait.POLL, True)):
        chosen = [each for each in made if (each.wait, each.solicited) == (wait, solicited)]
        assert {(each.transport, each.operation) for each in chosen} == operations


def test_datagrams_have_room_for_the_header() -> None:
    for dimension in DIMENSIONS:
        for batch in batches(FULL, Transport.UD, dimension):
            assert all(scenario.scatter[0].length >= GRH_LENGTH for scenario in batch.scenarios)
            assert all(scenario.operation in (Operation.SEND, Operation.SEND_WITH_IMM) for scenario in batch.scenarios)


def test_two_and_a_full_queue_are_in_flight_as_chains_and_one_by_one() -> None:
    assert Link.depth == FULL_QUEUE
    for transport in Transport:
        made = batches(FULL, transport, "in-flight")
        assert {(len(batch.scenarios), batch.chain) for batch in made} == {
            (2, False),
            (2, True),
            (FULL_QUEUE, False),
            (FULL_QUEUE, True),
        }
        scenarios = [scenario for batch in made for scenario in batch.scenarios]
        assert {role(scenario) for scenario in scenarios} == {
            each for each in roles(FULL) if each.transport is transport
        }


def test_three_turns_of_a_ring_have_each_list_in_each_place() -> None:
    for transport in Transport:
        for batch in batches(FULL, transport, "ring"):
            assert batch.fresh
            assert len(batch.scenarios) == 3 * FULL_QUEUE
            for lists in ("gather", "scatter"):
                places: dict[object, set[int]] = {}
                for number, scenario in enumerate(batch.scenarios):
                    places.setdefault(getattr(scenario, lists), set()).add(number % FULL_QUEUE)
                assert all(len(each) == FULL_QUEUE for each in places.values())
    reads = {batch.scenarios[0].transport for batch in of("ring") if not batch.scenarios[0].gather}
    assert reads == {Transport.RC, Transport.XRC}


def test_rings_of_each_queue_are_gone_round_by_each_api_that_takes_lists() -> None:
    kinds = {(each.transport, each.queue, each.post) for batch in of("ring") for each in batch.scenarios[:1]}
    assert kinds == {
        (transport, queue, post)
        for transport in Transport
        for queue in Queue
        for post in (Post.POST_SEND, Post.WR_SET_SGE_LIST)
        if transport is not Transport.XRC or queue is Queue.SRQ
    }


@pytest.mark.parametrize("operation", [Operation.SEND, Operation.RDMA_READ])
def test_lists_of_four_go_over_the_ends_of_a_ring_of_64_byte_blocks(operation: Operation) -> None:
    for batch in batches(FULL, Transport.RC, "ring"):
        if batch.scenarios[0].operation is operation:
            across, block = [], 0
            for scenario in batch.scenarios:
                header = 16 if operation is Operation.SEND else 32
                blocks = -(-(header + 16 * len(scenario.gather or scenario.scatter)) // 64)
                if block // 32 != (block + blocks - 1) // 32:
                    across.append(scenario)
                block += blocks
            assert len(across) == 2
            assert all(len(scenario.segments) > 4 or scenario.has_null for scenario in across)


def test_segments_of_no_bytes_are_first_between_and_last_on_each_side() -> None:
    made = [batch.scenarios[0] for batch in of("zero-length")]
    for transport in Transport:
        ours = [scenario for scenario in made if scenario.transport is transport]
        for lists in ("gather", "scatter"):
            places = set()
            for scenario in ours:
                segments = getattr(scenario, lists)
                if transport is Transport.UD and lists == "scatter":
                    segments = segments[1:]
                for place, segment in enumerate(segments):
                    if not segment.length:
                        where = "first" if place == 0 else "last" if place == len(segments) - 1 else "between"
                        places.add((where, segment.null))
            assert places == set(product(("first", "between", "last"), (True, False)))
        assert any(scenario.length == 0 for scenario in ours)


SPECIAL = {address for address in Address if address not in ADDRESSES}


def test_each_place_of_a_null_segment_is_at_each_special_address() -> None:
    made: dict[Role, set[Address]] = {}
    for batch in of("addresses"):
        scenario = batch.scenarios[0]
        nulls = [segment for segment in scenario.segments if segment.null]
        made.setdefault(role(scenario), set()).update(segment.address for segment in nulls)
    assert made.keys() == set(roles(FULL))
    for each, found in made.items():
        alone = each.operation.is_atomic or each.null_in is NullIn.GRH
        assert found >= SPECIAL - ({Address.AGAIN} if alone else set()), each


def test_ordinary_segments_are_at_special_addresses_beside_null_ones() -> None:
    segments = [segment for batch in of("addresses") for segment in batch.scenarios[0].segments]
    assert {segment.address for segment in segments if not segment.null} == set(PLACES)


def test_where_a_segment_is_comes_with_each_size_and_api() -> None:
    made = [batch.scenarios[0] for batch in batches(FULL, Transport.RC, "addresses")]
    for address in SPECIAL:
        chosen = [each for each in made if any(segment.address is address for segment in each.segments)]
        assert {each.length for each in chosen} >= {32, 65, FULL.mtu + 1}
        assert {each.post for each in chosen} == set(Post)


def test_each_place_of_a_null_segment_is_that_of_two_null_mrs_or_of_the_second() -> None:
    made = [batch.scenarios[0] for batch in of("null-mrs")]
    assert {role(scenario) for scenario in made} == set(roles(FULL))
    assert all(scenario.has_other_null for scenario in made)
    mixed = {role(each) for each in made if any(segment.null and not segment.other for segment in each.segments)}
    assert mixed == {each for each in roles(FULL) if not each.operation.is_atomic and each.null_in is not NullIn.GRH}


def test_sends_that_invalidate_gather_and_scatter_null_segments_in_each_queue() -> None:
    made = [batch.scenarios[0] for batch in of("invalidate")]
    assert {scenario.operation for scenario in made} == {Operation.SEND_WITH_INV}
    assert {(role(each).null_in, each.queue, each.post) for each in made} == set(
        product((NullIn.GATHER, NullIn.SCATTER, NullIn.BOTH), Queue, Post)
    )
    assert of("invalidate", replace(FULL, windows=False)) == []


def test_each_kind_of_ordinary_memory_meets_each_place_of_a_null_segment() -> None:
    made = [batch.scenarios[0] for batch in of("ordinary")]
    for kind in Ordinary:
        found = {role(scenario) for scenario in made if scenario.ordinary is kind}
        if kind is Ordinary.PLAIN:
            assert not found
        elif kind is Ordinary.WINDOW:
            assert found == {
                each for each in roles(FULL) if each.transport is Transport.RC and not each.operation.is_send
            }
        else:
            assert found == set(roles(FULL))


def test_without_windows_nothing_is_named_by_one() -> None:
    kinds = {batch.scenarios[0].ordinary for batch in of("ordinary", replace(FULL, windows=False, zero_based=False))}
    assert kinds == set(Ordinary) - {Ordinary.PLAIN, Ordinary.WINDOW, Ordinary.ZERO_BASED}


def test_where_no_bytes_are_two_gib_no_segment_has_none() -> None:
    able = replace(FULL, zero_length=False)
    assert of("zero-length", able) == []
    scenario = of("zero-length")[0].scenarios[0]
    assert able.lacks(scenario) == "takes a segment of 0 bytes for one of 2^31"
