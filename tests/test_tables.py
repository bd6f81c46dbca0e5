# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Which scenarios the checks run: no kind is left out unnoticed."""

from itertools import product
from typing import Any

import pytest

from conformance.capabilities import Capabilities, capabilities
from conformance.checks import tables
from conformance.checks.tables import Cases
from conformance.checks.test_key import remote_operations
from conformance.scenarios import TRANSPORT_OPERATIONS, Operation, Poll, Post, Queue, Scenario, Segment, Transport
from tests.rig import target

DEVICES: dict[str, dict[str, Any]] = {
    "full": {},
    "one SGE": {"max_sge": 1, "max_sge_rd": 1, "max_srq_sge": 1},
    "two SGEs": {"max_sge": 2, "max_sge_rd": 0, "max_srq_sge": 2},
    "no SRQ": {"srq": False, "max_srq_sge": 0},
    "no atomics": {"atomic": "NONE"},
}
SELECTIONS = (
    tables.reads_zeros,
    tables.reads_mixed,
    tables.receives_into_null,
    tables.response_into_null,
    tables.result_into_null,
    tables.scatters_mixed,
    tables.names_live_memory,
    tables.names_no_memory,
    tables.has_null,
)
PATH = "rq-post_send-poll_cq"


def able(**limits: Any) -> Capabilities:
    return capabilities(target(**limits))


@pytest.mark.parametrize(
    ("id", "selected"),
    {
        f"rc-send-m8-m8-{PATH}": "",
        f"rc-send-n8-m8-{PATH}": "reads_zeros names_live_memory has_null",
        f"rc-send-n8-n8-{PATH}": "receives_into_null names_live_memory has_null",
        f"rc-send-n8+m8-m16-{PATH}": "reads_mixed names_live_memory has_null",
        f"rc-send-n8+m8-n16-{PATH}": "receives_into_null names_live_memory has_null",
        f"rc-send-n8@zero-m8-{PATH}": "reads_zeros names_no_memory has_null",
        f"rc-send-n8@top+n8-m16-{PATH}": "reads_zeros names_live_memory names_no_memory has_null",
        f"rc-send-m8-n4+m4-{PATH}": "scatters_mixed names_live_memory has_null",
        f"rc-write-n8-remote-{PATH}": "reads_zeros names_live_memory has_null",
        f"rc-write-m4+n8-remote-{PATH}": "reads_mixed names_live_memory has_null",
        f"rc-write_imm-n8-n8-{PATH}": "reads_zeros receives_into_null names_live_memory has_null",
        f"rc-write_imm-m8-n8@unmapped-{PATH}": "receives_into_null names_no_memory has_null",
        f"rc-read-remote-n8-{PATH}": "response_into_null names_live_memory has_null",
        f"rc-read-remote-n8+m8-{PATH}": "scatters_mixed names_live_memory has_null",
        f"rc-read-remote-m8-{PATH}": "",
        f"rc-cmp_swp-remote-n8-{PATH}": "result_into_null names_live_memory has_null",
        f"rc-fetch_add-remote-n8@zero-{PATH}": "result_into_null names_no_memory has_null",
        f"rc-fetch_add-remote-m8-{PATH}": "",
        # the GRH of a datagram, which is nobody's payload
        f"ud-send-n8-m40+m8-{PATH}": "reads_zeros names_live_memory has_null",
        f"ud-send-n8-m48-{PATH}": "reads_zeros names_live_memory has_null",
        f"ud-send-n8-n40+m8-{PATH}": "reads_zeros scatters_mixed names_live_memory has_null",
        f"ud-send-m8-m40+n8-{PATH}": "receives_into_null scatters_mixed names_live_memory has_null",
        f"ud-send-n8-m40+n8-{PATH}": "receives_into_null scatters_mixed names_live_memory has_null",
        f"ud-send-m8-n40+n8-{PATH}": "receives_into_null names_live_memory has_null",
        f"ud-send-m8-n48-{PATH}": "receives_into_null names_live_memory has_null",
        f"ud-send-m8-m44+n4-{PATH}": "scatters_mixed names_live_memory has_null",
        # no header: only a list that happens to begin with as many bytes
        f"rc-send-m44-m40+n4-{PATH}": "scatters_mixed names_live_memory has_null",
        f"rc-send-n44-n40+m4-{PATH}": "reads_zeros scatters_mixed names_live_memory has_null",
    }.items(),
)
def test_a_scenario_is_for_the_checks_that_can_see_what_it_shows(id: str, selected: str) -> None:
    scenario = Scenario.parse(id)
    assert {select.__name__ for select in SELECTIONS if select(scenario)} == set(selected.split())


def nulls(segments: tuple[Segment, ...]) -> bool:
    return any(segment.null for segment in segments)


@pytest.mark.parametrize("limits", DEVICES.values(), ids=DEVICES)
def test_the_lkey_is_tried_in_each_kind_of_work_request(limits: dict[str, Any]) -> None:
    device = target(**limits)
    expected = set()
    for transport in Transport:
        for operation in TRANSPORT_OPERATIONS[transport]:
            if operation.is_atomic and device.device.limits.atomic == "NONE":
                continue
            queues = {Queue.SRQ} if transport is Transport.XRC else {Queue.RQ}
            if operation.consumes_receive:
                queues.add(Queue.SRQ)
            if not device.device.limits.srq:
                queues.discard(Queue.SRQ)
            gathers = operation.is_send or operation.is_write
            sides = {(True, False), (False, True), (True, True)}
            if operation is Operation.RDMA_WRITE:
                sides = {(True, False)}
            if not gathers:
                sides = {(False, True)}
            expected |= set(product([transport], [operation], sides, queues, Post, Poll))
    made = list(tables.kinds_of_work_request(Cases(capabilities(device))))
    kinds = [
        (
            run.transport,
            run.operation,
            (nulls(run.gather), nulls(tables.payload_list(run))),
            run.queue,
            run.post,
            run.poll,
        )
        for run in made
    ]
    assert set(kinds) == expected
    assert len(kinds) == len(expected)
    assert all(run.length == (8 if run.operation.is_atomic else 64) for run in made)


def test_a_peer_tries_each_operation_that_names_memory_by_rkey_if_the_device_has_it() -> None:
    made = [(run.transport, run.operation) for run in remote_operations(Cases(able()))]
    assert sorted(made, key=str) == sorted(
        (
            (transport, operation)
            for transport, operations in TRANSPORT_OPERATIONS.items()
            for operation in operations
            if not operation.is_send
        ),
        key=str,
    )
    without = [(run.transport, run.operation) for run in remote_operations(Cases(able(atomic="NONE")))]
    assert without == [each for each in made if not each[1].is_atomic]


@pytest.mark.parametrize(("max_msg_sz", "length"), [(1 << 30, 1 << 30), (1 << 31, 1 << 31), (1 << 32, 1 << 31)])
def test_the_longest_message_is_tried_on_each_transport_that_has_any(max_msg_sz: int, length: int) -> None:
    assert sorted(map(str, tables.longest(Cases(able(max_msg_sz=max_msg_sz))))) == [
        f"{transport}-send-n{length}@{address}-n{length}@{address}-{queue}-post_send-poll_cq"
        for transport, queue in (("rc", "rq"), ("uc", "rq"), ("xrc", "srq"))
        for address in ("top", "unmapped")
    ]


@pytest.mark.parametrize(("max_sge", "lists"), [(1, ["n{0}"]), (2, ["n{0}", "m16+n{0}", "n{0}+m16"])])
def test_messages_that_are_a_byte_too_long_come_to_lists_of_each_kind(max_sge: int, lists: list[str]) -> None:
    expected = set()
    for size in (1, 32, 64, 4096, 65536):
        for each in lists:
            length = size + 1 + (16 if "m" in each else 0)
            for queue in ("rq", "srq"):
                expected.add(f"rc-send-m{length}-{each.format(size)}-{queue}-post_send-poll_cq")
        expected.add(f"xrc-send-m{size + 1}-n{size}-srq-post_send-poll_cq")
    made = list(map(str, tables.too_long(Cases(able(mtu=4096, max_sge=max_sge)))))
    assert set(made) == expected
    assert len(made) == len(expected)


def test_what_was_written_is_read_back_on_each_transport_and_with_each_size() -> None:
    expected = set()
    for size in (1, 8, 32, 33, 64, 2048, 4096, 65536):
        for transport, queue in (("rc", "rq"), ("uc", "rq"), ("xrc", "srq")):
            expected.add(f"{transport}-send-n{size}-m{size}-{queue}-post_send-poll_cq")
            expected.add(f"{transport}-write-n{size}-remote-{queue}-post_send-poll_cq")
        if size <= 2048:
            expected.add(f"ud-send-n{size}-m{40 + size}-rq-post_send-poll_cq")
    made = list(map(str, tables.read_back(Cases(able(mtu=2048)))))
    assert set(made) == expected
    assert len(made) == len(expected)


@pytest.mark.parametrize(
    ("id", "response", "receive"),
    [
        (f"rc-send-n8-m8-{PATH}", f"rc-read-remote-n8-{PATH}", f"rc-send-m8-n8-{PATH}"),
        (f"uc-write-n8-remote-{PATH}", f"rc-read-remote-n8-{PATH}", f"uc-send-m8-n8-{PATH}"),
        (f"ud-send-n8-m48-{PATH}", f"rc-read-remote-n8-{PATH}", f"ud-send-m8-m40+n8-{PATH}"),
        (
            "xrc-send-n8-m8-srq-post_send-poll_cq",
            "xrc-read-remote-n8-srq-post_send-poll_cq",
            "xrc-send-m8-n8-srq-post_send-poll_cq",
        ),
    ],
)
def test_before_it_is_read_back_the_same_addresses_are_written(id: str, response: str, receive: str) -> None:
    scenario = Scenario.parse(id)
    assert str(tables.write_by_response(scenario)) == response
    assert str(tables.write_by_receive(scenario)) == receive


def test_that_a_null_mr_works_is_seen_by_data_that_goes_both_ways() -> None:
    assert list(map(str, tables.BOTH_WAYS)) == [f"rc-send-m8+n64-m72-{PATH}", f"rc-send-m72-n64+m8-{PATH}"]


def test_the_scenarios_by_which_checks_see_that_it_works_are_judged_by_themselves() -> None:
    assert set(tables.BOTH_WAYS) <= set(Cases(able()).matrix)


@pytest.mark.parametrize(
    ("id", "special"),
    [("n8-m8", False), ("m8-m8", False), ("n8@odd-m8", True), ("n8@zero-m8", True), ("m8@odd-m8", False)],
)
def test_a_special_address_is_one_of_a_null_segment(id: str, special: bool) -> None:
    assert tables.is_at_special_address(Scenario.parse(f"rc-send-{id}-{PATH}")) == special


def test_a_run_of_some_scenarios_has_no_others() -> None:
    named = (Scenario.parse(f"rc-send-n8-m8-{PATH}"),)
    assert Cases(able(), named=named).matrix == named
