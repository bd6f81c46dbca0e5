# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reference devices on which no verdict can be found: --reference-fault=tests.sick:PortDown.

Nearly all keep every promise about null MRs, so there is nothing that the suite has to catch: it has to end, and to say
why.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from typing import Any

from conformance.reference.engine import abi
from conformance.reference.engine.attributes import PortAttributes
from conformance.reference.engine.device import Device
from conformance.reference.engine.errors import Refused
from conformance.reference.engine.objects import CQ, CQE, MR, PD, QP, SendWR


class PortDown(Device):
    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.state = abi.PORT_DOWN
        return port


class NoGid(Device):
    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        port.gids = []
        return port


class LimitedMemory(Device):
    """Registered memory counts against RLIMIT_MEMLOCK, as it does in the kernel for users without CAP_IPC_LOCK."""

    def reg_mr(self, pd: PD, addr: int, length: int, iova: int, access: int) -> MR:
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        pinned = sum(mr.length for mr in set(self.lkeys.values()) if not mr.null)
        if limit != resource.RLIM_INFINITY and pinned + length > limit:
            raise Refused(errno.ENOMEM, f"{length} bytes more than the {pinned} that are pinned are too many")
        return super().reg_mr(pd, addr, length, iova, access)


class Vanishing(Device):
    """Unplugged once it has taken a number of work requests. As with the kernel, what is posted from then on is
    lost in silence, what is made fails, and what is destroyed is gone."""

    taken = 0
    survives = 40

    def require(self) -> None:
        if self.taken > self.survives:
            raise Refused(errno.EIO, "the device is gone")

    def post_send(self, qp: QP, wrs: list[SendWR]) -> None:
        self.taken += len(wrs)
        if self.taken <= self.survives:
            super().post_send(qp, wrs)

    def post_batch(self, qp: QP, wrs: list[SendWR]) -> None:
        self.taken += len(wrs)
        if self.taken <= self.survives:
            super().post_batch(qp, wrs)

    def poll_cq(self, cq: CQ, most: int) -> list[CQE]:
        return super().poll_cq(cq, most) if self.taken <= self.survives else []

    def new_handle(self) -> int:
        """Everything that is made gets one."""
        self.require()
        return super().new_handle()

    def modify_qp(self, qp: QP, mask: int, attr: dict[str, Any]) -> None:
        self.require()
        super().modify_qp(qp, mask, attr)


class Dying(Device):
    """Works until it has completed a number of sends."""

    completed = 0
    survives = 40

    @property
    def is_dead(self) -> bool:
        return self.completed >= self.survives

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        self.completed += 1
        super().complete_send(qp, wr, status)


class GoesSilent(Dying):
    """Nothing is answered any more."""

    def run(self, qp: QP) -> None:
        if not self.is_dead:
            super().run(qp)


class GoesUnreachable(Dying):
    """A requester is told that its retries are used up, as when a cable is pulled."""

    def run(self, qp: QP) -> None:
        if not self.is_dead:
            super().run(qp)
            return
        while qp.sq:
            self.complete_send(qp, qp.sq.popleft(), abi.WC_RETRY_EXC_ERR)


class GoesFatal(Dying):
    """The device is in its error state: EIO for whatever needs it."""

    def check_send(self, qp: QP, wr: SendWR) -> None:
        self._require()
        super().check_send(qp, wr)

    def new_handle(self) -> int:
        """Everything that is made gets one."""
        self._require()
        return super().new_handle()

    def _require(self) -> None:
        if self.is_dead:
            raise Refused(errno.EIO, "the device is in its error state")


class NoXrc(Device):
    """XRC queue pairs can be made and connected, and nothing that they send is answered."""

    def run(self, qp: QP) -> None:
        if qp.qp_type != abi.QPT_XRC_SEND:
            super().run(qp)


class LosesNullSends(Device):
    """Wrong about null MRs, and not sick: what is gathered from one is never sent, and never completes."""

    def run(self, qp: QP) -> None:
        while qp.sq and any(sge.lkey in self.lkeys and self.lkeys[sge.lkey].null for sge in qp.sq[0].sges):
            qp.sq.popleft()
        super().run(qp)


class Lossy(Device):
    """Loses one of some hundred messages of UC and UD, which is right: nobody promised that they arrive."""

    delivered = 0
    every = 700

    def deliver(self, qp: QP, wr: SendWR, respond: Callable[[QP], Any]) -> Any:
        self.delivered += not qp.reliable
        if not qp.reliable and self.delivered % self.every == 0:
            return None
        return super().deliver(qp, wr, respond)
