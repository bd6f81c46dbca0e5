# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""`python -m conformance`: what would be tried on this machine, what is required, and what earlier runs found.

Exit status: 0; 1 if there is nothing to try or something that cannot be tried, or if `compare` finds a regression; 2
for a wrong option, providers file or results file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import config, inventory, native
from conformance.verbs.machine import open_machine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance", description="conformance suite for null MRs")
    parser.add_argument("--config", dest="providers", type=Path, default=config.DEFAULT_PATH, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    devices = commands.add_parser("devices", help="the targets that would be tried, and why other devices are left out")
    devices.add_argument(
        "--providers",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help=f"which devices to try, as with pytest (default: {config.DEFAULT_PATH})",
    )
    devices.add_argument("--reference", action="store_true", help="simulated devices in place of this machine's own")
    commands.add_parser("clauses", help="the requirements")
    commands.add_parser("schema", help="the JSON schema of a providers file")
    _add_report_commands(commands)
    options = parser.parse_args(arguments)
    if options.command in ("report", "merge", "compare"):
        return _reports(options)
    if options.command == "schema":
        print(config.json_schema(), end="")
        return 0
    if options.command == "results-schema":
        return _results_schema()
    if options.command == "clauses":
        return _clauses()
    try:
        return _devices(config.load(options.providers), options.reference)
    except config.ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except native.BuildError as error:
        print(error, file=sys.stderr)
        return 1


def _add_report_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    report = commands.add_parser("report", help="make the reports of a results.json anew", parents=[shared])
    report.add_argument("results", type=Path, metavar="RESULTS.json")
    report.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    report.add_argument("--junit-short", action="store_true", help="with passes and skips as numbers by clause")
    report.add_argument("--junit-per-target", action="store_true", help="as a file for each target, FILE-TARGET")
    report.add_argument("--ktap", type=Path, metavar="FILE", help="write KTAP")
    report.add_argument("--json", type=Path, metavar="FILE", help="write results.json, for use with --anonymous")
    report.add_argument("--anonymous", action="store_true", help="leave host names and addresses out")
    merge = commands.add_parser("merge", help="put the results of several machines into one file", parents=[shared])
    merge.add_argument("results", type=Path, nargs="+", metavar="RESULTS.json")
    merge.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to write")
    merge.add_argument(
        "--label", action="append", default=[], help="the name of each file's runs, in order (default: its host name)"
    )
    compare = commands.add_parser("compare", help="what changed between two runs", parents=[shared])
    compare.add_argument("old", type=Path, metavar="OLD.json")
    compare.add_argument("new", type=Path, metavar="NEW.json")
    compare.add_argument(
        "--allow-missing", action="store_true", help="a check that passed in OLD and is not in NEW is no regression"
    )
    commands.add_parser("results-schema", help="the JSON schema of a results.json")


def _reports(options: argparse.Namespace) -> int:
    from conformance.report import document

    try:
        return {"report": _report, "merge": _merge, "compare": _compare}[options.command](options)
    except document.DocumentError as error:
        print(error, file=sys.stderr)
        return 2


def _report(options: argparse.Namespace) -> int:
    from conformance.report import anonymous, document, html, junit, ktap

    if not (options.html or options.junit or options.ktap or options.json):
        raise document.DocumentError("nothing to write; add --html, --junit, --ktap or --json")
    report = document.load(options.results)
    clean = anonymous.cleaner(report) if options.anonymous else str
    if options.anonymous:
        report = anonymous.without_names(report)
    if options.html:
        _write(options.html, html.render(report, options.results.parent, clean))
    if options.junit:
        form = junit.Form(options.junit_short, options.junit_per_target)
        for name, text in junit.files(report, options.junit.name, form).items():
            _write(options.junit.with_name(name), text)
    _write(options.ktap, ktap.render(report))
    _write(options.json, document.dump(report))
    return 0


def _merge(options: argparse.Namespace) -> int:
    from conformance.report import document, html, merge

    merged = merge.merge([document.load(path) for path in options.results], options.label)
    _write(options.output, document.dump(merged))
    _write(options.html, html.render(merged))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from conformance.report import compare, document, html

    old, new = document.load(options.old), document.load(options.new)
    found = compare.compare(old, new)
    print(compare.text(found, options.allow_missing))
    names = str(options.old), str(options.new)
    _write(options.html, html.render_comparison(found, old, new, *names, options.allow_missing))
    return int(found.has_regression(options.allow_missing))


def _write(path: Path | None, text: str) -> None:
    from conformance.report import document, files

    if path is not None and (problem := files.write_text(path, text)):
        raise document.DocumentError(problem)


def _devices(providers: config.Config, reference: bool) -> int:
    machine = open_machine(providers, reference)
    found = inventory.targets(providers, machine.devices)
    if machine.simulated:
        print(f"{machine.simulated}\n")
    print(f"tried ({len(found.targets)}):")
    for target in found.targets:
        print(f"  {target.id}  {target.provider}, null MR {target.null_mr}: {_describe(target)}")
    print(f"left out ({len(found.left_out)}):")
    for name, reason in found.left_out:
        print(f"  {name}  {reason}")
    return int(not found.targets or found.usable != found.targets)


def _describe(target: inventory.AnyTarget) -> str:
    if isinstance(target, inventory.BrokenTarget):
        return f"BROKEN: {target.reason}"
    settings = f", with {target.settings}" if target.settings else ""
    return f"{target.words}{settings}"


def _results_schema() -> int:
    from conformance.report import document

    print(document.json_schema(), end="")
    return 0


def _clauses() -> int:
    from conformance.clauses import CLAUSES

    for clause in CLAUSES:
        print(f"{clause.id}  {clause.level.value}  (since {clause.since}; {clause.source})")
        print(f"    {clause.requirement}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
