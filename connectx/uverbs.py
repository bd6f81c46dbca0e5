# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The kernel's side of an open /dev/infiniband/uverbsN: the commands that libibverbs and libmlx5 write to it.

What they mean is in <rdma/ib_user_verbs.h> and <rdma/mlx5-abi.h>; what verbs mean is the engine's.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from conformance.reference.engine import abi, states
from conformance.reference.engine.errors import Refused
from conformance.reference.engine.objects import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    XRCD,
    AddressVector,
    Capabilities,
)

from . import cqe as entries
from . import headers, wqe
from .device import FIRMWARE, MAX_DESCRIPTOR, ConnectX, Program, ReceiveRing, SendQueue
from .events import AsynchronousEvents, CompletionEvents

_T = TypeVar("_T")

CACHE_LINE = 64
LONGEST_MESSAGE = 1 << 30
"""Bytes. The highest bit of a data segment's length says that the data is inline, and a length of 0 is 2^31."""
_BLUE_FLAME = 512
_LOG_UAR = 12
_MAX_BLOCKS = 32768
_NO_USER_INDEX = 0xFFFFFF
_COMPLETION_VECTORS = 1
_QP_COMMAND_MASK = ~(1 << 19 | 1 << 25)


class File:
    """An open device: its objects have handles that are numbers of this file."""

    def __init__(self, device: ConnectX, pid: int, command: str, pass_descriptor: Callable[[int], int]) -> None:
        module = headers.load()
        self.ffi, self.lib = module.ffi, module.lib
        self.device = device
        self.program: Program = device.open_for(pid, command)
        self.pass_descriptor = pass_descriptor
        """Give the program a descriptor; returns the number that it has there."""
        self.user_handles: dict[object, int] = {}
        self.program.events.close()
        self.program.events = AsynchronousEvents(self.user_handles)
        self._objects: dict[int, Any] = {}
        self._handles: dict[object, int] = {}
        self._last_handle = 0
        self._channels: dict[int, CompletionEvents] = {}
        """By the number of the program's descriptor."""
        self._opened = False
        self._commands = headers.commands()

    # Commands as bytes

    def name_of(self, data: bytes) -> str:
        """What a command is called, for people."""
        command = int.from_bytes(data[:4], "little")
        name = self._commands.get(command & self.lib.IB_USER_VERBS_CMD_COMMAND_MASK, f"command {command:#x}")
        return f"ex_{name}" if command & self.lib.IB_USER_VERBS_CMD_FLAG_EXTENDED else name

    def execute(self, data: bytes) -> None:
        """Carry out a command, its answer included. Raises Refused."""
        ffi = self.ffi
        size = ffi.sizeof("struct ib_uverbs_cmd_hdr")
        if len(data) < size:
            raise Refused(errno.EINVAL, "no header")
        header = ffi.from_buffer("struct ib_uverbs_cmd_hdr *", data)
        handler = getattr(self, f"_{self.name_of(data)}", None)
        if handler is None:
            raise Refused(errno.EOPNOTSUPP, f"no command {self.name_of(data)}")
        if not self._opened and handler != self._get_context:
            raise Refused(errno.EINVAL, "no context yet")
        if header.command & self.lib.IB_USER_VERBS_CMD_FLAG_EXTENDED:
            self._execute_extended(handler, header, data[size:])
            return
        core = self._struct(f"struct ib_uverbs_{self.name_of(data)}", data[size:])
        answer = handler(core, data[size + ffi.sizeof(core[0]) :])
        if answer:
            self._answer(core.response, answer, header.out_words * 4)

    def _execute_extended(self, handler: Callable[..., Any], header: Any, data: bytes) -> None:
        ffi = self.ffi
        size = ffi.sizeof("struct ib_uverbs_ex_cmd_hdr")
        extended = self._struct("struct ib_uverbs_ex_cmd_hdr", data)
        command, driver = data[size : size + header.in_words * 8], data[size + header.in_words * 8 :]
        room = header.out_words * 8
        answer, driver_answer = handler(command, driver, room)
        whole = answer[:room].ljust(room, b"\0") + driver_answer[: extended.provider_out_words * 8]
        if extended.response and whole:
            self._answer(extended.response, whole, len(whole))

    def _struct(self, kind: str, data: bytes) -> Any:
        """The struct at the beginning of `data`, which may be shorter or longer: what is missing is 0."""
        owner = self.ffi.new(f"{kind} *")
        size = min(self.ffi.sizeof(kind), len(data))
        self.ffi.memmove(owner, data, size)
        return owner

    def _pack(self, kind: str, **fields: Any) -> bytes:
        return bytes(self.ffi.buffer(self.ffi.new(f"struct {kind} *", fields)))

    def _known(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the values that the struct has a field for."""
        names = {name for name, _ in self.ffi.typeof(f"struct {kind}").fields}
        return {name: value for name, value in values.items() if name in names}

    def _answer(self, address: int, data: bytes, room: int) -> None:
        self.device.memory.write(address, data[:room])

    # Objects

    def _remember(self, item: object, user_handle: int = 0) -> int:
        self._last_handle += 1
        self._objects[self._last_handle] = item
        self._handles[item] = self._last_handle
        if user_handle:
            self.user_handles[item] = user_handle
        return self._last_handle

    def _get(self, handle: int, kind: type[_T]) -> _T:
        found = self._objects.get(handle)
        if not isinstance(found, kind):
            raise Refused(errno.EINVAL, f"handle {handle} is no {kind.__name__}")
        return found

    def _drop(self, handle: int) -> int:
        """Forget an object that was destroyed; returns what the program called it."""
        item = self._objects.pop(handle)
        self._handles.pop(item, None)
        return self.user_handles.pop(item, 0)

    def held(self) -> dict[str, int]:
        """How many objects of each kind live, by their names as in rdma-resource(8)."""
        counts: dict[str, int] = {}
        for item in self._objects.values():
            counts[type(item).__name__] = counts.get(type(item).__name__, 0) + 1
        return counts

    def of_kind(self, kind: type[_T]) -> list[tuple[int, _T]]:
        return [(handle, item) for handle, item in self._objects.items() if isinstance(item, kind)]

    def close(self) -> None:
        """What the kernel does when the last descriptor is closed, for whatever reason."""
        self.device.close(self.program)
        for channel in self._channels.values():
            channel.close()

    # Context, device, port

    def _get_context(self, core: Any, driver: bytes) -> bytes:
        wanted = self._struct("struct mlx5_ib_alloc_ucontext_req_v2", driver)
        options, null_mr, attr = self.device.options, self.device.null_mr, self.device.attr
        lib = self.lib
        self._opened = True
        events = self.program.events
        assert isinstance(events, AsynchronousEvents)
        number = self.pass_descriptor(events.give())
        answer = self._pack("ib_uverbs_get_context_resp", async_fd=number, num_comp_vectors=_COMPLETION_VECTORS)
        return answer + self._pack(
            "mlx5_ib_alloc_ucontext_resp",
            qp_tab_size=attr.max_qp,
            bf_reg_size=_BLUE_FLAME,
            tot_bfregs=wanted.total_num_bfregs,
            cache_line_size=CACHE_LINE,
            max_sq_desc_sz=MAX_DESCRIPTOR,
            max_rq_desc_sz=MAX_DESCRIPTOR // 2,
            max_send_wqebb=_MAX_BLOCKS,
            max_recv_wr=attr.max_qp_wr,
            max_srq_recv_wr=attr.max_srq_wr + 1,
            num_ports=attr.phys_port_cnt,
            comp_mask=lib.MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY if null_mr else 0,
            response_length=self.ffi.sizeof("struct mlx5_ib_alloc_ucontext_resp"),
            cqe_version=min(options.cqe_version, wanted.max_cqe_version),
            cmds_supp_uhw=lib.MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | lib.MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
            log_uar_size=_LOG_UAR,
            num_uars_per_page=1,
            dump_fill_mkey=null_mr.lkey if null_mr else 0,
        )

    def _device_fields(self) -> dict[str, Any]:
        attr = self.device.attr
        fields = self._known("ib_uverbs_query_device_resp", vars(attr))
        major, minor, patch = FIRMWARE
        return fields | {
            "fw_ver": major << 32 | minor << 16 | patch,
            "node_guid": _be64(attr.node_guid),
            "sys_image_guid": _be64(attr.sys_image_guid),
            "max_mr_size": attr.max_mr_size,
        }

    def _query_device(self, core: Any, driver: bytes) -> bytes:
        return self._pack("ib_uverbs_query_device_resp", **self._device_fields())

    def _ex_query_device(self, command: bytes, driver: bytes, room: int) -> tuple[bytes, bytes]:
        size = self.ffi.sizeof("struct ib_uverbs_ex_query_device_resp")
        answer = self._pack(
            "ib_uverbs_ex_query_device_resp",
            base=self._device_fields(),
            response_length=min(size, room),
            timestamp_mask=2**64 - 1,
            hca_core_clock=1_000_000,
            device_cap_flags_ex=self.device.attr.device_cap_flags,
        )
        size = self.ffi.sizeof("struct mlx5_ib_query_device_resp")
        return answer, self._pack("mlx5_ib_query_device_resp", response_length=size)

    def _query_port(self, core: Any, driver: bytes) -> bytes:
        if not 1 <= core.port_num <= len(self.device.ports):
            raise Refused(errno.EINVAL, f"port {core.port_num}")
        port = self.device.ports[core.port_num - 1]
        fields = self._known("ib_uverbs_query_port_resp", vars(port))
        fields["max_msg_sz"] = min(port.max_msg_sz, LONGEST_MESSAGE)
        return self._pack("ib_uverbs_query_port_resp", **fields)

    # Protection domains, memory regions, memory windows

    def _alloc_pd(self, core: Any, driver: bytes) -> bytes:
        pd = self.device.alloc_pd(self.program)
        answer = self._pack("ib_uverbs_alloc_pd_resp", pd_handle=self._remember(pd))
        return answer + self._pack("mlx5_ib_alloc_pd_resp", pdn=pd.handle)

    def _dealloc_pd(self, core: Any, driver: bytes) -> bytes:
        self.device.dealloc_pd(self._get(core.pd_handle, PD))
        self._drop(core.pd_handle)
        return b""

    def _reg_mr(self, core: Any, driver: bytes) -> bytes:
        pd = self._get(core.pd_handle, PD)
        mr = self.device.reg_mr(pd, core.start, core.length, core.hca_va, core.access_flags)
        return self._pack("ib_uverbs_reg_mr_resp", mr_handle=self._remember(mr), lkey=mr.lkey, rkey=mr.rkey)

    def _rereg_mr(self, core: Any, driver: bytes) -> bytes:
        mr = self._get(core.mr_handle, MR)
        pd = self._get(core.pd_handle, PD) if core.flags & abi.REREG_MR_CHANGE_PD else None
        self.device.rereg_mr(mr, core.flags, pd, core.start, core.length, core.access_flags)
        return self._pack("ib_uverbs_rereg_mr_resp", lkey=mr.lkey, rkey=mr.rkey)

    def _dereg_mr(self, core: Any, driver: bytes) -> bytes:
        self.device.dereg_mr(self._get(core.mr_handle, MR))
        self._drop(core.mr_handle)
        return b""

    def _alloc_mw(self, core: Any, driver: bytes) -> bytes:
        mw = self.device.alloc_mw(self._get(core.pd_handle, PD), core.mw_type)
        return self._pack("ib_uverbs_alloc_mw_resp", mw_handle=self._remember(mw), rkey=mw.rkey)

    def _dealloc_mw(self, core: Any, driver: bytes) -> bytes:
        self.device.dealloc_mw(self._get(core.mw_handle, MW))
        self._drop(core.mw_handle)
        return b""

    # Completion queues

    def _create_comp_channel(self, core: Any, driver: bytes) -> bytes:
        channel = CompletionEvents(self.user_handles)
        number = self.pass_descriptor(channel.give())
        if number in self._channels:  # the program closed that descriptor
            self._channels[number].close()
        self._channels[number] = channel
        return self._pack("ib_uverbs_create_comp_channel_resp", fd=number)

    def _create_cq(self, core: Any, driver: bytes) -> bytes:
        return self._new_cq(core, driver)

    def _ex_create_cq(self, command: bytes, driver: bytes, room: int) -> tuple[bytes, bytes]:
        core = self._struct("struct ib_uverbs_ex_create_cq", command)
        answer = self._new_cq(core, driver)
        size = self.ffi.sizeof("struct ib_uverbs_create_cq_resp")
        whole = self._pack("ib_uverbs_ex_create_cq_resp", response_length=room)
        return answer[:size] + whole[size:], answer[size:]

    def _new_cq(self, core: Any, driver: bytes) -> bytes:
        given = self._struct("struct mlx5_ib_create_cq", driver)
        if core.comp_vector >= _COMPLETION_VECTORS:
            raise Refused(errno.EINVAL, f"completion vector {core.comp_vector}")
        if given.cqe_comp_en:
            raise Refused(errno.EOPNOTSUPP, "no compressed completions")
        channel = None
        if core.comp_channel != -1:
            if core.comp_channel not in self._channels:
                raise Refused(errno.EINVAL, f"descriptor {core.comp_channel} is no completion channel")
            channel = self._channels[core.comp_channel]
        cq = self.device.create_cq(self.program, core.cqe, channel, False)
        handle = self._remember(cq, core.user_handle)
        ring = entries.Ring(
            self.program.pid, given.buf_addr, core.cqe + 1, given.cqe_size, given.db_addr, number=handle
        )
        self.device.attach_cq(cq, ring)
        answer = self._pack("ib_uverbs_create_cq_resp", cq_handle=handle, cqe=core.cqe)
        return answer + self._pack("mlx5_ib_create_cq_resp", cqn=handle)

    def _resize_cq(self, core: Any, driver: bytes) -> bytes:
        given = self._struct("struct mlx5_ib_resize_cq", driver)
        cq = self._get(core.cq_handle, CQ)
        ring = self.device.queues[self.program].cqs[cq]
        self.device.check_cqe(core.cqe)
        ring.consumer = int.from_bytes(self.device.memory.read(ring.record, 4), "big") % 2**24
        if (ring.producer - ring.consumer) % 2**24 > core.cqe:
            raise Refused(errno.EINVAL, "the completions do not fit")
        self.device.resize_cq(cq, core.cqe)
        self.device.resize_ring(cq, given.buf_addr, core.cqe + 1)
        return self._pack("ib_uverbs_resize_cq_resp", cqe=core.cqe)

    def _destroy_cq(self, core: Any, driver: bytes) -> bytes:
        cq = self._get(core.cq_handle, CQ)
        self.device.destroy_cq(cq)
        user_handle = self._drop(core.cq_handle)
        completions = cq.channel.reported(user_handle) if isinstance(cq.channel, CompletionEvents) else 0
        return self._pack(
            "ib_uverbs_destroy_cq_resp",
            comp_events_reported=completions,
            async_events_reported=self._events_of(user_handle),
        )

    def _events_of(self, user_handle: int) -> int:
        events = self.program.events
        assert isinstance(events, AsynchronousEvents)
        return events.reported(user_handle)

    # Shared receive queues, XRC domains

    def _create_srq(self, core: Any, driver: bytes) -> bytes:
        return self._new_srq(core, driver, abi.SRQT_BASIC, None, None)

    def _create_xsrq(self, core: Any, driver: bytes) -> bytes:
        if core.srq_type != abi.SRQT_XRC:
            return self._new_srq(core, driver, core.srq_type, None, None)
        return self._new_srq(
            core, driver, abi.SRQT_XRC, self._get(core.xrcd_handle, XRCD), self._get(core.cq_handle, CQ)
        )

    def _new_srq(self, core: Any, driver: bytes, type: int, xrcd: XRCD | None, cq: CQ | None) -> bytes:
        given = self._struct("struct mlx5_ib_create_srq", driver)
        if given.flags:
            raise Refused(errno.EOPNOTSUPP, f"SRQ flags {given.flags:#x}")
        pd = self._get(core.pd_handle, PD)
        most = max(1, core.max_wr)  # a provider may ask for none
        srq = self.device.create_srq(pd, most, core.max_sge, core.srq_limit, type, xrcd, cq)
        ring = ReceiveRing(given.buf_addr, core.max_wr + 1, wqe.srq_wqe_size(core.max_sge), given.db_addr, given.uidx)
        self.device.attach_srq(srq, ring)
        answer = self._pack(
            "ib_uverbs_create_srq_resp",
            srq_handle=self._remember(srq, core.user_handle),
            max_wr=core.max_wr,
            max_sge=core.max_sge,
            srqn=srq.number,
        )
        return answer + self._pack("mlx5_ib_create_srq_resp", srqn=srq.number)

    def _modify_srq(self, core: Any, driver: bytes) -> bytes:
        srq = self._get(core.srq_handle, SRQ)
        if core.attr_mask & abi.SRQ_MAX_WR:
            raise Refused(errno.EINVAL, "an SRQ cannot be resized")
        self.device.modify_srq(srq, core.attr_mask, core.max_wr, core.srq_limit)
        return b""

    def _query_srq(self, core: Any, driver: bytes) -> bytes:
        srq = self._get(core.srq_handle, SRQ)
        return self._pack("ib_uverbs_query_srq_resp", max_wr=srq.max_wr, max_sge=srq.max_sge, srq_limit=srq.limit)

    def _destroy_srq(self, core: Any, driver: bytes) -> bytes:
        self.device.destroy_srq(self._get(core.srq_handle, SRQ))
        return self._pack("ib_uverbs_destroy_srq_resp", events_reported=self._events_of(self._drop(core.srq_handle)))

    def _open_xrcd(self, core: Any, driver: bytes) -> bytes:
        key = None
        if core.fd != 0xFFFFFFFF:
            try:
                status = os.stat(f"/proc/{self.program.pid}/fd/{core.fd}")
            except OSError as error:
                raise Refused(errno.EBADF, str(error)) from error
            key = (status.st_dev, status.st_ino)
        exists = key in self.device.xrcds
        if key is not None and not exists and not core.oflags & os.O_CREAT:
            raise Refused(errno.EAGAIN, "no such XRC domain")
        if exists and core.oflags & os.O_EXCL:
            raise Refused(errno.EINVAL, "the XRC domain exists")
        xrcd = self.device.open_xrcd(self.program, key)
        return self._pack("ib_uverbs_open_xrcd_resp", xrcd_handle=self._remember(xrcd))

    def _close_xrcd(self, core: Any, driver: bytes) -> bytes:
        self.device.close_xrcd(self.program, self._get(core.xrcd_handle, XRCD))
        self._drop(core.xrcd_handle)
        return b""

    # Queue pairs

    def _create_qp(self, core: Any, driver: bytes) -> bytes:
        return self._new_qp(core, driver)

    def _ex_create_qp(self, command: bytes, driver: bytes, room: int) -> tuple[bytes, bytes]:
        core = self._struct("struct ib_uverbs_ex_create_qp", command)
        if core.comp_mask or core.create_flags & ~_BLOCK_SELF_MULTICAST:
            raise Refused(errno.EOPNOTSUPP, f"comp_mask {core.comp_mask:#x}, create_flags {core.create_flags:#x}")
        answer = self._new_qp(core, driver)
        size = self.ffi.sizeof("struct ib_uverbs_create_qp_resp")
        whole = self._pack("ib_uverbs_ex_create_qp_resp", response_length=room)
        return answer[:size] + whole[size:], answer[size:]

    def _new_qp(self, core: Any, driver: bytes) -> bytes:
        given = self._struct("struct mlx5_ib_create_qp", driver)
        lib = self.lib
        if given.flags & lib.MLX5_QP_FLAG_SIGNATURE:
            raise Refused(errno.EOPNOTSUPP, "no signatures of WQEs")
        target = core.qp_type == abi.QPT_XRC_RECV
        has_receives = not target and core.qp_type != abi.QPT_XRC_SEND
        cap = Capabilities(
            core.max_send_wr, core.max_recv_wr, core.max_send_sge, core.max_recv_sge, core.max_inline_data
        )
        qp = self.device.create_qp(
            self.program,
            None if target else self._get(core.pd_handle, PD),
            core.qp_type,
            cap,
            None if target else self._get(core.send_cq_handle, CQ),
            self._get(core.recv_cq_handle, CQ) if has_receives else None,
            self._get(core.srq_handle, SRQ) if core.is_srq and has_receives else None,
            self._get(core.pd_handle, XRCD) if target else None,
            bool(core.sq_sig_all),
        )
        scatters = bool(given.flags & lib.MLX5_QP_FLAG_SCATTER_CQE)
        receives_size = given.rq_wqe_count << given.rq_wqe_shift
        sends = SendQueue(
            given.buf_addr + receives_size,
            given.sq_wqe_count,
            given.uidx,
            given.db_addr,
            scatters,
            scatters and bool(core.sq_sig_all or given.flags & lib.MLX5_QP_FLAG_ALLOW_SCATTER_CQE),
        )
        receives = None
        if given.rq_wqe_count:  # what fits into the queue, not what was asked for
            segments = (1 << given.rq_wqe_shift) // wqe.UNIT
            qp.cap = dataclasses.replace(qp.cap, max_recv_wr=given.rq_wqe_count, max_recv_sge=segments)
        if has_receives and not core.is_srq and given.rq_wqe_count:
            receives = ReceiveRing(given.buf_addr, given.rq_wqe_count, 1 << given.rq_wqe_shift, given.db_addr)
        self.device.attach_qp(qp, sends, receives)
        return self._qp_answer(qp, core.user_handle)

    def _qp_answer(self, qp: QP, user_handle: int) -> bytes:
        caps = vars(qp.cap)
        answer = self._pack(
            "ib_uverbs_create_qp_resp", qp_handle=self._remember(qp, user_handle), qpn=qp.qp_num, **caps
        )
        return answer + self._pack("mlx5_ib_create_qp_resp")

    def _open_qp(self, core: Any, driver: bytes) -> bytes:
        qp = self.device.open_qp(self._get(core.pd_handle, XRCD), core.qpn)
        return self._qp_answer(qp, core.user_handle)

    def _destroy_qp(self, core: Any, driver: bytes) -> bytes:
        self.device.destroy_qp(self._get(core.qp_handle, QP))
        return self._pack("ib_uverbs_destroy_qp_resp", events_reported=self._events_of(self._drop(core.qp_handle)))

    def _modify_qp(self, core: Any, driver: bytes) -> bytes:
        self._change_qp(core, 0)
        return b""

    def _ex_modify_qp(self, command: bytes, driver: bytes, room: int) -> tuple[bytes, bytes]:
        core = self._struct("struct ib_uverbs_ex_modify_qp", command)
        self._change_qp(core.base, core.rate_limit)
        return self._pack("ib_uverbs_ex_modify_qp_resp", response_length=room), b""

    def _change_qp(self, core: Any, rate_limit: int) -> None:
        qp = self._get(core.qp_handle, QP)
        given: dict[str, Any] = {}
        for bit, names in states.FIELDS.items():
            if not core.attr_mask & bit:
                continue
            for name in names:
                if name == "ah_attr":
                    given[name] = _address(core.dest, core.dest)
                elif name == "alt_ah_attr":
                    given[name] = _address(core.alt_dest, core.alt_dest)
                elif name == "rate_limit":
                    given[name] = rate_limit
                else:
                    given[name] = getattr(core, name)
        self.device.modify_qp(qp, core.attr_mask, given)

    def _query_qp(self, core: Any, driver: bytes) -> bytes:
        qp = self._get(core.qp_handle, QP)
        fields = self._known("ib_uverbs_query_qp_resp", qp.attr)
        fields |= vars(qp.cap)
        fields |= {"qp_state": qp.state, "cur_qp_state": qp.state, "sq_sig_all": qp.sq_sig_all}
        fields["qp_access_flags"] = qp.access_flags
        fields["dest"] = _destination(qp.attr.get("ah_attr", AddressVector()))
        fields["alt_dest"] = _destination(qp.attr.get("alt_ah_attr", AddressVector()))
        return self._pack("ib_uverbs_query_qp_resp", **fields)

    # Address handles

    def _create_ah(self, core: Any, driver: bytes) -> bytes:
        ah = self.device.create_ah(self._get(core.pd_handle, PD), _address(core.attr, core.attr.grh))
        handle = self._remember(ah, core.user_handle)
        answer = self._pack("ib_uverbs_create_ah_resp", ah_handle=handle)
        size = self.ffi.sizeof("struct mlx5_ib_create_ah_resp")
        return answer + self._pack("mlx5_ib_create_ah_resp", response_length=size, dmac=_MAC)

    def _destroy_ah(self, core: Any, driver: bytes) -> bytes:
        self.device.destroy_ah(self._get(core.ah_handle, AH))
        self._drop(core.ah_handle)
        return b""


_BLOCK_SELF_MULTICAST = 1 << 1
_MAC = bytes([2, 0, 0, 0, 0, 1])


def _be64(value: int) -> int:
    return int.from_bytes(value.to_bytes(8, "big"), "little")


def _address(struct: Any, route: Any) -> AddressVector:
    return AddressVector(
        struct.port_num,
        struct.is_global,
        bytes(route.dgid),
        route.sgid_index,
        route.hop_limit,
        route.traffic_class,
        route.flow_label,
        struct.dlid,
        struct.sl,
        struct.src_path_bits,
        struct.static_rate,
    )


def _destination(av: AddressVector) -> dict[str, Any]:
    return {name: value if name != "dgid" else list(value) for name, value in vars(av).items()}
