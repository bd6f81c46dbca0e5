# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Completion queues of both kinds, read into plain work completions."""

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context

from conformance.outcome import WorkCompletion
from conformance.scenarios import Poll
from conformance.verbs.names import e, opcode_names, status_names

BATCH = 16

_DESCRIPTORS = "/proc/self/fd"
STATUSES = status_names()
OPCODES = opcode_names()
SPIN, PAUSE = 0.005, 0.001
"""Seconds: a completion that takes longer than SPIN is polled for at intervals, to leave the processor to others."""


class Channel:
    """A completion channel for one CQ."""

    def __init__(self, context: Context) -> None:
        before = _descriptors()
        self.channel = CompChannel(context)
        # pyverbs does not tell the descriptor, and waits for ever where there is no event.
        (new,) = _descriptors() - before
        self._poll = select.poll()
        self._poll.register(int(new), select.POLLIN)

    def wait(self, cq: CQ, timeout: float) -> bool:
        """Take and acknowledge one event; False if none comes within `timeout` seconds."""
        if not self._poll.poll(timeout * 1000):
            return False
        self.channel.get_cq_event(cq)
        cq.ack_events(1)
        return True

    def close(self) -> None:
        self.channel.close()


def _descriptors() -> set[str]:
    """The file descriptors that are open, without the one that lists them."""
    return {name for name in os.listdir(_DESCRIPTORS) if os.path.lexists(f"{_DESCRIPTORS}/{name}")}


class CompletionQueue:
    """A CQ of `depth` entries, polled by ibv_poll_cq, which may have a completion channel, or by ibv_start_poll and its
    readers.
    """

    def __init__(self, context: Context, depth: int, poll: Poll, channel: bool = False) -> None:
        self.channel = Channel(context) if channel else None
        if poll is Poll.POLL_CQ:
            self.cq = CQ(context, depth, None, self.channel.channel if self.channel else None)
            self.poll: Callable[[], list[WorkCompletion]] = self._poll
        else:
            self.cq = CQEX(context, CqInitAttrEx(cqe=depth, wc_flags=e.IBV_WC_STANDARD_FLAGS))
            self.poll = self._poll_ex
            self._attr = PollCqAttr()

    def _poll(self) -> list[WorkCompletion]:
        return [_work_completion(wc) for wc in self.cq.poll(BATCH)[1]]

    def _poll_ex(self) -> list[WorkCompletion]:
        """A batch for each completion: rxe's ibv_next_poll (rdma-core 44) takes one too many off the queue."""
        found: list[WorkCompletion] = []
        while len(found) < BATCH:
            rc = self.cq.start_poll(self._attr)
            if rc == errno.ENOENT:
                break
            if rc:
                raise OSError(rc, "ibv_start_poll")
            found.append(_read_completion(self.cq))
            self.cq.end_poll()
        return found

    def wait(self, wr_ids: Collection[int], timeout: float) -> list[WorkCompletion]:
        """Poll until the completions of all `wr_ids` have come or `timeout` seconds have passed; all that came."""
        found = self.poll()
        start = now = time.monotonic()
        while not has_all(found, wr_ids) and now < start + timeout:
            if now > start + SPIN:
                time.sleep(PAUSE)
            found += self.poll()
            now = time.monotonic()
        return found

    def notify(self, solicited_only: bool = False) -> None:
        """ibv_req_notify_cq: have the channel told of the next completion."""
        self.cq.req_notify(solicited_only)

    def wait_for_event(self, timeout: float) -> bool:
        """Did an event come within `timeout` seconds?"""
        return self.channel is not None and self.channel.wait(self.cq, timeout)

    def close(self) -> None:
        self.cq.close()
        if self.channel is not None:
            self.channel.close()


def has_all(completions: Iterable[WorkCompletion], wr_ids: Collection[int]) -> bool:
    """Is there a completion of each of these work requests?"""
    return {wc.wr_id for wc in completions}.issuperset(wr_ids)


def _work_completion(wc: Any) -> WorkCompletion:
    status = STATUSES.get(wc.status, f"status {wc.status}")
    if wc.status != e.IBV_WC_SUCCESS:
        return WorkCompletion(wc.wr_id, status, wc.vendor_err, wc.qp_num)
    imm_data = socket.ntohl(wc.imm_data) if wc.wc_flags & e.IBV_WC_WITH_IMM else None
    rkey = wc.imm_data if wc.wc_flags & e.IBV_WC_WITH_INV else None  # one field of struct ibv_wc
    opcode = OPCODES.get(wc.opcode, f"opcode {wc.opcode}")
    return WorkCompletion(wc.wr_id, status, wc.vendor_err, wc.qp_num, opcode, wc.byte_len, imm_data, rkey)


def _read_completion(cq: Any) -> WorkCompletion:
    number = cq.status
    status = STATUSES.get(number, f"status {number}")
    if number != e.IBV_WC_SUCCESS:
        return WorkCompletion(cq.wr_id, status, cq.read_vendor_err(), cq.read_qp_num())
    flags = cq.read_wc_flags()
    imm_data = socket.ntohl(cq.read_imm_data()) if flags & e.IBV_WC_WITH_IMM else None
    rkey = cq.read_imm_data() if flags & e.IBV_WC_WITH_INV else None  # as ibv_wc_read_invalidated_rkey
    number = cq.read_opcode()
    opcode = OPCODES.get(number, f"opcode {number}")
    return WorkCompletion(cq.wr_id, status, 0, cq.read_qp_num(), opcode, cq.read_byte_len(), imm_data, rkey)
