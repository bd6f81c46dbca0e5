# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A simulated RDMA device that stock pyverbs sees as ref0, ref1, ...

`load()` puts a library in front of libibverbs in this process. See engine/ for the device, libibverbs/ for how C sees
it, faults/ for wrong devices and variants.py for other right ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module

from . import libibverbs
from .engine.device import Device
from .faults import FAULTS
from .variants import VARIANTS

_loaded: tuple[int, tuple[str, ...], str | None] | None = None
_path: str | None = None


def load(devices: int = 1, faults: Sequence[str] = (), variant: str | None = None) -> None:
    """Make pyverbs see `devices` simulated devices, with these faults and this variant, and no other device.

    A fault may be of one device alone: ref1:leaks-to-address.
    Must come before the first import of pyverbs, in the main thread. A second call with the same arguments does
    nothing; RuntimeError if the arguments differ or pyverbs is there already, ValueError for an unknown name,
    native.BuildError if the library cannot be compiled.
    """
    global _loaded, _path
    wanted = (devices, tuple(faults), variant)
    if _loaded is not None:
        if _loaded != wanted:
            raise RuntimeError(
                f"the reference device is loaded with {_loaded}; a process cannot change that to {wanted}"
            )
        return
    if early := sorted(name for name in sys.modules if name.startswith("pyverbs.")):
        raise RuntimeError(f"load the reference device before pyverbs: {early[0]} is imported and bound to libibverbs")
    for fault in faults:
        device = re.match(r"ref(\d+):", fault)
        if device and int(device[1]) >= devices:
            raise ValueError(f"fault {fault!r}: there is no such device, but ref0 to ref{devices - 1}")
    kinds = [compose(faults_of(number, faults), variant) for number in range(devices)]
    _path = libibverbs.load(devices, lambda number, fabric, memory: kinds[number](number, fabric, memory))
    _loaded = wanted


def faults_of(number: int, faults: Sequence[str]) -> tuple[str, ...]:
    """Those that all devices have, and those of this one, without its name."""
    found = (re.fullmatch(r"(?:ref(\d+):)?(.*)", fault) for fault in faults)
    return tuple(each[2] for each in found if each is not None and each[1] in (None, str(number)))


def compose(faults: Sequence[str], variant: str | None) -> type[Device]:
    """The device class with faults and a variant in front. Raises ValueError for an unknown name.

    A fault that is not of this package is named by its place: my_faults:ReadsOnes is class ReadsOnes of module
    my_faults.
    """
    parts: list[type[Device]] = []
    for name in faults:
        if ":" in name:
            parts.append(_class_at(name))
        elif name in FAULTS:
            parts.append(FAULTS[name])
        else:
            raise ValueError(f"no fault {name!r} of the reference device; there are {', '.join(sorted(FAULTS))}")
    if variant is not None:
        if variant not in VARIANTS:
            raise ValueError(f"no variant {variant!r} of the reference device; there are {', '.join(sorted(VARIANTS))}")
        parts.append(VARIANTS[variant])
    return type("Device", (*parts, Device), {})


def _class_at(place: str) -> type[Device]:
    module, _, name = place.partition(":")
    try:
        found = vars(import_module(module)).get(name)
    except ImportError as error:
        raise ValueError(f"fault {place!r}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, Device):
        raise ValueError(f"fault {place!r}: module {module} has no class {name} that is a reference Device")
    return found


def loaded() -> tuple[int, tuple[str, ...], str | None] | None:
    """What `load` was called with: devices, faults, variant; None if it was not."""
    return _loaded


def device_count() -> int:
    """How many devices are loaded; 0 if none is."""
    return _loaded[0] if _loaded is not None else 0


def library_path() -> str | None:
    """The shared object that defines ibv_reg_mr and the other functions of libibverbs; None if not loaded."""
    return _path


def errors() -> list[str]:
    """What went wrong inside the reference device itself: each is a verb and a traceback. That verb failed with EIO."""
    return [str(failure) for failure in libibverbs.failures]


def take_errors() -> list[str]:
    """errors(), and forget them."""
    taken = errors()
    libibverbs.failures.clear()
    return taken
