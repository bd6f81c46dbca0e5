# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""JUnit XML, KTAP and the HTML page of made-up results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.clauses import CLAUSES
from conformance.report import html, junit, ktap, terminal
from conformance.report.document import report_of
from conformance.results import Result
from conformance.scenarios import Scenario
from conformance.verdicts import Verdict
from tests.made_up import FAILURE, SCENARIO, report, result, run

EACH = tuple(
    result(verdict, name=f"test_{verdict.value.lower()}", text=text)
    for verdict, text in (
        (Verdict.PASS, ""),
        (Verdict.FAIL, FAILURE),
        (Verdict.BROKEN, "port 1 is DOWN"),
        (Verdict.SKIPPED, "no XRC"),
        (Verdict.WAIVED, f"known since 28.39 (BUG-7)\n{FAILURE}"),
        (Verdict.OBSERVED, "it does # not"),
    )
)


def test_junit_counts_each_verdict_in_the_suite_of_its_target() -> None:
    tree = ElementTree.fromstring(junit.render(report(*EACH, result(target="ref1/1"))))
    suites = {suite.get("name"): suite for suite in tree}
    assert suites.keys() == {"ref0/1", "ref1/1"}
    counts = {name: suites["ref0/1"].get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "6", "failures": "1", "errors": "1", "skipped": "2"}


def test_junit_has_an_element_for_each_verdict_and_the_finding_as_its_message() -> None:
    cases = {case.get("name"): case for case in ElementTree.fromstring(junit.render(report(*EACH))).iter("testcase")}
    tags = {str(name)[5:].partition("[")[0]: [child.tag for child in case] for name, case in cases.items()}
    assert tags == {
        "pass": ["properties"],
        "fail": ["properties", "failure"],
        "broken": ["properties", "error"],
        "skipped": ["properties", "skipped"],
        "waived": ["properties", "skipped"],
        "observed": ["properties", "system-out"],
    }
    (failure,) = ElementTree.fromstring(junit.render(report(*EACH))).iter("failure")
    assert str(failure.get("message")).startswith("responder's canary of scatter[0]: 64 of 64 bytes wrong")
    assert failure.text == FAILURE


SHORT = junit.Form(short=True)


def test_short_junit_counts_passes_by_clause_and_skips_by_reason_and_has_the_rest_whole() -> None:
    passes = [result(name=f"test_{n}", seconds=0.5) for n in range(3)]
    other = result(clause="discard/completion", name="test_other")
    skips = [result(Verdict.SKIPPED, name=f"test_{why}_{n}", text=why) for n in range(2) for why in ("no XRC", "no MW")]
    warned = result(name="test_warned", kernel_log="WARNING: CPU: 0")
    rest = [each for each in EACH if each.verdict not in (Verdict.PASS, Verdict.SKIPPED)]
    [suite] = ElementTree.fromstring(junit.render(report(*passes, *rest, other, *skips, warned), SHORT))
    cases = [
        (case.get("classname"), case.get("name"), {p.get("name"): p.get("value") for p in case.iter("property")})
        for case in suite.iter("testcase")
    ]
    counted = {(where, name): about["checks"] for where, name, about in cases if "checks" in about}
    assert counted == {
        ("ref0/1.discard/receive", "checks that pass"): "3",
        ("ref0/1.discard/completion", "checks that pass"): "1",
        ("ref0/1.discard/receive", "checks that are skipped: no XRC"): "2",
        ("ref0/1.discard/receive", "checks that are skipped: no MW"): "2",
    }
    assert suite.find("testcase[@name='checks that pass']").get("time") == "1.5000"  # type: ignore[union-attr]
    whole = ElementTree.fromstring(junit.render(report(*rest, warned))).iter("testcase")
    kept = [case for case in suite.iter("testcase") if not str(case.get("name")).startswith("checks that")]
    assert [ElementTree.tostring(case) for case in kept] == [ElementTree.tostring(case) for case in whole]
    assert suite.get("tests") == str(len(cases)) == "9"
    assert [suite.get(name) for name in ("failures", "errors", "skipped")] == ["1", "1", "3"]


def test_junit_per_target_is_a_file_for_each_with_what_the_one_file_has_of_it() -> None:
    results = [result(target=target, name=f"test_{n}") for n in range(2) for target in ("ref0/1/cqe64", "ref1/1/A=x/y")]
    files = junit.files(report(*results), "found.xml", junit.Form(per_target=True))
    assert next(iter(files)) == "found-ref0-1-cqe64.xml"
    assert re.fullmatch(r"found-ref1-1-A_x_y-[0-9a-f]{12}\.xml", list(files)[1])
    suites = [suite for text in files.values() for suite in ElementTree.fromstring(text)]
    whole = ElementTree.fromstring(junit.render(report(*results)))
    assert [ElementTree.tostring(suite).strip() for suite in suites] == [ElementTree.tostring(s).strip() for s in whole]
    assert junit.files(report(*results)) == {"junit.xml": junit.render(report(*results))}


def test_32_targets_are_within_what_gitlab_reads() -> None:
    """30 MB and 250000 objects (elements and attributes, at the least) a file, 100 MB in all."""

    def checks(target: str) -> list[Result]:
        scenarios = [f"rc-send-m{n}-n{n}-rq-post_send-poll_cq" for n in range(1, 2500)]
        return [result(target=target, scenario=text, clause=CLAUSES[n % 24].id) for n, text in enumerate(scenarios)]

    whole = junit.render(report(*checks("mlx5_0/1/cqe128-no-scatter")))
    assert len(whole) * 32 < 100e6
    short = junit.render(report(*(each for n in range(32) for each in checks(f"mlx5_{n}/1/cqe128-no-scatter"))), SHORT)
    assert len(short) < 1e6
    for text in (whole, short):
        assert sum(1 + len(element.attrib) for element in ElementTree.fromstring(text).iter()) < 250_000


def test_junit_tells_clause_target_and_scenario() -> None:
    (case,) = ElementTree.fromstring(junit.render(report(result(reproducer="r/x.c")))).iter("testcase")
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert properties == {
        "clause": "discard/receive",
        "target": "ref0/1",
        "scenario": SCENARIO,
        "verdict": "PASS",
        "reproducer": "r/x.c",
    }
    assert case.get("classname") == "ref0/1.discard/receive"
    assert case.get("file") == "conformance/checks/test_discard.py"
    assert case.findtext("system-out") == "[[ATTACHMENT|r/x.c]]"


def test_junit_stays_xml_whatever_a_text_holds() -> None:
    text = "a\x00b\x1b[31m <&> \udcff ]]>"
    (failure,) = ElementTree.fromstring(junit.render(report(result(Verdict.FAIL, text=text)))).iter("failure")
    assert failure.text == "a\\x00b\\x1b[31m <&> \\xdcff ]]>"


def test_ktap_nests_the_checks_of_a_target_below_it() -> None:
    lines = ktap.render(report(*EACH)).splitlines()
    assert lines[:5] == ["KTAP version 1", "1..1", "  KTAP version 1", "  # Subtest: ref0/1", "  1..6"]
    assert lines[-1] == "not ok 1 ref0/1"
    results = [line.strip() for line in lines if re.match(r"  (not )?ok ", line)]
    name = f"[ref0/1-{SCENARIO}]"
    assert results == [
        f"ok 1 discard/receive test_pass{name}",
        f"not ok 2 discard/receive test_fail{name}",
        f"not ok 3 discard/receive test_broken{name} # ERROR port 1 is DOWN",
        f"ok 4 discard/receive test_skipped{name} # SKIP no XRC",
        f"ok 5 discard/receive test_waived{name} # SKIP waived: known since 28.39 (BUG-7)",
        f"ok 6 discard/receive test_observed{name}",
    ]
    assert f"  # {FAILURE.splitlines()[2]}" in lines


class Page(HTMLParser):
    """What a page consists of. Fails on tags that do not match."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_but_itself() -> None:
    text = html.render(report(*EACH))
    page = Page(text)
    assert not page.tags.keys() & {"script", "link", "img", "iframe", "object"}
    assert not [name for _, name, _ in page.attributes if name == "src" or name.startswith("on")]
    assert all(value.startswith("#") for _, name, value in page.attributes if name == "href")
    assert "url(" not in text
    assert "@import" not in text


def test_every_link_of_the_page_leads_somewhere() -> None:
    page = Page(html.render(report(*EACH)))
    anchors = {value for _, name, value in page.attributes if name == "id"}
    assert {value[1:] for _, name, value in page.attributes if name == "href"} <= anchors


def test_the_page_shows_every_clause_and_every_verdict() -> None:
    page = Page(html.render(report(*EACH)))
    for words in (*(clause.id for clause in CLAUSES), *(verdict.value for verdict in Verdict)):
        assert words in page.text
    for words in (FAILURE, "port 1 is DOWN", "no XRC", "known since 28.39 (BUG-7)", "it does # not"):
        assert words in page.text


def test_a_scenario_is_drawn_with_its_null_segments_marked() -> None:
    text = html.render(report(result(Verdict.FAIL)))
    assert re.search(r'<span style="flex:[\d.]+">memory 72</span>', text)
    assert re.search(
        r'<span class="null" style="flex:[\d.]+">null 64</span>\s*<span style="flex:[\d.]+">memory 8<', text
    )
    assert "scatter (SRQ)" in text


def test_equal_neighbours_are_drawn_as_one_and_the_address_is_told() -> None:
    drawn = html.bars(Scenario.parse("rc-write-3*n8@zero+m4-remote-rq-post_send-poll_cq"))
    assert [(piece.segment.length, piece.count) for piece in drawn.gather] == [(8, 3), (4, 1)]
    failed = result(Verdict.FAIL, scenario="rc-write-3*n8@zero+m4-remote-rq-post_send-poll_cq")
    text = html.render(report(failed))
    assert "3 \u00d7 null 8 @zero" in text
    assert "ordinary memory, named by rkey" in text


def test_texts_are_escaped() -> None:
    text = html.render(report(result(Verdict.FAIL, text="<script>alert(1)</script>")))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_what_failures_have_in_common_is_told() -> None:
    rq = SCENARIO.replace("srq", "rq")
    results = [result(Verdict.FAIL), result(scenario=rq), result(scenario=rq, name="test_more")]
    page = Page(html.render(report(*results)))
    text = re.sub(r"\s+", " ", page.text)
    assert "queue: SRQ 1/1, RQ 0/2" in text
    assert "All 1 with a work request have queue SRQ: 1 of the 1 checks there." in text
    assert "poll:" not in page.text


def test_whether_the_lkey_is_accepted_as_a_remote_key_stands_before_the_failures() -> None:
    seen = result(Verdict.OBSERVED, clause=html.LKEY_AS_RKEY, text="RDMA_READ with the lkey as rkey: IBV_WC_SUCCESS")
    text = Page(html.render(report(seen, result(Verdict.FAIL)))).text
    assert text.index("RDMA_READ with the lkey as rkey: IBV_WC_SUCCESS") < text.index(
        "Bars are gather and scatter lists"
    )
    assert "used as a remote key" not in Page(html.render(report(result()))).text


def targets_with(number: int, verdicts: Sequence[Verdict]) -> list[Result]:
    """The same checks on several targets; the last target has passes alone."""
    return [
        result(verdict if at < number - 1 else Verdict.PASS, target=f"ref{at}/1", name=f"test_{n}")
        for at in range(number)
        for n, verdict in enumerate(verdicts)
    ]


def test_what_fails_on_several_targets_is_shown_once_with_their_names() -> None:
    page = Page(html.render(report(*targets_with(5, [Verdict.FAIL, Verdict.FAIL, Verdict.PASS]))))
    text = re.sub(r"\s+", " ", page.text)
    assert "FAIL discard/receive on 4 of 5 targets: 8 of 12 checks" in text
    assert "targetsref0/1 2/3ref1/1 2/3ref2/1 2/3ref3/1 2/3 " in text
    assert text.count("on 4 targets, here ref0/1") == 2
    assert page.text.count(FAILURE) == 2


def test_targets_that_do_not_differ_share_a_column_and_a_map_of_paths() -> None:
    page = Page(html.render(report(*targets_with(6, [Verdict.FAIL, Verdict.PASS]))))
    assert re.search(r"clause\s*5 targets\s*ref0/1\s*ref1/1\s*ref2/1\s*ref3/1\s*ref4/1\s*ref5/1", page.text)
    assert "Targets that do not differ in any clause share a column." in page.text
    maps = re.findall(r"(all 6 targets|5 targets: [^\n]*|ref5/1)\s*path", page.text)
    assert maps == ["all 6 targets", "5 targets: ref0/1, ref1/1, ref2/1, ref3/1, ref4/1", "ref5/1"]


def test_what_is_skipped_for_the_same_reason_is_told_once_with_the_targets() -> None:
    skips = [result(Verdict.SKIPPED, target=f"ref{n}/1", text="no XRC", name=name) for n in range(4) for name in "ab"]
    other = [result(Verdict.SKIPPED, target=f"ref{n}/1", text="no MW") for n in range(2)]
    text = re.sub(r"\s+", " ", Page(html.render(report(*skips, *other))).text)
    assert "all 4 targetsref0/1ref1/1ref2/1ref3/1discard/receive8no XRC" in text
    assert "ref0/1ref1/1discard/receive2no MW" in text


def test_a_page_of_32_targets_is_not_much_longer_than_that_of_one() -> None:
    verdicts = [Verdict.PASS] * 20 + [Verdict.FAIL] * 40 + [Verdict.SKIPPED] * 20
    sizes = [len(html.render(report(*targets_with(number, verdicts)))) for number in (2, 33)]
    assert sizes[1] < sizes[0] + 100_000


def test_a_report_of_nothing_says_so() -> None:
    assert "No check was run." in Page(html.render(report())).text


def test_simulation_and_interruption_are_said_first() -> None:
    interrupted = replace(run(result(), simulated="the reference device is used"), interrupted=True)
    page = Page(html.render(report_of((interrupted,))))
    head = page.text[: page.text.index("Circumstances")]
    assert "Not hardware." in head
    assert "Interrupted." in head


def test_the_program_of_a_failure_is_taken_in(tmp_path: Path) -> None:
    (tmp_path / "reproducers").mkdir()
    (tmp_path / "reproducers" / "x.c").write_text("#include <infiniband/verbs.h>")
    failed = result(Verdict.FAIL, reproducer="elsewhere/reproducers/x.c")
    text = html.render(report(failed), tmp_path)
    assert "#include &lt;infiniband/verbs.h&gt;" in text
    assert "#include" not in html.render(report(failed))
    assert "cleaned" in html.render(report(failed), tmp_path, lambda program: "cleaned")


def test_a_scenario_or_clause_of_another_version_does_not_stop_the_page() -> None:
    odd = result(Verdict.FAIL, clause="read/in-reverse", scenario="rc-teleport-n1", text="?")
    assert "read/in-reverse" in Page(html.render(report(odd))).text


@pytest.mark.parametrize("targets", [1, 16])
def test_a_page_of_3000_failures_stays_below_2_mb(targets: int) -> None:
    long = FAILURE + "\n" + "x" * 1000
    results = [
        result(Verdict.FAIL, CLAUSES[n % 20].id, f"ref{n % targets}/1", text=long, name=f"test_{n}")
        for n in range(3000)
    ]
    assert len(html.render(report(*results)).encode()) < 2_000_000


SKIPPED = [
    result(Verdict.SKIPPED, text=f"ref0 has no XRC queue pair {words}", lacks="XRC", clause=clause)
    for words in ("", "with ibv_wr_*", "on a CQ-ex")
    for clause in ("read/zeros", "discard/receive")
]


def test_the_terminal_has_one_line_for_each_thing_that_a_device_lacks() -> None:
    other = result(Verdict.SKIPPED, text="--search 0", clause="discard/receive")
    assert list(terminal.skip_reasons([*SKIPPED, other, result()])) == [
        "ref0/1: 6 SKIPPED (read/zeros, discard/receive): the device has no XRC",
        "ref0/1: 1 SKIPPED (discard/receive): --search 0",
    ]


def test_a_target_most_of_whose_checks_are_skipped_says_so() -> None:
    passes = [result(clause="discard/receive"), *(result(clause="free/no-leak") for _ in range(3))]
    shown = terminal.table([*SKIPPED, *passes])
    assert re.search(r"^ref0/1 +discard .* PASS, only 1 of 4 tried$", shown, re.MULTILINE)
    assert re.search(r"^ref0/1 +free .* PASS$", shown, re.MULTILINE)
    assert re.search(r"^ref0/1 +read .* SKIPPED$", shown, re.MULTILINE)
    assert list(terminal.mostly_skipped([*SKIPPED, *passes])) == [
        "ref0/1: 6 of 10 checks were SKIPPED; the verdict speaks of the other 4"
    ]
    assert list(terminal.mostly_skipped([*SKIPPED, *passes, *passes])) == []
