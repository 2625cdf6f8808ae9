"""`vbuild split` and whole releases: wheels of other systems and the sdist state what the split ones require."""

import gzip
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.factories import sources
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, release
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.errors import VbuildError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.output_wheels import extended
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split
from vbuild.wheel.metadata import Metadata

pytestmark = needs("gcc", "ldd")

DEEP = library("libdeep.so.2", source="int deep(void) { return 41; }")
FILES: dict[str, bytes | str] = {"demo/_c.so": module("libdeep.so.2")}
LINUX = (NAME, NAME.replace("311", "312"))
MUSL = "demo-1.0-cp311-cp311-musllinux_1_2_x86_64.whl"
OTHERS = ("demo-1.0-cp311-cp311-macosx_11_0_arm64.whl", "demo-1.0-cp311-cp311-win_amd64.whl")
PKG_INFO = "Metadata-Version: 2.2\nName: demo\nVersion: 1.0\nRequires-Dist: numpy\n"
PYPROJECT = '[project]\nname = "demo"\nversion = "1.0"\ndependencies = [\n  "numpy", # why\n]\n[tool.x]\ny = 1\n'


def given(folder: Path, *others: str, pkg_info: str = PKG_INFO, pyproject: str = PYPROJECT) -> Path:
    """A folder with two wheels that share a library, *others*, and the sdist."""
    release(folder, FILES, {"libdeep.so.2": DEEP}, names=LINUX)
    for name in others:
        wheel(folder, name, {"demo/data.txt": "as it was\n" * 99})
    files = {"PKG-INFO": pkg_info, "pyproject.toml": pyproject, "demo/__init__.py": "", "demo.egg-info/PKG-INFO": "no"}
    sources.sdist(folder, files)
    return folder


def thinned(folder: Path, *paths: Path) -> Split:
    request = SplitRequest(smallest=0)
    return split(paths, folder, request=request, indexes=lambda: Indexes(no_index=True))


def requires(path: Path) -> tuple[str, ...]:
    return Metadata.parse(contents(path)["demo-1.0.dist-info/METADATA"].decode()).requires_dist


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name.partition("/")[2]: file.read().decode() for name, file in files.items() if file}


def test_all_files_of_a_release_state_one_thing(tmp_path: Path) -> None:
    fat = given(tmp_path / "fat", *OTHERS, MUSL)
    result = thinned(tmp_path / "thin", fat)
    (lines,) = {requires(one.path) for one in result.wheels if one.path}
    assert len(lines) == 1
    assert lines[0].startswith("demo-libs==1.0;")
    assert lines[0].endswith('; platform_system == "Linux" and platform_machine == "x86_64"')
    sdist = unpacked(tmp_path / "thin" / "demo-1.0.tar.gz")
    assert Metadata.parse(sdist["PKG-INFO"]).requires_dist == ("numpy", *lines)
    assert tomllib.loads(sdist["pyproject.toml"])["project"]["dependencies"] == [*lines, "numpy"]
    assert sdist["demo.egg-info/PKG-INFO"] == "no"
    assert [(one.name, one.requires, one.reason) for one in result.sources] == [("demo-1.0.tar.gz", lines, "")]


def test_only_metadata_and_record_of_other_systems_change(tmp_path: Path) -> None:
    fat = given(tmp_path / "fat", *OTHERS)
    thinned(tmp_path / "thin", fat)
    for name in OTHERS:
        before, after = (
            {one.filename: one for one in ZipFile(folder / name).infolist()} for folder in (fat, tmp_path / "thin")
        )
        assert before.keys() == after.keys()
        changed = {
            path
            for path, one in before.items()
            if (one.CRC, one.compress_size) != (after[path].CRC, after[path].compress_size)
        }
        assert changed == {"demo-1.0.dist-info/METADATA", "demo-1.0.dist-info/RECORD"}


def test_an_empty_wheel_is_there_for_who_brings_the_libraries(tmp_path: Path) -> None:
    """No marker tells musl from glibc: where the libraries do not fit, the requirement has to be met all the same."""
    result = thinned(tmp_path / "thin", given(tmp_path / "fat", *OTHERS, MUSL))
    (empty,) = (one for one in result.companions if one.name.endswith("-any.whl"))
    assert (empty.files, {*empty.wheels}) == ((), {*OTHERS, MUSL, "demo-1.0.tar.gz"})
    linux = [tmp_path / "fat" / name for name in LINUX]
    assert len(thinned(tmp_path / "fewer", *linux).companions) == 1


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"pkg_info": f"{PKG_INFO}Dynamic: Requires-Dist\n"},
            "its requirements are dynamic: they are known when it is built",
        ),
        ({"pkg_info": PKG_INFO.replace("2.2", "2.1")}, "its requirements are dynamic: they are known when it is built"),
        ({"pkg_info": "nothing"}, "its PKG-INFO cannot be read"),
        ({"pyproject": "[build-system]\n"}, "its pyproject.toml has no dependencies in [project] that can be added to"),
    ],
)
def test_an_sdist_that_cannot_state_it_stays_as_it_was(files: dict[str, str], reason: str, tmp_path: Path) -> None:
    fat = given(tmp_path / "fat", **files)
    result = thinned(tmp_path / "thin", fat)
    assert [one.reason for one in result.sources] == [reason]
    assert (tmp_path / "thin" / "demo-1.0.tar.gz").read_bytes() == (fat / "demo-1.0.tar.gz").read_bytes()


def test_an_sdist_of_another_release_is_refused(tmp_path: Path) -> None:
    fat = given(tmp_path / "fat")
    other = sources.sdist(tmp_path, {"PKG-INFO": PKG_INFO}, top="demo-2.0")
    wheels = [fat / name for name in LINUX]
    with pytest.raises(VbuildError, match=r"demo-2\.0\.tar\.gz: none of the wheels is of this release"):
        thinned(tmp_path / "thin", *wheels, other)
    (tmp_path / "demo-1.0.tar.gz").write_bytes(gzip.compress(b"damaged"))
    with pytest.raises(VbuildError, match=r"not a gzipped tar archive, or damaged"):
        thinned(tmp_path / "thin", *wheels, tmp_path / "demo-1.0.tar.gz")
    with pytest.raises(VbuildError, match=r"another output folder|choose another folder"):
        thinned(fat, fat / LINUX[0], fat / "demo-1.0.tar.gz")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[project]\nname = "a"\n', ["b==1"]),
        ('[project]\ndependencies = ["c"]\n', ["b==1", "c"]),
        ('[project]\ndependencies = []\n[tool.x]\ndependencies = ["z"]\n', ["b==1"]),
        ('[project]\ndynamic = ["dependencies"]\n', None),
        ('[tool.x]\ndependencies = ["z"]\n', None),
        ('project = {dependencies = ["c"]}\n', None),
        ("[project\n", None),
    ],
)
def test_dependencies_are_added_where_that_changes_nothing_else(text: str, expected: list[str] | None) -> None:
    new = extended(text, ["b==1"])
    assert (tomllib.loads(new)["project"]["dependencies"] if new else None) == expected


def test_libraries_for_machines_whose_files_are_not_edited_stay_with_their_wheels(tmp_path: Path) -> None:
    files = {"demo.libs/libx-1a2b3c4d.so.1": library("libx-1a2b3c4d.so.1", flags=("-m32", "-nostdlib"))}
    names = ("demo-1.0-cp311-cp311-manylinux_2_17_i686.whl", "demo-1.0-cp312-cp312-manylinux_2_17_i686.whl")
    result = thinned(tmp_path / "thin", *(wheel(tmp_path, name, files) for name in names))
    assert [move.reason for move in result.libraries] == [
        "files for i686 are not edited: they are not 64-bit little-endian ones"
    ]
    assert all(one.is_untouched for one in result.wheels)
