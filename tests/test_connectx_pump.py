# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Whatever the moment at which a program rings its doorbell record, the device carries out what was posted."""

from __future__ import annotations

import ctypes
import os
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
