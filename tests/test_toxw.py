# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""toxw on make-believe machines: a folder stands for /, small scripts for package managers and for Python."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TOXW = Path(__file__).parent.parent / "toxw"
REAL_TOOLS = "bash cat chmod cp dirname env mkdir mktemp mv readlink rm sleep"
OS_RELEASES = {
    "apt-get": "ID=debian",
    "dnf": 'ID="almalinux"\nID_LIKE="rhel centos fedora"',
    "zypper": 'ID="opensuse-leap"\nID_LIKE="suse opensuse"',
}

# What toxw's probe of an interpreter prints.
FACTS = "{missing}\n{version}\n{age}\n{root}/usr/include/python\ngcc\n"

PYTHON = """\
case $1,$2 in
    -c,*) cat {root}/facts ;;
    -m,venv) {at_venv}
        mkdir -p $3/bin && cp {venv_python} $3/bin/python ;;
esac
"""
VENV_PYTHON = """\
case $1,$2 in
    -m,pip) echo "pip $*" >>{log}; [ ! -e {no_index} ] ;;
    -m,tox) shift 2; printf '<%s>' "$@"; echo; pwd; echo $TOXW_PYTHON ;;
esac
"""
MANAGER = """\
echo "{name} $*" >>{log}
[ "$1" != {broken} ] || exit 100
[ "$1" = update ] || cp -R {complete}/. {root}
"""


@dataclass(frozen=True)
class Machine:
    """A machine that has everything. Tests take things away; its package manager brings all of it back."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def complete(self) -> Path:
        """What the package manager copies to the root."""
        return self.folder / "complete"

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    @property
    def log_file(self) -> Path:
        return self.folder / "log"

    @property
    def log(self) -> list[str]:
        """The calls of the package manager, sudo and pip."""
        return self.log_file.read_text().splitlines() if self.log_file.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}:{self.root}/usr/bin", "TOXW_ROOT": str(self.root)}

    def program(self, path: Path, text: str) -> None:
        path.write_text(f"#!{self.bin}/bash\n{text}")
        path.chmod(0o755)

    def manager(self, name: str, broken: str = "nothing") -> None:
        """Installs a package manager; it fails when its first argument is `broken`."""
        (self.root / "etc/os-release").write_text(OS_RELEASES[name])
        text = MANAGER.format(name=name, log=self.log_file, complete=self.complete, root=self.root, broken=broken)
        self.program(self.bin / name, text)

    def python(self, at_venv: str = "") -> None:
        text = PYTHON.format(root=self.root, venv_python=self.folder / "venv-python", at_venv=at_venv)
        self.program(self.root / "usr/bin/python3", text)

    def facts(self, missing: str = "", version: str = "3.11", age: str = "usable") -> None:
        text = FACTS.format(missing=missing, version=version, age=age, root=self.root)
        (self.root / "facts").write_text(text)

    def user(self, uid: int) -> None:
        self.program(self.bin / "id", f"echo {uid}")

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(self.checkout / "toxw"), *arguments],
            env=self.environment | variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def toxw(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments, **variables)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    for folder in ("etc", "usr/bin", "usr/include/python", "usr/include/infiniband"):
        (machine.root / folder).mkdir(parents=True)
    for header in ("stdio.h", "python/Python.h", "infiniband/verbs.h"):
        (machine.root / "usr/include" / header).touch()
    machine.bin.mkdir()
    for tool in REAL_TOOLS.split():
        found = shutil.which(tool)
        assert found, tool
        (machine.bin / tool).symlink_to(found)
    machine.program(machine.root / "usr/bin/gcc", "exit 1")
    venv_python = VENV_PYTHON.format(log=machine.log_file, no_index=tmp_path / "no-index")
    machine.program(tmp_path / "venv-python", venv_python)
    machine.python()
    machine.facts()
    machine.user(0)
    machine.manager("apt-get")
    machine.checkout.mkdir()
    shutil.copy(TOXW, machine.checkout)
    shutil.copytree(machine.root, machine.complete)
    return machine


def test_a_complete_machine_installs_nothing_and_runs_tox_in_the_checkout(machine: Machine) -> None:
    run = machine.toxw("-e", "selftest", "--", "-k", "not slow")
    assert run.returncode == 0, run.stderr
    arguments, folder, python = run.stdout.splitlines()
    assert arguments == "<-e><selftest><--><-k><not slow>"
    assert folder == str(machine.checkout)
    assert python == str(machine.root / "usr/bin/python3")
    (pip,) = machine.log
    assert pip.startswith("pip -m pip install tox==")


def test_a_second_run_gets_nothing_anew_and_is_silent(machine: Machine) -> None:
    machine.toxw()
    first = machine.log
    run = machine.toxw()
    assert run.returncode == 0
    assert run.stderr == ""
    assert machine.log == first


def test_tox_is_set_up_again_for_another_pin_and_another_interpreter(machine: Machine) -> None:
    machine.toxw()
    script = machine.checkout / "toxw"
    script.write_text(script.read_text().replace("\ntox_version=", "\ntox_version=9"))
    machine.toxw()
    assert len(machine.log) == 2
    (machine.root / "usr/bin/python3").rename(machine.root / "usr/bin/python3.12")
    (machine.root / "usr/bin/python3").symlink_to("python3.12")
    machine.toxw()
    assert len(machine.log) == 3


def test_toxw_works_through_a_symbolic_link(machine: Machine) -> None:
    link = machine.folder / "link"
    link.symlink_to(machine.checkout / "toxw")
    run = subprocess.run([link], env=machine.environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[1] == str(machine.checkout)


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        (
            "apt-get",
            "apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=600"
            " python3 python3-pyverbs python3-venv python3-dev gcc libc6-dev libibverbs-dev",
        ),
        (
            "dnf",
            "dnf install --assumeyes --setopt=install_weak_deps=False"
            " python3 python3-pyverbs python3-libs python3-devel gcc rdma-core-devel",
        ),
        (
            "zypper",
            "zypper --non-interactive install --no-recommends"
            " python3 python3-pyverbs python3-base python3-devel gcc rdma-core-devel",
        ),
    ],
)
def test_an_empty_machine_gets_every_package_by_its_own_name(machine: Machine, manager: str, command: str) -> None:
    machine.manager(manager)
    shutil.rmtree(machine.root / "usr")
    run = machine.toxw()
    assert run.returncode == 0, run.stderr
    assert command in machine.log
    announced = f"running: env DEBIAN_FRONTEND=noninteractive ZYPP_LOCK_TIMEOUT=600 {command}\n"
    assert run.stderr.index("pyverbs (python3-pyverbs)") < run.stderr.index(announced)


@pytest.mark.parametrize(
    ("manager", "packages"),
    [("apt-get", "ibverbs-providers"), ("dnf", "libibverbs"), ("zypper", "libibverbs libmlx5-1")],
)
def test_libmlx5_is_installed_for_the_run_on_it_only(machine: Machine, manager: str, packages: str) -> None:
    machine.manager(manager)
    provider = machine.complete / "usr/lib64/libibverbs/libmlx5-rdmav34.so"
    provider.parent.mkdir(parents=True)
    provider.touch()
    assert "missing on this machine" not in machine.toxw().stderr
    run = machine.toxw("-e", "mlx5", "--", "-k", "cqe64")
    assert run.returncode == 0, run.stderr
    assert f"libmlx5 ({packages})" in run.stderr
    assert machine.toxw("-e", "mlx5").stderr == ""


@pytest.mark.parametrize(
    ("lost", "package"),
    [
        ("usr/include/infiniband/verbs.h", "libibverbs-dev"),
        ("usr/include/python/Python.h", "python3-dev"),
        ("usr/include/stdio.h", "gcc libc6-dev"),
        ("usr/bin/gcc", "gcc libc6-dev"),
    ],
)
def test_only_what_is_missing_is_installed(machine: Machine, lost: str, package: str) -> None:
    (machine.root / lost).unlink()
    run = machine.toxw()
    assert run.returncode == 0, run.stderr
    update, install, _pip = machine.log
    assert update == "apt-get update"
    assert install.endswith(f"=600 {package}")


@pytest.mark.parametrize(("module", "package"), [("pyverbs", "python3-pyverbs"), ("ensurepip", "python3-venv")])
def test_missing_modules_are_installed(machine: Machine, module: str, package: str) -> None:
    machine.facts(missing=module)
    run = machine.toxw()
    assert run.returncode == 0, run.stderr
    assert machine.log[1].endswith(f"=600 {package}")


def test_headers_on_cpath_are_found(machine: Machine) -> None:
    (machine.root / "usr/include/infiniband").rename(machine.folder / "infiniband")
    assert machine.toxw(TOXW_INSTALL="never", CPATH=f"/nowhere:{machine.folder}").returncode == 0
    assert machine.toxw(TOXW_INSTALL="never").returncode == 1


def test_never_names_what_is_missing_and_the_commands_and_changes_nothing(machine: Machine) -> None:
    machine.facts(missing="pyverbs")
    (machine.root / "usr/bin/gcc").unlink()
    run = machine.toxw(TOXW_INSTALL="never")
    assert run.returncode == 1
    assert "pyverbs (python3-pyverbs)" in run.stderr
    assert "compiler (gcc libc6-dev)" in run.stderr
    assert run.stderr.endswith("python3-pyverbs gcc libc6-dev\n")
    assert run.stdout == ""
    assert machine.log == []
    assert not (machine.checkout / ".toxw").exists()


def test_an_unknown_value_of_toxw_install_is_refused(machine: Machine) -> None:
    run = machine.toxw(TOXW_INSTALL="Never")
    assert run.returncode == 1
    assert "TOXW_INSTALL=Never is not known" in run.stderr


def test_a_user_installs_through_sudo(machine: Machine) -> None:
    machine.facts(missing="pyverbs")
    machine.user(1000)
    machine.program(machine.bin / "sudo", f'echo "sudo $*" >>{machine.log_file}; exec "$@"')
    run = machine.toxw()
    assert run.returncode == 0, run.stderr
    by_root = [line for line in machine.log if line.startswith("sudo env DEBIAN_FRONTEND=noninteractive")]
    assert [line.split(" apt-get ")[1].split()[0] for line in by_root] == ["update", "install"]
    assert "running: sudo env" in run.stderr


def test_a_user_without_sudo_is_told_what_root_has_to_run(machine: Machine) -> None:
    machine.facts(missing="pyverbs")
    machine.user(1000)
    run = machine.toxw()
    assert run.returncode == 1
    assert "needs root or sudo" in run.stderr
    assert run.stderr.endswith("=600 python3-pyverbs\n")
    assert machine.log == []


def test_a_failed_update_of_the_lists_is_not_the_end(machine: Machine) -> None:
    machine.facts(missing="pyverbs")
    machine.manager("apt-get", broken="update")
    assert machine.toxw().returncode == 0


@pytest.mark.parametrize(("manager", "hint"), [("apt-get", False), ("dnf", True)])
def test_a_failed_installation_is_the_end(machine: Machine, manager: str, hint: bool) -> None:
    machine.facts(missing="pyverbs")
    machine.manager(manager, broken="install")
    run = machine.toxw()
    assert run.returncode == 1
    assert "python3-pyverbs: failed" in run.stderr
    assert ("CRB" in run.stderr) == hint
    assert not (machine.checkout / ".toxw").exists()


def test_what_an_installation_did_not_bring_is_named(machine: Machine) -> None:
    (machine.root / "usr/bin/gcc").unlink()
    (machine.complete / "usr/bin/gcc").unlink()
    run = machine.toxw()
    assert run.returncode == 1
    python = machine.root / "usr/bin/python3"
    assert run.stderr.endswith(f"Still missing after the installation for {python}: compiler\n")


def test_an_unknown_distribution_is_told_what_to_install(machine: Machine) -> None:
    (machine.root / "etc/os-release").write_text("ID=plan9\n")
    machine.facts(missing="pyverbs")
    run = machine.toxw()
    assert run.returncode == 1
    assert "plan9" in run.stderr
    assert "Install by hand: pyverbs" in run.stderr


def test_an_old_python_is_refused_before_anything_is_installed(machine: Machine) -> None:
    machine.facts(missing="pyverbs", version="3.6", age="old")
    run = machine.toxw()
    assert run.returncode == 1
    assert "is Python 3.6; 3.9 or newer is needed" in run.stderr
    assert machine.log == []


@pytest.mark.parametrize("version", ["3.9", "3.12"])
def test_an_old_python_is_passed_over_for_a_newer_one_that_sees_pyverbs(machine: Machine, version: str) -> None:
    newer = machine.root / f"usr/bin/python{version}"
    (machine.root / "usr/bin/python3").rename(newer)
    old = FACTS.format(missing="", version="3.6", age="old", root=machine.root)
    machine.program(machine.root / "usr/bin/python3", f"printf '{old}'")
    run = machine.toxw()
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[2] == str(newer)


def test_the_interpreter_can_be_named(machine: Machine) -> None:
    mine = machine.folder / "python"
    (machine.root / "usr/bin/python3").rename(mine)
    run = machine.toxw(TOXW_PYTHON=str(mine))
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[2] == str(mine)


def test_a_named_interpreter_that_is_not_there_is_refused(machine: Machine) -> None:
    run = machine.toxw(TOXW_PYTHON="/no/python")
    assert run.returncode == 1
    assert "TOXW_PYTHON=/no/python: there is no such program" in run.stderr


def test_a_named_interpreter_without_pyverbs_gets_no_useless_packages(machine: Machine) -> None:
    mine = machine.folder / "python"
    shutil.copy(machine.root / "usr/bin/python3", mine)
    machine.facts(missing="pyverbs")
    run = machine.toxw(TOXW_PYTHON=str(mine))
    assert run.returncode == 1
    assert f"{mine} does not see pyverbs" in run.stderr
    assert machine.log == []


def test_a_broken_interpreter_is_named(machine: Machine) -> None:
    python = machine.root / "usr/bin/python3"
    machine.program(python, "echo no libpython >&2; exit 127")
    run = machine.toxw()
    assert run.returncode == 1
    assert f"no libpython\ntoxw: {python} does not work" in run.stderr


def test_the_probe_finds_what_these_tests_run_on(machine: Machine) -> None:
    python = machine.root / "usr/bin/python3"
    python.write_text(python.read_text().replace(f"cat {machine.root}/facts", f'exec {sys.executable} "$@"'))
    run = machine.toxw(TOXW_INSTALL="never", CC="gcc -pthread", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    assert run.returncode == 0, run.stderr


def test_a_pyverbs_of_another_python_is_none(machine: Machine) -> None:
    python = machine.root / "usr/bin/python3"
    python.write_text(python.read_text().replace(f"cat {machine.root}/facts", f'exec {sys.executable} "$@"'))
    (machine.folder / "pyverbs").mkdir()
    (machine.folder / "pyverbs/__init__.py").touch()
    (machine.folder / "pyverbs/device.cpython-36m-x86_64-linux-gnu.so").touch()
    run = machine.toxw(TOXW_INSTALL="never", PYTHONPATH=str(machine.folder))
    assert run.returncode == 1
    assert "pyverbs (python3-pyverbs)" in run.stderr


def test_without_an_index_the_way_out_is_told_and_nothing_is_left(machine: Machine) -> None:
    no_index = machine.folder / "no-index"
    no_index.touch()
    run = machine.toxw()
    assert run.returncode == 1
    assert "PIP_FIND_LINKS" in run.stderr
    assert list((machine.checkout / ".toxw").iterdir()) == []
    no_index.unlink()
    assert machine.toxw().returncode == 0


def test_runs_at_the_same_time_do_not_break_each_other(machine: Machine) -> None:
    count = 4
    here = machine.folder / "here"
    # All go on together, once each has seen that there is no tox yet.
    meet = f": >{here}.$$; while here=({here}.*); (( ${{#here[@]}} < {count} )); do sleep 0.01; done"
    machine.python(at_venv=meet)
    runs = [machine.start(str(number)) for number in range(count)]
    outputs = [run.communicate(timeout=60) for run in runs]
    assert [run.returncode for run in runs] == [0] * count, outputs
    assert [stdout.splitlines()[0] for stdout, _ in outputs] == [f"<{number}>" for number in range(count)]
    assert sum("another run was first" in stderr for _, stderr in outputs) == count - 1
    (made,) = (machine.checkout / ".toxw").iterdir()
    assert made.name.startswith("tox-")
    assert made.stat().st_mode & 0o055 == 0o055, "other users of the checkout need it too"
