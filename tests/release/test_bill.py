"""What a bill of materials says of a build: all that pins what it took, and nothing of the machine or of who builds."""

import dataclasses
from pathlib import Path

import pytest
from packaging.version import Version

from tests.factories.wheels import wheel
from vbuild.errors import WheelError
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Debian, Folder, Git, Native, NativeSystem, Sdist, Source
from vbuild.recipe.target import Target
from vbuild.release.builder import making
from vbuild.sbom.model import Material, MaterialRole
from vbuild.sbom.statement import state_each
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin

COMMIT = "a1" * 20
TARGET = Target(label=None, python="/home/me/python", cpu=Cpu.parse("x86-64-v3"), properties=())


def recipe(folder: Path) -> Recipe:
    (folder / "project").mkdir()
    text = 'name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64"]\n'
    (folder / "demo.toml").write_text(text, encoding="utf-8")
    return Recipe.load(folder / "demo.toml")


SOURCES: dict[str, tuple[Source, Material]] = {
    "sdist": (
        Sdist("Demo.Project", Version("1.0+x"), "ab" * 32),
        Material(MaterialRole.SOURCE, "demo", "1.0+x", "pkg:pypi/demo-project@1.0%2Bx", "ab" * 32),
    ),
    "git": (
        Git("https://me:token@git.example:8443/demo.git?key=1#x", COMMIT),
        Material(MaterialRole.SOURCE, "demo", url="https://git.example:8443/demo.git", commit=COMMIT),
    ),
    "git here": (Git("/home/me/demo", COMMIT), Material(MaterialRole.SOURCE, "demo", commit=COMMIT)),
    "git in a file": (Git("file:///home/me/demo", COMMIT), Material(MaterialRole.SOURCE, "demo", commit=COMMIT)),
    "folder": (Folder(Path("/home/me/demo")), Material(MaterialRole.SOURCE, "demo")),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_told_by_what_pins_it_without_what_lets_somebody_in(name: str, tmp_path: Path) -> None:
    source, material = SOURCES[name]
    assert making(dataclasses.replace(recipe(tmp_path), source=source), TARGET).materials == (material,)


def test_native_dependencies_are_those_that_the_build_had(tmp_path: Path) -> None:
    natives = tuple(Native(name, Debian(name, "1.3", "cd" * 32), NativeSystem.CMAKE) for name in ("zlib", "xz"))
    built = making(dataclasses.replace(recipe(tmp_path), natives=natives), TARGET, natives=["zlib"])
    assert built.materials[1:] == (Material(MaterialRole.NATIVE, "zlib", "1.3", "pkg:generic/zlib@1.3", "cd" * 32),)


def test_a_toolkit_is_told_by_its_packages_or_else_by_its_identity(tmp_path: Path) -> None:
    pin = ToolkitPin("nvidia-cuda-nvcc", "12.6.1", "nvidia_cuda_nvcc-12.6.1-py3-none-any.whl", "ef" * 32)
    laid, there = (Toolkit(Dotted(12, 6), Path("/home/me/cuda"), "12" * 32, pins) for pins in ((pin,), ()))
    one = recipe(tmp_path)
    purl = "pkg:pypi/nvidia-cuda-nvcc@12.6.1?file_name=nvidia_cuda_nvcc-12.6.1-py3-none-any.whl"
    assert making(one, TARGET, toolkit=laid).materials[1:] == (
        Material(MaterialRole.TOOLKIT, "CUDA Toolkit", "12.6"),
        Material(MaterialRole.TOOLKIT, "nvidia-cuda-nvcc", "12.6.1", purl, "ef" * 32),
    )
    assert making(one, TARGET, toolkit=there).materials[1:] == (
        Material(MaterialRole.TOOLKIT, "CUDA Toolkit", "12.6", identity="12" * 32),
    )


def test_of_the_environment_flags_are_told_without_paths_and_nothing_else(tmp_path: Path) -> None:
    environment = {
        "CFLAGS": "-O2 -ffile-prefix-map=/home/me=. -march=x86-64-v3 -I/home/me",
        "LDFLAGS": "-L/home/me",
        "TOKEN": "secret",
        "CXX": "g++",
    }
    built = making(recipe(tmp_path), TARGET, environment=environment)
    assert built.settings == (("cpu", "x86-64-v3"), ("flags:CFLAGS", "-O2 -march=x86-64-v3"))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("-DTOKEN=abc -O2", "-DTOKEN=sha256:ba7816bf8f01cfea -O2"),
        ("-D TOKEN=abc", "-D TOKEN=sha256:ba7816bf8f01cfea"),
        ("-Wp,-DTOKEN=abc", "-Wp,-DTOKEN=sha256:ba7816bf8f01cfea"),
        ("'-DTOKEN=a b/c' -O2", "-O2"),
        ("-DTOKEN=abc '", "-DTOKEN=sha256:ba7816bf8f01cfea '"),
        ("-DPLACE=https://me:abc@host/ -O2", "-O2"),
        ("-DNDEBUG -D_GLIBCXX_USE_CXX11_ABI=0", "-DNDEBUG -D_GLIBCXX_USE_CXX11_ABI=0"),
        ("-Wp,-D_FORTIFY_SOURCE=2 -std=c++17", "-Wp,-D_FORTIFY_SOURCE=2 -std=c++17"),
    ],
)
def test_a_macro_is_told_by_a_hash_of_its_value_unless_that_is_a_small_number(
    flags: str, told: str, tmp_path: Path
) -> None:
    built = making(recipe(tmp_path), TARGET, environment={"CFLAGS": flags})
    assert built.settings[1:] == (("flags:CFLAGS", told),)


def test_a_statement_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    made = wheel(tmp_path, "demo-1.0-py3-none-any.whl", {"demo.py": ""})
    place = tmp_path / "demo-1.0-py3-none-any.whl.provenance.json"
    (place / "full").mkdir(parents=True)
    with pytest.raises(WheelError) as refusal:
        state_each([made], inputs=[], verb="slim", asked={})
    assert str(refusal.value) == f"{place}: cannot be written: Is a directory"
    assert {path.name for path in tmp_path.iterdir()} == {made.name, place.name}
