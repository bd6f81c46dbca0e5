# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Connected pairs of queue pairs on one port, requester and responder, of every kind that a scenario can name."""

import errno
import os
import socket
from dataclasses import dataclass
from typing import Any

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

from conformance.capabilities import capabilities
from conformance.inventory import Target
from conformance.scenarios import LinkKind, Operation, Poll, Post, Queue, Transport
from conformance.verbs.closing import close
from conformance.verbs.completions import CompletionQueue
from conformance.verbs.names import e
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
}

OPCODES = {
    Operation.SEND: e.IBV_WR_SEND,
    Operation.SEND_WITH_IMM: e.IBV_WR_SEND_WITH_IMM,
    Operation.RDMA_WRITE: e.IBV_WR_RDMA_WRITE,
    Operation.RDMA_WRITE_WITH_IMM: e.IBV_WR_RDMA_WRITE_WITH_IMM,
    Operation.RDMA_READ: e.IBV_WR_RDMA_READ,
    Operation.CMP_AND_SWP: e.IBV_WR_ATOMIC_CMP_AND_SWP,
    Operation.FETCH_AND_ADD: e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}

REMOTE_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
"""Access that queue pairs grant; atomics are added where the transport and the device have them."""


class UnsupportedError(LackingError):
    """The device does not have this kind of link; the message says what it lacks."""


@dataclass(frozen=True)
class WorkRequest:
    """A send work request. `sges` are (addr, length, lkey); `remote` is (addr, rkey) for WRITE, READ and atomics."""

    operation: Operation
    sges: tuple[tuple[int, int, int], ...]
    imm_data: int | None = None
    remote: tuple[int, int] | None = None
    compare_add: int = 0
    swap: int = 0


def addressed_by_lid(target: Target) -> bool:
    return target.port.link_layer == "INFINIBAND"


class Link:
    """A connected pair. `send_sges` and `recv_sges` are the longest lists that it takes.

    Raises UnsupportedError where the device lacks the transport, the queue or the API; PyverbsError for what else
    goes wrong.
    """

    def __init__(self, context: Context, pd: PD, target: Target, kind: LinkKind, sges: int) -> None:
        self.kind = kind
        self._target = target
        self._able = capabilities(target)
        self._context = context
        self._pd = pd
        self._closing: list[Any] = []
        self._sges = sges
        self._ah: AH | None = None
        self._srq: SRQ | None = None
        self._srqn = 0
        try:
            self._build()
        except UnsupportedError:
            self.close()
            raise
        except PyverbsRDMAError as error:
            self.close()
            if error.error_code in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise UnsupportedError(f"{target.device.name} has no {self._words()}: {error}") from None
            raise

    def _words(self) -> str:
        words = [f"{self.kind.transport.name} queue pair"]
        if self.kind.queue is Queue.SRQ:
            words.append("with an SRQ")
        if self.kind.post is not Post.POST_SEND:
            words.append("with ibv_wr_*")
        if self.kind.poll is Poll.CQ_EX:
            words.append("on a CQ-ex")
        return " ".join(words)

    def _build(self) -> None:
        kind = self.kind
        if lacking := self._able.lacks_link(kind):
            raise UnsupportedError(f"{self._target.device.name} {lacking}")
        self.requester_cq = self._keep(CompletionQueue(self._context, CQ_DEPTH, kind.poll))
        self.responder_cq = self._keep(CompletionQueue(self._context, CQ_DEPTH, kind.poll))
        if kind.transport is Transport.XRC:
            self._build_xrc()
        else:
            if kind.queue is Queue.SRQ:
                attr = SrqAttr(max_wr=QUEUE_DEPTH, max_sge=min(self._sges, self._able.max_srq_sge))
                self._srq = self._keep(SRQ(self._pd, SrqInitAttr(attr)))
            self.responder = self._keep(self._create_qp(self.responder_cq, self._srq, Post.POST_SEND, requester=False))
            self.requester = self._keep(self._create_qp(self.requester_cq, None, kind.post, requester=True))
        if kind.transport is Transport.UD:
            self._ah = self._keep(AH(self._pd, attr=self._ah_attr()))
            for qp in (self.requester, self.responder):
                qp.to_rts(self._qp_attr(0))
        else:
            self.responder.to_rts(self._qp_attr(self.requester.qp_num))
            self.requester.to_rts(self._qp_attr(self.responder.qp_num))

    def _build_xrc(self) -> None:
        mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
        xrcd = self._keep(XRCD(self._context, XRCDInitAttr(mask, os.O_CREAT, -1)))
        attr = SrqInitAttrEx(max_wr=QUEUE_DEPTH, max_sge=min(self._sges, self._able.max_srq_sge))
        attr.srq_type = e.IBV_SRQT_XRC
        attr.pd = self._pd
        attr.xrcd = xrcd
        attr.cq = self.responder_cq.cq
        attr.comp_mask = (
            e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_XRCD | e.IBV_SRQ_INIT_ATTR_CQ
        )
        self._srq = self._keep(SRQ(self._context, attr))
        self._srqn = self._srq.get_srq_num()
        responder = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=xrcd)
        self.responder = self._keep(QP(self._context, responder))
        cap = QPCap(max_send_wr=QUEUE_DEPTH, max_recv_wr=0, max_send_sge=self._sges, max_recv_sge=0)
        self.requester = self._keep(
            self._create_qp_ex(e.IBV_QPT_XRC_SEND, self.requester_cq, None, cap, self.kind.post)
        )

    def _create_qp(self, cq: CompletionQueue, srq: SRQ | None, post: Post, requester: bool) -> QP:
        """sq_sig_all is set, as it is what lets mlx5 put the results of small READs and atomics into the CQE."""
        send_sges, recv_sges = (self._sges, 1) if requester else (1, self._sges)
        cap = QPCap(QUEUE_DEPTH, QUEUE_DEPTH, send_sges, recv_sges)
        qp_type = QP_TYPES[self.kind.transport]
        if post is Post.POST_SEND:
            return QP(self._pd, QPInitAttr(qp_type=qp_type, scq=cq.cq, rcq=cq.cq, srq=srq, cap=cap, sq_sig_all=1))
        return self._create_qp_ex(qp_type, cq, srq, cap, post)

    def _create_qp_ex(self, qp_type: int, cq: CompletionQueue, srq: SRQ | None, cap: QPCap, post: Post) -> QP:
        by_wr = post is not Post.POST_SEND
        attr = QPInitAttrEx(
            qp_type=qp_type,
            scq=cq.cq,
            rcq=cq.cq,
            srq=srq,
            cap=cap,
            sq_sig_all=1,
            pd=self._pd,
            comp_mask=e.IBV_QP_INIT_ATTR_PD | (e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS if by_wr else 0),
            send_ops_flags=self._send_ops() if by_wr else 0,
        )
        return (QPEx if by_wr else QP)(self._context, attr)

    def _send_ops(self) -> int:
        flags = 0
        for operation in self._able.operations(self.kind.transport):
            flags |= SEND_OPS[operation]
        return flags

    def _qp_attr(self, dest_qp_num: int) -> QPAttr:
        target = self._target
        attr = QPAttr(port_num=target.port.number)
        attr.pkey_index = 0
        attr.qkey = QKEY
        attr.qp_access_flags = self._access()
        attr.path_mtu = target.port.mtu.bit_length() - 8  # enum ibv_mtu: 256 bytes are 1
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = 7
        attr.rnr_retry = 3
        attr.dest_qp_num = dest_qp_num
        if self.kind.transport is not Transport.UD:
            attr.ah_attr = self._ah_attr()
        return attr

    def _access(self) -> int:
        if self.kind.transport is Transport.UD:
            return 0
        if self.kind.transport is Transport.UC:
            return int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        return int(REMOTE_ACCESS | (e.IBV_ACCESS_REMOTE_ATOMIC if self._able.atomics else 0))

    def _ah_attr(self) -> AHAttr:
        port, gid = self._target.port, self._target.gid
        if gid is None or addressed_by_lid(self._target):
            return AHAttr(port_num=port.number, dlid=port.lid, is_global=0)
        route = GlobalRoute(dgid=self._context.query_gid(port.number, gid.index), sgid_index=gid.index)
        return AHAttr(port_num=port.number, dlid=port.lid, is_global=1, gr=route)

    def _keep(self, resource: Any) -> Any:
        self._closing.append(resource)
        return resource

    def post_recv(self, wr_id: int, sges: tuple[tuple[int, int, int], ...]) -> None:
        """ibv_post_recv or ibv_post_srq_recv. Raises PyverbsRDMAError if it is refused."""
        wr = RecvWR(wr_id, len(sges), [SGE(*sge) for sge in sges])
        try:
            (self._srq or self.responder).post_recv(wr)
        finally:
            wr.close()

    def post(self, wr_id: int, request: WorkRequest) -> None:
        """Post to the requester's send queue, signaled. Raises PyverbsRDMAError if it is refused."""
        if self.kind.post is Post.POST_SEND:
            self._post_send(wr_id, request)
        else:
            self._wr_post(wr_id, request)

    def _post_send(self, wr_id: int, request: WorkRequest) -> None:
        wr = SendWR(
            wr_id,
            OPCODES[request.operation],
            len(request.sges),
            sg=[SGE(*sge) for sge in request.sges],
            send_flags=e.IBV_SEND_SIGNALED,
            imm_data=socket.htonl(request.imm_data or 0),
        )
        try:
            if request.remote and request.operation.is_atomic:
                wr.set_wr_atomic(request.remote[1], request.remote[0], request.compare_add, request.swap)
            elif request.remote:
                wr.set_wr_rdma(request.remote[1], request.remote[0])
            if self._ah is not None:
                wr.set_wr_ud(self._ah, self.responder.qp_num, QKEY)
            if self.kind.transport is Transport.XRC:
                wr.set_qp_type_xrc(self._srqn)
            self.requester.post_send(wr)
        finally:
            wr.close()

    def _wr_post(self, wr_id: int, request: WorkRequest) -> None:
        qp, operation = self.requester, request.operation
        qp.wr_start()
        qp.wr_id = wr_id
        qp.wr_flags = e.IBV_SEND_SIGNALED
        addr, rkey = request.remote or (0, 0)
        if operation is Operation.SEND:
            qp.wr_send()
        elif operation is Operation.SEND_WITH_IMM:
            qp.wr_send_imm(request.imm_data)
        elif operation is Operation.RDMA_WRITE:
            qp.wr_rdma_write(rkey, addr)
        elif operation is Operation.RDMA_WRITE_WITH_IMM:
            qp.wr_rdma_write_imm(rkey, addr, request.imm_data)
        elif operation is Operation.RDMA_READ:
            qp.wr_rdma_read(rkey, addr)
        elif operation is Operation.CMP_AND_SWP:
            qp.wr_atomic_cmp_swp(rkey, addr, request.compare_add, request.swap)
        else:
            qp.wr_atomic_fetch_add(rkey, addr, request.compare_add)
        if self._ah is not None:
            qp.wr_set_ud_addr(self._ah, self.responder.qp_num, QKEY)
        if self.kind.transport is Transport.XRC:
            qp.wr_set_xrc_srqn(self._srqn)
        sges = [SGE(*sge) for sge in request.sges]
        if self.kind.post is Post.WR_SET_SGE:
            if len(sges) != 1:
                raise ValueError("ibv_wr_set_sge names one segment")
            qp.wr_set_sge(sges[0])
        else:
            qp.wr_set_sge_list(len(sges), sges)
        qp.wr_complete()

    def close(self) -> None:
        """Destroy everything, last made first; what a device in error refuses to destroy is left to its context."""
        while self._closing:
            close(self._closing.pop())
