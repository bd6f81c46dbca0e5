# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The container files, as far as they can be tried without a container engine."""

import configparser
import errno
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from conformance import kernel

ROOT = Path(__file__).parent.parent
FAMILIES = {"debian": "ID=debian", "rhel": "ID=rocky\nID_LIKE='rhel centos fedora'"}


def words(family: str) -> list[str]:
    """The words of a file's RUN commands."""
    text = (ROOT / "containers" / f"{family}.Containerfile").read_text().replace("\\\n", " ")
    return [word for line in text.splitlines() if line.startswith("RUN ") for word in shlex.split(line[4:])]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_image_has_all_that_toxw_needs(family: str, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(FAMILIES[family])
    variables = {**os.environ, "TOXW_ROOT": str(tmp_path), "TOXW_INSTALL": "never"}
    variables.pop("TOXW_PYTHON", None)
    variables.pop("LD_LIBRARY_PATH", None)
    command = [str(ROOT / "toxw"), "-e", "mlx5"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    (install,) = re.findall(r"(?:apt-get|dnf) install (.*)", done.stderr)
    wanted = {word for word in install.split() if not word.startswith("-") and "=" not in word}
    assert wanted <= set(words(family)) | {"DPkg::Lock::Timeout=600"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_environments_that_it_makes_exist(family: str) -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    run = words(family)
    made = run[run.index("-e") + 1].split(",")
    assert {f"testenv:{name}" for name in made} <= set(tox.sections())


def test_what_a_build_leaves_here_is_not_copied() -> None:
    ignored = set((ROOT / ".containerignore").read_text().split())
    for line in (ROOT / ".gitignore").read_text().splitlines():
        if not line.startswith(("#", "*")):
            assert ignored & {line.strip("/"), f"**/{line.strip('/')}"}, line


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """/sys/class/infiniband of a machine whose mlx5_0 is uverbs2."""
    verbs = tmp_path / "infiniband_verbs" / "uverbs2"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text("mlx5_0\n")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    return tmp_path


def problem(machine: Path, device: str = "mlx5_0") -> str:
    return kernel.node_problem(device, machine / "infiniband", machine / "nodes")


def test_a_node_that_is_not_there_is_told_with_the_option_that_brings_it(machine: Path) -> None:
    assert problem(machine) == (
        f"there is no {machine}/nodes/uverbs2: a container must be given it (--device /dev/infiniband)"
    )


def test_a_device_without_uverbs_is_told_with_the_module(machine: Path) -> None:
    assert problem(machine, "mlx5_1") == ("the kernel has no uverbs device for it: load ib_uverbs (modprobe ib_uverbs)")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EPERM, "Operation not permitted: the container's device cgroup denies it (--device /dev/infiniband)"),
        (errno.EACCES, "Permission denied: its permissions or SELinux deny it"),
        (errno.ENXIO, "No such device or address"),
    ],
)
def test_a_node_that_cannot_be_opened_says_why(
    machine: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def refuse(path: object, _: int) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "open", refuse)
    assert f"{machine}/nodes/uverbs2 cannot be opened: {words}" in problem(machine)


def test_a_node_that_can_be_opened_is_no_problem(machine: Path) -> None:
    (machine / "nodes" / "uverbs2").touch()
    assert problem(machine) == ""
