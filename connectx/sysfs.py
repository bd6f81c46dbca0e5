# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What programs find in /sys/class/infiniband* and /dev/infiniband: a folder of files, made once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.reference.engine import abi

from .device import PCI_DEVICE, PCI_VENDOR, ConnectX

UVERBS_MAJOR, UVERBS_FIRST_MINOR = 231, 192
_DRIVER_ABI = 1
_UVERBS_ABI = 6
BOARD = "SIMULATED000"
"""board_id, the PSID of the firmware: nobody shall take this for hardware."""

_STATES = {abi.PORT_DOWN: "1: DOWN", abi.PORT_ACTIVE: "4: ACTIVE"}


def write(root: Path, devices: Sequence[ConnectX]) -> None:
    """Make root/sys and root/dev."""
    classes = root / "sys" / "class"
    _write(classes / "infiniband_verbs" / "abi_version", _UVERBS_ABI)
    (root / "dev" / "infiniband").mkdir(parents=True)
    for device in devices:
        verbs = f"uverbs{device.number}"
        # Opening it leads elsewhere; whoever only looks finds a character device.
        (root / "dev" / "infiniband" / verbs).symlink_to("/dev/null")
        folder = classes / "infiniband" / device.name
        _write_device(folder, device)
        cdev = classes / "infiniband_verbs" / verbs
        _write(cdev / "ibdev", device.name)
        _write(cdev / "abi_version", _DRIVER_ABI)
        _write(cdev / "dev", f"{UVERBS_MAJOR}:{UVERBS_FIRST_MINOR + device.number}")
        (cdev / "device").symlink_to(folder / "device")
        links = folder / "device" / "infiniband_verbs"
        links.mkdir()
        (links / verbs).symlink_to(cdev)
        for number, _ in enumerate(device.ports, 1):
            _write_port(folder / "ports" / str(number), device, number)


def _write_device(folder: Path, device: ConnectX) -> None:
    attr = device.attr
    _write(folder / "node_type", "1: CA")
    _write(folder / "node_guid", _groups(attr.node_guid.to_bytes(8, "big")))
    _write(folder / "sys_image_guid", _groups(attr.sys_image_guid.to_bytes(8, "big")))
    _write(folder / "node_desc", f"simulated HCA {device.name}")
    _write(folder / "fw_ver", attr.fw_ver)
    _write(folder / "hca_type", f"MT{PCI_DEVICE}")
    _write(folder / "hw_rev", attr.hw_ver)
    _write(folder / "board_id", BOARD)
    _write(folder / "device" / "vendor", f"{PCI_VENDOR:#06x}")
    _write(folder / "device" / "device", f"{PCI_DEVICE:#06x}")
    alias = f"pci:v{PCI_VENDOR:08X}d{PCI_DEVICE:08X}sv{PCI_VENDOR:08X}sd00000001bc02sc07i00"
    _write(folder / "device" / "modalias", alias)
    _write(folder / "device" / "numa_node", -1)


def _write_port(folder: Path, device: ConnectX, number: int) -> None:
    port = device.ports[number - 1]
    ethernet = port.link_layer == abi.LINK_LAYER_ETHERNET
    _write(folder / "state", _STATES[port.state])
    _write(folder / "phys_state", "5: LinkUp")
    _write(folder / "link_layer", "Ethernet" if ethernet else "InfiniBand")
    _write(folder / "lid", f"{port.lid:#x}")
    _write(folder / "sm_lid", f"{port.sm_lid:#x}")
    _write(folder / "rate", "100 Gb/sec (4X EDR)")
    for index in range(port.gid_tbl_len):
        gid = port.gids[index] if index < len(port.gids) else None
        _write(folder / "gids" / str(index), _groups(gid.raw if gid else bytes(16)))
        # The kernel refuses to tell the type of an empty entry; libibverbs takes that for this type.
        version_2 = gid is not None and gid.type == abi.GID_TYPE_ROCE_V2
        _write(folder / "gid_attrs" / "types" / str(index), "RoCE v2" if version_2 else "IB/RoCE v1")
    for index, pkey in enumerate(port.pkeys):
        _write(folder / "pkeys" / str(index), f"{pkey:#06x}")


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def _groups(raw: bytes) -> str:
    return ":".join(raw[at : at + 2].hex() for at in range(0, len(raw), 2))
