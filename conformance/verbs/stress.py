# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A process in which a C program drives the device: `python -m conformance.verbs.stress LIBRARY SIMULATED ARGUMENTS`.

The program is a shared object there, so that it runs on the libibverbs that pyverbs brings with it, or on the reference
device of that process, as all else does.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import conformance
from conformance import crash, native, reference
from conformance.verbs import machine
from conformance.watch import watch

ROOT = Path(conformance.__file__).parents[1]
MARGIN = 60
"""Seconds for the compiler and the process itself, beyond what the program takes."""
UNUSABLE = 70
"""Exit status of a process that could not run the program, or whose reference device failed: EX_SOFTWARE."""
_MAIN = "null_mr_stress"


@dataclass(frozen=True)
class Ended:
    """How the program ended: its exit status (None if the process died), what it printed, and its death in words;
    `hung`: it did not come to its end.
    """

    status: int | None
    output: str
    death: str = ""
    hung: bool = False


def run(text: str, arguments: Sequence[str], longest: float) -> Ended:
    """Let a process of its own run a C program, compiled if the cache has none, on the devices that this one has.

    `longest`: seconds after which the program ends itself by SIGALRM. Raises RuntimeError (native.BuildError is one) if
    it cannot be run.
    """
    with watch.over(longest + 2 * MARGIN):  # the watch is else for one call of a provider
        source = f"#define main {_MAIN}\n{text}"
        library = native.built(_MAIN, f"int {_MAIN}(int, char **);", source, ["ibverbs"], ("-O2", "-pthread"))
        code, output, errors = _process([str(library), json.dumps(machine.simulated()), *arguments], longest + MARGIN)
    if code == UNUSABLE:
        raise RuntimeError(errors)
    if code < 0:
        ours = itertools.takewhile(lambda line: f"({_MAIN}+" not in line, errors.splitlines())
        return Ended(None, output, "\n".join((_death(code), *ours)), hung=-code in (signal.SIGALRM, signal.SIGKILL))
    return Ended(code, output)


def _process(arguments: Sequence[str], timeout: float) -> tuple[int, str, str]:
    """Its exit status (negative for a signal), its output and its errors."""
    environment = {
        **os.environ,
        native.BUILD_DIR_VARIABLE: str(native.build_dir()),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "conformance.verbs.stress", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    return process.returncode, output, errors


def _death(code: int) -> str:
    name = signal.Signals(-code).name
    if -code in (signal.SIGALRM, signal.SIGKILL):
        return f"the process did not end in time; it was ended ({name})"
    return f"the process died of {name}"


def main(library: str, simulated: str, *arguments: str) -> int:
    """Run the program; its exit status."""
    devices = json.loads(simulated)
    if devices:
        machine.load_reference(*devices)
    else:
        machine.require_pyverbs()  # and with it the libibverbs that it needs
    crash.tell(sys.stderr.fileno())
    argv = [b"stress", *(argument.encode() for argument in arguments)]
    status = int(getattr(ctypes.CDLL(library), _MAIN)(len(argv), (ctypes.c_char_p * (len(argv) + 1))(*argv, None)))
    ctypes.CDLL(None).fflush(None)
    if wrong := reference.errors():
        raise RuntimeError("an exception inside the reference device:\n" + "\n".join(map(str, wrong)))
    return status


if __name__ == "__main__":
    try:
        ended = main(*sys.argv[1:])
    except Exception:
        traceback.print_exc()
        ended = UNUSABLE
    sys.stderr.flush()
    os._exit(ended)  # what destructors do is not asked here
