# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reference devices whose ordinary memory is wrong: --reference-fault=tests.unsound:Garbled.

Nothing can be said of their null MRs: where a check meets what is wrong, the control must find it first.
"""

from conformance.reference.engine import abi
from conformance.reference.engine.device import Device
from conformance.reference.engine.errors import Nak
from conformance.reference.engine.memory import Piece, as_bytes
from conformance.reference.engine.objects import MR, Segment, Transfer


def _garbled(piece: Piece) -> bytes:
    data = bytearray(as_bytes(piece))
    data[0] ^= 0xFF
    return bytes(data)


class Garbled(Device):
    """The first byte of whatever is read from ordinary memory is wrong."""

    longer_than = 0

    def read_ordinary(self, transfer: Transfer, mr: MR, segment: Segment) -> Piece:
        piece = super().read_ordinary(transfer, mr, segment)
        return _garbled(piece) if transfer.length > self.longer_than else piece

    def read_remote(self, transfer: Transfer, mr: MR, segment: Segment) -> Piece:
        piece = super().read_remote(transfer, mr, segment)
        return _garbled(piece) if transfer.length > self.longer_than else piece


class LongGarbled(Garbled):
    """The same, but only in messages that are longer than those by which each kind of link is tried."""

    longer_than = 64


class NothingRemote(Device):
    """Every rkey is refused, that of ordinary memory too: that one is refused then proves nothing."""

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        raise Nak(abi.WC_REM_ACCESS_ERR, "no remote access at all")
