# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A report without names keeps everything else."""

import pytest

from conformance.report.anonymous import cleaner, without_names
from conformance.report.document import dump, report_of
from conformance.verdicts import Verdict
from tests.made_up import GID, report, result, run


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (f"GID 1 (RoCE v2, {GID})", "GID 1 (RoCE v2, <GID>)"),
        ("node GUID 0c42:a103:0065:bafe", "node GUID <GID>"),
        ("mac 0c:42:a1:65:ba:fe down", "mac <MAC> down"),
        ("ping 192.0.2.1 and 2001:db8::1, fe80::1%eth0", "ping <IP> and <IP>, <IP>%eth0"),
        ("::ffff:192.0.2.1", "<IP>"),
        ("on lab1: mlx5_0", "on host1: mlx5_0"),
        ("lab1:mlx5_0/1", "host1:mlx5_0/1"),
        ("lab12 and my-lab1 stay", "lab12 and my-lab1 stay"),
        ("tests/test_read.py::test_a[ref0/1-rc-n8]", "tests/test_read.py::test_a[ref0/1-rc-n8]"),
        ("bytes 0..7 are f4 80 1d 62, expected 5b 8d", "bytes 0..7 are f4 80 1d 62, expected 5b 8d"),
        ("firmware 28.39.1002, std::deque", "firmware 28.39.1002, std::deque"),
        ("at 0x7f4e5f7c1000, 12:30:45", "at 0x7f4e5f7c1000, 12:30:45"),
    ],
)
def test_names_and_addresses_go_and_nothing_else(text: str, cleaned: str) -> None:
    assert cleaner(report(result()))(text) == cleaned


def test_no_name_and_no_address_is_left() -> None:
    named = report_of(
        (
            run(result(Verdict.FAIL, target="lab1:ref0/1", kernel_log="lab1 kernel: 192.0.2.1"), label="lab1"),
            run(result(target="lab2:ref0/1"), label="lab2"),
        )
    )
    text = dump(without_names(named))
    for name in (GID, "lab1", "lab2", "192.0.2.1"):
        assert name not in text
    assert [each.circumstances.label for each in without_names(named).runs] == ["host1", "host2"]
    assert [each.target for each in without_names(named).results] == ["host1:ref0/1", "host2:ref0/1"]


def test_versions_stay() -> None:
    machine = without_names(report(result())).runs[0].circumstances.machine
    assert machine.libraries[0].path == "/usr/lib/libibverbs.so.1.14.44.0"
    assert machine.kernel == "6.1.0-39-amd64 x86_64"
