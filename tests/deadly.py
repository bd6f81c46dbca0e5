# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reference devices on which processes die: --reference-fault=tests.deadly:FirstDies."""

import ctypes
import signal

from conformance.reference.engine.device import Device
from conformance.reference.engine.memory import Payload, Piece
from conformance.reference.engine.objects import PD, Context, Segment, Transfer
from conformance.reference.faults.discard import LeaksToAddress
from conformance.reference.faults.history import Resets
from conformance.reference.faults.stress import Loaded


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


class DiesAfterReset(Resets):
    """What is received into a null MR by a queue pair that was reset and connected again is a segmentation fault."""

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.qp in self.used_before:
            signal.raise_signal(signal.SIGSEGV)
        super().write_null(transfer, segment, payload)


class DiesAndLeaks(LeaksToAddress):
    """What is received into a null MR is written to its address; what is received at the last address is a
    segmentation fault."""

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if segment.addr >> 63:
            signal.raise_signal(signal.SIGSEGV)
        super().write_null(transfer, segment, payload)


class DiesUnderLoad(Loaded):
    """While many queue pairs are at work, reading from a null MR is a segmentation fault."""

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if self.is_loaded(transfer.pd.context):
            signal.raise_signal(signal.SIGSEGV)
        return super().read_null(transfer, segment)
