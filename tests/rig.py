# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The reference device of this process as a target, and ways to make it do wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from conformance.config import REFERENCE, load
from conformance.inventory import Target, targets
from conformance.reference.engine import abi
from conformance.reference.engine.device import Device
from conformance.reference.engine.errors import Refused, WorkError
from conformance.verbs.devices import list_devices

Patch = Callable[[str, Callable[..., Any]], None]
TIMEOUT = 0.05
"""Seconds: what is lost here is lost for good."""
PROVIDERS = Path(__file__).parent.parent / "providers.yaml"


def target(max_msg_sz: int | None = None, mtu: int | None = None, number: int = 0, **limits: Any) -> Target:
    """Port 1 of ref0, or of the device of another number, which reports these limits in place of its own."""
    devices = [replace(device, driver=REFERENCE) for device in list_devices({})]
    first = targets(load(PROVIDERS), devices).usable[number]
    port = replace(first.port, max_msg_sz=max_msg_sz or first.port.max_msg_sz, mtu=mtu or first.port.mtu)
    return replace(first, port=port, device=replace(first.device, limits=replace(first.device.limits, **limits)))


def wrap(monkeypatch: pytest.MonkeyPatch, name: str, wrapper: Callable[..., Any]) -> None:
    """Have a function called in place of a method of the device, with that method as its first argument."""
    method = getattr(Device, name)
    monkeypatch.setattr(Device, name, lambda *arguments, **named: wrapper(method, *arguments, **named))


class Calls:
    """A wrapper of a method that counts, and does something else for some of the calls."""

    def __init__(self, other: Callable[..., Any], first: int = 0, last: int = 1 << 30) -> None:
        self.other, self.first, self.last = other, first, last
        self.count = 0

    def __call__(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.count += 1
        chosen = self.first < self.count <= self.last
        return self.other(method, *arguments, **named) if chosen else method(*arguments, **named)


def nothing(*_: Any) -> None:
    """The message is lost."""


def protection_error(*_: Any) -> NoReturn:
    raise WorkError(abi.WC_LOC_PROT_ERR, "no")


def refused(number: int) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Refused(number, "no")

    return refuse
