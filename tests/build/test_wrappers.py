"""Compiler wrappers with the real compilers of this machine."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.projects import KERNEL, tree
from vbuild.build.plan import BuildBackend, FlagPlan, flag_plan
from vbuild.build.wrappers import BuildFolders, CompilerCall, CompilerWrappers, Override, install_wrappers
from vbuild.hardware.cpu import Cpu
from vbuild.process.masking import hiding
from vbuild.recipe.compiling import FlagRules, OwnFlags
from vbuild.recipe.hidden import of_settings
from vbuild.recipe.variables import hashed
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import Interpreter

INTERPRETER = Interpreter.named("", os.environ)
COMPILERS = Compilers.of(INTERPRETER, os.environ)

STRIP = FlagRules(OwnFlags.STRIP)

pytestmark = pytest.mark.skipif(COMPILERS.machine != "x86_64", reason="levels are those of x86-64")


def plan(level: str, *, rules: FlagRules = STRIP) -> FlagPlan:
    cpu = Cpu.known("x86_64", level)
    return flag_plan(
        cpu,
        BuildBackend.OTHER,
        compilers=COMPILERS,
        interpreter=INTERPRETER,
        environment=os.environ,
        flags=rules,
    )


def wrappers(folder: Path, level: str, *, flags: FlagRules = STRIP) -> CompilerWrappers:
    """Compiler wrappers for *level* in *folder*, and a source tree beside them."""
    source = tree(folder / "source", {"kernel.c": KERNEL, "empty.c": "int main(void) { return 0; }"})
    rules = plan(level, rules=flags).wrapper_rules
    return install_wrappers(rules, COMPILERS, folder / "a b" / "launchers", BuildFolders(source), environment={})


def call(made: CompilerWrappers, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **made.environment(os.environ), **environment}
    return subprocess.run(command, cwd=made.source, env=variables, capture_output=True, text=True, check=False)


def instructions(file: Path) -> str:
    return subprocess.run(["objdump", "-d", file], capture_output=True, text=True, check=True).stdout


def compiled(made: CompilerWrappers, *flags: str) -> str:
    ran = call(made, "gcc", "-O2", *flags, "-c", "kernel.c", "-o", "kernel.o")
    assert ran.stderr == ""
    return instructions(made.source / "kernel.o")


REGISTERS = {"v1": "xmm", "v2": "xmm", "v3": "ymm", "v4": "zmm"}


@pytest.mark.parametrize("level", REGISTERS)
@pytest.mark.parametrize("flag", ["-march=native", "-mavx512f", "-mavx2"])
def test_code_is_for_the_level_whatever_the_project_asks_for(level: str, flag: str, tmp_path: Path) -> None:
    code = compiled(wrappers(tmp_path, level), flag)
    widest = max(re.findall(r"%([xyz]mm)", code))
    assert widest == REGISTERS[level]
    assert bool(re.search(r"\tv\w+", code)) == (level in {"v3", "v4"})


def test_the_log_tells_what_was_taken_out_of_which_file(tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v2")
    assert made.overrides() == ()
    compiled(made, "-march=x86-64-v2", "-mtune=generic")
    assert made.overrides() == ()
    compiled(made)
    assert made.overrides() == ()
    compiled(made, "-march=native", "-mtune=generic")
    compiled(made, "-march=native", "-mtune=generic")
    why = (("-march=native", "native"),)
    assert made.overrides() == (Override("gcc", ("kernel.c",), ("-march=native",), ("-march=x86-64-v2",), (), why=why),)
    assert len(made.log.read_text(encoding="utf-8").splitlines()) == 2
    assert made.compiled() == (CompilerCall("gcc", (str(made.source / "kernel.c"),)),) * 4


def test_the_log_has_flags_that_stayed_and_what_was_compiled_with_them(tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v2", flags=FlagRules())
    assert "ymm" in compiled(made, "-mavx2")
    (override,) = made.overrides()
    assert (override.kept, override.removed, override.why) == (("-mavx2",), (), (("-mavx2", "single file"),))
    assert override.object == "kernel.o"


def test_what_a_compiler_said_is_told_without_what_is_hidden(tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v2")
    tree(made.source, {"empty.c": "int x = TOKEN;\n"})
    call(made, "gcc", "-DTOKEN=correct_horse_1", "-c", "empty.c")
    (failed,) = made.failures()
    assert "correct_horse_1" in failed.error
    with hiding(of_settings([("CFLAGS", "-DTOKEN=correct_horse_1")])):
        (failed,) = made.failures()
    assert "correct_horse_1" not in failed.error
    assert hashed("correct_horse_1") in failed.error


FAILING = {
    "header": (("-c", "h.c"), "nothere.h: No such file or directory", ()),
    "library": (("empty.c", "-lnothere", "-o", "x"), "cannot find -lnothere", ()),
    "flag": (("-mnothere", "-c", "empty.c"), "unrecognized command-line option", ()),
    "refused": (("-mavx2", "-c", "empty.c"), "(kept out by vbuild)", ("-mavx2",)),
}


@pytest.mark.parametrize("what", FAILING)
def test_a_call_that_failed_is_logged_with_its_reason(what: str, tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v2")
    tree(made.source, {"h.c": "#include <nothere.h>\n"})
    assert call(made, "gcc", "-c", "empty.c", "-o", "empty.o").returncode == 0
    assert made.failures() == ()
    arguments, reason, removed = FAILING[what]
    ran, again = (call(made, "gcc", *arguments) for _ in range(2))
    (failed,) = made.failures()
    assert (ran.returncode, ran.stderr) == (1, again.stderr)
    assert failed.error in ran.stderr
    assert reason in failed.error
    assert failed.text == (made.source / ("h.c" if what == "header" else "empty.c")).read_text()
    assert failed.removed == removed
    assert failed.is_telling
    assert ("build.keep-flags = ['*empty.c']" in str(failed)) == bool(removed)


def test_what_a_compiler_writes_and_how_it_ends_is_passed_on(tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v2")
    ran = call(made, "gcc", "-Wall", "-E", "-dD", "-c", "empty.c", "-o", "-", "-DA", "-DA=2")
    assert (ran.returncode, '"A" redefined' in ran.stderr, "int main(void)" in ran.stdout) == (0, True, True)


@pytest.mark.nightly
def test_compilers_side_by_side_do_not_mix_their_lines(tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v2")
    flags = [f"-DN{number}" for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        ran = list(pool.map(lambda flag: call(made, "gcc", flag, "-mavx", "-c", "kernel.c", "-o", f"{flag}.o"), flags))
    assert {result.returncode for result in ran} == {0}
    assert len(made.log.read_text(encoding="utf-8").splitlines()) == len(flags)
    assert len(made.overrides()) == 1


def test_a_library_is_marked_and_a_program_is_not(tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v3")
    call(made, "gcc", "-shared", "-fPIC", "kernel.c", "-o", "kernel.so")
    call(made, "gcc", "empty.c", "-o", "empty")
    notes = [
        subprocess.check_output(["readelf", "-n", made.source / name], text=True) for name in ("kernel.so", "empty")
    ]
    assert ["x86-64-v3" in note for note in notes] == [COMPILERS.marks_levels, False]


def test_the_building_machines_paths_stay_out(tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v3")
    file = made.source / "kernel.c"
    rpath = "-Wl,-rpath,/opt/python/lib"
    made = install_wrappers(
        replace(plan("v3").wrapper_rules, dropped=(rpath,)),
        COMPILERS,
        tmp_path / "more",
        BuildFolders(made.source),
        environment={},
    )
    call(made, "gcc", "-g", "-shared", "-fPIC", rpath, str(file), "-o", "kernel.so")
    library = (made.source / "kernel.so").read_bytes()
    assert b"/opt/python" not in library
    assert str(tmp_path).encode() not in library


def test_a_compiler_script_that_looks_for_the_compiler_finds_the_real_one(tmp_path: Path) -> None:
    # as ccache does, and Debian's c99-gcc
    tree(tmp_path / "wrappers", {"clang-99": '#!/bin/sh\nexec gcc "$@"\n'})
    (tmp_path / "wrappers" / "clang-99").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}/wrappers:{os.environ['PATH']}"}
    compilers = Compilers.of(INTERPRETER, environment)
    made = install_wrappers(
        plan("v2").wrapper_rules, compilers, tmp_path / "launchers", BuildFolders(tmp_path), environment={}
    )
    tree(tmp_path, {"kernel.c": KERNEL})
    ran = subprocess.run(
        ["clang-99", "-mavx2", "-c", "kernel.c"],
        cwd=tmp_path,
        env=environment | made.environment(environment),
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0
    assert [override.program for override in made.overrides()] == ["clang-99"]


@pytest.mark.skipif(COMPILERS.rust is None, reason="needs a Rust compiler")
def test_a_wrapper_of_rustc_that_was_there_stays_in_use(tmp_path: Path) -> None:
    assert COMPILERS.rust
    tree(tmp_path, {"wrapper": '#!/bin/sh\necho wrapped >&2\nexec "$@"\n', "lib.rs": "pub fn f() {}\n"})
    (tmp_path / "wrapper").chmod(0o755)
    made = install_wrappers(
        plan("v2").wrapper_rules,
        COMPILERS,
        tmp_path / "launchers",
        BuildFolders(tmp_path),
        environment={"RUSTC_WRAPPER": str(tmp_path / "wrapper")},
    )
    command = ["--crate-type=lib", "--target", COMPILERS.rust.host, "-Ctarget-cpu=native", "lib.rs"]
    ran = call(made, made.environment(os.environ)["RUSTC_WRAPPER"], str(COMPILERS.rust.rustc), *command)
    assert (ran.returncode, ran.stderr) == (0, "wrapped\n")
    assert [(override.sources, override.removed) for override in made.overrides()] == [
        (("lib.rs",), ("target-cpu=native",))
    ]
