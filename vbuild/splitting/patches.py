"""The patches that follow from the decisions: new NEEDED and DT_RPATH for each file that loads something which moved.

    edge to a library that is replaced   its official SONAME; the folders of the official wheel and of what that needs
    edge to one that is shared           the folder of the -libs wheel; none if the file is in that folder itself
         and in whose place a stub stays the same, before the file's own entries: one of them leads to the stub
    edge by a path to what moves         its file name instead
    edge to another package's library    its folder, if RPATHs are requested
    edge to one here that no path finds  its folder, if RPATHs are requested

A file of the -libs wheel finds others in its folder by the DT_RPATH of the file that loads it, or by its own. Its
entries that lead to other packages are changed to lead there from its new place.

An entry of DT_RPATH that begins with ``$ORIGIN`` counts from the file's own place:

    pkg/_C.so -> nvidia/cufft/lib     $ORIGIN/../nvidia/cufft/lib
    $ORIGIN/../x/../y                 $ORIGIN/../y
    /opt/conda/lib, lib               a build machine's folder, or the folder in which a program was started: removed
                                      if RPATHs are requested
    $ORIGIN/../pkg.libs               removed if no library is left in it
    $ORIGIN/../../../lib              kept for pkg/_C.so: it leaves site-packages, for an environment's libraries
    $ORIGIN/../$LIB, $PLATFORM        kept as it is: only the loader knows what they stand for

Paths are relative to site-packages, as `installed_path` gives them. https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from vbuild.binary.linkage import Edge, Via
from vbuild.elf.linkage import ORIGIN_TOKEN
from vbuild.elf.read import Loading
from vbuild.elf.surgery.relink import Relink
from vbuild.splitting.bundle import Bundle, WheelBinary
from vbuild.splitting.decisions import Decisions
from vbuild.splitting.official import OfficialWheel, Provenance
from vbuild.splitting.other_packages import LibraryPackage, PackageFinder
from vbuild.splitting.pools import Pool

ORIGIN = "$ORIGIN"

_TOKEN = re.compile(r"\$(\w+|\{\w+\})", re.ASCII)
_BUILD_MACHINE = "a folder of the machine it was built on"
_WORKING_DIRECTORY = "counts from the folder that a program is started in"


class _RpathEntry(Struct, frozen=True):
    """One entry of a file's RPATH or RUNPATH: its *text*, the *folder* to which it leads, why it is *dropped* if it is.

    *rest* is what follows ``$ORIGIN`` in an entry with a token that only the loader knows. An entry that *is_foreign*
    does not count from the file's place.
    """

    text: str
    folder: str = ""
    rest: str = ""
    dropped: str = ""
    is_foreign: bool = False

    def moved_to(self, path: str) -> str:
        """Return the entry that leads to the same folder from the file at *path*."""
        if self.is_foreign:
            return self.text
        return f"{ORIGIN}{self.rest}" if self.rest else rpath_to(path, self.folder)


def rpath_to(path: str, folder: str) -> str:
    """Return the entry that leads from the file at *path* to *folder*; "" is the root of site-packages."""
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
    """Return the whole DT_RPATH of the file at *path*: its own entries that stay, then those that lead to *folders*.

    Entries that lead to the folders *first* come before its own.
    An own entry stays if it leads to one of the folders *alive*, which have libraries, or out of site-packages. If
    *there*, the folders that had libraries before, is given, an entry that leads to none of them stays, too: it leads
    to another project. For a file that moves to *path*, its entries were *written_at* its old path. Without *cleans*,
    entries that do not begin with ``$ORIGIN`` stay: some machine may have libraries there.
    """
    entries = [*_entries(written_at or path, loading, alive, there)]
    # a library of the wheel that was found before one of a foreign folder must still be found before it
    own = next((place for place, entry in enumerate(entries) if not entry.is_foreign), len(entries))
    last = next((place for place, entry in enumerate(entries) if entry.is_foreign and place > own), len(entries))
    foreign, before, after = (
        [entry.moved_to(path) for entry in some if not entry.dropped or (entry.is_foreign and not cleans)]
        for some in (entries[:own], entries[own:last], entries[last:])
    )
    ahead, behind = ([rpath_to(path, _normal(folder)) for folder in some] for some in (first, folders))
    return tuple(dict.fromkeys([*foreign, *ahead, *before, *behind, *after]))


def removed_entries(
    path: str,
    loading: Loading,
    *,
    alive: Collection[str] | None = None,
    there: Collection[str] | None = None,
    left: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the entries of the file at *path* that `rpath_of` removes, each with a reason: ``/opt/lib: a folder ...``.

    Without *alive*, none is removed for leading to a folder without libraries. Those in *left* were not removed.
    """
    entries = _entries(path, loading, alive, there)
    return tuple(f"{entry.text}: {entry.dropped}" for entry in entries if entry.dropped and entry.text not in left)


def _entries(
    path: str, loading: Loading, alive: Collection[str] | None, there: Collection[str] | None
) -> Iterator[_RpathEntry]:
    """Yield the entries that the loader reads: those of RUNPATH, or if there are none, those of RPATH."""
    living = None if alive is None else set(map(_normal, alive))
    known = None if there is None else set(map(_normal, there))
    for text in loading.outline.search_path:
        found = ORIGIN_TOKEN.match(text)
        rest = text[found.end() :] if found else ""
        if not found or (rest and not rest.startswith("/")):
            why = _BUILD_MACHINE if found or text.startswith("/") else _WORKING_DIRECTORY
            yield _RpathEntry(text, dropped=why, is_foreign=True)
        elif _TOKEN.search(rest):
            yield _RpathEntry(text, rest=rest)
        else:
            folder = _normal(posixpath.join(posixpath.dirname(path), rest.lstrip("/")))
            leaves = folder == ".." or folder.startswith("../")
            is_dead = living is not None and folder not in living and (known is None or folder in known)
            yield _RpathEntry(text, folder, dropped="no library is left there" if is_dead and not leaves else "")


def _normal(folder: str) -> str:
    """Return *folder* in a form that can be compared; "" is site-packages itself."""
    normal = posixpath.normpath(folder) if folder else ""
    return "" if normal == "." else normal


class FilePatch(Struct, frozen=True, eq=False):
    """How to change *binary*, a file of *bundle* that will be installed at *path*, and what it then needs.

    *official* are the wheels of replaced libraries, *packages* those of libraries that the wheel never had.
    """

    bundle: Bundle
    binary: WheelBinary
    path: str
    relink: Relink
    official: tuple[OfficialWheel, ...] = ()
    packages: tuple[LibraryPackage, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the file stays as it is."""
        return self.relink == Relink()


class PatchMaker(Struct, frozen=True, eq=False):
    """Makes the patches that follow from the *decisions*.

    *libs_folders* are the folders of the pools' libraries, and *uneditable* the files that cannot be edited. With
    *cleans*, RPATHs also lead to libraries that no wheel brings, and entries of the build machine are removed. Without
    it, only entries that lead to folders without libraries are removed.
    """

    decisions: Decisions
    libs_folders: Mapping[Pool, str]
    packages: PackageFinder
    uneditable: Collection[tuple[Bundle, str]] = ()
    cleans: bool = False

    def for_bundle(self, bundle: Bundle) -> tuple[FilePatch, ...]:
        """Return a patch for each file of *bundle* that stays in it."""
        staying = [one for one in bundle.binaries.values() if not self.decisions.of(bundle, one.path).is_gone]
        stubs = (one for one in bundle.binaries.values() if self.decisions.of(bundle, one.path).leaves_stub)
        alive = frozenset(one.folder for one in (*staying, *stubs))
        return tuple(self._patch(_Destination(bundle, one, one.path, alive)) for one in staying)

    def for_pool(self, pool: Pool) -> tuple[FilePatch, ...]:
        """Return a patch for each library of *pool*."""
        folder = self.libs_folders[pool]
        return tuple(
            self._patch(_Destination(pool.source(library), library, f"{folder}/{name}", frozenset({folder})))
            for name, library in pool.libraries.items()
        )

    def _patch(self, place: "_Destination") -> FilePatch:
        bundle, binary = place.bundle, place.binary
        if (bundle, binary.path) in self.uneditable:
            return FilePatch(bundle, binary, place.path, Relink())
        first: dict[str, None] = {}
        folders: dict[str, None] = {}
        renamed: list[tuple[str, str]] = []
        official: dict[OfficialWheel, None] = {}
        packages: dict[LibraryPackage, None] = {}
        for edge in bundle.graph.needs(binary.path):
            decision = self.decisions.of(bundle, edge.provider) if edge.provider else None
            if decision and decision.provenance and edge.provider:
                renamed += _renamed(place, edge, decision.provenance.library.soname)
                for found in self._replaced(bundle, edge.provider):
                    official[found.wheel] = None
                    # that of the library, and those of all wheels that its wheel requires
                    folders[found.library.path.rpartition("/")[0]] = None
                    wheels = self.packages.officials.closure(found.wheel)
                    folders |= dict.fromkeys(folder for wheel in wheels for folder in wheel.folders)
            elif decision and decision.pool and edge.provider:
                renamed += [(edge.name, bundle.binaries[edge.provider].name)] if "/" in edge.name else []
                folder = self.libs_folders[decision.pool]
                # a file in that folder without RUNPATH is found by the RPATH of the file that loads it
                if place.path.rpartition("/")[0] != folder or binary.loading.outline.runpath:
                    (first if decision.leaves_stub else folders)[folder] = None
            elif self.cleans and edge.provider is None and edge.via in {Via.MISSING, Via.OUTSIDE}:
                if package := self.packages.find(bundle, edge.name):
                    packages[package] = None
                    folders |= dict.fromkeys(package.folders)
            elif self.cleans and edge.via is Via.NAME and edge.provider:
                folders[edge.provider.rpartition("/")[0]] = None
        folders |= dict.fromkeys(self._opened_folders(place))
        relink = self._relink(place, tuple(renamed), tuple(folders), first=tuple(first))
        return FilePatch(bundle, binary, place.path, relink, tuple(official), tuple(packages))

    def _opened_folders(self, place: "_Destination") -> Iterator[str]:
        """Yield the folders in which a file that moves finds what it opens by a name: that moves with it."""
        if place.path != place.binary.path:
            for opened in place.bundle.opened_by.get(place.binary.path, ()):
                if pool := self.decisions.of(place.bundle, opened.path).pool:
                    yield self.libs_folders[pool]

    def _replaced(self, bundle: Bundle, path: str) -> Iterator[Provenance]:
        """Yield the origin of the replaced library at *path*, and of the replaced libraries that it loads in turn."""
        left = [path]
        for here in left:
            if provenance := self.decisions.of(bundle, here).provenance:
                yield provenance
                needs = (edge.provider for edge in bundle.graph.needs(here))
                left += (other for other in needs if other and other not in left)

    def _relink(
        self,
        place: "_Destination",
        renamed: tuple[tuple[str, str], ...],
        folders: tuple[str, ...],
        *,
        first: tuple[str, ...],
    ) -> Relink:
        outline = place.binary.loading.outline
        before = outline.search_path
        rpath = rpath_of(
            place.path,
            place.binary.loading,
            folders,
            first=first,
            alive=place.alive.union(first, folders),
            there=place.bundle.folders,
            written_at=place.binary.path,
            cleans=self.cleans,
        )
        # in another folder the same entry leads elsewhere
        leads_elsewhere = place.path != place.binary.path and not {*rpath} <= {*before}
        if not (first or folders or renamed or self.cleans or leads_elsewhere) or not outline.is_loadable:
            return Relink()
        return Relink(renamed=renamed, rpath=rpath if rpath != before else None)


class _Destination(Struct, frozen=True, eq=False):
    """A *binary* of *bundle*, the *path* where it will be, and the folders that have libraries then."""

    bundle: Bundle
    binary: WheelBinary
    path: str
    alive: frozenset[str]


def _renamed(place: _Destination, edge: Edge, soname: str) -> Iterator[tuple[str, str]]:
    """Yield the names by which the file asks for the library of *edge*, each with the official *soname* if they differ.

    If NEEDED is a path, versions of symbols still refer to a name.
    """
    names = {edge.name: None}
    if "/" in edge.name and edge.provider:
        provider = place.bundle.binaries[edge.provider]
        taken = {each.library for each in place.binary.loading.taken}
        names |= dict.fromkeys(name for name in (provider.name, provider.loading.outline.soname) if name in taken)
    yield from ((name, soname) for name in names if name != soname)
