# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The reference device of this process as a target, for tests of what the checks are made of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.config import REFERENCE, load
from conformance.inventory import Target, targets
from conformance.verbs.devices import list_devices

PROVIDERS = Path(__file__).parent.parent / "providers.yaml"


def target(max_msg_sz: int | None = None, mtu: int | None = None, **limits: Any) -> Target:
    """Port 1 of ref0, which reports these limits in place of its own."""
    first = targets(load(PROVIDERS), [replace(device, driver=REFERENCE) for device in list_devices({})]).targets[0]
    assert first.device.limits is not None
    port = replace(first.port, max_msg_sz=max_msg_sz or first.port.max_msg_sz, mtu=mtu or first.port.mtu)
    return replace(first, port=port, device=replace(first.device, limits=replace(first.device.limits, **limits)))
