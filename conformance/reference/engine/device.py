# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A device, and the fabric that its ports are on."""

from __future__ import annotations

import threading
from typing import Any

from . import abi
from .attributes import DeviceAttributes, PortAttributes
from .driver import Driver
from .memory import Memory
from .objects import AH, CQ, GID, MR, MW, PD, QP, SRQ, XRCD, AddressVector, Context

_FIRST_GUID = 0x0200_5E00_5300_0000


class Fabric:
    """What connects the devices of one process. Its lock is the lock of them all: a transfer may involve two."""

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.lock = threading.RLock()

    def find(self, gid: GID) -> Device | None:
        for device in self.devices:
            for port in device.ports:
                if gid in port.gids and port.state == abi.PORT_ACTIVE:
                    return device
        return None

    def find_lid(self, lid: int) -> Device | None:
        for device in self.devices:
            for port in device.ports:
                if port.lid == lid and port.state == abi.PORT_ACTIVE:
                    return device
        return None


class Device(Driver):
    """One RDMA device and its driver. Faults and variants are classes composed in front of this one."""

    unsupported: frozenset[str] = frozenset()
    """The function pointers of struct ibv_context_ops and struct verbs_context that are NULL."""
    node_type = abi.NODE_CA
    transport_type = abi.TRANSPORT_IB

    def __init__(self, number: int, fabric: Fabric, memory: Memory) -> None:
        super().__init__()
        self.number = number
        self.name = f"ref{number}"
        self.fabric = fabric
        self.memory = memory
        self.attr = self.describe_device()
        self.ports = [self.describe_port(port_num) for port_num in range(1, self.attr.phys_port_cnt + 1)]
        fabric.devices.append(self)

    def describe_device(self) -> DeviceAttributes:
        guid = _FIRST_GUID + (self.number << 8)
        return DeviceAttributes(node_guid=guid, sys_image_guid=guid)

    def describe_port(self, port_num: int) -> PortAttributes:
        """A RoCE port: GID 0 is link-local (v1), GID 1 of an IPv4 address (v2)."""
        interface = (_FIRST_GUID + (self.number << 8) + port_num).to_bytes(8, "big")
        link_local = bytes([0xFE, 0x80]) + bytes(6) + interface
        mapped = bytes(10) + b"\xff\xff" + bytes([192, 0, 2, self.number * 4 + port_num])
        return PortAttributes(gids=[GID(link_local, abi.GID_TYPE_ROCE_V1), GID(mapped, abi.GID_TYPE_ROCE_V2)])

    def route(self, av: AddressVector) -> Device | None:
        """The device that an address leads to, or None. GIDs of RoCE v1 and v2 do not see each other."""
        port = self.ports[av.port_num - 1]
        if port.state != abi.PORT_ACTIVE:
            return None
        if av.is_global:
            return self.fabric.find(GID(av.dgid, port.gids[av.sgid_index].type))
        return self.fabric.find_lid(av.dlid)

    def open(self) -> Context:
        return Context(self)

    def close(self, context: Context) -> None:
        """Destroy what is left of a context, users before what they use, as the kernel does when a file is closed."""
        for kind in (AH, MW, QP, SRQ, CQ, XRCD, MR, PD):
            for left in [item for item in context.objects if isinstance(item, kind)]:
                self.destroy(context, left)
        context.events.close()

    def destroy(self, context: Context, item: Any) -> None:
        if isinstance(item, AH):
            self.destroy_ah(item)
        elif isinstance(item, MW):
            self.dealloc_mw(item)
        elif isinstance(item, QP):
            item.opens = 1
            self.destroy_qp(item)
        elif isinstance(item, SRQ):
            self.destroy_srq(item)
        elif isinstance(item, CQ):
            self.destroy_cq(item)
        elif isinstance(item, XRCD):
            self.close_xrcd(context, item)
        elif isinstance(item, MR):
            self.forget_keys(item)
        elif isinstance(item, PD):
            item.users.clear()  # null MRs of a faulty device
            self.dealloc_pd(item)
