"""A wheel as split sees it: which files are libraries, who bundled them, and which of them code names."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.elf import patchelfed, program, shared_object
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, hashed
from tests.factories.tools import needs
from vbuild.binary.linkage import Via

pytestmark = needs("gcc")

DEEP = library("libdeep.so.2")
AS_BUNDLED = patchelfed(DEEP, "--set-soname", hashed("libdeep.so.2", DEEP))
BUNDLED = f"demo.libs/{hashed('libdeep.so.2', DEEP)}"
OTHER = NAME.replace("311", "312")


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


def test_files_are_known_by_where_they_are_installed(look: BundleReader) -> None:
    files: dict[str, bytes | str] = {
        "demo-1.0.data/platlib/demo/_c.so": module(),
        "demo-1.0.data/scripts/tool": program("int main(void) { return 0; }"),
        "demo/text.so": "no ELF file",
        BUNDLED: DEEP,
    }
    bundle = look.at(files)
    assert sorted(bundle.binaries) == [BUNDLED, "demo/_c.so"]
    assert list(bundle.outside) == ["demo-1.0.data/scripts/tool"]
    assert bundle.binaries["demo/_c.so"].member.path == "demo-1.0.data/platlib/demo/_c.so"
    assert [piece.path for piece in bundle.libraries] == [BUNDLED]
    assert bundle.damaged == {}


def test_who_loads_whom_is_told_by_installed_paths(look: BundleReader) -> None:
    files = {
        "demo-1.0.data/platlib/_c.so": module("libdeep.so.2", rpath_="$ORIGIN/demo/lib"),
        "demo/lib/libdeep.so.2": DEEP,
    }
    (edge, *_) = look.at(files).graph.needs("_c.so")
    assert (edge.via, edge.provider) == (Via.OWN, "demo/lib/libdeep.so.2")


@pytest.mark.parametrize(
    ("path", "is_bundled"),
    [
        (BUNDLED, True),
        ("demo/lib/libdeep-1a2b3c4d.so.2", True),
        ("demo/lib/libdeep.1a2b3c4d.so.2", True),
        ("demo.libs/libdeep.so.2", True),
        ("demo/.dylibs/libdeep.so.2", True),
        ("demo/lib/libdeep.so.2", False),
        ("demo/libs/libdeep.so.2", False),
    ],
)
def test_what_a_repair_tool_brought_is_told_by_name_and_folder(
    look: BundleReader, path: str, *, is_bundled: bool
) -> None:
    assert look.at({path: DEEP}).binaries[path].is_bundled == is_bundled


def test_a_content_is_looked_at_once_and_counted_for_every_wheel(look: BundleReader) -> None:
    first, second = (look.at({BUNDLED: DEEP}, name) for name in (NAME, OTHER))
    assert look.asked == [BUNDLED.rpartition("/")[2]]
    assert look.looked_at == 2 * len(DEEP)
    assert first.binaries[BUNDLED].key == second.binaries[BUNDLED].key


def test_a_damaged_file_is_none_and_said_to_be(look: BundleReader) -> None:
    bundle = look.at({BUNDLED: DEEP[:100], "demo/_c.so": module()})
    assert list(bundle.binaries) == ["demo/_c.so"]
    assert bundle.damaged[BUNDLED].startswith("program header table at 0x40, ")


@pytest.mark.parametrize(
    ("path", "source", "is_named"),
    [
        ("demo/a.py", f"CDLL('{hashed('libdeep.so.2', DEEP)}')", True),
        ("demo/a.py", "CDLL(os.path.join(here, '..', 'demo.libs', name))", True),
        ("demo.pth", "import os; os.add_dll_directory('demo.libs')", True),
        ("demo/a.py", "CDLL('libdeep.so.2')", False),
        ("demo/a.py", "CDLL('libother.so.2')", False),
        ("demo/a.txt", f"{hashed('libdeep.so.2', DEEP)}", True),
        ("demo/a.md", f"{hashed('libdeep.so.2', DEEP)}", False),
        ("demo/b.so", shared_object(f'const char *name = "{hashed("libdeep.so.2", DEEP)}";'), True),
        ("demo/b.so", shared_object("int x;"), False),
        (
            "demo-1.0.data/scripts/tool",
            program(f'const char *name = "{hashed("libdeep.so.2", DEEP)}"; int main(void) {{ return !name; }}'),
            True,
        ),
    ],
    ids=[
        *("file", "folder", "folder in .pth", "its plain name", "another", "text", "prose"),
        *("ELF data", "no ELF data", "program"),
    ],
)
def test_a_bundled_library_is_named_by_its_file_or_folder(
    look: BundleReader, path: str, source: str | bytes, *, is_named: bool
) -> None:
    bundle = look.at({BUNDLED: AS_BUNDLED, path: source})
    assert bundle.namer(bundle.binaries[BUNDLED]) == (path if is_named else None)


@pytest.mark.parametrize("source", ["CDLL(f'libdeep{suffix}')", "CDLL('libdeep.so.2')", "CDLL('libdeep.so')"])
def test_a_projects_own_library_is_named_by_the_start_of_its_name(look: BundleReader, source: str) -> None:
    path = "demo/lib/libdeep.so.2"
    bundle = look.at({path: library("libdeep.so.2"), "demo/a.py": source})
    is_named = bundle.namer(bundle.binaries[path]) is not None
    assert is_named == ("libdeep.so'" not in source)
