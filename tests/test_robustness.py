# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs on rigs that are not in order, and runs that are ended half-way."""

import configparser
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from conformance.report.document import load
from conformance.results import Result
from conformance.verbs.hints import memlock_limit
from conformance.verdicts import Verdict
from tests.suite import CHECKS, ROOT, SuiteRun, run_suite

KEY = ("conformance/checks/test_key.py",)
ALLOCATE = ("conformance/checks/test_allocate.py",)


def providers(folder: Path, entry: str) -> str:
    path = folder / "providers.yaml"
    path.write_text(f"providers:\n  lab: {entry}\n")
    return f"--providers={path}"


def run_sick(sickness: str, *arguments: str, checks: tuple[str, ...] = KEY) -> SuiteRun:
    return run_suite("--reference", f"--reference-fault=tests.sick:{sickness}", *arguments, checks=checks)


@pytest.mark.parametrize(
    ("sickness", "words"),
    [
        ("PortDown", "port 1 is DOWN, not ACTIVE"),
        ("NoGid", "providers.reference.gid: ref0/1 has no GID that fits `gid: auto`; its table: empty"),
    ],
)
def test_a_port_without_link_or_address_is_broken_in_the_header_and_in_each_check(sickness: str, words: str) -> None:
    run = run_sick(sickness)
    assert set(run.counts()) == {"BROKEN"}
    assert all("ref0/1: " in case.text and words in case.text for case in run.cases)
    assert re.search(f"BROKEN: .*{re.escape(words)}", run.output.partition("collected")[0])
    assert run.status == 1


def test_a_device_that_may_not_be_opened_is_broken_with_the_likely_reasons(tmp_path: Path) -> None:
    run = run_suite("-p", "tests.hidden", providers(tmp_path, "{devices: [mlx5_0], null_mr: required}"), checks=KEY)
    assert set(run.counts()) == {"BROKEN"}
    for case in run.cases:
        assert case.target == "mlx5_0/1"
        assert "the kernel has no uverbs device for it: load ib_uverbs" in case.text
        assert "is its provider library there" in case.text
    assert run.status == 1


@contextmanager
def memlock(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (size, hard))
    yield
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def test_a_low_memlock_limit_is_broken_and_named(tmp_path: Path) -> None:
    with memlock(64 << 10):
        bound = memlock_limit() is not None  # not root, whom the limit binds only on this device
        run = run_sick("LimitedMemory", f"--reports={tmp_path}")
    assert set(run.counts()) == {"BROKEN"}
    for case in run.cases:
        assert "errno 12 (ENOMEM: Cannot allocate memory)" in case.text
        assert ("is the memlock limit of 65536 bytes high enough (ulimit -l; of a container, " in case.text) == bound
    (written,) = load(tmp_path / "results.json").runs
    assert written.circumstances.machine.memlock.startswith("65536/")
    assert run.status == 1


def test_enough_memlock_is_enough() -> None:
    with memlock(8 << 20):
        assert set(run_sick("LimitedMemory").counts()) == {"PASS"}


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_device_that_disappears_is_broken_from_then_on(workers: str, tmp_path: Path) -> None:
    lab = providers(tmp_path, "{driver: reference, null_mr: required, timeout: 0.1}")
    run = run_sick(
        "Vanishing",
        lab,
        workers,
        "--search=0",
        "-k",
        "accepted_by_every",
        f"--reports={tmp_path}",
        checks=ALLOCATE,
    )
    verdicts = [each.verdict for each in load(tmp_path / "results.json").results]
    first = verdicts.index(Verdict.BROKEN)
    assert set(verdicts[:first]) == {Verdict.PASS}  # what was measured before
    assert Verdict.PASS not in verdicts[first:]
    assert len(verdicts) == len(run.cases)
    assert "ref0/1 is given up" in [case.text for case in run.cases if case.verdict == "BROKEN"][-1]
    assert run.status == 1


def run_dying(folder: Path, sickness: str, *arguments: str, name: str = "accepted_by_every") -> list[Result]:
    lab = providers(folder, "{driver: reference, null_mr: required, timeout: 0.1}")
    run = run_sick(sickness, lab, "-k", name, "--search=0", f"--reports={folder}", *arguments, checks=(CHECKS,))
    assert run.status == 1
    return list(load(folder / "results.json").results)


@pytest.mark.parametrize(
    ("sickness", "words"),
    [
        ("GoesSilent", "requester: no completion within 100 ms"),
        ("GoesUnreachable", "requester: completed with IBV_WC_RETRY_EXC_ERR"),
        ("GoesFatal", "errno 5 (EIO: Input/output error)"),
        ("Vanishing", "errno 5 (EIO: Input/output error)"),
    ],
)
def test_a_target_that_died_is_given_up_with_the_first_reason(sickness: str, words: str, tmp_path: Path) -> None:
    results = run_dying(tmp_path, sickness)
    verdicts = [each.verdict for each in results]
    first = verdicts.index(Verdict.BROKEN)
    assert verdicts == [Verdict.PASS] * first + [Verdict.BROKEN] * (len(verdicts) - first)
    tried, left = results[first : first + 3], results[first + 3 :]
    assert first > 0
    assert len(left) > 100
    assert not [each for each in tried if "is given up" in each.text]
    for each in left:
        assert each.text.startswith("=> not run: ref0/1 is given up: 3 checks in a row were BROKEN")
        assert words in each.text
        assert tried[0].nodeid in each.text


def test_a_target_that_dies_under_ordinary_memory_alone_is_given_up_too(tmp_path: Path) -> None:
    """Where each check that follows would be a FAIL: of --control the model is to blame, or the device."""
    results = run_dying(tmp_path, "GoesSilent", "--control", name="test_discard")
    assert sum("is given up" in each.text for each in results) > 100


@pytest.mark.parametrize(
    ("sickness", "verdict"), [("NoXrc", Verdict.BROKEN), ("LosesNullSends", Verdict.FAIL)], ids=["no XRC", "null MRs"]
)
def test_a_target_that_answers_on_some_path_is_tried_to_the_end(
    sickness: str, verdict: Verdict, tmp_path: Path
) -> None:
    results = run_dying(tmp_path, sickness)
    verdicts = [each.verdict for each in results]
    assert verdicts.count(verdict) > 10
    assert set(verdicts) == {Verdict.PASS, verdict}
    assert not [each for each in results if "is given up" in each.text]


@pytest.mark.parametrize(
    ("ended_by", "workers", "to_all", "sigint"),
    [
        (signal.SIGINT, "-n0", True, signal.SIG_DFL),
        (signal.SIGINT, "-n1", True, signal.SIG_DFL),
        (signal.SIGTERM, "-n0", True, signal.SIG_DFL),
        (signal.SIGTERM, "-n1", True, signal.SIG_DFL),
        (signal.SIGTERM, "-n1", False, signal.SIG_DFL),
        (signal.SIGTERM, "-n1", False, signal.SIG_IGN),
    ],
)
def test_a_run_that_is_ended_reports_what_it_measured_and_leaves_nothing(
    ended_by: signal.Signals, workers: str, to_all: bool, sigint: signal.Handlers, tmp_path: Path
) -> None:
    """A terminal and most CI systems signal all processes, kill(1) only the one. What a shell starts in the background
    ignores SIGINT.
    """
    plugins = ("-p", "no:cacheprovider", "-p", "tests.leftovers")
    options = ("-v", "-W", "default", "--reference", "--search=0", workers, f"--reports={tmp_path}/reports")
    (tmp_path / "left").mkdir()
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *plugins, *options],
        cwd=ROOT,
        env={**os.environ, "LEFTOVERS": str(tmp_path / "left")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, sigint),
    )
    assert run.stdout is not None
    for _ in range(2):  # when the second is shown, the first has been recorded
        next(line for line in run.stdout if "PASSED" in line)
    (os.killpg if to_all else os.kill)(run.pid, ended_by)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "KeyboardInterrupt" in output
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)
    (written,) = load(tmp_path / "reports" / "results.json").runs
    assert (written.interrupted, written.exit_status) == (True, 2)
    assert {each.verdict for each in written.results} <= {Verdict.PASS, Verdict.SKIPPED}
    assert written.results
    left = [path.read_text() for path in (tmp_path / "left").iterdir()]
    assert left == ["[(0, 0)]"] * (1 + int(workers[-1]))


@pytest.mark.parametrize("ended_by", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_run_that_is_to_end_while_it_writes_its_reports_writes_them(
    workers: str, ended_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin sends the signal before each file, and when the last one is written."""
    (tmp_path / "ending.py").write_text(
        "import signal\n"
        "from conformance.report import files\n"
        "write = files.write_text\n"
        "def write_text(path, text):\n"
        f"    signal.raise_signal(signal.{ended_by})\n"
        "    return write(path, text)\n"
        "files.write_text = write_text\n"
        "def pytest_terminal_summary():\n"
        f"    signal.raise_signal(signal.{ended_by})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    run = run_suite("--reference", workers, "-p", "ending", f"--reports={tmp_path}/reports", checks=KEY)
    assert run.status == 0, run.output
    assert "Traceback" not in run.output
    assert {path.name for path in (tmp_path / "reports").iterdir()} == {"results.json", "junit.xml", "report.html"}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--scenario=rc-send", "--scenario: scenario id 'rc-send'"),
        ("--search=many", "argument --search: found 'many'; allowed: a number, 0 or more"),
        ("--search=-1", "argument --search: found '-1'; allowed: a number, 0 or more"),
        ("--search-seed=x", "argument --search-seed: invalid int value: 'x'"),
        ("--reference-devices=0", "argument --reference-devices: found '0'; allowed: a number, 1 to 64"),
        ("--reference-devices=65", "argument --reference-devices: found '65'; allowed: a number, 1 to 64"),
        ("--no-such-option", "unrecognized arguments: --no-such-option"),
    ],
)
def test_an_option_that_cannot_be_read_is_a_usage_error(option: str, words: str) -> None:
    run = run_suite("--reference", option)
    assert words in " ".join(run.output.split())
    assert "Traceback" not in run.output
    assert run.status == pytest.ExitCode.USAGE_ERROR


def test_the_interpreter_ends_well_whatever_a_plugin_keeps_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pytest-rerunfailures does: with the exception it keeps frames, and in them null MRs and PDs."""
    (tmp_path / "keeping.py").write_text(
        "kept = []\ndef pytest_runtest_makereport(item, call):\n    kept.append((item, call.excinfo))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    lab = providers(tmp_path, "{driver: reference, null_mr: required}")
    run = run_suite("-p", "keeping", "--reference", "--reference-variant=no-null-mr", lab, "-k", "mr_comes_back")
    assert run.counts() == {"FAIL": 1}
    assert "sys.excepthook" not in run.output
    assert run.status == 1


@pytest.mark.parametrize("there", [True, False], ids=["there", "not there"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the checkout", "elsewhere"])
def test_options_with_paths_may_be_written_with_a_space(inside: bool, there: bool, tmp_path: Path) -> None:
    """By the command that tox runs: pytest takes a path that is there for one of tests until it knows the option."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    python, *words = tox["testenv:conformance"]["commands"].replace("{posargs}", "").split()
    assert python == "python"
    with tempfile.TemporaryDirectory(dir=ROOT if inside else tmp_path) as name:
        folder = Path(name)
        reports, ktap, entries = folder / "reports", folder / "results.ktap", folder / "providers.yaml"
        entries.write_text("providers:\n  lab: {driver: reference, null_mr: required}\n")
        if there:
            reports.mkdir()
            ktap.touch()
        paths = ("--providers", entries, "--reports", reports, "--ktap", ktap)
        others = ("-n0", "-p", "no:cacheprovider", "--reference", "--search=0", "-k", "live_mr")
        done = subprocess.run([sys.executable, *words, *paths, *others], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (written,) = load(reports / "results.json").runs
        assert [target.provider for target in written.circumstances.targets] == ["lab"]
        assert ktap.read_text().startswith("KTAP")


def test_a_report_in_the_place_of_a_folder_leaves_the_verdict_and_fails_the_run() -> None:
    run = run_suite("--reference", "--ktap=/", checks=KEY)
    assert set(run.counts()) == {"PASS"}
    assert "ERROR: /: cannot be written: " in run.output
    assert run.status == 1
