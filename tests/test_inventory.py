# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices matched with providers.yaml, on devices made up here and on the reference device."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv6Network
from pathlib import Path

import pytest

from conformance import config, inventory
from conformance.device import Device, Gid, OpenedDevice, Pkey, Place, Port, unopened
from conformance.verbs.devices import list_devices
from conformance.verbs.machine import open_machine
from tests.made_up import LIMITS

ROOT = config.DEFAULT_PATH.parent

V1 = Gid(0, "fe80:0000:0000:0000:0202:c9ff:fe00:0001", "RoCE v1")
V2 = Gid(1, "fe80:0000:0000:0000:0202:c9ff:fe00:0001", "RoCE v2")
V1_IPV4 = Gid(2, "0000:0000:0000:0000:0000:ffff:c0a8:0001", "RoCE v1")
V2_IPV4 = Gid(3, "0000:0000:0000:0000:0000:ffff:c0a8:0001", "RoCE v2")
IB = Gid(0, "fe80:0000:0000:0000:0202:c9ff:fe00:0002", "IB")
ROCE = Port(1, "ACTIVE", "ETHERNET", 0, 1024, 1 << 30, (V1, V2, V1_IPV4, V2_IPV4))
INFINIBAND = Port(1, "ACTIVE", "INFINIBAND", 7, 4096, 1 << 30, (IB,))


NOWHERE = Place()


def device(
    name: str, *ports: Port, driver: str = "mlx5", transport: str = "IB", place: Place = NOWHERE
) -> OpenedDevice:
    return OpenedDevice(name, driver, transport, "16.35.1012", 0x2C9, 4119, ports or (ROCE,), (), place, LIMITS)


def second(port: Port, **changes: object) -> Port:
    return replace(port, number=2, **changes)  # type: ignore[arg-type]


def configured(folder: Path, *entries: str) -> config.Config:
    """A config of these entries, one on each line from line 2 on."""
    path = folder / "providers.yaml"
    path.write_text("\n".join(["providers:", *(f"  {entry}" for entry in entries)]), encoding="utf-8")
    return config.load(path)


def match(folder: Path, entry: str, *devices: Device) -> inventory.Inventory:
    return inventory.targets(configured(folder, entry), devices)


def reason(target: inventory.AnyTarget) -> str:
    """Why it is broken; empty if it is not."""
    return target.reason if isinstance(target, inventory.BrokenTarget) else ""


def endings(found: inventory.Inventory) -> list[tuple[str, str]]:
    return [(target.id, reason(target)) for target in found.targets]


def mistakes(valid: config.Config, *devices: Device) -> list[str]:
    with pytest.raises(inventory.InventoryError) as caught:
        inventory.targets(valid, devices)
    return [mistake.removeprefix(str(valid.path)) for mistake in caught.value.mistakes]


def test_a_target_has_all_that_a_check_needs(tmp_path: Path) -> None:
    cx = device("mlx5_0")
    found = match(tmp_path, "lab: {driver: mlx5, null_mr: required, timeout: 3}", cx)
    assert found == inventory.Inventory(
        (inventory.Target("lab", cx, ROCE, "required", 3, (), "", V2_IPV4, None),),
        (),
    )
    assert found.targets[0].id == "mlx5_0/1"


def test_a_device_belongs_to_the_first_entry_that_matches_it(tmp_path: Path) -> None:
    entries = (
        "one: {devices: [mlx5_1], null_mr: required}",
        "glob: {devices: ['mlx5_[12]'], null_mr: absent}",
        "rest: {driver: mlx5, null_mr: optional}",
    )
    devices = [device(f"mlx5_{number}") for number in range(3)]
    found = inventory.targets(configured(tmp_path, *entries), devices)
    assert [(target.id, target.provider) for target in found.targets] == [
        ("mlx5_0/1", "rest"),
        ("mlx5_1/1", "one"),
        ("mlx5_2/1", "glob"),
    ]


def test_devices_and_driver_must_both_fit(tmp_path: Path) -> None:
    devices = (device("roce0"), device("roce1", driver="bnxt_re"), device("ib0"))
    found = match(tmp_path, "a: {devices: ['roce*'], driver: mlx5, null_mr: optional}", *devices)
    assert [target.id for target in found.targets] == ["roce0/1"]
    assert found.left_out == (
        ("roce1", f"no entry of {tmp_path}/providers.yaml matches it (driver bnxt_re)"),
        ("ib0", f"no entry of {tmp_path}/providers.yaml matches it (driver mlx5)"),
    )


def test_a_device_of_unknown_driver_is_left_out_with_the_way_to_match_it(tmp_path: Path) -> None:
    found = match(tmp_path, "a: {driver: mlx5, null_mr: optional}", device("mlx5_0", driver="unknown"))
    [(name, reason)] = found.left_out
    assert name == "mlx5_0"
    assert reason.endswith("matches it (driver unknown, which the kernel does not tell: match it by name)")


def test_a_glob_may_match_nothing(tmp_path: Path) -> None:
    found = match(tmp_path, "a: {devices: ['mlx5_*'], null_mr: optional}", device("rxe0", driver="rxe"))
    assert found.targets == ()


def test_at_least_makes_a_glob_that_matches_too_little_an_error(tmp_path: Path) -> None:
    valid = configured(tmp_path, "a: {devices: ['mlx5_*'], at_least: 2, null_mr: optional}")
    assert mistakes(valid, device("mlx5_0"), device("rxe0", driver="rxe")) == [
        ":2: providers.a.at_least: 2 asked for, but 1 found (mlx5_0); this machine has mlx5_0 (mlx5), rxe0 (rxe)"
    ]
    assert len(inventory.targets(valid, [device("mlx5_0"), device("mlx5_1")]).targets) == 2


def test_at_least_holds_for_drivers_too(tmp_path: Path) -> None:
    valid = configured(tmp_path, "a: {driver: mlx5, at_least: 1, null_mr: optional}")
    assert mistakes(valid) == [
        ":2: providers.a.at_least: 1 asked for, but 0 found (none); this machine has no RDMA device"
    ]


def test_devices_that_go_to_an_earlier_entry_do_not_count(tmp_path: Path) -> None:
    valid = configured(
        tmp_path,
        "first: {driver: mlx5, null_mr: optional}",
        "second: {devices: ['mlx5_*'], at_least: 1, null_mr: optional}",
    )
    assert mistakes(valid, device("mlx5_0")) == [
        ":3: providers.second.at_least: 1 asked for, but 0 found (none); this machine has mlx5_0 (mlx5)"
    ]


def test_names_that_are_not_on_the_machine_are_all_told(tmp_path: Path) -> None:
    valid = configured(
        tmp_path,
        "a: {devices: [mlx5_0, mlx5_7], null_mr: required}",
        "b: {devices: [mlx5_8], null_mr: required}",
    )
    way_out = "correct or remove the name, or write a glob, which may match nothing"
    assert mistakes(valid, device("mlx5_0")) == [
        f":2: providers.a.devices[1]: mlx5_7 is not on this machine, which has mlx5_0 (mlx5); {way_out}",
        f":3: providers.b.devices[0]: mlx5_8 is not on this machine, which has mlx5_0 (mlx5); {way_out}",
    ]


def test_a_named_device_of_another_driver_is_an_error(tmp_path: Path) -> None:
    valid = configured(tmp_path, "a: {devices: [roce0], driver: mlx5, null_mr: required}")
    assert mistakes(valid, device("roce0", driver="siw")) == [
        ":2: providers.a.devices[0]: roce0 has the driver siw, not mlx5"
    ]


def test_a_named_device_that_an_earlier_entry_takes_is_an_error(tmp_path: Path) -> None:
    valid = configured(
        tmp_path,
        "mlx5: {driver: mlx5, null_mr: optional}",
        "mine: {devices: [mlx5_0], null_mr: required}",
    )
    assert mistakes(valid, device("mlx5_0")) == [
        f":3: providers.mine.devices[0]: mlx5_0 goes to an earlier entry ({tmp_path}/providers.yaml:2: "
        "providers.mlx5); move this entry above it"
    ]


CX = Place("0000:5e:00.0", ("ens1f0", "ens1f0v1"))


@pytest.mark.parametrize("named", ["{pci: 0000:5e:00.0}", "{netdev: ens1f0}", "{netdev: ens1f0v1}"])
def test_a_device_can_be_named_by_its_place(named: str, tmp_path: Path) -> None:
    found = match(tmp_path, f"a: {{devices: [{named}], null_mr: optional}}", device("x", place=CX), device("y"))
    assert [target.id for target in found.targets] == ["x/1"]


def test_a_place_that_is_not_on_the_machine_is_told_with_those_that_are(tmp_path: Path) -> None:
    valid = configured(tmp_path, "a: {devices: [{netdev: eth9}], null_mr: required}")
    assert mistakes(valid, device("mlx5_0", place=CX)) == [
        ":2: providers.a.devices[0]: netdev eth9 is not on this machine, which has mlx5_0 (mlx5, 0000:5e:00.0, ens1f0, "
        "ens1f0v1); correct or remove the name, or write a glob, which may match nothing"
    ]


def test_a_place_of_two_devices_may_name_them_by_driver(tmp_path: Path) -> None:
    devices = device("mlx5_0", place=CX), device("rxe0", driver="rxe", place=Place("", ("ens1f0",)))
    found = match(tmp_path, "a: {devices: [{netdev: ens1f0}], driver: rxe, null_mr: absent}", *devices)
    assert [target.id for target in found.targets] == ["rxe0/1"]


def test_a_place_that_an_earlier_entry_takes_is_an_error(tmp_path: Path) -> None:
    valid = configured(
        tmp_path, "mlx5: {driver: mlx5, null_mr: optional}", "mine: {devices: [{netdev: ens1f0}], null_mr: required}"
    )
    assert mistakes(valid, device("mlx5_0", place=CX)) == [
        f":3: providers.mine.devices[0]: netdev ens1f0 (mlx5_0) goes to an earlier entry ({tmp_path}/providers.yaml:2: "
        "providers.mlx5); move this entry above it"
    ]


def test_an_entry_leaves_devices_out(tmp_path: Path) -> None:
    devices = [device(f"mlx5_{number}", place=CX if number == 2 else Place()) for number in range(4)]
    entry = "a: {driver: mlx5, except: [mlx5_1, {netdev: ens1f0}, 'x*'], null_mr: optional}"
    found = match(tmp_path, entry, *devices)
    assert [target.id for target in found.targets] == ["mlx5_0/1", "mlx5_3/1"]
    where = f"{tmp_path}/providers.yaml:2: providers.a.except"
    assert found.left_out == (("mlx5_1", f"{where}[0]: mlx5_1"), ("mlx5_2", f"{where}[1]: netdev ens1f0"))


def test_what_an_entry_leaves_out_goes_to_a_later_one(tmp_path: Path) -> None:
    entries = "a: {driver: mlx5, except: [mlx5_1], null_mr: optional}", "b: {devices: ['mlx5_*'], null_mr: absent}"
    found = inventory.targets(configured(tmp_path, *entries), [device("mlx5_0"), device("mlx5_1")])
    assert [(target.id, target.provider) for target in found.targets] == [("mlx5_0/1", "a"), ("mlx5_1/1", "b")]


def test_a_device_that_is_named_and_left_out_is_an_error(tmp_path: Path) -> None:
    valid = configured(tmp_path, "a: {devices: [mlx5_0, mlx5_1], except: [mlx5_1], null_mr: required}")
    assert mistakes(valid, device("mlx5_0"), device("mlx5_1")) == [
        ":2: providers.a.devices[1]: mlx5_1 is in `except` of the same entry; remove it from one of the two"
    ]


def test_an_entry_may_ignore_its_devices_which_need_not_be_there(tmp_path: Path) -> None:
    entries = "off: {devices: [mlx5_0, mlx5_7], null_mr: ignore}", "a: {driver: mlx5, null_mr: optional}"
    found = inventory.targets(configured(tmp_path, *entries), [device("mlx5_0"), device("mlx5_1")])
    assert [target.id for target in found.targets] == ["mlx5_1/1"]
    assert found.left_out == (("mlx5_0", f"{tmp_path}/providers.yaml:2: providers.off.null_mr: ignore"),)


def test_only_what_can_be_opened_is_tried_where_the_entry_says_so(tmp_path: Path) -> None:
    devices = device("mlx5_0"), unopened("mlx5_1", "mlx5", "ibv_open_device: Errno: 2")
    found = match(tmp_path, "a: {driver: mlx5, only_usable: true, null_mr: required}", *devices)
    assert endings(found) == [("mlx5_0/1", "")]
    assert found.left_out == (
        (
            "mlx5_1",
            f"{tmp_path}/providers.yaml:2: providers.a.only_usable: it cannot be opened: ibv_open_device: Errno: 2",
        ),
    )


def test_at_least_counts_what_can_be_opened_where_only_that_is_tried(tmp_path: Path) -> None:
    valid = configured(tmp_path, "a: {driver: mlx5, only_usable: true, at_least: 1, null_mr: required}")
    assert mistakes(valid, unopened("mlx5_1", "mlx5", "Errno: 2")) == [
        ":2: providers.a.at_least: 1 usable asked for, but 0 found (none); this machine has mlx5_1 (mlx5); "
        "mlx5_1: Errno: 2"
    ]


def test_a_port_that_the_device_has_not_is_an_error(tmp_path: Path) -> None:
    valid = configured(tmp_path, "a: {driver: mlx5, ports: [1, 3], null_mr: optional}")
    assert mistakes(valid, device("mlx5_0", ROCE, second(ROCE))) == [
        ":2: providers.a.ports[1]: mlx5_0 has no port 3; it has 1, 2"
    ]


def test_only_the_ports_that_are_named_are_tried(tmp_path: Path) -> None:
    found = match(tmp_path, "a: {driver: mlx5, ports: [2], null_mr: optional}", device("mlx5_0", ROCE, second(ROCE)))
    assert [target.id for target in found.targets] == ["mlx5_0/2"]
    assert found.left_out == (("mlx5_0/1", "not in a.ports"),)


def test_a_port_that_is_down_is_left_out_next_to_one_that_is_up(tmp_path: Path) -> None:
    found = match(
        tmp_path,
        "a: {driver: mlx5, null_mr: optional}",
        device("mlx5_0", ROCE, second(ROCE, state="DOWN")),
    )
    assert endings(found) == [("mlx5_0/1", "")]
    assert found.left_out == (("mlx5_0/2", "port 2 is DOWN, not ACTIVE"),)


def test_a_port_without_a_fitting_gid_is_left_out_next_to_one_that_has_it(tmp_path: Path) -> None:
    found = match(
        tmp_path,
        "a: {driver: mlx5, gid: roce_v2, null_mr: optional}",
        device("mlx5_0", ROCE, second(ROCE, gids=(V1,))),
    )
    assert [(target.id, target.gid) for target in found.usable] == [("mlx5_0/1", V2_IPV4)]
    assert found.left_out == (
        (
            "mlx5_0/2",
            f"{tmp_path}/providers.yaml:2: providers.a.gid: mlx5_0/2 has no GID that fits `gid: roce_v2`; its table: "
            f"0: RoCE v1 {V1.gid}; ask for one of those",
        ),
    )


def test_a_named_port_that_is_down_is_a_broken_target(tmp_path: Path) -> None:
    found = match(
        tmp_path,
        "a: {driver: mlx5, ports: [1, 2], null_mr: optional}",
        device("mlx5_0", ROCE, second(ROCE, state="INIT")),
    )
    assert endings(found) == [
        ("mlx5_0/1", ""),
        ("mlx5_0/2", "port 2 is INIT, not ACTIVE"),
    ]
    assert found.left_out == ()


def test_a_device_whose_ports_are_all_down_is_broken_and_not_left_out(tmp_path: Path) -> None:
    down = replace(ROCE, state="DOWN")
    found = match(tmp_path, "a: {driver: mlx5, null_mr: optional}", device("mlx5_0", down, second(down)))
    assert endings(found) == [
        ("mlx5_0/1", "port 1 is DOWN, not ACTIVE"),
        ("mlx5_0/2", "port 2 is DOWN, not ACTIVE"),
    ]
    assert found.left_out == ()


@pytest.mark.parametrize("ports", ["all", "[2]"])
def test_a_device_that_cannot_be_opened_is_a_broken_target(ports: str, tmp_path: Path) -> None:
    found = match(
        tmp_path,
        f"a: {{driver: mlx5, ports: {ports}, null_mr: required}}",
        unopened("mlx5_0", "mlx5", "ibv_open_device: Permission denied"),
    )
    assert endings(found) == [("mlx5_0/1", "ibv_open_device: Permission denied")]


def test_a_port_that_cannot_be_queried_says_which_query_failed(tmp_path: Path) -> None:
    failed = replace(device("mlx5_0", replace(ROCE, state="UNKNOWN")), failures=("ibv_query_port 1: Errno: 22",))
    found = match(tmp_path, "a: {driver: mlx5, null_mr: optional}", failed)
    assert [reason for _, reason in endings(found)] == ["port 1 is UNKNOWN, not ACTIVE; ibv_query_port 1: Errno: 22"]


@pytest.mark.parametrize(
    ("wish", "gids", "expected"),
    [
        ("auto", (V1, V2, V1_IPV4, V2_IPV4), V2_IPV4),
        ("auto", (V1, V2), V2),
        ("auto", (V1, V1_IPV4), V1),
        ("auto", (), None),
        ("roce_v2", (V1, V2, V2_IPV4), V2_IPV4),
        ("roce_v2", (V1,), None),
        ("roce_v1", (V2, V1), V1),
        ("roce_v1", (V2,), None),
        (0, (V1, V2), V1),
        (1, (V1, V2), V2),
        (3, (V1, V2), None),
        (IPv6Network("::ffff:192.168.0.1"), (V1, V1_IPV4, V2_IPV4), V2_IPV4),
        (IPv6Network("::ffff:192.168.0.0/112"), (V1, V1_IPV4), V1_IPV4),
        (IPv6Network("fe80::/64"), (V1, V2, V2_IPV4), V2),
        (IPv6Network("fd00::/8"), (V1, V2, V2_IPV4), None),
    ],
)
def test_a_roce_port_gets_the_gid_that_is_asked_for(
    wish: str | int | IPv6Network, gids: tuple[Gid, ...], expected: Gid | None
) -> None:
    port = replace(ROCE, gids=gids)
    assert inventory.choose_gid(device("mlx5_0", port), port, wish) == expected


@pytest.mark.parametrize(
    ("transport", "port"),
    [("IWARP", replace(ROCE, gids=(IB,))), ("UNSPECIFIED", replace(INFINIBAND, link_layer="UNSPECIFIED", lid=0))],
    ids=["iWARP", "EFA"],
)
def test_other_ports_get_index_0(transport: str, port: Port) -> None:
    assert inventory.choose_gid(device("x", port, transport=transport), port, "auto") == IB


def test_an_infiniband_port_needs_no_gid(tmp_path: Path) -> None:
    port = replace(INFINIBAND, gids=())
    [target] = match(tmp_path, "a: {driver: mlx5, null_mr: optional}", device("ib0", port)).usable
    assert (target.id, target.gid) == ("ib0/1", None)


def test_an_infiniband_port_has_no_roce_gid_to_ask_for(tmp_path: Path) -> None:
    [target] = match(tmp_path, "a: {driver: mlx5, gid: roce_v1, null_mr: optional}", device("ib0", INFINIBAND)).targets
    assert f": providers.a.gid: ib0/1 has no GID that fits `gid: roce_v1`; its table: 0: IB {IB.gid}; " in reason(
        target
    )


GID_0 = "a: {driver: mlx5, gid: 0, null_mr: optional}"


@pytest.mark.parametrize(
    ("entry", "required", "expected", "route"),
    [
        ("a: {driver: mlx5, null_mr: optional}", False, None, "LID 0x7, P_Key 0xffff at index 0"),
        ("a: {driver: mlx5, null_mr: optional}", True, IB, f"LID 0x7, GID 0 (IB, {IB.gid}), P_Key 0xffff at index 0"),
        (GID_0, False, IB, f"LID 0x7, GID 0 (IB, {IB.gid}), P_Key 0xffff at index 0"),
        (
            "a: {driver: mlx5, gid: 'fe80::/64', sl: 3, traffic_class: 8, null_mr: optional}",
            False,
            IB,
            f"LID 0x7, GID 0 (IB, {IB.gid}), P_Key 0xffff at index 0, SL 3, traffic class 8",
        ),
    ],
    ids=["by LID", "required by the port", "asked for by index", "asked for by prefix"],
)
def test_an_infiniband_port_gets_a_grh_where_it_asks_for_one_or_its_entry_does(
    entry: str, required: bool, expected: Gid | None, route: str, tmp_path: Path
) -> None:
    port = replace(INFINIBAND, grh_required=required, pkeys=(Pkey(0, 0xFFFF),))
    [target] = match(tmp_path, entry, device("ib0", port)).usable
    assert (target.gid, target.route) == (expected, route)


def test_a_port_that_requires_a_grh_and_has_no_gid_is_broken(tmp_path: Path) -> None:
    port = replace(INFINIBAND, gids=(), grh_required=True)
    [target] = match(tmp_path, "a: {driver: mlx5, null_mr: optional}", device("ib0", port)).targets
    assert "providers.a.gid: ib0/1 has no GID that fits `gid: auto`; its table: empty; " in reason(target)


def test_a_traffic_class_needs_a_grh(tmp_path: Path) -> None:
    entry = "a: {driver: mlx5, traffic_class: 8, null_mr: optional}"
    [target] = match(tmp_path, entry, device("ib0", INFINIBAND)).targets
    assert reason(target) == (
        f"{tmp_path}/providers.yaml:2: providers.a.traffic_class: a traffic class is part of a GRH, and ib0/1 is "
        "addressed by LID; add `gid: 0`, or remove it"
    )


PKEYS = (Pkey(0, 0x7FFF), Pkey(2, 0x8001), Pkey(3, 0x8002))


@pytest.mark.parametrize(
    ("wish", "expected"),
    [("auto", PKEYS[1]), (2, PKEYS[1]), (3, PKEYS[2]), (0x8002, PKEYS[2]), (0, PKEYS[0]), (1, None), (0x8003, None)],
)
def test_a_port_gets_the_pkey_that_is_asked_for(wish: str | int, expected: Pkey | None) -> None:
    assert inventory.choose_pkey(replace(INFINIBAND, pkeys=PKEYS), wish) == expected


def test_an_index_is_not_taken_for_the_value_of_a_limited_member() -> None:
    limited, full = Pkey(0, 0x0001), Pkey(1, 0x8001)
    assert inventory.choose_pkey(replace(INFINIBAND, pkeys=(limited, full)), 1) == full


@pytest.mark.parametrize(
    ("written", "shown", "pkeys"),
    [("0", "0", PKEYS), ("1", "1", PKEYS), ("0x8003", "0x8003", PKEYS), ("auto", "auto", PKEYS[:1]), ("0", "0", ())],
    ids=["limited", "no such index", "no such value", "none is full", "none at all"],
)
def test_without_a_pkey_that_ends_hear_each_other_by_a_port_is_broken(
    written: str, shown: str, pkeys: tuple[Pkey, ...], tmp_path: Path
) -> None:
    entry = f"a: {{driver: mlx5, pkey: {written}, null_mr: optional}}"
    [target] = match(tmp_path, entry, device("ib0", replace(INFINIBAND, pkeys=pkeys))).targets
    assert reason(target).startswith(
        f"{tmp_path}/providers.yaml:2: providers.a.pkey: ib0/1 has no P_Key of a full member that fits `pkey: {shown}`"
        ", and limited ones do not hear each other; its table: "
    )


def test_a_port_that_tells_of_no_pkeys_is_used_without(tmp_path: Path) -> None:
    [target] = match(tmp_path, "a: {driver: mlx5, null_mr: optional}", device("ib0", INFINIBAND)).usable
    assert (target.pkey, target.route) == (None, "LID 0x7")


def test_a_roce_port_with_an_empty_table_is_broken(tmp_path: Path) -> None:
    port = replace(ROCE, gids=())
    [target] = match(tmp_path, "a: {driver: mlx5, null_mr: optional}", device("mlx5_0", port)).targets
    assert reason(target) == (
        f"{tmp_path}/providers.yaml:2: providers.a.gid: mlx5_0/1 has no GID that fits `gid: auto`; its table: empty; "
        "give its netdev an address, or leave it out (`except`)"
    )


def test_a_table_that_cannot_be_queried_says_so(tmp_path: Path) -> None:
    failed = replace(device("mlx5_0", replace(ROCE, gids=())), failures=("ibv_query_gid_table: Errno: 22",))
    [target] = match(tmp_path, "a: {driver: mlx5, null_mr: optional}", failed).targets
    assert "its table: empty; " in reason(target)
    assert reason(target).endswith("; ibv_query_gid_table: Errno: 22")


def test_entries_for_real_devices_are_silent_about_simulated_ones(tmp_path: Path) -> None:
    valid = configured(
        tmp_path,
        "real: {devices: [mlx5_0, 'ref*'], null_mr: optional}",
        "reference: {driver: reference, null_mr: required}",
    )
    found = inventory.targets(valid, [device("ref0", driver="reference")])
    assert [(target.id, target.provider) for target in found.targets] == [("ref0/1", "reference")]


def test_the_reference_entry_is_silent_about_real_devices(tmp_path: Path) -> None:
    valid = configured(tmp_path, "reference: {driver: reference, devices: [ref0], null_mr: required}")
    found = inventory.targets(valid, [device("mlx5_0")])
    assert found.targets == ()
    assert [name for name, _ in found.left_out] == ["mlx5_0"]


def folder_of_devices(folder: Path, *names: str) -> Path:
    sysfs = folder / "infiniband"
    for name in names:
        (sysfs / name).mkdir(parents=True)
    return sysfs


# tests/conftest.py has loaded two reference devices into this process: loading the same again is no change.


def test_the_reference_device_stands_in_on_a_machine_without_devices_and_says_so(tmp_path: Path) -> None:
    valid = configured(tmp_path, "reference: {driver: reference, simulate: 2, null_mr: required}")
    machine = open_machine(valid, sysfs=tmp_path / "none")
    assert [(found.name, found.driver) for found in machine.devices] == [
        ("ref0", "reference"),
        ("ref1", "reference"),
    ]
    assert machine.simulated == (
        f"the reference device (simulated) is used, because this machine has no RDMA device (none in {tmp_path}/none)"
    )
    assert len(inventory.targets(valid, machine.devices).usable) == 2


def test_the_reference_device_stands_in_when_it_is_asked_for(tmp_path: Path) -> None:
    valid = configured(
        tmp_path,
        "real: {devices: [mlx5_0], null_mr: required}",
        "reference: {driver: reference, null_mr: required}",
    )
    sysfs = folder_of_devices(tmp_path, "mlx5_0")
    machine = open_machine(valid, reference=True, simulate=2, sysfs=sysfs)
    assert machine.simulated == "the reference device (simulated) is used, because it was asked for"
    assert [target.id for target in inventory.targets(valid, machine.devices).targets] == ["ref0/1", "ref1/1"]


def test_the_reference_device_does_not_stand_in_for_a_device_that_is_named(tmp_path: Path) -> None:
    valid = configured(
        tmp_path,
        "real: {devices: [mlx5_0], null_mr: required}",
        "reference: {driver: reference, simulate: 2, null_mr: required}",
    )
    with pytest.raises(inventory.InventoryError) as caught:
        open_machine(valid, sysfs=tmp_path / "none")
    assert "mlx5_0 is not on this machine, which has no RDMA device" in str(caught.value)


def test_a_file_without_an_entry_for_the_reference_device_says_what_to_add(tmp_path: Path) -> None:
    valid = configured(tmp_path, "real: {driver: mlx5, null_mr: required}")
    with pytest.raises(inventory.InventoryError) as caught:
        open_machine(valid, reference=True)
    assert caught.value.mistakes == (
        f"{tmp_path}/providers.yaml:1: providers: no entry for the reference device, which is needed because "
        "it was asked for; add: reference: {driver: reference, null_mr: required}",
    )


@pytest.mark.parametrize("options", [{"faults": ["leaks-to-address"]}, {"variant": "no-srq"}, {"simulate": 2}])
def test_faults_and_variants_are_refused_for_real_devices(options: dict[str, object], tmp_path: Path) -> None:
    valid = configured(tmp_path, "real: {driver: mlx5, null_mr: required}")
    sysfs = folder_of_devices(tmp_path, "mlx5_0")
    with pytest.raises(inventory.InventoryError) as caught:
        open_machine(valid, sysfs=sysfs, **options)  # type: ignore[arg-type]
    assert caught.value.mistakes == (
        "faults, variants and a device count are for the reference device, but this machine has mlx5_0; "
        "add --reference",
    )


def test_a_device_that_libibverbs_hides_is_shown_with_the_likely_reasons(tmp_path: Path) -> None:
    valid = configured(tmp_path, "any: {devices: ['*'], null_mr: optional}")
    sysfs = folder_of_devices(tmp_path, "mlx5_0", "ref0")  # libibverbs, here the reference, lists ref0 only
    machine = open_machine(valid, sysfs=sysfs)
    assert machine.simulated == ""
    hidden, listed = endings(inventory.targets(valid, machine.devices))
    assert hidden[0] == "mlx5_0/1"
    assert hidden[1].startswith(
        "the kernel has no uverbs device for it: load ib_uverbs (modprobe ib_uverbs); libibverbs "
    )
    assert listed == ("ref0/1", "")


def test_a_python_without_pyverbs_says_so() -> None:
    program = (
        "import os, sys\n"
        "sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, 'pyverbs'))]\n"
        "from conformance.verbs.machine import require_pyverbs\n"
        "require_pyverbs()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "InventoryError: " in done.stderr
    assert "cannot load pyverbs: python3-pyverbs is not installed for it, and PYTHONPATH" in done.stderr


def test_listing_tells_what_the_reference_device_reports() -> None:
    first, _ = list_devices({"ref0": "reference"})
    assert (first.name, first.driver, first.transport, first.failures) == ("ref0", "reference", "IB", ())
    assert isinstance(first, OpenedDevice)
    assert first.limits.max_sge > 1
    assert first.limits.atomic == "HCA"
    assert (first.limits.srq, first.limits.xrc, first.limits.mw_type_1, first.limits.mw_type_2) == (True,) * 4
    [port] = first.ports
    assert (port.number, port.state, port.link_layer, port.mtu) == (1, "ACTIVE", "ETHERNET", 1024)
    assert [(gid.index, gid.type) for gid in port.gids] == [(0, "RoCE v1"), (1, "RoCE v2")]
    assert all(len(gid.gid) == 39 for gid in port.gids)


def test_a_driver_that_the_kernel_does_not_tell_is_unknown() -> None:
    assert {found.driver for found in list_devices({})} == {"unknown"}


def test_an_exact_name_is_one_even_if_it_looks_like_a_glob(tmp_path: Path) -> None:
    entries = ("exact: {devices: ['bnxt_re[1]'], null_mr: required}", "rest: {devices: ['*'], null_mr: optional}")
    found = inventory.targets(configured(tmp_path, *entries), [device("bnxt_re[1]"), device("bnxt_re2")])
    assert [(target.device.name, target.provider) for target in found.targets] == [
        ("bnxt_re[1]", "exact"),
        ("bnxt_re2", "rest"),
    ]


SECOND = device("mlx5_1")


def peers(found: inventory.Inventory) -> dict[str, str]:
    return {target.id: target.peer.end if target.peer else "" for target in found.usable}


def test_a_ring_gives_each_port_the_next_as_its_peer(tmp_path: Path) -> None:
    two_ports = device("mlx5_0", ROCE, second(ROCE))
    found = match(tmp_path, "lab: {driver: mlx5, null_mr: required, peer: next}", two_ports, SECOND)
    assert peers(found) == {
        "mlx5_0/1-mlx5_0/2": "mlx5_0/2",
        "mlx5_0/2-mlx5_1/1": "mlx5_1/1",
        "mlx5_1/1-mlx5_0/1": "mlx5_0/1",
    }
    assert [target.devices for target in found.targets] == [("mlx5_0",), ("mlx5_0", "mlx5_1"), ("mlx5_0", "mlx5_1")]
    assert found.groups == {"mlx5_0": "mlx5_0", "mlx5_1": "mlx5_0"}


def test_one_port_can_be_the_peer_of_all_and_a_glob_gives_one_to_each(tmp_path: Path) -> None:
    devices = [device(f"mlx5_{number}") for number in range(4)]
    one = "lab: {devices: [mlx5_0, mlx5_1], null_mr: required, peer: mlx5_3/1}"
    assert list(peers(match(tmp_path, one, *devices)).values()) == ["mlx5_3/1", "mlx5_3/1"]
    each = 'lab: {devices: [mlx5_0, mlx5_1], null_mr: required, peer: "mlx5_[23]/1"}'
    assert list(peers(match(tmp_path, each, *devices)).values()) == ["mlx5_2/1", "mlx5_3/1"]


def test_a_peer_may_be_of_an_entry_that_has_none_and_each_environment_has_it(tmp_path: Path) -> None:
    valid = configured(
        tmp_path,
        "lab: {driver: mlx5, null_mr: required, peer: rxe0/1, environments: [{}, {name: big, MLX5_CQE_SIZE: 128}]}",
        "soft: {driver: rxe, null_mr: ignore, gid: 3}",
    )
    found = inventory.targets(valid, (device("mlx5_0"), device("rxe0", driver="rxe")))
    assert peers(found) == {"mlx5_0/1-rxe0/1": "rxe0/1", "mlx5_0/1-rxe0/1/big": "rxe0/1"}
    assert found.groups == {"mlx5_0": "mlx5_0", "rxe0": "mlx5_0"}


@pytest.mark.parametrize(
    ("peer", "mistake"),
    [
        ("mlx5_7/1", "mlx5_7/1 gives none for mlx5_0/1; this machine has mlx5_0/1, mlx5_1/1"),
        ('"mlx5_7*/1"', "mlx5_7*/1 gives none for mlx5_0/1; this machine has mlx5_0/1, mlx5_1/1"),
        ("next", "next: a ring takes two ports, and the entry has mlx5_0/1 alone"),
    ],
)
def test_a_peer_that_is_not_there_is_a_mistake(tmp_path: Path, peer: str, mistake: str) -> None:
    valid = configured(tmp_path, f"lab: {{devices: [mlx5_0], null_mr: required, peer: {peer}}}")
    assert mistakes(valid, device("mlx5_0"), SECOND) == [f":2: providers.lab.peer: {mistake}"]


@pytest.mark.parametrize(
    ("port", "peer", "words"),
    [
        (ROCE, "mlx5_0/1", "that is the port itself; leave `peer` out"),
        (replace(ROCE, state="DOWN"), "mlx5_1/1", "port 1 is DOWN, not ACTIVE"),
        (INFINIBAND, "mlx5_1/1", "link layer ETHERNET here and INFINIBAND there"),
        (replace(ROCE, gids=(V1_IPV4,)), "mlx5_1/1", "GID type RoCE v2 here and RoCE v1 there"),
        (replace(ROCE, gids=(V2,)), "mlx5_1/1", "one is of an IPv4 address, and the other is not"),
        (replace(ROCE, pkeys=(Pkey(0, 0x8001),)), "mlx5_1/1", "P_Key none here and 0x8001 there"),
    ],
    ids=["itself", "down", "link layer", "GID type", "address family", "P_Key"],
)
def test_a_peer_that_cannot_be_reached_is_broken_with_the_reason(
    tmp_path: Path, port: Port, peer: str, words: str
) -> None:
    entry = f"lab: {{devices: [mlx5_0], null_mr: required, peer: {peer}}}"
    (target,) = match(tmp_path, entry, device("mlx5_0"), device("mlx5_1", port)).targets
    assert target.id == "mlx5_0/1"
    assert f":2: providers.lab.peer: no traffic with {peer}: " in reason(target)
    assert words in reason(target)
