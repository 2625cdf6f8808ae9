"""The compilers that a build takes, the system's or zig's: what they can do, and all the names they go by.

    host = "system"   CC, the interpreter's own, or what is on PATH -> asked for its macros -> family, version, machine
    host = "zig"      zig from the package index: cc -> zig cc -target x86_64-linux-gnu.2.17
    host = "auto"     the system's; zig if it has none

zig has the headers and start-up code of every glibc it can build for. It compiles libc++, libunwind and glibc's stubs
when a target first needs them, half a minute for C++, and keeps them in its global cache, which its processes share.
https://andrewkelley.me/post/zig-cc-powerful-drop-in-replacement-gcc-clang.html https://github.com/ziglang/zig-pypi
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Self

from msgspec import Struct

from vbuild.errors import BuildError, FetchError
from vbuild.files.cache import ELSEWHERE, Cache, Part
from vbuild.hardware.cpu import Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.compiling import NEWEST_GLIBC, OLDEST_GLIBC, HostCompiler, HostSettings
from vbuild.toolchain.compiler_program import RUSTC, TOOLS
from vbuild.toolchain.compiler_wrapper import KNOWS_LEVELS, MACRO, NAME, QUESTION, compilers_on, marking
from vbuild.toolchain.interpreter import Interpreter, remembered
from vbuild.toolchain.toolkit import ToolkitPin
from vbuild.toolchain.toolkit_cache import OnProgress, ToolkitCache, silently

# what gcc, clang, rustc and zig say of themselves
_ANSWER = re.compile(r"^#define __(\w+)__ (\d+)$|^(release|commit-hash): (\S+)$", re.MULTILINE)
_CLANG = ("clang_major", "clang_minor", "clang_patchlevel")
_GCC = ("GNUC", "GNUC_MINOR", "GNUC_PATCHLEVEL")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ZIG = re.compile(r"\d+\.\d+\.\S+")
_PARTNERS = (("clang", "clang++"), ("gcc", "g++"), ("cc", "c++"))

INSTALL_C = "install one: apt-get install build-essential, or dnf install gcc gcc-c++"
_ZIG_CAN = ", or build.host = 'zig' takes one from the package index"
_INSTALL_RUST = "install it with rustup, or apt-get install cargo"


class CompilerFamily(StrEnum):
    GCC = "gcc"
    CLANG = "clang"


class Rust(Struct, frozen=True):
    """A Rust compiler, the target triple of its machine, and what ``rustc -vV`` prints."""

    rustc: Path
    host: str
    about: str = ""


class Compilers(Struct, frozen=True):
    """The C compiler of a build with its C++ partner, and the Rust compiler if there is one.

    *c* and *cxx* are commands with a bare name; *programs* are all compilers on PATH with the commands behind them,
    which need *variables*. *marks_levels*: the linker knows ``-z x86-64-v3``. *why* is the reason for zig.
    """

    family: CompilerFamily
    version: tuple[int, ...]
    machine: str
    c: str
    cxx: str | None = None
    programs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    marks_levels: bool = False
    rust: Rust | None = None
    variables: tuple[tuple[str, str], ...] = ()
    zig_target: str | None = None
    why: str = ""

    @classmethod
    def of(cls, interpreter: Interpreter, environment: Mapping[str, str]) -> Self:
        """The compilers that *environment* names, else the interpreter's own, else those on PATH."""
        if (compilers := cls.of_or_none(interpreter, environment)) is None:
            raise BuildError(f"no C compiler on PATH; {INSTALL_C}")
        return compilers

    @classmethod
    def of_or_none(cls, interpreter: Interpreter, environment: Mapping[str, str]) -> Self | None:
        """The same, or None if there is no C compiler and CC does not name one."""
        programs = compilers_on(environment.get("PATH", os.defpath))
        c = _command("CC", environment, (interpreter.cc, "cc", "gcc", "clang"), programs)
        if c is None:
            return None
        name = next(word for word in c.split() if NAME.fullmatch(word))
        cxx = _command("CXX", environment, (_partner(name, interpreter), "c++", "g++", "clang++"), programs)
        path = programs[name]
        macros = known_macros((str(path),), environment)
        family, version = family_of(macros)
        return cls(
            family=family,
            version=version,
            machine=next((name.strip("_") for name in ("__x86_64__", "__aarch64__") if name in macros), "unknown"),
            c=c,
            cxx=cxx,
            programs=tuple(sorted((name, (str(path),)) for name, path in programs.items())),
            marks_levels=_marks_levels(path, environment),
            rust=found_rust(environment),
        )

    def check(self, cpu: Cpu, *, rust: bool = False) -> None:
        """`BuildError` for a *cpu* these cannot compile for; with *rust*, for a missing Rust compiler too."""
        version = ".".join(map(str, self.version))
        if self.machine != cpu.machine:
            raise BuildError(
                f"{self.c} compiles for {self.machine}, expected a compiler for {cpu.machine}: set CC to one{_ZIG_CAN}"
            )
        if cpu.machine == "x86_64" and not cpu.is_baseline and self.version[0] < KNOWS_LEVELS.get(self.family, 0):
            expected = " or ".join(f"{family} {first}" for family, first in KNOWS_LEVELS.items())
            raise BuildError(
                f"{self.family} {version} does not know -march={cpu}; expected {expected}, or newer: set CC to one"
            )
        if rust and self.rust is None:
            raise BuildError(f"no Rust (cargo and rustc) on PATH; {_INSTALL_RUST}")


def _command(
    variable: str, environment: Mapping[str, str], candidates: Iterable[str], programs: dict[str, Path]
) -> str | None:
    """The command of *variable*, or the first candidate that exists, with its compiler as a bare name."""
    if command_line := environment.get(variable):
        command = _on_path(command_line, programs)
        # sysconfig may name a path of another machine; a user means the path
        if command is None or any(Path(word).is_absolute() and not shutil.which(word) for word in command_line.split()):
            raise BuildError(f"{variable}={command_line}: no such compiler; {INSTALL_C}")
        return command
    return next((command for text in candidates if (command := _on_path(text, programs))), None)


def _on_path(command: str, programs: dict[str, Path]) -> str | None:
    """*command* with a bare name that *programs* gets; None without such a file."""
    words = command.split()
    for index, word in enumerate(words):
        file = Path(word)
        if not NAME.fullmatch(file.name):
            continue
        if file.is_absolute() and shutil.which(word):
            programs[file.name] = file
        if file.name in programs and (file.is_absolute() or file.name == word):
            return " ".join([*words[:index], file.name, *words[index + 1 :]])
    return None


def compiler_name(command: str) -> str | None:
    names = (Path(word).name for word in command.split())
    return next((name for name in names if NAME.fullmatch(name)), None)


def _partner(name: str, interpreter: Interpreter) -> str:
    """The C++ command for the C compiler *name*: clang++-16 with clang-16."""
    if interpreter.cxx and interpreter.cc and name == Path(interpreter.cc.split()[0]).name:
        return interpreter.cxx
    for ours, theirs in _PARTNERS:
        if ours in name:
            return theirs.join(name.rsplit(ours, 1))
    return ""


def known_macros(compiler: Sequence[str], environment: Mapping[str, str]) -> dict[str, int]:
    command = [*compiler, *QUESTION]

    def ask() -> dict[str, int]:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        macros = {name: int(value) for name, value in MACRO.findall(ran.stdout)}
        if not macros.keys() & {"__clang_major__", "__GNUC__"}:
            reason = f": {ran.stderr.strip().splitlines()[-1]}" if ran.stderr.strip() else ""
            raise BuildError(f"{command[0]}: neither gcc nor clang{reason}; expected one of them: set CC and CXX")
        return macros

    return remembered(shlex.join(command), Path(compiler[0]), environment=environment, ask=ask)


def family_of(macros: Mapping[str, int]) -> tuple[CompilerFamily, tuple[int, ...]]:
    family = CompilerFamily.CLANG if "__clang_major__" in macros else CompilerFamily.GCC
    names = ("__clang_major__", "__clang_minor__") if family is CompilerFamily.CLANG else ("__GNUC__", "__GNUC_MINOR__")
    return family, tuple(macros[name] for name in names)


def described(name: str, answer: str) -> tuple[str, str | None, str | None]:
    """The usual name, version and commit of the compiler *name*, by its *answer*."""
    known = {macro or key: number or word for macro, number, key, word in _ANSWER.findall(answer)}
    if name == RUSTC:
        commit = known.get("commit-hash", "")
        return "rustc", known.get("release"), commit if _COMMIT.fullmatch(commit) else None
    if _ZIG.fullmatch(answer.strip()):
        return "zig", answer.strip(), None
    kind = re.sub(r"-[\d.]+$", "", name).rpartition("-")[2]
    is_clang = "clang_major" in known
    if known and kind in {"cc", "gcc", "clang"}:
        kind = "clang" if is_clang else "gcc"
    elif known and kind in {"c++", "g++", "clang++"}:
        kind = "clang++" if is_clang else "g++"
    numbers = _CLANG if is_clang else _GCC
    return kind, ".".join(known[number] for number in numbers if number in known) or None, None


def _marks_levels(compiler: Path, environment: Mapping[str, str]) -> bool:
    """Whether a library can be linked with ``-z x86-64-v3``: GNU ld since 2.36; others ignore it."""

    def link() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            command = marking(str(compiler), "x86-64-v3", f"{folder}/empty.so")
            return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0

    linkers = [Path(folder, "ld") for folder in environment.get("PATH", os.defpath).split(os.pathsep)]
    return remembered("-z x86-64-v3", compiler, environment=environment, ask=link, also=linkers)


def found_rust(environment: Mapping[str, str]) -> Rust | None:
    rustc, cargo = (shutil.which(name, path=environment.get("PATH")) for name in ("rustc", "cargo"))
    if rustc is None or cargo is None:  # without cargo, maturin would ask for a package that downloads Rust
        return None
    command = [rustc, "-vV"]

    def ask() -> str:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return "" if ran.returncode else ran.stdout

    about = remembered("rustc -vV", Path(rustc), environment=environment, ask=ask, also=behind_rustup(environment))
    host = next((line.removeprefix("host: ") for line in about.splitlines() if line.startswith("host: ")), "")
    return Rust(Path(rustc), host, about) if host else None


def cargo_home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("CARGO_HOME") or Path(environment.get("HOME", "/"), ".cargo"))


def behind_rustup(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The files that decide which compilers rustup's ``rustc`` stands for."""
    home = Path(environment.get("RUSTUP_HOME") or Path(environment.get("HOME", "/"), ".rustup"))
    patterns = ("update-hashes/*", "toolchains/*/bin/rustc")
    return (home / "settings.toml", *(file for pattern in patterns for file in sorted(home.glob(pattern))))


ZIG_VERSION = "0.17.1"
ZIG_CLANG = (22, 1)  # the clang that is in it

_ZIG_PINS = {
    "x86_64": ToolkitPin(
        "ziglang",
        ZIG_VERSION,
        f"ziglang-{ZIG_VERSION}-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.musllinux_1_1_x86_64.whl",
        "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    ),
    "aarch64": ToolkitPin(
        "ziglang",
        ZIG_VERSION,
        f"ziglang-{ZIG_VERSION}-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
        "b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e",
    ),
}

_ZIG_PROGRAM = Path("ziglang", "zig")
_C_NAMES, _CXX_NAMES = ("cc", "gcc", "clang"), ("c++", "g++", "clang++")
# zig turns the sanitizer on without -O; and libc++'s debug information is ten times the size of its code and full of
# this machine's paths
_ZIG_ALWAYS = ("-fno-sanitize=undefined", "-s")
_OTHER_WAY = "with build.host = 'system' the system's compiler is used"


def provided_zig(
    *,
    store: Path | None = None,
    indexes: Indexes | None = None,
    machine: str | None = None,
    on_progress: OnProgress = silently,
) -> Path:
    """The zig executable for *machine*, fetched and unpacked unless *store* has it."""
    pin = _zig_pin(machine or platform.machine())
    try:
        folder = ToolkitCache.at(store).component(
            pin, places=lambda: indexes or Indexes.configured(), on_progress=on_progress
        )
    except (FetchError, BuildError) as error:
        raise BuildError(f"{error}; {_OTHER_WAY}") from error
    return folder / _ZIG_PROGRAM


def foreseen_zig(*, store: Path | None = None, machine: str | None = None) -> Path:
    """The path that `provided_zig` would give, without fetching anything."""
    return ToolkitCache.at(store).component_folder(_zig_pin(machine or platform.machine())) / _ZIG_PROGRAM


def _zig_pin(machine: str) -> ToolkitPin:
    if sys.platform != "linux" or machine not in _ZIG_PINS:
        expected = ", ".join(_ZIG_PINS)
        raise BuildError(f"no zig for {sys.platform} on {machine}; expected Linux on {expected}; {_OTHER_WAY}")
    return _ZIG_PINS[machine]


def build_compilers(
    host: HostSettings,
    cpu: Cpu,
    *,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    zig: Callable[[], Path] = provided_zig,
    writes: bool = True,
) -> Compilers:
    """The compilers that *host* asks for, to build for *cpu*; *zig* is called if they are zig's.

    Without *writes* what zig needs in the user's cache need not be there.
    """
    of_zig = partial(_zig_compilers, zig, cpu, interpreter=interpreter, environment=environment, writes=writes)
    if host.compiler is HostCompiler.ZIG:
        return of_zig(host.glibc or OLDEST_GLIBC)
    system = Compilers.of_or_none(interpreter, environment)
    if system is None and host.compiler is HostCompiler.AUTO and sys.platform == "linux":
        return of_zig(OLDEST_GLIBC, why="no C compiler on PATH: zig from the package index is used")
    return system or Compilers.of(interpreter, environment)


def _zig_compilers(
    zig: Callable[[], Path],
    cpu: Cpu,
    glibc: tuple[int, int],
    *,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    why: str = "",
    writes: bool = True,
) -> Compilers:
    version = ".".join(map(str, glibc))
    if cpu.machine not in _ZIG_PINS or not OLDEST_GLIBC <= glibc <= NEWEST_GLIBC:
        first, last = (".".join(map(str, known)) for known in (OLDEST_GLIBC, NEWEST_GLIBC))
        raise BuildError(f"build.glibc: zig has no glibc {version} for {cpu.machine}; expected {first} to {last}")
    if interpreter.ext_suffix and "-linux-gnu" not in interpreter.ext_suffix:
        raise BuildError(
            f"{interpreter.path}: its modules end in {interpreter.ext_suffix}, and zig builds those for glibc "
            f"(-linux-gnu.so); with build.host = 'system' the system's compiler is used"
        )
    target = f"{cpu.machine}-linux-gnu.{version}"
    program, own = str(zig()), Cache.of(Part.ZIG)
    own.mark(own.folder)
    always = (*_ZIG_ALWAYS, *_headers(interpreter, cpu.machine, writes=writes))
    commands = {
        **dict.fromkeys(_names(_C_NAMES, interpreter.cc, cpu), (program, "cc", "-target", target, *always)),
        **dict.fromkeys(_names(_CXX_NAMES, interpreter.cxx, cpu), (program, "c++", "-target", target, *always)),
        **{name: (program, name) for name in TOOLS},
    }
    return Compilers(
        family=CompilerFamily.CLANG,
        version=ZIG_CLANG,
        machine=cpu.machine,
        c="cc",
        cxx="c++",
        programs=tuple(sorted(commands.items())),
        rust=found_rust(environment),
        variables=(("ZIG_GLOBAL_CACHE_DIR", str(own.folder.absolute())),),
        zig_target=target,
        why=why,
    )


def zig_cpu(cpu: Cpu) -> str:
    """The name of *cpu* that zig's ``-mcpu=`` takes."""
    if cpu.machine == "x86_64":
        options = (option for feature in cpu.extra_features for option in feature.gcc)
        return "+".join((cpu.march.replace("-", "_"), *options))
    return "generic" if cpu.is_baseline else f"generic+v{cpu.level.replace('.', '_').replace('_0a', 'a')}"


def _headers(interpreter: Interpreter, machine: str, *, writes: bool) -> tuple[str, ...]:
    """The option for pyconfig.h's part in Debian's folder for each machine, where zig does not look."""
    own = interpreter.include.parent / interpreter.multiarch / interpreter.include.name
    if not interpreter.multiarch or not (own / "pyconfig.h").is_file():
        return ()
    name = hashlib.sha256(f"{own} {machine}".encode()).hexdigest()[:16]
    cache = Cache.of(Part.CROSS)
    folder = cache.folder / f"headers-{name}"
    if writes:
        link = folder / f"{machine}-linux-gnu" / interpreter.include.name
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                link.symlink_to(own)
        except OSError as error:
            raise BuildError(f"{link.parent}: cannot be written to: {error.strerror}; {ELSEWHERE}") from error
        cache.mark(folder)
    return ("-idirafter", str(folder))


def _names(common: tuple[str, ...], own: str, cpu: Cpu) -> tuple[str, ...]:
    name = compiler_name(own)
    return (*common, *(f"{cpu.machine}-linux-gnu-{known}" for known in common[1:]), *([name] if name else []))
