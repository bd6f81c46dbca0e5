# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Two connected queue pairs on the reference device, for tests of its semantics through stock pyverbs."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

from conformance.verbs.names import e

SIZE = 4096
QKEY = 0x11111111
REMOTE = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC
ALL = e.IBV_ACCESS_LOCAL_WRITE | REMOTE | e.IBV_ACCESS_MW_BIND
SEND_OPS = {
    e.IBV_QPT_RC: 0x3FF,
    e.IBV_QPT_UC: 0x3FF & ~(7 << 4),
    e.IBV_QPT_UD: 0xC,
    e.IBV_QPT_XRC_SEND: 0x3FF,
}


def event_descriptors() -> set[int]:
    """pyverbs 44 does not tell the descriptor of a channel."""
    with os.scandir("/proc/self/fd") as entries:
        links = [Path(entry.path) for entry in entries]
        return {int(link.name) for link in links if link.is_symlink() and "eventfd" in os.readlink(link)}


class Side:
    """One end: a queue pair, its CQ, and one MR of SIZE bytes with the given fill."""

    srq: Any = None
    channel: Any
    descriptor: int
    """That of the channel."""
    window_type: int
    rkey: int

    def __init__(self, pair: "Pair", fill: bytes, context: Any) -> None:
        enter = pair.stack.enter_context
        self.pair = pair
        self.context = context
        self.pd = enter(PD(context))
        if pair.events:
            before = event_descriptors()
            self.channel = enter(CompChannel(context))
            (self.descriptor,) = event_descriptors() - before
            os.set_blocking(self.descriptor, False)
            self.cq = enter(CQ(context, 64, None, self.channel, 0))
        else:
            self.cq = enter(CQEX(context, CqInitAttrEx(cqe=64))) if pair.cq_ex else enter(CQ(context, 64))
        self.mr = enter(MR(self.pd, SIZE, ALL))
        self.mr.write(fill * SIZE, SIZE)
        if pair.transport == e.IBV_QPT_XRC_SEND:
            self._create_xrc()
        else:
            if pair.shared:
                self.srq = enter(SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=16, max_sge=8))))
            self.qp = self.receiver = self._create(pair.transport)

    def _attr(self) -> QPAttr:
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = REMOTE
        attr.qkey = QKEY
        return attr

    def _create(self, transport: int) -> Any:
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=8, max_recv_sge=8, max_inline_data=64)
        enter = self.pair.stack.enter_context
        if self.pair.extended:
            mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            ops = SEND_OPS[transport]
            init = QPInitAttrEx(
                transport,
                scq=self.cq,
                rcq=self.cq,
                srq=self.srq,
                cap=cap,
                pd=self.pd,
                sq_sig_all=self.pair.sig_all,
                comp_mask=mask,
                send_ops_flags=ops,
            )
            return enter(QPEx(self.context, init, self._attr()))
        init = QPInitAttr(transport, scq=self.cq, rcq=self.cq, srq=self.srq, cap=cap, sq_sig_all=self.pair.sig_all)
        return enter(QP(self.pd, init, self._attr()))

    def _create_xrc(self) -> None:
        enter = self.pair.stack.enter_context
        mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
        xrcd = enter(XRCD(self.context, XRCDInitAttr(mask, 0o100, -1)))  # O_CREAT, a domain without a file
        attr = SrqInitAttrEx(max_wr=16, max_sge=8)
        attr.srq_type = e.IBV_SRQT_XRC
        attr.pd, attr.xrcd, attr.cq = self.pd, xrcd, self.cq
        attr.comp_mask = (
            e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_CQ | e.IBV_SRQ_INIT_ATTR_XRCD
        )
        self.srq = enter(SRQ(self.context, attr))
        self.qp = self._create(e.IBV_QPT_XRC_SEND)
        init = QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=xrcd)
        self.receiver = enter(QP(self.context, init, self._attr()))

    def connect(self, peer: "Side", **changes: int) -> None:
        if self.pair.transport == e.IBV_QPT_UD:
            return  # pyverbs takes UD queue pairs to RTS when it creates them
        # A receiver answers the peer's sender, a sender asks the peer's receiver; RC and UC are both.
        for qp, dest in ((self.qp, peer.receiver), (self.receiver, peer.qp)):
            if qp.qp_state == e.IBV_QPS_INIT:
                qp.to_rts(self.path(peer, dest.qp_num, **changes))

    def path(self, peer: "Side", dest: int, **changes: int) -> QPAttr:
        attr = self._attr()
        attr.dest_qp_num = dest
        attr.path_mtu = e.IBV_MTU_1024
        attr.ah_attr = self.address(peer)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.rnr_retry = attr.retry_cnt = 7
        attr.min_rnr_timer, attr.timeout = 12, 14
        for name, value in changes.items():
            setattr(attr, name, value)
        return attr

    def address(self, peer: "Side", index: int = 1) -> AHAttr:
        gid = peer.context.query_gid(1, index)
        return AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=index))

    def sge(self, offset: int = 0, length: int = 64) -> SGE:
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def receive(self, *sges: SGE, wr_id: int = 2) -> None:
        wr = RecvWR(wr_id, num_sge=len(sges), sg=list(sges))
        if self.srq is not None:
            self.srq.post_recv(wr)
        else:
            self.qp.post_recv(wr)

    def wr(self, opcode: int, *sges: SGE, flags: int = e.IBV_SEND_SIGNALED, imm: int = 0, wr_id: int = 1) -> SendWR:
        """A send WR to the peer; one-sided ones reach its MR at offset 1024."""
        peer = self.pair.peer_of(self)
        wr = SendWR(wr_id, opcode, num_sge=len(sges), imm_data=imm, send_flags=flags, sg=list(sges))
        if opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ):
            wr.set_wr_rdma(peer.mr.rkey, peer.mr.buf + 1024)
        elif opcode == e.IBV_WR_ATOMIC_CMP_AND_SWP:
            wr.set_wr_atomic(peer.mr.rkey, peer.mr.buf + 1024, 7, 9)
        elif opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
            wr.set_wr_atomic(peer.mr.rkey, peer.mr.buf + 1024, 5, 0)
        if self.pair.transport == e.IBV_QPT_UD:
            wr.set_wr_ud(self.pair.stack.enter_context(AH(self.pd, attr=self.address(peer))), peer.qp.qp_num, QKEY)
        elif self.pair.transport == e.IBV_QPT_XRC_SEND:
            wr.set_qp_type_xrc(peer.srq.get_srq_num())
        return wr

    def send(self, *arguments: Any, **named: Any) -> None:
        self.qp.post_send(self.wr(*arguments, **named))

    def events(self) -> int:
        """How many events wait on the channel; acknowledges them."""
        for count in range(100):
            try:
                self.channel.get_cq_event(self.cq)
            except PyverbsRDMAError:
                return count
            self.cq.ack_events(1)
        raise AssertionError("events without end")

    def poll(self) -> Any:
        """The only completion there is, a WC."""
        polled = self.poll_all()
        assert len(polled) == 1, [wc.status for wc in polled]
        return polled[0]

    def poll_all(self) -> list[Any]:
        return list(self.cq.poll(32)[1])

    @property
    def state(self) -> int:
        """Asked of the device: `qp_state` is what the program knows."""
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return int(attr.qp_state)

    def read(self, length: int = 64, offset: int = 0) -> bytes:
        data: bytes = self.mr.read(length, offset)
        return data


class Pair:
    """`left` and `right`, connected. `right` is on ref1 if `two_devices`."""

    def __init__(
        self,
        transport: int = e.IBV_QPT_RC,
        shared: bool = False,
        extended: bool = False,
        cq_ex: bool = False,
        two_devices: bool = False,
        connect: bool = True,
        events: bool = False,
        sig_all: bool = False,
        **changes: int,
    ) -> None:
        self.transport, self.shared, self.extended, self.cq_ex = transport, shared, extended, cq_ex
        self.events, self.sig_all = events, int(sig_all)
        self.stack = ExitStack()
        first = self.stack.enter_context(Context(name="ref0"))
        second = self.stack.enter_context(Context(name="ref1")) if two_devices else first
        self.left = Side(self, b"\x11", first)
        self.right = Side(self, b"\x22", second)
        if connect:
            self.left.connect(self.right, **changes)
            self.right.connect(self.left, **changes)

    def peer_of(self, side: Side) -> Side:
        return self.right if side is self.left else self.left

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()
