# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The results of several machines in one report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from conformance.report.document import DocumentError, Report, Run, report_of


def merge(reports: Sequence[Report], labels: Sequence[str] = ()) -> Report:
    """One report with the runs of all. `labels` are their names, one for each report (none: their host names).

    A target id that several runs have gets the run's label in front, and a label that several runs have a number
    behind. Raises DocumentError if there are labels, but not one for each report.
    """
    if labels and len(labels) != len(reports):
        raise DocumentError(f"{len(labels)} labels for {len(reports)} files; give one --label for each file, or none")
    runs = [
        replace(run, circumstances=replace(run.circumstances, label=labels[index])) if labels else run
        for index, report in enumerate(reports)
        for run in report.runs
    ]
    runs = _with_labels_apart(runs)
    owners = Counter(target for run in runs for target in _targets(run))
    return report_of(tuple(_with_targets_apart(run, {id for id, count in owners.items() if count > 1}) for run in runs))


def _targets(run: Run) -> set[str]:
    return {target.id for target in run.circumstances.targets} | {result.target for result in run.results}


def _with_labels_apart(runs: list[Run]) -> list[Run]:
    counts = Counter(run.circumstances.label for run in runs)
    taken: Counter[str] = Counter()
    renamed = []
    for run in runs:
        label = run.circumstances.label
        taken[label] += 1
        new = f"{label}-{taken[label]}" if counts[label] > 1 else label
        renamed.append(replace(run, circumstances=replace(run.circumstances, label=new)))
    return renamed


def _with_targets_apart(run: Run, clashing: set[str]) -> Run:
    about = run.circumstances

    def name(target: str) -> str:
        return f"{about.label}:{target}" if target in clashing else target

    targets = tuple(replace(target, id=name(target.id)) for target in about.targets)
    results = tuple(replace(result, target=name(result.target)) for result in run.results)
    not_run = tuple(replace(missing, target=name(missing.target)) for missing in run.not_run)
    return replace(run, circumstances=replace(about, targets=targets), results=results, not_run=not_run)
