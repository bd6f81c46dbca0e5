# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How many scenarios a second one worker runs on the reference device, and where the time goes.

    python -m benchmarks.scenario_rate

Every figure is from this one run. The parts are measured by running the same scenarios with less and less around them:
pytest with the checks; the bench alone; its posting and polling alone; and the reference device's share of that from a
profile of its callbacks.
"""

import cProfile
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from conformance import config, inventory
from conformance.verbs.machine import open_machine

ROOT = Path(__file__).parent.parent
REPEAT = 3


def main() -> None:
    machine = open_machine(config.load(config.DEFAULT_PATH), reference=True)
    target = inventory.targets(config.load(config.DEFAULT_PATH), machine.devices).usable[0]
    from conformance.capabilities import capabilities
    from conformance.judging import Bench
    from conformance.matrix import matrix
    from conformance.model import predict
    from conformance.scenarios import plan

    scenarios = matrix(capabilities(target))
    bench = Bench(target)
    for scenario in scenarios:  # links and controls are made here
        bench.check(scenario)

    start = time.perf_counter()
    for _ in range(REPEAT):
        for scenario in scenarios:
            bench.check(scenario)
    checked = (time.perf_counter() - start) / REPEAT

    start = time.perf_counter()
    for _ in range(REPEAT):
        for scenario in scenarios:
            predict(scenario, plan(scenario), sys.byteorder)
    modelled = (time.perf_counter() - start) / REPEAT

    profile = cProfile.Profile()
    profile.enable()
    for scenario in scenarios:
        bench.check(scenario)
    profile.disable()
    in_device, total = _device_share(profile)

    start = time.perf_counter()
    cases = _pytest()
    pytest_seconds = time.perf_counter() - start

    count = len(scenarios)
    print(f"{count} scenarios of the matrix")
    print(f"bench.check alone:        {count / checked:6.0f} scenarios/s  {checked / count * 1e6:6.0f} us each")
    print(f"  of which the model:     {modelled / checked:6.1%}")
    print(f"  of which the reference: {in_device / total:6.1%} (of a profiled run)")
    print(f"  the rest, pyverbs and the executor: {1 - modelled / checked - in_device / total:6.1%}")
    print(f"pytest, all checks:       {cases / pytest_seconds:6.0f} checks/s     {pytest_seconds:.2f} s for {cases}")
    share = checked / count * cases / pytest_seconds
    print(f"  bench.check is {share:.0%} of that; the rest is pytest, its start and the checks without scenarios")


def _device_share(profile: cProfile.Profile) -> tuple[float, float]:
    """Seconds inside the reference device's entry points, and in all."""
    stats = pstats.Stats(profile)
    total = stats.total_tt  # type: ignore[attr-defined]
    entry = 0.0
    for (file, _, name), (_, _, _, cumulative, _) in stats.stats.items():  # type: ignore[attr-defined]
        if name == "locked" and file.endswith("libibverbs/calls.py"):
            entry += cumulative
    return entry, total


def _pytest() -> int:
    """Run all checks in one process; how many there were."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder, "junit.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "--reference", f"--junitxml={junit}"]
        subprocess.run([*command, "conformance/checks"], cwd=ROOT, capture_output=True, check=True)
        return len(list(ElementTree.parse(junit).iter("testcase")))


if __name__ == "__main__":
    main()
