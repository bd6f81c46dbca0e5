# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The state machine of queue pairs: which attributes a transition needs and allows (IBTA 10.3.1, 11.2.5.2)."""

from __future__ import annotations

from . import abi
from .abi import (
    QP_ACCESS_FLAGS,
    QP_ALT_PATH,
    QP_AV,
    QP_CUR_STATE,
    QP_DEST_QPN,
    QP_EN_SQD_ASYNC_NOTIFY,
    QP_MAX_DEST_RD_ATOMIC,
    QP_MAX_QP_RD_ATOMIC,
    QP_MIN_RNR_TIMER,
    QP_PATH_MIG_STATE,
    QP_PATH_MTU,
    QP_PKEY_INDEX,
    QP_PORT,
    QP_QKEY,
    QP_RATE_LIMIT,
    QP_RETRY_CNT,
    QP_RNR_RETRY,
    QP_RQ_PSN,
    QP_SQ_PSN,
    QP_STATE,
    QP_TIMEOUT,
    QPS_ERR,
    QPS_INIT,
    QPS_RESET,
    QPS_RTR,
    QPS_RTS,
    QPS_SQD,
    QPS_SQE,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
)

# The fields of struct ibv_qp_attr that a bit of its mask stands for.
FIELDS: dict[int, tuple[str, ...]] = {
    QP_STATE: ("qp_state",),
    QP_CUR_STATE: ("cur_qp_state",),
    QP_EN_SQD_ASYNC_NOTIFY: ("en_sqd_async_notify",),
    QP_ACCESS_FLAGS: ("qp_access_flags",),
    QP_PKEY_INDEX: ("pkey_index",),
    QP_PORT: ("port_num",),
    QP_QKEY: ("qkey",),
    QP_AV: ("ah_attr",),
    QP_PATH_MTU: ("path_mtu",),
    QP_TIMEOUT: ("timeout",),
    QP_RETRY_CNT: ("retry_cnt",),
    QP_RNR_RETRY: ("rnr_retry",),
    QP_RQ_PSN: ("rq_psn",),
    QP_MAX_QP_RD_ATOMIC: ("max_rd_atomic",),
    QP_ALT_PATH: ("alt_ah_attr", "alt_pkey_index", "alt_port_num", "alt_timeout"),
    QP_MIN_RNR_TIMER: ("min_rnr_timer",),
    QP_SQ_PSN: ("sq_psn",),
    QP_MAX_DEST_RD_ATOMIC: ("max_dest_rd_atomic",),
    QP_PATH_MIG_STATE: ("path_mig_state",),
    QP_DEST_QPN: ("dest_qp_num",),
    QP_RATE_LIMIT: ("rate_limit",),
}

_CONNECTED = (QPT_RC, QPT_UC, QPT_XRC_SEND, QPT_XRC_RECV)
_PATH = QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN
_RESPONDS = QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER
_REQUESTS = QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC


def _table() -> dict[tuple[int, int, int], tuple[int, int]]:
    """(qp_type, from, to) -> (required, optional)."""
    table: dict[tuple[int, int, int], tuple[int, int]] = {}
    for kind in (*_CONNECTED, QPT_UD):
        unconnected = kind == QPT_UD
        responds = kind in (QPT_RC, QPT_XRC_RECV)
        requests = kind in (QPT_RC, QPT_XRC_SEND)
        start = QP_PKEY_INDEX | QP_PORT | (QP_QKEY if unconnected else QP_ACCESS_FLAGS)
        path = 0 if unconnected else _PATH | (_RESPONDS if responds else 0)
        ready = QP_SQ_PSN
        if requests:
            ready |= QP_TIMEOUT | _REQUESTS
        elif kind == QPT_XRC_RECV:
            ready |= QP_TIMEOUT
        changed = QP_CUR_STATE | QP_RATE_LIMIT
        changed |= QP_QKEY if unconnected else QP_ACCESS_FLAGS | QP_ALT_PATH | QP_PATH_MIG_STATE
        changed |= QP_MIN_RNR_TIMER if responds else 0
        drained = QP_PKEY_INDEX | changed
        if not unconnected:
            drained |= QP_PORT | QP_AV | (_REQUESTS | QP_TIMEOUT if requests else 0) | (path & _RESPONDS)
        table |= {
            (kind, QPS_RESET, QPS_INIT): (start, 0),
            (kind, QPS_INIT, QPS_INIT): (0, start),
            (kind, QPS_INIT, QPS_RTR): (path, QP_PKEY_INDEX | (changed & ~(QP_CUR_STATE | QP_MIN_RNR_TIMER))),
            (kind, QPS_RTR, QPS_RTS): (ready, changed),
            (kind, QPS_RTS, QPS_RTS): (0, changed),
            (kind, QPS_RTS, QPS_SQD): (0, QP_EN_SQD_ASYNC_NOTIFY),
            (kind, QPS_SQD, QPS_RTS): (0, changed),
            (kind, QPS_SQD, QPS_SQD): (0, drained),
        }
        if kind in (QPT_UC, QPT_UD):
            table[kind, QPS_SQE, QPS_RTS] = (0, changed)
        for state in (QPS_RESET, QPS_INIT, QPS_RTR, QPS_RTS, QPS_SQD, QPS_SQE, QPS_ERR):
            table[kind, state, QPS_RESET] = (0, 0)
            table[kind, state, QPS_ERR] = (0, 0)
    return table


TRANSITIONS = _table()


def objection(qp_type: int, now: int, then: int, mask: int) -> str | None:
    """Why ibv_modify_qp must refuse this, or None if it may go on."""
    allowed = TRANSITIONS.get((qp_type, now, then))
    if allowed is None:
        return f"no transition from state {now} to {then}"
    required, optional = allowed
    if missing := required & ~mask:
        return f"attributes {missing:#x} are missing"
    if extra := mask & ~(required | optional | abi.QP_STATE | abi.QP_CUR_STATE):
        return f"attributes {extra:#x} are not allowed"
    return None
