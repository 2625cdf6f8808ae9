"""Whether a library gets what it wants from the loader on every system of the wheel's platform.

RPATH, RUNPATH   relative to the library ($ORIGIN), not to the machine it was built on
NEEDED           in the wheel, or on the platform's list, or Python's own
symbol versions  no newer than the platform tag says
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

from vbuild.elf.file import Elf
from vbuild.elf.linkage import Edge, Via, edges_of, searched
from vbuild.elf.policy import PlatformPolicy
from vbuild.verification.model import Finding, Severity, VerifyRule

_ORIGIN = re.compile(r"^\$(?:ORIGIN|\{ORIGIN\})(?=/|$)")
_ANYBODYS = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - refused, not used
_SHOWN = 4
_FOUND = frozenset({Via.OWN, Via.INHERITED, Via.PLATFORM})


class Linkage:
    """What the libraries of one wheel offer one another, on the platforms of its tags."""

    def __init__(
        self, libraries: Mapping[str, Elf], platforms: Iterable[PlatformPolicy], *, has_requirements: bool
    ) -> None:
        self._libraries = libraries
        self._platforms = tuple(platforms)
        self._has_requirements = has_requirements
        self._edges: dict[str, list[Edge]] = {path: [] for path in libraries}
        for edge in edges_of(libraries, self._platforms):
            self._edges[edge.consumer].append(edge)
        self._homes: dict[str, set[str]] = {}
        for path, elf in libraries.items():
            for name in {posixpath.basename(path), elf.soname or ""} - {""}:
                self._homes.setdefault(name, set()).add(posixpath.dirname(path))

    def findings(self, path: str) -> Iterator[Finding]:
        """What is wrong with the library at *path*."""
        elf = self._libraries[path]
        yield from _paths(path, elf)
        yield from self._needed(path, elf)
        yield from self._versions(path, elf)

    def _needed(self, path: str, elf: Elf) -> Iterator[Finding]:
        for edge in self._edges[path]:
            if edge.via in _FOUND:
                continue
            if homes := self._homes.get(edge.name):
                where = ", ".join(sorted(homes))
                what = f"needs {edge.name}, which the wheel has in {where!r}, but no RPATH leads there"
                yield Finding(Severity.WARNING, VerifyRule.NEEDED, path, what)
            else:
                yield from self._lacking(path, elf, edge.name)

    def _lacking(self, path: str, elf: Elf, name: str) -> Iterator[Finding]:
        """What to say of a library that is not in the wheel, unless every platform has it."""
        lacking = [platform.tag for platform in self._platforms if platform.promises and not platform.has(name)]
        if lacking:
            what = f"needs {name}, which is neither in the wheel nor part of {lacking[0]}"
            folders = searched(path, elf.runpath or elf.rpath)
            if self._has_requirements or any(folder.startswith("..") for folder in folders):
                yield Finding(Severity.WARNING, VerifyRule.NEEDED, path, f"{what}; expected from another package")
            else:
                yield Finding(Severity.ERROR, VerifyRule.NEEDED, path, f"{what}; bundle it (auditwheel repair)")

    def _versions(self, path: str, elf: Elf) -> Iterator[Finding]:
        for platform in self._platforms:
            late: dict[str, list[str]] = {}
            for symbol in elf.imports:
                if symbol.version and platform.has(symbol.library or "") and not platform.has_version(symbol.version):
                    late.setdefault(symbol.version, []).append(symbol.name)
            if late and platform.promises:
                newest = ", ".join(f"{version} ({_some(names)})" for version, names in sorted(late.items()))
                what = f"needs symbols that are newer than {platform.tag}: {newest}"
                yield Finding(Severity.ERROR, VerifyRule.SYMBOL_VERSION, path, what)


def _paths(path: str, elf: Elf) -> Iterator[Finding]:
    for kind, entries in (("RPATH", elf.rpath), ("RUNPATH", elf.runpath)):
        for entry in entries:
            if _ORIGIN.match(entry):
                continue
            what = f"{kind} {entry!r}; expected a path relative to the library, $ORIGIN/..."
            if not entry.startswith("/"):
                text = f"{what}: the loader takes this one from the working directory"
                yield Finding(Severity.ERROR, VerifyRule.RPATH, path, text)
            elif f"{entry}/".startswith(_ANYBODYS):
                text = f"{what}: on another machine anybody can put a library there"
                yield Finding(Severity.ERROR, VerifyRule.RPATH, path, text)
            else:
                yield Finding(
                    Severity.WARNING, VerifyRule.RPATH, path, f"{what}: a path of the machine it was built on"
                )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
