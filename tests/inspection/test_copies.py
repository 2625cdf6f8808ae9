"""Copies of libraries for CPU levels, in what is said to be in a wheel: values, the terminal, JSON, the page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.factories.level_copies import BASE, STUB, level_members, leveled_wheel
from tests.factories.tools import needs
from tests.factories.wheels import contents as unpacked
from vbuild.elf.linkage import at_level
from vbuild.files.wording import WIDTH
from vbuild.inspection.inspect import inspect
from vbuild.inspection.model import Contents
from vbuild.inspection.page import page
from vbuild.inspection.text import summary

SCHEMA = json.loads(Path(__file__).with_name("contents.schema.json").read_text())

pytestmark = needs("gcc")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return inspect(leveled_wheel(tmp_path_factory.mktemp("copies")))


def test_each_library_with_copies_is_told_with_all_of_them(found: Contents) -> None:
    sizes = {path: len(data) for path, data in level_members().items()}
    (copies,) = found.copies
    assert (copies.path, [(copy.level, copy.path, copy.size) for copy in copies.copies]) == (
        BASE,
        [("v1", BASE, sizes[BASE])]
        + [(level, at_level(BASE, level), sizes[at_level(BASE, level)]) for level in ("v3", "v4")],
    )
    assert [(level.level, level.files, level.size) for level in found.levels] == [
        ("v1", 1, sizes[BASE]),
        ("v3", 1, sizes[at_level(BASE, "v3")]),
        ("v4", 1, sizes[at_level(BASE, "v4")]),
    ]
    assert all(0 < level.packed_size < level.size for level in found.levels)


def test_what_others_need_is_provided_by_what_every_processor_may_load(found: Contents) -> None:
    assert found.provided[BASE.rpartition("/")[2]] == BASE
    assert {library.path: library.level for library in found.libraries} == {
        STUB: None,
        BASE: None,
        at_level(BASE, "v3"): "v3",
        at_level(BASE, "v4"): "v4",
    }


def test_a_module_that_left_a_stub_is_not_bundled_and_a_library_with_copies_is(tmp_path: Path, found: Contents) -> None:
    assert found.bundled == ()
    other = "demo.libs/libother.so"
    files = level_members() | {
        other: level_members()[BASE],
        at_level(other, "v3"): level_members()[at_level(BASE, "v3")],
    }
    assert [library.path for library in inspect(leveled_wheel(tmp_path, files)).bundled] == [other]


def test_the_terminal_has_a_column_for_each_level(found: Contents) -> None:
    lines = [*summary(found)]
    place = next(number for number, line in enumerate(lines) if line.startswith("for CPU level"))
    head, library, installed, packed = lines[place : place + 4]
    assert head.split()[3:] == ["v1", "v3", "v4"]
    assert library.startswith("demo.libs/libvb_demo-01234567.so")
    assert installed.startswith("all of them, installed ")
    assert packed.startswith("all of them, packed ")
    assert max(map(len, lines)) <= WIDTH


def test_a_level_for_which_a_library_has_no_copy_is_a_dash(tmp_path: Path) -> None:
    files = level_members(("v3", "v4"))
    other = "demo.libs/libother.so"
    files |= {other: files[BASE], at_level(other, "v4"): files[at_level(BASE, "v4")]}
    lines = [*summary(inspect(leveled_wheel(tmp_path, files)))]
    (line,) = (line for line in lines if line.startswith(f"{other} ") and line.split()[3] == "-")
    assert len(line.split()) == 1 + 2 + 1 + 2


def test_json_is_as_the_schema_says_and_has_levels_only_where_there_are_any(found: Contents, tmp_path: Path) -> None:
    data = json.loads(json.dumps(found.data()))
    Draft202012Validator(SCHEMA).validate(data)
    assert [level["level"] for level in data["levels"]] == ["v1", "v3", "v4"]
    assert data["copies"][0]["path"] == BASE
    flat = inspect(leveled_wheel(tmp_path, level_members(()))).data()
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(flat)))
    assert not {"levels", "copies"} & flat.keys()


def test_the_page_shows_the_levels_and_tells_copies_apart(found: Contents) -> None:
    text = page(found)
    assert '<h2 id="levels">CPU levels</h2>' in text
    assert "libvb_demo-01234567.so (v3)" in text


def test_a_copy_without_one_for_every_processor_has_no_baseline(found: Contents) -> None:
    (library,) = (one for one in found.libraries if one.level == "v3")
    (copies,) = replace(found, libraries=(library,)).copies
    assert (at_level(copies.path, "v3"), copies.at("v1"), copies.at("v3") is not None) == (library.path, None, True)


def test_what_the_wheel_holds_is_what_is_told(tmp_path: Path, found: Contents) -> None:
    held = unpacked(leveled_wheel(tmp_path))
    assert sum(len(data) for data in held.values()) == found.size
