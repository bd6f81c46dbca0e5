# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""docs/ci.md: its examples can be read by what they are for, and ask the suite for what it has. The script they run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from conformance import config
from conformance.report import document
from conformance.verdicts import Verdict
from tests import made_up

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/ci.md").read_text()
EXAMPLES = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def examples(language: str) -> list[str]:
    return [text for each, text in EXAMPLES if each == language]


def loaded(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


WAIVERS, GITLAB, GITHUB = examples("yaml")


def test_the_providers_file_is_valid(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(WAIVERS)
    assert len(config.load(tmp_path / "lab.yaml").waivers) == 1


def test_gitlab_has_jobs_that_keep_what_they_found() -> None:
    pipeline = loaded(GITLAB)
    jobs = {name: job for name, job in pipeline.items() if "script" in job}
    assert jobs.keys() == {"null-mr", "null-mr-nightly"}
    for job in jobs.values():
        assert job["extends"] in pipeline
        assert all(isinstance(line, str) for line in job["script"])
    artifacts = pipeline[".null-mr"]["artifacts"]
    assert artifacts["when"] == "always"
    assert artifacts["reports"]["junit"] == "suite/reports/junit*.xml"


def test_github_has_a_job_that_keeps_what_it_found() -> None:
    workflow = loaded(GITHUB)
    assert workflow["on"]["schedule"]
    (job,) = workflow["jobs"].values()
    for step in job["steps"]:
        assert len({"uses", "run"} & step.keys()) == 1
    assert job["steps"][-1]["if"] == "always()"


def test_jenkins_closes_what_it_opens() -> None:
    (pipeline,) = examples("groovy")
    for opening, closing in ("{}", "()"):
        assert pipeline.count(opening) == pipeline.count(closing)
    assert pipeline.startswith("pipeline {")
    assert re.findall(r"^    (\w+) \{", pipeline, re.MULTILINE) == ["agent", "options", "triggers", "stages", "post"]


def shell_commands() -> list[str]:
    """Each command by which an example runs the suite."""
    pipeline, workflow = loaded(GITLAB), loaded(GITHUB)
    lines = [line for job in pipeline.values() for line in job.get("script", ())]
    lines += [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    (pipeline_text,) = examples("groovy")
    lines += re.findall(r"sh '''(.*?)'''", pipeline_text, re.DOTALL) + re.findall(r"sh '([^']+)'", pipeline_text)
    return [*lines, *examples("bash")]


def test_the_shell_reads_its_commands() -> None:
    commands = shell_commands()
    assert len(commands) >= 8
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_each_way_runs_the_script_by_day_and_by_night() -> None:
    runs = [command for command in shell_commands() if ".ci/lab" in command]
    assert sum("--sequences" in run for run in runs) == 4
    assert all("--providers=" in run for run in runs)


def test_each_option_of_the_suite_is_one() -> None:
    """Those of other programs are named here."""
    asked = [[sys.executable, "-m", "pytest", "--help"]]
    asked += [[sys.executable, "-m", "conformance", command, "--help"] for command in ("merge", "compare")]
    helps = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for command in asked]
    known = {option for text in helps for option in re.findall(r"--[a-z][a-z-]*", text)}
    of_others = {"--quiet", "--recurse-submodules", "--init"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT))
    assert named - of_others <= known


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose toxw writes results.json, if `found` names one, and ends with `status`."""
    folder = tmp_path / "suite"
    (folder / ".ci").mkdir(parents=True)
    (folder / ".ci/lab").write_text((ROOT / ".ci/lab").read_text())
    (folder / ".ci/lab").chmod(0o755)
    (folder / "reports").mkdir()
    toxw = folder / "toxw"
    toxw.write_text(
        "#!/bin/bash\n"
        f'if [ "$1" = -qe ]; then shift 3; PYTHONPATH={ROOT} exec {sys.executable} -m conformance "$@"; fi\n'
        "[ ! -e ../found ] || cp ../found reports/results.json\n"
        "exit $(cat ../status)\n"
    )
    toxw.chmod(0o755)
    return folder


def run(checkout: Path, status: int, *verdicts: Verdict) -> tuple[int, str]:
    """A run of the script where the suite ends so, with these verdicts of the same checks (none: no results)."""
    found = checkout.parent / "found"
    found.unlink(missing_ok=True)
    if verdicts:
        results = [made_up.result(verdict, name=f"test_{number}") for number, verdict in enumerate(verdicts)]
        found.write_text(document.dump(made_up.report(*results)))
    (checkout.parent / "status").write_text(str(status))
    command = [str(checkout / ".ci/lab"), str(checkout.parent / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return done.returncode, done.stdout + done.stderr


def kept(checkout: Path) -> list[str]:
    """The verdicts of the run that is kept."""
    path = checkout.parent / "kept/results.json"
    if not path.exists():
        return []
    return [result["verdict"] for run in json.loads(path.read_text())["runs"] for result in run["results"]]


def test_a_first_green_run_is_kept(checkout: Path) -> None:
    assert run(checkout, 0, Verdict.PASS) == (0, "")
    assert kept(checkout) == ["PASS"]


def test_a_red_run_is_red_and_not_kept(checkout: Path) -> None:
    run(checkout, 0, Verdict.PASS, Verdict.PASS)
    status, output = run(checkout, 2, Verdict.PASS, Verdict.FAIL)
    assert status == 2
    assert "new failures" in output
    assert kept(checkout) == ["PASS", "PASS"]


def test_what_passed_and_is_skipped_now_fails_a_run_that_is_green_alone(checkout: Path) -> None:
    run(checkout, 0, Verdict.PASS, Verdict.PASS)
    status, output = run(checkout, 0, Verdict.PASS, Verdict.SKIPPED)
    assert status == 1
    assert "promises no longer shown to be kept" in output
    assert kept(checkout) == ["PASS", "PASS"]


def test_a_run_without_results_is_not_taken_for_the_one_before(checkout: Path) -> None:
    run(checkout, 0, Verdict.PASS)
    assert run(checkout, 70) == (70, "")
    assert kept(checkout) == ["PASS"]


def test_a_folder_that_is_not_told_from_where_is_refused(checkout: Path) -> None:
    done = subprocess.run([str(checkout / ".ci/lab"), "kept"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "with KEPT an absolute path" in done.stderr
