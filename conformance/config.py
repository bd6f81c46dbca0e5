# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""providers.yaml: which devices to try, what each promises about null MRs, and which failures are known."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from ipaddress import IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from conformance import versions
from conformance.clauses import BY_ID
from conformance.kernel import DRIVERS, PCI_ADDRESS

DEFAULT_PATH = Path(__file__).resolve().parent.parent / "providers.yaml"
SCHEMA_PATH = Path(__file__).resolve().parent / "providers.schema.json"

# The driver name by which an entry speaks of the simulated devices; no kernel driver has it.
REFERENCE = "reference"
DRIVER_NAMES = (*sorted(DRIVERS[1:]), REFERENCE)

Key = tuple[Union[str, int], ...]
"""Where a value stands in the file, from the root down: ("providers", "mlx5", "ports", 0)."""

Promise = Literal["required", "optional", "absent", "ignore"]

Variables = tuple[tuple[str, str], ...]
"""Environment variables with their values, in the order of the file."""

READ_ONCE = re.compile(
    r"LD_.*|PYTHON.*|(IBV|RDMAV)_(DRIVERS|FORK_SAFE)|RDMAV_HUGEPAGES_SAFE|IBV_SHOW_WARNINGS|VERBS_LOG_.*|SYSFS_PATH"
)
"""Variables that the loader, Python or libibverbs reads when it starts: setting them for one target does nothing."""


class ConfigError(ValueError):
    """The file, or what it asks of this machine, is wrong. `mistakes` has one text for each thing to mend."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


class _Section(BaseModel):
    # strict: "1" is no number and true is no 1. A description says what is allowed: mistakes quote it.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _own(text: str) -> PydanticCustomError:
    """A mistake whose text is complete, for a validator to raise."""
    return PydanticCustomError("own", "{text}", {"text": text})


def _known_driver(driver: str) -> str:
    if driver not in DRIVER_NAMES:
        hint = _did_you_mean(driver, DRIVER_NAMES)
        raise _own(f"found {_shown(driver)}; {hint}allowed: {', '.join(DRIVER_NAMES)}")
    return driver


def _variable(name: str) -> str:
    """A name in a set of environment variables; `name` itself names the set."""
    if name != "name" and not re.fullmatch("[A-Z_][A-Z0-9_]*", name):
        raise _own(f"found {_shown(name)}; allowed: `name`, or a variable of capital letters, digits and `_`")
    if READ_ONCE.fullmatch(name):
        raise _own(
            "is read once, when the process starts, so that no target can have its own; set it for the whole run"
        )
    return name


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _value(value: Any) -> Any:
    value = _number_as_text(value)
    if not isinstance(value, str) or not value.isprintable():
        raise _own(f"found {_shown(value)}; allowed: a string of one line, or a whole number; quote anything else")
    return value


def _known_clauses(pattern: str) -> str:
    if not any(fnmatchcase(clause, pattern) for clause in BY_ID):
        way_out = f"{_did_you_mean(pattern, BY_ID)}`python -m conformance clauses` prints them all"
        raise _own(f"found {_shown(pattern)}, which is the id of no clause; {way_out}")
    return pattern


def _day(value: Any) -> Any:
    """YAML makes a date of 2027-01-31, and a string of the same between quotes."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            raise _own(f"found {_shown(value)}; allowed: a date such as 2027-01-31") from None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _own(f"found {_shown(value)}; allowed: a date such as 2027-01-31")
    return value


def _range(text: str) -> str:
    try:
        versions.parse(text)
    except ValueError as error:
        raise _own(f"found {_shown(text)}; {error}") from None
    return text


@dataclass(frozen=True)
class At:
    """A device by its place: {pci: "0000:5e:00.0"} or {netdev: ens1f0}."""

    by: str  # pci or netdev
    place: str

    def __str__(self) -> str:
        return f"{self.by} {self.place}"


def _device(item: Any) -> Union[str, At]:
    if isinstance(item, str) and re.fullmatch(r"[^\s/]+", item):
        return item
    (by, place), *more = item.items() if isinstance(item, dict) and item else [("", None)]
    pattern = {"pci": PCI_ADDRESS, "netdev": r"[^\s/]+"}.get(by)
    if more or pattern is None or not isinstance(place, str) or not re.fullmatch(pattern, place):
        raise _own(f"found {_shown(item)}; allowed: {DEVICE}")
    return At(by, place)


DEVICE = 'a device name or glob, {pci: "0000:5e:00.0"} (with its domain, in small letters) or {netdev: ens1f0}'
GID = (
    "auto, roce_v1, roce_v2, a GID index from 0 to 255, or an address or prefix such as "
    '"::ffff:192.0.2.7" or "fe80::/64"'
)
PKEY = "auto (the first full member), a P_Key index from 0 to 4095, or the value of a full member, 0x8001 to 0xffff"
FIRST_FULL = 0x8001
"""The least P_Key of a full member."""
MOST_PKEYS = 4095
"""The greatest index: greater numbers are values."""


def _gid(value: Any) -> Union[str, int, IPv6Network]:
    if value in ("auto", "roce_v1", "roce_v2") or (type(value) is int and 0 <= value <= 255):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, str) or not any(mark in value for mark in ".:"):
        raise _own(f"found {_shown(value)}; allowed: {GID}")
    try:
        found = ip_network(value)
    except ValueError as error:
        raise _own(f"found {_shown(value)}: {error}; allowed: {GID}") from None
    if isinstance(found, IPv6Network):
        return found
    return IPv6Network(f"::ffff:{found.network_address}/{96 + found.prefixlen}")


def _pkey(value: Any) -> Union[str, int]:
    if value == "auto" or (type(value) is int and (0 <= value <= MOST_PKEYS or FIRST_FULL <= value <= 0xFFFF)):
        return value  # type: ignore[no-any-return]
    limited = type(value) is int and MOST_PKEYS < value < FIRST_FULL
    why = ", the value of a limited member, which does not hear another one" if limited else ""
    raise _own(f"found {_shown(value)}{why}; allowed: {PKEY}")


DeviceName = Annotated[str, Field(pattern=r"^[^\s/]+$")]
PortNumber = Annotated[int, Field(ge=1, le=254)]
_NAME_SCHEMA = {"type": "string", "pattern": r"^[^\s/]+$"}
DeviceOrPlace = Annotated[
    Union[str, At],
    PlainValidator(_device),
    WithJsonSchema(
        {
            "anyOf": [
                _NAME_SCHEMA,
                {
                    "type": "object",
                    "properties": {"pci": {"type": "string", "pattern": f"^{PCI_ADDRESS}$"}, "netdev": _NAME_SCHEMA},
                    "minProperties": 1,
                    "maxProperties": 1,
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
GidWish = Annotated[
    Union[str, int, IPv6Network],
    PlainValidator(_gid),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["auto", "roce_v1", "roce_v2"]},
                {"type": "integer", "minimum": 0, "maximum": 255},
                {"type": "string", "pattern": "[.:]"},
            ]
        }
    ),
]
PkeyWish = Annotated[
    Union[str, int],
    PlainValidator(_pkey),
    WithJsonSchema({"anyOf": [{"enum": ["auto"]}, {"type": "integer", "minimum": 0, "maximum": 0xFFFF}]}),
]
# A YAML list is a tuple here; strict would refuse it.
Names = Annotated[tuple[DeviceName, ...], Field(strict=False, min_length=1)]
Devices = Annotated[tuple[DeviceOrPlace, ...], Field(strict=False, min_length=1)]
PortNumbers = Annotated[tuple[PortNumber, ...], Field(strict=False, min_length=1)]
Driver = Annotated[str, AfterValidator(_known_driver), Field(json_schema_extra={"enum": list(DRIVER_NAMES)})]
Value = Annotated[str, BeforeValidator(_value), WithJsonSchema({"type": ["string", "integer"]})]
Environment = dict[Annotated[str, AfterValidator(_variable)], Value]
"""Variables and their values, and perhaps a `name` for the set."""
# A pattern of stars alone would waive everything.
Pattern = Annotated[str, Field(pattern=r"[A-Za-z0-9]")]
ClausePatterns = Annotated[
    tuple[Annotated[Pattern, AfterValidator(_known_clauses)], ...], Field(strict=False, min_length=1)
]
CheckPatterns = Annotated[tuple[Pattern, ...], Field(strict=False, min_length=1)]
VersionRange = Annotated[str, AfterValidator(_range)]
Words = Annotated[str, BeforeValidator(_number_as_text), Field(pattern=r"\S")]
Day = Annotated[date, BeforeValidator(_day)]


class Provider(_Section):
    """One entry: the devices that it is about, by name, by driver or by both, and what they promise."""

    devices: Devices = Field(
        default=(),
        description='a list of device names and globs, such as [mlx5_0, "mlx5_bond_*"], of {pci: "0000:5e:00.0"} and '
        "of {netdev: ens1f0}; left out: any device",
    )
    except_: Devices = Field(
        default=(),
        alias="except",
        description="a list of devices that the entry leaves out, named as in `devices`; left out: none",
    )
    driver: Driver = Field(default="", description="the name of an RDMA driver, such as mlx5; left out: any driver")
    only_usable: bool = Field(
        default=False,
        description="true, if a device that cannot be opened is left out, or false, if it is BROKEN; left out: false",
    )
    at_least: int = Field(
        default=0,
        ge=0,
        description="how many devices of this entry the machine must have, from 0; left out: 0",
    )
    ports: Union[Literal["all"], PortNumbers] = Field(
        default="all", description="all, or a list of port numbers from 1 to 254"
    )
    gid: GidWish = Field(default="auto", description=GID)
    pkey: PkeyWish = Field(default="auto", description=PKEY)
    sl: int = Field(default=0, ge=0, le=15, description="a service level from 0 to 15; left out: 0")
    traffic_class: int = Field(
        default=0, ge=0, le=255, description="the traffic class of the GRH, from 0 to 255; left out: 0"
    )
    peer: Annotated[str, Field(pattern=r"^(next|[^\s/]+/[1-9][0-9]*)$")] = Field(
        default="",
        description="the port at the other end of the traffic, such as mlx5_1/1, or a glob such as mlx5_[23]/1, whose "
        "ports are the peers of the entry's, in order; or next, a ring of the entry's ports; left out: the port itself",
    )
    null_mr: Promise = Field(
        description="required (it must work), optional (it must work if it can be allocated), "
        "absent (allocation must fail with EOPNOTSUPP) or ignore (the device is left out)"
    )
    timeout: float = Field(
        default=10,
        gt=0,
        le=3600,
        description="seconds that one completion or one verbs call may take, above 0 and up to 3600",
    )
    environments: Annotated[tuple[Environment, ...], Field(strict=False, min_length=1)] = Field(
        default=({},),
        description="a list of sets of environment variables, such as {name: cqe128, MLX5_CQE_SIZE: 128}; each port is "
        "tried once with each",
    )
    simulate: int = Field(
        default=1,
        ge=1,
        le=64,
        description="with driver: reference, how many devices (ref0, ref1, ...) to simulate, 1 to 64",
    )

    @field_validator("devices", "except_", "ports")
    @classmethod
    def _names_each_once(cls, items: Any) -> Any:
        if isinstance(items, tuple) and len(set(items)) < len(items):
            twice = next(item for item in items if items.count(item) > 1)
            raise _own(f"{_shown(twice)} is listed twice; name it once")
        return items

    @field_validator("environments")
    @classmethod
    def _sets_have_ids(cls, environments: tuple[Environment, ...]) -> tuple[Environment, ...]:
        labels = [environment_label(environment) for environment in environments]
        for environment, label in zip(environments, labels):
            if "name" in environment and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", label):
                raise _own(f"the name {_shown(label)} cannot be part of a test id; use letters, digits and `_.+-`")
            if not re.fullmatch(r"[A-Za-z0-9_.,+=/-]*", label):
                raise _own(f"{_shown(label)} cannot be part of a test id; give the set a `name`")
            if labels.count(label) > 1:
                what = f"the set {_shown(label)}" if label else "the empty set"
                raise _own(f"{what} is listed twice; remove one, or give them names that differ")
        return environments

    @field_validator("at_least")
    @classmethod
    def _can_be_reached(cls, at_least: int, info: ValidationInfo) -> int:
        devices = info.data.get("devices", ())
        names = all(isinstance(name, str) and not is_glob(name) for name in devices)  # a place may have several devices
        if devices and names and at_least > len(devices):
            raise _own(f"found {at_least}, but `devices` names only {len(devices)}; name more, or lower it")
        return at_least

    @field_validator("simulate")
    @classmethod
    def _only_for_the_reference(cls, simulate: int, info: ValidationInfo) -> int:
        if info.data.get("driver") != REFERENCE:
            raise _own(f"allowed only together with `driver: {REFERENCE}`; remove it")
        return simulate

    @model_validator(mode="after")
    def _says_which_devices(self) -> "Provider":
        if not self.devices and not self.driver:
            raise _own("does not say which devices it is about; add `devices` or `driver`")
        return self


class Waiver(_Section):
    """A known failure. Everything that is given must fit."""

    clauses: ClausePatterns = Field(
        default=(),
        description="a list of clause ids and globs of them, such as [read/zeros, discard/*]; left out: any clause",
    )
    checks: CheckPatterns = Field(
        default=(),
        description="a list of parts of check names, such as [test_what_is_received, rc-send-*-srq]; `*` and `?` are "
        "wild; left out: any check",
    )
    devices: Names = Field(
        default=(),
        description='a list of device names and globs, such as [mlx5_0, "mlx5_bond_*"]; left out: any device',
    )
    driver: Driver = Field(default="", description="the name of an RDMA driver, such as mlx5; left out: any driver")
    firmware: VersionRange = Field(
        default="", description=f"firmware versions: {versions.ALLOWED}; left out: any firmware"
    )
    kernel: VersionRange = Field(default="", description=f"kernel versions: {versions.ALLOWED}; left out: any kernel")
    verdict: Literal["FAIL", "BROKEN"] = Field(
        default="FAIL",
        description="what is waived: FAIL, or BROKEN where the rig is known to be wrong on ordinary memory too; "
        "left out: FAIL",
    )
    reason: Words = Field(description="why the failure is accepted, in words")
    ticket: Words = Field(description='a link or a ticket, such as https://example.org/1234 or "#1234"')
    until: Day = Field(description="the last day on which it holds, such as 2027-01-31")

    @model_validator(mode="after")
    def _says_what_it_waives(self) -> "Waiver":
        if not self.clauses and not self.checks:
            raise _own("does not say what it waives; add `clauses` or `checks`")
        return self


class Providers(_Section):
    """The whole file."""

    providers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")], Provider] = Field(
        min_length=1,
        description="entries by a name of letters, digits, `_`, `.` and `-`; "
        "a device belongs to the first entry, from the top, that matches it",
    )
    waivers: Annotated[tuple[Waiver, ...], Field(strict=False)] = Field(
        default=(), description="a list of known failures, which do not fail the run"
    )


@dataclass(frozen=True)
class Config:
    """A valid file. `providers` keeps the order of the file; `lines` has the line (from 1) of each key."""

    path: Path
    providers: Mapping[str, Provider]
    lines: Mapping[Key, int]
    waivers: tuple[Waiver, ...] = ()

    def where(self, *key: Union[str, int]) -> str:
        """ "file:line: providers.mlx5.devices[0]", to begin a message with."""
        return _where(self.path, self.lines, key)


def load(path: Path) -> Config:
    """Read and validate a providers file. Raises ConfigError with every mistake that can be told at once."""
    reader = _Reader(path)
    content = reader.read()
    try:
        valid = Providers.model_validate(content)
    except ValidationError as error:
        # Where the reader has found no value it has said so, and better.
        errors = [each for each in error.errors() if _key(reader.lines, each) not in reader.valueless]
        reader.mistakes += _mistakes(path, reader.lines, errors)
    if reader.mistakes:
        raise ConfigError(mistake for _, mistake in sorted(reader.mistakes))
    return Config(path, valid.providers, reader.lines, valid.waivers)


def json_schema() -> str:
    """The text of providers.schema.json, by which editors check and complete a providers file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Providers.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def is_glob(name: str) -> bool:
    """True for a pattern, which may match no device; False for a name, which must be on the machine."""
    return any(character in name for character in "*?[")


def is_named(device: str, patterns: Iterable[str]) -> bool:
    """Is a device one of these names and globs? Its exact name is one, whatever it looks like: bnxt_re[1]."""
    return any(device == pattern or fnmatchcase(device, pattern) for pattern in patterns)


def environment_label(environment: Environment) -> str:
    """How ids and reports show a set of variables: its name, or "A=1,B=2"; "" for the empty set."""
    listed = ",".join(f"{variable}={value}" for variable, value in variables(environment))
    return environment.get("name", listed)


def variables(environment: Environment) -> Variables:
    """What a set of `environments` sets."""
    return tuple((variable, value) for variable, value in environment.items() if variable != "name")


class _Reader:
    """Turns YAML into plain data, noting the line of each key, and keys that plain data cannot hold twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Key, int] = {(): 1}
        self.mistakes: list[tuple[int, str]] = []  # line, text
        self.valueless: set[Key] = set()  # keys whose value could not be read
        self.yaml = YAML(typ="safe", pure=True)

    def read(self) -> Any:
        try:
            root = self.yaml.compose(self.path.read_text(encoding="utf-8"))
            return None if root is None else self._plain(root, (), ())
        except OSError as error:
            raise ConfigError([f"{self.path}: cannot be read: {error.strerror}"]) from error
        except UnicodeDecodeError as error:
            raise ConfigError([f"{self.path}: byte {error.start} is not UTF-8 text"]) from error
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark else ""
            what = ", ".join(_one_line(part) for part in (error.context, error.problem) if part)
            if "block scalar" in what:  # a version range that begins with > and is not quoted
                what += "; quote a value that begins with > or |"
            raise ConfigError([f"{self.path}{line}: not valid YAML: {what}"]) from error
        except YAMLError as error:
            raise ConfigError([f"{self.path}: not valid YAML: {_one_line(error)}"]) from error

    def _plain(self, node: Node, key: Key, within: tuple[Node, ...]) -> Any:
        if node in within:
            return self._no_value(node, key, "an alias makes this value contain itself; write it out")
        within = (*within, node)
        if isinstance(node, SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                here = (*key, index)
                self.lines[here] = item.start_mark.line + 1
                items.append(self._plain(item, here, within))
            return items
        if isinstance(node, MappingNode):
            return self._mapping(node, key, within)
        try:
            return self.yaml.constructor.construct_object(node)
        except Exception as error:  # whatever a conversion raises: for an empty !!int, an IndexError
            return self._no_value(node, key, f"not a plain value: {_one_line(getattr(error, 'problem', error))}")

    def _mapping(self, node: MappingNode, key: Key, within: tuple[Node, ...]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, ScalarNode):
                self._mistake(name_node, key, "found a list or mapping as a key; allowed: a plain name")
                continue
            name = str(name_node.value)
            here = (*key, name)
            if name in mapping:
                first = f"first on line {self.lines[here]}"
                self._mistake(name_node, here, f"found a second time, {first}; allowed: once")
                continue
            self.lines[here] = name_node.start_mark.line + 1
            mapping[name] = self._plain(value_node, here, within)
        return mapping

    def _no_value(self, node: Node, key: Key, text: str) -> None:
        self._mistake(node, key, text)
        self.valueless.add(key)

    def _mistake(self, node: Node, key: Key, text: str) -> None:
        line = node.start_mark.line + 1
        self.mistakes.append((line, f"{_where(self.path, {key: line}, key)}: {text}"))


def _mistakes(path: Path, lines: Mapping[Key, int], errors: list[ErrorDetails]) -> list[tuple[int, str]]:
    """One (line, text) for each key that is wrong."""
    wrong = [_key(lines, error) for error in errors]
    texts: dict[Key, str] = {}
    for key, error in zip(wrong, errors):
        # pydantic reports each alternative of a union: "not the literal all" says nothing next to "ports[1]".
        # And items that are wrong do not count: of [""] it says "too short" as well.
        deeper = any(len(other) > len(key) and other[: len(key)] == key for other in wrong)
        if not (error["type"] in ("literal_error", "too_short") and deeper):
            texts.setdefault(key, _text(key, error))
    return [(_line(lines, key), f"{_where(path, lines, key)}: {text}") for key, text in texts.items()]


def _key(lines: Mapping[Key, int], error: ErrorDetails) -> Key:
    """The place in the file: pydantic's location without the parts that name an alternative of a union."""
    key: Key = ()
    for part in error["loc"]:
        if (*key, part) in lines:
            key = (*key, part)
    return (*key, error["loc"][-1]) if error["type"] == "missing" else key


def _text(key: Key, error: ErrorDetails) -> str:
    """What was found at the key, and what is allowed there."""
    if error["type"] == "own":
        return error["msg"]
    found = "missing" if error["type"] == "missing" else f"found {_shown(error['input'])}"
    section = _section(key)
    if error["type"] == "model_type":
        return f"{found}; allowed: a mapping with the keys {', '.join(_keys(section))}"
    section, name = (section, str(key[2])) if len(key) > 2 else (Providers, str(key[0]))
    if error["type"] == "extra_forbidden":
        hint = _did_you_mean(name, _keys(section))
        return f"unknown key; {hint}allowed: {', '.join(_keys(section))}"
    return f"{found}; allowed: {_keys(section)[name].description}"


def _keys(section: type[_Section]) -> dict[str, FieldInfo]:
    """The keys of a section as the file writes them."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _section(key: Key) -> type[_Section]:
    """Whose keys this place is one of, or has."""
    if len(key) < 2:
        return Providers
    return Provider if key[0] == "providers" else Waiver


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}? " if close else ""


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, default=str, ensure_ascii=False)
    # JSON leaves line separators (U+2028) and the like as they are.
    text = "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)
    return text if len(text) <= 60 else text[:57] + "..."


def _line(lines: Mapping[Key, int], key: Key) -> int:
    """The line of the key, or of the nearest one above it that the file has."""
    while key not in lines:
        key = key[:-1]
    return lines[key]


def _where(path: Path, lines: Mapping[Key, int], key: Key) -> str:
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in key)
    return f"{path}:{_line(lines, key)}: {dotted.lstrip('.')}" if dotted else f"{path}:{_line(lines, key)}"


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _printable(name: str) -> str:
    return name if name.isprintable() else json.dumps(name)
