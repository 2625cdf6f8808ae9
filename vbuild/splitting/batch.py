"""The wheels of one kind of machine, with all that becomes of them.

wheels -> those that promise something -> bundles -> plan -> what dependency wheels are made of, requirements
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from vbuild.binary.loading import Loading
from vbuild.errors import FetchError, at
from vbuild.linkage.catalogue import by_stem, is_driver, is_official
from vbuild.linkage.graph import Via
from vbuild.linkage.names import is_shared_object, plain
from vbuild.provenance.official import Officials
from vbuild.splitting.bundle import Bundle, Origin, Reader
from vbuild.splitting.companion import Companion, Libs, licence_lines, licence_texts
from vbuild.splitting.development import Development, developments
from vbuild.splitting.fates import check_drivers
from vbuild.splitting.neighbours import Neighbour, Neighbours
from vbuild.splitting.orders import Order
from vbuild.splitting.pinning import Pinning
from vbuild.splitting.plan import Editor, Made, Plan, planned, sharer
from vbuild.splitting.preloading import Preloading, preloading
from vbuild.splitting.request import Request
from vbuild.splitting.requirements import required
from vbuild.splitting.sharing import Pool
from vbuild.wheel.archive import Wheel
from vbuild.wheel.companion import is_companion
from vbuild.wheel.distinfo import Metadata
from vbuild.wheel.press import Codec

_LED_NOWHERE = frozenset({Via.MISSING, Via.OUTSIDE})
_NOTHING = Metadata.parse("Metadata-Version: 2.1\nName: none\nVersion: 0\n")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The *bundles* of one machine, what becomes of them, and what they require then."""

    bundles: tuple[Bundle, ...]
    plan: Plan
    request: Request
    pinning: Pinning
    neighbours: Neighbours
    developments: tuple[Development, ...] = ()

    @property
    def transferred(self) -> int:
        """Bytes that were read of official wheels to tell where libraries come from."""
        origins = {piece.key: piece.origin for bundle in self.bundles for piece in bundle.pieces.values()}
        return sum(origin.transferred for origin in origins.values() if origin)

    def libs(self, pool: Pool, codec: Codec) -> Libs:
        """What the dependency wheel of *pool* is made of; *codec* deflates what is edited."""
        made = self.plan.moving[pool]
        projects = {bundle.wheel.name.project: bundle.wheel for bundle in reversed(pool.bundles)}
        return Libs(
            project=sharer(pool, self.request, among=self.bundles),
            files={each.order.path: _contents(each, codec) for each in made},
            platform=pool.platform,
            licence=licence_lines(wheel.metadata() for wheel in projects.values()),
            texts=_texts(pool, is_several=len(projects) > 1),
            requires=self.pinning.lines((each.order for each in made), _NOTHING),
            is_pure=pool.is_pure,
        )

    def requires(self, bundle: Bundle, companion: Companion | None) -> Iterator[str]:
        """The lines that METADATA of *bundle* gets for its files, and for the *companion* that has its libraries."""
        metadata = bundle.wheel.metadata()
        orders = (made.order for made in self.plan.staying[bundle])
        with at(bundle.wheel.path.name):
            yield from self.pinning.lines(orders, metadata)
        if companion:
            yield self.pinning.exactly(companion.project, companion.name.version)

    def preloading(self, bundle: Bundle, companion: Companion | None) -> Preloading:
        """The preload modules of *bundle*; none where they are not asked for."""
        if not self.request.preload:
            return Preloading({})
        return preloading(bundle, self.plan, companion, closure=self.neighbours.closure)

    @property
    def absent(self) -> Iterator[str]:
        """The libraries that nothing leads to: neither a path before, nor the edits and what is required."""
        for made in (*self.plan.staying.values(), *self.plan.moving.values()):
            for order in (one.order for one in made):
                found = {neighbour.library for neighbour in order.neighbours if self._is_there(order, neighbour)}
                for edge in order.bundle.graph.needs(order.piece.path):
                    is_elsewhere = edge.provider is None and edge.via in _LED_NOWHERE and edge.name not in found
                    if is_elsewhere or (edge.via is Via.NAME and not self.request.rpath):
                        yield edge.name

    def _is_there(self, order: Order, neighbour: Neighbour) -> bool:
        """Whether *neighbour* is sure to be installed with the wheel: it is required now, or was already."""
        majors = {None, self.request.cuda[0]} if self.request.cuda else None
        is_asked_for = neighbour.entry and (majors is None or neighbour.entry.cuda in majors)
        return bool(is_asked_for) or required(order.bundle.wheel.metadata(), neighbour.project) is not None

    def warnings(self, bundle: Bundle) -> Iterator[str]:
        """What whoever publishes the wheel of *bundle* should know of its files."""
        yield from (f"{path}: cannot be read: {why}" for path, why in bundle.damaged.items())
        yield from (
            f"{path}: left as it was, because it cannot be edited: {why}"
            for (whose, path), why in self.plan.frozen.items()
            if whose is bundle
        )


def _contents(made: Made, codec: Codec) -> str:
    """What the bytes of a library in a dependency wheel depend on: its contents, and how they are compressed."""
    if made.data is not None:
        return f"{made.sha256} {codec}"
    return f"{made.sha256} {made.order.bundle.wheel.packed_digest(made.order.piece.member)}"


def _texts(pool: Pool, *, is_several: bool) -> dict[str, bytes]:
    """The licence texts of the wheels of *pool*; each project's in a folder of its own, if there are several."""
    texts: dict[str, bytes] = {}
    for bundle in pool.bundles:
        folder = f"{bundle.wheel.name.project}/" if is_several else ""
        for path, text in licence_texts(bundle.wheel).items():
            texts.setdefault(f"{folder}{path}", text)
    return texts


def batch(
    wheels: Sequence[Wheel],
    request: Request,
    *,
    officials: Officials,
    machine: str,
    editor: Editor,
    looks_at_all: bool,
    told: Callable[[int], None],
) -> Batch:
    """What becomes of *wheels*, all for *machine*; arguments and errors as `vbuild.split.split` has them."""
    reader = Reader(partial(_origin, officials=officials, request=request), editor.room, told)
    open_to_change = [wheel for wheel in wheels if not _is_final(wheel)]
    chosen = open_to_change if looks_at_all else _promising(open_to_change, request)
    bundles = tuple(_read(wheel, reader) if wheel in chosen else Bundle(wheel, {}) for wheel in wheels)
    check_drivers(bundles)
    neighbours = Neighbours(officials, request)
    plan = planned(bundles, request, neighbours=neighbours, editor=editor)
    made = developments(open_to_change) if request.outputs else ()
    return Batch(bundles, plan, request, Pinning(request, officials, machine), neighbours, made)


def _read(wheel: Wheel, reader: Reader) -> Bundle:
    """The files of *wheel*; `FetchError` says how to go on without an index."""
    try:
        return reader.read(wheel)
    except FetchError as error:
        raise FetchError(
            f"{wheel.path.name}: has libraries with names of official ones, and no index says if they are: {error}; "
            "--no-replace leaves them where they are"
        ) from error


def _is_final(wheel: Wheel) -> bool:
    """Whether *wheel* passes as it is: made by a split, or one of those that others are to require."""
    return is_official(wheel.name.project) or is_companion(wheel.metadata(), wheel.wheel_file())


def _origin(
    name: str, loading: Loading, data: memoryview, sha256: str, /, *, officials: Officials, request: Request
) -> Origin:
    """Where the library *name* comes from; None where no official package has one of its name, or nobody asks."""
    entries = by_stem(plain(name)) if request.replace and loading.outline.is_loadable else ()
    return (
        officials.provenance(name, loading, data, sha256=sha256, entries=entries, fetch=request.fetch)
        if entries
        else None
    )


def _promising(wheels: Sequence[Wheel], request: Request) -> set[Wheel]:
    """The wheels that have to be looked into, by file names and RECORD: none is inflated for that."""
    if request.rpath or request.drop_unneeded:
        return set(wheels)
    owners: dict[tuple[str, str, str | None], list[Wheel]] = {}
    found = set()
    for wheel in wheels:
        for member in wheel.members:
            name = member.path.rpartition("/")[2]
            if not is_shared_object(name):
                continue
            if is_driver(plain(name)) or (request.replace and by_stem(plain(name))):
                found.add(wheel)
            owners.setdefault((wheel.name.platform, name, wheel.row(member).hash), []).append(wheel)
    if request.share:
        found |= {wheel for several in owners.values() if len({*several}) > 1 for wheel in several}
    return found
