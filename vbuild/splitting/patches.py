"""The patches that follow from the decisions, and every patched file, before a byte is written.

Each file that loads something which moved gets a new NEEDED and DT_RPATH:

    edge to a library that is replaced   its official SONAME; the folders of the official wheel and of what that needs
    edge to one that is shared           the folder of its -libs wheel; none if the file is in that folder itself
         and in whose place a stub stays the same, before the file's own entries: one of them leads to the stub
    edge by a path to what moves         its file name instead
    edge to another package's library    its folder, if RPATHs are requested
    edge to one here that no path finds  its folder, if RPATHs are requested

An entry of DT_RPATH that begins with ``$ORIGIN`` counts from the file's own place:

    pkg/_C.so -> nvidia/cufft/lib     $ORIGIN/../nvidia/cufft/lib
    $ORIGIN/../x/../y                 $ORIGIN/../y
    /opt/conda/lib, lib               a build machine's folder, or the folder in which a program was started: removed
                                      if RPATHs are requested
    $ORIGIN/../pkg.libs               removed if no library is left in it
    $ORIGIN/../../../lib              kept for pkg/_C.so: it leaves site-packages, for an environment's libraries
    $ORIGIN/../$LIB, $PLATFORM        kept as it is: only the loader knows what they stand for

If a file cannot be edited, what it needs stays, and the decisions are made again.

Paths are relative to site-packages, as `installed_path` gives them. https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import hashlib
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from threading import Lock

from msgspec import Struct

from vbuild.binary.linkage import Edge, Via
from vbuild.elf.linkage import ORIGIN_TOKEN
from vbuild.elf.read import Loading
from vbuild.elf.records import FileHeader
from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.errors import BinaryError, RepackageError, at
from vbuild.files.edited import EditedFile, Spool
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.splitting.bundle import Bundle, WheelBinary
from vbuild.splitting.companion import libs_project
from vbuild.splitting.decisions import ORIGIN, Decisions, decide, second_name, second_stub, stub
from vbuild.splitting.official import OfficialWheel, Provenance
from vbuild.splitting.other_packages import LibraryPackage, PackageFinder
from vbuild.splitting.pools import Pool
from vbuild.splitting.request import SplitRequest
from vbuild.wheel.archive import forget
from vbuild.wheel.blocks import as_edit
from vbuild.wheel.paths import installed_path

_TOKEN = re.compile(r"\$(\w+|\{\w+\})", re.ASCII)
_BUILD_MACHINE = "a folder of the machine it was built on"
_WORKING_DIRECTORY = "counts from the folder that a program is started in"


class _RpathEntry(Struct, frozen=True):
    """One entry of a file's RPATH; *rest* follows ``$ORIGIN`` if there is a token that only the loader knows.

    One that *is_foreign* counts from elsewhere than the file's place.
    """

    text: str
    folder: str = ""
    rest: str = ""
    dropped: str = ""
    is_foreign: bool = False

    def moved_to(self, path: str) -> str:
        if self.is_foreign:
            return self.text
        return f"{ORIGIN}{self.rest}" if self.rest else rpath_to(path, self.folder)


def rpath_to(path: str, folder: str) -> str:
    """The entry that leads from the file at *path* to *folder*; "" is the root of site-packages."""
    start = posixpath.dirname(path)
    if folder == ".." or folder.startswith("../"):
        way = posixpath.normpath("../" * len(start.split("/") if start else ()) + folder)
    else:
        way = posixpath.relpath(f"/{folder}", f"/{start}")
    return ORIGIN if way == "." else f"{ORIGIN}/{way}"


def rpath_of(
    path: str,
    loading: Loading,
    folders: Sequence[str],
    *,
    first: Sequence[str] = (),
    alive: Collection[str],
    there: Collection[str] | None = None,
    written_at: str | None = None,
    cleans: bool = True,
) -> tuple[str, ...]:
    """The whole DT_RPATH of the file at *path*: entries to *first*, its own that stay, entries to *folders*.

    An own entry, *written_at* the old path, stays if it leads to one of the folders *alive*, which have libraries, out
    of site-packages, or to none *there*, which had libraries before. Without *cleans*, entries that do not begin with
    ``$ORIGIN`` stay.
    """
    entries = [*_entries(written_at or path, loading, alive, there)]
    # a library of the wheel that was found before one of a foreign folder must still be found before it
    own = next((index for index, entry in enumerate(entries) if not entry.is_foreign), len(entries))
    last = next((index for index, entry in enumerate(entries) if entry.is_foreign and index > own), len(entries))
    foreign, before, after = (
        [entry.moved_to(path) for entry in some if not entry.dropped or (entry.is_foreign and not cleans)]
        for some in (entries[:own], entries[own:last], entries[last:])
    )
    ahead, behind = ([rpath_to(path, _normal(folder)) for folder in some] for some in (first, folders))
    return tuple(dict.fromkeys([*foreign, *ahead, *before, *behind, *after]))


def removed_entries(path: str, loading: Loading, *, left: Collection[str]) -> tuple[str, ...]:
    """The entries of the file at *path* that lead nowhere on other machines, with the reason, but for *left*."""
    entries = _entries(path, loading, (), ())
    return tuple(f"{entry.text}: {entry.dropped}" for entry in entries if entry.dropped and entry.text not in left)


def _entries(
    path: str, loading: Loading, alive: Collection[str], there: Collection[str] | None
) -> Iterator[_RpathEntry]:
    living = set(map(_normal, alive))
    known = None if there is None else set(map(_normal, there))
    for text in loading.outline.search_path:
        origin = ORIGIN_TOKEN.match(text)
        rest = text[origin.end() :] if origin else ""
        if not origin or (rest and not rest.startswith("/")):
            why = _BUILD_MACHINE if origin or text.startswith("/") else _WORKING_DIRECTORY
            yield _RpathEntry(text, dropped=why, is_foreign=True)
        elif _TOKEN.search(rest):
            yield _RpathEntry(text, rest=rest)
        else:
            folder = _normal(posixpath.join(posixpath.dirname(path), rest.lstrip("/")))
            leaves = folder == ".." or folder.startswith("../")
            is_dead = folder not in living and (known is None or folder in known)
            yield _RpathEntry(text, folder, dropped="no library is left there" if is_dead and not leaves else "")


def _normal(folder: str) -> str:
    """*folder* in a form that can be compared; "" is site-packages itself."""
    normal = posixpath.normpath(folder) if folder else ""
    return "" if normal == "." else normal


class FilePatch(Struct, frozen=True, eq=False):
    """How to change *binary*, a file of *bundle* that will be at *path*.

    *official* are the wheels of replaced libraries, *packages* those of libraries that the wheel never had, *pools*
    those of shared libraries.
    """

    bundle: Bundle
    binary: WheelBinary
    path: str
    relink: Relink
    official: tuple[OfficialWheel, ...] = ()
    packages: tuple[LibraryPackage, ...] = ()
    pools: tuple[Pool, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.relink == Relink()

    @property
    def member_path(self) -> str:
        """Where its own wheel has it afterwards."""
        return posixpath.join(posixpath.dirname(self.binary.member.path), self.binary.name)


class PatchMaker(Struct, frozen=True, eq=False):
    """With *cleans*, RPATHs also lead to libraries that no wheel brings; entries of the build machine are removed."""

    decisions: Decisions
    packages: PackageFinder
    uneditable: Collection[tuple[Bundle, str]] = ()
    cleans: bool = False

    def for_bundle(self, bundle: Bundle) -> tuple[FilePatch, ...]:
        staying = [binary for binary in bundle.binaries.values() if not self.decisions.of(bundle, binary.path).is_gone]
        stubs = (binary for binary in bundle.binaries.values() if self.decisions.of(bundle, binary.path).leaves_stub)
        alive = frozenset(binary.folder for binary in (*staying, *stubs))
        return tuple(
            self._patch(_Destination(bundle, binary, posixpath.join(binary.folder, binary.name), alive))
            for binary in staying
        )

    def for_pool(self, pool: Pool) -> tuple[FilePatch, ...]:
        return tuple(
            self._patch(_Destination(pool.source(library), library, f"{pool.folder}/{name}", frozenset({pool.folder})))
            for name, library in pool.libraries.items()
        )

    def _patch(self, destination: "_Destination") -> FilePatch:
        bundle, binary = destination.bundle, destination.binary
        if (bundle, binary.path) in self.uneditable:
            return FilePatch(bundle, binary, destination.path, Relink())
        first: dict[str, None] = {}
        folders: dict[str, None] = {}
        renamed: list[tuple[str, str]] = []
        official: dict[OfficialWheel, None] = {}
        packages: dict[LibraryPackage, None] = {}
        pools: dict[Pool, None] = {}
        for edge in bundle.graph.needs(binary.path):
            decision = self.decisions.of(bundle, edge.provider)
            renamed += _renamed(destination, edge, bundle.new_name(edge.provider))
            if edge.provider and decision.provenance:
                renamed += _renamed(destination, edge, decision.provenance.library.soname)
                for provenance in self._replaced(bundle, edge.provider):
                    official[provenance.wheel] = None
                    # its folder, and those of all wheels that its wheel requires
                    folders[provenance.library.path.rpartition("/")[0]] = None
                    wheels = self.packages.officials.closure(provenance.wheel)
                    folders |= dict.fromkeys(folder for wheel in wheels for folder in wheel.folders)
            elif edge.provider and decision.pool:
                is_path = "/" in edge.name and not bundle.new_name(edge.provider)
                renamed += [(edge.name, bundle.binaries[edge.provider].name)] if is_path else []
                pools[decision.pool], folder = None, decision.pool.folder
                # a file in that folder without RUNPATH is found by the RPATH of the file that loads it
                if destination.path.rpartition("/")[0] != folder or binary.loading.outline.runpath:
                    (first if decision.leaves_stub else folders)[folder] = None
            elif self.cleans and edge.provider is None and edge.via in {Via.MISSING, Via.OUTSIDE}:
                if package := self.packages.find(bundle, edge.name):
                    packages[package] = None
                    folders |= dict.fromkeys(package.folders)
            elif edge.via is Via.NAME and edge.provider and (self.cleans or bundle.new_name(edge.provider)):
                folders[edge.provider.rpartition("/")[0]] = None
        folders |= dict.fromkeys(self._opened_folders(destination))
        relink = self._relink(destination, tuple(renamed), tuple(folders), first=tuple(first))
        return FilePatch(bundle, binary, destination.path, relink, tuple(official), tuple(packages), tuple(pools))

    def _opened_folders(self, destination: "_Destination") -> Iterator[str]:
        """The folders in which a file that moves finds what it opens by a name: that moves with it."""
        if destination.path != destination.binary.path:
            for opened in destination.bundle.opened_by.get(destination.binary.path, ()):
                if pool := self.decisions.of(destination.bundle, opened.path).pool:
                    yield pool.folder

    def _replaced(self, bundle: Bundle, path: str) -> Iterator[Provenance]:
        """The origin of the replaced library at *path*, and of the replaced libraries that it loads in turn."""
        left = [path]
        for here in left:
            if provenance := self.decisions.of(bundle, here).provenance:
                yield provenance
                needs = (edge.provider for edge in bundle.graph.needs(here))
                left += (other for other in needs if other and other not in left)

    def _relink(
        self,
        destination: "_Destination",
        renamed: tuple[tuple[str, str], ...],
        folders: tuple[str, ...],
        *,
        first: tuple[str, ...],
    ) -> Relink:
        outline = destination.binary.loading.outline
        before = outline.search_path
        rpath = rpath_of(
            destination.path,
            destination.binary.loading,
            folders,
            first=first,
            alive=destination.alive.union(first, folders),
            there=destination.bundle.folders,
            written_at=destination.binary.path,
            cleans=self.cleans,
        )
        # in another folder the same entry leads elsewhere
        leads_elsewhere = destination.path != destination.binary.path and not {*rpath} <= {*before}
        new_name = destination.binary.new_name
        is_new = first or folders or renamed or new_name or self.cleans or leads_elsewhere
        if not is_new or not outline.is_loadable:
            return Relink()
        return Relink(renamed=renamed, rpath=rpath if rpath != before else None, soname=new_name)


class _Destination(Struct, frozen=True, eq=False):
    bundle: Bundle
    binary: WheelBinary
    path: str
    alive: frozenset[str]


def _renamed(destination: _Destination, edge: Edge, soname: str | None) -> Iterator[tuple[str, str]]:
    """The names other than *soname*, the new one, by which the file asks for the library of *edge*.

    If NEEDED is a path, versions of symbols still refer to a name.
    """
    names = {edge.name: None}
    provider = destination.bundle.binaries[edge.provider] if edge.provider else None
    if provider and ("/" in edge.name or provider.new_name):
        taken = {version.library for version in destination.binary.loading.taken}
        names |= dict.fromkeys(name for name in (provider.file_name, provider.soname) if name in taken)
    yield from ((name, soname) for name in names if soname and name != soname)


_Key = tuple[str, Relink]

# files that stay mapped until they are written, so that what is unchanged can be copied: each takes a descriptor
_MOST_MAPPED = 200


class PatchedFile(Struct, frozen=True, eq=False):
    """A file after its *patch*; *data* is None if that changes nothing."""

    patch: FilePatch
    data: EditedFile | None
    sha256: str


@dataclass(slots=True, eq=False)
class Patcher:
    """Patches files, equal ones once; the results last until *stack* closes; *room* is for temporary files."""

    stack: ExitStack
    room: Path | None
    _spool: Spool = field(init=False)
    _lock: Lock = field(default_factory=Lock)
    _left: int = _MOST_MAPPED
    # the SHA-256, and what changed: at a place in the spool, or as it is
    _kept: dict[_Key, tuple[str, range | EditedFile | None]] = field(default_factory=dict)
    _failures: dict[_Key, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._spool = Spool(self.stack, self.room)

    def failures(self, patches: Iterable[FilePatch]) -> Iterator[tuple[FilePatch, str]]:
        """Apply *patches*, and yield those that cannot be applied, and why."""
        wanted = [(_key(patch), patch) for patch in patches if not patch.is_empty]
        left: dict[_Key, FilePatch] = {}
        for key, patch in wanted:
            if key not in self._failures and key not in self._kept:
                left.setdefault(key, patch)
        in_threads(
            self._apply, [*left.values()], size=lambda patch: patch.binary.member.size, threads=available_cores()
        )
        yield from ((patch, self._failures[key]) for key, patch in wanted if key in self._failures)

    def _apply(self, patch: FilePatch) -> None:
        binary, wheel = patch.binary, patch.bundle.wheel
        with ExitStack() as mapped:
            source = mapped.enter_context(wheel.mapped(binary.member, folder=self.room, to_edit=True))
            edited = EditedFile.whole(source)
            with at(wheel.path.name), at(binary.path):
                try:
                    with relinked(edited, patch.relink, folder=self.room) as view:
                        _check_table(source, view)
                        digest = hashlib.sha256(view).hexdigest()
                        is_new = digest != binary.sha256
                        self._kept[_key(patch)] = digest, self._keep(edited, view, mapped) if is_new else None
                except BinaryError as error:
                    self._failures[_key(patch)] = str(error)

    def _keep(self, before: EditedFile, view: memoryview, mapped: ExitStack) -> range | EditedFile:
        after = as_edit(view, before)
        with self._lock:
            if after.source.obj is not before.source.obj or not self._left:
                return self._spool.put(view)
            self._left -= 1
            self.stack.push(mapped.pop_all())
        forget(after.source)
        return after

    def patched(self, patch: FilePatch) -> PatchedFile:
        if patch.is_empty:
            return PatchedFile(patch, None, patch.binary.sha256)
        digest, data = self._kept[_key(patch)]
        return PatchedFile(patch, EditedFile.whole(self._spool.view(data)) if isinstance(data, range) else data, digest)


def _check_table(before: memoryview, after: memoryview) -> None:
    """`BinaryError` if the program headers no longer follow the file header: patchelf found no room for one more."""
    places = [FileHeader.parse(view).e_phoff for view in (before, after)]
    if places[0] == FileHeader.layout.size != places[1]:
        raise BinaryError(
            "no room for one more program header: the table would move, and GNU strip destroys such a file"
        )


def _key(patch: FilePatch) -> _Key:
    return patch.binary.sha256, patch.relink


class PatchPlan(Struct, frozen=True, eq=False):
    """The *decisions*, with all files after their patches."""

    decisions: Decisions
    staying: Mapping[Bundle, tuple[PatchedFile, ...]]
    moving: Mapping[Pool, tuple[PatchedFile, ...]]
    uneditable: Mapping[tuple[Bundle, str], str]

    def stubs(self, bundle: Bundle) -> dict[str, bytes]:
        stubs = {}
        for path, decision in self.decisions.by_bundle[bundle].items():
            if decision.pool and decision.leaves_stub:
                library = bundle.binaries[path]
                stubs[library.member.path] = stub(library, rpath_to(path, decision.pool.folder))
        return stubs

    def second_stubs(self, pool: Pool) -> dict[str, bytes]:
        stubs = {}
        for library in pool.libraries.values():
            copies = (
                (bundle, copy.path) for bundle in pool.bundles for copy in bundle.libraries if copy.key == library.key
            )
            if any(self.decisions.of(bundle, path).leaves_stub for bundle, path in copies):
                stubs[f"{pool.folder}/{second_name(library)}"] = second_stub(library)
        return stubs


def plan_patches(
    bundles: Sequence[Bundle], request: SplitRequest, *, packages: PackageFinder, patcher: Patcher
) -> PatchPlan:
    """`RepackageError` if *request* leaves a choice open."""
    uneditable: dict[tuple[Bundle, str], str] = {}
    while True:
        decisions = decide(bundles, request, uneditable=uneditable)
        _check_names(decisions.pools)
        for pool in decisions.pools:
            _check_folder_is_free(pool)
        maker = PatchMaker(decisions, packages, uneditable=uneditable.keys(), cleans=request.rpath)
        staying = {bundle: maker.for_bundle(bundle) for bundle in bundles}
        moving = {pool: maker.for_pool(pool) for pool in decisions.pools}
        every = chain.from_iterable((*staying.values(), *moving.values()))
        failed = {patch.binary.key: why for patch, why in patcher.failures(every)}
        if not failed:
            return PatchPlan(
                decisions,
                {bundle: tuple(map(patcher.patched, patches)) for bundle, patches in staying.items()},
                {pool: tuple(map(patcher.patched, patches)) for pool, patches in moving.items()},
                uneditable,
            )
        # mark the same file in all wheels, or another wheel would try it in the next round
        for bundle in bundles:
            copies = {path: binary.key for path, binary in bundle.binaries.items() if binary.key in failed}
            for path, key in copies.items():
                uneditable.setdefault((bundle, path), failed[key])


def _check_names(pools: Sequence[Pool]) -> None:
    for base, pool in product(pools, pools):
        if base.is_base and not pool.is_base and base.owner == pool.owner:
            raise RepackageError(
                f"{pool.bundles[0].wheel.path.name}: has libraries that only {pool.owner} has, which go to "
                f"{libs_project(pool.owner)}; say with --libs what else to call what several projects have"
            )


def _check_folder_is_free(pool: Pool) -> None:
    """Refuse a wheel with files in the folder of its -libs wheel: installers remove an old wheel's files last."""
    for bundle in pool.bundles:
        paths = (installed_path(member.path) or "" for member in bundle.wheel.members)
        taken = (path for path in paths if path.startswith(f"{pool.folder}/"))
        why = next((f"{path} is where its shared libraries would be" for path in taken), "")
        if why or bundle.wheel.name.project == libs_project(pool.owner):
            why = why or "its shared libraries would be a wheel of its own name"
            raise RepackageError(
                f"{bundle.wheel.path.name}: {why}; say with --libs what else their wheel is to be called"
            )
