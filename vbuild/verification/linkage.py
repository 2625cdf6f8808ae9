"""What the libraries of a wheel need from each other, from the platforms of its tags and from Python: `verify`'s rules.

RPATH, RUNPATH    relative to the library ($ORIGIN), not to the machine it was built on
NEEDED            in the wheel, or on the platform's list, or Python's own
symbols           defined by some library of the wheel or of the platform, or by Python

"In the wheel" is also what the wheels beside it have that it requires: see `vbuild.verification.required`.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from packaging.utils import canonicalize_name

from vbuild.binary.linkage import Edge, Via
from vbuild.config.requirements import read_requirement
from vbuild.dispatch.module import MODULE_ENTRIES
from vbuild.elf.catalogue import PlatformPolicy, by_soname, framework, glibc_symbols, has_glibc, is_driver, platforms_in
from vbuild.elf.code import Elf
from vbuild.elf.linkage import ORIGIN_TOKEN, edges_of, search_folders
from vbuild.files.wording import counted, shown
from vbuild.verification.built_against import AvailableRelease, TakenSymbols, available_releases, symbol_findings
from vbuild.verification.model import Finding, Severity, VerifyRule
from vbuild.verification.promises import late_symbols
from vbuild.verification.required import Fetch, RequiredWheel, required_wheels
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import LIBS

_SHOWN = 4
_WRITABLE_BY_ALL = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - refused, not used
# operators that leave later versions out
_CLOSED = frozenset({"==", "===", "~=", "<", "<="})
_FOUND = frozenset({Via.OWN, Via.INHERITED, Via.PLATFORM})
_WITHIN = frozenset({Via.OWN, Via.INHERITED})
# libraries that give each symbol a version; what Python, and the C++ library in namespace std and its runtime, define:
# https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling-compression
_VERSIONING = re.compile(
    r"(?:lib(?:c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|cudart)|ld-linux[\w-]*)\.so\.\d+$|libpython3"
)
_OF_RUNTIMES = re.compile(r"_?Py|_Z(?:T[VTISCh]|GV)?N?[rVK]*[RO]?S[absdiot]|_Z[nd][wal]|__cxa_|__gxx_")
_NO_CLAIMS: Mapping[str, Collection[str]] = {}


class LinkageCheck:
    def __init__(
        self,
        libraries: Mapping[str, Elf],
        platforms: Sequence[PlatformPolicy],
        *,
        requires: Sequence[str],
        is_split: bool = False,
        required: Sequence[RequiredWheel] = (),
        releases: Sequence[AvailableRelease] = (),
        claims: Mapping[str, Collection[str]] = _NO_CLAIMS,
    ) -> None:
        self._is_split = is_split
        self._releases = releases
        self._claims = claims
        self._libraries = libraries
        self._required = required
        self._platforms = platforms
        self._requires = [found for line in requires if (found := read_requirement(line))]
        everything = dict(libraries)
        owners = dict.fromkeys(libraries, "the wheel")
        for wheel in required:
            everything = {**wheel.libraries, **everything}
            owners = {**dict.fromkeys(wheel.libraries, wheel.name), **owners}
        self._edges: dict[str, list[Edge]] = {path: [] for path in everything}
        for edge in edges_of(everything, self._platforms):
            self._edges[edge.consumer].append(edge)
        self._is_glibc = bool(platforms) and all(platform.glibc for platform in platforms)
        self._given = frozenset().union(
            *(elf.exported for elf in libraries.values()),
            *(elf.exported for wheel in required if self._is_reached(wheel) for elf in wheel.libraries.values()),
        )
        # who has a library of that name, and in which folders
        self._homes: dict[str, dict[str, str]] = {}
        for path, elf in everything.items():
            for name in {posixpath.basename(path), elf.soname or ""} - {""}:
                self._homes.setdefault(name, {})[posixpath.dirname(path)] = owners[path]

    @classmethod
    def of(
        cls,
        wheel: Wheel,
        libraries: Mapping[str, Elf],
        *,
        is_split: bool = False,
        fetch: Fetch | None = None,
        claims: Mapping[str, Collection[str]] = _NO_CLAIMS,
        environment: Path | None = None,
    ) -> Self:
        """The check of *wheel*; if it lacks libraries, with what it requires, beside it, fetched or in *environment*.

        *claims* are the versions that it says it was built against, by project.
        """
        linked = {path: elf for path, elf in libraries.items() if elf.is_loadable}
        platforms, requires = platforms_in(wheel.name.platform), wheel.metadata().requires_dist
        check = cls(linked, platforms, requires=requires, is_split=is_split, claims=claims)
        ways = {edge.via for edges in check._edges.values() for edge in edges}
        if ways <= _FOUND:
            return check
        projects = {*claims, *(canonicalize_name(requirement.name) for requirement in check._requires)}
        projects |= {owner.project for elf in linked.values() for name in elf.needed if (owner := framework(name))}
        return cls(
            linked,
            platforms,
            requires=requires,
            is_split=is_split,
            required=[*required_wheels(wheel, fetch=fetch)],
            releases=[*available_releases(wheel, projects, environment)],
            claims=claims,
        )

    @property
    def beside(self) -> dict[str, Elf]:
        """The libraries of the required wheels."""
        return {path: elf for wheel in self._required for path, elf in wheel.libraries.items()}

    def findings(self) -> Iterator[Finding]:
        for path, elf in self._libraries.items():
            yield from _rpath_findings(path, elf)
            yield from self._needed_findings(path, elf)
            yield from self._undefined_findings(path, elf)
        yield from self._unpinned_findings()
        taken = [self._taken(path, elf) for path, elf in self._libraries.items()]
        yield from symbol_findings(taken, self._releases, self._claims, self._requires)
        for required in self._required:
            yield from self._required_findings(required)

    def _required_findings(self, required: RequiredWheel) -> Iterator[Finding]:
        findings = [*required.findings]
        used: set[str] = set()
        left = [*self._libraries]
        while left:
            edges = self._edges[left.pop()]
            found = {edge.provider for edge in edges if edge.via in _WITHIN and edge.provider in required.libraries}
            new = {path for path in found if path and path not in used}
            used |= new
            left += new
        for path in sorted(used):
            place, elf = f"{required.name}: {path}", required.libraries[path]
            findings += (
                Finding(Severity.ERROR, VerifyRule.SYMBOL_VERSION, (place,), message)
                for platform in self._platforms
                if (message := late_symbols(platform, elf.imports))
            )
            findings += self._needed_findings(path, elf, place=place)
        yield from findings
        if used and not findings:
            tags = ", ".join(platform.tag for platform in self._platforms)
            message = f"finds {counted(len(used), 'library')} of {required.name}, {required.place}, by RPATH"
            yield Finding(Severity.NOTE, VerifyRule.NEEDED, (), f"{message}; together they are {tags}")

    def _unpinned_findings(self) -> Iterator[Finding]:
        """Frameworks whose libraries are needed, of any version: their ABI changes."""
        linked: dict[str, tuple[str, str]] = {}
        for path, edges in self._edges.items():
            for edge in edges:
                if edge.via not in _FOUND and (found := framework(edge.name)):
                    linked.setdefault(found.project, (path, edge.name))
        for project, (path, name) in linked.items():
            stated = [requirement for requirement in self._requires if canonicalize_name(requirement.name) == project]
            if any(clause.operator in _CLOSED for requirement in stated for clause in requirement.specifier):
                continue
            found_there = f"requires {stated[0]}" if stated else f"does not require {project}"
            message = f"needs {name} and {found_there}: another {project} than it was built against may crash it"
            advice = f"require the one it was built against: {project}==X.Y.*; matrix.requires.{project} writes that"
            yield Finding(Severity.WARNING, VerifyRule.UNPINNED, (path,), message, advice)

    def _needed_findings(self, path: str, elf: Elf, *, place: str | None = None) -> Iterator[Finding]:
        places = (place or path,)
        # by the platform that lacks it, and what brings it
        absent: dict[tuple[str, str], list[str]] = {}
        is_elsewhere = self._requires or any(
            folder.startswith("..") for folder in search_folders(path, elf.search_path)
        )
        for edge in self._edges[path]:
            if edge.via in _FOUND:
                continue
            if homes := self._homes.get(edge.name):
                where, owner = ", ".join(sorted(homes)), homes[min(homes)]
                message = f"needs {edge.name}, which {owner} has in {where!r}, but no RPATH leads there"
                yield Finding(Severity.WARNING, VerifyRule.NEEDED, places, message)
            elif lacking := [tag.tag for tag in self._platforms if tag.promises and not tag.has(edge.name)]:
                is_required = is_elsewhere or (self._is_split and by_soname(edge.name))
                source = "the driver" if is_driver(edge.name) else "other packages" if is_required else ""
                absent.setdefault((lacking[0], source), []).append(edge.name)
        for (tag, source), names in absent.items():
            message = f"needs {', '.join(names)}: neither in the wheel nor part of {tag}"
            if source:
                projects = [requirement.name for requirement in self._requires if requirement.name.endswith(LIBS)]
                advice = (
                    f"put the wheel of {', '.join(projects)} beside it, or publish it and use --fetch"
                    if projects
                    else ""
                )
                yield Finding(Severity.WARNING, VerifyRule.NEEDED, places, f"{message}; expected from {source}", advice)
            else:
                advice = "bundle them (auditwheel repair), or require the packages that have them"
                yield Finding(Severity.ERROR, VerifyRule.NEEDED, places, f"{message}; {advice}")

    def _is_reached(self, wheel: RequiredWheel) -> bool:
        edges = (edge for path in self._libraries for edge in self._edges[path])
        return any(edge.via in _WITHIN and edge.provider in wheel.libraries for edge in edges)

    def _taken(self, path: str, elf: Elf) -> TakenSymbols:
        """What *elf* takes from libraries that are neither in the wheel nor of those that give symbols versions."""
        needed = {edge.name for edge in self._edges[path] if edge.via not in _WITHIN}
        symbols = {
            symbol.name
            for symbol in elf.imports
            if not (symbol.version or symbol.is_weak or symbol.name in self._given or _OF_RUNTIMES.match(symbol.name))
        }
        needs = frozenset(name for name in needed if not _VERSIONING.match(name))
        known = self._is_glibc and has_glibc()
        return TakenSymbols(path, needs, frozenset(symbols - glibc_symbols(symbols)), known)

    def _undefined_findings(self, path: str, elf: Elf) -> Iterator[Finding]:
        """What no library defines that *elf* is loaded with, if all that it needs is known.

        CPython binds each symbol when it loads a module. Libraries of glibc, gcc and CUDA give each a version, but
        modules not linked with glibc's get them through Python: names are this machine's.
        """
        taken = self._taken(path, elf)
        names = sorted(taken.symbols)
        if taken.needs or not taken.known or not names:
            return
        message = f"needs symbols that no library of the wheel or of the platform has: {shown(names, _SHOWN)}"
        is_module = any(name.startswith(MODULE_ENTRIES) for name in elf.exported)
        if not self._requires and is_module:
            advice = "the module cannot be imported; link the library or compile the file that defines them"
            yield Finding(Severity.ERROR, VerifyRule.UNDEFINED, (path,), message, advice)
        else:
            advice = "unless what loads it has them, it cannot be loaded"
            yield Finding(Severity.WARNING, VerifyRule.UNDEFINED, (path,), message, advice)


def _rpath_findings(path: str, elf: Elf) -> Iterator[Finding]:
    for kind, entries in (("RPATH", elf.rpath), ("RUNPATH", elf.runpath)):
        for entry in entries:
            if ORIGIN_TOKEN.match(entry):
                continue
            message = f"{kind} {entry!r}; expected a path relative to the library, $ORIGIN/..."
            if not entry.startswith("/"):
                text = f"{message}: the loader takes this one from the working directory"
                yield Finding(Severity.ERROR, VerifyRule.RPATH, (path,), text)
            elif f"{entry}/".startswith(_WRITABLE_BY_ALL):
                text = f"{message}: on another machine anybody can put a library there"
                yield Finding(Severity.ERROR, VerifyRule.RPATH, (path,), text)
            else:
                yield Finding(
                    Severity.WARNING, VerifyRule.RPATH, (path,), f"{message}: a path of the machine it was built on"
                )
