# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Sequences that Hypothesis draws, judged, and one that fails reduced to the steps that it needs.

A sequence is run once, and judged for whatever it shows. What is wrong is a matter of the clause that speaks of it, by
what the smallest sequence has in it: where a null MR fails only after another was freed, that is free/leaves-others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hypothesis import Phase, given, seed
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from conformance.capabilities import Capabilities
from conformance.judging import UNRELIABLE_TRIES, Bench
from conformance.outcome import Aspect, describe
from conformance.scenarios import (
    ATOMIC_LENGTH,
    GRH_LENGTH,
    TRANSPORT_OPERATIONS,
    LinkKind,
    Operation,
    Poll,
    Post,
    Queue,
    Scenario,
    Segment,
    Side,
    Transport,
    mem,
    null,
)
from conformance.search import on_a_device
from conformance.sequences import NUMBERS, REREG_FLAGS, WINDOW_TYPES, Sequence, State, Step, Verb, is_sequence
from conformance.verbs.pair import Pair
from conformance.verbs.player import Wrong, play
from conformance.verdicts import BrokenError, Failure, LackingError
from conformance.watch import watch

FEWEST, MOST = 12, 40
"""Choices of a drawn sequence. Some come to nothing, as there is nothing to free or to wait for then."""
CHAIN = 3
"""Work requests of a chain."""
VERBS = (
    *(3 * [Verb.WAIT]),
    *(3 * [Verb.SEND]),
    *(4 * [Verb.RECV]),
    *(2 * [Verb.CONNECT]),
    *(2 * [Verb.ALLOC]),
    *(2 * [Verb.FREE]),
    Verb.ERROR,
    Verb.RESET,
    Verb.DESTROY,
    Verb.REREG,
    Verb.BIND,
    Verb.REG,
    Verb.DEREG,
    Verb.ALLOC_PD,
    Verb.DEALLOC_PD,
)
"""From which steps are drawn."""

_drawn: dict[object, tuple[Sequence, ...]] = {}
"""What was drawn where nothing failed: other targets that sequences are made of the same on are tried with the same."""


def clause_of(sequence: Sequence, wrong: Wrong) -> str:
    """The clause that a sequence breaks of which no step can be left out."""
    of_verbs = {
        Verb.ALLOC: "allocate/coexist",
        Verb.FREE: "free/succeeds",
        Verb.REREG: "misuse/rereg-refused",
        Verb.BIND: "misuse/bind-refused",
        Verb.DEALLOC_PD: "free/releases-pd",
    }
    if wrong.step.verb in of_verbs:
        return of_verbs[wrong.step.verb]
    if sequence.has(Verb.REREG):
        return "misuse/rereg-harmless"
    if sequence.has(Verb.BIND):
        return "misuse/bind-harmless"
    if sequence.has(Verb.FREE) or wrong.run is None:
        return "free/leaves-others"
    if sum(step.verb is Verb.CONNECT for step in sequence.steps) > 1:
        return "allocate/many-queue-pairs"
    aspect = wrong.run.findings[0].aspect
    if aspect is Aspect.ACCEPTED:
        return "allocate/lkey-valid"
    if aspect is Aspect.COMPLETION:
        return "discard/completion"
    if aspect is Aspect.PAYLOAD and any(segment.null for segment in wrong.run.scenario.gather):
        return "read/zeros"
    return "discard/mixed-scatter" if aspect is Aspect.PAYLOAD else "discard/leaves-memory"


@dataclass(frozen=True)
class Found:
    """The clause that a sequence breaks, and the proof."""

    clause: str
    failure: Failure


@dataclass(frozen=True)
class SequenceSearch:
    """How many sequences to try, from which seed; or those that were named, in place of any drawn."""

    examples: int
    seed: int
    named: tuple[Sequence, ...] = ()

    def run(self, bench: Bench) -> list[Found]:
        """Try sequences. Of those drawn, the first that fails, reduced; of those named, each.

        Raises LackingError if the device has nothing to draw from, or if one ended a process before; BrokenError if one
        fails on ordinary memory, too.
        """
        for (target, id), death in watch.deadly.items():
            if target == bench.target.id and is_sequence(id):
                raise LackingError(f"a sequence ended a process before, and no other is tried: {id}\n{death}")
        if self.named:
            tried = ((sequence, wrong_of(bench, sequence)) for sequence in self.named)
            return [_found(bench, sequence, wrong) for sequence, wrong in tried if wrong]
        drawn = self._first_that_fails(bench)
        if drawn is None:
            return []
        sequence = smallest(drawn, lambda each: wrong_of(bench, each) is not None)
        wrong = wrong_of(bench, sequence)
        if wrong is None:
            sequence, wrong = drawn, wrong_of(bench, drawn)
        if wrong is None:
            text = f"{bench.where}\n{drawn.in_lines()}\nIt failed once, and not when it was run again."
            return [Found("allocate/lkey-valid", Failure(text, drawn))]
        return [_found(bench, sequence, wrong, f"found by --search-seed={self.seed}")]

    def _first_that_fails(self, bench: Bench) -> Sequence | None:
        kit = Kit.of(bench)
        key = *kit.scenarios.items(), kit.window_types, self.examples, self.seed
        if key in _drawn:
            return next((sequence for sequence in _drawn[key] if wrong_of(bench, sequence)), None)
        every: list[Sequence] = []
        failed: list[Sequence] = []

        @on_a_device(self.examples, Phase.generate)
        @seed(self.seed)
        @given(drawn(kit))
        def check(sequence: Sequence) -> None:
            every.append(sequence)
            if wrong_of(bench, sequence):
                failed.append(sequence)
                raise AssertionError

        try:
            check()
        except (AssertionError, Flaky):
            return failed[-1]
        _drawn[key] = tuple(every)
        return None


def wrong_of(bench: Bench, sequence: Sequence, ordinary: bool = False) -> Wrong | None:
    """What is wrong with a sequence, but for what an unreliable transport loses now and then."""
    wrong = None
    for _ in range(UNRELIABLE_TRIES):
        wrong = play(bench.target, sequence, bench.domain.patience, ordinary)
        if wrong is None or not wrong.may_be_lost:
            break
    return wrong


def _found(bench: Bench, sequence: Sequence, wrong: Wrong, how: str = "") -> Found:
    text = _text(bench, sequence, wrong)
    ordinary = wrong_of(bench, sequence, ordinary=True)
    if ordinary:
        raise BrokenError(f"the same sequence fails on ordinary memory too\n{ordinary.text}\nWith null MRs:\n{text}")
    lines = (text, f"sequence: {sequence}", "control: the same sequence on ordinary memory ends as it must", how)
    return Found(clause_of(sequence, wrong), Failure("\n".join(filter(None, lines)), sequence))


def _text(bench: Bench, sequence: Sequence, wrong: Wrong) -> str:
    lines = [bench.where, sequence.in_lines(), f"at the step {wrong.step}:"]
    run = wrong.run
    if run is None:
        return "\n".join((*lines, f"=> {wrong.text}"))
    lines.append(describe(run.scenario, run.layout, run.addresses))
    for side in Side:
        lines += [f"{side.value} completed: {wc}" for wc in run.outcome.completions[side]]
    return "\n".join((*lines, *(f"=> {finding.text}" for finding in run.findings)))


def smallest(sequence: Sequence, fails: Callable[[Sequence], bool]) -> Sequence:
    """A sequence that fails and of which no step, no work request and no number can be left out or made smaller."""
    while True:
        smaller = next((each for each in _smaller(sequence) if fails(each)), None)
        if smaller is None:
            return sequence
        sequence = smaller


def _smaller(sequence: Sequence) -> Iterator[Sequence]:
    """The sequence without one step, from the last; with one work request less, or with a flag less."""
    steps = sequence.steps
    for index in reversed(range(len(steps))):
        yield Sequence.of((*steps[:index], *steps[index + 1 :]))
    for index, step in enumerate(steps):
        for other in _simpler(step):
            changed = Sequence.of((*steps[:index], other, *steps[index + 1 :]))
            if len(changed.steps) == len(steps):
                yield changed


def _simpler(step: Step) -> Iterator[Step]:
    if len(step.scenarios) > 1:
        for index in range(len(step.scenarios)):
            yield replace(step, scenarios=(*step.scenarios[:index], *step.scenarios[index + 1 :]))
    if step.verb is Verb.REREG and step.other:
        yield replace(step, other=0)


# What is drawn


@dataclass(frozen=True)
class Kit:
    """What sequences are made of on one target: work requests that end as they must alone, by their kind of link."""

    scenarios: dict[LinkKind, tuple[Scenario, ...]]
    window_types: tuple[int, ...]

    @classmethod
    def of(cls, bench: Bench) -> Kit:
        """Each work request is tried alone, on a context of its own, after its control on ordinary memory: what is
        wrong there other checks judge. Raises LackingError or BrokenError if none is left.
        """
        fit: dict[LinkKind, list[Scenario]] = {}
        reasons: list[BrokenError | LackingError] = []
        alone = Pair(bench.target)
        alone.domain.patience = bench.domain.patience
        try:
            for scenario in work_requests(bench.able):
                try:
                    bench.control(scenario)
                    runs = (alone.run(scenario) for _ in range(UNRELIABLE_TRIES))
                    if any(not run.findings for run in runs):
                        fit.setdefault(scenario.link, []).append(scenario)
                    else:
                        reasons.append(LackingError(f"{scenario} is wrong alone, which other checks judge"))
                except (BrokenError, LackingError) as reason:
                    reasons.append(reason)
                except Failure as failure:  # it ended a process before
                    reasons.append(LackingError(str(failure)))
        finally:
            alone.close()
        if not fit:
            raise reasons[0].with_traceback(None)
        limits = bench.target.device.limits
        has = {1: limits.mw_type_1, 2: limits.mw_type_2}
        kinds = {kind: tuple(of) for kind, of in fit.items()}
        return cls(kinds, tuple(each for each in WINDOW_TYPES if has[each]))


KINDS = (
    LinkKind(Transport.RC, Queue.RQ, Post.POST_SEND, Poll.POLL_CQ),
    LinkKind(Transport.RC, Queue.SRQ, Post.WR_SET_SGE_LIST, Poll.CQ_EX),
    LinkKind(Transport.UD, Queue.RQ, Post.POST_SEND, Poll.POLL_CQ),
    LinkKind(Transport.UC, Queue.RQ, Post.WR_SET_SGE_LIST, Poll.POLL_CQ),
    LinkKind(Transport.XRC, Queue.SRQ, Post.POST_SEND, Poll.CQ_EX),
)
"""Each transport and queue once: what a history does differently on another API, the matrix is no help to find."""
LENGTH = 64
Segments = tuple[Segment, ...]


def work_requests(able: Capabilities) -> Iterator[Scenario]:
    """Of each kind and operation: from null segments, into null segments, and mixed. Of reliable kinds the last one is
    too long for its list, which ends in error.
    """
    for kind in [kind for kind in KINDS if kind.transport in able.transports]:
        for operation in TRANSPORT_OPERATIONS[kind.transport]:
            for gather, scatter in _lists(kind, operation):
                yield from _able(able, kind, operation, gather, scatter)
        if kind.transport in (Transport.RC, Transport.XRC):
            yield from _able(able, kind, Operation.SEND, (mem(LENGTH + 1),), (null(LENGTH),))


def _able(
    able: Capabilities, kind: LinkKind, operation: Operation, gather: Segments, scatter: Segments
) -> Iterator[Scenario]:
    scenario = Scenario(kind.transport, operation, gather, scatter, kind.queue, kind.post, kind.poll)
    if not able.lacks(scenario):
        yield scenario


def _lists(kind: LinkKind, operation: Operation) -> Iterator[tuple[Segments, Segments]]:
    header = (mem(GRH_LENGTH),) if kind.transport is Transport.UD else ()
    if operation.is_atomic:
        yield (), (null(ATOMIC_LENGTH),)
    elif operation is Operation.RDMA_READ:
        yield (), (null(LENGTH),)
        yield (), (null(8), mem(LENGTH))
    elif operation is Operation.RDMA_WRITE:
        yield (null(LENGTH),), ()
        yield (mem(8), null(LENGTH)), ()
    elif operation is Operation.RDMA_WRITE_WITH_IMM:
        yield (null(LENGTH),), (null(8),)
    else:
        yield (null(LENGTH),), (*header, mem(LENGTH))
        yield (mem(LENGTH),), (*header, null(LENGTH))
        yield (mem(8), null(LENGTH)), (*header, mem(8 + LENGTH))
        yield (mem(LENGTH + 8),), (*header, null(LENGTH), mem(8))


@st.composite
def drawn(draw: st.DrawFn, kit: Kit) -> Sequence:
    """Some null MRs and queue pairs, and steps of all kinds. At the end all is sent, and each null MR is used again."""
    state = State()
    steps: list[Step] = []

    def take(step: Step) -> None:
        if not state.objection(step):
            state.take(step)
            steps.append(step)

    for number in range(2):
        take(Step(Verb.ALLOC, number))
        take(Step(Verb.CONNECT, number, kind=draw(st.sampled_from(list(kit.scenarios)))))
    for _ in range(draw(st.integers(FEWEST, MOST))):
        choice = list(_choice(kit, state, draw(st.sampled_from(VERBS))))
        if not choice:
            continue
        step = draw(st.sampled_from(choice))
        if step.verb is Verb.CONNECT:
            step = replace(step, kind=draw(st.sampled_from(list(kit.scenarios))))
        elif step.verb is Verb.RECV:
            of_kind = kit.scenarios[state.links[step.number].kind]
            chain = draw(st.lists(st.sampled_from(of_kind), min_size=1, max_size=CHAIN))
            chain.sort(key=lambda scenario: scenario.is_too_long)  # what ends in error comes last
            step = replace(step, scenarios=tuple(chain))
        take(step)
    for number, link in list(state.links.items()):
        take(Step(Verb.SEND, number))
        take(Step(Verb.WAIT, number))
        for null_mr in state.null_mrs:
            take(Step(Verb.RECV, number, null_mr, scenarios=kit.scenarios[link.kind][:CHAIN]))
        take(Step(Verb.SEND, number))
        take(Step(Verb.WAIT, number))
    return Sequence(tuple(steps))


def _choice(kit: Kit, state: State, verb: Verb) -> Iterator[Step]:
    """The steps of this kind that can be done, with any kind of link and one work request; of PDs, p0 most often."""
    pds = (*(len(state.pds) * [0]), *sorted(state.pds))
    operands: dict[Verb, tuple[int, ...]] = {
        Verb.ALLOC: pds,
        Verb.REG: pds,
        Verb.CONNECT: pds,
        Verb.REREG: tuple(range(REREG_FLAGS)),
        Verb.BIND: kit.window_types,
        Verb.RECV: tuple(state.null_mrs),
    }
    for number in range(NUMBERS):
        link = state.links.get(number)
        scenarios = kit.scenarios[link.kind][:1] if link and verb is Verb.RECV else ()
        for operand in operands.get(verb, (0,)):
            step = Step(verb, number, operand, scenarios=scenarios)
            if not state.objection(step):
                yield step
