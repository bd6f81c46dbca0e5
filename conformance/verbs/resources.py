# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What this process holds: C heap, file descriptors, kernel objects of an RDMA device."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low

from conformance.verbs import shim

SMALLEST_LEAK = 16
"""Bytes: malloc hands out no less."""
SETTLING = 5
"""Rounds that do not count: in the first ones, memory is freed that the work has nothing to do with."""


@dataclass(frozen=True)
class Held:
    """`heap` in bytes; `kernel`: kernel MRs of this process on the device, None where the kernel does not tell."""

    heap: int
    fds: int
    kernel: int | None


def held(device: str) -> Held:
    return Held(shim.heap_in_use(), len(os.listdir("/proc/self/fd")), kernel_mrs(device))


def held_back(device: str, work: Callable[[], None], times: int, rounds: int) -> list[str]:
    """What `work`, which does a thing `times` times, holds back each time that it is called, in words.

    The median of `rounds` counts, as other parts of the process allocate and free too.
    """
    growth = []
    gc.collect()  # garbage of other work, freed in between, would hide a leak
    gc.freeze()  # what remains need not be looked through in each round: reports of thousands of checks, say
    for _ in range(SETTLING + rounds):
        gc.collect()
        before = held(device)
        work()
        gc.collect()
        after = held(device)
        growth.append((after.heap - before.heap, after.fds - before.fds, (after.kernel or 0) - (before.kernel or 0)))
    heap, fds, kernel = map(median_low, zip(*growth[SETTLING:]))
    words = []
    if heap >= times * SMALLEST_LEAK:
        words.append(f"{heap} bytes of C heap ({heap / times:.0f} each)")
    if fds > 0:
        words.append(f"{fds} file descriptors")
    if kernel > 0:
        words.append(f"{kernel} kernel MRs")
    return words


def kernel_mrs(device: str, pid: int | None = None) -> int | None:
    """How many MRs the kernel keeps for a process, this one if None (rdma-resource(8)).

    None without the rdma tool, or if the kernel does not know the device.
    """
    tool = shutil.which("rdma", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if tool is None or not os.path.exists(f"/sys/class/infiniband/{device}"):
        return None
    shown = subprocess.run([tool, "-j", "resource", "show", "mr", "dev", device], capture_output=True, check=False)
    if shown.returncode:
        return None
    return int(sum(entry.get("pid") == (pid or os.getpid()) for entry in json.loads(shown.stdout or "[]")))
