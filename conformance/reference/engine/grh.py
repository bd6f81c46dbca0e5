# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The 40 bytes in front of a UD message: a global route header, or for RoCE v2 over IPv4 an IPv4 header in its
last 20 bytes (IBTA 8.3, A17.4.5.2)."""

from __future__ import annotations

import struct

from . import abi
from .objects import GID, AddressVector

LENGTH = 40
_NEXT_HEADER_BTH = 0x1B
_UDP = 17
_IPV4_MAPPED = bytes(10) + b"\xff\xff"


def build(sgid: GID, av: AddressVector, length: int) -> bytes:
    """The header of a message of `length` bytes to the destination of `av`."""
    if sgid.type == abi.GID_TYPE_ROCE_V2 and sgid.raw.startswith(_IPV4_MAPPED):
        header = struct.pack(
            ">BBHHHBBH4s4s",
            0x45,
            av.traffic_class,
            LENGTH // 2 + length,
            0,
            0x4000,
            av.hop_limit,
            _UDP,
            0,
            sgid.raw[12:],
            av.dgid[12:],
        )
        return bytes(20) + header[:10] + struct.pack(">H", _checksum(header)) + header[12:]
    first = 6 << 28 | av.traffic_class << 20 | av.flow_label
    return struct.pack(">IHBB16s16s", first, length, _NEXT_HEADER_BTH, av.hop_limit, sgid.raw, av.dgid)


def parse(header: bytes) -> tuple[bytes, bytes, int, int, int]:
    """Source GID, destination GID, traffic class, flow label, hop limit."""
    ipv4 = header[20:]
    if ipv4[0] >> 4 == 4 and _checksum(ipv4) == 0:
        return _IPV4_MAPPED + ipv4[12:16], _IPV4_MAPPED + ipv4[16:20], ipv4[1], 0, ipv4[8]
    first, _, _, hop_limit, sgid, dgid = struct.unpack(">IHBB16s16s", header)
    return sgid, dgid, first >> 20 & 0xFF, first & 0xFFFFF, hop_limit


def _checksum(header: bytes) -> int:
    total: int = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
