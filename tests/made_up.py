# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reports that no run made, and limits that no device reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.device import Limits
from conformance.report.document import Circumstances, Library, Machine, Report, Run, TargetFacts, report_of
from conformance.results import Result
from conformance.verdicts import Verdict

LIMITS = Limits(30, 30, 30, 8192, 8192, 65536, 16, 16, 1 << 63, "HCA", True, True, True, True)
SCENARIO = "rc-send-m72-n64+m8-srq-post_send-poll_cq"
GID = "0000:0000:0000:0000:0000:ffff:c000:0201"
FAILURE = f"""ref0/1 (reference), GID 1 (RoCE v2, {GID}), MTU 1024
RC SEND of 72 bytes
=> responder's canary of scatter[0]: 64 of 64 bytes wrong, first at offset 0: 0x0d, expected 0xa6
scenario: {SCENARIO}"""


def result(
    verdict: Verdict = Verdict.PASS,
    clause: str = "discard/receive",
    target: str = "ref0/1",
    scenario: str = SCENARIO,
    text: str = "",
    **more: Any,
) -> Result:
    name = more.pop("name", "test_it_is_gone")
    parameters = f"{target}-{scenario}" if scenario else target
    nodeid = f"conformance/checks/test_discard.py::{name}[{parameters}]"
    text = text or (FAILURE if verdict is Verdict.FAIL else "")
    return Result(nodeid, clause, target, verdict, text, scenario=scenario, **more)


def target(id: str = "ref0/1", **changes: Any) -> TargetFacts:
    facts = TargetFacts(
        id=id,
        provider="lab",
        null_mr="required",
        device=id.partition("/")[0],
        port=1,
        link_layer="ETHERNET",
        port_state="ACTIVE",
        mtu=1024,
        lid=0,
        gid_index=1,
        gid=GID,
        gid_type="RoCE v2",
        vendor_id=0x15B3,
        vendor_part_id=4129,
        board_id="MT_0000000838",
        firmware="28.39.1002",
        pci_address="0000:17:00.0",
        function="PF",
        netdev="eth2",
        bond="",
        driver="mlx5",
        driver_version="mlx5_ib srcversion ABCD",
        simulated=False,
        broken="",
        variables={},
    )
    return replace(facts, **changes)


def run(*results: Result, label: str = "lab1", targets: tuple[TargetFacts, ...] | None = None, **changes: Any) -> Run:
    names = dict.fromkeys(each.target for each in results)
    machine = Machine(
        host=label,
        system="Debian GNU/Linux 12 (bookworm)",
        kernel="6.1.0-39-amd64 x86_64",
        taint_before="0",
        taint_after="0",
        python="3.11.2",
        memlock="8388608/unlimited",
        variables={"MLX5_SCATTER_TO_CQE": "0"},
        libraries=(
            Library(
                name="libibverbs",
                path="/usr/lib/libibverbs.so.1.14.44.0",
                package="libibverbs1 44.0-2",
                build_id="2e23f105a1b5c01e9a3bce7b57bec63d871432c2",
            ),
        ),
    )
    about = Circumstances(
        label=label,
        suite="0.1.0",
        commit="0123456789ab",
        started="2026-11-30T12:00:00+00:00",
        arguments=("-n", "auto"),
        seed=7,
        simulated="",
        machine=machine,
        targets=tuple(map(target, names)) if targets is None else targets,
        left_out=(),
        waivers=(),
    )
    about = replace(about, **changes)
    return Run(about, seconds=12.5, exit_status=0, interrupted=False, results=results)


def report(*results: Result, **changes: Any) -> Report:
    return report_of((run(*results, **changes),))
