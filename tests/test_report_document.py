# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""results.json: its schema, and what is said of files that are none."""

import json
from pathlib import Path

import jsonschema
import pytest

from conformance.__main__ import main
from conformance.report import document
from conformance.report.document import DocumentError, dump, json_schema, load
from conformance.verdicts import Verdict
from tests.made_up import report, result


def test_the_shipped_schema_is_current() -> None:
    assert document.SCHEMA_PATH.read_text() == json_schema(), (
        "python -m conformance results-schema > conformance/report/results.schema.json"
    )


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results-schema"]) == 0
    assert capsys.readouterr().out == json_schema()


def test_the_schema_admits_every_verdict() -> None:
    results = [result(verdict, name=f"test_{verdict.value.lower()}", seconds=0.5) for verdict in Verdict]
    jsonschema.validate(json.loads(dump(report(*results))), json.loads(json_schema()))


@pytest.mark.parametrize("key", ["verdict", "clause", "nodeid"])
def test_the_schema_refuses_a_result_without(key: str) -> None:
    content = json.loads(dump(report(result())))
    del content["runs"][0]["results"][0][key]
    with pytest.raises(jsonschema.ValidationError, match=key):
        jsonschema.validate(content, json.loads(json_schema()))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = report(result(), result(Verdict.FAIL, target="ref1/1", reproducer="r.c", kernel_log="[1.0] mlx5: ..."))
    path = tmp_path / "results.json"
    path.write_text(dump(written))
    assert load(path) == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r":1: not valid JSON: Expecting value; was it cut off while it was written or copied\?"),
        ('{"format": "null-mr-conformance",', ":1: not valid JSON: .*; was it cut off"),
        ("<testsuites/>", r":1: not valid JSON: Expecting value$"),
        ("[]", r": no results of this suite: it has no key `format`, not 'null-mr-conformance'; give a results.json"),
        ('{"tests": 3}', ": no results of this suite: it has no key `format`"),
        ('{"format": "ctrf"}', ": no results of this suite: its format is 'ctrf'"),
        (
            '{"format": "null-mr-conformance", "version": 2}',
            ": format version 2, but this suite reads version 1; use the suite that wrote it, or a newer one",
        ),
        (
            '{"format": "null-mr-conformance", "version": 0}',
            ": format version 0, but this suite reads version 1; run the suite again",
        ),
        ('{"format": "null-mr-conformance", "version": "1"}', ": format version '1', but this suite reads version 1"),
        ('{"format": "null-mr-conformance", "version": 1}', ": runs: Field required; it differs from results.schema"),
        (
            '{"format": "null-mr-conformance", "version": 1, "runs": [], "more": 1}',
            ": more: Unexpected keyword argument; it differs from results.schema.json",
        ),
    ],
)
def test_any_other_file_is_refused_with_its_name_and_the_way_out(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=message) as error:
        load(path)
    assert str(error.value).startswith(str(path))


def test_a_wrong_value_is_named_by_its_key(tmp_path: Path) -> None:
    content = json.loads(dump(report(result())))
    content["runs"][0]["results"][0]["verdict"] = "FINE"
    path = tmp_path / "results.json"
    path.write_text(json.dumps(content))
    with pytest.raises(
        DocumentError, match=r"runs\[0\]\.results\[0\]\.verdict: Input should be 'SKIPPED', 'OBSERVED', "
    ):
        load(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"absent\.json: cannot be read: No such file or directory"):
        load(tmp_path / "absent.json")
    with pytest.raises(DocumentError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(b"\x7fELF\xff")
    with pytest.raises(DocumentError, match="core: byte 4 is not UTF-8 text"):
        load(path)
