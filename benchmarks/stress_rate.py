# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How many work requests a second a stress makes on a device, and its C program alone, in one sitting.

    MLX5_SCATTER_TO_CQE=0 python -m connectx -- python -m benchmarks.stress_rate mlx5_0

The two take turns. The program alone is what a failure would leave, compiled and run without Python; the suite runs the
same as a shared object in a process of its own. `ordinary` has memory in place of the null MRs.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from conformance.load import KINDS, PAIRS, THREADS, Load
from conformance.report import stress_program
from conformance.report.reproducer import Where
from conformance.verbs import stress

ROUNDS, TIMEOUT = 3, 30


def rate(output: str) -> int:
    """Work requests a second, from what the program printed. Raises ValueError if something was wrong."""
    told = output.splitlines()[-1] if output else ""
    if not told.startswith('{"status": 0'):
        raise ValueError(output)
    return int(json.loads(told)["rate"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress_rate", description=__doc__)
    parser.add_argument("device", help="its first port, by GID 0 or LID")
    parser.add_argument("--seconds", type=int, default=5, help="of each run (%(default)s)")
    option = parser.parse_args()
    load = Load(KINDS, 1, THREADS, PAIRS)
    where = Where(option.device, 1, None, TIMEOUT)
    arguments = (*load.arguments, f"--seconds={option.seconds}")
    found: dict[str, list[int]] = {"alone": [], "by the suite": [], "alone, ordinary": []}
    with tempfile.TemporaryDirectory() as folder:
        source = stress_program.write(Path(folder), load, where)
        program = source.with_suffix("")
        subprocess.run(["cc", "-O2", "-pthread", source, "-o", program, "-libverbs"], check=True)
        for _ in range(ROUNDS):
            for name, more in (("alone", []), ("alone, ordinary", ["--ordinary"])):
                done = subprocess.run([program, *arguments, *more], capture_output=True, text=True, check=False)
                found[name].append(rate(done.stdout))
            longest = stress_program.longest(option.seconds, TIMEOUT)
            found["by the suite"].append(rate(stress.run(source.read_text(), arguments, longest).output))
    of = {name: statistics.median(rates) for name, rates in found.items()}
    for name, rates in found.items():
        print(f"{name}: {', '.join(map(str, rates))} work requests/s; median {of[name]:.0f}")
    print(f"by the suite / alone: {of['by the suite'] / of['alone']:.2f}")


if __name__ == "__main__":
    main()
