# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The program's memory, and messages on their way from one place in it to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Union, overload


class MemoryFault(Exception):
    """The program has no memory there, or none that can be accessed that way."""


class Memory(Protocol):
    """Access to the address space of the program. Every function raises MemoryFault, never a signal."""

    def read(self, address: int, length: int) -> bytes: ...

    def write(self, address: int, data: bytes | memoryview) -> None: ...

    def zero(self, address: int, length: int) -> None: ...


@dataclass(frozen=True)
class Zeros:
    """This many zero bytes, of which none is stored: a null MR makes very long messages cheap."""

    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Zeros:
        start, stop, _ = part.indices(self.length)
        return Zeros(max(0, stop - start))


@dataclass(frozen=True)
class Gap:
    """This many bytes of which nothing is delivered: what is in memory there stays (the unused GRH area of UD)."""

    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Gap:
        start, stop, _ = part.indices(self.length)
        return Gap(max(0, stop - start))


Piece = Union[bytes, memoryview, Zeros, Gap]


class Payload:
    """The bytes of one message, as the pieces that they were gathered in."""

    __slots__ = ("length", "pieces")

    def __init__(self, *pieces: Piece) -> None:
        self.pieces: list[Piece] = list(pieces)
        self.length = sum(map(len, pieces))

    def append(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.length += len(piece)

    def part(self, start: int, length: int) -> Iterator[Piece]:
        """The pieces of `length` bytes from offset `start`."""
        pieces = self.pieces
        if start == 0 and len(pieces) == 1 and len(pieces[0]) == length:
            yield pieces[0]
            return
        for piece in pieces:
            size = len(piece)
            if start >= size:
                start -= size
                continue
            taken = min(length, size - start)
            if taken:
                yield cut(piece, start, start + taken)
            length -= taken
            if not length:
                return
            start = 0

    def __bytes__(self) -> bytes:
        return b"".join(as_bytes(piece) for piece in self.pieces)


@overload
def cut(piece: bytes | memoryview, start: int, stop: int) -> bytes | memoryview: ...
@overload
def cut(piece: Zeros | Gap, start: int, stop: int) -> Zeros | Gap: ...
def cut(piece: Piece, start: int, stop: int) -> Piece:
    """Bytes `start` to `stop` of a piece, without copying long ones."""
    if isinstance(piece, bytes) and stop - start < len(piece) and len(piece) > 4096:
        piece = memoryview(piece)
    return piece[start:stop]


def as_bytes(piece: Piece) -> bytes:
    return bytes(piece) if isinstance(piece, (bytes, memoryview)) else bytes(len(piece))
