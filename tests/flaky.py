# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A reference device that is wrong once: --reference-fault=tests.flaky:WrongOnce."""

from conformance.reference.engine.device import Device
from conformance.reference.engine.memory import Piece
from conformance.reference.engine.objects import Segment, Transfer


class WrongOnce(Device):
    """What is read first from a null MR is not zeros."""

    is_first = True

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if self.is_first:
            self.is_first = False
            return b"\xa5" * segment.length
        return super().read_null(transfer, segment)
