# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Completion queues and their channels, receive queues that are shared, XRC domains."""

from __future__ import annotations

import errno
import time

from . import abi
from .base import Base
from .errors import Refused
from .objects import CQ, CQE, PD, SRQ, XRCD, Context, EventQueue, ReceiveQueue, RecvWR


class Queues(Base):
    """The part of a device that keeps completions until they are polled, and receive work requests until a message
    takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.srqs: dict[int, SRQ] = {}
        self.xrcds: dict[object, XRCD] = {}

    # Completion queues

    def create_cq(self, context: Context, cqe: int, channel: EventQueue | None, extended: bool) -> CQ:
        self.count(context, CQ, self.attr.max_cq)
        self.check_cqe(cqe)
        return self.remember(context, CQ(context, self.new_handle(), cqe, channel, extended))

    def check_cqe(self, cqe: int) -> None:
        if not 0 < cqe <= self.attr.max_cqe:
            raise Refused(errno.EINVAL, f"a CQ of {cqe} entries; the device has 1 to {self.attr.max_cqe}")

    def resize_cq(self, cq: CQ, cqe: int) -> None:
        self.check_cqe(cqe)
        if cqe < len(cq.entries):
            raise Refused(errno.EINVAL, f"{len(cq.entries)} completions do not fit in {cqe} entries")
        cq.cqe = cqe

    def destroy_cq(self, cq: CQ) -> None:
        if cq.users:
            raise Refused(errno.EBUSY, f"the CQ is used by {len(cq.users)} objects")
        if cq.channel is not None:
            cq.channel.forget(cq)
        cq.context.events.forget(cq)
        self.forget(cq.context, cq)

    def complete(self, cq: CQ, cqe: CQE, solicited: bool = False) -> None:
        """Put a completion on a CQ, and an event on its channel if the program asked for one."""
        if len(cq.entries) >= cq.cqe:
            if not cq.overrun:
                cq.overrun = True
                cq.context.events.put(abi.EVENT_CQ_ERR, cq)
            return
        cqe.timestamp = time.time_ns()
        cq.entries.append(cqe)
        if cq.armed and (cq.armed == 1 or solicited or cqe.status):
            cq.armed = 0
            if cq.channel is not None:
                cq.channel.put(cq)

    def req_notify_cq(self, cq: CQ, solicited_only: bool) -> None:
        """ibv_req_notify_cq(3); asking for any completion includes asking for the solicited ones."""
        cq.armed = 1 if cq.armed == 1 or not solicited_only else 2

    # Receive queues

    def wake(self, queue: ReceiveQueue) -> None:
        """Let senders that wait for a receive WR go on, in the order in which they came."""
        while queue.waiting and queue.entries:
            qp = next(iter(queue.waiting))
            del queue.waiting[qp]
            qp.waits_on = None
            qp.device.run(qp)

    def take_receive(self, queue: ReceiveQueue) -> RecvWR:
        """The next receive WR, for a message that has come. IndexError if there is none."""
        wr = queue.entries.popleft()
        if isinstance(queue, SRQ) and queue.limit and len(queue.entries) < queue.limit:
            queue.limit = 0
            queue.pd.context.events.put(abi.EVENT_SRQ_LIMIT_REACHED, queue)
        return wr

    # Shared receive queues

    def create_srq(
        self,
        pd: PD,
        max_wr: int,
        max_sge: int,
        limit: int = 0,
        type: int = abi.SRQT_BASIC,
        xrcd: XRCD | None = None,
        cq: CQ | None = None,
    ) -> SRQ:
        """ibv_create_srq(3), ibv_create_srq_ex(3)."""
        self.count(pd.context, SRQ, self.attr.max_srq)
        if not 0 < max_wr <= self.attr.max_srq_wr or max_sge > self.attr.max_srq_sge:
            raise Refused(errno.EINVAL, f"an SRQ of {max_wr} WRs of {max_sge} SGEs")
        if type not in (abi.SRQT_BASIC, abi.SRQT_XRC):
            raise Refused(errno.EOPNOTSUPP, f"SRQ type {type}")
        if type == abi.SRQT_XRC and (xrcd is None or cq is None):
            raise Refused(errno.EINVAL, "an XRC SRQ needs an XRC domain and a CQ")
        srq = SRQ(max_wr, max(max_sge, 1), pd=pd, handle=self.new_handle(), limit=limit, type=type, xrcd=xrcd, cq=cq)
        srq.number = srq.handle
        self.srqs[srq.number] = srq
        for used in (pd, xrcd, cq):
            if used is not None:
                used.users.add(srq)
        return self.remember(pd.context, srq)

    def modify_srq(self, srq: SRQ, mask: int, max_wr: int, limit: int) -> None:
        if mask & abi.SRQ_MAX_WR:
            if not len(srq.entries) <= max_wr <= self.attr.max_srq_wr:
                raise Refused(errno.EINVAL, f"an SRQ of {max_wr} WRs")
            srq.max_wr = max_wr
        if mask & abi.SRQ_LIMIT:
            if limit > srq.max_wr:
                raise Refused(errno.EINVAL, f"limit {limit} of an SRQ of {srq.max_wr} WRs")
            srq.limit = limit

    def destroy_srq(self, srq: SRQ) -> None:
        if srq.users:
            raise Refused(errno.EBUSY, f"the SRQ is used by {len(srq.users)} queue pairs")
        for used in (srq.pd, srq.xrcd, srq.cq):
            if used is not None:
                used.users.discard(srq)
        del self.srqs[srq.number]
        srq.pd.context.events.forget(srq)
        self.forget(srq.pd.context, srq)

    # XRC domains

    def open_xrcd(self, context: Context, key: object | None) -> XRCD:
        """ibv_open_xrcd(3); domains with the same key (the inode of a file) are one."""
        if not self.attr.device_cap_flags & abi.DEVICE_XRC:
            raise Refused(errno.EOPNOTSUPP, "no XRC")
        xrcd = self.xrcds.get(key) if key is not None else None
        if xrcd is None:
            xrcd = XRCD(key)
            if key is not None:
                self.xrcds[key] = xrcd
        xrcd.opens += 1
        context.objects[xrcd] = None
        return xrcd

    def close_xrcd(self, context: Context, xrcd: XRCD) -> None:
        if xrcd.opens == 1 and xrcd.users:
            raise Refused(errno.EBUSY, f"the XRC domain is used by {len(xrcd.users)} objects")
        xrcd.opens -= 1
        context.objects.pop(xrcd, None)
        if not xrcd.opens and xrcd.key is not None:
            del self.xrcds[xrcd.key]
