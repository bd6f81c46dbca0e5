# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The queues of one side of a link: CQ, QP and, where the kind has one, SRQ; of every kind that a scenario can name."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyverbs import wr
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, DataBuffer, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from pyverbs.xrcd import XRCD, XRCDInitAttr

from conformance.capabilities import capabilities
from conformance.inventory import Target
from conformance.scenarios import INLINE_LENGTH, LinkKind, Operation, Poll, Post, Queue, Side, Transport
from conformance.verbs.closing import close
from conformance.verbs.completions import CompletionQueue
from conformance.verbs.names import e
from conformance.verbs.wr import RecvWR, Remote, SendWR
from conformance.verdicts import LackingError

QKEY = 0x11111111
QUEUE_DEPTH = 16
CQ_DEPTH = 64

QP_TYPES = {
    Transport.RC: e.IBV_QPT_RC,
    Transport.UC: e.IBV_QPT_UC,
    Transport.UD: e.IBV_QPT_UD,
}

SEND_OPS = {
    Operation.SEND: e.IBV_QP_EX_WITH_SEND,
    Operation.SEND_WITH_IMM: e.IBV_QP_EX_WITH_SEND_WITH_IMM,
    Operation.RDMA_WRITE: e.IBV_QP_EX_WITH_RDMA_WRITE,
    Operation.RDMA_WRITE_WITH_IMM: e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    Operation.RDMA_READ: e.IBV_QP_EX_WITH_RDMA_READ,
    Operation.CMP_AND_SWP: e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    Operation.FETCH_AND_ADD: e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    Operation.SEND_WITH_INV: e.IBV_QP_EX_WITH_SEND_WITH_INV,
}

OPCODES = {
    Operation.SEND: e.IBV_WR_SEND,
    Operation.SEND_WITH_IMM: e.IBV_WR_SEND_WITH_IMM,
    Operation.RDMA_WRITE: e.IBV_WR_RDMA_WRITE,
    Operation.RDMA_WRITE_WITH_IMM: e.IBV_WR_RDMA_WRITE_WITH_IMM,
    Operation.RDMA_READ: e.IBV_WR_RDMA_READ,
    Operation.CMP_AND_SWP: e.IBV_WR_ATOMIC_CMP_AND_SWP,
    Operation.FETCH_AND_ADD: e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    Operation.SEND_WITH_INV: e.IBV_WR_SEND_WITH_INV,
}

REMOTE_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
"""Access that queue pairs grant; atomics are added where the transport and the device have them."""


class UnsupportedError(LackingError):
    """The device does not have this kind of link; the message says what it lacks."""


@dataclass(frozen=True)
class Peer:
    """What one side of a link must know of the other to be connected to it: plain data, wherever that side is."""

    qp_num: int
    lid: int
    gid: str | None  # None: it is addressed by LID, without a GRH
    mtu: int  # bytes
    srqn: int = 0  # of an XRC SRQ


class Queues:
    """One side of a link. Its lists of the kind's operations have up to `sges` segments, those of the other side one.

    Raises UnsupportedError where the device lacks the transport, the queue or the API; PyverbsError for what else
    goes wrong.
    """

    def __init__(self, context: Context, pd: PD, target: Target, kind: LinkKind, side: Side, sges: int) -> None:
        self._context = context
        self._pd = pd
        self._target = target
        self._able = capabilities(target)
        self._kind = kind
        self._sges = sges
        self._closing: list[Any] = []
        self._srq: SRQ | None = None
        self._ah: AH | None = None
        self._peer: Peer | None = None
        if kind.transport not in self._able.connected:
            text = f"{target.device.name} {self._able.why_not_others}"
            by = "" if self._able.connected else " that ibv_modify_qp connects"
            raise UnsupportedError(text, f"{kind.transport.name}{by}")
        self._making = "CQ-ex"
        """what the device lacks if the next queue cannot be had"""
        with self._complete_or_closed():
            self.cq = self._keep(CompletionQueue(context, CQ_DEPTH, kind.poll, kind.channel))
            self.qp = self._keep(self._requester() if side is Side.REQUESTER else self._responder())

    @contextmanager
    def _complete_or_closed(self) -> Iterator[None]:
        """Leave nothing behind if one of the queues cannot be had."""
        try:
            yield
        except UnsupportedError:
            self.close()
            raise
        except PyverbsRDMAError as error:
            self.close()
            if error.error_code in (errno.EOPNOTSUPP, errno.ENOSYS):
                text = f"{self._target.device.name} has no {self._words()}: {error}"
                raise UnsupportedError(text, self._making) from None
            raise

    def _words(self) -> str:
        words = [f"{self._kind.transport.name} queue pair"]
        if self._kind.queue is Queue.SRQ:
            words.append("with an SRQ")
        if self._kind.post is not Post.POST_SEND:
            words.append("with ibv_wr_*")
        if self._kind.poll is Poll.CQ_EX:
            words.append("on a CQ-ex")
        if self._kind.inline:
            words.append(f"with room for {INLINE_LENGTH} bytes inline")
        return " ".join(words)

    def _keep(self, resource: Any) -> Any:
        self._closing.append(resource)
        return resource

    def _requester(self) -> QP:
        inline = INLINE_LENGTH if self._kind.inline else 0
        self._making = self._kind.transport.name if self._kind.post is Post.POST_SEND else "ibv_wr_*"
        if self._kind.transport is Transport.XRC:
            cap = QPCap(QUEUE_DEPTH, 0, self._sges, 0, inline)
            return self._create_qp_ex(e.IBV_QPT_XRC_SEND, cap, self._kind.post)
        cap = QPCap(QUEUE_DEPTH, QUEUE_DEPTH, self._sges, 1, inline)
        return self._create_qp(cap, self._kind.post)

    def _responder(self) -> QP:
        if lacking := self._able.lacks_link(self._kind):
            raise UnsupportedError(f"{self._target.device.name} {lacking}", "SRQ")
        self._making = self._kind.transport.name
        if self._kind.transport is Transport.XRC:
            return self._create_xrc_responder()
        if self._kind.queue is Queue.SRQ:
            self._making = "SRQ"
            attr = SrqAttr(max_wr=QUEUE_DEPTH, max_sge=min(self._sges, self._able.max_srq_sge))
            self._srq = self._keep(SRQ(self._pd, SrqInitAttr(attr)))
            self._making = self._kind.transport.name
        return self._create_qp(QPCap(QUEUE_DEPTH, QUEUE_DEPTH, 1, self._sges), Post.POST_SEND)

    def _create_xrc_responder(self) -> QP:
        mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
        xrcd = self._keep(XRCD(self._context, XRCDInitAttr(mask, os.O_CREAT, -1)))
        attr = SrqInitAttrEx(max_wr=QUEUE_DEPTH, max_sge=min(self._sges, self._able.max_srq_sge))
        attr.srq_type = e.IBV_SRQT_XRC
        attr.pd = self._pd
        attr.xrcd = xrcd
        attr.cq = self.cq.cq
        attr.comp_mask = (
            e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_XRCD | e.IBV_SRQ_INIT_ATTR_CQ
        )
        self._srq = self._keep(SRQ(self._context, attr))
        responder = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=xrcd)
        return QP(self._context, responder)

    def _create_qp(self, cap: QPCap, post: Post) -> QP:
        """sq_sig_all is mostly set, as it is what lets mlx5 put the results of small READs and atomics into the CQE."""
        qp_type, cq = QP_TYPES[self._kind.transport], self.cq.cq
        if post is Post.POST_SEND:
            all_ = int(not self._kind.selective)
            return QP(self._pd, QPInitAttr(qp_type=qp_type, scq=cq, rcq=cq, srq=self._srq, cap=cap, sq_sig_all=all_))
        return self._create_qp_ex(qp_type, cap, post)

    def _create_qp_ex(self, qp_type: int, cap: QPCap, post: Post) -> QP:
        by_wr = post is not Post.POST_SEND
        attr = QPInitAttrEx(
            qp_type=qp_type,
            scq=self.cq.cq,
            rcq=self.cq.cq,
            srq=self._srq,
            cap=cap,
            sq_sig_all=int(not self._kind.selective),
            pd=self._pd,
            comp_mask=e.IBV_QP_INIT_ATTR_PD | (e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS if by_wr else 0),
            send_ops_flags=self._send_ops() if by_wr else 0,
        )
        return (QPEx if by_wr else QP)(self._context, attr)

    def _send_ops(self) -> int:
        flags = SEND_OPS[Operation.SEND_WITH_INV] if self._kind.invalidate else 0
        for operation in self._able.operations(self._kind.transport):
            flags |= SEND_OPS[operation]
        return flags

    def as_peer(self) -> Peer:
        """What the other side must know of this one."""
        port, gid = self._target.port, self._target.gid
        srqn = self._srq.get_srq_num() if self._srq and self._kind.transport is Transport.XRC else 0
        return Peer(self.qp.qp_num, port.lid, gid.gid if gid else None, port.mtu, srqn)

    def connect(self, peer: Peer) -> None:
        """To the state in which it sends and receives. Raises as the class does."""
        self._peer = peer
        self._making = self._kind.transport.name
        with self._complete_or_closed():
            if self._kind.transport is Transport.UD and self._ah is None:
                self._ah = self._keep(AH(self._pd, attr=self._ah_attr(peer)))
            self.qp.to_rts(self._qp_attr(peer))

    def move_to(self, state: int) -> None:
        """ibv_modify_qp to a state that needs nothing but its name. Raises PyverbsRDMAError."""
        self.qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)

    def _qp_attr(self, peer: Peer) -> QPAttr:
        attr = QPAttr(port_num=self._target.port.number)
        attr.pkey_index = self._target.pkey.index if self._target.pkey else 0
        attr.qkey = QKEY
        attr.qp_access_flags = self._access()
        attr.path_mtu = min(self._target.port.mtu, peer.mtu).bit_length() - 8  # enum ibv_mtu: 256 bytes are 1
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = 7
        attr.rnr_retry = 3
        if self._kind.transport is not Transport.UD:
            attr.dest_qp_num = peer.qp_num
            attr.ah_attr = self._ah_attr(peer)
        return attr

    def _access(self) -> int:
        if self._kind.transport is Transport.UD:
            return 0
        if self._kind.transport is Transport.UC:
            return int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        return int(REMOTE_ACCESS | (e.IBV_ACCESS_REMOTE_ATOMIC if self._able.atomics else 0))

    def _ah_attr(self, peer: Peer) -> AHAttr:
        target = self._target
        if peer.gid is None or target.gid is None:
            return AHAttr(port_num=target.port.number, dlid=peer.lid, sl=target.sl, is_global=0)
        route = GlobalRoute(dgid=GID(peer.gid), sgid_index=target.gid.index, traffic_class=target.traffic_class)
        return AHAttr(port_num=target.port.number, dlid=peer.lid, sl=target.sl, is_global=1, gr=route)

    def post_recv(self, *requests: RecvWR) -> None:
        """ibv_post_recv or ibv_post_srq_recv of one or of a chain. Raises PyverbsRDMAError if it is refused."""
        chain = [wr.RecvWR(one.wr_id, len(one.sges), [wr.SGE(*sge) for sge in one.sges]) for one in requests]
        _post_chain((self._srq or self.qp).post_recv, chain)

    def post_send(self, *requests: SendWR) -> None:
        """Post one or a chain to the send queue, by the kind's API. Raises PyverbsRDMAError if refused."""
        if self._kind.post is Post.POST_SEND:
            _post_chain(self.qp.post_send, [self._send_wr(one) for one in requests])
            return
        self.qp.wr_start()
        for one in requests:
            self._wr(one)
        self.qp.wr_complete()

    def _send_wr(self, one: SendWR) -> wr.SendWR:
        posted = wr.SendWR(
            one.wr_id,
            OPCODES[one.operation],
            len(one.sges),
            sg=[wr.SGE(*sge) for sge in one.sges],
            send_flags=_flags(one) | (e.IBV_SEND_INLINE if one.inline else 0),
            imm_data=one.invalidate or socket.htonl(one.imm_data or 0),  # one field of struct ibv_send_wr
        )
        if one.remote and one.operation.is_atomic:
            posted.set_wr_atomic(one.remote.rkey, one.remote.addr, one.compare_add, one.swap)
        elif one.remote:
            posted.set_wr_rdma(one.remote.rkey, one.remote.addr)
        if self._ah is not None and self._peer is not None:
            posted.set_wr_ud(self._ah, self._peer.qp_num, QKEY)
        if self._kind.transport is Transport.XRC and self._peer is not None:
            posted.set_qp_type_xrc(self._peer.srqn)
        return posted

    def _wr(self, one: SendWR) -> None:
        qp, operation = self.qp, one.operation
        qp.wr_id = one.wr_id
        qp.wr_flags = _flags(one)
        remote = one.remote or Remote(0, 0)
        if operation is Operation.SEND:
            qp.wr_send()
        elif operation is Operation.SEND_WITH_IMM:
            qp.wr_send_imm(one.imm_data)
        elif operation is Operation.SEND_WITH_INV:
            qp.wr_send_inv(one.invalidate)
        elif operation is Operation.RDMA_WRITE:
            qp.wr_rdma_write(remote.rkey, remote.addr)
        elif operation is Operation.RDMA_WRITE_WITH_IMM:
            qp.wr_rdma_write_imm(remote.rkey, remote.addr, one.imm_data)
        elif operation is Operation.RDMA_READ:
            qp.wr_rdma_read(remote.rkey, remote.addr)
        elif operation is Operation.CMP_AND_SWP:
            qp.wr_atomic_cmp_swp(remote.rkey, remote.addr, one.compare_add, one.swap)
        else:
            qp.wr_atomic_fetch_add(remote.rkey, remote.addr, one.compare_add)
        if self._ah is not None and self._peer is not None:
            qp.wr_set_ud_addr(self._ah, self._peer.qp_num, QKEY)
        if self._kind.transport is Transport.XRC and self._peer is not None:
            qp.wr_set_xrc_srqn(self._peer.srqn)
        sges = [wr.SGE(*sge) for sge in one.sges]
        if self._kind.post is Post.WR_SET_SGE:
            if len(sges) != 1:
                raise ValueError("ibv_wr_set_sge names one segment")
            if one.inline:
                qp.wr_set_inline_data(one.sges[0].addr, one.sges[0].length)
            else:
                qp.wr_set_sge(sges[0])
        elif one.inline:
            qp.wr_set_inline_data_list(len(sges), [DataBuffer(sge.addr, sge.length) for sge in one.sges])
        else:
            qp.wr_set_sge_list(len(sges), sges)

    def close(self) -> None:
        """Destroy everything, last made first; what a device in error refuses to destroy is left to its context."""
        while self._closing:
            close(self._closing.pop())


def _flags(one: SendWR) -> int:
    return int((e.IBV_SEND_SIGNALED if one.signaled else 0) | (e.IBV_SEND_SOLICITED if one.solicited else 0))


def _post_chain(post: Any, chain: Sequence[Any]) -> None:
    """Link pyverbs' work requests, post the first, and free them."""
    for index, one in enumerate(chain[1:]):
        chain[index].next_wr = one
    try:
        post(chain[0])
    finally:
        for one in chain:
            one.close()
