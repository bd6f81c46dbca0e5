# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What one work request must do, as plain data: scenarios, and where their memory is.

A scenario is everything that decides the result and nothing of pyverbs or of a device. The same object is a
parametrized case, an input of the model, a line in a report and the source of a reproducer.

Each side (requester, responder) owns one arena of memory. `plan` lays the ordinary segments, the canaries and
the guard bytes between them out in the two arenas. It knows no address: where a null segment points is resolved by
whoever runs the scenario. How a scenario must end is in conformance.model.
"""

from __future__ import annotations

import mmap
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, cached_property, partial
from typing import Any

ATOMIC_LENGTH = 8
GRH_LENGTH = 40
"""Bytes that precede the payload in every UD receive (ibv_post_recv(3))."""
GUARD_LENGTH = 64
INLINE_LENGTH = 64
"""Bytes of inline data that queue pairs for it take."""
LONGEST_CONTROL = 1 << 26
"""Bytes: a longer scenario is not repeated on ordinary memory."""
PAGE = mmap.PAGESIZE
"""Bytes; an arena begins at the start of a page."""
CANARY_OFFSET = 4096
"""Where in its arena the memory lies that null segments point at; the same in every scenario, so that what one
work request writes into a null segment is what a later one would read back from the same addresses."""


class Word(Enum):
    """What an id is made of. Each is one object, and that is hashed: scenarios are keys in many places."""

    __hash__ = object.__hash__


class Transport(Word):
    RC = "rc"
    UC = "uc"
    UD = "ud"
    XRC = "xrc"


class Operation(Word):
    SEND = "send"
    SEND_WITH_IMM = "send_imm"
    RDMA_WRITE = "write"
    RDMA_WRITE_WITH_IMM = "write_imm"
    RDMA_READ = "read"
    CMP_AND_SWP = "cmp_swp"
    FETCH_AND_ADD = "fetch_add"
    SEND_WITH_INV = "send_inv"
    """invalidates a memory window of type 2 that the responder has bound to ordinary memory"""

    @property
    def is_send(self) -> bool:
        return self in (Operation.SEND, Operation.SEND_WITH_IMM, Operation.SEND_WITH_INV)

    @property
    def is_write(self) -> bool:
        return self in (Operation.RDMA_WRITE, Operation.RDMA_WRITE_WITH_IMM)

    @property
    def is_atomic(self) -> bool:
        return self in (Operation.CMP_AND_SWP, Operation.FETCH_AND_ADD)

    @property
    def gathers(self) -> bool:
        return self.is_send or self.is_write

    @property
    def has_imm(self) -> bool:
        return self in (Operation.SEND_WITH_IMM, Operation.RDMA_WRITE_WITH_IMM)

    @property
    def consumes_receive(self) -> bool:
        return self.is_send or self is Operation.RDMA_WRITE_WITH_IMM


_RELIABLE = tuple(operation for operation in Operation if operation is not Operation.SEND_WITH_INV)
TRANSPORT_OPERATIONS: dict[Transport, tuple[Operation, ...]] = {
    Transport.RC: _RELIABLE,
    Transport.XRC: _RELIABLE,
    Transport.UC: (
        Operation.SEND,
        Operation.SEND_WITH_IMM,
        Operation.RDMA_WRITE,
        Operation.RDMA_WRITE_WITH_IMM,
    ),
    Transport.UD: (Operation.SEND, Operation.SEND_WITH_IMM),
}
"""Which operations each transport has (ibv_post_send(3), IBTA table 38)."""
MORE_OPERATIONS: dict[Transport, tuple[Operation, ...]] = {Transport.RC: (Operation.SEND_WITH_INV,)}
"""Those that need more than a pair of queue pairs: they are in traffic of a kind of their own."""


class Queue(Word):
    """Where the responder's receives are posted: the queue pair's own queue or a shared one (for XRC, an XRC SRQ)."""

    RQ = "rq"
    SRQ = "srq"


class Post(Word):
    """How the requester posts: ibv_post_send, or ibv_wr_* with one of its two ways to name memory."""

    POST_SEND = "post_send"
    WR_SET_SGE = "wr_set_sge"
    WR_SET_SGE_LIST = "wr_set_sge_list"


class Poll(Word):
    POLL_CQ = "poll_cq"
    CQ_EX = "cq_ex"


class Address(Word):
    """Where a null segment points."""

    CANARY = "canary"
    """live memory inside an ordinary MR of the same PD, registered for local and remote access"""
    UNMAPPED = "unmapped"
    ZERO = "zero"
    TOP = "top"
    """2^64 - length: the last bytes of the address space"""
    ODD = "odd"
    """live memory at an odd address"""
    PAGE_END = "page_end"
    """live memory that ends where a page does"""
    ACROSS_PAGE = "across_page"
    """live memory, half of it in one page and half in the next"""
    ACROSS_4GIB = "across_4gib"
    """live memory, half of it below a multiple of 2^32 and half above"""
    OTHER_MR = "other_mr"
    """live memory of the other side, which is another MR than that of the rest of the list"""
    AGAIN = "again"
    """where the segment before it in the list begins, null or ordinary"""

    @property
    def is_live(self) -> bool:
        """Is there memory, in an ordinary MR?"""
        return self not in (Address.UNMAPPED, Address.ZERO, Address.TOP)


ADDRESSES = (Address.CANARY, Address.UNMAPPED, Address.ZERO, Address.TOP)
"""Where any null segment can point, of any length and whatever is beside it: those at live memory first."""
PLACES = (Address.CANARY, Address.ODD, Address.PAGE_END, Address.ACROSS_PAGE, Address.ACROSS_4GIB)
"""Of these, where ordinary segments can be, too: CANARY for wherever they happen to be."""
ACROSS_4GIB_OFFSET = CANARY_OFFSET + PAGE
"""Where in its arena the multiple of 2^32 is, in an arena that has one."""


@dataclass(frozen=True)
class Segment:
    """One SGE of `length` bytes: null (the null MR's lkey) or ordinary memory."""

    null: bool
    length: int
    address: Address = Address.CANARY
    other: bool = False
    """with the lkey of a second null MR of the same PD"""

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"a segment of {self.length} bytes")
        if not self.null and (self.other or self.address not in PLACES):
            raise ValueError("only a null segment has a free choice of address")
        if self.length < 2 and self.address in (Address.ACROSS_PAGE, Address.ACROSS_4GIB):
            raise ValueError(f"{self.length} bytes are not on two sides of anything")

    def __str__(self) -> str:
        at = "" if self.address is Address.CANARY else f"@{self.address.value}"
        return f"{self.kind}{self.length}{at}"

    @property
    def kind(self) -> str:
        """n: null, o: null by the other null MR, m: ordinary memory."""
        return ("o" if self.other else "n") if self.null else "m"

    @classmethod
    def parse(cls, text: str) -> Segment:
        kind, at = text[:1], text[1:].partition("@")
        if kind not in ("n", "o", "m"):
            raise ValueError(f"segment {text!r}: starts with n (null), o (another null MR) or m (ordinary memory)")
        return cls(kind != "m", int(at[0]), Address(at[2] or "canary"), kind == "o")


def null(length: int, address: Address = Address.CANARY) -> Segment:
    return Segment(True, length, address)


def other_null(length: int, address: Address = Address.CANARY) -> Segment:
    return Segment(True, length, address, other=True)


def mem(length: int, address: Address = Address.CANARY) -> Segment:
    return Segment(False, length, address)


def total(segments: tuple[Segment, ...]) -> int:
    """Length in bytes of a segment list."""
    return sum(segment.length for segment in segments)


class Signal(Word):
    """Which send work requests are reported: all (sq_sig_all), or those that ask for it, which this one does or not."""

    ALL = "all"
    SIGNALED = "signaled"
    UNSIGNALED = "unsignaled"


class Wait(Word):
    """How completions are waited for: by polling, or for an event on a completion channel first, of any completion or,
    at the responder, of a solicited one."""

    POLL = "poll"
    EVENT = "event"
    SOLICITED_EVENT = "solicited_event"


class Ordinary(Enum):
    """How the ordinary memory of both sides is registered, or reached by a peer."""

    PLAIN = "plain"
    ODP = "odp"
    """on demand (IBV_ACCESS_ON_DEMAND)"""
    IMPLICIT_ODP = "implicit_odp"
    """on demand, by an MR of the whole address space"""
    ZERO_BASED = "zero_based"
    """its first byte is at 0 (IBV_ACCESS_ZERO_BASED)"""
    RELAXED_ORDERING = "relaxed_ordering"
    HUGE_PAGES = "huge_pages"
    """in pages of hugetlbfs (IBV_ACCESS_HUGETLB)"""
    WINDOW = "window"
    """WRITE, READ and atomics name it by a memory window of type 2"""

    @property
    def words(self) -> str:
        return _ORDINARY[self]


_ORDINARY = {
    Ordinary.PLAIN: "plain memory",
    Ordinary.ODP: "memory on demand (IBV_ACCESS_ON_DEMAND)",
    Ordinary.IMPLICIT_ODP: "an implicit MR (IBV_ACCESS_ON_DEMAND, SIZE_MAX bytes)",
    Ordinary.ZERO_BASED: "a zero-based MR (IBV_ACCESS_ZERO_BASED)",
    Ordinary.RELAXED_ORDERING: "an MR with relaxed ordering (IBV_ACCESS_RELAXED_ORDERING)",
    Ordinary.HUGE_PAGES: "huge pages (MAP_HUGETLB, IBV_ACCESS_HUGETLB)",
    Ordinary.WINDOW: "memory that peers name by a window of type 2",
}


@dataclass(frozen=True)
class LinkKind:
    """Everything of a scenario that decides which queue pairs carry it."""

    transport: Transport
    queue: Queue
    post: Post
    poll: Poll
    selective: bool = False
    """sq_sig_all is 0"""
    inline: bool = False
    """the requester has room for inline data"""
    channel: bool = False
    """the CQs have completion channels"""
    invalidate: bool = False
    """the requester posts SEND with invalidate"""

    def __str__(self) -> str:
        names = [self.transport.value, self.queue.value, self.post.value, self.poll.value]
        return "-".join(
            names + [name for name in ("selective", "inline", "channel", "invalidate") if getattr(self, name)]
        )


@dataclass(frozen=True)
class Scenario:
    """One work request.

    `gather` is the requester's list for SEND and WRITE and empty for the rest. `scatter` is the responder's
    receive list for SEND and WRITE with immediate, the requester's list for READ and atomics, empty for a plain
    WRITE. The remote end of WRITE, READ and atomics is ordinary memory.

    Raises ValueError for what no work request can be.
    """

    transport: Transport
    operation: Operation
    gather: tuple[Segment, ...]
    scatter: tuple[Segment, ...]
    queue: Queue = Queue.RQ
    post: Post = Post.POST_SEND
    poll: Poll = Poll.POLL_CQ
    signal: Signal = Signal.ALL
    inline: bool = False
    """IBV_SEND_INLINE, ibv_wr_set_inline_data"""
    solicited: bool = False
    """IBV_SEND_SOLICITED"""
    wait: Wait = Wait.POLL
    ordinary: Ordinary = Ordinary.PLAIN

    def __post_init__(self) -> None:
        operation = self.operation
        if operation not in (*TRANSPORT_OPERATIONS[self.transport], *MORE_OPERATIONS.get(self.transport, ())):
            raise ValueError(f"{self.transport.name} has no {operation.name}")
        if bool(self.gather) != operation.gathers:
            raise ValueError(f"{operation.name} with gather list {segments_id(self.gather)}")
        if bool(self.scatter) == (operation is Operation.RDMA_WRITE):
            raise ValueError(f"{operation.name} with scatter list {segments_id(self.scatter)}")
        if operation.is_atomic and [segment.length for segment in self.scatter] != [ATOMIC_LENGTH]:
            raise ValueError("an atomic returns 8 bytes into one segment")
        if self.post is Post.WR_SET_SGE and len(self.gather or self.scatter) != 1:
            raise ValueError("ibv_wr_set_sge names one segment")
        if self.transport is Transport.XRC and self.queue is not Queue.SRQ:
            raise ValueError("XRC receives through an SRQ only")
        if self.inline and (any(each.null for each in self.gather) or not 0 < total(self.gather) <= INLINE_LENGTH):
            raise ValueError(f"inline data is 1 to {INLINE_LENGTH} bytes of ordinary memory")
        if self.solicited and not operation.consumes_receive:
            raise ValueError(f"{operation.name} is no message that could be solicited")
        if self.wait is not Wait.POLL and self.poll is not Poll.POLL_CQ:
            raise ValueError("pyverbs asks no CQ-ex for events")
        if self.ordinary is Ordinary.WINDOW and (self.transport is not Transport.RC or operation.is_send):
            raise ValueError(f"{self.transport.name} {operation.name} names no memory by a window")
        if self.ordinary is Ordinary.ZERO_BASED and self.inline:
            raise ValueError("inline data is read at addresses of the process, not of the MR")
        for segments in (self.gather, self.scatter):
            _check_addresses(segments)
        if self.is_too_long and self.transport not in (Transport.RC, Transport.XRC):
            raise ValueError("a message longer than the list is an error on reliable transports only")

    def __str__(self) -> str:
        """The scenario's id, which `parse` reads back."""
        return "-".join(
            (
                self.transport.value,
                self.operation.value,
                segments_id(self.gather),
                segments_id(self.scatter),
                self.queue.value,
                self.post.value,
                self.poll.value,
                *self._more(),
            )
        )

    def _more(self) -> Iterator[str]:
        """What an id says behind its seven fields: whatever is not as it mostly is."""
        if self.signal is not Signal.ALL:
            yield self.signal.value
        if self.inline:
            yield "inline"
        if self.solicited:
            yield "solicited"
        if self.wait is not Wait.POLL:
            yield self.wait.value
        if self.ordinary is not Ordinary.PLAIN:
            yield self.ordinary.value

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """The scenario with this id; raises ValueError for any other text."""
        fields = text.split("-")
        if len(fields) < 7:
            raise ValueError(f"7 fields or more separated by '-', not {len(fields)}")
        transport, operation, gather, scatter, queue, post, poll, *more = fields
        others = {name: value for field in more for name, value in _OTHERS.get(field, {"": field}).items()}
        if "" in others or len(others) < len(more):
            raise ValueError(f"{'-'.join(more)}: each of {', '.join(_OTHERS)} can stand there, those of a kind once")
        return cls(
            Transport(transport),
            Operation(operation),
            parse_segments(gather),
            parse_segments(scatter),
            Queue(queue),
            Post(post),
            Poll(poll),
            **others,
        )

    @cached_property
    def seed(self) -> int:
        """Makes the bytes of one scenario differ from those of the next."""
        return zlib.crc32(str(self).encode())

    @cached_property
    def link(self) -> LinkKind:
        return LinkKind(
            self.transport,
            self.queue,
            self.post,
            self.poll,
            self.signal is not Signal.ALL,
            self.inline,
            self.wait is not Wait.POLL,
            self.operation is Operation.SEND_WITH_INV,
        )

    @property
    def length(self) -> int:
        """Bytes of the message."""
        return total(self.gather or self.scatter)

    @property
    def scatter_length(self) -> int:
        """Bytes that the operation puts into the scatter list, the GRH of a UD receive included."""
        if self.operation is Operation.RDMA_WRITE_WITH_IMM:
            return 0
        return self.length + (GRH_LENGTH if self.transport is Transport.UD else 0)

    @property
    def is_too_long(self) -> bool:
        """Is the message longer than the receive's scatter list?"""
        return self.operation.is_send and self.scatter_length > total(self.scatter)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.gather + self.scatter

    @property
    def needs_window(self) -> bool:
        """Must the responder bind a memory window before it is posted?"""
        return self.operation is Operation.SEND_WITH_INV or self.ordinary is Ordinary.WINDOW

    @property
    def has_other_null(self) -> bool:
        return any(segment.other for segment in self.segments)

    @property
    def has_null(self) -> bool:
        return any(segment.null for segment in self.segments)

    @property
    def null_sides(self) -> frozenset[Side]:
        """The sides whose lists have null segments."""
        lists = ((Side.REQUESTER, self.gather), (scatter_side(self.operation), self.scatter))
        return frozenset(side for side, segments in lists if any(segment.null for segment in segments))

    @property
    def imm_data(self) -> int | None:
        """Immediate data, as the 32-bit value that the wire carries."""
        return (self.seed | 0x80000001) if self.operation.has_imm else None

    def on_ordinary_memory(self) -> Scenario:
        """The control: the same work request with ordinary memory in place of every null segment, where that can be."""
        return replace(self, gather=_ordinary(self.gather), scatter=_ordinary(self.scatter))


def _ordinary(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    return tuple(mem(each.length, each.address if each.address in PLACES else Address.CANARY) for each in segments)


def _check_addresses(segments: tuple[Segment, ...]) -> None:
    """Raises ValueError if the segments of a list cannot be at these addresses together."""
    for index, segment in enumerate(segments):
        before = segments[index - 1] if index else None
        if segment.address is Address.AGAIN and (
            before is None or before.length < segment.length or not before.address.is_live
        ):
            raise ValueError(f"{segment}: before it stands no memory of as many bytes")
    if [segment.address for segment in segments].count(Address.ACROSS_4GIB) > 1:
        raise ValueError("an arena has one multiple of 2^32")


PLAIN_LENGTH = 64


def plain(kind: LinkKind, operation: Operation, length: int = PLAIN_LENGTH) -> Scenario:
    """A work request on ordinary memory for an operation of a kind of link; atomics have their own length. A SEND on a
    link for such with invalidate is one.
    """
    if kind.invalidate:
        operation = Operation.SEND_WITH_INV
    length = ATOMIC_LENGTH if operation.is_atomic else length
    header = GRH_LENGTH if kind.transport is Transport.UD else 0
    return Scenario(
        kind.transport,
        operation,
        (mem(length),) if operation.gathers else (),
        () if operation is Operation.RDMA_WRITE else (mem(header + length),),
        kind.queue,
        kind.post,
        kind.poll,
        Signal.SIGNALED if kind.selective else Signal.ALL,
        kind.inline,
        wait=Wait.EVENT if kind.channel else Wait.POLL,
    )


_OTHERS: dict[str, dict[str, Any]] = {
    **{signal.value: {"signal": signal} for signal in Signal if signal is not Signal.ALL},
    "inline": {"inline": True},
    "solicited": {"solicited": True},
    **{wait.value: {"wait": wait} for wait in Wait if wait is not Wait.POLL},
    **{each.value: {"ordinary": each} for each in Ordinary if each is not Ordinary.PLAIN},
}
"""The fields of a scenario that stand in an id only where they are not as they mostly are."""


def segments_id(segments: tuple[Segment, ...]) -> str:
    """A segment list in an id: `n8+m64`; runs are counted, `3*n8`; an empty list is `remote`."""
    if not segments:
        return "remote"
    parts: list[str] = []
    counts: list[int] = []
    for segment in segments:
        if parts and parts[-1] == str(segment):
            counts[-1] += 1
        else:
            parts.append(str(segment))
            counts.append(1)
    return "+".join(part if count == 1 else f"{count}*{part}" for part, count in zip(parts, counts))


def parse_segments(text: str) -> tuple[Segment, ...]:
    if text == "remote":
        return ()
    segments: list[Segment] = []
    for part in text.split("+"):
        count, star, segment = part.rpartition("*")
        segments += [Segment.parse(segment)] * (int(count) if star else 1)
    return tuple(segments)


class Side(Word):
    REQUESTER = "requester"
    RESPONDER = "responder"


@dataclass(frozen=True)
class Region:
    """A named stretch of an arena, in bytes from its start."""

    name: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True)
class Place:
    """Where a segment is: a region of a side's arena, or None for a null segment that points outside of both.

    A region that another segment has, too, is named after that one.
    """

    segment: Segment
    region: Region | None
    side: Side


Places = tuple[Place, ...]
"""Those of a list."""


@dataclass(frozen=True)
class Plan:
    """The memory of both sides.

    `requester` and `responder` cover the used part of each arena without gaps, guards included. `remote` is the
    region of the responder's arena that WRITE, READ and atomics name by rkey.
    """

    requester: tuple[Region, ...]
    responder: tuple[Region, ...]
    gather: Places
    scatter: Places
    remote: Region | None

    @property
    def is_across_4gib(self) -> bool:
        """Must a multiple of 2^32 be at ACROSS_4GIB_OFFSET in both arenas?"""
        return any(place.segment.address is Address.ACROSS_4GIB for place in (*self.gather, *self.scatter))

    def regions(self, side: Side) -> tuple[Region, ...]:
        return self.requester if side is Side.REQUESTER else self.responder

    def size(self, side: Side) -> int:
        """Bytes that the side's arena must have."""
        return self.regions(side)[-1].end


def scatter_side(operation: Operation) -> Side:
    """Whose list the scatter list is."""
    return Side.RESPONDER if operation.consumes_receive else Side.REQUESTER


class _Arena:
    """Lays regions out one after the other, with guards between them."""

    def __init__(self) -> None:
        self.regions = [Region("guard", 0, CANARY_OFFSET)]

    def add(self, name: str, length: int, place: Callable[[int], int] | None = None) -> Region:
        """`place`: the offset, from the least that it can be."""
        guard = self.regions.pop()
        start = place(guard.end) if place else guard.end
        region = Region(name, start, length)
        self.regions += [
            Region("guard", guard.offset, start - guard.offset),
            region,
            Region("guard", region.end, GUARD_LENGTH),
        ]
        return region


def _offset(segment: Segment, least: int) -> int:
    """Where in an arena the memory of a segment is, from offset `least` on."""
    length, address = segment.length, segment.address
    if address is Address.ODD:
        return least | 1
    if address is Address.PAGE_END:
        return least + -(least + length) % PAGE
    if address is Address.ACROSS_PAGE:
        return least + -(least + length // 2) % PAGE
    if address is Address.ACROSS_4GIB:
        return max(least, ACROSS_4GIB_OFFSET - length // 2)
    return least


def _place_lists(arenas: dict[Side, _Arena], lists: tuple[tuple[str, Side, tuple[Segment, ...]], ...]) -> list[Places]:
    """Lay lists out, each named and of a side. In each arena canaries come first, so that the first of them is at
    CANARY_OFFSET, then the ordinary segments; but before all what is at a multiple of 2^32.
    """
    regions: dict[tuple[str, int], tuple[Region | None, Side]] = {}
    every = [(name, side, index, each) for name, side, segments in lists for index, each in enumerate(segments)]
    every.sort(key=lambda one: (one[3].address is not Address.ACROSS_4GIB, not one[3].null))
    for name, side, index, segment in every:
        if segment.address is Address.AGAIN:
            continue
        owner = _other_side(side) if segment.address is Address.OTHER_MR else side
        region = None
        if segment.address.is_live:
            words = f"canary of {name}[{index}]" if segment.null else f"{name}[{index}]"
            region = arenas[owner].add(words, segment.length, partial(_offset, segment))
        regions[name, index] = region, owner
    for name, _, index, segment in sorted(every, key=lambda one: one[2]):
        if segment.address is Address.AGAIN:
            before, owner = regions[name, index - 1]
            assert before is not None
            regions[name, index] = replace(before, length=segment.length), owner
    return [
        tuple(Place(segment, *regions[name, index]) for index, segment in enumerate(segments))
        for name, _, segments in lists
    ]


def _aligned(least: int) -> int:
    return least + -least % ATOMIC_LENGTH


def _other_side(side: Side) -> Side:
    return Side.RESPONDER if side is Side.REQUESTER else Side.REQUESTER


def plan(scenario: Scenario) -> Plan:
    """Lay a scenario's memory out.

    Segments follow one another unaligned. The words of atomics are aligned (IBTA 9.4.5).
    """
    arenas = {side: _Arena() for side in Side}
    owner = scatter_side(scenario.operation)
    lists = (("gather", Side.REQUESTER, scenario.gather), ("scatter", owner, scenario.scatter))
    gather, scatter = _place_lists(arenas, lists)
    remote = None
    if not scenario.operation.is_send:
        place = _aligned if scenario.operation.is_atomic else None
        remote = arenas[Side.RESPONDER].add("remote", scenario.length, place)
    return Plan(tuple(arenas[Side.REQUESTER].regions), tuple(arenas[Side.RESPONDER].regions), gather, scatter, remote)


def _non_zero_bytes(count: int) -> bytes:
    generator = random.Random(0)
    return bytes(generator.choices(range(1, 256), k=count))


# A prime length, so that a stretch repeats at no power of two.
_PATTERN = _non_zero_bytes(65521)


def pattern(length: int, start: int) -> bytes:
    """`length` bytes, none of them zero, that differ from start to start."""
    start %= len(_PATTERN)
    end = start + length
    if end <= len(_PATTERN):
        return _PATTERN[start:end]
    return _repeated(1 << (end // len(_PATTERN)).bit_length())[start:end]


@cache
def _repeated(times: int) -> bytes:
    return _PATTERN * times
