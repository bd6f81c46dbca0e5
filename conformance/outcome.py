# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a device made of a scenario, and where that differs from the prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from conformance.model import FLUSHED, SUCCESS, Completion, Prediction
from conformance.scenarios import (
    Operation,
    Ordinary,
    Place,
    Plan,
    Region,
    Scenario,
    Side,
    Signal,
    Transport,
    Wait,
    scatter_side,
)

NO_LENGTH = ("IBV_WC_SEND", "IBV_WC_RDMA_WRITE")
"""Completions whose byte_len means nothing (ibv_poll_cq(3))."""
CONTEXT_BYTES = 8
"""Bytes shown before and after the first wrong one."""


@dataclass(frozen=True)
class WorkCompletion:
    """struct ibv_wc, names instead of numbers. None: the completion is in error and the field not valid."""

    wr_id: int
    status: str
    vendor_err: int
    qp_num: int
    opcode: str | None = None
    byte_len: int | None = None
    imm_data: int | None = None
    invalidated_rkey: int | None = None

    def __str__(self) -> str:
        if self.opcode is None:
            return f"{self.status} vendor_err={self.vendor_err:#x} qp_num={self.qp_num:#x}"
        imm = "" if self.imm_data is None else f" imm_data={self.imm_data:#010x}"
        length = "" if self.opcode in NO_LENGTH else f" byte_len={self.byte_len}"
        rkey = "" if self.invalidated_rkey is None else f" invalidated_rkey={self.invalidated_rkey:#x}"
        return f"{self.status} {self.opcode}{length}{imm}{rkey}"


@dataclass(frozen=True)
class Refusal:
    """A verb that returned an error instead of accepting the work request, or (`of_another`) one posted before it."""

    verb: str
    error: str
    of_another: bool = False
    error_code: int = 0

    def __str__(self) -> str:
        if self.of_another:
            return f"not posted, as {self.verb} refused the one before it: {self.error}"
        return f"{self.verb} refused it: {self.error}"


@dataclass(frozen=True)
class Outcome:
    """What came of one scenario: each side's completions, and both arenas as they were found afterwards.

    `wr_id` is that of the work requests of both sides. A completion of another one is a finding. `notified` says
    of the sides that asked for a completion event whether it came, but of those of which that cannot be told.
    """

    wr_id: int
    completions: dict[Side, tuple[WorkCompletion, ...]]
    memory: Mapping[Side, bytes | bytearray]
    refusal: Refusal | None = None
    waited: Mapping[Side, float] = field(default_factory=dict)
    """seconds that a side's completion was waited for in vain"""
    notified: Mapping[Side, bool] = field(default_factory=dict)
    window_left: bool = False
    """Is the window that was to be invalidated still bound?"""


class Aspect(Enum):
    """What a finding is about. A check looks at the aspects that its clause speaks of."""

    ACCEPTED = "accepted"
    """the work requests were taken, and completed with the right status"""
    COMPLETION = "completion"
    """opcode, byte_len, imm_data, invalidated rkey and number of completions"""
    EVENT = "event"
    """whether a completion event came"""
    PAYLOAD = "payload"
    """the ordinary memory that the message must reach"""
    CANARY = "canary"
    """the memory at the address that a null segment names"""
    SURROUNDINGS = "surroundings"
    """guards between the segments, and segments that are only read"""


MEMORY = (Aspect.PAYLOAD, Aspect.CANARY, Aspect.SURROUNDINGS)


@dataclass(frozen=True)
class Finding:
    """`side`, `region`: where the memory is wrong, if it is about memory."""

    aspect: Aspect
    text: str
    side: Side | None = None
    region: Region | None = None


class Addresses(NamedTuple):
    """Where each segment of a work request is, by its place in the list; empty where that is not known."""

    gather: tuple[int, ...] = ()
    scatter: tuple[int, ...] = ()


NOT_KNOWN = Addresses()
UNRELIABLE = (Transport.UC, Transport.UD)


@dataclass(frozen=True)
class Run:
    """One scenario as it was run: everything that a failure text needs."""

    scenario: Scenario
    layout: Plan
    prediction: Prediction
    outcome: Outcome
    addresses: Addresses
    keys: str = ""
    """the keys that it named memory by"""

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return judge(self.scenario, self.layout, self.prediction, self.outcome)

    def about(self, *aspects: Aspect) -> tuple[Finding, ...]:
        """The findings about these aspects; that it was accepted always counts."""
        return tuple(found for found in self.findings if found.aspect in (Aspect.ACCEPTED, *aspects))

    @property
    def was_let_through(self) -> bool:
        """Did the work request succeed, or change any memory? An unreliable one succeeds once it is sent."""
        telling = (Side.RESPONDER,) if self.scenario.transport in UNRELIABLE else tuple(Side)
        succeeded = any(wc.status in SUCCESS for side in telling for wc in self.outcome.completions[side])
        return succeeded or any(found.aspect in MEMORY for found in self.findings)

    @property
    def is_lost(self) -> bool:
        """Did an unreliable transport send the message, and nothing of it arrive?"""
        sent = [wc.status for wc in self.outcome.completions[Side.REQUESTER]]
        due = [] if self.prediction.requester is None else [*SUCCESS]
        if self.scenario.transport not in UNRELIABLE or sent != due:
            return False
        if self.scenario.operation.consumes_receive:
            return not self.outcome.completions[Side.RESPONDER]
        return self.outcome.memory[Side.RESPONDER] == self.prediction.before[Side.RESPONDER]

    @property
    def may_be_displaced(self) -> bool:
        """Did its receive end in error, as it may where an earlier message was lost and it took a later, longer one?"""
        received = self.outcome.completions[Side.RESPONDER]
        return self.scenario.transport in UNRELIABLE and any(wc.status not in SUCCESS for wc in received)


def judge(scenario: Scenario, layout: Plan, prediction: Prediction, outcome: Outcome) -> tuple[Finding, ...]:
    """Every difference between prediction and outcome."""
    if outcome.refusal:
        return (Finding(Aspect.ACCEPTED, str(outcome.refusal)),)
    findings: list[Finding] = []
    for side, expected in ((Side.REQUESTER, prediction.requester), (Side.RESPONDER, prediction.responder)):
        findings += _judge_completions(side, expected, outcome)
    if outcome.window_left:
        findings.append(Finding(Aspect.COMPLETION, "responder: the window is as it was, not invalidated"))
    findings += _judge_events(prediction, outcome)
    for side in Side:
        findings += _judge_memory(scenario, layout, prediction, outcome, side)
    return tuple(findings)


def _judge_completions(side: Side, expected: Completion | None, outcome: Outcome) -> Iterator[Finding]:
    got = outcome.completions[side]
    if expected is None:
        # What is not signaled is reported where it fails; a flush is the consequence of another's failure.
        if got and got[0].status not in SUCCESS | FLUSHED:
            yield Finding(Aspect.ACCEPTED, f"{side.value}: completed with {got[0]}, expected no completion")
        elif got:
            yield Finding(Aspect.COMPLETION, f"{side.value}: a completion where none is due: {got[0]}")
        return
    wanted = " or ".join(sorted(expected.statuses))
    for stranger in got:
        if stranger.wr_id != outcome.wr_id:
            text = f"{side.value}: a completion of wr_id {stranger.wr_id}, not of {outcome.wr_id}: {stranger}"
            yield Finding(Aspect.COMPLETION, text)
    got = tuple(wc for wc in got if wc.wr_id == outcome.wr_id)
    if not got:
        waited = in_words(outcome.waited.get(side, 0))
        yield Finding(Aspect.ACCEPTED, f"{side.value}: no completion within {waited}, expected {wanted}")
        return
    first, *more = got
    if first.status not in expected.statuses:
        yield Finding(Aspect.ACCEPTED, f"{side.value}: completed with {first}, expected {wanted}")
    elif expected.is_success:
        for field in ("opcode", "byte_len", "imm_data", "invalidated_rkey"):
            value, due = getattr(first, field), getattr(expected, field)
            if due is not None and value != due:
                yield Finding(
                    Aspect.COMPLETION,
                    f"{side.value}: {field} {_shown(value)}, expected {_shown(due)} in {first}",
                )
    for surplus in more:
        yield Finding(Aspect.COMPLETION, f"{side.value}: one completion too many: {surplus}")


def _judge_events(prediction: Prediction, outcome: Outcome) -> Iterator[Finding]:
    for side, came in outcome.notified.items():
        if came != (side in prediction.notified):
            text = "a completion event that nobody asked for" if came else "no completion event, but a completion"
            yield Finding(Aspect.EVENT, f"{side.value}: {text}")


def in_words(seconds: float) -> str:
    """A wait as texts show it."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _shown(value: object) -> str:
    return f"{value:#x}" if isinstance(value, int) and value > 0xFFFF else str(value)


def _judge_memory(
    scenario: Scenario, layout: Plan, prediction: Prediction, outcome: Outcome, side: Side
) -> Iterator[Finding]:
    expected = prediction.after[side]
    got = outcome.memory[side]
    if prediction.unspecified and side is scatter_side(scenario.operation):
        expected = bytearray(expected)
        for region in prediction.unspecified:
            expected[region.offset : region.end] = got[region.offset : region.end]
    if got == expected:
        return
    for region in layout.regions(side):
        if got[region.offset : region.end] != expected[region.offset : region.end]:
            yield Finding(
                _aspect(scenario, layout, side, region),
                f"{side.value}'s {region.name}: {first_difference(expected, got, region)}",
                side,
                region,
            )


def _aspect(scenario: Scenario, layout: Plan, side: Side, region: Region) -> Aspect:
    if region.name.startswith("canary"):
        return Aspect.CANARY
    if region == layout.remote and scenario.operation is not Operation.RDMA_READ:
        return Aspect.PAYLOAD
    if side is scatter_side(scenario.operation) and any(place.region == region for place in layout.scatter):
        return Aspect.PAYLOAD
    return Aspect.SURROUNDINGS


def first_difference(expected: bytearray, got: bytes | bytearray, region: Region) -> str:
    """The first wrong byte of a region in words, with the bytes around it. Offsets are within the region."""
    wrong = [index for index in range(region.offset, region.end) if expected[index] != got[index]]
    first = wrong[0]
    start, end = max(region.offset, first - CONTEXT_BYTES), min(region.end, first + CONTEXT_BYTES)
    return (
        f"{len(wrong)} of {region.length} bytes wrong, first at offset {first - region.offset}: "
        f"0x{got[first]:02x}, expected 0x{expected[first]:02x}; "
        f"bytes {start - region.offset}..{end - region.offset - 1} are {got[start:end].hex(' ')}, "
        f"expected {expected[start:end].hex(' ')}"
    )


def describe(scenario: Scenario, layout: Plan, addresses: Addresses = NOT_KNOWN) -> str:
    """The work request in words."""
    lines = [f"{scenario.transport.name} {scenario.operation.name} of {scenario.length} bytes"]
    imm = scenario.imm_data
    if imm is not None:
        lines[0] += f", imm_data {imm:#010x}"
    lines[0] += f", posted by {_posting(scenario)}, polled by {_polling(scenario)}"
    lines += _manner(scenario)
    if layout.gather:
        lines.append(f"gather:  {_list(layout.gather, addresses.gather)}")
    if scenario.ordinary is not Ordinary.PLAIN:
        lines.append(f"memory:  {scenario.ordinary.words}")
    if scenario.operation is Operation.SEND_WITH_INV:
        lines.append("invalidates a memory window of type 2 that is bound to the responder's memory")
    if layout.remote:
        lines.append(f"remote:  {layout.remote.length} bytes of ordinary memory by rkey")
    if layout.scatter:
        where = "receive queue" if scenario.queue.value == "rq" else "SRQ"
        if scatter_side(scenario.operation) is Side.REQUESTER:
            where = "local list"
        lines.append(f"scatter: {_list(layout.scatter, addresses.scatter)} ({where})")
    return "\n".join(lines)


def _manner(scenario: Scenario) -> Iterator[str]:
    """What is not as it mostly is."""
    if scenario.signal is Signal.UNSIGNALED:
        yield "not signaled (sq_sig_all 0); a signaled SEND of ordinary memory follows"
    elif scenario.signal is Signal.SIGNALED:
        yield "signaled (sq_sig_all 0)"
    if scenario.inline:
        yield "inline data (IBV_SEND_INLINE)"
    if scenario.solicited:
        yield "solicited (IBV_SEND_SOLICITED)"
    if scenario.wait is Wait.EVENT:
        yield "waited for by ibv_get_cq_event"
    elif scenario.wait is Wait.SOLICITED_EVENT:
        yield "waited for by ibv_get_cq_event, at the responder of solicited completions only"


KINDS = {"n": "NULL MR", "o": "other NULL MR", "m": "memory"}
"""What a segment names, as texts show it."""


def _posting(scenario: Scenario) -> str:
    return "ibv_post_send" if scenario.post.value == "post_send" else f"ibv_{scenario.post.value}"


def _polling(scenario: Scenario) -> str:
    return "ibv_poll_cq" if scenario.poll.value == "poll_cq" else "ibv_start_poll (CQ-ex)"


def _list(places: tuple[Place, ...], addresses: tuple[int, ...]) -> str:
    each = enumerate(zip_longest(places, addresses))
    return ", ".join(f"[{index}] {_segment(place, address)}" for index, (place, address) in each)


def _segment(place: Place, address: int | None) -> str:
    segment = place.segment
    words = f"{KINDS[segment.kind]} {segment.length}"
    if address is not None:
        words += f" at {address:#x}"
    return f"{words} ({segment.address.value})" if segment.null else words
