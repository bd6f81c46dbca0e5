# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The IBV_* constants of pyverbs, wherever the installed version keeps them."""

import importlib
from collections.abc import Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any


def _load() -> Mapping[str, object]:
    """What the module of the constants holds: pyverbs.enums up to rdma-core 58, then pyverbs.libibverbs_enums."""
    try:
        return vars(importlib.import_module("pyverbs.libibverbs_enums"))
    except ModuleNotFoundError as missing:
        if missing.name != "pyverbs.libibverbs_enums":
            raise
        return vars(importlib.import_module("pyverbs.enums"))


def collect(held: Mapping[str, object]) -> SimpleNamespace:
    """Every IBV_* constant of a module, as plain ints in one namespace.

    Some are names of the module, those that do not fit an int with a leading underscore; others are members of scoped
    enums, which are IntEnum or IntFlag, as the Cython that built pyverbs likes.
    """
    names = SimpleNamespace()
    for name, value in held.items():
        if isinstance(value, type) and issubclass(value, Enum) and issubclass(value, int):
            for member_name, member in value.__members__.items():
                setattr(names, member_name, int(member))
        elif name.lstrip("_").startswith("IBV_") and isinstance(value, int):
            setattr(names, name.lstrip("_"), int(value))
    return names


e: Any = collect(_load())


def status_names() -> dict[int, str]:
    """enum ibv_wc_status by number. The prefix IBV_WC_ is also that of opcodes and flags, so they are listed here."""
    names = (
        "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR BAD_RESP_ERR "
        "LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR "
        "REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR"
    )
    return _by_number(names)


def opcode_names() -> dict[int, str]:
    """enum ibv_wc_opcode by number, as far as the suite's work requests complete with one."""
    return _by_number("SEND RDMA_WRITE RDMA_READ COMP_SWAP FETCH_ADD BIND_MW LOCAL_INV RECV RECV_RDMA_WITH_IMM")


def _by_number(names: str) -> dict[int, str]:
    return {getattr(e, f"IBV_WC_{name}"): f"IBV_WC_{name}" for name in names.split()}
