"""What published wheels taught: names in documentation, several CUDAs in one wheel, libraries side by side."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.cuda_packages import all_packages, calling_libcufft, library_named, package_wheel, serving_packages
from tests.factories.extensions import library, module
from tests.factories.official_wheels import FFT
from tests.factories.ranges import Serving
from tests.factories.repaired_wheels import NAME, release
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.elf.catalogue import is_official
from vbuild.elf.read import Loading
from vbuild.errors import RepackageError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

RPATHS = SplitRequest(replace=False, share=False, rpath=True)
TOP = library("libtop.so.1")


@pytest.fixture(scope="module")
def cuda_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("made")
    newer = package_wheel(
        folder, "nvidia-cufft", "12.0.0.61", {"libcufft.so.12": library_named("libcufft.so.12")}, place="cu13"
    )
    with serving_packages(tmp_path_factory.mktemp("cuda_index"), *all_packages(folder), newer) as server:
        yield server


def rpath(result: Split, path: str) -> tuple[str, ...]:
    return Loading.parse(contents(result.paths[0])[path]).outline.rpath


CODE = {
    "in a comment": ("# the libraries are in demo.libs\n", True),
    "in a text of several lines": ('"""Where they are:\n\n``site-packages/demo.libs/`` on Linux.\n"""\n', True),
    "in a string": ("import os\nFOLDER = os.path.join('..', 'demo.libs')\n", False),
    "in what is no Python of today": ("print 'demo.libs'\n", False),
}


@pytest.mark.parametrize("where", CODE)
def test_a_folder_that_only_documentation_names_can_go(tmp_path: Path, where: str) -> None:
    source, goes = CODE[where]
    files: dict[str, bytes | str] = {"demo/about.py": source, "demo/_c.so": module("libtop.so.1")}
    fat = release(tmp_path, files, {"libtop.so.1": TOP})
    request = SplitRequest(smallest=0)
    result = split(fat, tmp_path / "thin", request=request, indexes=lambda: Indexes(no_index=True))
    why = "a stub stays, because demo/about.py names it, and may open it by its path"
    assert {move.reason for move in result.libraries} == {"" if goes else why}


def test_official_wheels_are_left_alone(cuda_index: Serving, tmp_path: Path) -> None:
    made = package_wheel(tmp_path, FFT, "11.2.1.3", {"libcufft.so.11": calling_libcufft()}, place="cufft")
    result = split([made], tmp_path / "led", request=RPATHS, indexes=lambda: cuda_index.indexes)
    assert [one.is_untouched for one in result.wheels] == [True]
    assert result.paths[0].read_bytes() == made.read_bytes()
    assert [is_official(project) for project in (FFT, "nvidia-cufft", "cufft", "torch")] == [True, True, False, False]


def several(folder: Path) -> Path:
    """A wheel with a module for each of two CUDAs."""
    return wheel(
        folder, NAME, {"demo/_12.so": calling_libcufft("libnvJitLink.so.12"), "demo/_13.so": module("libcufft.so.12")}
    )


def test_a_wheel_for_several_cudas_asks_which_one_to_require(cuda_index: Serving, tmp_path: Path) -> None:
    with pytest.raises(RepackageError) as refused:
        split([several(tmp_path)], tmp_path / "led", request=RPATHS, indexes=lambda: cuda_index.indexes)
    assert str(refused.value) == (
        f"{NAME}: needs libraries of CUDA 12 and 13; say with --cuda which of them to require"
    )
    assert not (tmp_path / "led").exists()


@pytest.mark.parametrize(
    ("cuda", "line"),
    [
        ((12,), "cuda-toolkit[cufft,nvjitlink]==12.*"),
        ((12, 4), "cuda-toolkit[cufft,nvjitlink]==12.4.*"),
        ((13,), "cuda-toolkit[cufft]==13.*"),
    ],
    ids=str,
)
def test_a_wheel_for_several_cudas_is_led_to_all_and_requires_one(
    cuda_index: Serving, tmp_path: Path, cuda: tuple[int, ...], line: str
) -> None:
    request = SplitRequest(replace=False, share=False, rpath=True, cuda=cuda)
    result = split([several(tmp_path)], tmp_path / "led", request=request, indexes=lambda: cuda_index.indexes)
    assert [one.partition(";")[0] for one in result.wheels[0].requires] == [line]
    assert rpath(result, "demo/_12.so") == ("$ORIGIN/../nvidia/cufft/lib", "$ORIGIN/../nvidia/nvjitlink/lib")
    assert rpath(result, "demo/_13.so") == ("$ORIGIN/../nvidia/cu13/lib",)
    others = ("libcufft.so.12",) if cuda[0] == 12 else ("libcufft.so.11", "libnvJitLink.so.12")
    assert result.absent == others


@pytest.mark.parametrize(("metadata", "absent"), [("", ("libc10.so",)), ("Requires-Dist: torch\n", ())], ids=bool)
def test_a_framework_that_is_not_required_may_be_absent(
    cuda_index: Serving, tmp_path: Path, metadata: str, absent: tuple[str, ...]
) -> None:
    fat = wheel(tmp_path, NAME, {"demo/_c.so": module("libc10.so")}, metadata=metadata)
    result = split([fat], tmp_path / "led", request=RPATHS, indexes=lambda: cuda_index.indexes)
    assert rpath(result, "demo/_c.so") == ("$ORIGIN/../torch/lib",)
    assert result.absent == absent
