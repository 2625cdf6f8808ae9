"""The patches of all wheels, made before a byte is written: what is in each file then, and what is refused."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.elf import without_sections
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, hashed, repaired
from tests.factories.tools import needs
from vbuild.elf.read import Loading
from vbuild.errors import RepackageError, VbuildError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.official import Officials
from vbuild.splitting.other_packages import PackageFinder
from vbuild.splitting.patches import PatchedFile, Patcher, PatchPlan, plan_patches
from vbuild.splitting.request import SplitRequest

pytestmark = needs("gcc")

OTHER = NAME.replace("311", "312")
TOP, DEEP = library("libtop.so", ("libdeep.so",)), library("libdeep.so")
LIBRARIES = {"libtop.so": TOP, "libdeep.so": DEEP}
TOP_NAME, DEEP_NAME = (hashed(soname, data) for soname, data in LIBRARIES.items())
FILES = repaired({"demo/_c.so": module("libtop.so"), "demo/_d.so": module("libm.so.6")}, LIBRARIES)
HOME = "demo_libs/lib"


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


def two(look: BundleReader, files: Mapping[str, bytes | str]) -> list[Bundle]:
    return [look.at(files, name) for name in (NAME, OTHER)]


def planned(
    look: BundleReader,
    bundles: Sequence[Bundle],
    *,
    room: Path | None = None,
    libs: str | None = None,
    edits: int = 9,
) -> PatchPlan:
    request = SplitRequest(smallest=0, libs=libs)
    packages = PackageFinder(Officials("x86_64", indexes=lambda: Indexes(no_index=True)), request)
    return plan_patches(bundles, request, packages=packages, patcher=Patcher(look.stack, room, _left=edits))


def by_path(files: Sequence[PatchedFile]) -> dict[str, tuple[bytes | None, str]]:
    return {file.patch.path: (None if file.data is None else bytes(file.data), file.sha256) for file in files}


def digest(data: bytes | str) -> str:
    assert isinstance(data, bytes)
    return hashlib.sha256(data).hexdigest()


def test_a_file_that_loads_what_moves_has_new_bytes_and_every_other_keeps_its_own(look: BundleReader) -> None:
    bundles = two(look, FILES)
    plan = planned(look, bundles)
    (pool,) = plan.decisions.pools
    assert (plan.owners, plan.libs_folders, plan.uneditable) == ({pool: "demo"}, {pool: HOME}, {})
    assert [*plan.staying] == bundles
    for files in plan.staying.values():
        found = by_path(files)
        assert found.pop("demo/_d.so") == (None, digest(FILES["demo/_d.so"]))
        data, sha256 = found.pop("demo/_c.so")
        assert data
        assert sha256 == digest(data)
        assert Loading.parse(data).outline.rpath == (f"$ORIGIN/../{HOME}",)
        assert not found
    assert by_path(plan.moving[pool]) == {
        f"{HOME}/{name}": (None, digest(FILES[f"demo.libs/{name}"])) for name in (TOP_NAME, DEEP_NAME)
    }
    assert (plan.stubs(bundles[0]), plan.second_stubs(pool)) == ({}, {})


def test_what_a_file_needs_that_cannot_be_edited_stays_in_all_wheels_that_have_it(look: BundleReader) -> None:
    data = FILES["demo/_c.so"]
    assert isinstance(data, bytes)
    bundles = two(look, {**FILES, "demo/_c.so": without_sections(data)})
    plan = planned(look, bundles)
    assert {*plan.uneditable} == {(bundle, "demo/_c.so") for bundle in bundles}
    (why,) = {*plan.uneditable.values()}
    for bundle in bundles:
        fates = plan.decisions.by_bundle[bundle]
        assert {path: (each.kind, each.reason) for path, each in fates.items()} == {
            f"demo.libs/{TOP_NAME}": (DecisionKind.KEEP, f"demo/_c.so cannot be edited: {why}"),
            f"demo.libs/{DEEP_NAME}": (DecisionKind.SHARE, ""),
        }
        found = by_path(plan.staying[bundle])
        assert {path for path, (new, _) in found.items() if new} == {f"demo.libs/{TOP_NAME}"}


@pytest.mark.parametrize(
    ("files", "names", "libs", "message"),
    [
        (
            {f"{HOME}/x.txt": "x"},
            (NAME, OTHER),
            None,
            f"{NAME}: {HOME}/x.txt is where its shared libraries would be",
        ),
        (
            {},
            (NAME.replace("demo", "demo_libs"), OTHER.replace("demo", "demo_libs")),
            "demo",
            f"{NAME.replace('demo', 'demo_libs')}: its shared libraries would be a wheel of its own name",
        ),
        (
            {},
            (NAME, NAME.replace("demo", "other")),
            None,
            f"demo and other have libraries in common, {DEEP_NAME} first",
        ),
    ],
    ids=["a file there", "its own name", "two projects"],
)
def test_a_wheel_of_libraries_that_cannot_be_called_so_is_refused(
    look: BundleReader, files: Mapping[str, str], names: Sequence[str], libs: str | None, message: str
) -> None:
    bundles = [look.at({**FILES, **files}, name) for name in names]
    with pytest.raises(RepackageError, match=f"^{re.escape(message)}; say with --libs what "):
        planned(look, bundles, libs=libs)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("", "demo/_c.so: cannot be written to be relinked"),
        ("const char table[2000000] = {1};", "cannot be unpacked"),
    ],
    ids=["small", "large"],
)
def test_a_file_for_which_there_is_no_room_is_named(look: BundleReader, tmp_path: Path, source: str, what: str) -> None:
    bundles = two(look, repaired({"demo/_c.so": module("libtop.so", source=source)}, LIBRARIES))
    with pytest.raises(VbuildError) as error:
        planned(look, bundles, room=tmp_path / "nowhere")
    assert str(error.value) == f"{NAME}: {what}: No such file or directory"
