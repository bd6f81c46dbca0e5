# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One end of the traffic: a port with its context and PD, memory, null MR, and the queues that are made there."""

from __future__ import annotations

import errno
import os

from pyverbs.device import Context
from pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.capabilities import capabilities
from conformance.inventory import Target
from conformance.scenarios import LinkKind, Ordinary, Side
from conformance.verbs.closing import close
from conformance.verbs.hints import in_words
from conformance.verbs.memory import LOCAL_AND_REMOTE, Arena
from conformance.verbs.names import e
from conformance.verbs.null_mr import NullMR, NullMRError
from conformance.verbs.queues import Queues
from conformance.verdicts import BrokenError, LackingError

LOSSES_BEFORE_IMPATIENCE = 3


class Patience:
    """How long a target's completions are waited for: less once several were lost, so that a run still ends.

    `timeout` in seconds; a loss is one that was waited for that long in vain.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._losses = 0

    @property
    def seconds(self) -> float:
        return self.timeout if self._losses < LOSSES_BEFORE_IMPATIENCE else self.timeout / 10

    def lose(self) -> None:
        self._losses += 1


class Domain:
    """What ends on one PD share: context, PD, null MR, and how long they wait.

    `context`: an open one, or None for one of its own. `parent`: a PD of that context, of which this is a parent domain
    (ibv_alloc_parent_domain(3)). `imported`: the handle of a PD, which is imported with the context that it is of
    (ibv_import_device(3), ibv_import_pd(3)). Raises BrokenError if the target cannot be opened, LackingError if it has
    no parent domains or imports nothing.
    """

    def __init__(
        self,
        target: Target,
        context: Context | None = None,
        parent: PD | None = None,
        imported: int | None = None,
    ) -> None:
        self.target = target
        self.able = capabilities(target)
        self.patience = Patience(target.timeout)
        self._owns_context = context is None or imported is not None
        self._is_imported = imported is not None
        self._null_mr: NullMR | None = None
        self._other_null_mr: NullMR | None = None
        if context is not None and imported is not None:
            self._import(context, imported)
            return
        try:
            self.context = context or Context(name=target.device.name)
            self.pd = PD(self.context) if parent is None else ParentDomain(self.context, ParentDomainInitAttr(parent))
        except PyverbsRDMAError as error:
            if parent is not None and error.error_code in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise LackingError(f"{target.device.name} has no parent domains: {error}") from None
            raise BrokenError(f"{target.id}: {in_words(error)}") from error

    def _import(self, context: Context, handle: int) -> None:
        name = self.target.device.name
        try:
            self.context = Context(cmd_fd=os.dup(context.cmd_fd))  # closing the context closes the copy
        except PyverbsRDMAError as error:
            raise LackingError(f"{name} cannot be imported: {error}", "import of devices") from None
        try:
            self.pd = PD(self.context, handle=handle)
        except PyverbsRDMAError as error:
            close(self.context)
            raise LackingError(f"{name} imports no PD: {error}", "import of PDs") from None

    @property
    def access(self) -> int:
        """Access flags of ordinary memory: everything that the device has."""
        return int(LOCAL_AND_REMOTE if self.able.atomics else LOCAL_AND_REMOTE & ~e.IBV_ACCESS_REMOTE_ATOMIC)

    @property
    def null_mr(self) -> NullMR:
        """The domain's own null MR, allocated when first asked for. Raises NullMRError."""
        if self._null_mr is None:
            self._null_mr = NullMR(self.pd)
        return self._null_mr

    @property
    def other_null_mr(self) -> NullMR:
        """A second null MR of the PD, allocated when first asked for. Raises LackingError if there is none."""
        self.null_mr  # noqa: B018  # the first is first
        if self._other_null_mr is None:
            try:
                self._other_null_mr = NullMR(self.pd)
            except NullMRError as error:
                raise LackingError(f"{error} beside the first, which allocate/coexist judges") from None
        return self._other_null_mr

    @property
    def where(self) -> str:
        """The target as failure texts show it."""
        target = self.target
        settings = f", with {target.settings}" if target.settings else ""
        return f"{target.near} ({target.device.driver}), {target.route}, MTU {target.port.mtu}{settings}"

    def close_null_mrs(self) -> None:
        for null_mr in (self._other_null_mr, self._null_mr):
            if null_mr is not None:
                close(null_mr)
        self._null_mr = self._other_null_mr = None

    def dealloc_pd(self) -> str | None:
        """ibv_dealloc_pd, or ibv_unimport_pd; the error in words if it fails."""
        if self._is_imported:
            self._is_imported = False
            self.pd.unimport()
        error = close(self.pd)
        return str(error) if error else None

    def close_context(self) -> None:
        """Nothing if the context is another domain's."""
        if self._owns_context:
            close(self.context)


class End:
    """One side of the links of a target, on a domain that it may share with the other side.

    Raises BrokenError if there is no memory to be had.
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._arenas: list[Arena] = []
        self._lent: list[Arena] = []
        self._lacking: dict[tuple[bool, Ordinary], LackingError] = {}
        """kinds of memory that cannot be had"""
        self._add_arena()

    def _add_special(self, across_4gib: bool, ordinary: Ordinary) -> Arena:
        """Ask for each kind once: a device is not asked hundreds of times for what it does not have."""
        kind = (across_4gib, ordinary)
        if kind in self._lacking:
            raise self._lacking[kind].with_traceback(None)
        try:
            return self._add_arena(*kind)
        except LackingError as lacking:
            self._lacking[kind] = lacking
            raise

    def _add_arena(self, across_4gib: bool = False, ordinary: Ordinary = Ordinary.PLAIN) -> Arena:
        try:
            arena = Arena(self.domain.pd, self.domain.access, across_4gib, ordinary)
        except PyverbsRDMAError as error:
            if ordinary is not Ordinary.PLAIN:
                raise LackingError(f"{self.domain.target.id} cannot register {ordinary.words}: {error}") from None
            raise BrokenError(f"{self.domain.target.id}: {in_words(error)}") from error
        except OSError as error:
            wanted = "4 GiB of addresses" if across_4gib else ordinary.words
            raise LackingError(f"the machine has no {wanted} to spare: {error.strerror}") from None
        self._arenas.append(arena)
        return arena

    @property
    def arena(self) -> Arena:
        """The memory that is used where no other work request is in flight."""
        return self._arenas[0]

    def lend(self, size: int, across_4gib: bool = False, ordinary: Ordinary = Ordinary.PLAIN) -> Arena:
        """An arena of at least `size` bytes that nobody else uses, until it is given back: mostly the first.

        `across_4gib`: one with a multiple of 2^32 at ACROSS_4GIB_OFFSET. `ordinary`: one that is registered so. Raises
        BrokenError if there is no memory to be had, LackingError if there is none of that kind.
        """
        ordinary = Ordinary.PLAIN if ordinary is Ordinary.WINDOW else ordinary
        wanted = (across_4gib, ordinary)
        free = (arena for arena in self._arenas if arena not in self._lent)
        fitting = (arena for arena in free if (arena.across_4gib, arena.ordinary) == wanted)
        arena = next(fitting, None)
        if arena is None:
            arena = self._add_special(*wanted) if wanted != (False, Ordinary.PLAIN) else self._add_arena()
        try:
            arena.reserve(size)
        except PyverbsRDMAError as error:
            raise BrokenError(f"{self.domain.where}: no MR of {size} bytes: {in_words(error)}") from error
        self._lent.append(arena)
        return arena

    def give_back(self, arena: Arena) -> None:
        self._lent.remove(arena)

    def exchange_arenas(self, other: End) -> None:
        """Let each of two ends of one domain use the memory, and so the addresses, that the other one used."""
        self._arenas, other._arenas = other._arenas, self._arenas

    def queues(self, kind: LinkKind, side: Side, sges: int) -> Queues:
        """Queues for this side of a link of this kind, not yet connected. Raises what Queues does."""
        return Queues(self.domain.context, self.domain.pd, self.domain.target, kind, side, sges)

    def close(self) -> None:
        """What a faulty device refuses to free is left to the end of the process."""
        for arena in self._arenas:
            close(arena)
