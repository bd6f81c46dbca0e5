# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What is given up: a target that no longer answers, and a device on which process after process died. The checks that
are left are BROKEN at once, with the reason.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from conformance.report.junit import summary
from conformance.results import Result
from conformance.scenarios import LinkKind, Operation, Poll, Post, Queue, Side, Transport, plain
from conformance.session.properties import clause_of, result_of
from conformance.session.recorder import host_of
from conformance.session.run import distributes, runs_checks
from conformance.verdicts import BrokenError, LackingError, Verdict

if TYPE_CHECKING:
    from conformance.judging import Bench

GIVEN_UP = "null_mr_given_up"
"""Key of the given up devices, with the reasons, in what the controller sends to a worker."""
MAX_CRASHES = 64
"""Processes that may die of the checks of one device; --max-worker-restart gives another number."""
BROKEN_IN_A_ROW = 3
"""After so many a target is asked whether it still answers."""
SILENCE = frozenset(
    {"IBV_WC_RETRY_EXC_ERR", "IBV_WC_RESP_TIMEOUT_ERR", "IBV_WC_FATAL_ERR", "IBV_WC_GENERAL_ERR", "IBV_WC_WR_FLUSH_ERR"}
)
"""Statuses that a work request can have without any peer (ibv_poll_cq(3), IBTA 11.6.2)."""
GONE = (errno.EIO, errno.ENODEV)
"""What the kernel answers for a device that is in its error state, or was removed."""
_GIVEN_UP = pytest.StashKey["GivenUp"]()


def given_up_of(config: pytest.Config) -> GivenUp:
    return config.stash[_GIVEN_UP]


def pytest_configure(config: pytest.Config) -> None:
    if not runs_checks(config):
        return
    if distributes(config):
        given = config.option.maxworkerrestart
        config.pluginmanager.register(Crashes(MAX_CRASHES if given is None else int(given)))
        config.option.maxworkerrestart = str(2**31)  # xdist's own limit is for all devices together
    else:
        told = getattr(config, "workerinput", {}).get(GIVEN_UP, {})
        config.stash[_GIVEN_UP] = GivenUp(told, control=config.option.control)
        config.pluginmanager.register(config.stash[_GIVEN_UP])


def device_of(nodeid: str) -> str:
    """The device that a check tries, from its name; empty for other tests."""
    found = re.search(r"\[([^/\]]+)/", nodeid)
    return found[1] if found else ""


class Crashes:
    """Counts the processes that died by device, as a pytest plugin of the controller; tells the ones in their place."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[str, dict[str, str]] = {}

    @pytest.hookimpl(trylast=True, optionalhook=True)  # when the report says what it died of
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        host, device = host_of(report.node), device_of(crashitem)
        self._counts[host, device] += 1
        if self._counts[host, device] > self._most:
            self._reasons.setdefault(host, {})[device] = (
                f"=> not run: {device} is given up, because more than {self._most} processes died of its checks "
                f"(--max-worker-restart). The last of them: {summary(report.longreprtext)} ({crashitem})"
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[GIVEN_UP] = self._reasons.get(host_of(node), {})


class GivenUp:
    """What is given up, as a pytest plugin of a process that runs checks.

    `reasons`: by device, or by target. `control`: the checks drive ordinary memory (--control).
    """

    def __init__(self, reasons: dict[str, str], control: bool = False) -> None:
        self._reasons = dict(reasons)
        self._unanswered = (Verdict.BROKEN, Verdict.FAIL) if control else (Verdict.BROKEN,)
        self._row: dict[str, list[Result]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Raises BrokenError before any fixture touches what is given up."""
        if clause_of(item) is None:
            return
        target = item.callspec.params["target"]  # type: ignore[attr-defined]  # each check has one
        reason = self._reasons.get(target.device.name) or self._reasons.get(target.id)
        if reason:
            raise BrokenError(reason)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A scenario that ends well ends a row; what was skipped, or had no traffic, says nothing."""
        result = result_of(report)
        if result is None:
            return
        if result.verdict in self._unanswered:
            self._row.setdefault(result.target, []).append(result)
        elif result.scenario and result.verdict in (Verdict.PASS, Verdict.OBSERVED):
            self._row.pop(result.target, None)

    def look_at(self, bench: Bench) -> None:
        """Give the target of a bench up if several checks in a row were BROKEN, and no ordinary traffic is answered.

        Raises BrokenError then. One path that is broken is no reason, and a null MR that is wrong is none either.
        """
        id, row = bench.target.id, self._row.get(bench.target.id, [])
        if len(row) < BROKEN_IN_A_ROW:
            return
        del self._row[id]
        if not answers(bench):
            self._reasons[id] = (
                f"=> not run: {id} is given up: {len(row)} checks in a row were BROKEN, and after them no ordinary "
                f"traffic was answered. The first: {_reason(row[0].text)} ({row[0].nodeid})"
            )
            raise BrokenError(self._reasons[id])


def _reason(text: str) -> str:
    """In one line: the finding, or else the exception, which comes after those that it follows from."""
    return summary(text) if re.search("^=> ", text, re.MULTILINE) else text.strip().rpartition("\n")[2]


def answers(bench: Bench) -> bool:
    """Is a SEND on ordinary memory answered, by whatever transport? Yes, where none can be asked."""
    transports = [transport for transport in bench.able.transports if transport in bench.able.connected]
    return not transports or any(_answers_by(bench, transport) for transport in transports)


def _answers_by(bench: Bench, transport: Transport) -> bool:
    queue = Queue.SRQ if transport is Transport.XRC else Queue.RQ
    kind = LinkKind(transport, queue, Post.POST_SEND, Poll.POLL_CQ)
    try:
        completions = bench.run(plain(kind, Operation.SEND)).outcome.completions
    except LackingError:
        return False
    except BrokenError as broken:
        # Whatever else keeps a link from being made costs no time, and may go.
        return getattr(broken.__cause__, "error_code", None) not in GONE
    sides = [Side.RESPONDER]
    if transport in (Transport.RC, Transport.XRC):  # others complete what they have sent, whether or not it arrives
        sides.append(Side.REQUESTER)
    return any(wc.status not in SILENCE for side in sides for wc in completions[side])
