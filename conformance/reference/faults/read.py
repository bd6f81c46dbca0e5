# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong about what is read from a null MR."""

from __future__ import annotations

import contextlib
from typing import Any

from ..engine import abi
from ..engine.memory import MemoryFault, Payload, Piece, Zeros, as_bytes
from ..engine.objects import SGE, Segment, Transfer
from .base import LONGEST_GARBAGE, Fault, garbage


class ReadsGarbage(Fault):
    """Nothing is zeroed: what is gathered from a null MR is whatever a buffer in the device held."""

    clause = "read/zeros"
    touches = ("read/zeros-after-write", "read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length)


class ReadsTheAddress(Fault):
    """The lkey is translated: memory at the segment's address is sent, where there is any."""

    clause = "read/zeros"
    touches = ("read/zeros-after-write", "read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if segment.length > LONGEST_GARBAGE:
            return Zeros(segment.length)
        try:
            return self.memory.read(segment.addr, segment.length)
        except MemoryFault:
            return Zeros(segment.length)


class StaleBytes(Fault):
    """The bytes of the message before are sent again in place of zeros."""

    clause = "read/zeros"
    touches = ("read/zeros-after-write", "read/mixed-gather", "discard/mixed-scatter")
    last = b""

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        payload = super().gather(transfer, sges)
        if 0 < payload.length <= 2**20:
            self.last = bytes(payload)
        return payload

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        stale = self.last[segment.offset : segment.offset + segment.length]
        return stale.ljust(segment.length, b"\0") if segment.length <= 2**20 else Zeros(segment.length)


class ZeroOnlyFirstMtu(Fault):
    """Only the first packet of a message is zeroed."""

    clause = "read/zeros"
    touches = (
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/mixed-scatter",
    )

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        mtu = self.ports[0].mtu
        good = max(0, min(segment.length, mtu - segment.offset))
        return garbage(segment.length, good)


class ZeroOnlyFirstPage(Fault):
    """Only the first page of a segment is zeroed."""

    clause = "read/zeros"
    touches = (
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/mixed-scatter",
    )

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        good = min(segment.length, 4096)
        return garbage(segment.length, good)


class GarbageInLastDword(Fault):
    """Zeros are made in units of 4 bytes: what is left over at the end of a segment is garbage."""

    clause = "read/zeros"
    touches = ("read/zeros-after-write", "read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length, segment.length - segment.length % 4)


class SmallSendsInlined(Fault):
    """The driver puts messages of at most 32 bytes into the WR, as if they had been posted inline: it copies what is at
    the segment's address."""

    clause = "read/zeros"
    touches = (
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/mixed-scatter",
    )

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if transfer.length <= 32:
            with contextlib.suppress(MemoryFault):
                return self.memory.read(segment.addr, segment.length)
        return super().read_null(transfer, segment)


class ZerosWrittenInLines(Fault):
    """A message of zeros only is written in lines of 64 bytes: what is behind its destination is zeroed too."""

    clause = "read/zeros"
    touches: tuple[str, ...] = ("read/zeros-after-write", "discard/receive", "discard/mixed-scatter")

    def is_wrong(self, payload: Payload) -> bool:
        return all(isinstance(piece, Zeros) for piece in payload.pieces)

    def write_pieces(self, address: int, payload: Payload, offset: int, length: int) -> None:
        super().write_pieces(address, payload, offset, length)
        if self.is_wrong(payload):
            self.memory.zero(address + length, -(address + length) % 64)


class MixedWrittenInLines(ZerosWrittenInLines):
    """A message that has zeros from a null segment is written in lines of 64 bytes, which zeros fill up."""

    clause = "read/mixed-gather"
    touches = ("read/zeros", "read/zeros-after-write", "discard/receive", "discard/mixed-scatter")

    def is_wrong(self, payload: Payload) -> bool:
        return {type(piece) is Zeros for piece in payload.pieces} == {True, False}


class WrongForDatagramsOnly(Fault):
    """Zeros, but garbage in datagrams."""

    clause = "read/zeros"
    touches = ("read/zeros-after-write", "read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if transfer.transport == abi.QPT_UD:
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class WrongForXrcOnly(Fault):
    """Zeros, but garbage from XRC queue pairs."""

    clause = "read/zeros"
    touches = ("read/zeros-after-write", "read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if transfer.transport == abi.QPT_XRC_SEND:
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class WrongForWritesOnly(Fault):
    """Zeros for SENDs, garbage for RDMA WRITEs."""

    clause = "read/zeros"
    touches = ("read/zeros-after-write", "read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if transfer.opcode in (abi.WR_RDMA_WRITE, abi.WR_RDMA_WRITE_WITH_IMM):
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class WrongWithImmediateOnly(Fault):
    """Zeros, but garbage in messages with immediate data."""

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if transfer.with_imm else super().read_null(transfer, segment)


class WrongByWrStartOnly(Fault):
    """Zeros for what ibv_post_send posts, garbage for what ibv_wr_start and its family post."""

    clause = "read/zeros"
    touches = ("read/mixed-gather", "discard/mixed-scatter")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if transfer.wr.extended else super().read_null(transfer, segment)


class ZeroOnlyFirstSegment(Fault):
    """Only the first element of a list is zeroed."""

    clause = "read/mixed-gather"
    touches = (
        "read/zeros",
        "discard/mixed-scatter",
    )

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if segment.index else super().read_null(transfer, segment)


class ThirdSegmentWrong(Fault):
    """Zeros, but garbage for the third element of a list and those behind it."""

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if segment.index >= 2 else super().read_null(transfer, segment)


class KeepsWhatWasWritten(Fault):
    """A null MR is real memory of the device: what was written at an address is read there again."""

    clause = "read/zeros-after-write"
    touches: tuple[str, ...] = (
        "allocate/coexist",
        "allocate/derived-pd",
        "read/zeros",
        "read/mixed-gather",
        "discard/mixed-scatter",
        "key/no-rkey",
        "misuse/rereg-harmless",
        "misuse/bind-harmless",
        "free/leaves-others",
    )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: dict[int, bytes] = {}

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if segment.length <= 2**20:
            self.kept[segment.addr] = b"".join(
                as_bytes(piece) for piece in payload.part(segment.offset, segment.length)
            )

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        kept = self.kept.get(segment.addr)
        if kept is None:
            return super().read_null(transfer, segment)
        return kept[: segment.length].ljust(segment.length, b"\0")


class ScratchPage(Fault):
    """Behind a null MR there is one page of the device's memory, for all addresses alike: what was written is read."""

    clause = "read/zeros-after-write"
    touches = (
        "allocate/coexist",
        "read/zeros",
        "read/mixed-gather",
        "discard/mixed-scatter",
        "misuse/rereg-harmless",
        "misuse/bind-harmless",
        "free/leaves-others",
    )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.page = bytearray(4096)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if segment.length <= 4096:
            self.page[: segment.length] = b"".join(
                as_bytes(piece) for piece in payload.part(segment.offset, segment.length)
            )

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if segment.length > 4096:
            return super().read_null(transfer, segment)
        return bytes(self.page[: segment.length])


class KeepsReadResponses(KeepsWhatWasWritten):
    """Only what the response of an RDMA READ wrote at an address is read there again."""

    touches = (
        "allocate/coexist",
        "allocate/derived-pd",
        "read/zeros",
        "read/mixed-gather",
        "discard/mixed-scatter",
        "key/no-rkey",
        "misuse/rereg-harmless",
        "misuse/bind-harmless",
        "free/leaves-others",
    )

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode == abi.WR_RDMA_READ:
            super().write_null(transfer, segment, payload)


class ZeroesWholeMessage(Fault):
    """A message with a null segment is taken for one without data: all of it is zero."""

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        payload = super().gather(transfer, sges)
        return Payload(Zeros(payload.length)) if any(map(self.names_null_mr, sges)) else payload


class ZeroesNextBytes(Fault):
    """Zeros are made in units of 16 bytes: the ordinary bytes behind a null segment are overwritten."""

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        payload = super().gather(transfer, sges)
        pieces = payload.pieces
        for index, piece in enumerate(pieces[1:], 1):
            before = pieces[index - 1]
            if isinstance(before, Zeros) and isinstance(piece, bytes):
                over = min(-len(before) % 16, len(piece))
                pieces[index] = bytes(over) + piece[over:]
        return payload


class NullSegmentsLeftOut(Fault):
    """Gathering leaves null segments out: what follows them arrives too early, and zeros fill the end."""

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        payload = super().gather(transfer, sges)
        kept = [piece for piece in payload.pieces if not isinstance(piece, Zeros)]
        return Payload(*kept, Zeros(payload.length - sum(map(len, kept))))


class NullLastInAList(Fault):
    """Null segments behind an ordinary one in a list repeat its last byte."""

    clause = "read/mixed-gather"
    touches = ("discard/mixed-scatter",)

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        payload = super().gather(transfer, sges)
        for index, piece in enumerate(payload.pieces):
            before = payload.pieces[index - 1] if index else b""
            if isinstance(piece, Zeros) and isinstance(before, bytes) and before:
                payload.pieces[index] = before[-1:] * len(piece)
        return payload
