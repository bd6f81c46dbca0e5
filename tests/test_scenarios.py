# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Scenarios: ids, what is refused, where their memory is."""

from dataclasses import replace

import pytest

from conformance.scenarios import (
    ACROSS_4GIB_OFFSET,
    CANARY_OFFSET,
    PAGE,
    TRANSPORT_OPERATIONS,
    Address,
    Operation,
    Ordinary,
    Poll,
    Post,
    Queue,
    Scenario,
    Side,
    Signal,
    Transport,
    Wait,
    mem,
    null,
    other_null,
    pattern,
    plan,
    segments_id,
)
from tests.work_requests import READ, SEND, SWAP, TOO_LONG, UD, WRITE


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        (SEND, "rc-send-n5+m3+n2-m4+n1+m16-rq-post_send-poll_cq"),
        (READ, "rc-read-remote-n4+m6-rq-post_send-poll_cq"),
        (
            Scenario(
                Transport.XRC,
                Operation.SEND_WITH_IMM,
                (null(1),) * 3 + (mem(1), null(64, Address.TOP)),
                (null(1024, Address.UNMAPPED),),
                Queue.SRQ,
                Post.WR_SET_SGE_LIST,
                Poll.CQ_EX,
            ),
            "xrc-send_imm-3*n1+m1+n64@top-n1024@unmapped-srq-wr_set_sge_list-cq_ex",
        ),
        (
            replace(
                SEND,
                gather=(mem(8),),
                signal=Signal.UNSIGNALED,
                inline=True,
                solicited=True,
                wait=Wait.SOLICITED_EVENT,
            ),
            "rc-send-m8-m4+n1+m16-rq-post_send-poll_cq-unsignaled-inline-solicited-solicited_event",
        ),
        (replace(SEND, gather=(mem(0),), scatter=(null(0), mem(1))), "rc-send-m0-n0+m1-rq-post_send-poll_cq"),
        (
            replace(
                SEND,
                gather=(mem(8, Address.ODD), null(4, Address.AGAIN), other_null(2, Address.AGAIN)),
                scatter=(null(9, Address.ACROSS_4GIB), other_null(5), null(1, Address.OTHER_MR)),
            ),
            "rc-send-m8@odd+n4@again+o2@again-n9@across_4gib+o5+n1@other_mr-rq-post_send-poll_cq",
        ),
        (
            replace(SEND, gather=(mem(4), null(4, Address.AGAIN)), scatter=(mem(8),)),
            "rc-send-m4+n4@again-m8-rq-post_send-poll_cq",
        ),
        (
            replace(READ, wait=Wait.EVENT, ordinary=Ordinary.WINDOW),
            "rc-read-remote-n4+m6-rq-post_send-poll_cq-event-window",
        ),
        (replace(READ, signal=Signal.SIGNALED), "rc-read-remote-n4+m6-rq-post_send-poll_cq-signaled"),
    ],
)
def test_an_id_reads_back_as_the_scenario(scenario: Scenario, text: str) -> None:
    assert str(scenario) == text
    assert Scenario.parse(text) == scenario


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rc-send", "7 fields"),
        ("rc-send-x5-m5-rq-post_send-poll_cq", "starts with n"),
        ("rc-send-n+m5-m5-rq-post_send-poll_cq", "invalid literal"),
        ("ud-read-remote-n5-rq-post_send-poll_cq", "UD has no RDMA_READ"),
        ("xrc-send_inv-n5-m5-srq-post_send-poll_cq", "XRC has no SEND_WITH_INV"),
        ("rc-send-remote-n5-rq-post_send-poll_cq", "SEND with gather list"),
        ("rc-write-n5-m5-rq-post_send-poll_cq", "RDMA_WRITE with scatter list"),
        ("rc-cmp_swp-remote-n4-rq-post_send-poll_cq", "8 bytes"),
        ("rc-send-n4-m4@zero-rq-post_send-poll_cq", "only a null segment"),
        ("rc-send-n4-m4@other_mr-rq-post_send-poll_cq", "only a null segment"),
        ("rc-send-n1@across_page-m4-rq-post_send-poll_cq", "two sides"),
        ("rc-send-n4@again-m4-rq-post_send-poll_cq", "no memory of as many bytes"),
        ("rc-send-m4+n5@again-m9-rq-post_send-poll_cq", "no memory of as many bytes"),
        ("rc-send-n4@zero+n4@again-m9-rq-post_send-poll_cq", "no memory of as many bytes"),
        ("rc-send-n4@across_4gib+m4@across_4gib-m9-rq-post_send-poll_cq", "one multiple of"),
        ("xrc-send-n4-m4-rq-post_send-poll_cq", "SRQ only"),
        ("uc-send-n5-m4-rq-post_send-poll_cq", "reliable transports only"),
        ("rc-send-n5+n4-m9-rq-wr_set_sge-poll_cq", "one segment"),
        ("rc-send-m5-m9-rq-post_send-poll_cq-event-solicited_event", "those of a kind once"),
        ("rc-send-m5-m9-rq-post_send-poll_cq-poll", "each of signaled, unsignaled, inline"),
        ("rc-send-n5-m9-rq-post_send-poll_cq-inline", "ordinary memory"),
        ("rc-send-m65-m65-rq-post_send-poll_cq-inline", "1 to 64 bytes"),
        ("rc-read-remote-m65-rq-post_send-poll_cq-inline", "1 to 64 bytes"),
        ("rc-write-m65-remote-rq-post_send-poll_cq-solicited", "no message"),
        ("rc-send-m5-m9-rq-post_send-cq_ex-event", "no CQ-ex"),
        ("rc-send-m5-m9-rq-post_send-poll_cq-window", "RC SEND names no memory by a window"),
        ("uc-write-n5-remote-rq-post_send-poll_cq-window", "UC RDMA_WRITE names no memory by a window"),
        ("rc-send-m5-m9-rq-post_send-poll_cq-inline-zero_based", "addresses of the process"),
        ("rc-send-m5-m9-rq-post_send-poll_cq-odp-zero_based", "those of a kind once"),
    ],
)
def test_what_no_work_request_can_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scenario.parse(text)


def test_each_transport_has_the_operations_of_the_standard() -> None:
    with_window = {Operation.SEND_WITH_INV}
    sends = {Operation.SEND, Operation.SEND_WITH_IMM}
    writes = {Operation.RDMA_WRITE, Operation.RDMA_WRITE_WITH_IMM}
    assert {transport: set(operations) for transport, operations in TRANSPORT_OPERATIONS.items()} == {
        Transport.RC: set(Operation) - with_window,
        Transport.XRC: set(Operation) - with_window,
        Transport.UC: sends | writes,
        Transport.UD: sends,
    }


@pytest.mark.parametrize(
    "scenario",
    [
        *(SEND, UD, READ, WRITE, SWAP, TOO_LONG),
        Scenario.parse("rc-send-n9@odd+m8@across_page-n8@other_mr+n9@page_end-rq-post_send-poll_cq"),
    ],
    ids=str,
)
def test_regions_cover_the_arena_without_gaps(scenario: Scenario) -> None:
    layout = plan(scenario)
    for side in Side:
        end = 0
        for region in layout.regions(side):
            assert region.offset == end
            end = region.end
        assert layout.size(side) == end
        assert layout.regions(side)[-1].name == "guard"


def test_the_first_canary_is_always_at_the_same_address() -> None:
    for scenario in (SEND, WRITE, READ):
        layout = plan(scenario)
        first = next(p for p in (*layout.gather, *layout.scatter) if p.segment.null)
        assert first.region is not None
        assert first.region.offset == CANARY_OFFSET


SPECIAL = Scenario.parse(
    "rc-send-m9@odd+n8@odd+n70@page_end+n71@across_page+n9@across_4gib+n3@again-n8@other_mr+m160@across_page-rq-"
    "post_send-poll_cq"
)


def test_special_addresses_are_what_they_are_called() -> None:
    layout = plan(SPECIAL)
    ordinary, odd, at_end, across, far, again = [place.region for place in layout.gather if place.region]
    other = layout.scatter[0]
    assert ordinary.offset % 2 == odd.offset % 2 == 1
    assert at_end.end % PAGE == 0
    assert across.offset // PAGE + 1 == (across.end - 1) // PAGE
    assert far.offset < ACROSS_4GIB_OFFSET < far.end
    assert (again.offset, again.length) == (far.offset, 3)
    assert other.side is Side.REQUESTER
    assert other.region in layout.requester
    assert layout.is_across_4gib


def test_on_ordinary_memory_segments_are_where_they_were_if_that_can_be() -> None:
    assert segments_id(SPECIAL.on_ordinary_memory().gather) == (
        "m9@odd+m8@odd+m70@page_end+m71@across_page+m9@across_4gib+m3"
    )
    assert segments_id(SPECIAL.on_ordinary_memory().scatter) == "m8+m160@across_page"


@pytest.mark.parametrize("length", [2, 100, PAGE, 3 * PAGE])
@pytest.mark.parametrize("address", [Address.ACROSS_PAGE, Address.ACROSS_4GIB, Address.PAGE_END])
def test_special_addresses_are_found_for_any_length(address: Address, length: int) -> None:
    layout = plan(Scenario(Transport.RC, Operation.RDMA_READ, (), (mem(7), null(length, address))))
    region = layout.scatter[1].region
    assert region is not None
    assert region.offset >= CANARY_OFFSET
    boundary = region.end // PAGE * PAGE if address is Address.PAGE_END else ACROSS_4GIB_OFFSET
    if address is Address.PAGE_END:
        assert region.end == boundary
    else:
        assert region.offset < boundary < region.end


@pytest.mark.parametrize("scenario", [SPECIAL, Scenario.parse("rc-cmp_swp-remote-n8@other_mr-rq-post_send-poll_cq")])
def test_the_word_of_an_atomic_is_aligned_wherever_canaries_are(scenario: Scenario) -> None:
    for each in (scenario, replace(scenario, scatter=(null(8, Address.ODD),))):
        remote = plan(each).remote
        assert remote is None or remote.offset % 8 == 0


def test_segments_follow_one_another_unaligned_with_guards_between_them() -> None:
    layout = plan(Scenario(Transport.RC, Operation.SEND, (mem(3), mem(5)), (mem(8),)))
    assert [(region.name, region.offset, region.length) for region in layout.regions(Side.REQUESTER)] == [
        ("guard", 0, 4096),
        ("gather[0]", 4096, 3),
        ("guard", 4099, 64),
        ("gather[1]", 4163, 5),
        ("guard", 4168, 64),
    ]


@pytest.mark.parametrize("length", range(1, 9))
def test_immediate_data_shows_both_ends_of_its_word(length: int) -> None:
    scenario = Scenario(Transport.RC, Operation.SEND_WITH_IMM, (null(length),), (mem(length),))
    assert scenario.imm_data is not None
    assert scenario.imm_data & 0x80000001 == 0x80000001
    assert scenario.imm_data < 1 << 32


def test_the_control_has_the_same_lengths_and_no_null() -> None:
    control = SEND.on_ordinary_memory()
    assert not control.has_null
    assert [s.length for s in control.segments] == [s.length for s in SEND.segments]


@pytest.mark.parametrize("length", [1, 65520, 65521, 65522, 200_000])
def test_patterns_have_no_zero_and_differ_from_start_to_start(length: int) -> None:
    assert len(pattern(length, 5)) == length
    assert 0 not in pattern(length, 70_000)
    if length > 1:
        assert pattern(length, 5) != pattern(length, 4104)
