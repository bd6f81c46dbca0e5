# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices that are wrong about null MRs, each in one way: what the conformance suite must catch.

A fault is a class that is put in front of the engine's Device. Its docstring says what is wrong and on which path,
`clause` which requirement that breaks. Its name in `FAULTS` is that of the class with hyphens.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import time
from typing import Any

from .engine import abi
from .engine.device import Device
from .engine.errors import Refused, WorkError
from .engine.memory import MemoryFault, Payload, Piece, Zeros, as_bytes
from .engine.objects import MR, MW, PD, QP, SGE, Segment, SendWR, Transfer

_GARBAGE = b"\xa5"


class Fault(Device):
    clause: str

    def leak(self, segment: Segment, payload: Payload) -> None:
        """Write a segment's part of a message to the address that the segment names, if there is memory."""
        with contextlib.suppress(MemoryFault):
            self.write_pieces(segment.addr, payload, segment.offset, segment.length)


# allocate


class AllocFails(Fault):
    """ibv_alloc_null_mr always fails with ENOMEM."""

    clause = "allocate/returns-mr"

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(errno.ENOMEM, "no null MR")


class LengthTruncated(Fault):
    """The MR says that it covers 4 GiB."""

    clause = "allocate/max-length"

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.length = 2**32
        return mr


class AddressZeroRefused(Fault):
    """A segment at address 0 is taken for a missing one."""

    clause = "allocate/max-length"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and segment.addr == 0:
            raise WorkError(abi.WC_LOC_PROT_ERR, "address 0")
        return mr


class HighAddressesRefused(Fault):
    """Addresses are checked as signed numbers: the upper half of them is refused."""

    clause = "allocate/max-length"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and segment.addr >> 63:
            raise WorkError(abi.WC_LOC_PROT_ERR, "a negative address")
        return mr


class UnmappedAddressesRefused(Fault):
    """The page of the segment's address is looked up though nothing is to be transferred."""

    clause = "allocate/max-length"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null:
            try:
                self.memory.read(segment.addr, 1)
            except MemoryFault as fault:
                raise WorkError(abi.WC_LOC_PROT_ERR, f"no memory at {fault}") from fault
        return mr


class LkeyRefusedForReads(Fault):
    """The lkey lacks local write permission where an RDMA READ checks it."""

    clause = "allocate/lkey-valid"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and transfer.requester and transfer.opcode == abi.WR_RDMA_READ:
            raise WorkError(abi.WC_LOC_PROT_ERR, "no local write access")
        return mr


class LkeyRefusedInLists(Fault):
    """The lkey is known only in the first element of a list."""

    clause = "allocate/lkey-valid"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and segment.index:
            raise WorkError(abi.WC_LOC_PROT_ERR, "the null lkey is not in the first SGE")
        return mr


class SecondAllocFails(Fault):
    """A PD can have one null MR only."""

    clause = "allocate/coexist"

    def alloc_null_mr(self, pd: PD) -> MR:
        if any(isinstance(user, MR) and user.null for user in pd.users):
            raise Refused(errno.EBUSY, "the PD has a null MR")
        return super().alloc_null_mr(pd)


class SecondAllocKillsFirst(Fault):
    """A new null MR takes the place of the one before it."""

    clause = "allocate/coexist"

    def alloc_null_mr(self, pd: PD) -> MR:
        for mr in [mr for mr in self.lkeys.values() if mr.null]:
            del self.lkeys[mr.lkey]
        return super().alloc_null_mr(pd)


class ErrnoUnset(Fault):
    """A device without null MRs returns NULL and leaves errno as it was."""

    clause = "allocate/fails-cleanly"

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(0, "no null MR")


class ErrnoNegative(Fault):
    """A device without null MRs sets errno to the kernel's -EOPNOTSUPP."""

    clause = "allocate/fails-cleanly"

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(-errno.EOPNOTSUPP, "no null MR")


class FailedAllocHoldsPd(Fault):
    """A device without null MRs says so, but only after it took a reference to the PD."""

    clause = "allocate/fails-cleanly"

    def alloc_null_mr(self, pd: PD) -> MR:
        pd.users.add(super().new_null_mr(pd))
        raise Refused(errno.EOPNOTSUPP, "no null MR")


# read


class ReadsGarbage(Fault):
    """Nothing is zeroed: what is gathered from a null MR is whatever a buffer in the device held."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return _GARBAGE * segment.length


class ReadsTheAddress(Fault):
    """The lkey is translated: memory at the segment's address is sent, where there is any."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        try:
            return self.memory.read(segment.addr, segment.length)
        except MemoryFault:
            return Zeros(segment.length)


class StaleBytes(Fault):
    """The bytes of the message before are sent again in place of zeros."""

    clause = "read/zeros"
    last = b""

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        payload = super().gather(transfer, sges)
        if 0 < payload.length <= 2**20:
            self.last = bytes(payload)
        return payload

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        stale = self.last[segment.offset : segment.offset + segment.length]
        return stale.ljust(segment.length, b"\0") if segment.length <= 2**20 else Zeros(segment.length)


class ZeroOnlyFirstMtu(Fault):
    """Only the first packet of a message is zeroed."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        mtu = self.ports[0].mtu
        good = max(0, min(segment.length, mtu - segment.offset))
        return bytes(good) + _GARBAGE * (segment.length - good)


class WrongForWritesOnly(Fault):
    """Zeros for SENDs, garbage for RDMA WRITEs."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if transfer.opcode in (abi.WR_RDMA_WRITE, abi.WR_RDMA_WRITE_WITH_IMM):
            return _GARBAGE * segment.length
        return super().read_null(transfer, segment)


class WrongWithImmediateOnly(Fault):
    """Zeros, but garbage in messages with immediate data."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return _GARBAGE * segment.length if transfer.with_imm else super().read_null(transfer, segment)


class WrongByWrStartOnly(Fault):
    """Zeros for what ibv_post_send posts, garbage for what ibv_wr_start and its family post."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return _GARBAGE * segment.length if transfer.wr.extended else super().read_null(transfer, segment)


class ThirdSegmentWrong(Fault):
    """Zeros, but garbage for the third element of a list and those behind it."""

    clause = "read/mixed-gather"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return _GARBAGE * segment.length if segment.index >= 2 else super().read_null(transfer, segment)


class KeepsWhatWasWritten(Fault):
    """A null MR is real memory of the device: what was written at an address is read there again."""

    clause = "read/zeros-after-write"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: dict[int, bytes] = {}

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if segment.length <= 2**20:
            self.kept[segment.addr] = b"".join(
                as_bytes(piece) for piece in payload.part(segment.offset, segment.length)
            )

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        kept = self.kept.get(segment.addr)
        if kept is None:
            return super().read_null(transfer, segment)
        return kept[: segment.length].ljust(segment.length, b"\0")


class NullSegmentsLeftOut(Fault):
    """Gathering leaves null segments out: what follows them arrives too early, and zeros fill the end."""

    clause = "read/mixed-gather"

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        payload = super().gather(transfer, sges)
        kept = [piece for piece in payload.pieces if not isinstance(piece, Zeros)]
        return Payload(*kept, Zeros(payload.length - sum(map(len, kept))))


class NullLastInAList(Fault):
    """Null segments behind an ordinary one in a list repeat its last byte."""

    clause = "read/mixed-gather"

    def gather(self, transfer: Transfer, sges: list[SGE]) -> Payload:
        payload = super().gather(transfer, sges)
        for index, piece in enumerate(payload.pieces):
            before = payload.pieces[index - 1] if index else b""
            if isinstance(piece, Zeros) and isinstance(before, bytes) and before:
                payload.pieces[index] = before[-1:] * len(piece)
        return payload


# discard


class ReceiveRefused(Fault):
    """A receive WR with a null segment fails when a message comes."""

    clause = "discard/receive"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if not transfer.requester:
            raise WorkError(abi.WC_LOC_PROT_ERR, "a null MR cannot be written")


class ReadResponseRefused(Fault):
    """The response of an RDMA READ finds no place in a null segment."""

    clause = "discard/read-response"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode == abi.WR_RDMA_READ:
            raise WorkError(abi.WC_LOC_PROT_ERR, "a null MR cannot be written")


class AtomicNotExecuted(Fault):
    """An atomic whose result nobody wants is optimized away: the remote word stays as it was."""

    clause = "discard/atomic-result"

    def atomic(self, qp: QP, wr: SendWR) -> None:
        mr = self.lkeys.get(wr.sges[0].lkey) if wr.sges else None
        if mr is None or not mr.null:
            super().atomic(qp, wr)


class AtomicResultRefused(Fault):
    """The result of an atomic finds no place in a null segment."""

    clause = "discard/atomic-result"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode in (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD):
            raise WorkError(abi.WC_LOC_PROT_ERR, "a null MR cannot be written")


class ScatterDrift(Fault):
    """A null segment swallows nothing: the ordinary ones behind it get the bytes that were its."""

    clause = "discard/mixed-scatter"

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        self.check_room(transfer, sges, payload)
        ordinary = [sge for sge in sges if not self.names_null_mr(sge)]
        room = sum(sge.length for sge in ordinary)
        if room and len(ordinary) < len(sges):
            start = Payload(*payload.part(0, min(room, payload.length)))
            super().scatter(transfer, ordinary, start)
        else:
            super().scatter(transfer, sges, payload)

    def names_null_mr(self, sge: SGE) -> bool:
        mr = self.lkeys.get(sge.lkey)
        return mr is not None and mr.null


class LeaksToAddress(Fault):
    """What a null segment should swallow is written at the address that it names."""

    clause = "discard/leaves-memory"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        self.leak(segment, payload)


class SrqLeak_32(Fault):
    """Messages of at most 32 bytes through an SRQ travel inside the completion, and the copy out of it does not know
    null segments: they are written at the segment's address."""

    clause = "discard/leaves-memory"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.srq is not None and not transfer.requester and transfer.length <= 32:
            self.leak(segment, payload)


class ReadResponseLeak(Fault):
    """Only what an RDMA READ brings is written at the segment's address."""

    clause = "discard/leaves-memory"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode == abi.WR_RDMA_READ:
            self.leak(segment, payload)


class AtomicLeak(Fault):
    """Only the result of an atomic is written at the segment's address."""

    clause = "discard/leaves-memory"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.opcode in (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD):
            self.leak(segment, payload)


class CqExLeak(Fault):
    """Only where the completion goes to a CQ of ibv_create_cq_ex, a received message is written at the address."""

    clause = "discard/leaves-memory"

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.cq is not None and transfer.cq.extended and not transfer.requester:
            self.leak(segment, payload)


class DuplicateCompletion(Fault):
    """A receive WR that has a null segment is reported twice."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        super().complete_receive(transfer, status, src_qp)
        keys = [self.lkeys.get(sge.lkey) for sge in (transfer.recv.sges if transfer.recv is not None else [])]
        if any(mr is not None and mr.null for mr in keys):
            super().complete_receive(transfer, status, src_qp)


class WrongOpcode(Fault):
    """An RDMA READ into a null segment is reported as a SEND."""

    clause = "discard/completion"

    def complete_send(self, qp: QP, wr: SendWR, status: int) -> None:
        keys = [self.lkeys.get(sge.lkey) for sge in wr.sges]
        if wr.opcode == abi.WR_RDMA_READ and any(mr is not None and mr.null for mr in keys):
            wr.opcode = abi.WR_SEND
        super().complete_send(qp, wr, status)


class ByteLenWithoutNull(Fault):
    """The completion does not count the bytes that null segments swallowed."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        if transfer.recv is not None:
            rest = transfer.length
            for sge in transfer.recv.sges:
                part = min(rest, sge.length)
                rest -= part
                mr = self.lkeys.get(sge.lkey)
                if mr is not None and mr.null:
                    transfer.length -= part
        super().complete_receive(transfer, status, src_qp)


class ReceiveNotReported(Fault):
    """A receive WR that only swallowed bytes is not reported."""

    clause = "discard/completion"

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        sges = transfer.recv.sges if transfer.recv is not None else []
        keys = [self.lkeys.get(sge.lkey) for sge in sges]
        if not sges or not all(mr is not None and mr.null for mr in keys):
            super().complete_receive(transfer, status, src_qp)


class TooLongSwallowed(Fault):
    """A message longer than the receive list is no length error if the list has a null segment."""

    clause = "discard/completion"

    def check_room(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        keys = [self.lkeys.get(sge.lkey) for sge in sges]
        if not any(mr is not None and mr.null for mr in keys):
            super().check_room(transfer, sges, payload)


# key


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


class RkeyOfAnotherMr(Fault):
    """The rkey field is not cleared: it has the key of the ordinary MR that was registered last."""

    clause = "key/no-rkey"

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        live = [region for region in self.rkeys.values() if isinstance(region, MR) and region.pd is pd]
        mr.rkey = live[-1].rkey if live else mr.rkey
        return mr


# misuse


class ReregAccepted(Fault):
    """ibv_rereg_mr of a null MR does nothing and says that it succeeded."""

    clause = "misuse/rereg-refused"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        return None


class ReregAccessAccepted(Fault):
    """Only IBV_REREG_MR_CHANGE_ACCESS alone is accepted."""

    clause = "misuse/rereg-refused"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if flags != abi.REREG_MR_CHANGE_ACCESS:
            super().rereg_null_mr(mr, flags, pd, addr, length, access)


class ReregBreaks(Fault):
    """ibv_rereg_mr is refused, but the lkey is gone."""

    clause = "misuse/rereg-harmless"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        self.lkeys.pop(mr.lkey, None)
        super().rereg_null_mr(mr, flags, pd, addr, length, access)


class ReregMovesPd(Fault):
    """ibv_rereg_mr with a new PD is refused after the MR was moved there."""

    clause = "misuse/rereg-harmless"

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        if flags & abi.REREG_MR_CHANGE_PD and pd is not None:
            mr.pd.users.discard(mr)
            mr.pd = pd
            pd.users.add(mr)
        super().rereg_null_mr(mr, flags, pd, addr, length, access)


class BindAccepted(Fault):
    """A window of the type that is wrong can be bound to a null MR, and a peer can use it."""

    clause = "misuse/bind-refused"
    wrong: tuple[int, ...] = (abi.MW_TYPE_1, abi.MW_TYPE_2)

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if mw.type not in self.wrong:
            super().check_bind_to_null_mr(qp, mw, mr)

    def check_window(self, mr: MR | None, addr: int, length: int, access: int) -> None:
        if mr is None or not mr.null:
            super().check_window(mr, addr, length, access)


class BindType1Accepted(BindAccepted):
    """ibv_bind_mw binds a type 1 window to a null MR, and a peer can use it."""

    wrong = (abi.MW_TYPE_1,)


class BindType2Accepted(BindAccepted):
    """A posted bind of a type 2 window to a null MR succeeds, and a peer can use it."""

    wrong = (abi.MW_TYPE_2,)


class RefusedBindOpens(Fault):
    """A bind to a null MR is refused, but only after the window's key was opened."""

    clause = "misuse/bind-harmless"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.opened: dict[int, MR] = {}

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        self.opened[mw.rkey >> 8] = mr
        super().check_bind_to_null_mr(qp, mw, mr)

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        if rkey >> 8 in self.opened:
            return self.opened[rkey >> 8], addr
        return super().find_remote(transfer, rkey, addr, length, access)

    def dealloc_mw(self, mw: MW) -> None:
        self.opened.pop(mw.rkey >> 8, None)
        super().dealloc_mw(mw)


class RefusedBindKillsQp(Fault):
    """ibv_bind_mw on a null MR fails at once, and the queue pair is in the error state afterwards."""

    clause = "misuse/bind-harmless"

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        if mw.type == abi.MW_TYPE_1:
            self.to_error(qp)
        super().check_bind_to_null_mr(qp, mw, mr)


# free


class DeregFails(Fault):
    """ibv_dereg_mr of a null MR returns EINVAL."""

    clause = "free/succeeds"

    def free_null_mr(self, mr: MR) -> None:
        raise Refused(errno.EINVAL, "not an MR of the kernel")


class DeregReturnsMinusOne(Fault):
    """ibv_dereg_mr of a null MR frees it and returns -1."""

    clause = "free/succeeds"

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        raise Refused(errno.EINVAL, "not an MR of the kernel", -1)


class DeregFreesOthers(Fault):
    """Freeing one null MR frees all of the device: they share a reference that nobody counts."""

    clause = "free/leaves-others"

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        self.lkeys = {key: other for key, other in self.lkeys.items() if not other.null}


class DeregFreesOrdinary(Fault):
    """Freeing a null MR frees the ordinary MR that was registered last on its PD."""

    clause = "free/leaves-others"

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        live = [key for key, other in self.lkeys.items() if not other.null and other.pd is mr.pd]
        if live:
            del self.lkeys[live[-1]]


class LeaksHeap(Fault):
    """ibv_dereg_mr forgets the memory that ibv_alloc_null_mr took."""

    clause = "free/no-leak"

    def new_null_mr(self, pd: PD) -> MR:
        ctypes.CDLL(None).malloc(ctypes.c_size_t(128))
        return super().new_null_mr(pd)


class LeaksFd(Fault):
    """ibv_dereg_mr forgets a file that ibv_alloc_null_mr opened."""

    clause = "free/no-leak"

    def new_null_mr(self, pd: PD) -> MR:
        os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
        return super().new_null_mr(pd)


class HoldsPd(Fault):
    """A freed null MR still counts as a user of its PD."""

    clause = "free/releases-pd"

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        mr.pd.users.add(mr)


class CountsPdTwice(Fault):
    """From the second null MR on, one reference to the PD is never given back."""

    clause = "free/releases-pd"

    def alloc_null_mr(self, pd: PD) -> MR:
        if any(isinstance(user, MR) and user.null for user in pd.users):
            pd.users.add(super().new_null_mr(pd))
        return super().alloc_null_mr(pd)


# bypass, and devices that do not come back


class Slow(Fault):
    """Null segments take longer than ordinary ones: 1 ms each."""

    clause = "bypass/no-slower"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null:
            time.sleep(0.001)
        return mr


class Crash(Fault):
    """Posting a WR that gathers from a null MR is a segmentation fault."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        signal.raise_signal(signal.SIGSEGV)
        return super().read_null(transfer, segment)


class Hang(Fault):
    """Posting a WR that gathers from a null MR never returns, and holds the interpreter as a call into C does."""

    clause = "read/zeros"

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        while True:
            ctypes.PyDLL(None).sleep(3600)


def name_of(kind: type) -> str:
    """SrqLeak_32 is srq-leak-32."""
    return re.sub(r"(?<=[^_])(?=[A-Z])", "-", kind.__name__).replace("_", "-").lower()


def _collect(kind: type[Fault]) -> dict[str, type[Fault]]:
    found: dict[str, type[Fault]] = {}
    for fault in kind.__subclasses__():
        found[name_of(fault)] = fault
        found |= _collect(fault)
    return found


FAULTS: dict[str, type[Fault]] = _collect(Fault)
