"""Official wheels on an index: the right one is found, little of it is read, and nothing is believed without proof."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.factories.official_wheels import (
    ARM,
    FFT,
    LINUX,
    PATH,
    bundled_copy,
    cufft,
    digest,
    name_of,
    official_wheel,
    officials_of,
    origin_of,
)
from tests.factories.ranges import serving, simple_index
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.errors import FetchError, RepackageError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.official import Officials, Provenance

pytestmark = needs("gcc")


def test_the_newest_release_for_the_machine_is_found(tmp_path: Path) -> None:
    wheels = [
        official_wheel(tmp_path / "made", version="11.0.1"),
        official_wheel(tmp_path / "made", version="11.2.1.3", requires=["nvidia-nvjitlink-cu12", 'x; extra == "y"']),
        official_wheel(tmp_path / "made", version="11.3.0", platform=ARM),
        official_wheel(tmp_path / "made", version="11.3.1", platform="win_amd64"),
        official_wheel(tmp_path / "made", version="11.4.0rc1"),
        (yanked := official_wheel(tmp_path / "made", version="11.5.0")),
    ]
    index = simple_index(tmp_path / "index", *wheels, yanked=(yanked.name,))
    with serving(index) as server:
        officials = Officials("x86_64", indexes=lambda: server.indexes, store=tmp_path / "store")
        found = officials.wheel(FFT, SpecifierSet())
        assert (found.project, found.version, found.file) == (FFT, "11.2.1.3", wheels[1].name)
        assert found.requires == ("nvidia-nvjitlink-cu12",)
        assert found.folders == ("nvidia/cufft/lib",)
        (library,) = found.libraries
        assert (library.path, library.soname) == (PATH, "libcufft.so.11")
        assert (library.sha256, library.size) == (digest(cufft(1)), len(cufft(1)))
        for specifier, version in ((">=10", "11.2.1.3"), ("==11.4.0rc1", "11.4.0rc1"), ("==11.5.0", "11.5.0")):
            assert officials.wheel("NVIDIA.cufft_cu12", SpecifierSet(specifier)).version == version
        assert officials.wheel(FFT, SpecifierSet("<11.1")).version == "11.0.1"
        assert (
            Officials("aarch64", indexes=lambda: server.indexes, store=tmp_path / "store")
            .wheel(FFT, SpecifierSet())
            .file.endswith(f"{ARM}.whl")
        )


def test_files_that_are_no_wheels_are_passed_over(tmp_path: Path) -> None:
    made = official_wheel(tmp_path / "made")
    odd = [tmp_path / "made" / name for name in ("nvidia_cufft_cu12-12.0.tar.gz", "nvidia_cufft_cu12-12.0-a-b-!.whl")]
    for path in odd:
        path.write_bytes(b"")
    with officials_of(tmp_path, made, *odd) as (officials, _):
        assert officials.wheel(FFT, SpecifierSet()).version == "11.2.1.3"


def test_what_has_no_library_for_the_machine_is_refused(tmp_path: Path) -> None:
    wheels = [
        official_wheel(tmp_path / "made"),
        official_wheel(tmp_path / "made", "nvidia-cufft-cu13", "0.0.0a0", {}, platform="any"),
        official_wheel(tmp_path / "made", "nvidia-cuda-cccl-cu12", "12.4", {"nvidia/cuda_cccl/include/a.h": "x"}),
        official_wheel(tmp_path / "made", "nvidia-cuda-nvml-dev-cu12", "12.4", {"a/lib/stubs/libnvml.so": "x"}),
    ]
    machine = "for Linux on x86_64"
    keeps = "nvidia_cufft_cu13-0.0.0a0-py3-none-any.whl only keeps the name"
    messages = {
        (FFT, ">=12"): f"{FFT}>=12: no such release {machine}; expected one of 11.2.1.3",
        ("nvidia-cufft-cu13", ""): f"nvidia-cufft-cu13: no wheel {machine}; {keeps}, expected the name of the package "
        "that has the library",
        ("nvidia-cuda-cccl-cu12", ""): f"nvidia-cuda-cccl-cu12==12.4: no shared library in {wheels[2].name}; "
        "expected a release with one",
        ("nvidia-cuda-nvml-dev-cu12", ""): f"nvidia-cuda-nvml-dev-cu12==12.4: no shared library in {wheels[3].name}; "
        "expected a release with one",
        ("nvidia-nothing", ""): "nvidia-nothing: no package index has such a project",
    }
    with officials_of(tmp_path, *wheels) as (officials, _):
        for (project, specifier), message in messages.items():
            with pytest.raises(RepackageError) as refused:
                officials.wheel(project, SpecifierSet(specifier))
            assert str(refused.value) == message


def test_an_index_is_asked_once_and_a_wheel_that_is_known_not_at_all(tmp_path: Path) -> None:
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, server):
        with ThreadPoolExecutor(8) as threads:
            found = set(threads.map(lambda _: officials.wheel(FFT, SpecifierSet()), range(16)))
        assert len(found) == 1
        assert len([path for path, _ in server.asked if path.endswith("/")]) == 1
        assert len(server.ranges) == 1
        again = Officials("x86_64", indexes=lambda: server.indexes, store=tmp_path / "store")
        assert {again.wheel(FFT, SpecifierSet())} == found
        assert len(server.ranges) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "kept",
    ["", "{", "[]", "{}", '{"file": "x", "requires": [], "libraries": []}', "torn", "no hash"],
    ids=["empty", "no JSON", "a list", "no keys", "foreign", "torn", "no hash"],
)
def test_a_torn_or_foreign_file_in_the_cache_is_asked_again(tmp_path: Path, kept: str) -> None:
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, server):
        found = officials.wheel(FFT, SpecifierSet())
        (file,) = (tmp_path / "store").iterdir()
        sound = file.read_text()
        damaged = {"torn": sound[:-9], "no hash": sound.replace(found.libraries[0].sha256, "12")}.get(kept, kept)
        file.write_text(damaged)
        again = Officials("x86_64", indexes=lambda: server.indexes, store=tmp_path / "store")
        assert again.wheel(FFT, SpecifierSet()) == found
        assert len(server.ranges) == 2
        assert json.loads(file.read_text()) == json.loads(sound)
        assert list((tmp_path / "store").iterdir()) == [file]


def test_what_a_library_requires_is_found_to_the_end(tmp_path: Path) -> None:
    def made(project: str, *requires: str, version: str = "12.4.5", library: bool = True) -> Path:
        files: dict[str, bytes | str] = {f"nvidia/{project}/lib/lib{project}.so.12": b"x"} if library else {"a": "b"}
        return official_wheel(tmp_path / "made", project, version, files, requires=requires)

    solver = made(
        "nvidia-cusolver-cu12",
        "nvidia-cublas-cu12",
        "nvidia-cusparse-cu12 (>=12)",
        "setuptools",
        "wheel",
        "numpy",
        'nvidia-nccl-cu12; extra == "nccl"',
        'nvidia-cudnn-cu12; sys_platform == "win32"',
        'nvidia-npp-cu12; platform_machine == "aarch64"',
    )
    others = [
        made("nvidia-cublas-cu12", "nvidia-cusolver-cu12", version="12.3"),  # in a circle
        made("nvidia-cublas-cu12", "nvidia-cusolver-cu12"),
        made("nvidia-cusparse-cu12", "nvidia-nvjitlink-cu12", "nvidia-cuda-cccl-cu12", "cuda-toolkit[nvrtc]==12.*"),
        made("nvidia-cusparse-cu12", version="11.0"),
        made("nvidia-nvjitlink-cu12", "cuda-toolkit[npp]==14.*"),
        made("nvidia-cuda-cccl-cu12", library=False),
        made("nvidia-cuda-nvrtc-cu12", version="12.4.1"),
        made("nvidia-cuda-nvrtc-cu12", version="12.9.1"),
        _toolkit(tmp_path / "made", "12.4.1", "nvidia-cuda-nvrtc-cu12==12.4.1.*; extra == 'nvrtc'"),
        *(made(f"nvidia-{name}-cu12") for name in ("nccl", "cudnn", "npp")),
    ]
    with officials_of(tmp_path, solver, *others) as (officials, server):
        found = officials.closure(officials.wheel("nvidia-cusolver-cu12", SpecifierSet()))
        assert [f"{one.project}=={one.version}" for one in found] == [
            "nvidia-cusolver-cu12==12.4.5",
            "nvidia-cublas-cu12==12.4.5",
            "nvidia-cusparse-cu12==12.4.5",
            "nvidia-nvjitlink-cu12==12.4.5",
            "nvidia-cuda-nvrtc-cu12==12.4.1",
        ]
        assert not [path for path, _ in server.asked if "setuptools" in path or "numpy" in path]


def _toolkit(folder: Path, version: str, *requires: str) -> Path:
    return official_wheel(
        folder, "cuda-toolkit", version, {"cuda_toolkit/__init__.py": ""}, platform="any", requires=requires
    )


def test_the_version_that_a_toolkit_pins_is_found(tmp_path: Path) -> None:
    both = "(sys_platform == 'win32' or sys_platform == 'linux') and extra == "
    wheels = [
        _toolkit(tmp_path / "made", "13.2.0", "nvidia-cufft==12.1.0.*; extra == 'cufft'"),
        _toolkit(tmp_path / "made", "12.6.0", f"nvidia-cufft-cu12==11.2.1.3.*; {both}'cufft'"),
        _toolkit(tmp_path / "made", "12.6.3", f"nvidia-cufft-cu12==11.3.0.4.*; {both}'cufft'"),
        _toolkit(
            tmp_path / "made",
            "12.4.1",
            f"nvidia-cufft-cu12==11.2.1.3.*; {both}'all'",
            f"nvidia-cufft-cu12==11.2.1.3.*; {both}'cufft'",
            "not a requirement at all",
        ),
        _toolkit(tmp_path / "made", "12.5.0rc1", "nvidia-cufft-cu12==11.2.1.3.*; extra == 'cufft'"),
    ]
    with officials_of(tmp_path, *wheels) as (officials, _):
        assert officials.pinned("12.4", FFT) == SpecifierSet("==11.2.1.3.*")
        assert officials.pinned("12", FFT) == SpecifierSet("==11.3.0.4.*")
        assert officials.pinned("12.4", "nvidia-nccl-cu12") == SpecifierSet()
        with pytest.raises(RepackageError) as refused:
            officials.pinned("11.8", FFT)
        assert str(refused.value) == (
            "CUDA 11.8: no release of cuda-toolkit for it; expected a version that the package index has"
        )


@pytest.mark.nightly
def test_hashes_that_are_no_sha256_are_passed_over(tmp_path: Path) -> None:
    name = f"nvidia_cufft_cu12-11.2.1.3-py3-none-{LINUX}.whl"
    for number, stated in enumerate(("sha256=short", "md5=" + "a" * 43, "", "sha256=" + "=" * 43)):
        made = wheel(tmp_path / str(number), name, {PATH: b"x"}, record=f"{PATH},{stated},1\n")
        with (
            officials_of(tmp_path / str(number), made) as (officials, _),
            pytest.raises(RepackageError, match=r"no shared library in"),
        ):
            officials.wheel(FFT, SpecifierSet())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mood", ["broken", "breaking"])
def test_a_server_that_fails_is_one_line(tmp_path: Path, mood: str) -> None:
    with officials_of(tmp_path, official_wheel(tmp_path / "made"), mood=mood) as (officials, server):
        for ask in (
            lambda: officials.wheel(FFT, SpecifierSet()),
            lambda: origin_of(officials, name_of(cufft(1)), bundled_copy(cufft(1))),
        ):
            with pytest.raises(FetchError) as refused:
                ask()
            assert str(refused.value).startswith(f"{server.url}/{FFT}/nvidia_cufft")
            assert "\n" not in str(refused.value)


def test_a_server_that_sends_files_whole_will_do(tmp_path: Path) -> None:
    with officials_of(tmp_path, official_wheel(tmp_path / "made"), mood="whole") as (officials, _):
        assert isinstance(origin_of(officials, name_of(cufft(1)), bundled_copy(cufft(1))), Provenance)


def test_an_index_that_cannot_be_asked_is_one_line_and_not_remembered(tmp_path: Path) -> None:
    index = simple_index(tmp_path / "index", official_wheel(tmp_path / "made"))
    places = [Indexes(index_url="http://127.0.0.1:9/simple"), Indexes(index_url=index.as_uri())]
    with pytest.raises(FetchError, match=rf"^{FFT}: http://127\.0\.0\.1:9/simple: "):
        Officials("x86_64", indexes=lambda: places[0], store=tmp_path / "store").wheel(FFT, SpecifierSet())
    failing = [FetchError("not now")]

    def indexes() -> Indexes:
        if failing:
            raise failing.pop()
        return places[1]

    officials = Officials("x86_64", indexes=indexes, store=tmp_path / "store")
    with pytest.raises(FetchError, match=r"^not now$"):
        officials.wheel(FFT, SpecifierSet())
    assert officials.wheel(FFT, SpecifierSet()).version == "11.2.1.3"
