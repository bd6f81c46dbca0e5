# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Ports that ask for a GRH or have several P_Keys, GIDs far behind in a table: the suite gets through, and one that
addressed them in another way would not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.config import load
from conformance.device import Pkey
from conformance.inventory import Target, targets
from conformance.reference import compose
from conformance.reference.engine.device import Device, Fabric
from conformance.reference.engine.objects import AddressVector
from conformance.reference.libibverbs.devices import fabric
from conformance.scenarios import LinkKind, Operation, Poll, Post, Queue, Transport, plain
from conformance.verbs.devices import list_devices
from conformance.verbs.pair import Pair
from conformance.verdicts import BrokenError
from tests import rig

KINDS = [
    LinkKind(transport, Queue.SRQ if transport is Transport.XRC else Queue.RQ, Post.POST_SEND, Poll.POLL_CQ)
    for transport in Transport
]


@pytest.fixture
def port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """ref0 has the port of the variant of this name."""
    first = fabric.devices[0]
    variant = compose((), request.param)(0, Fabric(), first.memory)
    monkeypatch.setattr(first, "ports", variant.ports)


def target(folder: Path, settings: str = "") -> Target:
    """Port 1 of ref0 by an entry with these settings."""
    path = folder / "providers.yaml"
    path.write_text(f"providers: {{a: {{driver: reference, null_mr: required, timeout: 0.2{settings}}}}}")
    devices = [replace(device, driver="reference") for device in list_devices({})]
    return targets(load(path), devices).usable[0]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    opened: list[Pair] = []
    yield opened
    for pair in opened:
        pair.close()


def findings(pairs: list[Pair], of: Target, kind: LinkKind) -> list[str]:
    pairs.append(Pair(of))
    return [finding.text for finding in pairs[-1].run(plain(kind, Operation.SEND)).findings]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    ("port", "settings", "route"),
    [
        ("infiniband-port", "", "LID 0x1, P_Key 0xffff at index 0"),
        ("infiniband-port", ", gid: 0, sl: 5, traffic_class: 32", "P_Key 0xffff at index 0, SL 5, traffic class 32"),
        ("infiniband-grh-required", "", "GID 0 (IB, "),
        ("infiniband-several-pkeys", "", "LID 0x1, P_Key 0x8001 at index 2"),
        ("infiniband-several-pkeys", ", pkey: 0x8002", "LID 0x1, P_Key 0x8002 at index 3"),
        ("infiniband-several-pkeys", ", pkey: 3", "LID 0x1, P_Key 0x8002 at index 3"),
        ("many-gids", ", gid: '::ffff:192.0.2.0/120'", "GID 204 (RoCE v2, "),
    ],
    indirect=["port"],
)
def test_traffic_passes_by_the_route_that_is_asked_for(
    port: None, settings: str, route: str, kind: LinkKind, pairs: list[Pair], tmp_path: Path
) -> None:
    of = target(tmp_path, settings)
    assert route in of.route
    assert findings(pairs, of, kind) == []


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("port", ["infiniband-grh-required"], indirect=True)
def test_a_port_that_requires_a_grh_refuses_an_address_without_one(
    port: None, kind: LinkKind, pairs: list[Pair], tmp_path: Path
) -> None:
    pair = Pair(replace(target(tmp_path), gid=None))
    pairs.append(pair)
    with pytest.raises(BrokenError, match=r"LID 0x1, P_Key 0xffff at index 0, .* Errno: 22.* `gid: 0` in its entry"):
        pair.run(plain(kind, Operation.SEND))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("port", ["infiniband-several-pkeys"], indirect=True)
def test_limited_members_of_a_partition_do_not_hear_each_other(
    port: None, kind: LinkKind, pairs: list[Pair], tmp_path: Path
) -> None:
    assert findings(pairs, replace(target(tmp_path), pkey=Pkey(0, 0x7FFF)), kind) != []


@pytest.mark.parametrize(("one", "other"), [(0xFFFF, 0xFFFF), (0xFFFF, 0x7FFF)])
def test_full_members_hear_every_member_of_their_partition(one: int, other: int) -> None:
    assert heard(one, other)
    assert heard(other, one)


@pytest.mark.parametrize(("one", "other"), [(0x7FFF, 0x7FFF), (0x8001, 0x8002), (0x8001, 0xFFFF)])
def test_others_do_not(one: int, other: int) -> None:
    assert not heard(one, other)


def heard(one: int, other: int) -> bool:
    """Does a queue pair with the first P_Key reach one with the second?"""
    device = fabric.devices[0]
    port = replace(device.ports[0], pkeys=[one, other])
    made = [type("QP", (), {"attr": {"port_num": 1, "pkey_index": index}, "device": device}) for index in range(2)]
    kept, device.ports[0] = device.ports[0], port
    try:
        return device.same_partition(*made)  # type: ignore[arg-type]
    finally:
        device.ports[0] = kept


@pytest.mark.parametrize("port", ["infiniband-port"], indirect=True)
def test_service_level_and_traffic_class_are_in_the_address(
    port: None, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[AddressVector] = []

    def check(checked: Callable[..., None], device: Device, av: AddressVector) -> None:
        seen.append(av)
        checked(device, av)

    rig.wrap(monkeypatch, "check_address", check)
    findings(pairs, target(tmp_path, ", gid: 0, sl: 5, traffic_class: 32"), KINDS[0])
    assert {(av.sl, av.traffic_class, av.is_global, av.sgid_index) for av in seen} == {(5, 32, 1, 0)}
