# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Writes the reports of a run, whatever the disk says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from conformance.report import junit, ktap
from conformance.report.anonymous import cleaner, without_names
from conformance.report.document import Report, dump


def write(
    report: Report, folder: Path | None, ktap_file: Path | None, anonymize: bool, form: junit.Form = junit.WHOLE
) -> list[str]:
    """Write JUnit XML, results.json and report.html into a folder, and KTAP to a file, each only if wanted.

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
        texts |= {folder / name: text for name, text in junit.files(report, form=form).items()}
        texts[folder / "report.html"] = html.render(report, folder, clean)
    if ktap_file is not None:
        texts[ktap_file] = ktap.render(report)
    problems += [write_text(path, text) for path, text in texts.items()]
    if folder is not None:
        problems += [_remove(path) for path in junit.left_over(folder) - texts.keys()]
    return [problem for problem in problems if problem]


def _clean_file(path: Path, clean: Callable[[str], str]) -> str:
    """Clean a file in place. Returns what went wrong, or ""."""
    try:
        return write_text(path, clean(path.read_text(encoding="utf-8")))
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"


def _remove(path: Path) -> str:
    """Returns what went wrong, or ""."""
    try:
        path.unlink()
    except OSError as error:
        return f"{path}: is of an earlier run and cannot be removed: {error.strerror}"
    return ""


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
