"""What of an environment came out of a wheel and its companions: their ELF files, and what a user imports.

RECORD -> the ELF files the loader takes       -> roots: where loading begins
       -> packages and modules at the top      -> imports
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Self

from packaging.utils import canonicalize_name

from vbuild.binary.loading import Loading
from vbuild.binary.outline import MAGIC
from vbuild.checking.loader import mapped
from vbuild.errors import BinaryError, SplitError, WheelError
from vbuild.wheel.companion import is_companion
from vbuild.wheel.distinfo import Metadata, WheelFile

_MODULE = re.compile(r"(?P<name>[^\W\d]\w*)(?:\.py|(?:\.[\w-]+)?\.so)")


@dataclass(frozen=True, slots=True)
class Installation:
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
