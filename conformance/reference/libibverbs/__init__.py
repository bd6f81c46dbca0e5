# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Shows the engine to this process as libibverbs: C structs in and out, errno, and nothing else.

`binding.py` is the C side, made from the installed header (`header.py`); `calls.py` is the way between C and Python,
`structs.py` what the program holds. The verbs are in a module for each kind of object.
"""

import atexit
from collections.abc import Callable

from ..engine.device import Device, Fabric

# Their verbs are known once they are imported.
from . import (  # noqa: F401
    binding,
    c,
    calls,
    completion_queues,
    devices,
    memory_regions,
    queue_pairs,
    receive_queues,
    signals,
    work_requests,
    wr_start,
)
from .calls import failures

__all__ = ["failures", "load"]


def load(number: int, make: Callable[[int, Fabric, c.ProgramMemory], Device]) -> str:
    """Build and load the C side, create the devices. Returns the path of the shared object. Raises BuildError."""
    module, functions = binding.build(tuple(calls.verbs))
    c.ffi, c.lib = module.ffi, module.lib
    for function in functions.values():
        calls.attach(function, devices.fabric.lock)
    memory = c.ProgramMemory()
    probe = c.ffi.new("char[]", 1)
    memory.read(int(c.ffi.cast("uintptr_t", probe)), 1)
    for index in range(number):
        make(index, devices.fabric, memory)
    signals.hold()
    atexit.register(_close)
    return str(module.__file__)


def _close() -> None:
    """Programs that end without destroying their objects: nothing may call into Python after it is gone."""
    c.lib.reference_closed = 1
