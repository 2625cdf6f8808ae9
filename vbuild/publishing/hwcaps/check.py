"""Check a folder of the layout hwcaps: copies have to be copies, and the loader has to take them.

    copy    a library for every processor exists, with the same SONAME and all of its exports; no instruction above
            the level; the same libraries of the wheel are found; the other one itself needs a lower level
    stub    no code, no symbols, one library, which exists, and which has the Python module that is asked for
    libvb_  a stub that leads to it, and a copy
    folder  of glibc-hwcaps: one that glibc knows, with libraries alone

A wheel whose fast copies are never taken passes every test, as slowly as before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from vbuild.binary.linkage import Edge, Via
from vbuild.elf.code import Elf
from vbuild.elf.hwcaps_folders import GLIBC_HWCAPS, UNKNOWN_FOLDER, baseline_of, level_of, missing_base, soname_fault
from vbuild.elf.interface import Interface, Versioned, digest
from vbuild.errors import VbuildError, at
from vbuild.hardware.cpu import Cpu
from vbuild.publishing.hwcaps.build import MOVED, missed
from vbuild.publishing.lint.index import index_problems, layout_problem, wheels_in
from vbuild.publishing.model import PublishRule
from vbuild.publishing.releases import OfferedWheel
from vbuild.splitting.bundle import Bundle, WheelReader
from vbuild.verification.levels import Claim, Levels
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.paths import installed_path

_problem = partial(layout_problem, "hwcaps")
_FOUND = (Via.OWN, Via.INHERITED)


def problems(folder: Path) -> Iterator[Finding]:
    """What is wrong with the wheels in *folder* and with its index."""
    wheels: list[OfferedWheel] = []
    yield from wheels_in(folder, wheels)
    if not wheels:
        yield _problem(PublishRule.ARCHIVE, folder.name, "has no wheel")
    for offered in wheels:
        try:
            with open_wheel(offered.path, check=True) as wheel:
                check = _WheelCheck(WheelReader(lambda *_: None).read(wheel))
                found = [f"{path}: {what}" for path, what in check.found()]
        except VbuildError as error:
            found = [str(error).removeprefix(f"{offered.path.name}: ")]
        yield from (_problem(PublishRule.LEVELS, offered.path.name, what) for what in found)
    yield from index_problems(folder)


@dataclass(frozen=True, eq=False)
class _WheelCheck:
    """A wheel's compiled files as the loader sees them; each thing that is wrong is a path and what it is."""

    bundle: Bundle

    def found(self) -> Iterator[tuple[str, str]]:
        """All that is wrong."""
        yield from self.strangers()
        yield from self.copies()
        yield from self.bases()
        yield from self.stubs()
        yield from self.lost()

    def strangers(self) -> Iterator[tuple[str, str]]:
        """The files in folders for levels that the loader cannot take, or looks for nowhere."""
        for member in self.bundle.wheel.members:
            path = installed_path(member.path) or member.path
            if GLIBC_HWCAPS not in path.split("/")[:-1]:
                continue
            if level_of(path) is None:
                yield path, UNKNOWN_FOLDER
            elif path not in self.bundle.binaries:
                yield path, self.bundle.damaged.get(member.path, "no library")

    def copies(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the copies for levels."""
        for path, piece in self.bundle.binaries.items():
            if (level := level_of(path)) is None:
                continue
            base = self.bundle.binaries.get(baseline_of(path))
            if base is None:
                yield path, missing_base(baseline_of(path))
                continue
            sonames = (piece.loading.outline.soname, base.loading.outline.soname)
            if fault := soname_fault(*sonames, where=base.path):
                yield path, fault
            # needed by a library of the wheel, or by the stub that leads to it
            users = {edge.consumer for edge in self.bundle.graph.consumers(base.path)}
            is_needed = any(user not in self._leading or self.bundle.graph.consumers(user) for user in users)
            symbols = self._interface(path).lacking(self._interface(base.path))
            if lacking := missed(symbols, base, self._taken, is_needed=is_needed):
                yield path, f"exports no {lacking[0]}, which {base.path} does"
            yield from self._unfound(path, base.path)
            yield from self._judged(path, Cpu("x86_64", level), base.path)

    @cached_property
    def _taken(self) -> frozenset[Versioned]:
        """What the files of the wheel take of others, each name with its version and without."""
        found = {symbol for path in self.bundle.binaries for symbol in self._interface(path).taken}
        return frozenset({*found, *(Versioned(symbol.name) for symbol in found)})

    def _unfound(self, path: str, base: str) -> Iterator[tuple[str, str]]:
        """The libraries of the wheel that the one at *base* finds, and its copy at *path* does not."""
        found = {edge.name: edge for edge in self.bundle.graph.needs(path)}
        for edge in self.bundle.graph.needs(base):
            own = found.get(edge.name)
            if own and edge.via in _FOUND and not _is_found(own):
                yield path, f"{edge.name} is not found from there; {base} finds {edge.provider}"
        for edge in found.values():
            if edge.via is Via.MISSING:
                yield path, f"{edge.name} is nowhere"

    def _judged(self, path: str, cpu: Cpu, other: str) -> Iterator[tuple[str, str]]:
        """What in the code at *path* is above *cpu*, but for what that at *other* has too."""
        elf = self._elf(other)
        levels = Levels({"code": self._elf(path)}, Claim(cpu, is_explicit=True), baseline=lambda _: elf)
        for _, findings in levels.verdicts():
            yield from ((path, finding.what) for finding in findings if finding.severity is Severity.ERROR)

    def bases(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the libraries for other processors, each checked against its copy for the lowest level."""
        for path, copy in self._lowest.items():
            level = str(level_of(copy))
            if self._code(path) == self._code(copy):
                yield path, f"the same code as its copy for {level}"
            yield from self._judged(path, Cpu("x86_64", level), copy)

    def _code(self, path: str) -> tuple[str, tuple[str, ...]]:
        with self.bundle.wheel.mapped(self.bundle.binaries[path].member) as data, at(path):
            return digest(data), self.bundle.binaries[path].loading.outline.needed

    @cached_property
    def _lowest(self) -> dict[str, str]:
        """The libraries that have copies, each with that of the lowest level."""
        pieces = self.bundle.binaries
        copies = sorted(((level_of(path) or "", path) for path in pieces), reverse=True)
        return {baseline_of(path): path for level, path in copies if level and baseline_of(path) in pieces}

    def stubs(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the files that lead to a library that was moved."""
        for path, edge in self._leading.items():
            elf = self._elf(path)
            if elf.code or elf.objects or elf.functions:
                yield path, f"leads to {edge.name}, and has code or symbols of its own; expected none"
            if not _is_found(edge):
                yield path, f"{edge.name} is not found from there"
                continue
            modules = self.bundle.binaries[str(edge.provider)].loading.modules
            name = path.rpartition("/")[2].partition(".")[0]
            if modules and name not in modules:
                yield path, f"leads to the module {modules[0]}; expected {name}"

    def lost(self) -> Iterator[tuple[str, str]]:
        """The libraries that were moved and that nothing leads to, or that moved for no copy."""
        # a stub that does not find its library has a finding of its own
        led = {edge.provider if _is_found(edge) else edge.name for edge in self._leading.values()}
        for path, piece in self.bundle.binaries.items():
            if not piece.name.startswith(MOVED) or GLIBC_HWCAPS in path.split("/"):
                continue
            if not {path, piece.name} & led:
                yield path, "no stub leads to it"
            elif path not in self._lowest:
                yield path, "no copy for any level"

    @cached_property
    def _leading(self) -> dict[str, Edge]:
        """The stubs, each with the NEEDED that it is there for."""
        return {
            edge.consumer: edge
            for edge in self.bundle.graph.edges
            if edge.name.startswith(MOVED) and level_of(edge.consumer) is None
        }

    def _interface(self, path: str) -> Interface:
        with self.bundle.wheel.mapped(self.bundle.binaries[path].member) as data, at(path):
            return Interface.parse(data)

    def _elf(self, path: str) -> Elf:
        with self.bundle.wheel.mapped(self.bundle.binaries[path].member) as data, at(path):
            return Elf.parse(data)


def _is_found(edge: Edge) -> bool:
    return edge.via in _FOUND and edge.provider is not None
