# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""RDMA netlink (<rdma/rdma_netlink.h>): which devices there are, whose driver they have, and who holds what."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from conformance.reference.engine import abi
from conformance.reference.engine.objects import CQ, MR, PD, QP, SRQ

from .device import ConnectX
from .sysfs import UVERBS_FIRST_MINOR, UVERBS_MAJOR
from .uverbs import File

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port id
_MULTI, _ACK, _DUMP = 0x2, 0x4, 0x300
_ERROR, _DONE = 2, 3
_NLDEV = 5 << 10

# enum rdma_nldev_command
_GET, _SYS_GET, _RES_GET, _GET_CHARDEV = 1, 6, 9, 15
_RES_KINDS: dict[int, tuple[type[Any], int]] = {10: (QP, 19), 12: (CQ, 35), 13: (MR, 40), 14: (PD, 46), 23: (SRQ, 88)}
"""What each RES_*_GET asks for, and the attribute that is the table of them; the next number is that of its entries."""

# enum rdma_nldev_attr
_DEV_INDEX, _DEV_NAME, _PORT_INDEX, _CAP_FLAGS, _FW_VERSION, _NODE_GUID, _SYS_IMAGE_GUID = 1, 2, 3, 4, 5, 6, 7
_DEV_NODE_TYPE, _RES_SUMMARY, _RES_SUMMARY_ENTRY, _RES_SUMMARY_NAME, _RES_SUMMARY_CURRENT = 14, 15, 16, 17, 18
_RES_LQPN, _RES_SQ_PSN, _RES_TYPE, _RES_STATE, _RES_PID = 21, 24, 26, 27, 28
_RES_CQE, _RES_USECNT, _RES_RKEY, _RES_LKEY, _RES_MRLEN = 37, 38, 42, 43, 45
_RES_PDN, _RES_CQN, _RES_MRN, _RES_SRQN = 60, 61, 62, 90
_DEV_PROTOCOL, _CHARDEV_NAME, _CHARDEV_ABI, _CHARDEV, _UVERBS_DRIVER_ID = 67, 70, 71, 72, 73

_NAMES = {QP: b"qp\0", CQ: b"cq\0", MR: b"mr\0", PD: b"pd\0", SRQ: b"srq\0"}
_DRIVER_MLX5 = 1  # enum rdma_driver_id
_ABI = 1
_ENTRIES = 40
"""In one message, so that it fits into the smallest buffer in use."""


def answers(question: bytes, devices: Sequence[ConnectX], files: Sequence[Sequence[File]]) -> list[bytes]:
    """The packets that answer one question. `files` are those that programs have open, for each device."""
    if len(question) < _HEADER.size:
        return []
    _, kind, flags, sequence, _ = _HEADER.unpack_from(question)
    asked = attributes(question[_HEADER.size :])
    command = kind - _NLDEV
    number = int.from_bytes(asked[_DEV_INDEX], "little") if _DEV_INDEX in asked else None
    if number is not None and number >= len(devices):
        return [_error(sequence, errno.ENODEV)]
    chosen = range(len(devices)) if number is None else [number]

    def packets(payloads: Iterator[bytes]) -> list[bytes]:
        if flags & _DUMP == _DUMP:
            sent = [_message(kind, _MULTI, sequence, payload) for payload in payloads]
            return [*sent, _message(_DONE, _MULTI, sequence, bytes(4))]
        sent = [_message(kind, 0, sequence, payload) for payload in payloads]
        return [*sent, _error(sequence, 0)] if flags & _ACK else sent

    if command == _GET:
        return packets(_device(devices[index]) for index in chosen)
    if command == _SYS_GET:
        return packets(iter([b""]))
    if command == _GET_CHARDEV and number is not None:
        return packets(iter([_chardev(devices[number])]))
    if command == _RES_GET:
        return packets(_summary(devices[index], files[index]) for index in chosen)
    if command in _RES_KINDS and number is not None:
        return packets(_resources(devices[number], files[number], *_RES_KINDS[command]))
    return [_error(sequence, errno.EOPNOTSUPP)]


def _message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags, sequence, 0) + payload


def _error(sequence: int, error: int) -> bytes:
    return _message(_ERROR, 0, sequence, struct.pack("=i16x", -error))


def attributes(payload: bytes) -> dict[int, bytes]:
    found = {}
    while len(payload) >= 4:
        length, kind = struct.unpack_from("=HH", payload)
        found[kind] = payload[4:length]
        payload = payload[max(4, (length + 3) & ~3) :]
    return found


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _nested(kind: int, value: bytes) -> bytes:
    return _attribute(kind | 1 << 15, value)


def _u32(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value & 0xFFFFFFFF))


def _u64(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=Q", value & 2**64 - 1))


def _named(device: ConnectX) -> bytes:
    return _u32(_DEV_INDEX, device.number) + _attribute(_DEV_NAME, device.name.encode() + b"\0")


def _device(device: ConnectX) -> bytes:
    attr = device.attr
    ethernet = device.ports[0].link_layer == abi.LINK_LAYER_ETHERNET
    return (
        _named(device)
        + _u32(_PORT_INDEX, len(device.ports))
        + _u64(_CAP_FLAGS, attr.device_cap_flags)
        + _attribute(_FW_VERSION, attr.fw_ver.encode() + b"\0")
        + _u64(_NODE_GUID, attr.node_guid)
        + _u64(_SYS_IMAGE_GUID, attr.sys_image_guid)
        + _attribute(_DEV_NODE_TYPE, bytes([abi.NODE_CA]))
        + _attribute(_DEV_PROTOCOL, b"roce\0" if ethernet else b"ib\0")
    )


def _chardev(device: ConnectX) -> bytes:
    """The number of the character device in the kernel's huge_encode_dev."""
    minor = UVERBS_FIRST_MINOR + device.number
    return (
        _u64(_CHARDEV, minor & 0xFF | UVERBS_MAJOR << 8 | (minor & ~0xFF) << 12)
        + _u64(_CHARDEV_ABI, _ABI)
        + _attribute(_CHARDEV_NAME, f"uverbs{device.number}\0".encode())
        + _u32(_UVERBS_DRIVER_ID, _DRIVER_MLX5)
    )


def _summary(device: ConnectX, files: Sequence[File]) -> bytes:
    rows = b""
    for kind, name in _NAMES.items():
        count = sum(len(file.of_kind(kind)) for file in files)
        rows += _nested(_RES_SUMMARY_ENTRY, _attribute(_RES_SUMMARY_NAME, name) + _u64(_RES_SUMMARY_CURRENT, count))
    return _named(device) + _nested(_RES_SUMMARY, rows)


def _resources(device: ConnectX, files: Sequence[File], kind: type[Any], table: int) -> Iterator[bytes]:
    rows = []
    for file in files:
        for handle, item in file.of_kind(kind):
            rows.append(_nested(table + 1, _describe(handle, item) + _u32(_RES_PID, file.program.pid)))
    for first in range(0, max(1, len(rows)), _ENTRIES):
        yield _named(device) + _nested(table, b"".join(rows[first : first + _ENTRIES]))


def _describe(handle: int, item: Any) -> bytes:
    if isinstance(item, QP):
        return (
            _u32(_RES_LQPN, item.qp_num)
            + _u32(_RES_SQ_PSN, item.attr.get("sq_psn", 0))
            + _attribute(_RES_TYPE, bytes([item.qp_type]))
            + _attribute(_RES_STATE, bytes([item.state]))
        )
    if isinstance(item, CQ):
        return _u32(_RES_CQE, item.cqe) + _u64(_RES_USECNT, len(item.users)) + _u32(_RES_CQN, handle)
    if isinstance(item, MR):
        keys = _u32(_RES_RKEY, item.rkey) + _u32(_RES_LKEY, item.lkey)
        return keys + _u64(_RES_MRLEN, item.length) + _u32(_RES_MRN, handle)
    if isinstance(item, SRQ):
        return _u32(_RES_SRQN, item.number)
    return _u64(_RES_USECNT, len(item.users)) + _u32(_RES_PDN, handle)
