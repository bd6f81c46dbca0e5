# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""C extensions are compiled once, found again, and say what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import native

ROOT = Path(__file__).parent.parent
TWICE = "static int twice(int number) { return 2 * number; }"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(native.BUILD_DIR_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_extension_is_compiled_into_the_cache_and_works(cache: Path) -> None:
    module = native.extension("twice", "int twice(int);", TWICE)
    assert module.lib.twice(21) == 42
    assert [Path(module.__file__)] == list(cache.iterdir())


def test_cached_extension_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = native.extension("again", "int twice(int);", TWICE)
    monkeypatch.delitem(sys.modules, first.__name__)
    monkeypatch.setattr(native, "_compile", None)
    assert native.extension("again", "int twice(int);", TWICE).__file__ == first.__file__


def test_another_source_is_another_extension() -> None:
    first = native.extension("other", "int twice(int);", TWICE)
    second = native.extension("other", "int twice(int);", TWICE.replace("2", "3"))
    assert (first.lib.twice(1), second.lib.twice(1)) == (2, 3)


def test_source_that_does_not_compile_says_why_and_what_to_install(cache: Path) -> None:
    with pytest.raises(native.BuildError) as error:
        native.extension("wrong", "int twice(int);", "#include <no/such/header.h>")
    assert "no/such/header.h: No such file" in str(error.value)
    assert "libibverbs-dev" in str(error.value)
    assert list(cache.iterdir()) == []


def test_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.BUILD_DIR_VARIABLE, "/proc/nowhere")
    with pytest.raises(native.BuildError, match=r"NULLMR_BUILD_DIR=/proc/nowhere: cannot write"):
        native.build_dir()


def test_header_that_is_missing_is_named() -> None:
    with pytest.raises(native.BuildError, match=r"no/such\.h is not installed"):
        native.header_path("no/such.h")


def test_text_is_made_once_for_a_key() -> None:
    made: list[str] = []

    def make() -> str:
        made.append("text")
        return "text"

    assert [native.cached_text("name", make, key) for key in ("one", "one", "two")] == ["text"] * 3
    assert len(made) == 2


def test_builders_at_the_same_time_do_not_disturb_each_other(cache: Path) -> None:
    program = (
        f"from conformance import native\nprint(native.extension('race', 'int twice(int);', {TWICE!r}).lib.twice(4))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    builders = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [builder.communicate()[0] for builder in builders] == ["8\n"] * 3
    assert len(list(cache.iterdir())) == 1
