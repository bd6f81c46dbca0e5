# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a provider's library does in the program: refuse what the device should not see, count the room in the queues,
choose the keys of windows.

Where the library is a real one, none of this is called: what it posts is put into `qp.sq` and `queue.entries`, and
`run`, `wake` and `flush_receives` carry it out.
"""

from __future__ import annotations

import contextlib
import errno

from . import abi
from .errors import BadWorkRequest, Refused, WorkError
from .objects import CQ, CQE, MW, QP, SRQ, ReceiveQueue, RecvWR, SendWR
from .transfers import ATOMICS, OPCODES, Transfers


class Driver(Transfers):
    """The part in front of a device. `posted` and `done` of a queue pair are its."""

    # Send queues

    def post_send(self, qp: QP, wrs: list[SendWR]) -> None:
        """ibv_post_send(3). Raises BadWorkRequest at the first WR that is refused; those before it are posted."""
        try:
            for index, wr in enumerate(wrs):
                try:
                    self.check_send(qp, wr)
                except Refused as refused:
                    raise BadWorkRequest(refused.errno, str(refused), index) from refused
                self._append(qp, wr)
        finally:
            if qp.waits_on is None:
                self.run(qp)

    def post_batch(self, qp: QP, wrs: list[SendWR]) -> None:
        """ibv_wr_complete(3): all or, if one is refused, none."""
        for number, wr in enumerate(wrs):
            try:
                self.check_send(qp, wr)
            except Refused:
                for _ in range(number):
                    qp.sq.pop()
                qp.posted -= number
                raise
            self._append(qp, wr)
        if qp.waits_on is None:
            self.run(qp)

    def check_send(self, qp: QP, wr: SendWR) -> None:
        """What is checked before the device gets a send WR. Raises Refused."""
        if qp.state < abi.QPS_RTS:
            raise Refused(errno.EINVAL, f"the queue pair is in state {qp.state}")
        if wr.opcode not in OPCODES[qp.qp_type]:
            raise Refused(errno.EINVAL, f"no opcode {wr.opcode} on a queue pair of type {qp.qp_type}")
        self._check_depth(qp)
        sges = len(wr.sges)
        if sges > qp.cap.max_send_sge or (wr.opcode == abi.WR_RDMA_READ and sges > self.max_sge_rd):
            raise Refused(errno.EINVAL, f"{sges} SGEs")
        if wr.inline is not None:
            if len(wr.inline) > qp.cap.max_inline_data:
                raise Refused(errno.EINVAL, f"{len(wr.inline)} bytes inline of {qp.cap.max_inline_data}")
            if wr.opcode == abi.WR_RDMA_READ or wr.opcode in ATOMICS:
                raise Refused(errno.EINVAL, "inline data in a WR that receives")
        if qp.qp_type == abi.QPT_UD and wr.ah is None:
            raise Refused(errno.EINVAL, "no address handle")
        if wr.opcode == abi.WR_BIND_MW and (wr.mw is None or wr.mw.type != abi.MW_TYPE_2):
            raise Refused(errno.EINVAL, "only a type 2 window is bound by a posted WR")

    @property
    def max_sge_rd(self) -> int:
        """Some devices report 0 and mean 1."""
        return max(1, self.attr.max_sge_rd)

    def bind_mw(self, qp: QP, mw: MW, wr: SendWR) -> None:
        """ibv_bind_mw(3): type 1, which gets its new key at once and is bound in the order of the send queue."""
        if qp.qp_type not in (abi.QPT_RC, abi.QPT_UC, abi.QPT_XRC_SEND) or qp.state < abi.QPS_RTS:
            raise Refused(errno.EINVAL, "the queue pair cannot bind")
        self._check_depth(qp)
        if wr.bind_mr is not None and wr.bind_mr.null:
            with contextlib.suppress(WorkError):  # that is for the completion
                self.check_bind_to_null_mr(qp, mw, wr.bind_mr)
        wr.rkey = mw.rkey & ~0xFF | (mw.rkey + 1) & 0xFF
        self._append(qp, wr)
        if qp.waits_on is None:
            self.run(qp)

    def _check_depth(self, qp: QP) -> None:
        if qp.posted - qp.done >= qp.cap.max_send_wr:
            raise Refused(errno.ENOMEM, f"the send queue has its {qp.cap.max_send_wr} WRs")

    def _append(self, qp: QP, wr: SendWR) -> None:
        wr.index = qp.posted
        qp.posted += 1
        qp.sq.append(wr)

    # Receive queues

    def post_recv(self, qp: QP, wrs: list[RecvWR]) -> None:
        """ibv_post_recv(3)."""
        if qp.state == abi.QPS_RESET or qp.srq is not None or qp.qp_type in (abi.QPT_XRC_SEND, abi.QPT_XRC_RECV):
            raise BadWorkRequest(errno.EINVAL, f"the queue pair takes no receives in state {qp.state}", 0)
        try:
            self.post_receive(qp.rq, wrs)
        finally:
            if qp.state == abi.QPS_ERR:
                self.flush_receives(qp)
            elif qp.rq.waiting:
                self.wake(qp.rq)

    def post_srq_recv(self, srq: SRQ, wrs: list[RecvWR]) -> None:
        """ibv_post_srq_recv(3)."""
        try:
            self.post_receive(srq, wrs)
        finally:
            self.wake(srq)

    def post_receive(self, queue: ReceiveQueue, wrs: list[RecvWR]) -> None:
        """Append receive WRs. Raises BadWorkRequest at the first that cannot be."""
        for index, wr in enumerate(wrs):
            if len(wr.sges) > queue.max_sge:
                raise BadWorkRequest(errno.EINVAL, f"{len(wr.sges)} SGEs of at most {queue.max_sge}", index)
            if len(queue.entries) >= queue.max_wr:
                raise BadWorkRequest(errno.ENOMEM, f"the queue has its {queue.max_wr} WRs", index)
            queue.entries.append(wr)

    # Completion queues

    def poll_cq(self, cq: CQ, most: int) -> list[CQE]:
        """ibv_poll_cq(3): the oldest completions, at most this many. Each makes room in its send queue."""
        if cq.overrun:
            raise Refused(errno.EIO, "the CQ has overrun")
        entries = cq.entries
        polled: list[CQE] = []
        while entries and len(polled) < most:
            cqe = entries.popleft()
            if cqe.send_index is not None:
                cqe.qp.done = cqe.send_index + 1
            polled.append(cqe)
        return polled

    def purge(self, qp: QP) -> None:
        """Completions of a queue pair do not outlive its reset or destruction (IBTA 10.2.4.4, 10.3.1)."""
        for cq in {qp.send_cq, qp.recv_cq} | ({qp.srq.cq} if qp.srq else set()):
            if cq is not None and any(cqe.qp is qp for cqe in cq.entries):
                kept = [cqe for cqe in cq.entries if cqe.qp is not qp]
                cq.entries.clear()
                cq.entries.extend(kept)
