"""Reading report.json, which may be anybody's file."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from tests.factories.reports import data, entry, failure, report
from vbuild.errors import RecipeError, VbuildError
from vbuild.release.model import limits
from vbuild.release.report import Report, check, kinds
from vbuild.wheel.name import WheelName

KEYS = "format, name, source, wheels, failures, variants, machines, limits, notes, bench, split"


def refused(path: Path) -> str:
    with pytest.raises(VbuildError) as caught:
        Report.load(path)
    return str(caught.value).removeprefix(f"{path}: ")


def changed(**more: Any) -> dict[str, Any]:
    return data(entry() | more)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "not a report of a release: no format; expected report.json as vbuild writes it"),
        ({}, "not a report of a release: no format; expected report.json as vbuild writes it"),
        ({"format": 2}, "format: found 2; this vbuild reads 1"),
        ({"format": True}, "format: found True; this vbuild reads 1"),
        ({"format": "1"}, "format: found '1'; this vbuild reads 1"),
        ({"format": 1}, "name: missing"),
        (data(name=5), "name: expected a string, got 5"),
        (data(wheels={}), "wheels: expected an array, got an object"),
        (changed(build_seconds=10**400), "wheels[0].build_seconds: is 1000000000000000000000"),
        (changed(bytes=2**53), "wheels[0].bytes: is 9007199254740992; expected 9007199254740991 or less"),
        (data(limits=to_builtins(limits()) | {"file_bytes": 0}), "limits.file_bytes: is 0; expected 1 or more"),
        (changed(bytes=-1), "wheels[0].bytes: is -1; expected 0 or more"),
        (changed(bytes=1.5), "wheels[0].bytes: expected an integer, got 1.5"),
        (changed(built=1), "wheels[0].built: expected true or false, got 1"),
        (changed(test="maybe"), "wheels[0].test: found 'maybe'; expected one of 'no test', 'passed', 'not run'"),
        (changed(label=[]), "wheels[0].label: expected a string or null, got an array"),
        (changed(choices={"a": 1}), "wheels[0].choices.a: expected a string, got 1"),
        (changed(sha256="abc"), "wheels[0].sha256: found 'abc'; expected what matches ^[0-9a-f]{64}$"),
        (changed(toolkit="13"), "wheels[0].toolkit: expected an object, got '13'"),
        (
            changed(wheel="../a.whl"),
            "wheels[0]: '../a.whl': not a wheel's file name: 1 parts between dashes, expected 5, 6 or 7",
        ),
        (data(failures=[failure(None, "x") | {"error": 1}]), "failures[0].error: expected a string, got 1"),
    ],
    ids=range(21),
)
def test_what_is_no_report_is_refused_with_its_place(values: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(values))
    assert refused(path).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON: Expecting value at line 1, column 1"),
        (b'{\n"format": 1,}', "not JSON: Illegal trailing comma before end of object at line 2, column 12"),
        (b"\xff\xfe", "cannot be read: not UTF-8"),
        (b"[" * 100_000, "JSON nested too deeply, of far too many values, or with a number that is none"),
        (b'{"format": NaN}', "JSON nested too deeply, of far too many values, or with a number that is none"),
        (b"9" * 5000, "JSON nested too deeply, of far too many values, or with a number that is none"),
        (b'{"format": 1e400}', "JSON nested too deeply, of far too many values, or with a number that is none"),
    ],
    ids=["nothing", "comma", "bytes", "deep", "nan", "digits", "overflow"],
)
def test_what_is_no_json_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_bytes(content)
    assert refused(path).partition(":")[0] == message.partition(":")[0]


@pytest.mark.parametrize(
    ("key", "said"), [("other", "other"), ("\x1b[2J", "'\\x1b[2J'")], ids=["word", "control characters"]
)
def test_what_vbuild_writes_has_no_other_keys(key: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check(data(**{key: 1}))
    assert str(caught.value) == f"{said}: no such key; known here: {KEYS}"
    assert Report.of_data(data(**{key: 1}))  # what it reads may


def test_a_report_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "old.json") == "cannot be read: No such file or directory"
    assert refused(tmp_path) == "cannot be read: Is a directory"


def test_wheels_of_one_build_count_their_time_once() -> None:
    fat = {"compiled_for": "sm_75,sm_80", "build_seconds": 40.0}
    found = report(entry("sm75", gpus="sm_75") | fat, entry("sm80", gpus="sm_80") | fat, entry(seconds=2.0))
    assert found.seconds == 42
    assert found.size == 30_000_000


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("manylinux_2_17_x86_64.manylinux2014_x86_64", ("manylinux_x86_64",)),
        ("manylinux1_x86_64", ("manylinux_x86_64",)),
        ("linux_aarch64", ("manylinux_aarch64",)),
        ("musllinux_1_2_aarch64", ("musllinux_aarch64",)),
        ("manylinux_2_28_x86_64.musllinux_1_2_x86_64", ("manylinux_x86_64", "musllinux_x86_64")),
        ("macosx_11_0_arm64", ("macosx_arm64",)),
        ("win_amd64", ("win_amd64",)),
        ("any", ("any",)),
    ],
)
def test_platforms_are_told_apart_whatever_their_versions(platform: str, expected: tuple[str, ...]) -> None:
    assert kinds(WheelName.parse(f"demo-1.0-cp312-cp312-{platform}.whl")) == expected
