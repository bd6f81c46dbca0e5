# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The IBV_* constants of pyverbs, wherever the installed version keeps them."""

import importlib
from enum import IntEnum
from types import SimpleNamespace
from typing import Any


def _load() -> SimpleNamespace:
    """Collect every IBV_* constant into one namespace of plain ints.

    pyverbs.enums holds them up to rdma-core 58; from 59 on they are in pyverbs.libibverbs_enums, most of them as
    members of scoped enums, and a few that do not fit an int with a leading underscore.
    """
    try:
        module = importlib.import_module("pyverbs.libibverbs_enums")
    except ModuleNotFoundError as missing:
        if missing.name != "pyverbs.libibverbs_enums":
            raise
        module = importlib.import_module("pyverbs.enums")
    names = SimpleNamespace()
    for name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, IntEnum):
            for member_name, member in value.__members__.items():
                setattr(names, member_name, int(member))
        elif name.lstrip("_").startswith("IBV_") and isinstance(value, int):
            setattr(names, name.lstrip("_"), int(value))
    return names


e: Any = _load()


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
