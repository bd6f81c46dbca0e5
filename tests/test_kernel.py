# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the kernel tells of its RDMA devices, from answers made up here."""

import socket
import struct
from pathlib import Path

import pytest

from conformance import kernel

MLX5, RXE = 1, 14  # RDMA_DRIVER_MLX5, RDMA_DRIVER_RXE


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, 0, 0) + payload


DONE = message(3, struct.pack("=i", 0))
REFUSED = message(2, struct.pack("=i", -22) + bytes(16))


def a_device(index: int, name: bytes) -> bytes:
    return message((5 << 10) + 1, attribute(1, struct.pack("=I", index)) + attribute(2, name + b"\0"))


def a_chardev(driver: int) -> bytes:
    """RDMA_NLDEV_ATTR_CHARDEV_NAME and RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, among what the kernel sends."""
    return message((5 << 10) + 15, attribute(70, b"uverbs0\0") + attribute(73, struct.pack("=I", driver)))


class Answers:
    """Stands in for the netlink socket: each recv gives the next answer, each send is kept."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.sent: list[bytes] = []

    def __call__(self, family: int, kind: int, protocol: int) -> "Answers":
        assert (family, protocol) == (socket.AF_NETLINK, 20)
        return self

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.answers == []

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def send(self, datagram: bytes) -> None:
        self.sent.append(datagram)

    def recv(self, size: int) -> bytes:
        return self.answers.pop(0)


def ask(monkeypatch: pytest.MonkeyPatch, *answers: bytes) -> tuple[dict[str, str], list[bytes]]:
    fake = Answers(*answers)
    monkeypatch.setattr(socket, "socket", fake)
    return kernel.device_drivers(), fake.sent


def test_each_device_is_asked_for_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found, sent = ask(
        monkeypatch,
        a_device(3, b"mlx5_0") + a_device(4, b"a_rather_long_name"),
        DONE,
        a_chardev(MLX5),
        a_chardev(RXE),
    )
    assert found == {"mlx5_0": "mlx5", "a_rather_long_name": "rxe"}
    assert sent == [
        struct.pack("=IHHII", 16, (5 << 10) + 1, 0x301, 0, 0),
        struct.pack("=IHHII", 36, (5 << 10) + 15, 1, 0, 0)
        + attribute(1, struct.pack("=I", 3))
        + attribute(69, b"uverbs\0"),
        struct.pack("=IHHII", 36, (5 << 10) + 15, 1, 0, 0)
        + attribute(1, struct.pack("=I", 4))
        + attribute(69, b"uverbs\0"),
    ]


def test_a_device_without_uverbs_is_left_to_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = ask(monkeypatch, a_device(3, b"mlx5_0") + a_device(4, b"rxe0"), DONE, REFUSED, a_chardev(RXE))
    assert found == {"rxe0": "rxe"}


def test_a_driver_newer_than_the_suite_is_given_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = ask(monkeypatch, a_device(3, b"new0") + DONE, a_chardev(200))
    assert found == {"new0": "driver-id-200"}


def test_a_kernel_without_rdma_netlink_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(socket, "socket", refuse)
    assert kernel.device_drivers() == {}


def test_a_kernel_that_stops_answering_has_told_what_it_has_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(a_device(3, b"mlx5_0") + a_device(4, b"rxe0"), DONE, a_chardev(MLX5))

    def time_out(size: int) -> bytes:
        if not answers.answers:
            raise TimeoutError
        return answers.answers.pop(0)

    monkeypatch.setattr(answers, "recv", time_out)
    monkeypatch.setattr(socket, "socket", answers)
    assert kernel.device_drivers() == {"mlx5_0": "mlx5"}


def test_devices_are_listed_by_name(tmp_path: Path) -> None:
    names = [f"mlx5_{number}" for number in range(10)]
    for name in [*names[5:], *names[:5]]:
        (tmp_path / name).mkdir()
    assert kernel.device_names(tmp_path) == names


def test_a_kernel_without_rdma_has_no_devices(tmp_path: Path) -> None:
    assert kernel.device_names(tmp_path / "none") == []


def test_places_are_what_sysfs_tells(tmp_path: Path) -> None:
    function = tmp_path / "devices" / "0000:5e:00.0"
    (function / "net" / "ens1f0").mkdir(parents=True)
    gids = tmp_path / "mlx5_0" / "ports" / "1" / "gid_attrs" / "ndevs"
    gids.mkdir(parents=True)
    (gids / "0").write_text("bond0\n")
    (gids / "1").mkdir()  # cannot be read, as an entry that is empty
    (tmp_path / "mlx5_0" / "device").symlink_to(function)
    (tmp_path / "rxe0").mkdir()
    (tmp_path / "rxe0" / "parent").write_text("eth7\n")
    assert kernel.pci_address("mlx5_0", tmp_path) == "0000:5e:00.0"
    assert kernel.netdevs("mlx5_0", tmp_path) == ("bond0", "ens1f0")
    assert (kernel.pci_address("rxe0", tmp_path), kernel.netdevs("rxe0", tmp_path)) == ("", ("eth7",))


def a_port(number: int, *netdev: bytes) -> bytes:
    """RDMA_NLDEV_ATTR_PORT_INDEX and, if it has one, RDMA_NLDEV_ATTR_NDEV_NAME."""
    names = b"".join(attribute(51, name + b"\0") for name in netdev)
    return message((5 << 10) + 5, attribute(3, struct.pack("=I", number)) + names)


def test_each_device_is_asked_for_the_netdevs_of_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Answers(
        *(a_device(0, b"siw0") + a_device(1, b"mlx4_0") + a_device(2, b"ib0"), DONE),
        *(a_port(1, b"eth0") + DONE, a_port(1, b"eth1") + a_port(2, b"eth2") + DONE, a_port(1) + DONE),
    )
    monkeypatch.setattr(socket, "socket", fake)
    assert kernel.port_netdevs() == {"siw0": ("eth0",), "mlx4_0": ("eth1", "eth2")}
    assert fake.sent[1] == struct.pack("=IHHII", 24, (5 << 10) + 5, 0x301, 0, 0) + attribute(1, bytes(4))


def test_a_kernel_that_refuses_tells_no_netdevs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Answers(a_device(0, b"siw0"), DONE, REFUSED))
    assert kernel.port_netdevs() == {}
