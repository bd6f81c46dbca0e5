# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The RDMA devices as pyverbs sees them, read once."""

import socket
from collections.abc import Iterable, Mapping
from typing import Any

from pyverbs.device import Context, get_device_list
from pyverbs.pyverbs_error import PyverbsError

from conformance.device import Device, Gid, Limits, OpenedDevice, Pkey, Place, Port, unknown_port, unopened
from conformance.verbs.hints import hint
from conformance.verbs.names import e


def list_devices(drivers: Mapping[str, str]) -> list[Device]:
    """Open and query each device that libibverbs lists; `drivers` maps device names to driver names.

    Raises PyverbsError if there is no list at all. What goes wrong with one device is in its `failures`.
    """
    return [_query(entry, drivers.get(entry.name.decode(), "unknown")) for entry in get_device_list()]


def _query(entry: Any, driver: str) -> Device:
    name = entry.name.decode()
    transport = TRANSPORTS.get(entry.transport_type, "UNKNOWN")
    try:
        context = Context(name=name)
    except PyverbsError as error:
        likely = hint(getattr(error, "error_code", 0))
        return unopened(name, driver, "; ".join(filter(None, (f"ibv_open_device: {error}", likely))), transport)
    try:
        attr = context.query_device()
    except PyverbsError as error:
        context.close()
        return unopened(name, driver, f"ibv_query_device: {error}", transport)
    failures: list[str] = []
    try:
        ports = _query_ports(context, attr.phys_port_cnt, failures)
    finally:
        context.close()
    return OpenedDevice(
        name=name,
        driver=driver,
        transport=transport,
        fw_ver=attr.fw_version,
        vendor_id=attr.vendor_id,
        vendor_part_id=attr.vendor_part_id,
        ports=ports,
        failures=tuple(failures),
        place=Place(),
        limits=_limits(attr),
    )


def _query_ports(context: Context, count: int, failures: list[str]) -> tuple[Port, ...]:
    attrs: dict[int, Any] = {}
    for number in range(1, count + 1):
        try:
            attrs[number] = context.query_port(number)
        except PyverbsError as error:
            failures.append(f"ibv_query_port {number}: {error}")
    entries: Iterable[Any] = ()
    try:
        if attrs:
            # One table for all ports, also those that cannot be queried; too little room is refused.
            room = count * max(attr.gid_tbl_len for attr in attrs.values())
            entries = context.query_gid_table(room)
    except PyverbsError as error:
        failures.append(f"ibv_query_gid_table: {error}")
    gids: dict[int, list[Gid]] = {number: [] for number in attrs}
    for entry in entries:
        gid = Gid(entry.gid_index, entry.gid_str(), _gid_type(entry.gid_type))
        # A valid entry is never zero (IBTA 4.1.1), but not every provider leaves the others out.
        if entry.port_num in gids and gid.gid.strip("0:"):
            gids[entry.port_num].append(gid)
    pkeys = {number: _query_pkeys(context, number, attr.pkey_tbl_len, failures) for number, attr in attrs.items()}
    return tuple(
        _port(number, attrs[number], tuple(gids[number]), pkeys[number]) if number in attrs else unknown_port(number)
        for number in range(1, count + 1)
    )


def _query_pkeys(context: Context, port: int, count: int, failures: list[str]) -> tuple[Pkey, ...]:
    """The valid entries of the table; none if one cannot be queried."""
    found = []
    for index in range(count):
        try:
            value = socket.ntohs(context.query_pkey(port, index))  # a __be16
        except PyverbsError as error:
            failures.append(f"ibv_query_pkey {port} {index}: {error}")
            return ()
        if value & 0x7FFF:  # 0 is no partition (IBTA 10.9.1.2)
            found.append(Pkey(index, value))
    return tuple(found)


def _port(number: int, attr: Any, gids: tuple[Gid, ...], pkeys: tuple[Pkey, ...]) -> Port:
    return Port(
        number=number,
        state=_name(attr.state, "IBV_PORT_", PORT_STATES),
        link_layer=_name(attr.link_layer, "IBV_LINK_LAYER_", LINK_LAYERS),
        lid=attr.lid,
        mtu=128 << attr.active_mtu,  # enum ibv_mtu: IBV_MTU_256 is 1, each next one doubles it
        max_msg_sz=attr.max_msg_sz,
        gids=gids,
        pkeys=pkeys,
        grh_required=bool(attr.flags & e.IBV_QPF_GRH_REQUIRED),
    )


def _limits(attr: Any) -> Limits:
    flags = attr.device_cap_flags
    return Limits(
        max_sge=attr.max_sge,
        max_sge_rd=attr.max_sge_rd,
        max_srq_sge=attr.max_srq_sge,
        max_qp_wr=attr.max_qp_wr,
        max_srq_wr=attr.max_srq_wr,
        max_cqe=attr.max_cqe,
        max_qp_rd_atom=attr.max_qp_rd_atom,
        max_qp_init_rd_atom=attr.max_qp_init_rd_atom,
        max_mr_size=attr.max_mr_size,
        atomic=_name(attr.atomic_caps, "IBV_ATOMIC_", ATOMICS),
        srq=attr.max_srq > 0,
        xrc=bool(flags & e.IBV_DEVICE_XRC),
        mw_type_1=bool(flags & e.IBV_DEVICE_MEM_WINDOW),
        mw_type_2=bool(flags & (e.IBV_DEVICE_MEM_WINDOW_TYPE_2A | e.IBV_DEVICE_MEM_WINDOW_TYPE_2B)),
    )


# enum ibv_transport_type by number: pyverbs does not have all of its names.
TRANSPORTS = {0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC_UDP", 4: "UNSPECIFIED"}
# Written out, because IBV_PORT_ also begins the names of flags of the same values.
PORT_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
LINK_LAYERS = ("UNSPECIFIED", "INFINIBAND", "ETHERNET")
ATOMICS = ("NONE", "HCA", "GLOB")


def _name(value: int, prefix: str, names: Iterable[str]) -> str:
    return next((name for name in names if getattr(e, prefix + name) == value), f"{prefix}? ({value})")


def _gid_type(value: int) -> str:
    return {
        e.IBV_GID_TYPE_IB: "IB",
        e.IBV_GID_TYPE_ROCE_V1: "RoCE v1",
        e.IBV_GID_TYPE_ROCE_V2: "RoCE v2",
    }.get(value, f"IBV_GID_TYPE_? ({value})")
