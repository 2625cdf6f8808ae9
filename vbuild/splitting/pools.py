"""Pools: the wheels that get their shared libraries from one -libs wheel.

    what each wheel can give away -> what two or more have -> pools of wheels that need nearly the same

A wheel in a pool is installed with all of the pool's libraries. So wheels with different sets, such as those of CPU
levels whose libraries differ, get different pools, each with a -libs wheel of its own. Flavours of which some have much
that others do not need, such as a user interface, share what all of them have if that saves more.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from msgspec import Struct

from vbuild.elf.catalogue import systems_of
from vbuild.splitting.bundle import Bundle, WheelBinary

Key = tuple[str, str]
# a platform tag, and whether the wheel goes to the folder of pure Python
Place = tuple[str, bool]

# the largest part of a pool's bytes that a wheel may get without having had it
MOST_FOREIGN = 0.1


class Pool(Struct, frozen=True, eq=False):
    """The *bundles* that share libraries, and these *libraries* by file name, each from one of the bundles."""

    bundles: tuple[Bundle, ...]
    libraries: Mapping[str, WheelBinary]

    @property
    def saved(self) -> int:
        """Compressed bytes that are published once instead of in each wheel."""
        return sum(library.member.compressed_size for library in self.libraries.values()) * (len(self.bundles) - 1)

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects of the wheels."""
        return tuple(sorted({bundle.wheel.name.project for bundle in self.bundles}))

    @property
    def platform(self) -> str:
        return self.bundles[0].wheel.name.platform

    @property
    def is_pure(self) -> bool:
        """Whether the wheels go to the folder of pure Python; then the libraries have to, as well."""
        return _place(self.bundles[0])[1]

    @property
    def families(self) -> frozenset[tuple[str, str | None]]:
        """The releases of the wheels, each with the variant label."""
        return frozenset((bundle.wheel.name.release, bundle.wheel.name.variant) for bundle in self.bundles)

    def source(self, library: WheelBinary) -> Bundle:
        """Return the bundle from which *library* is copied."""
        return next(bundle for bundle in self.bundles if bundle.binaries.get(library.path) is library)


def pool_of(bundle: Bundle, pools: Iterable[Pool]) -> Pool | None:
    """Return the one of *pools* that has *bundle*, or None if it shares nothing."""
    return next((pool for pool in pools if bundle in pool.bundles), None)


@dataclass(slots=True, eq=False)
class _PoolDraft:
    """A pool while wheels are added to it."""

    bundles: list[Bundle]
    libraries: dict[Key, WheelBinary]

    def accepts(self, libraries: Mapping[Key, WheelBinary]) -> bool:
        """Whether a wheel with *libraries* fits: neither it nor the others get much that they do not have."""
        union = {**self.libraries, **libraries}
        sizes = {key: library.member.compressed_size for key, library in union.items()}
        foreign = sum(size for key, size in sizes.items() if key not in self.libraries or key not in libraries)
        has_each_name_once = len({name for name, _ in union}) == len(union)
        return has_each_name_once and foreign <= MOST_FOREIGN * sum(sizes.values())

    def common(self, other: "_PoolDraft") -> "_PoolDraft | None":
        """Return the draft of what the wheels of both have, or None if that is nothing."""
        libraries = {key: library for key, library in self.libraries.items() if key in other.libraries}
        return _PoolDraft([*self.bundles, *other.bundles], libraries) if libraries else None

    def pool(self, order: Mapping[Bundle, int]) -> Pool:
        """Return the pool, with its wheels in *order*."""
        bundles = tuple(sorted(self.bundles, key=lambda bundle: order[bundle]))
        first: dict[Key, WheelBinary] = {}
        for library in (library for bundle in bundles for library in bundle.libraries):
            first.setdefault(library.key, library)
        return Pool(bundles, {key[0]: first[key] for key in sorted(self.libraries)})


def planned_pools(movable: Mapping[Bundle, Sequence[WheelBinary]], *, smallest: int) -> tuple[Pool, ...]:
    """Return the pools of wheels that can give away *movable*; none that saves less than *smallest* bytes."""
    drafts: dict[Place, list[_PoolDraft]] = {}
    largest_first = sorted(_repeated(movable), key=lambda row: -sum(one.member.size for one in row[1].values()))
    for bundle, libraries in largest_first:
        same_place = drafts.setdefault(_place(bundle), [])
        draft = next((draft for draft in same_place if draft.accepts(libraries)), None)
        if draft is None:
            same_place.append(_PoolDraft([bundle], dict(libraries)))
        else:
            draft.bundles.append(bundle)
            draft.libraries = {**libraries, **draft.libraries}
    order = {bundle: place for place, bundle in enumerate(movable)}
    merged = (draft.pool(order) for several in drafts.values() for draft in _merged(several, order))
    found = _compatible(pool for pool in merged if len(pool.bundles) > 1 and pool.saved >= smallest)
    return tuple(sorted(found, key=lambda pool: order[pool.bundles[0]]))


def _merged(drafts: Sequence["_PoolDraft"], order: Mapping[Bundle, int]) -> Sequence["_PoolDraft"]:
    """Return *drafts*, pairs of them replaced by what both have as long as that saves more than the two apart."""
    found = [*drafts]
    while True:
        best: tuple[int, _PoolDraft, _PoolDraft, _PoolDraft] | None = None
        for one, other in combinations(found, 2):
            if common := one.common(other):
                apart = sum(pool.saved for pool in _compatible([one.pool(order), other.pool(order)]))
                more = common.pool(order).saved - apart
                if more > (best[0] if best else 0):
                    best = more, common, one, other
        if best is None:
            return found
        _, common, *pair = best
        found = [*(draft for draft in found if draft not in pair), common]


def _compatible(pools: Iterable[Pool]) -> list[Pool]:
    """Return those of *pools* that save most and go together.

    Wheels of one release that a machine may take must not require different dependencies, nor one that a newer libc
    gets with other libraries.
    """
    kept: list[Pool] = []
    for pool in sorted(pools, key=lambda pool: -pool.saved):
        if not any(pool.families & other.families and are_rivals(pool, other) for other in kept):
            kept.append(pool)
    return kept


def are_rivals(pool: Pool, other: Pool) -> bool:
    """Whether a machine may install a wheel of one and the libraries of the other.

    Libraries for a newer libc are preferred to others, and so are the wheels that need them, if there are such for the
    same Python.
    """
    if pool.platform == other.platform:
        return True
    if systems_of(pool.platform).isdisjoint(systems_of(other.platform)):
        return False
    return _pythons(pool) != _pythons(other)


def _pythons(pool: Pool) -> set[tuple[str, str, str]]:
    names = (bundle.wheel.name for bundle in pool.bundles)
    return {(name.project, name.python, name.abi) for name in names}


def _place(bundle: Bundle) -> Place:
    return bundle.wheel.name.platform, bundle.wheel.wheel_file().root_is_purelib


def _repeated(movable: Mapping[Bundle, Sequence[WheelBinary]]) -> Iterator[tuple[Bundle, dict[Key, WheelBinary]]]:
    """Yield the wheels of *movable* with those libraries that another wheel of their platform has, too."""
    counts = Counter(
        (_place(bundle), *key) for bundle, libraries in movable.items() for key in {one.key for one in libraries}
    )
    for bundle, libraries in movable.items():
        place = _place(bundle)
        if found := {one.key: one for one in libraries if counts[place, *one.key] > 1}:
            # two files of one name do not fit into one folder
            names = Counter(name for name, _ in found)
            yield bundle, {key: one for key, one in found.items() if names[key[0]] == 1}
