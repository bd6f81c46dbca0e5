# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a target can run, by what its device reports."""

from dataclasses import replace

import pytest

from conformance.capabilities import capabilities
from conformance.checks.tables import Cases
from conformance.scenarios import Operation, Queue, Scenario, Transport
from tests.rig import target

PATH = "rq-post_send-poll_cq"
SRQ_PATH = "srq-post_send-poll_cq"
NO_WINDOWS = "has no memory windows of type 2 (IBV_DEVICE_MEM_WINDOW_TYPE_2A, 2B)"


@pytest.mark.parametrize(
    ("id", "limits", "lacking"),
    [
        (f"rc-send-3*n1-m3-{PATH}", {"max_sge": 2}, "takes lists of 2 segments (max_sge)"),
        (f"rc-read-remote-2*n1-{PATH}", {"max_sge_rd": 0}, "takes lists of 0 for a READ (max_sge_rd)"),
        (f"rc-send-n3-3*m1-{SRQ_PATH}", {"max_srq_sge": 2}, "takes lists of 2 in an SRQ (max_srq_sge)"),
        (f"rc-send-n9-n9-{PATH}", {"max_msg_sz": 8}, "takes messages of 8 bytes (max_msg_sz)"),
        (f"ud-send-n1025-m1065-{PATH}", {"mtu": 1024}, "takes datagrams of 1024 bytes (MTU)"),
        (f"rc-cmp_swp-remote-n8-{PATH}", {"atomic": "NONE"}, "has no atomics (atomic_cap NONE)"),
        (f"rc-send-n8-n8-{SRQ_PATH}", {"srq": False}, "has no SRQ (max_srq 0)"),
        (f"xrc-write-n8-remote-{SRQ_PATH}", {"srq": False, "max_srq_sge": 0}, "has no SRQ (max_srq 0)"),
        (f"rc-send_inv-n8-n8-{PATH}", {"mw_type_2": False}, NO_WINDOWS),
        (f"rc-write-n8-remote-{PATH}-window", {"mw_type_2": False}, NO_WINDOWS),
    ],
)
def test_what_a_target_lacks_for_a_scenario_is_told(id: str, limits: dict[str, int], lacking: str) -> None:
    assert capabilities(target(**limits)).lacks(Scenario.parse(id)) == lacking


@pytest.mark.parametrize(
    ("id", "limits"),
    [
        (f"rc-send-2*n1-2*m1-{PATH}", {"max_sge": 2}),
        (f"rc-read-remote-n1-{PATH}", {"max_sge_rd": 0}),
        (f"rc-send-3*n1-m1+m2-{SRQ_PATH}", {"max_srq_sge": 2}),
        (f"xrc-read-remote-3*n1-{SRQ_PATH}", {"max_srq_sge": 2}),
        (f"rc-send-n8-n8-{PATH}", {"max_msg_sz": 8}),
        (f"ud-send-n1024-m1064-{PATH}", {"mtu": 1024}),
        (f"rc-send-n2000-m2000-{PATH}", {"mtu": 1024}),
        (f"rc-fetch_add-remote-n8-{PATH}", {"atomic": "GLOB"}),
        (f"rc-write-n8-remote-{PATH}", {"srq": False}),
        (f"rc-send_inv-n8-n8-{PATH}", {"mw_type_2": True}),
        (f"rc-write-n8-remote-{PATH}-window", {"mw_type_2": True}),
        (f"rc-write-n8-remote-{PATH}", {"mw_type_2": False}),
    ],
)
def test_what_a_target_just_takes_it_can_run(id: str, limits: dict[str, int]) -> None:
    assert capabilities(target(**limits)).lacks(Scenario.parse(id)) is None


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_sge": 1, "max_sge_rd": 1, "max_srq_sge": 1},
        {"max_sge": 2, "max_sge_rd": 0, "max_srq_sge": 2},
        {"srq": False, "max_srq_sge": 0},
        {"atomic": "NONE"},
        {"max_msg_sz": 8192},
    ],
    ids=str,
)
def test_the_matrix_has_nothing_that_the_target_cannot_run(limits: dict[str, int]) -> None:
    made = target(**limits)
    able = capabilities(made)
    both_ways = 2  # which are there in any case, and skipped where lists have one segment
    lacking = [str(run) for run in Cases(able).matrix if able.lacks(run)]
    assert len(lacking) == (both_ways if able.max_sge == 1 else 0), lacking


def test_a_device_that_says_no_sges_for_a_read_takes_one() -> None:
    assert [capabilities(target(max_sge_rd=number)).most_read for number in (0, 1, 2)] == [1, 1, 2]


def test_a_receive_is_as_long_as_its_queue_allows() -> None:
    able = capabilities(target(max_sge=4, max_srq_sge=2))
    assert (able.most_received(Queue.RQ), able.most_received(Queue.SRQ)) == (4, 2)
    assert capabilities(target(max_sge=4, max_srq_sge=8)).most_received(Queue.SRQ) == 4


def test_atomics_are_offered_where_transport_and_device_have_them() -> None:
    offered = {transport: capabilities(target()).operations(transport) for transport in Transport}
    atomics = (Operation.CMP_AND_SWP, Operation.FETCH_AND_ADD)
    assert [transport for transport in Transport if set(atomics) <= set(offered[transport])] == [
        Transport.RC,
        Transport.XRC,
    ]
    without = capabilities(target(atomic="NONE"))
    assert {transport: without.operations(transport) for transport in Transport} == {
        transport: tuple(each for each in operations if each not in atomics)
        for transport, operations in offered.items()
    }


@pytest.mark.parametrize(
    ("transport", "connected"),
    [
        ("IB", set(Transport)),
        ("IWARP", set()),
        ("USNIC", {Transport.UD}),
        ("USNIC_UDP", {Transport.UD}),
        ("UNSPECIFIED", {Transport.UD}),
    ],
)
def test_the_transport_type_decides_what_can_be_connected(transport: str, connected: set[Transport]) -> None:
    one = target()
    able = capabilities(replace(one, device=replace(one.device, transport=transport)))
    assert set(able.connected) == connected
    assert bool(able.why_not_others) == (connected != set(Transport))
