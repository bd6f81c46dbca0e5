# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""This machine's devices matched with providers.yaml: the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Union

from conformance.config import (
    REFERENCE,
    Config,
    ConfigError,
    Environment,
    Promise,
    Provider,
    Variables,
    environment_label,
    is_glob,
    is_named,
    variables,
)
from conformance.device import Device, Gid, OpenedDevice, Port

Owners = dict[str, Optional[str]]
"""Device name -> the name of the entry that it belongs to, or None."""


class InventoryError(ConfigError):
    """The providers file asks for what this machine does not have."""


@dataclass(frozen=True)
class _Asked:
    """One port of one device that the file asks for, with one set of environment variables."""

    provider: str  # the name of its entry in providers.yaml
    device: Device
    port: Port
    null_mr: Promise
    timeout: float  # seconds for one completion or one verbs call
    environment: Variables  # set while the target is used: the provider reads them when it makes its objects
    label: str  # how ids show the environment

    @property
    def id(self) -> str:
        """As test ids and reports show it: mlx5_0/1, with its environment if it has one: mlx5_0/1/cqe128."""
        return "/".join(filter(None, (self.device.name, str(self.port.number), self.label)))

    @property
    def settings(self) -> str:
        """The environment as a shell would be told it: MLX5_SCATTER_TO_CQE=0 MLX5_CQE_SIZE=128."""
        return " ".join(f"{variable}={value}" for variable, value in self.environment)


@dataclass(frozen=True)
class Target(_Asked):
    """One that can be tried, with one GID."""

    device: OpenedDevice
    gid: Gid | None  # None: the port is addressed by LID


@dataclass(frozen=True)
class BrokenTarget(_Asked):
    """One on which nothing can be tried, and why."""

    reason: str


AnyTarget = Union[Target, BrokenTarget]


@dataclass(frozen=True)
class Inventory:
    """What will be tried on a machine, and what will not."""

    targets: tuple[AnyTarget, ...]
    left_out: tuple[tuple[str, str], ...]  # device or device/port, and why it is not tried

    @property
    def usable(self) -> tuple[Target, ...]:
        return tuple(target for target in self.targets if isinstance(target, Target))


def targets(config: Config, devices: Sequence[Device]) -> Inventory:
    """Match devices with entries; a device belongs to the first entry that fits.

    A port that cannot be used is left out where the entry says `ports: all` and another port of the device
    can; otherwise it is a BrokenTarget, because the file asks for it.
    Raises InventoryError with everything that the file names and the machine does not have.
    """
    # Next to simulated devices there are no real ones: the entries for those have nothing to say.
    entries = entries_for(config, simulated=any(device.driver == REFERENCE for device in devices))
    owners = {device.name: _owner(entries, device) for device in devices}
    _raise_if_any(
        [
            *_missing(config, entries, devices),
            *_taken(config, entries, devices, owners),
            *_no_such_port(config, entries, devices, owners),
        ]
    )
    tried: list[AnyTarget] = []
    left_out: list[tuple[str, str]] = []
    for device in devices:
        owner = owners[device.name]
        if owner is None:
            hint = ", which the kernel does not tell: match it by name" if device.driver == "unknown" else ""
            reason = f"no entry of {config.path} matches it (driver {device.driver}{hint})"
            left_out.append((device.name, reason))
            continue
        provider = entries[owner]
        asked, not_asked = _ports(device, provider)
        found = [_target(owner, provider, device, port, each) for port in asked for each in provider.environments]
        if provider.ports == "all" and any(isinstance(target, Target) for target in found):
            left_out += [(target.id, target.reason) for target in found if isinstance(target, BrokenTarget)]
            found = [target for target in found if isinstance(target, Target)]
        tried += found
        left_out += [(f"{device.name}/{port.number}", f"not in {owner}.ports") for port in not_asked]
    return Inventory(tuple(tried), tuple(left_out))


def choose_gid(device: Device, port: Port, wish: str | int) -> Gid | None:
    """The GID that a `gid:` setting means on this port; None if no valid entry of its table fits.

    auto, on RoCE: v2 of an IPv4 address, else v2, else v1, each at its lowest index; elsewhere: index 0.
    """
    v1 = [gid for gid in port.gids if gid.type == "RoCE v1"]
    v2 = [gid for gid in port.gids if gid.type == "RoCE v2"]
    v2 = [gid for gid in v2 if _is_ipv4(gid)] + [gid for gid in v2 if not _is_ipv4(gid)]
    if wish == "auto" and not is_roce(device, port):
        wish = 0
    if isinstance(wish, int):
        fitting = [gid for gid in port.gids if gid.index == wish]
    else:
        fitting = {"auto": v2 + v1, "roce_v2": v2, "roce_v1": v1}[wish]
    return fitting[0] if fitting else None


def _is_ipv4(gid: Gid) -> bool:
    """RoCE v2 over IPv4 has the address in its GID as ::ffff:a.b.c.d (IBTA annex A17)."""
    return gid.gid.startswith("0000:0000:0000:0000:0000:ffff:")


def is_roce(device: Device, port: Port) -> bool:
    """RoCE addresses by GID; iWARP (an RNIC on Ethernet) and EFA (unspecified) do so in their own ways."""
    return device.node_type == "CA" and port.link_layer == "ETHERNET"


def require_named_devices(config: Config) -> None:
    """Raise InventoryError if the file demands a real device, on a machine that has none."""
    _raise_if_any(_missing(config, entries_for(config, simulated=False), ()))


def entries_for(config: Config, simulated: bool) -> dict[str, Provider]:
    """The entries that speak of simulated devices, or those that speak of real ones."""
    return {name: entry for name, entry in config.providers.items() if (entry.driver == REFERENCE) == simulated}


def _fits(entry: Provider, device: Device) -> bool:
    by_name = not entry.devices or is_named(device.name, entry.devices)
    return by_name and entry.driver in ("", device.driver)


def _owner(entries: dict[str, Provider], device: Device) -> str | None:
    return next((name for name, entry in entries.items() if _fits(entry, device)), None)


def _missing(config: Config, entries: dict[str, Provider], devices: Sequence[Device]) -> list[str]:
    """Devices that the file demands, by name or by number, and the machine does not have."""
    present = ", ".join(f"{device.name} ({device.driver})" for device in devices) or "no RDMA device"
    mistakes = []
    for name, entry in entries.items():
        for index, wanted in enumerate(entry.devices):
            if not is_glob(wanted) and all(device.name != wanted for device in devices):
                where = config.where("providers", name, "devices", index)
                way_out = "correct or remove the name, or write a glob, which may match nothing"
                mistakes.append(f"{where}: {wanted} is not on this machine, which has {present}; {way_out}")
        matching = [device.name for device in devices if _owner(entries, device) == name]
        if len(matching) < entry.at_least:
            where = config.where("providers", name, "at_least")
            found = f"{entry.at_least} asked for, but {len(matching)} found ({', '.join(matching) or 'none'})"
            mistakes.append(f"{where}: {found}; this machine has {present}")
    return mistakes


def _taken(config: Config, entries: dict[str, Provider], devices: Sequence[Device], owners: Owners) -> list[str]:
    """Devices that an entry names but does not get."""
    mistakes = []
    drivers = {device.name: device.driver for device in devices}
    for name, entry in entries.items():
        for index, wanted in enumerate(entry.devices):
            if wanted not in owners or owners[wanted] == name:
                continue
            where = config.where("providers", name, "devices", index)
            if entry.driver not in ("", drivers[wanted]):
                mistakes.append(f"{where}: {wanted} has the driver {drivers[wanted]}, not {entry.driver}")
            else:
                first = config.where("providers", str(owners[wanted]))
                mistakes.append(f"{where}: {wanted} goes to an earlier entry ({first}); move this entry above it")
    return mistakes


def _no_such_port(config: Config, entries: dict[str, Provider], devices: Sequence[Device], owners: Owners) -> list[str]:
    mistakes = []
    for device in devices:
        owner = owners[device.name]
        if owner is None or not isinstance(device, OpenedDevice) or entries[owner].ports == "all":
            continue
        present = [port.number for port in device.ports]
        for index, number in enumerate(entries[owner].ports):
            if number not in present:
                where = config.where("providers", owner, "ports", index)
                mistakes.append(f"{where}: {device.name} has no port {number}; it has {', '.join(map(str, present))}")
    return mistakes


def _raise_if_any(mistakes: list[str]) -> None:
    if mistakes:
        raise InventoryError(mistakes)


def _ports(device: Device, provider: Provider) -> tuple[list[Port], list[Port]]:
    """The ports that the entry asks for, and the others. A device that was not opened has but one."""
    if provider.ports == "all" or not isinstance(device, OpenedDevice):
        return list(device.ports), []
    asked = [port for port in device.ports if port.number in provider.ports]
    return asked, [port for port in device.ports if port not in asked]


def _target(owner: str, provider: Provider, device: Device, port: Port, environment: Environment) -> AnyTarget:
    wanted = provider.null_mr, provider.timeout, variables(environment), environment_label(environment)
    gid = choose_gid(device, port, provider.gid)
    reasons = device.failures
    if isinstance(device, OpenedDevice):
        if port.state != "ACTIVE":
            reasons = (f"port {port.number} is {port.state}, not ACTIVE", *reasons)
        # InfiniBand has LIDs, iWARP and EFA their own ways; only RoCE cannot do without a GID.
        elif gid is None and (provider.gid != "auto" or is_roce(device, port)):
            table = ", ".join(f"{gid.index}: {gid.type} {gid.gid}" for gid in port.gids) or "empty"
            reasons = (f"port {port.number} has no GID that fits `gid: {provider.gid}`; its table: {table}", *reasons)
        else:
            return Target(owner, device, port, *wanted, gid)
    return BrokenTarget(owner, device, port, *wanted, "; ".join(reasons))
