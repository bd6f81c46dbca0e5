# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Gathers the circumstances of a run and writes its reports, whatever the disk says."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from conformance.report import junit, ktap
from conformance.report.anonymous import cleaner, without_names
from conformance.report.document import CIRCUMSTANCES, Circumstances, Report, Run, dump, report_of
from conformance.report.provenance import taint
from conformance.report.results import Result, Results, host_of

HAND_OVER = "null_mr_circumstances"
"""Key of what the controller asks of a worker on another host, and of what that sends."""


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Recorder:
    """Made when pytest starts; registered with pytest, it takes what workers on other hosts hand over."""

    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    clock: float = field(default_factory=time.monotonic)
    taint_before: str = field(default_factory=taint)
    hosts: dict[str, Circumstances] = field(default_factory=dict)

    @property
    def started_at(self) -> str:
        return self.started.isoformat(timespec="seconds")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """What a worker on this host knows the controller knows itself."""
        node.workerinput[HAND_OVER] = not node.gateway.spec.popen

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        handed_over = getattr(node, "workeroutput", {}).get(HAND_OVER)
        if handed_over:
            host = host_of(node.gateway.spec)
            known = CIRCUMSTANCES.validate_json(handed_over)
            targets = tuple(replace(target, id=f"{host}:{target.id}") for target in known.targets)
            self.hosts[host] = replace(known, label=host, targets=targets)

    def report(self, here: Circumstances, gathered: Results, exit_status: int, stopped: bool) -> Report:
        """All results, those of other hosts in runs of their own. `stopped`: by -x or its like."""
        seconds = round(time.monotonic() - self.clock, 2)
        interrupted = stopped or exit_status in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        by_host: dict[str, list[Result]] = {"": [], **{host: [] for host in self.hosts}}
        for result in gathered.results:
            host = result.target.rpartition(":")[0]
            by_host[host if host in self.hosts else ""].append(result)
        if self.hosts and not by_host[""]:
            del by_host[""]
        runs = (
            Run(self.hosts.get(host, here), seconds, exit_status, interrupted, tuple(results))
            for host, results in by_host.items()
        )
        return report_of(tuple(runs))


def write(report: Report, folder: Path | None, ktap_file: Path | None, anonymize: bool) -> list[str]:
    """Write junit.xml, results.json and report.html into a folder, and KTAP to a file, each only if wanted.

    Returns what could not be written and why, a line each; one file that fails does not keep another from being tried.
    """
    clean = cleaner(report) if anonymize else str
    problems = []
    if anonymize:
        programs = dict.fromkeys(result.reproducer for result in report.results if result.reproducer)
        problems += [_clean_file(Path(program), clean) for program in programs]
        report = without_names(report)
    texts: dict[Path, str] = {}
    if folder is not None:
        from conformance.report import html  # workers write no pages, and it takes long to import

        texts[folder / "results.json"] = dump(report)
        texts[folder / "junit.xml"] = junit.render(report)
        texts[folder / "report.html"] = html.render(report, folder, clean)
    if ktap_file is not None:
        texts[ktap_file] = ktap.render(report)
    problems += [write_text(path, text) for path, text in texts.items()]
    return [problem for problem in problems if problem]


def _clean_file(path: Path, clean: Callable[[str], str]) -> str:
    """Clean a file in place. Returns what went wrong, or ""."""
    try:
        return write_text(path, clean(path.read_text(encoding="utf-8")))
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"


def write_text(path: Path, text: str) -> str:
    """Write a file whole or not at all: an old one stays if there is no room. Returns what went wrong, or ""."""
    draft = Path(f"{path}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):  # it may be that it could not even be made
            draft.unlink(missing_ok=True)
        what = f"{error.filename}: " if error.filename not in (None, str(draft)) else ""
        return f"{path}: cannot be written: {what}{error.strerror}"
    return ""
