"""What is wrong with a folder of the layout hwcaps: copies that are no copies, or that the loader never takes.

    copy    a library for every processor beside it, one SONAME, whatever that exports, no instruction above its level,
            and each library of the wheel that the other one finds
    stub    no code, no symbols, one library, which is there, and which has the Python module that is asked for
    libvb_  a stub that leads to it

A wheel whose fast copies are never taken passes every test, as slowly as before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vbuild.binary.elf import Elf
from vbuild.binary.interface import Interface, Versioned
from vbuild.errors import VbuildError, at
from vbuild.hardware.cpu import Cpu
from vbuild.layout.indexes import index_problems, wheels_in
from vbuild.layout.offer import Offered
from vbuild.linkage.graph import Edge, Via
from vbuild.linkage.hwcaps import baseline_of, level_of
from vbuild.linkage.names import hashed
from vbuild.publishing.model import Demand, Problem
from vbuild.splitting.bundle import Bundle, Piece, Reader
from vbuild.verdict.levels import Claim, Levels
from vbuild.verdict.model import Severity
from vbuild.wheel.archive import open_wheel

_AGAIN = "publish the wheels again into an empty folder: vbuild publish --layout hwcaps"
_MOVED = "libvb_"
_FOUND = (Via.OWN, Via.INHERITED)


def problems(folder: Path) -> Iterator[Problem]:
    """What is wrong with the wheels in *folder* and with its index."""
    wheels: list[Offered] = []
    yield from wheels_in(folder, wheels)
    if not wheels:
        yield Problem(Demand.ARCHIVE, (folder.name,), "has no wheel", _AGAIN, is_error=True)
    for offered in wheels:
        try:
            with open_wheel(offered.path, check=True) as wheel:
                proof = _Proof(Reader(lambda *_: None).read(wheel))
                found = [f"{path}: {what}" for path, what in (*proof.copies(), *proof.stubs(), *proof.lost())]
        except VbuildError as error:
            found = [str(error).removeprefix(f"{offered.path.name}: ")]
        for what in found:
            yield Problem(Demand.LEVELS, (offered.path.name,), what, _AGAIN, is_error=True)
    yield from index_problems(folder)


@dataclass(frozen=True, eq=False)
class _Proof:
    """A wheel's compiled files as the loader sees them; each thing that is wrong is a path and what it is."""

    bundle: Bundle

    def copies(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the copies for levels."""
        for path, piece in self.bundle.pieces.items():
            if (level := level_of(path)) is None:
                continue
            base = self.bundle.pieces.get(baseline_of(path))
            if base is None:
                yield path, "no library for other processors in its folder's parent"
                continue
            if (one := piece.loading.outline.soname) != (other := base.loading.outline.soname):
                yield path, f"SONAME {one or 'none'}, expected {other or 'none'} as in {base.path}"
            if lacking := self._lacking(path, base):
                yield path, f"exports no {lacking[0]}, which {base.path} does"
            yield from self._unfound(path, base.path)
            yield from self._code(path, Cpu("x86_64", level))

    def _lacking(self, path: str, base: Piece) -> list[Versioned]:
        """The symbols of *base* that its copy at *path* has not, and that somebody may take."""
        found = self._interface(path).lacking(self._interface(base.path))
        # nobody outside of the wheel knows a name with a hash; what was moved is opened by who knows
        is_own = hashed(base.name) and not base.name.startswith(_MOVED)
        return [one for one in found if not is_own or one in self._taken]

    @cached_property
    def _taken(self) -> frozenset[Versioned]:
        """What the files of the wheel take of others, each name with its version and without."""
        found = {symbol for path in self.bundle.pieces for symbol in self._interface(path).taken}
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

    def _code(self, path: str, cpu: Cpu) -> Iterator[tuple[str, str]]:
        base = self._elf(baseline_of(path))
        levels = Levels({"copy": self._elf(path)}, Claim(cpu, is_explicit=True), baseline=lambda _: base)
        for _, findings in levels.verdicts():
            yield from ((path, finding.what) for finding in findings if finding.severity is Severity.ERROR)

    def stubs(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the files that lead to a library that was moved."""
        for path, edge in self._leading.items():
            elf = self._elf(path)
            if elf.code or elf.objects or elf.functions:
                yield path, f"leads to {edge.name}, and has code or symbols of its own; expected none"
            if not _is_found(edge):
                yield path, f"{edge.name} is not found from there"
                continue
            modules = self.bundle.pieces[str(edge.provider)].loading.modules
            name = path.rpartition("/")[2].partition(".")[0]
            if modules and name not in modules:
                yield path, f"leads to the module {modules[0]}; expected {name}"

    def lost(self) -> Iterator[tuple[str, str]]:
        """The libraries that were moved and that nothing leads to."""
        led = {edge.name for edge in self._leading.values()}
        for path, piece in self.bundle.pieces.items():
            if piece.name.startswith(_MOVED) and level_of(path) is None and piece.name not in led:
                yield path, "no stub leads to it"

    @cached_property
    def _leading(self) -> dict[str, Edge]:
        """The stubs, each with the NEEDED that it is there for."""
        return {
            edge.consumer: edge
            for edge in self.bundle.graph.edges
            if edge.name.startswith(_MOVED) and level_of(edge.consumer) is None
        }

    def _interface(self, path: str) -> Interface:
        with self.bundle.wheel.mapped(self.bundle.pieces[path].member) as data, at(path):
            return Interface.parse(data)

    def _elf(self, path: str) -> Elf:
        with self.bundle.wheel.mapped(self.bundle.pieces[path].member) as data, at(path):
            return Elf.parse(data)


def _is_found(edge: Edge) -> bool:
    return edge.via in _FOUND and edge.provider is not None
