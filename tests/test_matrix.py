# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The scenario matrix is pairwise, stays within a device's limits and begins with what is least dangerous."""

from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest

from conformance.capabilities import Capabilities
from conformance.matrix import (
    TRIPLES,
    NullIn,
    Role,
    Row,
    Shape,
    compatible,
    deep,
    depth,
    exhaustive,
    matrix,
    pairs,
    pairwise,
    parameters,
    roles,
    rows,
    scenario,
    segments,
    sizes,
    triple,
)
from conformance.scenarios import (
    ADDRESSES,
    GRH_LENGTH,
    TRANSPORT_OPERATIONS,
    Address,
    Operation,
    Poll,
    Post,
    Queue,
    Scenario,
    Transport,
    segments_id,
    total,
)

FULL = Capabilities(
    tuple(Transport),
    mtu=1024,
    max_sge=32,
    max_sge_rd=16,
    max_srq_sge=16,
    srq=True,
    atomics=True,
    max_msg_sz=1 << 31,
)
DEVICES = {
    "full": FULL,
    "one SGE": replace(FULL, max_sge=1, max_sge_rd=1, max_srq_sge=1),
    "two SGEs": replace(FULL, max_sge=2, max_sge_rd=1, max_srq_sge=2),
    "no SRQ": replace(FULL, srq=False, max_srq_sge=0),
    "no atomics, MTU 4096": replace(FULL, atomics=False, mtu=4096),
    "RC alone": replace(FULL, transports=(Transport.RC,)),
}


def anything_goes(*_: Any) -> bool:
    return True


def test_pairwise_has_each_pair_of_values() -> None:
    names = {"a": range(5), "b": range(4), "c": range(3), "d": range(2)}
    rows = pairwise(names, anything_goes)
    for one, other in combinations(names, 2):
        assert {(row[one], row[other]) for row in rows} == set(product(names[one], names[other]))
    assert len(rows) == 5 * 4, "as many as the pairs of the two longest"


def test_a_run_can_afford_the_matrix_of_a_device_that_has_everything() -> None:
    assert len(matrix(FULL)) < 600


def test_pairwise_leaves_out_what_cannot_stand_together() -> None:
    def no_equals(_a: str, value_a: Any, _b: str, value_b: Any) -> bool:
        return bool(value_a != value_b)

    rows = pairwise({"a": range(3), "b": range(3), "c": range(3)}, no_equals)
    assert all(len(set(row.values())) == 3 for row in rows)
    assert {(row["a"], row["b"]) for row in rows} == {(a, b) for a in range(3) for b in range(3) if a != b}


def test_pairwise_drops_a_pair_that_no_row_can_have() -> None:
    def all_differ(_a: str, value_a: Any, _b: str, value_b: Any) -> bool:
        return bool(value_a != value_b)

    assert pairwise({"a": (1, 2), "b": (1, 2), "c": (1, 2)}, all_differ) == []


@pytest.mark.parametrize("able", DEVICES.values(), ids=DEVICES)
def test_the_matrix_has_every_pair_that_the_whole_product_has(able: Capabilities) -> None:
    names, fits = parameters(able), partial(compatible, able)
    # All sizes and shapes with all roles are too many rows here: two parameters at a time can be had by completing.
    have = {pair for row in pairwise(names, fits) for pair in pairs(row)}
    few = {**names, "size": (8, 64), "shape": (Shape.ALONE, Shape.FIRST)}
    missing = {pair for row in exhaustive(few, fits) for pair in pairs(row)} - have
    assert missing == set()


@pytest.mark.parametrize("able", DEVICES.values(), ids=DEVICES)
def test_every_pair_that_fits_and_can_be_completed_is_there(able: Capabilities) -> None:
    names, fits = parameters(able), partial(compatible, able)
    have = {pair for row in pairwise(names, fits) for pair in pairs(row)}
    for a, b in combinations(names, 2):
        for value_a, value_b in product(names[a], names[b]):
            if (a, value_a, b, value_b) not in have:
                assert not completable({a: value_a, b: value_b}, names, fits), (a, value_a, b, value_b)


@pytest.mark.parametrize("able", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("three", TRIPLES, ids="-".join)
def test_every_triple_that_fits_and_can_be_completed_is_there(able: Capabilities, three: tuple[str, ...]) -> None:
    names, fits = parameters(able), partial(compatible, able)
    have = {triple(row, three) for row in (*rows(able), *deep(able))}
    for values in product(*(names[name] for name in three)):
        if values not in have:
            assert not completable(dict(zip(three, values)), names, fits), values


def test_a_triple_is_missing_where_pairs_alone_are_asked_for() -> None:
    names = parameters(FULL)
    have = {triple(row, TRIPLES[1]) for row in rows(FULL)}
    assert len(have) < len(names["role"]) * len(names["address"]) * 5


@pytest.mark.parametrize("able", DEVICES.values(), ids=DEVICES)
def test_the_depth_is_what_the_pairwise_rows_do_not_have(able: Capabilities) -> None:
    had = {(three, triple(row, three)) for row in rows(able) for three in TRIPLES}
    for row in deep(able):
        new = {(three, triple(row, three)) for three in TRIPLES} - had
        assert new, row
        had |= new


def test_the_depth_of_each_role_begins_with_what_is_least_dangerous() -> None:
    order = ADDRESSES
    for role, scenarios in depth(FULL).items():
        ranks = [max(order.index(segment.address) for segment in run.segments) for run in scenarios]
        assert ranks == sorted(ranks), role
        assert {run.transport for run in scenarios} == {role.transport}
        assert {run.operation for run in scenarios} == {role.operation}
        assert all(FULL.lacks(run) is None for run in scenarios)


def test_apis_take_turns_in_the_depth() -> None:
    made = [run for scenarios in depth(FULL).values() for run in scenarios]
    assert {(run.post, run.poll) for run in made} == set(product(Post, Poll))


def completable(row: Row, names: Any, fits: Any) -> bool:
    """Is there a row with these values? By trying, one parameter after the other."""
    if not all(fits(a, row[a], b, row[b]) for a, b in combinations(row, 2)):
        return False
    missing = [name for name in names if name not in row]
    return not missing or any(completable({**row, missing[0]: v}, names, fits) for v in names[missing[0]])


@pytest.mark.parametrize("able", DEVICES.values(), ids=DEVICES)
def test_scenarios_stay_within_the_limits(able: Capabilities) -> None:
    for run in matrix(able):
        assert len(run.gather) <= able.max_sge
        most = able.max_srq_sge if run.queue is Queue.SRQ and run.operation.consumes_receive else able.max_sge
        assert len(run.scatter) <= most
        if run.operation is Operation.RDMA_READ:
            assert len(run.scatter) <= able.max_sge_rd
        if run.transport is Transport.UD:
            assert run.length <= able.mtu
            assert total(run.scatter) == run.length + GRH_LENGTH
        assert able.srq or run.queue is Queue.RQ
        assert able.atomics or not run.operation.is_atomic


def test_what_an_srq_takes_limits_receives_and_nothing_else() -> None:
    runs = matrix(replace(FULL, max_srq_sge=2))
    reads = [run for run in runs if run.operation is Operation.RDMA_READ]
    receives = [run for run in runs if run.operation.consumes_receive]
    assert max(len(run.scatter) for run in reads) == FULL.max_sge_rd
    assert max(len(run.scatter) for run in receives) == 2
    assert max(len(run.gather) for run in receives) == FULL.max_sge


def test_every_value_of_every_dimension_is_there() -> None:
    runs = matrix(FULL)
    assert {run.transport for run in runs} == set(Transport)
    assert {(run.transport, run.operation) for run in runs} == {(r.transport, r.operation) for r in roles(FULL)}
    assert {run.queue for run in runs} == set(Queue)
    assert {run.post for run in runs} == set(Post)
    assert {run.poll for run in runs} == set(Poll)
    assert {run.length for run in runs} == set(sizes(1024))
    assert {run.length for run in runs if run.transport is Transport.UD} == {s for s in sizes(1024) if s <= 1024}
    assert {segment.address for run in runs for segment in run.segments if segment.null} == set(ADDRESSES)
    assert max(len(run.gather) for run in runs) == 32
    assert max(len(run.scatter) for run in runs if run.transport is Transport.UD) == 16


def test_ud_has_the_grh_in_a_null_segment_and_the_payload_in_an_ordinary_one_and_the_reverse() -> None:
    heads = {
        (run.scatter[0].null, any(segment.null for segment in run.scatter[1:]))
        for run in matrix(FULL)
        if run.transport is Transport.UD
    }
    assert {(True, False), (False, True), (True, True)} <= heads


@pytest.mark.parametrize("able", DEVICES.values(), ids=DEVICES)
def test_the_grh_shares_a_segment_only_where_a_list_has_no_second_one(able: Capabilities) -> None:
    for run in matrix(able):
        if run.transport is Transport.UD:
            apart = run.scatter[0].length == GRH_LENGTH
            assert apart == (min(able.max_sge, able.max_srq_sge or able.max_sge) > 1), run


def test_live_addresses_come_before_those_that_could_crash_the_process() -> None:
    order = ADDRESSES
    ranks = [max(order.index(segment.address) for segment in run.segments) for run in matrix(FULL)]
    assert ranks == sorted(ranks)
    assert order[0] is Address.CANARY


def test_each_scenario_has_a_null_segment_and_an_id_of_its_own() -> None:
    runs = matrix(FULL)
    assert all(run.has_null for run in runs)
    assert len({str(run) for run in runs}) == len(runs)
    assert all(Scenario.parse(str(run)) == run for run in runs)


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 31, 64, 65536])
def test_a_list_has_the_size_asked_for(shape: Shape, size: int) -> None:
    made = segments(shape, size, Address.TOP, 6)
    if made is None:
        assert size < 6
        assert shape is not Shape.ALONE
        return
    assert total(made) == size
    assert len(made) <= 6
    assert any(segment.null for segment in made)
    assert all(segment.null for segment in made) == (shape is Shape.ALONE)


def test_shapes_put_the_null_segment_where_they_say() -> None:
    def kinds(shape: Shape) -> str:
        return "".join("n" if segment.null else "m" for segment in segments(shape, 64, Address.CANARY, 5) or ())

    assert {shape.value: kinds(shape) for shape in Shape} == {
        "alone": "n",
        "first": "nm",
        "middle": "mnm",
        "last": "mn",
        "several": "nnmn",
        "alternating": "mnmn",
        "unequal": "mnm",
        "full": "nmnmn",
    }


@pytest.mark.parametrize(
    ("size", "lists"),
    {
        64: "n64 n50+m14 m13+n36+m15 m13+n51 n19+n14+m15+n16 m13+n20+m15+n16 m1+n2+m61 n60+m1+n1+m1+n1",
        8: "n8 n5+m3 m2+n2+m4 m2+n6 n5+n1+m1+n1 m1+n5+m1+n1 m1+n2+m5 n4+m1+n1+m1+n1",
        4: "n4 n2+m2 m1+n2+m1 m1+n3 2*n1+m1+n1 m1+n1+m1+n1 m1+n2+m1 -",
        3: "n3 n1+m2 m1+n1+m1 m1+n2 - - m1+n1+m1 -",
        2: "n2 n1+m1 - m1+n1 - - - -",
        1: "n1 - - - - - - -",
    }.items(),
)
def test_lists_of_each_shape_shrink_with_the_message(size: int, lists: str) -> None:
    made = [segments(shape, size, Address.CANARY, 5) for shape in Shape]
    assert [segments_id(each) if each else "-" for each in made] == lists.split()


def test_a_list_may_have_as_many_segments_as_the_device_takes() -> None:
    assert segments(Shape.LAST, 64, Address.CANARY, 2) is not None
    assert segments(Shape.LAST, 64, Address.CANARY, 1) is None


def test_messages_have_the_lengths_at_which_devices_change_their_way() -> None:
    assert sizes(1024) == (1, 8, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 4096, 65535, 65536, 1048576)
    assert set(sizes(256)) - set(sizes(1024)) == {255, 256, 257}


def test_messages_are_not_longer_than_the_port_takes() -> None:
    assert {run.length for run in matrix(replace(FULL, max_msg_sz=4096))} == {s for s in sizes(1024) if s <= 4096}


@pytest.mark.parametrize(("most", "count"), [(1, 0), (2, 2), (5, 5)])
def test_a_full_list_has_as_many_segments_as_there_may_be_if_that_is_a_list(most: int, count: int) -> None:
    assert len(segments(Shape.FULL, 64, Address.CANARY, most) or ()) == count


def test_a_row_becomes_its_scenario() -> None:
    role = next(r for r in roles(FULL) if r.transport is Transport.RC and r.null_in is NullIn.SCATTER)
    row = {
        "role": role,
        "size": 64,
        "shape": Shape.FIRST,
        "address": Address.ZERO,
        "queue": Queue.SRQ,
        "post": Post.WR_SET_SGE,
        "poll": Poll.CQ_EX,
    }
    assert str(scenario(FULL, row)) == "rc-send-m64-m14+n50@zero-srq-wr_set_sge-cq_ex"


def test_null_segments_take_every_place_that_an_operation_has() -> None:
    expected = set()
    for transport, operations in TRANSPORT_OPERATIONS.items():
        for operation in operations:
            gathers = operation.is_send or operation.is_write
            scatters = operation is not Operation.RDMA_WRITE
            expected |= {Role(transport, operation, NullIn.GATHER)} if gathers else set()
            expected |= {Role(transport, operation, NullIn.SCATTER)} if scatters else set()
            expected |= {Role(transport, operation, NullIn.BOTH)} if gathers and scatters else set()
            expected |= {Role(transport, operation, NullIn.GRH)} if transport is Transport.UD else set()
    assert set(roles(FULL)) == expected
    of_one = set(roles(DEVICES["one SGE"]))
    assert of_one == {role for role in expected if role.null_in is not NullIn.GRH}
    without_srq = {role for role in expected if role.transport is not Transport.XRC}
    assert set(roles(DEVICES["no SRQ"])) == without_srq
    assert set(roles(DEVICES["two SGEs"])) == expected
    assert set(roles(replace(FULL, atomics=False))) == {role for role in expected if not role.operation.is_atomic}
