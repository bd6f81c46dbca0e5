# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Sets of environment variables: each makes a target, and its variables are there while its checks run."""

import os
import re
from pathlib import Path

import pytest

from conformance import config, inventory
from conformance.report import reproducer
from conformance.scenarios import Scenario
from conformance.verbs.devices import list_devices
from tests.suite import run_suite

READ = ("conformance/checks/test_read.py",)
ENVIRONMENTS = "[{}, {REF_X: 1}, {name: both, REF_X: 2, REF_Y: b}]"
WATCHER = """
import ctypes, os, pytest
libc = ctypes.CDLL(None)  # what a provider written in C sees
libc.getenv.restype = ctypes.c_char_p

def seen():
    return ",".join(str((libc.getenv(name) or b"-").decode()) for name in (b"REF_X", b"REF_Y"))

def note(where, target):
    with open(os.environ["WATCHED"], "a") as file:
        print(where, target, seen(), file=file)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    note("before", "-")
    yield
    note("after", "-")

def pytest_pyfunc_call(pyfuncitem):
    note("check", pyfuncitem.callspec.params["target"].id)

def pytest_collection_finish():  # not before the reference device is there
    from conformance.verbs import end
    make = end.Context
    def watched(*arguments, **keywords):
        note("open", "-")
        return make(*arguments, **keywords)
    end.Context = watched
"""


def write(folder: Path, entry: str) -> Path:
    path = folder / "providers.yaml"
    path.write_text(f"providers:\n  lab: {entry}\n", encoding="utf-8")
    return path


def targets(folder: Path, environments: str) -> tuple[inventory.Target, ...]:
    valid = config.load(write(folder, f"{{devices: [ref0], null_mr: required, environments: {environments}}}"))
    devices = [device for device in list_devices({}) if device.name == "ref0"]
    return inventory.targets(valid, devices).usable


def test_each_set_is_a_target_that_its_id_shows(tmp_path: Path) -> None:
    found = targets(tmp_path, "[{}, {MLX5_CQE_SIZE: 128}, {A: x, B: '2'}, {name: short-1, A: y}]")
    assert [target.id for target in found] == ["ref0/1", "ref0/1/MLX5_CQE_SIZE=128", "ref0/1/A=x,B=2", "ref0/1/short-1"]
    assert [target.environment for target in found] == [
        (),
        (("MLX5_CQE_SIZE", "128"),),
        (("A", "x"), ("B", "2")),
        (("A", "y"),),
    ]
    assert found[2].settings == "A=x B=2"


def test_without_environments_there_is_one_target_as_the_run_has_it(tmp_path: Path) -> None:
    valid = config.load(write(tmp_path, "{devices: [ref0], null_mr: required}"))
    [target] = inventory.targets(valid, [device for device in list_devices({}) if device.name == "ref0"]).usable
    assert (target.id, target.environment) == ("ref0/1", ())


def test_the_shipped_mlx5_entry_has_every_pair_of_the_settings_that_decide_its_path() -> None:
    sets = config.load(config.DEFAULT_PATH).providers["mlx5"].environments
    assert {frozenset(config.variables(each)) for each in sets} == {
        frozenset({("MLX5_SCATTER_TO_CQE", scatter), ("MLX5_CQE_SIZE", size)})
        for scatter in ("0", "1")
        for size in ("64", "128")
    }
    assert len(sets) == 4


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_the_variables_are_set_while_a_target_is_used_and_not_elsewhere(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watcher.py").write_text(WATCHER, encoding="utf-8")
    watched = tmp_path / "watched"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("WATCHED", str(watched))
    monkeypatch.setenv("REF_Y", "outer")
    path = write(tmp_path, f"{{driver: reference, null_mr: required, environments: {ENVIRONMENTS}}}")
    run = run_suite("--reference", f"--providers={path}", "-p", "watcher", workers, "-k", "zeros", checks=READ)
    assert run.status == 0, run.output
    lines = set(watched.read_text(encoding="utf-8").splitlines())
    assert {line for line in lines if line.startswith("check")} == {
        "check ref0/1 -,outer",
        "check ref0/1/REF_X=1 1,outer",
        "check ref0/1/both 2,b",
    }
    assert {line for line in lines if line.startswith("open")} == {"open - -,outer", "open - 1,outer", "open - 2,b"}
    assert {line for line in lines if line.startswith(("before", "after"))} == {"before - -,outer", "after - -,outer"}


def test_targets_of_one_device_share_a_worker(tmp_path: Path) -> None:
    path = write(tmp_path, f"{{driver: reference, simulate: 2, null_mr: required, environments: {ENVIRONMENTS}}}")
    run = run_suite("--reference", f"--providers={path}", "-n", "auto", "-v", "-k", "come_back", checks=READ)
    workers: dict[str, set[str]] = {}
    for worker, target in re.findall(r"^\[(gw\d+)\].*\[(ref\d+/1[^-\]]*)", run.output, re.M):
        workers.setdefault(target, set()).add(worker)
    assert sorted(workers) == [f"ref{n}/1{label}" for n in (0, 1) for label in ("", "/REF_X=1", "/both")]
    assert len(set.union(*(workers[target] for target in workers if target.startswith("ref0/")))) == 1
    assert len(set.union(*workers.values())) == 2
    assert run.status == 0


def test_the_c_program_of_a_failure_has_the_variables_and_a_file_of_its_own(tmp_path: Path) -> None:
    plain, both = targets(tmp_path, "[{}, {name: both, REF_X: 2, REF_Y: b}]")
    scenario = Scenario.parse("rc-send-m32-n32-rq-post_send-poll_cq")
    paths = [reproducer.write(tmp_path, scenario, reproducer.where(target)) for target in (plain, both)]
    assert paths[0] != paths[1]
    assert "REF_X" not in paths[0].read_text(encoding="utf-8")
    assert '\t{ "REF_X", "2" },\n\t{ "REF_Y", "b" },\n' in paths[1].read_text(encoding="utf-8")


def test_the_header_and_a_failure_show_the_variables(tmp_path: Path) -> None:
    path = write(tmp_path, "{driver: reference, null_mr: required, environments: [{name: both, REF_X: 2, REF_Y: b}]}")
    options = ("--reference", f"--providers={path}", "--reference-fault=leaks-to-address", "-x")
    run = run_suite(*options, checks=("conformance/checks/test_discard.py",))
    assert re.search(r"^target ref0/1/both: .*, with REF_X=2 REF_Y=b$", run.output, re.M), run.output
    assert re.search(r"ref0/1/both \(reference\), .*, with REF_X=2 REF_Y=b$", run.output, re.M), run.output
