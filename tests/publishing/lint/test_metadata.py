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


ALIKE = [
    ("Requires-Dist: numpy>=2,<3\n", "requires-dist:  NumPy <3, >=2\n"),
    ('Requires-Dist: a; extra == "x"\n', "Requires-Dist: A ; extra=='x'\n"),
    ("Requires-Dist: a\nRequires-Dist: b\n", "Requires-Dist: b\nRequires-Dist: a\n"),
    ("Requires-Python: >=3.9,<4\n", "Requires-Python: <4, >=3.9\n"),
    ("Provides-Extra: fast_math\n", "Provides-Extra: Fast-Math\n"),
    ("Classifier: A\nClassifier: B\n", "Classifier: B\nClassifier: A\n"),
    ("Description: words of\n        many lines\n", "\nwords of many lines\n"),
    ("\nwords\n", "\nwords\r\n\r\n"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_spelling_is_no_difference(one: str, other: str) -> None:
    assert differences(one, other) == []


DIFFERENT = [
    ("Requires-Dist: a>=1\n", "Requires-Dist: a>=2\n", ["Requires-Dist: lacks 'a>=1' and has 'a>=2'"]),
    ("", "Requires-Dist: a\nRequires-Dist: b\n", ["Requires-Dist: has 'a', 'b'"]),
    ("Requires-Python: >=3.9\n", "", ["Requires-Python: lacks '>=3.9'"]),
    ("Provides-Extra: x\n", "Provides-Extra: y\n", ["Provides-Extra: lacks 'x' and has 'y'"]),
    ("Summary: a\n", "Summary: b\n", ["Summary: lacks 'a' and has 'b'"]),
    ("Project-URL: a, b\n", "", ["Project-URL: lacks 'a, b'"]),
    ("\nsome\n", "\nother\n", ["its description is another one"]),
    (
        "Author: x\nRequires-Python: >=3\n",
        "Author: y\nRequires-Dist: a\n",
        ["Requires-Dist: has 'a'", "Requires-Python: lacks '>=3'", "Author: lacks 'x' and has 'y'"],
    ),
]


TEXT = "word " * 50


def test_of_texts_is_said_only_that_they_differ() -> None:
    assert differences(f"License: {TEXT}\n", f"License: {TEXT}too\n") == ["its license is another one"]
    assert differences("", f"License: {TEXT}\n") == ["its license is another one"]


def test_of_many_values_some_are_named() -> None:
    lines = "".join(f"Requires-Dist: n{number}\n" for number in range(9))
    assert differences("", lines) == ["Requires-Dist: has 'n0', 'n1', 'n2', 'n3', 'n4' and 4 more"]


@pytest.mark.parametrize(("version", "expected"), [("2.1", ()), ("2.3", ()), ("2.4", ("LICENSE",)), ("odd", ())])
def test_licenses_are_files_from_metadata_2_4_on(version: str, expected: tuple[str, ...]) -> None:
    assert of("License-File: LICENSE\n", version=version).licenses == expected


@pytest.mark.parametrize(("one", "other", "expected"), DIFFERENT)
def test_what_differs_is_named_what_installers_go_by_first(one: str, other: str, expected: list[str]) -> None:
    assert differences(one, other) == expected


def test_requirements_that_nobody_can_read_stay_as_they_are() -> None:
    line = "a ; variant_label == 'x86_64_v3'"
    said = of(f"Requires-Dist: {line}\nRequires-Dist: b @ https://example.org/b.whl\nRequires-Python: >=3\n")
    [(_, unreadable, why)] = said.unreadable
    assert unreadable == line
    assert why.startswith("Expected a marker variable or quoted string")
    assert said.direct == ("b @ https://example.org/b.whl",)
    assert dict(said.fields)["Requires-Python"] == (">=3",)


def test_a_field_is_dynamic_where_it_says_so() -> None:
    assert of("Dynamic: Requires-Dist\nDynamic: license-file\n").dynamic == {"requires-dist", "license-file"}


@pytest.mark.parametrize(("version", "expected"), [("2.1", False), ("2.2", True), ("2.10", True), ("odd", False)])
def test_an_sdist_promises_static_fields_from_metadata_2_2_on(version: str, expected: bool) -> None:  # noqa: FBT001
    assert of("", version=version).is_static is expected


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
