"""Decide what becomes of every bundled library, for all wheels together, before a byte is written.

    kept, unneeded, needed from where no RPATH leads            stays, with the reason
    named, and no stub can take its place                       stays
    names or needs one that stays                               stays
    an official library, by its hash (`OfficialEvidence`)       replaced by a requirement
    the same file in several wheels, and all it needs moves     shared

A stub stays where a library was, for all that opens it by its path (docs/explanation/splitting.md):

    demo/libx.so                     stub     NEEDED libx-1a2b3c4d.so    RPATH $ORIGIN/../demo_libs/lib
    demo_libs/lib/libx-1a2b3c4d.so   a second NEEDED $ORIGIN/libx.so     SONAME libx-1a2b3c4d.so
    demo_libs/lib/libx.so            the library, with its own SONAME

Neither stub has the library's SONAME: the loader would take it for the library. The hash is of the library as it was
in the wheel. The library finds its dependencies by the RPATH of whatever loads it.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from itertools import product
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.linkage import LinkGraph, Via
from vbuild.config.requirements import required_project
from vbuild.elf.catalogue import by_soname, hashed, is_driver, is_shared_object, plain, systems_of
from vbuild.elf.linkage import replaced_library
from vbuild.elf.records import ElfMachine
from vbuild.elf.write import STUB_SECTIONS, loader_stub
from vbuild.errors import RepackageError
from vbuild.files.wording import counted
from vbuild.splitting.bundle import Bundle, WheelBinary
from vbuild.splitting.companion import libs_project
from vbuild.splitting.official import Provenance
from vbuild.splitting.other_packages import conflict
from vbuild.splitting.pools import Key, Owners, Pool, planned_pools, pool_with, pools_of
from vbuild.splitting.request import SplitRequest

ORIGIN = "$ORIGIN"
_MACHINES = {"x86_64": ElfMachine.X86_64, "aarch64": ElfMachine.AARCH64}
_DIGITS = 8
_MUSL = "musllinux"
_NO_LOAD = b"RTLD_NOLOAD"
_HEADERS = frozenset({".h", ".hh", ".hpp", ".hxx"})


def stub(library: WheelBinary, rpath: str) -> bytes:
    return loader_stub(
        second_name(library), rpath, machine=_MACHINES[library.loading.outline.machine], is_inherited=True
    )


def second_stub(library: WheelBinary) -> bytes:
    return loader_stub(
        f"{ORIGIN}/{library.name}",
        ORIGIN,
        soname=second_name(library),
        machine=_MACHINES[library.loading.outline.machine],
        is_inherited=True,
    )


def second_name(library: WheelBinary) -> str:
    """The name by which a stub asks for *library*: ``libx-1a2b3c4d.so``."""
    return f"{library.name.partition('.so')[0]}-{library.contents[:_DIGITS]}.so"


def stub_obstacle(bundle: Bundle, library: WheelBinary) -> str | None:
    outline = library.loading.outline
    if any(platform.tag.startswith(_MUSL) for platform in bundle.platforms):
        return "musl does not follow one"
    if outline.machine not in _MACHINES:
        return f"none is written for {outline.machine}"
    if not is_shared_object(library.name):
        return "its name is not that of a library"
    if tuple(section.name for section in outline.sections if section.name) == STUB_SECTIONS:
        return "it is one itself"
    return None


def stub_doubt(bundle: Bundle, library: WheelBinary) -> str:
    """What may not work with a stub in place of *library*; a run can show that it does."""
    for path in sorted(bundle.namers(library)):
        member = bundle.wheel.find(path) if path.endswith(".py") else None
        if member and _NO_LOAD in bundle.wheel.read(member):
            return f"{path} asks with RTLD_NOLOAD whether a library is loaded"
    return (asking := asks_own_place(library)) and f"it {asking}"


def _linking(bundle: Bundle, library: WheelBinary) -> str | None:
    paths = () if library.is_bundled else (member.path for member in bundle.wheel.members)
    header = next((path for path in paths if PurePosixPath(path).suffix in _HEADERS), None)
    return header and f"others may link with it, because the wheel has headers ({header})"


def asks_own_place(library: WheelBinary) -> str:
    places = library.loading.own_place
    return f"may ask where it is itself ({', '.join(places)})" if places else ""


# toolkits keep stand-ins for the driver's libraries in this folder, to link against
_STUBS = "stubs"
_UNNEEDED = "nothing in the wheel needs it"
_COMPATIBLE = "newer libraries of its name serve those that need older ones"
_FOR_OTHERS = "the wheel has no module, program or code that opens a library, so other wheels may need it by its name"
# what keeps its name without harm: nothing looks for it by its name, or any that is new enough does
_NO_NEED = (_UNNEEDED, _COMPATIBLE)


class DecisionKind(StrEnum):
    """In the order in which results list them, but for what stays as it is: it comes last."""

    KEEP = "keep"
    REPLACE = "replace"
    SHARE = "share"
    RENAME = "rename"


class LibraryDecision(Struct, frozen=True):
    """What becomes of one library, and why; one that *can_be_tried* stays for what a run can show not to matter."""

    kind: DecisionKind
    reason: str = ""
    provenance: Provenance | None = None
    pool: Pool | None = None
    leaves_stub: bool = False
    can_be_tried: bool = False

    @property
    def is_gone(self) -> bool:
        return self.kind in {DecisionKind.REPLACE, DecisionKind.SHARE}


_KEPT = LibraryDecision(DecisionKind.KEEP)


# by wheel and path, why a file cannot be edited; what it needs has to stay
Uneditable = Mapping[tuple[Bundle, str], str]


class Decisions(Struct, frozen=True, eq=False):
    by_bundle: Mapping[Bundle, Mapping[str, LibraryDecision]]
    pools: tuple[Pool, ...] = ()

    def of(self, bundle: Bundle, path: str | None) -> LibraryDecision:
        return self.by_bundle[bundle].get(path or "", _KEPT)


def with_own_names(bundles: Sequence[Bundle], request: SplitRequest, *, besides: Collection[Key]) -> tuple[Bundle, ...]:
    """*bundles* in which a library is called after its contents if another project has another one of its SONAME.

    In one process the loader takes whichever came first for both (glibc elf/dl-load.c, `_dl_map_object`; musl
    ldso/dynlink.c, `load_library`). Those *besides* keep their names, as does what a repair tool has called after its
    contents, and what `name_obstacle` says. If all are to be private, every library that something needs gets such a
    name; `RepackageError` for one that cannot.
    """
    known: dict[tuple[str, tuple[str, str]], set[tuple[str, str]]] = {}
    for bundle in bundles:
        for library, system in product(bundle.libraries, systems_of(bundle.wheel.name.platform)):
            known.setdefault((library.soname, system), set()).add((bundle.wheel.name.project, library.contents))

    refusals: list[str] = []

    def named(bundle: Bundle) -> Bundle:
        wheel, libraries = bundle.wheel, dict[str, WheelBinary]()
        for library in bundle.libraries:
            is_ambiguous = any(
                project != wheel.name.project and contents != library.contents
                for system in systems_of(wheel.name.platform)
                for project, contents in known[library.soname, system]
            )
            is_wanted = not request.keeps(library.path) if request.private else is_ambiguous
            if not is_wanted or hashed(library.file_name) or (library.file_name, library.sha256) in besides:
                continue
            obstacle = name_obstacle(bundle, library, is_private=request.private)
            if obstacle is None:
                libraries[library.path] = library
            elif request.private and obstacle not in _NO_NEED:
                refusals.append(
                    f"{wheel.path.name}: {library.path}: cannot get a name of its own: {obstacle}; "
                    f"--keep {library.file_name} leaves it the one that it has"
                )
        own_names = {path: _own_name(library, libraries, bundle.graph) for path, library in libraries.items()}
        binaries = {
            path: replace(
                binary,
                own_name=own_names.get(path),
                same_as=None if (binary.file_name, binary.sha256) in besides else binary.same_as,
            )
            for path, binary in bundle.binaries.items()
        }
        return dataclasses.replace(bundle, binaries=binaries)

    all_named = tuple(map(named, bundles))
    if refusals:
        more = f" ({counted(len(refusals) - 1, 'more library')} like it)" if len(refusals) > 1 else ""
        raise RepackageError(f"{refusals[0]}{more}")
    return all_named


def _own_name(library: WheelBinary, named: Mapping[str, WheelBinary], graph: LinkGraph) -> str:
    """``libx-1a2b3c4d.so.1``: by its contents, and those of the *named* ones that it loads: their names go into it."""
    loaded = [library.path]
    for path in loaded:
        loaded += {edge.provider for edge in graph.needs(path) if edge.provider} - {*loaded}
    contents = sorted({named[path].contents for path in loaded if path in named})
    digest = contents[0] if len(contents) == 1 else sha256("".join(contents).encode()).hexdigest()
    stem, dot, rest = library.name.partition(".so")
    return f"{stem}-{digest[:_DIGITS]}{dot}{rest}"


def name_obstacle(bundle: Bundle, library: WheelBinary, *, is_private: bool = False) -> str | None:
    """Why *library* keeps its name: not only NEEDED of the wheel's own files may ask for it, or none does; or None.

    If it stays, a private name also gets into texts that say the old one, and RPATHs lead to it where none did.
    """
    if by_soname(library.soname) or any(platform.has(library.soname) for platform in bundle.platforms):
        return _COMPATIBLE
    if not bundle.graph.consumers(library.path):
        return _UNNEEDED
    # ld looks for libx.so, and notes its SONAME
    is_linked = any(other.soname == library.soname and other.file_name.endswith(".so") for other in bundle.libraries)
    linking = _linking(bundle, library) if is_linked else None
    obstacles = (_unedited(library), linking, *_outer_needs(bundle, library))
    for edge in bundle.graph.consumers(library.path):
        if edge.name in bundle.binaries[edge.consumer].loading.needs_mentioned:
            return f"{edge.consumer} names it, and may open it by its name"
    if not is_private:
        opener = opener_of(bundle, library)
    else:
        opener = None if bundle.texts_naming(library) else _naming(bundle, library)
    obstacle = next(filter(None, obstacles), opener)
    files = bundle.binaries.values()
    is_for_others = all(file.is_library and bundle.namers(file) <= bundle.binaries.keys() for file in files)
    return obstacle or (_FOR_OTHERS if is_for_others else None)


def _unedited(library: WheelBinary) -> str | None:
    outline = library.loading.outline
    is_edited = (outline.bits, outline.byte_order) == (64, "little")
    return None if is_edited else f"files for {outline.machine} are not edited: they are not 64-bit little-endian ones"


def _naming(bundle: Bundle, library: WheelBinary) -> str | None:
    return (namer := bundle.namer(library)) and f"{namer} names it, and may open it by its path"


def opener_of(bundle: Bundle, library: WheelBinary) -> str | None:
    """What loads *library* otherwise than by NEEDED and RPATH, or None."""
    if naming := _naming(bundle, library):
        return naming
    consumers = bundle.graph.consumers(library.path)
    if by_name := next((edge.consumer for edge in consumers if edge.via is Via.NAME), None):
        return f"{by_name} needs it, and finds it only where something has opened it before"
    return None if consumers else _UNNEEDED


def _outer_needs(bundle: Bundle, library: WheelBinary) -> Iterator[str]:
    # outside of site-packages, and their NEEDED may be a path
    names = {library.file_name, library.loading.outline.soname}
    for path, loading in bundle.outside.items():
        if not names.isdisjoint(name.rpartition("/")[2] for name in loading.outline.needed):
            yield f"{path} needs it, from where no RPATH leads to site-packages"
    if copy := bundle.hwcaps_copies.get(library.path):
        yield f"newer CPUs load {copy} instead"


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
    """What *uneditable* files need stays."""
    copies: dict[Key, Counter[str]] = {}
    for bundle in bundles:
        for key in {library.key for library in bundle.libraries}:
            copies.setdefault(key, Counter())[bundle.wheel.name.project] += 1
    owners = Owners.of(bundles, request)
    wheels = [_WheelDecisions(bundle, request, uneditable or {}, copies, owners) for bundle in bundles]
    for wheel in wheels:
        wheel.decide_alone()
    pools: tuple[Pool, ...] = ()
    while request.share:
        for wheel in wheels:
            # a -libs wheel cannot depend on the wheel that requires it
            while dependents := dict(wheel.dependents()):
                wheel.keep(dependents)
        movable = {wheel.bundle: tuple(wheel.movable.values()) for wheel in wheels}
        pools = planned_pools(movable, owners, smallest=request.smallest)
        unshared = [wheel.unshared(pools) for wheel in wheels]
        if not any(unshared):
            break
        # what is in no pool stays, and so does what needs it: decide again
        for wheel, reasons in zip(wheels, unshared, strict=True):
            wheel.keep(reasons)
    return Decisions({wheel.bundle: wheel.decisions(pools) for wheel in wheels}, pools)


@dataclass(slots=True, eq=False)
class _WheelDecisions:
    bundle: Bundle
    request: SplitRequest
    uneditable: Uneditable
    # by library, how many wheels of each project have it
    copies: Mapping[Key, Counter[str]]
    owners: Owners
    decided: dict[str, LibraryDecision] = field(default_factory=dict)
    movable: dict[str, WheelBinary] = field(default_factory=dict)
    # by path of a library that leaves a stub, what may open it
    openers: dict[str, str] = field(default_factory=dict)
    # by path, what a run has shown of a library that moves for that; then those that a run could
    proofs: dict[str, str] = field(default_factory=dict)
    triable: set[str] = field(default_factory=set)

    def decide_alone(self) -> None:
        for library in self.bundle.libraries:
            if self.request.private:
                self.decided[library.path] = self._named(library)
            elif (obstacle := self._obstacle(library)) is not None:
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
        own = self.owners.own.get(self.bundle.wheel.name.project)
        libs = {libs_project(owner) for owner in (self.owners.base, own) if owner}
        lines = self.bundle.wheel.metadata().requires_dist
        if self.movable and (line := next((line for line in lines if required_project(line) in libs), None)):
            reason = f"METADATA requires {line} already; say with --libs what else to call it"
            self.keep(dict.fromkeys(self.movable, reason))

    def _named(self, library: WheelBinary) -> LibraryDecision:
        if library.own_name:
            return LibraryDecision(DecisionKind.RENAME)
        why = "its name has a hash already" if hashed(library.file_name) else name_obstacle(self.bundle, library)
        return LibraryDecision(DecisionKind.KEEP, "it is to be kept" if self.request.keeps(library.path) else why or "")

    def _obstacle(self, library: WheelBinary) -> str | None:
        if self.request.keeps(library.path):
            return "it is to be kept"
        if why := _unedited(library) if self.bundle.platforms else "the wheel's tag names no machine":
            return why
        if base := replaced_library(library.path):
            return f"newer CPUs load it instead of {base}"
        is_asked = self.request.moves(library.path)
        opener = opener_of(self.bundle, library)
        if opener == _UNNEEDED and not is_asked:
            return opener
        if (obstacle := next(self._consumer_obstacles(library), None)) or opener is None:
            return obstacle
        # what may be opened by its path leaves a stub there
        why = stub_obstacle(self.bundle, library)
        if why is None and not is_asked and self.bundle.namer(library):
            why = _linking(self.bundle, library) or self._tried(library, stub_doubt(self.bundle, library))
        if why is None:
            self.openers[library.path] = opener
        return why and f"{opener}; a stub would not do: {why}"

    def _tried(self, library: WheelBinary, doubt: str) -> str | None:
        """The *doubt* about *library* with what a run has shown; None without one, or if a run shows that it works."""
        if not doubt:
            return None
        evidence = self.request.evidence.get(library.sha256)
        if evidence is None:
            self.triable.add(library.path)
            return doubt
        if not evidence.is_harmless:
            return f"{doubt}; {evidence.what}"
        self.proofs[library.path] = evidence.what
        return None

    def _consumer_obstacles(self, library: WheelBinary) -> Iterator[str]:
        yield from _outer_needs(self.bundle, library)
        for edge in self.bundle.graph.consumers(library.path):
            if edge.via is Via.NAME and edge.name != library.name:
                yield f"{edge.consumer} needs it, and finds it only where something has opened it before"
            if why := self.uneditable.get((self.bundle, edge.consumer)):
                yield f"{edge.consumer} cannot be edited: {why}"

    def _official(self, library: WheelBinary, origin: Provenance) -> LibraryDecision:
        """Replace *library*, unless it may open one of this wheel: it finds only official libraries there."""
        official = {other.soname for other in origin.wheel.libraries}
        for other in self.bundle.opened_by.get(library.path, ()):
            if not isinstance(other.origin, Provenance) and plain(other.name) not in official:
                reason = f"may open {other.name}, which is not in {origin.wheel.project}"
                return LibraryDecision(DecisionKind.KEEP, reason)
        return LibraryDecision(DecisionKind.REPLACE, provenance=origin)

    def _conflict(self, library: WheelBinary, origin: Provenance) -> str | None:
        machine, project, version = library.loading.outline.machine, origin.wheel.project, origin.wheel.version
        line = conflict(self.bundle.wheel.metadata(), project, version, machine=machine)
        return f"not replaced: it is that of {project} {version}, but METADATA requires {line}" if line else None

    def dependents(self) -> Iterator[tuple[str, str]]:
        """What may be shared and needs or opens something that stays, with the reason to keep it."""
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
        return path in self.movable or self.decided.get(path, _KEPT).is_gone

    def unshared(self, pools: Sequence[Pool]) -> dict[str, str]:
        reasons = {
            path: self._why_unshared(library)
            for path, library in self.movable.items()
            if not pool_with(library, self.bundle, pools)
        }
        # the loader searches the folders of pools before that of a stub
        staying = {binary.name: binary for path, binary in self.bundle.binaries.items() if not self._leaves(path)}
        others = [] if self.openers.keys().isdisjoint(self.movable) else pools_of(self.bundle, pools)
        hidden = next((name for name, library in staying.items() if any(pool.hides(library) for pool in others)), None)
        if hidden:
            why = f"a stub would not do: a wheel of shared libraries has another {hidden}"
            reasons |= {path: f"{opener}; {why}" for path, opener in self.openers.items() if path in self.movable}
        return reasons

    def _why_unshared(self, library: WheelBinary) -> str:
        if sum(other.name == library.name for other in self.bundle.libraries) > 1:
            return "the wheel has another file of its name"
        projects = self.copies[library.key]
        if len(projects) > 1:
            return (
                "it is not in the base, which would save too little, lack what it needs, or is published without it"
                if self.owners.base
                else "another project has it; --libs NAME==VERSION moves what several have to one wheel"
            )
        if projects.total() > 1:
            return "sharing it would save too little, or it is not in wheels of one platform"
        if sum(name == library.name for name, _ in self.copies) > 1:
            return "other wheels have another file of its name"
        return "no other wheel has it"

    def keep(self, reasons: Mapping[str, str]) -> None:
        for path, reason in reasons.items():
            self.movable.pop(path, None)
            self.decided[path] = LibraryDecision(DecisionKind.KEEP, reason)

    def decisions(self, pools: Sequence[Pool]) -> dict[str, LibraryDecision]:
        decisions = dict(self.decided)
        for path, library in self.movable.items():
            pool = pool_with(library, self.bundle, pools)
            opener = self.openers.get(path)
            reason = f"a stub stays, because {opener}" if opener else ""
            reason = "; ".join(filter(None, (reason, self.proofs.get(path))))
            decisions[path] = (
                LibraryDecision(DecisionKind.SHARE, reason, pool=pool, leaves_stub=opener is not None)
                if pool
                else LibraryDecision(DecisionKind.KEEP, "sharing is not asked for")
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
