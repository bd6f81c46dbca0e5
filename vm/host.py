# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the host must have before a guest can be started on it."""

from __future__ import annotations

import os
import platform
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path


class VmError(Exception):
    """Why there is no guest, or why it gave no status of its command."""

    # The exit status of `python -m vm`. For this class, what is missing or wrong on this machine: EX_UNAVAILABLE of
    # sysexits.h.
    exit_status = 69


STATIC_BUSYBOX = "static busybox"

# tool -> the package that has it, by package manager
_PACKAGES = {
    "qemu-system-x86_64": {"apt-get": "qemu-system-x86", "dnf": "qemu-system-x86-core", "zypper": "qemu-x86"},
    STATIC_BUSYBOX: {"apt-get": "busybox-static", "dnf": "busybox", "zypper": "busybox-static"},
    "ip": {"apt-get": "iproute2", "dnf": "iproute", "zypper": "iproute2"},
    "rdma": {"apt-get": "iproute2", "dnf": "iproute", "zypper": "iproute2"},
    "setpriv": {"apt-get": "util-linux", "dnf": "util-linux", "zypper": "util-linux"},
}


def find_tools() -> dict[str, Path]:
    """Tool -> its path. Raises VmError if any is missing, with the command that installs all that are."""
    if platform.machine() != "x86_64":
        raise VmError(
            "the guest has an x86_64 kernel and runs this machine's own programs, "
            f"but this machine is {platform.machine()}"
        )
    found = {tool: _busybox() if tool == STATIC_BUSYBOX else shutil.which(tool) for tool in _PACKAGES}
    missing = [tool for tool, path in found.items() if not path]
    if missing:
        manager = next((name for name in ("apt-get", "dnf", "zypper") if shutil.which(name)), None)
        raise VmError(missing_message(missing, manager))
    return {tool: Path(path) for tool, path in found.items() if path}


def _busybox() -> str | None:
    """A busybox that runs without shared libraries: an initramfs has none."""
    names = [shutil.which(name) for name in ("busybox-static", "busybox")]
    return next((path for path in names if path and is_static(Path(path).read_bytes())), None)


def missing_message(missing: Iterable[str], manager: str | None) -> str:
    """Names what is missing and, where the package manager is one that we know, the command that gets it."""
    what = f"missing on this machine: {', '.join(missing)}"
    if manager is None:
        return f"{what}; install them with your distribution's package manager"
    packages = sorted({_PACKAGES[tool][manager] for tool in missing})
    return f"{what}; get them with: {manager} install {' '.join(packages)}"


def is_static(elf: bytes) -> bool:
    """Whether a 64-bit little-endian ELF program asks for no interpreter (program header PT_INTERP, elf(5))."""
    if elf[:6] != b"\x7fELF\x02\x01":
        return False
    (offset,) = struct.unpack_from("<Q", elf, 0x20)
    size, count = struct.unpack_from("<2H", elf, 0x36)
    pt_interp = 3
    return all(struct.unpack_from("<I", elf, offset + n * size)[0] != pt_interp for n in range(count))


def kvm_works() -> bool:
    """Whether QEMU can use KVM: it may open /dev/kvm, and the processor really has VMX or SVM.

    Some cloud machines show a /dev/kvm without either, on which a guest kernel never gets to its first line.
    """
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and not flags.isdisjoint({"vmx", "svm"})
