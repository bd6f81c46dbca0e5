# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Which faults of the engine does the suite find through libmlx5? `python -m tests.connectx_kill [FAULT...]`

All that are about reading and discarding, if none is named. Small messages are left to the receive queue here
(MLX5_SCATTER_TO_CQE=0): what libmlx5 itself copies, no HCA can get wrong.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from conformance.reference.faults import FAULTS

from . import hca
from .kill_matrix import NEED_STRESS

PROVIDERS = """
providers:
  mlx5: {driver: mlx5, null_mr: required, environments: [{name: no-scatter, MLX5_SCATTER_TO_CQE: 0}]}
"""


def about_data() -> list[str]:
    """Names of the faults that are about what is read from a null MR and what becomes of data written to it; without
    those by which the process ends that is the device, and those that only a stress shows.
    """
    return sorted(
        name
        for name, fault in FAULTS.items()
        if fault.clause.partition("/")[0] in ("read", "discard") and not fault.ends_process and name not in NEED_STRESS
    )


def first_failure(fault: str) -> str:
    """The clause of the first check that fails; empty if none does."""
    with tempfile.TemporaryDirectory() as folder:
        providers = Path(folder) / "providers.yaml"
        providers.write_text(PROVIDERS)
        done = hca.suite(f"--providers={providers}", "-x", "-k", "read or discard", options=["--fault", fault])
    if done.returncode == 0:
        return ""
    told = [line for line in done.stdout.splitlines() if line.startswith("clause ")]
    return told[0].removeprefix("clause ").partition(":")[0] if told else "no verdict"


def main(names: list[str]) -> int:
    missed = 0
    for name in names or about_data():
        clause = first_failure(name)
        missed += not clause
        print(f"| {name} | {FAULTS[name].clause} | {clause or 'not found'} |", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
