"""What of an environment came out of a wheel and its companions: their ELF files, and what a user imports.

RECORD -> the ELF files the loader takes       -> roots: where loading begins
       -> packages and modules at the top      -> imports

Try a file, or a package, in a process of its own that knows nothing but where it is.

    opened(path)      dlopen with RTLD_NOW, as for an extension module: every symbol and version has to be there
    imported(name)    import, as a user does it

What the process has in memory afterwards says where the libraries came from, whatever way they were found.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Self

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.elf.loading import Loading
from vbuild.elf.outline import MAGIC
from vbuild.errors import BinaryError, SplitError, WheelError
from vbuild.verification.loader import mapped
from vbuild.wheel.metadata import Metadata, WheelFile, is_companion

_MODULE = re.compile(r"(?P<name>[^\W\d]\w*)(?:\.py|(?:\.[\w-]+)?\.so)")


class InstalledWheel(Struct, frozen=True):
    """The ELF files of a wheel and its companions by path from site-packages, and those that are *damaged*.

    *named* are libraries whose names Python code or another file has, to open them; *imports* are the top-level
    packages and modules of the wheel; *projects* is all that is installed.
    """

    files: Mapping[str, Loading]
    named: frozenset[str]
    imports: tuple[str, ...]
    damaged: tuple[str, ...]
    projects: frozenset[str]

    @classmethod
    def of(cls, packages: Path, project: str) -> Self:
        """What *packages* has of *project*; `SplitError` where nothing."""
        found = tuple(distributions(path=[str(packages)]))
        own = [one for one in found if _project(one) == project]
        if not own:
            raise SplitError(f"{project}: not in {packages.name} after it was installed there, expected its .dist-info")
        paths = sorted({path for one in (*own, *filter(_is_companion, found)) for path in _paths(one)})
        files: dict[str, Loading] = {}
        damaged: list[str] = []
        for path in paths:
            if not _is_elf(packages / path):
                continue
            try:
                with mapped(packages / path) as data:
                    loading = Loading.parse(data)
            except BinaryError as error:
                damaged.append(f"{path}: {error}")
                continue
            if loading.outline.is_loadable:
                files[path] = loading
        named = frozenset((*_named(packages, paths, files), *_mentioned(files)))
        projects = frozenset(filter(None, map(_project, found)))
        return cls(files, named, tuple(_imports(_paths_of(own))), tuple(damaged), projects)

    def roots(self) -> tuple[str, ...]:
        """The files with which loading begins: modules, programs, named ones, and libraries that nothing needs."""
        needed = {name for file in self.files.values() for name in file.outline.needed}
        begun = (
            path
            for path, file in self.files.items()
            if file.modules or file.is_program or path in self.named or not _names(path, file) & needed
        )
        return tuple(sorted(begun))


def _paths_of(found: Iterable[Distribution]) -> list[str]:
    return sorted({path for one in found for path in _paths(one)})


def _paths(one: Distribution) -> Iterator[str]:
    return (PurePosixPath(path).as_posix() for path in one.files or ())


def _project(one: Distribution) -> str | None:
    """The project of *one*; None where it is no .dist-info that says so."""
    with suppress(WheelError):
        return canonicalize_name(Metadata.parse(one.read_text("METADATA") or "").name)
    return None


def _is_companion(one: Distribution) -> bool:
    with suppress(WheelError):
        metadata = Metadata.parse(one.read_text("METADATA") or "")
        return is_companion(metadata, WheelFile.parse(one.read_text("WHEEL") or ""))
    return False


def _is_elf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _names(path: str, file: Loading) -> set[str]:
    return {PurePosixPath(path).name, file.outline.soname or ""} - {""}


def _named(packages: Path, paths: Iterable[str], files: Mapping[str, Loading]) -> Iterator[str]:
    """The libraries whose names Python code has, as it does that opens them."""
    libraries = {path: _names(path, file) for path, file in files.items() if not file.modules}
    names = sorted({re.escape(name.encode()) for found in libraries.values() for name in found}, key=len, reverse=True)
    if not names:
        return
    pattern = re.compile(rb"(?<![\w.-])(?:" + b"|".join(names) + rb")(?![\w-]|\.\w)")
    said: set[str] = set()
    for path in paths:
        if path.endswith(".py"):
            said |= {match.decode() for match in pattern.findall((packages / path).read_bytes())}
    yield from (path for path, found in libraries.items() if found & said)


def _mentioned(files: Mapping[str, Loading]) -> Iterator[str]:
    """The libraries whose names other files have in their data."""
    said = {name for file in files.values() for name in file.mentioned}
    yield from (path for path, file in files.items() if _names(path, file) & said)


def _imports(paths: Iterable[str]) -> Iterator[str]:
    """The packages and modules at the top: ``demo`` of ``demo/__init__.py``, ``space.demo`` in a namespace package."""
    seen: set[str] = set()
    packages = {str(PurePosixPath(path).parent) for path in paths if re.search(r"/__init__\.(py|.*\.so)$", path)}
    modules = {match["name"] for path in paths if (match := _MODULE.fullmatch(path))}
    for folder in sorted(packages, key=lambda folder: (folder.count("/"), folder)):
        parts = folder.split("/")
        inside = any("/".join(parts[:depth]) in packages for depth in range(1, len(parts)))
        if not inside and all(part.isidentifier() for part in parts):
            seen.add(".".join(parts))
    yield from sorted(seen | modules)


_SECONDS = 300.0
_ABSENT = re.compile(r"(?P<name>[^\s:]+): cannot open shared object file")
# what dlopen says of a library that is there, and does not have what was linked against
_UNRESOLVED = re.compile(
    r"undefined symbol: .+|version `.+' not found|cannot open shared object file|symbol .+ not found"
)
_VERSIONED = re.compile(r"undefined symbol: .+, version |version `.+' not found")

_PROBE = """
import json, os, sys

def mapped():
    with open("/proc/self/maps") as lines:
        rows = [line.rstrip().split(None, 5) for line in lines]
    return {row[5] for row in rows if len(row) == 6 and "x" in row[1] and row[5].startswith("/")}

def causes(error):
    found, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (ImportError, OSError)):
            found.append(str(error))
        error = error.__cause__ or error.__context__
    return found

answer, path, *modules = sys.argv[1:]
told = {"error": None, "causes": [], "mapped": []}
try:
    for module in modules:
        __import__(module)
    if path:
        import ctypes
        before = mapped()
        ctypes.CDLL(path, os.RTLD_NOW)
        told["mapped"] = sorted(mapped() - before)
except BaseException as error:
    last = (str(error).strip().splitlines() or [""])[-1]
    told["error"] = last if path else f"{type(error).__name__}: {last}".removesuffix(": ")
    told["causes"] = causes(error)
with open(answer, "w", encoding="utf-8") as file:
    json.dump(told, file)
    file.flush()
    os._exit(0)
"""


class Answer(Struct, frozen=True):
    """What came of it: the last line of the *error*, the loader's own words among its *causes*.

    *mapped* are the files that were loaded for it, as the kernel names them. *killed_by* is the signal that ended the
    process.
    """

    error: str | None = None
    causes: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()
    killed_by: int | None = None

    @property
    def is_unable(self) -> bool:
        """Whether this machine's processor lacks instructions."""
        return self.killed_by == signal.SIGILL

    @property
    def has_crashed(self) -> bool:
        return self.killed_by is not None and not self.is_unable

    @property
    def absent(self) -> str | None:
        """The library that was not found."""
        return next((match["name"] for text in self.causes if (match := _ABSENT.search(text))), None)

    @property
    def unresolved(self) -> str | None:
        """What the loader said, where it found no library, symbol or version; None where something else was wrong."""
        return next((text for text in self.causes if _UNRESOLVED.search(text)), None)

    @property
    def lacks_symbol(self) -> bool:
        """Whether all libraries are there, and one symbol, without a version, is not."""
        said = self.unresolved
        return said is not None and self.absent is None and not _VERSIONED.search(said)


def opened(path: Path, python: Path, *, after: Sequence[str] = ()) -> Answer:
    """What comes of loading the file at *path* into *python*, the modules *after* imported first."""
    return _asked(python, str(path), after)


def imported(name: str, python: Path) -> Answer:
    """What comes of importing *name* in *python*."""
    return _asked(python, "", [name])


def _asked(python: Path, path: str, modules: Sequence[str]) -> Answer:
    clean = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="vbuild-probe-") as folder:
        answer = Path(folder) / "answer"
        command = [str(python), "-I", "-c", _PROBE, str(answer), path, *modules]
        try:
            ran = subprocess.run(
                command,
                env=clean,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer(f"took more than {_SECONDS:g} s")
        if not answer.exists():
            killed = -ran.returncode if ran.returncode < 0 else None
            return Answer(f"the process ended with {_ending(ran.returncode)}", killed_by=killed)
        told = json.loads(answer.read_text(encoding="utf-8"))
    return Answer(told["error"], tuple(told["causes"]), tuple(told["mapped"]))


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"
