# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory windows bound, or not, on a null MR, and what a peer can do by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyverbs.mr import MR

from conformance.judging import Bench
from conformance.scenarios import Operation, Scenario, Side, Transport, mem
from conformance.verbs.closing import close
from conformance.verbs.names import e
from conformance.verbs.null_mr import NullMR
from conformance.verbs.windows import ASKED, BEFORE, TYPES, bind
from conformance.verdicts import BrokenError, Failure, LackingError

SIZE_MAX = 2**64 - 1
LENGTHS = (4096, SIZE_MAX)
"""Bytes bound: some memory that is there, and all that the null MR claims to cover."""

PEER = {
    "read": Scenario(Transport.RC, Operation.RDMA_READ, (), (mem(64),)),
    "write": Scenario(Transport.RC, Operation.RDMA_WRITE, (mem(64),), ()),
}
"""What a peer tries on a window."""
KEYS = {BEFORE: "old-key", ASKED: "new-key"}


@dataclass(frozen=True)
class Window:
    """A window after the attempt to bind it. `refused` says how it was refused; None: the bind completed well."""

    bench: Bench
    mw_type: int
    null_mr: NullMR
    length: int
    address: int
    rkeys: dict[str, int]
    """the keys by which a peer might reach it: the window's own of before, and the one that the bind asked for"""
    refused: str | None

    def __str__(self) -> str:
        return f"bind of an MW {TYPES[self.mw_type]} to {self.length:#x} bytes at {self.address:#x} of the null MR"

    def try_as_peer(self, scenario: Scenario, key: str) -> None:
        """Raises Failure if a peer can do this by one of the window's keys.

        It is tried on the queue pair that the bind was posted to, which alone has a window of type 2 (or on a fresh
        one, where the failed bind left it in error), and then on another.
        """
        words = f"by the key {key}, after the {self} ({self.refused})"
        self.bench.check_refused(scenario, self.rkeys[key], words)
        self.bench.check_refused(scenario, self.rkeys[key], f"on another queue pair, {words}")


@contextmanager
def bound(bench: Bench, mw_type: int, length: int, *peers: Scenario) -> Iterator[Window]:
    """Try to bind a window on a null MR, at memory that a peer's READ and WRITE would go to. `peers`: what peers will
    try on it.

    On one of its own, as a bind may spoil it. Raises what `control` does, which is run again after a refusal, and
    NullMRError.
    """
    control(bench, mw_type, peers)
    address = 0 if length == SIZE_MAX else bench.arenas[Side.RESPONDER].address
    null_mr = NullMR(bench.pd)
    try:
        with bind(bench, mw_type, null_mr, address, length) as (rkeys, refused):
            yield Window(bench, mw_type, null_mr, length, address, rkeys, refused)
    finally:
        close(null_mr)
    if refused:  # which proves nothing on a rig that has begun to refuse everything
        control(bench, mw_type, peers)


def _require(bench: Bench, mw_type: int) -> None:
    limits = bench.target.device.limits
    if not (limits.mw_type_1 if mw_type == e.IBV_MW_TYPE_1 else limits.mw_type_2):
        lacks = f"memory windows of {TYPES[mw_type]}"
        raise LackingError(f"{bench.target.device.name} has no {lacks}", lacks)


def control(bench: Bench, mw_type: int, peers: Iterable[Scenario] = tuple(PEER.values())) -> None:
    """Bind a window on ordinary memory, and let peers reach the memory by it.

    Raises LackingError if the device has no such windows, BrokenError if this does not work.
    """
    _require(bench, mw_type)
    bench.control(*peers)
    arena = bench.arenas[Side.RESPONDER]
    access = bench.access | e.IBV_ACCESS_MW_BIND
    mr = MR(bench.pd, 4 * 4096, access, address=arena.address)
    try:
        with bind(bench, mw_type, mr, arena.address, 4 * 4096) as (rkeys, refused):
            if refused:
                text = f"an MW {TYPES[mw_type]} cannot be bound to ordinary memory: {refused}"
                raise BrokenError(f"{bench.where}: {text}")
            for scenario in peers:
                run = bench.run(scenario, rkey=rkeys[ASKED])
                if run.findings:
                    text = f"ordinary memory is not reached by an MW {TYPES[mw_type]} bound to it"
                    raise BrokenError(f"{text}\n{bench.text(run, run.findings)}", run.scenario)
    except Failure as failure:
        raise BrokenError(f"on ordinary memory: {failure}") from None
    finally:
        close(mr)
