# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What ibv_alloc_null_mr(3) requires, one entry for each promise.

The ids are stable for ever: reports, waivers and `-k` use them.
"""

from dataclasses import dataclass
from enum import Enum

MAN = "ibv_alloc_null_mr(3)"
FIRST_PAGE = "2018-06-01"
ERRNO_PAGE = "2026-08"


class Level(Enum):
    """How a clause bears on the verdict."""

    MUST = "MUST"
    """decides the verdict"""
    SHOULD = "SHOULD"
    """reported; decides the verdict under --conformance-strict only"""
    OBSERVE = "OBSERVE"
    """left open by the page: recorded, never judged"""


@dataclass(frozen=True)
class Clause:
    """One requirement.

    `source` is where it is written, `since` the date of the man-page revision that brought it.
    """

    id: str
    level: Level
    requirement: str
    source: str
    since: str = FIRST_PAGE
    about_allocation: bool = False
    """a null MR that is not given fails it; where another clause needs one, that is something that the device lacks"""
    provokes_kernel_errors: bool = False
    """its checks do what a driver may report to the kernel's log as an error"""

    @property
    def group(self) -> str:
        return group_of(self.id)


def group_of(id: str) -> str:
    """The group of a clause id, also of one that this suite does not know."""
    return id.partition("/")[0]


def _must(id: str, requirement: str, source: str, since: str = FIRST_PAGE, **policy: bool) -> Clause:
    return Clause(id, Level.MUST, requirement, source, since, **policy)


def _observe(id: str, requirement: str, source: str) -> Clause:
    return Clause(id, Level.OBSERVE, requirement, source, provokes_kernel_errors=True)


CLAUSES: tuple[Clause, ...] = (
    _must(
        "allocate/returns-mr",
        "an MR comes back, tied to the PD and the context it was asked on",
        f"{MAN} DESCRIPTION",
        about_allocation=True,
    ),
    _must(
        "allocate/max-length",
        "it covers every address and every length that a work request can name: length is SIZE_MAX (or at least the "
        "device's max_mr_size), and SGEs at 0, at 2^64-length, at unmapped and at mapped addresses all work",
        f"{MAN} DESCRIPTION: maximum length",
        about_allocation=True,
    ),
    _must(
        "allocate/lkey-valid",
        "the lkey is accepted as local key by every kind of work request that the device offers",
        f"{MAN} DESCRIPTION: the lkey is valid",
        about_allocation=True,
    ),
    _must(
        "allocate/coexist",
        "many null MRs live side by side on one PD, on several PDs and on several contexts (they may share one lkey)",
        f"{MAN} DESCRIPTION; ibv_reg_mr(3)",
        about_allocation=True,
    ),
    _must(
        "allocate/many-queue-pairs",
        "one null MR serves several queue pairs of its PD at the same time, and one of them in error does not change "
        "what the others see",
        f"{MAN} DESCRIPTION: the lkey is valid; ibv_alloc_pd(3)",
        about_allocation=True,
    ),
    _must(
        "allocate/derived-pd",
        "on a parent domain and on an imported PD, where the device has them, it is as on the PD itself",
        f"{MAN} DESCRIPTION; ibv_alloc_parent_domain(3), ibv_import_pd(3)",
        about_allocation=True,
    ),
    _must(
        "allocate/fails-cleanly",
        "where it cannot be had: NULL, and a positive errno that says why (EOPNOTSUPP where the device has none); "
        "the PD stays usable",
        f"{MAN} RETURN VALUE; infiniband/verbs.h",
        ERRNO_PAGE,
        about_allocation=True,
    ),
    _must(
        "read/zeros",
        "whatever is gathered from it is zero at the receiver",
        f"{MAN} DESCRIPTION: returns 0 on read",
    ),
    _must(
        "read/zeros-after-write",
        "it keeps nothing: after data was written to it, the same addresses still read as zero",
        f"{MAN} DESCRIPTION: always returns 0 on read",
    ),
    _must(
        "read/mixed-gather",
        "in a gather list, null and ordinary segments each give their own bytes at the right offset",
        f"{MAN}; ibv_post_send(3) sg_list",
    ),
    _must(
        "discard/receive",
        "a receive into it completes like any other, and the data is gone",
        f"{MAN} DESCRIPTION: discards all data written; ibv_post_recv(3)",
    ),
    _must(
        "discard/read-response",
        "the response of an RDMA READ into it completes like any other, and the data is gone",
        f"{MAN} DESCRIPTION: discards all data written; ibv_post_send(3)",
    ),
    _must(
        "discard/atomic-result",
        "the old value that an atomic returns into it is gone, while the remote word is updated",
        f"{MAN} DESCRIPTION: discards all data written; ibv_post_send(3); IBTA 9.4.5",
    ),
    _must(
        "discard/mixed-scatter",
        "in a scatter list, the ordinary segments get their own bytes at the right offset, "
        "the null ones swallow theirs",
        f"{MAN}; ibv_post_recv(3) sg_list",
    ),
    _must(
        "discard/leaves-memory",
        "nothing is ever written at the address that the null segment names, even when live memory is there",
        f"{MAN} DESCRIPTION: discards all data written",
    ),
    _must(
        "discard/completion",
        "status, opcode, byte_len and imm_data are what an ordinary MR of the same lengths would give "
        "(a message longer than the list is still a length error)",
        f"{MAN}; ibv_poll_cq(3)",
    ),
    _must(
        "discard/event",
        "a receive into it, and what else completes with it, notifies the completion channel as on an ordinary MR",
        f"{MAN}; ibv_req_notify_cq(3), ibv_get_cq_event(3)",
    ),
    _must(
        "key/no-rkey",
        "the MR's rkey gives a peer nothing: remote READ, WRITE and atomics by it are refused, and invalidating it "
        "does no harm",
        f"{MAN} DESCRIPTION: not exposed as an rkey",
        provokes_kernel_errors=True,
    ),
    _must(
        "misuse/rereg-refused",
        "ibv_rereg_mr fails for every combination of flags",
        f"{MAN} DESCRIPTION; ibv_rereg_mr(3)",
        provokes_kernel_errors=True,
    ),
    _must(
        "misuse/rereg-harmless",
        "a refused ibv_rereg_mr leaves the null MR as it was",
        f"{MAN} DESCRIPTION; ibv_rereg_mr(3)",
        provokes_kernel_errors=True,
    ),
    _must(
        "misuse/bind-refused",
        "binding a memory window on it fails, at once or in the completion: type 1 by ibv_bind_mw, "
        "type 2 by a work request",
        f"{MAN} DESCRIPTION; ibv_bind_mw(3)",
        provokes_kernel_errors=True,
    ),
    _must(
        "misuse/bind-harmless",
        "after a refused bind no peer can reach anything by that window",
        f"{MAN} DESCRIPTION; ibv_bind_mw(3)",
        provokes_kernel_errors=True,
    ),
    _must("free/succeeds", "ibv_dereg_mr returns 0", f"{MAN} DESCRIPTION; ibv_dereg_mr(3)"),
    _must(
        "free/leaves-others",
        "freeing one leaves every other null MR and every ordinary MR working",
        f"{MAN} DESCRIPTION; ibv_dereg_mr(3)",
    ),
    _must(
        "free/no-leak",
        "alloc and free in a loop hold no memory, no file descriptor and no kernel object back",
        f"{MAN} DESCRIPTION; ibv_dereg_mr(3)",
    ),
    _must(
        "free/releases-pd",
        "once the null MRs are freed, the PD can be deallocated",
        f"{MAN} DESCRIPTION; ibv_dealloc_pd(3)",
    ),
    Clause(
        "bypass/no-slower",
        Level.SHOULD,
        "transfers from and to it are not slower than the same transfers on ordinary memory "
        "(the PCI traffic itself cannot be seen through verbs)",
        f"{MAN} DESCRIPTION: PCI transfers are bypassed",
        FIRST_PAGE,
    ),
    _observe(
        "observe/lkey-as-rkey",
        "does the device accept the lkey as a remote key?",
        "perftest publishes the lkey as an rkey with --use-null-mr",
    ),
    _observe("observe/other-pd", "does the lkey work on a queue pair of another PD?", "ibv_alloc_pd(3)"),
    _observe("observe/pd-with-live-mr", "does ibv_dealloc_pd succeed while a null MR lives?", "ibv_dealloc_pd(3)"),
    _observe("observe/use-after-free", "does the lkey go on working after ibv_dereg_mr?", "ibv_dereg_mr(3)"),
    _observe(
        "observe/inline",
        "does an inline send with the lkey read what is at the address?",
        "ibv_post_send(3): the lkey is ignored",
    ),
    _observe("observe/fork", "does it work on when a child of fork() ends, or frees it?", "ibv_fork_init(3), fork(2)"),
    _observe("observe/fields", "addr, handle, rkey, lkey as they come", "infiniband/verbs.h"),
)

BY_ID = {clause.id: clause for clause in CLAUSES}

GROUPS: tuple[str, ...] = tuple(dict.fromkeys(clause.group for clause in CLAUSES))
