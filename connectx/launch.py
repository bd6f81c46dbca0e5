# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the launcher needs of the machine: the interposer, libmlx5, a clean environment."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from conformance import native

PREFIX = "connectx-"
"""Of the folders that launchers make."""
_SOURCE = Path(__file__).with_name("interposer.c")
_PROVIDERS = """\
libibverbs or its provider libmlx5 is not installed ({error}):
  Debian, Ubuntu:  apt install ibverbs-providers
  Fedora, RHEL:    dnf install libibverbs
  SUSE:            zypper install libibverbs libmlx5-1"""


class CannotError(Exception):
    """The command cannot be run here; the message says why."""


def check_library() -> None:
    """Raises CannotError if there is no libibverbs or no libmlx5."""
    for name in ("libibverbs.so.1", "libmlx5.so.1"):
        try:
            ctypes.CDLL(name)
        except OSError as error:
            raise CannotError(_PROVIDERS.format(error=error)) from error


def interposer() -> Path:
    """The compiled interposer. Raises native.BuildError without a compiler."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = ["-O2", "-shared", "-fPIC", "-Wall", "-Wno-nonnull-compare"]
    key = hashlib.sha256("\0".join([*compiler, *flags, _SOURCE.read_text()]).encode()).hexdigest()[:16]
    built = native.build_dir() / f"connectx_interposer_{key}.so"
    if built.exists():
        return built
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        target = Path(folder) / built.name
        try:
            run = subprocess.run(
                [*compiler, *flags, "-o", str(target), str(_SOURCE), "-ldl", "-lpthread"],
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise native.BuildError(f"{compiler[0]}: {error.strerror}; a C compiler is needed") from error
        if run.returncode:
            raise native.BuildError(f"{_SOURCE.name} does not compile.\n{run.stderr}")
        os.replace(target, built)  # concurrent builders each see a whole file or none
    return built


def environment(folder: Path, library: Path) -> dict[str, str]:
    """Variables for the command, whose RDMA devices are those in `folder`."""
    variables = dict(os.environ)
    variables.pop("SYSFS_PATH", None)
    variables["CONNECTX_ROOT"] = str(folder)
    variables["CONNECTX_PID"] = str(os.getpid())
    variables["LD_PRELOAD"] = ":".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    return variables


def real_devices(sysfs: Path = Path("/sys/class/infiniband")) -> list[str]:
    return sorted(entry.name for entry in sysfs.iterdir()) if sysfs.is_dir() else []


def remove_stale(parent: Path) -> None:
    """Remove what launchers that were killed have left."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int((folder / "pid").read_text())
            if not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
