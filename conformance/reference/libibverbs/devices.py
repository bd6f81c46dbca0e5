# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices, contexts, ports and their GIDs, asynchronous events."""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any

from ..engine import abi
from ..engine.device import Device, Fabric
from ..engine.errors import Refused
from ..engine.objects import CQ, GID, QP, SIZE_MAX, SRQ, Context
from . import c
from .calls import verb
from .structs import copy_out, fill, structs

fabric = Fabric()

_contexts: dict[Context, Any] = {}
_fds: dict[Context, int] = {}
"""The cmd_fd of each, which names it to ibv_import_device(3)."""
_device_structs: dict[int, Any] = {}
_lists: dict[int, Any] = {}


def _be64(value: int) -> int:
    return int.from_bytes(value.to_bytes(8, "big"), sys.byteorder)


def _device_struct(device: Device) -> Any:
    if device.number not in _device_structs:
        struct = structs.make("struct ibv_device", device)
        struct.node_type = device.node_type
        struct.transport_type = device.transport_type
        struct.name = device.name.encode()
        struct.dev_name = f"uverbs-{device.name}".encode()
        _device_structs[device.number] = struct
    return _device_structs[device.number]


@verb
def ibv_get_device_list(num_devices: Any) -> Any:
    found = [_device_struct(device) for device in fabric.devices]
    array = c.ffi.new("struct ibv_device *[]", [*found, c.ffi.NULL])
    _lists[int(c.ffi.cast("uintptr_t", array))] = array
    if num_devices:
        num_devices[0] = len(found)
    return array


@verb
def ibv_free_device_list(array: Any) -> None:
    _lists.pop(int(c.ffi.cast("uintptr_t", array)), None)


@verb
def ibv_get_device_name(device: Any) -> Any:
    return c.ffi.cast("char *", c.ffi.addressof(device, "name"))


@verb
def ibv_get_device_index(device: Any) -> int:
    return int(structs.of(device).number)


@verb
def ibv_get_device_guid(device: Any) -> int:
    return _be64(structs.of(device).attr.node_guid)


@verb
def ibv_open_device(device: Any) -> Any:
    context = structs.of(device).open()
    _fds[context] = os.memfd_create(context.device.name, os.MFD_CLOEXEC)
    _contexts[context] = _context_struct(context, device, _fds[context])
    return c.ffi.addressof(_contexts[context], "context")


@verb
def ibv_import_device(cmd_fd: int) -> Any:
    """Another struct for an open device, by a copy of its descriptor, which it closes in the end."""
    try:
        context = next(context for context, fd in _fds.items() if os.path.sameopenfile(fd, cmd_fd))
    except (StopIteration, OSError):
        raise Refused(errno.EINVAL, f"the descriptor {cmd_fd} is no open device") from None
    struct = _context_struct(context, _device_struct(context.device), cmd_fd)
    return c.ffi.addressof(struct, "context")


def _context_struct(context: Context, device: Any, cmd_fd: int) -> Any:
    struct = structs.make("struct verbs_context", context)
    c.lib.fill_context(struct)
    for name in context.device.unsupported:
        table = struct if hasattr(struct, name) else struct.context.ops
        setattr(table, name, c.ffi.NULL)
    struct.sz = c.ffi.sizeof("struct verbs_context")
    public = c.ffi.addressof(struct, "context")
    public.device = device
    public.cmd_fd = cmd_fd
    public.async_fd = context.events.fd
    public.num_comp_vectors = 1
    public.abi_compat = c.ffi.cast("void *", SIZE_MAX)
    return struct


def context_of(pointer: Any) -> Context:
    found: Context = structs.of(c.ffi.cast("char *", pointer) - c.ffi.offsetof("struct verbs_context", "context"))
    return found


@verb
def ibv_close_device(pointer: Any) -> int:
    context = context_of(pointer)
    struct = c.ffi.cast("char *", pointer) - c.ffi.offsetof("struct verbs_context", "context")
    os.close(pointer.cmd_fd)
    if struct != c.ffi.cast("char *", _contexts.get(context, c.ffi.NULL)):  # an imported one
        structs.drop(struct)
        return 0
    del _fds[context]
    context.device.close(context)
    structs.drop(_contexts.pop(context))
    return 0


def port_of(pointer: Any, port_num: int) -> Any:
    ports = context_of(pointer).device.ports
    if not 1 <= port_num <= len(ports):
        raise Refused(errno.EINVAL, f"port {port_num}")
    return ports[port_num - 1]


@verb
def ibv_query_device(pointer: Any, struct: Any) -> int:
    attr = context_of(pointer).device.attr
    c.ffi.memmove(struct, bytes(c.ffi.sizeof("struct ibv_device_attr")), c.ffi.sizeof("struct ibv_device_attr"))
    fill(struct, attr)
    struct.node_guid = _be64(attr.node_guid)
    struct.sys_image_guid = _be64(attr.sys_image_guid)
    return 0


@verb
def query_device_ex(pointer: Any, given: Any, struct: Any, size: int) -> int:
    whole = c.ffi.new("struct ibv_device_attr_ex *")
    ibv_query_device(pointer, c.ffi.addressof(whole, "orig_attr"))
    attr = context_of(pointer).device.attr
    whole.completion_timestamp_mask = SIZE_MAX
    whole.hca_core_clock = 1_000_000
    whole.device_cap_flags_ex = attr.device_cap_flags
    whole.odp_caps.general_caps = attr.odp_general_caps
    fill(whole.odp_caps.per_transport_caps, attr)
    whole.xrc_odp_caps = attr.xrc_odp_caps
    if hasattr(whole, "phys_port_cnt_ex"):
        whole.phys_port_cnt_ex = attr.phys_port_cnt
    copy_out(struct, whole, size)
    return 0


@verb
def query_port(pointer: Any, port_num: int, struct: Any, size: int) -> int:
    whole = c.ffi.new("struct ibv_port_attr *")
    port = port_of(pointer, port_num)
    fill(whole, port)
    copy_out(struct, whole, size)
    return 0


@verb
def query_rt_values(pointer: Any, values: Any) -> int:
    now = time.time_ns()
    values.comp_mask &= 1
    values.raw_clock.tv_sec = 0
    values.raw_clock.tv_nsec = now
    return 0


def _gid(pointer: Any, port_num: int, index: int) -> GID | None:
    """The GID at an index of the table; None where the table is empty."""
    port = port_of(pointer, port_num)
    if not 0 <= index < port.gid_tbl_len:
        raise Refused(errno.EINVAL, f"GID index {index}")
    found: GID | None = port.gids[index] if index < len(port.gids) else None
    return found


@verb
def ibv_query_gid(pointer: Any, port_num: int, index: int, gid: Any) -> int:
    found = _gid(pointer, port_num, index)
    gid.raw = found.raw if found else bytes(16)
    return 0


@verb
def _ibv_query_gid_ex(pointer: Any, port_num: int, index: int, entry: Any, flags: int, size: int) -> int:
    found = _gid(pointer, port_num, index)
    if found is None:
        raise Refused(errno.ENODATA, f"GID index {index} is empty")
    _fill_gid(entry, found, port_num, index, size)
    return 0


def _fill_gid(entry: Any, gid: GID, port_num: int, index: int, size: int) -> None:
    whole = c.ffi.new("struct ibv_gid_entry *")
    whole.gid.raw = gid.raw
    whole.gid_index = index
    whole.port_num = port_num
    whole.gid_type = gid.type
    copy_out(entry, whole, size)


@verb
def _ibv_query_gid_table(pointer: Any, entries: Any, most: int, flags: int, size: int) -> int:
    found = [
        (gid, port_num, index)
        for port_num, port in enumerate(context_of(pointer).device.ports, 1)
        for index, gid in enumerate(port.gids)
    ]
    if len(found) > most:
        raise Refused(errno.EINVAL, f"{len(found)} GIDs and room for {most}")
    for number, (gid, port_num, index) in enumerate(found):
        _fill_gid(c.ffi.cast("char *", entries) + number * size, gid, port_num, index, size)
    return len(found)


@verb
def ibv_query_gid_type(pointer: Any, port_num: int, index: int, kind: Any) -> int:
    found = _gid(pointer, port_num, index)
    kind[0] = 1 if found is not None and found.type == abi.GID_TYPE_ROCE_V2 else 0
    return 0


@verb
def ibv_query_pkey(pointer: Any, port_num: int, index: int, pkey: Any) -> int:
    pkeys = port_of(pointer, port_num).pkeys
    if not 0 <= index < len(pkeys):
        raise Refused(errno.EINVAL, f"P_Key index {index}")
    pkey[0] = int.from_bytes(pkeys[index].to_bytes(2, "big"), sys.byteorder)
    return 0


@verb
def ibv_get_pkey_index(pointer: Any, port_num: int, pkey: int) -> int:
    wanted = int.from_bytes(pkey.to_bytes(2, sys.byteorder), "big")
    pkeys: list[int] = port_of(pointer, port_num).pkeys
    if wanted not in pkeys:
        raise Refused(errno.ENOENT, f"P_Key {wanted:#x}")
    return pkeys.index(wanted)


@verb
def ibv_fork_init() -> int:
    return 0


@verb
def ibv_is_fork_initialized() -> int:
    return 2  # IBV_FORK_UNNEEDED: the kernel copies, pages are not pinned


@verb
def ibv_get_async_event(pointer: Any, event: Any) -> int:
    kind, item = context_of(pointer).events.get()
    event.event_type = kind
    struct = structs.struct(item)
    for name, owner in (("cq", CQ), ("qp", QP), ("srq", SRQ)):
        if isinstance(item, owner):
            setattr(event.element, name, c.ffi.cast(f"struct ibv_{name} *", struct))
    return 0


@verb
def ibv_ack_async_event(event: Any) -> None:
    pass
