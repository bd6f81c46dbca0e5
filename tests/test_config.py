# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""providers.yaml: what is accepted, and the message for everything that is not."""

import json
import tempfile
import warnings
from datetime import date
from ipaddress import IPv6Network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml.error import ReusedAnchorWarning

from conformance import config

NULL_MR = (
    "required (it must work), optional (it must work if it can be allocated), absent (allocation must fail "
    "with EOPNOTSUPP) or ignore (the device is left out)"
)
PORTS = "all, or a list of port numbers from 1 to 254"
GID = (
    "auto, roce_v1, roce_v2, a GID index from 0 to 255, or an address or prefix such as "
    '"::ffff:192.0.2.7" or "fe80::/64"'
)
PKEY = "auto (the first full member), a P_Key index from 0 to 4095, or the value of a full member, 0x8001 to 0xffff"
SL = "a service level from 0 to 15; left out: 0"
CLASS = "the traffic class of the GRH, from 0 to 255; left out: 0"
USABLE = "true, if a device that cannot be opened is left out, or false, if it is BROKEN; left out: false"
TIMEOUT = "seconds that one completion or one verbs call may take, above 0 and up to 3600"
DEVICES = (
    'a list of device names and globs, such as [mlx5_0, "mlx5_bond_*"], of {pci: "0000:5e:00.0"} and of '
    "{netdev: ens1f0}; left out: any device"
)
NAMED = 'a list of device names and globs, such as [mlx5_0, "mlx5_bond_*"]; left out: any device'
DEVICE = 'a device name or glob, {pci: "0000:5e:00.0"} (with its domain, in small letters) or {netdev: ens1f0}'
EXCEPT = "a list of devices that the entry leaves out, named as in `devices`; left out: none"
NAMES = (
    "entries by a name of letters, digits, `_`, `.` and `-`; a device belongs to the first entry, from the "
    "top, that matches it"
)
KEYS = (
    "devices, except, driver, only_usable, at_least, ports, gid, pkey, sl, traffic_class, peer, null_mr, "
    "timeout, environments, simulate"
)
ENVIRONMENTS = (
    "a list of sets of environment variables, such as {name: cqe128, MLX5_CQE_SIZE: 128}; each port is tried once "
    "with each"
)
WAIVER_KEYS = "clauses, checks, devices, driver, firmware, kernel, verdict, reason, ticket, until"
WAIVERS = "a list of known failures, which do not fail the run"
CLAUSES = "a list of clause ids and globs of them, such as [read/zeros, discard/*]; left out: any clause"
CHECKS = (
    "a list of parts of check names, such as [test_what_is_received, rc-send-*-srq]; `*` and `?` are wild; "
    "left out: any check"
)
RANGE = 'comparisons of numbers, such as ">=22.36, <22.41.1000" or "==6.12.*", with ==, !=, <, <=, >, >= or ~='
REASON = "why the failure is accepted, in words"
TICKET = 'a link or a ticket, such as https://example.org/1234 or "#1234"'
UNTIL = "the last day on which it holds, such as 2027-01-31"
DAY = "a date such as 2027-01-31"
ONE_LINE = "a string of one line, or a whole number; quote anything else"
DRIVERS = ", ".join(config.DRIVER_NAMES)

# Each: the file, and the messages that it must give, without the file's name.
WRONG = {
    "empty file": ("", [":1: found nothing; allowed: a mapping with the keys providers, waivers"]),
    "root is a list": ("- mlx5\n", [':1: found ["mlx5"]; allowed: a mapping with the keys providers, waivers']),
    "no providers": ("{}", [":1: providers: missing; allowed: " + NAMES]),
    "no entry": ("providers: {}", [":1: providers: found {}; allowed: " + NAMES]),
    "entries as a list": (
        "providers: [mlx5]",
        [':1: providers: found ["mlx5"]; allowed: ' + NAMES],
    ),
    "unknown key at the top": (
        "provider: 1\nproviders: {a: {driver: rxe, null_mr: absent}}",
        [":1: provider: unknown key; did you mean providers? allowed: providers, waivers"],
    ),
    "entry is no mapping": (
        "providers:\n  a: 3",
        [":2: providers.a: found 3; allowed: a mapping with the keys " + KEYS],
    ),
    "entry name with a space": (
        'providers:\n  "a b": {driver: rxe, null_mr: absent}',
        [':2: providers.a b: found "a b"; allowed: ' + NAMES],
    ),
    "unknown key, mistyped": (
        "providers:\n  a:\n    driver: rxe\n    null_mr: absent\n    devces: [x]",
        [":5: providers.a.devces: unknown key; did you mean devices? allowed: " + KEYS],
    ),
    "unknown key, like no other": (
        "providers:\n  a:\n    driver: rxe\n    null_mr: absent\n    zzz: 1",
        [":5: providers.a.zzz: unknown key; allowed: " + KEYS],
    ),
    "neither devices nor driver": (
        "providers:\n  a: {null_mr: absent}",
        [":2: providers.a: does not say which devices it is about; add `devices` or `driver`"],
    ),
    "no promise": (
        "providers:\n  a: {driver: rxe}",
        [":2: providers.a.null_mr: missing; allowed: " + NULL_MR],
    ),
    "promise in YAML 1.1's manner": (
        "providers:\n  a:\n    driver: rxe\n    null_mr: yes",
        [':4: providers.a.null_mr: found "yes"; allowed: ' + NULL_MR],
    ),
    "driver of the PCI device": (
        "providers:\n  a: {null_mr: absent,\n      driver: mlx5_core}",
        [f':3: providers.a.driver: found "mlx5_core"; did you mean mlx5? allowed: {DRIVERS}'],
    ),
    "driver without a value": (
        "providers:\n  a:\n    driver:\n    null_mr: absent",
        [
            ":3: providers.a.driver: found nothing; allowed: the name of an RDMA driver, such as mlx5; "
            "left out: any driver"
        ],
    ),
    "devices as one name": (
        "providers:\n  a: {devices: mlx5_0, null_mr: absent}",
        [f':2: providers.a.devices: found "mlx5_0"; allowed: {DEVICES}'],
    ),
    "devices empty": (
        "providers:\n  a: {devices: [], null_mr: absent}",
        [f":2: providers.a.devices: found []; allowed: {DEVICES}"],
    ),
    "a device that is a path": (
        "providers:\n  a:\n    devices:\n    - mlx5_0\n    - /dev/infiniband/uverbs0\n    null_mr: absent",
        [f':5: providers.a.devices[1]: found "/dev/infiniband/uverbs0"; allowed: {DEVICE}'],
    ),
    "a device twice": (
        "providers:\n  a: {devices: [mlx5_0, mlx5_1, mlx5_0], null_mr: absent}",
        [':2: providers.a.devices: "mlx5_0" is listed twice; name it once'],
    ),
    "more devices asked for than named": (
        "providers:\n  a: {devices: [mlx5_0, mlx5_1], at_least: 3, null_mr: absent}",
        [":2: providers.a.at_least: found 3, but `devices` names only 2; name more, or lower it"],
    ),
    "at_least true": (
        "providers:\n  a: {driver: rxe, at_least: true, null_mr: absent}",
        [
            ":2: providers.a.at_least: found true; allowed: how many devices of this entry the machine must "
            "have, from 0; left out: 0"
        ],
    ),
    "ports one": (
        "providers:\n  a: {driver: rxe, ports: 1, null_mr: absent}",
        [f":2: providers.a.ports: found 1; allowed: {PORTS}"],
    ),
    "ports some": (
        "providers:\n  a: {driver: rxe, ports: some, null_mr: absent}",
        [f':2: providers.a.ports: found "some"; allowed: {PORTS}'],
    ),
    "port 0": (
        "providers:\n  a:\n    driver: rxe\n    null_mr: absent\n    ports:\n    - 1\n    - 0",
        [f":7: providers.a.ports[1]: found 0; allowed: {PORTS}"],
    ),
    "a port as text": (
        'providers:\n  a: {driver: rxe, ports: [1, "2"], null_mr: absent}',
        [f':2: providers.a.ports[1]: found "2"; allowed: {PORTS}'],
    ),
    "a port twice": (
        "providers:\n  a: {driver: rxe, ports: [1, 1], null_mr: absent}",
        [":2: providers.a.ports: 1 is listed twice; name it once"],
    ),
    "GID index below 0": (
        "providers:\n  a: {driver: rxe, gid: -1, null_mr: absent}",
        [f":2: providers.a.gid: found -1; allowed: {GID}"],
    ),
    "GID index above 255": (
        "providers:\n  a: {driver: rxe, gid: 256, null_mr: absent}",
        [f":2: providers.a.gid: found 256; allowed: {GID}"],
    ),
    "GID type misspelt": (
        "providers:\n  a: {driver: rxe, gid: RoCEv2, null_mr: absent}",
        [f':2: providers.a.gid: found "RoCEv2"; allowed: {GID}'],
    ),
    "GID true": (
        "providers:\n  a: {driver: rxe, gid: true, null_mr: absent}",
        [f":2: providers.a.gid: found true; allowed: {GID}"],
    ),
    "GID prefix with host bits": (
        "providers:\n  a: {driver: rxe, gid: 'fe80::1/64', null_mr: absent}",
        [f':2: providers.a.gid: found "fe80::1/64": fe80::1/64 has host bits set; allowed: {GID}'],
    ),
    "P_Key of a limited member": (
        "providers:\n  a: {driver: mlx5, pkey: 0x7fff, null_mr: absent}",
        [
            ":2: providers.a.pkey: found 32767, the value of a limited member, which does not hear another one; "
            f"allowed: {PKEY}"
        ],
    ),
    "P_Key of no partition": (
        "providers:\n  a: {driver: mlx5, pkey: 0x10000, null_mr: absent}",
        [f":2: providers.a.pkey: found 65536; allowed: {PKEY}"],
    ),
    "P_Key true": (
        "providers:\n  a: {driver: mlx5, pkey: true, null_mr: absent}",
        [f":2: providers.a.pkey: found true; allowed: {PKEY}"],
    ),
    "SL and traffic class": (
        "providers:\n  a: {driver: mlx5, sl: 16,\n    traffic_class: -1, null_mr: absent}",
        [
            f":2: providers.a.sl: found 16; allowed: {SL}",
            f":3: providers.a.traffic_class: found -1; allowed: {CLASS}",
        ],
    ),
    "PCI address without a domain": (
        "providers:\n  a:\n    devices:\n    - {pci: '5e:00.0'}\n    null_mr: absent",
        [f':4: providers.a.devices[0]: found {{"pci": "5e:00.0"}}; allowed: {DEVICE}'],
    ),
    "place of two kinds": (
        "providers:\n  a: {devices: [{pci: '0000:5e:00.0', netdev: eth0}], null_mr: absent}",
        [f':2: providers.a.devices[0]: found {{"pci": "0000:5e:00.0", "netdev": "eth0"}}; allowed: {DEVICE}'],
    ),
    "place of no kind": (
        "providers:\n  a: {devices: [{mac: x}, {}], null_mr: absent}",
        [
            f':2: providers.a.devices[0]: found {{"mac": "x"}}; allowed: {DEVICE}',
            f":2: providers.a.devices[1]: found {{}}; allowed: {DEVICE}",
        ],
    ),
    "except is no list": (
        "providers:\n  a: {driver: mlx5, except: mlx5_0, null_mr: absent}",
        [f':2: providers.a.except: found "mlx5_0"; allowed: {EXCEPT}'],
    ),
    "only_usable is no word": (
        "providers:\n  a: {driver: mlx5, only_usable: 1, null_mr: absent}",
        [f":2: providers.a.only_usable: found 1; allowed: {USABLE}"],
    ),
    "timeout 0": (
        "providers:\n  a: {driver: rxe, timeout: 0, null_mr: absent}",
        [f":2: providers.a.timeout: found 0; allowed: {TIMEOUT}"],
    ),
    "timeout with a unit": (
        "providers:\n  a: {driver: rxe, timeout: 10s, null_mr: absent}",
        [f':2: providers.a.timeout: found "10s"; allowed: {TIMEOUT}'],
    ),
    "timeout endless": (
        "providers:\n  a: {driver: rxe, timeout: .inf, null_mr: absent}",
        [f":2: providers.a.timeout: found Infinity; allowed: {TIMEOUT}"],
    ),
    "timeout not a number": (
        "providers:\n  a: {driver: rxe, timeout: .nan, null_mr: absent}",
        [f":2: providers.a.timeout: found NaN; allowed: {TIMEOUT}"],
    ),
    "simulate a real device": (
        "providers:\n  a: {driver: rxe, simulate: 2, null_mr: absent}",
        [":2: providers.a.simulate: allowed only together with `driver: reference`; remove it"],
    ),
    "duplicate entry": (
        "providers:\n  a: {driver: rxe, null_mr: absent}\n  a: {driver: siw, null_mr: absent}",
        [":3: providers.a: found a second time, first on line 2; allowed: once"],
    ),
    "duplicate key": (
        "providers:\n  a:\n    null_mr: absent\n    driver: rxe\n    null_mr: required",
        [":5: providers.a.null_mr: found a second time, first on line 3; allowed: once"],
    ),
    "list as a key": (
        "providers:\n  a: {driver: rxe, null_mr: absent}\n  ? [b]\n  : 1",
        [":3: providers: found a list or mapping as a key; allowed: a plain name"],
    ),
    "alias to itself": (
        "providers:\n  a: &a {driver: rxe, null_mr: *a}",
        [":2: providers.a.null_mr: an alias makes this value contain itself; write it out"],
    ),
    "unknown tag": (
        "providers:\n  a: {driver: rxe, null_mr: !mr absent}",
        [":2: providers.a.null_mr: not a plain value: could not determine a constructor for the tag '!mr'"],
    ),
    "what the reader finds and what validation finds, in the order of the file": (
        "providers:\n  a: {driver: rxe, null_mr: no}\n  b: {driver: rxe, null_mr: absent}\n  b: 1",
        [
            f':2: providers.a.null_mr: found "no"; allowed: {NULL_MR}',
            ":4: providers.b: found a second time, first on line 3; allowed: once",
        ],
    ),
    "conversion that fails": (
        "providers:\n  a: {driver: rxe, null_mr: absent, gid: !!int ''}",
        [":2: providers.a.gid: not a plain value: string index out of range"],
    ),
    "key of two lines": (
        "providers:\n  a:\n    driver: rxe\n    null_mr: absent\n    ? gid\n\n      index\n    : 1",
        [':5: providers.a."gid\\nindex": unknown key; allowed: ' + KEYS],
    ),
    "control character": ("providers: \x01", [": not valid YAML: unacceptable character #x0001: special"]),
    "tab": ("providers:\n\ta: 1", [":2: not valid YAML: while scanning for the next token, found character"]),
    "bracket left open": (
        "providers:\n  a: {driver: [rxe\n",
        [":3: not valid YAML: while parsing a flow sequence"],
    ),
    "two documents": (
        "providers: {}\n---\nproviders: {}\n",
        [":2: not valid YAML: expected a single document in the stream, but found another document"],
    ),
    "several at once, in the order of the file": (
        "providers:\n  a:\n    driver: rxe\n    gid: roce\n    null_mr: no\n"
        "  b:\n    diver: rxe\n    null_mr: absent\n",
        [
            f':4: providers.a.gid: found "roce"; allowed: {GID}',
            f':5: providers.a.null_mr: found "no"; allowed: {NULL_MR}',
            ":7: providers.b.diver: unknown key; did you mean driver? allowed: " + KEYS,
        ],
    ),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "providers.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_is_told_with_line_key_what_was_found_and_what_is_allowed(name: str, tmp_path: Path) -> None:
    text, expected = WRONG[name]
    path = write(tmp_path, text)
    with pytest.raises(config.ConfigError) as caught:
        config.load(path)
    mistakes = [mistake.removeprefix(str(path)) for mistake in caught.value.mistakes]
    if "not valid YAML" in expected[0]:  # the parser's own words follow, which differ between its versions
        assert len(mistakes) == 1
        assert mistakes[0].startswith(expected[0])
    else:
        assert mistakes == expected
    assert str(caught.value).count(str(path)) == len(expected)


def environments(sets: str) -> str:
    return f"providers:\n  a: {{driver: rxe, null_mr: absent,\n    environments: {sets}}}"


def waived(keys: str) -> str:
    return f"providers: {{a: {{driver: rxe, null_mr: absent}}}}\nwaivers:\n- {{{keys}}}"


WHY = "reason: known, ticket: t, until: 2027-01-31"

WRONG |= {
    "environments not listed": (
        environments("{A: 1}"),
        [f':3: providers.a.environments: found {{"A": 1}}; allowed: {ENVIRONMENTS}'],
    ),
    "no set of variables": (environments("[]"), [f":3: providers.a.environments: found []; allowed: {ENVIRONMENTS}"]),
    "set of variables as a string": (
        environments("[A=1]"),
        [f':3: providers.a.environments[0]: found "A=1"; allowed: {ENVIRONMENTS}'],
    ),
    "variable true": (
        environments("[{A: true}]"),
        [f":3: providers.a.environments[0].A: found true; allowed: {ONE_LINE}"],
    ),
    "variable with a fraction": (
        environments("[{A: 1}, {B: 0.5}]"),
        [f":3: providers.a.environments[1].B: found 0.5; allowed: {ONE_LINE}"],
    ),
    "variable without a value": (
        environments("[{A: }]"),
        [f":3: providers.a.environments[0].A: found nothing; allowed: {ONE_LINE}"],
    ),
    "variable in small letters": (
        environments("[{mlx5_cqe_size: 64}]"),
        [
            ':3: providers.a.environments[0].mlx5_cqe_size: found "mlx5_cqe_size"; allowed: `name`, or a variable of '
            "capital letters, digits and `_`"
        ],
    ),
    "variable that is read before any target": (
        environments("[{IBV_FORK_SAFE: 1}]"),
        [
            ":3: providers.a.environments[0].IBV_FORK_SAFE: is read once, when the process starts, so that no target "
            "can have its own; set it for the whole run"
        ],
    ),
    "set twice": (
        environments("[{A: 1}, {A: '1'}]"),
        [':3: providers.a.environments: the set "A=1" is listed twice; remove one, or give them names that differ'],
    ),
    "empty set twice": (
        environments("[{}, {}]"),
        [":3: providers.a.environments: the empty set is listed twice; remove one, or give them names that differ"],
    ),
    "name that no test id can have": (
        environments("[{name: 'a b', A: 1}]"),
        [
            ':3: providers.a.environments: the name "a b" cannot be part of a test id; use letters, digits and `_.+-`',
        ],
    ),
    "value that no test id can have": (
        environments("[{A: '[x]'}]"),
        [':3: providers.a.environments: "A=[x]" cannot be part of a test id; give the set a `name`'],
    ),
    "waivers without a value": (
        "providers: {a: {driver: rxe, null_mr: absent}}\nwaivers:",
        [f":2: waivers: found nothing; allowed: {WAIVERS}"],
    ),
    "waivers as a mapping": (
        "providers: {a: {driver: rxe, null_mr: absent}}\nwaivers: {read/zeros: known}",
        [f':2: waivers: found {{"read/zeros": "known"}}; allowed: {WAIVERS}'],
    ),
    "waiver as a string": (
        "providers: {a: {driver: rxe, null_mr: absent}}\nwaivers: [read/zeros]",
        [f':2: waivers[0]: found "read/zeros"; allowed: a mapping with the keys {WAIVER_KEYS}'],
    ),
    "waiver of nothing": (
        waived(WHY),
        [":3: waivers[0]: does not say what it waives; add `clauses` or `checks`"],
    ),
    "waiver with an unknown key": (
        waived(f"check: [a], clauses: [read/zeros], {WHY}"),
        [f":3: waivers[0].check: unknown key; did you mean checks? allowed: {WAIVER_KEYS}"],
    ),
    "waiver of an unknown clause": (
        waived(f"clauses: [read/zeros, read/zeroes], {WHY}"),
        [
            ':3: waivers[0].clauses[1]: found "read/zeroes", which is the id of no clause; did you mean read/zeros? '
            "`python -m conformance clauses` prints them all"
        ],
    ),
    "waiver of a glob that no clause has": (
        waived(f"clauses: [dicsard/*], {WHY}"),
        [
            ':3: waivers[0].clauses[0]: found "dicsard/*", which is the id of no clause; did you mean discard/event? '
            "`python -m conformance clauses` prints them all"
        ],
    ),
    "waiver of every clause": (
        waived(f"clauses: ['*'], {WHY}"),
        [f':3: waivers[0].clauses[0]: found "*"; allowed: {CLAUSES}'],
    ),
    "waiver of an empty list": (
        waived(f"clauses: [], {WHY}"),
        [f":3: waivers[0].clauses: found []; allowed: {CLAUSES}"],
    ),
    "waiver of an empty name": (
        waived(f"checks: [''], {WHY}"),
        [f':3: waivers[0].checks[0]: found ""; allowed: {CHECKS}'],
    ),
    "waiver of one check, not listed": (
        waived(f"checks: test_x, {WHY}"),
        [f':3: waivers[0].checks: found "test_x"; allowed: {CHECKS}'],
    ),
    "waiver for no device": (
        waived(f"checks: [a], devices: [], {WHY}"),
        [f":3: waivers[0].devices: found []; allowed: {NAMED}"],
    ),
    "waiver for an unknown driver": (
        waived(f"checks: [a], driver: mlx5_core, {WHY}"),
        [f':3: waivers[0].driver: found "mlx5_core"; did you mean mlx5? allowed: {DRIVERS}'],
    ),
    "waiver for a firmware without a comparison": (
        waived(f"checks: [a], firmware: 22.41.1000, {WHY}"),
        [f':3: waivers[0].firmware: found "22.41.1000"; allowed: {RANGE}'],
    ),
    "waiver for a kernel that YAML makes a number": (
        waived(f"checks: [a], kernel: 6.12, {WHY}"),
        [f":3: waivers[0].kernel: found 6.12; allowed: kernel versions: {RANGE}; left out: any kernel"],
    ),
    "waiver for a kernel by its whole name": (
        waived(f'checks: [a], kernel: "==6.12.0-1-amd64", {WHY}'),
        [f':3: waivers[0].kernel: found "==6.12.0-1-amd64"; allowed: {RANGE}'],
    ),
    "waiver without a reason": (
        waived("checks: [a], ticket: t, until: 2027-01-31"),
        [f":3: waivers[0].reason: missing; allowed: {REASON}"],
    ),
    "waiver with a blank reason": (
        waived("checks: [a], reason: ' ', ticket: t, until: 2027-01-31"),
        [f':3: waivers[0].reason: found " "; allowed: {REASON}'],
    ),
    "waiver whose ticket is a comment": (
        waived("checks: [a], reason: r, until: 2027-01-31, ticket: #1\n"),
        [f":3: waivers[0].ticket: found nothing; allowed: {TICKET}"],
    ),
    "waiver without an end": (
        waived("checks: [a], reason: r, ticket: 1"),
        [f":3: waivers[0].until: missing; allowed: {UNTIL}"],
    ),
    "waiver up to a day that does not exist": (
        waived("checks: [a], reason: r, ticket: 1, until: '2027-02-30'"),
        [f':3: waivers[0].until: found "2027-02-30"; allowed: {DAY}'],
    ),
    "waiver up to a day that YAML knows not to exist": (
        waived("checks: [a], reason: r, ticket: 1, until: 2027-02-30"),
        [":3: waivers[0].until: not a plain value: day is out of range for month"],
    ),
    "waiver up to a minute": (
        waived("checks: [a], reason: r, ticket: 1, until: 2027-01-31 12:00:00"),
        [f':3: waivers[0].until: found "2027-01-31 12:00:00"; allowed: {DAY}'],
    ),
    "waiver up to a year": (
        waived("checks: [a], reason: r, ticket: 1, until: 2027"),
        [f":3: waivers[0].until: found 2027; allowed: {DAY}"],
    ),
    "waiver for ever": (
        waived("checks: [a], reason: r, ticket: 1, until: never"),
        [f':3: waivers[0].until: found "never"; allowed: {DAY}'],
    ),
    "text of two lines to some readers": (
        '"providers\u2028providers"',
        [':1: found "providers\\u2028providers"; allowed: a mapping with the keys providers, waivers'],
    ),
    "range that begins with > and is not quoted": (
        "providers: {a: {driver: rxe, null_mr: absent}}\nwaivers:\n- kernel: >=6.12\n",
        [":3: not valid YAML: while scanning a block scalar"],
    ),
}


TOKENS = [
    *("providers", "a", ": ", "\n", "\n  ", "\n    ", "- ", "[", "]", "{", "}", ", ", "devices", "null_mr", "absent"),
    *("gid", "0", "null", "~", "1.5", ".inf", "'", '"', "&a ", "*a", "!!int ", "!!set ", "!x ", "<<", "? ", "|"),
    *("> ", "waivers", "environments", "2027-01-31", "#", "---\n", "...\n", "\t", "\\", "\x00", "\u2028"),
]


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=20).map("".join), st.sampled_from(["", "providers:\n  a: "]))
def test_any_text_is_a_config_or_mistakes_of_one_line_each(text: str, start: str) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ReusedAnchorWarning)
        path = write(Path(folder), start + text)
        mistakes: tuple[str, ...] = ()
        try:
            config.load(path)
        except config.ConfigError as error:
            mistakes = error.mistakes or ("none told",)
        assert [text for text in mistakes if not (text.startswith(str(path)) and text.isprintable())] == []


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(config.ConfigError) as caught:
        config.load(path)
    assert caught.value.mistakes == (f"{path}: cannot be read: No such file or directory",)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.load(tmp_path)
    assert caught.value.mistakes == (f"{tmp_path}: cannot be read: Is a directory",)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "providers.yaml"
    path.write_bytes(b"providers: \xff")
    with pytest.raises(config.ConfigError) as caught:
        config.load(path)
    assert caught.value.mistakes == (f"{path}: byte 11 is not UTF-8 text",)


def test_every_key_is_read_as_written(tmp_path: Path) -> None:
    text = """
providers:
  lab:
    devices: [mlx5_0, "mlx5_1?"]
    driver: mlx5
    at_least: 3
    ports: [2, 1]
    gid: 0
    null_mr: required
    timeout: 2.5
"""
    lab = config.load(write(tmp_path, text)).providers["lab"]
    assert lab == config.Provider(
        devices=("mlx5_0", "mlx5_1?"),
        driver="mlx5",
        at_least=3,
        ports=(2, 1),
        gid=0,
        null_mr="required",
        timeout=2.5,
    )


@pytest.mark.parametrize("day", ["2027-01-31", "'2027-01-31'"])
def test_every_key_of_a_waiver_is_read_as_written(tmp_path: Path, day: str) -> None:
    text = f"""
providers: {{a: {{driver: rxe, null_mr: absent}}}}
waivers:
- clauses: [read/zeros, discard/*]
  checks: [srq]
  devices: ["mlx5_*"]
  driver: mlx5
  firmware: ">=22.36, <22.41.1000"
  kernel: <6.12
  reason: known
  ticket: 1234
  until: {day}
"""
    path = write(tmp_path, text)
    valid = config.load(path)
    assert valid.waivers == (
        config.Waiver(
            clauses=("read/zeros", "discard/*"),
            checks=("srq",),
            devices=("mlx5_*",),
            driver="mlx5",
            firmware=">=22.36, <22.41.1000",
            kernel="<6.12",
            reason="known",
            ticket="1234",
            until=date(2027, 1, 31),
        ),
    )
    assert valid.where("waivers", 0) == f"{path}:4: waivers[0]"


def test_a_quote_is_advised_for_a_range_that_yaml_misreads(tmp_path: Path) -> None:
    path = write(tmp_path, "waivers:\n- kernel: >=6.12\n")
    with pytest.raises(config.ConfigError, match=r":2: .*; quote a value that begins with > or \|$"):
        config.load(path)


def test_numbers_of_an_environment_become_strings(tmp_path: Path) -> None:
    valid = config.load(write(tmp_path, environments("[{A: 128, B: '0x1', C: ''}, {name: none}]")))
    assert valid.providers["a"].environments == ({"A": "128", "B": "0x1", "C": ""}, {"name": "none"})


def test_only_a_promise_and_one_way_to_match_are_needed(tmp_path: Path) -> None:
    entry = config.load(write(tmp_path, "providers: {a: {driver: rxe, null_mr: absent}}")).providers["a"]
    assert (entry.devices, entry.at_least, entry.ports, entry.gid, entry.timeout) == (
        (),
        0,
        "all",
        "auto",
        10,
    )


@pytest.mark.parametrize(
    ("written", "network"),
    [
        ('"::ffff:192.0.2.7"', "::ffff:192.0.2.7/128"),
        ("192.0.2.7", "::ffff:192.0.2.7/128"),
        ("192.0.2.0/24", "::ffff:192.0.2.0/120"),
        ("fe80::/64", "fe80::/64"),
    ],
)
def test_a_gid_can_be_an_address_or_a_prefix(written: str, network: str, tmp_path: Path) -> None:
    text = f"providers: {{a: {{driver: rxe, gid: {written}, null_mr: absent}}}}"
    assert config.load(write(tmp_path, text)).providers["a"].gid == IPv6Network(network)


def test_a_device_can_be_named_by_its_place(tmp_path: Path) -> None:
    text = "providers: {a: {devices: [mlx5_0, {pci: 0000:5e:00.0}, {netdev: eth0}], null_mr: absent}}"
    devices = config.load(write(tmp_path, text)).providers["a"].devices
    assert devices == ("mlx5_0", config.At("pci", "0000:5e:00.0"), config.At("netdev", "eth0"))


def test_at_least_may_ask_for_every_device_that_is_named(tmp_path: Path) -> None:
    text = "providers: {a: {devices: [x, y], at_least: 2, null_mr: absent}}"
    assert config.load(write(tmp_path, text)).providers["a"].at_least == 2


def test_entries_keep_the_order_of_the_file(tmp_path: Path) -> None:
    text = "providers: {z: {driver: rxe, null_mr: absent}, a: {driver: siw, null_mr: absent}}"
    assert list(config.load(write(tmp_path, text)).providers) == ["z", "a"]


def test_an_alias_repeats_a_value(tmp_path: Path) -> None:
    text = "providers:\n  a: &a {driver: rxe, null_mr: absent}\n  b: *a\n"
    valid = config.load(write(tmp_path, text))
    assert valid.providers["b"] == valid.providers["a"]


def test_where_names_file_line_and_key(tmp_path: Path) -> None:
    path = write(tmp_path, "providers:\n  a:\n    null_mr: absent\n    devices:\n    - x\n    - y\n")
    valid = config.load(path)
    assert valid.where("providers", "a", "devices", 1) == f"{path}:6: providers.a.devices[1]"
    assert valid.where("providers", "a", "ports") == f"{path}:2: providers.a.ports"  # not in the file: its entry


def test_a_config_cannot_be_changed(tmp_path: Path) -> None:
    valid = config.load(write(tmp_path, "providers: {a: {driver: rxe, null_mr: absent}}"))
    with pytest.raises(ValueError, match="frozen"):
        valid.providers["a"].null_mr = "required"


@pytest.mark.parametrize(("name", "glob"), [("mlx5_0", False), ("mlx5_*", True), ("mlx5_?", True), ("m[ab]", True)])
def test_globs_are_told_from_names(name: str, glob: bool) -> None:
    assert config.is_glob(name) is glob


def test_the_shipped_file_promises_what_rdma_core_has() -> None:
    providers = config.load(config.DEFAULT_PATH).providers
    assert providers["mlx5"].null_mr == "optional"
    assert providers["reference"].null_mr == "required"
    others = {name for name in providers if name not in ("mlx5", "reference")}
    assert {name for name in others if providers[name].null_mr != "absent"} == set()
    assert {
        "rxe",
        "siw",
        "irdma",
        "mlx4",
        "bnxt_re",
        "cxgb4",
        "efa",
        "erdma",
        "hns",
        "mana",
        "qedr",
    } <= others
    assert all(entry.driver == name and not entry.devices for name, entry in providers.items())


def test_the_shipped_file_points_editors_to_the_schema() -> None:
    relative = config.SCHEMA_PATH.relative_to(config.DEFAULT_PATH.parent)
    assert f"# yaml-language-server: $schema={relative}\n" in config.DEFAULT_PATH.read_text(encoding="utf-8")


def test_the_example_in_the_shipped_file_is_valid(tmp_path: Path) -> None:
    lines = config.DEFAULT_PATH.read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("#   lab-cx7:"))
    example = [line.removeprefix("# ") for line in lines[start : lines.index("#", start)]]
    entry = config.load(write(tmp_path, "\n".join(["providers:", *example]))).providers["lab-cx7"]
    assert entry.model_fields_set == set(config.Provider.model_fields) - {"simulate"}


def test_the_waiver_in_the_shipped_file_is_valid(tmp_path: Path) -> None:
    lines = config.DEFAULT_PATH.read_text(encoding="utf-8").splitlines()
    start = lines.index("#   waivers:")
    example = [line.removeprefix("#   ") for line in lines[start : lines.index("#", start)]]
    text = "\n".join(["providers: {a: {driver: rxe, null_mr: absent}}", *example])
    [waiver] = config.load(write(tmp_path, text)).waivers
    assert waiver.model_fields_set == set(config.Waiver.model_fields)


def test_the_shipped_schema_is_current() -> None:
    shipped = json.loads(config.SCHEMA_PATH.read_text(encoding="utf-8"))
    command = "python -m conformance schema > conformance/providers.schema.json"
    assert shipped == json.loads(config.json_schema()), f"run: {command}"
