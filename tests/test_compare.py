# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Comparison and merging of results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.report import compare, document, html
from conformance.report.compare import Kind
from conformance.report.document import DocumentError, NotRun, Report, report_of
from conformance.report.merge import merge
from conformance.results import Result
from conformance.verdicts import Verdict
from tests.made_up import report, result, run, target

SKIPPED, OBSERVED, PASS, WAIVED, BROKEN, FAIL = Verdict


def of(verdict: Verdict | None) -> tuple[Result, ...]:
    return (result(verdict, text="text"),) if verdict else ()


def write(path: Path, content: Report) -> str:
    path.write_text(document.dump(content))
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "kind", "regression"),
    [
        (PASS, PASS, None, False),
        (FAIL, FAIL, None, False),
        (PASS, FAIL, Kind.FAILED, True),
        (PASS, BROKEN, Kind.FAILED, True),
        (SKIPPED, FAIL, Kind.FAILED, True),
        (WAIVED, FAIL, Kind.FAILED, True),
        (None, FAIL, Kind.FAILED, True),
        (None, BROKEN, Kind.FAILED, True),
        (PASS, SKIPPED, Kind.LOST, True),
        (PASS, None, Kind.LOST, True),
        (FAIL, PASS, Kind.FIXED, False),
        (BROKEN, PASS, Kind.FIXED, False),
        (FAIL, BROKEN, Kind.CHANGED, False),
        (BROKEN, FAIL, Kind.CHANGED, False),
        (FAIL, WAIVED, Kind.CHANGED, False),
        (PASS, WAIVED, Kind.CHANGED, False),
        (WAIVED, PASS, Kind.CHANGED, False),
        (SKIPPED, PASS, Kind.CHANGED, False),
        (PASS, OBSERVED, Kind.CHANGED, False),
        (None, PASS, Kind.APPEARED, False),
        (None, SKIPPED, Kind.APPEARED, False),
        (FAIL, None, Kind.WENT, False),
        (SKIPPED, None, Kind.WENT, False),
    ],
)
def test_each_change_of_verdict_has_its_kind(
    old: Verdict | None, new: Verdict | None, kind: Kind | None, regression: bool
) -> None:
    found = compare.compare(report(*of(old)), report(*of(new)))
    assert [change.kind for change in found.changes] == ([kind] if kind else [])
    assert found.has_regression() == regression
    assert found.same == (kind is None)


def test_a_check_that_was_not_run_can_be_allowed() -> None:
    found = compare.compare(report(*of(PASS)), report())
    assert not found.has_regression(allow_missing=True)
    skipped = compare.compare(report(*of(PASS)), report(*of(SKIPPED)))
    assert skipped.has_regression(allow_missing=True)


def test_another_observation_is_a_change() -> None:
    old, new = (report(result(OBSERVED, text=text)) for text in ("refused", "accepted"))
    assert [change.kind for change in compare.compare(old, new).changes] == [Kind.CHANGED]


def test_the_worst_of_two_results_of_one_check_counts() -> None:
    """A check that passes and cannot be cleaned up has two."""
    found = compare.compare(report(result(PASS)), report(result(PASS), result(BROKEN)))
    assert [change.words for change in found.changes] == ["PASS -> BROKEN"]


def test_the_same_check_on_two_targets_is_two() -> None:
    old = report(result(PASS), result(PASS, target="ref1/1"))
    new = report(result(PASS), result(FAIL, target="ref1/1"))
    (change,) = compare.compare(old, new).changes
    assert change.result.target == "ref1/1"


def test_circumstances_that_changed_are_told_by_name() -> None:
    old = report(result())
    library = replace(old.runs[0].circumstances.machine.libraries[0], package="libibverbs1 50.0-2")
    machine = replace(old.runs[0].circumstances.machine, kernel="6.12 x86_64", libraries=(library,), variables={})
    new = report(
        result(),
        label="lab2",
        machine=machine,
        targets=(target(firmware="28.40.1000"),),
        started="2026-12-01T00:00:00+00:00",
    )
    text = compare.text(compare.compare(old, new))
    for line in (
        "run: label: lab1 -> lab2",
        "run: machine.kernel: 6.1.0-39-amd64 x86_64 -> 6.12 x86_64",
        "run: machine.variables.MLX5_SCATTER_TO_CQE: 0 -> (nothing)",
        "ref0/1: firmware: 28.39.1002 -> 28.40.1000",
    ):
        assert f"  {line}\n" in text
    assert "run: machine.libibverbs: libibverbs1 44.0-2 /usr" in text
    assert "started" not in text
    assert text.endswith("1 checks ended as before\nno regression")


def test_a_library_that_was_built_anew_under_the_same_version_is_told() -> None:
    old = report(result())
    machine = old.runs[0].circumstances.machine
    rebuilt = replace(machine.libraries[0], build_id="sha256:01")
    new = report(result(), machine=replace(machine, libraries=(rebuilt,)))
    [difference] = compare.compare(old, new).differences
    assert (difference.name, difference.old, difference.new) == (
        "machine.libibverbs build id",
        "2e23f105a1b5c01e9a3bce7b57bec63d871432c2",
        "sha256:01",
    )


def test_the_text_shows_each_regression_by_clause_and_target_with_its_finding() -> None:
    old = report(*(result(PASS, name=f"test_{n}") for n in range(9)))
    new = report(*(result(FAIL, name=f"test_{n}") for n in range(9)))
    lines = compare.text(compare.compare(old, new)).splitlines()
    assert lines[:2] == ["new failures: 9", "  discard/receive on ref0/1: 9 PASS -> FAIL"]
    assert lines[3].startswith("      responder's canary of scatter[0]: 64 of 64 bytes wrong")
    assert f"    ... and {9 - compare.EXAMPLES} more" in lines
    assert lines[-1] == "REGRESSION"


def test_the_page_shows_both_texts() -> None:
    old, new = report(result(SKIPPED, text="no <XRC>")), report(result(FAIL))
    page = html.render_comparison(compare.compare(old, new), old, new, "old.json", "new.json")
    for words in ("REGRESSION", "no &lt;XRC&gt;", "canary of scatter[0]", "old.json", "New failures: 1"):
        assert words in page


@pytest.mark.parametrize(("new", "status"), [(PASS, 0), (FAIL, 1), (SKIPPED, 1)])
def test_the_exit_status_says_whether_there_is_a_regression(
    new: Verdict, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write(tmp_path / "old.json", report(*of(PASS))), write(tmp_path / "new.json", report(*of(new)))
    assert main(["compare", *files, "--html", str(tmp_path / "page" / "c.html")]) == status
    assert ("REGRESSION" in capsys.readouterr().out) == bool(status)
    assert (tmp_path / "page" / "c.html").exists()


def test_bad_input_is_2_with_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "good.json", report(result()))
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    for arguments in (
        ["compare", good, str(bad)],
        ["merge", good, str(bad), "-o", "x"],
        ["report", str(bad), "--ktap=x"],
    ):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith(f"{bad}:1: not valid JSON")
    assert main(["report", good]) == 2
    assert "nothing to write; add --html" in capsys.readouterr().err
    assert main(["report", good, "--html", f"{good}/x.html"]) == 2
    assert f"{good}/x.html: cannot be written: {good}: File exists" in capsys.readouterr().err


def test_runs_of_several_machines_stand_in_one_report() -> None:
    merged = merge([report(result(target="mlx5_0/1"), label="a"), report(result(target="mlx5_9/1"), label="b")])
    assert [each.circumstances.label for each in merged.runs] == ["a", "b"]
    assert [each.target for each in merged.results] == ["mlx5_0/1", "mlx5_9/1"]


def test_targets_that_clash_get_the_label_of_their_run() -> None:
    merged = merge([report(result(), label="a"), report(result(FAIL), label="b")])
    assert [each.target for each in merged.results] == ["a:ref0/1", "b:ref0/1"]
    assert [each.id for each in merged.targets] == ["a:ref0/1", "b:ref0/1"]


def test_what_a_run_did_not_run_gets_the_label_too() -> None:
    one, two = (report(result(), label=label) for label in ("lab1", "lab2"))
    two = replace(two, runs=(replace(two.runs[0], not_run=(NotRun("ref0/1", 3),)),))
    assert [missing for each in merge([one, two]).runs for missing in each.not_run] == [NotRun("lab2:ref0/1", 3)]


def test_labels_that_clash_are_numbered() -> None:
    merged = merge([report(result()), report(result())])
    assert [each.circumstances.label for each in merged.runs] == ["lab1-1", "lab1-2"]
    assert [each.target for each in merged.results] == ["lab1-1:ref0/1", "lab1-2:ref0/1"]


def test_labels_can_be_chosen_one_for_each_file() -> None:
    merged = merge([report(result()), report(result())], ["before", "after"])
    assert [each.target for each in merged.results] == ["before:ref0/1", "after:ref0/1"]
    with pytest.raises(DocumentError, match="1 labels for 2 files; give one --label for each file"):
        merge([report(result()), report(result())], ["before"])


def test_merged_reports_are_compared_run_by_run() -> None:
    def both(kernel: str) -> Report:
        machine = replace(run().circumstances.machine, kernel=kernel)
        return report_of((run(result(target="a/1"), label="a"), run(result(target="b/1"), label="b", machine=machine)))

    (difference,) = compare.compare(both("6.1"), both("6.12")).differences
    assert (difference.where, difference.name) == ("run b", "machine.kernel")


def test_merge_writes_what_compare_and_report_read(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.json", report(result(), label=f"m{n}")) for n in range(2)]
    merged = str(tmp_path / "merged.json")
    assert main(["merge", *files, "-o", merged]) == 0
    assert main(["compare", merged, merged]) == 0
    assert main(["report", merged, "--anonymous", "--json", str(tmp_path / "clean.json")]) == 0
    assert "m1" not in (tmp_path / "clean.json").read_text()


def test_report_writes_junit_in_its_other_forms(tmp_path: Path) -> None:
    results = (result(name=f"test_{n}", target=target) for n in range(3) for target in ("ref0/1", "ref1/1"))
    found = write(tmp_path / "results.json", report(*results))
    options = ["--junit", str(tmp_path / "x.xml"), "--junit-short", "--junit-per-target"]
    assert main(["report", found, *options]) == 0
    assert {path.name for path in tmp_path.glob("*.xml")} == {"x-ref0-1.xml", "x-ref1-1.xml"}
    assert (tmp_path / "x-ref0-1.xml").read_text().count("<testcase ") == 1
