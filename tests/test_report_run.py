# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The reports of whole runs, also of those that end badly."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from conformance.report import files, junit
from conformance.report.document import CIRCUMSTANCES, json_schema, load
from conformance.session import recorder
from conformance.session.properties import carry
from conformance.verdicts import Verdict
from tests.made_up import GID, report, result, run
from tests.suite import ROOT, run_suite

FREE = ("conformance/checks/test_free.py",)
READ = ("conformance/checks/test_read.py",)
KEY = ("conformance/checks/test_key.py",)


def test_a_run_writes_results_that_fit_the_schema(tmp_path: Path) -> None:
    done = run_suite("--reference", f"--reports={tmp_path}", f"--ktap={tmp_path}/r.ktap", checks=FREE)
    assert done.status == 0
    jsonschema.validate(json.loads((tmp_path / "results.json").read_text()), json.loads(json_schema()))
    (written,) = load(tmp_path / "results.json").runs
    assert len(written.results) == len(done.cases)
    about = written.circumstances
    assert about.simulated == "the reference device (simulated) is used, because it was asked for"
    assert "--reference" in about.arguments
    assert about.seed is not None
    (target,) = about.targets
    assert (target.id, target.driver, target.simulated, target.mtu) == ("ref0/1", "reference", True, 1024)
    assert {library.name for library in about.machine.libraries} >= {"pyverbs", "libibverbs"}
    assert "ok 1 ref0/1" in (tmp_path / "r.ktap").read_text()
    assert "ref0/1" in (tmp_path / "report.html").read_text()


def test_the_reports_of_a_wrong_device_all_tell_the_same(tmp_path: Path) -> None:
    done = run_suite("--reference", "--reference-fault=rkey-reads", f"--reports={tmp_path}", checks=KEY)
    failures = [each for each in load(tmp_path / "results.json").results if each.verdict is Verdict.FAIL]
    assert len(failures) == done.counts()["FAIL"] > 0
    written = ElementTree.parse(tmp_path / "junit.xml")
    assert [each.text for each in written.iter("failure")] == [each.text for each in failures]
    assert f"{len(failures)} of {len(done.cases)} checks" in (tmp_path / "report.html").read_text()


def test_junit_in_other_forms_takes_the_place_of_what_an_earlier_run_wrote(tmp_path: Path) -> None:
    (tmp_path / "junit-of-others.xml").write_text("<testsuites/>")
    written = []
    for form in (junit.WHOLE, junit.Form(short=True, per_target=True), junit.WHOLE):
        of = result(target="ref0/1"), result(target="ref1/1")
        assert files.write(report(*of), tmp_path, None, anonymize=False, form=form) == []
        written.append({path.name for path in tmp_path.glob("junit*")} - {"junit-of-others.xml"})
    assert written == [{"junit.xml"}, {"junit-ref0-1.xml", "junit-ref1-1.xml"}, {"junit.xml"}]
    assert (tmp_path / "junit-of-others.xml").exists()


def test_the_options_for_junit_reach_the_reports(tmp_path: Path) -> None:
    options = ("--reference", "--reference-devices=2", "--junit-short", "--junit-per-target", f"--reports={tmp_path}")
    done = run_suite(*options, checks=KEY)
    assert len(done.cases) == 2 * len({case.name.replace("ref1", "ref0") for case in done.cases})
    for name in ("ref0", "ref1"):
        cases = list(ElementTree.parse(tmp_path / f"junit-{name}-1.xml").iter("testcase"))
        [number] = [each.get("value") for each in cases[0].iter("property") if each.get("name") == "checks"]
        assert [case.get("name") for case in cases] == ["checks that pass"]
        assert int(str(number)) * 2 == len(done.cases)


def test_workers_report_through_the_controller(tmp_path: Path) -> None:
    run_suite("--reference", "--reference-devices=2", "-n2", f"--reports={tmp_path}", checks=FREE)
    (written,) = load(tmp_path / "results.json").runs
    assert {each.target for each in written.results} == {"ref0/1", "ref1/1"}


def test_an_anonymous_report_has_no_gid_anywhere(tmp_path: Path) -> None:
    arguments = ("--reference", "--reference-fault=rkey-reads", f"--reports={tmp_path}")
    assert run_suite(*arguments, checks=KEY).status == 1
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert [path for path in files if GID in path.read_text()]
    assert run_suite(*arguments, "--anonymous", checks=KEY).status == 1
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == files
    assert [path for path in files if GID in path.read_text()] == []


def test_a_file_in_the_place_of_the_folder_leaves_the_verdict_and_fails_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.touch()
    done = run_suite("--reference", f"--reports={folder}", checks=FREE)
    assert done.status == 1
    assert done.clauses("FAIL") | done.clauses("BROKEN") == set()
    assert f"ERROR: {folder}/results.json: cannot be written: {folder}: File exists; the verdict stands" in done.output
    assert "ref0/1    free " in done.output


def test_a_full_disk_leaves_the_old_report_and_the_others(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("old")
    (tmp_path / "results.json.new").symlink_to("/dev/full")
    problems = files.write(report(result()), tmp_path, tmp_path / "x.ktap", anonymize=False)
    assert problems == [f"{tmp_path}/results.json: cannot be written: No space left on device"]
    assert (tmp_path / "results.json").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "junit.xml", "report.html", "x.ktap"}


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_what_was_measured_before_an_interruption_is_written(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interrupting.py").write_text(
        "def pytest_runtest_logreport(report):\n"
        "    if 'leaves_the_rest' in report.nodeid or 'go_on_working' in report.nodeid:\n"
        "        raise KeyboardInterrupt\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    arguments = ("--reference", workers, "-p", "interrupting", f"--reports={tmp_path}")
    assert run_suite(*arguments, checks=(*KEY, *FREE)).status == 2
    (written,) = load(tmp_path / "results.json").runs
    assert written.interrupted
    assert written.results
    assert "Interrupted." in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_what_a_run_that_stops_early_did_not_run_is_counted_and_named_everywhere(workers: str, tmp_path: Path) -> None:
    arguments = ("--reference", "--reference-devices=2", "--reference-fault=rkey-reads", "-x", workers)
    done = run_suite(*arguments, f"--reports={tmp_path}", f"--ktap={tmp_path}/r.ktap", checks=KEY)
    (written,) = load(tmp_path / "results.json").runs
    assert (written.interrupted, written.exit_status, done.status) == (True, *[1 + int(workers[-1])] * 2)
    measured = len(written.results)
    assert {each.target: each.checks for each in written.not_run} == {"ref0/1": 27 - measured, "ref1/1": 27}
    lines = [f"ref0/1: {27 - measured} checks were not run", "ref1/1: 27 checks were not run"]
    junit_errors = [str(each.get("message")) for each in ElementTree.parse(tmp_path / "junit.xml").iter("error")]
    assert len(junit_errors) == 2
    for text in (done.output, (tmp_path / "report.html").read_text(), "".join(junit_errors)):
        assert all(line in text for line in lines)
    assert "not ok 1 checks that were not run # ERROR ref1/1: 27 checks" in (tmp_path / "r.ktap").read_text()


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_of_a_check_that_is_run_again_the_last_time_counts(workers: str, tmp_path: Path) -> None:
    """With pytest-rerunfailures."""
    fault, scenario = "--reference-fault=tests.flaky:WrongOnce", "--scenario=rc-write-n64-remote-rq-post_send-poll_cq"
    arguments = ("--reference", fault, scenario, workers, f"--reports={tmp_path}")
    once = run_suite(*arguments, checks=READ)
    verdicts = [each.verdict for each in load(tmp_path / "results.json").results]
    again = run_suite(*arguments, "--reruns=1", checks=READ)
    results = list(load(tmp_path / "results.json").results)
    assert verdicts.count(Verdict.FAIL) == once.status == 1
    assert [each.verdict for each in results] == [Verdict.PASS] * len(verdicts)
    assert len(list(ElementTree.parse(tmp_path / "junit.xml").iter("testcase"))) == len(verdicts)
    assert "1 rerun" in again.output
    assert again.status == 0


def node(spec: dict[str, Any], circumstances: str = "") -> Any:
    defaults = {"popen": None, "ssh": None, "socket": None, "id": "gw0"}
    output = {recorder.HAND_OVER: circumstances} if circumstances else {}
    return SimpleNamespace(
        gateway=SimpleNamespace(spec=SimpleNamespace(**{**defaults, **spec})), workeroutput=output, workerinput={}
    )


@pytest.mark.parametrize(
    ("spec", "host"),
    [
        ({"popen": True}, ""),
        ({"ssh": "root@lab2"}, "root@lab2:"),
        ({"ssh": "root@10.0.0.2 -p 2222", "id": "lab2"}, "lab2:"),
        ({"socket": "lab3:8888"}, "lab3:8888:"),
    ],
)
def test_results_of_another_host_name_it(spec: dict[str, Any], host: str) -> None:
    passed = pytest.TestReport("t.py::test_a[ref0/1]", ("t.py", 1, "test_a"), {}, "passed", None, "call")
    carry(passed, result())
    vars(passed)["node"] = node(spec)  # as pytest-xdist does
    recording = recorder.Recorder()
    recording.pytest_runtest_logreport(passed)
    assert [each.target for each in recording.results] == [f"{host}ref0/1"]


def test_each_host_has_a_run_of_its_own() -> None:
    here, there = run(result()).circumstances, run(result(), label="other").circumstances
    recording = recorder.Recorder()
    recording.pytest_testnodedown(node({"popen": True}))
    recording.pytest_testnodedown(node({"ssh": "lab2"}, CIRCUMSTANCES.dump_json(there).decode()))
    recording.results += [result(), result(target="lab2:ref0/1")]
    first, second = recording.report(here, exit_status=0, stopped=False).runs
    assert (first.circumstances.label, [each.target for each in first.results]) == ("lab1", ["ref0/1"])
    assert (second.circumstances.label, [each.target for each in second.results]) == ("lab2", ["lab2:ref0/1"])
    assert [each.id for each in second.circumstances.targets] == ["lab2:ref0/1"]


def test_only_workers_of_other_hosts_are_asked_for_their_circumstances() -> None:
    recording, local, remote = recorder.Recorder(), node({"popen": True}), node({"ssh": "lab2"})
    recording.pytest_configure_node(local)
    recording.pytest_configure_node(remote)
    assert (local.workerinput[recorder.HAND_OVER], remote.workerinput[recorder.HAND_OVER]) == (False, True)


def test_each_of_several_hosts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an ssh that runs its command here."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\nexec sh -c "$1"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NULLMR_BUILD_DIR", str(ROOT / ".build"))
    # pytest-xdist copies pytest into that folder, so it is no good idea to name this one.
    for name in ("lab2", "lab3"):
        shutil.copytree(ROOT / "conformance", tmp_path / name / "conformance")
        for file in ("conftest.py", "pyproject.toml", "providers.yaml"):
            shutil.copy(ROOT / file, tmp_path / name)
    python = f"python={sys.executable}"
    hosts = (
        "--dist=each",
        f"--tx=ssh=lab2//chdir={tmp_path}/lab2//{python}",
        f"--tx=ssh=root@10.0.0.3//id=lab3//chdir={tmp_path}/lab3//{python}",
    )
    # No check is named: pytest-xdist would look for it among the folders that it copies.
    options = ("--reference", "-k", "test_free", "-p", "no:cacheprovider", "-W", "default", f"--reports={tmp_path}")
    command = [sys.executable, "-m", "pytest", *options, *hosts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {run.circumstances.label: run for run in load(tmp_path / "results.json").runs}
    assert runs.keys() == {"lab2", "lab3"}
    for label, of in runs.items():
        assert {each.target for each in of.results} == {f"{label}:ref0/1"}
        assert [each.id for each in of.circumstances.targets] == [f"{label}:ref0/1"]
    assert len(runs["lab2"].results) == len(runs["lab3"].results) > 0
    assert "lab3:ref0/1  free" in done.stdout
