# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""`python -m conformance`: what would be tried on this machine, and what is required.

Exit status: 0; 1 if there is nothing to try or something that cannot be tried; 2 for a wrong option or
providers file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import config, inventory, native


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance", description="conformance suite for null MRs")
    parser.add_argument(
        "--config",
        type=Path,
        default=config.DEFAULT_PATH,
        metavar="FILE",
        help="providers file (default: %(default)s)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    devices = commands.add_parser("devices", help="the targets that would be tried, and why other devices are left out")
    devices.add_argument("--reference", action="store_true", help="simulated devices in place of this machine's own")
    commands.add_parser("clauses", help="the requirements")
    commands.add_parser("schema", help="the JSON schema of a providers file")
    options = parser.parse_args(arguments)
    if options.command == "schema":
        print(config.json_schema(), end="")
        return 0
    if options.command == "clauses":
        return _clauses()
    try:
        return _devices(config.load(options.config), options.reference)
    except config.ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except native.BuildError as error:
        print(error, file=sys.stderr)
        return 1


def _devices(providers: config.Config, reference: bool) -> int:
    machine = inventory.open_machine(providers, reference)
    found = inventory.targets(providers, machine.devices)
    if machine.simulated:
        print(f"{machine.simulated}\n")
    print(f"tried ({len(found.targets)}):")
    for target in found.targets:
        print(f"  {target.id}  {target.provider}, null MR {target.null_mr}: {_describe(target)}")
    print(f"left out ({len(found.left_out)}):")
    for name, reason in found.left_out:
        print(f"  {name}  {reason}")
    return int(not found.targets or any(target.broken for target in found.targets))


def _describe(target: inventory.Target) -> str:
    if target.broken:
        return f"BROKEN: {target.broken}"
    gid = f"GID {target.gid.index} {target.gid.type} {target.gid.gid}" if target.gid else f"LID {target.port.lid}"
    return f"{target.device.driver}, firmware {target.device.fw_ver}, MTU {target.port.mtu}, {gid}"


def _clauses() -> int:
    from conformance.clauses import CLAUSES

    for clause in CLAUSES:
        print(f"{clause.id}  {clause.level.value}  (since {clause.since}; {clause.source})")
        print(f"    {clause.requirement}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
