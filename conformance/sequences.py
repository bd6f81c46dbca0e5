# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What an application does with null MRs, step by step, as plain data: what one request leaves behind for the next.

A sequence is everything that decides the result and nothing of pyverbs. Its text, steps separated by commas, is read
back by `parse`:

    alloc:n0:p0,connect:q0:p0:rc-rq-post_send-poll_cq,recv:q0:n0:rc-send-m64-n64-rq-post_send-poll_cq,send:q0,wait:q0

p, n, m and q are PDs, null MRs, ordinary MRs and connected pairs of queue pairs; a number can be used again when what
it named is gone. `p0` is there from the start. What must hold after each step is in `State`; in conformance.model, for
each work request; and in the manual pages for the rest: all succeed but `rereg` and `bind`, which must not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from conformance.scenarios import ADDRESSES, LinkKind, Poll, Post, Queue, Scenario, Transport

DEPTH = 16
"""Work requests that are in flight on one pair of queue pairs."""
MOST_SEGMENTS = 4
NUMBERS = 4
"""Objects of each kind that are there at once."""
WINDOW_TYPES = (1, 2)
REREG_FLAGS = 8
"""Combinations of the three IBV_REREG_MR_CHANGE_* flags, as numbers."""


class Verb(Enum):
    """What a step does. Its operands are an object of the kind of the first letter, and what the rest says."""

    ALLOC_PD = "alloc_pd"
    DEALLOC_PD = "dealloc_pd"
    ALLOC = "alloc"
    """ibv_alloc_null_mr on a PD"""
    FREE = "free"
    """ibv_dereg_mr of a null MR that no work request in flight names"""
    REG = "reg"
    """ibv_reg_mr, of memory that other MRs cover too"""
    DEREG = "dereg"
    REREG = "rereg"
    """ibv_rereg_mr of a null MR, which must be refused"""
    BIND = "bind"
    """a window of this type on a null MR, which must be refused, on a queue pair of its own"""
    CONNECT = "connect"
    """a pair of queue pairs of this kind, with CQs and, where the kind has one, an SRQ of their own"""
    DESTROY = "destroy"
    ERROR = "error"
    """both queue pairs to the error state: what is posted is flushed, and so is what will be"""
    RESET = "reset"
    """both queue pairs to the reset state, which forgets what is posted, and connected again"""
    RECV = "recv"
    """post the receives of one chain of work requests, whose null segments name this null MR"""
    SEND = "send"
    """post the work requests of all chains that are not posted yet"""
    WAIT = "wait"
    """wait for the completions of all that was sent"""


_OPERANDS = {
    Verb.ALLOC_PD: "p",
    Verb.DEALLOC_PD: "p",
    Verb.ALLOC: "np",
    Verb.FREE: "n",
    Verb.REG: "mp",
    Verb.DEREG: "m",
    Verb.REREG: "n#",
    Verb.BIND: "n#",
    Verb.CONNECT: "qpK",
    Verb.DESTROY: "q",
    Verb.ERROR: "q",
    Verb.RESET: "q",
    Verb.RECV: "qnS",
    Verb.SEND: "q",
    Verb.WAIT: "q",
}
"""A number with its letter before it or (#) without, the kind of a link (K), scenarios separated by slashes (S)."""


@dataclass(frozen=True)
class Step:
    """`number` is that of the object, `other` that of the PD or the null MR, the flags or the type of the window."""

    verb: Verb
    number: int
    other: int = 0
    kind: LinkKind | None = None
    scenarios: tuple[Scenario, ...] = ()

    def __str__(self) -> str:
        parts = [self.verb.value]
        numbers = iter((self.number, self.other))
        for letter in _OPERANDS[self.verb]:
            if letter == "K":
                parts.append(str(self.kind))
            elif letter == "S":
                parts.append("/".join(map(str, self.scenarios)))
            else:
                parts.append(f"{letter.replace('#', '')}{next(numbers)}")
        return ":".join(parts)

    @classmethod
    def parse(cls, text: str) -> Step:
        name, *fields = text.split(":")
        verb = Verb(name)
        letters = _OPERANDS[verb]
        if len(fields) != len(letters):
            raise ValueError(f"{name!r} has {len(letters)} operands, not {len(fields)}")
        step = cls(verb, _number(letters[0], fields[0]))
        for place, operand in enumerate(fields[1:], 1):
            letter = letters[place]
            if letter == "K":
                step = replace(step, kind=_kind(operand))
            elif letter == "S":
                step = replace(step, scenarios=tuple(map(Scenario.parse, operand.split("/"))))
            else:
                step = replace(step, other=_number(letter, operand))
        return step


def _number(letter: str, text: str) -> int:
    letter = letter.replace("#", "")
    digits = text[len(letter) :]
    if not text.startswith(letter) or not digits.isdecimal():
        raise ValueError(f"{text!r}: a number{f' behind {letter}' if letter else ''}, as in {letter}0")
    return int(digits)


def _kind(text: str) -> LinkKind:
    fields = text.split("-")
    if len(fields) != 4:
        raise ValueError(f"{text!r}: transport, queue, posting and polling API, separated by '-'")
    return LinkKind(Transport(fields[0]), Queue(fields[1]), Post(fields[2]), Poll(fields[3]))


@dataclass
class LinkState:
    """A pair of queue pairs. The chains that are not sent yet and those that are, each as its `recv` step."""

    pd: int
    kind: LinkKind
    waiting: list[Step] = field(default_factory=list)
    sent: list[Step] = field(default_factory=list)
    in_error: bool = False

    @property
    def in_flight(self) -> list[Step]:
        return self.sent + self.waiting

    @property
    def will_be_in_error(self) -> bool:
        return any(scenario.is_too_long for chain in self.in_flight for scenario in chain.scenarios)


@dataclass
class State:
    """What is there after some steps, by number: null MRs and ordinary MRs with their PD."""

    pds: set[int] = field(default_factory=lambda: {0})
    null_mrs: dict[int, int] = field(default_factory=dict)
    mrs: dict[int, int] = field(default_factory=dict)
    links: dict[int, LinkState] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        """Go on by one step. Raises ValueError for one that is not to be done here: the state is as it was."""
        if objection := self.objection(step):
            raise ValueError(f"{step}: {objection}")
        verb, number = step.verb, step.number
        if verb is Verb.ALLOC_PD:
            self.pds.add(number)
        elif verb is Verb.DEALLOC_PD:
            self.pds.remove(number)
        elif verb is Verb.ALLOC:
            self.null_mrs[number] = step.other
        elif verb is Verb.FREE:
            del self.null_mrs[number]
        elif verb is Verb.REG:
            self.mrs[number] = step.other
        elif verb is Verb.DEREG:
            del self.mrs[number]
        elif verb is Verb.CONNECT and step.kind:
            self.links[number] = LinkState(step.other, step.kind)
        elif verb is Verb.DESTROY:
            del self.links[number]
        elif verb in (Verb.ERROR, Verb.RESET, Verb.RECV, Verb.SEND, Verb.WAIT):
            self._take_traffic(self.links[number], step)

    def _take_traffic(self, link: LinkState, step: Step) -> None:
        if step.verb is Verb.RECV:
            link.waiting.append(step)
        elif step.verb is Verb.SEND:
            link.sent += link.waiting
            link.waiting = []
        elif step.verb is Verb.WAIT:
            link.in_error = link.in_error or link.will_be_in_error
            link.sent = []
        elif step.verb is Verb.ERROR:
            link.in_error = True
        else:
            link.waiting = []
            link.in_error = False

    def objection(self, step: Step) -> str | None:
        """Why a step is not to be done here; None if it is."""
        verb, number = step.verb, step.number
        there: dict[str, Iterable[int]] = {"p": self.pds, "n": self.null_mrs, "m": self.mrs, "q": self.links}
        letters = _OPERANDS[verb]
        makes = verb in (Verb.ALLOC_PD, Verb.ALLOC, Verb.REG, Verb.CONNECT)
        if (number in there[letters[0]]) is makes:
            return f"{letters[0]}{number} is {'there already' if makes else 'not there'}"
        if letters[1:2] in there and step.other not in there[letters[1]]:
            return f"{letters[1]}{step.other} is not there"
        if verb is Verb.DEALLOC_PD:
            links = (link.pd for link in self.links.values())
            return (
                "something is left on it" if number in {*self.null_mrs.values(), *self.mrs.values(), *links} else None
            )
        if verb is Verb.FREE:
            in_flight = (chain.other for link in self.links.values() for chain in link.in_flight)
            return "a work request in flight names it" if number in in_flight else None
        if verb is Verb.REREG:
            return None if step.other < REREG_FLAGS else f"flags are 0 to {REREG_FLAGS - 1}"
        if verb is Verb.BIND:
            return None if step.other in WINDOW_TYPES else "windows are of type 1 or 2"
        return self._objection_of_link(step) if letters[0] == "q" and not makes else None

    def _objection_of_link(self, step: Step) -> str | None:
        verb, link = step.verb, self.links[step.number]
        shared = link.kind.queue is Queue.SRQ
        if verb is Verb.RECV:
            return self._objection_of_chain(step, link, shared)
        if verb is Verb.SEND:
            return None if link.waiting else "nothing is to be sent"
        if verb is Verb.WAIT:
            return None if link.sent else "nothing was sent"
        if link.sent:
            return "what was sent is to be waited for"
        if verb is Verb.ERROR:
            if link.in_error:
                return "it is in error already"
            return "the receives of an SRQ are not flushed" if shared and link.waiting else None
        if verb is Verb.RESET and link.waiting:
            if shared:
                return "the receives of an SRQ are not forgotten"
            return "what is flushed is to be waited for" if link.in_error else None
        return None

    def _objection_of_chain(self, step: Step, link: LinkState, shared: bool) -> str | None:
        if self.null_mrs[step.other] != link.pd:
            return f"n{step.other} is of another PD"
        if not step.scenarios or any(scenario.link != link.kind for scenario in step.scenarios):
            return f"scenarios are for a link {link.kind}"
        if max(len(each) for one in step.scenarios for each in (one.gather, one.scatter)) > MOST_SEGMENTS:
            return f"lists have {MOST_SEGMENTS} segments at most"
        if any(each.other or each.address not in ADDRESSES for one in step.scenarios for each in one.segments):
            return f"null segments are of n{step.other}, at {', '.join(each.value for each in ADDRESSES)}"
        if sum(len(chain.scenarios) for chain in (*link.in_flight, step)) > DEPTH:
            return f"{DEPTH} are in flight at most"
        if link.will_be_in_error or any(scenario.is_too_long for scenario in step.scenarios[:-1]):
            return "what ends in error comes last"
        return "nobody takes receives from an SRQ in error" if shared and link.in_error else None

    def other_pd(self, pd: int) -> int:
        """A PD other than this one, if there is one."""
        return min(self.pds - {pd}, default=pd)

    def ending(self) -> Iterator[Step]:
        """The steps after which nothing is left but p0: what was sent is waited for, and the rest is forgotten."""
        for number, link in self.links.items():
            if link.sent:
                yield Step(Verb.WAIT, number)
            yield Step(Verb.DESTROY, number)
        yield from (Step(Verb.FREE, number) for number in self.null_mrs)
        yield from (Step(Verb.DEREG, number) for number in self.mrs)
        yield from (Step(Verb.DEALLOC_PD, number) for number in sorted(self.pds))


@dataclass(frozen=True)
class Sequence:
    """Steps, each of which can be done where it stands; or ValueError."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        state = State()
        for step in self.steps:
            state.take(step)

    def __str__(self) -> str:
        """The sequence's id, which `parse` reads back."""
        return ",".join(map(str, self.steps))

    @classmethod
    def parse(cls, text: str) -> Sequence:
        """The sequence with this id; raises ValueError for any other text."""
        return cls(tuple(map(Step.parse, text.split(","))))

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Sequence:
        """Those of the steps that can be done, each after those before it."""
        state = State()
        kept = []
        for step in steps:
            if not state.objection(step):
                state.take(step)
                kept.append(step)
        return cls(tuple(kept))

    @cached_property
    def ending(self) -> tuple[Step, ...]:
        """What is done after the last step."""
        state = State()
        for step in self.steps:
            state.take(step)
        return tuple(state.ending())

    def in_lines(self) -> str:
        """A numbered step a line, for people."""
        return "\n".join(f"{number:3}. {step}" for number, step in enumerate(self.steps, 1))

    def has(self, *verbs: Verb) -> bool:
        return any(step.verb in verbs for step in self.steps)


def parse(text: str) -> Scenario | Sequence:
    """The scenario or the sequence with this id; raises ValueError for any other text."""
    return Sequence.parse(text) if is_sequence(text) else Scenario.parse(text)


def is_sequence(id: str) -> bool:
    """Is it the id of a sequence, and not of a scenario?"""
    return ":" in id
