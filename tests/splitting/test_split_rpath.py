"""`vbuild split --rpath`: libraries that a wheel needs and does not bring are found by RPATH, and required."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.factories.cuda_packages import all_packages, calling_libcufft, library_named, package_wheel, serving_packages
from tests.factories.deflate_streams import pieces_of, with_words
from tests.factories.elf import without_sections
from tests.factories.extensions import module
from tests.factories.official_wheels import FFT
from tests.factories.ranges import Serving
from tests.factories.repaired_wheels import NAME
from tests.factories.site_packages import loader_complaints, program_output, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.elf.read import Loading
from vbuild.errors import RepackageError
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

MARKER = 'platform_system == "Linux" and platform_machine == "x86_64"'
CUFFT = "$ORIGIN/../nvidia/cufft/lib"
LINK = "$ORIGIN/../nvidia/nvjitlink/lib"
RANDOM = ("nvidia-curand-cu11", "nvidia-curand-cu12", "nvidia-curand")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("made")
    random = [
        package_wheel(
            folder, project, f"10.3.{number}", {"libcurand.so.10": library_named("libcurand.so.10")}, place="curand"
        )
        for number, project in enumerate(RANDOM)
    ]
    return [*all_packages(folder), *random]


@pytest.fixture(scope="module")
def cuda_index(made: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving_packages(tmp_path_factory.mktemp("cuda_index"), *made) as server:
        yield server


def led(
    cuda_index: Serving,
    folder: Path,
    extension: bytes,
    *,
    metadata: str = "",
    name: str = NAME,
    files: Mapping[str, bytes] | None = None,
    **asked: object,
) -> Split:
    """What becomes of a wheel with *extension* as its module demo/_c, RPATHs only."""
    whole: dict[str, bytes | str] = {"demo/__init__.py": "from demo import _c\n", "demo/_c.so": extension}
    given = wheel(folder, name, {**whole, **(files or {})}, metadata=metadata)
    request = SplitRequest(**{"replace": False, "share": False, "rpath": True, **asked})  # type: ignore[arg-type]
    return split([given], folder / "led", request=request, indexes=lambda: cuda_index.indexes)


def rpath(result: Split, path: str = "demo/_c.so") -> tuple[str, ...]:
    (written,) = result.paths
    outline = Loading.parse(contents(written)[path]).outline
    assert outline.runpath == ()
    return outline.rpath


def test_a_library_that_is_not_bundled_is_found_and_required(
    cuda_index: Serving, made: list[Path], tmp_path: Path
) -> None:
    result = led(cuda_index, tmp_path, calling_libcufft())
    assert rpath(result) == (CUFFT, LINK)
    assert result.wheels[0].requires == (f"cuda-toolkit[cufft]==12.*; {MARKER}",)
    installed = site_packages(tmp_path / "site", *result.paths, *made[:2])
    assert loader_complaints(installed) == []
    program = "import ctypes, demo; print(ctypes.CDLL(demo._c.__file__).answer())"
    assert program_output(installed, program) == "7"


def test_what_stays_of_a_large_library_is_copied_as_it_is_compressed(cuda_index: Serving, tmp_path: Path) -> None:
    large = with_words(calling_libcufft(), tmp_path)
    result = led(cuda_index, tmp_path, large)
    assert rpath(result) == (CUFFT, LINK)
    (written,) = result.paths
    assert contents(written)["demo/_c.so"].find(large[-4_000_000:-1_000_000]) > 0
    pieces, after = pieces_of(tmp_path / NAME, "demo/_c.so"), written.read_bytes()
    assert len(pieces) > 8
    assert sum(piece in after for piece in pieces) >= len(pieces) - 1  # one may have what was edited


ASKED: Mapping[str, tuple[dict[str, object], str]] = {
    "--cuda 12": ({"cuda": (12,)}, "cuda-toolkit[cufft]==12.*"),
    "--cuda 12.6": ({"cuda": (12, 6)}, "cuda-toolkit[cufft]==12.6.*"),
}


@pytest.mark.parametrize("what", ASKED)
def test_the_version_is_what_is_asked_for(cuda_index: Serving, tmp_path: Path, what: str) -> None:
    asked, line = ASKED[what]
    assert led(cuda_index, tmp_path, calling_libcufft(), **asked).wheels[0].requires == (  # type: ignore[arg-type]
        f"{line}; {MARKER}",
    )


@pytest.mark.parametrize("line", [f"{FFT}==11.2.1.3", f"{FFT}>=11", "cuda-toolkit[cufft]==12.4.*"])
def test_what_is_required_already_is_enough(cuda_index: Serving, tmp_path: Path, line: str) -> None:
    result = led(cuda_index, tmp_path, calling_libcufft(), metadata=f"Requires-Dist: {line}\n")
    assert result.wheels[0].requires == ()
    metadata = contents(result.paths[0])["demo-1.0.dist-info/METADATA"].decode()
    assert metadata.count("Requires-Dist") == 1
    assert rpath(result) == (CUFFT, LINK)


DEAD: Mapping[str, tuple[str, tuple[str, ...], list[str]]] = {
    "of the build machine": (
        "/usr/local/cuda/lib64:$ORIGIN/../nvidia/cufft/lib",
        (CUFFT, LINK),
        ["/usr/local/cuda/lib64: a folder of the machine it was built on"],
    ),
    "relative": (
        "lib:.",
        (CUFFT, LINK),
        [f"{entry}: counts from the folder that a program is started in" for entry in ("lib", ".")],
    ),
    "of its own": ("$ORIGIN:$ORIGIN/../other/lib", ("$ORIGIN", "$ORIGIN/../other/lib", CUFFT, LINK), []),
}


@pytest.mark.parametrize("kind", ["rpath_", "runpath"])
@pytest.mark.parametrize("what", DEAD)
def test_rpaths_that_lead_nowhere_elsewhere_go_and_are_told(
    cuda_index: Serving, tmp_path: Path, what: str, kind: str
) -> None:
    before, after, told = DEAD[what]
    result = led(cuda_index, tmp_path, calling_libcufft(**{kind: before}))
    assert rpath(result) == after
    assert [*result.wheels[0].edited[0].removed] == told


def test_a_soname_of_several_majors_is_refused_with_the_way_out(cuda_index: Serving, tmp_path: Path) -> None:
    with pytest.raises(RepackageError) as refused:
        led(cuda_index, tmp_path, module("libcurand.so.10"))
    assert str(refused.value) == (
        f"{NAME}: needs libcurand.so.10, which CUDA 11 and 12 and 13 have; say which one with --cuda"
    )
    assert not (tmp_path / "led").exists()


TOLD: Mapping[str, tuple[dict[str, object], str]] = {
    "the option": ({"cuda": (11,)}, "nvidia-curand-cu11<11,>=10.3.0"),
    "another library": ({"extension": calling_libcufft("libcurand.so.10")}, "cuda-toolkit[cufft,curand]==12.*"),
    "a requirement": ({"metadata": "Requires-Dist: cupy-cuda12x-cu12\n"}, "cuda-toolkit[curand]==12.*"),
    "the name of the project": ({"name": NAME.replace("demo", "demo_cu11")}, "nvidia-curand-cu11<11,>=10.3.0"),
}


@pytest.mark.parametrize("by", TOLD)
def test_the_major_may_be_told(cuda_index: Serving, tmp_path: Path, by: str) -> None:
    given, line = TOLD[by]
    extension = given.get("extension", module("libcurand.so.10"))
    rest = {name: value for name, value in given.items() if name != "extension"}
    result = led(cuda_index, tmp_path, extension, **rest)  # type: ignore[arg-type]
    assert result.wheels[0].requires == (f"{line}; {MARKER}",)


def test_libraries_of_the_driver_and_unknown_ones_are_not_looked_for(cuda_index: Serving, tmp_path: Path) -> None:
    result = led(cuda_index, tmp_path, module("libcuda.so.1", "libnobody.so.3"))
    assert result.wheels[0].is_untouched
    assert result.absent == ("libnobody.so.3",)


def test_a_file_that_cannot_be_edited_is_left_and_named(cuda_index: Serving, tmp_path: Path) -> None:
    result = led(cuda_index, tmp_path, without_sections(calling_libcufft()))
    (warning,) = result.wheels[0].warnings
    assert warning == (
        "demo/_c.so: left as it was, because it cannot be edited: no section headers: expected some, by which "
        "patchelf finds the tables"
    )
    assert result.wheels[0].requires == ()
    assert result.wheels[0].is_untouched


def test_a_toolkit_that_does_not_exist_is_refused(cuda_index: Serving, tmp_path: Path) -> None:
    with pytest.raises(RepackageError) as refused:
        led(cuda_index, tmp_path, calling_libcufft(), cuda=(12, 9))
    assert str(refused.value) == (
        f"{NAME}: CUDA 12.9: no release of cuda-toolkit for it; expected a version that the package index has"
    )


@pytest.mark.nightly
def test_a_release_without_the_library_is_refused(tmp_path: Path) -> None:
    made = package_wheel(
        tmp_path / "made", FFT, "11.0", {"libcufft.so.10": library_named("libcufft.so.10")}, place="cufft"
    )
    with serving_packages(tmp_path, made) as server, pytest.raises(RepackageError) as refused:
        led(server, tmp_path, calling_libcufft())
    assert str(refused.value) == (
        f"{NAME}: needs libcufft.so.11, which {FFT}==11.0 does not have; expected another release of it to be "
        "required, or --cuda VERSION"
    )
