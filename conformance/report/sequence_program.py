# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A stand-alone C program for a sequence, as conformance.report.reproducer writes one for a single work request."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.model import predict
from conformance.report.reproducer import (
    TEMPLATES,
    WR_NAMES,
    Where,
    circumstances,
    header,
    kind_of,
    program_name,
    write_program,
)
from conformance.scenarios import PAGE, LinkKind, Place, Poll, Queue, Region, Scenario, Side, Transport, plan
from conformance.sequences import Sequence, State, Step, Verb

PROCEDURE = (
    "A null MR (ibv_alloc_null_mr(3)) reads as zeros and discards what is written to it. The program does these steps "
    "on ordinary memory first (the control), then with null MRs, and looks at all memory and all completions."
)
_QP_TYPES = {Transport.XRC: "IBV_QPT_XRC_SEND"}
_NAMES = {
    Verb.FREE: "free_null_mr",
    Verb.RECV: "recv_",
    Verb.SEND: "send_",
    Verb.WAIT: "wait_",
    Verb.ERROR: "to_error",
    Verb.BIND: "bind_",
}
"""The program's functions that are not called as the step is: libc has such names."""


@dataclass(frozen=True)
class _Row:
    kind: str
    offset: int
    length: int


@dataclass(frozen=True)
class _Message:
    """struct message of the program; of pairs, the requester's is the first. Offsets and lengths in bytes."""

    name: str
    opcode: str
    receives: bool
    too_long: bool
    imm_data: int
    gather: list[_Row]
    scatter: list[_Row]
    remote: Region | None
    offsets: tuple[int, int]
    sizes: tuple[int, int]
    wc_opcodes: tuple[str, str]
    byte_lens: tuple[int, int]


def write(folder: Path, sequence: Sequence, where: Where, clause: str = "", finding: str = "") -> Path:
    """Write the program to a file of the folder, made if need be. Returns its path. Raises OSError, and ValueError as
    `render` does."""
    return write_program(folder, file_name(sequence, where), render(sequence, where, clause, finding))


def file_name(sequence: Sequence, where: Where) -> str:
    """`mlx5_0-1-cqe128-sequence-0123abcd.c`, without the label where there is no environment."""
    name = f"sequence-{zlib.crc32(str(sequence).encode()):08x}"
    return program_name(where, name)


def render(sequence: Sequence, where: Where, clause: str = "", finding: str = "") -> str:
    """The text of a C program that does the steps and exits with 0 (conforming), 1 (not) or 2 (could not try).

    `clause` and `finding` say in its first comment what it shows. Raises ValueError for an unknown clause.
    """
    subject = f"{len(sequence.steps)} steps:\n{sequence.in_lines()}"
    about = (subject, PROCEDURE, f"Sequence: {sequence}")
    memory = _Memory()
    calls = list(memory.calls(sequence))
    steps = len(sequence.steps)
    return TEMPLATES.get_template("sequence.c.j2").render(
        header=list(header(*about, file_name(sequence, where), where, clause, finding)),
        numbers=1 + max(max(step.number, step.other) for step in sequence.steps),
        area=max(memory.size, 4 * PAGE),
        messages=memory.messages,
        steps=[(str(step), calls[index]) for index, step in enumerate(sequence.steps)],
        ending=calls[steps:],
        longest=math.ceil(2 * where.timeout * (1 + steps)) + 10,
        **circumstances(where),
    )


def _page_end(size: int) -> int:
    return -(-size // PAGE) * PAGE


class _Memory:
    """Where the messages of a sequence have their memory: chains that are in flight together apart, and else where the
    last one was, so that what it left there is seen.
    """

    def __init__(self) -> None:
        self.messages: list[_Message] = []
        self.size = 0
        """Bytes of a PD's memory of each side."""

    def calls(self, sequence: Sequence) -> Iterator[str]:
        """The calls of the program's functions, those of the ending included; fills `messages` and `size`."""
        chains = [step.scenarios for step in sequence.steps if step.verb is Verb.RECV]
        share = max((sum(map(_room, chain)) for chain in chains), default=0)
        state = State()
        taken: dict[int, list[int]] = {}
        for step in (*sequence.steps, *sequence.ending):
            if step.verb is Verb.RECV:
                state.take(step)
                busy = {place for number, places in taken.items() if number in state.links for place in places}
                place = next(place for place in range(len(busy) + 1) if place not in busy)
                taken.setdefault(step.number, []).append(place)
                first = len(self.messages)
                self._lay_out(step.scenarios, place * share)
                yield f"recv_({step.number}, {step.other}, {first}, {len(step.scenarios)})"
                continue
            yield _call(step, state)
            state.take(step)
            if step.verb in (Verb.WAIT, Verb.RESET, Verb.DESTROY):
                waiting = len(state.links[step.number].waiting) if step.number in state.links else 0
                taken[step.number] = taken.get(step.number, [])[-waiting:] if waiting else []

    def _lay_out(self, scenarios: tuple[Scenario, ...], offset: int) -> None:
        for scenario in scenarios:
            self.messages.append(_message(scenario, offset))
            offset += _room(scenario)
        self.size = max(self.size, offset)


def _room(scenario: Scenario) -> int:
    """Bytes of each side's memory, up to where the next message's begin."""
    layout = plan(scenario)
    return max(_page_end(layout.size(side)) for side in Side)


def _message(scenario: Scenario, offset: int) -> _Message:
    layout = plan(scenario)
    due = predict(scenario, layout, sys.byteorder)
    completions = [due.requester, due.responder]
    opcodes = [completion.opcode or "-1" if completion else "-1" for completion in completions]
    lens = [
        -1 if completion is None or completion.byte_len is None else completion.byte_len for completion in completions
    ]
    return _Message(
        name=str(scenario),
        opcode=WR_NAMES.get(scenario.operation, scenario.operation.name),
        receives=scenario.operation.consumes_receive,
        too_long=scenario.is_too_long,
        imm_data=scenario.imm_data or 0,
        gather=_rows(layout.gather),
        scatter=_rows(layout.scatter),
        remote=layout.remote,
        offsets=(offset, offset),
        sizes=(layout.size(Side.REQUESTER), layout.size(Side.RESPONDER)),
        wc_opcodes=(opcodes[0], opcodes[1]),
        byte_lens=(lens[0], lens[1]),
    )


def _rows(places: tuple[Place, ...]) -> list[_Row]:
    return [
        _Row(kind_of(place.segment), place.region.offset if place.region else 0, place.segment.length)
        for place in places
    ]


def _call(step: Step, state: State) -> str:
    operands = [step.number]
    if step.verb in (Verb.ALLOC, Verb.REG):
        operands.append(step.other)
    elif step.verb is Verb.BIND:
        operands += [step.other, state.null_mrs[step.number]]
    elif step.verb is Verb.REREG:
        operands += [step.other, state.null_mrs[step.number], state.other_pd(state.null_mrs[step.number])]
    elif step.verb is Verb.CONNECT and step.kind is not None:
        return f"connect_({step.number}, {step.other}, {', '.join(_link(step.kind))})"
    return f"{_NAMES.get(step.verb, step.verb.value)}({', '.join(map(str, operands))})"


def _link(kind: LinkKind) -> Iterator[str]:
    yield _QP_TYPES.get(kind.transport, f"IBV_QPT_{kind.transport.name}")
    yield "true" if kind.queue is Queue.SRQ else "false"
    yield f"BY_{kind.post.name}"
    yield "true" if kind.poll is Poll.CQ_EX else "false"
