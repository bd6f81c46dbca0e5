# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Shows the engine to this process as libibverbs: C structs in and out, errno, and nothing else."""

import atexit
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import binding, header
from .engine import abi, grh, states
from .engine.device import Device, Fabric
from .engine.errors import BadWorkRequest, Refused
from .engine.memory import MemoryFault
from .engine.objects import (
    AH,
    CQ,
    CQE,
    GID,
    MR,
    MW,
    PD,
    QP,
    SGE,
    SIZE_MAX,
    SRQ,
    XRCD,
    AddressVector,
    Capabilities,
    Context,
    EventQueue,
    RecvWR,
    SendWR,
)
from .engine.transfers import OPCODES

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)

_operations: dict[str, Function] = {}
# How a function that does not return an errno says that it failed.
_MINUS_ONE = {
    "ibv_get_cq_event", "ibv_get_async_event", "ibv_query_gid", "ibv_query_pkey", "ibv_query_gid_type",
    "ibv_get_device_index", "ibv_close_device", "ibv_get_pkey_index",
}  # fmt: skip
_NEGATIVE = {"poll_cq", "_ibv_query_gid_table"}
_UNLOCKED = {"ibv_get_cq_event", "ibv_get_async_event"}

# libibverbs and providers keep private data behind the public structs and may read it.
_PADDING = 512

fabric = Fabric()
ffi: Any = None
lib: Any = None


@dataclass
class _Failure:
    """An exception inside a verb: a fault of this program, not of its user. The verb failed with EIO."""

    verb: str
    error: BaseException

    def __str__(self) -> str:
        return f"in {self.verb}:\n{''.join(traceback.format_exception(self.error))}"


failures: list[_Failure] = []


class ProgramMemory:
    """The memory of this process, by the kernel's hand (engine.memory.Memory)."""

    def read(self, address: int, length: int) -> bytes:
        data = bytearray(length)
        self._check(lib.memory_read(ffi.from_buffer(data), address % 2**64, length), address)
        return bytes(data)

    def write(self, address: int, data: bytes | memoryview) -> None:
        self._check(lib.memory_write(address % 2**64, ffi.from_buffer(data), len(data)), address)

    def zero(self, address: int, length: int) -> None:
        self._check(lib.memory_zero(address % 2**64, length), address)

    def _check(self, error: int, address: int) -> None:
        if error == errno.EFAULT:
            raise MemoryFault(f"{address:#x}")
        if error:
            raise OSError(error, f"process_vm_readv(2) or process_vm_writev(2): {os.strerror(error)}")


class _Structs:
    """C structs that the program has pointers to, each with the engine's object behind it."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._owners: dict[int, Any] = {}
        self._structs: dict[Any, Any] = {}

    def make(self, kind: str, item: Any) -> Any:
        """A zeroed struct for an object, alive until `drop`."""
        owner = ffi.new("char[]", ffi.sizeof(kind) + _PADDING)
        struct = ffi.cast(f"{kind} *", owner)
        address = int(ffi.cast("uintptr_t", owner))
        self._objects[address] = item
        self._owners[address] = owner
        self._structs.setdefault(item, struct)
        return struct

    def of(self, pointer: Any) -> Any:
        """The object behind a pointer. Refused if there is none (any more)."""
        try:
            return self._objects[int(ffi.cast("uintptr_t", pointer))]
        except KeyError:
            raise Refused(errno.EINVAL, f"{pointer} is no live object of the reference device") from None

    def maybe(self, pointer: Any) -> Any:
        return self.of(pointer) if pointer else None

    def struct(self, item: Any) -> Any:
        return self._structs[item]

    def drop(self, pointer: Any) -> None:
        address = int(ffi.cast("uintptr_t", pointer))
        item = self._objects.pop(address)
        del self._owners[address]
        if int(ffi.cast("uintptr_t", self._structs.get(item, ffi.NULL))) == address:
            del self._structs[item]


structs = _Structs()
# The busiest objects by the handle in their struct.
_qps: dict[int, QP] = {}
_cqs: dict[int, CQ] = {}
_srqs: dict[int, SRQ] = {}
_last_handle = 0


def _next_handle() -> int:
    global _last_handle
    _last_handle += 1
    return _last_handle


def verb(function: _F) -> _F:
    """Register the Python side of an operation; the function has its name."""
    _operations[function.__name__] = function
    return function


def load(devices: int, make: Callable[[int, Fabric, ProgramMemory], Device]) -> str:
    """Build and load the C side, create the devices. Returns the path of the shared object. Raises BuildError."""
    global ffi, lib
    module, functions = binding.build(tuple(_operations))
    ffi, lib = module.ffi, module.lib
    for name, function in functions.items():
        _attach(name, function)
    memory = ProgramMemory()
    probe = ffi.new("char[]", 1)
    memory.read(int(ffi.cast("uintptr_t", probe)), 1)
    for number in range(devices):
        make(number, fabric, memory)
    atexit.register(_close)
    return str(module.__file__)


def _attach(name: str, function: header.Function) -> None:
    implementation = _operations[name]
    lock = fabric.lock

    def locked(*arguments: Any) -> Any:
        with lock:
            return implementation(*arguments)

    def failed(kind: type, error: BaseException, trace: Any) -> Any:
        number = errno.EIO
        if isinstance(error, Refused):
            number = error.errno
        elif isinstance(error, BlockingIOError | InterruptedError):
            number = error.errno or errno.EAGAIN
        elif isinstance(error, KeyboardInterrupt):
            lib.reference_interrupted = 1
            number = errno.EINTR
        else:
            failures.append(_Failure(name, error))
        ffi.errno = number
        if function.result == "void":
            return None
        if function.pointer:
            return ffi.NULL
        if isinstance(error, Refused) and error.code is not None:
            return error.code
        return -1 if name in _MINUS_ONE else -number if name in _NEGATIVE else number

    ffi.def_extern(name=f"python_{name}", onerror=failed)(implementation if name in _UNLOCKED else locked)


def _close() -> None:
    """Programs that end without destroying their objects: nothing may call into Python after it is gone."""
    lib.reference_closed = 1


# Devices and contexts

_contexts: dict[Context, Any] = {}
_device_structs: dict[int, Any] = {}
_lists: dict[int, Any] = {}


def _be64(value: int) -> int:
    return int.from_bytes(value.to_bytes(8, "big"), sys.byteorder)


def _device_struct(device: Device) -> Any:
    if device.number not in _device_structs:
        struct = structs.make("struct ibv_device", device)
        struct.node_type = abi.NODE_CA
        struct.name = device.name.encode()
        struct.dev_name = f"uverbs-{device.name}".encode()
        _device_structs[device.number] = struct
    return _device_structs[device.number]


@verb
def ibv_get_device_list(num_devices: Any) -> Any:
    found = [_device_struct(device) for device in fabric.devices]
    array = ffi.new("struct ibv_device *[]", [*found, ffi.NULL])
    _lists[int(ffi.cast("uintptr_t", array))] = array
    if num_devices:
        num_devices[0] = len(found)
    return array


@verb
def ibv_free_device_list(array: Any) -> None:
    _lists.pop(int(ffi.cast("uintptr_t", array)), None)


@verb
def ibv_get_device_name(device: Any) -> Any:
    return ffi.cast("char *", ffi.addressof(device, "name"))


@verb
def ibv_get_device_index(device: Any) -> int:
    return int(structs.of(device).number)


@verb
def ibv_get_device_guid(device: Any) -> int:
    return _be64(structs.of(device).attr.node_guid)


@verb
def ibv_open_device(device: Any) -> Any:
    engine = structs.of(device)
    context = engine.open()
    struct = structs.make("struct verbs_context", context)
    lib.fill_context(struct)
    for name in engine.unsupported:
        table = struct if hasattr(struct, name) else struct.context.ops
        setattr(table, name, ffi.NULL)
    struct.sz = ffi.sizeof("struct verbs_context")
    public = ffi.addressof(struct, "context")
    public.device = device
    public.cmd_fd = context.events.fd
    public.async_fd = context.events.fd
    public.num_comp_vectors = 1
    public.abi_compat = ffi.cast("void *", SIZE_MAX)
    _contexts[context] = struct
    return public


def _context(pointer: Any) -> Context:
    found: Context = structs.of(ffi.cast("char *", pointer) - ffi.offsetof("struct verbs_context", "context"))
    return found


@verb
def ibv_close_device(pointer: Any) -> int:
    context = _context(pointer)
    context.device.close(context)
    structs.drop(_contexts.pop(context))
    return 0


def _port(pointer: Any, port_num: int) -> Any:
    ports = _context(pointer).device.ports
    if not 1 <= port_num <= len(ports):
        raise Refused(errno.EINVAL, f"port {port_num}")
    return ports[port_num - 1]


def _fill(struct: Any, values: object) -> None:
    """Copy the attributes of an object to the fields of the same names."""
    for name in vars(values):
        if hasattr(struct, name):
            value = getattr(values, name)
            setattr(struct, name, value.encode() if isinstance(value, str) else value)


@verb
def ibv_query_device(pointer: Any, struct: Any) -> int:
    attr = _context(pointer).device.attr
    ffi.memmove(struct, bytes(ffi.sizeof("struct ibv_device_attr")), ffi.sizeof("struct ibv_device_attr"))
    _fill(struct, attr)
    struct.node_guid = _be64(attr.node_guid)
    struct.sys_image_guid = _be64(attr.sys_image_guid)
    return 0


@verb
def query_device_ex(pointer: Any, given: Any, struct: Any, size: int) -> int:
    whole = ffi.new("struct ibv_device_attr_ex *")
    ibv_query_device(pointer, ffi.addressof(whole, "orig_attr"))
    attr = _context(pointer).device.attr
    whole.completion_timestamp_mask = SIZE_MAX
    whole.hca_core_clock = 1_000_000
    whole.device_cap_flags_ex = attr.device_cap_flags
    if hasattr(whole, "phys_port_cnt_ex"):
        whole.phys_port_cnt_ex = attr.phys_port_cnt
    _copy_out(struct, whole, size)
    return 0


def _copy_out(struct: Any, whole: Any, size: int) -> None:
    """Fill a caller's struct, which may be of an older or newer header than ours."""
    data = bytes(ffi.buffer(whole))
    ffi.memmove(struct, data[:size].ljust(size, b"\0"), size)


@verb
def query_port(pointer: Any, port_num: int, struct: Any, size: int) -> int:
    whole = ffi.new("struct ibv_port_attr *")
    port = _port(pointer, port_num)
    _fill(whole, port)
    _copy_out(struct, whole, size)
    return 0


@verb
def query_rt_values(pointer: Any, values: Any) -> int:
    import time

    now = time.time_ns()
    values.comp_mask &= 1
    values.raw_clock.tv_sec = 0
    values.raw_clock.tv_nsec = now
    return 0


def _gid(pointer: Any, port_num: int, index: int) -> GID | None:
    """The GID at an index of the table; None where the table is empty."""
    port = _port(pointer, port_num)
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
    whole = ffi.new("struct ibv_gid_entry *")
    whole.gid.raw = gid.raw
    whole.gid_index = index
    whole.port_num = port_num
    whole.gid_type = gid.type
    _copy_out(entry, whole, size)


@verb
def _ibv_query_gid_table(pointer: Any, entries: Any, most: int, flags: int, size: int) -> int:
    found = [
        (gid, port_num, index)
        for port_num, port in enumerate(_context(pointer).device.ports, 1)
        for index, gid in enumerate(port.gids)
    ]
    if len(found) > most:
        raise Refused(errno.EINVAL, f"{len(found)} GIDs and room for {most}")
    for number, (gid, port_num, index) in enumerate(found):
        _fill_gid(ffi.cast("char *", entries) + number * size, gid, port_num, index, size)
    return len(found)


@verb
def ibv_query_gid_type(pointer: Any, port_num: int, index: int, kind: Any) -> int:
    found = _gid(pointer, port_num, index)
    kind[0] = 1 if found is not None and found.type == abi.GID_TYPE_ROCE_V2 else 0
    return 0


@verb
def ibv_query_pkey(pointer: Any, port_num: int, index: int, pkey: Any) -> int:
    pkeys = _port(pointer, port_num).pkeys
    if not 0 <= index < len(pkeys):
        raise Refused(errno.EINVAL, f"P_Key index {index}")
    pkey[0] = int.from_bytes(pkeys[index].to_bytes(2, "big"), sys.byteorder)
    return 0


@verb
def ibv_get_pkey_index(pointer: Any, port_num: int, pkey: int) -> int:
    wanted = int.from_bytes(pkey.to_bytes(2, sys.byteorder), "big")
    pkeys: list[int] = _port(pointer, port_num).pkeys
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
    kind, item = _context(pointer).events.get()
    event.event_type = kind
    struct = structs.struct(item)
    for name, owner in (("cq", CQ), ("qp", QP), ("srq", SRQ)):
        if isinstance(item, owner):
            setattr(event.element, name, ffi.cast(f"struct ibv_{name} *", struct))
    return 0


@verb
def ibv_ack_async_event(event: Any) -> None:
    pass


# Protection domains, memory regions, memory windows


@verb
def ibv_alloc_pd(pointer: Any) -> Any:
    context = _context(pointer)
    pd = context.device.alloc_pd(context)
    struct = structs.make("struct ibv_pd", pd)
    struct.context = pointer
    struct.handle = pd.handle
    return struct


@verb
def alloc_parent_domain(pointer: Any, attr: Any) -> Any:
    """Its allocators are for memory that a driver needs; this one needs none."""
    if attr.td:
        raise Refused(errno.EOPNOTSUPP, "no thread domains")
    pd = _context(pointer).device.alloc_parent_domain(structs.of(attr.pd))
    struct = structs.make("struct ibv_pd", pd)
    struct.context = pointer
    struct.handle = pd.handle
    return struct


def _pd(pointer: Any) -> PD:
    """The PD that things made on this one belong to."""
    pd: PD = structs.of(pointer)
    return pd.parent or pd


@verb
def ibv_dealloc_pd(pointer: Any) -> int:
    pd = structs.of(pointer)
    pd.context.device.dealloc_pd(pd)
    structs.drop(pointer)
    return 0


def _mr_struct(pd: Any, mr: MR) -> Any:
    struct = structs.make("struct ibv_mr", mr)
    struct.context = pd.context if mr.names_context else ffi.NULL
    struct.pd = pd
    struct.addr = ffi.cast("void *", mr.addr)
    struct.length = mr.length
    struct.handle = mr.handle
    struct.lkey = mr.lkey
    struct.rkey = mr.rkey
    return struct


def _reg_mr(pointer: Any, addr: Any, length: int, iova: int, access: int) -> Any:
    pd = _pd(pointer)
    mr = pd.context.device.reg_mr(pd, int(ffi.cast("uintptr_t", addr)), length, iova, access)
    return _mr_struct(pointer, mr)


@verb
def ibv_reg_mr(pointer: Any, addr: Any, length: int, access: int) -> Any:
    return _reg_mr(pointer, addr, length, int(ffi.cast("uintptr_t", addr)), access)


@verb
def ibv_reg_mr_iova(pointer: Any, addr: Any, length: int, iova: int, access: int) -> Any:
    return _reg_mr(pointer, addr, length, iova, access)


@verb
def ibv_reg_mr_iova2(pointer: Any, addr: Any, length: int, iova: int, access: int) -> Any:
    return _reg_mr(pointer, addr, length, iova, access)


@verb
def alloc_null_mr(pointer: Any) -> Any:
    pd = _pd(pointer)
    mr = pd.context.device.alloc_null_mr(pd)
    return _mr_struct(pointer if mr.pd is pd else structs.struct(mr.pd), mr)


@verb
def ibv_rereg_mr(pointer: Any, flags: int, pd: Any, addr: Any, length: int, access: int) -> int:
    mr: MR = structs.of(pointer)
    new_pd = _pd(pd) if flags & abi.REREG_MR_CHANGE_PD else None  # else the pointer means nothing
    try:
        mr.pd.context.device.rereg_mr(mr, flags, new_pd, int(ffi.cast("uintptr_t", addr)), length, access)
        if flags & abi.REREG_MR_CHANGE_PD:
            pointer.pd = pd
            pointer.context = pd.context
    finally:  # a device that changes an MR and then refuses shows it
        pointer.addr = ffi.cast("void *", mr.addr)
        pointer.length = mr.length
        pointer.lkey = mr.lkey
        pointer.rkey = mr.rkey
    return 0


@verb
def ibv_dereg_mr(pointer: Any) -> int:
    mr: MR = structs.of(pointer)
    mr.pd.context.device.dereg_mr(mr)
    structs.drop(pointer)
    return 0


@verb
def alloc_mw(pointer: Any, kind: int) -> Any:
    pd = _pd(pointer)
    mw = pd.context.device.alloc_mw(pd, int(kind))
    struct = structs.make("struct ibv_mw", mw)
    struct.context = pointer.context
    struct.pd = pointer
    struct.rkey = mw.rkey
    struct.handle = mw.handle
    struct.type = mw.type
    return struct


@verb
def dealloc_mw(pointer: Any) -> int:
    mw: MW = structs.of(pointer)
    mw.pd.context.device.dealloc_mw(mw)
    structs.drop(pointer)
    return 0


@verb
def bind_mw(qp_pointer: Any, mw_pointer: Any, bind: Any) -> int:
    qp, mw = _qps[qp_pointer.handle], structs.of(mw_pointer)
    wr = SendWR(bind.wr_id, abi.WR_BIND_MW, bind.send_flags, [], mw=mw)
    _set_bind(wr, bind.bind_info)
    qp.device.bind_mw(qp, mw, wr)
    mw_pointer.rkey = wr.rkey
    return 0


def _set_bind(wr: SendWR, info: Any) -> None:
    wr.bind_mr = structs.maybe(info.mr)
    wr.bind_addr, wr.bind_length, wr.bind_access = info.addr, info.length, info.mw_access_flags


# Completion queues


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
    context = _context(pointer)
    if not 0 <= vector < pointer.num_comp_vectors:
        raise Refused(errno.EINVAL, f"completion vector {vector}")
    cq = context.device.create_cq(context, cqe, structs.maybe(channel), extended)
    struct = structs.make("struct reference_cq", cq).cq
    lib.fill_cq(ffi.addressof(struct))
    struct.context = pointer
    struct.channel = channel
    struct.cq_context = cq_context
    struct.handle = _next_handle()
    struct.cqe = cq.cqe
    if channel:
        channel.refcnt += 1
    _cqs[struct.handle] = cq
    return ffi.addressof(struct)


@verb
def ibv_create_cq(pointer: Any, cqe: int, cq_context: Any, channel: Any, vector: int) -> Any:
    return ffi.cast("struct ibv_cq *", _create_cq(pointer, cqe, cq_context, channel, vector, False))


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
    cq = _cqs[pointer.handle]
    cq.context.device.resize_cq(cq, cqe)
    pointer.cqe = cqe
    return 0


@verb
def ibv_destroy_cq(pointer: Any) -> int:
    cq = _cqs[pointer.handle]
    if _unacknowledged.get(pointer.handle):
        raise Refused(errno.EBUSY, "completion events are not acknowledged (ibv_ack_cq_events)")
    cq.context.device.destroy_cq(cq)
    if pointer.channel:
        pointer.channel.refcnt -= 1
    del _cqs[pointer.handle]
    structs.drop(pointer)
    return 0


_unacknowledged: dict[int, int] = {}


@verb
def ibv_get_cq_event(channel: Any, cq: Any, cq_context: Any) -> int:
    (item,) = structs.of(channel).get()
    struct = structs.struct(item)
    cq[0] = ffi.cast("struct ibv_cq *", struct)
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
    cq = _cqs[pointer.handle]
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
    cq = _cqs[pointer.handle]
    polled: list[CQE] = cq.context.device.poll_cq(cq, most)
    for number, cqe in enumerate(polled):
        _fill_wc(wcs[number], cqe)
    return len(polled)


@verb
def start_poll(pointer: Any, attr: Any) -> int:
    return next_poll(pointer)


@verb
def next_poll(pointer: Any) -> int:
    cq = _cqs[pointer.handle]
    polled: list[CQE] = cq.context.device.poll_cq(cq, 1)
    if not polled:
        return int(errno.ENOENT)
    struct = ffi.cast("struct reference_cq *", pointer)
    _fill_wc(struct.wc, polled[0])
    struct.timestamp = polled[0].timestamp
    pointer.wr_id = polled[0].wr_id
    pointer.status = polled[0].status
    return 0


# Shared receive queues and XRC domains


def _srq_struct(context: Any, pd: Any, srq_context: Any, srq: SRQ) -> Any:
    struct = structs.make("struct ibv_srq", srq)
    struct.context = context
    struct.srq_context = srq_context
    struct.pd = pd
    struct.handle = _next_handle()
    _srqs[struct.handle] = srq
    return struct


@verb
def ibv_create_srq(pointer: Any, init: Any) -> Any:
    pd = _pd(pointer)
    attr = init.attr
    srq = pd.context.device.create_srq(pd, attr.max_wr, attr.max_sge)
    attr.max_wr, attr.max_sge = srq.max_wr, srq.max_sge
    return _srq_struct(pointer.context, pointer, init.srq_context, srq)


@verb
def create_srq_ex(pointer: Any, init: Any) -> Any:
    pd = _pd(init.pd)
    attr = init.attr
    xrc = init.srq_type == abi.SRQT_XRC
    srq = pd.context.device.create_srq(
        pd,
        attr.max_wr,
        attr.max_sge,
        type=int(init.srq_type),
        xrcd=structs.maybe(init.xrcd) if xrc else None,
        cq=_cqs[init.cq.handle] if xrc and init.cq else None,
    )
    attr.max_wr, attr.max_sge = srq.max_wr, srq.max_sge
    return _srq_struct(pointer, init.pd, init.srq_context, srq)


@verb
def get_srq_num(pointer: Any, number: Any) -> int:
    number[0] = _srqs[pointer.handle].number
    return 0


@verb
def ibv_modify_srq(pointer: Any, attr: Any, mask: int) -> int:
    srq = _srqs[pointer.handle]
    srq.pd.context.device.modify_srq(srq, mask, attr.max_wr, attr.srq_limit)
    return 0


@verb
def ibv_query_srq(pointer: Any, attr: Any) -> int:
    srq = _srqs[pointer.handle]
    attr.max_wr, attr.max_sge, attr.srq_limit = srq.max_wr, srq.max_sge, srq.limit
    return 0


@verb
def ibv_destroy_srq(pointer: Any) -> int:
    srq = _srqs[pointer.handle]
    srq.pd.context.device.destroy_srq(srq)
    del _srqs[pointer.handle]
    structs.drop(pointer)
    return 0


@verb
def open_xrcd(pointer: Any, attr: Any) -> Any:
    context = _context(pointer)
    key = None
    if attr.fd != -1:
        status = os.fstat(attr.fd)
        key = (status.st_dev, status.st_ino)
    xrcd = context.device.open_xrcd(context, key)
    struct = structs.make("struct ibv_xrcd", xrcd)
    struct.context = pointer
    return struct


@verb
def close_xrcd(pointer: Any) -> int:
    xrcd: XRCD = structs.of(pointer)
    context = _context(pointer.context)
    context.device.close_xrcd(context, xrcd)
    structs.drop(pointer)
    return 0


# Queue pairs


def _cap(struct: Any) -> Capabilities:
    return Capabilities(
        struct.max_send_wr, struct.max_recv_wr, struct.max_send_sge, struct.max_recv_sge, struct.max_inline_data
    )


def _create_qp(pointer: Any, pd: Any, xrcd: Any, init: Any, extended: bool) -> Any:
    context = _context(pointer)
    qp = context.device.create_qp(
        context,
        _pd(pd) if pd else None,
        int(init.qp_type),
        _cap(init.cap),
        _cqs[init.send_cq.handle] if init.send_cq else None,
        _cqs[init.recv_cq.handle] if init.recv_cq else None,
        _srqs[init.srq.handle] if init.srq else None,
        structs.maybe(xrcd),
        bool(init.sq_sig_all),
        extended,
    )
    struct = _qp_struct(pointer, qp, init.qp_context)
    struct.pd = pd
    struct.send_cq, struct.recv_cq, struct.srq = init.send_cq, init.recv_cq, init.srq
    return struct


def _qp_struct(pointer: Any, qp: QP, qp_context: Any) -> Any:
    whole = structs.make("struct ibv_qp_ex", qp)
    if qp.extended:
        lib.fill_qp(whole)
    struct = ffi.addressof(whole, "qp_base")
    struct.context = pointer
    struct.qp_context = qp_context
    struct.handle = _next_handle()
    struct.qp_num = qp.qp_num
    struct.qp_type = qp.qp_type
    struct.state = qp.state
    _qps[struct.handle] = qp
    return struct


@verb
def ibv_create_qp(pd: Any, init: Any) -> Any:
    return _create_qp(pd.context, pd, ffi.NULL, init, False)


# enum ibv_qp_init_attr_mask, ibv_qp_create_flags
_INIT_PD, _INIT_XRCD, _INIT_CREATE_FLAGS, _INIT_SEND_OPS = 1 << 0, 1 << 1, 1 << 2, 1 << 6
_BLOCK_SELF_MULTICAST = 1 << 1


@verb
def create_qp_ex(pointer: Any, init: Any) -> Any:
    mask = init.comp_mask
    if mask & ~(_INIT_PD | _INIT_XRCD | _INIT_CREATE_FLAGS | _INIT_SEND_OPS):
        raise Refused(errno.EOPNOTSUPP, f"comp_mask {mask:#x}")
    # There is no multicast, so none comes back.
    if mask & _INIT_CREATE_FLAGS and init.create_flags & ~_BLOCK_SELF_MULTICAST:
        raise Refused(errno.EOPNOTSUPP, f"create_flags {init.create_flags:#x}")
    extended = bool(mask & _INIT_SEND_OPS)
    if extended:
        _check_send_ops(int(init.qp_type), init.send_ops_flags)
    pd = init.pd if mask & _INIT_PD else ffi.NULL
    xrcd = init.xrcd if mask & _INIT_XRCD else ffi.NULL
    return _create_qp(pointer, pd, xrcd, init, extended)


# enum ibv_qp_create_send_ops_flags, by bit.
_SEND_OPS = (
    abi.WR_RDMA_WRITE,
    abi.WR_RDMA_WRITE_WITH_IMM,
    abi.WR_SEND,
    abi.WR_SEND_WITH_IMM,
    abi.WR_RDMA_READ,
    abi.WR_ATOMIC_CMP_AND_SWP,
    abi.WR_ATOMIC_FETCH_AND_ADD,
    abi.WR_LOCAL_INV,
    abi.WR_BIND_MW,
    abi.WR_SEND_WITH_INV,
)


def _check_send_ops(qp_type: int, flags: int) -> None:
    if flags >> len(_SEND_OPS):
        raise Refused(errno.EOPNOTSUPP, f"send_ops_flags {flags:#x}")
    for bit, opcode in enumerate(_SEND_OPS):
        if flags >> bit & 1 and opcode not in OPCODES.get(qp_type, ()):
            raise Refused(errno.EOPNOTSUPP, f"send_ops_flags bit {bit} on a queue pair of type {qp_type}")


@verb
def open_qp(pointer: Any, attr: Any) -> Any:
    qp = _context(pointer).device.open_qp(structs.of(attr.xrcd), attr.qp_num)
    return _qp_struct(pointer, qp, attr.qp_context)


@verb
def ibv_qp_to_qp_ex(pointer: Any) -> Any:
    extended = _qps[pointer.handle].extended
    return ffi.cast("struct ibv_qp_ex *", pointer) if extended else ffi.NULL


@verb
def ibv_destroy_qp(pointer: Any) -> int:
    qp = _qps[pointer.handle]
    qp.device.destroy_qp(qp)
    _batches.pop(pointer.handle, None)
    del _qps[pointer.handle]
    structs.drop(pointer)
    return 0


def _address_vector(struct: Any) -> AddressVector:
    route = struct.grh
    return AddressVector(
        struct.port_num,
        struct.is_global,
        bytes(route.dgid.raw),
        route.sgid_index,
        route.hop_limit,
        route.traffic_class,
        route.flow_label,
        struct.dlid,
        struct.sl,
        struct.src_path_bits,
        struct.static_rate,
    )


def _fill_address(struct: Any, av: AddressVector) -> None:
    struct.grh.dgid.raw = av.dgid
    for name in ("sgid_index", "hop_limit", "traffic_class", "flow_label"):
        setattr(struct.grh, name, getattr(av, name))
    for name in ("port_num", "is_global", "dlid", "sl", "src_path_bits", "static_rate"):
        setattr(struct, name, getattr(av, name))


@verb
def ibv_modify_qp(pointer: Any, attr: Any, mask: int) -> int:
    qp = _qps[pointer.handle]
    given = {}
    for bit, names in states.FIELDS.items():
        if mask & bit:
            for name in names:
                value = getattr(attr, name)
                given[name] = _address_vector(value) if name.endswith("ah_attr") else value
    qp.device.modify_qp(qp, mask, given)
    pointer.state = qp.state
    return 0


@verb
def ibv_query_qp(pointer: Any, attr: Any, mask: int, init: Any) -> int:
    qp = _qps[pointer.handle]
    ffi.memmove(attr, bytes(ffi.sizeof("struct ibv_qp_attr")), ffi.sizeof("struct ibv_qp_attr"))
    ffi.memmove(init, bytes(ffi.sizeof("struct ibv_qp_init_attr")), ffi.sizeof("struct ibv_qp_init_attr"))
    for name, value in qp.attr.items():
        if isinstance(value, AddressVector):
            _fill_address(getattr(attr, name), value)
        else:
            setattr(attr, name, value)
    attr.qp_state = attr.cur_qp_state = pointer.state = qp.state
    for cap in (attr.cap, init.cap):
        _fill(cap, qp.cap)
    init.qp_context = pointer.qp_context
    init.send_cq, init.recv_cq, init.srq = pointer.send_cq, pointer.recv_cq, pointer.srq
    init.qp_type = qp.qp_type
    init.sq_sig_all = qp.sq_sig_all
    return 0


@verb
def ibv_query_qp_data_in_order(pointer: Any, opcode: int, flags: int) -> int:
    return 0


def _ah_struct(pd: Any, ah: AH) -> Any:
    struct = structs.make("struct ibv_ah", ah)
    struct.context = pd.context
    struct.pd = pd
    struct.handle = ah.handle
    return struct


@verb
def ibv_create_ah(pointer: Any, attr: Any) -> Any:
    pd = _pd(pointer)
    return _ah_struct(pointer, pd.context.device.create_ah(pd, _address_vector(attr)))


@verb
def ibv_create_ah_from_wc(pointer: Any, wc: Any, header: Any, port_num: int) -> Any:
    pd = _pd(pointer)
    av = AddressVector(port_num, dlid=wc.slid, sl=wc.sl, src_path_bits=wc.dlid_path_bits)
    if wc.wc_flags & abi.WC_GRH:
        av = _answer(pointer.context, port_num, bytes(ffi.buffer(header, grh.LENGTH)))
    return _ah_struct(pointer, pd.context.device.create_ah(pd, av))


def _answer(context: Any, port_num: int, header: bytes) -> AddressVector:
    """The address of who sent a UD message, from the header in front of it (ibv_create_ah_from_wc(3))."""
    source, destination, traffic_class, flow_label, hop_limit = grh.parse(header)
    for index, gid in enumerate(_port(context, port_num).gids):
        if gid.raw == destination:
            return AddressVector(port_num, 1, source, index, hop_limit, traffic_class, flow_label)
    raise Refused(errno.EINVAL, "the GRH is not for this port")


@verb
def ibv_destroy_ah(pointer: Any) -> int:
    ah: AH = structs.of(pointer)
    ah.pd.context.device.destroy_ah(ah)
    structs.drop(pointer)
    return 0


# Work requests


def _sges(array: Any, number: int) -> list[SGE]:
    sges = []
    for index in range(number):
        sge = array[index]
        sges.append(SGE(sge.addr, sge.length, sge.lkey))
    return sges


def _nth(wr: Any, index: int) -> Any:
    for _ in range(index):
        wr = wr.next
    return wr


def _inline(device: Device, buffers: Sequence[tuple[int, int]]) -> bytes:
    """Inline data is read by the CPU when it is posted, whatever the lkey (ibv_post_send(3))."""
    try:
        return b"".join(device.memory.read(addr, length) for addr, length in buffers if length)
    except MemoryFault as fault:
        raise Refused(errno.EFAULT, f"no inline data at {fault}") from fault


_RDMA = (abi.WR_RDMA_WRITE, abi.WR_RDMA_WRITE_WITH_IMM, abi.WR_RDMA_READ)
_ATOMICS = (abi.WR_ATOMIC_CMP_AND_SWP, abi.WR_ATOMIC_FETCH_AND_ADD)


def _send_wr(qp: QP, struct: Any) -> SendWR:
    opcode = int(struct.opcode)
    wr = SendWR(struct.wr_id, opcode, struct.send_flags, _sges(struct.sg_list, struct.num_sge), struct.imm_data)
    if opcode in _RDMA:
        wr.remote_addr, wr.rkey = struct.wr.rdma.remote_addr, struct.wr.rdma.rkey
    elif opcode in _ATOMICS:
        atomic = struct.wr.atomic
        wr.remote_addr, wr.rkey = atomic.remote_addr, atomic.rkey
        wr.compare_add, wr.swap = atomic.compare_add, atomic.swap
    elif opcode == abi.WR_BIND_MW:
        wr.mw, wr.rkey = structs.maybe(struct.bind_mw.mw), struct.bind_mw.rkey
        _set_bind(wr, struct.bind_mw.bind_info)
    if qp.qp_type == abi.QPT_UD:
        ud = struct.wr.ud
        wr.ah, wr.remote_qpn, wr.remote_qkey = structs.maybe(ud.ah), ud.remote_qpn, ud.remote_qkey
    elif qp.qp_type == abi.QPT_XRC_SEND:
        wr.remote_srqn = struct.qp_type.xrc.remote_srqn
    if wr.flags & abi.SEND_INLINE:
        wr.inline = _inline(qp.device, [(sge.addr, sge.length) for sge in wr.sges])
    return wr


@verb
def post_send(pointer: Any, first: Any, bad: Any) -> int:
    qp = _qps[pointer.handle]
    wrs = []
    struct = first
    bad[0] = first
    while struct:
        wrs.append(_send_wr(qp, struct))
        struct = struct.next
    try:
        qp.device.post_send(qp, wrs)
    except BadWorkRequest as refused:
        bad[0] = _nth(first, refused.index)
        raise
    return 0


def _recv_wrs(first: Any) -> list[RecvWR]:
    wrs = []
    struct = first
    while struct:
        wrs.append(RecvWR(struct.wr_id, _sges(struct.sg_list, struct.num_sge)))
        struct = struct.next
    return wrs


@verb
def post_recv(pointer: Any, first: Any, bad: Any) -> int:
    qp = _qps[pointer.handle]
    try:
        qp.device.post_recv(qp, _recv_wrs(first))
    except BadWorkRequest as refused:
        bad[0] = _nth(first, refused.index)
        raise
    return 0


@verb
def post_srq_recv(pointer: Any, first: Any, bad: Any) -> int:
    srq = _srqs[pointer.handle]
    try:
        srq.pd.context.device.post_srq_recv(srq, _recv_wrs(first))
    except BadWorkRequest as refused:
        bad[0] = _nth(first, refused.index)
        raise
    return 0


# Work requests by ibv_wr_start(3) and its family: collected here, posted by ibv_wr_complete


@dataclass
class _Batch:
    wrs: list[SendWR] = field(default_factory=list)
    refused: Refused | None = None


_batches: dict[int, _Batch] = {}


def _add(qp: Any, opcode: int, **fields: Any) -> None:
    base = qp.qp_base
    _batches[base.handle].wrs.append(SendWR(qp.wr_id, opcode, qp.wr_flags, [], extended=True, **fields))


def _latest(qp: Any) -> SendWR:
    return _batches[qp.qp_base.handle].wrs[-1]


@verb
def wr_start(qp: Any) -> None:
    _batches[qp.qp_base.handle] = _Batch()


@verb
def wr_abort(qp: Any) -> None:
    _batches[qp.qp_base.handle] = _Batch()


@verb
def wr_complete(qp: Any) -> int:
    handle = qp.qp_base.handle
    batch = _batches.pop(handle)
    if batch.refused:
        raise batch.refused
    _qps[handle].device.post_send(_qps[handle], batch.wrs)
    return 0


@verb
def wr_send(qp: Any) -> None:
    _add(qp, abi.WR_SEND)


@verb
def wr_send_imm(qp: Any, imm_data: int) -> None:
    _add(qp, abi.WR_SEND_WITH_IMM, imm_data=imm_data)


@verb
def wr_send_inv(qp: Any, rkey: int) -> None:
    _add(qp, abi.WR_SEND_WITH_INV, imm_data=rkey)


@verb
def wr_rdma_read(qp: Any, rkey: int, remote_addr: int) -> None:
    _add(qp, abi.WR_RDMA_READ, rkey=rkey, remote_addr=remote_addr)


@verb
def wr_rdma_write(qp: Any, rkey: int, remote_addr: int) -> None:
    _add(qp, abi.WR_RDMA_WRITE, rkey=rkey, remote_addr=remote_addr)


@verb
def wr_rdma_write_imm(qp: Any, rkey: int, remote_addr: int, imm_data: int) -> None:
    _add(qp, abi.WR_RDMA_WRITE_WITH_IMM, rkey=rkey, remote_addr=remote_addr, imm_data=imm_data)


@verb
def wr_atomic_cmp_swp(qp: Any, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
    _add(qp, abi.WR_ATOMIC_CMP_AND_SWP, rkey=rkey, remote_addr=remote_addr, compare_add=compare, swap=swap)


@verb
def wr_atomic_fetch_add(qp: Any, rkey: int, remote_addr: int, add: int) -> None:
    _add(qp, abi.WR_ATOMIC_FETCH_AND_ADD, rkey=rkey, remote_addr=remote_addr, compare_add=add)


@verb
def wr_local_inv(qp: Any, rkey: int) -> None:
    _add(qp, abi.WR_LOCAL_INV, imm_data=rkey)


@verb
def wr_bind_mw(qp: Any, mw: Any, rkey: int, info: Any) -> None:
    _add(qp, abi.WR_BIND_MW, mw=structs.maybe(mw), rkey=rkey)
    _set_bind(_latest(qp), info)


@verb
def wr_set_ud_addr(qp: Any, ah: Any, remote_qpn: int, remote_qkey: int) -> None:
    wr = _latest(qp)
    wr.ah, wr.remote_qpn, wr.remote_qkey = structs.maybe(ah), remote_qpn, remote_qkey


@verb
def wr_set_xrc_srqn(qp: Any, remote_srqn: int) -> None:
    _latest(qp).remote_srqn = remote_srqn


@verb
def wr_set_sge(qp: Any, lkey: int, addr: int, length: int) -> None:
    _latest(qp).sges = [SGE(addr, length, lkey)]


@verb
def wr_set_sge_list(qp: Any, number: int, array: Any) -> None:
    _latest(qp).sges = _sges(array, number)


def _set_inline(qp: Any, buffers: Sequence[tuple[int, int]]) -> None:
    handle = qp.qp_base.handle
    try:
        _latest(qp).inline = _inline(_qps[handle].device, buffers)
    except Refused as refused:
        _batches[handle].refused = refused


@verb
def wr_set_inline_data(qp: Any, addr: Any, length: int) -> None:
    _set_inline(qp, [(int(ffi.cast("uintptr_t", addr)), length)])


@verb
def wr_set_inline_data_list(qp: Any, number: int, array: Any) -> None:
    _set_inline(qp, [(int(ffi.cast("uintptr_t", array[index].addr)), array[index].length) for index in range(number)])
