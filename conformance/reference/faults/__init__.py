# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices that are wrong about null MRs, each in one way: what the conformance suite must catch.

A fault is a class that is put in front of the engine's Device, in the module of the clauses that it breaks. Its name in
`FAULTS` is that of the class with hyphens.
"""

from . import (
    allocate,
    discard,
    free,
    history,
    invalidate,
    key,
    misuse,
    ordinary,
    places,
    process,
    read,
    stress,
    traffic,
)
from .base import Fault, name_of

__all__ = ["FAULTS", "Fault", "name_of"]


def _of(module: object) -> dict[str, type[Fault]]:
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Fault)]
    return {name_of(fault): fault for fault in classes if fault is not Fault}


FAULTS: dict[str, type[Fault]] = {
    name: fault
    for module in (
        allocate,
        read,
        discard,
        traffic,
        places,
        invalidate,
        ordinary,
        key,
        misuse,
        free,
        history,
        stress,
        process,
    )
    for name, fault in _of(module).items()
}
