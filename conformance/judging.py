# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Judging scenarios on a target: the control first, then the scenario, then the proof of what is wrong."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from conformance.capabilities import Capabilities
from conformance.inventory import Target
from conformance.model import SUCCESS
from conformance.origin import origin
from conformance.outcome import Aspect, Finding, Run, describe
from conformance.scenarios import (
    GRH_LENGTH,
    LONGEST_CONTROL,
    LinkKind,
    Operation,
    Ordinary,
    Scenario,
    Side,
    Transport,
    mem,
    plain,
)
from conformance.traffic import FULL_QUEUE, Batch
from conformance.verbs import history
from conformance.verbs.end import End
from conformance.verbs.executor import Job
from conformance.verbs.null_mr import NullMR
from conformance.verbs.pair import Pair
from conformance.verdicts import BrokenError, Failure, LackingError

EDGES = (32, 64)
"""Bytes up to which some devices carry the data of a message in its completion. Above these, the MTU is an edge."""
UNRELIABLE_TRIES = 3
MOST_FAILURES = 16
"""Batches of one check, or one in 32 of many: enough to see what they have in common, and a run on a device that
answers nothing ends."""
REFUSED_REMOTELY = frozenset(
    {"IBV_WC_REM_ACCESS_ERR", "IBV_WC_REM_OP_ERR", "IBV_WC_REM_INV_REQ_ERR", "IBV_WC_REM_INV_RD_REQ_ERR"}
)
"""How a requester learns that its rkey was refused. IBTA 9.7.4.1.7 has the first; devices differ."""


def control_of(scenario: Scenario, able: Capabilities) -> Scenario:
    """What must pass before a scenario says anything: one work request on ordinary memory on its kind of link, of its
    operation and of its class of size, whose longest message that is.
    """
    edges = (*EDGES, able.mtu, able.mtu + 1)
    length = min(next((edge for edge in edges if scenario.length <= edge), edges[-1]), able.max_msg_sz)
    control = plain(scenario.link, scenario.operation, length)
    return control if scenario.ordinary is control.ordinary else replace(control, ordinary=scenario.ordinary)


CONTROL = Scenario(Transport.RC, Operation.SEND, (mem(64),), (mem(64),))
"""Passes on every device whose queue pairs ibv_modify_qp(3) connects."""
DATAGRAM_CONTROL = Scenario(Transport.UD, Operation.SEND, (mem(64),), (mem(GRH_LENGTH + 64),))
"""Passes on those that have UD alone."""


def _on_ordinary_memory(batch: Batch) -> Batch:
    return replace(batch, scenarios=tuple(scenario.on_ordinary_memory() for scenario in batch.scenarios))


def _first_of(failures: list[Failure], untried: int) -> Failure:
    """The first failure, which names the scenarios of the others, and how many batches behind them were not tried."""
    first, *others = failures
    if not others:
        return first
    names = "\n".join(f"  {failure.scenario}" for failure in others)
    end = f"\nand no more were tried: {untried} are left" if untried else ""
    return Failure(f"{first}\nthese fail too:\n{names}{end}", first.scenario, first.shown_by_scenario, first.aspects)


def _up_to_first_error(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Those that say something of themselves: one that does not end as it must flushes those behind it on its link."""
    error = next((place for place, run in enumerate(runs) if run.about()), len(runs))
    return runs[: error + 1]


def _place(run: Run, at_once: tuple[Run, ...]) -> str:
    """What the others are to one of several."""
    if len(at_once) <= FULL_QUEUE:
        return "in flight at the same time"
    place = next(place for place, each in enumerate(at_once) if each is run)
    return f"number {place} (from 0) on new queue pairs, {FULL_QUEUE} at a time; the others"


def _received(run: Run) -> Iterator[Finding]:
    """That the responder received what was to be refused."""
    for wc in run.outcome.completions[Side.RESPONDER]:
        if wc.status in SUCCESS:
            yield Finding(Aspect.COMPLETION, f"responder: completed with {wc}, expected none")


class Bench(Pair):
    """A target whose traffic is judged. One that is `control_only` runs everything on ordinary memory."""

    def __init__(
        self,
        target: Target,
        context: Any = None,
        control_only: bool = False,
        parent: Any = None,
        imported: int | None = None,
    ) -> None:
        """`context`, `parent`, `imported`: as in verbs.end.Domain, which says what is raised."""
        super().__init__(target, context, parent, imported)
        self.control_only = control_only
        self._controls: dict[tuple[Scenario, Side], BrokenError | LackingError | None] = {}
        self._unusable: dict[tuple[Transport, Operation, Ordinary], LackingError] = {}
        """kinds of memory whose control does not pass"""
        self._right: set[Batch] = set()
        """batches that were right in every respect"""

    def sibling(self) -> Bench:
        """Another bench with a PD of its own on the same context."""
        return Bench(self.target, self.context)

    def on_parent_domain(self) -> Bench:
        """Another bench with a parent domain of this one's PD in place of a PD. Raises LackingError."""
        return Bench(self.target, self.context, parent=self.pd)

    def on_imported_pd(self) -> Bench:
        """Another bench on this one's PD, imported with its context. Raises LackingError."""
        return Bench(self.target, self.context, imported=self.pd.handle)

    def control(self, *scenarios: Scenario) -> None:
        """Drive what these scenarios use with ordinary memory, once for each kind of link, operation and class of size.

        Raises BrokenError if that does not pass, UnsupportedError if the device has no such link.
        """
        for scenario in dict.fromkeys(scenarios):
            self.face(scenario, otherwise=Side.RESPONDER)
            key = control_of(scenario, self.able), self.near
            if key not in self._controls:
                self._controls[key] = self._try_control(key[0])
            problem = self._controls[key]
            if problem is not None:
                raise problem.with_traceback(None)  # it would grow with each check that raises it again

    def _try_control(self, scenario: Scenario) -> BrokenError | LackingError | None:
        special = (scenario.transport, scenario.operation, scenario.ordinary)
        if special in self._unusable:
            return self._unusable[special]
        try:
            (run,) = self._run_till_arrival(Batch((scenario,)))
        except (BrokenError, LackingError) as problem:
            return problem
        if not run.findings:
            return None
        if scenario.ordinary is not Ordinary.PLAIN:
            self._unusable[special] = self._lacks_memory(run)
            return self._unusable[special]
        text = self.text(run, run.findings)
        return BrokenError(f"the control, ordinary memory only, does not pass\n{text}", scenario)

    def _lacks_memory(self, run: Run) -> LackingError:
        """What of a kind of memory that not all devices have does not pass: that is no matter of null MRs."""
        scenario = run.scenario
        what = f"{scenario.transport.name} {scenario.operation.name}"
        words = f"{self.target.id} does no {what} on {scenario.ordinary.words}"
        return LackingError(f"{words}, as {scenario} shows: {run.findings[0].text}")

    def has_link(self, kind: LinkKind) -> bool:
        """Does the device have this kind of link? One that only cannot be made now is one that it has."""
        try:
            self.link(kind)
        except LackingError:
            return False
        except BrokenError:
            pass
        return True

    def check(self, scenario: Scenario, *aspects: Aspect, null_mr: NullMR | None = None) -> None:
        """Run a scenario and fail on what it shows about `aspects`; that it was accepted always counts.

        A bench that is `control_only` runs it on ordinary memory instead, and all aspects count.
        Raises Failure with the whole proof; BrokenError where the control does not pass; LackingError where the device
        has no such link or its limits are too small.
        """
        self.check_at_once([scenario], *aspects, null_mr=null_mr)

    def check_at_once(
        self,
        scenarios: Sequence[Scenario],
        *aspects: Aspect,
        queue_pairs: int = 1,
        chain: bool = False,
        null_mr: NullMR | None = None,
    ) -> None:
        """Run scenarios that are all in flight at once, as `run_at_once` does, and check each like `check`.

        It is the first that is wrong which fails; the control is the same scenarios at once on ordinary memory.
        """
        self._check_batch(Batch(tuple(scenarios), chain), *aspects, queue_pairs=queue_pairs, null_mr=null_mr)

    def _check_batch(
        self,
        batch: Batch,
        *aspects: Aspect,
        queue_pairs: int = 1,
        null_mr: NullMR | None = None,
        wanted: Callable[[Scenario], bool] | None = None,
    ) -> None:
        scenarios = batch.scenarios
        for scenario in set(scenarios):
            self._require(scenario)
        if not self.able.has_null_mr_for(*scenarios):
            raise LackingError(f"{self.target.id} has null MRs on one side only", "null MRs on both sides")
        self.control(*scenarios)
        if self.control_only:
            self._check_model(batch, queue_pairs)
            return
        lkey = null_mr.lkey if null_mr else None
        runs = self._run_till_arrival(batch, queue_pairs, lkey)
        if null_mr is None and queue_pairs == 1 and not any(run.findings for run in runs):
            self._right.add(batch)
        telling = _up_to_first_error(runs) if queue_pairs == 1 else runs
        judged = [run for run in telling if wanted is None or run.scenario not in scenarios or wanted(run.scenario)]
        run = next((run for run in judged if run.about(*aspects)), None)
        if run is None:
            return
        findings = run.about(*aspects)
        text = self.text(run, findings, runs)
        shown = frozenset(found.aspect for found in findings)
        culprit = run.scenario if run.scenario in scenarios else scenarios[-1]  # of what follows an unsignaled one
        if max(scenario.length for scenario in scenarios) > LONGEST_CONTROL:
            raise Failure(text, culprit, aspects=shown)
        controls = self._run_till_arrival(_on_ordinary_memory(batch), queue_pairs)
        control = next((control for control in controls if control.about(*aspects)), None)
        if control and control.scenario.ordinary is not Ordinary.PLAIN:
            raise self._lacks_memory(control)
        if control:
            broken = "the same work request fails on ordinary memory too"
            ordinary = self.text(control, control.findings, controls)
            raise BrokenError(f"{broken}\n{ordinary}\nWith the null MR:\n{text}", control.scenario)
        text = f"{text}\ncontrol: the same work request on ordinary memory ends as it must"
        alone = Batch((culprit,))
        if len(scenarios) > 1 and not any(run.about(*aspects) for run in self._run_till_arrival(alone, lkey=lkey)):
            text += "\nalone, the work request with the null MR ends as it must, too"
            raise Failure(text, culprit, shown_by_scenario=False, aspects=shown)
        raise Failure(text, culprit, aspects=shown)

    def check_each(
        self, batches: Sequence[Batch], wanted: Callable[[Scenario], bool], *aspects: Aspect
    ) -> dict[str, int]:
        """Check batch after batch, of each the scenarios that are `wanted`; what the device lacks for some, and for how
        many.

        A batch that was right in every respect is not run again when another check asks for other aspects of it; one
        that was not is, with its control.
        Raises Failure of the first batch that fails, which names the others; LackingError if none can be run; what
        `check` does.
        """
        failures: list[Failure] = []
        most = max(MOST_FAILURES, len(batches) // 32)
        lacking: Counter[str] = Counter()
        tried = untried = 0
        for place, batch in enumerate(batches):
            if batch in self._right:
                tried += 1
                continue
            try:
                self._check_batch(batch, *aspects, wanted=wanted)
                tried += 1
            except LackingError as lack:
                lacking[str(lack)] += 1
            except Failure as failure:
                failures.append(failure)
                if len(failures) == most:
                    untried = len(batches) - place - 1
                    break
        if failures:
            raise _first_of(failures, untried)
        if lacking and not tried:
            raise LackingError(next(iter(lacking)))
        return dict(lacking)

    def _run_till_arrival(self, batch: Batch, queue_pairs: int = 1, lkey: int | None = None) -> tuple[Run, ...]:
        """Run scenarios; anew where an unreliable transport lost a message, which it may do a few times."""
        runs = self._run_batch(batch, queue_pairs, lkey)
        for _ in range(UNRELIABLE_TRIES - 1):
            if not any(run.is_lost or (len(runs) > 1 and run.may_be_displaced) for run in runs):
                break
            runs = self._run_batch(batch, queue_pairs, lkey)
        return runs

    def _run_batch(self, batch: Batch, queue_pairs: int, lkey: int | None) -> tuple[Run, ...]:
        jobs = [Job(scenario, lkey) for scenario in batch.scenarios]
        if not batch.fresh:
            return self.run_at_once(jobs, queue_pairs, batch.chain)
        return self.run_from_start(jobs)

    def _require(self, scenario: Scenario) -> None:
        lacking = self.able.lacks(scenario)
        if lacking != self.able.lacks_link(scenario.link):  # what it lacks for that the link says itself
            raise LackingError(f"{self.target.id} {lacking}")

    def _check_model(self, batch: Batch, queue_pairs: int) -> None:
        """Does the prediction hold on ordinary memory? Raises Failure if not: the device or the model is wrong."""
        for scenario in batch.scenarios:
            if scenario.length > LONGEST_CONTROL:
                raise LackingError(f"a message of {scenario.length} bytes is too long for ordinary memory")
        runs = self._run_till_arrival(_on_ordinary_memory(batch), queue_pairs)
        for run in runs:
            if run.findings:
                text = "the model's prediction does not hold on ordinary memory"
                raise Failure(f"{text}\n{self.text(run, run.findings, runs)}", run.scenario)

    def text(self, run: Run, findings: tuple[Finding, ...], at_once: tuple[Run, ...] = ()) -> str:
        """The proof: what was posted, what completed, what is wrong. `at_once`: all that was in flight together."""
        lines = [self.where, describe(run.scenario, run.layout, run.addresses)]
        if run.keys:
            lines.append(f"keys:    {run.keys}")
        others = [other for other in at_once if other is not run]
        if others:
            lines.append(f"{_place(run, at_once)}: {', '.join(str(other.scenario) for other in others)}")
        for side in Side:
            lines += [f"{side.value} completed: {wc}" for wc in run.outcome.completions[side]]
        past = history.before([run.scenario, *(other.scenario for other in at_once)])
        earlier = [event for event in past if isinstance(event, Scenario)]
        for finding in findings:
            lines.append(f"=> {'; '.join(filter(None, (finding.text, origin(run, finding, earlier))))}")
        if past:
            lines.append(f"before it, latest first: {history.in_words(past)}")
        lines.append(f"scenario: {run.scenario}")
        return "\n".join(lines)

    def check_refused(self, scenario: Scenario, rkey: int, words: str, address: int | None = None) -> None:
        """Name remote memory by `rkey`, and fail unless the requester is told so, where the transport tells, no receive
        succeeds and all memory stays as it was.

        The remote address is that of live memory, or `address`. That nothing is let through proves nothing on a rig
        that has died: the same work request by the memory's own rkey must pass afterwards, on a link of its own.
        Raises BrokenError if it does not, or if the provider's refusal to post says nothing of the key.
        """
        self.face(scenario, otherwise=Side.RESPONDER)
        run = self.run(scenario, rkey=rkey, address=address, refused=REFUSED_REMOTELY)
        findings = (*_received(run), *(found for found in run.findings if found.aspect is not Aspect.COMPLETION))
        text = f"{words} ({rkey:#x}):\n{self.text(run, findings)}"
        if not run.was_let_through:
            self.require_ordinary(scenario, text)
        refusal = run.outcome.refusal
        if refusal is not None and refusal.error_code != errno.EINVAL:
            raise BrokenError(f"{text}\n=> that is no refusal of a key", scenario)
        if refusal is None and findings:
            raise Failure(text, scenario, shown_by_scenario=False)

    def require_ordinary(self, scenario: Scenario, before: str) -> None:
        """Raises BrokenError, with what was seen `before`, if this work request on ordinary memory does not pass."""
        try:
            (run,) = self._run_till_arrival(_on_ordinary_memory(Batch((scenario,))))
        except BrokenError as broken:
            raise BrokenError(f"{broken}\nBefore that:\n{before}", scenario) from None
        if run.findings:
            text = f"ordinary memory does not pass any more\n{self.text(run, run.findings)}"
            raise BrokenError(f"{text}\nBefore that:\n{before}", scenario)

    @property
    def simplest(self) -> Scenario | None:
        """What passes on every device of this transport type; None where the suite can connect no queue pair of it."""
        simplest = (CONTROL, DATAGRAM_CONTROL)
        return next((scenario for scenario in simplest if scenario.transport in self.able.connected), None)

    def require_alive(self, before: str) -> None:
        """Raises BrokenError, with what was seen `before`, if ordinary memory is of no use any more: it carries no data
        or, where nothing can be carried, cannot be registered.
        """
        if self.simplest is not None:
            self.require_ordinary(self.simplest, before)
            return
        try:
            End(self.domain).close()
        except BrokenError as broken:
            raise BrokenError(f"{broken}\nBefore that:\n{before}") from None

    def fail(self, text: str) -> NoReturn:
        """Raise Failure for a verb that failed, with this text; BrokenError where ordinary memory, on a context of its
        own, fails as well, as on a device that is gone.
        """
        proof = f"{self.where}\n=> {text}"
        fresh = Bench(self.target)
        try:
            fresh.require_alive(proof)
        finally:
            fresh.close()
        raise Failure(proof)
