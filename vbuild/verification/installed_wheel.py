"""The files of an installed wheel, and what happens when a process loads or imports them.

RECORD -> the ELF files that the loader takes   -> roots: where loading begins
       -> top-level packages and modules        -> imports

Each probe runs in a process of its own, which knows only where the file or the package is:

    path       dlopen with RTLD_NOW, as for an extension module: every symbol and version has to be there
    modules    import, as a user does it

inotify says which files of a folder any process opens:
https://man7.org/linux/man-pages/man7/inotify.7.html
"""

import ctypes
import errno
import json
import os
import re
import select
import signal
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Self

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.elf.read import Loading, mapped
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, RepackageError, WheelError
from vbuild.files.reading import open_file, read_file, read_text
from vbuild.process.python import isolated
from vbuild.wheel.installed import Environment, InstalledDistribution
from vbuild.wheel.metadata import WheelFile, is_companion

_WORD = re.compile(r"[^\W\d]\w*")
_MODULE = re.compile(r"(?P<name>[^\W\d]\w*)(?:\.py|(?:\.[\w-]+)?\.so)")
_SECONDS = 300.0
_ABSENT = re.compile(r"(?P<name>[^\s:]+): cannot open shared object file")
# what dlopen says of a missing library or symbol
_UNRESOLVED = re.compile(
    r"undefined symbol: .+|version `.+' not found|cannot open shared object file|symbol .+ not found"
)
_VERSIONED = re.compile(r"undefined symbol: .+, version |version `.+' not found")
_PROBE = """
import json, os, sys

def causes(error):
    found, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (ImportError, OSError)):
            found.append(str(error))
        error = error.__cause__ or error.__context__
    return found

result_file, path, *modules = sys.argv[1:]
result = {"error": None, "causes": []}
try:
    for module in modules:
        __import__(module)
    if path:
        import ctypes
        ctypes.CDLL(path, os.RTLD_NOW)
except BaseException as error:
    last = (str(error).strip().splitlines() or [""])[-1]
    result["error"] = last if path else f"{type(error).__name__}: {last}".removesuffix(": ")
    result["causes"] = causes(error)
with open(result_file, "w", encoding="utf-8") as file:
    json.dump(result, file)
    file.flush()
    os._exit(0)
"""
_IN_OPEN, _IN_ISDIR, _IN_Q_OVERFLOW = 0x20, 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16


class InstalledWheel(Struct, frozen=True):
    """The ELF files of a wheel and its companion wheels by path from site-packages.

    *named* are the wheel's libraries that Python code or another file names, and may open. *imports* are top-level
    packages and modules; *projects* all that are installed.
    """

    files: Mapping[str, Loading]
    named: frozenset[str]
    imports: tuple[str, ...]
    damaged: tuple[str, ...]
    projects: frozenset[str]

    @classmethod
    def of(cls, packages: Path, project: str) -> Self:
        """The files of *project* in *packages*; `RepackageError` if there are none."""
        installed = Environment(packages, (packages,)).distributions()
        own = [distribution for distribution in installed if canonicalize_name(distribution.project) == project]
        if not own:
            raise RepackageError(
                f"{project}: not in {packages.name} after it was installed there, expected its .dist-info"
            )
        listed = (row.path for distribution in (*own, *filter(_is_companion, installed)) for row in distribution.rows)
        paths = sorted({*listed})
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
        in_data = {name for file in files.values() for name in file.mentioned}
        named = {path for path, file in files.items() if _names(path, file) & in_data}
        named.update(_named_in_code(packages, paths, files))
        projects = frozenset(canonicalize_name(distribution.project) for distribution in installed)
        own_paths = sorted({row.path for distribution in own for row in distribution.rows})
        named.intersection_update(own_paths)
        return cls(files, frozenset(named), tuple(_imports(own_paths)), tuple(damaged), projects)

    def roots(self) -> tuple[str, ...]:
        """Where loading begins: modules, programs, named files, libraries that nothing needs."""
        needed = {name for file in self.files.values() for name in file.outline.needed}
        roots = (
            path
            for path, file in self.files.items()
            if file.modules or file.is_program or path in self.named or not _names(path, file) & needed
        )
        return tuple(sorted(roots))

    def modules(self, suffixes: Sequence[str]) -> Iterator[str]:
        """The extension modules for a Python with *suffixes*; a stub has its module in what it needs."""
        exports: dict[str, set[str]] = {}
        for path, file in self.files.items():
            exports.setdefault(PurePosixPath(path).name, set()).update(file.modules)
        for path, file in self.files.items():
            *folders, name = path.split("/")
            suffix = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
            parts = [*folders, name.removesuffix(suffix)] if suffix else []
            modules = set(file.modules).union(*(exports.get(need, ()) for need in file.outline.needed))
            if parts and parts[-1] in modules and all(_WORD.fullmatch(part) for part in parts):
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_companion(distribution: InstalledDistribution) -> bool:
    with suppress(WheelError, UnicodeDecodeError):
        wheel_file = distribution.read(f"{distribution.dist_info}/WHEEL").decode()
        return is_companion(distribution.metadata(), WheelFile.parse(wheel_file))
    return False


def _is_elf(path: Path) -> bool:
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _names(path: str, file: Loading) -> set[str]:
    return {PurePosixPath(path).name, file.outline.soname or ""} - {""}


def _named_in_code(packages: Path, paths: Iterable[str], files: Mapping[str, Loading]) -> Iterator[str]:
    libraries = {path: _names(path, file) for path, file in files.items() if not file.modules}
    every = {re.escape(name.encode()) for names in libraries.values() for name in names}
    names = sorted(every, key=len, reverse=True)
    if not names:
        return
    pattern = re.compile(rb"(?<![\w.-])(?:" + b"|".join(names) + rb")(?![\w-]|\.\w)")
    found_names: set[str] = set()
    for path in paths:
        if path.endswith(".py"):
            found_names |= {match.decode() for match in pattern.findall(read_file(packages / path))}
    yield from (path for path, own_names in libraries.items() if own_names & found_names)


def _imports(paths: Iterable[str]) -> Iterator[str]:
    """The top-level packages and modules: ``demo`` of ``demo/__init__.py``, ``space.demo`` in a namespace."""
    seen: set[str] = set()
    packages = {str(PurePosixPath(path).parent) for path in paths if re.search(r"/__init__\.(py|.*\.so)$", path)}
    modules = {match["name"] for path in paths if (match := _MODULE.fullmatch(path))}
    for folder in sorted(packages, key=lambda folder: (folder.count("/"), folder)):
        parts = folder.split("/")
        inside = any("/".join(parts[:depth]) in packages for depth in range(1, len(parts)))
        if not inside and all(part.isidentifier() for part in parts):
            seen.add(".".join(parts))
    yield from sorted(seen | modules)


class ProbeResult(Struct, frozen=True):
    """The last line of the *error*, and its *causes* with the loader's message."""

    error: str | None = None
    causes: tuple[str, ...] = ()
    killed_by: int | None = None

    @property
    def lacks_instructions(self) -> bool:
        return self.killed_by == signal.SIGILL

    @property
    def has_crashed(self) -> bool:
        return self.killed_by is not None and not self.lacks_instructions

    @property
    def absent(self) -> str | None:
        return next((match["name"] for text in self.causes if (match := _ABSENT.search(text))), None)

    @property
    def unresolved(self) -> str | None:
        return next((text for text in self.causes if _UNRESOLVED.search(text)), None)

    @property
    def lacks_symbol(self) -> bool:
        message = self.unresolved
        return message is not None and self.absent is None and not _VERSIONED.search(message)


def probed(python: Path, modules: Sequence[str], path: str | Path = "") -> ProbeResult:
    """What happens in a process of *python* that imports *modules*, and then loads the file at *path*, if given."""
    clean = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="vbuild-probe-") as folder:
        file = Path(folder) / "result"
        command = isolated("-c", _PROBE, str(file), str(path), *modules, python=python)
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
            return ProbeResult(f"took more than {_SECONDS:g} s")
        if not file.exists():
            killed_by = -ran.returncode if ran.returncode < 0 else None
            ending = signal.Signals(killed_by).name if killed_by else f"status {ran.returncode}"
            return ProbeResult(f"the process ended with {ending}", killed_by=killed_by)
        result = json.loads(read_text(file))
    return ProbeResult(result["error"], tuple(result["causes"]))


@contextmanager
def opened_files(folder: Path) -> Iterator[set[str]]:
    """Yield a set that has, after the block, the files below *folder* that were opened, by path from there.

    `RepackageError` if the system gives no more watches, or more files were opened than it can tell.
    """
    files: set[str] = set()
    libc = ctypes.CDLL(None, use_errno=True)
    watching = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if watching < 0:
        raise RepackageError(f"{folder}: what is opened there cannot be watched: {os.strerror(ctypes.get_errno())}")
    ending, end = os.pipe()
    try:
        places = {}
        for folder_below, _, _ in os.walk(folder):
            watch = libc.inotify_add_watch(watching, os.fsencode(folder_below), _IN_OPEN)
            if watch < 0:
                raise RepackageError(f"{folder_below}: cannot be watched: {_reason(ctypes.get_errno())}")
            places[watch] = Path(folder_below).relative_to(folder)
        lost = threading.Event()
        reader = threading.Thread(target=_read, args=(watching, ending, places, files, lost))
        reader.start()
        try:
            yield files
        finally:
            os.write(end, b"0")
            reader.join()
        if lost.is_set():
            raise RepackageError(f"{folder}: more files were opened there than the system tells")
    finally:
        for descriptor in (watching, ending, end):
            os.close(descriptor)


def _read(watching: int, ending: int, places: dict[int, Path], files: set[str], lost: threading.Event) -> None:
    while True:
        ready, _, _ = select.select([watching, ending], [], [])
        if watching in ready:
            data, offset = os.read(watching, _BUFFER), 0
            while offset < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, offset)
                name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
                offset += _EVENT.size + length
                if mask & _IN_Q_OVERFLOW:
                    lost.set()
                elif name and not mask & _IN_ISDIR:
                    files.add((places[watch] / os.fsdecode(name)).as_posix())
        elif ending in ready:
            return


def _reason(number: int) -> str:
    if number == errno.ENOSPC:
        return "no more watches; expected a larger /proc/sys/fs/inotify/max_user_watches"
    return os.strerror(number)
