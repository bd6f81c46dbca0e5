# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""--exhaustive runs all scenarios of the matrix by few checks; globs choose scenarios."""

import re
from functools import partial

import pytest

from conformance import matrix
from conformance.capabilities import capabilities
from conformance.checks.tables import Cases
from conformance.scenarios import Scenario
from tests.rig import target
from tests.suite import run_suite

FULL = capabilities(target())
SMALL = {"max_sge": 2, "max_sge_rd": 1, "max_srq_sge": 1}
PATH = "rq-post_send-poll_cq"
DEADLY = "rc-write-m64-remote-rq-post_send-poll_cq"


def anything(scenario: Scenario) -> bool:
    return scenario.has_null


def product_of(cases: Cases) -> list[Scenario]:
    return [
        batch.scenarios[0]
        for sweep in cases.sweeps(anything)
        if sweep.name.endswith("-product")
        for batch in sweep.batches
    ]


def test_the_whole_product_is_run_on_demand_each_scenario_once() -> None:
    able = capabilities(target(**SMALL))
    made = product_of(Cases(able, exhaustive=True))
    every = {
        matrix.scenario(able, row)
        for row in matrix.exhaustive(matrix.parameters(able), partial(matrix.compatible, able))
    }
    assert len(made) == len(set(made))
    assert set(made) == set(filter(anything, every))
    assert not product_of(Cases(able))


def test_the_product_has_what_is_run_without_it() -> None:
    able = capabilities(target(**SMALL))
    made = set(product_of(Cases(able, exhaustive=True)))
    assert set(filter(anything, matrix.matrix(able))) <= made
    for scenarios in matrix.depth(able).values():
        assert set(filter(anything, scenarios)) <= made
    assert len(made) > 10 * len(matrix.matrix(able))


def test_checks_of_single_scenarios_are_the_same_with_the_product() -> None:
    assert Cases(FULL, exhaustive=True).matrix == Cases(FULL).matrix


def test_a_glob_chooses_from_the_matrix() -> None:
    chosen = Cases(FULL, globs=("*-srq-*",)).matrix
    assert chosen == tuple(each for each in Cases(FULL).matrix if "-srq-" in str(each))
    assert chosen


def test_globs_and_ids_are_run_together_each_scenario_once() -> None:
    named = Scenario.parse(f"rc-send-n8-m8-{PATH}")
    both = Cases(FULL, named=(named,), globs=("ud-*-m1-*", "ud-*")).matrix
    assert both[0] == named
    assert both[1:] == Cases(FULL, globs=("ud-*",)).matrix
    assert len(both) == len(set(both))


def test_with_the_product_a_glob_chooses_from_it() -> None:
    chosen = product_of(Cases(FULL, exhaustive=True, globs=("uc-send-*-srq-*",)))
    assert chosen
    assert all(str(each).startswith("uc-send-") and "-srq-" in str(each) for each in chosen)
    assert len(chosen) > len(Cases(FULL, globs=("uc-send-*-srq-*",)).matrix)


def test_a_failure_of_the_product_is_reported_by_its_id() -> None:
    options = ("--reference", "--reference-fault=tests.unsound:FourAtOnce")
    path = "--scenario=xrc-send-*-srq-post_send-poll_cq"
    assert run_suite(*options, path).status == 0
    run = run_suite(*options, path, "--exhaustive", "-k", "completes and product")
    case = next(case for case in run.cases if case.verdict == "FAIL")
    assert case.clause == "discard/completion"
    (name,) = set(re.findall(r"^scenario: (\S+)$", case.text, re.MULTILINE))
    again = run_suite(*options, f"--scenario={name}")
    assert "discard/completion" in again.clauses("FAIL")


def test_the_product_goes_on_behind_a_scenario_that_ends_the_process() -> None:
    run = run_suite(
        "--reference",
        "--reference-fault=tests.deadly:DiesAndLeaks",
        "--exhaustive",
        "--scenario=rc-send-m33-*n33*-rq-post_send-poll_cq",
        "-k",
        "receive",
        "-n1",
    )
    (case,) = (case for case in run.cases if case.name)
    assert (case.verdict, case.clause) == ("FAIL", "discard/receive"), run.output
    assert "responder's canary of scatter[0]: 33 of 33 bytes wrong" in case.text
    assert "these fail too:\n  rc-send-m33-n33@top-" in case.text
    assert run.output.count("node down") == 1


@pytest.mark.parametrize("options", [(), ("--exhaustive",)])
def test_a_glob_that_fits_no_scenario_is_a_usage_error(options: tuple[str, ...]) -> None:
    run = run_suite("--reference", "--scenario=*-srq-*", "--scenario=rc-recv-*", *options)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert "--scenario rc-recv-*: it fits none of the ids of the" in run.output
    assert "ref0/1" in run.output
