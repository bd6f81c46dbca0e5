# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""RDMA devices as plain data: what libibverbs tells of them, and nothing of pyverbs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gid:
    """One valid entry of a port's GID table (ibv_query_gid_table)."""

    index: int
    gid: str  # eight groups of four hex digits
    type: str  # "IB" (InfiniBand and iWARP), "RoCE v1" or "RoCE v2"


@dataclass(frozen=True)
class Pkey:
    """One valid entry of a port's P_Key table (ibv_query_pkey(3), IBTA 10.9.1)."""

    index: int
    value: int

    @property
    def is_full(self) -> bool:
        """Full members hear everybody of their partition; limited ones do not hear each other."""
        return bool(self.value & 0x8000)

    def __str__(self) -> str:
        return f"P_Key {self.value:#06x} at index {self.index}"


@dataclass(frozen=True)
class Port:
    """ibv_query_port(3); only a port that is ACTIVE carries traffic."""

    number: int  # from 1
    state: str  # NOP, DOWN, INIT, ARMED, ACTIVE, ACTIVE_DEFER; UNKNOWN if the query failed
    link_layer: str  # INFINIBAND, ETHERNET or UNSPECIFIED
    lid: int  # 0 on Ethernet
    mtu: int  # the active MTU in bytes
    max_msg_sz: int  # bytes
    gids: tuple[Gid, ...]
    pkeys: tuple[Pkey, ...] = ()
    grh_required: bool = False  # IBV_QPF_GRH_REQUIRED: an address without a GRH is refused


@dataclass(frozen=True)
class Limits:
    """ibv_query_device(3), as reported: sizes in bytes, the rest counts."""

    max_sge: int
    max_sge_rd: int  # SGEs of one RDMA READ; some devices report 0 and take 1
    max_srq_sge: int
    max_qp_wr: int
    max_srq_wr: int
    max_cqe: int
    max_qp_rd_atom: int  # READs and atomics that a QP takes at once as responder ...
    max_qp_init_rd_atom: int  # ... and has under way at once as requester
    max_mr_size: int
    atomic: str  # NONE, HCA (atomic among the operations of this device) or GLOB
    srq: bool
    xrc: bool
    mw_type_1: bool
    mw_type_2: bool

    @property
    def atomics(self) -> bool:
        return self.atomic != "NONE"


@dataclass(frozen=True)
class Place:
    """Where a device is, by what else people call it."""

    pci: str = ""  # 0000:5e:00.0; empty for what is no PCI function
    netdevs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """One device, as far as it tells of itself; where a query failed, `failures` says which and why."""

    name: str
    driver: str  # as conformance.kernel.DRIVERS spells it; "unknown" if the kernel does not tell
    transport: str  # IB (RoCE, too), IWARP, USNIC, USNIC_UDP or UNSPECIFIED (EFA); UNKNOWN if libibverbs cannot tell
    fw_ver: str
    vendor_id: int
    vendor_part_id: int
    ports: tuple[Port, ...]
    failures: tuple[str, ...]
    place: Place


@dataclass(frozen=True)
class OpenedDevice(Device):
    """One that could be opened and queried; any other has but an unknown_port."""

    limits: Limits


@dataclass(frozen=True)
class Machine:
    """The devices that can be tried: this machine's own, or simulated ones in their place."""

    devices: tuple[Device, ...]
    simulated: str  # why the devices are the reference device; "" if they are this machine's own


def unopened(name: str, driver: str, failure: str, transport: str = "UNKNOWN") -> Device:
    """A device of which nothing can be told but its name, and why."""
    return Device(name, driver, transport, "", 0, 0, (unknown_port(1),), (failure,), Place())


def unknown_port(number: int) -> Port:
    """A port of which nothing can be told."""
    return Port(number, "UNKNOWN", "UNSPECIFIED", 0, 0, 0, ())
