# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One run on two hosts over ssh: two network namespaces with an sshd, a host name and a providers file of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from conformance.report.document import load
from tests.suite import ROOT

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
ENTRIES = {
    "lab-a": "{driver: reference, null_mr: required}",
    "lab-b": "{driver: reference, null_mr: optional, simulate: 2}",
}


def command(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def can_have_hosts() -> str:
    """Why there can be no such hosts here; "" if there can."""
    if SSHD is None:
        return "no sshd on this machine (openssh-server)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"null-mr-{os.getpid()}"
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "no network namespaces here (ip netns)"
    command("ip", "netns", "delete", name)
    return ""


def address(number: int, last: int = 2) -> str:
    """In the range for tests between networks (RFC 2544); another run at the same time has others."""
    return f"198.18.{os.getpid() % 100 * 2 + number}.{last}"


@contextmanager
def host(name: str, number: int, folder: Path) -> Iterator[None]:
    """A network namespace with an sshd at address(number), and a copy of the suite in folder/name."""
    namespace, here, there = f"{name}-{os.getpid()}", f"nm{number}a{os.getpid()}", f"nm{number}b{os.getpid()}"
    copy = folder / name
    shutil.copytree(ROOT / "conformance", copy / "conformance")
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, copy)
    (copy / "providers.yaml").write_text(f"providers:\n  {name}-devices: {ENTRIES[name]}\n")
    config = folder / f"{name}.sshd"
    config.write_text(
        f"ListenAddress {address(number)}:2222\n"
        f"HostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\n"
        f"SetEnv NULLMR_BUILD_DIR={ROOT}/.build\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    with ExitStack() as undo:
        command("ip", "netns", "add", namespace)
        undo.callback(command, "ip", "netns", "delete", namespace)
        command("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", namespace)
        command("ip", "address", "add", f"{address(number, 1)}/24", "dev", here)
        command("ip", "link", "set", here, "up")
        command("ip", "-n", namespace, "address", "add", f"{address(number)}/24", "dev", there)
        command("ip", "-n", namespace, "link", "set", there, "up")
        # What the controller keeps in its own temporary folder is on no other host.
        inside = f"mount -t tmpfs none {folder}/controller && hostname {name} && exec {SSHD} -D -e -f {config}"
        words = ("ip", "netns", "exec", namespace, "unshare", "--uts", "--mount", "sh", "-c", inside)
        sshd = undo.enter_context(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        undo.callback(sshd.terminate)
        assert sshd.stderr is not None
        said = sshd.stderr.readline()
        assert "listening" in said, said
        yield


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[str]]:
    """Options for a run on two hosts. Their addresses stay on this machine: veth pairs lead to the namespaces."""
    reason = can_have_hosts()
    if reason:
        pytest.skip(reason)
    (tmp_path / "controller").mkdir()
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it; its service would make it
    for key in ("host_key", "user_key"):
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key)
    config = tmp_path / "ssh_config"
    config.write_text(
        "".join(f"Host {name}\n  HostName {address(number)}\n" for number, name in enumerate(ENTRIES))
        + f"Host *\n  Port 2222\n  User root\n  IdentityFile {tmp_path}/user_key\n  LogLevel ERROR\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    )
    with ExitStack() as running:
        for number, name in enumerate(ENTRIES):
            running.enter_context(host(name, number, tmp_path))
        shared = f"//ssh_config={config}//python={sys.executable}"
        yield [f"--tx=ssh={name}//chdir={tmp_path / name}{shared}" for name in ENTRIES]


def test_a_run_over_ssh_names_each_host_and_uses_its_own_providers_file(hosts: list[str], tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    options = ("--reference", "-k", "test_key", "-p", "no:cacheprovider", "-W", "default", f"--reports={reports}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--dist=each", *hosts],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": f"{tmp_path}/controller"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {run.circumstances.label: run for run in load(reports / "results.json").runs}
    assert runs.keys() == {"lab-a", "lab-b"}
    for name, run in runs.items():
        assert run.circumstances.machine.host == name
        assert {target.provider for target in run.circumstances.targets} == {f"{name}-devices"}
    assert {each.target for each in runs["lab-a"].results} == {"lab-a:ref0/1"}
    assert {each.target for each in runs["lab-b"].results} == {"lab-b:ref0/1", "lab-b:ref1/1"}
    assert len(runs["lab-b"].results) == 2 * len(runs["lab-a"].results) > 0
    assert "lab-b:ref1/1" in (reports / "report.html").read_text()
