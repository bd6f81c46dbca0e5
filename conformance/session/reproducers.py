# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A C program is left for each failure that a work request, a sequence of steps or a stress shows by itself."""

from __future__ import annotations

import pytest

from conformance.load import Load
from conformance.scenarios import Scenario
from conformance.sequences import Sequence
from conformance.session.properties import CLAUSE, REPRODUCER, TARGET, properties_of
from conformance.session.run import inventory_of


def leave_reproducer(
    report: pytest.TestReport, config: pytest.Config, traffic: Scenario | Sequence | Load, finding: str
) -> None:
    """Write a C program that shows what a check found, if this run has reports, and say on the check's where."""
    if not config.option.reports:
        return
    # Few runs need them, and they take long to import.
    from conformance.report import reproducer, sequence_program, stress_program

    properties = properties_of(report)
    target = next(target for target in inventory_of(config).usable if target.id == properties[TARGET])
    if target.peer is not None:
        report.sections.append(("C reproducer", "none: they have both ends of the traffic on one port"))
        return
    where = reproducer.where(target)
    try:
        folder = config.option.reports / "reproducers"
        if isinstance(traffic, Load):
            path = stress_program.write(folder, traffic, where, properties[CLAUSE], finding)
        elif isinstance(traffic, Sequence):
            path = sequence_program.write(folder, traffic, where, properties[CLAUSE], finding)
        else:
            path = reproducer.write(folder, traffic, where, properties[CLAUSE], finding)
    except OSError as error:
        report.sections.append(("C reproducer", f"not written: {error}"))
        return
    report.user_properties.append((REPRODUCER, str(path)))
    report.sections.append(("C reproducer", str(path)))
