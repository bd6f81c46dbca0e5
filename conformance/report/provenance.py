# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Under which circumstances a verdict was found: host, libraries, devices, suite."""

from __future__ import annotations

import os
import platform
import re
import resource
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from conformance import __version__, elf, kernel
from conformance.config import REFERENCE
from conformance.device import Machine as Devices
from conformance.inventory import AnyTarget, BrokenTarget, Inventory, Target
from conformance.kernel import MODULE_NAMES, SYSFS
from conformance.report.document import Circumstances, LeftOut, Library, Machine, TargetFacts

ROOT = Path(__file__).resolve().parent.parent.parent
TAINTED = Path("/proc/sys/kernel/tainted")
MODULES = Path("/sys/module")

VARIABLES = re.compile(
    r"(MLX[45]?|RDMAV|IBV|RXE|EFA|HNS|NULLMR|PYTEST_XDIST)_|(LD_PRELOAD|LD_LIBRARY_PATH|PYTHONPATH)$"
)
"""What libibverbs, its providers, the loader and the suite read."""

_LIBRARIES = re.compile(r"/(libibverbs|lib\w+-rdmav\d+|libmlx[45]|libefa|libhns|libmana|librdmacm)\.so[^/]*$")

# Documentation/admin-guide/tainted-kernels.rst of the kernel, bits 0 to 19.
_TAINT_LETTERS = "PFSRMBUDAWCIOELKXTNJ"


def taint() -> str:
    """The kernel's taint flags: "0", or the number with its letters, "4097 (P O)"."""
    try:
        value = int(TAINTED.read_text())
    except (OSError, ValueError):
        return ""
    return taint_in_words(value)


def taint_in_words(value: int) -> str:
    letters = [letter for bit, letter in enumerate(_TAINT_LETTERS) if value >> bit & 1]
    return f"{value} ({' '.join(letters)})" if letters else str(value)


def circumstances(
    found: Inventory,
    devices: Devices,
    started: str,
    taint_before: str,
    arguments: Sequence[str],
    seed: int | None,
    waivers: Sequence[str] = (),
) -> Circumstances:
    """Everything about this process and its host. To be called at the end: the providers are loaded by then."""
    return Circumstances(
        label=socket.gethostname(),
        suite=__version__,
        commit=commit(),
        started=started,
        arguments=tuple(arguments),
        seed=seed,
        simulated=devices.simulated,
        machine=machine(taint_before),
        targets=tuple(target_facts(target) for target in found.targets),
        left_out=tuple(LeftOut(name, reason) for name, reason in found.left_out),
        waivers=tuple(waivers),
    )


def machine(taint_before: str) -> Machine:
    soft, hard = (
        "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        for limit in resource.getrlimit(resource.RLIMIT_MEMLOCK)
    )
    return Machine(
        host=socket.gethostname(),
        system=system_name(),
        kernel=f"{platform.release()} {platform.machine()}",
        taint_before=taint_before,
        taint_after=taint(),
        python=platform.python_version(),
        memlock=f"{soft}/{hard}",
        variables={name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)},
        libraries=libraries(),
    )


def system_name(release: Path = Path("/etc/os-release")) -> str:
    """PRETTY_NAME of os-release(5), as a shell would read it; empty if there is none."""
    named = [line for line in _text(release).splitlines() if line.startswith("PRETTY_NAME=")]
    return "".join(shlex.split(named[-1].partition("=")[2])) if named else ""


def libraries(maps: Path = Path("/proc/self/maps")) -> tuple[Library, ...]:
    """pyverbs, and libibverbs with the provider libraries as this process has them mapped."""
    mapped = {line[line.index("/") :] for line in maps.read_text().splitlines() if "/" in line}
    paths = [Path(path) for path in sorted(mapped) if _LIBRARIES.search(path)]
    named = [(path.name.partition(".so")[0], path.resolve()) for path in paths]
    spec = find_spec("pyverbs")
    if spec is not None and spec.submodule_search_locations:
        named.append(("pyverbs", Path(spec.submodule_search_locations[0])))
    packages = packages_of([path for _, path in named])
    return tuple(Library(name, str(path), packages.get(path, ""), elf.build_id(path)) for name, path in named)


def packages_of(paths: Sequence[Path]) -> dict[Path, str]:
    """Name and version of the package that owns each file, asked of dpkg or rpm; a file of none is left out.

    One question for all: dpkg reads its lists of files for each.
    """
    if shutil.which("dpkg-query") is None:
        answers = {path: _output("rpm", "-qf", "--qf", "%{NAME} %{VERSION}-%{RELEASE}", str(path)) for path in paths}
        return {path: answer for path, answer in answers.items() if answer}
    # Where /lib is a link to /usr/lib, dpkg may know the file by either name.
    spellings = {spelling: path for path in paths for spelling in (str(path), str(path).removeprefix("/usr"))}
    owners: dict[Path, str] = {}
    for line in _output("dpkg-query", "-S", *spellings, partly=True).splitlines():
        names, _, spelling = line.partition(": ")
        if spelling in spellings:
            owners[spellings[spelling]] = names.split(",")[0]
    versions = _output("dpkg-query", "-W", "-f", "${binary:Package}\t${Package} ${Version}\n", *owners.values())
    known = dict(line.split("\t") for line in versions.splitlines()) if owners else {}
    return {path: known[owner] for path, owner in owners.items() if owner in known}


PATIENCE = 60.0
"""Seconds for a package manager or git, which take long on an emulated machine; a run does not end for want of them."""


def _output(*command: str, partly: bool = False) -> str:
    """What a command prints; empty if it is not there, is too slow or fails (`partly`: fails, and prints nothing)."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if partly or done.returncode == 0 else ""


def commit() -> str:
    return _output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def target_facts(target: AnyTarget, sysfs: Path = SYSFS, modules: Path = MODULES) -> TargetFacts:
    """A target and what sysfs tells of it. Nothing of sysfs is read for a simulated device."""
    device, port = target.device, target.port
    usable = target if isinstance(target, Target) else None
    gid = usable.gid if usable else None
    simulated = device.driver == REFERENCE or kernel.hca_is_simulated()
    folder = sysfs / device.name
    pci = "" if simulated else kernel.pci_address(device.name, sysfs)
    netdev = "" if simulated else _netdev(folder, port.number, gid.index if gid else 0)
    return TargetFacts(
        id=target.id,
        provider=target.provider,
        null_mr=target.null_mr,
        device=device.name,
        port=port.number,
        link_layer=port.link_layer,
        port_state=port.state,
        mtu=port.mtu,
        lid=port.lid,
        gid_index=gid.index if gid else None,
        gid=gid.gid if gid else "",
        gid_type=gid.type if gid else "",
        vendor_id=device.vendor_id,
        vendor_part_id=device.vendor_part_id,
        board_id="" if simulated else _text(folder / "board_id"),
        firmware=device.fw_ver,
        pci_address=pci,
        function=_function(folder) if pci else "",
        netdev=netdev,
        bond=_bond(sysfs.parent / "net" / netdev) if netdev else "",
        driver=device.driver,
        driver_version="" if simulated else driver_version(device.driver, modules),
        simulated=simulated,
        broken=target.reason if isinstance(target, BrokenTarget) else "",
        variables=dict(target.environment),
        pkey=str(usable.pkey) if usable and usable.pkey else "",
        sl=usable.sl if usable else 0,
        traffic_class=usable.traffic_class if usable else 0,
        peer=f"{usable.peer.end}: {usable.peer.words}" if usable and usable.peer else "",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # absent, or the driver refuses to tell
        return ""


def _function(folder: Path) -> str:
    if (folder / "device" / "physfn").exists():
        return "VF"
    enabled = _text(folder / "device" / "sriov_numvfs")
    return f"PF with {enabled} VFs" if enabled not in ("", "0") else "PF"


def _netdev(folder: Path, port: int, gid_index: int) -> str:
    """The netdev of the GID, else the one that a software device names as its parent."""
    by_gid = _text(folder / "ports" / str(port) / "gid_attrs" / "ndevs" / str(gid_index))
    return by_gid or _text(folder / "parent")


def _bond(netdev: Path) -> str:
    if (netdev / "bonding").exists():
        mode = _text(netdev / "bonding" / "mode").partition(" ")[0]
        return f"{netdev.name} ({mode})"
    master = netdev / "master"
    return _bond(master.resolve()) if (master / "bonding").exists() else ""


def driver_version(driver: str, modules: Path = MODULES) -> str:
    """The kernel module of a driver and its version. In-tree modules seldom have one: then its srcversion."""
    for pattern in MODULE_NAMES:
        name = pattern.format(driver)
        folder = modules / name
        if folder.is_dir():
            version, source = _text(folder / "version"), _text(folder / "srcversion")
            return " ".join((name, version or (f"srcversion {source}" if source else "built in"))).strip()
    return ""
