# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The model: how each scenario must end, in memory and in the completions. It knows no device and no address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from conformance.scenarios import (
    ATOMIC_LENGTH,
    Operation,
    Place,
    Plan,
    Region,
    Scenario,
    Side,
    Signal,
    Wait,
    pattern,
    scatter_side,
)


@dataclass(frozen=True)
class Completion:
    """What a work completion must say. None: not valid in this completion, not to be looked at (ibv_poll_cq(3))."""

    statuses: frozenset[str]
    opcode: str | None = None
    byte_len: int | None = None
    imm_data: int | None = None
    invalidated_rkey: int | None = None

    @property
    def is_success(self) -> bool:
        return self.statuses == SUCCESS


SUCCESS = frozenset({"IBV_WC_SUCCESS"})
FLUSHED = frozenset({"IBV_WC_WR_FLUSH_ERR"})
"""IBTA 10.3.1.7: what is posted to a queue pair in error, or was when it came to be."""
# IBTA 9.7.5.2.8 and 10.10.3.2: the responder has a local length error, the requester an invalid request. Linux's
# soft-RoCE takes the list for malformed: a local and a remote operational error.
TOO_LONG_AT_RESPONDER = frozenset({"IBV_WC_LOC_LEN_ERR", "IBV_WC_LOC_QP_OP_ERR"})
TOO_LONG_AT_REQUESTER = frozenset({"IBV_WC_REM_INV_REQ_ERR", "IBV_WC_REM_OP_ERR"})

REQUESTER_OPCODES = {
    Operation.SEND: "IBV_WC_SEND",
    Operation.SEND_WITH_IMM: "IBV_WC_SEND",
    Operation.SEND_WITH_INV: "IBV_WC_SEND",
    Operation.RDMA_WRITE: "IBV_WC_RDMA_WRITE",
    Operation.RDMA_WRITE_WITH_IMM: "IBV_WC_RDMA_WRITE",
    Operation.RDMA_READ: "IBV_WC_RDMA_READ",
    Operation.CMP_AND_SWP: "IBV_WC_COMP_SWAP",
    Operation.FETCH_AND_ADD: "IBV_WC_FETCH_ADD",
}


@dataclass(frozen=True)
class Prediction:
    """How a scenario must end.

    `before` and `after` are the images of both arenas. `unspecified` are the stretches of the responder's arena
    of which nothing is promised: the GRH of a UD receive, and the ordinary segments of a receive in error.
    `notified` are the sides that must see a completion event, of those that ask for one.
    """

    before: dict[Side, bytearray]
    after: dict[Side, bytearray]
    unspecified: tuple[Region, ...]
    requester: Completion | None
    responder: Completion | None
    notified: frozenset[Side] = frozenset()


@dataclass(frozen=True)
class AtomicOperands:
    """64-bit operands in host byte order; `compare_add` and `swap` as in struct ibv_send_wr."""

    compare_add: int
    swap: int


def atomic_operands(scenario: Scenario, old: int) -> AtomicOperands:
    """Operands that change the remote word, whose value is `old`."""
    other = int.from_bytes(pattern(ATOMIC_LENGTH, scenario.seed + 7), "little")
    if scenario.operation is Operation.CMP_AND_SWP:
        return AtomicOperands(old, other)
    return AtomicOperands(other, 0)


def _fill(regions: tuple[Region, ...], seed: int) -> bytearray:
    """The image of an arena before the work request: every region holds bytes of its own, none of them zero."""
    image = bytearray()
    for index, region in enumerate(regions):
        image += pattern(region.length, seed + index * 4099)
    return image


def _pieces(places: tuple[Place, ...], length: int) -> Iterator[tuple[Place, int, int]]:
    """Each place with the stretch (start, end) of a message of `length` bytes that falls to it."""
    start = 0
    for place in places:
        end = min(start + place.segment.length, length)
        yield place, start, end
        start = end


def predict(scenario: Scenario, layout: Plan, byteorder: Literal["little", "big"]) -> Prediction:
    """What must be in memory and in the completions. `byteorder` is the host's, as atomics work on host words."""
    # Half a pattern between the sides: neither has bytes of the other's where those could have gone.
    before = {side: _fill(layout.regions(side), scenario.seed + salt * 32749) for salt, side in enumerate(Side)}
    after = {side: bytearray(image) for side, image in before.items()}
    message = _message(scenario, layout, before)
    if layout.remote is not None and scenario.operation is not Operation.RDMA_READ:
        written = _atomic_result(scenario, message, byteorder) if scenario.operation.is_atomic else message
        after[Side.RESPONDER][layout.remote.offset : layout.remote.end] = written
    unspecified = _scatter(scenario, layout, message, after[scatter_side(scenario.operation)])
    requester, responder = _completions(scenario)
    return Prediction(
        before, after, tuple(unspecified), requester, responder, frozenset(_notified(scenario, requester, responder))
    )


def _message(scenario: Scenario, layout: Plan, before: dict[Side, bytearray]) -> bytes:
    """The bytes that go from one side to the other; of an atomic, the old word."""
    if not scenario.gather:
        assert layout.remote is not None
        return bytes(before[Side.RESPONDER][layout.remote.offset : layout.remote.end])
    return b"".join(
        bytes(place.segment.length)
        if place.segment.null or place.region is None
        else bytes(before[Side.REQUESTER][place.region.offset : place.region.end])
        for place in layout.gather
    )


def _atomic_result(scenario: Scenario, word: bytes, byteorder: Literal["little", "big"]) -> bytes:
    """The remote word after the atomic."""
    old = int.from_bytes(word, byteorder)
    operands = atomic_operands(scenario, old)
    compare_and_swap = scenario.operation is Operation.CMP_AND_SWP
    new = operands.swap if compare_and_swap else (old + operands.compare_add) % 2**64
    return new.to_bytes(ATOMIC_LENGTH, byteorder)


def _scatter(scenario: Scenario, layout: Plan, message: bytes, image: bytearray) -> list[Region]:
    """Put the message into the ordinary segments of the scatter list; the stretches of which nothing is promised."""
    if scenario.is_too_long:
        return [place.region for place in layout.scatter if place.region and not place.segment.null]
    unspecified: list[Region] = []
    skipped = scenario.scatter_length - scenario.length
    for place, start, end in _pieces(layout.scatter, scenario.scatter_length):
        if place.segment.null or place.region is None:
            continue
        header = max(0, min(end, skipped) - start)
        if header:
            unspecified.append(Region("GRH", place.region.offset, header))
        data = message[start + header - skipped : end - skipped] if end > skipped else b""
        image[place.region.offset + header : place.region.offset + header + len(data)] = data
    return unspecified


def _notified(scenario: Scenario, requester: Completion | None, responder: Completion | None) -> Iterator[Side]:
    """ibv_req_notify_cq(3): a CQ that was asked for solicited ones tells of errors too."""
    if scenario.wait is Wait.POLL:
        return
    if requester is not None:
        yield Side.REQUESTER
    if responder is not None and (scenario.wait is Wait.EVENT or scenario.solicited or not responder.is_success):
        yield Side.RESPONDER


def _completions(scenario: Scenario) -> tuple[Completion | None, Completion | None]:
    """ibv_poll_cq(3): of a completion in error, only wr_id, status, qp_num and vendor_err are valid. It comes whether
    or not the work request was signaled.
    """
    operation = scenario.operation
    if scenario.is_too_long:
        return Completion(TOO_LONG_AT_REQUESTER), Completion(TOO_LONG_AT_RESPONDER)
    returned = scenario.length if operation is Operation.RDMA_READ or operation.is_atomic else None
    requester = None
    if scenario.signal is not Signal.UNSIGNALED:
        requester = Completion(SUCCESS, REQUESTER_OPCODES[operation], returned)
    if not operation.consumes_receive:
        return requester, None
    if operation.is_write:
        responder = Completion(SUCCESS, "IBV_WC_RECV_RDMA_WITH_IMM", scenario.length, scenario.imm_data)
    else:
        responder = Completion(SUCCESS, "IBV_WC_RECV", scenario.scatter_length, scenario.imm_data)
    return requester, responder
