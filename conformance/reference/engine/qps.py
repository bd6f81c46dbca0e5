# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Queue pairs: creation, states, attributes, address handles."""

from __future__ import annotations

import errno
from typing import Any

from . import abi, states
from .errors import Refused
from .keys import Keys
from .objects import AH, CQ, PD, QP, SRQ, XRCD, AddressVector, Capabilities, Context, ReceiveQueue, SendWR
from .queues import Queues

_TYPES = (abi.QPT_RC, abi.QPT_UC, abi.QPT_UD, abi.QPT_XRC_SEND, abi.QPT_XRC_RECV)
_ATTRIBUTES = {"qp_state": abi.QPS_RESET, "path_mtu": abi.MTU_1024, "ah_attr": AddressVector()}
FIRST_QPN = 0x10
"""0 and 1 are the queue pairs of subnet management."""


class QueuePairs(Keys, Queues):
    def __init__(self) -> None:
        super().__init__()
        self.qps: dict[int, QP] = {}
        self._last_qpn = FIRST_QPN

    def create_qp(
        self,
        context: Context,
        pd: PD | None,
        qp_type: int,
        cap: Capabilities,
        send_cq: CQ | None,
        recv_cq: CQ | None,
        srq: SRQ | None,
        xrcd: XRCD | None,
        sq_sig_all: bool,
        extended: bool = False,
    ) -> QP:
        """ibv_create_qp(3), ibv_create_qp_ex(3). `extended` says that WRs may be posted by ibv_wr_start(3)."""
        if qp_type not in _TYPES:
            raise Refused(errno.EOPNOTSUPP, f"queue pair type {qp_type}")
        self.count(context, QP, self.attr.max_qp)
        if qp_type == abi.QPT_XRC_RECV:
            if xrcd is None:
                raise Refused(errno.EINVAL, "an XRC receive queue pair needs an XRC domain")
            pd = send_cq = recv_cq = srq = None
        elif pd is None or send_cq is None or (recv_cq is None and qp_type != abi.QPT_XRC_SEND):
            raise Refused(errno.EINVAL, "a queue pair needs a PD and CQs")
        self.check_cap(cap, bool(srq))
        self._last_qpn += 1
        qp = QP(
            context, pd, self.new_handle(), self._last_qpn, qp_type, cap, send_cq, recv_cq, srq, xrcd, sq_sig_all,
            ReceiveQueue(0 if srq else cap.max_recv_wr, cap.max_recv_sge), extended,
        )  # fmt: skip
        qp.attr = dict(_ATTRIBUTES)
        self.qps[qp.qp_num] = qp
        for used in (pd, send_cq, recv_cq, srq, xrcd):
            if used is not None:
                used.users.add(qp)
        return self.remember(context, qp)

    def check_cap(self, cap: Capabilities, shared: bool) -> None:
        limits = [
            ("max_send_wr", cap.max_send_wr, self.attr.max_qp_wr),
            ("max_send_sge", cap.max_send_sge, self.attr.max_sge),
            ("max_inline_data", cap.max_inline_data, self.attr.max_inline_data),
        ]
        if not shared:
            limits += [
                ("max_recv_wr", cap.max_recv_wr, self.attr.max_qp_wr),
                ("max_recv_sge", cap.max_recv_sge, self.attr.max_sge),
            ]
        for name, wanted, limit in limits:
            if wanted > limit:
                raise Refused(errno.EINVAL, f"{name} is {wanted}, the device has {limit}")

    def open_qp(self, xrcd: XRCD, qp_num: int) -> QP:
        """ibv_open_qp(3): an XRC receive queue pair that someone else created in the same domain."""
        qp = self.qps.get(qp_num)
        if qp is None or qp.qp_type != abi.QPT_XRC_RECV or qp.xrcd is not xrcd:
            raise Refused(errno.EINVAL, f"no XRC receive queue pair {qp_num:#x} in this domain")
        qp.opens += 1
        return qp

    def destroy_qp(self, qp: QP) -> None:
        qp.opens -= 1
        if qp.opens:
            return
        self.reset(qp)
        del self.qps[qp.qp_num]
        for used in (qp.pd, qp.send_cq, qp.recv_cq, qp.srq, qp.xrcd):
            if used is not None:
                used.users.discard(qp)
        qp.context.events.forget(qp)
        self.forget(qp.context, qp)

    def modify_qp(self, qp: QP, mask: int, attr: dict[str, Any]) -> None:
        """ibv_modify_qp(3); `attr` has the fields of struct ibv_qp_attr that `mask` names."""
        now = qp.state
        if mask & abi.QP_CUR_STATE and attr["cur_qp_state"] != now:
            raise Refused(errno.EINVAL, f"the state is {now}, not {attr['cur_qp_state']}")
        then = attr["qp_state"] if mask & abi.QP_STATE else now
        if objection := states.objection(qp.qp_type, now, then, mask):
            raise Refused(errno.EINVAL, objection)
        self.check_attributes(qp, attr)
        qp.attr.update(attr)
        qp.attr["qp_state"] = then
        qp.access_flags = qp.attr.get("qp_access_flags", 0)
        qp.peer = None
        if then == abi.QPS_RESET:
            self.reset(qp)
        elif then == abi.QPS_ERR:
            self.to_error(qp)
        else:
            qp.state = then
            if then == abi.QPS_RTS:
                self.run(qp)
            elif then == abi.QPS_SQD and now != then and attr.get("en_sqd_async_notify"):
                qp.context.events.put(abi.EVENT_SQ_DRAINED, qp)
            self.peer_changed(qp)

    def check_attributes(self, qp: QP, attr: dict[str, Any]) -> None:
        port_num = attr.get("port_num", qp.attr.get("port_num", 1))
        if not 1 <= port_num <= len(self.ports):
            raise Refused(errno.EINVAL, f"port {port_num}")
        port = self.ports[port_num - 1]
        if attr.get("pkey_index", 0) >= len(port.pkeys):
            raise Refused(errno.EINVAL, f"P_Key index {attr['pkey_index']}")
        if not abi.MTU_1024 - 2 <= attr.get("path_mtu", abi.MTU_1024) <= port.max_mtu:
            raise Refused(errno.EINVAL, f"path MTU {attr['path_mtu']}")
        for name in ("max_rd_atomic", "max_dest_rd_atomic"):
            if attr.get(name, 0) > self.attr.max_qp_rd_atom:
                raise Refused(errno.EINVAL, f"{name} {attr[name]}")
        if attr.get("dest_qp_num", 0) >> 24:
            raise Refused(errno.EINVAL, f"queue pair number {attr['dest_qp_num']:#x}")
        if "ah_attr" in attr:
            self.check_address(attr["ah_attr"])

    def check_address(self, av: AddressVector) -> None:
        if not 1 <= av.port_num <= len(self.ports):
            raise Refused(errno.EINVAL, f"port {av.port_num}")
        port = self.ports[av.port_num - 1]
        if not av.is_global:
            if port.link_layer == abi.LINK_LAYER_ETHERNET:
                raise Refused(errno.EINVAL, "RoCE needs a GRH (is_global)")
            if port.flags & abi.QPF_GRH_REQUIRED:
                raise Refused(errno.EINVAL, "the port needs a GRH (IBV_QPF_GRH_REQUIRED)")
        elif av.sgid_index >= len(port.gids):
            raise Refused(errno.EINVAL, f"GID index {av.sgid_index} is empty")

    def create_ah(self, pd: PD, av: AddressVector) -> AH:
        self.count(pd.context, AH, self.attr.max_ah)
        self.check_address(av)
        ah = AH(pd, self.new_handle(), av)
        pd.users.add(ah)
        return self.remember(pd.context, ah)

    def destroy_ah(self, ah: AH) -> None:
        ah.pd.users.discard(ah)
        self.forget(ah.pd.context, ah)

    def reset(self, qp: QP) -> None:
        """Nothing is left of what was posted, completed or set (IBTA 10.3.1.1)."""
        qp.state = abi.QPS_RESET
        self.stop_waiting(qp)
        for mw in list(qp.windows):
            self.unbind(mw)
        qp.sq.clear()
        qp.rq.entries.clear()
        qp.posted = qp.done = 0
        qp.attr = dict(_ATTRIBUTES)
        qp.access_flags = 0
        qp.peer = None
        self.purge(qp)

    def stop_waiting(self, qp: QP) -> None:
        if qp.waits_on is not None:
            qp.waits_on.waiting.pop(qp, None)
            qp.waits_on = None

    def to_error(self, qp: QP) -> None:
        """To the error state: what is posted completes with a flush error (IBTA 10.3.1.7)."""
        already = qp.state == abi.QPS_ERR
        qp.state = qp.attr["qp_state"] = abi.QPS_ERR
        self.stop_waiting(qp)
        while qp.sq:
            self.complete_send(qp, qp.sq.popleft(), abi.WC_WR_FLUSH_ERR)
        self.flush_receives(qp)
        if qp.srq is not None and not already:
            qp.context.events.put(abi.EVENT_QP_LAST_WQE_REACHED, qp)
        self.peer_changed(qp)

    # The parts that move data

    def run(self, qp: QP) -> None:
        raise NotImplementedError

    def peer_changed(self, qp: QP) -> None:
        raise NotImplementedError

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        raise NotImplementedError

    def flush_receives(self, qp: QP) -> None:
        raise NotImplementedError

    def purge(self, qp: QP) -> None:
        raise NotImplementedError
