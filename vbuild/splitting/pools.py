"""The pools of shared libraries: which -libs wheels there are, and which wheels get what from each.

A pool is a -libs wheel, with the wheels that get libraries from it: it is installed as a whole, so wheels that need
different libraries, such as those of CPU levels, get different pools. A library moves to one pool of its wheel:

    several projects have it, and all that it needs    the base, if somebody names one    geo-libs
    all others                                         that of its project                fiona-libs, needs geo-libs
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import covers, systems_of
from vbuild.splitting.bundle import Bundle, WheelBinary
from vbuild.splitting.companion import libs_folder
from vbuild.splitting.request import SplitRequest

Key = tuple[str, str]
# a platform tag, and whether the wheel goes to the folder of pure Python
Place = tuple[str, bool]

# the largest part of a pool's bytes that a wheel may get and has not had
MOST_FOREIGN = 0.1


class Pool(Struct, frozen=True, eq=False):
    """Wheels that share *libraries*, by file name, each from one of the wheels; their -libs wheel is that of *owner*.

    One that *is_base* may be of several projects.
    """

    owner: str
    bundles: tuple[Bundle, ...]
    libraries: Mapping[str, WheelBinary]
    is_base: bool = False

    @property
    def is_published(self) -> bool:
        """Whether its libraries seem to be those of a published -libs wheel; `serves` knows."""
        return all(bundle.published.get(name) == self.owner for bundle in self.bundles for name in self.libraries)

    @property
    def copies(self) -> int:
        """How many copies of each library go; a new base saves none that pools of its projects alone would save."""
        if self.is_published:
            return len(self.bundles)
        return len(self.projects if self.is_base else self.bundles) - 1

    @property
    def saved(self) -> int:
        """Compressed bytes that are published once instead of several times."""
        return sum(library.member.compressed_size for library in self.libraries.values()) * self.copies

    @property
    def projects(self) -> tuple[str, ...]:
        return tuple(sorted({bundle.wheel.name.project for bundle in self.bundles}))

    @property
    def has_published(self) -> bool:
        """Whether a published library stays for one of it that is another build."""
        return any(library.same_as and library.same_as.is_published for library in self.libraries.values())

    @property
    def borrowers(self) -> list[WheelBinary]:
        """The libraries of one project under the name of another build of them that is elsewhere."""
        return [
            library
            for library in (self.libraries.values() if len(self.projects) == 1 else ())
            if library.new_name and library.same_as and not library.same_as.is_published
        ]

    @property
    def platform(self) -> str:
        """The one of its wheels' platforms that covers them all."""
        platforms = [bundle.wheel.name.platform for bundle in self.bundles]
        return _widest(platforms) or platforms[0]

    @property
    def folder(self) -> str:
        return libs_folder(self.owner)

    @property
    def is_pure(self) -> bool:
        return place_of(self.bundles[0])[1]

    @property
    def families(self) -> frozenset[tuple[str, str | None]]:
        return frozenset((bundle.wheel.name.release, bundle.wheel.name.variant) for bundle in self.bundles)

    def source(self, library: WheelBinary) -> Bundle:
        return next(bundle for bundle in self.bundles if bundle.binaries.get(library.path) is library)

    def has(self, library: WheelBinary) -> bool:
        return library.name in self.libraries and self.libraries[library.name].key == library.key

    def hides(self, library: WheelBinary) -> bool:
        """Whether it has another one of the name of *library*."""
        return library.name in self.libraries and not self.has(library)


def _widest(platforms: Sequence[str]) -> str | None:
    return next((name for name in platforms if all(covers(name, other) for other in platforms)), None)


def pools_of(bundle: Bundle, pools: Iterable[Pool]) -> list[Pool]:
    return [pool for pool in pools if bundle in pool.bundles]


def pool_with(library: WheelBinary, bundle: Bundle, pools: Iterable[Pool]) -> Pool | None:
    return next((pool for pool in pools if bundle in pool.bundles and pool.has(library)), None)


class Owners(Struct, frozen=True):
    """What -libs wheels are named after: that of what several projects have, or None; by project, that of the rest."""

    base: str | None
    own: Mapping[str, str]

    @classmethod
    def of(cls, bundles: Iterable[Bundle], request: SplitRequest) -> "Owners":
        split = [bundle for bundle in bundles if bundle.binaries]
        projects = {bundle.wheel.name.project for bundle in split}
        libs = request.libs_project
        bases = {owner for bundle in split for owner in bundle.published.values()} - projects
        is_base = len(projects) > 1 or libs in bases
        return cls(
            libs if is_base else None, {project: project if is_base else libs or project for project in projects}
        )


# the libraries of each wheel that can go to a -libs wheel
_Movable = Mapping[Bundle, Sequence[WheelBinary]]


def planned_pools(movable: _Movable, owners: Owners, *, smallest: int) -> tuple[Pool, ...]:
    """The pools of wheels that can give away *movable*; none that saves less than *smallest* bytes."""
    joined = {owner for bundle in movable for owner in bundle.published.values()} - {*owners.own.values()}
    pools: list[Pool] = []
    for base in sorted(joined.union(filter(None, [owners.base]))):
        pools += _base_pools(_without(movable, pools), base, is_new=base not in joined, smallest=smallest)
    by_owner: dict[str, dict[Bundle, Sequence[WheelBinary]]] = {}
    for bundle, libraries in _without(movable, pools).items():
        if libraries:
            by_owner.setdefault(owners.own[bundle.wheel.name.project], {})[bundle] = libraries
    for owner, rest in by_owner.items():
        pools += _pools(rest, owner, smallest=smallest)
    return tuple(pools)


def _without(movable: _Movable, pools: Sequence[Pool]) -> _Movable:
    """What is left of *movable* without what the wheels get from *pools*."""
    return {
        bundle: [library for library in libraries if not pool_with(library, bundle, pools)]
        for bundle, libraries in movable.items()
    }


def _base_pools(movable: _Movable, base: str, *, is_new: bool, smallest: int) -> list[Pool]:
    """The pools of a *base*: what several projects have, or, if it is not new, what seems to be published there.

    They need nothing that wheels could give to another pool, and their wheels have no other files of their names.
    """
    left = {
        bundle: [library for library in libraries if is_new or bundle.published.get(library.name) == base]
        for bundle, libraries in movable.items()
    }
    while True:
        pools = _pools(left, base, smallest=smallest, is_base=True)
        stranded = {
            pool.libraries[library.name].key
            for pool in pools
            for bundle in pool.bundles
            for library in movable[bundle]
            if pool.hides(library)
            or (pool.has(library) and not all(map(pool.has, _neighbours(bundle, library, movable[bundle]))))
        }
        if not stranded:
            return pools
        left = {
            bundle: [library for library in libraries if library.key not in stranded]
            for bundle, libraries in left.items()
        }


def _neighbours(bundle: Bundle, library: WheelBinary, movable: Sequence[WheelBinary]) -> list[WheelBinary]:
    """Those of *movable* that *library* needs or may open."""
    paths = {edge.provider for edge in bundle.graph.needs(library.path)}
    paths.update(opened.path for opened in bundle.opened_by.get(library.path, ()))
    return [other for other in movable if other.path in paths]


def _pools(movable: _Movable, owner: str, *, smallest: int, is_base: bool = False) -> list[Pool]:
    order = {bundle: index for index, bundle in enumerate(movable)}
    singles = [*_singles(movable, owner, is_base=is_base)]
    platforms: _Platforms = {}
    for single in singles:
        for library in single.libraries.values():
            platforms.setdefault(library.key, set()).add(single.platform)
    by_place: dict[Place, list[Pool]] = {}
    for single in sorted(singles, key=lambda pool: -sum(library.member.size for library in pool.libraries.values())):
        pools = by_place.setdefault(place_of(single.bundles[0], is_base=is_base), [])
        unions = ((number, _union(pool, single, platforms)) for number, pool in enumerate(pools))
        number, union = next((row for row in unions if row[1]), (len(pools), single))
        pools[number : number + 1] = [union or single]
    merged = (
        _settled(pool, order) for pools in by_place.values() for pool in _merged(pools, order, platforms=platforms)
    )
    enough = (pool for pool in merged if pool.copies and pool.saved >= smallest)
    return _labelled(sorted(_compatible(enough), key=lambda pool: order[pool.bundles[0]]))


# by library, the platforms for which there are wheels that have it
_Platforms = dict[Key, set[str]]


def _union(pool: Pool, other: Pool, platforms: _Platforms) -> Pool | None:
    """All of both; None if a wheel got much then that it does not have."""
    if any(map(pool.hides, other.libraries.values())):
        return None
    libraries = {**other.libraries, **pool.libraries}
    sizes = {name: library.member.compressed_size for name, library in libraries.items()}
    foreign = sum(size for name, size in sizes.items() if name not in pool.libraries or name not in other.libraries)
    return _promised(pool, other, libraries, platforms) if foreign <= MOST_FOREIGN * sum(sizes.values()) else None


def _promised(pool: Pool, other: Pool, libraries: Mapping[str, WheelBinary], platforms: _Platforms) -> Pool | None:
    """The wheels of both with *libraries*; None if these are in no wheels that cover the platforms of all."""
    bundles = (*pool.bundles, *other.bundles)
    widest = _widest([bundle.wheel.name.platform for bundle in bundles])
    needed = (platforms[library.key] for library in libraries.values())
    if not (widest and libraries and all(any(covers(name, widest) for name in names) for names in needed)):
        return None
    return replace(pool, bundles=bundles, libraries=libraries)


def _settled(pool: Pool, order: Mapping[Bundle, int]) -> Pool:
    """*pool* with its wheels in *order*, and of each library the copy of the first, if it needs no other name."""
    bundles = tuple(sorted(pool.bundles, key=lambda bundle: order[bundle]))
    first: dict[Key, WheelBinary] = {}
    libraries = [library for bundle in bundles for library in bundle.libraries]
    # one that stays for other builds of it needs no other name
    for library in sorted(libraries, key=lambda library: library.same_as is not None):
        first.setdefault(library.key, library)
    settled = {name: first[library.key] for name, library in sorted(pool.libraries.items())}
    return replace(pool, bundles=bundles, libraries=settled)


def _merged(pools: Sequence[Pool], order: Mapping[Bundle, int], *, platforms: _Platforms) -> Sequence[Pool]:
    """Replace pairs of *pools* by what both have as long as that saves more than the two apart."""
    merged = [*pools]
    while True:
        best: tuple[int, Pool, Pool, Pool] | None = None
        for pool, other in combinations(merged, 2):
            libraries = {name: library for name, library in pool.libraries.items() if other.has(library)}
            if common := _promised(pool, other, libraries, platforms):
                apart = _compatible([_settled(pool, order), _settled(other, order)])
                more = _settled(common, order).saved - sum(rival.saved for rival in apart)
                if more > (best[0] if best else 0):
                    best = more, common, pool, other
        if best is None:
            return merged
        _, common, *pair = best
        merged = [*(pool for pool in merged if pool not in pair), common]


def _labelled(pools: Sequence[Pool]) -> list[Pool]:
    """*pools* of one owner, each with a name of its own at its platform.

    If variants of a release have other libraries than its plain wheels, theirs have their label in the name: two
    versions of one project could not be in the order of releases.
    """
    labels = {pool: min(bundle.wheel.name.variant or "" for bundle in pool.bundles) for pool in pools}
    first = {pool.platform: labels[pool] for pool in sorted(pools, key=labels.__getitem__, reverse=True)}
    return [
        pool if label in {"", first[pool.platform]} else replace(pool, owner=f"{pool.owner}-{canonicalize_name(label)}")
        for pool, label in labels.items()
    ]


def _compatible(pools: Iterable[Pool]) -> list[Pool]:
    """Those of *pools* that save most and go together.

    Wheels of one release must not require different libraries, nor must projects that are installed together.
    """
    chosen: list[Pool] = []
    for pool in sorted(pools, key=lambda pool: -pool.saved):
        rivals = (other for other in chosen if pool.is_base or pool.families & other.families)
        if not any(_are_rivals(pool, other) for other in rivals):
            chosen.append(pool)
    return chosen


def _are_rivals(pool: Pool, other: Pool) -> bool:
    """Whether a machine may install a wheel of one and the libraries of the other.

    Installers prefer libraries for a newer libc, and so the wheels that need them, if there are such for that Python.
    """
    if pool.platform == other.platform:
        return True
    if systems_of(pool.platform).isdisjoint(systems_of(other.platform)):
        return False
    return _pythons(pool) != _pythons(other)


def _pythons(pool: Pool) -> set[tuple[str, str, str]]:
    names = (bundle.wheel.name for bundle in pool.bundles)
    return {(name.project, name.python, name.abi) for name in names}


def place_of(bundle: Bundle, *, is_base: bool = False) -> Place:
    """Where wheels can share; those of a base can whatever version of the C library they are for."""
    platform = bundle.wheel.name.platform
    return system_of(platform) if is_base else platform, bundle.wheel.wheel_file().root_is_purelib


def system_of(platform: str) -> str:
    systems = systems_of(platform)
    return str(sorted(systems)) if systems else platform


def _singles(movable: _Movable, owner: str, *, is_base: bool) -> Iterator[Pool]:
    """A pool for each wheel of what others of its place have, too, or the -libs wheel of *owner* seems to.

    For a base, these others are of other projects.
    """
    places = {bundle: place_of(bundle, is_base=is_base) for bundle in movable}
    users = {
        (bundle.wheel.name.project if is_base else bundle, places[bundle], library.key)
        for bundle, libraries in movable.items()
        for library in libraries
    }
    counts = Counter((place, key) for _, place, key in users)
    for bundle, libraries in movable.items():
        if repeated := {
            library.key: library
            for library in libraries
            if counts[places[bundle], library.key] > 1 or bundle.published.get(library.name) == owner
        }:
            # two files of one name do not fit into one folder
            names = Counter(name for name, _ in repeated)
            alone = {name: library for (name, _), library in repeated.items() if names[name] == 1}
            yield Pool(owner, (bundle,), alone, is_base)
