# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Programs that know nothing of connectx find a working HCA, and what they leave is cleaned up."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import re
import signal
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from connectx import launch, memory

from . import hca

pytestmark = pytest.mark.usefixtures("_libmlx5")

_OPEN = """
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from conformance.verbs.names import e
context = Context(name="mlx5_0")
pd = PD(context)
mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
"""


@pytest.fixture(scope="module")
def _libmlx5() -> None:
    hca.require_libmlx5()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where launchers make their folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


# Other people's programs


def test_ibv_devinfo_shows_the_device() -> None:
    hca.require("ibv_devinfo", "ibverbs-utils")
    done = hca.run(["ibv_devinfo", "-v"], "--devices", "2")
    assert done.returncode == 0, done.stderr
    for text in ("mlx5_0", "mlx5_1", "SIMULATED000", "PORT_ACTIVE (4)", "MEM_WINDOW_TYPE_2B", "::ffff:192.0.2.1"):
        assert text in done.stdout


def test_an_infiniband_port_has_a_lid() -> None:
    hca.require("ibv_devinfo", "ibverbs-utils")
    done = hca.run(["ibv_devinfo"], "--link", "ib")
    assert "link_layer:\t\tInfiniBand" in done.stdout
    assert "port_lid:\t\t16" in done.stdout


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["polled", "events"])
@pytest.mark.parametrize("kind", ["rc", "uc", "ud", "srq", "xsrq"])
def test_pingpong(kind: str, events: list[str], tmp_path: Path) -> None:
    program = f"ibv_{kind}_pingpong"
    hca.require(program, "ibverbs-utils")
    checked = ["-c"] if kind == "rc" else []  # the others of rdma-core 44 do not look at the data
    done = hca.run_pair([program, "-g", "1", "-n", "50", *events, *checked], tmp_path / "server")
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "server").read_text()
    assert "invalid data" not in done.stdout


def test_pingpong_on_infiniband_without_a_grh(tmp_path: Path) -> None:
    hca.require("ibv_rc_pingpong", "ibverbs-utils")
    done = hca.run_pair(["ibv_rc_pingpong", "-n", "50", "-c"], tmp_path / "server", "--link", "ib")
    assert done.returncode == 0, done.stdout + done.stderr


def test_pingpong_with_the_older_completions(tmp_path: Path) -> None:
    hca.require("ibv_srq_pingpong", "ibverbs-utils")
    done = hca.run_pair(["ibv_srq_pingpong", "-g", "1", "-n", "50"], tmp_path / "server", "--cqe-version", "0")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("program", ["ib_send_bw", "ib_write_bw", "ib_read_lat", "ib_atomic_lat"])
def test_perftest(program: str, tmp_path: Path) -> None:
    hca.require(program, "perftest")
    done = hca.run_pair([program, "-x", "1", "-n", "100"], tmp_path / "server")
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "server").read_text()


# The kernel's answers


def test_rdma_netlink_tells_who_holds_what() -> None:
    hca.require("rdma", "iproute2")
    show = "subprocess.run(['rdma', '-j', 'resource', 'show', 'mr'])"
    text = f"{_OPEN}\nimport os, subprocess\nprint(os.getpid(), flush=True)\n{show}"
    done = hca.run(python(text))
    pid, told = done.stdout.split("\n", 1)  # some versions of the tool spread it over lines
    [mr] = json.loads(told)
    assert (mr["ifname"], mr["mrlen"], mr["pid"]) == ("mlx5_0", 4096, int(pid)), done.stderr


def test_the_suite_is_told_the_driver() -> None:
    done = hca.run(python("from conformance import kernel; print(kernel.device_names(), kernel.device_drivers())"))
    assert done.stdout == "['mlx5_0'] {'mlx5_0': 'mlx5'}\n", done.stderr


def test_a_device_without_the_capability_has_no_null_mr() -> None:
    text = """
from conformance.verbs.null_mr import NullMR, NullMRError
from pyverbs.device import Context
from pyverbs.pd import PD
pd = PD(Context(name="mlx5_0"))
try:
    print(NullMR(pd).lkey)
except NullMRError as error:
    print("errno", error.error_code)
pd.close()
"""
    assert hca.run(python(text), "--no-null-mkey").stdout == "errno 95\n"
    assert int(hca.run(python(text)).stdout) > 0


def test_a_trace_has_commands_work_requests_and_completions(tmp_path: Path) -> None:
    hca.require("ibv_rc_pingpong", "ibverbs-utils")
    trace = tmp_path / "trace"
    done = hca.run_pair(
        ["ibv_rc_pingpong", "-g", "1", "-n", "1", "-s", "16"], tmp_path / "server", "--trace", str(trace)
    )
    assert done.returncode == 0, done.stderr
    text = trace.read_text()
    assert "create_qp: ok" in text
    assert re.search(r"QP 0x\w+ send SendWR\(", text)
    assert re.search(r"QP 0x\w+ receive 0 ends with status 0, 16 bytes in it", text)


_EARLY = f"""{_OPEN}
import time
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

cq = CQ(context, 8)
def made():
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1), sq_sig_all=1)
    return QP(pd, init, QPAttr(port_num=1))
here, there = made(), made()
def attributes(of):
    attr = QPAttr(port_num=1)
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=context.query_gid(1, 1), sgid_index=1))
    attr.dest_qp_num, attr.path_mtu, attr.timeout, attr.retry_cnt, attr.min_rnr_timer = of.qp_num, 3, 14, 7, 12
    return attr
here.to_rts(attributes(there))
there.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf, 8, mr.lkey)]))
here.post_send(SendWR(num_sge=1, sg=[SGE(mr.buf + 8, 8, mr.lkey)], opcode=e.IBV_WR_SEND))
time.sleep(0.05)
if READY:
    there.to_rtr(attributes(here))
done, until = [], time.monotonic() + 30
while not done and time.monotonic() < until:
    done = cq.poll(1)[1]
print(e.IBV_WC_SUCCESS if READY else e.IBV_WC_RETRY_EXC_ERR, int(done[0].status))
"""


@pytest.mark.parametrize("ready", [True, False], ids=["in time", "never"])
def test_a_peer_that_is_still_being_set_up_is_asked_again(ready: bool) -> None:
    done = hca.run(python(f"READY = {ready}\n{_EARLY}"))
    expected, status = done.stdout.split()
    assert status == expected, done.stderr


# How programs end


def test_the_status_is_that_of_the_command() -> None:
    assert hca.run(["sh", "-c", "exit 7"]).returncode == 7
    assert hca.run(["sh", "-c", "kill -9 $$"]).returncode == 128 + signal.SIGKILL


def test_what_a_program_left_is_counted() -> None:
    done = hca.run(python(f"{_OPEN}\nimport os\nos.kill(os.getpid(), 11)"), "--summary")
    assert done.returncode == 128 + signal.SIGSEGV
    assert "left 1 MR, 1 PD" in done.stderr


def test_what_a_program_destroys_is_not_counted() -> None:
    done = hca.run(python(f"{_OPEN}\nmr.close(), pd.close(), context.close()"), "--summary")
    assert done.returncode == 0, done.stderr
    assert " left " not in done.stderr


def test_nothing_is_left_behind(folder: Path) -> None:
    assert hca.run(["true"]).returncode == 0
    assert not list(folder.iterdir())


def test_a_program_hears_that_the_device_process_is_gone(folder: Path) -> None:
    text = f"{_OPEN}\nprint('open', flush=True)\nwhile True: pass"  # as one that polls a completion queue
    launcher = [sys.executable, "-m", "connectx", "--", *python(text)]
    with subprocess.Popen(
        launcher,
        cwd=hca.ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.kill()
        _, errors = process.communicate()
    assert "the process that is the simulated HCA is gone" in errors
    assert len(list(folder.iterdir())) == 1
    assert hca.run(["true"], environment={"TMPDIR": str(folder)}).returncode == 0
    assert not list(folder.iterdir())  # the next one cleans up


# Where it cannot run


def test_a_command_that_is_not_there() -> None:
    done = hca.run(["no-such-program"])
    assert done.returncode == 69
    assert done.stderr == "connectx: no-such-program: No such file or directory\n"


def test_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with pytest.raises(launch.CannotError, match="apt install ibverbs-providers"):
        launch.check_library()


def test_a_machine_that_forbids_reading_other_processes_is_told_from_a_wrong_device() -> None:
    """As in a container whose seccomp profile lacks process_vm_readv."""
    done = hca.run(python(_OPEN), before=_forbid_process_vm_readv)
    assert done.returncode == 69
    assert "process_vm_readv(2): Operation not permitted" in done.stderr
    assert "seccomp profile must allow process_vm_readv" in done.stderr


def _forbid_process_vm_readv() -> None:
    """Let this process and its children have EPERM for it: a seccomp(2) filter of four BPF instructions."""
    libc = ctypes.CDLL(None)
    number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
    load, jump, give = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K
    refuse, allow = 0x00050000 | errno.EPERM, 0x7FFF0000  # SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW
    program = [(load, 0, 0, 0), (jump, 0, 1, number), (give, 0, 0, refuse), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    filter = struct.pack("@HP", len(program), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, filter, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def test_no_compiler(tmp_path: Path) -> None:
    done = hca.run(["true"], environment={"NULLMR_BUILD_DIR": str(tmp_path), "CC": "no-such-compiler"})
    assert done.returncode == 69
    assert "no-such-compiler" in done.stderr


def test_memory_that_may_not_be_read() -> None:
    told = str(memory.refusal(4711, errno.EPERM))
    for text in ("process 4711", "Operation not permitted", "yama/ptrace_scope", "seccomp"):
        assert text in told


def test_devices_that_are_hidden_are_named(tmp_path: Path) -> None:
    (tmp_path / "mlx5_0").mkdir()
    assert launch.real_devices(tmp_path) == ["mlx5_0"]
    assert launch.real_devices(tmp_path / "none") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_needs_no_privileges() -> None:
    hca.require("ibv_devinfo", "ibverbs-utils")
    for path in (hca.ROOT, *hca.ROOT.parents, *Path(sys.executable).parents):
        if not path.stat().st_mode & stat.S_IXOTH:
            pytest.skip(f"{path} is closed to others")
    with tempfile.TemporaryDirectory(dir="/tmp") as open_to_all:
        Path(open_to_all).chmod(0o777)
        variables = dict.fromkeys(("TMPDIR", "NULLMR_BUILD_DIR", "HOME"), open_to_all)
        done = hca.run(["ibv_devinfo"], environment=variables, user=65534)
    assert done.returncode == 0, done.stderr
    assert "mlx5_0" in done.stdout
