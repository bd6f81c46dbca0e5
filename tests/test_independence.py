# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks share links and memory, and yet no verdict depends on what ran before."""

from __future__ import annotations

import pytest

from tests.suite import run_suite


def verdicts(*arguments: str) -> dict[str, str]:
    # bypass/no-slower measures, so its verdict may differ between any two runs.
    run = run_suite("--reference", "--search-seed=1", "--search=50", "-k", "not bypass", *arguments)
    return {case.name: case.verdict for case in run.cases}


@pytest.mark.parametrize("fault", [None, "srq-leak-32", "wrong-opcode"])
def test_another_order_gives_the_same_verdicts(fault: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [f"--reference-fault={fault}"] if fault else []
    in_order = verdicts(*arguments)
    monkeypatch.setenv("SHUFFLE_SEED", "1")
    assert verdicts("-p", "tests.shuffle", *arguments) == in_order
    assert len(in_order) > 2000
