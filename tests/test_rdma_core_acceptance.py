# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""rdma-core's own pyverbs tests are the acceptance test of the reference device."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

HERE = Path(__file__).parent
# Where the distributions put them: Debian, Ubuntu; Fedora, RHEL, SUSE.
SHIPPED = ("rdma-core/tests", "python3-pyverbs/tests", "rdma-core-*/tests", "packages/rdma-core/tests")
DOCUMENTS = Path("/usr/share/doc")
LISTED = ("44", "56", "59")
"""The versions of rdma-core whose skips are listed. Each version has other tests."""
SKIPS: list[dict[str, Any]] = YAML(typ="safe").load(HERE / "rdma_core_skips.yaml")


def shipped_with(pyverbs: Path) -> Path | None:
    """The folder of rdma-core's tests that go with a pyverbs: those of its distribution or of its source tree.

    They use what pyverbs of the same version has.
    """
    folders = [pyverbs.parents[2] / "tests"]  # where pyverbs is SOURCE/build/python/pyverbs
    if pyverbs.is_relative_to("/usr"):
        folders = sorted(folder for shipped in SHIPPED for folder in DOCUMENTS.glob(shipped))
    return next((folder for folder in folders if any(folder.glob("args_parser.py*"))), None)


def unpack(folder: Path) -> Path:
    """Put the tests that go with the pyverbs in use into folder/tests; skips if there are none. Returns a folder of
    programs that have to come first in PATH.
    """
    found = find_spec("pyverbs")
    assert found is not None
    assert found.origin is not None
    pyverbs = Path(found.origin).parent
    shipped = shipped_with(pyverbs)
    if shipped is None:
        pytest.skip(f"rdma-core's tests that go with {pyverbs} are not here: neither packaged nor in a source tree")
    (folder / "tests").mkdir()
    for file in shipped.iterdir():
        if file.suffix == ".gz":
            (folder / "tests" / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        elif file.suffix == ".py":
            shutil.copy(file, folder / "tests")
    # They ask the rdma tool for network interfaces; the kernel does not know the simulated devices.
    rdma = folder / "bin" / "rdma"
    rdma.parent.mkdir()
    rdma.write_text("#!/bin/sh\necho '[]'\n")
    rdma.chmod(0o755)
    return rdma.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rdma_core")
    programs = unpack(folder)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(programs), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", ""))),
    }
    left_out = [pattern for skip in SKIPS if skip.get("leave_out") for pattern in skip["tests"]]
    command = [sys.executable, str(HERE / "rdma_core_runner.py"), str(folder), *left_out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def with_outcome(run: dict[str, Any], outcome: str) -> dict[str, str]:
    return {test: detail for test, (found, detail) in run["outcomes"].items() if found == outcome}


def test_no_test_of_rdma_core_fails(run: dict[str, Any]) -> None:
    assert not with_outcome(run, "failed")


def test_a_hundred_tests_of_rdma_core_pass(run: dict[str, Any]) -> None:
    assert len(with_outcome(run, "passed")) >= 100


def test_nothing_goes_wrong_inside_the_reference_device(run: dict[str, Any]) -> None:
    assert not run["errors"]


def require_listed(run: dict[str, Any]) -> None:
    if run["version"] not in LISTED:
        pytest.skip(f"the skips of rdma-core {run['version']} are not listed, but those of {', '.join(LISTED)}")


def test_every_skip_is_listed_with_its_reason(run: dict[str, Any]) -> None:
    require_listed(run)
    patterns = [pattern for skip in SKIPS for pattern in skip["tests"]]
    unlisted = {
        test: reason
        for test, reason in with_outcome(run, "skipped").items()
        if not any(fnmatchcase(test, pattern) for pattern in patterns)
    }
    assert not unlisted, "list them in tests/rdma_core_skips.yaml, or make them pass"


def test_no_listed_skip_is_stale(run: dict[str, Any]) -> None:
    require_listed(run)
    skipped, passed = with_outcome(run, "skipped"), with_outcome(run, "passed")
    stale = [
        pattern
        for skip in SKIPS
        if not skip.get("varies")
        for pattern in skip["tests"]
        if any(fnmatchcase(test, pattern) for test in passed) or not any(fnmatchcase(test, pattern) for test in skipped)
    ]
    assert not stale, "tests/rdma_core_skips.yaml lists patterns of which tests pass, or that match no test"
