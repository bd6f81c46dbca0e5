# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""rdma-core's own pyverbs tests, as packaged, on libmlx5 and the simulated HCA."""

from __future__ import annotations

import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from . import hca
from .test_rdma_core_acceptance import unpack, with_outcome

HERE = Path(__file__).parent
SKIPS: list[dict[str, Any]] = YAML(typ="safe").load(HERE / "connectx_rdma_core_skips.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    hca.require_libmlx5()
    folder = tmp_path_factory.mktemp("rdma_core")
    programs = unpack(folder)
    left_out = [pattern for skip in SKIPS if skip.get("leave_out") for pattern in skip["tests"]]
    done = hca.run(
        [sys.executable, str(HERE / "rdma_core_runner.py"), str(folder), *left_out],
        "--devices=2",
        environment={"PATH": os.pathsep.join((str(programs), os.environ["PATH"]))},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def test_no_test_of_rdma_core_fails(run: dict[str, Any]) -> None:
    assert not with_outcome(run, "failed")


def test_a_hundred_tests_of_rdma_core_pass(run: dict[str, Any]) -> None:
    assert len(with_outcome(run, "passed")) >= 100


def test_every_skip_is_listed_with_its_reason(run: dict[str, Any]) -> None:
    patterns = [pattern for skip in SKIPS for pattern in skip["tests"]]
    unlisted = {
        test: reason
        for test, reason in with_outcome(run, "skipped").items()
        if not any(fnmatchcase(test, pattern) for pattern in patterns)
    }
    assert not unlisted, "list them in tests/connectx_rdma_core_skips.yaml, or make them pass"
