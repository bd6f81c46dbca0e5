# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a run says at its beginning and at its end."""

import pytest

from conformance import __version__
from conformance.inventory import AnyTarget, BrokenTarget, Target
from conformance.report import terminal
from conformance.results import decided_nothing
from conformance.session.recorder import not_run_of, recorder_of, review_of
from conformance.session.run import inventory_of, is_open, machine_of, runs_checks

CONTROL = (
    "--control: ordinary memory in place of every null MR; this tries the suite's model on the device, "
    "and says of its null MRs only whether they can be had"
)


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not runs_checks(config):
        return []
    found = inventory_of(config)
    lines = [f"null MR conformance {__version__}, {config.option.providers}", *_notes(config)]
    lines += [f"target {target.id}: {_words(target)}" for target in found.targets]
    option = config.option
    tried = f"{option.search} scenarios each, {option.sequences} sequences"
    lines.append(f"random search: {tried}, --search-seed={option.search_seed}")
    lines += [f"left out {name}: {reason}" for name, reason in found.left_out]
    return lines


def _notes(config: pytest.Config) -> list[str]:
    """What makes this run another one than people may think."""
    notes = [machine_of(config).simulated, CONTROL if config.option.control else ""]
    return [f"NOTE: {note}" for note in notes if note]


def _words(target: AnyTarget) -> str:
    words = [target.device.driver, f"firmware {target.device.fw_ver}"]
    words += [target.route] if isinstance(target, Target) else []
    words += [f"peer {target.peer.end}: {target.peer.words}"] if isinstance(target, Target) and target.peer else []
    words += [f"null MR {target.null_mr}", *([f"with {target.settings}"] if target.settings else [])]
    words += [f"BROKEN: {target.reason}"] if isinstance(target, BrokenTarget) else []
    return ", ".join(words)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    recorder = recorder_of(config)
    for problem in recorder.unwritten:
        terminalreporter.line(f"ERROR: {problem}; the verdict stands, but this report is missing", red=True)
    not_run = not_run_of(config) if is_open(config) and not config.option.collectonly else ()
    if not recorder.results and not not_run:
        return
    terminalreporter.section("null MR conformance")
    for line in (
        *_notes(config),
        *terminal.skip_reasons(recorder.results),
        *terminal.observations(recorder.results),
        *terminal.rates(recorder.results),
        *terminal.waivers(review_of(config)),
    ):
        terminalreporter.line(line)
    terminalreporter.line("")
    terminalreporter.line(terminal.table(recorder.results))
    for line in terminal.mostly_skipped(recorder.results):
        terminalreporter.line(line)
    for missing in not_run:
        terminalreporter.line(f"NOT RUN {missing}", red=True)
    if decided_nothing(recorder.results):
        terminalreporter.line("No check came to a verdict on any device: this run says nothing, and is not green.")
