# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the verbs create: one class each, named and with fields named as in infiniband/verbs.h."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from . import abi

if TYPE_CHECKING:
    from .device import Device

SIZE_MAX = 2**64 - 1


class SGE(NamedTuple):
    """A scatter/gather element: `length` bytes at `addr` of the MR with this lkey."""

    addr: int
    length: int
    lkey: int


# eventfd(2), which the os module has from Python 3.10 on.
_libc = ctypes.CDLL(None, use_errno=True)
_EFD_SEMAPHORE = 1
_ONE = (1).to_bytes(8, sys.byteorder)


def _checked(result: int) -> int:
    """What a C function returned. Raises OSError if that is -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class EventQueue:
    """Events that a program waits for, with a file descriptor that is readable while there are any (ibv_get_cq_event,
    ibv_get_async_event)."""

    def __init__(self) -> None:
        self.fd = _checked(_libc.eventfd(0, os.O_CLOEXEC | _EFD_SEMAPHORE))
        self._events: deque[tuple[Any, ...]] = deque()
        self._lock = threading.Lock()

    def put(self, *event: Any) -> None:
        with self._lock:
            self._events.append(event)
            os.write(self.fd, _ONE)

    def get(self) -> tuple[Any, ...]:
        """The oldest event; waits for one, unless the descriptor is non-blocking: then BlockingIOError."""
        self._take()
        with self._lock:
            return self._events.popleft()

    def _take(self) -> None:
        """A signal ends the wait with InterruptedError; os.read would go on waiting once its handler has run."""
        _checked(_libc.read(self.fd, ctypes.create_string_buffer(len(_ONE)), len(_ONE)))

    def forget(self, item: object) -> None:
        """Drop the events about an object that is destroyed."""
        with self._lock:
            kept = [event for event in self._events if item not in event]
            dropped = len(self._events) - len(kept)
            self._events = deque(kept)
            for _ in range(dropped):
                self._take()

    def close(self) -> None:
        os.close(self.fd)


@dataclass(eq=False)
class Context:
    """An open device. `objects` are those of this context that live, oldest first: closing destroys them."""

    device: Device
    events: EventQueue = field(default_factory=EventQueue)
    objects: dict[object, None] = field(default_factory=dict)


@dataclass(eq=False)
class PD:
    context: Context
    handle: int
    parent: PD | None = None
    """Set for a parent domain and for an imported PD: the PD whose memory it shares."""
    imported: bool = False
    users: set[object] = field(default_factory=set)
    """The objects that keep the PD from being deallocated."""


@dataclass(eq=False)
class MR:
    """A memory region: keys for `length` bytes of the program's memory at `addr`, named `iova` in SGEs and WRs."""

    pd: PD
    addr: int
    length: int
    iova: int
    access: int
    lkey: int
    rkey: int
    handle: int
    null: bool = False
    names_context: bool = True
    """Is `context` of struct ibv_mr set?"""
    windows: set[MW] = field(default_factory=set)

    def covers(self, address: int, length: int) -> bool:
        return self.iova <= address and address + length <= self.iova + self.length

    def virtual(self, address: int) -> int:
        """Where in the program's memory an address in an SGE is."""
        return self.addr + address - self.iova


@dataclass(eq=False)
class MW:
    """A memory window: opens `length` bytes at `addr` of an MR to peers, once it is bound."""

    pd: PD
    type: int
    rkey: int
    handle: int
    mr: MR | None = None
    addr: int = 0
    """What peers call its first byte: its address in the MR, or 0 (IBV_ACCESS_ZERO_BASED)."""
    bound_at: int = 0
    """Its first byte's address in the MR."""
    length: int = 0
    access: int = 0
    qp: QP | None = None
    """The only queue pair by which a bound window of type 2 can be used."""

    def covers(self, address: int, length: int) -> bool:
        return self.addr <= address and address + length <= self.addr + self.length


@dataclass
class SendWR:
    """A send work request, with what its opcode needs; see ibv_post_send(3)."""

    wr_id: int
    opcode: int
    flags: int
    sges: list[SGE]
    imm_data: int = 0
    """As it lies in memory: network order. For SEND_WITH_INV and LOCAL_INV the rkey to invalidate."""
    inline: bytes | None = None
    remote_addr: int = 0
    rkey: int = 0
    compare_add: int = 0
    swap: int = 0
    ah: AH | None = None
    remote_qpn: int = 0
    remote_qkey: int = 0
    remote_srqn: int = 0
    mw: MW | None = None
    bind_mr: MR | None = None
    bind_addr: int = 0
    bind_length: int = 0
    bind_access: int = 0
    extended: bool = False
    """Posted by ibv_wr_start(3) and its family, not by ibv_post_send(3)."""
    index: int = 0
    """Its number on its queue."""


@dataclass
class RecvWR:
    wr_id: int
    sges: list[SGE]


@dataclass(eq=False)
class CQE:
    """A completion, as ibv_poll_cq(3) and ibv_create_cq_ex(3) describe it."""

    wr_id: int
    status: int
    opcode: int
    qp: QP
    byte_len: int = 0
    imm_data: int = 0
    src_qp: int = 0
    wc_flags: int = 0
    vendor_err: int = 0
    pkey_index: int = 0
    slid: int = 0
    sl: int = 0
    dlid_path_bits: int = 0
    timestamp: int = 0
    """Nanoseconds since the epoch."""
    send_index: int | None = None
    """For the send queue: every WR up to this one is done with."""


@dataclass(eq=False)
class CQ:
    context: Context
    handle: int
    cqe: int
    channel: EventQueue | None = None
    extended: bool = False
    """Made by ibv_create_cq_ex(3)."""
    entries: deque[CQE] = field(default_factory=deque)
    armed: int = 0
    """0 no, 1 for any completion, 2 for a solicited one or an error (ibv_req_notify_cq(3))."""
    overrun: bool = False
    users: set[object] = field(default_factory=set)


@dataclass(eq=False)
class ReceiveQueue:
    """Receive work requests that wait for messages, and the senders that wait for them."""

    max_wr: int
    max_sge: int
    entries: deque[RecvWR] = field(init=False, default_factory=deque)
    waiting: dict[QP, None] = field(init=False, default_factory=dict)


@dataclass(eq=False)
class SRQ(ReceiveQueue):
    pd: PD
    handle: int
    limit: int = 0
    type: int = abi.SRQT_BASIC
    number: int = 0
    xrcd: XRCD | None = None
    cq: CQ | None = None
    users: set[object] = field(default_factory=set)


@dataclass(eq=False)
class XRCD:
    """An XRC domain: XRC receive queue pairs and SRQs that belong together."""

    key: object
    opens: int = 0
    users: set[object] = field(default_factory=set)


@dataclass(frozen=True)
class GID:
    raw: bytes
    type: int


@dataclass(frozen=True)
class AddressVector:
    """struct ibv_ah_attr with its GRH."""

    port_num: int = 0
    is_global: int = 0
    dgid: bytes = bytes(16)
    sgid_index: int = 0
    hop_limit: int = 0
    traffic_class: int = 0
    flow_label: int = 0
    dlid: int = 0
    sl: int = 0
    src_path_bits: int = 0
    static_rate: int = 0


@dataclass(eq=False)
class AH:
    pd: PD
    handle: int
    av: AddressVector


@dataclass(frozen=True)
class Capabilities:
    """struct ibv_qp_cap."""

    max_send_wr: int = 0
    max_recv_wr: int = 0
    max_send_sge: int = 0
    max_recv_sge: int = 0
    max_inline_data: int = 0


@dataclass(eq=False)
class QP:
    context: Context
    pd: PD | None
    """None for an XRC receive queue pair."""
    handle: int
    qp_num: int
    qp_type: int
    cap: Capabilities
    send_cq: CQ | None
    recv_cq: CQ | None
    srq: SRQ | None
    xrcd: XRCD | None
    sq_sig_all: bool
    rq: ReceiveQueue
    extended: bool = False
    state: int = abi.QPS_RESET
    attr: dict[str, Any] = field(default_factory=dict)
    """What ibv_modify_qp(3) set, by the field names of struct ibv_qp_attr."""
    access_flags: int = 0
    sq: deque[SendWR] = field(default_factory=deque)
    posted: int = 0
    """Send WRs posted so far."""
    done: int = 0
    """Of those, how many no longer take room in the send queue: a completion at or behind them was polled."""
    waits_on: ReceiveQueue | None = None
    windows: set[MW] = field(default_factory=set)
    users: set[object] = field(default_factory=set)
    opens: int = 1
    """ibv_create_qp_ex and each ibv_open_qp of an XRC receive queue pair; the last to be destroyed ends it."""
    peer: QP | None = None
    """Found by the address vector; cached while connected."""

    @property
    def device(self) -> Device:
        return self.context.device

    @property
    def reliable(self) -> bool:
        return self.qp_type not in (abi.QPT_UC, abi.QPT_UD)


@dataclass
class Transfer:
    """Where bytes move: one side of one message. Faults look here to be wrong on one path only.

    `requester` is the side that posted the send WR, and `wr` that WR on either side; `recv` is the receive WR at a
    responder that consumed one. `length` is that of the message in bytes, the GRH area of UD included on delivery.
    """

    qp: QP
    wr: SendWR
    requester: bool
    pd: PD
    length: int = 0
    recv: RecvWR | None = None
    srq: SRQ | None = None
    cq: CQ | None = None

    @property
    def opcode(self) -> int:
        return self.wr.opcode

    @property
    def with_imm(self) -> bool:
        return self.wr.opcode in (abi.WR_SEND_WITH_IMM, abi.WR_RDMA_WRITE_WITH_IMM)

    @property
    def transport(self) -> int:
        """The type of the queue pair (enum ibv_qp_type)."""
        return self.qp.qp_type


@dataclass
class Segment:
    """One SGE of a transfer: its place in the list and, in bytes, in the message. `length` is what is moved."""

    addr: int
    length: int
    lkey: int
    index: int
    offset: int
