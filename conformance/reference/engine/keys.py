# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Protection domains, memory regions and memory windows: which key opens which memory (IBTA 10.6)."""

from __future__ import annotations

import errno

from . import abi
from .base import Base
from .errors import Nak, Refused, WorkError
from .memory import MemoryFault
from .objects import MR, MW, PD, QP, SGE, SIZE_MAX, Context, Segment, Transfer

_REMOTE_CHANGES = abi.ACCESS_REMOTE_WRITE | abi.ACCESS_REMOTE_ATOMIC
# Local access has no meaning for a window; programs set it and devices ignore it.
_WINDOW_ACCESS = (
    abi.ACCESS_LOCAL_WRITE
    | abi.ACCESS_REMOTE_WRITE
    | abi.ACCESS_REMOTE_READ
    | abi.ACCESS_REMOTE_ATOMIC
    | abi.ACCESS_ZERO_BASED
)
_ADVICES = (abi.ADVICE_PREFETCH, abi.ADVICE_PREFETCH_WRITE, abi.ADVICE_PREFETCH_NO_FAULT)


class Keys(Base):
    """The part of a device that owns keys.

    lkeys and rkeys are looked up apart. An ordinary MR has one number for both; a null MR has a number of its own for
    each, and its rkey is in no table: it opens nothing.
    """

    null_mr_holds_pd = True
    """A null MR counts as a user of its PD, as an ordinary MR does."""

    def __init__(self) -> None:
        super().__init__()
        self.lkeys: dict[int, MR] = {}
        self.rkeys: dict[int, MR | MW] = {}
        self._last_key = 0

    def new_key(self) -> int:
        """A number that was never a key: an index, and a tag of 8 bits that starts at 0."""
        self._last_key += 1
        return (0x1000 + self._last_key) << 8

    # Protection domains

    def alloc_pd(self, context: Context) -> PD:
        self.count(context, PD, self.attr.max_pd)
        return self.remember(context, PD(context, self.new_handle()))

    def alloc_parent_domain(self, pd: PD) -> PD:
        parent_domain = PD(pd.context, self.new_handle(), pd)
        pd.users.add(parent_domain)
        return self.remember(pd.context, parent_domain)

    def import_pd(self, context: Context, handle: int) -> PD:
        """ibv_import_pd(3): another name for a PD, which it does not keep."""
        for item in context.objects:
            if isinstance(item, PD) and item.handle == handle:
                return PD(context, handle, item.parent or item, imported=True)
        raise Refused(errno.ENOENT, f"no PD has the handle {handle}")

    def import_mr(self, context: Context, handle: int) -> MR:
        """ibv_import_mr(3)."""
        for item in context.objects:
            if isinstance(item, MR) and item.handle == handle:
                return item
        raise Refused(errno.ENOENT, f"no MR has the handle {handle}")

    def dealloc_pd(self, pd: PD) -> None:
        if pd.users:
            raise Refused(errno.EBUSY, f"the PD is used by {len(pd.users)} objects")
        if pd.parent:
            pd.parent.users.discard(pd)
        self.forget(pd.context, pd)

    # Memory regions

    def reg_mr(self, pd: PD, addr: int, length: int, iova: int, access: int) -> MR:
        """ibv_reg_mr(3)."""
        self.count(pd.context, MR, self.attr.max_mr)
        self.check_region(addr, length, access)
        if access & abi.ACCESS_ZERO_BASED:
            iova = 0
        key = self.new_key()
        mr = MR(pd, addr, length, iova, access, key, key, self.new_handle())
        self.lkeys[key] = self.rkeys[key] = mr
        pd.users.add(mr)
        return self.remember(pd.context, mr)

    def check_region(self, addr: int, length: int, access: int) -> None:
        if access & ~(abi.ACCESS_KNOWN | abi.ACCESS_OPTIONAL_RANGE):
            raise Refused(errno.EINVAL, f"unknown access flags in {access:#x}")
        if access & _REMOTE_CHANGES and not access & abi.ACCESS_LOCAL_WRITE:
            raise Refused(errno.EINVAL, "remote write or atomic access needs local write access")
        if not 0 < length <= self.attr.max_mr_size or addr + length > SIZE_MAX:
            raise Refused(errno.EINVAL, f"length {length}")
        if not access & abi.ACCESS_ON_DEMAND:
            self.check_memory(addr, length)
        elif not self.attr.odp_general_caps & abi.ODP_SUPPORT:
            raise Refused(errno.EOPNOTSUPP, "no on-demand paging")

    def check_memory(self, addr: int, length: int) -> None:
        try:
            self.memory.read(addr, 1)
            self.memory.read(addr + length - 1, 1)
        except MemoryFault as fault:
            raise Refused(errno.EFAULT, f"no memory at {addr:#x}") from fault

    def advise_mr(self, pd: PD, advice: int, flags: int, sges: list[SGE]) -> None:
        """ibv_advise_mr(3). Memory is looked up when it is used, so there is nothing to bring in, only to check."""
        if advice not in _ADVICES:
            raise Refused(errno.EOPNOTSUPP, f"advice {advice}")
        if flags & ~abi.ADVISE_FLUSH:
            raise Refused(errno.EINVAL, f"flags {flags:#x}")
        for addr, length, lkey in sges:
            mr = self.lkeys.get(lkey)
            if mr is None:
                raise Refused(errno.EFAULT, f"lkey {lkey:#x} names no MR")
            if mr.pd is not pd:
                raise Refused(errno.EPERM, f"lkey {lkey:#x} is of another PD")
            if not mr.access & abi.ACCESS_ON_DEMAND:
                raise Refused(errno.EINVAL, f"lkey {lkey:#x} is not on demand")
            if advice == abi.ADVICE_PREFETCH_WRITE and not mr.access & abi.ACCESS_LOCAL_WRITE:
                raise Refused(errno.EPERM, f"lkey {lkey:#x} allows no writing")
            if not mr.covers(addr, length):
                raise Refused(errno.EFAULT, f"{length} bytes at {addr:#x} exceed the MR")
            if length and flags & abi.ADVISE_FLUSH and advice != abi.ADVICE_PREFETCH_NO_FAULT:
                self.check_memory(mr.virtual(addr), length)

    def alloc_null_mr(self, pd: PD) -> MR:
        """ibv_alloc_null_mr(3)."""
        self.count(pd.context, MR, self.attr.max_mr)
        mr = self.new_null_mr(pd)
        self.lkeys[mr.lkey] = mr
        if self.null_mr_holds_pd:
            pd.users.add(mr)
        return self.remember(pd.context, mr)

    def null_mr_pd(self, pd: PD) -> PD:
        """The PD of a null MR that is asked for on this one, which may be a parent domain or an imported one."""
        return pd.parent or pd

    def null_mr_without_memory(self, pd: PD) -> MR:
        """What ibv_alloc_null_mr does where the provider has no memory for struct ibv_mr."""
        raise Refused(errno.ENOMEM, "no memory for struct ibv_mr")

    def new_null_mr(self, pd: PD) -> MR:
        return MR(pd, 0, SIZE_MAX, 0, 0, self.new_key(), self.new_key(), self.new_handle(), null=True)

    def rereg_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        """ibv_rereg_mr(3). `code` of Refused is the negative value that the call returns."""
        if mr.null:
            return self.rereg_null_mr(mr, flags, pd, addr, length, access)
        if not flags or flags & ~abi.REREG_MR_FLAGS_SUPPORTED:
            raise Refused(errno.EINVAL, f"flags {flags:#x}", abi.REREG_MR_ERR_INPUT)
        if flags & abi.REREG_MR_CHANGE_PD and pd is None:
            raise Refused(errno.EINVAL, "no PD", abi.REREG_MR_ERR_INPUT)
        if mr.windows:
            raise Refused(errno.EBUSY, "memory windows are bound to the MR", abi.REREG_MR_ERR_CMD)
        if not flags & abi.REREG_MR_CHANGE_TRANSLATION:
            addr, length = mr.addr, mr.length
        elif not addr or not length:
            raise Refused(errno.EINVAL, "no address or length", abi.REREG_MR_ERR_INPUT)
        access = access if flags & abi.REREG_MR_CHANGE_ACCESS else mr.access
        try:
            self.check_region(addr, length, access)
        except Refused as refused:
            raise Refused(refused.errno, str(refused), abi.REREG_MR_ERR_CMD) from refused
        if flags & abi.REREG_MR_CHANGE_TRANSLATION:
            mr.addr, mr.length = addr, length
            mr.iova = 0 if access & abi.ACCESS_ZERO_BASED else addr
        mr.access = access
        if flags & abi.REREG_MR_CHANGE_PD and pd is not None:
            mr.pd.users.discard(mr)
            mr.pd = pd
            pd.users.add(mr)
        return None

    def rereg_null_mr(self, mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        """ibv_alloc_null_mr(3): ibv_rereg_mr() of a null MR is invalid."""
        raise Refused(errno.EINVAL, "a null MR cannot be re-registered", abi.REREG_MR_ERR_INPUT)

    def dereg_mr(self, mr: MR) -> None:
        """ibv_dereg_mr(3)."""
        if mr.null:
            return self.free_null_mr(mr)
        if mr.windows:
            raise Refused(errno.EBUSY, "memory windows are bound to the MR")
        self.forget_keys(mr)
        return None

    def free_null_mr(self, mr: MR) -> None:
        self.forget_keys(mr)

    def forget_keys(self, mr: MR) -> None:
        if self.lkeys.get(mr.lkey) is mr:
            del self.lkeys[mr.lkey]
        if self.rkeys.get(mr.rkey) is mr:
            del self.rkeys[mr.rkey]
        mr.pd.users.discard(mr)
        self.forget(mr.pd.context, mr)

    # Memory windows

    def alloc_mw(self, pd: PD, type: int) -> MW:
        if type not in (abi.MW_TYPE_1, abi.MW_TYPE_2):
            raise Refused(errno.EINVAL, f"MW type {type}")
        self.count(pd.context, MW, self.attr.max_mw)
        mw = MW(pd, type, self.new_key(), self.new_handle())
        pd.users.add(mw)
        return self.remember(pd.context, mw)

    def dealloc_mw(self, mw: MW) -> None:
        self.unbind(mw)
        mw.pd.users.discard(mw)
        self.forget(mw.pd.context, mw)

    def check_bind_to_null_mr(self, qp: QP, mw: MW, mr: MR) -> None:
        """ibv_alloc_null_mr(3): ibv_bind_mw() to a null MR is invalid. Refused means at once, WorkError in the
        completion. Here: type 1 at once; type 2, which is posted like any work request, in the completion."""
        if mw.type == abi.MW_TYPE_1:
            raise Refused(errno.EINVAL, "a memory window cannot be bound to a null MR")
        raise WorkError(abi.WC_MW_BIND_ERR, "a memory window cannot be bound to a null MR")

    def bind(self, qp: QP, mw: MW, mr: MR | None, rkey: int, addr: int, length: int, access: int) -> None:
        """Bind a window (IBTA 10.6.7); length 0 unbinds one of type 1. The window has the key `rkey` from then on."""
        if mr is not None and mr.null:
            self.check_bind_to_null_mr(qp, mw, mr)
        if qp.pd is not mw.pd or (mr is not None and mr.pd is not mw.pd):
            raise WorkError(abi.WC_MW_BIND_ERR, "QP, MW and MR are not of one PD")
        if rkey >> 8 != mw.rkey >> 8:
            raise WorkError(abi.WC_MW_BIND_ERR, "the new rkey is not of this window")
        if mw.type == abi.MW_TYPE_2:
            if mw.mr is not None:
                raise WorkError(abi.WC_MW_BIND_ERR, "a type 2 window must be invalidated before it is bound again")
            if not length:
                raise WorkError(abi.WC_MW_BIND_ERR, "a type 2 window cannot be bound to no bytes")
        if length:
            self.check_window(mr, addr, length, access)
        self.unbind(mw)
        mw.rkey = rkey
        if mr is not None and length:
            mw.mr, mw.bound_at, mw.length, mw.access = mr, addr, length, access
            mw.addr = 0 if access & abi.ACCESS_ZERO_BASED else addr
            mr.windows.add(mw)
            self.rkeys[rkey] = mw
            if mw.type == abi.MW_TYPE_2:
                mw.qp = qp
                qp.windows.add(mw)

    def check_window(self, mr: MR | None, addr: int, length: int, access: int) -> None:
        if mr is None:
            raise WorkError(abi.WC_MW_BIND_ERR, "no MR")
        if not mr.access & abi.ACCESS_MW_BIND:
            raise WorkError(abi.WC_MW_BIND_ERR, "the MR does not allow windows")
        if not mr.covers(addr, length):
            raise WorkError(abi.WC_MW_BIND_ERR, "the window exceeds the MR")
        if access & ~_WINDOW_ACCESS:
            raise WorkError(abi.WC_MW_BIND_ERR, f"access flags {access:#x}")
        if access & _REMOTE_CHANGES and not mr.access & abi.ACCESS_LOCAL_WRITE:
            raise WorkError(abi.WC_MW_BIND_ERR, "the MR cannot be written")

    def unbind(self, mw: MW) -> None:
        if self.rkeys.get(mw.rkey) is mw:
            del self.rkeys[mw.rkey]
        if mw.mr is not None:
            mw.mr.windows.discard(mw)
        if mw.qp is not None:
            mw.qp.windows.discard(mw)
        mw.mr = mw.qp = None

    def invalidate(self, qp: QP, rkey: int) -> None:
        """Local or remote invalidation: only of a type 2 window that is bound by this queue pair (IBTA 10.6.7.2.5)."""
        mw = self.rkeys.get(rkey)
        if not isinstance(mw, MW) or mw.type != abi.MW_TYPE_2 or mw.qp is not qp:
            raise WorkError(abi.WC_MW_BIND_ERR, f"rkey {rkey:#x} is no window of this queue pair")
        self.unbind(mw)

    # Looking keys up

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        """The MR that an lkey names, checked for the bytes of this segment (IBTA 10.6.3)."""
        mr = self.lkeys.get(segment.lkey)
        if mr is None:
            raise WorkError(abi.WC_LOC_PROT_ERR, f"lkey {segment.lkey:#x} names no MR")
        if mr.pd is not transfer.pd:
            raise WorkError(abi.WC_LOC_PROT_ERR, f"lkey {segment.lkey:#x} is of another PD")
        if mr.null:
            return mr
        if not mr.covers(segment.addr, segment.length):
            raise WorkError(abi.WC_LOC_PROT_ERR, f"{segment} exceeds its MR")
        if write and not mr.access & abi.ACCESS_LOCAL_WRITE:
            raise WorkError(abi.WC_LOC_PROT_ERR, f"lkey {segment.lkey:#x} allows no writing")
        return mr

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        """The MR that an rkey opens to a peer for this access, and the address in it (IBTA 10.6.3, 9.7.4.1.5)."""
        region = self.rkeys.get(rkey)
        if region is None:
            raise Nak(abi.WC_REM_ACCESS_ERR, f"rkey {rkey:#x} opens nothing")
        if region.pd is not transfer.pd:
            raise Nak(abi.WC_REM_ACCESS_ERR, f"rkey {rkey:#x} is of another PD")
        if not region.access & access:
            raise Nak(abi.WC_REM_ACCESS_ERR, f"rkey {rkey:#x} does not allow access {access:#x}")
        if not region.covers(addr, length):
            raise Nak(abi.WC_REM_ACCESS_ERR, f"{length} bytes at {addr:#x} exceed what rkey {rkey:#x} opens")
        if isinstance(region, MR):
            return region, addr
        if region.qp is not None and region.qp is not transfer.qp:
            raise Nak(abi.WC_REM_ACCESS_ERR, f"rkey {rkey:#x} is of a window of another queue pair")
        assert region.mr is not None, "a window with a live rkey is bound"
        return region.mr, addr - region.addr + region.bound_at
