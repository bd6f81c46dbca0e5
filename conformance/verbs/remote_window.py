# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A memory window of type 2 on ordinary memory, for a peer's SEND to invalidate (ibv_post_send(3), IBTA 10.6.7)."""

from __future__ import annotations

from typing import Any

from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP
from pyverbs.wr import SendWR

from conformance.verbs.closing import close
from conformance.verbs.memory import Arena
from conformance.verbs.names import e
from conformance.verbs.queues import Queues

ACCESS = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE


def post_bind(qp: QP, mw: MW, info: MWBindInfo, wr_id: int) -> tuple[int, PyverbsRDMAError | None]:
    """Post the bind of a window of type 2; the rkey that it asks for, and the error if it is refused at once."""
    wr: Any = SendWR(wr_id, e.IBV_WR_BIND_MW, 0, send_flags=e.IBV_SEND_SIGNALED)
    wr.set_bind_wr(mw, info)
    try:
        qp.post_send(wr)
    except PyverbsRDMAError as error:
        return wr.rkey, error
    finally:
        rkey: int = wr.rkey
        wr.close()
    return rkey, None


def local_invalidate(queues: Queues, rkey: int, wr_id: int, timeout: float) -> str:
    """IBV_WR_LOCAL_INV of an rkey; how it ended, in words."""
    wr: Any = SendWR(wr_id, e.IBV_WR_LOCAL_INV, 0, send_flags=e.IBV_SEND_SIGNALED, imm_data=rkey)
    try:
        queues.qp.post_send(wr)
    except PyverbsRDMAError as error:
        return str(error)
    finally:
        wr.close()
    found = queues.cq.wait([wr_id], timeout)
    return str(found[0]) if found else "no completion"


class RemoteWindow:
    """A window on all of an arena, by an MR of its own. Raises PyverbsRDMAError."""

    def __init__(self, pd: PD, queues: Queues, arena: Arena, access: int) -> None:
        self._queues = queues
        self._mr = MR(pd, arena.size, access | e.IBV_ACCESS_MW_BIND, address=arena.address)
        try:
            self._mw = MW(pd, e.IBV_MW_TYPE_2)
        except BaseException:
            close(self._mr)
            raise
        self._info = MWBindInfo(self._mr, arena.address, arena.size, access & ~e.IBV_ACCESS_LOCAL_WRITE)
        self.rkey = 0

    def bind(self, wr_id: int, timeout: float) -> str | None:
        """Bind it on the queue pair; how that failed, in words. A window that is bound cannot be bound again."""
        self.rkey, error = post_bind(self._queues.qp, self._mw, self._info, wr_id)
        if error is not None:
            return str(error)
        found = [wc for wc in self._queues.cq.wait([wr_id], timeout) if wc.wr_id == wr_id]
        if not found:
            return "no completion"
        return None if found[0].status == "IBV_WC_SUCCESS" else str(found[0])

    def close(self) -> None:
        close(self._mw)
        close(self._mr)
