# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work requests carried out: requester, responder, and the bytes between them (IBTA 9.7, 10.7)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import abi, grh
from .errors import Nak, ReceiverNotReady, Refused, WorkError
from .memory import Gap, MemoryFault, Payload, Piece, Zeros
from .objects import CQE, MR, PD, QP, SGE, SRQ, ReceiveQueue, Segment, SendWR, Transfer
from .qps import QueuePairs

_T = TypeVar("_T")

ATOMIC_LENGTH = 8
INFINITE_RNR_RETRY = 7
_WITH_IMM = (abi.WR_SEND_WITH_IMM, abi.WR_RDMA_WRITE_WITH_IMM)
_SENDS = (abi.WR_SEND, abi.WR_SEND_WITH_IMM, abi.WR_SEND_WITH_INV)
_WRITES = (abi.WR_RDMA_WRITE, abi.WR_RDMA_WRITE_WITH_IMM)
_WINDOWS = (abi.WR_LOCAL_INV, abi.WR_BIND_MW)
ATOMICS = (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD)
_RELIABLE = (*_SENDS, *_WRITES, abi.WR_RDMA_READ, *ATOMICS, *_WINDOWS)
# What a queue pair of each type can post (IBTA table 34; ibv_post_send(3)).
OPCODES: dict[int, tuple[int, ...]] = {
    abi.QPT_RC: _RELIABLE,
    abi.QPT_UC: (*_SENDS, *_WRITES, *_WINDOWS),
    abi.QPT_UD: (abi.WR_SEND, abi.WR_SEND_WITH_IMM),
    abi.QPT_XRC_SEND: _RELIABLE,
    abi.QPT_XRC_RECV: (),
}
WC_OPCODE = {
    abi.WR_SEND: abi.WC_SEND,
    abi.WR_SEND_WITH_IMM: abi.WC_SEND,
    abi.WR_SEND_WITH_INV: abi.WC_SEND,
    abi.WR_RDMA_WRITE: abi.WC_RDMA_WRITE,
    abi.WR_RDMA_WRITE_WITH_IMM: abi.WC_RDMA_WRITE,
    abi.WR_RDMA_READ: abi.WC_RDMA_READ,
    abi.WR_ATOMIC_CMP_AND_SWP: abi.WC_COMP_SWAP,
    abi.WR_ATOMIC_FETCH_AND_ADD: abi.WC_FETCH_ADD,
    abi.WR_LOCAL_INV: abi.WC_LOCAL_INV,
    abi.WR_BIND_MW: abi.WC_BIND_MW,
}
_CAN_RECEIVE = (abi.QPS_RTR, abi.QPS_RTS, abi.QPS_SQD, abi.QPS_SQE)


class Transfers(QueuePairs):
    """The part of a device that carries out work requests. It trusts no driver: what cannot be done is an error in the
    completion.

    The methods that touch null segments are `read_null` and `write_null`; `gather` and `scatter` walk SGE lists;
    `complete_send` and `complete_receive` report.
    """

    # The requester

    def run(self, qp: QP) -> None:
        """Carry out what is in the send queue, in order, until it is empty or must wait."""
        while qp.sq:
            if qp.state in (abi.QPS_ERR, abi.QPS_SQE):
                self.complete_send(qp, qp.sq.popleft(), abi.WC_WR_FLUSH_ERR)
                continue
            if qp.state != abi.QPS_RTS:
                return
            wr = qp.sq.popleft()
            status = abi.WC_SUCCESS
            try:
                self.execute(qp, wr)
            except ReceiverNotReady as busy:
                if qp.attr.get("rnr_retry") == INFINITE_RNR_RETRY:
                    qp.sq.appendleft(wr)
                    self.wait_for(qp, busy.queue)
                    return
                status = abi.WC_RNR_RETRY_EXC_ERR
            except WorkError as error:
                status = error.status
            self.complete_send(qp, wr, status)
            if status:
                self.stop_sending(qp)

    def execute(self, qp: QP, wr: SendWR) -> None:
        """Carry out one send WR. Raises WorkError, or ReceiverNotReady if the peer has no receive WR for it."""
        opcode = wr.opcode
        if opcode not in OPCODES[qp.qp_type]:
            raise WorkError(abi.WC_LOC_QP_OP_ERR, f"no opcode {opcode} on a queue pair of type {qp.qp_type}")
        if opcode in _SENDS:
            self.send(qp, wr)
        elif opcode in _WRITES:
            self.rdma_write(qp, wr)
        elif opcode == abi.WR_RDMA_READ:
            self.rdma_read(qp, wr)
        elif opcode in ATOMICS:
            self.atomic(qp, wr)
        elif opcode == abi.WR_LOCAL_INV:
            self.local_invalidate(qp, wr)
        else:
            self.bind_window(qp, wr)

    def wait_for(self, qp: QP, queue: object) -> None:
        assert isinstance(queue, ReceiveQueue)
        queue.waiting[qp] = None
        qp.waits_on = queue

    def stop_sending(self, qp: QP) -> None:
        """After an error: a reliable queue pair goes to ERR; the send queue of others to SQE (IBTA 10.3.1.6)."""
        if qp.reliable:
            self.to_error(qp)
        elif qp.state != abi.QPS_ERR:
            qp.state = qp.attr["qp_state"] = abi.QPS_SQE

    def peer_changed(self, qp: QP) -> None:
        """Senders that wait for a receive WR of this queue pair look again: it may be gone."""
        for waiting in list(qp.rq.waiting):
            if qp.state not in _CAN_RECEIVE:
                waiting.device.stop_waiting(waiting)
                waiting.device.run(waiting)

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        """Report a send WR, if it was to be reported or failed."""
        if status or qp.sq_sig_all or wr.flags & abi.SEND_SIGNALED:
            assert qp.send_cq is not None
            cqe = CQE(wr.wr_id, status, WC_OPCODE.get(wr.opcode, abi.WC_SEND), qp)
            cqe.send_index = wr.index
            if wr.opcode in ATOMICS:
                cqe.byte_len = ATOMIC_LENGTH
            elif wr.opcode == abi.WR_RDMA_READ:
                cqe.byte_len = sum([sge.length for sge in wr.sges]) & 0xFFFFFFFF
            self.complete(qp.send_cq, cqe)

    def outgoing(self, qp: QP, wr: SendWR) -> Payload:
        """The message of a SEND or RDMA WRITE, gathered."""
        if wr.inline is not None:
            self.check_length(qp, wr, len(wr.inline))
            return Payload(wr.inline)
        assert qp.pd is not None
        length = 0
        for sge in wr.sges:
            length += sge.length
        self.check_length(qp, wr, length)
        return self.gather(Transfer(qp, wr, True, qp.pd, length, cq=qp.send_cq), wr.sges)

    def check_length(self, qp: QP, wr: SendWR, length: int) -> None:
        port = self.ports[qp.attr["port_num"] - 1]
        if length > (port.mtu if qp.qp_type == abi.QPT_UD else port.max_msg_sz):
            raise WorkError(abi.WC_LOC_LEN_ERR, f"a message of {length} bytes")

    def deliver(self, qp: QP, wr: SendWR, respond: Callable[[QP], _T]) -> _T | None:
        """Let the peer respond. An unreliable message may be lost: the requester does not hear of it."""
        peer = self.find_peer(qp, wr)
        if peer is None:
            return None
        try:
            return respond(peer)
        except (Nak, ReceiverNotReady):
            if qp.reliable:
                raise
            return None

    def find_peer(self, qp: QP, wr: SendWR) -> QP | None:
        """The queue pair at the other end, if it can receive."""
        if wr.ah is not None:
            return self.datagram_peer(qp, wr)
        peer = qp.peer
        if peer is None:
            device = self.route(qp.attr["ah_attr"])
            peer = qp.peer = device.qps.get(qp.attr["dest_qp_num"]) if device is not None else None
        expected = abi.QPT_XRC_RECV if qp.qp_type == abi.QPT_XRC_SEND else qp.qp_type
        if (
            peer is None
            or peer.state not in _CAN_RECEIVE
            or peer.qp_type != expected
            or peer.attr["dest_qp_num"] != qp.qp_num
            or not self.same_partition(qp, peer)
        ):
            qp.peer = None
            if qp.reliable:
                raise WorkError(abi.WC_RETRY_EXC_ERR, "nobody answers")
            return None
        return peer

    def datagram_peer(self, qp: QP, wr: SendWR) -> QP | None:
        assert wr.ah is not None
        device = self.route(wr.ah.av)
        peer = device.qps.get(wr.remote_qpn) if device is not None else None
        if peer is None or peer.qp_type != abi.QPT_UD or peer.state not in _CAN_RECEIVE:
            return None
        if not self.same_partition(qp, peer):
            return None
        qkey = qp.attr["qkey"] if wr.remote_qkey >> 31 else wr.remote_qkey
        return peer if qkey == peer.attr["qkey"] else None

    def same_partition(self, qp: QP, peer: QP) -> bool:
        """Do their P_Keys match? A packet with another one is dropped (IBTA 10.9.3)."""
        one, other = self.pkey_of(qp), peer.device.pkey_of(peer)
        return (one ^ other) & abi.PKEY_PARTITION == 0 and bool((one | other) & abi.PKEY_FULL)

    def pkey_of(self, qp: QP) -> int:
        return int(self.ports[qp.attr["port_num"] - 1].pkeys[qp.attr["pkey_index"]])

    def route(self, av: Any) -> Any:
        raise NotImplementedError

    def send(self, qp: QP, wr: SendWR) -> None:
        payload = self.outgoing(qp, wr)
        if wr.ah is not None:
            port = self.ports[wr.ah.av.port_num - 1]
            header: Piece = Gap(grh.LENGTH)
            if wr.ah.av.is_global:
                header = grh.build(port.gids[wr.ah.av.sgid_index], wr.ah.av, payload.length)
            payload = Payload(header, *payload.pieces)
        self.deliver(qp, wr, lambda peer: peer.device.receive(peer, wr, payload, qp.qp_num))

    def rdma_write(self, qp: QP, wr: SendWR) -> None:
        payload = self.outgoing(qp, wr)
        self.deliver(qp, wr, lambda peer: peer.device.receive_write(peer, wr, payload, qp.qp_num))

    def rdma_read(self, qp: QP, wr: SendWR) -> None:
        assert qp.pd is not None
        length = sum([sge.length for sge in wr.sges])
        self.check_length(qp, wr, length)
        if not qp.attr.get("max_rd_atomic"):
            raise WorkError(abi.WC_LOC_QP_OP_ERR, "max_rd_atomic is 0")
        payload = self.deliver(qp, wr, lambda peer: peer.device.respond_read(peer, wr, length))
        assert payload is not None, "only reliable queue pairs read"
        self.scatter(Transfer(qp, wr, True, qp.pd, length, cq=qp.send_cq), wr.sges, payload)

    def atomic(self, qp: QP, wr: SendWR) -> None:
        assert qp.pd is not None
        if not qp.attr.get("max_rd_atomic"):
            raise WorkError(abi.WC_LOC_QP_OP_ERR, "max_rd_atomic is 0")
        if sum([sge.length for sge in wr.sges]) < ATOMIC_LENGTH:
            raise WorkError(abi.WC_LOC_LEN_ERR, "no room for the 8 bytes of an atomic result")
        payload = self.deliver(qp, wr, lambda peer: peer.device.respond_atomic(peer, wr))
        assert payload is not None, "only reliable queue pairs have atomics"
        self.scatter(Transfer(qp, wr, True, qp.pd, ATOMIC_LENGTH, cq=qp.send_cq), wr.sges, payload)

    def local_invalidate(self, qp: QP, wr: SendWR) -> None:
        self.invalidate(qp, wr.imm_data)

    def bind_window(self, qp: QP, wr: SendWR) -> None:
        assert wr.mw is not None
        try:
            self.bind(qp, wr.mw, wr.bind_mr, wr.rkey, wr.bind_addr, wr.bind_length, wr.bind_access)
        except Refused as refused:
            raise WorkError(abi.WC_MW_BIND_ERR, str(refused)) from refused

    # The responder

    def receive_queue(self, qp: QP, wr: SendWR) -> tuple[ReceiveQueue, PD, SRQ | None, Any]:
        """Where a message to this queue pair finds its receive WR: queue, PD of its SGEs, SRQ, CQ."""
        if qp.qp_type == abi.QPT_XRC_RECV:
            srq = self.srqs.get(wr.remote_srqn)
            if srq is None or srq.type != abi.SRQT_XRC or srq.xrcd is not qp.xrcd:
                raise Nak(abi.WC_REM_INV_REQ_ERR, f"no SRQ {wr.remote_srqn} in the XRC domain")
            return srq, srq.pd, srq, srq.cq
        assert qp.pd is not None
        return qp.srq or qp.rq, qp.pd, qp.srq, qp.recv_cq

    def receive(self, qp: QP, wr: SendWR, payload: Payload, src_qp: int) -> None:
        """A SEND has come: it takes a receive WR."""
        try:
            queue, pd, srq, cq = self.receive_queue(qp, wr)
        except Nak:
            self.refuse(qp, abi.EVENT_QP_REQ_ERR)
            raise
        if not queue.entries:
            raise ReceiverNotReady(queue)
        recv = self.take_receive(queue)
        transfer = Transfer(qp, wr, False, pd, payload.length, recv, srq, cq)
        try:
            self.scatter(transfer, recv.sges, payload)
            if wr.opcode == abi.WR_SEND_WITH_INV:
                self.invalidate(qp, wr.imm_data)
        except WorkError as error:
            self.complete_receive(transfer, error.status, src_qp)
            self.to_error(qp)
            too_long = error.status == abi.WC_LOC_LEN_ERR
            raise Nak(abi.WC_REM_INV_REQ_ERR if too_long else abi.WC_REM_OP_ERR, str(error)) from error
        self.complete_receive(transfer, abi.WC_SUCCESS, src_qp)

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        """Report the receive WR that a message took."""
        wr, recv, cq = transfer.wr, transfer.recv, transfer.cq
        assert recv is not None
        assert cq is not None
        opcode = abi.WC_RECV_RDMA_WITH_IMM if wr.opcode == abi.WR_RDMA_WRITE_WITH_IMM else abi.WC_RECV
        cqe = CQE(recv.wr_id, status, opcode, transfer.qp, transfer.length & 0xFFFFFFFF)
        if wr.opcode in _WITH_IMM:
            cqe.imm_data = wr.imm_data
            cqe.wc_flags = abi.WC_WITH_IMM
        elif wr.opcode == abi.WR_SEND_WITH_INV:
            cqe.imm_data = wr.imm_data
            cqe.wc_flags = abi.WC_WITH_INV
        cqe.src_qp = src_qp
        if wr.ah is not None and wr.ah.av.is_global:
            cqe.wc_flags |= abi.WC_GRH
        self.complete(cq, cqe, bool(wr.flags & abi.SEND_SOLICITED))

    def flush_receives(self, qp: QP) -> None:
        while qp.rq.entries:
            assert qp.recv_cq is not None
            recv = qp.rq.entries.popleft()
            self.complete(qp.recv_cq, CQE(recv.wr_id, abi.WC_WR_FLUSH_ERR, abi.WC_RECV, qp))

    def refuse(self, qp: QP, event: int) -> None:
        """A peer asked for what it may not have: a reliable queue pair goes to ERR and says so (IBTA 9.9.3)."""
        if qp.reliable:
            qp.context.events.put(event, qp)
            self.to_error(qp)

    def remote_access(self, transfer: Transfer, access: int, length: int) -> tuple[MR, Segment] | None:
        """What a one-sided request reaches in this device's memory; None if it has no bytes. Raises Nak."""
        wr = transfer.wr
        try:
            if not transfer.qp.access_flags & access:
                raise Nak(abi.WC_REM_INV_REQ_ERR, f"the queue pair does not allow access {access:#x}")
            if not length:
                return None
            mr, addr = self.find_remote(transfer, wr.rkey, wr.remote_addr, length, access)
            return mr, Segment(addr, length, wr.rkey, 0, 0)
        except Nak as nak:
            invalid = nak.status == abi.WC_REM_INV_REQ_ERR
            self.refuse(transfer.qp, abi.EVENT_QP_REQ_ERR if invalid else abi.EVENT_QP_ACCESS_ERR)
            raise

    def receive_write(self, qp: QP, wr: SendWR, payload: Payload, src_qp: int) -> None:
        """An RDMA WRITE has come."""
        queue, pd, srq, cq = self.receive_queue(qp, wr)
        transfer = Transfer(qp, wr, False, pd, payload.length, None, srq, cq)
        found = self.remote_access(transfer, abi.ACCESS_REMOTE_WRITE, payload.length)
        with_imm = wr.opcode == abi.WR_RDMA_WRITE_WITH_IMM
        if with_imm and not queue.entries:
            raise ReceiverNotReady(queue)
        if found is not None:
            self.write_remote(transfer, *found, payload)
        if with_imm:
            transfer.recv = self.take_receive(queue)
            self.complete_receive(transfer, abi.WC_SUCCESS, src_qp)

    def respond_read(self, qp: QP, wr: SendWR, length: int) -> Payload:
        """An RDMA READ has come: answer with the bytes."""
        _, pd, srq, _ = self.receive_queue(qp, wr)
        if not qp.attr.get("max_dest_rd_atomic"):
            self.refuse(qp, abi.EVENT_QP_REQ_ERR)
            raise Nak(abi.WC_REM_INV_REQ_ERR, "max_dest_rd_atomic is 0")
        transfer = Transfer(qp, wr, False, pd, length, srq=srq)
        found = self.remote_access(transfer, abi.ACCESS_REMOTE_READ, length)
        return Payload(self.read_remote(transfer, *found)) if found is not None else Payload()

    def respond_atomic(self, qp: QP, wr: SendWR) -> Payload:
        """An atomic has come: answer with the old value of the word, in the order of the host's bytes."""
        _, pd, srq, _ = self.receive_queue(qp, wr)
        if wr.remote_addr % ATOMIC_LENGTH or not qp.attr.get("max_dest_rd_atomic"):
            self.refuse(qp, abi.EVENT_QP_REQ_ERR)
            raise Nak(abi.WC_REM_INV_REQ_ERR, "an atomic needs an aligned word and a max_dest_rd_atomic")
        transfer = Transfer(qp, wr, False, pd, ATOMIC_LENGTH, srq=srq)
        found = self.remote_access(transfer, abi.ACCESS_REMOTE_ATOMIC, ATOMIC_LENGTH)
        assert found is not None
        old = bytes(Payload(self.read_remote(transfer, *found)))
        new = self.atomic_result(wr, int.from_bytes(old, sys.byteorder))
        self.write_remote(transfer, *found, Payload(new.to_bytes(ATOMIC_LENGTH, sys.byteorder)))
        return Payload(old)

    def atomic_result(self, wr: SendWR, old: int) -> int:
        """What an atomic leaves in the word (IBTA 9.4.5)."""
        if wr.opcode == abi.WR_ATOMIC_FETCH_AND_ADD:
            return (old + wr.compare_add) % 2**64
        return wr.swap if old == wr.compare_add else old

    # Bytes

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        """The message that a gather list makes. Raises WorkError."""
        payload = Payload()
        for index, (addr, length, lkey) in enumerate(sges):
            if not length:
                continue
            segment = Segment(addr, length, lkey, index, payload.length)
            mr = self.find_local(transfer, segment, False)
            if mr.null:
                payload.append(self.read_null(transfer, segment))
            else:
                payload.append(self.read_ordinary(transfer, mr, segment))
        return payload

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        """Put a message where a scatter list says. Segments before a bad one are written. Raises WorkError."""
        self.check_room(transfer, sges, payload)
        rest = payload.length
        offset = 0
        for index, (addr, length, lkey) in enumerate(sges):
            if not rest:
                return
            if not length:
                continue
            if length > rest:
                length = rest
            segment = Segment(addr, length, lkey, index, offset)
            mr = self.find_local(transfer, segment, True)
            if mr.null:
                self.write_null(transfer, segment, payload)
            else:
                self.write_ordinary(transfer, mr, segment, payload)
            offset += length
            rest -= length

    def check_room(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        room = 0
        for sge in sges:
            room += sge.length
        if room < payload.length:
            raise WorkError(abi.WC_LOC_LEN_ERR, f"a message of {payload.length} bytes, room for {room}")

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        """What is read from a null MR: ibv_alloc_null_mr(3)."""
        return Zeros(segment.length)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        """What becomes of data written to a null MR: nothing (ibv_alloc_null_mr(3))."""

    def read_ordinary(self, transfer: Transfer, mr: MR, segment: Segment) -> Piece:
        try:
            return self.memory.read(mr.virtual(segment.addr), segment.length)
        except MemoryFault as fault:
            raise WorkError(abi.WC_LOC_PROT_ERR, f"{segment}: the memory is gone") from fault

    def write_ordinary(self, transfer: Transfer, mr: MR, segment: Segment, payload: Payload) -> None:
        try:
            self.write_pieces(mr.virtual(segment.addr), payload, segment.offset, segment.length)
        except MemoryFault as fault:
            raise WorkError(abi.WC_LOC_PROT_ERR, f"{segment}: the memory is gone") from fault

    def read_remote(self, transfer: Transfer, mr: MR, segment: Segment) -> Piece:
        """The bytes that a peer asked for."""
        if mr.null:
            return self.read_null(transfer, segment)
        try:
            return self.memory.read(mr.virtual(segment.addr), segment.length)
        except MemoryFault as fault:
            raise Nak(abi.WC_REM_OP_ERR, f"{segment}: the memory is gone") from fault

    def write_remote(self, transfer: Transfer, mr: MR, segment: Segment, payload: Payload) -> None:
        """The bytes that a peer sent."""
        if mr.null:
            self.write_null(transfer, segment, payload)
            return
        try:
            self.write_pieces(mr.virtual(segment.addr), payload, 0, segment.length)
        except MemoryFault as fault:
            raise Nak(abi.WC_REM_OP_ERR, f"{segment}: the memory is gone") from fault

    def write_pieces(self, address: int, payload: Payload, offset: int, length: int) -> None:
        """Part of a message to memory. Raises MemoryFault."""
        for piece in payload.part(offset, length):
            if isinstance(piece, Zeros):
                self.memory.zero(address, len(piece))
            elif not isinstance(piece, Gap):
                self.memory.write(address, piece)
            address += len(piece)
