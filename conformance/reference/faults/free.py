# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Wrong about ibv_dereg_mr of a null MR."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

from ..engine import abi
from ..engine.errors import Refused
from ..engine.objects import MR, PD, Segment, Transfer
from .base import NEED_AN_LKEY, Fault


class DeregFails(Fault):
    """ibv_dereg_mr of a null MR returns EINVAL."""

    clause = "free/succeeds"
    touches = ("allocate/coexist", "free/no-leak", "free/releases-pd")

    def free_null_mr(self, mr: MR) -> None:
        raise Refused(errno.EINVAL, "not an MR of the kernel")


class DeregReturnsMinusOne(Fault):
    """ibv_dereg_mr of a null MR frees it and returns -1."""

    clause = "free/succeeds"
    touches = ("allocate/coexist", "free/no-leak")

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        raise Refused(errno.EINVAL, "not an MR of the kernel", -1)


class DeregBusyAfterUse(Fault):
    """A null MR that a WR has used counts as in use for ever: ibv_dereg_mr returns EBUSY."""

    clause = "free/succeeds"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.used: set[int] = set()

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        self.used.add(segment.lkey)
        return super().find_local(transfer, segment, write)

    def free_null_mr(self, mr: MR) -> None:
        if mr.lkey in self.used:
            raise Refused(errno.EBUSY, "the null MR is in use")
        super().free_null_mr(mr)


class DeregFreesOtherContexts(Fault):
    """Freeing a null MR frees those of the other contexts of the device."""

    clause = "free/leaves-others"
    touches = (*NEED_AN_LKEY, "allocate/lkey-valid", "allocate/coexist", "allocate/derived-pd")

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        context = mr.pd.context
        self.lkeys = {key: other for key, other in self.lkeys.items() if not other.null or other.pd.context is context}


class DeregFreesNext(Fault):
    """Freeing a null MR frees the one after it on its PD: keys are freed by their place in a list."""

    clause = "free/leaves-others"

    def free_null_mr(self, mr: MR) -> None:
        behind = [key for key, other in self.lkeys.items() if other.null and other.pd is mr.pd and key > mr.lkey]
        super().free_null_mr(mr)
        if behind:
            del self.lkeys[min(behind)]


class DeregFreesPrevious(Fault):
    """Freeing a null MR frees the one that was allocated before it on its PD: keys are freed by their place in a
    list."""

    clause = "free/leaves-others"
    touches = (*NEED_AN_LKEY, "allocate/lkey-valid", "allocate/coexist", "allocate/derived-pd")

    def free_null_mr(self, mr: MR) -> None:
        before = [key for key, other in self.lkeys.items() if other.null and other.pd is mr.pd and key < mr.lkey]
        super().free_null_mr(mr)
        if before:
            del self.lkeys[max(before)]


class DeregFreesOtherPds(DeregFreesPrevious):
    """Freeing a null MR frees those of the other PDs of its context."""

    def free_null_mr(self, mr: MR) -> None:
        Fault.free_null_mr(self, mr)
        context, pd = mr.pd.context, mr.pd
        self.lkeys = {
            key: other
            for key, other in self.lkeys.items()
            if not other.null or other.pd is pd or other.pd.context is not context
        }


class DeregFreesOldest(DeregFreesPrevious):
    """Null MRs are kept in a queue: whichever is freed, it is the oldest of its PD that goes."""

    def free_null_mr(self, mr: MR) -> None:
        kept = dict(self.lkeys)
        kept.pop(next((key for key, other in kept.items() if other.null and other.pd is mr.pd), mr.lkey), None)
        Fault.free_null_mr(self, mr)
        self.lkeys = kept


class DeregFreesOthers(Fault):
    """Freeing one null MR frees all of the device: they share a reference that nobody counts."""

    clause = "free/leaves-others"
    touches = (*NEED_AN_LKEY, "allocate/lkey-valid", "allocate/coexist", "allocate/derived-pd")

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        self.lkeys = {key: other for key, other in self.lkeys.items() if not other.null}


class DeregFreesOrdinary(Fault):
    """Freeing a null MR frees the ordinary MR that was registered last on its PD."""

    clause = "free/leaves-others"
    breaks_ordinary = True

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        live = [key for key, other in self.lkeys.items() if not other.null and other.pd is mr.pd]
        if live:
            del self.lkeys[live[-1]]


class DeregFreesNextOrdinary(Fault):
    """Freeing a null MR frees the ordinary MR that was registered after it on its PD."""

    clause = "free/leaves-others"
    breaks_ordinary = True

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        behind = [key for key, other in self.lkeys.items() if not other.null and other.pd is mr.pd and key > mr.lkey]
        if behind:
            self.forget_keys(self.lkeys[min(behind)])


class DeregOfFirstClosesRkey(Fault):
    """The first null MR of a PD has the rkey of the ordinary MR before it on a list: freeing it closes that rkey."""

    clause = "free/leaves-others"
    breaks_ordinary = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.before: dict[MR, MR] = {}

    def alloc_null_mr(self, pd: PD) -> MR:
        ordinary = [other for other in self.lkeys.values() if not other.null and other.pd is pd]
        is_first = not any(other.null and other.pd is pd for other in self.lkeys.values())
        mr = super().alloc_null_mr(pd)
        if is_first and ordinary:
            self.before[mr] = ordinary[-1]
        return mr

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        if mr in self.before:
            del self.rkeys[self.before.pop(mr).rkey]


class DeregUnpinsOrdinary(Fault):
    """Freeing a null MR unpins the ordinary MR registered last on its PD, which works on but cannot be freed."""

    clause = "free/leaves-others"
    touches = ("allocate/derived-pd", "free/releases-pd")
    breaks_ordinary = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unpinned: set[MR] = set()

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        live = [other for other in self.lkeys.values() if not other.null and other.pd is mr.pd]
        self.unpinned.update(live[-1:])

    def dereg_mr(self, mr: MR) -> None:
        if mr in self.unpinned:
            raise Refused(errno.EINVAL, "its pages are not pinned")
        super().dereg_mr(mr)


class DeregEndsRemoteWrites(Fault):
    """Freeing a null MR takes the remote write permission from the ordinary MR that was registered last on its PD."""

    clause = "free/leaves-others"
    breaks_ordinary = True
    lost = abi.ACCESS_REMOTE_WRITE

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        live = [other for other in self.lkeys.values() if not other.null and other.pd is mr.pd]
        if live:
            live[-1].access &= ~self.lost


class DeregEndsRemoteReads(DeregEndsRemoteWrites):
    """Freeing a null MR takes the remote read permission from the ordinary MR that was registered last on its PD."""

    lost = abi.ACCESS_REMOTE_READ


class LeaksHeap(Fault):
    """ibv_dereg_mr forgets the memory that ibv_alloc_null_mr took."""

    clause = "free/no-leak"

    def new_null_mr(self, pd: PD) -> MR:
        ctypes.CDLL(None).malloc(ctypes.c_size_t(128))
        return super().new_null_mr(pd)


class LeaksFewBytes(Fault):
    """ibv_dereg_mr forgets 24 bytes of bookkeeping."""

    clause = "free/no-leak"

    def free_null_mr(self, mr: MR) -> None:
        super().free_null_mr(mr)
        ctypes.CDLL(None).malloc(ctypes.c_size_t(24))


class LeaksFd(Fault):
    """ibv_dereg_mr forgets a file that ibv_alloc_null_mr opened."""

    clause = "free/no-leak"

    def new_null_mr(self, pd: PD) -> MR:
        os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
        return super().new_null_mr(pd)


class LeaksSlots(Fault):
    """A freed null MR keeps its place in a table of the device, which has 2500."""

    clause = "free/no-leak"
    taken = 0

    def alloc_null_mr(self, pd: PD) -> MR:
        if self.taken == 2500:
            raise Refused(errno.ENOMEM, "the table is full")
        self.taken += 1
        return super().alloc_null_mr(pd)


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
