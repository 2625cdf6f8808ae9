"""Check that the binaries in a wheel are what its tags promise, and that the loader finds what they need.

any, Root-Is-Purelib   no binaries at all
x86_64, aarch64 ...    binaries for that machine
cp311, abi3, none      extension modules that such a Python imports
RPATH, RUNPATH         relative to the library ($ORIGIN), not to the machine it was built on
NEEDED                 in the wheel, or on the platform's list, or Python's own
symbol versions        no newer than the platform tag allows
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from vbuild.elf.code import Elf
from vbuild.elf.linkage import Edge, Via, edges_of, searched
from vbuild.elf.policy import PlatformPolicy
from vbuild.verification.model import Finding, Severity, VerifyRule
from vbuild.wheel.archive import Wheel

_ORIGIN = re.compile(r"^\$(?:ORIGIN|\{ORIGIN\})(?=/|$)")
_WRITABLE_BY_ALL = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - refused, not used
_SHOWN = 4
_FOUND = frozenset({Via.OWN, Via.INHERITED, Via.PLATFORM})
# foo.cpython-311-x86_64-linux-gnu.so: only that Python looks for it (PEP 3149)
_TAGGED = re.compile(r"\.cpython-(?P<version>\d+)(?P<flags>[a-z]*)-[\w-]+\.so$")
_ABI_TAG = re.compile(r"cp(?P<module>\d+[a-z]*)")
# i386 to i686, armv6l to armv8l: one instruction set to ELF
_KINDS = (re.compile(r"i[3-6]86"), re.compile(r"armv[678]l"))


def content_findings(wheel: Wheel, libraries: Mapping[str, Elf]) -> Iterator[Finding]:
    """Yield each contradiction between the *libraries* of *wheel* and its tags or its WHEEL file."""
    tags = wheel.name.platform.split(".")
    linked = {path: elf for path, elf in libraries.items() if elf.is_loadable}
    if linked and "any" in tags:
        what = f"{len(linked)} binaries, {next(iter(linked))} first, in a wheel for any platform"
        yield Finding(Severity.ERROR, VerifyRule.PURE, (), f"{what}; expected a platform tag")
    elif linked and wheel.wheel_file().root_is_purelib:
        what = "Root-Is-Purelib is true in a wheel with binaries; expected false (they belong to the platform's folder)"
        yield Finding(Severity.WARNING, VerifyRule.PURE, (), what)
    machines = {platform.machine for tag in tags if (platform := PlatformPolicy.parse(tag))}
    for path, elf in linked.items():
        if machines and not any(
            tag == elf.machine or any(kind.fullmatch(tag) and kind.fullmatch(elf.machine) for kind in _KINDS)
            for tag in machines
        ):
            what = f"code for {elf.machine} in a wheel for {', '.join(sorted(machines))}"
            yield Finding(Severity.ERROR, VerifyRule.MACHINE, (path,), what)
    yield from _module_findings(wheel, linked)


def _module_findings(wheel: Wheel, paths: Iterable[str]) -> Iterator[Finding]:
    """Yield the extension modules that no Python of the wheel's tags looks for, or only one of many."""
    modules: dict[str, dict[str, str]] = {}
    for path in paths:
        if match := _TAGGED.search(path):
            modules.setdefault(path[: match.start()], {})[match["version"] + match["flags"]] = path
    abis = wheel.name.abi.split(".")
    exact = {found["module"] for abi in abis if (found := _ABI_TAG.fullmatch(abi))}
    for copies in modules.values():
        module, path = next(iter(copies.items()))
        what = f"an extension module of CPython {module} only, in a wheel for {wheel.name.python}-{wheel.name.abi}"
        if exact and exact.isdisjoint(copies):
            yield Finding(Severity.ERROR, VerifyRule.EXTENSION, (path,), f"{what}, which does not look for it")
        elif not exact and len(copies) == 1:
            what += "; expected .abi3.so, or a copy for each"
            yield Finding(Severity.WARNING, VerifyRule.EXTENSION, (path,), what)


class LinkageCheck:
    """What the libraries of one wheel need from each other, and from the platforms of its tags."""

    def __init__(
        self, libraries: Mapping[str, Elf], platforms: Sequence[PlatformPolicy], *, has_requirements: bool
    ) -> None:
        self._libraries = libraries
        self._platforms = platforms
        self._has_requirements = has_requirements
        self._edges: dict[str, list[Edge]] = {path: [] for path in libraries}
        for edge in edges_of(libraries, self._platforms):
            self._edges[edge.consumer].append(edge)
        self._homes: dict[str, set[str]] = {}
        for path, elf in libraries.items():
            for name in {posixpath.basename(path), elf.soname or ""} - {""}:
                self._homes.setdefault(name, set()).add(posixpath.dirname(path))

    @classmethod
    def of(cls, wheel: Wheel, libraries: Mapping[str, Elf]) -> Self:
        linked = {path: elf for path, elf in libraries.items() if elf.is_loadable}
        platforms = [platform for tag in wheel.name.platform.split(".") if (platform := PlatformPolicy.parse(tag))]
        return cls(linked, platforms, has_requirements=bool(wheel.metadata().requires_dist))

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with each library."""
        for path, elf in self._libraries.items():
            yield from _rpath_findings(path, elf)
            yield from self._needed_findings(path, elf)
            yield from self._version_findings(path, elf)

    def _needed_findings(self, path: str, elf: Elf) -> Iterator[Finding]:
        for edge in self._edges[path]:
            if edge.via in _FOUND:
                continue
            if homes := self._homes.get(edge.name):
                where = ", ".join(sorted(homes))
                what = f"needs {edge.name}, which the wheel has in {where!r}, but no RPATH leads there"
                yield Finding(Severity.WARNING, VerifyRule.NEEDED, (path,), what)
            else:
                yield from self._absent_findings(path, elf, edge.name)

    def _absent_findings(self, path: str, elf: Elf, name: str) -> Iterator[Finding]:
        """Yield a finding about *name*, a library that is not in the wheel, unless every platform has it."""
        lacking = [platform.tag for platform in self._platforms if platform.promises and not platform.has(name)]
        if lacking:
            what = f"needs {name}, which is neither in the wheel nor part of {lacking[0]}"
            folders = searched(path, elf.runpath or elf.rpath)
            if self._has_requirements or any(folder.startswith("..") for folder in folders):
                yield Finding(Severity.WARNING, VerifyRule.NEEDED, (path,), f"{what}; expected from another package")
            else:
                yield Finding(Severity.ERROR, VerifyRule.NEEDED, (path,), f"{what}; bundle it (auditwheel repair)")

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


def _rpath_findings(path: str, elf: Elf) -> Iterator[Finding]:
    for kind, entries in (("RPATH", elf.rpath), ("RUNPATH", elf.runpath)):
        for entry in entries:
            if _ORIGIN.match(entry):
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
