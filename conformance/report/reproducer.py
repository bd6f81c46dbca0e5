# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A stand-alone C program for a scenario: what shows a failure to people who do not have the suite."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from conformance.clauses import BY_ID
from conformance.config import Variables
from conformance.inventory import Target
from conformance.model import predict
from conformance.report.file_names import part
from conformance.scenarios import (
    ACROSS_4GIB_OFFSET,
    INLINE_LENGTH,
    LONGEST_CONTROL,
    PAGE,
    PLACES,
    Address,
    Operation,
    Ordinary,
    Place,
    Poll,
    Post,
    Queue,
    Scenario,
    Segment,
    Side,
    Signal,
    Transport,
    Wait,
    plan,
    scatter_side,
)

COLUMNS = 110

_POSTED_BY = {
    Post.POST_SEND: "ibv_post_send",
    Post.WR_SET_SGE: "ibv_wr_* with ibv_wr_set_sge",
    Post.WR_SET_SGE_LIST: "ibv_wr_* with ibv_wr_set_sge_list",
}
_POLLED_BY = {Poll.POLL_CQ: "ibv_poll_cq", Poll.CQ_EX: "ibv_start_poll on a CQ-ex"}
WR_NAMES = {Operation.CMP_AND_SWP: "ATOMIC_CMP_AND_SWP", Operation.FETCH_AND_ADD: "ATOMIC_FETCH_AND_ADD"}
"""Operations that enum ibv_wr_opcode calls otherwise."""

_WHERE = {
    Address.CANARY: "at live memory",
    Address.UNMAPPED: "at an unmapped address",
    Address.ZERO: "at address 0",
    Address.TOP: "at the top of the address space",
    Address.ODD: "at an odd address",
    Address.PAGE_END: "at the end of a page",
    Address.ACROSS_PAGE: "across the end of a page",
    Address.ACROSS_4GIB: "across a multiple of 2^32",
    Address.OTHER_MR: "at memory of the other side",
    Address.AGAIN: "where the one before it begins",
}

_ACCESS = {
    Ordinary.ODP: "IBV_ACCESS_ON_DEMAND",
    Ordinary.IMPLICIT_ODP: "IBV_ACCESS_ON_DEMAND",
    Ordinary.ZERO_BASED: "IBV_ACCESS_ZERO_BASED",
    Ordinary.RELAXED_ORDERING: "IBV_ACCESS_RELAXED_ORDERING",
    Ordinary.HUGE_PAGES: "IBV_ACCESS_HUGETLB",
}

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "program"),
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # C, not HTML
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


@dataclass(frozen=True)
class _Row:
    """An entry of a segment table; `kind` is a member of the program's enum, `offset` and `length` are in bytes."""

    kind: str
    offset: int
    length: int
    other: bool
    """of the second null MR"""


@dataclass(frozen=True)
class Where:
    """On what a program drives its scenario unless it is told otherwise."""

    device: str
    port: int
    gid_index: int | None
    """None: the port is addressed by LID, without a GRH"""
    timeout: float
    """seconds that a completion is waited for"""
    environment: Variables = ()
    """what the program sets before it opens the device, as providers read it then"""
    label: str = ""
    """the environment's name"""
    pkey_index: int = 0
    sl: int = 0
    traffic_class: int = 0


def where(target: Target) -> Where:
    index = target.gid.index if target.gid else None
    pkey_index = target.pkey.index if target.pkey else 0
    return Where(
        target.device.name, target.port.number, index, target.timeout, target.environment, target.label,
        pkey_index, target.sl, target.traffic_class,
    )  # fmt: skip


def render(scenario: Scenario, where: Where, clause: str = "", finding: str = "") -> str:
    """The text of a C program that drives the scenario and exits with 0 (conforming), 1 (not) or 2 (could not try).

    `clause` and `finding` say in its first comment what it shows. A scenario without null segments gives a program
    that drives ordinary memory only. Raises ValueError for an unknown clause.
    """
    control = scenario.length <= LONGEST_CONTROL
    laid_out = _with_memory_for_all(scenario) if control else scenario
    layout = plan(laid_out)
    side = scatter_side(scenario.operation).value
    lists = [("gather", "requester")] if scenario.gather else []
    lists += [("scatter", side)] if scenario.scatter else []
    due = predict(scenario, plan(scenario), sys.byteorder)
    opcode = WR_NAMES.get(scenario.operation, scenario.operation.name)
    unmapped = [segment.length for segment in scenario.segments if segment.address is Address.UNMAPPED]
    elsewhere = max((each.length for each in scenario.segments if each.address is Address.OTHER_MR), default=0)
    return TEMPLATES.get_template("main.c.j2").render(
        scenario=scenario,
        header=list(_header(scenario, where, clause, finding)),
        due=due,
        notified=Side.RESPONDER in due.notified,
        inline_length=INLINE_LENGTH,
        kinds={kind_of(segment) for segment in scenario.segments},
        gather=_rows(scenario.gather, layout.gather),
        scatter=_rows(scenario.scatter, layout.scatter),
        remote=layout.remote,
        lists=lists,
        requester_size=_pages(max(layout.size(Side.REQUESTER), elsewhere)),
        responder_size=_pages(max(layout.size(Side.RESPONDER), elsewhere)),
        across_4gib=ACROSS_4GIB_OFFSET if layout.is_across_4gib else None,
        page=PAGE,
        access=_ACCESS.get(scenario.ordinary),
        unmapped_size=max(unmapped, default=0),
        control=control,
        written_first=_is_written_first(scenario, clause),
        longest=math.ceil(4 * where.timeout) + 10,  # two passes with two completions each
        few_sges=max(len(scenario.gather), len(scenario.scatter)) <= 4,
        wr_opcode=f"IBV_WR_{opcode}",
        send_ops_flag=f"IBV_QP_EX_WITH_{opcode}",
        **circumstances(where),
    )


def _is_written_first(scenario: Scenario, clause: str) -> bool:
    """Is it about what a null segment gives back after it was written to?"""
    return clause == "read/zeros-after-write" and scenario.transport is Transport.RC and bool(scenario.gather)


def write(folder: Path, scenario: Scenario, where: Where, clause: str = "", finding: str = "") -> Path:
    """Write the program to a file of the folder, made if need be, that is named after target and scenario.

    Returns its path. Raises OSError, and ValueError as `render` does.
    """
    return write_program(folder, file_name(scenario, where), render(scenario, where, clause, finding))


def file_name(scenario: Scenario, where: Where) -> str:
    """`mlx5_0-1-cqe128-rc-send-m32-n32-srq-post_send-poll_cq.c`, without the label where there is no environment."""
    # "3*n8" is "3xn8" there, and "n8@zero" "n8.zero": neither shells nor make(1) take these names apart.
    name = str(scenario).replace("*", "x").replace("@", ".")
    return program_name(where, name)


def program_name(where: Where, name: str) -> str:
    """The file name of a program that was found on a target: `mlx5_0-1-cqe128-NAME.c`, the label only if it has one."""
    return "-".join(part(text) for text in (where.device, str(where.port), where.label, name) if text) + ".c"


def write_program(folder: Path, name: str, text: str) -> Path:
    """Write a program's text to a file of the folder, made if need be. Returns its path. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def circumstances(where: Where) -> dict[str, object]:
    """What the templates of all programs know of where it was found."""
    return {
        "device": c_string(where.device),
        "where": where,
        "timeout": float(where.timeout),
        "environment": [(c_string(variable), c_string(value)) for variable, value in where.environment],
    }


def _with_memory_for_all(scenario: Scenario) -> Scenario:
    """The control needs ordinary memory in place of every null segment, wherever that points."""

    def in_memory(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(each if each.address in PLACES else replace(each, address=Address.CANARY) for each in segments)

    return replace(scenario, gather=in_memory(scenario.gather), scatter=in_memory(scenario.scatter))


def kind_of(segment: Segment) -> str:
    """A member of the programs' enum kind."""
    if not segment.null:
        return "MEMORY"
    return "NULL_AT_CANARY" if segment.address in PLACES else f"NULL_AT_{segment.address.name}"


def _rows(segments: tuple[Segment, ...], places: tuple[Place, ...]) -> list[_Row]:
    return [
        _Row(kind_of(segment), place.region.offset if place.region else 0, segment.length, segment.other)
        for segment, place in zip(segments, places)
    ]


def _pages(size: int) -> int:
    """aligned_alloc(3) takes multiples of the alignment."""
    return -(-size // PAGE) * PAGE


def c_string(text: str) -> str:
    """A C string literal; as octal what C, or a compiler with trigraphs, would read as something else."""
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(plain)}"'


def _header(scenario: Scenario, where: Where, clause: str, finding: str) -> Iterator[str]:
    about = (_subject(scenario), _procedure(scenario, clause), f"Scenario: {scenario}")
    return header(*about, file_name(scenario, where), where, clause, finding)


def header(
    subject: str,
    procedure: str,
    last: str,
    file: str,
    where: Where,
    clause: str,
    finding: str,
    libraries: str = "-libverbs",
) -> Iterator[str]:
    """The lines of a program's first comment. Raises ValueError for an unknown clause."""
    if clause and clause not in BY_ID:
        raise ValueError(f"{clause!r} is no clause; see `python -m conformance clauses`")
    paragraphs = [subject]
    if clause:
        paragraphs.append(f"{clause}: {BY_ID[clause].requirement} ({BY_ID[clause].source}).")
    if finding:
        by = "LID, port {0.port}" if where.gid_index is None else "port {0.port}, GID index {0.gid_index}"
        by += ", P_Key index {0.pkey_index}" if where.pkey_index else ""
        settings = f", with {_settings(where)}" if where.environment else ""
        paragraphs.append(f"Found on {where.device}, {by.format(where)}{settings}:\n{finding}")
    paragraphs.append(procedure)
    if where.environment:
        paragraphs.append(f"It sets {_settings(where)}, except what is set already.")
    paragraphs.append(
        f"cc -Wall -o reproducer '{file}' {libraries}\n./reproducer [device [port [gid-index [pkey-index]]]]\n"
        "Exit status: 0 conforming, 1 not conforming, 2 could not try. A provider that crashes or hangs ends it by a"
        " signal."
    )
    paragraphs.append(last)
    for index, paragraph in enumerate(paragraphs):
        if index:
            yield ""
        for line in paragraph.splitlines():
            yield from textwrap.wrap(_comment(line), COLUMNS, break_on_hyphens=False, break_long_words=False)


def _settings(where: Where) -> str:
    return " ".join(f"{variable}={value}" for variable, value in where.environment)


def _comment(text: str) -> str:
    """Text that neither ends a C comment nor seems to start another."""
    return text.replace("*/", "* /").replace("/*", "/ *")


def _subject(scenario: Scenario) -> str:
    lines = [f"{scenario.transport.name} {scenario.operation.name} of {scenario.length} bytes"]
    lines[0] += f", posted by {_POSTED_BY[scenario.post]}, polled by {_POLLED_BY[scenario.poll]}."
    lines += _manner(scenario)
    if scenario.gather:
        lines.append(f"Gathered from: {_words(scenario.gather)}.")
    if scenario.scatter:
        where = "Scattered to"
        if scenario.operation.consumes_receive:
            where += " (SRQ)" if scenario.queue is Queue.SRQ else " (receive queue)"
        lines.append(f"{where}: {_words(scenario.scatter)}.")
    return "\n".join(lines)


def _manner(scenario: Scenario) -> Iterator[str]:
    if scenario.signal is Signal.UNSIGNALED:
        yield "Not signaled; a signaled SEND of ordinary memory follows, whose completion tells that it is done."
    elif scenario.signal is Signal.SIGNALED:
        yield "Signaled, on a queue pair that does not signal all (sq_sig_all 0)."
    if scenario.ordinary is not Ordinary.PLAIN:
        yield f"Ordinary memory is {scenario.ordinary.words}."
    if scenario.inline:
        yield "The data is inline."
    if scenario.operation is Operation.SEND_WITH_INV:
        yield "It invalidates a memory window of type 2, bound to the responder's memory."
    if scenario.solicited:
        yield "Solicited."
    if scenario.wait is not Wait.POLL:
        which = "of a solicited completion" if scenario.wait is Wait.SOLICITED_EVENT else "of a completion"
        yield f"Before it is polled, the event {which} is waited for (ibv_req_notify_cq, ibv_get_cq_event)."


def _words(segments: tuple[Segment, ...]) -> str:
    return ", ".join(" ".join(filter(None, _words_of(segment))) for segment in segments)


def _words_of(segment: Segment) -> tuple[str, ...]:
    length = f"{segment.length} bytes of"
    if segment.null:
        return length, "another null MR" if segment.other else "null MR", _WHERE[segment.address]
    return length, "memory", "" if segment.address is Address.CANARY else _WHERE[segment.address]


def _procedure(scenario: Scenario, clause: str) -> str:
    if not scenario.has_null:
        return "The program drives this work request once, on ordinary memory."
    text = "A null MR (ibv_alloc_null_mr(3)) reads as zeros and discards what is written to it. The program drives this"
    if scenario.length > LONGEST_CONTROL:
        text += " work request with it; the message is too long to repeat on ordinary memory first."
    else:
        text += " work request on ordinary memory first (the control), then with the null MR."
    if _is_written_first(scenario, clause):
        text += " Before that, data is written to the null segments by an RDMA READ and by a receive."
    return text
