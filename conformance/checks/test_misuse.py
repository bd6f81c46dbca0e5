# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""ibv_rereg_mr and ibv_bind_mw on a null MR are invalid."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.checks import windows
from conformance.checks.working import require_working
from conformance.judging import Bench
from conformance.verbs.closing import close
from conformance.verbs.names import e
from conformance.verbs.null_mr import NullMR
from conformance.verbs.windows import TYPES
from conformance.verdicts import Failure

REREG_FLAGS = {
    0: "no flags",
    e.IBV_REREG_MR_CHANGE_TRANSLATION: "TRANSLATION",
    e.IBV_REREG_MR_CHANGE_PD: "PD",
    e.IBV_REREG_MR_CHANGE_ACCESS: "ACCESS",
    e.IBV_REREG_MR_CHANGE_TRANSLATION | e.IBV_REREG_MR_CHANGE_PD: "TRANSLATION+PD",
    e.IBV_REREG_MR_CHANGE_TRANSLATION | e.IBV_REREG_MR_CHANGE_ACCESS: "TRANSLATION+ACCESS",
    e.IBV_REREG_MR_CHANGE_PD | e.IBV_REREG_MR_CHANGE_ACCESS: "PD+ACCESS",
    e.IBV_REREG_MR_CHANGE_TRANSLATION | e.IBV_REREG_MR_CHANGE_PD | e.IBV_REREG_MR_CHANGE_ACCESS: "all flags",
}


@contextmanager
def rereg(bench: Bench, flags: int) -> Iterator[tuple[NullMR, bool]]:
    """A null MR after ibv_rereg_mr with plausible arguments for these flags, and whether that was refused."""
    null_mr = NullMR(bench.pd)
    sibling = bench.sibling()
    arena = next(iter(bench.arenas.values()))
    try:
        try:
            null_mr.rereg(flags, sibling.pd, arena.address, 4096, e.IBV_ACCESS_LOCAL_WRITE)
        except PyverbsRDMAError:
            refused = True
        else:
            refused = False
        yield null_mr, refused
    finally:
        close(null_mr)
        sibling.close()
    if refused:  # which proves nothing on a device that has begun to refuse everything
        bench.require_alive(f"ibv_rereg_mr with {REREG_FLAGS[flags]} was refused")


@pytest.mark.clause("misuse/rereg-refused")
@pytest.mark.parametrize("flags", REREG_FLAGS, ids=REREG_FLAGS.get)
def test_rereg_fails(bench: Bench, flags: int) -> None:
    with rereg(bench, flags) as (null_mr, refused):
        if not refused:
            raise Failure(f"{bench.where}\n=> ibv_rereg_mr with {REREG_FLAGS[flags]} returned 0 on {null_mr}")


@pytest.mark.clause("misuse/rereg-harmless")
@pytest.mark.parametrize("flags", REREG_FLAGS, ids=REREG_FLAGS.get)
def test_rereg_leaves_it_as_it_was(bench: Bench, flags: int) -> None:
    with rereg(bench, flags) as (null_mr, _):
        now = (null_mr.length, null_mr.lkey, null_mr.rkey, null_mr.handle)
        fields = null_mr.fields
        if now != (fields.length, fields.lkey, fields.rkey, fields.handle):
            raise Failure(f"{bench.where}\n=> after ibv_rereg_mr, length, lkey, rkey, handle are {now}, were {fields}")
        require_working(bench, null_mr)


@pytest.mark.clause("misuse/bind-refused")
@pytest.mark.control(only=True)
@pytest.mark.parametrize("mw_type", TYPES, ids=TYPES.get)
def test_ordinary_memory_takes_a_window(bare_bench: Bench, mw_type: int) -> None:
    windows.control(bare_bench, mw_type)


@pytest.mark.clause("misuse/bind-refused")
@pytest.mark.parametrize("length", windows.LENGTHS, ids=str)
@pytest.mark.parametrize("mw_type", TYPES, ids=TYPES.get)
def test_bind_fails(bench: Bench, mw_type: int, length: int) -> None:
    with windows.bound(bench, mw_type, length) as window:
        if window.refused is None:
            raise Failure(f"{bench.where}\n=> {window} completed with success")


@pytest.mark.clause("misuse/bind-harmless")
@pytest.mark.parametrize("peer", windows.PEER)
@pytest.mark.parametrize("key", windows.KEYS, ids=windows.KEYS.get)
@pytest.mark.parametrize("length", [0, *windows.LENGTHS], ids=str)
@pytest.mark.parametrize("mw_type", TYPES, ids=TYPES.get)
def test_no_peer_reaches_anything_by_the_window(bench: Bench, mw_type: int, length: int, key: str, peer: str) -> None:
    scenario = windows.PEER[peer]
    with windows.bound(bench, mw_type, length, scenario) as window:
        window.try_as_peer(scenario, key)


@pytest.mark.clause("misuse/bind-harmless")
@pytest.mark.parametrize("mw_type", TYPES, ids=TYPES.get)
def test_the_null_mr_works_after_a_refused_bind(bench: Bench, mw_type: int) -> None:
    with windows.bound(bench, mw_type, 4096) as window:
        require_working(bench, window.null_mr)


@pytest.mark.clause("misuse/rereg-refused")
def test_no_sequence_can_be_found_after_which_rereg_succeeds(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("misuse/rereg-harmless")
def test_no_sequence_can_be_found_in_which_rereg_does_harm(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("misuse/bind-refused")
def test_no_sequence_can_be_found_after_which_a_bind_succeeds(try_sequences: Callable[[], None]) -> None:
    try_sequences()


@pytest.mark.clause("misuse/bind-harmless")
def test_no_sequence_can_be_found_in_which_a_bind_does_harm(try_sequences: Callable[[], None]) -> None:
    try_sequences()
