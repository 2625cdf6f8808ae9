"""What becomes of every bundled library: decided for all wheels together, before a byte is written.

named, kept, unneeded, needed from where no RPATH leads     stays, with the reason
what names or needs one that stays                          stays
an official library, byte for byte                          replaced by a requirement
the same file in several wheels, and all it needs moves     shared
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import is_driver
from vbuild.elf.hwcaps_folders import replaced_library
from vbuild.elf.library_names import plain
from vbuild.elf.linkage import Via
from vbuild.errors import RepackageError
from vbuild.splitting.bundle import Bundle, BundledLibrary
from vbuild.splitting.companion import libs_project
from vbuild.splitting.official import Provenance, Unproved
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.requirements import conflict
from vbuild.splitting.sharing import Pool, pools
from vbuild.wheel.metadata import LIBS

# the folder in which toolkits keep what links stand-ins for the driver
_STUBS = "stubs"


class DecisionKind(StrEnum):
    """What becomes of a library."""

    KEEP = "keep"
    REPLACE = "replace"
    SHARE = "share"
    DROP = "drop"


class LibraryDecision(Struct, frozen=True):
    """What becomes of one library, and why: *reason* says why it is not replaced, or not moved at all."""

    kind: DecisionKind
    reason: str = ""
    provenance: Provenance | None = None
    pool: Pool | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the wheel no longer has it."""
        return self.kind is not DecisionKind.KEEP


# why files cannot be edited, by wheel and path: what they need has to stay
Frozen = Mapping[tuple[Bundle, str], str]


class Decision(Struct, frozen=True, eq=False):
    """The fates of all libraries of each wheel, by path, and the pools of those that are shared."""

    fates: Mapping[Bundle, Mapping[str, LibraryDecision]]
    pools: tuple[Pool, ...] = ()

    def fate(self, bundle: Bundle, path: str) -> LibraryDecision:
        """What becomes of the file at *path*; one that is no library stays."""
        return self.fates[bundle].get(path) or LibraryDecision(DecisionKind.KEEP)

    def pool_of(self, bundle: Bundle) -> Pool | None:
        """The pool in which *bundle* takes part."""
        return _pool_of(bundle, self.pools)


def _pool_of(bundle: Bundle, found: Iterable[Pool]) -> Pool | None:
    return next((pool for pool in found if bundle in pool.bundles), None)


def check_drivers(bundles: Sequence[Bundle]) -> None:
    """`RepackageError` where a wheel brings a library that has to be that of the machine's own driver."""
    for bundle in bundles:
        for piece in bundle.libraries:
            name = plain(piece.name)
            if is_driver(name) and piece.folder.rpartition("/")[2] != _STUBS:
                raise RepackageError(
                    f"{bundle.wheel.path.name}: {piece.path}: bundles {name}, which has to be that of the machine's "
                    f"own driver; leave it out with `auditwheel repair --exclude {name}`"
                )


def decided(bundles: Sequence[Bundle], request: SplitRequest, *, frozen: Frozen | None = None) -> Decision:
    """What becomes of the libraries of *bundles*; those that *frozen* files need stay."""
    company = _Company.of(bundles)
    ballots = {bundle: _Ballot(bundle, request, frozen or {}, company) for bundle in bundles}
    for ballot in ballots.values():
        ballot.vote()
    found: tuple[Pool, ...] = ()
    while request.share:
        for ballot in ballots.values():
            ballot.close()
        found = pools({bundle: ballot.movable for bundle, ballot in ballots.items()}, smallest=request.smallest)
        left = {ballot: ballot.left(found) for ballot in ballots.values()}
        if not any(left.values()):
            break
        # what found no pool stays, and what needs it has to stay as well
        for ballot, reasons in left.items():
            ballot.keep(reasons)
    return Decision({bundle: ballot.fates(found) for bundle, ballot in ballots.items()}, found)


class _Company(Struct, frozen=True):
    """In how many wheels each library is, and how many different ones have each file name."""

    wheels: Mapping[tuple[str, str], int]
    contents: Mapping[str, int]

    @classmethod
    def of(cls, bundles: Sequence[Bundle]) -> Self:
        wheels = Counter(key for bundle in bundles for key in {piece.key for piece in bundle.libraries})
        return cls(wheels, Counter(name for name, _ in wheels))


def _project(line: str) -> str:
    """What the requirement *line* asks for, as package indexes spell it; nothing where it cannot be read."""
    with suppress(InvalidRequirement):
        return canonicalize_name(Requirement(line).name)
    return ""


@dataclass(slots=True, eq=False)
class _Ballot:
    """The fates of one wheel's libraries while they are decided."""

    bundle: Bundle
    request: SplitRequest
    frozen: Frozen
    company: _Company
    settled: dict[str, LibraryDecision] = field(default_factory=dict)
    pending: dict[str, BundledLibrary] = field(default_factory=dict)

    @property
    def movable(self) -> tuple[BundledLibrary, ...]:
        return tuple(self.pending.values())

    def vote(self) -> None:
        """Settle what no other wheel has a say in."""
        for piece in self.bundle.libraries:
            if (obstacle := self._obstacle(piece)) is not None:
                self.settled[piece.path] = LibraryDecision(DecisionKind.KEEP, obstacle)
            elif isinstance(piece.origin, Provenance) and not self._conflict(piece, piece.origin):
                self.settled[piece.path] = self._official(piece, piece.origin)
            elif (frozen := self.frozen.get((self.bundle, piece.path))) is not None:
                self.settled[piece.path] = LibraryDecision(DecisionKind.KEEP, f"it cannot be edited: {frozen}")
            else:
                self.pending[piece.path] = piece
        if self.pending and (line := self._required_already()):
            self.keep(
                dict.fromkeys(self.pending, f"METADATA requires {line} already; say with --libs what else to call it")
            )
        self._drop_unneeded()

    def _required_already(self) -> str | None:
        """The line of METADATA that asks for a dependency wheel of the name that this one's would have."""
        name = libs_project((self.request.libs or self.bundle.wheel.name.project).removesuffix(LIBS))
        metadata = self.bundle.wheel.metadata()
        return next((line for line in metadata.requires_dist if _project(line) == name), None)

    def _obstacle(self, piece: BundledLibrary) -> str | None:
        """Why *piece* cannot leave the wheel."""
        if self.request.keeps(piece.path):
            return "kept as asked"
        if not self.bundle.platforms:
            return "the wheel's tag names no machine"
        if namer := self.bundle.namer(piece):
            return f"{namer} names it, and may open it by its path"
        if base := replaced_library(piece.path):
            return f"newer CPUs load it in the stead of {base}"
        if not self.bundle.graph.consumers(piece.path):
            return "nothing in the wheel needs it"
        return next(self._hindrances(piece), None)

    def _hindrances(self, piece: BundledLibrary) -> Iterator[str]:
        """What is wrong with those that need *piece*: they could not find it elsewhere."""
        for path in self._outsiders(piece):
            yield f"{path} needs it, from where no RPATH leads to site-packages"
        if better := self.bundle.better.get(piece.path):
            yield f"newer CPUs load {better} in its stead"
        for edge in self.bundle.graph.consumers(piece.path):
            if edge.via is Via.NAME:
                yield f"{edge.consumer} needs it, and finds it only where something has opened it before"
            if why := self.frozen.get((self.bundle, edge.consumer)):
                yield f"{edge.consumer} cannot be edited: {why}"

    def _outsiders(self, piece: BundledLibrary) -> Iterator[str]:
        """The files outside of site-packages that need *piece*; their NEEDED may be a path."""
        names = {piece.name, piece.loading.outline.soname}
        for path, loading in self.bundle.elsewhere.items():
            if not names.isdisjoint(name.rpartition("/")[2] for name in loading.outline.needed):
                yield path

    def _official(self, piece: BundledLibrary, origin: Provenance) -> LibraryDecision:
        """The fate of *piece*, which is of the official wheel *origin* and can be had from there.

        There it opens what is beside it. What it opens here and official wheels do not have, it would open no more.
        """
        there = {library.soname for library in origin.wheel.libraries}
        for other in self.bundle.opened.get(piece.path, ()):
            if not isinstance(other.origin, Provenance) and plain(other.name) not in there:
                return LibraryDecision(
                    DecisionKind.KEEP, f"may open {other.name}, which is not in {origin.wheel.project}"
                )
        return LibraryDecision(DecisionKind.REPLACE, provenance=origin)

    def _conflict(self, piece: BundledLibrary, origin: Provenance) -> str | None:
        """Why the wheel cannot require the official one that *piece* is."""
        machine, version = piece.loading.outline.machine, origin.wheel.version
        line = conflict(self.bundle.wheel.metadata(), origin.wheel.project, version, machine=machine)
        return (
            f"not replaced: it is that of {origin.wheel.project} {version}, but METADATA requires {line}"
            if line
            else None
        )

    def _drop_unneeded(self) -> None:
        """Let go of what a repair tool brought and nothing needs, and then of what only that needed."""
        while self.request.drop_unneeded and (found := self._unneeded()):
            for path in found:
                self.pending.pop(path, None)
                self.settled[path] = LibraryDecision(DecisionKind.DROP, "nothing in the wheel needs it")

    def _unneeded(self) -> list[str]:
        dropped = {path for path, fate in self.settled.items() if fate.kind is DecisionKind.DROP}
        return [
            piece.path
            for piece in self.bundle.libraries
            if piece.is_bundled
            and piece.path not in dropped
            and self.bundle.platforms
            and not (self.request.keeps(piece.path) or self.bundle.namer(piece) or any(self._outsiders(piece)))
            and not (piece.path in self.bundle.better or replaced_library(piece.path))
            and {edge.consumer for edge in self.bundle.graph.consumers(piece.path)} <= dropped
        ]

    def close(self) -> None:
        """Keep what needs or opens something that stays in the wheel: no dependency wheel can depend on it in turn."""
        while found := dict(self._held_back()):
            self.keep(found)

    def _held_back(self) -> Iterator[tuple[str, str]]:
        for path in self.pending:
            for edge in self.bundle.graph.needs(path):
                if edge.provider and self._stays(edge.provider):
                    yield path, f"needs {edge.name}, which stays in the wheel"
                if not edge.provider and edge.name.startswith("$"):
                    yield path, f"needs {edge.name}, a path from where it is"
            # what is named is never among those that go
            for piece in self.bundle.opened.get(path, ()):
                yield path, f"may open {piece.name}, which stays in the wheel"

    def _stays(self, path: str) -> bool:
        return path not in self.pending and not self.settled.get(path, LibraryDecision(DecisionKind.KEEP)).is_gone

    def left(self, found: Sequence[Pool]) -> dict[str, str]:
        """Those that are in none of the pools *found*, and why."""
        pool = _pool_of(self.bundle, found)
        keys = {piece.key for piece in pool.pieces.values()} if pool else set()
        return {path: self._why_alone(piece) for path, piece in self.pending.items() if piece.key not in keys}

    def _why_alone(self, piece: BundledLibrary) -> str:
        if not self.request.share:
            return "sharing is not asked for"
        if sum(other.name == piece.name for other in self.bundle.libraries) > 1:
            return "the wheel has another file of its name"
        if self.company.wheels[piece.key] > 1:
            return "sharing it would save too little, or it is not in wheels of one platform"
        if self.company.contents[piece.name] > 1:
            return "other wheels have another file of its name"
        return "no other wheel has it"

    def keep(self, reasons: Mapping[str, str]) -> None:
        for path, reason in reasons.items():
            self.pending.pop(path, None)
            self.settled[path] = LibraryDecision(DecisionKind.KEEP, reason)

    def fates(self, found: Sequence[Pool]) -> dict[str, LibraryDecision]:
        """The fates of all, with the reason why one that might have been replaced is not."""
        pool = _pool_of(self.bundle, found)
        fates = dict(self.settled)
        for path, piece in self.pending.items():
            fates[path] = (
                LibraryDecision(DecisionKind.SHARE, pool=pool)
                if pool
                else LibraryDecision(DecisionKind.KEEP, self._why_alone(piece))
            )
        for piece in self.bundle.libraries:
            fate = fates[piece.path]
            if (why := self._why_not_official(piece)) and fate.kind is not DecisionKind.REPLACE:
                fates[piece.path] = LibraryDecision(
                    fate.kind, "; ".join(filter(None, (why, fate.reason))), pool=fate.pool
                )
        return dict(sorted(fates.items()))

    def _why_not_official(self, piece: BundledLibrary) -> str | None:
        match piece.origin:
            case Unproved(reason=reason):
                return f"not replaced: {reason}"
            case Provenance():
                return self._conflict(piece, piece.origin)
            case _:
                return None
