# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Windows for a peer to invalidate: bound, invalidated and freed, or said why not."""

from __future__ import annotations

import errno

import pytest
from pyverbs.mr import MW
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.judging import Bench
from conformance.scenarios import Scenario, Side
from conformance.verbs.names import e
from conformance.verbs.remote_window import RemoteWindow, local_invalidate
from tests.rig import TIMEOUT, Calls, Patch, nothing, refused

KIND = Scenario.parse("rc-send-m8-m8-rq-post_send-poll_cq").link


def window_of(bench: Bench) -> RemoteWindow:
    return RemoteWindow(bench.pd, bench.link(KIND).responder, bench.arenas[Side.RESPONDER], bench.access)


def test_a_window_that_is_bound_cannot_be_bound_until_it_is_invalidated(bench: Bench) -> None:
    window = window_of(bench)
    assert window.bind(1, TIMEOUT) is None
    assert window.rkey
    again = window_of(bench)
    assert again.bind(2, TIMEOUT) is None
    queues = bench.link(KIND).responder
    assert local_invalidate(queues, window.rkey, 3, TIMEOUT).startswith("IBV_WC_SUCCESS IBV_WC_LOCAL_INV")
    assert window.bind(4, TIMEOUT) is None
    bound_twice = again.bind(5, TIMEOUT)
    assert bound_twice is not None
    assert bound_twice.startswith("IBV_WC_")
    window.close()
    again.close()


def test_a_bind_that_is_refused_at_once_is_told_by_its_errno(bench: Bench, patch: Patch) -> None:
    window = window_of(bench)
    patch("post_send", refused(errno.ENOMEM))
    assert "Errno: 12" in str(window.bind(1, TIMEOUT))
    assert "Errno: 12" in local_invalidate(bench.link(KIND).responder, 7, 2, TIMEOUT)
    window.close()


def test_what_never_completes_is_told(bench: Bench, patch: Patch) -> None:
    window = window_of(bench)
    patch("post_send", nothing)
    assert window.bind(1, TIMEOUT) == "no completion"
    assert local_invalidate(bench.link(KIND).responder, 7, 2, TIMEOUT) == "no completion"
    window.close()


def test_where_there_is_no_window_its_mr_is_freed(bench: Bench, patch: Patch) -> None:
    bench.link(KIND)
    freed = Calls(lambda *_: None, first=1 << 30)
    patch("dereg_mr", freed)
    patch("alloc_mw", refused(errno.EOPNOTSUPP))
    with pytest.raises(PyverbsRDMAError, match="Errno: 95"):
        window_of(bench)
    assert freed.count == 1


def test_a_closed_window_is_gone_and_its_rkey_with_it(bench: Bench) -> None:
    window = window_of(bench)
    assert window.bind(1, TIMEOUT) is None
    scenario = Scenario.parse("rc-write-m8-remote-rq-post_send-poll_cq")
    assert bench.run(scenario, rkey=window.rkey).outcome.completions[Side.REQUESTER][0].status == "IBV_WC_SUCCESS"
    window.close()
    refusal = bench.run(scenario, rkey=window.rkey).outcome.completions[Side.REQUESTER][0].status
    assert refusal == "IBV_WC_REM_ACCESS_ERR"
    MW(bench.pd, e.IBV_MW_TYPE_2).close()
