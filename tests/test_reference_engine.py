# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The engine of the reference device by itself: plain Python, on memory that is a bytearray."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import clauses
from conformance.reference import compose
from conformance.reference.engine import abi, grh, states
from conformance.reference.engine.device import Device, Fabric
from conformance.reference.engine.errors import Refused
from conformance.reference.engine.memory import Gap, MemoryFault, Payload, Piece, Zeros
from conformance.reference.engine.objects import (
    GID,
    QP,
    SGE,
    SIZE_MAX,
    AddressVector,
    Capabilities,
    Context,
    RecvWR,
    SendWR,
)
from conformance.reference.faults import FAULTS
from conformance.reference.variants import VARIANTS
from conformance.verbs.names import e
from tests.sick import PortDown


class Array:
    """A program's memory of 64 KiB from address 0x10000."""

    base = 0x10000

    def __init__(self) -> None:
        self.bytes = bytearray(1 << 16)

    def _slice(self, address: int, length: int) -> slice:
        if not self.base <= address <= address + length <= self.base + len(self.bytes):
            raise MemoryFault(f"{address:#x}")
        return slice(address - self.base, address - self.base + length)

    def read(self, address: int, length: int) -> bytes:
        return bytes(self.bytes[self._slice(address, length)])

    def write(self, address: int, data: bytes | memoryview) -> None:
        self.bytes[self._slice(address, len(data))] = data

    def zero(self, address: int, length: int) -> None:
        self.write(address, bytes(length))


@pytest.fixture
def context() -> Iterator[Context]:
    device = Device(0, Fabric(), Array())
    opened = device.open()
    yield opened
    device.close(opened)


def connected(context: Context) -> tuple[QP, QP]:
    """Two RC queue pairs of one CQ and PD, as ibv_modify_qp leaves them."""
    device = context.device
    pd, cq = device.alloc_pd(context), device.create_cq(context, 8, None, False)
    left, right = (
        device.create_qp(context, pd, abi.QPT_RC, Capabilities(1, 1, 1, 1), cq, cq, None, None, False) for _ in range(2)
    )
    to_itself = AddressVector(port_num=1, is_global=1, dgid=device.ports[0].gids[0].raw)
    for qp, peer in ((left, right), (right, left)):
        qp.attr |= {"port_num": 1, "pkey_index": 0, "qp_state": abi.QPS_RTS}
        qp.attr |= {"ah_attr": to_itself, "dest_qp_num": peer.qp_num}
        qp.state = abi.QPS_RTS
    return left, right


def statuses(qp: QP) -> list[tuple[int, int]]:
    assert qp.send_cq is not None
    return [(cqe.wr_id, cqe.status) for cqe in qp.send_cq.entries]


PIECES = st.one_of(st.binary(max_size=20), st.integers(0, 20).map(Zeros))


@given(st.lists(PIECES, max_size=6), st.data())
def test_part_of_a_payload_is_that_part_of_its_bytes(pieces: list[Piece], data: st.DataObject) -> None:
    payload = Payload(*pieces)
    start = data.draw(st.integers(0, payload.length))
    length = data.draw(st.integers(0, payload.length - start))
    assert bytes(Payload(*payload.part(start, length))) == bytes(payload)[start : start + length]


def test_gap_in_a_payload_leaves_memory_as_it_was(context: Context) -> None:
    device = context.device
    device.memory.write(0x10000, b"\x22" * 8)
    device.write_pieces(0x10000, Payload(Gap(3), b"\x11\x11", Zeros(2)), 0, 7)
    assert device.memory.read(0x10000, 8) == b"\x22" * 3 + b"\x11" * 2 + bytes(2) + b"\x22"


@pytest.mark.parametrize("kind", [abi.GID_TYPE_ROCE_V1, abi.GID_TYPE_ROCE_V2])
def test_header_of_ud_names_both_ends(kind: int) -> None:
    first, second = (bytes(10) + b"\xff\xff\x0a\x00\x00" + bytes([host]) for host in (1, 2))
    header = grh.build(GID(first, kind), AddressVector(1, 1, second, hop_limit=64, traffic_class=8), 100)
    assert len(header) == grh.LENGTH
    assert grh.parse(header) == (first, second, 8, 0, 64)


@pytest.mark.parametrize(
    "name", [name for name in vars(abi) if name.startswith(("WR_", "WC_", "QPS_", "QPT_", "ACCESS"))]
)
def test_numbers_of_the_abi_are_those_of_pyverbs(name: str) -> None:
    ours = {"WC_EX_STANDARD", "ACCESS_KNOWN", "ACCESS_OPTIONAL_RANGE"}
    if name not in ours:
        assert getattr(abi, name) == getattr(e, f"IBV_{name}")


def test_every_attribute_of_the_state_machine_has_a_field() -> None:
    masks = [mask for masks in states.TRANSITIONS.values() for mask in masks]
    bits = {1 << bit for mask in masks for bit in range(32) if mask >> bit & 1}
    assert bits <= set(states.FIELDS)


def test_pd_in_use_is_not_deallocated(context: Context) -> None:
    device = context.device
    pd = device.alloc_pd(context)
    mrs = [device.reg_mr(pd, 0x10000, 64, 0x10000, abi.ACCESS_LOCAL_WRITE), device.alloc_null_mr(pd)]
    for mr in mrs:
        with pytest.raises(Refused) as refused:
            device.dealloc_pd(pd)
        assert refused.value.errno == errno.EBUSY
        device.dereg_mr(mr)
    device.dealloc_pd(pd)


def test_cq_in_use_is_not_destroyed(context: Context) -> None:
    device = context.device
    pd, cq = device.alloc_pd(context), device.create_cq(context, 8, None, False)
    qp = device.create_qp(context, pd, abi.QPT_RC, Capabilities(1, 1, 1, 1), cq, cq, None, None, False)
    with pytest.raises(Refused) as refused:
        device.destroy_cq(cq)
    assert refused.value.errno == errno.EBUSY
    device.destroy_qp(qp)
    device.destroy_cq(cq)


def test_memory_that_is_not_there_cannot_be_registered(context: Context) -> None:
    pd = context.device.alloc_pd(context)
    with pytest.raises(Refused) as refused:
        context.device.reg_mr(pd, 0x10000, 1 << 17, 0x10000, 0)
    assert refused.value.errno == errno.EFAULT


def test_zero_based_mr_counts_from_zero(context: Context) -> None:
    device = context.device
    pd = device.alloc_pd(context)
    mr = device.reg_mr(pd, 0x10040, 64, 0x10040, abi.ACCESS_ZERO_BASED)
    assert (mr.virtual(8), mr.covers(0, 64), mr.covers(0x10040, 1)) == (0x10048, True, False)


def test_on_demand_memory_may_be_there_later(context: Context) -> None:
    left, right = connected(context)
    assert left.pd is not None
    device, memory = left.device, left.device.memory
    on_demand = abi.ACCESS_LOCAL_WRITE | abi.ACCESS_ON_DEMAND
    partly = device.reg_mr(left.pd, 0x10000, 1 << 20, 0x10000, on_demand)
    implicit = device.reg_mr(left.pd, 0, SIZE_MAX, 0, on_demand)
    memory.write(0x10000, b"on demand")
    right.rq.entries.append(RecvWR(1, [SGE(0x10100, 9, implicit.lkey)]))
    left.sq.append(SendWR(2, abi.WR_SEND, abi.SEND_SIGNALED, [SGE(0x10000, 9, partly.lkey)]))
    left.device.run(left)
    assert memory.read(0x10100, 9) == b"on demand"
    left.sq.append(SendWR(3, abi.WR_SEND, abi.SEND_SIGNALED, [SGE(0x20000, 9, partly.lkey)]))
    left.device.run(left)
    assert statuses(left) == [(1, abi.WC_SUCCESS), (2, abi.WC_SUCCESS), (3, abi.WC_LOC_PROT_ERR)]


def test_a_device_without_on_demand_paging_refuses_it(context: Context) -> None:
    context.device.attr.odp_general_caps = 0
    pd = context.device.alloc_pd(context)
    with pytest.raises(Refused) as refused:
        context.device.reg_mr(pd, 0x10000, 64, 0x10000, abi.ACCESS_ON_DEMAND)
    assert refused.value.errno == errno.EOPNOTSUPP


@pytest.mark.parametrize(
    ("advice", "flags", "where", "number"),
    [
        (abi.ADVICE_PREFETCH, 0, (0x10000, 64), 0),
        (abi.ADVICE_PREFETCH, abi.ADVISE_FLUSH, (0x10000, 64), 0),
        (abi.ADVICE_PREFETCH, 0, (0x20000, 64), 0),  # without flush it may not be known yet
        (abi.ADVICE_PREFETCH, abi.ADVISE_FLUSH, (0x1FFF0, 64), errno.EFAULT),
        (abi.ADVICE_PREFETCH_NO_FAULT, abi.ADVISE_FLUSH, (0x1FFF0, 64), 0),
        (abi.ADVICE_PREFETCH, 0, (0x10000, 1 << 21), errno.EFAULT),
        (abi.ADVICE_PREFETCH_WRITE, 0, (0x10000, 64), errno.EPERM),
        (abi.ADVICE_PREFETCH, 2, (0x10000, 64), errno.EINVAL),
        (3, 0, (0x10000, 64), errno.EOPNOTSUPP),
    ],
)
def test_advice_is_checked(advice: int, flags: int, where: tuple[int, int], number: int, context: Context) -> None:
    device = context.device
    pd = device.alloc_pd(context)
    mr = device.reg_mr(pd, 0x10000, 1 << 20, 0x10000, abi.ACCESS_ON_DEMAND)
    found = 0
    try:
        device.advise_mr(pd, advice, flags, [SGE(*where, mr.lkey)])
    except Refused as refused:
        found = refused.errno
    assert found == number


@pytest.mark.parametrize(
    ("key", "number"), [("of no MR", errno.EFAULT), ("of another PD", errno.EPERM), ("pinned", errno.EINVAL)]
)
def test_advice_is_for_on_demand_memory_of_the_pd(key: str, number: int, context: Context) -> None:
    device = context.device
    pd, other = device.alloc_pd(context), device.alloc_pd(context)
    lkeys = {
        "of no MR": 0x5A5A5A,
        "of another PD": device.reg_mr(other, 0x10000, 64, 0x10000, abi.ACCESS_ON_DEMAND).lkey,
        "pinned": device.reg_mr(pd, 0x10000, 64, 0x10000, 0).lkey,
    }
    with pytest.raises(Refused) as refused:
        device.advise_mr(pd, abi.ADVICE_PREFETCH, 0, [SGE(0x10000, 64, lkeys[key])])
    assert refused.value.errno == number


def test_closing_a_context_destroys_what_is_left_on_it() -> None:
    device = Device(0, Fabric(), Array())
    context = device.open()
    pd, cq = device.alloc_pd(context), device.create_cq(context, 8, None, False)
    device.create_qp(context, pd, abi.QPT_RC, Capabilities(1, 1, 1, 1), cq, cq, None, None, False)
    device.alloc_null_mr(pd)
    device.close(context)
    assert (context.objects, device.lkeys, device.qps) == ({}, {}, {})


def test_cq_that_overruns_says_so_once(context: Context) -> None:
    device = context.device
    pd, cq = device.alloc_pd(context), device.create_cq(context, 1, None, False)
    qp = device.create_qp(context, pd, abi.QPT_RC, Capabilities(8, 1, 1, 1), cq, cq, None, None, False)
    for _ in range(3):
        device.complete_send(qp, SendWR(0, abi.WR_SEND, abi.SEND_SIGNALED, [SGE(0, 0, 0)]), abi.WC_SUCCESS)
    assert context.events.get() == (abi.EVENT_CQ_ERR, cq)
    with pytest.raises(Refused):
        device.poll_cq(cq, 1)


def test_a_face_with_a_real_driver_puts_work_requests_into_the_queues_itself(context: Context) -> None:
    """As many as its queues hold, whatever the capabilities say."""
    left, right = connected(context)
    assert left.pd is not None
    mr = left.pd.context.device.reg_mr(left.pd, 0x10000, 64, 0x10000, abi.ACCESS_LOCAL_WRITE)
    lists = [SGE(0x10000, 4, mr.lkey), SGE(0x10010, 4, mr.lkey)], [SGE(0x10020, 8, mr.lkey)]
    left.device.memory.write(0x10000, b"left")
    left.device.memory.write(0x10010, b"over")
    right.rq.entries.extend(RecvWR(number, lists[1]) for number in (1, 2))
    left.sq.extend(SendWR(number, abi.WR_SEND, abi.SEND_SIGNALED, lists[0]) for number in (3, 4))
    left.device.run(left)
    assert statuses(left) == [(1, abi.WC_SUCCESS), (3, abi.WC_SUCCESS), (2, abi.WC_SUCCESS), (4, abi.WC_SUCCESS)]
    assert left.device.memory.read(0x10020, 8) == b"leftover"


def test_an_operation_that_the_driver_should_have_refused_is_an_error_in_its_completion(context: Context) -> None:
    left, _ = connected(context)
    left.qp_type = abi.QPT_UC
    left.sq.append(SendWR(1, abi.WR_RDMA_READ, 0, []))
    left.device.run(left)
    assert statuses(left) == [(1, abi.WC_LOC_QP_OP_ERR)]


@pytest.mark.parametrize(("length", "status"), [(256, abi.WC_SUCCESS), (257, abi.WC_LOC_LEN_ERR)])
def test_inline_data_of_a_datagram_is_no_longer_than_the_mtu(length: int, status: int, context: Context) -> None:
    left, _ = connected(context)
    left.qp_type = abi.QPT_UD
    left.device.ports[0].active_mtu = abi.MTU_1024 - 2
    assert left.pd is not None
    ah = left.device.create_ah(left.pd, left.attr["ah_attr"])
    left.sq.append(SendWR(1, abi.WR_SEND, abi.SEND_SIGNALED, [], inline=bytes(length), ah=ah))
    left.device.run(left)
    assert statuses(left) == [(1, status)]


@pytest.mark.parametrize("type", [abi.MW_TYPE_1, abi.MW_TYPE_2])
def test_a_window_takes_no_key_of_another_one(type: int, context: Context) -> None:
    left, _ = connected(context)
    assert left.pd is not None
    device = left.device
    mr = device.reg_mr(left.pd, 0x10000, 64, 0x10000, abi.ACCESS_LOCAL_WRITE | abi.ACCESS_MW_BIND)
    mw, other = device.alloc_mw(left.pd, type), device.alloc_mw(left.pd, type)
    wr = SendWR(1, abi.WR_BIND_MW, 0, [], mw=mw, rkey=other.rkey + 1, bind_mr=mr, bind_addr=0x10000, bind_length=8)
    left.sq.append(wr)
    device.run(left)
    assert statuses(left) == [(1, abi.WC_MW_BIND_ERR)]
    assert mw.mr is None


@pytest.mark.parametrize("name", FAULTS)
def test_fault_names_a_clause_and_says_what_is_wrong(name: str) -> None:
    assert FAULTS[name].clause in {clause.id for clause in clauses.CLAUSES}
    assert FAULTS[name].__doc__


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_says_what_is_different(name: str) -> None:
    assert VARIANTS[name].__doc__


def test_faults_and_a_variant_are_in_front_of_the_device() -> None:
    kind = compose(["leaks-to-address", "holds-pd"], "no-srq")
    assert kind.__mro__[1:4] == (FAULTS["leaks-to-address"], FAULTS["holds-pd"], *kind.__mro__[3:4])
    assert issubclass(kind, VARIANTS["no-srq"])


def test_a_fault_of_another_module_is_named_by_its_place() -> None:
    assert compose(["tests.sick:PortDown", "holds-pd"], None).__mro__[1:3] == (PortDown, FAULTS["holds-pd"])


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("tests.nowhere:PortDown", "No module named 'tests.nowhere'"),
        ("tests.sick:Nothing", "module tests.sick has no class Nothing that is a reference Device"),
        ("tests.sick:PD", "module tests.sick has no class PD that is a reference Device"),
    ],
)
def test_a_place_without_a_device_is_refused(place: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compose([place], None)


@pytest.mark.parametrize(("faults", "variant"), [(["no-such-thing"], None), ([], "no-such-thing")])
def test_unknown_names_are_refused_with_those_that_exist(faults: list[str], variant: str | None) -> None:
    with pytest.raises(ValueError, match=r"'no-such-thing'.* there are .*"):
        compose(faults, variant)
