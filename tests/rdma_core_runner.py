# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs rdma-core's own pyverbs tests on the reference device, or on the HCAs of connectx where that runs it; prints the
results as JSON. A program of its own: those tests are written for unittest and take the process for theirs.

Arguments: the folder that has their package `tests`, and patterns of module.Class.test to leave out.
"""

import gc
import json
import os
import random
import re
import sys
import unittest
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from conformance import reference


class Outcomes(unittest.TestResult):
    """{test: [outcome, detail]} by `module.Class.test`."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, tuple[str, str]] = {}

    def _add(self, test: unittest.TestCase, outcome: str, detail: str) -> None:
        self.outcomes[test.id().removeprefix("tests.")] = (outcome, detail)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        self._add(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure


def rdma_core_version() -> str:
    """That of the libibverbs in this process, by its file's name; empty if that does not tell."""
    found = re.search(r"/libibverbs\.so\.\d+\.\d+\.(\d+)\.\d+$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return found[1] if found else ""


def each(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def main(folder: Path, left_out: list[str]) -> None:
    if "CONNECTX_ROOT" not in os.environ:  # with it, the simulated HCAs are there already
        reference.load(devices=2)
    sys.path[:0] = [str(folder), str(folder / "tests")]
    sys.argv[1:] = []
    from args_parser import parser  # type: ignore[import-not-found]

    parser.parse_args()
    gc.disable()  # it closes what a test leaves in any order, and pyverbs 56 does not survive a context before its CQ
    random.seed(1)  # the tests choose lengths, flags and ports at random
    names = sorted(f"tests.{file.stem}" for file in (folder / "tests").glob("test_*.py"))
    outcomes = Outcomes()
    for test in each(unittest.defaultTestLoader.loadTestsFromNames(names)):
        if any(fnmatchcase(test.id().removeprefix("tests."), pattern) for pattern in left_out):
            outcomes.addSkip(test, "left out")
        else:
            test.run(outcomes)
    found = {"outcomes": outcomes.outcomes, "errors": reference.errors(), "version": rdma_core_version()}
    json.dump(found, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # the interpreter's end closes what is left in any order, too


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
