# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reference devices whose ordinary memory is wrong: --reference-fault=tests.unsound:Garbled.

Nothing can be said of their null MRs: where a check meets what is wrong, the control must find it first.
"""

import os

from conformance.reference.engine import abi
from conformance.reference.engine.device import Device
from conformance.reference.engine.errors import Nak
from conformance.reference.engine.memory import Payload, Piece, as_bytes
from conformance.reference.engine.objects import MR, QP, SGE, Segment, SendWR, Transfer
from conformance.reference.faults.stress import Loaded


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

    def outgoing(self, qp: QP, wr: SendWR) -> Payload:
        payload = super().outgoing(qp, wr)
        is_garbled = wr.inline and len(wr.inline) > self.longer_than
        return Payload(_garbled(bytes(payload))) if is_garbled else payload

    def read_remote(self, transfer: Transfer, mr: MR, segment: Segment) -> Piece:
        piece = super().read_remote(transfer, mr, segment)
        return _garbled(piece) if transfer.length > self.longer_than else piece


class LongGarbled(Garbled):
    """The same, but only in messages that are longer than those by which each kind of link is tried."""

    longer_than = 64


class SmallResultsWrong(Device):
    """With completions of 128 bytes, what those carry for the requester (READs of up to 64 bytes, atomics; RC) is taken
    from the wrong place: libmlx5 before rdma-core 64."""

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        carried = transfer.requester and transfer.length <= 64 and transfer.qp.qp_type == abi.QPT_RC
        if carried and os.environ.get("MLX5_CQE_SIZE") == "128":
            payload = Payload(b"\xcc" * transfer.length)
        super().scatter(transfer, sges, payload)


class NothingRemote(Device):
    """Every rkey is refused, that of ordinary memory too: that one is refused then proves nothing."""

    def find_remote(self, transfer: Transfer, rkey: int, addr: int, length: int, access: int) -> tuple[MR, int]:
        raise Nak(abi.WC_REM_ACCESS_ERR, "no remote access at all")


class FourAtOnce(Device):
    """A receive into a null MR fails where four values meet: SRQ, 33 bytes, a second segment, the last address."""

    def write_null(self, transfer: Transfer, segment: Segment, payload: Payload) -> None:
        if transfer.srq is not None and transfer.length == 33 and segment.offset and segment.addr >> 63:
            raise Nak(abi.WC_REM_OP_ERR, "four at once")
        super().write_null(transfer, segment, payload)


class GarbledUnderLoad(Loaded, Garbled):
    """The same, but only while many queue pairs are at work."""

    def read_ordinary(self, transfer: Transfer, mr: MR, segment: Segment) -> Piece:
        if self.is_loaded(transfer.pd.context):
            return super().read_ordinary(transfer, mr, segment)
        return Device.read_ordinary(self, transfer, mr, segment)
