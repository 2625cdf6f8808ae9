"""The edits that follow from the fates: for each file that loads something which moved, new NEEDED and DT_RPATH.

    edge to a library that is replaced   its official SONAME; the folders of the official wheel and of what that needs
    edge to one that is shared           the folder of the dependency wheel; none inside that folder itself
    edge by the path of what moves       its file name instead
    edge to another package's library    its folder, where RPATHs are asked for
    edge to one here that no path finds  its folder, where RPATHs are asked for

A file of the dependency wheel finds its neighbours there by the DT_RPATH of whoever loads it, or by its own. Its
entries that lead to other packages lead there from its new place.

Where a library looks for others, told from its own place: DT_RPATH entries that begin with ``$ORIGIN``.

    pkg/_C.so -> nvidia/cufft/lib     $ORIGIN/../nvidia/cufft/lib
    $ORIGIN/../x/../y                 $ORIGIN/../y
    /opt/conda/lib, lib               a build machine's folder, or the folder that a program was started in: taken out
                                      where RPATHs are asked for
    $ORIGIN/../pkg.libs               taken out where no library is left in it
    $ORIGIN/../../../lib              kept from pkg/_C.so: it leaves site-packages, for an environment's libraries
    $ORIGIN/../$LIB, $PLATFORM        kept as it is: only the loader knows what they stand for

Paths are relative to site-packages, as `installed_path` gives them. https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from vbuild.elf.linkage import Edge, Via
from vbuild.elf.read import Loading
from vbuild.elf.surgery.relink import Relink
from vbuild.splitting.bundle import Bundle, BundledLibrary
from vbuild.splitting.decisions import Decision
from vbuild.splitting.neighbours import Neighbour, Neighbours
from vbuild.splitting.official import OfficialWheel, Provenance
from vbuild.splitting.sharing import Pool

ORIGIN = "$ORIGIN"

_ORIGIN = re.compile(r"\$(ORIGIN(?![A-Za-z0-9_])|\{ORIGIN\})")
_TOKEN = re.compile(r"\$(\w+|\{\w+\})", re.ASCII)
_ELSEWHERE = "a folder of the machine it was built on"
_STARTED = "counts from the folder that a program is started in"


class _Entry(Struct, frozen=True):
    """One entry of a file's RPATH or RUNPATH: as written, the folder it leads to, why it goes if it does.

    Of one with a token that only the loader knows, *rest* is what stands behind ``$ORIGIN``. One that *is_foreign*
    does not count from the file's place.
    """

    text: str
    folder: str = ""
    rest: str = ""
    dropped: str = ""
    is_foreign: bool = False

    def kept_at(self, path: str) -> str:
        """The entry that leads to the same folder from the file at *path*."""
        if self.is_foreign:
            return self.text
        return f"{ORIGIN}{self.rest}" if self.rest else rpath_to(path, self.folder)


def rpath_to(path: str, folder: str) -> str:
    """The entry that leads from the file at *path* to *folder*; both are relative to site-packages, "" is its root."""
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
    alive: Collection[str],
    there: Collection[str] | None = None,
    written_at: str | None = None,
    cleans: bool = True,
) -> tuple[str, ...]:
    """The whole DT_RPATH of the file at *path* that leads to *folders*, after those of its own entries that stay.

    An own entry stays that leads to one of the folders *alive*, or out of site-packages. Where it is known which
    folders of libraries were *there* before, one that leads to none of them stays too: to another project's folder.
    The entries of a file that moves to *path* were *written_at* another one. Those that do not begin with ``$ORIGIN``
    stay without *cleans*: on some machine there may be something.
    """
    entries = [*_entries(written_at or path, loading, alive, there)]
    # a library of the wheel was found before one of a foreign folder behind it: where it went has to stay in front
    owns = next((place for place, entry in enumerate(entries) if not entry.is_foreign), len(entries))
    last = next((place for place, entry in enumerate(entries) if entry.is_foreign and place > owns), len(entries))
    before, behind = (
        [entry.kept_at(path) for entry in some if not entry.dropped or (entry.is_foreign and not cleans)]
        for some in (entries[:last], entries[last:])
    )
    return tuple(dict.fromkeys([*before, *(rpath_to(path, _clean(folder)) for folder in folders), *behind]))


def removed(
    path: str,
    loading: Loading,
    *,
    alive: Collection[str] | None = None,
    there: Collection[str] | None = None,
    left: Collection[str] = (),
) -> tuple[str, ...]:
    """The entries of the file at *path* that `rpath_of` takes out, each with the reason: ``/opt/lib: a folder of ...``.

    Without *alive* none goes for leading to a folder without libraries. Those that are *left* did not go.
    """
    entries = _entries(path, loading, alive, there)
    return tuple(f"{entry.text}: {entry.dropped}" for entry in entries if entry.dropped and entry.text not in left)


def _entries(
    path: str, loading: Loading, alive: Collection[str] | None, there: Collection[str] | None
) -> Iterator[_Entry]:
    """The entries that the loader heeds: those of RUNPATH, where there are any, instead of those of RPATH."""
    living = None if alive is None else set(map(_clean, alive))
    known = None if there is None else set(map(_clean, there))

    def is_dead(folder: str) -> bool:
        return living is not None and folder not in living and (known is None or folder in known)

    for text in loading.outline.runpath or loading.outline.rpath:
        yield _judged(text, path, is_dead)


def _judged(text: str, path: str, is_dead: Callable[[str], bool]) -> _Entry:
    found = _ORIGIN.match(text)
    rest = text[found.end() :] if found else ""
    if not found or (rest and not rest.startswith("/")):
        return _Entry(text, dropped=_ELSEWHERE if found or text.startswith("/") else _STARTED, is_foreign=True)
    if _TOKEN.search(rest):
        return _Entry(text, rest=rest)
    folder = _clean(posixpath.join(posixpath.dirname(path), rest.lstrip("/")))
    leaves = folder == ".." or folder.startswith("../")
    return _Entry(text, folder, dropped="" if leaves or not is_dead(folder) else "no library is left there")


def _clean(folder: str) -> str:
    """*folder* in the one spelling that can be compared; "" is site-packages itself."""
    clean = posixpath.normpath(folder) if folder else ""
    return "" if clean == "." else clean


class PatchOrder(Struct, frozen=True, eq=False):
    """What is to be done to *piece*, a file of *bundle* that will be installed at *path*, and what it then asks for."""

    bundle: Bundle
    piece: BundledLibrary
    path: str
    relink: Relink
    official: tuple[OfficialWheel, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether its bytes stay as they are."""
        return self.relink == Relink()


class Orders(Struct, frozen=True, eq=False):
    """Writes the orders that follow from a *decision*.

    *homes* are the folders of the pools, by pool, and *frozen* the files that cannot be edited. With *cleans* RPATHs
    lead to libraries that no wheel brings, too, and nowhere else: those of the build machine go. Without, no entry goes
    but those to folders that have no library any more.
    """

    decision: Decision
    homes: Mapping[Pool, str]
    neighbours: Neighbours
    frozen: Collection[tuple[Bundle, str]] = ()
    cleans: bool = False

    def staying(self, bundle: Bundle) -> tuple[PatchOrder, ...]:
        """An order for each file of *bundle* that stays in it."""
        pieces = [piece for piece in bundle.pieces.values() if not self.decision.fate(bundle, piece.path).is_gone]
        alive = frozenset(piece.folder for piece in pieces)
        return tuple(self._order(_Place(bundle, piece, piece.path, alive)) for piece in pieces)

    def moving(self, pool: Pool) -> tuple[PatchOrder, ...]:
        """An order for each library of *pool*."""
        home = self.homes[pool]
        places = (
            _Place(pool.holder(piece), piece, f"{home}/{name}", frozenset({home}))
            for name, piece in pool.pieces.items()
        )
        return tuple(map(self._order, places))

    def _order(self, place: "_Place") -> PatchOrder:
        bundle, piece = place.bundle, place.piece
        if (bundle, piece.path) in self.frozen:
            return PatchOrder(bundle, piece, place.path, Relink())
        folders: dict[str, None] = {}
        renamed: list[tuple[str, str]] = []
        official: dict[OfficialWheel, None] = {}
        neighbours: dict[Neighbour, None] = {}
        for edge in bundle.graph.needs(piece.path):
            fate = self.decision.fate(bundle, edge.provider) if edge.provider else None
            if fate and fate.provenance and edge.provider:
                renamed += _renamed(place, edge, fate.provenance.library.soname)
                for found in self._required(bundle, edge.provider):
                    official[found.wheel] = None
                    folders |= dict.fromkeys(self._folders(found.wheel, found.library.path))
            elif fate and fate.pool and edge.provider:
                renamed += [(edge.name, bundle.pieces[edge.provider].name)] if "/" in edge.name else []
                folders |= dict.fromkeys(self._home(fate.pool, place))
            elif neighbour := self._neighbour(bundle, edge):
                neighbours[neighbour] = None
                folders |= dict.fromkeys(neighbour.folders)
            elif self.cleans and edge.via is Via.NAME and edge.provider:
                folders[edge.provider.rpartition("/")[0]] = None
        relink = self._relink(place, tuple(renamed), tuple(folders))
        return PatchOrder(bundle, piece, place.path, relink, tuple(official), tuple(neighbours))

    def _required(self, bundle: Bundle, path: str) -> Iterator[Provenance]:
        """Where the replaced library at *path* is from, and those that it loads in turn: all as they were bundled."""
        left = [path]
        for here in left:
            if provenance := self.decision.fate(bundle, here).provenance:
                yield provenance
                needs = (edge.provider for edge in bundle.graph.needs(here))
                left += (other for other in needs if other and other not in left)

    def _folders(self, wheel: OfficialWheel, library: str) -> Iterator[str]:
        """The folder of the official *library*, and those of what its wheel requires: their libraries need them."""
        yield library.rpartition("/")[0]
        for other in self.neighbours.closure(wheel):
            yield from other.folders

    def _home(self, pool: Pool, place: "_Place") -> Iterator[str]:
        """The folder of *pool*, unless the file is there itself and whatever loads it leads there."""
        home = self.homes[pool]
        if place.folder != home or place.piece.loading.outline.runpath:
            yield home

    def _neighbour(self, bundle: Bundle, edge: Edge) -> Neighbour | None:
        is_elsewhere = edge.provider is None and edge.via in {Via.MISSING, Via.OUTSIDE}
        return self.neighbours.having(bundle, edge.name) if self.cleans and is_elsewhere else None

    def _relink(self, place: "_Place", renamed: tuple[tuple[str, str], ...], folders: tuple[str, ...]) -> Relink:
        outline = place.piece.loading.outline
        before = outline.runpath or outline.rpath
        rpath = place.rpath(folders, cleans=self.cleans)
        # what moves leads elsewhere by the same text
        is_led_astray = place.path != place.piece.path and not {*rpath} <= {*before}
        if not (folders or renamed or self.cleans or is_led_astray) or not outline.is_loadable:
            return Relink()
        return Relink(renamed=renamed, rpath=rpath if rpath != before else None)


class _Place(Struct, frozen=True, eq=False):
    """A *piece* of *bundle*, the *path* where it will be, and the folders that have libraries then."""

    bundle: Bundle
    piece: BundledLibrary
    path: str
    alive: frozenset[str]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    def rpath(self, folders: tuple[str, ...], *, cleans: bool) -> tuple[str, ...]:
        """The DT_RPATH that leads to *folders*, and where it led before if there is still something."""
        alive = self.alive.union(folders)
        return rpath_of(
            self.path,
            self.piece.loading,
            folders,
            alive=alive,
            there=self.bundle.folders,
            written_at=self.piece.path,
            cleans=cleans,
        )


def _renamed(place: _Place, edge: Edge, soname: str) -> Iterator[tuple[str, str]]:
    """The names by which the file asks for the library of *edge*, each with the official *soname* where it is not it.

    Where NEEDED has a path, the versions of symbols are still asked of a name.
    """
    names = {edge.name: None}
    if "/" in edge.name and edge.provider:
        provider = place.bundle.pieces[edge.provider]
        taken = {each.library for each in place.piece.loading.taken}
        names |= dict.fromkeys(name for name in (provider.name, provider.loading.outline.soname) if name in taken)
    yield from ((name, soname) for name in names if name != soname)
