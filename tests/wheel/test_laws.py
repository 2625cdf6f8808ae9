"""What holds for every wheel, and for every damage done to one."""

import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installer.sources import WheelFile

from tests.factories.wheels import contents, wheel
from vbuild.errors import WheelError
from vbuild.wheel.archive import open_wheel, peek
from vbuild.wheel.paths import folded
from vbuild.wheel.write import edit_wheel

INFO = "demo-1.0.dist-info"
METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]


def _are_files_everywhere(paths: Iterable[str]) -> bool:
    """Whether no system takes two of *paths* for one file, or one for a folder of another."""
    taken = sorted(folded(path) + "/" for path in paths)
    return all(part for path in taken for part in path[:-1].split("/")) and not any(
        other.startswith(path) for path, other in pairwise(taken)
    )


parts = st.text(
    st.characters(exclude_categories=["Cc", "Cf", "Co", "Cs", "Zl", "Zp"], exclude_characters="/\\:"),
    min_size=1,
    max_size=60,
).filter(lambda part: part not in {".", ".."} and not part.endswith((".dist-info", ".data")))
paths = st.lists(parts, min_size=1, max_size=3).map("/".join)
contained = st.binary(max_size=200) | st.integers(0, 200_000).map(bytes)
files = st.dictionaries(paths, contained, max_size=6).filter(_are_files_everywhere)


damages = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "swap"]), st.floats(0, 1), st.binary(min_size=1, max_size=8)),
    min_size=1,
    max_size=3,
)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one example: pytest's own is shared by all of them."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def damaged(data: bytes, damages: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, piece in damages:
        place = int(where * max(len(data) - 1, 0))
        end = place + len(piece)
        match kind:
            case "flip":
                data = data[:place] + bytes(a ^ b for a, b in zip(data[place:end], piece, strict=False)) + data[end:]
            case "cut":
                data = data[:place] + data[end:]
            case "insert":
                data = data[:place] + piece + data[place:]
            case _:
                data = data[place:] + data[:place]
    return data


@given(files, st.sampled_from(METHODS))
def test_any_members_come_through_a_copy(members: dict[str, bytes], method: int) -> None:
    with folder() as here:
        path = wheel(here, files=members, compression=method)
        with open_wheel(path, check=True) as source:
            assert {member.path: source.read(member) for member in source.members} == contents(path)
            out = edit_wheel(source, here / "out", source.name, edits={})
        assert contents(out) == contents(path)
        with zipfile.ZipFile(out) as archive:
            assert archive.testzip() is None
        with WheelFile.open(out) as judged:
            judged.validate_record()


@given(files, st.data())
def test_any_edit_changes_what_it_names_and_nothing_else(members: dict[str, bytes], data: st.DataObject) -> None:
    named = st.sampled_from(sorted(members)) if members else paths
    edits = data.draw(st.dictionaries(named | paths, st.none() | st.binary(max_size=100), max_size=4))
    with folder() as here:
        path = wheel(here, files=members)
        expected = {file: held for file, held in (contents(path) | edits).items() if held is not None}
        with open_wheel(path) as source:
            out = edit_wheel(source, here / "out", source.name, edits=edits)
        with open_wheel(out, check=True):
            pass
        read = contents(out)
        assert read.keys() == expected.keys()
        assert all(read[file] == expected[file] for file in expected if file != f"{INFO}/RECORD")
        with WheelFile.open(out) as judged:
            judged.validate_record()


@given(damages, st.sampled_from(METHODS))
def test_a_damaged_wheel_is_refused_or_comes_through_whole(
    damages: list[tuple[str, float, bytes]], method: int
) -> None:
    members: dict[str, bytes | str] = {"demo/é.py": b"x = 1\n" * 50, f"{INFO}/variant.json": "{}"}
    with folder() as here:
        path = wheel(here, files=members, compression=method)
        whole = contents(path)
        path.write_bytes(damaged(path.read_bytes(), damages))
        try:
            with open_wheel(path, check=True) as source:
                out = edit_wheel(source, here / "out", source.name, edits={})
        except WheelError:
            assert not (here / "out").exists() or list((here / "out").iterdir()) == []
        else:
            # what RECORD does not cover is RECORD itself; hash algorithms aside, it can only lose what says nothing
            assert {file: data for file, data in contents(out).items() if file != f"{INFO}/RECORD"} == {
                file: data for file, data in whole.items() if file != f"{INFO}/RECORD"
            }


@given(damages, st.sampled_from(METHODS))
def test_a_damaged_wheel_that_nobody_checks_gives_a_sound_archive_or_a_refusal(
    damages: list[tuple[str, float, bytes]], method: int
) -> None:
    with folder() as here:
        path = wheel(here, files={"demo/a.py": b"x = 1\n" * 50}, compression=method)
        path.write_bytes(damaged(path.read_bytes(), damages))
        try:
            with open_wheel(path) as source:
                out = edit_wheel(
                    source, here / "out", source.name.labelled("v3"), edits={f"{INFO}/variant.json": b"{}"}
                )
        except WheelError:
            assert not (here / "out").exists() or list((here / "out").iterdir()) == []
        else:
            with open_wheel(out) as copy:
                assert copy.read(f"{INFO}/variant.json") == b"{}"


@given(damages)
def test_a_peek_into_a_damaged_wheel_gives_bytes_or_a_refusal(damages: list[tuple[str, float, bytes]]) -> None:
    with folder() as here:
        path = wheel(here, files={f"{INFO}/variant.json": b"{}"})
        path.write_bytes(damaged(path.read_bytes(), damages))
        try:
            found = peek(path, "variant.json")
        except WheelError:
            return
        assert found in {None, b"{}"}


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda data: data + b"PK\5\6" + bytes(18)))
def test_any_bytes_are_a_wheel_or_refused(data: bytes) -> None:
    with folder() as here:
        path = here / "demo-1.0-py3-none-any.whl"
        path.write_bytes(data)
        with pytest.raises(WheelError), open_wheel(path):
            pass
