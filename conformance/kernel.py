# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the kernel says of this machine's RDMA devices, before anything of pyverbs is imported."""

import errno
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

SYSFS = Path("/sys/class/infiniband")
NODES = Path("/dev/infiniband")

# enum rdma_driver_id of <rdma/ib_user_ioctl_verbs.h>, in its order; the first is RDMA_DRIVER_UNKNOWN.
DRIVERS = (
    "unknown",
    "mlx5",
    "mlx4",
    "cxgb3",
    "cxgb4",
    "mthca",
    "bnxt_re",
    "ocrdma",
    "nes",
    "irdma",
    "vmw_pvrdma",
    "qedr",
    "hns",
    "usnic",
    "rxe",
    "hfi1",
    "qib",
    "efa",
    "siw",
    "erdma",
    "mana",
    "ionic",
    "bng_re",
)

SIMULATED_HCA = "CONNECTX_ROOT"
"""The variable by which a program knows that `python -m connectx` runs it: its devices are simulated HCAs."""

MODULE_NAMES = ("{}_ib", "rdma_{}", "ib_{}", "iw_{}", "{}_roce_hw_v2", "{}")
"""What the kernel module of a driver may be called."""

PCI_ADDRESS = r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"

# <linux/netlink.h> and <rdma/rdma_netlink.h>
_NETLINK_RDMA = 20
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLDEV = 5 << 10  # RDMA_NL_NLDEV: the upper bits of a message type name the client
_CMD_GET, _CMD_PORT_GET, _CMD_GET_CHARDEV = 1, 5, 15
_DEV_INDEX, _DEV_NAME, _NDEV_NAME, _CHARDEV_TYPE, _UVERBS_DRIVER_ID = 1, 2, 51, 69, 73
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port id


def hca_is_simulated() -> bool:
    """Is what this process sees of RDMA devices and of their kernel driver simulated (connectx)?"""
    return SIMULATED_HCA in os.environ


def device_names(sysfs: Path = SYSFS) -> list[str]:
    """Names of the RDMA devices that the kernel has, sorted; none if it has no RDMA support."""
    return sorted(entry.name for entry in sysfs.iterdir()) if sysfs.is_dir() else []


def pci_address(device: str, sysfs: Path = SYSFS) -> str:
    """The PCI address of an RDMA device's function, 0000:5e:00.0; empty for one that has none."""
    parent = (sysfs / device / "device").resolve().name
    return parent if re.fullmatch(PCI_ADDRESS, parent) else ""


def netdevs(device: str, sysfs: Path = SYSFS) -> tuple[str, ...]:
    """The netdevs of an RDMA device that sysfs tells, sorted: of its GIDs, of its PCI function, or what rxe is on."""
    folder = sysfs / device
    names = {entry.name for entry in folder.glob("device/net/*")}
    for file in (folder / "parent", *folder.glob("ports/*/gid_attrs/ndevs/*")):
        try:
            names.add(file.read_text(errors="replace").strip())
        except OSError:  # absent, or an entry of the GID table that is empty
            continue
    return tuple(sorted(names - {""}))


def node_problem(device: str, sysfs: Path = SYSFS, nodes: Path = NODES) -> str:
    """Why this process cannot open the device node of an RDMA device, and the way out; empty if it can.

    What containers lack is told apart: no node, one that the device cgroup denies (EPERM), its permissions (EACCES).
    """
    verbs = [entry.parent.name for entry in sysfs.parent.glob("infiniband_verbs/*/ibdev") if _is_of(entry, device)]
    if not verbs:
        return "the kernel has no uverbs device for it: load ib_uverbs (modprobe ib_uverbs)"
    node = nodes / verbs[0]
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"there is no {node}: a container must be given it (--device /dev/infiniband)"
    except PermissionError as error:
        way_out = {
            errno.EPERM: "the container's device cgroup denies it (--device /dev/infiniband)",
            errno.EACCES: "its permissions or SELinux deny it (in a container, --security-opt label=disable)",
        }
        return f"{node} cannot be opened: {error.strerror}: {way_out[error.errno or errno.EACCES]}"
    except OSError as error:
        return f"{node} cannot be opened: {error.strerror}"
    return ""


def _is_of(entry: Path, device: str) -> bool:
    return entry.read_text(errors="replace").strip() == device


def port_netdevs() -> dict[str, tuple[str, ...]]:
    """RDMA device name -> the netdevs of its ports, over RDMA netlink: sysfs does not tell that of siw.

    A device is missing from the answer where the kernel does not tell.
    """
    found: dict[str, tuple[str, ...]] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as connection:
            connection.settimeout(5)
            for device in list(_ask(connection, _CMD_GET, _NLM_F_DUMP, b"")):
                question = _attribute(_DEV_INDEX, device[_DEV_INDEX])
                ports = list(_ask(connection, _CMD_PORT_GET, _NLM_F_DUMP, question))
                names = tuple(_text(port[_NDEV_NAME]) for port in ports if _NDEV_NAME in port)
                if names:
                    found[_text(device[_DEV_NAME])] = names
    except OSError:
        pass  # as below
    return found


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode()


def device_drivers() -> dict[str, str]:
    """RDMA device name -> name of its driver, as `DRIVERS` spells it.

    Asked over RDMA netlink for the driver id by which libibverbs picks the provider, too. The link
    /sys/class/infiniband/*/device/driver would not do: it names the driver of the parent device, so that
    siw on a ConnectX port would pass for mlx5, and rxe on a virtual netdev has no parent.
    A device is missing from the answer where the kernel does not tell (before 5.3, or no RDMA netlink).
    """
    found: dict[str, str] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as connection:
            connection.settimeout(5)
            for device in list(_ask(connection, _CMD_GET, _NLM_F_DUMP, b"")):
                question = _attribute(_DEV_INDEX, device[_DEV_INDEX]) + _attribute(_CHARDEV_TYPE, b"uverbs\0")
                for answer in _ask(connection, _CMD_GET_CHARDEV, 0, question):
                    if _UVERBS_DRIVER_ID in answer:
                        number = int.from_bytes(answer[_UVERBS_DRIVER_ID], sys.byteorder)
                        found[_text(device[_DEV_NAME])] = (
                            DRIVERS[number] if number < len(DRIVERS) else f"driver-id-{number}"
                        )
    except OSError:
        pass  # no RDMA netlink, or no answer in time: what is missing is missing
    return found


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _ask(connection: socket.socket, command: int, flags: int, payload: bytes) -> Iterator[dict[int, bytes]]:
    """Send one request; yield the attributes of each message of the answer. A refusal yields nothing."""
    header = _HEADER.pack(_HEADER.size + len(payload), _NLDEV + command, _NLM_F_REQUEST | flags, 0, 0)
    connection.send(header + payload)
    while True:
        datagram = connection.recv(1 << 16)
        while datagram:
            length, kind, *_ = _HEADER.unpack_from(datagram)
            if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                return
            yield _attributes(datagram[_HEADER.size : length])
            datagram = datagram[(length + 3) & ~3 :]
        if not flags & _NLM_F_DUMP:
            return


def _attributes(payload: bytes) -> dict[int, bytes]:
    found = {}
    while payload:
        length, kind = struct.unpack_from("=HH", payload)
        found[kind] = payload[4:length]
        payload = payload[(length + 3) & ~3 :]
    return found
