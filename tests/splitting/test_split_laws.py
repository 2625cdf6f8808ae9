"""What holds for every split: the account is what the files show, again is the same, and all of it or nothing."""

import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.cuda_packages import all_packages, calling_libcufft, libcufft, libnvjitlink, serving_packages
from tests.factories.elf import patchelfed, shared_object
from tests.factories.extensions import library, module
from tests.factories.ranges import Serving
from tests.factories.repaired_wheels import NAME, release
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.errors import VbuildError, WheelError
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

OTHER = NAME.replace("311", "312")
PURE = "pure-1.0-py3-none-any.whl"


def _noise(seed: int) -> bytes:
    """A library of 200 KB that deflates badly."""
    bytes_ = ",".join(map(str, random.Random(seed).randbytes(200_000)))
    data = shared_object(f"const unsigned char bytes{seed}[] = {{{bytes_}}};")
    return patchelfed(data, "--set-soname", f"libnoise{seed}.so")


LIBRARIES = {
    "libcufft.so.11": libcufft(),
    "libnvJitLink.so.12": libnvjitlink(),
    "libnoise1.so": _noise(1),
    "libnoise2.so": _noise(2),
    "libidle.so.1": library("libidle.so.1"),
}
FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "from demo import _c\n",
    "demo/_c.so": calling_libcufft("libnoise1.so"),
    "demo/_d.so": module("libnoise2.so"),
}


@pytest.fixture(scope="module")
def cuda_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("cuda_index")
    with serving_packages(folder, *all_packages(folder / "made")) as server:
        yield server


@pytest.fixture(scope="module")
def fat(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two wheels of which much can be taken out, and one without libraries."""
    folder = tmp_path_factory.mktemp("fat")
    return [*release(folder, FILES, LIBRARIES), wheel(folder, PURE, {"pure.py": "x = 1\n"})]


def thinned(cuda_index: Serving, folder: Path | None, wheels: list[Path], **asked: object) -> Split:
    request = SplitRequest(smallest=0, **asked)  # type: ignore[arg-type]
    return split(wheels, folder, request=request, indexes=lambda: cuda_index.indexes)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_bytes_of_the_account_are_what_the_files_show(cuda_index: Serving, fat: list[Path], tmp_path: Path) -> None:
    result = thinned(cuda_index, tmp_path / "thin", fat)
    for account in result.wheels:
        assert account.path
        assert account.before == account.wheel.stat().st_size
        assert account.packed == account.path.stat().st_size
        assert account.unpacked_before == unpacked(account.wheel)
        assert account.unpacked == unpacked(account.path)
    for beside in result.companions:
        assert beside.path
        assert beside.packed == beside.path.stat().st_size
        assert beside.unpacked == unpacked(beside.path)
    assert result.packed == sum(path.stat().st_size for path in (tmp_path / "thin").iterdir())
    assert result.before == sum(path.stat().st_size for path in fat)
    for move in result.libraries:
        infos = []
        for path in fat[:2]:
            with zipfile.ZipFile(path) as archive:
                infos.append(archive.getinfo(move.path))
        assert move.size == sum(info.file_size for info in infos)
        assert move.packed == sum(info.compress_size for info in infos)
        assert move.wheels == (NAME, OTHER)
    assert {move.kind for move in result.libraries} == {DecisionKind.REPLACE, DecisionKind.SHARE, DecisionKind.KEEP}
    assert result.data()["after"] == {"packed_bytes": result.packed}


def unpacked(path: Path) -> int:
    return sum(len(data) for member, data in contents(path).items() if not member.endswith("/RECORD"))


def test_two_runs_give_the_same_bytes_in_any_order(cuda_index: Serving, fat: list[Path], tmp_path: Path) -> None:
    thinned(cuda_index, tmp_path / "one", fat)
    thinned(cuda_index, tmp_path / "two", fat[::-1])
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_members_that_are_not_edited_keep_their_compressed_bytes(
    cuda_index: Serving, fat: list[Path], tmp_path: Path
) -> None:
    thinned(cuda_index, tmp_path / "thin", fat)
    with zipfile.ZipFile(fat[0]) as before, zipfile.ZipFile(tmp_path / "thin" / NAME) as after:
        for path in ("demo/tag.txt", "demo-1.0.dist-info/WHEEL"):
            one, other = before.getinfo(path), after.getinfo(path)
            assert (one.date_time, one.external_attr, one.compress_size) == (
                other.date_time,
                other.external_attr,
                other.compress_size,
            )


def test_the_folder_of_the_wheels_cannot_be_that_of_the_results(cuda_index: Serving, tmp_path: Path) -> None:
    given = [*release(tmp_path, FILES, LIBRARIES), wheel(tmp_path, PURE)]
    before = files(tmp_path)
    with pytest.raises(WheelError, match=f"{PURE}: would overwrite the wheel it is made from; choose another folder$"):
        thinned(cuda_index, tmp_path, given)
    assert files(tmp_path) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", [PURE, NAME, OTHER])
def test_an_error_in_the_middle_leaves_nothing_of_the_untouched_either(
    cuda_index: Serving, fat: list[Path], tmp_path: Path, which: str
) -> None:
    (tmp_path / "thin" / which).mkdir(parents=True)
    with pytest.raises(VbuildError) as refused:
        thinned(cuda_index, tmp_path / "thin", fat)
    assert str(refused.value) == f"{tmp_path}/thin/{which}: cannot be written: Is a directory"
    assert [path.name for path in (tmp_path / "thin").iterdir()] == [which]


@pytest.mark.parametrize("where", ["demo/__init__.py", "pure.py"])
def test_a_member_that_is_damaged_is_found_and_nothing_is_left(
    cuda_index: Serving, fat: list[Path], tmp_path: Path, where: str
) -> None:
    given = []
    for path in fat:
        data = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            if where in archive.namelist():
                start = archive.getinfo(where).header_offset + 30 + len(where)
                data[start : start + 2] = b"\xff\xff"
        (tmp_path / path.name).write_bytes(data)
        given.append(tmp_path / path.name)
    with pytest.raises(VbuildError, match=where):
        thinned(cuda_index, tmp_path / "thin", given, rpath=True)
    assert not list(tmp_path.glob("thin/*"))
