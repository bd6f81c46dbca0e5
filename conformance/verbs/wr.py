# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work requests as plain data: what an end is told to post, whichever process it is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from conformance.scenarios import Operation


class SGE(NamedTuple):
    """struct ibv_sge."""

    addr: int
    length: int  # bytes
    lkey: int


class Remote(NamedTuple):
    """What WRITE, READ and atomics name at the other end."""

    addr: int
    rkey: int


@dataclass(frozen=True)
class RecvWR:
    """struct ibv_recv_wr."""

    wr_id: int
    sges: tuple[SGE, ...]


@dataclass(frozen=True)
class SendWR:
    """struct ibv_send_wr. `compare_add` and `swap` are the operands of atomics, in host byte order."""

    wr_id: int
    operation: Operation
    sges: tuple[SGE, ...]
    imm_data: int | None = None
    remote: Remote | None = None
    compare_add: int = 0
    swap: int = 0
    signaled: bool = True
    solicited: bool = False
    inline: bool = False
    invalidate: int = 0
    """the rkey, of SEND with invalidate"""
