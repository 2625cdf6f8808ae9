"""zig as the compiler of a build: when it is taken, how it is spoken to, and what it builds."""

import json
import os
import subprocess
import zipfile
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from tests.factories.plans import GCC, PYTHON, plan, rules
from tests.factories.projects import tree
from vbuild.build.plan import BuildBackend, cross_plan
from vbuild.errors import BuildError
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.compiling import HostCompiler, HostSettings
from vbuild.toolchain.compiler_program import rewritten_command
from vbuild.toolchain.compilers import ZIG_CLANG, Compilers, build_compilers, foreseen_zig, zig_cpu
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.zig_options import command_for, for_zig

X86_64, V3, ARM = (Cpu.parse(text) for text in ("x86-64", "x86-64-v3", "armv8-a"))
TARGET = "x86_64-linux-gnu.2.17"
ZIG = HostSettings(HostCompiler.ZIG)

pytestmark = pytest.mark.skipif(
    os.uname().machine != "x86_64" or os.uname().sysname != "Linux", reason="zig is taken on Linux"
)


def never() -> NoReturn:
    pytest.fail("zig was fetched")


def picked(host: HostCompiler, path: Path, **environment: str) -> Compilers:
    interpreter = Interpreter.named("", os.environ)
    variables = {name: text for name, text in os.environ.items() if name not in {"CC", "CXX"}}
    return build_compilers(
        HostSettings(host),
        V3,
        interpreter=interpreter,
        environment={**variables, "PATH": str(path), **environment},
        zig=never,
    )


def test_the_systems_compiler_is_taken_where_there_is_one() -> None:
    for host in (HostCompiler.AUTO, HostCompiler.SYSTEM):
        assert picked(host, Path(os.environ["PATH"])).zig_target is None


def test_zig_is_never_taken_where_the_recipe_asks_for_the_systems(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"^no C compiler on PATH; install one: apt-get"):
        picked(HostCompiler.SYSTEM, tmp_path)


def test_a_compiler_that_was_asked_for_and_is_missing_is_an_error_and_no_reason_for_zig(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"^CC=icx: no such compiler"):
        picked(HostCompiler.AUTO, tmp_path, CC="icx")


REFUSALS = [
    (
        HostSettings(HostCompiler.ZIG, (2, 12)),
        X86_64,
        PYTHON,
        "build.glibc: zig has no glibc 2.12 for x86_64; expected 2.17 to 2.44",
    ),
    (
        HostSettings(HostCompiler.ZIG, (2, 99)),
        ARM,
        PYTHON,
        "build.glibc: zig has no glibc 2.99 for aarch64; expected 2.17 to 2.44",
    ),
    (
        ZIG,
        X86_64,
        replace(PYTHON, ext_suffix=".cpython-313-x86_64-linux-musl.so"),
        (
            "/usr/bin/python3: its modules end in .cpython-313-x86_64-linux-musl.so, and zig builds those for glibc "
            "(-linux-gnu.so); with build.host = 'system' the system's compiler is used"
        ),
    ),
]


@pytest.mark.parametrize(("host", "cpu", "interpreter", "message"), REFUSALS)
def test_what_zig_cannot_build_for_is_refused_before_it_is_fetched(
    host: HostSettings, cpu: Cpu, interpreter: Interpreter, message: str
) -> None:
    with pytest.raises(BuildError) as caught:
        build_compilers(host, cpu, interpreter=interpreter, environment={}, zig=never)
    assert str(caught.value) == message


@pytest.mark.nightly
@pytest.mark.network
def test_zig_has_every_name_that_a_build_may_call_a_compiler_by(tmp_path: Path) -> None:
    interpreter = replace(PYTHON, cc="/opt/cross/bin/x86_64-conda-linux-gnu-gcc -pthread")
    compilers = build_compilers(HostSettings(), V3, interpreter=interpreter, environment={"PATH": str(tmp_path)})
    programs = dict(compilers.programs)
    assert (compilers.c, compilers.cxx, compilers.machine, compilers.zig_target) == ("cc", "c++", "x86_64", TARGET)
    assert compilers.why == "no C compiler on PATH: zig from the package index is used"
    assert programs["x86_64-conda-linux-gnu-gcc"] == programs["cc"] == programs["x86_64-linux-gnu-gcc"]
    assert programs["g++"][1:4] == ("c++", "-target", TARGET)
    assert programs["ranlib"][1:] == ("ranlib",)
    assert not compilers.marks_levels


def test_a_plan_for_zig_can_be_made_without_fetching_or_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    include = tmp_path / "include" / "python3.11"
    tree(tmp_path / "include", {"x86_64-linux-gnu/python3.11/pyconfig.h": ""})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    suffix = ".cpython-313-x86_64-linux-gnu.so"
    interpreter = replace(PYTHON, ext_suffix=suffix, include=include, multiarch="x86_64-linux-gnu")
    environment = {"PATH": str(tmp_path)}
    foreseen = partial(
        build_compilers, ZIG, interpreter=interpreter, environment=environment, zig=foreseen_zig, writes=False
    )
    compilers = foreseen(ARM)
    crossed = cross_plan(replace(plan("v1"), cpu=ARM), compilers=compilers, interpreter=interpreter, writes=False)
    assert (compilers.version, compilers.machine) == (ZIG_CLANG, "aarch64")
    assert dict(compilers.programs)["ar"][0].startswith(str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
    # the same as a build has
    written = build_compilers(ZIG, ARM, interpreter=interpreter, environment=environment, zig=foreseen_zig)
    assert written == compilers
    assert cross_plan(replace(plan("v1"), cpu=ARM), compilers=written, interpreter=interpreter) == crossed
    assert len(list((tmp_path / "cache/vbuild/cross").glob("[!.]*"))) == 2


def test_a_cache_where_headers_cannot_be_linked_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, {"include/x86_64-linux-gnu/python3.11/pyconfig.h": "", "cache": ""})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    interpreter = replace(PYTHON, include=tmp_path / "include/python3.11", multiarch="x86_64-linux-gnu")
    with pytest.raises(
        BuildError, match=rf"^{tmp_path}/cache/vbuild/cross/.*: cannot be written to: Not a directory; point "
    ):
        build_compilers(ZIG, V3, interpreter=interpreter, environment={"PATH": ""}, zig=foreseen_zig)


@pytest.mark.parametrize(
    ("cpu", "name"),
    [
        ("x86-64", "x86_64"),
        ("x86-64-v3", "x86_64_v3"),
        ("armv8-a", "generic"),
        ("armv8.2-a", "generic+v8_2a"),
        ("armv9.0-a", "generic+v9a"),
        ("armv9.1-a", "generic+v9_1a"),
    ],
)
def test_levels_have_names_of_zigs_own(cpu: str, name: str) -> None:
    assert zig_cpu(Cpu.parse(cpu)) == name


def test_a_plan_for_zig_speaks_of_the_level_in_its_way() -> None:
    made = plan("v3", compilers=replace(GCC, zig_target=TARGET, marks_levels=False))
    environment = dict(made.environment)
    assert environment["CFLAGS"] == "-DNDEBUG -fwrapv -O3 -mcpu=x86_64_v3"
    assert environment["AR"] == "ar"
    assert "FFLAGS" not in environment
    assert made.wrapper_rules.zig == (TARGET,)
    assert "-march=x86-64-v3" not in made.wrapper_rules.implied
    assert "-mavx2" in made.wrapper_rules.implied


OURS = "-mcpu=x86_64_v2"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("-march=native -mtune=haswell -c a.c", f"-c a.c {OURS}"),
        ("-march=haswell -mavx2 -c a.c", f"{OURS} -mavx2 -c a.c"),
        (f"-c a.c {OURS} -march=x86-64-v2", f"-c a.c {OURS}"),
        # what zig links in is the same for all levels
        (f"-shared {OURS} -march=native a.o", "-shared a.o"),
        ("--version", "--version"),
    ],
)
def test_the_level_goes_to_what_is_compiled_and_not_to_what_is_linked(command: str, expected: str) -> None:
    told = rules("v2", compile=(OURS,), zig=(TARGET,), link=(), implied=())
    assert " ".join(rewritten_command(command.split(), told).arguments) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("-O2 -c a.c -o a.o", "-O2 -c a.c -o a.o"),
        ("-march=haswell -mtune=generic", "-mcpu=haswell"),
        ("-march=skylake-avx512", "-mcpu=skylake_avx512"),
        ("-march=armv8.2-a+fp16+nocrypto", "-mcpu=generic+v8_2a+fullfp16-crypto"),
        ("-flto=auto -flto=4 -flto=thin -flto", "-flto -flto -flto=thin -flto"),
        ("-ffast-math -Ofast", "-ffast-math -fno-finite-math-only -Ofast -fno-finite-math-only"),
        ("--target=x86_64-unknown-linux-gnu -m64", "-m64"),
        ("-Wp,-D_FORTIFY_SOURCE=2 -specs=/usr/lib/rpm/hardened", "-D_FORTIFY_SOURCE=2"),
        ("-Wl,--as-needed,-soname,x", "-Wl,--as-needed -Wl,-soname -Wl,x"),
        ("-Wl,-z,now -Wl,-z,x86-64-v3 -z relro", "-Wl,-z,now -Wl,-z,relro"),
        ("-Wl,-O1 -Wl,-Bsymbolic-functions -Wl,-Bsymbolic", "-Wl,-Bsymbolic"),
        ("-Wl,--exclude-libs,ALL a.o", "a.o"),
        ("-Wl,--exclude-libs=ALL -Xlinker -Map -Xlinker x.map a.o", "a.o"),
        ("-Wl,-R/opt -Wl,-R,/more -Wl,-h,x", "-Wl,-rpath,/opt -Wl,-rpath,/more -Wl,-soname,x"),
        ("-Wl,--undefined=f", "-Wl,-u,f"),
        ("-Wl,--version-script=a.map", "-Wl,--version-script=a.map -Wl,--undefined-version"),
        ("-Wl,--start-group a.a -Wl,--end-group", "-Wl,--start-group a.a -Wl,--end-group"),
        ("-Xlinker", "-Wl,"),
    ],
)
def test_words_that_zig_does_not_know_are_put_in_its_own_or_left_out(command: str, expected: str) -> None:
    assert " ".join(for_zig(command.split())) == expected


def test_a_question_is_put_to_the_clang_inside() -> None:
    command = ("zig", "cc", "-target", TARGET)
    for question in (["-dumpmachine"], ["-v"], ["-print-search-dirs", "-O2"]):
        assert command_for(command, question, target=TARGET) == ["zig", "cc", "-target", "x86_64-linux-gnu"]
    for order in (["-v", "-c", "a.c"], ["--version"]):
        assert command_for(command, order, target=TARGET) == command


def test_a_python_here_speaks_of_the_one_there(tmp_path: Path) -> None:
    interpreter = Interpreter.named("", os.environ)
    made = replace(plan("v1"), cpu=ARM)
    crossed = cross_plan(made, compilers=GCC, interpreter=interpreter, folder=tmp_path)
    ask = (
        "import json, sysconfig; print(json.dumps([sysconfig.get_platform(), "
        "*sysconfig.get_config_vars('EXT_SUFFIX', 'SOABI', 'CC', 'LDSHARED')]))"
    )
    said = subprocess.check_output([interpreter.path, "-c", ask], env=dict(crossed.environment), text=True)
    suffix = interpreter.ext_suffix.replace("x86_64", "aarch64")
    soabi = suffix.removeprefix(".").removesuffix(".so")
    assert json.loads(said) == ["linux-aarch64", suffix, soabi, GCC.c, f"{GCC.c} -shared"]
    assert cross_plan(made, compilers=GCC, interpreter=interpreter, folder=tmp_path) == crossed
    assert len(list(tmp_path.glob("[!.]*"))) == 1


def test_meson_gets_its_cross_file_after_the_recipes_own_arguments(tmp_path: Path) -> None:
    interpreter = replace(PYTHON, ext_suffix=".cpython-313-x86_64-linux-gnu.so")
    for given in ("-Dx=1", ("-Dx=1",)):
        made = plan("v1", BuildBackend.MESON_PYTHON, config_settings=(("setup-args", given),))
        crossed = cross_plan(replace(made, cpu=ARM), compilers=GCC, interpreter=interpreter, folder=tmp_path)
        arguments = dict(crossed.config_settings)["setup-args"]
        assert arguments[0] == "-Dx=1"
        assert "cpu_family = 'aarch64'" in Path(arguments[1].removeprefix("--cross-file=")).read_text(encoding="utf-8")


def test_a_build_for_this_machine_stays_as_it_is() -> None:
    made = plan("v3")
    assert cross_plan(made, compilers=GCC, interpreter=PYTHON) is made


CROSS_REFUSALS = [
    (
        BuildBackend.MATURIN,
        replace(PYTHON, ext_suffix=".cpython-313-x86_64-linux-gnu.so"),
        (
            "maturin: cannot build for aarch64 on x86_64; expected one of setuptools, scikit-build-core, meson-python, "
            "or such a machine"
        ),
    ),
    (
        BuildBackend.SETUPTOOLS,
        replace(PYTHON, implementation="pypy", ext_suffix=".pypy311-pp73-x86_64-linux-gnu.so"),
        (
            "/usr/bin/python3: cannot build for aarch64 with a pypy whose modules end in "
            ".pypy311-pp73-x86_64-linux-gnu.so; expected a CPython's -x86_64-linux-gnu.so"
        ),
    ),
]


@pytest.mark.parametrize(("backend", "interpreter", "message"), CROSS_REFUSALS)
def test_what_cannot_be_built_for_another_machine_is_refused(
    backend: BuildBackend, interpreter: Interpreter, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError) as caught:
        cross_plan(replace(plan("v1", backend), cpu=ARM), compilers=GCC, interpreter=interpreter, folder=tmp_path)
    assert str(caught.value) == message
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    interpreter = replace(PYTHON, ext_suffix=".cpython-313-x86_64-linux-gnu.so")
    with pytest.raises(BuildError) as caught:
        cross_plan(replace(plan("v1"), cpu=ARM), compilers=GCC, interpreter=interpreter, folder=tmp_path / "file")
    assert (
        str(caught.value)
        == f"{tmp_path}/file: cannot be written to: Not a directory; point XDG_CACHE_HOME at a folder that can be"
    )


def library(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if ".so" in name]
        return Path(archive.extract(name, folder))


@pytest.mark.nightly  # README's first command compiles with zig
@pytest.mark.network
@pytest.mark.parametrize("machine", ["x86-64", "armv8-a"])
def test_zig_finds_the_part_of_pyconfig_that_debian_has_in_a_folder_of_the_machine(
    machine: str, tmp_path: Path
) -> None:
    include, here = tmp_path / "include" / "python3.11", tmp_path / "include" / "x86_64-linux-gnu"
    (here / "python3.11").mkdir(parents=True)
    (here / "python3.11" / "pyconfig.h").write_text("#define SIZEOF_LONG 8\n")
    (here / "stdio.h").write_text("#error of another C library\n")
    interpreter = replace(Interpreter.named("", os.environ), include=include, multiarch="x86_64-linux-gnu")
    cpu = Cpu.parse(machine)
    compilers = build_compilers(ZIG, cpu, interpreter=interpreter, environment=os.environ)
    folder = f"{cpu.machine}-linux-gnu"
    source = tmp_path / "a.c"
    source.write_text(f"#include <{folder}/python3.11/pyconfig.h>\n#include <stdio.h>\nint size = SIZEOF_LONG;\n")
    command = [*dict(compilers.programs)["cc"], "-c", str(source), "-o", str(tmp_path / "a.o")]
    subprocess.run(command, env={**os.environ, **dict(compilers.variables)}, check=True, capture_output=True)
