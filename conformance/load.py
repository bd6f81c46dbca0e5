# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a stress puts on a device: many queue pairs, driven from several threads, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conformance.scenarios import LinkKind, Poll, Post, Queue, Transport

THREADS, PAIRS = 4, 16
KINDS = (
    LinkKind(Transport.RC, Queue.RQ, Post.POST_SEND, Poll.POLL_CQ),
    LinkKind(Transport.RC, Queue.SRQ, Post.POST_SEND, Poll.POLL_CQ),
    LinkKind(Transport.UD, Queue.RQ, Post.POST_SEND, Poll.POLL_CQ),
    LinkKind(Transport.RC, Queue.RQ, Post.WR_SET_SGE_LIST, Poll.CQ_EX),
    LinkKind(Transport.UC, Queue.RQ, Post.POST_SEND, Poll.POLL_CQ),
    LinkKind(Transport.XRC, Queue.SRQ, Post.POST_SEND, Poll.CQ_EX),
    LinkKind(Transport.UD, Queue.SRQ, Post.WR_SET_SGE_LIST, Poll.CQ_EX),
    LinkKind(Transport.RC, Queue.SRQ, Post.WR_SET_SGE_LIST, Poll.CQ_EX),
)
"""Each transport, queue and API; those that the device has take turns."""


@dataclass(frozen=True)
class Load:
    """What the C program of conformance.report.stress_program does unless it is told otherwise.

    `pairs` of queue pairs take turns with the `kinds`. What a pair posts depends on the seed and on its number, of
    which `first` is the lowest. `still`: no null MR is allocated or freed meanwhile. `requests`: work requests of all
    pairs, after which no more are posted (None: as many as there is time for).
    """

    kinds: tuple[LinkKind, ...]
    seed: int
    threads: int
    pairs: int
    first: int = 0
    still: bool = False
    requests: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The program's options that say so."""
        return tuple(self._arguments())

    def _arguments(self) -> Iterator[str]:
        yield f"--seed={self.seed}"
        yield f"--threads={self.threads}"
        yield f"--pairs={self.pairs}"
        yield f"--from={self.first}"
        if self.still:
            yield "--still"
        if self.requests is not None:
            yield f"--requests={self.requests}"

    def __str__(self) -> str:
        return " ".join(self.arguments)
