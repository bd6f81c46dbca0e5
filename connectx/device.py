# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The engine as a ConnectX HCA: its queues are in the memory of programs, and its null MR is one mkey for all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.reference.engine import abi
from conformance.reference.engine.attributes import DeviceAttributes, PortAttributes
from conformance.reference.engine.device import Device, Fabric
from conformance.reference.engine.memory import MemoryFault, Payload
from conformance.reference.engine.objects import (
    AH,
    CQ,
    CQE,
    GID,
    MR,
    MW,
    PD,
    QP,
    SGE,
    SRQ,
    AddressVector,
    Context,
    ReceiveQueue,
    Segment,
    SendWR,
    Transfer,
)
from conformance.reference.faults import FAULTS
from conformance.reference.variants import VARIANTS

from . import cqe as entries
from . import wqe
from .memory import ProgramMemory

PCI_VENDOR, PCI_DEVICE = 0x15B3, 0x1017
"""ConnectX-5."""
VENDOR_ID = 0x02C9
"""The OUI, which ibv_query_device(3) reports."""
FIRMWARE = (16, 35, 4030)
_FIRST_GUID = 0x0002_C903_0053_0000
_FIRST_LID = 0x10
MAX_DESCRIPTOR = 1024
"""Bytes: the longest send WQE, and the most inline data is less."""


@dataclass(frozen=True)
class Options:
    """What of the HCA can be chosen."""

    devices: int = 1
    link: str = "roce"
    """or "ib"."""
    cqe_version: int = 1
    null_mkey: bool = True
    small_in_front: bool = True
    """In completions of 128 bytes, messages of 32 bytes and less are in the first half, as longer ones are."""
    scatter_checks_keys: bool = True
    """Are the lkeys of a list checked when the data go to the completion?"""
    faults: tuple[str, ...] = ()
    variant: str | None = None


@dataclass(eq=False)
class Program(Context):
    """A context that a process has open."""

    pid: int = 0
    command: str = ""


@dataclass(eq=False)
class SendQueue:
    buffer: int
    blocks: int
    user_index: int
    record: int
    """Address of the doorbell record: the receive queue's counter, then the send queue's."""
    scatters_receives: bool
    scatters_results: bool
    """Do small messages, and small results of READs and atomics, go to the completion?"""
    next: int = 0
    """Counts blocks, modulo 2**16."""


@dataclass(eq=False)
class ReceiveRing:
    """Where the WQEs of a receive queue are. Those of an SRQ are a list, others a ring."""

    buffer: int
    entries: int
    size: int
    record: int
    user_index: int = 0
    taken: int = 0
    """WQEs that the device has read, modulo 2**16."""
    head: int = 0
    """SRQ: the index of the next WQE."""


@dataclass(eq=False)
class Queues:
    """What a context's objects have in the program's memory."""

    cqs: dict[CQ, entries.Ring] = field(default_factory=dict)
    sends: dict[QP, SendQueue] = field(default_factory=dict)
    receives: dict[ReceiveQueue, ReceiveRing] = field(default_factory=dict)
    qps: dict[ReceiveQueue, QP] = field(default_factory=dict)


class ConnectX(Device):
    """Faults and variants of the engine are classes composed in front of this one, `Sides` in front of them."""

    options: Options
    memory: ProgramMemory

    def __init__(self, number: int, fabric: Fabric, memory: ProgramMemory, options: Options) -> None:
        self.options = options
        super().__init__(number, fabric, memory)
        self.name = f"mlx5_{number}"
        self.queues: dict[Context, Queues] = {}
        self.windows: dict[int, MW] = {}
        """By the upper 24 bits of their rkeys."""
        self.say: Callable[[int, str], None] | None = None
        """Told of each work request and completion: the process, and what it is."""
        self._scattered: bytes | None = None
        self._receiver: SRQ | None = None
        self._unanswered: dict[QP, float] = {}
        """Queue pairs whose peer is still being set up, and until when they ask it again."""
        self.null_mr = self._make_null_mr() if options.null_mkey else None

    def _make_null_mr(self) -> MR:
        """The mkey that discards what is written and reads as zeros. It is of no PD."""
        nobody = Program(self)
        nobody.events.close()
        mr = self.new_null_mr(PD(nobody, 0))
        self.lkeys[mr.lkey] = mr
        return mr

    def describe_device(self) -> DeviceAttributes:
        guid = _FIRST_GUID + (self.number << 8)
        return DeviceAttributes(
            fw_ver="{}.{}.{:04}".format(*FIRMWARE),
            node_guid=guid,
            sys_image_guid=guid,
            vendor_id=VENDOR_ID,
            vendor_part_id=PCI_DEVICE,
            hw_ver=0,
            device_cap_flags=DeviceAttributes.device_cap_flags & ~abi.DEVICE_SRQ_RESIZE,
            max_qp_wr=32768,
            max_sge=30,
            max_sge_rd=30,
            max_cqe=(1 << 22) - 1,
            max_srq_wr=32767,
            max_srq_sge=31,
            max_pkeys=1,
            max_inline_data=MAX_DESCRIPTOR,
            odp_general_caps=0,
        )

    def describe_port(self, port_num: int) -> PortAttributes:
        port = super().describe_port(port_num)
        if self.options.link == "ib":
            guid = (_FIRST_GUID + (self.number << 8) + port_num).to_bytes(8, "big")
            port.gids = [GID(bytes([0xFE, 0x80]) + bytes(6) + guid, abi.GID_TYPE_IB)]
            port.link_layer = abi.LINK_LAYER_INFINIBAND
            port.active_mtu = port.max_mtu
            port.lid, port.sm_lid = _FIRST_LID + self.number, 1
        return port

    def open_for(self, pid: int, command: str) -> Program:
        program = Program(self, pid=pid, command=command)
        self.queues[program] = Queues()
        return program

    def close(self, context: Context) -> None:
        super().close(context)
        self.queues.pop(context, None)

    # Keys

    def find_local(self, transfer: Transfer, segment: Segment, write: bool) -> MR:
        null_mr = self.null_mr
        if null_mr is not None and segment.lkey == null_mr.lkey:
            return null_mr
        return super().find_local(transfer, segment, write)

    def alloc_mw(self, pd: PD, type: int) -> MW:
        mw = super().alloc_mw(pd, type)
        self.windows[mw.rkey >> 8] = mw
        return mw

    def dealloc_mw(self, mw: MW) -> None:
        super().dealloc_mw(mw)
        del self.windows[mw.rkey >> 8]

    # Work queues

    def attach_cq(self, cq: CQ, ring: entries.Ring) -> None:
        self.queues[cq.context].cqs[cq] = ring
        if cq.channel is not None:
            with self.memory.of(ring.pid):
                self.memory.write(ring.record + 4, entries.NEVER_ARMED.to_bytes(4, "big"))

    def attach_qp(self, qp: QP, sends: SendQueue, receives: ReceiveRing | None) -> None:
        queues = self.queues[qp.context]
        queues.sends[qp] = sends
        if receives is not None:
            queues.receives[qp.rq] = receives
            queues.qps[qp.rq] = qp

    def attach_srq(self, srq: SRQ, ring: ReceiveRing) -> None:
        self.queues[srq.pd.context].receives[srq] = ring

    def destroy_cq(self, cq: CQ) -> None:
        super().destroy_cq(cq)
        self.queues[cq.context].cqs.pop(cq, None)

    def destroy_srq(self, srq: SRQ) -> None:
        super().destroy_srq(srq)
        self.queues[srq.pd.context].receives.pop(srq, None)

    def destroy_qp(self, qp: QP) -> None:
        super().destroy_qp(qp)
        self._unanswered.pop(qp, None)
        if not qp.opens:
            queues = self.queues[qp.context]
            queues.sends.pop(qp, None)
            queues.receives.pop(qp.rq, None)
            queues.qps.pop(qp.rq, None)

    def reset(self, qp: QP) -> None:
        super().reset(qp)
        self._unanswered.pop(qp, None)
        queues = self.queues[qp.context]
        if qp in queues.sends:
            queues.sends[qp].next = 0
        if qp.rq in queues.receives:
            queues.receives[qp.rq].taken = 0

    def run(self, qp: QP) -> None:
        """A peer that is still being set up is asked again for as long as the queue pair's timeout and retry count
        allow (IBTA 9.7.6.1.3): programs begin as soon as their own end is ready.
        """
        if not self._is_peer_to_come(qp):
            self._unanswered.pop(qp, None)
        elif time.monotonic() < self._unanswered.setdefault(qp, time.monotonic() + _patience(qp)):
            return
        super().run(qp)

    def _is_peer_to_come(self, qp: QP) -> bool:
        if not qp.sq or qp.state != abi.QPS_RTS or not qp.reliable:
            return False
        device = self.route(qp.attr["ah_attr"])
        peer = device.qps.get(qp.attr["dest_qp_num"]) if device is not None else None
        return peer is not None and peer.state in (abi.QPS_RESET, abi.QPS_INIT)

    def ask_again(self) -> bool:
        """Is there a queue pair whose peer is still being set up? Those whose peer is ready go on."""
        for qp in list(self._unanswered):
            self.run(qp)
        return bool(self._unanswered)

    def doorbell_send(self, qp: QP, producer: int) -> None:
        """The program has posted send WQEs up to this block: read and carry them out."""
        sends = self.queues[qp.context].sends[qp]
        count = (producer - sends.next) % 2**16
        data = self._read_blocks(sends, count)
        at = 0
        while at < len(data):
            read = wqe.send_wqe(data[at : at + wqe.BLOCK * 16], qp.qp_type)
            at += read.blocks * wqe.BLOCK
            self._look_up(qp, read)
            qp.sq.append(read.wr)
            if self.say is not None:
                self.say(_pid(qp), f"QP {qp.qp_num:#x} send {read.wr}")
        sends.next = producer
        if qp.waits_on is None:
            self.run(qp)

    def _read_blocks(self, sends: SendQueue, count: int) -> bytes:
        first = sends.next % sends.blocks
        until_end = min(count, sends.blocks - first)
        data = self.memory.read(sends.buffer + first * wqe.BLOCK, until_end * wqe.BLOCK)
        if until_end < count:
            data += self.memory.read(sends.buffer, (count - until_end) * wqe.BLOCK)
        return data

    def _look_up(self, qp: QP, read: wqe.SendWqe) -> None:
        """Put the objects into a work request that its WQE names by number."""
        wr = read.wr
        if read.datagram is not None:
            to = read.datagram
            ethernet = self.ports[0].link_layer == abi.LINK_LAYER_ETHERNET
            av = AddressVector(
                qp.attr.get("port_num", 1), int(ethernet or to.has_grh), to.dgid, to.sgid_index, to.hop_limit,
                to.traffic_class, to.flow_label, to.dlid, to.sl, to.path_bits,
            )  # fmt: skip
            assert qp.pd is not None
            wr.ah, wr.remote_qpn, wr.remote_qkey = AH(qp.pd, 0, av), to.qp_num, to.qkey
        elif read.bind is not None:
            bind = read.bind
            mw = self.windows.get(bind.mkey >> 8)
            if bind.invalidate or mw is None:
                wr.opcode, wr.imm_data = abi.WR_LOCAL_INV, bind.mkey
                return
            wr.mw, wr.rkey = mw, bind.mkey & ~0xFF | bind.tag
            wr.bind_mr = self.null_mr if self.null_mr and bind.lkey == self.null_mr.lkey else self.lkeys.get(bind.lkey)
            wr.bind_addr, wr.bind_length, wr.bind_access = bind.addr, bind.length, bind.access

    def doorbell_receive(self, queue: ReceiveQueue, producer: int) -> None:
        """The program has posted receive WQEs up to this one."""
        if isinstance(queue, SRQ):
            ring = self.queues[queue.pd.context].receives[queue]
            for _ in range((producer - ring.taken) % 2**16):
                data = self.memory.read(ring.buffer + ring.head * ring.size, ring.size)
                read, ring.head = wqe.srq_wqe(ring.head, data)
                queue.entries.append(read)
            ring.taken = producer
            self.wake(queue)
            return
        qp = next(queues.qps[queue] for queues in self.queues.values() if queue in queues.qps)
        ring = self.queues[qp.context].receives[queue]
        for number in range(ring.taken, ring.taken + (producer - ring.taken) % 2**16):
            data = self.memory.read(ring.buffer + number % ring.entries * ring.size, ring.size)
            queue.entries.append(wqe.receive_wqe(number % 2**16, data))
        ring.taken = producer
        if qp.state == abi.QPS_ERR:
            self.flush_receives(qp)
        elif queue.waiting:
            self.wake(queue)

    # Completions

    def scatter(self, transfer: Transfer, sges: list[SGE], payload: Payload) -> None:
        room = self._room_in_completion(transfer)
        if not 0 < payload.length <= room:
            return super().scatter(transfer, sges, payload)
        self.check_room(transfer, sges, payload)
        if self.options.scatter_checks_keys:
            rest, offset = payload.length, 0
            for index, sge in enumerate(sges):
                if rest and sge.length:
                    length = min(sge.length, rest)
                    self.find_local(transfer, Segment(sge.addr, length, sge.lkey, index, offset), True)
                    offset, rest = offset + length, rest - length
        self._scattered = bytes(payload)
        return None

    def _room_in_completion(self, transfer: Transfer) -> int:
        """Bytes of this message that the completion has room for, if it is one for which that is used."""
        qp = transfer.qp
        if qp.qp_type != abi.QPT_RC or transfer.cq is None:
            return 0
        sends = self.queues[qp.context].sends[qp]
        if transfer.requester:
            wanted = sends.scatters_results and (qp.sq_sig_all or transfer.wr.flags & abi.SEND_SIGNALED)
        else:
            wanted = sends.scatters_receives
        if not wanted:
            return 0
        ring = self.queues[transfer.cq.context].cqs[transfer.cq]
        return entries.IN_FRONT if ring.size > entries.SIZE else entries.IN_ENTRY

    def complete_receive(self, transfer: Transfer, status: int, src_qp: int) -> None:
        self._receiver = transfer.srq
        super().complete_receive(transfer, status, src_qp)
        self._receiver = None

    def complete(self, cq: CQ, cqe: CQE, solicited: bool = False) -> None:
        data, self._scattered = self._scattered, None
        ring = self.queues[cq.context].cqs[cq]
        event = solicited or bool(cqe.status)
        try:
            with self.memory.of(ring.pid):
                if ring.is_full():
                    ring.consumer = int.from_bytes(self.memory.read(ring.record, 4), "big") % 2**24
                if ring.is_full():
                    if not cq.overrun:
                        cq.overrun = True
                        cq.context.events.put(abi.EVENT_CQ_ERR, cq)
                    return
                cqe.timestamp = time.time_ns()
                lies = entries.entry(ring, cqe, self._number(cqe), data, solicited, self.options.small_in_front)
                self.memory.publish(ring.slot, lies)
                if self.say is not None:
                    where = "" if data is None else f", {len(data)} bytes in it"
                    kind = "receive" if cqe.opcode & abi.WC_RECV else "send"
                    self.say(ring.pid, f"QP {cqe.qp.qp_num:#x} {kind} {cqe.wr_id} ends with status {cqe.status}{where}")
        except MemoryFault:
            return  # the program is gone
        ring.advance(event)

    def _number(self, cqe: CQE) -> int:
        """What the program calls the queue pair or XRC SRQ that a completion is of."""
        srq = self._receiver
        if not self.options.cqe_version:
            return srq.number if srq is not None else 0
        if srq is not None and srq.type == abi.SRQT_XRC:
            return self.queues[srq.pd.context].receives[srq].user_index
        return self.queues[cqe.qp.context].sends[cqe.qp].user_index

    def resize_ring(self, cq: CQ, buffer: int, number: int) -> None:
        """From now on completions go to another buffer; the last entry in the old one says so."""
        ring = self.queues[cq.context].cqs[cq]
        with self.memory.of(ring.pid):
            self.memory.publish(ring.slot, entries.resize_entry(ring))
        ring.advance(False)
        ring.resize(buffer, number)


class Sides(ConnectX):
    """Selects whose memory is meant: that of the program whose queue pair is at work.

    In front of the faults, which use the memory too.
    """

    def run(self, qp: QP) -> None:
        with self.memory.of(_pid(qp)):
            super().run(qp)

    def receive(self, qp: QP, wr: SendWR, payload: Payload, src_qp: int) -> None:
        with self.memory.of(_pid(qp, wr)):
            super().receive(qp, wr, payload, src_qp)

    def receive_write(self, qp: QP, wr: SendWR, payload: Payload, src_qp: int) -> None:
        with self.memory.of(_pid(qp, wr)):
            super().receive_write(qp, wr, payload, src_qp)

    def respond_read(self, qp: QP, wr: SendWR, length: int) -> Payload:
        with self.memory.of(_pid(qp, wr)):
            return super().respond_read(qp, wr, length)

    def respond_atomic(self, qp: QP, wr: SendWR) -> Payload:
        with self.memory.of(_pid(qp, wr)):
            return super().respond_atomic(qp, wr)


def _patience(qp: QP) -> float:
    """Seconds until a reliable queue pair gives up that nobody answers; 0 is for ever (ibv_modify_qp(3), timeout)."""
    timeout, retries = int(qp.attr["timeout"]), int(qp.attr["retry_cnt"])
    return 4.096e-6 * 2.0**timeout * (retries + 1) if timeout else math.inf


def _pid(qp: QP, wr: SendWR | None = None) -> int:
    """The process that a queue pair's memory is of. An XRC message goes to the SRQ's, which may be another one's."""
    context: Any = qp.context
    if wr is not None and qp.qp_type == abi.QPT_XRC_RECV:
        srq = qp.device.srqs.get(wr.remote_srqn)
        context = srq.pd.context if srq is not None else context
    return int(context.pid)


def compose(faults: Sequence[str], variant: str | None) -> type[Sides]:
    """The device class with faults and a variant of the engine in it. Raises ValueError for an unknown name."""
    parts: list[type[Device]] = []
    for name in faults:
        if name not in FAULTS:
            raise ValueError(f"no fault {name!r} of the engine; there are {', '.join(sorted(FAULTS))}")
        parts.append(FAULTS[name])
    if variant is not None:
        if variant not in VARIANTS:
            raise ValueError(f"no variant {variant!r} of the engine; there are {', '.join(sorted(VARIANTS))}")
        parts.append(VARIANTS[variant])
    return type("HCA", (Sides, *parts, ConnectX), {})
