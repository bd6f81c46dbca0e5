# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""`python -m conformance`, run as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import config
from conformance.clauses import CLAUSES

ROOT = config.DEFAULT_PATH.parent


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conformance", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def write(folder: Path, text: str) -> Path:
    path = folder / "providers.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_devices_says_that_the_reference_is_used_and_what_would_be_tried(tmp_path: Path) -> None:
    path = write(tmp_path, "providers: {sim: {driver: reference, simulate: 2, null_mr: required}}")
    done = run("devices", "--providers", path, "--reference")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "the reference device (simulated) is used, because it was asked for"
    assert lines[2] == "tried (2):"
    assert lines[3].startswith("  ref0/1  sim, null MR required: reference, firmware ")
    assert ", MTU 1024, GID 1 (RoCE v2, " in lines[3]
    assert lines[4].startswith("  ref1/1  sim, null MR required: reference, firmware ")
    assert lines[5:] == ["left out (0):"]


def test_the_option_for_the_file_has_its_old_name_too(tmp_path: Path) -> None:
    path = write(tmp_path, "providers: {sim: {driver: reference, simulate: 2, null_mr: required}}")
    done = run("--config", path, "devices", "--reference")
    assert (done.returncode, done.stdout) == (0, run("devices", f"--providers={path}", "--reference").stdout)
    assert "--config" not in run("--help").stdout + run("devices", "--help").stdout


def test_devices_tells_why_a_device_is_left_out(tmp_path: Path) -> None:
    text = "providers: {sim: {driver: reference, devices: ['*1'], simulate: 2, null_mr: required}}"
    path = write(tmp_path, text)
    done = run("devices", "--providers", path, "--reference")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == [
        "left out (1):",
        f"  ref0  no entry of {path} matches it (driver reference)",
    ]


def test_devices_is_1_with_a_target_that_cannot_be_tried(tmp_path: Path) -> None:
    path = write(tmp_path, "providers: {sim: {driver: reference, gid: 200, null_mr: required}}")
    done = run("devices", "--providers", path, "--reference")
    assert (done.returncode, done.stderr) == (1, "")
    key = f"{path}:1: providers.sim.gid"
    assert f"ref0/1  sim, null MR required: BROKEN: {key}: ref0/1 has no GID that fits `gid: 200`; its" in done.stdout


def test_devices_is_1_with_nothing_to_try(tmp_path: Path) -> None:
    path = write(tmp_path, "providers: {sim: {driver: reference, devices: ['x*'], null_mr: required}}")
    done = run("devices", "--providers", path, "--reference")
    assert (done.returncode, done.stderr) == (1, "")
    assert "tried (0):" in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "providers: {a: {driver: rxe, null_mr: maybe}}",
            ':1: providers.a.null_mr: found "maybe"; allowed: ',
        ),
        (
            "providers: {a: {driver: rxe, null_mr: absent}}",
            ":1: providers: no entry for the reference device",
        ),
        (
            "providers: {a: {driver: reference, devices: [ref9], null_mr: required}}",
            ":1: providers.a.devices[0]: ref9 is not on this machine, which has ref0 (reference); ",
        ),
    ],
)
def test_a_wrong_file_is_2_with_the_message_and_no_traceback(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    done = run("devices", "--providers", path, "--reference")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{path}{message}")
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_option_is_2() -> None:
    done = run("devices", "--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr


def test_clauses_prints_every_clause_with_its_level_and_requirement() -> None:
    done = run("clauses")
    assert (done.returncode, done.stderr) == (0, "")
    for clause in CLAUSES:
        assert f"{clause.id}  {clause.level.value}  " in done.stdout
        assert f"    {clause.requirement}\n" in done.stdout


def test_schema_prints_the_schema() -> None:
    done = run("schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(config.json_schema())
