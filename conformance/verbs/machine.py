# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""This machine's devices, or the reference device in their place.

Nothing here imports pyverbs before that is settled: the reference device has to be there first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from conformance import elf, kernel
from conformance.config import REFERENCE, Config
from conformance.device import Device, Machine, OpenedDevice, Place, unopened
from conformance.inventory import InventoryError, entries_for, require_named_devices
from conformance.verbs import shim


def load_reference(devices: int, faults: Sequence[str] = (), variant: str | None = None) -> None:
    """Load the reference device behind the null MR shim, which has to come first in symbol lookup.

    Raises what conformance.reference.load does.
    """
    from conformance import reference

    shim.load()
    reference.load(devices=devices, faults=faults, variant=variant)
    library = reference.library_path()
    assert library is not None
    shim.forward_to(library)


def simulated() -> tuple[int, tuple[str, ...], str | None] | None:
    """What `load_reference` was called with in this process; None if its devices are real."""
    from conformance import reference

    return reference.loaded()


def simulated_devices() -> int:
    """How many reference devices this process has."""
    from conformance import reference

    return reference.device_count()


def open_machine(
    config: Config,
    reference: bool = False,
    simulate: int | None = None,
    faults: Sequence[str] = (),
    variant: str | None = None,
    sysfs: Path = kernel.SYSFS,
) -> Machine:
    """Query this machine's devices; or load the reference device, if asked for or if the machine has none.

    Must run before anything imports pyverbs. `simulate` is the number of reference devices (None: as the file
    says); `faults` and `variant` are what conformance.reference.load takes.
    Raises InventoryError if the file demands a real device and there is none, if the reference device is
    needed and the file has no entry for it, if faults or a variant are asked of real devices, or if pyverbs cannot
    be loaded.
    """
    shim.load()  # it comes before libibverbs and the reference device in symbol lookup
    names = kernel.device_names(sysfs)
    if names and not reference:
        if faults or variant or simulate is not None:
            what = "faults, variants and a device count are for the reference device"
            raise InventoryError([f"{what}, but this machine has {', '.join(names)}; add --reference"])
        return Machine(_own_devices(names, sysfs), _simulated_hca() if kernel.hca_is_simulated() else "")
    if not reference:
        require_named_devices(config)
    why = "it was asked for" if reference else f"this machine has no RDMA device (none in {sysfs})"
    entries = entries_for(config, simulated=True)
    if not entries:
        needed = f"no entry for the reference device, which is needed because {why}"
        entry = f"reference: {{driver: {REFERENCE}, null_mr: required}}"
        raise InventoryError([f"{config.where('providers')}: {needed}; add: {entry}"])
    load_reference(simulate or max(entry.simulate for entry in entries.values()), faults, variant)
    require_pyverbs()
    from conformance.verbs.devices import list_devices

    devices = tuple(replace(device, driver=REFERENCE) for device in list_devices({}))
    return Machine(devices, f"the reference device (simulated) is used, because {why}")


def require_pyverbs() -> None:
    """Raises InventoryError if this Python, pyverbs and the libibverbs that it loads do not go together."""
    try:
        import_module("pyverbs.device")  # it needs the private symbols of one version of libibverbs
    except ImportError as error:
        package = find_spec("pyverbs")
        if package is None:
            hint = "python3-pyverbs is not installed for it, and PYTHONPATH names no other"
        elif find_spec("pyverbs.device") is None:
            hint = f"{package.origin} was built for another Python"
        else:
            hint = "it needs the libibverbs that it was built with; see PYTHONPATH and LD_LIBRARY_PATH"
        raise InventoryError([f"{sys.executable} cannot load pyverbs: {hint} ({error})"]) from error


def _simulated_hca() -> str:
    """What is real where the HCA is not. To be called when the devices are open: the provider is loaded by then."""
    mapped = {line[line.index("/") :] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    found = sorted({Path(path).resolve() for path in mapped if re.search(r"/libmlx5[^/]*\.so", path)})
    library = ", ".join(f"{path.name} ({path}, build id {elf.build_id(path)})" for path in found) or "no libmlx5"
    return f"the HCA is simulated (connectx), the library is real: {library}"


def _own_devices(names: Sequence[str], sysfs: Path) -> tuple[Device, ...]:
    require_pyverbs()
    from pyverbs.pyverbs_error import PyverbsError

    from conformance.verbs.devices import list_devices

    hidden = (
        "libibverbs does not list it: is its provider library there (Debian: ibverbs-providers, Fedora: libibverbs, "
        "SUSE: libibverbs1)?"
    )
    drivers = kernel.device_drivers()
    shown: dict[str, Device] = {}
    try:
        shown = {device.name: device for device in list_devices(drivers)}
    except PyverbsError as error:
        hidden = f"{hidden} ({error})"
    found = (shown.get(name) or unopened(name, drivers.get(name, "unknown"), hidden) for name in names)
    told = kernel.port_netdevs()
    return tuple(
        replace(_with_reason(device, sysfs), place=_place(device.name, sysfs, told.get(device.name, ())))
        for device in found
    )


def _with_reason(device: Device, sysfs: Path) -> Device:
    """A device that could not be opened says what is wrong with its node, if anything is: that comes first."""
    problem = "" if isinstance(device, OpenedDevice) else kernel.node_problem(device.name, sysfs)
    return replace(device, failures=(problem, *device.failures)) if problem else device


def _place(name: str, sysfs: Path, netdevs: Sequence[str]) -> Place:
    return Place(kernel.pci_address(name, sysfs), tuple(sorted({*netdevs, *kernel.netdevs(name, sysfs)})))
