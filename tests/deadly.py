# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reference devices on which processes die: --reference-fault=tests.deadly:FirstDies."""

import signal

from conformance.reference.engine.device import Device
from conformance.reference.engine.objects import PD, Context


class FirstDies(Device):
    """Processes die on the first device of a machine when they allocate a PD; the others work."""

    def alloc_pd(self, context: Context) -> PD:
        if self.number == 0:
            signal.raise_signal(signal.SIGSEGV)
        return super().alloc_pd(context)
