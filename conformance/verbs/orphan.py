# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A process that allocates null MRs and dies with them: `python -m conformance.verbs.orphan DEVICE COUNT [SIMULATED]`.

It prints its process id when it has them, and exits without freeing anything. SIMULATED is the number of reference
devices to load first.
"""

import os
import subprocess
import sys
from pathlib import Path

import conformance
from conformance.verbs import machine, shim

ROOT = Path(conformance.__file__).parents[1]


def run(device: str, count: int) -> subprocess.CompletedProcess[str]:
    """Let such a process live and die, with as many simulated devices as this one has. It prints 0 if it did not get
    all null MRs."""
    simulated = machine.simulated_devices()
    command = [sys.executable, "-m", "conformance.verbs.orphan", device, str(count)]
    command += [str(simulated)] if simulated else []
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def main(device: str, count: int, simulated: int) -> None:
    shim.load()
    if simulated:
        machine.load_reference(simulated)
    from pyverbs.device import Context
    from pyverbs.pd import PD

    from conformance.verbs.null_mr import NullMR

    pd = PD(Context(name=device))
    null_mrs = [NullMR(pd) for _ in range(count)]
    print(os.getpid() if len(null_mrs) == count else 0, flush=True)
    os._exit(0)  # no destructor frees anything


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
