# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a machine's owner can do about an error of a verb: a hint where one fits, and none where it would mislead."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.verbs.null_mr import errno_name

CAP_IPC_LOCK = 14
"""linux/capability.h: who has it may lock any amount of memory."""


def in_words(error: PyverbsRDMAError) -> str:
    """An error with its errno and, if there is one, a hint."""
    text = f"{error} ({errno_name(error.error_code)})"
    likely = hint(error.error_code)
    return f"{text}; {likely}" if likely else text


def hint(number: int) -> str:
    """What to look at first; empty if nothing is likely."""
    if number == errno.ENOMEM and (limit := memlock_limit()) is not None:
        return (
            f"is the memlock limit of {limit} bytes high enough (ulimit -l; of a container, --ulimit memlock=-1)? It "
            "counts registered memory and queues"
        )
    if number == errno.EAGAIN:
        return "is a limit of the rdma cgroup reached (rdma.max, rdma.current)?"
    if number in (errno.EACCES, errno.EPERM):
        return (
            "may /dev/infiniband/uverbs* be opened for reading and writing, and does SELinux allow the access "
            "(infiniband_pkey, infiniband_endport)?"
        )
    return ""


def memlock_limit(status: Path = Path("/proc/self/status")) -> int | None:
    """Bytes that this process may lock; None if no limit binds it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return None
    effective = next((line.split()[1] for line in status.read_text().splitlines() if line.startswith("CapEff:")), "0")
    return None if int(effective, 16) >> CAP_IPC_LOCK & 1 else limit
