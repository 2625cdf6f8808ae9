"""The words in which each backend is told the request: values, without a compiler or a toolkit."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.plans import GCC
from vbuild.build.plan import BuildBackend, CudaPlan, HostChoice, cuda_plan, host_of
from vbuild.config.table import Settings
from vbuild.errors import BuildError
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.compiling import Archs, Compress, CudaBuild, CudaSettings, FileRule, ToolkitSpec
from vbuild.toolchain.compilers import CompilerFamily, Compilers

HOME = Path("/opt/cuda")


def made(
    archs: str = "75,90a,120+ptx",
    backend: BuildBackend = BuildBackend.SETUPTOOLS,
    *,
    settings: CudaSettings | None = None,
    toolkit: str = "13.0",
    compilers: Compilers = GCC,
    config_settings: Settings = (),
    environment: Mapping[str, str] | None = None,
) -> CudaPlan:
    return cuda_plan(
        CudaBuild(ToolkitSpec(Dotted.parse(toolkit)), GpuList.parse(archs)),
        settings or CudaSettings(),
        home=HOME,
        backend=backend,
        compilers=compilers,
        environment=environment or {},
        config_settings=config_settings,
    )


@pytest.mark.parametrize("backend", [BuildBackend.MESON_PYTHON, BuildBackend.MATURIN])
def test_others_are_told_by_the_wrapper_alone(backend: BuildBackend) -> None:
    found = made(backend=backend)
    assert found.config_settings == ()
    assert not {"CUFLAGS", "CUDAFLAGS", "NVCC_APPEND_FLAGS", "CMAKE_ARGS"} & dict(found.environment).keys()


@pytest.mark.parametrize(
    ("config_settings", "environment"),
    [
        ((("cmake.define.CMAKE_CUDA_ARCHITECTURES", "80"),), {}),
        ((("cmake.args", ("-DX=1", "-DCMAKE_CUDA_ARCHITECTURES=80")),), {}),
        ((), {"CMAKE_ARGS": "-DCMAKE_CUDA_ARCHITECTURES=80"}),
        ((), {"SKBUILD_CMAKE_DEFINE": "CMAKE_CUDA_ARCHITECTURES=80"}),
    ],
    ids=str,
)
def test_a_list_of_the_recipes_own_stays(config_settings: Settings, environment: dict[str, str]) -> None:
    for backend in (BuildBackend.SCIKIT_BUILD_CORE, BuildBackend.SETUPTOOLS):
        found = made(backend=backend, config_settings=config_settings, environment=environment)
        assert found.config_settings == ()
        assert "CMAKE_ARGS" not in dict(found.environment)


# request, for CMake, for torch, the lists that stand for it
WORDS = [
    ("80,90", "80-real;90-real", "8.0;9.0", ()),
    ("90,90a", "90-real;90a-real", "9.0;9.0a", ()),
    ("90-virtual", "90-virtual", "9.0+PTX", (("sm_90", "compute_90"),)),
    ("80,90+ptx", "80-real;90-real;90-virtual", "8.0;9.0+PTX", ()),
    ("100f,120", "100-real;120-real", "10.0;12.0", (("sm_100", "sm_120"),)),
    ("100,100f", "100-real", "10.0", (("sm_100",),)),
    ("80,88", "80-real;88-real", "8.0", (("sm_80",),)),
    ("107f", "107-real", "10.7", (("sm_107",),)),
]


@pytest.mark.parametrize(("archs", "cmake", "torch", "aliases"), WORDS, ids=[word[0] for word in WORDS])
def test_a_tool_without_the_words_gets_the_nearest_and_they_stand_for_the_request(
    archs: str, cmake: str, torch: str, aliases: tuple[tuple[str, ...], ...]
) -> None:
    found = made(archs)
    environment = dict(found.environment)
    assert (environment["CUDAARCHS"], environment["TORCH_CUDA_ARCH_LIST"]) == (cmake, torch)
    assert found.rules.aliases == aliases


COMPRESSION = {
    (Compress.DEFAULT, "13.0"): (),
    (Compress.NONE, "13.0"): ("--compress-mode=none",),
    (Compress.SPEED, "12.8"): ("--compress-mode=speed",),
    (Compress.SIZE, "12.8"): ("--compress-mode=size",),
    (Compress.NONE, "12.6"): ("--no-compress",),
}


@pytest.mark.parametrize(("mode", "toolkit"), COMPRESSION)
def test_compression_in_the_words_of_the_toolkit(mode: Compress, toolkit: str) -> None:
    found = made("80", settings=CudaSettings(compress=mode, lineinfo=True), toolkit=toolkit)
    assert found.rules.append == (*COMPRESSION[mode, toolkit], "-lineinfo")


def test_the_wrappers_rules_are_the_recipes() -> None:
    files = (FileRule("*_sm90.cu", GpuList.parse("90a")),)
    rules = made("80,90", settings=CudaSettings(archs=Archs.REPLACE, files=files)).rules
    assert rules.data() == {
        "nvcc": "/opt/cuda/bin/nvcc",
        "archs": "sm_80,sm_90",
        "mode": "replace",
        "files": {"*_sm90.cu": "sm_90a"},
        "aliases": (),
        "append": (),
        "host": "",
        "seeds": True,
    }


def test_nvcc_takes_gcc_by_itself_and_has_to_be_told_of_others() -> None:
    programs = (("cc", ("/usr/bin/cc",)), ("clang", ("/usr/bin/clang",)), ("g++-11", ("/usr/bin/g++-11",)))
    clang = replace(GCC, family=CompilerFamily.CLANG, c="clang -pthread", cxx="clang++ -pthread", programs=programs)
    assert made().rules.host == ""
    assert made(compilers=clang).rules.host == "clang++"
    assert made(compilers=replace(clang, c="cc", cxx="c++")).rules.host == "c++"
    assert made(compilers=replace(GCC, c="cc")).rules.host == ""
    assert made(compilers=replace(GCC, c="gcc-11", cxx="g++-11")).rules.host == "g++-11"
    assert made(compilers=replace(clang, cxx=None)).rules.host == ""


def compilers_of(folder: Path) -> dict[str, str]:
    """An environment whose PATH has a gcc 13 and a clang 19, as their macros have it, and what is neither."""
    macros = {
        "g++-13": "__GNUC__ 13\n#define __GNUC_MINOR__ 2",
        "clang++-19": "__clang_major__ 19\n#define __clang_minor__ 1",
    }
    for name in (*macros, "icpx"):
        text = f"#!/bin/sh\necho '#define {macros.get(name, 'OTHER 1')}'\n"
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


G13, CLANG19 = (CompilerFamily.GCC, (13, 2)), (CompilerFamily.CLANG, (19, 1))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, HostChoice(GCC.family, GCC.version)),
        ({"NVCC_CCBIN": "g++-13"}, HostChoice(*G13, "NVCC_CCBIN")),
        ({"NVCC_CCBIN": "{0}/clang++-19"}, HostChoice(*CLANG19, "NVCC_CCBIN")),
        ({"NVCC_CCBIN": "{0}"}, HostChoice(*G13, "NVCC_CCBIN")),
        ({"NVCC_CCBIN": "g++-13", "NVCC_APPEND_FLAGS": "-O2 -ccbin clang++-19"}, HostChoice(*CLANG19, "-ccbin")),
        ({"NVCC_PREPEND_FLAGS": "--compiler-bindir=g++-13"}, HostChoice(*G13, "-ccbin")),
        ({"NVCC_CCBIN": "g++-99"}, None),
        ({"NVCC_CCBIN": "icpx"}, None),
        ({"NVCC_APPEND_FLAGS": "-allow-unsupported-compiler"}, None),
        ({"NVCC_PREPEND_FLAGS": "--allow-unsupported-compiler -O2", "NVCC_CCBIN": "g++-13"}, None),
    ],
    ids=[
        "CC",
        "a name",
        "a path",
        "a folder",
        "a flag first",
        "its long name",
        "missing",
        "unknown",
        "any",
        "any, too",
    ],
)
def test_the_host_compiler_is_the_one_that_nvcc_is_told(
    variables: Mapping[str, str], expected: HostChoice | None, tmp_path: Path
) -> None:
    environment = compilers_of(tmp_path)
    (tmp_path / "gcc").symlink_to("g++-13")
    given = {name: text.format(tmp_path) for name, text in variables.items()}
    assert host_of(GCC, environment | given) == expected


def test_variables_of_nvcc_that_are_no_words_are_one_line() -> None:
    with pytest.raises(BuildError, match=r"^NVCC_APPEND_FLAGS=-DX=\"a: No closing quotation$"):
        host_of(GCC, {"NVCC_APPEND_FLAGS": '-DX="a'})
