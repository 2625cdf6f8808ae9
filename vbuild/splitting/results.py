"""What splitting did, as values: for each library where it went, for each wheel its bytes before and after.

Sizes are bytes: packed as in the wheel, unpacked as installed. A packed size that is not known yet is None.

From what was planned and written to the account of it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.splitting.batch import Batch, Whole
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.decisions import DecisionKind, LibraryDecision
from vbuild.splitting.official import OfficialEvidence
from vbuild.splitting.orders import removed
from vbuild.splitting.output import ThinWheel
from vbuild.splitting.plan import DependencyWheel


class LibraryMove(Struct, frozen=True, kw_only=True):
    """What becomes of one library in the *wheels* that have it; *target* is what they require instead.

    Its *size* and its *packed* size are those of all copies together. *evidence* says what proves that it is the
    official one, and *reason* why it stays, or is not replaced.
    """

    name: str
    path: str
    size: int
    packed: int
    wheels: tuple[str, ...]
    kind: DecisionKind
    target: str | None = None
    evidence: OfficialEvidence | None = None
    reason: str = ""

    def data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.path,
            "bytes": self.size,
            "packed_bytes": self.packed,
            "wheels": list(self.wheels),
            "kind": str(self.kind),
            "target": self.target,
            "evidence": str(self.evidence) if self.evidence else None,
            "reason": self.reason,
        }


class Edited(Struct, frozen=True):
    """A file whose NEEDED or RPATH changed; *removed* are the entries of RPATH that led nowhere on other machines."""

    path: str
    rpath: tuple[str, ...] | None
    renamed: tuple[tuple[str, str], ...]
    removed: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "rpath": None if self.rpath is None else list(self.rpath),
            "renamed": dict(self.renamed),
            "removed": list(self.removed),
        }


class Thinned(Struct, frozen=True, kw_only=True):
    """One wheel before and after; *path* is None where nothing was written, *requires* are the lines added."""

    wheel: Path
    path: Path | None
    before: int
    packed: int | None
    unpacked_before: int
    unpacked: int
    edited: tuple[Edited, ...] = ()
    requires: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_untouched: bool = False

    @property
    def name(self) -> str:
        return self.wheel.name

    def data(self) -> dict[str, Any]:
        return {
            "wheel": self.name,
            "path": str(self.path) if self.path else None,
            "before": {"packed_bytes": self.before, "bytes": self.unpacked_before},
            "after": {"packed_bytes": self.packed, "bytes": self.unpacked},
            "edited": [edited.data() for edited in self.edited],
            "requires": list(self.requires),
            "warnings": list(self.warnings),
            "untouched": self.is_untouched,
        }


class Beside(Struct, frozen=True, kw_only=True):
    """A wheel that was made beside: of shared libraries, or of what only compilers read."""

    name: str
    path: Path | None
    packed: int | None
    unpacked: int
    files: tuple[str, ...]
    wheels: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        return {
            "wheel": self.name,
            "path": str(self.path) if self.path else None,
            "packed_bytes": self.packed,
            "bytes": self.unpacked,
            "files": list(self.files),
            "for": list(self.wheels),
        }


class Split(Struct, frozen=True, kw_only=True):
    """A whole run; *transferred* are the bytes that were read of official wheels.

    *absent* are libraries that wheels need and that no path led to before, nor does now: something opens them first.
    """

    wheels: tuple[Thinned, ...]
    beside: tuple[Beside, ...] = ()
    libraries: tuple[LibraryMove, ...] = ()
    transferred: int = 0
    absent: tuple[str, ...] = ()

    @property
    def before(self) -> int:
        """Bytes of the wheels given."""
        return sum(wheel.before for wheel in self.wheels)

    @property
    def packed(self) -> int | None:
        """Bytes of everything that was written; None where nothing was."""
        sizes = [wheel.packed for wheel in self.wheels] + [beside.packed for beside in self.beside]
        return sum(size for size in sizes if size is not None) if None not in sizes else None

    def of(self, names: Collection[str]) -> Self:
        """The same for the wheels of these *names* alone: what only others require is not to be published either."""
        wheels = tuple(wheel for wheel in self.wheels if wheel.name in names)
        beside = tuple(one for one in self.beside if any(wheel in names for wheel in one.wheels))
        return replace(self, wheels=wheels, beside=beside)

    def moved(self, folder: Path) -> Self:
        """The same, with all that was written in *folder* now."""

        def there(path: Path | None) -> Path | None:
            return folder / path.name if path else None

        wheels = tuple(replace(wheel, path=there(wheel.path)) for wheel in self.wheels)
        beside = tuple(replace(one, path=there(one.path)) for one in self.beside)
        return replace(self, wheels=wheels, beside=beside)

    @property
    def made_beside(self) -> tuple[Path, ...]:
        """The wheels that were made and not given."""
        return tuple(beside.path for beside in self.beside if beside.path)

    @property
    def paths(self) -> tuple[Path, ...]:
        """All that was written."""
        return (*(wheel.path for wheel in self.wheels if wheel.path), *self.made_beside)

    def data(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        return {
            "before": {"packed_bytes": self.before},
            "after": {"packed_bytes": self.packed},
            "libraries": [library.data() for library in self.libraries],
            "wheels": [wheel.data() for wheel in self.wheels],
            "beside": [beside.data() for beside in self.beside],
            "absent": list(self.absent),
            "transferred_bytes": self.transferred,
        }


# what was written, by file name
Written = Mapping[str, Path]

_ORDER = (DecisionKind.REPLACE, DecisionKind.SHARE, DecisionKind.DROP, DecisionKind.KEEP)


def results(whole: Whole, written: Written) -> Split:
    """The account of *whole*; nothing is *written* in a dry run."""
    batches = whole.batches
    return Split(
        wheels=tuple(_thinned(whole, batch, bundle, written) for batch in batches for bundle in batch.bundles),
        beside=tuple(_beside(whole, written)),
        libraries=tuple(move for batch in batches for move in _moves(whole, batch)),
        transferred=sum(batch.transferred for batch in batches),
        absent=tuple(sorted({name for batch in batches for name in batch.absent})),
    )


def _thinned(whole: Whole, batch: Batch, bundle: Bundle, written: Written) -> Thinned:
    wheel, output = bundle.wheel, whole.thin[bundle]
    path = written.get(wheel.path.name)
    before = sum(member.size for member in wheel.members)
    record = wheel.find(f"{wheel.dist_info}/RECORD")
    return Thinned(
        wheel=wheel.path,
        path=path,
        before=wheel.path.stat().st_size,
        packed=path.stat().st_size if path else None,
        unpacked_before=before - (record.size if record else 0),
        unpacked=output.unpacked if output else before - (record.size if record else 0),
        edited=tuple(_edited(made) for made in batch.plan.staying[bundle] if made.data is not None),
        requires=whole.requires(bundle) if output else (),
        warnings=tuple(whole.warnings(batch, bundle)),
        is_untouched=output is None,
    )


def _edited(made: DependencyWheel) -> Edited:
    order = made.order
    rpath = order.relink.rpath
    gone = () if rpath is None else removed(order.piece.path, order.piece.loading, left=rpath)
    return Edited(order.path, rpath, order.relink.renamed, gone)


def _beside(whole: Whole, written: Written) -> Iterator[Beside]:
    for pool, output in whole.beside.items():
        yield _made_beside(output, [bundle.wheel.path.name for bundle in pool.bundles], written)
    for development in (one for batch in whole.batches for one in batch.developments):
        yield _made_beside(development.output, [wheel.path.name for wheel in development.wheels], written)


def _made_beside(output: ThinWheel, wheels: list[str], written: Written) -> Beside:
    path = written.get(str(output.name))
    return Beside(
        name=str(output.name),
        path=path,
        packed=path.stat().st_size if path else None,
        unpacked=output.unpacked,
        files=output.files,
        wheels=tuple(wheels),
    )


def _moves(whole: Whole, batch: Batch) -> Iterator[LibraryMove]:
    """Every library once for each thing that becomes of it, what takes most first."""
    found: dict[tuple[str, LibraryDecision], list[Bundle]] = {}
    for bundle in batch.bundles:
        for path, fate in batch.plan.decision.fates[bundle].items():
            found.setdefault((path, fate), []).append(bundle)
    moves = (_move(whole, path, fate, bundles) for (path, fate), bundles in found.items())
    yield from sorted(moves, key=lambda move: (_ORDER.index(move.kind), -move.packed, move.path))


def _move(whole: Whole, path: str, fate: LibraryDecision, bundles: Sequence[Bundle]) -> LibraryMove:
    pieces = [bundle.pieces[path] for bundle in bundles]
    target = None
    if fate.kind is DecisionKind.REPLACE and fate.provenance:
        target = f"{fate.provenance.wheel.project}=={fate.provenance.wheel.version}"
    elif fate.pool:
        target = whole.companions[fate.pool].requirement
    return LibraryMove(
        name=pieces[0].name,
        path=path,
        size=sum(piece.member.size for piece in pieces),
        packed=sum(piece.member.compressed_size for piece in pieces),
        wheels=tuple(bundle.wheel.path.name for bundle in bundles),
        kind=fate.kind,
        target=target,
        evidence=fate.provenance.evidence if fate.provenance else None,
        reason=fate.reason,
    )
