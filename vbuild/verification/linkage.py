"""What the libraries of a wheel need from each other, from the platforms of its tags and from Python: `verify`'s rules.

RPATH, RUNPATH    relative to the library ($ORIGIN), not to the machine it was built on
NEEDED            in the wheel, or on the platform's list, or Python's own
symbol versions   no newer than the platform tag allows
symbols           defined by some library of the wheel or of the platform, or by Python
"""

import ctypes
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Self

from packaging.utils import canonicalize_name

from vbuild.binary.linkage import Edge, Via
from vbuild.config.requirements import read_requirement
from vbuild.elf.catalogue import PlatformPolicy, by_soname, framework, is_driver
from vbuild.elf.code import Elf
from vbuild.elf.data import MODULE_ENTRIES
from vbuild.elf.linkage import ORIGIN_TOKEN, edges_of, searched
from vbuild.verification.model import Finding, Severity, VerifyRule
from vbuild.wheel.archive import Wheel

_WRITABLE_BY_ALL = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - refused, not used
_SHOWN = 4
# operators that leave later versions out
_CLOSED = frozenset({"==", "===", "~=", "<", "<="})
_FOUND = frozenset({Via.OWN, Via.INHERITED, Via.PLATFORM})
_WITHIN = frozenset({Via.OWN, Via.INHERITED})
# libraries that give each symbol a version; what Python defines
_VERSIONING = re.compile(
    r"(?:lib(?:c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|cudart)|ld-linux[\w-]*)\.so\.\d+$|libpython3"
)
_OF_PYTHON = re.compile(r"_?Py")


class LinkageCheck:
    """What the libraries of one wheel need from each other, and from the platforms of its tags."""

    def __init__(
        self,
        libraries: Mapping[str, Elf],
        platforms: Sequence[PlatformPolicy],
        *,
        requires: Sequence[str],
        is_split: bool = False,
    ) -> None:
        self._is_split = is_split
        self._libraries = libraries
        self._platforms = platforms
        self._requires = [found for line in requires if (found := read_requirement(line))]
        self._edges: dict[str, list[Edge]] = {path: [] for path in libraries}
        for edge in edges_of(libraries, self._platforms):
            self._edges[edge.consumer].append(edge)
        self._is_glibc = bool(platforms) and all(platform.glibc for platform in platforms)
        self._given = frozenset().union(*(elf.exported for elf in libraries.values()))
        self._homes: dict[str, set[str]] = {}
        for path, elf in libraries.items():
            for name in {posixpath.basename(path), elf.soname or ""} - {""}:
                self._homes.setdefault(name, set()).add(posixpath.dirname(path))

    @classmethod
    def of(cls, wheel: Wheel, libraries: Mapping[str, Elf], *, is_split: bool = False) -> Self:
        linked = {path: elf for path, elf in libraries.items() if elf.is_loadable}
        platforms = [platform for tag in wheel.name.platform.split(".") if (platform := PlatformPolicy.parse(tag))]
        return cls(linked, platforms, requires=wheel.metadata().requires_dist, is_split=is_split)

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with each library."""
        for path, elf in self._libraries.items():
            yield from _rpath_findings(path, elf)
            yield from self._needed_findings(path, elf)
            yield from self._version_findings(path, elf)
            yield from self._undefined_findings(path, elf)
        yield from self._unpinned_findings()

    def _unpinned_findings(self) -> Iterator[Finding]:
        """Yield each framework whose libraries are needed and that any version of is admitted: its ABI changes."""
        linked: dict[str, tuple[str, str]] = {}
        for path, edges in self._edges.items():
            for edge in edges:
                if edge.via not in _FOUND and (found := framework(edge.name)):
                    linked.setdefault(found.project, (path, edge.name))
        for project, (path, name) in linked.items():
            stated = [one for one in self._requires if canonicalize_name(one.name) == project]
            if any(one.operator in _CLOSED for requirement in stated for one in requirement.specifier):
                continue
            found_there = f"requires {stated[0]}" if stated else f"does not require {project}"
            what = f"needs {name} and {found_there}: another {project} than it was built against may crash it"
            advice = f"require the one it was built against: {project}==X.Y.*; matrix.requires.{project} writes that"
            yield Finding(Severity.WARNING, VerifyRule.UNPINNED, (path,), what, advice)

    def _needed_findings(self, path: str, elf: Elf) -> Iterator[Finding]:
        # by the platform that lacks it, and what brings it
        absent: dict[tuple[str, str], list[str]] = {}
        is_elsewhere = self._requires or any(folder.startswith("..") for folder in searched(path, elf.search_path))
        for edge in self._edges[path]:
            if edge.via in _FOUND:
                continue
            if homes := self._homes.get(edge.name):
                where = ", ".join(sorted(homes))
                what = f"needs {edge.name}, which the wheel has in {where!r}, but no RPATH leads there"
                yield Finding(Severity.WARNING, VerifyRule.NEEDED, (path,), what)
            elif lacking := [one.tag for one in self._platforms if one.promises and not one.has(edge.name)]:
                is_required = is_elsewhere or (self._is_split and by_soname(edge.name))
                source = "the driver" if is_driver(edge.name) else "other packages" if is_required else ""
                absent.setdefault((lacking[0], source), []).append(edge.name)
        for (tag, source), names in absent.items():
            what = f"needs {', '.join(names)}: neither in the wheel nor part of {tag}"
            if source:
                yield Finding(Severity.WARNING, VerifyRule.NEEDED, (path,), f"{what}; expected from {source}")
            else:
                advice = "bundle them (auditwheel repair), or require the packages that have them"
                yield Finding(Severity.ERROR, VerifyRule.NEEDED, (path,), f"{what}; {advice}")

    def _version_findings(self, path: str, elf: Elf) -> Iterator[Finding]:
        for platform in self._platforms:
            late: dict[str, list[str]] = {}
            for symbol in elf.imports:
                if symbol.version and platform.has(symbol.library or "") and not platform.has_version(symbol.version):
                    late.setdefault(symbol.version, []).append(symbol.name)
            if late and platform.promises:
                newest = ", ".join(f"{version} ({_first(names)})" for version, names in sorted(late.items()))
                what = f"needs symbols that are newer than {platform.tag}: {newest}"
                yield Finding(Severity.ERROR, VerifyRule.SYMBOL_VERSION, (path,), what)

    def _undefined_findings(self, path: str, elf: Elf) -> Iterator[Finding]:
        """Yield what no library defines that *elf* is loaded with, if all that it needs is known.

        CPython binds each symbol when it loads a module. Libraries of glibc, gcc and CUDA give each one a version, but
        Python brings those of glibc to modules that were not linked with them: their names are those of this machine's.
        """
        needed = {edge.name for edge in self._edges[path] if edge.via not in _WITHIN}
        if not self._is_glibc or not all(map(_VERSIONING.match, needed)):
            return
        names = [
            symbol.name
            for symbol in elf.imports
            if not (symbol.version or symbol.is_weak or symbol.name in self._given or _OF_PYTHON.match(symbol.name))
        ]
        system = _system_libraries() if names else ()
        names = [name for name in names if not any(hasattr(library, name) for library in system)]
        if not names or not system:
            return
        what = f"needs symbols that no library of the wheel or of the platform has: {_first(sorted(names))}"
        if not self._requires and any(name.startswith(MODULE_ENTRIES) for name in elf.exported):
            advice = "the module cannot be imported; link the library or compile the file that defines them"
            yield Finding(Severity.ERROR, VerifyRule.UNDEFINED, (path,), what, advice)
        else:
            advice = "unless what loads it has them, it cannot be loaded"
            yield Finding(Severity.WARNING, VerifyRule.UNDEFINED, (path,), what, advice)


@cache
def _system_libraries() -> tuple[ctypes.CDLL, ...]:
    """The libraries that CPython is linked with on Linux with glibc, on such a machine; else none."""
    try:
        return tuple(map(ctypes.CDLL, ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libutil.so.1")))
    except OSError:
        return ()


def _rpath_findings(path: str, elf: Elf) -> Iterator[Finding]:
    for kind, entries in (("RPATH", elf.rpath), ("RUNPATH", elf.runpath)):
        for entry in entries:
            if ORIGIN_TOKEN.match(entry):
                continue
            what = f"{kind} {entry!r}; expected a path relative to the library, $ORIGIN/..."
            if not entry.startswith("/"):
                text = f"{what}: the loader takes this one from the working directory"
                yield Finding(Severity.ERROR, VerifyRule.RPATH, (path,), text)
            elif f"{entry}/".startswith(_WRITABLE_BY_ALL):
                text = f"{what}: on another machine anybody can put a library there"
                yield Finding(Severity.ERROR, VerifyRule.RPATH, (path,), text)
            else:
                yield Finding(
                    Severity.WARNING, VerifyRule.RPATH, (path,), f"{what}: a path of the machine it was built on"
                )


def _first(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
