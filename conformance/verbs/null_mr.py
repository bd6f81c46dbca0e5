# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""NullMR: ibv_alloc_null_mr(3) for stock pyverbs."""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from conformance.verbs import shim

_shim = shim.load()  # before pyverbs.mr is imported

from pyverbs.mr import MR  # noqa: E402
from pyverbs.pd import PD  # noqa: E402
from pyverbs.pyverbs_error import PyverbsError  # noqa: E402

from conformance.verbs import history  # noqa: E402
from conformance.verbs.closing import never_collect  # noqa: E402
from conformance.verdicts import Failure  # noqa: E402


@dataclass(frozen=True)
class Fields:
    """struct ibv_mr as ibv_alloc_null_mr returned it. `same_pd`, `same_context`: are its pointers those of the PD?"""

    addr: int
    length: int
    handle: int
    lkey: int
    rkey: int
    same_pd: bool
    same_context: bool

    def __str__(self) -> str:
        return (
            f"addr {self.addr:#x}, length {self.length:#x}, handle {self.handle}, lkey {self.lkey:#x}, "
            f"rkey {self.rkey:#x}"
        )


class NullMRError(Failure):
    """ibv_alloc_null_mr returned NULL, which is the device's failure where nobody expects it.

    `error_code` is errno as it was then (0: it was not set).
    """

    def __init__(self, error_code: int) -> None:
        self.error_code = error_code
        super().__init__(f"ibv_alloc_null_mr returned NULL, {errno_name(error_code)}")


class ClosedError(ValueError):
    """The null MR was used after close()."""


def errno_name(number: int) -> str:
    """`errno 95 (EOPNOTSUPP: Operation not supported)`; says so where errno is unset or negative."""
    if number == 0:
        return "errno 0 (not set)"
    if number == errno.EOPNOTSUPP:  # the same number as ENOTSUP, by which Python would call it
        return f"errno {number} (EOPNOTSUPP: {os.strerror(number)})"
    name = errno.errorcode.get(abs(number), "unknown")
    if number < 0:
        return f"errno {number} (negative; -{name})"
    return f"errno {number} ({name}: {os.strerror(number)})"


def _open(name: str) -> Any:
    """MR's property of this name, refused once the MR is closed: pyverbs would read through a NULL pointer."""
    inherited = getattr(MR, name)

    def read(self: "NullMR") -> Any:
        self._require_open(name)
        return inherited.__get__(self)

    return property(read, doc=inherited.__doc__)


class NullMR(MR):  # type: ignore[misc]
    """A null memory region on `pd`, an open pyverbs PD.

    It is a pyverbs MR: close(), rereg(), MWBindInfo(mr=...) and its lkey in an SGE work as for any other.

    Raises NullMRError if the device returns NULL, TypeError if `pd` is not a PD, ClosedError if it is closed, and
    shim.ImportedTooEarlyError if pyverbs does not come by the shim.
    """

    # A slot and not an attribute: pyverbs calls close() from __dealloc__, when an instance dictionary is gone.
    __slots__ = ("_closed", "fields")

    fields: Fields

    def __init__(self, pd: PD) -> None:
        self._closed = True
        if not isinstance(pd, PD):
            raise TypeError(f"a null MR is allocated on a pyverbs PD, not on {pd!r}")
        _shim.null_mr_arm()
        try:
            super().__init__(pd, 0, 0)
        except PyverbsError:
            call = _shim.null_mr_disarm()
            if not call.consumed:
                raise shim.ImportedTooEarlyError from None
            raise NullMRError(call.error) from None
        finally:
            call = _shim.null_mr_disarm()
        if not call.consumed:
            super().close()
            raise shim.ImportedTooEarlyError
        self._closed = False
        self.fields = Fields(
            call.addr,
            call.length,
            call.handle,
            call.lkey,
            call.rkey,
            bool(call.same_pd),
            bool(call.same_context),
        )
        history.note("ibv_alloc_null_mr")

    def _require_open(self, what: str) -> None:
        if self._closed:
            raise ClosedError(f"{what} of a null MR that is closed (or whose PD or context is)")

    def close(self) -> None:
        """ibv_dereg_mr; nothing if closed already. Raises PyverbsRDMAError if the device refuses, once."""
        closed = getattr(self, "_closed", None)
        if closed:
            return
        if closed is None:  # from __dealloc__, where the slots are gone and nobody hears an error
            with suppress(PyverbsError):
                super().close()
            return
        try:
            super().close()
        except PyverbsError:
            self._closed = True
            never_collect(self)
            raise
        history.note("ibv_dereg_mr of a null MR")
        self._closed = True  # not before: Ctrl-C in pyverbs leaves it open

    def rereg(self, flags: int, pd: PD, addr: int = 0, length: int = 0, access: int = 0) -> None:
        """ibv_rereg_mr, which must fail on a null MR: raises PyverbsRDMAError. `pd` is needed whatever the flags."""
        self._require_open("rereg")
        if not isinstance(pd, PD):
            raise TypeError(f"rereg takes a pyverbs PD, not {pd!r}")
        super().rereg(flags, pd, addr, length, access)

    def __str__(self) -> str:
        return "null MR, closed" if self._closed else f"null MR, {self.fields}"

    lkey = _open("lkey")
    rkey = _open("rkey")
    length = _open("length")
    handle = _open("handle")
    buf = _open("buf")
