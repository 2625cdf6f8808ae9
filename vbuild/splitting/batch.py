"""The wheels of one kind of machine, with all that becomes of them.

wheels -> those that promise something -> bundles -> plan -> what dependency wheels are made of, requirements

One METADATA for all wheels of a release: what any of them requires, each of them does.

    demo-1.0-cp311-…-x86_64    demo-libs==0.1; x86_64, nvidia-…==1; x86_64     what both require together
    demo-1.0-cp311-…-aarch64   demo-libs==0.1; aarch64

uv, Poetry and others that lock read the metadata of one file of a release and take it for that of all. Variants are
another matter: there the metadata of the one that is installed counts, and one without CUDA must not ask for it.

All that a split makes of the wheels given: what each requires, the wheels beside them, and what is to be written.

batches -> what dependency wheels are made of -> their versions -> requirements, the same in a release -> outputs
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import by_stem, is_driver, is_official
from vbuild.elf.library_names import is_shared_object, plain
from vbuild.elf.linkage import Via
from vbuild.elf.read import Loading
from vbuild.errors import FetchError, at
from vbuild.splitting.bundle import Bundle, Origin, Reader
from vbuild.splitting.companion import Companion, Libs, libs_version, licence_lines, licence_texts
from vbuild.splitting.decisions import check_drivers
from vbuild.splitting.development import Development, developments
from vbuild.splitting.neighbours import Neighbour, Neighbours
from vbuild.splitting.official import Officials
from vbuild.splitting.orders import PatchOrder
from vbuild.splitting.output import ThinWheel, beside, thin
from vbuild.splitting.pinning import Pinning
from vbuild.splitting.plan import DependencyWheel, Editor, SplitPlan, planned, sharer
from vbuild.splitting.preloading import Preloading, preloading
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.requirements import required
from vbuild.splitting.sharing import Pool
from vbuild.wheel.archive import Wheel
from vbuild.wheel.deflate import Codec
from vbuild.wheel.metadata import Metadata, is_companion

_LED_NOWHERE = frozenset({Via.MISSING, Via.OUTSIDE})
_NOTHING = Metadata.parse("Metadata-Version: 2.1\nName: none\nVersion: 0\n")


class Batch(Struct, frozen=True, eq=False):
    """The *bundles* of one machine, what becomes of them, and what they require then."""

    bundles: tuple[Bundle, ...]
    plan: SplitPlan
    request: SplitRequest
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

    def _is_there(self, order: PatchOrder, neighbour: Neighbour) -> bool:
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


def _contents(made: DependencyWheel, codec: Codec) -> str:
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
    request: SplitRequest,
    *,
    officials: Officials,
    machine: str,
    editor: Editor,
    looks_at_all: bool,
    on_progress: Callable[[int], None],
) -> Batch:
    """What becomes of *wheels*, all for *machine*; arguments and errors as `vbuild.splitting.split.split` has them."""
    reader = Reader(partial(_origin, officials=officials, request=request), editor.room, on_progress)
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
    name: str, loading: Loading, data: memoryview, sha256: str, /, *, officials: Officials, request: SplitRequest
) -> Origin:
    """Where the library *name* comes from; None where no official package has one of its name, or nobody asks."""
    entries = by_stem(plain(name)) if request.replace and loading.outline.is_loadable else ()
    return (
        officials.provenance(name, loading, data, sha256=sha256, entries=entries, fetch=request.fetch)
        if entries
        else None
    )


def _promising(wheels: Sequence[Wheel], request: SplitRequest) -> set[Wheel]:
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


_Lines = tuple[str, ...]


def agreed(own: Mapping[Bundle, _Lines]) -> tuple[Mapping[Bundle, _Lines], Mapping[Bundle, str]]:
    """The lines that each wheel gets, of those that each has of its *own*, and a warning where wheels contradict.

    A wheel without any gets none: of what it brings itself the rest is no business.
    """
    lines: dict[Bundle, _Lines] = dict(own)
    warnings: dict[Bundle, str] = {}
    for family in _families(bundle for bundle, its in own.items() if its):
        said: dict[tuple[str, str], dict[str, None]] = {}
        for line in (line for bundle in family for line in own[bundle]):
            said.setdefault(_subject(line), {})[line] = None
        common = [line for several in said.values() if len(several) == 1 for line in several]
        for bundle in family:
            lines[bundle] = tuple(dict.fromkeys([*own[bundle], *common]))
            if several := [*(row for row in said.values() if len(row) > 1)]:
                first, second, *_ = several[0]
                warnings[bundle] = (
                    f"wheels of one release require {first} and {second}; tools that read the metadata of one file "
                    "for all of them, as uv lock does, will take the wrong one for some"
                )
    return lines, warnings


def versions(libs: Mapping[Pool, Libs]) -> Mapping[Pool, str]:
    """The version of the dependency wheel of each pool: one for all that wheels of one release share.

    Where that would be two wheels of one name, each has a version of its own.
    """
    found: dict[Pool, str] = {}
    for several in _joined(libs):
        together = {pool: libs[pool] for pool in several}
        are_apart = len({(one.name, one.platform) for one in together.values()}) == len(together)
        for pool, one in together.items():
            found[pool] = libs_version(together.values() if are_apart else [one])
    return found


def _joined(libs: Mapping[Pool, Libs]) -> Iterable[list[Pool]]:
    """The pools whose dependency wheels have one name, and which have wheels of one release and label among them."""
    groups: list[tuple[set[tuple[str, ...]], list[Pool]]] = []
    for pool, one in libs.items():
        keys = {(one.name, *_family(bundle)) for bundle in pool.bundles}
        members = [pool]
        for group in [group for group in groups if group[0] & keys]:
            groups.remove(group)
            keys |= group[0]
            members = [*group[1], *members]
        groups.append((keys, members))
    return (members for _, members in groups)


def _families(bundles: Iterable[Bundle]) -> Iterable[list[Bundle]]:
    """The wheels that should have one METADATA: of a release, and of a variant of it."""
    found: dict[tuple[str, ...], list[Bundle]] = {}
    for bundle in bundles:
        found.setdefault(_family(bundle), []).append(bundle)
    return found.values()


def _family(bundle: Bundle) -> tuple[str, ...]:
    return bundle.wheel.name.release, bundle.wheel.name.variant or ""


def _subject(line: str) -> tuple[str, str]:
    """What *line* is about: the project, and where it applies."""
    requirement = Requirement(line)
    return canonicalize_name(requirement.name), str(requirement.marker or "")


@dataclass(frozen=True, eq=False)
class Whole:
    """The *batches* of all machines together; *codec* deflates what is new."""

    batches: tuple[Batch, ...]
    codec: Codec

    @cached_property
    def companions(self) -> Mapping[Pool, Companion]:
        """The dependency wheel of each pool."""
        libs = {pool: batch.libs(pool, self.codec) for batch in self.batches for pool in batch.plan.decision.pools}
        numbers = versions(libs)
        return {pool: one.wheel(numbers[pool]) for pool, one in libs.items()}

    @cached_property
    def preloads(self) -> Mapping[Bundle, Preloading]:
        """The preload modules of each wheel."""
        return {
            bundle: batch.preloading(bundle, self._companion(batch, bundle))
            for batch in self.batches
            for bundle in batch.bundles
        }

    @cached_property
    def _agreed(self) -> tuple[Mapping[Bundle, tuple[str, ...]], Mapping[Bundle, str]]:
        own = {
            bundle: (*batch.requires(bundle, self._companion(batch, bundle)), *self.preloads[bundle].requires)
            for batch in self.batches
            for bundle in batch.bundles
        }
        return agreed(own)

    def _companion(self, batch: Batch, bundle: Bundle) -> Companion | None:
        pool = batch.plan.decision.pool_of(bundle)
        return self.companions[pool] if pool else None

    def requires(self, bundle: Bundle) -> tuple[str, ...]:
        """The lines that METADATA of *bundle* gets."""
        return self._agreed[0][bundle]

    @cached_property
    def thin(self) -> Mapping[Bundle, ThinWheel | None]:
        """What is to be written of each wheel; None where it passes as it is."""
        return {bundle: self._thin(batch, bundle) for batch in self.batches for bundle in batch.bundles}

    def _thin(self, batch: Batch, bundle: Bundle) -> ThinWheel | None:
        moved = (each.members for each in batch.developments if bundle.wheel in each.wheels)
        return thin(
            bundle,
            batch.plan,
            requires=self.requires(bundle),
            companion=self._companion(batch, bundle),
            gone={member.path for members in moved for member in members},
            news=self.preloads[bundle].files,
            bill=batch.request.bill,
        )

    @cached_property
    def beside(self) -> Mapping[Pool, ThinWheel]:
        """The dependency wheels to be written."""
        return {
            pool: beside(self.companions[pool], batch.plan.moving[pool])
            for batch in self.batches
            for pool in batch.plan.decision.pools
        }

    @property
    def outputs(self) -> Iterator[ThinWheel]:
        """All wheels to be written."""
        yield from (output for output in self.thin.values() if output)
        yield from self.beside.values()
        yield from (development.output for batch in self.batches for development in batch.developments)

    @property
    def passing(self) -> tuple[Wheel, ...]:
        """The wheels that pass as they are."""
        return tuple(bundle.wheel for bundle, output in self.thin.items() if output is None)

    def warnings(self, batch: Batch, bundle: Bundle) -> Iterator[str]:
        """What whoever publishes the wheel of *bundle* should know."""
        yield from batch.warnings(bundle)
        yield from self.preloads[bundle].warnings
        if warning := self._agreed[1].get(bundle):
            yield warning
