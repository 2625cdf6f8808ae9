"""A wheel as split sees it: which files are libraries, who bundled them, and which of them code names."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.elf import patchelfed, program, shared_object
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import hashed
from tests.factories.tools import needs
from vbuild.binary.linkage import Via

pytestmark = needs("gcc")

DEEP = library("libdeep.so.2")
AS_BUNDLED = patchelfed(DEEP, "--set-soname", hashed("libdeep.so.2", DEEP))
BUNDLED = f"demo.libs/{hashed('libdeep.so.2', DEEP)}"


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


def test_who_loads_whom_is_told_by_installed_paths(look: BundleReader) -> None:
    files = {
        "demo-1.0.data/platlib/_c.so": module("libdeep.so.2", rpath_="$ORIGIN/demo/lib"),
        "demo/lib/libdeep.so.2": DEEP,
    }
    (edge, *_) = look.at(files).graph.needs("_c.so")
    assert (edge.via, edge.provider) == (Via.OWN, "demo/lib/libdeep.so.2")


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
