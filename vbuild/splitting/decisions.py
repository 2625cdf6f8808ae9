"""Decide what becomes of every bundled library, for all wheels together, before a byte is written.

kept, unneeded, needed from where no RPATH leads            stays, with the reason
named, and no stub can take its place (`stubs`)             stays
names or needs one that stays                               stays
an official library, by its hash (`OfficialEvidence`)       replaced by a requirement
the same file in several wheels, and all it needs moves     shared

Shared libraries go to one -libs wheel for each pool of wheels (`vbuild.splitting.pools`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.linkage import Via
from vbuild.config.requirements import required_project
from vbuild.elf.catalogue import is_driver, plain
from vbuild.elf.hwcaps_folders import replaced_library
from vbuild.errors import RepackageError
from vbuild.splitting.bundle import Bundle, WheelBinary
from vbuild.splitting.companion import libs_project
from vbuild.splitting.official import Provenance
from vbuild.splitting.other_packages import conflict
from vbuild.splitting.pools import Key, Pool, planned_pools, pool_of
from vbuild.splitting.request import SplitRequest, StubPolicy
from vbuild.splitting.stubs import asks_own_place, stub_doubt, stub_obstacle
from vbuild.wheel.metadata import LIBS

# toolkits keep stand-ins for the driver's libraries in this folder, to link against
_STUBS = "stubs"


class DecisionKind(StrEnum):
    """What becomes of a library."""

    KEEP = "keep"
    REPLACE = "replace"
    SHARE = "share"
    DROP = "drop"


class LibraryDecision(Struct, frozen=True):
    """What becomes of one library; *reason* says why it is not replaced, or not moved at all.

    If it *leaves_stub*, *reason* says what may open it by its path. One that *can_be_tried* stays only for something
    of which a run can show that it does not matter.
    """

    kind: DecisionKind
    reason: str = ""
    provenance: Provenance | None = None
    pool: Pool | None = None
    leaves_stub: bool = False
    can_be_tried: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether the wheel no longer has the library."""
        return self.kind is not DecisionKind.KEEP


# by wheel and path, why a file cannot be edited; what it needs has to stay
Uneditable = Mapping[tuple[Bundle, str], str]


class Decisions(Struct, frozen=True, eq=False):
    """The decisions about all libraries of each wheel, by path, and the pools of shared libraries."""

    by_bundle: Mapping[Bundle, Mapping[str, LibraryDecision]]
    pools: tuple[Pool, ...] = ()

    def of(self, bundle: Bundle, path: str) -> LibraryDecision:
        """Return the decision about the file at *path*; every file other than a library stays."""
        return self.by_bundle[bundle].get(path) or LibraryDecision(DecisionKind.KEEP)


def check_drivers(bundles: Sequence[Bundle]) -> None:
    """Raise `RepackageError` if a wheel bundles a library that must be the machine's own driver's."""
    for bundle in bundles:
        for library in bundle.libraries:
            name = plain(library.name)
            if is_driver(name) and library.folder.rpartition("/")[2] != _STUBS:
                raise RepackageError(
                    f"{bundle.wheel.path.name}: {library.path}: bundles {name}, which has to be that of the machine's "
                    f"own driver; leave it out with `auditwheel repair --exclude {name}`"
                )


def decide(bundles: Sequence[Bundle], request: SplitRequest, *, uneditable: Uneditable | None = None) -> Decisions:
    """Decide what becomes of the libraries of *bundles*; what *uneditable* files need stays."""
    copies = Counter(key for bundle in bundles for key in {library.key for library in bundle.libraries})
    wheels = [_WheelDecisions(bundle, request, uneditable or {}, copies) for bundle in bundles]
    for wheel in wheels:
        wheel.decide_alone()
    found: tuple[Pool, ...] = ()
    while request.share:
        for wheel in wheels:
            # a -libs wheel cannot depend on the wheel that requires it
            while dependents := dict(wheel.dependents()):
                wheel.keep(dependents)
        movable = {wheel.bundle: tuple(wheel.movable.values()) for wheel in wheels}
        found = planned_pools(movable, smallest=request.smallest)
        unshared = [wheel.unshared(found) for wheel in wheels]
        if not any(unshared):
            break
        # what is in no pool stays, and so does what needs it: decide again
        for wheel, reasons in zip(wheels, unshared, strict=True):
            wheel.keep(reasons)
    return Decisions({wheel.bundle: wheel.decisions(found) for wheel in wheels}, found)


@dataclass(slots=True, eq=False)
class _WheelDecisions:
    """The decisions about one wheel's libraries so far: those *decided*, and those that may still be shared.

    *copies* is the number of wheels with each library.
    """

    bundle: Bundle
    request: SplitRequest
    uneditable: Uneditable
    copies: Mapping[Key, int]
    decided: dict[str, LibraryDecision] = field(default_factory=dict)
    movable: dict[str, WheelBinary] = field(default_factory=dict)
    # by path, what may open those of the movable ones in whose place a stub has to stay
    openers: dict[str, str] = field(default_factory=dict)
    # by path, what a run has shown of those that move therefore; and those of which one could
    proofs: dict[str, str] = field(default_factory=dict)
    triable: set[str] = field(default_factory=set)

    def decide_alone(self) -> None:
        """Decide all that does not depend on other wheels."""
        for library in self.bundle.libraries:
            if (obstacle := self._obstacle(library)) is not None:
                self.decided[library.path] = LibraryDecision(DecisionKind.KEEP, obstacle)
            elif (
                isinstance(library.origin, Provenance)
                and library.path not in self.openers
                and not self._conflict(library, library.origin)
            ):
                self.decided[library.path] = self._official(library, library.origin)
            elif (why := self.uneditable.get((self.bundle, library.path))) is not None:
                self.decided[library.path] = LibraryDecision(DecisionKind.KEEP, f"it cannot be edited: {why}")
            else:
                self.movable[library.path] = library
        libs = libs_project((self.request.libs_project or self.bundle.wheel.name.project).removesuffix(LIBS))
        lines = self.bundle.wheel.metadata().requires_dist
        if self.movable and (line := next((line for line in lines if required_project(line) == libs), None)):
            reason = f"METADATA requires {line} already; say with --libs what else to call it"
            self.keep(dict.fromkeys(self.movable, reason))
        # what only dropped libraries needed can be dropped in the next round
        while self.request.drop_unneeded and (found := self._unneeded()):
            for path in found:
                self.movable.pop(path, None)
                self.decided[path] = LibraryDecision(DecisionKind.DROP, "nothing in the wheel needs it")

    def _obstacle(self, library: WheelBinary) -> str | None:
        """Return why *library* cannot leave the wheel, or None if it can."""
        if self.request.keeps(library.path):
            return "kept as asked"
        if not self.bundle.platforms:
            return "the wheel's tag names no machine"
        if base := replaced_library(library.path):
            return f"newer CPUs load it instead of {base}"
        is_asked = self.request.moves(library.path)
        opener = self._opener(library)
        if opener is None and not self.bundle.graph.consumers(library.path):
            opener = "nothing in the wheel needs it"
            if not is_asked:
                return opener
        obstacle = next(self._consumer_obstacles(library), None)
        if opener is None or obstacle is not None:
            return obstacle or opener
        return self._path_obstacle(library, opener, is_asked=is_asked)

    def _opener(self, library: WheelBinary) -> str | None:
        """Return what may open *library* by its path, or None if nothing does."""
        if namer := self.bundle.namer(library):
            return f"{namer} names it, and may open it by its path"
        for edge in self.bundle.graph.consumers(library.path):
            if edge.via is Via.NAME:
                return f"{edge.consumer} needs it, and finds it only where something has opened it before"
        return None

    def _path_obstacle(self, library: WheelBinary, opener: str, *, is_asked: bool) -> str | None:
        """Return why *library*, which *opener* may open by its path, cannot leave it, and if it can, plan a stub."""
        if self.request.stubs is StubPolicy.NEVER:
            return None if is_asked else opener
        why = stub_obstacle(self.bundle, library)
        if why is None and not is_asked and self.bundle.namer(library):
            why = self._doubted(library)
        if why is not None:
            return f"{opener}; a stub would not do: {why}"
        self.openers[library.path] = opener
        return None

    def _doubted(self, library: WheelBinary) -> str | None:
        """Return why *library* may not work if a stub takes its place, or None; so too if a run has shown it to."""
        doubt = stub_doubt(self.bundle, library)
        if doubt is None:
            return None
        return self._tried(library, doubt.what) if doubt.can_be_tried else doubt.what

    def _tried(self, library: WheelBinary, doubt: str) -> str | None:
        """Return the *doubt* about *library* with what a run has shown, or None if that is that it works."""
        evidence = self.request.evidence.get(library.sha256)
        if evidence is None:
            self.triable.add(library.path)
            return doubt
        if not evidence.is_harmless:
            return f"{doubt}; {evidence.what}"
        self.proofs[library.path] = evidence.what
        return None

    def _consumer_obstacles(self, library: WheelBinary) -> Iterator[str]:
        """Yield why a file that needs *library* could not find it elsewhere."""
        for path in self._outside_consumers(library):
            yield f"{path} needs it, from where no RPATH leads to site-packages"
        if copy := self.bundle.hwcaps_copies.get(library.path):
            yield f"newer CPUs load {copy} instead"
        for edge in self.bundle.graph.consumers(library.path):
            if edge.via is Via.NAME and edge.name != library.name:
                yield f"{edge.consumer} needs it, and finds it only where something has opened it before"
            if why := self.uneditable.get((self.bundle, edge.consumer)):
                yield f"{edge.consumer} cannot be edited: {why}"

    def _outside_consumers(self, library: WheelBinary) -> Iterator[str]:
        """Yield the files outside site-packages that need *library*; their NEEDED may be a path."""
        names = {library.name, library.loading.outline.soname}
        for path, loading in self.bundle.outside.items():
            if not names.isdisjoint(name.rpartition("/")[2] for name in loading.outline.needed):
                yield path

    def _official(self, library: WheelBinary, origin: Provenance) -> LibraryDecision:
        """Decide about *library*, which the official wheel *origin* has, too.

        In that wheel it finds only official libraries. If it may open another one of this wheel, it has to stay.
        """
        official = {other.soname for other in origin.wheel.libraries}
        for other in self.bundle.opened_by.get(library.path, ()):
            if not isinstance(other.origin, Provenance) and plain(other.name) not in official:
                reason = f"may open {other.name}, which is not in {origin.wheel.project}"
                return LibraryDecision(DecisionKind.KEEP, reason)
        return LibraryDecision(DecisionKind.REPLACE, provenance=origin)

    def _conflict(self, library: WheelBinary, origin: Provenance) -> str | None:
        """Return why the wheel cannot require the official wheel *origin*, or None if it can."""
        machine, project, version = library.loading.outline.machine, origin.wheel.project, origin.wheel.version
        line = conflict(self.bundle.wheel.metadata(), project, version, machine=machine)
        return f"not replaced: it is that of {project} {version}, but METADATA requires {line}" if line else None

    def _unneeded(self) -> list[str]:
        """Return the libraries that a repair tool added and that only dropped libraries need."""
        dropped = {path for path, decision in self.decided.items() if decision.kind is DecisionKind.DROP}
        return [
            library.path
            for library in self.bundle.libraries
            if library.is_bundled
            and library.path not in dropped
            and self.bundle.platforms
            and not (
                self.request.keeps(library.path)
                or self.bundle.namer(library)
                or any(self._outside_consumers(library))
                or library.path in self.bundle.hwcaps_copies
                or replaced_library(library.path)
            )
            and {edge.consumer for edge in self.bundle.graph.consumers(library.path)} <= dropped
        ]

    def dependents(self) -> Iterator[tuple[str, str]]:
        """Yield what may be shared and needs or opens something that stays, with the reason to keep it."""
        for path in self.movable:
            for edge in self.bundle.graph.needs(path):
                if edge.provider and not self._leaves(edge.provider):
                    yield path, f"needs {edge.name}, which stays in the wheel"
                if not edge.provider and edge.name.startswith("$"):
                    yield path, f"needs {edge.name}, a path from where it is"
            for library in () if self.request.moves(path) else self.bundle.opened_by.get(path, ()):
                if not self._leaves(library.path):
                    yield path, f"may open {library.name}, which stays in the wheel"
                elif (asking := asks_own_place(self.movable[path])) and (
                    doubt := self._tried(self.movable[path], f"may open {library.name}, and {asking}")
                ):
                    yield path, doubt

    def _leaves(self, path: str) -> bool:
        """Whether the library at *path* leaves the wheel, as far as is decided."""
        decision = self.decided.get(path)
        return path in self.movable or (decision is not None and decision.is_gone)

    def unshared(self, found: Sequence[Pool]) -> dict[str, str]:
        """Return the movable libraries that are in none of the pools *found*, with the reasons."""
        pool = pool_of(self.bundle, found)
        keys = {library.key for library in pool.libraries.values()} if pool else set()
        reasons = {path: self._why_unshared(one) for path, one in self.movable.items() if one.key not in keys}
        # the folder of the pool comes before the one in which a stub is
        staying = {one.name: one for path, one in self.bundle.binaries.items() if not self._leaves(path)}
        others = pool.libraries if pool and not self.openers.keys().isdisjoint(self.movable) else {}
        hidden = next((name for name, one in others.items() if name in staying and staying[name].key != one.key), None)
        if hidden:
            why = f"a stub would not do: the wheel of shared libraries has another {hidden}"
            reasons |= {path: f"{opener}; {why}" for path, opener in self.openers.items() if path in self.movable}
        return reasons

    def _why_unshared(self, library: WheelBinary) -> str:
        if not self.request.share:
            return "sharing is not asked for"
        if sum(other.name == library.name for other in self.bundle.libraries) > 1:
            return "the wheel has another file of its name"
        if self.copies[library.key] > 1:
            return "sharing it would save too little, or it is not in wheels of one platform"
        if sum(name == library.name for name, _ in self.copies) > 1:
            return "other wheels have another file of its name"
        return "no other wheel has it"

    def keep(self, reasons: Mapping[str, str]) -> None:
        for path, reason in reasons.items():
            self.movable.pop(path, None)
            self.decided[path] = LibraryDecision(DecisionKind.KEEP, reason)

    def decisions(self, found: Sequence[Pool]) -> dict[str, LibraryDecision]:
        """Return all decisions, with the reason if a library of an official name is not replaced."""
        pool = pool_of(self.bundle, found)
        decisions = dict(self.decided)
        for path, library in self.movable.items():
            opener = self.openers.get(path)
            reason = f"a stub stays, because {opener}" if opener else ""
            reason = "; ".join(filter(None, (reason, self.proofs.get(path))))
            decisions[path] = (
                LibraryDecision(DecisionKind.SHARE, reason, pool=pool, leaves_stub=opener is not None)
                if pool
                else LibraryDecision(DecisionKind.KEEP, self._why_unshared(library))
            )
        for library in self.bundle.libraries:
            decision, origin = decisions[library.path], library.origin
            if origin is None or decision.kind is DecisionKind.REPLACE:
                continue
            if (
                why := self._conflict(library, origin)
                if isinstance(origin, Provenance)
                else f"not replaced: {origin.reason}"
            ):
                reason = "; ".join(filter(None, (why, decision.reason)))
                decisions[library.path] = replace(decision, reason=reason)
        for path in self.triable:
            decisions[path] = replace(decisions[path], can_be_tried=decisions[path].kind is DecisionKind.KEEP)
        return dict(sorted(decisions.items()))
