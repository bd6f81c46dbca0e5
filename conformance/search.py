# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Random search: Hypothesis draws scenarios within a target's limits and shrinks one that fails to the smallest."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from conformance.capabilities import Capabilities, capabilities
from conformance.matrix import sizes
from conformance.outcome import Aspect
from conformance.scenarios import (
    ADDRESSES,
    ATOMIC_LENGTH,
    GRH_LENGTH,
    INLINE_LENGTH,
    TRANSPORT_OPERATIONS,
    Address,
    LinkKind,
    Operation,
    Poll,
    Post,
    Queue,
    Scenario,
    Segment,
    Signal,
    Transport,
    Wait,
    mem,
    total,
)
from conformance.verdicts import BrokenError, Failure, LackingError
from conformance.watch import DeadlyError

if TYPE_CHECKING:
    from conformance.judging import Bench

LONGEST = 1 << 17
"""Bytes of one segment; the matrix has longer ones."""
MOST_BROKEN = 8
"""Work requests that are BROKEN, and none before that is not: there is no use in trying more."""

MANNERS = tuple(product(Signal, Wait, (False, True)))
"""How it is signaled, how it is waited for and whether it is solicited, the plainest first."""

Draw = Callable[[Capabilities, Sequence[LinkKind]], st.SearchStrategy[Scenario]]

_drawn: dict[object, tuple[Scenario, ...]] = {}
"""What searches have drawn in which nothing failed: other targets that can do the same are tried with the same."""


def on_a_device(examples: int, *phases: Phase) -> settings:
    """How Hypothesis draws what a device is tried with: from the seed alone, for as long as the device takes."""
    return settings(
        max_examples=examples,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True)
class Search:
    """How long to search, from which seed, and which scenarios to pass over because a waiver names them."""

    examples: int
    seed: int
    is_known: Callable[[Scenario], bool]
    tell: Callable[[str], None]
    """is told what was left out"""

    def run(self, bench: "Bench", draw: Draw, *aspects: Aspect) -> None:
        """Check scenarios that `draw` makes. Raises the Failure of the smallest that fails; LackingError if the
        target has no kind of link at all, or none that is not known. A work request that ends the process is made
        simpler in the processes that come after it. What does not pass on ordinary memory is left
        out; BrokenError if nothing is left, or if what did pass does not any more.
        """
        able = capabilities(bench.target)
        kinds = tuple(kind for kind in link_kinds(able) if bench.has_link(kind))
        if not kinds:
            raise LackingError(f"{bench.target.device.name} has no queue pair that can be connected")

        last: list[Failure] = []
        passed: list[Scenario] = []
        broken: dict[Scenario, BrokenError] = {}
        lacking: list[LackingError] = []
        deadly: list[DeadlyError] = []

        def check(scenario: Scenario) -> None:
            if deadly or self.is_known(scenario) or scenario in broken or (len(broken) >= MOST_BROKEN and not passed):
                return
            try:
                bench.check(scenario, *aspects)
                if scenario.length:  # what moves no byte says nothing of memory
                    passed.append(scenario)
            except BrokenError as error:
                broken[scenario] = error
            except LackingError as reason:  # a queue for long lists that cannot be had
                lacking.append(reason)
            except DeadlyError as error:
                if not last:  # or else it is simpler than what fails, but fails in another way
                    deadly.append(error)
            except Failure as failure:
                last.append(Failure(f"{failure}\nfound by --search-seed={self.seed}", failure.scenario))
                raise last[-1] from None

        drawn: list[Scenario] = []

        @on_a_device(self.examples, Phase.generate, Phase.shrink)
        @seed(self.seed)
        @given(draw(able, kinds))
        def search(scenario: Scenario) -> None:
            drawn.append(scenario)
            check(scenario)

        key = draw, able, kinds, self.examples, self.seed
        try:
            for scenario in _drawn.get(key, ()):
                check(scenario)
            if key not in _drawn:
                search()
                _drawn[key] = tuple(drawn)
        except Flaky:
            raise Failure(f"{last[-1]}\nIt was seen once, and not when it was run again.", last[-1].scenario) from None
        except Failure:
            if _drawn.pop(key, None):  # what fails was drawn for another target, and is not yet the smallest
                with suppress(BrokenError, LackingError):
                    self.run(bench, draw, *aspects)
            raise
        if deadly:
            raise self._simplest(bench, deadly[0], aspects)
        if broken:
            self._leave_out(bench, passed, broken)
        elif not passed:
            raise lacking[0] if lacking else LackingError("waivers cover every work request that was drawn")

    def _simplest(self, bench: "Bench", deadly: DeadlyError, aspects: Sequence[Aspect]) -> Failure:
        """The Failure of the first variant of a deadly work request, from the simplest, that is deadly too.

        One that proves to be ends this process. The one in its place, which knows it then, comes here again.
        """
        assert isinstance(deadly.scenario, Scenario)
        found = deadly
        for variant in simpler(deadly.scenario, bench.able):
            try:
                bench.check(variant, *aspects)
            except DeadlyError as error:
                found = error
                break
            except (Failure, BrokenError, LackingError):
                continue
        return Failure(f"{found}\nfound by --search-seed={self.seed}", found.scenario)

    def _leave_out(self, bench: "Bench", passed: list[Scenario], broken: dict[Scenario, BrokenError]) -> None:
        """Say what a search left out, unless it is the rig that died, and not some work requests that are broken."""
        first = next(iter(broken.values()))
        if not passed:
            raise first.with_traceback(None)
        bench.check(passed[0])
        self.tell(f"left out {len(broken)} of {len(passed) + len(broken)} work requests, which are BROKEN; {first}")


def simpler(scenario: Scenario, able: Capabilities) -> Iterator[Scenario]:
    """Variants of a work request that the device can run, simplest first: one null segment in place of all, a segment
    less, the plainest API.
    """
    apis = dict.fromkeys([(Post.POST_SEND, Poll.POLL_CQ), (scenario.post, scenario.poll)])
    lists = dict.fromkeys((*_alone(scenario), *_one_less(scenario), (scenario.gather, scenario.scatter)))
    for (gather, scatter), (post, poll) in itertools.product(lists, apis):
        with suppress(ValueError):
            variant = replace(scenario, gather=gather, scatter=scatter, post=post, poll=poll)
            if variant != scenario and not variant.is_too_long and able.lacks(variant) is None:
                yield variant


Lists = tuple[tuple[Segment, ...], tuple[Segment, ...]]
"""A gather and a scatter list."""


def _alone(scenario: Scenario) -> Iterator[Lists]:
    """Each null segment alone in its list, short ones first, and ordinary memory at the other end."""
    header = (mem(GRH_LENGTH),) if scenario.transport is Transport.UD else ()
    nulls = [(False, each) for each in scenario.gather if each.null] + [
        (True, each) for each in scenario.scatter if each.null
    ]
    for length in (1, 8, 32, 64, *sorted(segment.length for _, segment in nulls)):
        for in_scatter, segment in nulls:
            null, ordinary = (replace(segment, length=length),), (mem(length),)
            gather = ordinary if in_scatter else null
            scatter = (*header, *(null if in_scatter else ordinary))
            yield gather if scenario.gather else (), scatter if scenario.scatter else ()


def _one_less(scenario: Scenario) -> Iterator[Lists]:
    for index in range(len(scenario.gather)):
        yield scenario.gather[:index] + scenario.gather[index + 1 :], scenario.scatter
    for index in range(len(scenario.scatter)):
        yield scenario.gather, scenario.scatter[:index] + scenario.scatter[index + 1 :]


def link_kinds(able: Capabilities) -> list[LinkKind]:
    return [
        LinkKind(transport, queue, post, poll)
        for transport in able.transports
        for queue in able.queues
        if queue is Queue.SRQ or transport is not Transport.XRC
        for post in Post
        for poll in Poll
    ]


def lengths(able: Capabilities) -> st.SearchStrategy[int]:
    edges = [size for size in sizes(able.mtu) if size <= LONGEST]
    return st.integers(0 if able.zero_length else 1, 80) | st.sampled_from(edges) | st.integers(1, LONGEST)


@cache  # Hypothesis looks through each new strategy before it draws from it, which takes longer than that
def lists(able: Capabilities, most: int, null_share: bool = True) -> st.SearchStrategy[tuple[Segment, ...]]:
    """Lists of up to `most` segments, null at any address or ordinary (only ordinary without `null_share`)."""
    ordinary = st.builds(mem, lengths(able))
    # Live memory is where most can be seen to go wrong.
    addresses = st.just(Address.CANARY) | st.sampled_from(ADDRESSES)
    nulls = st.builds(Segment, st.just(True), lengths(able), addresses)
    segment = ordinary | nulls if null_share else ordinary
    few = st.lists(segment, min_size=1, max_size=min(4, most))
    many = st.lists(
        st.builds(lambda s: Segment(s.null, min(s.length, 64), s.address), segment), min_size=1, max_size=most
    )
    return st.one_of(few, many).map(tuple)


@st.composite
def _scenarios(
    draw: st.DrawFn,
    able: Capabilities,
    kinds: Sequence[LinkKind],
    wanted: Callable[[Operation], bool],
    null_gather: bool = True,
) -> Scenario:
    kind = draw(st.sampled_from([k for k in kinds if any(map(wanted, TRANSPORT_OPERATIONS[k.transport]))]))
    operation = draw(st.sampled_from(list(filter(wanted, able.operations(kind.transport)))))
    posted = 1 if kind.post is Post.WR_SET_SGE else able.max_sge
    received = able.most_received(kind.queue)
    gather: tuple[Segment, ...] = ()
    scatter: tuple[Segment, ...] = ()
    if operation.is_send or operation.is_write:
        gather = draw(lists(able, posted, null_gather))
        gather = _cut(gather, able.mtu if kind.transport is Transport.UD else able.max_msg_sz)
    if operation.is_atomic:
        scatter = (Segment(draw(st.booleans()), ATOMIC_LENGTH),)
    elif operation is Operation.RDMA_READ:
        scatter = _cut(draw(lists(able, min(posted, able.most_read))), able.max_msg_sz)
    elif operation is Operation.RDMA_WRITE_WITH_IMM:
        scatter = draw(lists(able, min(received, 4)))
    elif operation.is_send:
        header = GRH_LENGTH if kind.transport is Transport.UD else 0
        scatter = _stretch(draw(lists(able, received)), total(gather) + header)
    may_be_inline = 0 < total(gather) <= INLINE_LENGTH and not any(each.null for each in gather)
    inline = may_be_inline and draw(st.booleans())
    signal, wait, solicited = draw(st.sampled_from(MANNERS))
    return Scenario(
        kind.transport,
        operation,
        gather,
        scatter,
        kind.queue,
        kind.post,
        kind.poll,
        signal,
        inline,
        solicited and operation.consumes_receive,
        wait if kind.poll is Poll.POLL_CQ else Wait.POLL,
    )


def _cut(segments: tuple[Segment, ...], most: int) -> tuple[Segment, ...]:
    """The list, shortened to at most `most` bytes in all and at least one segment."""
    kept: list[Segment] = []
    for segment in segments:
        length = min(segment.length, most - total(tuple(kept)))
        if length > 0 or not segment.length:
            kept.append(replace(segment, length=length))
    return tuple(kept)


def _stretch(segments: tuple[Segment, ...], least: int) -> tuple[Segment, ...]:
    """The list, its last segment long enough for `least` bytes in all."""
    *others, last = segments
    missing = least - total(tuple(others))
    return (*others, replace(last, length=max(last.length, missing)))


def _require_lists(able: Capabilities) -> None:
    if able.max_sge < 2:
        raise LackingError("lists of one segment cannot mix null and ordinary ones (max_sge 1)")


def gathering(able: Capabilities, kinds: Sequence[LinkKind]) -> st.SearchStrategy[Scenario]:
    """Operations that gather, from lists that can be mixed."""
    _require_lists(able)
    return _scenarios(able, kinds, lambda operation: operation.is_send or operation.is_write)


def scattering(able: Capabilities, kinds: Sequence[LinkKind]) -> st.SearchStrategy[Scenario]:
    """Operations that scatter, to lists that can be mixed; what is gathered is ordinary."""
    _require_lists(able)
    return _scenarios(able, kinds, lambda operation: operation is not Operation.RDMA_WRITE, False)


def anything(able: Capabilities, kinds: Sequence[LinkKind]) -> st.SearchStrategy[Scenario]:
    return _scenarios(able, kinds, lambda operation: True)
