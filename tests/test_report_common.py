# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What failures have in common names their cause."""

from itertools import product

import pytest

from conformance.report.common import Common, Trait, common
from conformance.results import Result
from conformance.scenarios import Scenario
from conformance.verdicts import Verdict
from tests.made_up import result

LENGTHS = (1, 8, 32, 33, 64, 4096)
QUEUES = ("rq", "srq")
LEAKS_UP_TO = {"cqe64": 32, "cqe128": 64}


def judged(queue: str, length: int, environment: str, verdict: Verdict) -> tuple[Result, Scenario]:
    scenario = Scenario.parse(f"rc-send-m{length}-n{length}-{queue}-post_send-poll_cq")
    target = f"mlx5_0/1/{environment}"
    return Result("check", "discard/leaves-memory", target, verdict, "", str(scenario)), scenario


def small_messages_in_an_srq() -> Common:
    """At most 32 bytes, or 64 where completions have 128."""
    return common(
        [
            judged(queue, length, environment, Verdict.FAIL if queue == "srq" and length <= most else Verdict.PASS)
            for queue, length, (environment, most) in product(QUEUES, LENGTHS, LEAKS_UP_TO.items())
        ],
        Verdict.FAIL,
    )


def test_the_path_of_all_failures_is_named() -> None:
    found = small_messages_in_an_srq()
    assert set(found.all_have) == {("queue", "SRQ"), ("length", "1 to 64")}
    assert (found.bad, found.total) == (8, 10)


def test_what_tells_failed_from_passed_best_comes_first() -> None:
    names = list(dict.fromkeys(trait.name for trait in small_messages_in_an_srq().traits))
    assert names == ["queue", "length", "environment"]


def test_values_are_counted_with_those_that_fail_first() -> None:
    traits = small_messages_in_an_srq().traits
    assert [trait for trait in traits if trait.name == "queue"] == [
        Trait("queue", "SRQ", 8, 12),
        Trait("queue", "RQ", 0, 12),
    ]
    assert [trait for trait in traits if trait.name == "length"] == [
        Trait("length", "1 to 64", 8, 20),
        Trait("length", "4096", 0, 4),
    ]


def test_what_was_skipped_or_broken_was_not_tried() -> None:
    checks = [
        judged("srq", 8, "cqe64", Verdict.FAIL),
        judged("rq", 8, "cqe64", Verdict.PASS),
        judged("srq", 8, "cqe128", Verdict.SKIPPED),
        judged("rq", 64, "cqe64", Verdict.BROKEN),
    ]
    found = common(checks, Verdict.FAIL)
    assert found.traits == (Trait("queue", "SRQ", 1, 1), Trait("queue", "RQ", 0, 1))
    assert [trait.value for trait in common(checks, Verdict.BROKEN).traits if trait.name == "length"] == ["64", "8"]


def test_waived_failures_were_tried() -> None:
    checks = [
        judged(*path, verdict) for path, verdict in ((("srq", 8, "a"), Verdict.FAIL), (("rq", 8, "a"), Verdict.WAIVED))
    ]
    assert Trait("queue", "RQ", 0, 1) in common(checks, Verdict.FAIL).traits


def test_failures_of_everything_have_nothing_that_tells() -> None:
    checks = [judged(queue, 8, "cqe64", Verdict.FAIL) for queue in QUEUES]
    assert common(checks, Verdict.FAIL) == Common((), (), 2, 2)


@pytest.mark.parametrize("port", ["mlx5_0/1", "lab-a:mlx5_0/1", "mlx5_0/1-mlx5_1/1", "root@lab-a:mlx5_0/1-mlx5_1/2"])
def test_an_environment_is_what_follows_the_ports_of_a_target(port: str) -> None:
    scenario = Scenario.parse("rc-send-m8-n8-rq-post_send-poll_cq")
    verdicts = {port: Verdict.PASS, f"{port}/big": Verdict.FAIL, f"{port}/A=/tmp/b": Verdict.PASS}
    results = [(result(verdict, target=target), scenario) for target, verdict in verdicts.items()]
    environments = {(trait.value, trait.bad) for trait in common(results, Verdict.FAIL).traits}
    assert environments == {("as it was", 0), ("big", 1), ("A=/tmp/b", 0)}
