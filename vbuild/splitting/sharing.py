"""Which wheels get their shared libraries from one dependency wheel.

    what each wheel could give away -> what two or more have -> pools of wheels that need nearly the same

A wheel that takes part in a pool is installed with all of the pool's libraries. So wheels with different sets, such as
those of CPU levels whose libraries differ, get different pools: each is one version of the same dependency.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from vbuild.splitting.bundle import Bundle, BundledLibrary

Key = tuple[str, str]
Place = tuple[str, bool]

# of a pool's bytes, how many a wheel may be given that it did not have
_TOO_MUCH = 0.1


class Pool(Struct, frozen=True, eq=False):
    """The *bundles* that share libraries, and the *pieces* they share, by file name; each is that of one of them."""

    bundles: tuple[Bundle, ...]
    pieces: Mapping[str, BundledLibrary]

    @property
    def size(self) -> int:
        """Bytes of its libraries as they are compressed now."""
        return sum(piece.member.compressed_size for piece in self.pieces.values())

    @property
    def saved(self) -> int:
        """Bytes, compressed, that are published once instead of in each wheel."""
        return self.size * (len(self.bundles) - 1)

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects whose wheels take part."""
        return tuple(sorted({bundle.wheel.name.project for bundle in self.bundles}))

    @property
    def platform(self) -> str:
        return self.bundles[0].wheel.name.platform

    @property
    def is_pure(self) -> bool:
        """Whether its wheels go to the folder of pure Python: then the libraries have to, as well."""
        return _place(self.bundles[0])[1]

    @property
    def families(self) -> frozenset[tuple[str, str | None]]:
        """The releases, and the variants of them, whose wheels take part."""
        return frozenset((bundle.wheel.name.release, bundle.wheel.name.variant) for bundle in self.bundles)

    def holder(self, piece: BundledLibrary) -> Bundle:
        """The wheel that *piece* is copied from."""
        return next(bundle for bundle in self.bundles if bundle.pieces.get(piece.path) is piece)


@dataclass(slots=True, eq=False)
class _Draft:
    """A pool in the making."""

    bundles: list[Bundle]
    pieces: dict[Key, BundledLibrary]

    def takes(self, pieces: Mapping[Key, BundledLibrary]) -> bool:
        """Whether a wheel with *pieces* may join: neither it nor the others get much that they do not have."""
        union = {**self.pieces, **pieces}
        alien = (union.keys() - self.pieces.keys()) | (union.keys() - pieces.keys())
        names = Counter(name for name, _ in union)
        return max(names.values()) == 1 and _packed(union, alien) <= _TOO_MUCH * _packed(union, union.keys())


def pools(movable: Mapping[Bundle, Sequence[BundledLibrary]], *, smallest: int) -> tuple[Pool, ...]:
    """The pools among the wheels of *movable* and what each could give away; none that saves less than *smallest*."""
    drafts: dict[Place, list[_Draft]] = {}
    for bundle, pieces in sorted(
        _repeated(movable), key=lambda item: -sum(piece.member.size for piece in item[1].values())
    ):
        beside = drafts.setdefault(_place(bundle), [])
        draft = next((draft for draft in beside if draft.takes(pieces)), None)
        if draft is None:
            beside.append(_Draft([bundle], dict(pieces)))
        else:
            draft.bundles.append(bundle)
            draft.pieces = {**pieces, **draft.pieces}
    order = {bundle: place for place, bundle in enumerate(movable)}
    found = (_pool(draft, order) for beside in drafts.values() for draft in beside if len(draft.bundles) > 1)
    kept = _without_rivals(pool for pool in found if pool.saved >= smallest)
    return tuple(sorted(kept, key=lambda pool: order[pool.bundles[0]]))


def _without_rivals(found: Iterable[Pool]) -> list[Pool]:
    """Those of *found* that save most, where wheels of one release would require different dependencies otherwise."""
    kept: list[Pool] = []
    for pool in sorted(found, key=lambda pool: -pool.saved):
        if not any(pool.platform == other.platform and pool.families & other.families for other in kept):
            kept.append(pool)
    return kept


def _place(bundle: Bundle) -> Place:
    """Where a wheel is installed: on which platform, and if that is in the folder of pure Python."""
    return bundle.wheel.name.platform, bundle.wheel.wheel_file().root_is_purelib


def _repeated(movable: Mapping[Bundle, Sequence[BundledLibrary]]) -> Iterator[tuple[Bundle, dict[Key, BundledLibrary]]]:
    """The wheels of *movable* with those of their libraries that another wheel of their platform has as well."""
    counts = Counter(
        (_place(bundle), *key) for bundle, pieces in movable.items() for key in {piece.key for piece in pieces}
    )
    for bundle, pieces in movable.items():
        place = _place(bundle)
        if found := {piece.key: piece for piece in pieces if counts[place, *piece.key] > 1}:
            # two files of one name cannot be side by side
            names = Counter(name for name, _ in found)
            yield bundle, {key: piece for key, piece in found.items() if names[key[0]] == 1}


def _pool(draft: _Draft, order: Mapping[Bundle, int]) -> Pool:
    bundles = tuple(sorted(draft.bundles, key=lambda bundle: order[bundle]))
    first: dict[Key, BundledLibrary] = {}
    for piece in (piece for bundle in bundles for piece in bundle.libraries):
        first.setdefault(piece.key, piece)
    return Pool(bundles, {key[0]: first[key] for key in sorted(draft.pieces)})


def _packed(pieces: Mapping[Key, BundledLibrary], keys: Collection[Key]) -> int:
    return sum(piece.member.compressed_size for key, piece in pieces.items() if key in keys)
