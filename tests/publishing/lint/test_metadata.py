"""Metadata that says the same is equal, however it is written; what differs is named."""

from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.errors import WheelError
from vbuild.publishing.lint.metadata import MetadataView, metadata_view


def of(text: str, *, version: str = "2.2") -> MetadataView:
    return metadata_view(f"Metadata-Version: {version}\nName: demo\nVersion: 1.0\n{text}".encode())


def differences(one: str, other: str) -> list[str]:
    return [str(difference) for difference in of(one).differences(of(other))]


TEXT = "word " * 50


def test_of_texts_is_said_only_that_they_differ() -> None:
    assert differences(f"License: {TEXT}\n", f"License: {TEXT}too\n") == ["its license is another one"]
    assert differences("", f"License: {TEXT}\n") == ["its license is another one"]


@pytest.mark.parametrize(("version", "expected"), [("2.1", ()), ("2.3", ()), ("2.4", ("LICENSE",)), ("odd", ())])
def test_licenses_are_files_from_metadata_2_4_on(version: str, expected: tuple[str, ...]) -> None:
    assert of("License-File: LICENSE\n", version=version).licenses == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"\xff", "not UTF-8"), (b"Metadata-Version: 2.1\nName: a\n", "no Version"), (b"", "no Metadata-Version")],
    ids=["bytes", "no version", "empty"],
)
def test_what_is_no_metadata_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(WheelError) as refusal:
        metadata_view(data)
    assert str(refusal.value) == message


LINES = st.dictionaries(
    st.sampled_from(["Requires-Dist", "Summary", "Provides-Extra", "Keywords"]),
    st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3, unique=True),
)


def written(fields: dict[str, list[str]]) -> str:
    """The fields as the standard library writes headers."""
    message = Message()
    for name, values in fields.items():
        for value in values:
            message[name] = value
    return message.as_string().rstrip("\n") + "\n" if fields else ""


@given(LINES, LINES)
def test_two_differ_as_much_one_way_as_the_other(one: dict[str, list[str]], other: dict[str, list[str]]) -> None:
    there = list(of(written(one)).differences(of(written(other))))
    back = list(of(written(other)).differences(of(written(one))))
    assert [(difference.field, difference.lacks, difference.has) for difference in there] == [
        (difference.field, difference.has, difference.lacks) for difference in back
    ]
    assert bool(there) == ({k: set(v) for k, v in one.items()} != {k: set(v) for k, v in other.items()})
