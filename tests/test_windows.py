# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory windows: what a device cannot do with ordinary memory is not held against its null MRs."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from conformance.checks import windows
from conformance.judging import Bench
from conformance.reference.engine import abi
from conformance.reference.engine.errors import Nak, Refused, WorkError
from conformance.reference.engine.objects import MW
from conformance.scenarios import Side
from conformance.verbs.names import e
from conformance.verbs.windows import KIND, TYPES
from conformance.verdicts import BrokenError, Failure, LackingError
from tests.rig import Patch, nothing, refused, target

MW_TYPES = pytest.mark.parametrize("mw_type", TYPES, ids=TYPES.get)


@MW_TYPES
def test_ordinary_memory_is_reached_by_a_window(bench: Bench, mw_type: int) -> None:
    windows.control(bench, mw_type)


@pytest.mark.parametrize(
    ("limits", "lacking"),
    [
        ({"mw_type_1": False, "mw_type_2": True}, e.IBV_MW_TYPE_1),
        ({"mw_type_1": True, "mw_type_2": False}, e.IBV_MW_TYPE_2),
    ],
)
def test_a_device_may_lack_one_type(limits: dict[str, bool], lacking: int) -> None:
    bench = Bench(target(**limits))
    for mw_type, name in TYPES.items():
        if mw_type == lacking:
            with pytest.raises(LackingError, match=f"ref0 has no memory windows of {name}"):
                windows.control(bench, mw_type)
        else:
            windows.control(bench, mw_type)
    bench.close()


@MW_TYPES
def test_a_bind_that_ordinary_memory_refuses_is_broken(bench: Bench, patch: Patch, mw_type: int) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise WorkError(abi.WC_MW_BIND_ERR, "no")

    patch("check_window", refuse)
    with pytest.raises(BrokenError, match="cannot be bound to ordinary memory: completed with IBV_WC_MW_BIND_ERR"):
        windows.control(bench, mw_type)


@pytest.mark.parametrize(
    ("mw_type", "method", "verb"),
    [(e.IBV_MW_TYPE_1, "bind_mw", "ibv_bind_mw"), (e.IBV_MW_TYPE_2, "check_send", "ibv_post_send")],
)
def test_a_bind_that_is_refused_at_once_names_the_verb(
    bench: Bench, patch: Patch, mw_type: int, method: str, verb: str
) -> None:
    def refuse(method: Callable[..., Any], *arguments: Any) -> Any:
        mr = arguments[-1].bind_mr
        if mr is not None and mr.null:
            raise Refused(errno.EPERM, "no")
        return method(*arguments)

    patch(method, refuse)
    with windows.bound(bench, mw_type, 4096) as window:
        assert window.refused == f"{verb} returned errno 1 (EPERM: Operation not permitted)"


@MW_TYPES
def test_a_window_that_opens_nothing_on_ordinary_memory_is_broken(bench: Bench, patch: Patch, mw_type: int) -> None:
    bench.control(*windows.PEER.values())

    def find_remote(method: Callable[..., Any], device: Any, transfer: Any, rkey: int, *rest: Any) -> Any:
        if isinstance(device.rkeys.get(rkey), MW):
            raise Nak(abi.WC_REM_ACCESS_ERR, "no")
        return method(device, transfer, rkey, *rest)

    patch("find_remote", find_remote)
    with pytest.raises(BrokenError, match=r"ordinary memory is not reached by an MW type-\d bound to it"):
        windows.control(bench, mw_type)


@MW_TYPES
def test_a_bind_that_does_not_complete_on_ordinary_memory_is_broken(bench: Bench, patch: Patch, mw_type: int) -> None:
    bench.control(*windows.PEER.values())
    patch("complete", nothing)
    with pytest.raises(
        BrokenError, match=r"on ordinary memory: .*\n=> the bind was neither refused nor completed within"
    ):
        windows.control(bench, mw_type)


def test_a_bind_to_a_null_mr_that_does_not_complete_is_a_failure(bench: Bench, patch: Patch) -> None:
    def complete(method: Callable[..., None], device: Any, cq: Any, cqe: Any, *rest: Any) -> None:
        if cqe.status != abi.WC_MW_BIND_ERR:
            method(device, cq, cqe, *rest)

    patch("complete", complete)
    with (
        pytest.raises(Failure, match="the bind was neither refused nor completed within"),
        windows.bound(bench, e.IBV_MW_TYPE_2, 4096),
    ):
        pass


@MW_TYPES
def test_a_device_that_has_begun_to_refuse_everything_is_broken(bench: Bench, patch: Patch, mw_type: int) -> None:
    windows.control(bench, mw_type)
    method = "bind_mw" if mw_type == e.IBV_MW_TYPE_1 else "check_send"
    window = windows.bound(bench, mw_type, 4096)
    assert window.__enter__().refused
    patch(method, refused(errno.EIO))
    with pytest.raises(BrokenError, match="EIO"):
        window.__exit__(None, None, None)


@pytest.mark.parametrize(("length", "address"), [(4096, None), (0, None), (2**64 - 1, 0)])
@MW_TYPES
def test_a_window_is_bound_where_a_peer_would_look(
    bench: Bench, mw_type: int, length: int, address: int | None
) -> None:
    with windows.bound(bench, mw_type, length) as window:
        assert window.address == (bench.arenas[Side.RESPONDER].address if address is None else address)
        assert window.refused
        assert window.null_mr is not bench.null_mr
        assert f"bind of an MW {TYPES[mw_type]} to {length:#x} bytes" in str(window)


@MW_TYPES
def test_each_window_is_bound_on_a_queue_pair_of_its_own(bench: Bench, mw_type: int) -> None:
    links = [bench.link(KIND)]
    windows.control(bench, mw_type)
    for _ in range(2):
        with windows.bound(bench, mw_type, 4096):
            links.append(bench.link(KIND))
    assert len({id(link) for link in links}) == 3


def test_a_queue_pair_that_completed_the_bind_in_error_is_not_used_again(bench: Bench, patch: Patch) -> None:
    """What a peer tries on it would be refused for that alone."""
    with windows.bound(bench, e.IBV_MW_TYPE_2, 4096) as window:
        assert window.refused is not None
        assert window.refused.startswith("completed with IBV_WC_MW_BIND_ERR")
        assert bench.run(windows.PEER["read"]).findings == ()
