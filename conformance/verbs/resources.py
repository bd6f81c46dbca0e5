# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What this process holds: C heap, file descriptors, kernel objects of an RDMA device."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass

from conformance.verbs import shim


@dataclass(frozen=True)
class Held:
    """`heap` in bytes; `kernel`: kernel MRs of this process on the device, None where the kernel does not tell."""

    heap: int
    fds: int
    kernel: int | None


def held(device: str) -> Held:
    return Held(shim.heap_in_use(), len(os.listdir("/proc/self/fd")), kernel_mrs(device))


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
