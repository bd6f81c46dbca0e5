# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The bench of one target: its memory, its links, and the one executor of scenarios."""

import errno
import itertools
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property

from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.capabilities import capabilities
from conformance.inventory import Target
from conformance.model import Completion, Prediction, atomic_operands, predict
from conformance.outcome import Aspect, Finding, Outcome, Refusal, WorkCompletion, describe, judge
from conformance.scenarios import (
    ATOMIC_LENGTH,
    GRH_LENGTH,
    LONGEST_CONTROL,
    Address,
    LinkKind,
    Operation,
    Place,
    Plan,
    Post,
    Scenario,
    Side,
    Transport,
    mem,
    plan,
    scatter_side,
)
from conformance.verbs.closing import close
from conformance.verbs.completions import CompletionQueue
from conformance.verbs.link import Link, WorkRequest, addressed_by_lid
from conformance.verbs.memory import LOCAL_AND_REMOTE, Arena, Unmapped
from conformance.verbs.names import e
from conformance.verbs.null_mr import NullMR, errno_name
from conformance.verdicts import BrokenError, Failure, LackingError
from conformance.watch import limit, watch

CONTROL_LENGTH = 64
FEW_SGES = 4
SHORT_WAIT = 0.05
"""Seconds, if that is not too much of the timeout: one side's completion, once the other side is known to have
failed."""
ARRIVAL_WAIT = 0.2
"""Seconds, if that is not too much of the timeout: the data of a WRITE, of which no completion tells the responder."""
SUCCESS = "IBV_WC_SUCCESS"
UNRELIABLE_TRIES = 3
LOSSES_BEFORE_IMPATIENCE = 3
REFUSED_REMOTELY = frozenset(
    {"IBV_WC_REM_ACCESS_ERR", "IBV_WC_REM_OP_ERR", "IBV_WC_REM_INV_REQ_ERR", "IBV_WC_REM_INV_RD_REQ_ERR"}
)
"""How a requester learns that its rkey was refused. IBTA 9.7.4.1.7 has the first; devices differ."""


@dataclass(frozen=True)
class Run:
    """One scenario as it was run: everything that a failure text needs."""

    scenario: Scenario
    layout: Plan
    prediction: Prediction
    outcome: Outcome
    addresses: dict[int, int]
    """the address of each place of the layout, by id()"""

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return judge(self.scenario, self.layout, self.prediction, self.outcome)

    def about(self, *aspects: Aspect) -> tuple[Finding, ...]:
        """The findings about these aspects; that it was accepted always counts."""
        return tuple(found for found in self.findings if found.aspect in (Aspect.ACCEPTED, *aspects))

    @property
    def is_lost(self) -> bool:
        """Did an unreliable transport send the message, and nothing of it arrive?"""
        sent = self.outcome.completions[Side.REQUESTER]
        if self.scenario.transport not in (Transport.UC, Transport.UD) or [wc.status for wc in sent] != [SUCCESS]:
            return False
        if self.scenario.operation.consumes_receive:
            return not self.outcome.completions[Side.RESPONDER]
        return self.outcome.memory[Side.RESPONDER] == self.prediction.before[Side.RESPONDER]


def control_scenario(kind: LinkKind, operation: Operation) -> Scenario:
    """A work request on ordinary memory for an operation of a kind of link."""
    length = ATOMIC_LENGTH if operation.is_atomic else CONTROL_LENGTH
    header = GRH_LENGTH if kind.transport is Transport.UD else 0
    gather = (mem(length),) if operation.is_send or operation.is_write else ()
    scatter = () if operation is Operation.RDMA_WRITE else (mem(header + length),)
    return Scenario(kind.transport, operation, gather, scatter, kind.queue, kind.post, kind.poll)


class Bench:
    """Context, PD, arenas, null MR and links of one target.

    Links are made when first needed and kept; one that saw anything but the predicted outcome is closed, so that
    no check inherits another one's queue pair in error. Raises BrokenError if the target cannot be opened.
    """

    def __init__(self, target: Target, context: Context | None = None, control_only: bool = False) -> None:
        self.target = target
        self.control_only = control_only
        self.able = capabilities(target)
        self._owns_context = context is None
        self._links: dict[tuple[LinkKind, int], Link] = {}
        self._controls: dict[tuple[LinkKind, Operation], BrokenError | LackingError | None] = {}
        self._unmapped = Unmapped()
        self._wr_ids = itertools.count(1)
        self._null_mr: NullMR | None = None
        self._losses = 0
        try:
            self.context = context or Context(name=target.device.name)
            self.pd = PD(self.context)
            self.arenas = {side: Arena(self.pd, self.access) for side in Side}
        except PyverbsRDMAError as error:
            raise BrokenError(f"{target.id}: {self._hint(error)}") from error

    @property
    def access(self) -> int:
        """Access flags of the arenas: everything that the device has."""
        return int(LOCAL_AND_REMOTE if self.able.atomics else LOCAL_AND_REMOTE & ~e.IBV_ACCESS_REMOTE_ATOMIC)

    def _hint(self, error: PyverbsRDMAError) -> str:
        text = f"{error} ({errno_name(error.error_code)})"
        if error.error_code == errno.ENOMEM:
            text += "; is the memlock limit high enough (ulimit -l)? It counts registered memory and queues"
        return text

    @property
    def null_mr(self) -> NullMR:
        """The bench's own null MR, allocated when first asked for. Raises NullMRError."""
        if self._null_mr is None:
            self._null_mr = NullMR(self.pd)
        return self._null_mr

    def sibling(self) -> "Bench":
        """Another bench with a PD of its own on the same context."""
        return Bench(self.target, self.context)

    @property
    def where(self) -> str:
        """The target as failure texts show it."""
        port, gid = self.target.port, self.target.gid
        address = f"LID {port.lid:#x}"
        if gid is not None and not addressed_by_lid(self.target):
            address = f"GID {gid.index} ({gid.type}, {gid.gid})"
        settings = f", with {self.target.settings}" if self.target.settings else ""
        return f"{self.target.id} ({self.target.device.driver}), {address}, MTU {port.mtu}{settings}"

    def offered(self, transport: Transport) -> tuple[Operation, ...]:
        return self.able.operations(transport)

    def link(self, kind: LinkKind, sges: int = 1) -> Link:
        """A link of this kind that takes lists of `sges` segments. Raises LackingError, BrokenError."""
        capacity = min(FEW_SGES if sges <= FEW_SGES else self.able.max_sge, self.able.max_sge)
        key = (kind, capacity)
        if key not in self._links:
            try:
                self._links[key] = Link(self.context, self.pd, self.target, kind, capacity)
            except PyverbsRDMAError as error:
                text = f"{self.where}: no link {kind} of {capacity} SGEs: {self._hint(error)}"
                if capacity > FEW_SGES and error.error_code in (errno.EINVAL, errno.ENOMEM):
                    raise LackingError(text) from None  # max_sge is the device's bound, not that of every queue
                raise BrokenError(text) from error
        return self._links[key]

    def exchange_arenas(self) -> None:
        """Let the next requester use the memory, and so the addresses, that the last responder used."""
        self.arenas = {
            Side.REQUESTER: self.arenas[Side.RESPONDER],
            Side.RESPONDER: self.arenas[Side.REQUESTER],
        }

    def drop(self, link: Link) -> None:
        """Close a link that may be in error; the next of its kind is made anew."""
        self._links = {key: kept for key, kept in self._links.items() if kept is not link}
        link.close()

    def control(self, kind: LinkKind, *operations: Operation) -> None:
        """Drive this kind of link with ordinary memory, once for each of these operations (none: all on offer).

        Raises BrokenError if that does not pass, UnsupportedError if the device has no such link.
        """
        for operation in operations or self.offered(kind.transport):
            if (kind, operation) not in self._controls:
                self._controls[kind, operation] = self._try_control(control_scenario(kind, operation))
            problem = self._controls[kind, operation]
            if problem is not None:
                raise problem.with_traceback(None)  # it would grow with each check that raises it again

    def _try_control(self, scenario: Scenario) -> BrokenError | LackingError | None:
        try:
            run = self._run_till_arrival(scenario)
        except (BrokenError, LackingError) as problem:
            return problem
        if not run.findings:
            return None
        text = self.text(run, run.findings)
        return BrokenError(f"the control, ordinary memory only, does not pass\n{text}", scenario)

    def passes_controls(self, kind: LinkKind) -> bool:
        """Does the device have this kind of link, and do all its operations pass on ordinary memory?"""
        try:
            self.control(kind)
        except (BrokenError, LackingError):
            return False
        return True

    def check(self, scenario: Scenario, *aspects: Aspect, null_mr: NullMR | None = None) -> None:
        """Run a scenario and fail on what it shows about `aspects`; that it was accepted always counts.

        A bench that is `control_only` runs it on ordinary memory instead, and all aspects count.
        Raises Failure with the whole proof; BrokenError where the control does not pass; LackingError where the device
        has no such link or its limits are too small.
        """
        self._require(scenario)
        self.control(scenario.link, scenario.operation)
        if self.control_only:
            self._check_model(scenario.on_ordinary_memory())
            return
        run = self._run_till_arrival(scenario, null_mr.lkey if null_mr else None)
        findings = run.about(*aspects)
        if not findings:
            return
        text = self.text(run, findings)
        if scenario.length > LONGEST_CONTROL:
            raise Failure(text, scenario)
        control = self._run_till_arrival(scenario.on_ordinary_memory())
        if control.about(*aspects):
            broken = "the same work request fails on ordinary memory too"
            ordinary = self.text(control, control.findings)
            raise BrokenError(f"{broken}\n{ordinary}\nWith the null MR:\n{text}", control.scenario)
        raise Failure(f"{text}\ncontrol: the same work request on ordinary memory ends as it must", scenario)

    def _run_till_arrival(self, scenario: Scenario, lkey: int | None = None) -> Run:
        """Run a scenario; anew where an unreliable transport lost the message, which it may do a few times."""
        run = self.run(scenario, lkey)
        for _ in range(UNRELIABLE_TRIES - 1):
            if not run.is_lost:
                break
            run = self.run(scenario, lkey)
        return run

    def _require(self, scenario: Scenario) -> None:
        lacking = self.able.lacks(scenario)
        if lacking != self.able.lacks_link(scenario.link):  # what it lacks for that the link says itself
            raise LackingError(f"{self.target.id} {lacking}")

    def _check_model(self, scenario: Scenario) -> None:
        """Does the prediction hold on ordinary memory? Raises Failure if not: the device or the model is wrong."""
        if scenario.length > LONGEST_CONTROL:
            raise LackingError(f"a message of {scenario.length} bytes is too long for ordinary memory")
        run = self._run_till_arrival(scenario)
        if run.findings:
            text = "the model's prediction does not hold on ordinary memory"
            raise Failure(f"{text}\n{self.text(run, run.findings)}", scenario)

    def text(self, run: Run, findings: tuple[Finding, ...]) -> str:
        lines = [self.where, describe(run.scenario, run.layout, run.addresses)]
        for side in Side:
            lines += [f"{side.value} completed: {wc}" for wc in run.outcome.completions[side]]
        lines += [f"=> {finding.text}" for finding in findings]
        lines.append(f"scenario: {run.scenario}")
        return "\n".join(lines)

    def check_refused(
        self, scenario: Scenario, rkey: int, statuses: frozenset[str], words: str, address: int | None = None
    ) -> None:
        """Name remote memory by `rkey` and fail unless the requester is refused and all memory stays as it was.

        The remote address is that of live memory, or `address`.
        """
        run = self.run(scenario, rkey=rkey, address=address, refused=statuses)
        findings = tuple(found for found in run.findings if found.aspect is not Aspect.COMPLETION)
        if run.outcome.refusal is None and findings:
            raise Failure(f"{words} ({rkey:#x}):\n{self.text(run, findings)}", scenario, shown_by_scenario=False)

    def run(
        self,
        scenario: Scenario,
        lkey: int | None = None,
        rkey: int | None = None,
        address: int | None = None,
        refused: frozenset[str] | None = None,
    ) -> Run:
        """Carry a scenario out.

        `lkey`: the lkey of its null segments (None: that of the bench's null MR). `rkey`, `address`: name remote memory
        so (None: the responder's arena). `refused`: it must end with one of these statuses and change nothing.
        """
        layout = plan(scenario)
        prediction = predict(scenario, layout, sys.byteorder)
        if refused is not None:
            prediction = replace(prediction, after=prediction.before, requester=Completion(refused), responder=None)
        for side, arena in self.arenas.items():
            try:
                arena.reserve(layout.size(side))
            except PyverbsRDMAError as error:
                raise BrokenError(f"{self.where}: no MR of {layout.size(side)} bytes: {self._hint(error)}") from error
            arena.write(prediction.before[side])
        link = self.link(scenario.link, max(len(scenario.gather), len(scenario.scatter)))
        if lkey is None:
            lkey = self.null_mr.lkey if scenario.has_null else 0
        remote = self._remote(layout, rkey, address)
        with watch.over(limit(self.target.timeout), str(scenario)):
            outcome, addresses = self._execute(link, scenario, layout, prediction, lkey, remote)
        run = Run(scenario, layout, prediction, outcome, addresses)
        if scenario.is_too_long or refused is not None or run.findings:
            self.drop(link)
        return run

    def _execute(
        self,
        link: Link,
        scenario: Scenario,
        layout: Plan,
        prediction: Prediction,
        null_lkey: int,
        remote: tuple[int, int] | None,
    ) -> tuple[Outcome, dict[int, int]]:
        addresses, gather, scatter = self._sges(scenario, layout, null_lkey)
        wr_id = next(self._wr_ids)
        verb = "ibv_post_recv"
        try:
            if scenario.operation.consumes_receive:
                link.post_recv(wr_id, scatter)
            verb = "ibv_post_send" if scenario.post is Post.POST_SEND else "ibv_wr_complete"
            link.post(wr_id, self._work_request(scenario, layout, prediction, gather or scatter, remote))
        except PyverbsRDMAError as error:
            refusal = Refusal(verb, errno_name(error.error_code))
            return Outcome(wr_id, dict.fromkeys(Side, ()), self._memory(layout), refusal), addresses
        timeout = self.patience
        sent = self._collect(link.requester_cq, wr_id, timeout)
        received: tuple[WorkCompletion, ...] = ()
        if scenario.operation.consumes_receive:
            ended_well = bool(sent) and sent[0].status in prediction.requester.statuses
            due_in = timeout if ended_well else min(SHORT_WAIT, timeout / 100)
            received = self._collect(link.responder_cq, wr_id, due_in)
        else:
            received = tuple(link.responder_cq.poll())
        sent += tuple(link.requester_cq.poll())
        if scenario.operation is Operation.RDMA_WRITE:
            self._settle(layout, prediction)
        if not sent or (scenario.operation.consumes_receive and not received):
            self._losses += 1
        completions = {Side.REQUESTER: sent, Side.RESPONDER: received}
        return Outcome(wr_id, completions, self._memory(layout), waited=timeout), addresses

    def _settle(self, layout: Plan, prediction: Prediction) -> None:
        """Wait for data of which no completion tells the responder: a UC WRITE completes when it is sent (IBTA 9.8),
        and the acknowledgement of an RC WRITE does not say that the CPU sees it.
        """
        deadline = time.monotonic() + min(ARRIVAL_WAIT, self.patience / 20)
        while self._memory(layout) != prediction.after and time.monotonic() < deadline:
            time.sleep(0.001)

    @property
    def patience(self) -> float:
        """Seconds to wait for a completion; shorter once the target has lost several, so that a run still ends."""
        timeout = self.target.timeout
        return timeout if self._losses < LOSSES_BEFORE_IMPATIENCE else timeout / 10

    def _sges(
        self, scenario: Scenario, layout: Plan, null_lkey: int
    ) -> tuple[dict[int, int], tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]]:
        """The address of each place by id(), and both lists as (addr, length, lkey)."""
        receiver = scatter_side(scenario.operation)
        addresses = {id(place): self._address(place, Side.REQUESTER) for place in layout.gather}
        addresses |= {id(place): self._address(place, receiver) for place in layout.scatter}
        gather = tuple(self._sge(place, addresses, Side.REQUESTER, null_lkey) for place in layout.gather)
        scatter = tuple(self._sge(place, addresses, receiver, null_lkey) for place in layout.scatter)
        return addresses, gather, scatter

    def _address(self, place: Place, side: Side) -> int:
        length, where = place.segment.length, place.segment.address
        if place.region is not None:
            return self.arenas[side].address + place.region.offset
        if where is Address.ZERO:
            return 0
        if where is Address.TOP:
            return 2**64 - length
        return self._unmapped.address(length)

    def _sge(self, place: Place, addresses: dict[int, int], side: Side, null_lkey: int) -> tuple[int, int, int]:
        lkey = null_lkey if place.segment.null else self.arenas[side].lkey
        return addresses[id(place)], place.segment.length, lkey

    def _remote(self, layout: Plan, rkey: int | None, address: int | None) -> tuple[int, int] | None:
        """(address, rkey) of the remote memory, if the operation names any."""
        if layout.remote is None:
            return None
        responder = self.arenas[Side.RESPONDER]
        return (
            responder.address + layout.remote.offset if address is None else address,
            responder.rkey if rkey is None else rkey,
        )

    def _work_request(
        self,
        scenario: Scenario,
        layout: Plan,
        prediction: Prediction,
        sges: tuple[tuple[int, int, int], ...],
        remote: tuple[int, int] | None,
    ) -> WorkRequest:
        compare_add, swap = 0, 0
        if layout.remote is not None and scenario.operation.is_atomic:
            word = prediction.before[Side.RESPONDER][layout.remote.offset : layout.remote.end]
            operands = atomic_operands(scenario, int.from_bytes(word, sys.byteorder))
            compare_add, swap = operands.compare_add, operands.swap
        return WorkRequest(scenario.operation, sges, scenario.imm_data, remote, compare_add, swap)

    def _collect(self, cq: CompletionQueue, wr_id: int, timeout: float) -> tuple[WorkCompletion, ...]:
        """The completion of `wr_id`, if it comes in time, and after it whatever else came."""
        found = cq.wait(wr_id, timeout)
        found.sort(key=lambda wc: wc.wr_id != wr_id)
        return tuple(found)

    def _memory(self, layout: Plan) -> dict[Side, bytes]:
        return {side: arena.read(layout.size(side)) for side, arena in self.arenas.items()}

    def seconds(self, scenario: Scenario, count: int) -> float:
        """How long `count` repetitions of a scenario take, one after the other, completions included."""
        layout = plan(scenario)
        prediction = predict(scenario, layout, sys.byteorder)
        link = self.link(scenario.link, max(len(scenario.gather), len(scenario.scatter)))
        _, gather, scatter = self._sges(scenario, layout, self.null_mr.lkey if scenario.has_null else 0)
        remote = self._remote(layout, None, None)
        request = self._work_request(scenario, layout, prediction, gather or scatter, remote)
        start = time.perf_counter()
        for wr_id in itertools.islice(self._wr_ids, count):
            if scenario.operation.consumes_receive:
                link.post_recv(wr_id, scatter)
            link.post(wr_id, request)
            completions = link.requester_cq.wait(wr_id, self.patience)
            due = 1
            if scenario.operation.consumes_receive:
                completions += link.responder_cq.wait(wr_id, self.patience)
                due = 2
            if [wc.status for wc in completions] != due * [SUCCESS]:
                raise BrokenError(f"{self.where}: {scenario} does not go on: {completions or 'no completion'}")
        return time.perf_counter() - start

    def close_traffic(self) -> None:
        """Close links, arenas and the bench's own null MR: everything that stands on the PD."""
        for link in list(self._links.values()):
            self.drop(link)
        for resource in (self._null_mr, *self.arenas.values()):
            if resource is not None:
                close(resource)
        self._null_mr = None

    def dealloc_pd(self) -> str | None:
        """ibv_dealloc_pd; the error in words if it fails."""
        error = close(self.pd)
        return str(error) if error else None

    def close(self) -> None:
        """Free everything. What a faulty device refuses to free is left to the end of the process."""
        self.close_traffic()
        self.dealloc_pd()
        if self._owns_context:
            close(self.context)
