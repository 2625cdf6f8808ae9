import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installer.records import parse_record_file

from tests.factories.texts import TEXTS
from vbuild.errors import WheelError
from vbuild.wheel.metadata import Metadata, MetadataHeaders, Record, RecordRow, WheelFile, recorded_sha256, unpadded

METADATA = """Metadata-Version: 2.1
Name: demo
Version: 1.0
Summary: two
        lines
Requires-Dist: numpy>=2
requires-dist: rich; extra == "all"
Requires-Python: >=3.11

Requires-Dist: not this one
"""
REFUSED_RECORDS = {
    "a,sha256=x,1\nb,sha256=x\n": "line 2: 2 columns, expected path, hash and size",
    "a,sha256=x,1,2\n": "line 1: 4 columns, expected path, hash and size",
    ",sha256=x,1\n": "line 1: no path",
    "a,sha256=x,-1\n": "line 1: size '-1', expected a number of bytes",
    "a,sha256=x,٣\n": "line 1: size '٣', expected a number of bytes",
    "a,sha256=x,1\na,sha256=y,1\n": "line 2: 'a' is listed twice, and not alike",
    "a,,1\n\n": "line 2: blank, which pip refuses; expected path, hash and size",
    'a,"sha256=x': "line 1: not comma-separated values: unexpected end of data",
    'a,"b"c,1\n': "line 1: not comma-separated values: ',' expected after '\"'",
}

paths = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\\ufeff"), min_size=1).filter(
    lambda path: path.splitlines() == [path]
)
rows = st.builds(RecordRow, paths, st.none() | st.just("sha256=abc_-9"), st.none() | st.integers(0, 2**63))


@given(st.lists(rows, unique_by=lambda row: row.path).map(tuple))
def test_a_record_and_its_text_are_inverses(rows: tuple[RecordRow, ...]) -> None:
    assert Record.parse(str(Record(rows))).rows == rows


@pytest.mark.nightly
@given(st.lists(rows, unique_by=lambda row: row.path).map(tuple))
def test_installer_reads_the_same_record(rows: tuple[RecordRow, ...]) -> None:
    read = list(parse_record_file(str(Record(rows)).splitlines()))
    assert [path for path, _, _ in read] == [row.path for row in rows]


@pytest.mark.parametrize(("text", "message"), REFUSED_RECORDS.items())
def test_what_is_no_record_is_refused(text: str, message: str) -> None:
    with pytest.raises(WheelError, match=f"^{re.escape(message)}$"):
        Record.parse(text)


@given(st.text(alphabet='a,"\r\n1=x') | TEXTS)
def test_any_text_is_a_record_or_refused(text: str) -> None:
    try:
        record = Record.parse(text)
    except WheelError:
        return
    if all(row.path.splitlines() == [row.path] for row in record.rows):
        assert Record.parse(str(record)).rows == record.rows


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "Tag: py3-none-any\n": "no Wheel-Version",
        "Wheel-Version: 2.0\nTag: py3-none-any\n": "Wheel-Version 2.0: only 1.x is known",
        "Wheel-Version: 1.0\n": "no Tag",
        "": "no Wheel-Version",
    }.items(),
)
def test_a_wheel_file_without_its_fields_is_refused(text: str, message: str) -> None:
    with pytest.raises(WheelError, match=f"^{re.escape(message)}$"):
        WheelFile.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "Name: demo\nVersion: 1\n": "no Metadata-Version",
        "Metadata-Version: 2.1\nVersion: 1\n": "no Name",
        "Metadata-Version: 2.1\nName: demo\n\nVersion: 1\n": "no Version",
    }.items(),
)
def test_metadata_without_its_fields_is_refused(text: str, message: str) -> None:
    with pytest.raises(WheelError, match=f"^{re.escape(message)}$"):
        Metadata.parse(text)


@pytest.mark.parametrize("more", ["a:\n" * 2**14, "Summary: x\n" + " a\n" * 2**19], ids=["fields", "lines"])
def test_headers_without_end_are_refused(more: str) -> None:
    message = "more than 16384 fields or 1048576 characters of them, as no project has"
    with pytest.raises(WheelError, match=f"^{message}$"):
        Metadata.parse(METADATA.partition("\n\n")[0] + "\n" + more)


def test_a_value_of_two_lines_is_refused() -> None:
    with pytest.raises(WheelError, match=r"^Requires-Dist 'a\\nName: evil': expected one line$"):
        Metadata.parse(METADATA).replacing("Requires-Dist", ["a\nName: evil"])


@given(st.text(alphabet="Aab: \t\r\n") | TEXTS)
def test_headers_and_their_text_are_inverses(text: str) -> None:
    assert str(MetadataHeaders.parse(text)) == text


@given(st.text(alphabet="Aab: \t\n"), st.lists(st.sampled_from(["x", "y z"])))
def test_replaced_headers_say_what_they_were_given(text: str, values: list[str]) -> None:
    changed = MetadataHeaders.parse(text).replacing("A", values)
    assert MetadataHeaders.parse(str(changed)).values("A") == tuple(values)


@given(st.binary(min_size=32, max_size=32), st.sampled_from(["", "="]))
def test_a_sha256_comes_back_as_digits(digest: bytes, padding: str) -> None:
    assert recorded_sha256(f"sha256={unpadded(digest)}{padding}") == digest.hex()


@pytest.mark.parametrize("recorded", [None, "", "sha256=", "sha256=a", "sha256=é", "sha256=YWJj", f"sha512={'A' * 43}"])
def test_what_is_no_sha256_is_none(recorded: str | None) -> None:
    assert recorded_sha256(recorded) is None
