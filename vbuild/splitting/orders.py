"""The edits that follow from the fates: for each file that loads something which moved, new NEEDED and DT_RPATH.

    edge to a library that is replaced   its official SONAME; the folders of the official wheel and of what that needs
    edge to one that is shared           the folder of the dependency wheel; none inside that folder itself
    edge by the path of what moves       its file name instead
    edge to another package's library    its folder, where RPATHs are asked for
    edge to one here that no path finds  its folder, where RPATHs are asked for

A file of the dependency wheel finds its neighbours there by the DT_RPATH of whoever loads it, or by its own. Its
entries that lead to other packages lead there from its new place.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from vbuild.linkage.graph import Edge, Via
from vbuild.provenance.official import OfficialWheel, Provenance
from vbuild.splitting.bundle import Bundle, Piece
from vbuild.splitting.fates import Decision
from vbuild.splitting.neighbours import Neighbour, Neighbours
from vbuild.splitting.rpaths import rpath_of
from vbuild.splitting.sharing import Pool
from vbuild.surgery.relinking import Relink


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """What is to be done to *piece*, a file of *bundle* that will be installed at *path*, and what it then asks for."""

    bundle: Bundle
    piece: Piece
    path: str
    relink: Relink
    official: tuple[OfficialWheel, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether its bytes stay as they are."""
        return self.relink == Relink()


@dataclass(frozen=True, slots=True, eq=False)
class Orders:
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

    def staying(self, bundle: Bundle) -> tuple[Order, ...]:
        """An order for each file of *bundle* that stays in it."""
        pieces = [piece for piece in bundle.pieces.values() if not self.decision.fate(bundle, piece.path).is_gone]
        alive = frozenset(piece.folder for piece in pieces)
        return tuple(self._order(_Place(bundle, piece, piece.path, alive)) for piece in pieces)

    def moving(self, pool: Pool) -> tuple[Order, ...]:
        """An order for each library of *pool*."""
        home = self.homes[pool]
        places = (
            _Place(pool.holder(piece), piece, f"{home}/{name}", frozenset({home}))
            for name, piece in pool.pieces.items()
        )
        return tuple(map(self._order, places))

    def _order(self, place: "_Place") -> Order:
        bundle, piece = place.bundle, place.piece
        if (bundle, piece.path) in self.frozen:
            return Order(bundle, piece, place.path, Relink())
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
        return Order(bundle, piece, place.path, relink, tuple(official), tuple(neighbours))

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


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A *piece* of *bundle*, the *path* where it will be, and the folders that have libraries then."""

    bundle: Bundle
    piece: Piece
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
