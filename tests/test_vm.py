# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The parts of vm/ that need no guest."""

import gzip
import os
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import config
from vm import __main__ as command_line
from vm import guest, host, kernel, machine

RELEASE = "6.1.0-test"


def module(*depends: str) -> bytes:
    """What of a .ko file is read: modinfo strings, each ended by a NUL byte."""
    fields = ["license=GPL", f"depends={','.join(depends)}", "name=x", f"vermagic={RELEASE} SMP preempt mod_unload "]
    return b"\x7fELF...\0" + "\0".join(fields).encode() + b"\0"


def bzimage(payload: bytes, release: str = RELEASE) -> bytes:
    """A boot sector, one sector of set-up code with the boot header and the release, and the payload."""
    image = bytearray(1024)
    image[0x1F1] = 1
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", image, 0x20E, 0x100)
    struct.pack_into("<2I", image, 0x248, 16, len(payload))
    image[0x300 : 0x300 + len(release) + 9] = release.encode() + b" (a@b) #1"
    return bytes(image) + bytes(16) + payload


@pytest.fixture
def unpacked(tmp_path: Path) -> kernel.Kernel:
    """A kernel package as dpkg unpacks it, with every wanted module in a file of its own."""
    modules = tmp_path / "lib/modules" / RELEASE
    (modules / "kernel").mkdir(parents=True)
    (modules / "modules.builtin").write_text("kernel/net/ipv6/ipv6.ko\n")
    for name in kernel.WANTED_MODULES:
        (modules / "kernel" / f"{name}.ko").write_bytes(module())
    (tmp_path / "boot").mkdir()
    image = tmp_path / "boot/vmlinuz"
    image.write_bytes(bzimage(b""))
    return kernel.Kernel(image, modules, RELEASE)


def test_a_packages_kernel_is_found_with_its_release_and_modules(unpacked: kernel.Kernel) -> None:
    assert kernel.find_kernel(unpacked.image, modules=None) == unpacked


def test_the_modules_of_a_build_tree_are_found(tmp_path: Path) -> None:
    image = tmp_path / "arch/x86/boot/bzImage"
    image.parent.mkdir(parents=True)
    image.write_bytes(bzimage(b""))
    (tmp_path / "modules.builtin").touch()
    assert kernel.find_kernel(image, modules=None).modules == tmp_path


def test_modules_that_are_not_found_are_named_with_the_folders_and_the_option(tmp_path: Path) -> None:
    image = tmp_path / "bzImage"
    image.write_bytes(bzimage(b""))
    with pytest.raises(host.VmError, match=rf"no modules of {RELEASE}.*/lib/modules/{RELEASE}.*--modules DIR"):
        kernel.find_kernel(image, modules=None)
    with pytest.raises(host.VmError, match=str(tmp_path / "elsewhere")):
        kernel.find_kernel(image, modules=tmp_path / "elsewhere")


def test_the_release_of_a_vmlinux_is_the_one_in_its_banner(tmp_path: Path) -> None:
    (tmp_path / "vmlinux").write_bytes(b"\x7fELF\0Linux version of\0Linux version 7.0-rc1+ (a@b) #1")
    assert kernel.kernel_release(tmp_path / "vmlinux") == "7.0-rc1+"


@pytest.mark.parametrize("content", [b"", b"MZ", b"#!/bin/sh\nLinux version 6.1 (x)"])
def test_a_file_that_is_no_kernel_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "image").write_bytes(content)
    with pytest.raises(host.VmError, match=f"{tmp_path}/image: neither an x86 bzImage nor a vmlinux"):
        kernel.kernel_release(tmp_path / "image")


def test_a_kernel_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(host.VmError, match=f"{tmp_path}/absent: no such kernel image"):
        kernel.find_kernel(tmp_path / "absent", modules=None)


PVH_NOTE = struct.pack("<3I4sQ", 4, 8, 18, b"Xen", 0x1000000)


def compressed(elf: bytes, tool: str) -> bytes:
    """As the kernel's build does: the size follows for all but gzip, which has it in its own format."""
    if tool == "gzip":
        return gzip.compress(elf)
    if not shutil.which(tool):
        pytest.skip(f"no {tool} on this machine")
    return subprocess.run([tool, "-c"], input=elf, stdout=subprocess.PIPE, check=True).stdout + struct.pack(
        "<I", len(elf)
    )


@pytest.mark.parametrize("tool", ["gzip", "xz", "zstd"])
def test_a_compressed_kernel_is_booted_uncompressed(unpacked: kernel.Kernel, tmp_path: Path, tool: str) -> None:
    elf = b"\x7fELF" + os.urandom(5000) + PVH_NOTE
    unpacked.image.write_bytes(bzimage(compressed(elf, tool)))
    image = kernel.bootable_image(unpacked, tmp_path / "cache")
    assert image.read_bytes() == elf
    assert kernel.bootable_image(unpacked, tmp_path / "cache") == image


def test_only_the_last_build_of_a_release_stays_in_the_cache(unpacked: kernel.Kernel, tmp_path: Path) -> None:
    for size in (100, 200):
        unpacked.image.write_bytes(bzimage(gzip.compress(b"\x7fELF" + os.urandom(size) + PVH_NOTE)))
        kernel.bootable_image(unpacked, tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.stat().st_size == 4 + 200 + len(PVH_NOTE)


@pytest.mark.parametrize(
    "payload",
    [gzip.compress(b"\x7fELF without the note"), b"\x89LZO" + bytes(100)],
    ids=["no-note", "unknown-compression"],  # what gzip makes has the time in it, and workers must collect the same
)
def test_a_kernel_that_qemu_cannot_start_uncompressed_is_booted_as_it_is(
    unpacked: kernel.Kernel, tmp_path: Path, payload: bytes
) -> None:
    unpacked.image.write_bytes(bzimage(payload))
    assert kernel.bootable_image(unpacked, tmp_path) == unpacked.image


def test_modules_come_after_what_they_depend_on_and_builtin_ones_are_left_out(unpacked: kernel.Kernel) -> None:
    folder = unpacked.modules / "kernel"
    (folder / "rdma_rxe.ko").write_bytes(module("ib_uverbs", "udp-tunnel", "ipv6"))
    (folder / "udp-tunnel.ko").write_bytes(module("ib_core"))
    (folder / "ib_core.ko").write_bytes(module())
    (folder / "unrelated.ko").write_bytes(module())
    (unpacked.modules / "modules.builtin").write_text("kernel/net/ipv6/ipv6.ko\nkernel/net/9p/9p.ko\n")
    loaded = list(kernel.guest_modules(unpacked))
    assert sorted(loaded) == sorted({*kernel.WANTED_MODULES, "udp_tunnel", "ib_core"} - {"9p"})
    assert loaded.index("ib_core") < loaded.index("udp_tunnel") < loaded.index("rdma_rxe")
    assert loaded.index("crc32_generic") < loaded.index("rdma_rxe")


def test_compressed_modules_are_loaded_uncompressed(unpacked: kernel.Kernel) -> None:
    (unpacked.modules / "kernel/dummy.ko").unlink()
    (unpacked.modules / "kernel/dummy.ko.gz").write_bytes(gzip.compress(module("rtnl")))
    (unpacked.modules / "kernel/rtnl.ko").write_bytes(module())
    loaded = kernel.guest_modules(unpacked)
    assert loaded["dummy"] == module("rtnl")
    assert "rtnl" in loaded


def test_only_the_modules_that_a_guest_cannot_do_without_are_required(unpacked: kernel.Kernel) -> None:
    for name in kernel.OPTIONAL_MODULES:
        (unpacked.modules / f"kernel/{name}.ko").unlink()
    assert kernel.guest_modules(unpacked).keys() == set(kernel.WANTED_MODULES) - kernel.OPTIONAL_MODULES
    (unpacked.modules / "kernel/rdma_rxe.ko").unlink()
    with pytest.raises(host.VmError, match=f"{RELEASE} has no rdma_rxe, built in or as a module"):
        kernel.guest_modules(unpacked)


@pytest.mark.parametrize("folder", ["updates", "extra", "updates/dkms"])
def test_a_module_that_was_built_apart_comes_before_the_kernels_own(unpacked: kernel.Kernel, folder: str) -> None:
    for where in (folder, "weak-updates"):
        (unpacked.modules / where).mkdir(parents=True)
        (unpacked.modules / where / "rdma_rxe.ko").write_bytes(module("ib_uverbs") + where.encode())
    assert kernel.guest_modules(unpacked)["rdma_rxe"] == module("ib_uverbs") + folder.encode()


def test_siw_is_made_where_the_kernel_has_it(unpacked: kernel.Kernel, tmp_path: Path) -> None:
    job = guest.Job(["true"], tmp_path, {}, reports=tmp_path)
    assert kernel.has_module(unpacked, "siw")
    assert "SIW=yes\n" in guest.settings(job, has_siw=True)
    (unpacked.modules / "kernel/siw.ko").unlink()
    assert not kernel.has_module(unpacked, "siw")
    assert "SIW=\n" in guest.settings(job, has_siw=False)
    (unpacked.modules / "modules.builtin").write_text("kernel/drivers/infiniband/sw/siw/siw.ko\n")
    assert kernel.has_module(unpacked, "siw")


def test_a_compressed_module_without_its_tool_is_named(
    unpacked: kernel.Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (unpacked.modules / "kernel/9p.ko").rename(unpacked.modules / "kernel/9p.ko.gz")
    (unpacked.modules / "kernel/9p.ko.gz").write_bytes(gzip.compress(module()))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(host.VmError, match=r"9p\.ko\.gz: cannot be decompressed: no xz, gzip or zstd"):
        kernel.guest_modules(unpacked)


def test_modules_of_another_kernel_are_refused(unpacked: kernel.Kernel) -> None:
    path = unpacked.modules / "kernel/overlay.ko"
    path.write_bytes(module().replace(RELEASE.encode(), b"6.1.0-other"))
    with pytest.raises(host.VmError, match=f"{path}: built for kernel 6.1.0-other, but .*vmlinuz is {RELEASE}"):
        kernel.guest_modules(unpacked)


def test_the_initramfs_is_a_cpio_archive_that_cpio_reads(tmp_path: Path) -> None:
    cpio = shutil.which("cpio") or shutil.which("busybox")
    if cpio is None:
        pytest.skip("neither cpio nor busybox on this machine")
    applet = [cpio] if cpio.endswith("/cpio") else [cpio, "cpio"]
    archive = guest.cpio(
        {
            "folder": (stat.S_IFDIR | 0o755, b""),
            "folder/odd": (stat.S_IFREG | 0o600, b"12345"),
            "program": (stat.S_IFREG | 0o755, b"#!/bin/sh\n"),
        }
    )
    subprocess.run([*applet, "-i"], input=archive, cwd=tmp_path, check=True, capture_output=True)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "folder",
        "folder/odd",
        "program",
    ]
    assert (tmp_path / "folder/odd").read_bytes() == b"12345"
    assert (tmp_path / "program").stat().st_mode == stat.S_IFREG | 0o755


def test_the_command_runs_in_its_folder_with_its_environment_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    code = "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ['A'], 'HOME' in os.environ)"
    job = guest.Job(
        command=[sys.executable, "-c", code, "a b", "$HOME", "it's"],
        cwd=folder,
        environment={"A": 'x "y" $z', "BASH_FUNC_f%%": "() { :; }", "PATH": os.environ["PATH"]},
        reports=tmp_path,
    )
    done = subprocess.run(["sh"], input=guest.command_script(job), capture_output=True, text=True, check=True)
    assert done.stdout == f"""{folder} ['a b', '$HOME', "it's"] x "y" $z False\n"""


def test_settings_are_safe_for_the_shell(tmp_path: Path) -> None:
    job = guest.Job(["true"], tmp_path, {}, reports=Path("/a b/it's; exit"), interactive=True)
    script = guest.settings(job, has_siw=False) + 'printf "%s|%s" "$REPORTS" "$INTERACTIVE"'
    assert subprocess.run(["sh"], input=script, capture_output=True, text=True).stdout == "/a b/it's; exit|yes"


def test_commas_in_paths_do_not_end_a_qemu_option() -> None:
    channels = machine.Channels(Path("/r,1/console"), Path("/s"), output=3, terminal=False)
    hardware = machine.Machine(1024, 2, "tcg")
    command = machine.qemu_command(hardware, Path("/k"), Path("/i"), Path("/r,1"), channels)
    assert "file,id=console,path=/r,,1/console" in command
    assert "local,path=/r,,1,mount_tag=reports,security_model=none,multidevs=remap" in command


def fake_guest(script: str, limit: float, tmp_path: Path) -> int:
    """machine.run() with a shell script, given the channels in $CONSOLE, $STATUS and $OUTPUT, in the place of QEMU."""

    def command(channels: machine.Channels) -> list[str]:
        names = [f"CONSOLE={channels.console}", f"STATUS={channels.status}", f"OUTPUT=/proc/self/fd/{channels.output}"]
        return ["env", *names, "sh", "-c", script]

    limits = machine.Limits(boot=limit, command=limit)
    return machine.run(command, tmp_path / "console", tmp_path / "status", terminal=False, limits=limits)


@pytest.mark.parametrize("status", [0, 1, 5, 255])
def test_output_and_status_of_the_command_come_back(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], status: int
) -> None:
    script = f"echo started >>$STATUS; printf 'a\\r\\n\\377' >$OUTPUT; echo exit {status} >>$STATUS"
    assert fake_guest(script, 60, tmp_path) == status
    assert capfdbinary.readouterr().out == b"a\r\n\xff"


def test_a_panic_is_reported_with_its_cause_and_the_end_of_the_console(tmp_path: Path) -> None:
    script = (
        "echo started >>$STATUS; printf 'first line\\r\\n' >$CONSOLE; "
        "echo '[1.0] Kernel panic - not syncing: boo' >>$CONSOLE; seq 100 >>$CONSOLE"
    )
    with pytest.raises(machine.GuestDied) as died:
        fake_guest(script, 60, tmp_path)
    lines = str(died.value).splitlines()
    assert lines[0] == "the guest ended while its command ran: Kernel panic - not syncing: boo"
    assert lines[-1].strip() == "100"
    assert len(lines) == 2 + machine.CONSOLE_TAIL_LINES


def test_an_init_that_gives_up_is_reported_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(machine.GuestDied, match="before its command started: guest-init: cannot load 9p\n"):
        fake_guest("echo 'guest-init: cannot load 9p' >$CONSOLE", 60, tmp_path)


def test_a_guest_that_does_not_boot_is_ended_and_reported(tmp_path: Path) -> None:
    with pytest.raises(machine.GuestHung, match=r"did not start its command within 0\.2 s\n(.*\n)+.*last words"):
        fake_guest("echo last words >$CONSOLE; exec sleep 1000", 0.2, tmp_path)


def test_a_command_that_does_not_end_is_ended_and_reported(tmp_path: Path) -> None:
    with pytest.raises(machine.GuestHung, match=r"the command did not end within 0\.2 s\n"):
        fake_guest("echo started >>$STATUS; exec sleep 1000", 0.2, tmp_path)


def test_what_is_missing_is_named_with_the_command_that_gets_it() -> None:
    missing = ["qemu-system-x86_64", host.STATIC_BUSYBOX]
    assert host.missing_message(missing, "apt-get").endswith("apt-get install busybox-static qemu-system-x86")
    assert host.missing_message(missing, "dnf").endswith("dnf install busybox qemu-system-x86-core")
    assert host.missing_message(missing, "zypper").endswith("zypper install busybox-static qemu-x86")
    assert "qemu-system-x86_64, static busybox;" in host.missing_message(missing, None)


def test_all_missing_tools_are_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(
        host.VmError, match=r"missing on this machine: qemu-system-x86_64, static busybox, ip, rdma, setpriv"
    ):
        host.find_tools()


def test_a_program_with_an_interpreter_is_not_static() -> None:
    header = b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<2H", 56, 2)
    header = header.ljust(64, b"\0")
    load, interpreter = (struct.pack("<I", kind) + bytes(52) for kind in (1, 3))
    assert host.is_static(header + load + load)
    assert not host.is_static(header + load + interpreter)
    assert not host.is_static(b"#!/bin/sh\n")
    assert not host.is_static(Path(sys.executable).read_bytes())


def test_what_follows_the_dashes_goes_to_pytest_unchanged() -> None:
    options = command_line.parse(["--memory", "512", "--", "-k", "read", "--", "--shell"])
    command = command_line.command(options)
    assert command[:3] == [sys.executable, "-m", "pytest"]
    assert command[-4:] == ["-k", "read", "--", "--shell"]


def test_the_suite_is_run_on_the_devices_of_the_guest() -> None:
    (option,) = [word for word in command_line.command(command_line.parse([])) if word.startswith("--providers=")]
    rxe, siw = config.load(Path(option.partition("=")[2])).providers.values()
    assert rxe.devices == ("rxe0", "rxe1")
    assert siw.devices == ("siw*",)  # not every kernel has it
    assert {rxe.null_mr, siw.null_mr} == {"absent"}


def test_the_guest_looks_for_no_plugins_and_has_the_one_it_needs() -> None:
    command = command_line.command(command_line.parse([]))
    assert command[command.index("-p") + 1] == "xdist"
    assert command_line.environment()["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"


def test_a_command_of_ones_own_is_run_as_it_is() -> None:
    assert command_line.command(command_line.parse(["--exec", "--", "uname", "-r"])) == ["uname", "-r"]


def test_the_environment_is_this_ones_but_lets_python_keep_what_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "128")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    variables = command_line.environment()
    assert variables["SOMETHING"] == "128"
    assert "PYTHONDONTWRITEBYTECODE" not in variables


def test_of_what_providers_read_the_guest_has_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLX5_CQE_SIZE", "IBV_FORK_SAFE", "RDMAV_FORK_SAFE"):
        monkeypatch.setenv(name, "1")
    options = command_line.parse(["--env", "RDMAV_FORK_SAFE", "--env", "MLX5_SCATTER_TO_CQE=0"])
    variables = command_line.environment(options.env)
    found = {name: value for name, value in variables.items() if command_line.PROVIDERS.match(name)}
    assert found == {"RDMAV_FORK_SAFE": "1", "MLX5_SCATTER_TO_CQE": "0"}


def test_what_is_held_back_is_mentioned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in os.environ if command_line.PROVIDERS.match(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLX5_CQE_SIZE", "128")
    monkeypatch.setenv("IBV_FORK_SAFE", "1")
    command_line.mention_held_back(command_line.environment(["IBV_FORK_SAFE"]))
    assert capsys.readouterr().err == "vm: not passed to the guest: MLX5_CQE_SIZE (--env NAME passes one on)\n"
    command_line.mention_held_back(command_line.environment(["IBV_FORK_SAFE", "MLX5_CQE_SIZE"]))
    assert capsys.readouterr().err == ""


def test_what_only_emulation_needs_is_left_to_emulation() -> None:
    channels = machine.Channels(Path("/c"), Path("/s"), output=3, terminal=False)
    tcg, kvm = (
        machine.qemu_command(machine.Machine(1024, 2, accelerator), Path("/k"), Path("/i"), Path("/r"), channels)
        for accelerator in ("tcg", "kvm")
    )
    assert any("mitigations=off" in word for word in tcg)
    assert not any("mitigations=off" in word for word in kvm)
    assert kvm[kvm.index("-cpu") + 1] == "host"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exec"], "--exec: no command follows --"),
        (["--shell", "--", "-k", "x"], "--shell takes no arguments after --"),
        (["--shell", "--exec", "--", "x"], "not allowed with argument"),
        (["--modules", "/m"], "--modules needs --kernel"),
        (["--env", "MLX5_NOT_SET"], "--env MLX5_NOT_SET: not set here"),
        (["--env", "=1"], "--env =1: not set here"),
        (["--cpus", "0"], "--cpus"),
        (["--memory", "1G"], "--memory"),
        (["-k", "read"], "unrecognized arguments: -k read"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command_line.parse(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(host.VmError("x"), 69), (machine.GuestDied("x"), 70), (machine.GuestHung("x"), 124)]
)
def test_each_way_to_have_no_verdict_has_its_own_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: host.VmError, status: int
) -> None:
    def boot(options: object) -> int:
        raise error

    monkeypatch.setattr(command_line, "boot", boot)
    assert command_line.main([]) == status
    assert capsys.readouterr().err == "vm: x\n"
