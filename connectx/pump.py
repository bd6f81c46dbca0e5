# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Sees what programs post and arm, by reading their doorbell records.

Doorbell pages would tell less: a receive rings only its record, in plain memory, and the record of a send queue is
written before its doorbell page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from conformance.reference.engine import abi
from conformance.reference.engine.memory import MemoryFault
from conformance.reference.engine.objects import CQ, QP, EventQueue, ReceiveQueue

from .cqe import Ring
from .device import ConnectX, Program, Queues, ReceiveRing, SendQueue
from .memory import Pages, ProgramMemory

_TAKES_SENDS = (abi.QPS_RTS, abi.QPS_SQD, abi.QPS_SQE, abi.QPS_ERR)


class Watch:
    """The doorbell records of one program. `refresh` must be called when its objects changed."""

    def __init__(self, device: ConnectX, program: Program, memory: ProgramMemory) -> None:
        self.device, self.program, self.memory = device, program, memory
        self.queues: Queues = device.queues[program]
        self.pages = Pages(memory, program.pid)
        self.fresh = True
        """Must every record be looked at, whether it changed or not?"""
        self.refresh()

    def refresh(self) -> None:
        queues, pages = self.queues, self.pages
        channels = [(cq, ring) for cq, ring in queues.cqs.items() if cq.channel is not None]
        records = [queue.record for queue in queues.sends.values()]
        records += [ring.record for ring in queues.receives.values()]
        records += [ring.record for _, ring in channels]
        pages.watch(records)
        self._sends: list[tuple[int, QP, SendQueue]] = [
            (pages.offset(queue.record) + 4, qp, queue) for qp, queue in queues.sends.items() if queue.blocks
        ]
        self._receives: list[tuple[int, ReceiveQueue, ReceiveRing, QP | None]] = [
            (pages.offset(ring.record) + 2, queue, ring, queues.qps.get(queue))
            for queue, ring in queues.receives.items()
        ]
        self._channels: list[tuple[int, Ring, CQ, EventQueue]] = [
            (pages.offset(ring.record) + 4, ring, cq, cq.channel) for cq, ring in channels if cq.channel is not None
        ]
        self.fresh = True

    def posted_sends(self) -> list[tuple[QP, int]]:
        data = self.pages.data
        return [
            (qp, producer)
            for at, qp, queue in self._sends
            if (producer := data[at + 2] << 8 | data[at + 3]) != queue.next and qp.state in _TAKES_SENDS
        ]

    def take_receives(self) -> None:
        data = self.pages.data
        for at, queue, ring, qp in self._receives:
            producer = data[at] << 8 | data[at + 1]
            if producer != ring.taken and (qp is None or qp.state != abi.QPS_RESET):
                self.device.doorbell_receive(queue, producer)

    def send_events(self) -> None:
        data = self.pages.data
        for at, ring, cq, channel in self._channels:
            ring.armed = int.from_bytes(data[at : at + 4], "big")
            if ring.wants_event():
                ring.answered = ring.armed
                channel.put(cq)


class Pump:
    def __init__(self, memory: ProgramMemory, gone: Callable[[Program], None]) -> None:
        self.memory = memory
        self.watches: dict[Program, Watch] = {}
        self._gone = gone
        """Called for a program whose memory cannot be read any more."""

    def add(self, device: ConnectX, program: Program) -> None:
        self.watches[program] = Watch(device, program, self.memory)

    def remove(self, program: Program) -> None:
        self.watches.pop(program, None)

    def run(self) -> bool:
        """Carry out what was posted since. Returns whether there was anything to do.

        A send may have been posted because of a receive that was posted before it, on whatever machine. So receives are
        looked at again once the sends are known, and taken first. What the second look finds to send is for the next
        run.
        """
        active = self._look()
        if not active:
            return False
        sends = []
        for watch in active:
            watch.fresh = False
            sends += [(watch, *posted) for posted in watch.posted_sends()]
        if sends:
            again = self._look()
            for watch in again:
                watch.fresh = True
            active = list(dict.fromkeys([*active, *again]))
        for watch in active:
            self._carry_out(watch, watch.take_receives)
        for watch, qp, producer in sends:
            self._carry_out(watch, partial(watch.device.doorbell_send, qp, producer))
        for watch in self.watches.values():
            watch.send_events()
        return True

    def _carry_out(self, watch: Watch, work: Callable[[], None]) -> None:
        """Do something in the memory of a program, which may die meanwhile: that memory is gone with it."""
        if watch.program not in self.watches:
            return
        try:
            with self.memory.of(watch.program.pid):
                work()
        except MemoryFault:
            watch.fresh |= self._has_changed(watch)
            if watch.program in self.watches:
                raise

    def _has_changed(self, watch: Watch) -> bool:
        """Did records change? Not those of a program that is gone, which is watched no more."""
        try:
            return watch.pages.changed()
        except MemoryFault:
            self.remove(watch.program)
            self._gone(watch.program)
            return False

    def _look(self) -> list[Watch]:
        """The programs whose records changed."""
        looked = [watch for watch in list(self.watches.values()) if self._has_changed(watch) or watch.fresh]
        return [watch for watch in looked if watch.program in self.watches]
