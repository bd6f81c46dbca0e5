# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong about what ibv_alloc_null_mr gives."""

from __future__ import annotations

import ctypes
import errno
import signal
import threading
from typing import Any

from ..engine import abi
from ..engine.errors import BadWorkRequest, Refused, WorkError
from ..engine.memory import MemoryFault, Payload, Piece
from ..engine.objects import MR, PD, QP, SRQ, RecvWR, Segment, SendWR, Transfer
from .base import NEED_AN_LKEY, Fault, garbage

USE_ANY_ADDRESS = (
    "read/zeros",
    "read/mixed-gather",
    "discard/receive",
    "discard/read-response",
    "discard/atomic-result",
    "discard/mixed-scatter",
    "discard/leaves-memory",
    "discard/completion",
)
"""Clauses whose checks name addresses where no memory is, too."""


class AllocFails(Fault):
    """ibv_alloc_null_mr always fails with ENOMEM."""

    clause = "allocate/returns-mr"

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(errno.ENOMEM, "no null MR")


class MrOfFirstPd(Fault):
    """The driver keeps null MRs with the context: they all belong to the PD that was allocated first."""

    clause = "allocate/returns-mr"
    touches = ("allocate/coexist", "free/leaves-others")

    def alloc_null_mr(self, pd: PD) -> MR:
        return super().alloc_null_mr(next(item for item in pd.context.objects if isinstance(item, PD)))


class MrOfLastPd(Fault):
    """The driver takes the PD from where the last one was allocated, and not from the call."""

    clause = "allocate/returns-mr"
    touches = (
        "allocate/coexist",
        "allocate/derived-pd",
        "key/no-rkey",
        "misuse/rereg-harmless",
        "misuse/bind-harmless",
        "free/leaves-others",
        "free/releases-pd",
    )

    def alloc_null_mr(self, pd: PD) -> MR:
        return super().alloc_null_mr([item for item in pd.context.objects if isinstance(item, PD)][-1])


class MrOfFirstContext(Fault):
    """The driver keeps null MRs with the device: they all belong to the context that was opened first, and its PD."""

    clause = "allocate/returns-mr"
    touches = ("allocate/coexist", "free/leaves-others")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.first: PD | None = None

    def alloc_null_mr(self, pd: PD) -> MR:
        self.first = self.first or pd
        return super().alloc_null_mr(pd if pd.context is self.first.context else self.first)


class ContextUnset(Fault):
    """The driver fills in struct ibv_mr itself, as it has to for a null MR, and forgets `context`."""

    clause = "allocate/returns-mr"

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.names_context = False
        return mr


class Length_32Bits(Fault):
    """The length is kept in 32 bits, as a hardware MR's is: 2^32-1."""

    clause = "allocate/max-length"

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.length = 2**32 - 1
        return mr


class LengthZero(Fault):
    """Nothing is mapped, so the MR says that its length is 0."""

    clause = "allocate/max-length"

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        mr.length = 0
        return mr


class LengthCheck_31(Fault):
    """The lengths of segments are signed numbers of 32 bits: one of 2^31 bytes is refused."""

    clause = "allocate/max-length"

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and segment.length >> 31:
            raise WorkError(abi.WC_LOC_LEN_ERR, "a negative length")
        return mr


class HighAddressesWrap(Fault):
    """The end of a segment is computed in 64 bits: at the top of the address space it is 0, before the start."""

    clause = "allocate/max-length"
    touches = USE_ANY_ADDRESS

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and (segment.addr + segment.length) % 2**64 < segment.addr:
            raise WorkError(abi.WC_LOC_PROT_ERR, "the end is before the start")
        return mr


class AddressZeroRefused(Fault):
    """A segment at address 0 is taken for a missing one."""

    clause = "allocate/max-length"
    touches = USE_ANY_ADDRESS

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and segment.addr == 0:
            raise WorkError(abi.WC_LOC_PROT_ERR, "address 0")
        return mr


class HighAddressesRefused(Fault):
    """Addresses are checked as signed numbers: the upper half of them is refused."""

    clause = "allocate/max-length"
    touches = USE_ANY_ADDRESS

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and segment.addr >> 63:
            raise WorkError(abi.WC_LOC_PROT_ERR, "a negative address")
        return mr


class UnmappedAddressesRefused(Fault):
    """The page of the segment's address is looked up though nothing is to be transferred."""

    clause = "allocate/max-length"
    touches = USE_ANY_ADDRESS

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
    touches = (
        "allocate/max-length",
        "read/zeros-after-write",
        "discard/read-response",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and transfer.requester and transfer.opcode == abi.WR_RDMA_READ:
            raise WorkError(abi.WC_LOC_PROT_ERR, "no local write access")
        return mr


class LkeyRefusedInLists(Fault):
    """The lkey is known only in the first element of a list."""

    clause = "allocate/lkey-valid"
    touches = (
        "allocate/max-length",
        "read/zeros",
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/receive",
        "discard/read-response",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and segment.index:
            raise WorkError(abi.WC_LOC_PROT_ERR, "the null lkey is not in the first SGE")
        return mr


class LkeyRefusedForDatagrams(Fault):
    """The lkey is unknown where UD queue pairs look keys up."""

    clause = "allocate/lkey-valid"
    touches = (
        "allocate/max-length",
        "read/zeros",
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/receive",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and transfer.transport == abi.QPT_UD:
            raise WorkError(abi.WC_LOC_PROT_ERR, "no such lkey")
        return mr


class LkeyRefusedInSrq(Fault):
    """The driver checks what is posted to an SRQ against the MRs that it registered, and finds no null MR there."""

    clause = "allocate/lkey-valid"
    touches = (
        "allocate/max-length",
        "read/zeros",
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/receive",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def post_srq_recv(self, srq: SRQ, wrs: list[RecvWR]) -> None:
        for index, wr in enumerate(wrs):
            if any(self.names_null_mr(sge) for sge in wr.sges):
                raise BadWorkRequest(errno.EINVAL, "no such lkey", index)
        super().post_srq_recv(srq, wrs)


class LkeyRefusedByWrStart(Fault):
    """ibv_wr_complete refuses WRs with the lkey, which ibv_post_send takes."""

    clause = "allocate/lkey-valid"
    touches = (
        "allocate/max-length",
        "read/zeros",
        "read/mixed-gather",
        "discard/receive",
        "discard/read-response",
        "discard/atomic-result",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def check_send(self, qp: QP, wr: SendWR) -> None:
        if wr.extended and any(self.names_null_mr(sge) for sge in wr.sges):
            raise Refused(errno.EINVAL, "no such lkey")
        super().check_send(qp, wr)


class LkeyOfOrdinaryMr(Fault):
    """Null MRs take their lkeys from a counter of their own: the number is that of an ordinary MR, which it opens."""

    clause = "allocate/lkey-valid"
    touches = (
        "allocate/max-length",
        "read/zeros",
        "read/zeros-after-write",
        "read/mixed-gather",
        "discard/receive",
        "discard/read-response",
        "discard/atomic-result",
        "discard/mixed-scatter",
        "discard/leaves-memory",
        "discard/completion",
        "discard/event",
    )

    def alloc_null_mr(self, pd: PD) -> MR:
        before = dict(self.lkeys)
        mr = super().alloc_null_mr(pd)
        self.lkeys = before
        mr.lkey = next((key for key, other in before.items() if other.pd is pd), mr.lkey)
        return mr


class LkeyDiesWithOrdinaryMr(Fault):
    """ibv_dereg_mr of an ordinary MR flushes the PD's cache of keys, and null MRs are only there."""

    clause = "allocate/lkey-valid"
    touches = (*NEED_AN_LKEY, "allocate/coexist", "allocate/derived-pd", "free/leaves-others", "free/no-leak")

    def dereg_mr(self, mr: MR) -> None:
        super().dereg_mr(mr)
        if not mr.null:
            self.lkeys = {key: other for key, other in self.lkeys.items() if not other.null or other.pd is not mr.pd}


class LkeyDiesWithOtherPd(Fault):
    """ibv_dealloc_pd invalidates the null lkeys of the device, not only those of the PD."""

    clause = "allocate/lkey-valid"
    touches = (*NEED_AN_LKEY, "allocate/coexist", "allocate/derived-pd", "free/leaves-others", "free/no-leak")

    def dealloc_pd(self, pd: PD) -> None:
        super().dealloc_pd(pd)
        self.lkeys = {key: mr for key, mr in self.lkeys.items() if not mr.null}


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
    touches = (*NEED_AN_LKEY, "allocate/lkey-valid", "allocate/derived-pd", "free/leaves-others", "free/no-leak")

    def alloc_null_mr(self, pd: PD) -> MR:
        for mr in [mr for mr in self.lkeys.values() if mr.null]:
            del self.lkeys[mr.lkey]
        return super().alloc_null_mr(pd)


class SecondPdFails(Fault):
    """Null MRs can be had on one PD of a context at a time."""

    clause = "allocate/coexist"
    touches = ("allocate/returns-mr",)

    def alloc_null_mr(self, pd: PD) -> MR:
        if any(isinstance(item, MR) and item.null and item.pd is not pd for item in pd.context.objects):
            raise Refused(errno.EBUSY, "another PD has null MRs")
        return super().alloc_null_mr(pd)


class TableOf_32(Fault):
    """The device has room for 32 null MRs."""

    clause = "allocate/coexist"

    def alloc_null_mr(self, pd: PD) -> MR:
        if sum(mr.null for mr in self.lkeys.values()) >= 32:
            raise Refused(errno.ENOMEM, "32 null MRs")
        return super().alloc_null_mr(pd)


class OtherThreadsRefused(Fault):
    """What a null MR is made of belongs to the thread that opened the device: others get EINVAL."""

    clause = "allocate/coexist"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.thread = threading.get_ident()

    def alloc_null_mr(self, pd: PD) -> MR:
        if threading.get_ident() != self.thread:
            raise Refused(errno.EINVAL, "another thread")
        return super().alloc_null_mr(pd)


class OtherThreadsCannotFree(OtherThreadsRefused):
    """Another thread than that which opened the device can allocate null MRs, but not free them: EINVAL."""

    def alloc_null_mr(self, pd: PD) -> MR:
        return Fault.alloc_null_mr(self, pd)

    def free_null_mr(self, mr: MR) -> None:
        if threading.get_ident() != self.thread:
            raise Refused(errno.EINVAL, "another thread")
        super().free_null_mr(mr)


class OtherThreadsFreeTooMuch(OtherThreadsRefused):
    """What another thread frees takes the newest null MR of the thread that opened the device with it."""

    newest = 0

    def alloc_null_mr(self, pd: PD) -> MR:
        mr = Fault.alloc_null_mr(self, pd)
        if threading.get_ident() == self.thread:
            self.newest = mr.lkey
        return mr

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        if threading.get_ident() != self.thread:
            self.lkeys.pop(self.newest, None)


class LkeysPerContext(Fault):
    """Each context counts the lkeys of its null MRs from the same number: they hide one another."""

    clause = "allocate/coexist"
    touches = (*NEED_AN_LKEY, "allocate/lkey-valid", "allocate/derived-pd", "free/leaves-others", "free/no-leak")

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        taken = {item.lkey for item in pd.context.objects if isinstance(item, MR)}
        mr.lkey = next(key for key in range(0x10000000, 0xFFFFFFFF, 0x100) if key not in taken)
        return mr


class OneQueuePairAtATime(Fault):
    """The null lkey is one queue pair's until the completion of its work request is polled; others are refused."""

    clause = "allocate/many-queue-pairs"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.user: QP | None = None

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        mr = super().find_local(transfer, segment, write)
        if mr.null and transfer.requester:
            if self.user not in (None, transfer.qp) and self.user.posted > self.user.done:
                raise WorkError(abi.WC_LOC_PROT_ERR, "another queue pair uses it")
            self.user = transfer.qp
        return mr


class ErrorOfOneOpensMemory(Fault):
    """While a queue pair of the PD is in the error state, what null segments of the others should swallow is written at
    the addresses that they name, and what is read from them is not zero."""

    clause = "allocate/many-queue-pairs"

    def is_open(self, transfer: Transfer) -> bool:
        others = (qp for qp in self.qps.values() if qp.pd is transfer.pd and qp is not transfer.qp)
        return any(qp.state == abi.QPS_ERR for qp in others)

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        return garbage(segment.length) if self.is_open(transfer) else super().read_null(transfer, segment)

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if self.is_open(transfer):
            self.leak(segment, payload)


class ErrnoUnset(Fault):
    """A device without null MRs returns NULL and leaves errno as it was."""

    clause = "allocate/fails-cleanly"
    has_null_mrs = False

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(0, "no null MR")


class ErrnoNegative(Fault):
    """A device without null MRs sets errno to the kernel's -EOPNOTSUPP."""

    clause = "allocate/fails-cleanly"
    has_null_mrs = False

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(-errno.EOPNOTSUPP, "no null MR")


class ErrnoWrongKind(Fault):
    """A device without null MRs says EINVAL, as if the caller had done something wrong."""

    clause = "allocate/fails-cleanly"
    has_null_mrs = False

    def alloc_null_mr(self, pd: PD) -> MR:
        raise Refused(errno.EINVAL, "no null MR")


class FailedAllocBreaksPd(Fault):
    """A device without null MRs says so, after it has disabled the keys of the PD."""

    clause = "allocate/fails-cleanly"
    has_null_mrs = False

    def alloc_null_mr(self, pd: PD) -> MR:
        self.lkeys = {key: mr for key, mr in self.lkeys.items() if mr.pd is not pd}
        raise Refused(errno.EOPNOTSUPP, "no null MR")


class ParentDomainRefused(Fault):
    """There is a null MR on a PD, and none on a parent domain of it."""

    clause = "allocate/derived-pd"

    def null_mr_pd(self, pd: PD) -> PD:
        if pd.parent:
            raise Refused(errno.EINVAL, "a parent domain")
        return super().null_mr_pd(pd)


class ParentDomainApart(Fault):
    """A null MR of a parent domain is of that alone: the lkey is refused on queue pairs of the PD."""

    clause = "allocate/derived-pd"

    def null_mr_pd(self, pd: PD) -> PD:
        return pd


class ParentDomainHeld(Fault):
    """A null MR of a parent domain takes a reference to that, which dereg gives back to the PD."""

    clause = "allocate/derived-pd"

    def null_mr_pd(self, pd: PD) -> PD:
        if pd.parent:
            pd.users.add(PD(pd.context, 0))
        return super().null_mr_pd(pd)


class ImportedPdRefused(Fault):
    """There is a null MR on a PD, and none on the PD when it is imported."""

    clause = "allocate/derived-pd"

    def null_mr_pd(self, pd: PD) -> PD:
        if pd.imported:
            raise Refused(errno.EINVAL, "an imported PD")
        return super().null_mr_pd(pd)


class ImportedPdApart(Fault):
    """A null MR of an imported PD is of that alone: the lkey is refused on queue pairs of the PD."""

    clause = "allocate/derived-pd"

    def null_mr_pd(self, pd: PD) -> PD:
        return pd if pd.imported else super().null_mr_pd(pd)


class ImportedPdReadsGarbage(Fault):
    """What is gathered from a null MR of an imported PD is garbage."""

    clause = "allocate/derived-pd"
    asked_on_import = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.imported: set[int] = set()

    def null_mr_pd(self, pd: PD) -> PD:
        self.asked_on_import = pd.imported
        return super().null_mr_pd(pd)

    def new_null_mr(self, pd: PD) -> MR:
        mr = super().new_null_mr(pd)
        if self.asked_on_import:
            self.imported.add(mr.lkey)
        return mr

    def read_null(self, transfer: Transfer, segment: Segment) -> Piece:
        if segment.lkey in self.imported:
            return garbage(segment.length)
        return super().read_null(transfer, segment)


class FailedAllocHoldsPd(Fault):
    """A device without null MRs says so, but only after it took a reference to the PD."""

    clause = "allocate/fails-cleanly"
    has_null_mrs = False

    def alloc_null_mr(self, pd: PD) -> MR:
        pd.users.add(super().new_null_mr(pd))
        raise Refused(errno.EOPNOTSUPP, "no null MR")


class NoMemoryErrnoUnset(Fault):
    """Where there is no memory for struct ibv_mr, ibv_alloc_null_mr returns NULL and leaves errno as it was."""

    clause = "allocate/fails-cleanly"

    def null_mr_without_memory(self, pd: PD) -> MR:
        raise Refused(0, "no memory")


class NoMemoryErrnoWrong(Fault):
    """Where there is no memory for struct ibv_mr, errno says EOPNOTSUPP, as if the device had no null MRs."""

    clause = "allocate/fails-cleanly"

    def null_mr_without_memory(self, pd: PD) -> MR:
        raise Refused(errno.EOPNOTSUPP, "no memory")


class NoMemoryHalfMade(Fault):
    """Where there is no memory for struct ibv_mr, the driver gives a spare one, in which it sets the lkey only."""

    clause = "allocate/fails-cleanly"

    def null_mr_without_memory(self, pd: PD) -> MR:
        mr = super().alloc_null_mr(pd)
        mr.length = mr.rkey = mr.handle = 0
        return mr


class NoMemoryHoldsPd(Fault):
    """The driver takes a reference to the PD, finds no memory for struct ibv_mr, and keeps the reference."""

    clause = "allocate/fails-cleanly"

    def null_mr_without_memory(self, pd: PD) -> MR:
        pd.users.add(super().new_null_mr(pd))
        return super().null_mr_without_memory(pd)


class NoMemoryTakesMrs(Fault):
    """A null MR for which there was no memory keeps its place in a table of the device, which has 100."""

    clause = "allocate/fails-cleanly"
    taken = 0

    def null_mr_without_memory(self, pd: PD) -> MR:
        self.taken += 1
        return super().null_mr_without_memory(pd)

    def alloc_null_mr(self, pd: PD) -> MR:
        if self.taken >= 100:
            raise Refused(errno.ENOSPC, "the table is full")
        return super().alloc_null_mr(pd)


class NoMemoryLeaksHeap(Fault):
    """Where there is no memory for struct ibv_mr, the driver forgets to free what it took before."""

    clause = "allocate/fails-cleanly"

    def null_mr_without_memory(self, pd: PD) -> MR:
        ctypes.CDLL(None).malloc(ctypes.c_size_t(24))
        return super().null_mr_without_memory(pd)


class NoMemoryCrash(Fault):
    """The driver writes to struct ibv_mr without asking if there was memory for it: a segmentation fault."""

    clause = "allocate/fails-cleanly"

    def null_mr_without_memory(self, pd: PD) -> MR:
        signal.raise_signal(signal.SIGSEGV)
        return super().null_mr_without_memory(pd)
