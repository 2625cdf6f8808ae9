"""Compiler wrappers: a folder of programs, named like the compilers, that stands first on PATH during a build.

CMAKE_C_COMPILER_LAUNCHER reaches CMake only, a CC with a path or a prefix in it breaks where it is split at blanks, and
a project may call ``gcc`` by name whatever CC says; but setuptools, CMake, Meson, and the cc crate all look for their
compiler's bare name on PATH. Only cargo finds rustc by itself, and has RUSTC_WRAPPER for it. The wrappers run
`vbuild.toolchain.compiler_program`, which finds its settings beside itself, since a build may clear its environment.

nvcc is looked for in CUDA_HOME too, so its wrapper (`vbuild.toolchain.nvcc`) is in a toolkit of links:

    launchers/gcc, g++ ...            settings, logs
    launchers/cuda/bin/nvcc           the compiler wrapper
    launchers/cuda/bin/ptxas, include, lib64 ...  -> the toolkit

ccache goes between the compiler wrappers and the compilers. Every build is in a new folder: a base folder keeps paths
below it out of the key. https://ccache.dev/manual/latest.html
"""

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path, PurePath
from typing import TypeVar

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from vbuild.build.plan import WrapperRules
from vbuild.build.prefixes import Prefix, left_to_compilers, prefix_maps
from vbuild.build.watching import MARK, PRELOAD
from vbuild.errors import BuildError
from vbuild.files.hashing import program_digest
from vbuild.process.masking import masked_text
from vbuild.sbom.model import Material, MaterialRole
from vbuild.toolchain import compiler_program, compiler_wrapper, nvcc_commands, zig_options
from vbuild.toolchain.compilers import Compilers, cargo_home, described
from vbuild.toolchain.nvcc_commands import Command, CudaRules, is_trial
from vbuild.toolchain.toolkit import Toolkit

NAMES = frozenset({"ccache", "sccache"})
"""Programs that are compiler caches, of which a compiler may be a link to one, and CC may name one."""


class Ccache(Struct, frozen=True):
    program: Path
    variables: Mapping[str, str]

    def prefix(self, command: tuple[str, ...]) -> tuple[str, ...]:
        # zig cc has its own cache; a distribution may have a folder of links to ccache
        if len(command) != 1 or Path(command[0]).resolve().name in NAMES:
            return ()
        return (str(self.program),)


def ccache(setting: str, base: Path, environment: Mapping[str, str]) -> Ccache | None:
    """The ccache for builds in the folder *base*, which is new for every run; None without one.

    ``auto`` is the one on PATH, unless CC or CXX name a cache, or it cannot write.
    """
    own = f"{environment.get('CC', '')} {environment.get('CXX', '')}".split()
    if setting == "none" or (setting == "auto" and any(Path(word).name in NAMES for word in own)):
        return None
    program = shutil.which("ccache", path=environment.get("PATH", os.defpath))
    if program is None:
        problem = "no ccache on PATH; install it: apt-get install ccache, or dnf install ccache"
    elif reason := _unusable(program, environment):
        problem = f"{program}: {reason}"
    else:
        # a toolkit or a compiler in a new folder is the same one where its bytes are the same
        check = environment.get("CCACHE_COMPILERCHECK") or "content"
        variables = {"CCACHE_BASEDIR": str(base), "CCACHE_NOHASHDIR": "1", "CCACHE_COMPILERCHECK": check}
        return Ccache(Path(program), variables)
    if setting == "auto":
        return None
    raise BuildError(f"build.cache: {problem}")


def _unusable(program: str, environment: Mapping[str, str]) -> str | None:
    command = [program, "--get-config", "cache_dir"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        return " ".join(ran.stderr.split()) or f"status {ran.returncode}"
    folder = Path(ran.stdout.strip())
    if not folder.is_absolute():  # XDG_CACHE_HOME is empty, for one: every compiler would have one where it runs
        return f"its folder {str(folder)!r} is not an absolute path; set CCACHE_DIR"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"its folder {folder} cannot be written to: {error.strerror}; set CCACHE_DIR"
    return None


T = TypeVar("T")

_CALLS = "calls"

# what is not shown of failed commands, the characters that are, and the number of commands
_USUAL = ("-I", "-L", "-O", "-g", "-W", "-f", "-D", "-U", "-isystem", "-march=x86-64", "-mtune=", "-pipe", "-pthread")
_LONGEST = 160
_MOST = 200
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".C", ".cu", ".f90", ".F90", ".f", ".m")
# what compilers and linkers say of what is not there
_LACKING = ("No such file", "file not found", "cannot find -l", "unrecognized", "unknown argument", "unsupported")


# names that tools read in the place of CUDA_HOME
_HOMES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDAToolkit_ROOT", "CUDA_TOOLKIT_ROOT_DIR")
# torch puts ccache before the compilers that it calls: before a wrapper, whose bytes and folder are new in every build,
# it finds nothing again, and its key takes an nvcc more; the wrapper has one behind it
_UNCACHED = {"TORCH_NO_COMPILER_WRAPPER": "1"}
# many a project expects the toolkit where a compiler looks by itself, as packages of a distribution have it
_SEARCHED = {
    "LIBRARY_PATH": ("lib64", "lib64/stubs"),
    "C_INCLUDE_PATH": ("include",),
    "CPLUS_INCLUDE_PATH": ("include",),
}


class Override(Struct, frozen=True):
    """A compiler command with the project's own flags that choose instructions: *removed*, or *kept*.

    *added* are flags of ours that it lacked. One with *refused* flags only asks whether the compiler takes them: it
    does not. *object* is what *kept* flags made.
    """

    program: str
    sources: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    refused: tuple[str, ...]
    kept: tuple[str, ...] = ()
    why: tuple[tuple[str, str], ...] = ()
    object: str = ""


class FailedCall(Struct, frozen=True):
    """A failed call of a compiler: its *arguments*, the reason, and how its source begins.

    Without *arguments* it is a program or library that was looked for in vain.
    """

    program: str
    arguments: tuple[str, ...]
    error: str
    text: str = ""
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.arguments:
            return f"{self.program} was {self.error}"
        command = shlex.join([self.program, *(word for word in self.arguments if not word.startswith(_USUAL))])
        keep = ""
        if self.removed:
            sources = [f"*{PurePath(word).name}" for word in self.sources]
            rule = f"build.keep-flags = {sources}" if sources else "build.flags = 'keep'"
            keep = f"; {' '.join(self.removed)} was taken out of it: {rule}"
        return f"`{command if len(command) <= _LONGEST else f'{command[:_LONGEST]} …'}` failed: {self.error}{keep}"

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(word for word in self.arguments if word.endswith(_SOURCES))

    @property
    def is_telling(self) -> bool:
        """Whether it lacked something that this machine may have."""
        return not self.arguments or any(words in self.error for words in _LACKING)


class CompilerCall(Struct, frozen=True):
    """A call of a compiler; *sources* are absolute paths."""

    program: str
    sources: tuple[str, ...]


class CompilerWrappers(Struct, frozen=True):
    """The compiler wrappers in *folder*; *cuda* is the CUDA_HOME with nvcc's."""

    folder: Path
    log: Path
    source: Path
    has_rust: bool
    cuda: Path | None = None

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        bins = [str(self.folder), *([str(self.cuda / "bin")] if self.cuda else [])]
        env = {"PATH": os.pathsep.join([*bins, before.get("PATH", os.defpath)]), **_UNCACHED}
        if self.cuda:
            bin_path = ("CUDA_BIN_PATH",) if "CUDA_BIN_PATH" in before else ()
            env |= dict.fromkeys((*_HOMES, *bin_path), str(self.cuda))
        if self.has_rust:
            env["RUSTC_WRAPPER"] = str(self.folder / compiler_program.RUSTC)
            # cargo does not see its wrapper's flags: no two levels may share a folder of results
            env["CARGO_TARGET_DIR"] = str(self.source / "target")
        return env

    def overrides(self) -> tuple[Override, ...]:
        return overrides(self.log)

    def failures(self) -> tuple[FailedCall, ...]:
        return failures(self.log)

    def compiled(self) -> tuple[CompilerCall, ...]:
        return compiler_calls(self.folder / _CALLS)

    def compilers(self, compilers: Compilers, path: str) -> tuple[Material, ...]:
        files = {name: _behind_cache(name, Path(command[0]), path) for name, command in compilers.programs}
        return compilers_in(self.folder / _CALLS, files)

    def commands(self) -> tuple[Command, ...]:
        return tuple(dict.fromkeys(nvcc_commands.logged(self.folder / nvcc_commands.LOG)))


class BuildFolders(Struct, frozen=True):
    """The folders whose paths become relative in binaries."""

    source: Path
    prefixes: tuple[Prefix, ...] = ()
    environments: Path | None = None
    headers: Path | None = None


def install_wrappers(
    rules: WrapperRules,
    compilers: Compilers,
    folder: Path,
    build: BuildFolders,
    *,
    environment: Mapping[str, str],
    cuda: CudaRules | None = None,
    cache: Ccache | None = None,
) -> CompilerWrappers:
    """Put into *folder* a wrapper for every compiler, by *rules*, and one for nvcc, by *cuda*."""
    toolkit = cuda.nvcc.parents[1] if cuda else None
    if cuda and cuda.archs.requests:
        check_nvcc(cuda.nvcc)
    folder.mkdir(parents=True)
    folder = folder.absolute()
    double = folder / "cuda" if cuda else None
    wrappers = CompilerWrappers(
        folder, folder / "overrides.jsonl", build.source.absolute(), bool(compilers.rust), double
    )
    named = ((build.environments, "environments"), (build.headers, "python"), (double, "cuda"), (toolkit, "cuda"))
    mapping = (
        f"-ffile-prefix-map={wrappers.source}=.",
        *(f"-ffile-prefix-map={path.absolute()}={name}" for path, name in named if path),
        *prefix_maps(build.prefixes),
    )
    programs = {name: (*(cache.prefix(command) if cache else ()), *command) for name, command in compilers.programs}
    if compilers.rust:
        programs[compiler_program.RUSTC] = (*environment.get("RUSTC_WRAPPER", "").split(),)
    variables = dict(compilers.variables)
    if toolkit:
        for name, folders in _SEARCHED.items():  # last of all
            own = [environment[name]] if environment.get(name) else []
            variables[name] = os.pathsep.join([*own, *(str(toolkit / below) for below in folders)])
    if PRELOAD in environment:
        variables[PRELOAD] = environment[PRELOAD]
    if compilers.zig_target:
        # zig's files of this build go with it; libc++ and the like are in its global cache
        variables["ZIG_LOCAL_CACHE_DIR"] = str(folder / "zig")
    variables |= cache.variables if cache else {}
    dropped = (rpath for home in (double, toolkit) if home for rpath in _rpaths(home))
    settings = {
        "rules": to_builtins(replace(rules, dropped=(*rules.dropped, *dropped))),
        "programs": programs,
        "variables": {**variables, **left_to_compilers(build.prefixes, environment), MARK: "1"},
        "source": str(wrappers.source),
        "log": str(wrappers.log),
        "calls": str(folder / _CALLS),
        "mapping": mapping,
        "rust_mapping": (
            f"--remap-path-prefix={wrappers.source}=.",
            f"--remap-path-prefix={cargo_home(environment)}=cargo",  # of crates, whose panics say where they are
        ),
    }
    if cuda:
        program = (str(cuda.nvcc),)
        settings["nvcc"] = {
            "rules": cuda.data(),
            "command": (*(cache.prefix(program) if cache else ()), *program),
            "mapping": mapping,
            "compilers": {name: command[0] for name, command in compilers.programs if len(command) == 1},
            "log": str(folder / nvcc_commands.LOG),
        }
    modules = (zig_options.__file__,) if compilers.zig_target else ()
    compiler_wrapper.write_wrappers(folder, settings, modules=modules, toolkit=toolkit)
    return wrappers


def _rpaths(toolkit: Path) -> Iterator[str]:
    for option in ("-Wl,-rpath,", "-Wl,-rpath=", "-Wl,-R", "-R"):
        for folder in ("lib64", "lib"):
            words = f"{option}{toolkit / folder}"
            yield words
            if option.startswith("-Wl,"):
                yield words.replace("-Wl,", "-Wl,--enable-new-dtags,", 1)


def overrides(log: Path) -> tuple[Override, ...]:
    return tuple(_logged(log, Override))


def compiler_calls(log: Path) -> tuple[CompilerCall, ...]:
    try:
        lines = log.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(CompilerCall(program, tuple(sources)) for program, *sources in (line.split("\t") for line in lines))


def compilers_in(log: Path, files: Mapping[str, Path] | None = None) -> tuple[Material, ...]:
    """The compilers that compile or link in *log*, not only tried out; with the SHA-256 of their *files*."""
    calls = (*compiler_calls(log), *compiler_calls(log.with_name(compiler_program.LINKS)))
    compilers = []
    for name in sorted({call.program for call in calls if not is_trial(call.sources)}):
        answer = log.with_name(compiler_program.ANSWERS) / name
        if answer.is_file():  # else all its commands were refused, and it has not run
            kind, version, commit = described(name, answer.read_text(encoding="utf-8", errors="replace"))
            sha256 = program_digest(files[name]) or None if files and name in files else None
            compilers.append(Material(MaterialRole.COMPILER, kind, version, sha256=sha256, commit=commit))
    return tuple(dict.fromkeys(compilers))


def nvcc_of(toolkit: Toolkit | None, commands: Sequence[Command]) -> tuple[Material, ...]:
    if toolkit is None or all(is_trial(command.sources) for command in commands):
        return ()
    sha256 = program_digest(toolkit.nvcc) or None
    return (Material(MaterialRole.COMPILER, "nvcc", str(toolkit.version), sha256=sha256),)


def _behind_cache(name: str, program: Path, path: str) -> Path:
    """The compiler *name*: *program*, or, behind a link to a compiler cache, the next one on *path*."""
    folders = [Path(folder) for folder in path.split(os.pathsep)]
    others = (folder / name for folder in folders if not (folder / compiler_program.SETTINGS).exists())
    files = (file for file in (program, *others) if file.is_file() and file.resolve().name not in NAMES)
    return next(files, program)


def failures(log: Path) -> tuple[FailedCall, ...]:
    return tuple(_logged(log, FailedCall))[-_MOST:]


def _logged(log: Path, kind: type[T]) -> Iterable[T]:
    if not log.exists():
        return ()
    entries: dict[T, None] = {}
    # what compilers said of a source may have what a macro is set to
    for line in masked_text(log.read_text(encoding="utf-8", errors="replace")).splitlines():
        with suppress(ValueError, ValidationError):  # torn, where the disk was full or a command was killed
            entries[convert(json.loads(line), kind)] = None
    return entries


def with_known_sources(recorded: Iterable[Override], project: Path) -> tuple[Override, ...]:
    """*recorded*, with sources outside of *project* by the end of the path that they share with one in it.

    A project may copy its files to another folder below /tmp each time.
    """
    ends: dict[str, list[tuple[str, ...]]] = {}
    away = {PurePath(source) for override in recorded for source in override.sources if source.startswith("/")}
    if away:
        for folder, _, files in os.walk(project):
            for name in {path.name for path in away}.intersection(files):
                ends.setdefault(name, []).append(PurePath(folder, name).relative_to(project).parts)

    def known(source: str) -> str:
        parts = PurePath(source).parts
        if parts[0] != "/" or is_trial([source]):
            return source
        lengths = [2]
        for end in ends.get(parts[-1], ()):
            both = zip(reversed(parts), reversed(end), strict=False)
            lengths.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both)))
        return "/".join(parts[1:][-max(lengths) :])

    return tuple(dict.fromkeys(replace(override, sources=tuple(map(known, override.sources))) for override in recorded))


def check_nvcc(program: Path) -> None:
    try:
        with program.open("rb") as file:
            begin = file.read(4096)
    except OSError as error:
        raise BuildError(f"{program}: {error.strerror}; expected the nvcc of a CUDA toolkit") from error
    if compiler_wrapper.is_wrapper(begin):
        raise BuildError(
            f"{program}: a compiler wrapper of vbuild, which would start itself without end; expected the nvcc "
            f"of a CUDA "
            f"toolkit: point CUDA_HOME at one, or leave it out"
        )
