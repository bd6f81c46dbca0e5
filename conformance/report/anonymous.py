# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A report without host names and addresses, to give to people outside of the lab."""

import ipaddress
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.report.document import Report, dump, parse

_FULL = re.compile(r"\b[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?:(?::[0-9a-f]{4}){4})?\b", re.IGNORECASE)
"""GIDs, and GUIDs as the kernel writes them."""
_MAC = re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?:(?::[0-9a-f]{2}){2})?\b", re.IGNORECASE)
_SHORT = re.compile(
    r"(?<![\w:.])(?:\d{1,3}(?:\.\d{1,3}){3}|(?=[0-9a-f:.]*::)[0-9a-f:.]{3,})(?![\w:.]*\w)", re.IGNORECASE
)
"""Perhaps an IP address."""

# Four numbers with dots between them can be a version there.
_VERSIONS = ("firmware", "driver_version", "kernel", "system", "path", "package", "python", "suite")


def cleaner(report: Report) -> Callable[[str], str]:
    """What takes names out of a text about this report.

    Host names become host1, host2...; GIDs, GUIDs, MAC and IP addresses, and the home directory go.
    """
    hosts: dict[str, str] = {}
    for number, run in enumerate(report.runs, 1):
        for name in (run.circumstances.machine.host, run.circumstances.label):
            hosts.setdefault(name, f"host{number}")
    hosts.pop("", None)

    return lambda text: _without_addresses(_without_hosts(text, hosts))


def without_names(report: Report) -> Report:
    clean = cleaner(report)
    content = json.loads(dump(report))
    for run in content["runs"]:
        run["circumstances"]["machine"]["host"] = ""
    return parse(json.dumps(_strings(content, clean)))


def _strings(value: Any, clean: Callable[[str], str], key: str = "") -> Any:
    """The same data with every string cleaned, but for those that hold versions."""
    if isinstance(value, dict):
        return {name: _strings(item, clean, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_strings(item, clean, key) for item in value]
    return clean(value) if isinstance(value, str) and key not in _VERSIONS else value


def _without_hosts(text: str, hosts: dict[str, str]) -> str:
    for name in sorted(hosts, key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", hosts[name], text)
    return text.replace(str(Path.home()), "~") if len(Path.home().parts) > 1 else text


def _without_addresses(text: str) -> str:
    text = _FULL.sub("<GID>", text)
    text = _MAC.sub("<MAC>", text)
    return _SHORT.sub(lambda match: "<IP>" if _is_address(match[0]) else match[0], text)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
