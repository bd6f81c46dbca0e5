# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What every fault declares."""

from __future__ import annotations

import contextlib
import re

from ..engine.device import Device
from ..engine.memory import MemoryFault, Payload, Piece, Zeros
from ..engine.objects import SGE, Segment

NEED_AN_LKEY = (
    "allocate/max-length",
    "read/zeros",
    "read/zeros-after-write",
    "read/mixed-gather",
    "discard/receive",
    "discard/read-response",
    "discard/atomic-result",
    "discard/mixed-scatter",
    "discard/leaves-memory",
    "discard/completion",
    "discard/event",
    "misuse/bind-harmless",
)
"""Clauses that a device cannot keep on a null MR whose lkey is dead."""
LONGEST_GARBAGE = 1 << 20
"""Bytes: more would need the memory for them."""


def garbage(length: int, after: int = 0) -> Piece:
    """`length` bytes, not zero but for the first `after`. Very many are all zero, as they would need the memory."""
    if length > LONGEST_GARBAGE:
        return Zeros(length)
    return bytes(after) + b"\xa5" * (length - after)


class Fault(Device):
    """A device that is wrong about null MRs in one way; the docstring says what is wrong, and on which path.

    The tests prove that the suite fails `clause`, and no clause but this one and those that it `touches`.
    """

    clause: str
    """the requirement that it breaks"""
    touches: tuple[str, ...] = ()
    """other requirements that a device which is wrong in this way cannot keep either"""
    has_null_mrs = True
    """or is it wrong in how it says that it has none? Then its entry in providers.yaml promises none"""
    breaks_ordinary = False
    """do transfers on ordinary memory fail too, so that other checks rightly find the rig broken?"""
    ends_process = False
    """does a process that meets it die, or never come back?"""

    def names_null_mr(self, sge: SGE) -> bool:
        mr = self.lkeys.get(sge.lkey)
        return mr is not None and mr.null

    def leak(self, segment: Segment, payload: Payload) -> None:
        """Write a segment's part of a message to the address that the segment names, if there is memory."""
        with contextlib.suppress(MemoryFault):
            self.write_pieces(segment.addr, payload, segment.offset, segment.length)


def name_of(kind: type) -> str:
    """SrqLeak_32 is srq-leak-32."""
    return re.sub(r"(?<=[^_])(?=[A-Z])", "-", kind.__name__).replace("_", "-").lower()
