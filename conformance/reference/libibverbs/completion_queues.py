# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Completion queues, their channels and events, and polling in both ways."""

import errno
from typing import Any

from ..engine import abi
from ..engine.errors import Refused
from ..engine.objects import CQE, EventQueue
from . import c
from .calls import verb
from .devices import context_of
from .structs import cqs, next_handle, structs


@verb
def ibv_create_comp_channel(pointer: Any) -> Any:
    channel = EventQueue()
    struct = structs.make("struct ibv_comp_channel", channel)
    struct.context = pointer
    struct.fd = channel.fd
    return struct


@verb
def ibv_destroy_comp_channel(pointer: Any) -> int:
    if pointer.refcnt:
        raise Refused(errno.EBUSY, f"{pointer.refcnt} CQs use the channel")
    structs.of(pointer).close()
    structs.drop(pointer)
    return 0


def _create_cq(pointer: Any, cqe: int, cq_context: Any, channel: Any, vector: int, extended: bool) -> Any:
    context = context_of(pointer)
    if not 0 <= vector < pointer.num_comp_vectors:
        raise Refused(errno.EINVAL, f"completion vector {vector}")
    cq = context.device.create_cq(context, cqe, structs.maybe(channel), extended)
    struct = structs.make("struct reference_cq", cq).cq
    c.lib.fill_cq(c.ffi.addressof(struct))
    struct.context = pointer
    struct.channel = channel
    struct.cq_context = cq_context
    struct.handle = next_handle()
    struct.cqe = cq.cqe
    if channel:
        channel.refcnt += 1
    cqs[struct.handle] = cq
    return c.ffi.addressof(struct)


@verb
def ibv_create_cq(pointer: Any, cqe: int, cq_context: Any, channel: Any, vector: int) -> Any:
    return c.ffi.cast("struct ibv_cq *", _create_cq(pointer, cqe, cq_context, channel, vector, False))


_WC_FLAGS = abi.WC_EX_STANDARD | abi.WC_EX_WITH_COMPLETION_TIMESTAMP | abi.WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK


@verb
def create_cq_ex(pointer: Any, attr: Any) -> Any:
    if attr.wc_flags & ~_WC_FLAGS:
        raise Refused(errno.EOPNOTSUPP, f"completion fields {attr.wc_flags & ~_WC_FLAGS:#x}")
    if attr.comp_mask & ~3:
        raise Refused(errno.EINVAL, f"comp_mask {attr.comp_mask:#x}")
    return _create_cq(pointer, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector, True)


@verb
def ibv_resize_cq(pointer: Any, cqe: int) -> int:
    cq = cqs[pointer.handle]
    cq.context.device.resize_cq(cq, cqe)
    pointer.cqe = cqe
    return 0


@verb
def ibv_destroy_cq(pointer: Any) -> int:
    cq = cqs[pointer.handle]
    if _unacknowledged.get(pointer.handle):
        raise Refused(errno.EBUSY, "completion events are not acknowledged (ibv_ack_cq_events)")
    cq.context.device.destroy_cq(cq)
    if pointer.channel:
        pointer.channel.refcnt -= 1
    del cqs[pointer.handle]
    structs.drop(pointer)
    return 0


_unacknowledged: dict[int, int] = {}


@verb
def ibv_get_cq_event(channel: Any, cq: Any, cq_context: Any) -> int:
    (item,) = structs.of(channel).get()
    struct = structs.struct(item)
    cq[0] = c.ffi.cast("struct ibv_cq *", struct)
    cq_context[0] = cq[0].cq_context
    _unacknowledged[cq[0].handle] = _unacknowledged.get(cq[0].handle, 0) + 1
    return 0


@verb
def ibv_ack_cq_events(pointer: Any, number: int) -> None:
    left = _unacknowledged.get(pointer.handle, 0) - number
    if left > 0:
        _unacknowledged[pointer.handle] = left
    else:
        _unacknowledged.pop(pointer.handle, None)


@verb
def req_notify_cq(pointer: Any, solicited_only: int) -> int:
    cq = cqs[pointer.handle]
    cq.context.device.req_notify_cq(cq, bool(solicited_only))
    return 0


def _fill_wc(wc: Any, cqe: CQE) -> None:
    wc.wr_id = cqe.wr_id
    wc.status = cqe.status
    wc.opcode = cqe.opcode
    wc.vendor_err = cqe.vendor_err
    wc.byte_len = cqe.byte_len
    wc.imm_data = cqe.imm_data
    wc.qp_num = cqe.qp.qp_num
    wc.src_qp = cqe.src_qp
    wc.wc_flags = cqe.wc_flags
    wc.pkey_index = cqe.pkey_index
    wc.slid = cqe.slid
    wc.sl = cqe.sl
    wc.dlid_path_bits = cqe.dlid_path_bits


@verb
def poll_cq(pointer: Any, most: int, wcs: Any) -> int:
    cq = cqs[pointer.handle]
    polled: list[CQE] = cq.context.device.poll_cq(cq, most)
    for number, cqe in enumerate(polled):
        _fill_wc(wcs[number], cqe)
    return len(polled)


@verb
def start_poll(pointer: Any, attr: Any) -> int:
    return next_poll(pointer)


@verb
def next_poll(pointer: Any) -> int:
    cq = cqs[pointer.handle]
    polled: list[CQE] = cq.context.device.poll_cq(cq, 1)
    if not polled:
        return int(errno.ENOENT)
    struct = c.ffi.cast("struct reference_cq *", pointer)
    _fill_wc(struct.wc, polled[0])
    struct.timestamp = polled[0].timestamp
    pointer.wr_id = polled[0].wr_id
    pointer.status = polled[0].status
    return 0
