# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The C program that drives many queue pairs from several threads, made of the parts of conformance.report.reproducer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.clauses import BY_ID
from conformance.report.file_names import part
from conformance.report.reproducer import TEMPLATES, Where, c_string, header
from conformance.scenarios import LinkKind, Poll, Post, Queue, Transport

SECONDS = 10.0
"""How long a program runs that is not told."""
_PROCEDURE = (
    "A null MR (ibv_alloc_null_mr(3)) reads as zeros and discards what is written to it. The program drives many pairs "
    "of queue pairs from several threads, with many requests in flight whose lists have null and ordinary segments, "
    "while other null MRs are allocated and freed; it looks at all memory and all completions, on ordinary memory "
    "first (the control, for a short time)."
)


@dataclass(frozen=True)
class Load:
    """What a program does unless it is told otherwise.

    `requests`: work requests of all pairs, after which no more are posted (None: as many as there is time for).
    `first`: the number of the first pair, which decides what that posts. `still`: no null MR comes or goes meanwhile.
    """

    seed: int
    threads: int
    pairs: int
    first: int = 0
    still: bool = False
    requests: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of the program that say so."""
        return tuple(self._arguments())

    def _arguments(self) -> Iterator[str]:
        yield f"--seed={self.seed}"
        yield f"--threads={self.threads}"
        yield f"--pairs={self.pairs}"
        if self.first:
            yield f"--from={self.first}"
        if self.still:
            yield "--still"
        if self.requests is not None:
            yield f"--requests={self.requests}"


@dataclass(frozen=True)
class _Kind:
    """struct link_kind of the program."""

    name: str
    type: str
    shared: str
    post: str
    extended: str


def render(kinds: Sequence[LinkKind], load: Load, where: Where, clause: str = "", finding: str = "") -> str:
    """The text of a C program that exits with 0 (conforming), 1 (not) or 2 (could not try).

    `kinds` are those of its queue pairs, which take turns with them; `clause` and `finding` say in its first comment
    what it shows. Raises ValueError for an unknown clause or no kind.
    """
    if clause and clause not in BY_ID:
        raise ValueError(f"{clause!r} is no clause; see `python -m conformance clauses`")
    if not kinds:
        raise ValueError("no kind of queue pair to drive")
    subject = f"{load.pairs} pairs of queue pairs and {load.threads} threads, seed {load.seed}."
    again = f"It shows it with: {' '.join((*load.arguments, f'--seconds={SECONDS:g}'))}" if finding else "Options: "
    options = (
        "--seconds N, --requests N (of all pairs, after which no more are posted), --seed N, --threads N, --pairs N, "
        "--from N (the first pair), --still (no null MR comes or goes meanwhile), --ordinary (memory in place of null "
        "MRs). With one thread everything is done in a fixed order."
    )
    last = f"{again}\n{options}" if finding else again + options
    return TEMPLATES.get_template("stress.c.j2").render(
        header=list(header(subject, _PROCEDURE, last, file_name(load, where), where, clause, finding)),
        kinds=[_kind(kind) for kind in kinds],
        seed=load.seed,
        threads=load.threads,
        pairs=load.pairs,
        first=load.first,
        still=load.still,
        seconds=SECONDS,
        device=c_string(where.device),
        port=where.port,
        gid_index=where.gid_index or 0,
        timeout=float(where.timeout),
        environment=[(c_string(variable), c_string(value)) for variable, value in where.environment],
    )


def write(
    folder: Path, kinds: Sequence[LinkKind], load: Load, where: Where, clause: str = "", finding: str = ""
) -> Path:
    """Write the program to a file of the folder, made if need be. Returns its path. Raises OSError, and ValueError as
    `render` does."""
    text = render(kinds, load, where, clause, finding)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(load, where)
    path.write_text(text, encoding="utf-8")
    return path


def file_name(load: Load, where: Where) -> str:
    """`mlx5_0-1-cqe128-stress-4711.c`, without the label where there is no environment."""
    names = (where.device, str(where.port), where.label, f"stress-{load.seed}")
    return "-".join(part(text) for text in names if text) + ".c"


def longest(seconds: float, timeout: float) -> int:
    """Seconds after which a program that was told to run for `seconds` ends itself: it hangs."""
    return math.ceil(seconds + 20 * timeout + 60)


def _kind(kind: LinkKind) -> _Kind:
    queue = "SRQ" if kind.queue is Queue.SRQ else "receive queue"
    posted = "ibv_post_send" if kind.post is Post.POST_SEND else "ibv_wr_*"
    polled = "CQ-ex" if kind.poll is Poll.CQ_EX else "ibv_poll_cq"
    return _Kind(
        name=f"{kind.transport.name} {queue} {posted} {polled}",
        type="IBV_QPT_XRC_SEND" if kind.transport is Transport.XRC else f"IBV_QPT_{kind.transport.name}",
        shared="true" if kind.queue is Queue.SRQ else "false",
        post=f"BY_{kind.post.name}",
        extended="true" if kind.poll is Poll.CQ_EX else "false",
    )
