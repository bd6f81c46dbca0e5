# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A process that forks while it has null MRs: `python -m conformance.verbs.forked [SIMULATED]`, the target pickled on
its stdin. What it sees is printed, a line for each child.

In a process of its own, because what a child does, or that there was one, may spoil the traffic of the process.
SIMULATED is the number of reference devices to load first.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import conformance
from conformance.inventory import Target
from conformance.scenarios import Operation, Scenario, Transport, mem, null
from conformance.verbs import machine, shim

if TYPE_CHECKING:
    from conformance.outcome import Run

ROOT = Path(conformance.__file__).parents[1]
TIMEOUT = 60
"""Seconds; the whole takes less than one of processor time."""
BOTH_WAYS = Scenario(Transport.RC, Operation.SEND, (mem(8), null(64)), (null(64), mem(8)))
CHILDREN = ("does nothing", "frees it")


def run(target: Target) -> str:
    """What is seen in the process, in words."""
    command = [sys.executable, "-m", "conformance.verbs.forked"]
    told = pickle.dumps((target, machine.simulated()))
    try:
        done = subprocess.run(command, cwd=ROOT, input=told, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"the process does not end within {TIMEOUT} s"
    if done.returncode:
        error = done.stderr.decode(errors="replace").strip().splitlines()
        return f"the process ends with status {done.returncode}: {error[-1] if error else 'no message'}"
    return "; ".join(done.stdout.decode().splitlines())


def _ending(run: Run) -> str:
    return run.findings[0].text if run.findings else "it works on"


def main() -> None:
    target, simulated = pickle.load(sys.stdin.buffer)
    shim.load()
    if simulated:
        machine.load_reference(*simulated)
    from conformance.verbs.closing import close
    from conformance.verbs.null_mr import NullMR
    from conformance.verbs.pair import Pair

    pair = Pair(target)
    for does in CHILDREN:
        null_mr = NullMR(pair.pd)
        pair.run(BOTH_WAYS, lkey=null_mr.lkey)
        child = os.fork()
        if not child:
            os._exit(bool(does == CHILDREN[1] and close(null_mr)))  # no destructor frees anything
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        how = {0: "", 1: ", and is refused"}.get(status, f", and ends with status {status}")
        print(f"a child of fork() {does}{how}: in the parent, {_ending(pair.run(BOTH_WAYS, lkey=null_mr.lkey))}")
        close(null_mr)
    pair.close()


if __name__ == "__main__":
    main()
