"""Decide which wheels get their shared libraries from one -libs wheel.

    what each wheel can give away -> what two or more have -> pools of wheels that need nearly the same

A wheel in a pool is installed with all of the pool's libraries. So wheels with different sets, such as those of CPU
levels whose libraries differ, get different pools: each is one version of the same dependency.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from vbuild.splitting.bundle import Bundle, WheelBinary

Key = tuple[str, str]
# a platform tag, and whether the wheel goes to the folder of pure Python
Place = tuple[str, bool]

# the largest part of a pool's bytes that a wheel may get without having had it
_MOST_FOREIGN = 0.1


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


@dataclass(slots=True, eq=False)
class _PoolDraft:
    """A pool while wheels are added to it."""

    bundles: list[Bundle]
    libraries: dict[Key, WheelBinary]

    def accepts(self, libraries: Mapping[Key, WheelBinary]) -> bool:
        """Whether a wheel with *libraries* fits: neither it nor the others get much that they do not have."""
        union = {**self.libraries, **libraries}
        foreign = (union.keys() - self.libraries.keys()) | (union.keys() - libraries.keys())
        names = Counter(name for name, _ in union)
        return max(names.values()) == 1 and _packed(union, foreign) <= _MOST_FOREIGN * _packed(union, union.keys())


def pools(movable: Mapping[Bundle, Sequence[WheelBinary]], *, smallest: int) -> tuple[Pool, ...]:
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
    found = (_pool(draft, order) for several in drafts.values() for draft in several if len(draft.bundles) > 1)
    kept: list[Pool] = []
    for pool in sorted((pool for pool in found if pool.saved >= smallest), key=lambda pool: -pool.saved):
        # otherwise wheels of one release would require different dependencies
        if not any(pool.platform == other.platform and pool.families & other.families for other in kept):
            kept.append(pool)
    return tuple(sorted(kept, key=lambda pool: order[pool.bundles[0]]))


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


def _pool(draft: _PoolDraft, order: Mapping[Bundle, int]) -> Pool:
    bundles = tuple(sorted(draft.bundles, key=lambda bundle: order[bundle]))
    first: dict[Key, WheelBinary] = {}
    for library in (library for bundle in bundles for library in bundle.libraries):
        first.setdefault(library.key, library)
    return Pool(bundles, {key[0]: first[key] for key in sorted(draft.libraries)})


def _packed(libraries: Mapping[Key, WheelBinary], keys: Collection[Key]) -> int:
    return sum(library.member.compressed_size for key, library in libraries.items() if key in keys)
