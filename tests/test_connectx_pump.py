# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Whatever the moment at which a program rings its doorbell record, the device carries out what was posted."""

from __future__ import annotations

import ctypes
import os
import signal
from types import SimpleNamespace
from typing import Any

from conformance.reference.engine import abi
from connectx.device import Queues, SendQueue
from connectx.memory import PAGE, ProgramMemory
from connectx.pump import Pump, Watch


class _Object(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


class _Device:
    """Takes what is posted; `carried_out` has the producer counters that it was told."""

    def __init__(self, program: Any, qp: Any, sends: SendQueue) -> None:
        self.queues = {program: Queues(sends={qp: sends})}
        self.sends = sends
        self.carried_out: list[int] = []

    def doorbell_send(self, qp: Any, producer: int) -> None:
        self.carried_out.append(producer)
        self.sends.next = producer


def test_what_is_posted_while_the_device_takes_something_else_is_carried_out() -> None:
    page = ctypes.create_string_buffer(2 * PAGE)
    record = -(-ctypes.addressof(page) // PAGE) * PAGE

    def ring(producer: int) -> None:
        ctypes.memmove(record + 4, producer.to_bytes(4, "big"), 4)

    program: Any = _Object(pid=os.getpid())
    qp = _Object(state=abi.QPS_RTS)
    device: Any = _Device(program, qp, SendQueue(0, 64, 0, record, False, False))
    pump = Pump(ProgramMemory(), lambda gone: None)
    pump.add(device, program)
    watch: Any = pump.watches[program]

    def posted_sends() -> list[Any]:
        found = Watch.posted_sends(watch)
        if found:
            ring(2)
        return found

    watch.posted_sends = posted_sends
    ring(1)
    while pump.run():
        pass
    assert device.carried_out == [1, 2]


def test_a_program_that_dies_while_it_is_served_is_gone_and_nothing_has_failed() -> None:
    page = ctypes.create_string_buffer(2 * PAGE)
    record = -(-ctypes.addressof(page) // PAGE) * PAGE
    ctypes.memmove(record + 4, (1).to_bytes(4, "big"), 4)
    child = os.fork()
    if not child:
        signal.pause()
    program: Any = _Object(pid=child)
    qp = _Object(state=abi.QPS_RTS)
    device: Any = _Device(program, qp, SendQueue(0, 64, 0, record, False, False))
    gone: list[Any] = []
    pump = Pump(ProgramMemory(), gone.append)

    def doorbell_send(qp: Any, producer: int) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pump.memory.read(record, 4)

    device.doorbell_send = doorbell_send
    pump.add(device, program)
    assert pump.run()
    assert gone == [program]
    assert not pump.run()
