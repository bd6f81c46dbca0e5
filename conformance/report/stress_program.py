# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The C program that drives many queue pairs from several threads, of the parts that reproducers are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from conformance.load import Load
from conformance.report.reproducer import TEMPLATES, Where, circumstances, header, program_name, write_program
from conformance.scenarios import LinkKind, Poll, Post, Queue, Transport

SECONDS = 10.0
"""How long a program runs that is not told."""
_PROCEDURE = (
    "A null MR (ibv_alloc_null_mr(3)) reads as zeros and discards what is written to it. The program drives pairs of "
    "queue pairs from its threads, with many requests in flight whose lists have null and ordinary segments, while "
    "other null MRs are allocated and freed; it looks at all memory and all completions, on ordinary memory first (the "
    "control, for a short time)."
)
_OPTIONS = (
    "Options, which come first: --seconds N, --requests N (of all pairs, after which no more are posted), --seed N, "
    "--threads N, --pairs N, --from N (the first pair), --still (no null MR comes or goes meanwhile), --ordinary "
    "(memory in place of null MRs). With one thread everything is done in a fixed order."
)


@dataclass(frozen=True)
class _Kind:
    """struct link_kind of the program."""

    name: str
    type: str
    shared: str
    post: str
    extended: str


def write(folder: Path, load: Load, where: Where, clause: str = "", finding: str = "") -> Path:
    """Write the program to a file of the folder, made if need be. Returns its path. Raises OSError, and ValueError as
    `render` does."""
    return write_program(folder, file_name(load, where), render(load, where, clause, finding))


def file_name(load: Load, where: Where) -> str:
    """`mlx5_0-1-cqe128-stress-4711.c`, without the label where there is no environment."""
    return program_name(where, f"stress-{load.seed}")


def render(load: Load, where: Where, clause: str = "", finding: str = "") -> str:
    """The text of a C program that exits with 0 (conforming), 1 (not) or 2 (could not try).

    The last line that it prints is JSON: how many requests of which opcode ended as they must, how many a second, and
    the clause that is broken, if one is. `clause` and `finding` say in its first comment what it shows.
    Raises ValueError for an unknown clause or no kind.
    """
    if not load.kinds:
        raise ValueError("no kind of queue pair to drive")
    subject = f"Pairs of queue pairs: {load.pairs}, threads: {load.threads}, seed {load.seed}."
    name = file_name(load, where)
    about = (subject, _PROCEDURE, _OPTIONS, name, where, clause, finding)
    return TEMPLATES.get_template("stress.c.j2").render(
        header=list(header(*about, libraries="-libverbs -pthread")),
        kinds=[_kind(kind) for kind in load.kinds],
        seed=load.seed,
        threads=load.threads,
        pairs=load.pairs,
        first=load.first,
        still=load.still,
        requests=load.requests,
        seconds=SECONDS,
        **circumstances(where),
    )


def longest(seconds: float, timeout: float) -> int:
    """Seconds after which a program that was told to run for `seconds` ends itself: it hangs."""
    return math.ceil(seconds + 10 * timeout + 30)


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
