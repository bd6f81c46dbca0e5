# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reference devices on which processes die: --reference-fault=tests.deadly:FirstDies."""

import ctypes
import signal

from conformance.reference.engine.device import Device
from conformance.reference.engine.memory import Piece
from conformance.reference.engine.objects import PD, Context, Segment, Transfer


class FirstDies(Device):
    """Processes die on the first device of a machine when they allocate a PD; the others work."""

    def alloc_pd(self, context: Context) -> PD:
        if self.number == 0:
            signal.raise_signal(signal.SIGSEGV)
        return super().alloc_pd(context)


class DiesInLibc(Device):
    """Reading from a null MR writes to address 8, in a function of the C library."""

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        ctypes.memset(8, 0, 64)
        return super().read_null(transfer, segment)
