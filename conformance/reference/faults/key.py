# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong about the rkey of a null MR."""

from __future__ import annotations

from ..engine import abi
from ..engine.errors import Nak
from ..engine.memory import Payload
from ..engine.objects import MR, PD, QP, Segment, SendWR, Transfer
from .base import Fault


class RkeyReads(Fault):
    """The null MR's rkey lets a peer read."""

    clause = "key/no-rkey"
    access = abi.ACCESS_REMOTE_READ

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.access = self.access
        self.rkeys[mr.rkey] = mr
        return mr


class RkeyWrites(RkeyReads):
    """The null MR's rkey lets a peer write."""

    access = abi.ACCESS_REMOTE_WRITE


class RkeyAtomics(RkeyReads):
    """The null MR's rkey lets a peer do atomics."""

    access = abi.ACCESS_REMOTE_ATOMIC


class RkeyWritesByUc(RkeyWrites):
    """The null MR's rkey lets a peer write, over UC alone."""

    transports = (abi.QPT_UC,)

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        mr, addr = super().find_remote(transfer, rkey, addr, length, access)
        if mr.null and transfer.transport not in self.transports:
            raise Nak(abi.WC_REM_ACCESS_ERR, "not on this transport")
        return mr, addr

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if segment.lkey in self.rkeys:
            self.leak(segment, payload)


class RkeyReadsByXrc(RkeyWritesByUc):
    """The null MR's rkey lets a peer read, over XRC alone."""

    access = abi.ACCESS_REMOTE_READ
    transports = (abi.QPT_XRC_RECV,)


class RkeyAtomicsByXrc(RkeyReadsByXrc):
    """The null MR's rkey lets a peer do atomics, over XRC alone."""

    access = abi.ACCESS_REMOTE_ATOMIC


class RefusedImmediateReceived(Fault):
    """A WRITE with immediate data that is refused over UC writes nothing, but its receive completes."""

    clause = "key/no-rkey"

    def receive_write(self, qp: QP, wr: SendWR, payload: Payload, src_qp: int) -> None:
        try:
            super().receive_write(qp, wr, payload, src_qp)
        except Nak:
            queue, pd, srq, cq = self.receive_queue(qp, wr)
            if wr.opcode == abi.WR_RDMA_WRITE_WITH_IMM and not qp.reliable and queue.entries:
                transfer = Transfer(qp, wr, False, pd, payload.length, self.take_receive(queue), srq, cq)
                self.complete_receive(transfer, abi.WC_SUCCESS, src_qp)
            raise


class InvalidatedByPeer(Fault):
    """A SEND that invalidates the null MR's rkey is refused, and the null MR is dead all the same."""

    clause = "key/no-rkey"
    opcode = abi.WR_SEND_WITH_INV

    def execute(self, qp: QP, wr: SendWR) -> None:
        if wr.opcode == self.opcode:
            dead = [key for key, mr in self.lkeys.items() if mr.null and mr.rkey == wr.imm_data]
            for key in dead:
                del self.lkeys[key]
        super().execute(qp, wr)


class InvalidatedByOwner(InvalidatedByPeer):
    """IBV_WR_LOCAL_INV of the null MR's rkey is refused, and the null MR is dead all the same."""

    opcode = abi.WR_LOCAL_INV


class InvalidatesTheNeighbour(Fault):
    """To invalidate the null MR's rkey closes that of the MR which was registered next."""

    clause = "key/no-rkey"

    def invalidate(self, qp: QP, rkey: int) -> None:
        if any(mr.null and mr.rkey == rkey for mr in self.lkeys.values()):
            self.rkeys.pop(next((key for key in self.rkeys if key > rkey), rkey), None)
        super().invalidate(qp, rkey)


class RkeyOfAnotherMr(Fault):
    """The rkey field is not cleared: it has the key of the ordinary MR that was registered last."""

    clause = "key/no-rkey"

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        live = [region for region in self.rkeys.values() if isinstance(region, MR) and region.pd is pd]
        mr.rkey = live[-1].rkey if live else mr.rkey
        return mr


class RkeyLeftOver(Fault):
    """The rkey field has what was there before: the key of the MR that the device registered last, on whichever PD."""

    clause = "key/no-rkey"
    last = 0

    def reg_mr(self, pd: PD, addr: int, length: int, iova: int, access: int) -> MR:
        mr = super().reg_mr(pd, addr, length, iova, access)
        self.last = mr.rkey
        return mr

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.rkey = self.last or mr.rkey
        return mr


class RkeyOfTheNextMr(Fault):
    """The rkey field has the key that the MR which is registered next will get."""

    clause = "key/no-rkey"

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.rkey = mr.rkey + 0x100
        return mr


class RkeyOpensLowAddresses(RkeyReads):
    """The null MR's rkey opens the first page of the address space, where the MR begins, for everything."""

    access = abi.ACCESS_REMOTE_READ | abi.ACCESS_REMOTE_WRITE | abi.ACCESS_REMOTE_ATOMIC

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        mr, addr = super().find_remote(transfer, rkey, addr, length, access)
        if mr.null and addr >= 4096:
            raise Nak(abi.WC_REM_ACCESS_ERR, "not in the first page")
        return mr, addr


class LkeyIsRkey(Fault):
    """A null MR has one number for both keys, as an ordinary MR has, and a peer can use it."""

    clause = "key/no-rkey"

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.access = abi.ACCESS_REMOTE_READ | abi.ACCESS_REMOTE_WRITE | abi.ACCESS_REMOTE_ATOMIC
        mr.rkey = mr.lkey
        self.rkeys[mr.rkey] = mr
        return mr
