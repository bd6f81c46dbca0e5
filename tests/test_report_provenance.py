# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What is told of the circumstances, from made-up file systems."""

import hashlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import elf
from conformance.device import Gid, OpenedDevice, Pkey, Place, Port
from conformance.inventory import Target
from conformance.report import provenance
from tests.made_up import LIMITS

GID = Gid(3, "0000:0000:0000:0000:0000:ffff:c000:0201", "RoCE v2")
PORT = Port(1, "ACTIVE", "ETHERNET", 0, 1024, 1 << 30, (GID,))
DEVICE = OpenedDevice("mlx5_0", "mlx5", "IB", "28.39.1002", 0x15B3, 4129, (PORT,), (), Place(), LIMITS)
TARGET = Target("lab", DEVICE, PORT, "required", 10, (), "", GID, Pkey(0, 0xFFFF))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """/sys/class/infiniband with mlx5_0 at 0000:17:00.0 on eth2."""
    infiniband = tmp_path / "class" / "infiniband"
    pci = tmp_path / "devices" / "0000:17:00.0"
    pci.mkdir(parents=True)
    write(infiniband / "mlx5_0" / "board_id", "MT_0000000838\n")
    write(infiniband / "mlx5_0" / "ports" / "1" / "gid_attrs" / "ndevs" / "3", "eth2\n")
    (infiniband / "mlx5_0" / "device").symlink_to(pci)
    (tmp_path / "class" / "net" / "eth2").mkdir(parents=True)
    return infiniband


def pci(sysfs: Path) -> Path:
    return (sysfs / "mlx5_0" / "device").resolve()


def test_a_device_is_told_with_board_address_and_netdev(sysfs: Path, tmp_path: Path) -> None:
    facts = provenance.target_facts(TARGET, sysfs, tmp_path / "module")
    assert (facts.id, facts.firmware, facts.vendor_id, facts.mtu) == ("mlx5_0/1", "28.39.1002", 0x15B3, 1024)
    assert (facts.gid_index, facts.gid_type, facts.gid) == (3, "RoCE v2", GID.gid)
    assert (facts.board_id, facts.pci_address, facts.netdev) == ("MT_0000000838", "0000:17:00.0", "eth2")
    assert (facts.function, facts.bond, facts.driver_version) == ("PF", "", "")
    assert not facts.simulated


def test_virtual_functions_are_told_on_both_sides(sysfs: Path) -> None:
    write(pci(sysfs) / "sriov_numvfs", "4\n")
    assert provenance.target_facts(TARGET, sysfs).function == "PF with 4 VFs"
    (pci(sysfs) / "physfn").mkdir()
    assert provenance.target_facts(TARGET, sysfs).function == "VF"


def test_a_bond_is_told_for_its_members_and_for_itself(sysfs: Path) -> None:
    net = sysfs.parent / "net"
    write(net / "bond0" / "bonding" / "mode", "802.3ad 4\n")
    (net / "eth2" / "master").symlink_to(net / "bond0")
    assert provenance.target_facts(TARGET, sysfs).bond == "bond0 (802.3ad)"
    write(sysfs / "mlx5_0" / "ports" / "1" / "gid_attrs" / "ndevs" / "3", "bond0\n")
    assert provenance.target_facts(TARGET, sysfs).bond == "bond0 (802.3ad)"


def test_a_netdev_in_a_bridge_is_in_no_bond(sysfs: Path) -> None:
    net = sysfs.parent / "net"
    (net / "br0" / "bridge").mkdir(parents=True)
    (net / "eth2" / "master").symlink_to(net / "br0")
    assert provenance.target_facts(TARGET, sysfs).bond == ""


def test_a_software_device_has_a_netdev_and_no_pci_function(tmp_path: Path) -> None:
    write(tmp_path / "infiniband" / "mlx5_0" / "parent", "eth0\n")
    facts = provenance.target_facts(TARGET, tmp_path / "infiniband")
    assert (facts.netdev, facts.pci_address, facts.function) == ("eth0", "", "")


def test_nothing_of_this_machine_is_told_of_a_simulated_device(sysfs: Path) -> None:
    simulated = replace(TARGET, device=replace(DEVICE, driver="reference"))
    facts = provenance.target_facts(simulated, sysfs)
    assert facts.simulated
    assert (facts.pci_address, facts.netdev, facts.board_id, facts.driver_version) == ("", "", "", "")


@pytest.mark.parametrize(
    ("module", "files", "driver", "version"),
    [
        ("mlx5_ib", {"version": "24.10", "srcversion": "AB"}, "mlx5", "mlx5_ib 24.10"),
        ("rdma_rxe", {"srcversion": "AB"}, "rxe", "rdma_rxe srcversion AB"),
        ("irdma", {}, "irdma", "irdma built in"),
        ("mlx4_ib", {}, "mlx5", ""),
    ],
)
def test_the_module_of_a_driver_is_told_with_its_version(
    module: str, files: dict[str, str], driver: str, version: str, tmp_path: Path
) -> None:
    (tmp_path / module).mkdir()
    for name, text in files.items():
        write(tmp_path / module / name, text + "\n")
    assert provenance.driver_version(driver, tmp_path) == version


@pytest.mark.parametrize(("value", "words"), [(0, "0"), (1, "1 (P)"), (4097, "4097 (P O)"), (1 << 18, "262144 (N)")])
def test_taint_is_told_in_numbers_and_letters(value: int, words: str) -> None:
    assert provenance.taint_in_words(value) == words


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('NAME="AlmaLinux"\nPRETTY_NAME="AlmaLinux 9.4 (Seafoam Ocelot)"\n', "AlmaLinux 9.4 (Seafoam Ocelot)"),
        ("PRETTY_NAME=Alpine\n", "Alpine"),
        ("ID=plan9\n", ""),
    ],
)
def test_the_distribution_is_told_by_its_pretty_name(text: str, name: str, tmp_path: Path) -> None:
    write(tmp_path / "os-release", text)
    assert provenance.system_name(tmp_path / "os-release") == name
    assert provenance.system_name(tmp_path / "none") == ""


def test_libraries_are_those_that_are_mapped_links_followed(tmp_path: Path) -> None:
    real = tmp_path / "libmlx5.so.1.24.44.0"
    real.touch()
    link = tmp_path / "libmlx5-rdmav34.so"
    link.symlink_to(real)
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 1   /usr/lib/libc.so.6\n"
        f"7f02-7f03 r-xp 00000000 08:01 2   {link}\n"
        f"7f03-7f04 rw-p 00000000 08:01 2   {link}\n"
        "7f05-7f06 rw-p 00000000 00:00 0 \n"
        "7f07-7f08 rw-p 00000000 00:00 0   [stack]\n"
    )
    found = {library.name: library for library in provenance.libraries(maps)}
    assert found.keys() == {"libmlx5-rdmav34", "pyverbs"}
    assert found["libmlx5-rdmav34"].path == str(real)
    assert found["libmlx5-rdmav34"].package == ""


def test_pyverbs_is_told_with_its_package_where_there_is_dpkg_or_rpm() -> None:
    (pyverbs,) = (library for library in provenance.libraries() if library.name == "pyverbs")
    assert Path(pyverbs.path, "__init__.py").exists()
    assert pyverbs.package == "" or re.match(r"\S*pyverbs \d+\.", pyverbs.package)


def compiled(path: Path, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-o", path, *options, "-x", "c", "-"], input=b"int x;", check=True)
    return path


def test_a_library_is_told_by_its_build_id(tmp_path: Path) -> None:
    first = compiled(tmp_path / "libmlx5.so", "-Wl,--build-id=0x0123456789abcdef0123456789abcdef01234567")
    assert elf.build_id(first) == "0123456789abcdef0123456789abcdef01234567"
    maps = tmp_path / "maps"
    maps.write_text(f"7f02-7f03 r-xp 00000000 08:01 2   {first}\n")
    [library] = (library for library in provenance.libraries(maps) if library.name == "libmlx5")
    assert library.build_id == "0123456789abcdef0123456789abcdef01234567"


def test_without_a_build_id_a_library_is_told_by_its_bytes(tmp_path: Path) -> None:
    plain = compiled(tmp_path / "plain.so", "-Wl,--build-id=none")
    assert elf.build_id(plain) == f"sha256:{hashlib.sha256(plain.read_bytes()).hexdigest()}"


def test_pyverbs_is_told_by_the_build_ids_of_all_its_modules(tmp_path: Path) -> None:
    modules = [tmp_path / "pyverbs" / name for name in ("mr.cpython-311.so", "providers/mlx5/mlx5dv.so")]
    told = set()
    for ids in (("0x01", "0x02"), ("0x01", "0x03"), ("0x02", "0x01")):
        for at, wanted in enumerate(ids):
            compiled(modules[at], f"-Wl,--build-id={wanted}")
        told.add(elf.build_id(tmp_path / "pyverbs"))
    assert len(told) == 3
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in told)


def test_what_is_no_library_has_no_build_id(tmp_path: Path) -> None:
    write(tmp_path / "text.so", "/* GNU ld script */")
    (tmp_path / "folder").mkdir()
    assert [elf.build_id(tmp_path / name) for name in ("text.so", "folder", "gone.so")] == ["", "", ""]


@pytest.mark.parametrize("name", ["MLX5_SCATTER_TO_CQE", "RDMAV_FORK_SAFE", "IBV_SHOW_WARNINGS", "LD_PRELOAD"])
def test_variables_that_verbs_read_are_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    told = provenance.machine("0").variables
    assert told[name] == "x"
    assert "AWS_SECRET_ACCESS_KEY" not in told


def test_a_command_that_takes_too_long_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance._output("echo", "told") == "told"
    monkeypatch.setattr(provenance, "PATIENCE", 0.01)
    assert provenance._output("sleep", "60") == ""
