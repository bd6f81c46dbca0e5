# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a target can run, by what its device reports.

Transports and APIs that it lacks show only when a link is tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from conformance.inventory import Target
from conformance.scenarios import TRANSPORT_OPERATIONS, LinkKind, Operation, Ordinary, Queue, Scenario, Transport

_ONLY_UD = "has UD and a transport of its own"
CONNECTED = {
    "IWARP": ((), "is iWARP, where a connection manager connects queue pairs (rdma_cm(7)); this suite has none"),
    "USNIC": ((Transport.UD,), _ONLY_UD),
    "USNIC_UDP": ((Transport.UD,), _ONLY_UD),
    "UNSPECIFIED": ((Transport.UD,), f"{_ONLY_UD}, as EFA has SRD"),
}
"""By enum ibv_transport_type: those transports whose queue pairs ibv_modify_qp(3) alone connects, and why not others.
What is not here has all of them, if the device does."""

TWO_GIB_FOR_ZERO = frozenset({"mlx5"})
"""Drivers whose hardware reads a segment's length of 0 as 2^31 bytes."""


COPIES_TO_ADDRESSES = frozenset({"mlx5"})
"""Drivers whose library copies small messages to the addresses in SGEs, which it takes for those of the process."""


@dataclass(frozen=True)
class Capabilities:
    """What decides which scenarios a target can run. Lengths in bytes, the rest counts of segments."""

    transports: tuple[Transport, ...]
    mtu: int
    max_sge: int
    max_sge_rd: int  # as reported, which may be 0
    max_srq_sge: int
    srq: bool
    atomics: bool
    max_msg_sz: int
    zero_length: bool = True
    """Is a segment of 0 bytes one of 0 bytes, not of 2^31?"""
    connected: tuple[Transport, ...] = tuple(Transport)
    """Transports whose queue pairs the suite can connect ..."""
    why_not_others: str = ""
    """... and why not others, to be read after the device's name"""
    zero_based: bool = True
    """Can SGEs name addresses of an MR that are none of the process?"""
    windows: bool = True
    """Are there memory windows of type 2?"""
    apart: bool = False
    """Are the two ends on two ports, only one of which has the null MR?"""

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        return tuple(Queue) if self.srq else (Queue.RQ,)

    def operations(self, transport: Transport) -> tuple[Operation, ...]:
        """The operations that the device offers on a transport."""
        return tuple(each for each in TRANSPORT_OPERATIONS[transport] if self.atomics or not each.is_atomic)

    @property
    def most_read(self) -> int:
        """Segments of a READ: a device that reports 0 takes one."""
        return min(self.max_sge, max(1, self.max_sge_rd))

    def most_received(self, queue: Queue) -> int:
        """Segments of a receive in such a queue."""
        return min(self.max_sge, self.max_srq_sge) if queue is Queue.SRQ else self.max_sge

    def lacks_link(self, kind: LinkKind) -> str | None:
        """Why there is no link of this kind, as `lacks` says it."""
        return "has no SRQ (max_srq 0)" if kind.queue not in self.queues else None

    def lacks(self, scenario: Scenario) -> str | None:
        """Why the target cannot run a scenario, to be read after its name; None if it can."""
        into_srq = scenario.queue is Queue.SRQ and scenario.operation.consumes_receive
        if into_srq and len(scenario.scatter) > self.max_srq_sge:
            return f"takes lists of {self.max_srq_sge} in an SRQ (max_srq_sge)"
        if scenario.operation is Operation.RDMA_READ and len(scenario.scatter) > max(1, self.max_sge_rd):
            return f"takes lists of {self.max_sge_rd} for a READ (max_sge_rd)"
        if scenario.length > self.max_msg_sz:
            return f"takes messages of {self.max_msg_sz} bytes (max_msg_sz)"
        if max(len(scenario.gather), len(scenario.scatter)) > self.max_sge:
            return f"takes lists of {self.max_sge} segments (max_sge)"
        if scenario.transport is Transport.UD and scenario.length > self.mtu:
            return f"takes datagrams of {self.mtu} bytes (MTU)"
        if scenario.needs_window and not self.windows:
            return "has no memory windows of type 2 (IBV_DEVICE_MEM_WINDOW_TYPE_2A, 2B)"
        if scenario.operation.is_atomic and not self.atomics:
            return "has no atomics (atomic_cap NONE)"
        if not self.zero_length and any(not segment.length for segment in scenario.segments):
            return "takes a segment of 0 bytes for one of 2^31"
        if scenario.ordinary is Ordinary.ZERO_BASED and not self.zero_based:
            return "copies small messages to the addresses in SGEs, which are none of the process in a zero-based MR"
        if not self.has_null_mr_for(scenario):
            return "has the null MR, and its peer has none"
        return self.lacks_link(scenario.link)

    def has_null_mr_for(self, *scenarios: Scenario) -> bool:
        """Is there a null MR on each side where these, in flight on one link, name one?"""
        return not self.apart or len({side for scenario in scenarios for side in scenario.null_sides}) < 2


def capabilities(target: Target) -> Capabilities:
    """What a target can run: of one with a peer, what both ends can."""
    near = _capabilities(target)
    if target.peer is None:
        return near
    far = _capabilities(target.peer)
    return Capabilities(
        transports=near.transports,
        mtu=min(near.mtu, far.mtu),
        max_sge=min(near.max_sge, far.max_sge),
        max_sge_rd=min(near.max_sge_rd, far.max_sge_rd),
        max_srq_sge=min(near.max_srq_sge, far.max_srq_sge),
        srq=near.srq and far.srq,
        atomics=near.atomics and far.atomics,
        max_msg_sz=min(near.max_msg_sz, far.max_msg_sz),
        zero_length=near.zero_length and far.zero_length,
        connected=tuple(each for each in near.connected if each in far.connected),
        why_not_others=near.why_not_others or far.why_not_others,
        zero_based=near.zero_based and far.zero_based,
        windows=near.windows and far.windows,
        apart=True,
    )


def _capabilities(target: Target) -> Capabilities:
    limits = target.device.limits
    connected, why_not_others = CONNECTED.get(target.device.transport, (tuple(Transport), ""))
    return Capabilities(
        transports=tuple(Transport),
        mtu=target.port.mtu,
        max_sge=limits.max_sge,
        max_sge_rd=limits.max_sge_rd,
        max_srq_sge=limits.max_srq_sge,
        srq=limits.srq,
        atomics=limits.atomics,
        max_msg_sz=target.port.max_msg_sz,
        zero_length=target.device.driver not in TWO_GIB_FOR_ZERO,
        connected=connected,
        why_not_others=why_not_others,
        zero_based=target.device.driver not in COPIES_TO_ADDRESSES,
        windows=limits.mw_type_2,
    )
