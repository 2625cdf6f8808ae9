"""Published releases split: as small as was promised, told as the files are, the same again, and they work."""

import zipfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from tests.factories.published_wheels import Published, PublishedWheels
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split
from vbuild.verification.install_check import CheckStep, InstallCheck, check

pytestmark = [pytest.mark.nightly, pytest.mark.network]

PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux2014")
NEW = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True, slots=True)
class Release:
    """The wheels of a *project*'s release for some *pythons*, and what splitting is to leave of them, in MB.

    *moved* says what brings libraries afterwards, by the start of their names.
    """

    project: str
    pythons: tuple[str, ...]
    megabytes: float
    moved: tuple[tuple[str, str], ...] = ()
    request: SplitRequest = field(default_factory=SplitRequest)

    def __str__(self) -> str:
        return self.project


TORCHCODEC = Release(
    "torchcodec==0.17.0",
    ("3.10", *NEW),
    22.5,
    (("libnvjpeg-1a359ba7", "nvidia-nvjpeg==13.0.1.86"), ("libavif-e4168294", "torchcodec-libs==0.17.0")),
)
# there is nothing of NVIDIA's in it
PILLOW = Release(
    "pillow==13.0.0", NEW[:3], 11, (("libjpeg-", "pillow-libs==13.0.0"), ("libavif-", "pillow-libs==13.0.0"))
)
MUMAXPLUS = Release(
    "mumaxplus==1.2.2",
    (*NEW, "3.15"),
    30,
    (("libcufft-f3921c41", "nvidia-cufft-cu12==11.2.1.3"), ("libcurand-", "nvidia-curand-cu12==10.3.5.147")),
)
FAISS = Release(
    "faiss-gpu-cu12==1.14.1.post1",
    ("3.10", *NEW[:3]),
    56,
    (("libfaiss-", "faiss-gpu-cu12-libs==1.14.1.post1"), ("libopenblas-", "faiss-gpu-cu12-libs==1.14.1.post1")),
)
# its module ends the process where nothing has imported the package, in the published wheel as well
GENAI = Release("onnxruntime-genai-cuda==0.18.0", NEW, 67, (), SplitRequest(replace=False, share=False, rpath=True))

SLOW = pytest.mark.slow
RELEASES = [TORCHCODEC, PILLOW, *(pytest.param(one, marks=SLOW) for one in (MUMAXPLUS, FAISS, GENAI))]


@dataclass(frozen=True)
class Splitting:
    """A release's *wheels*, and what splitting makes of them in *folder*."""

    release: Release
    wheels: tuple[Path, ...]
    folder: Path

    @cached_property
    def result(self) -> Split:
        return split(self.wheels, self.folder / "thin", request=self.release.request)

    @cached_property
    def checked(self) -> tuple[InstallCheck, ...]:
        """What comes of installing the results; what else they require may have no wheels for a Python to come."""
        return check(self.result.paths, absent=self.result.absent)


class Bench:
    """Splittings, each made once, when it is asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._shelf = PublishedWheels(factory)
        self._folder = factory.mktemp("splittings")
        self._known: dict[str, Splitting] = {}

    def splitting(self, release: Release) -> Splitting:
        """The splitting of *release*."""
        if release.project not in self._known:
            published = (Published(release.project, python=python, platforms=PLATFORMS) for python in release.pythons)
            wheels = tuple(map(self._shelf.wheel, published))
            self._known[release.project] = Splitting(release, wheels, self._folder / release.project)
        return self._known[release.project]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory)


@pytest.fixture
def splitting(bench: Bench, request: pytest.FixtureRequest) -> Splitting:
    return bench.splitting(request.param)


@pytest.mark.parametrize("splitting", RELEASES, indirect=True, ids=str)
def test_a_release_becomes_as_small_as_was_promised(splitting: Splitting) -> None:
    result = splitting.result
    sizes = {path.name: path.stat().st_size for path in (splitting.folder / "thin").iterdir()}
    assert sum(sizes.values()) <= splitting.release.megabytes * 1e6
    assert result.before == sum(path.stat().st_size for path in splitting.wheels)
    assert result.packed == sum(sizes.values())
    told = {wheel.name: wheel.packed for wheel in result.wheels} | {
        made.name: made.packed for made in result.companions
    }
    assert told == sizes


@pytest.mark.parametrize("splitting", RELEASES, indirect=True, ids=str)
def test_what_is_told_of_every_wheel_is_what_is_in_it(splitting: Splitting) -> None:
    result = splitting.result
    fat = {path.name: unpacked(path) for path in splitting.wheels}
    thin = {path.name: unpacked(path) for path in result.paths}
    assert {each.name: each.unpacked_before for each in result.wheels} == fat
    told = {wheel.name: wheel.unpacked for wheel in result.wheels}
    assert told | {made.name: made.unpacked for made in result.companions} == thin
    gone = [each for each in result.libraries if each.kind is not DecisionKind.KEEP]
    for wheel in splitting.wheels:
        names = {each.path for each in gone if wheel.name in each.wheels}
        assert libraries(wheel) - libraries(splitting.folder / "thin" / wheel.name) == names


def unpacked(wheel: Path) -> int:
    """Bytes of what *wheel* installs, but for RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(info.file_size for info in archive.infolist() if not info.filename.endswith(".dist-info/RECORD"))


def libraries(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".so" in name}


@pytest.mark.parametrize("splitting", RELEASES, indirect=True, ids=str)
def test_libraries_come_from_where_they_should(splitting: Splitting) -> None:
    moves = [each for each in splitting.result.libraries if each.kind is not DecisionKind.KEEP]
    for start, target in splitting.release.moved:
        (move,) = (each for each in moves if each.name.startswith(start))
        assert len(move.wheels) == len(splitting.wheels)
        assert (move.target or "").startswith(target)
        wheels = (wheel for wheel in splitting.result.wheels if wheel.name in move.wheels)
        assert all(any(line.startswith(target) for line in wheel.requires) for wheel in wheels)


@pytest.mark.parametrize("splitting", RELEASES, indirect=True, ids=str)
def test_splitting_again_gives_the_same_bytes(splitting: Splitting, tmp_path: Path) -> None:
    request = splitting.release.request
    once = [*splitting.result.paths]
    twice = split(once, tmp_path / "twice", request=request)
    assert all(wheel.is_untouched for wheel in twice.wheels)
    assert not twice.companions
    repeated = split(splitting.wheels, tmp_path / "repeated", request=request)
    expected = {path.name: path.read_bytes() for path in once}
    for result in (twice, repeated):
        assert {path.name: path.read_bytes() for path in result.paths} == expected


@pytest.mark.parametrize("splitting", RELEASES, indirect=True, ids=str)
def test_the_results_can_be_installed_loaded_and_imported(splitting: Splitting) -> None:
    assert {each.wheel for each in splitting.checked} == {wheel.name for wheel in splitting.result.wheels}
    assert [failure for each in splitting.checked for failure in each.failures] == []
    assert all(each.resolved for each in splitting.checked)


@pytest.mark.slow
@pytest.mark.parametrize("splitting", [GENAI], indirect=True, ids=str)
def test_a_module_that_crashes_alone_is_loaded_after_its_package(splitting: Splitting) -> None:
    tried = [each for each in splitting.checked if each.imported]
    assert tried
    for each in tried:
        (module,) = (path for path in each.loaded if path.startswith("onnxruntime_genai/onnxruntime_genai."))
        (note,) = (note.what for note in each.notes if note.step is CheckStep.LOAD)
        assert note.startswith(f"{module}: can be loaded only after `import onnxruntime_genai`: ")
