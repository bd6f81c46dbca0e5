# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The C side of the face: exported ibv_* functions and tables of function pointers that call into Python.

The C text is generated from the installed header, so that every function that libibverbs exports is defined here: one
that fell through to the real libibverbs would be called with a context it does not know.
"""

import re
from collections.abc import Sequence
from typing import Any

from ... import native
from . import header
from .header import Function

_STRUCTS = (
    "verbs_context", "ibv_device", "ibv_qp_ex", "ibv_cq_ex", "ibv_comp_channel", "ibv_mr", "ibv_mw", "ibv_ah",
    "ibv_srq", "ibv_xrcd", "ibv_wc", "ibv_send_wr", "ibv_recv_wr", "ibv_mw_bind", "ibv_qp_attr",
    "ibv_qp_init_attr_ex", "ibv_qp_init_attr", "ibv_qp_open_attr", "ibv_srq_init_attr", "ibv_srq_init_attr_ex",
    "ibv_cq_init_attr_ex", "ibv_device_attr_ex", "ibv_port_attr", "ibv_gid_entry", "ibv_grh", "ibv_async_event",
    "ibv_xrcd_init_attr", "ibv_values_ex", "ibv_data_buf", "ibv_pd", "ibv_cq", "ibv_sge", "ibv_parent_domain_init_attr",
)  # fmt: skip
_TABLES = ("ibv_context_ops", "verbs_context", "ibv_qp_ex", "ibv_cq_ex")

# Functions of their arguments alone: the real ones serve.
_PURE = re.compile(r"ibv_\w+_str|ibv_rate_to_\w+")
# Exported for pyverbs and providers, but declared in libibverbs' private headers.
_PRIVATE = (
    Function(
        "ibv_query_gid_type",
        "int",
        ("struct ibv_context *context", "uint8_t port_num", "unsigned int index", "int *type"),
        ("context", "port_num", "index", "type"),
    ),
)

_DECLARATIONS = """
struct reference_cq { struct ibv_cq_ex cq; struct ibv_wc wc; uint64_t timestamp; ...; };
extern int reference_closed;
int reference_hold(int signal);
void *calloc(size_t count, size_t size);
void free(void *memory);
int memory_read(void *to, uint64_t from, size_t length);
int memory_write(uint64_t to, const void *from, size_t length);
int memory_zero(uint64_t to, size_t length);
void fill_context(struct verbs_context *context);
void fill_qp(struct ibv_qp_ex *qp);
void fill_cq(struct ibv_cq_ex *cq);
"""

_SOURCE = """
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#include <infiniband/verbs.h>

struct reference_cq {
    struct ibv_cq_ex cq;
    struct ibv_wc wc;          /* the completion that the read_* functions tell of */
    uint64_t timestamp;        /* ns */
    char spare[256];
};

/* Set when the interpreter ends: objects that it still destroys must not call into Python any more. */
int reference_closed;

static __thread int depth;     /* verbs that this thread is in: one may call another */
static __thread uint64_t held; /* signals that wait until it is in none, 1 << (number - 1) for each */

/* Does a signal have to wait? See signals.py. */
int reference_hold(int number)
{
    if (!depth)
        return 0;
    held |= 1ULL << (number - 1);
    return 1;
}

static void enter(void)
{
    depth++;
}

static void leave(void)
{
    if (--depth)
        return;
    for (int number = 1; held; number++) {
        uint64_t bit = 1ULL << (number - 1);
        if (held & bit) {
            held &= ~bit;
            raise(number);
        }
    }
}

/* The kernel copies, and says EFAULT where a plain access would be a signal. Returns 0 or an errno. */
static int copy(uint64_t local, uint64_t remote, size_t length, int write)
{
    while (length) {
        struct iovec here = { (void *)local, length }, there = { (void *)remote, length };
        ssize_t done = write ? process_vm_writev(getpid(), &here, 1, &there, 1, 0)
                             : process_vm_readv(getpid(), &here, 1, &there, 1, 0);
        if (done <= 0)
            return done ? errno : EFAULT;
        local += done;
        remote += done;
        length -= done;
    }
    return 0;
}

int memory_read(void *to, uint64_t from, size_t length)
{
    return copy((uint64_t)to, from, length, 0);
}

int memory_write(uint64_t to, const void *from, size_t length)
{
    return copy((uint64_t)from, to, length, 1);
}

int memory_zero(uint64_t to, size_t length)
{
    static const char zeros[1 << 16];
    while (length) {
        size_t part = length < sizeof(zeros) ? length : sizeof(zeros);
        int error = copy((uint64_t)zeros, to, part, 1);
        if (error)
            return error;
        to += part;
        length -= part;
    }
    return 0;
}

#define READ(type, name, what) \\
    static type name(struct ibv_cq_ex *cq) { return ((struct reference_cq *)cq)->what; }
READ(enum ibv_wc_opcode, read_opcode, wc.opcode)
READ(uint32_t, read_vendor_err, wc.vendor_err)
READ(uint32_t, read_byte_len, wc.byte_len)
READ(__be32, read_imm_data, wc.imm_data)
READ(uint32_t, read_qp_num, wc.qp_num)
READ(uint32_t, read_src_qp, wc.src_qp)
READ(unsigned int, read_wc_flags, wc.wc_flags)
READ(uint32_t, read_slid, wc.slid)
READ(uint8_t, read_sl, wc.sl)
READ(uint8_t, read_dlid_path_bits, wc.dlid_path_bits)
READ(uint64_t, read_timestamp, timestamp)
static void end_poll(struct ibv_cq_ex *cq) { (void)cq; }

void fill_cq(struct ibv_cq_ex *cq);
static int call_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr);
static int call_next_poll(struct ibv_cq_ex *cq);
void fill_cq(struct ibv_cq_ex *cq)
{
    cq->start_poll = call_start_poll;
    cq->next_poll = call_next_poll;
    cq->end_poll = end_poll;
    cq->read_opcode = read_opcode;
    cq->read_vendor_err = read_vendor_err;
    cq->read_byte_len = read_byte_len;
    cq->read_imm_data = read_imm_data;
    cq->read_qp_num = read_qp_num;
    cq->read_src_qp = read_src_qp;
    cq->read_wc_flags = read_wc_flags;
    cq->read_slid = read_slid;
    cq->read_sl = read_sl;
    cq->read_dlid_path_bits = read_dlid_path_bits;
    cq->read_completion_ts = read_timestamp;
    cq->read_completion_wallclock_ns = read_timestamp;
}
"""


def build(operations: Sequence[str]) -> tuple[Any, dict[str, Function]]:
    """The cffi module with these operations in Python, and the operations that the installed header has.

    An operation is an exported function or the name of a function pointer; its Python side is the callback
    `python_<operation>`.
    """
    found = header.load(_STRUCTS, _TABLES)
    exported = {
        function.name: function for function in (*found.functions, *_PRIVATE) if not _PURE.fullmatch(function.name)
    }
    tables = {
        name: {function.name: function for function in found.operations[name] if function.name in operations}
        for name in _TABLES
    }
    pointers = {name: function for table in tables.values() for name, function in table.items()}
    callbacks = {name: function for name, function in (exported | pointers).items() if name in operations}
    cdef = [header.PRELUDE, found.types, _DECLARATIONS, 'extern "Python" {']
    cdef += [f"{_callback(function)};" for function in callbacks.values()]
    cdef.append("}")
    source = [_SOURCE]
    for name, function in callbacks.items():
        source.append(f"static {_callback(function)};")
        if name in exported:
            source.append(f"#undef {name}")
            source.append(_call(function, ""))
        else:
            source.append("static " + _call(function, "call_"))
    for name, function in exported.items():
        if name not in callbacks:
            source += [f"#undef {name}", _unsupported(function)]
    for filler, argument, table in (("fill_qp", "struct ibv_qp_ex *qp", "ibv_qp_ex"),):
        source.append(_fill(filler, argument, [(f"qp->{name}", name) for name in tables[table]]))
    context = [(f"context->{name}", name) for name in tables["verbs_context"]]
    context += [(f"context->context.ops.{name}", name) for name in tables["ibv_context_ops"]]
    source.append(_fill("fill_context", "struct verbs_context *context", context))
    module = native.extension("nullmr_reference", "\n".join(cdef), "\n".join(source))
    return module, callbacks


def _prototype(function: Function, prefix: str) -> str:
    arguments = ", ".join(function.arguments) or "void"
    return f"{function.result} {prefix}{function.name}({arguments})"


def _callback(function: Function) -> str:
    """The prototype as cffi repeats it: with the types that __be64 and its like stand for."""
    return re.sub(r"__be(\d\d)\b", r"uint\1_t", _prototype(function, "python_"))


def _call(function: Function, prefix: str) -> str:
    call = f"python_{function.name}({', '.join(function.names)})"
    if function.result == "void":
        body = f"if (reference_closed) return; enter(); {call}; leave();"
    else:
        body = f"if (reference_closed) return 0; enter(); {function.result} result = {call}; leave(); return result;"
    return f"{_prototype(function, prefix)} {{ {body} }}"


def _unsupported(function: Function) -> str:
    if function.result == "void":
        body = ""
    elif function.pointer:
        body = "errno = EOPNOTSUPP; return NULL;"
    else:
        body = "return errno = EOPNOTSUPP;"
    return f"{_prototype(function, '')} {{ {body} }}"


def _fill(name: str, argument: str, pointers: list[tuple[str, str]]) -> str:
    body = "".join(f"    {place} = call_{operation};\n" for place, operation in pointers)
    return f"void {name}({argument});\nvoid {name}({argument})\n{{\n{body}}}"
