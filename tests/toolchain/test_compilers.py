"""Finding the compilers and interpreters of this machine."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.plans import PYTHON
from tests.factories.projects import tree
from vbuild.errors import BuildError
from vbuild.toolchain.compilers import Compilers, Rust, described, found_rust
from vbuild.toolchain.interpreter import Interpreter

GCC = Path(shutil.which("gcc") or "gcc")
INTERPRETER = replace(PYTHON, cc="", cxx="")


def found(
    *names: str, folder: Path, interpreter: Interpreter = INTERPRETER, environment: Mapping[str, str] | None = None
) -> Compilers:
    """The compilers where PATH has *names* only, all of them this machine's gcc or g++."""
    folder.mkdir(exist_ok=True)
    for name in names:
        is_cxx = "++" in name
        (folder / name).symlink_to(GCC.with_name(GCC.name.replace("gcc", "g++")) if is_cxx else GCC)
    return Compilers.of(interpreter, {**os.environ, "PATH": str(folder), **(environment or {})})


@pytest.mark.parametrize(
    ("names", "environment", "interpreter", "commands"),
    [
        (("cc", "gcc"), {}, INTERPRETER, ("cc", None)),
        (("gcc", "g++", "c++"), {}, INTERPRETER, ("gcc", "g++")),
        (("gcc", "c++"), {}, INTERPRETER, ("gcc", "c++")),
        (("gcc", "g++", "cc", "c++"), {}, PYTHON, ("gcc -pthread", "g++ -pthread")),
        (("cc", "c++"), {}, PYTHON, ("cc", "c++")),
        (("gcc", "gcc-12", "g++-12", "g++"), {"CC": "gcc-12"}, PYTHON, ("gcc-12", "g++-12")),
        (("gcc", "g++", "clang++"), {"CXX": "clang++"}, INTERPRETER, ("gcc", "clang++")),
        (("gcc", "g++"), {"CC": "ccache gcc -m64"}, INTERPRETER, ("ccache gcc -m64", "g++")),
        (
            ("arm-linux-gnu-gcc", "arm-linux-gnu-g++"),
            {"CC": "arm-linux-gnu-gcc"},
            PYTHON,
            (
                "arm-linux-gnu-gcc",
                "arm-linux-gnu-g++",
            ),
        ),
    ],
)
def test_commands_are_those_asked_for_or_the_interpreters_own(
    names: tuple[str, ...],
    environment: dict[str, str],
    interpreter: Interpreter,
    commands: tuple[str, str | None],
    tmp_path: Path,
) -> None:
    compilers = found(*names, folder=tmp_path / "bin", interpreter=interpreter, environment=environment)
    assert (compilers.c, compilers.cxx) == commands


def test_a_compiler_with_a_path_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt" / "gcc").symlink_to(GCC)
    compilers = found("gcc", folder=tmp_path / "bin", environment={"CC": f"{tmp_path}/opt/gcc -pipe"})
    assert compilers.c == "gcc -pipe"
    assert dict(compilers.programs)["gcc"] == (str(tmp_path / "opt" / "gcc"),)


def test_programs_that_are_no_compilers_are_not_taken_for_one(tmp_path: Path) -> None:
    compilers = found("gcc", "gcc-ar", "gcov", "c++filt", "x86_64-linux-gnu-gcc-12", folder=tmp_path / "bin")
    assert [name for name, _ in compilers.programs] == ["gcc", "x86_64-linux-gnu-gcc-12"]


def test_what_does_not_compile_is_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "gcc").write_text("#!/bin/sh\necho no licence >&2\nexit 1\n", encoding="utf-8")
    (tmp_path / "gcc").chmod(0o755)
    with pytest.raises(BuildError, match=r"neither gcc nor clang: no licence; expected one of them: set CC and CXX$"):
        Compilers.of(INTERPRETER, {**os.environ, "PATH": str(tmp_path)})


def rustup(home: Path, commit: str) -> None:
    """A toolchain of rustup as an update leaves it, in place of that which was there."""
    program = f"#!/bin/sh\necho rustc 1.95.0\necho commit-hash: {commit}\necho host: a-b-c\n"
    tree(
        home,
        {
            "settings.toml": 'default_toolchain = "stable"\n',
            "update-hashes/stable": commit,
            "toolchains/stable/bin/rustc": program,
        },
    )
    (home / "toolchains/stable/bin/rustc").chmod(0o755)


def test_an_update_behind_the_rustc_of_rustup_is_noticed(tmp_path: Path) -> None:
    # rustup leaves its own program and settings as they are
    tree(tmp_path, {"bin/rustc": '#!/bin/sh\nexec "$RUSTUP_HOME/toolchains/stable/bin/rustc" "$@"\n', "bin/cargo": ""})
    for name in ("rustc", "cargo"):
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "RUSTUP_HOME": str(tmp_path / "rustup")}
    for commit in ("one", "another"):
        rustup(tmp_path / "rustup", commit)
        said = f"rustc 1.95.0\ncommit-hash: {commit}\nhost: a-b-c\n"
        assert found_rust(environment) == Rust(tmp_path / "bin/rustc", "a-b-c", said)


def test_a_rustc_that_does_not_run_is_none(tmp_path: Path) -> None:
    tree(tmp_path, {"rustc": "#!/bin/sh\necho host: a-b-c\nexit 1\n", "cargo": ""})
    for name in ("rustc", "cargo"):
        (tmp_path / name).chmod(0o755)
    assert found_rust({"PATH": str(tmp_path)}) is None


GNU = "#define __GNUC__ 12\n#define __GNUC_MINOR__ 2\n#define __GNUC_PATCHLEVEL__ 0\n#define __x86_64__ 1\n"
LLVM = "#define __GNUC__ 4\n#define __clang_major__ 17\n#define __clang_minor__ 0\n#define __clang_patchlevel__ 6\n"
RUST = "rustc 1.95.0 (596 2026-04-14)\nbinary: rustc\ncommit-hash: {}\nhost: x86_64-linux\nrelease: 1.95.0\n"


@pytest.mark.parametrize(
    ("name", "answer", "known"),
    [
        ("gcc", GNU, ("gcc", "12.2.0", None)),
        ("cc", GNU, ("gcc", "12.2.0", None)),
        ("x86_64-linux-gnu-g++-12", GNU, ("g++", "12.2.0", None)),
        ("cc", LLVM, ("clang", "17.0.6", None)),
        ("c++", LLVM, ("clang++", "17.0.6", None)),
        ("g++", LLVM, ("clang++", "17.0.6", None)),
        ("clang-17", LLVM, ("clang", "17.0.6", None)),
        ("gfortran-12", GNU, ("gfortran", "12.2.0", None)),
        ("flang-19", "", ("flang", None, None)),
        ("cc", "", ("cc", None, None)),
        ("cc", "0.17.1\n", ("zig", "0.17.1", None)),
        ("rustc-launcher", RUST.format("a1" * 20), ("rustc", "1.95.0", "a1" * 20)),
        ("rustc-launcher", RUST.format("unknown"), ("rustc", "1.95.0", None)),
        ("rustc-launcher", "", ("rustc", None, None)),
    ],
)
def test_a_compiler_is_called_what_it_says_it_is(
    name: str, answer: str, known: tuple[str, str | None, str | None]
) -> None:
    assert described(name, answer) == known


def test_an_interpreter_is_found_by_version_and_by_path() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert Interpreter.named(version, os.environ).version[:2] == sys.version_info[:2]
    assert Interpreter.named(sys.executable, os.environ).path == Path(sys.executable)


def test_an_interpreter_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"^no Python '3\.99' on this machine: No interpreter found for Python 3\.99"):
        Interpreter.named("3.99", os.environ)
    with pytest.raises(BuildError, match="not a Python that runs"):
        Interpreter.at(tmp_path / "python", os.environ)
