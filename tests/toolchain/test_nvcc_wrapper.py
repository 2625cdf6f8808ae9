"""The wrapper of nvcc with the real nvcc, and the build systems that look for one."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.factories import cuda
from tests.factories.nvcc import COMPILERS, OUTSIDE, Build, codes
from tests.factories.projects import tree
from tests.factories.tools import needs
from vbuild.build.wrappers import ccache
from vbuild.elf.image import ElfImage
from vbuild.errors import BuildError
from vbuild.gpu_code.model import Compression
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.compiling import Archs, Compress, FileRule
from vbuild.toolchain.compiler_program import THREADS

pytestmark = pytest.mark.skipif(COMPILERS.machine != "x86_64", reason="levels are those of x86-64")

HARD_CODED = ("-gencode", "arch=compute_75,code=sm_75", "-gencode=arch=compute_80,code=[sm_80,compute_80]")


def linked(build: Build, *words: str) -> list[set[str]]:
    """The codes in the library of a.cu, compiled with *words* and linked by the host compiler."""
    build.compiled("-Xcompiler", "-fPIC", *words)
    assert build.call("g++", "-shared", "a.o", "-o", "a.so").returncode == 0
    return codes(build.source / "a.so")


def disassembled(file: Path) -> str:
    return subprocess.run(["objdump", "-d", file], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("mode", "asked", "expected"),
    [
        (Archs.INTERSECT, "80+ptx", {"sm_80", "compute_80"}),
        (Archs.REPLACE, "80,90", {"sm_80", "sm_90"}),
        (Archs.KEEP, "80,90", {"sm_75", "sm_80", "compute_80"}),
    ],
)
def test_a_hard_coded_list_becomes_what_was_asked_for(
    mode: Archs, asked: str, expected: set[str], tmp_path: Path
) -> None:
    build = Build(tmp_path, asked, archs=mode)
    assert linked(build, *HARD_CODED) == [expected]
    (command,) = build.wrappers.commands()
    assert str(command).startswith("a.cu: sm_75,sm_80,compute_80 -> ")
    assert set(command.ours) == expected


def test_a_list_that_lacks_a_gpu_is_refused_before_nvcc_runs(tmp_path: Path) -> None:
    build = Build(tmp_path, "80,90")
    said = build.call("nvcc", "-c", "a.cu", *HARD_CODED).stderr
    assert said.startswith("nvcc: error: a.cu: compiled for sm_80, compute_80 only, asked for sm_90; ")
    assert not (build.source / "a.o").exists()
    (failure,) = build.wrappers.failures()
    assert failure.error in said
    # for a GPU of one kind, by its nature, or only tried out
    for file, option in {"a.cu": "-arch=sm_90a", "CMakeCUDACompilerId.cu": "-arch=sm_80"}.items():
        (build.source / file).write_text((build.source / "a.cu").read_text())
        assert build.call("nvcc", "-c", file, option).returncode == 0


def test_a_file_of_its_own_kind_follows_its_rule(tmp_path: Path) -> None:
    build = Build(tmp_path, "80", files=(FileRule("source/a.cu", GpuList.parse("90a,100f+ptx")),))
    assert linked(build, "-arch=sm_80") == [{"sm_90a", "sm_100f", "compute_100f"}]


@pytest.mark.parametrize("level", ["v1", "v3"])
def test_host_code_is_for_the_level_whatever_the_project_asks_for(level: str, tmp_path: Path) -> None:
    build = Build(tmp_path, "80", level=level)
    for flags in (("-Xcompiler=-march=native",), ("--compiler-options", "-O2,-mavx512f"), ("-ccbin", "/usr/bin/g++")):
        code = disassembled(build.compiled("-O2", *flags))
        assert ("ymm" in code, "zmm" in code) == (level == "v3", False)
    removed = [override.removed for override in build.wrappers.overrides() if override.program == "nvcc"]
    assert removed == [("-march=native",), ("-mavx512f",)]


def test_host_code_keeps_its_flags_where_the_recipe_says_so(tmp_path: Path) -> None:
    build = Build(tmp_path, "80", level="v1", keep=("d.cu",))
    for compiler in ((), ("-ccbin", "g++")):
        ran = build.call("nvcc", "-c", "-O2", "-Xcompiler=-mavx512f", "d.cu", "-o", "d.o", *compiler)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "zmm" in disassembled(build.source / "d.o")


def test_it_works_without_any_environment_and_from_cuda_home(tmp_path: Path) -> None:
    build = Build(tmp_path, "80")
    home = Path(build.environment["CUDA_HOME"])
    assert home == build.wrappers.cuda == Path(build.environment["CUDA_PATH"])
    assert (home / "include" / "cuda_runtime.h").samefile(cuda.home() / "include" / "cuda_runtime.h")
    assert (home / "bin" / "ptxas").samefile(cuda.home() / "bin" / "ptxas")
    ran = build.call(f"{home}/bin/nvcc", "-O2", "-c", "a.cu", "-o", "a.o", environment={})
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "ymm" in disassembled(build.source / "a.o")
    assert build.wrappers.commands()[0].ours == ("sm_80",)


def test_variables_of_nvcc_add_to_a_list_that_is_then_brought_to_the_request(tmp_path: Path) -> None:
    build = Build(tmp_path, "80")
    flags = "-gencode arch=compute_90,code=sm_90"
    build.compiled("-gencode=arch=compute_75,code=sm_75", NVCC_APPEND_FLAGS=flags, NVCC_PREPEND_FLAGS="-arch=sm_80")
    (command,) = build.wrappers.commands()
    assert command.theirs == ("sm_75", "sm_90", "sm_80", "compute_80")
    assert command.ours == ("sm_80",)


def test_torch_hands_on_a_compiler_with_flags(tmp_path: Path) -> None:
    build = Build(tmp_path, "90")
    # as torch.utils.cpp_extension compiles for setuptools
    build.compiled(
        *("-D__CUDA_NO_HALF_OPERATORS__", "--expt-relaxed-constexpr", "--compiler-options", "'-fPIC'", "-O2"),
        *("-DTORCH_EXTENSION_NAME=demo", "-gencode=arch=compute_90,code=compute_90", "-std=c++17"),
        *("-gencode=arch=compute_90,code=sm_90", "-ccbin", "gcc -pthread"),
    )
    assert build.call("g++", "-shared", "a.o", "-o", "a.so").returncode == 0
    assert codes(build.source / "a.so") == [{"sm_90"}]


@pytest.mark.parametrize(("asked", "options"), [("80,90", ()), ("80+ptx", HARD_CODED)])
def test_a_device_link_agrees_with_what_was_compiled(asked: str, options: tuple[str, ...], tmp_path: Path) -> None:
    build = Build(tmp_path, asked)
    for name in ("b", "c"):
        ran = build.call("nvcc", "-dc", "-Xcompiler=-fPIC", *options, f"{name}.cu", "-o", f"{name}.o")
        assert (ran.returncode, ran.stderr) == (0, "")
    ran = build.call("nvcc", "-dlink", "-Xcompiler=-fPIC", "b.o", "c.o", "-o", "link.o")
    assert (ran.returncode, ran.stderr) == (0, "")
    library = f"-L{cuda.home()}/lib64" if (cuda.home() / "lib64").exists() else f"-L{cuda.home()}/lib"
    ran = build.call("g++", "-shared", "b.o", "c.o", "link.o", "-o", "rdc.so", library, "-lcudart_static")
    assert (ran.returncode, ran.stderr) == (0, "")
    compiled = {"sm_80", "compute_80"} if options else {"sm_80", "sm_90"}
    # what was linked, and what it was linked of
    assert [*map(sorted, codes(build.source / "rdc.so"))] == [
        *map(sorted, (compiled, compiled, compiled - {"compute_80"}))
    ]


@pytest.mark.parametrize("stage", ["-cubin", "-ptx"])
def test_what_takes_one_code_still_compiles(stage: str, tmp_path: Path) -> None:
    build = Build(tmp_path, "80,90", archs=Archs.REPLACE)
    assert build.call("nvcc", stage, "a.cu", "-arch=sm_75").returncode == 0
    assert build.call("nvcc", stage, "a.cu").returncode == 0


def test_the_standard_options_reach_the_code(tmp_path: Path) -> None:
    build = Build(tmp_path, "80", compress=Compress.SIZE, lineinfo=True)
    build.compiled("-Xcompiler=-fPIC", "--compress-mode=none")
    assert build.call("g++", "-shared", "a.o", "-o", "a.so").returncode == 0
    (container,) = device_code(ElfImage.parse(memoryview((build.source / "a.so").read_bytes()))).containers
    assert [entry.compression for entry in container.entries] == [Compression.ZSTD]
    raw = Build(tmp_path / "raw", "80", compress=Compress.NONE, lineinfo=True)
    assert b".debug_line" in raw.compiled().read_bytes()


def test_a_question_whether_a_flag_is_known_is_answered(tmp_path: Path) -> None:
    build = Build(tmp_path, "80")
    tree(build.source, {"check.cu": "__host__ int main() { return 0; }\n"})
    ran = build.call("nvcc", "-c", "check.cu", "-Xcompiler=-mavx512f")
    assert ran.returncode == 1
    assert ran.stderr == "nvcc: error: unrecognized command-line option '-mavx512f' (kept out by vbuild)\n"
    assert build.wrappers.overrides()[0].refused == ("-mavx512f",)


def _script(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_an_nvcc_that_leads_back_to_the_wrapper_ends_with_one_line(tmp_path: Path) -> None:
    script = _script(tmp_path / "wrapped" / "bin" / "nvcc", 'exec nvcc "$@"')
    build = Build(tmp_path, "80", home=script.parents[1])
    ran = build.call("nvcc", "-c", "a.cu")
    assert ran.returncode == 1
    assert ran.stderr == (
        f"nvcc: error: {script}, which vbuild's compiler wrapper runs, starts the compiler wrapper again (PATH "
        f"leads there); "
        f"expected the nvcc of a CUDA toolkit\n"
    )


def test_wrappers_are_not_taken_for_a_toolkit(tmp_path: Path) -> None:
    folder = Build(tmp_path, "80").wrappers.cuda
    assert folder
    with pytest.raises(BuildError) as caught:
        Build(tmp_path / "nested", "80", home=folder)
    assert str(caught.value) == (
        f"{folder}/bin/nvcc: a compiler wrapper of vbuild, which would start itself without end; expected the "
        f"nvcc of a CUDA "
        f"toolkit: point CUDA_HOME at one, or leave it out"
    )
    assert not (tmp_path / "nested" / "launchers").exists()


def test_a_toolkit_without_an_nvcc_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        Build(tmp_path, "80", home=tmp_path)
    assert str(caught.value) == f"{tmp_path}/bin/nvcc: No such file or directory; expected the nvcc of a CUDA toolkit"


def test_an_nvcc_that_is_gone_is_one_line(tmp_path: Path) -> None:
    script = _script(tmp_path / "gone" / "bin" / "nvcc", "exit 0")
    build = Build(tmp_path, "80", home=script.parents[1])
    script.unlink()
    ran = build.call("nvcc", "-c", "a.cu")
    assert ran.returncode == 1
    assert ran.stderr == f"nvcc: error: {script} cannot be run: No such file or directory\n"


@needs("ccache")
def test_a_cache_does_not_give_one_level_the_code_of_another(tmp_path: Path) -> None:
    environment = {**OUTSIDE, "CCACHE_DIR": str(tmp_path / "cache")}
    objects = {}
    for name, level in (("one", "v1"), ("two", "v3"), ("three", "v1")):
        running = ccache("ccache", tmp_path / name, environment)
        build = Build(tmp_path / name, "80", level=level, cache=running)
        objects[name] = build.compiled("-O2", "-Xcompiler=-march=native", CCACHE_DIR=str(tmp_path / "cache"))
    assert ["ymm" in disassembled(file) for file in objects.values()] == [False, True, False]
    assert objects["one"].read_bytes() == objects["three"].read_bytes()
    statistics = subprocess.check_output(["ccache", "--print-stats"], env=environment, text=True)
    assert "direct_cache_hit\t1\n" in statistics


@needs("ccache")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("flags", [("-lineinfo",), ("-G", "-g")], ids=" ".join)
def test_a_cache_gives_no_build_the_lines_of_another(flags: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**OUTSIDE, "CCACHE_DIR": str(tmp_path / "cache")}
    objects = []
    for name in ("one", "two"):
        running = ccache("ccache", tmp_path / name, environment)
        build = Build(tmp_path / name, "80+ptx", cache=running, compress=Compress.NONE)
        objects.append(build.compiled(*flags, CCACHE_DIR=str(tmp_path / "cache")).read_bytes())
    assert objects[0] == objects[1]
    assert b'"/./a.cu"' in objects[0]
    assert os.fsencode(tmp_path) not in objects[0]
    statistics = subprocess.check_output(["ccache", "--print-stats"], env=environment, text=True)
    assert "direct_cache_hit\t1\n" in statistics


@needs("ccache")
def test_a_cache_finds_what_was_compiled_side_by_side(tmp_path: Path) -> None:
    environment = {**OUTSIDE, "CCACHE_DIR": str(tmp_path / "cache")}
    objects = []
    for name, processes in (("one", "2"), ("two", "1")):
        running = ccache("ccache", tmp_path / name, environment)
        build = Build(tmp_path / name, "80,90", cache=running)
        variables = {"CCACHE_DIR": str(tmp_path / "cache"), THREADS: processes}
        objects.append(build.compiled("-O2", **variables).read_bytes())
    uncached = Build(tmp_path / "three", "80,90").compiled("-O2", **{THREADS: "2"}).read_bytes()
    assert objects == [uncached, uncached]
    statistics = subprocess.check_output(["ccache", "--print-stats"], env=environment, text=True)
    assert "direct_cache_hit\t1\n" in statistics


CMAKE = """
cmake_minimum_required(VERSION 3.21)
{before}
project(demo CUDA)
{after}
add_library(demo SHARED a.cu)
target_compile_options(demo PRIVATE -march=native)
"""

LISTS = {
    "unset": ("80,90a+ptx", "", "", {"sm_80", "sm_90a", "compute_90a"}),
    "off": ("80,90a+ptx", "", "set(CMAKE_CUDA_ARCHITECTURES OFF)", {"sm_80", "sm_90a", "compute_90a"}),
    "before the project": ("80", "set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real)", "", {"sm_80"}),
    "behind the project": ("80+ptx", "", "set(CMAKE_CUDA_ARCHITECTURES 75 80)", {"sm_80", "compute_80"}),
    "for its own kind": ("80", "", "set(CMAKE_CUDA_ARCHITECTURES 90a-real)", {"sm_90a"}),
}


@needs("cmake")
@pytest.mark.parametrize("case", LISTS)
def test_cmake_finds_the_wrapper_and_compiles_for_the_request(case: str, tmp_path: Path) -> None:
    request, before, after, expected = LISTS[case]
    build = Build(tmp_path, request)
    tree(build.source, {"CMakeLists.txt": CMAKE.format(before=before, after=after)})
    for command in (["-B", "out"], ["--build", "out"]):
        ran = build.call("cmake", *command)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert codes(build.source / "out" / "libdemo.so") == [expected]
    assert "ymm" in disassembled(build.source / "out" / "libdemo.so")
    assert build.wrappers.commands()[-1].sources == ("a.cu",)


@pytest.mark.parametrize("option", ["-Wl,-rpath,", "-Wl,--enable-new-dtags,-rpath,", "-Wl,--enable-new-dtags,-R"])
def test_no_library_is_looked_for_in_the_toolkit_of_the_build(tmp_path: Path, option: str) -> None:
    build = Build(tmp_path, "80")
    (build.source / "k.c").write_text("int k;\n")
    home = build.environment["CUDA_HOME"]
    words = (f"{option}{home}/lib64", "-Wl,-rpath,$ORIGIN/libs")
    assert build.call("gcc", "-shared", "-fPIC", "k.c", "-o", "k.so", *words).returncode == 0
    read = subprocess.check_output(["readelf", "-d", build.source / "k.so"], text=True)
    assert (home in read, "[$ORIGIN/libs]" in read) == (False, True)
