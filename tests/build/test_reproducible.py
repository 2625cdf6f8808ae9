"""What compilers make by the compiler wrappers is the same wherever it is made, when, in which surroundings, and by
whom.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories import cuda
from tests.factories.nvcc import COMPILERS, INTERPRETER, OUTSIDE, Build
from tests.factories.plans import plan as planned_without
from tests.factories.projects import tree
from tests.factories.tools import needs
from vbuild.build.environment import Environments
from vbuild.build.plan import BuildBackend, flag_plan
from vbuild.build.source import copied, source_digest
from vbuild.build.wrappers import BuildFolders, CompilerWrappers, install_wrappers
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.process.run import run
from vbuild.recipe.compiling import Compress, FileRule
from vbuild.recipe.source import Folder
from vbuild.toolchain.compilers import found_rust

pytestmark = pytest.mark.skipif(COMPILERS.machine != "x86_64", reason="levels are those of x86-64")

SOURCE = """
#include <assert.h>
#include "inlined.h"
#include "pinlined.h"
const char *when(void) { return __DATE__ " " __TIME__; }
const char *where(void) { return __FILE__; }
int half(int a) { assert(a % 2 == 0); return inlined(a) / from_python(a - 9); }
"""
HEADER = """
#include <assert.h>
static inline int inlined(int a) { assert(a > 0); return a; }
"""
INLINED = """
#include <cuda_fp16.h>
__device__ inline float twice(float a) { return __half2float(__float2half(a)) * 2; }
"""
NAMELESS = """
#include <cassert>
#include "b.cuh"
namespace { __global__ void scale(float *x) { assert(x[0] > 1); x[0] = twice(x[0]); } }
static void start(float *x) { scale<<<1, 1>>>(x); }
namespace { struct Start { Start() { start(nullptr); } } first; }
"""
LIBRARIES = """
cmake_minimum_required(VERSION 3.15)
project(demo C)
add_library(a SHARED a.c)
add_library(b SHARED b.c)
target_link_libraries(a b)
set_target_properties(a PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS a b DESTINATION "${CMAKE_SOURCE_DIR}/installed")
if(NOT GIVEN)
    message(FATAL_ERROR "the arguments of the user are lost")
endif()
"""
PANICS = """
#[no_mangle]
pub extern "C" fn half(a: usize) -> u8 { assert!(a % 2 == 0); b"halves"[a / 2] }
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a build is: its *folder*, and what its shell says of time, language and temporary files."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def environments(self) -> Path:
        return self.folder / "environments"

    def ran(self, made: CompilerWrappers, *command: str, **variables: str) -> None:
        """Run *command* in the source tree of a build by *made*, as `vbuild.build.frontend` would."""
        told = {**OUTSIDE, **self.variables, **variables, **settled()}
        environment = {**told, **made.environment(told)}
        run(command, log=self.folder / "log", cwd=made.source, environment=environment)


def settled() -> dict[str, str]:
    """The variables of any plan; those of this machine's compilers apart."""
    plan = flag_plan(
        Cpu.known("x86_64", "v2"), BuildBackend.OTHER, compilers=COMPILERS, interpreter=INTERPRETER, environment=OUTSIDE
    )
    return {name: text for name, text in plan.environment if name not in {"CC", "CXX"}}


def places(folder: Path) -> tuple[Place, Place]:
    """Two places that have nothing in common, made below *folder*."""
    first = Place(folder / "a", {"TZ": "UTC", "LC_ALL": "C", "TMPDIR": str(folder)})
    temporary = folder / "temporary"
    temporary.mkdir()
    second = Place(folder / "users" / "somebody-else", {"TZ": "Asia/Kolkata", "TMPDIR": str(temporary)})
    return first, second


@needs("gcc")
@pytest.mark.parametrize("flags", [("-O2",), ("-O0", "-g3"), ("-O2", "-g", "-flto")], ids=" ".join)
def test_c_code_is_the_same_with_file_date_assert_and_debug_information(flags: tuple[str, ...], tmp_path: Path) -> None:
    made = []
    for place in places(tmp_path):
        source = tree(place.folder / "source", {"src/a.c": SOURCE})
        tree(place.environments, {"key/include/inlined.h": HEADER})
        headers = tree(place.folder / "python", {"include/pinlined.h": HEADER.replace("inlined", "from_python")})
        rules = planned_without("v2").wrapper_rules
        wrappers = install_wrappers(
            rules,
            COMPILERS,
            place.folder / "launchers",
            BuildFolders(source, environments=place.environments, headers=headers / "include"),
            environment={},
        )
        include = (f"-I{place.environments}/key/include", f"-I{headers}/include")
        place.ran(wrappers, "gcc", *flags, "-fPIC", *include, "-c", f"{source}/src/a.c", "-o", "a.o")
        place.ran(wrappers, "gcc", "-shared", *flags, "a.o", "-o", "a.so")
        made.append((source / "a.so").read_bytes())
    assert made[0] == made[1]
    assert b"Jan  1 1980" in made[0]
    assert b"./src/a.c" in made[0]
    assert b"environments/key/include/inlined.h" in made[0]
    assert b"\0python/pinlined.h" in made[0]
    assert os.fsencode(tmp_path) not in made[0]


@pytest.mark.sampled("-c -lineinfo")
@pytest.mark.parametrize(
    "flags", [("-dc",), ("-c", "-g"), ("-c", "-lineinfo"), ("-c", "-G"), ("-shared",)], ids=" ".join
)
def test_gpu_code_is_the_same_with_names_of_its_own(flags: tuple[str, ...], tmp_path: Path) -> None:
    made = []
    for place in places(tmp_path):
        build = Build(place.folder, "80+ptx", compress=Compress.NONE)
        source = tree(build.source, {"src/a.cu": NAMELESS, "src/b.cuh": INLINED}) / "src/a.cu"
        # CMake has it with its folder, setuptools without
        named = "src/a.cu" if "-lineinfo" in flags else str(source)
        words = ("nvcc", *flags, "-Xcompiler=-fPIC", f"-L{cuda.home()}/lib", named, "-o", "a.o")
        ran = build.call(*words, environment={**build.environment, **place.variables, **settled()})
        assert (ran.returncode, ran.stderr) == (0, "")
        made.append((build.source / "a.o").read_bytes())
    assert made[0] == made[1]
    assert os.fsencode(tmp_path) not in made[0]
    assert b"tmpxft" not in made[0]
    # GPU code says where its lines are, also those of the toolkit
    has_lines = not {"-lineinfo", "-G"}.isdisjoint(flags)
    assert [name in made[0] for name in (b'"/./src/a.cu"', b'"/./src/b.cuh"', b'"/cuda/')] == [has_lines] * 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("flags", [("-rdc=true", "-G"), ("-lineinfo",), ()], ids=" ".join)
def test_what_is_compiled_of_several_files_and_linked_at_once_is_the_same_wherever_the_toolkit_is(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    made = []
    for place in places(tmp_path):
        place.folder.mkdir(parents=True)
        (place.folder / "cuda").symlink_to(cuda.home())
        build = Build(place.folder, "80", home=place.folder / "cuda", compress=Compress.NONE)
        tree(build.source, {"src/a.cu": NAMELESS, "src/c.cu": NAMELESS, "src/b.cuh": INLINED})
        words = ("nvcc", "-shared", *flags, "-Xcompiler=-fPIC", "src/a.cu", "src/c.cu", "-o", "a.so")
        ran = build.call(*words, environment={**build.environment, **place.variables, **settled()})
        assert (ran.returncode, ran.stderr) == (0, "")
        made.append((build.source / "a.so").read_bytes())
    assert made[0] == made[1]
    assert os.fsencode(tmp_path) not in made[0]
    assert b"tmpxft" not in made[0]


def test_a_file_that_is_compiled_twice_can_be_linked_with_itself(tmp_path: Path) -> None:
    build = Build(tmp_path, "80", files=(FileRule("*", GpuList.parse("80")),))
    tree(build.source, {"x.cu": "__global__ void NAME(float *x) { x[0] = 1; }\n"})
    for name in ("one", "two"):
        ran = build.call("nvcc", "-dc", "-Xcompiler=-fPIC", f"-DNAME={name}", "x.cu", "-o", f"{name}.o")
        assert (ran.returncode, ran.stderr) == (0, "")
    ran = build.call("nvcc", "-shared", "-Xcompiler=-fPIC", f"-L{cuda.home()}/lib", "one.o", "two.o", "-o", "both.so")
    assert (ran.returncode, ran.stderr) == (0, "")


@needs("rustc")
def test_a_panic_names_its_place_below_cargos_folder(tmp_path: Path) -> None:
    made = []
    rust = found_rust(OUTSIDE)
    assert rust
    for place in places(tmp_path):
        crate = tree(place.folder / "cargo", {"registry/src/half/lib.rs": PANICS}) / "registry/src/half/lib.rs"
        source = tree(place.folder / "source", {"Cargo.toml": ""})
        environment = {"CARGO_HOME": str(place.folder / "cargo")}
        rules = planned_without("v2").wrapper_rules
        wrappers = install_wrappers(
            rules, COMPILERS, place.folder / "launchers", BuildFolders(source), environment=environment
        )
        library = ("--crate-type=cdylib", f"--target={rust.host}", "-Copt-level=2", "-o", "a.so")
        place.ran(wrappers, "rustc-launcher", str(rust.rustc), str(crate), *library)
        made.append((source / "a.so").read_bytes())
    assert made[0] == made[1]
    assert b"cargo/registry/src/half/lib.rs" in made[0]
    assert os.fsencode(tmp_path) not in made[0]


def test_commands_make_files_with_the_modes_of_wheels_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        run(["sh", "-c", "touch file; mkdir folder"], log=tmp_path / "log", cwd=tmp_path)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder")] == [0o644, 0o755]


@pytest.mark.parametrize("is_checkout", [False, True])
def test_a_folder_is_the_same_source_whoever_has_checked_it_out(tmp_path: Path, *, is_checkout: bool) -> None:
    found = []
    for name, modes in (("one", (0o644, 0o755)), ("two", (0o600, 0o700)), ("three", (0o664, 0o775))):
        project = tree(tmp_path / name / "demo", {"setup.py": "", "configure": "#!/bin/sh\n"})
        for file, mode in zip(("setup.py", "configure"), modes, strict=True):
            (project / file).chmod(mode)
        if is_checkout:
            subprocess.run(["git", "init", "--quiet", str(project)], check=True)
        copy = copied(project, tmp_path / name / "copy")
        kept = [(copy / file).stat().st_mode & 0o777 for file in ("setup.py", "configure")]
        found.append((source_digest(Folder(project)), kept))
    assert [kept for _, kept in found] == [[0o644, 0o755]] * 3
    assert len({seen for seen, _ in found}) == 1


@needs("cmake")
@needs("make")
def test_cmake_leaves_no_trace_of_where_libraries_were_before_they_were_installed(tmp_path: Path) -> None:
    made = []
    for place in places(tmp_path):
        source = tree(
            place.folder / "source", {"CMakeLists.txt": LIBRARIES, "a.c": "int b(void); int a(void) { return b(); }"}
        )
        tree(source, {"b.c": "int b(void) { return 1; }"})
        plan = planned_without("v2", BuildBackend.SCIKIT_BUILD_CORE, environment={"CMAKE_ARGS": "-DGIVEN=1"})
        given = dict(plan.environment)["CMAKE_ARGS"].split()
        subprocess.run(
            ["cmake", "-S", str(source), "-B", str(source / "build"), *given], check=True, capture_output=True
        )
        command = ["cmake", "--build", str(source / "build"), "--target", "install"]
        subprocess.run(command, check=True, capture_output=True)
        made.append((source / "installed/liba.so").read_bytes())
    assert made[0] == made[1]


def test_an_environment_has_the_same_name_wherever_its_python_is(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(INTERPRETER.path)
    environments = Environments(tmp_path / "environments", dict)
    pythons = (INTERPRETER, replace(INTERPRETER, path=tmp_path / "python"))
    found = [environments.having((), python).scripts.relative_to(environments.folder_of(python)) for python in pythons]
    assert found[0] == found[1]
    assert environments.folder_of(pythons[0]) != environments.folder_of(pythons[1])
