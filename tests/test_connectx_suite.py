# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The suite on libmlx5: it finds what is wrong there, and what is wrong with an HCA behind the right library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.reference.faults import FAULTS
from conformance.report import reproducer
from conformance.scenarios import Scenario

from . import hca

pytestmark = pytest.mark.usefixtures("_libmlx5")

ENVIRONMENTS = {
    "cqe64": "{name: cqe64, MLX5_SCATTER_TO_CQE: 1, MLX5_CQE_SIZE: 64}",
    "cqe128": "{name: cqe128, MLX5_SCATTER_TO_CQE: 1, MLX5_CQE_SIZE: 128}",
    "cqe64-no-scatter": "{name: cqe64-no-scatter, MLX5_SCATTER_TO_CQE: 0, MLX5_CQE_SIZE: 64}",
    "cqe128-no-scatter": "{name: cqe128-no-scatter, MLX5_SCATTER_TO_CQE: 0, MLX5_CQE_SIZE: 128}",
}


@pytest.fixture(scope="module")
def _libmlx5() -> None:
    hca.require_libmlx5()


def without_waivers(folder: Path, *environments: str) -> str:
    """The option of a file with these environments."""
    providers = folder / "providers.yaml"
    chosen = ", ".join(ENVIRONMENTS[name] for name in environments)
    providers.write_text(f"providers: {{mlx5: {{driver: mlx5, null_mr: required, environments: [{chosen}]}}}}\n")
    return f"--providers={providers}"


def results(folder: Path, environments: Sequence[str], *arguments: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """The run in results.json, without waivers."""
    done = hca.suite(without_waivers(folder, *environments), f"--reports={folder}", *arguments, options=options)
    report = folder / "results.json"
    assert report.exists(), done.stdout + done.stderr
    [loaded] = json.loads(report.read_text())["runs"]
    return dict(loaded)


def test_a_small_message_through_an_srq_is_found_where_it_leaks(tmp_path: Path) -> None:
    """libmlx5 copies what came with the completion to the address of a null segment; an ordinary receive queue has the
    check that the SRQ lacks."""
    scenarios = [
        f"--scenario=rc-send-m{size}-n{size}-{queue}-post_send-poll_cq"
        for size in (32, 33, 64, 65)
        for queue in ("srq", "rq")
    ]
    found = results(tmp_path, tuple(ENVIRONMENTS), "-k", "address", *scenarios)
    failed = {
        (result["target"].rpartition("/")[2], result["scenario"])
        for result in found["results"]
        if result["verdict"] != "PASS"
    }
    assert failed == {
        ("cqe64", "rc-send-m32-n32-srq-post_send-poll_cq"),
        ("cqe128", "rc-send-m32-n32-srq-post_send-poll_cq"),
        ("cqe128", "rc-send-m33-n33-srq-post_send-poll_cq"),
        ("cqe128", "rc-send-m64-n64-srq-post_send-poll_cq"),
    }


def test_the_report_says_what_is_simulated_and_what_is_real(tmp_path: Path) -> None:
    found = results(tmp_path, ["cqe64"], "-k", "fields")
    simulated = found["circumstances"]["simulated"]
    assert simulated.startswith("the HCA is simulated (connectx), the library is real: libmlx5.so.1.")
    assert "build id" in simulated
    assert all(target["simulated"] for target in found["circumstances"]["targets"])


def test_the_reproducer_agrees(tmp_path: Path) -> None:
    results(tmp_path, ["cqe64"], "-k", "address", "--scenario=rc-send-m8-n8-srq-post_send-poll_cq")
    [source] = (tmp_path / "reproducers").glob("*.c")
    program = tmp_path / "reproducer"
    subprocess.run(["cc", "-Wall", "-Werror", str(source), "-libverbs", "-o", str(program)], check=True)
    done = hca.run([str(program)])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT CONFORMING" in done.stdout


INFINIBAND = pytest.mark.parametrize(
    ("variant", "route", "pkey_index"),
    [
        ("infiniband-grh-required", "LID 0x10, GID 0 (IB, fe80:", 0),
        ("infiniband-several-pkeys", "LID 0x10, P_Key 0x8001 at index 2", 2),
    ],
)


@INFINIBAND
def test_infiniband_ports_are_addressed_as_they_ask_for_it(
    variant: str, route: str, pkey_index: int, tmp_path: Path
) -> None:
    options = ["--link", "ib", "--variant", variant]
    done = hca.suite(without_waivers(tmp_path, "cqe64"), "-v", "-k", "test_key", options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f", {route}" in done.stdout


@INFINIBAND
def test_so_are_they_by_a_reproducer(variant: str, route: str, pkey_index: int, tmp_path: Path) -> None:
    where = reproducer.Where("mlx5_0", 1, None, 2.0, pkey_index=pkey_index)
    source = reproducer.write(tmp_path, Scenario.parse("rc-send-m64-n64-rq-post_send-poll_cq"), where)
    program = tmp_path / "reproducer"
    subprocess.run(["cc", "-Wall", "-Werror", str(source), "-libverbs", "-o", str(program)], check=True)
    done = hca.run([str(program)], "--link", "ib", "--variant", variant)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_process_that_dies_inside_poll_cq_is_cleaned_up_and_counted(tmp_path: Path) -> None:
    scenario = "--scenario=rc-send-m8-n8@zero-srq-post_send-poll_cq"
    done = hca.suite(without_waivers(tmp_path, "cqe64"), "-k", "every_address", scenario, options=["--summary"])
    assert done.returncode == 128 + 11, done.stdout
    assert " QP" in done.stderr


def test_kernel_objects_are_judged(tmp_path: Path) -> None:
    found = results(tmp_path, ["cqe64-no-scatter"], "-k", "test_free")
    told = {result["verdict"] for result in found["results"] if result["clause"] == "free/no-leak"}
    assert told == {"PASS"}


@pytest.mark.parametrize(
    ("fault", "scenario"),
    [
        ("reads-garbage", "rc-send-n64-m64-rq-post_send-poll_cq"),
        ("reads-the-address", "rc-write-n64-remote-rq-post_send-poll_cq"),
        ("leaks-to-address", "rc-read-remote-n1024-rq-post_send-poll_cq"),
        ("receive-refused", "ud-send-m64-n104-rq-post_send-poll_cq"),
    ],
)
def test_a_wrong_hca_behind_the_right_library_is_found(fault: str, scenario: str, tmp_path: Path) -> None:
    arguments = (["cqe64-no-scatter"], f"--scenario={scenario}")
    right = results(tmp_path, *arguments)["results"]
    wrong = results(tmp_path, *arguments, options=["--fault", fault])["results"]
    assert {result["verdict"] for result in right} == {"PASS"}
    assert FAULTS[fault].clause in {result["clause"] for result in wrong if result["verdict"] == "FAIL"}
