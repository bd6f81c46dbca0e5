# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""This machine's devices matched with providers.yaml: the targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from ipaddress import IPv6Address, IPv6Network
from typing import Optional, Union

from conformance.config import (
    MOST_PKEYS,
    REFERENCE,
    At,
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
from conformance.device import Device, Gid, OpenedDevice, Pkey, Port

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
    def end(self) -> str:
        """The port: mlx5_0/1."""
        return f"{self.device.name}/{self.port.number}"

    @property
    def near(self) -> str:
        """The port with its environment, if it has one: mlx5_0/1/cqe128."""
        return "/".join(filter(None, (self.end, self.label)))

    @property
    def id(self) -> str:
        """As test ids and reports show it."""
        return self.near

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that it uses."""
        return (self.device.name,)

    @property
    def settings(self) -> str:
        """The environment as a shell would be told it: MLX5_SCATTER_TO_CQE=0 MLX5_CQE_SIZE=128."""
        return " ".join(f"{variable}={value}" for variable, value in self.environment)


@dataclass(frozen=True)
class Target(_Asked):
    """One that can be tried, and how its port is addressed."""

    device: OpenedDevice
    gid: Gid | None  # None: the port is addressed by LID, without a GRH
    pkey: Pkey | None  # None: the port tells of none; index 0 is used
    sl: int = 0
    traffic_class: int = 0  # of the GRH
    peer: Target | None = None  # None: both ends of its traffic are on its port

    @property
    def id(self) -> str:
        """With its peer, if it has one: mlx5_0/1-mlx5_1/1."""
        far = f"{self.end}-{self.peer.end}" if self.peer else self.end
        return "/".join(filter(None, (far, self.label)))

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that it uses, in the order of all runs: so two never wait for each other's."""
        return tuple(sorted({self.device.name, *((self.peer.device.name,) if self.peer else ())}))

    @property
    def words(self) -> str:
        """What it is and how it is addressed, and the same of its peer."""
        near = f"{self.device.driver}, firmware {self.device.fw_ver}, MTU {self.port.mtu}, {self.route}"
        return f"{near}; peer {self.peer.end}: {self.peer.words}" if self.peer else near

    @property
    def route(self) -> str:
        """How the port is addressed, in words. A P_Key other than the default one is named everywhere."""
        infiniband = self.port.link_layer == "INFINIBAND"
        words = [f"LID {self.port.lid:#x}"] if infiniband or self.gid is None else []
        if self.gid is not None:
            words.append(f"GID {self.gid.index} ({self.gid.type}, {self.gid.gid})")
        if self.pkey is not None and (infiniband or (self.pkey.index, self.pkey.value) != (0, 0xFFFF)):
            words.append(str(self.pkey))
        words += [f"SL {self.sl}"] if self.sl else []
        words += [f"traffic class {self.traffic_class}"] if self.traffic_class else []
        return ", ".join(words)


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

    @cached_property
    def groups(self) -> dict[str, str]:
        """Device name -> the first of those that it has to do with, as a peer or a peer's peer: mostly itself."""
        first: dict[str, str] = {}
        for target in self.targets:
            known = {first[name] for name in target.devices if name in first}
            lead = min(known) if known else target.device.name
            first |= dict.fromkeys(target.devices, lead)
            first = {name: lead if group in known else group for name, group in first.items()}
        return first


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
            left_out.append((device.name, _why_unowned(config, entries, device)))
            continue
        provider = entries[owner]
        if provider.null_mr == "ignore":
            left_out.append((device.name, f"{config.where('providers', owner, 'null_mr')}: ignore"))
            continue
        if provider.only_usable and not isinstance(device, OpenedDevice):
            where = config.where("providers", owner, "only_usable")
            left_out.append((device.name, f"{where}: it cannot be opened: {'; '.join(device.failures)}"))
            continue
        asked, not_asked = _ports(device, provider)
        found = [
            _target(config, owner, provider, device, port, each) for port in asked for each in provider.environments
        ]
        if provider.ports == "all" and any(isinstance(target, Target) for target in found):
            left_out += [(target.id, target.reason) for target in found if isinstance(target, BrokenTarget)]
            found = [target for target in found if isinstance(target, Target)]
        tried += found
        left_out += [(f"{device.name}/{port.number}", f"not in {owner}.ports") for port in not_asked]
    for name, entry in entries.items():
        if entry.peer:
            tried = _with_peers(config, name, entries, owners, devices, tried)
    return Inventory(tuple(tried), tuple(left_out))


def _with_peers(
    config: Config,
    name: str,
    entries: dict[str, Provider],
    owners: Owners,
    devices: Sequence[Device],
    tried: list[AnyTarget],
) -> list[AnyTarget]:
    """The targets, those of one entry with the peers that it asks for; the order stays.

    Raises InventoryError for a peer that is not on the machine, and for too few of them.
    """
    wish, where = entries[name].peer, config.where("providers", name, "peer")
    ends = list(dict.fromkeys(target.end for target in tried if target.provider == name))
    ports = {f"{device.name}/{port.number}": (device, port) for device in devices for port in device.ports}
    if wish == "next":
        peers = [*ends[1:], *ends[:1]]
        if len(ends) == 1:
            raise InventoryError([f"{where}: next: a ring takes two ports, and the entry has {ends[0]} alone"])
    else:
        peers = [end for end in ports if fnmatchcase(end, wish)]
        peers = peers * len(ends) if len(peers) == 1 and not is_glob(wish) else peers
        if len(peers) < len(ends):
            found = f"{wish} gives {', '.join(peers) or 'none'} for {', '.join(ends)}"
            raise InventoryError([f"{where}: {found}; this machine has {', '.join(ports)}"])
    peer_of = dict(zip(ends, peers))

    def paired(target: AnyTarget) -> AnyTarget:
        if target.provider != name or isinstance(target, BrokenTarget):
            return target
        device, port = ports[peer_of[target.end]]
        owner = owners[device.name] or name
        far = _target(config, owner, entries[owner], device, port, dict(target.environment))
        objections = [far.reason] if isinstance(far, BrokenTarget) else list(_no_route(target, far))
        if not objections and isinstance(far, Target):
            return replace(target, peer=far)
        wanted = target.null_mr, target.timeout, target.environment, target.label
        reason = f"{where}: no traffic with {peer_of[target.end]}: {'; '.join(objections)}"
        return BrokenTarget(name, target.device, target.port, *wanted, reason)

    return [paired(target) for target in tried]


def _no_route(near: Target, far: Target) -> Iterator[str]:
    """Why no packet of one reaches the other, as far as can be told before."""
    if near.end == far.end:
        yield "that is the port itself; leave `peer` out"
    pairs = {
        "transport type": (near.device.transport, far.device.transport),
        "link layer": (near.port.link_layer, far.port.link_layer),
        "GID type": tuple(target.gid.type if target.gid else "none, by LID" for target in (near, far)),
        "P_Key": tuple(f"{target.pkey.value:#06x}" if target.pkey else "none" for target in (near, far)),
    }
    for what, (one, other) in pairs.items():
        if one != other:
            yield f"{what} {one} here and {other} there"
    if near.gid and far.gid and _is_ipv4(near.gid) != _is_ipv4(far.gid) and "v2" in near.gid.type:
        yield f"GID {near.gid.gid} here and {far.gid.gid} there: one is of an IPv4 address, and the other is not"


def choose_gid(device: Device, port: Port, wish: str | int | IPv6Network) -> Gid | None:
    """The GID that a `gid:` setting means on this port; None if no valid entry of its table fits, or if it needs none.

    auto, on RoCE: v2 of an IPv4 address, else v2, else v1, each at its lowest index; on InfiniBand: none, or the first
    where the port requires a GRH; elsewhere: index 0. An address or a prefix: the first of these that it covers.
    """
    v1 = [gid for gid in port.gids if gid.type == "RoCE v1"]
    v2 = [gid for gid in port.gids if gid.type == "RoCE v2"]
    v2 = [gid for gid in v2 if _is_ipv4(gid)] + [gid for gid in v2 if not _is_ipv4(gid)]
    others = [gid for gid in port.gids if gid.type not in ("RoCE v1", "RoCE v2")]
    if isinstance(wish, IPv6Network):
        fitting = [gid for gid in v2 + v1 + others if IPv6Address(gid.gid) in wish]
    elif isinstance(wish, int):
        fitting = [gid for gid in port.gids if gid.index == wish]
    elif wish == "auto" and not is_roce(device, port):
        fitting = [gid for gid in port.gids if (gid.index == 0 or port.grh_required) and not _by_lid(device, port)]
    else:
        fitting = {"auto": v2 + v1, "roce_v2": v2, "roce_v1": v1}[wish]
    return fitting[0] if fitting else None


def choose_pkey(port: Port, wish: str | int) -> Pkey | None:
    """The P_Key that a `pkey:` setting means on this port; None if no valid entry of its table fits.

    auto: the first full member. A number up to MOST_PKEYS is an index, a greater one a value.
    """
    if isinstance(wish, str):
        fitting = [pkey for pkey in port.pkeys if pkey.is_full]
    else:
        fitting = [pkey for pkey in port.pkeys if wish == (pkey.index if wish <= MOST_PKEYS else pkey.value)]
    return fitting[0] if fitting else None


def _is_ipv4(gid: Gid) -> bool:
    """RoCE v2 over IPv4 has the address in its GID as ::ffff:a.b.c.d (IBTA annex A17)."""
    return gid.gid.startswith("0000:0000:0000:0000:0000:ffff:")


def is_roce(device: Device, port: Port) -> bool:
    """RoCE addresses by GID; iWARP (on Ethernet, too) and EFA (unspecified) do so in their own ways."""
    return device.transport == "IB" and port.link_layer == "ETHERNET"


def _by_lid(device: Device, port: Port) -> bool:
    """InfiniBand has LIDs, and a GRH only where the port asks for it."""
    return device.transport == "IB" and port.link_layer == "INFINIBAND" and not port.grh_required


def require_named_devices(config: Config) -> None:
    """Raise InventoryError if the file demands a real device, on a machine that has none."""
    _raise_if_any(_missing(config, entries_for(config, simulated=False), ()))


def entries_for(config: Config, simulated: bool) -> dict[str, Provider]:
    """The entries that speak of simulated devices, or those that speak of real ones."""
    return {name: entry for name, entry in config.providers.items() if (entry.driver == REFERENCE) == simulated}


def _is_one_of(device: Device, named: Sequence[str | At]) -> bool:
    return any(_is(device, each) for each in named)


def _is(device: Device, named: str | At) -> bool:
    if isinstance(named, At):
        return named.place == device.place.pci if named.by == "pci" else named.place in device.place.netdevs
    return is_named(device.name, (named,))


def _could_fit(entry: Provider, device: Device) -> bool:
    """Does the entry speak of the device, `except` left aside?"""
    return (not entry.devices or _is_one_of(device, entry.devices)) and entry.driver in ("", device.driver)


def _owner(entries: dict[str, Provider], device: Device) -> str | None:
    fitting = (
        name for name, entry in entries.items() if _could_fit(entry, device) and not _is_one_of(device, entry.except_)
    )
    return next(fitting, None)


def _why_unowned(config: Config, entries: dict[str, Provider], device: Device) -> str:
    for name, entry in entries.items():
        for index, each in enumerate(entry.except_):
            if _could_fit(entry, device) and _is(device, each):
                return f"{config.where('providers', name, 'except', index)}: {each}"
    hint = ", which the kernel does not tell: match it by name" if device.driver == "unknown" else ""
    return f"no entry of {config.path} matches it (driver {device.driver}{hint})"


def _in_words(device: Device) -> str:
    return f"{device.name} ({', '.join(filter(None, (device.driver, device.place.pci, *device.place.netdevs)))})"


def _named_exactly(named: str | At, devices: Sequence[Device]) -> list[Device]:
    """The devices that this names; none for a glob, but for one whose name it happens to be."""
    if isinstance(named, At):
        return [device for device in devices if _is(device, named)]
    return [device for device in devices if device.name == named]


def _missing(config: Config, entries: dict[str, Provider], devices: Sequence[Device]) -> list[str]:
    """Devices that the file demands, by name or by number, and the machine does not have."""
    present = ", ".join(map(_in_words, devices)) or "no RDMA device"
    mistakes = []
    for name, entry in entries.items():
        if entry.null_mr == "ignore":
            continue
        for index, wanted in enumerate(entry.devices):
            may_be_missing = isinstance(wanted, str) and is_glob(wanted)
            if not may_be_missing and not _named_exactly(wanted, devices):
                where = config.where("providers", name, "devices", index)
                way_out = "correct or remove the name, or write a glob, which may match nothing"
                mistakes.append(f"{where}: {wanted} is not on this machine, which has {present}; {way_out}")
        mistakes += _too_few(
            config, name, entry, [device for device in devices if _owner(entries, device) == name], present
        )
    return mistakes


def _too_few(config: Config, name: str, entry: Provider, matching: Sequence[Device], present: str) -> Iterator[str]:
    counted = [device for device in matching if isinstance(device, OpenedDevice) or not entry.only_usable]
    if len(counted) >= entry.at_least:
        return
    asked = f"{entry.at_least}{' usable' if entry.only_usable else ''} asked for"
    found = f"{len(counted)} found ({', '.join(device.name for device in counted) or 'none'})"
    words = [f"this machine has {present}"]
    words += [f"{device.name}: {'; '.join(device.failures)}" for device in matching if device not in counted]
    yield f"{config.where('providers', name, 'at_least')}: {asked}, but {found}; {'; '.join(words)}"


def _taken(config: Config, entries: dict[str, Provider], devices: Sequence[Device], owners: Owners) -> list[str]:
    """Devices that an entry names but does not get."""
    mistakes = []
    for name, entry in entries.items():
        for index, wanted in enumerate(entry.devices):
            found = _named_exactly(wanted, devices)
            if not found or any(owners[device.name] == name for device in found):
                continue
            device = found[0]
            words = f"{wanted} ({device.name})" if isinstance(wanted, At) else wanted
            where = config.where("providers", name, "devices", index)
            if entry.driver not in ("", device.driver):
                mistakes.append(f"{where}: {words} has the driver {device.driver}, not {entry.driver}")
            elif _is_one_of(device, entry.except_):
                mistakes.append(f"{where}: {words} is in `except` of the same entry; remove it from one of the two")
            else:
                first = config.where("providers", str(owners[device.name]))
                mistakes.append(f"{where}: {words} goes to an earlier entry ({first}); move this entry above it")
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


def _target(
    config: Config, owner: str, provider: Provider, device: Device, port: Port, environment: Environment
) -> AnyTarget:
    wanted = provider.null_mr, provider.timeout, variables(environment), environment_label(environment)
    reasons = device.failures
    if isinstance(device, OpenedDevice):
        gid, pkey = choose_gid(device, port, provider.gid), choose_pkey(port, provider.pkey)
        if port.state != "ACTIVE":
            reasons = (f"port {port.number} is {port.state}, not ACTIVE", *reasons)
        elif objections := tuple(_objections(config, owner, provider, device, port)):
            reasons = (*objections, *reasons)
        else:
            return Target(owner, device, port, *wanted, gid, pkey, provider.sl, provider.traffic_class)
    return BrokenTarget(owner, device, port, *wanted, "; ".join(reasons))


def _objections(config: Config, owner: str, provider: Provider, device: Device, port: Port) -> Iterator[str]:
    """Why the port cannot be addressed as its entry asks."""
    name = f"{device.name}/{port.number}"
    gid, pkey = choose_gid(device, port, provider.gid), choose_pkey(port, provider.pkey)
    # InfiniBand has LIDs, iWARP and EFA their own ways; only RoCE cannot do without a GID.
    if gid is None and (provider.gid != "auto" or port.grh_required or is_roce(device, port)):
        where = config.where("providers", owner, "gid")
        wish = str(provider.gid).removesuffix("/128")
        table = ", ".join(f"{gid.index}: {gid.type} {gid.gid}" for gid in port.gids)
        way_out = "ask for one of those" if table else "give its netdev an address, or leave it out (`except`)"
        yield f"{where}: {name} has no GID that fits `gid: {wish}`; its table: {table or 'empty'}; {way_out}"
    elif gid is None and provider.traffic_class:
        where = config.where("providers", owner, "traffic_class")
        yield f"{where}: a traffic class is part of a GRH, and {name} is addressed by LID; add `gid: 0`, or remove it"
    if pkey is None and not port.pkeys and provider.pkey == "auto":
        return  # a port without P_Keys, as some iWARP devices have it
    if pkey is None or not pkey.is_full:
        where = config.where("providers", owner, "pkey")
        is_value = isinstance(provider.pkey, int) and provider.pkey > MOST_PKEYS
        wish = f"{provider.pkey:#06x}" if is_value else str(provider.pkey)
        found = f"no P_Key of a full member that fits `pkey: {wish}`"
        table = ", ".join(f"{pkey.index}: {pkey.value:#06x}" for pkey in port.pkeys) or "empty"
        way_out = "ask for one from 0x8001 on, or have the subnet manager make the port a full member"
        yield f"{where}: {name} has {found}, and limited ones do not hear each other; its table: {table}; {way_out}"
