# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs programs on simulated HCAs, for tests of connectx."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_CONNECTED = """
"$@" >"$LOG" 2>&1 &
for _ in $(seq 30); do "$@" localhost && break; sleep 0.3; done
status=$?
wait $! || status=$?
exit $status
"""
"""A server and a client of the same program: the client tries until the server listens."""


def require_libmlx5() -> None:
    try:
        ctypes.CDLL("libmlx5.so.1")
    except OSError as error:
        pytest.skip(f"libmlx5 is not installed (Debian: ibverbs-providers): {error}")


def require(program: str, package: str) -> None:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian: {package})")
    told = subprocess.run([path, "--help"], capture_output=True, text=True, check=False).stderr
    if "not found (required by" in told:
        pytest.skip(f"{program} does not fit the libraries in LD_LIBRARY_PATH: {told.strip()}")


def run(
    command: Sequence[str],
    *options: str,
    environment: Mapping[str, str] | None = None,
    timeout: float = 120,
    user: int | None = None,
    before: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A command on simulated HCAs, in a process that calls `before` first."""
    modules = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": modules, **(environment or {})}
    launcher = [sys.executable, "-m", "connectx", *options, "--", *command]
    return subprocess.run(
        launcher,
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        user=user,
        preexec_fn=before,
    )


def run_pair(program: Sequence[str], log: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A server and a client of a program that finds the other by `localhost`. The server's output is in `log`."""
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
    command = ["bash", "-c", _CONNECTED, "bash", *program, "-p", str(port)]
    return run(command, *options, environment={"LOG": str(log)}, timeout=60)


def suite(*arguments: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """The suite, in one process."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-W", "default", "-p", "no:cacheprovider", "--search=0"]
    return run([*command, *arguments], *options, timeout=300)
