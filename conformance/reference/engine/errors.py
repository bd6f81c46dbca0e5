# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How the engine says no."""

from __future__ import annotations

import os


class Refused(Exception):
    """A verb fails at once, with this positive errno. `code` is set where the verb returns something else."""

    def __init__(self, errno: int, reason: str, code: int | None = None) -> None:
        super().__init__(f"{os.strerror(errno)}: {reason}")
        self.errno = errno
        self.code = code


class BadWorkRequest(Refused):
    """Posting a list of work requests stops at the one with this index; those before it were accepted."""

    def __init__(self, errno: int, reason: str, index: int) -> None:
        super().__init__(errno, reason)
        self.index = index


class WorkError(Exception):
    """A work request fails in its completion, with this status (enum ibv_wc_status)."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"status {status}: {reason}")
        self.status = status


class Nak(WorkError):
    """The responder refuses a message; `status` is what the requester of a reliable transport completes with."""


class ReceiverNotReady(Exception):
    """The responder has no receive work request for a message that needs one (IBTA 9.7.5.2.8, RNR NAK)."""

    def __init__(self, queue: object) -> None:
        super().__init__("no receive work request")
        self.queue = queue
