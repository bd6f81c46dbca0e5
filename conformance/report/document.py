# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""results.json: everything that a run found and under which circumstances, as data.

The other reports are made from it. `results.schema.json` beside this file is its published JSON schema; VERSION goes up
whenever a reader of the old one would be wrong.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional

from pydantic import ConfigDict, TypeAdapter, ValidationError

from conformance.results import Result
from conformance.verdicts import Verdict

FORMAT = "null-mr-conformance"
VERSION = 1
SCHEMA_PATH = Path(__file__).resolve().parent / "results.schema.json"

_STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class DocumentError(ValueError):
    """A file that is no results.json which this suite can read; the text names it and the way out."""


@dataclass(frozen=True)
class Library:
    """A shared object or package that took part."""

    __pydantic_config__ = _STRICT

    name: str
    """libibverbs, pyverbs, or the provider library's own name"""
    path: str
    """the file, with symbolic links followed: its name ends with the library's own version"""
    package: str
    """name and version of the distribution's package; empty if no package owns the file"""
    build_id: str = ""
    """the GNU build id, or "sha256:" and the file's digest where it has none: tells a library that was built anew under
    the same version. Of pyverbs, a digest of those of its modules"""


@dataclass(frozen=True)
class Machine:
    """One host, as far as it can bear on a verdict."""

    __pydantic_config__ = _STRICT

    host: str
    """host name; empty if it was left out"""
    system: str
    """the distribution, as /etc/os-release names it"""
    kernel: str
    """release and architecture"""
    taint_before: str
    """/proc/sys/kernel/tainted in numbers and letters when the run began; "0" is an untainted kernel"""
    taint_after: str
    """the same when it ended"""
    python: str
    memlock: str
    """RLIMIT_MEMLOCK, soft/hard, in bytes or "unlimited" """
    variables: dict[str, str]
    """the environment variables that verbs, its providers and the suite read"""
    libraries: tuple[Library, ...]


@dataclass(frozen=True)
class TargetFacts:
    """One target. Where the kernel or the device does not tell something, the text is empty."""

    __pydantic_config__ = _STRICT

    id: str
    provider: str
    """its entry in providers.yaml"""
    null_mr: str
    """what the entry promises: required, optional or absent"""
    device: str
    port: int
    link_layer: str
    port_state: str
    mtu: int
    """active MTU in bytes"""
    lid: int
    gid_index: Optional[int]
    """null: addressed by LID, or not at all"""
    gid: str
    gid_type: str
    vendor_id: int
    vendor_part_id: int
    board_id: str
    firmware: str
    pci_address: str
    function: str
    """PF, VF, or empty for a device that is no PCI function"""
    netdev: str
    bond: str
    """the bond that the netdev belongs to or is"""
    driver: str
    driver_version: str
    """kernel module and its version, or srcversion if it has none"""
    simulated: bool
    broken: str
    """why nothing could be tried on it"""
    variables: dict[str, str]
    """environment variables that its entry sets for it"""
    pkey: str = ""
    """the P_Key and its index, as text; empty where the port tells of none"""
    sl: int = 0
    traffic_class: int = 0
    peer: str = ""
    """the port at the other end of its traffic, and what that is; empty: itself"""


@dataclass(frozen=True)
class LeftOut:
    __pydantic_config__ = _STRICT

    name: str
    """device or device/port"""
    reason: str


@dataclass(frozen=True)
class Circumstances:
    """Where, with what and how a run was done."""

    __pydantic_config__ = _STRICT

    label: str
    """what the run is called where several are shown: the host name unless another was chosen"""
    suite: str
    """the suite's version"""
    commit: str
    """its commit, with "-dirty" after it if files were changed; empty outside of a git checkout"""
    started: str
    """ISO 8601, UTC"""
    arguments: tuple[str, ...]
    """of pytest"""
    seed: Optional[int]
    """of the random search"""
    simulated: str
    """why the reference device stood in; empty for real devices"""
    machine: Machine
    targets: tuple[TargetFacts, ...]
    left_out: tuple[LeftOut, ...]
    waivers: tuple[str, ...]
    """known failures that providers.yaml lists, in words"""


@dataclass(frozen=True)
class NotRun:
    """Checks that were collected and came to no verdict, because the run ended early."""

    __pydantic_config__ = _STRICT

    target: str
    checks: int
    """how many"""

    def __str__(self) -> str:
        return f"{self.target}: {self.checks} checks were not run, because the run ended early"


@dataclass(frozen=True)
class Run:
    """What one host found."""

    __pydantic_config__ = _STRICT

    circumstances: Circumstances
    seconds: float
    """from the start of pytest until the report was written"""
    exit_status: int
    """pytest's; 0 is green"""
    interrupted: bool
    """the run was stopped before its end: checks are missing"""
    results: tuple[Result, ...]
    not_run: tuple[NotRun, ...] = ()
    """what is missing, by target"""

    @property
    def all_results(self) -> Iterator[Result]:
        """For reports that have no other place for it: with a BROKEN that stands for a target's missing checks."""
        yield from self.results
        for missing in self.not_run:
            yield Result("::checks that were not run", "", missing.target, Verdict.BROKEN, f"=> {missing}")


@dataclass(frozen=True)
class Report:
    """The whole file; several runs after `python -m conformance merge` or a run on several hosts."""

    __pydantic_config__ = _STRICT

    format: Literal["null-mr-conformance"]
    version: Literal[1]
    runs: tuple[Run, ...]

    @property
    def results(self) -> Iterator[Result]:
        for run in self.runs:
            yield from run.results

    @property
    def targets(self) -> Iterator[TargetFacts]:
        for run in self.runs:
            yield from run.circumstances.targets


_REPORT = TypeAdapter(Report)
CIRCUMSTANCES = TypeAdapter(Circumstances)


def report_of(runs: tuple[Run, ...]) -> Report:
    return Report("null-mr-conformance", 1, runs)


def dump(report: Report) -> str:
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def parse(text: str) -> Report:
    """The report of a JSON text that `dump` made."""
    return _REPORT.validate_json(text)


def load(path: Path) -> Report:
    """Read a results.json. Raises DocumentError for a file that cannot be read, is none or is of another version."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: byte {error.start} is not UTF-8 text; is it a results.json?") from error
    except json.JSONDecodeError as error:
        cut = "; was it cut off while it was written or copied?" if error.pos >= len(text.rstrip()) else ""
        raise DocumentError(f"{path}:{error.lineno}: not valid JSON: {error.msg}{cut}") from error
    _check_kind(path, content)
    try:
        return _REPORT.validate_json(text)
    except ValidationError as error:
        first, *more = error.errors()
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        others = f" (and {len(more)} more)" if more else ""
        raise DocumentError(
            f"{path}: {key}: {first['msg']}{others}; it differs from {SCHEMA_PATH.name}: was it edited by hand?"
        ) from error


def _check_kind(path: Path, content: object) -> None:
    """Tell a foreign or a differently versioned file from one that is merely wrong."""
    found = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or found != FORMAT:
        what = f"its format is {found!r}" if found else "it has no key `format`"
        raise DocumentError(f"{path}: no results of this suite: {what}, not {FORMAT!r}; give a results.json")
    version = content.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        way_out = "use the suite that wrote it, or a newer one" if newer else "run the suite again"
        raise DocumentError(f"{path}: format version {version!r}, but this suite reads version {VERSION}; {way_out}")


def json_schema() -> str:
    """The text of results.schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_REPORT.json_schema(mode="serialization")}
    return json.dumps(schema, indent=2) + "\n"
