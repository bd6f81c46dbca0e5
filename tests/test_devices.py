# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Listing of devices whose provider refuses a query: the rest is told, and which query failed."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from pyverbs.device import Context
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.device import Device, OpenedDevice, unknown_port
from conformance.verbs import devices
from conformance.verbs.names import e


def refuse(*_: object, **__: object) -> None:
    raise PyverbsRDMAError("Refused", 22)


def listed(monkeypatch: pytest.MonkeyPatch, **refused: Any) -> Device:
    """ref0 as listed where a Context has these methods."""
    monkeypatch.setattr(devices, "Context", type("Refusing", (Context,), refused))
    return devices.list_devices({"ref0": "mlx5"})[0]


def test_a_device_that_cannot_be_opened_has_its_name_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed(monkeypatch, __init__=refuse)
    assert not isinstance(found, OpenedDevice)
    assert (found.name, found.driver, found.transport) == ("ref0", "mlx5", "IB")
    assert found.ports == (unknown_port(1),)
    assert found.failures == ("ibv_open_device: Refused. Errno: 22, Invalid argument",)


def test_a_device_that_may_not_be_opened_says_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object, **__: object) -> None:
        raise PyverbsRDMAError("Refused", errno.EACCES)

    (failure,) = listed(monkeypatch, __init__=forbid).failures
    assert "may /dev/infiniband/uverbs* be opened for reading and writing" in failure


def test_a_device_that_cannot_be_queried_has_its_name_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed(monkeypatch, query_device=refuse)
    assert not isinstance(found, OpenedDevice)
    assert (found.name, found.driver) == ("ref0", "mlx5")
    assert found.failures == ("ibv_query_device: Refused. Errno: 22, Invalid argument",)


def test_a_port_that_cannot_be_queried_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed(monkeypatch, query_port=refuse)
    assert isinstance(found, OpenedDevice)
    assert found.ports == (unknown_port(1),)
    assert found.failures == ("ibv_query_port 1: Refused. Errno: 22, Invalid argument",)


def test_a_port_whose_gid_table_cannot_be_queried_has_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed(monkeypatch, query_gid_table=refuse)
    [port] = found.ports
    assert (port.state, port.mtu, port.gids) == ("ACTIVE", 1024, ())
    assert found.failures == ("ibv_query_gid_table: Refused. Errno: 22, Invalid argument",)


def test_a_zero_gid_is_no_gid(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        port_num, gid_index, gid_type = 1, 5, 2

        def gid_str(self) -> str:
            return "0000:0000:0000:0000:0000:0000:0000:0000"

    [port] = listed(monkeypatch, query_gid_table=lambda *_: [Entry()]).ports
    assert port.gids == ()


def test_a_port_whose_pkeys_cannot_be_queried_has_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed(monkeypatch, query_pkey=refuse)
    [port] = found.ports
    assert (port.state, port.pkeys) == ("ACTIVE", ())
    assert found.failures == ("ibv_query_pkey 1 0: Refused. Errno: 22, Invalid argument",)


def test_a_zero_pkey_is_no_pkey(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = listed(monkeypatch, query_pkey=lambda *_: 0).ports
    assert port.pkeys == ()


COUNTS = (
    *("max_sge", "max_sge_rd", "max_srq_sge", "max_qp_wr", "max_srq_wr", "max_cqe", "max_mr_size", "max_srq"),
    *("max_qp_rd_atom", "max_qp_init_rd_atom", "atomic_caps"),
)
REPORTED = dict.fromkeys(COUNTS, 1)


@pytest.mark.parametrize(
    ("flag", "has"),
    [
        ("IBV_DEVICE_XRC", "xrc"),
        ("IBV_DEVICE_MEM_WINDOW", "mw_type_1"),
        ("IBV_DEVICE_MEM_WINDOW_TYPE_2A", "mw_type_2"),
        ("IBV_DEVICE_MEM_WINDOW_TYPE_2B", "mw_type_2"),
    ],
)
def test_a_capability_is_there_by_its_own_flag_alone(flag: str, has: str) -> None:
    limits = devices._limits(SimpleNamespace(device_cap_flags=getattr(e, flag), **REPORTED))
    assert [name for name in ("xrc", "mw_type_1", "mw_type_2") if getattr(limits, name)] == [has]


@pytest.mark.parametrize("max_srq", [0, 1])
def test_a_device_that_can_make_no_srq_has_none(max_srq: int) -> None:
    attr = SimpleNamespace(**{**REPORTED, "device_cap_flags": 0, "max_srq": max_srq})
    assert devices._limits(attr).srq is bool(max_srq)


def test_a_value_that_no_constant_has_is_shown_with_its_number() -> None:
    assert devices._name(77, "IBV_PORT_", devices.PORT_STATES) == "IBV_PORT_? (77)"
    assert devices._gid_type(77) == "IBV_GID_TYPE_? (77)"
