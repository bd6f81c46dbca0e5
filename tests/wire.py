# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A reference device that is wrong between two devices alone: --reference-fault=tests.wire:GarbageForOthers."""

from conformance.reference.engine.device import Device
from conformance.reference.engine.memory import Piece
from conformance.reference.engine.objects import Segment, Transfer


class GarbageForOthers(Device):
    """What a null MR gives to a queue pair of another device is garbage; on its own port it reads as zeros."""

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        peer = transfer.qp.peer
        if peer is not None and peer.device is not self:
            return b"\xa5" * segment.length
        return super().read_null(transfer, segment)
