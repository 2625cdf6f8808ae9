"""From what was planned and written to the account of it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vbuild.splitting.batch import Batch
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.fates import Fate, Kind
from vbuild.splitting.outcome import Beside, Edited, LibraryMove, Split, Thinned
from vbuild.splitting.output import Output
from vbuild.splitting.plan import Made
from vbuild.splitting.rpaths import removed
from vbuild.splitting.whole import Whole

# what was written, by file name
Written = Mapping[str, Path]

_ORDER = (Kind.REPLACE, Kind.SHARE, Kind.DROP, Kind.KEEP)


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


def _edited(made: Made) -> Edited:
    order = made.order
    rpath = order.relink.rpath
    gone = () if rpath is None else removed(order.piece.path, order.piece.loading, left=rpath)
    return Edited(order.path, rpath, order.relink.renamed, gone)


def _beside(whole: Whole, written: Written) -> Iterator[Beside]:
    for pool, output in whole.beside.items():
        yield _made_beside(output, [bundle.wheel.path.name for bundle in pool.bundles], written)
    for development in (one for batch in whole.batches for one in batch.developments):
        yield _made_beside(development.output, [wheel.path.name for wheel in development.wheels], written)


def _made_beside(output: Output, wheels: list[str], written: Written) -> Beside:
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
    found: dict[tuple[str, Fate], list[Bundle]] = {}
    for bundle in batch.bundles:
        for path, fate in batch.plan.decision.fates[bundle].items():
            found.setdefault((path, fate), []).append(bundle)
    moves = (_move(whole, path, fate, bundles) for (path, fate), bundles in found.items())
    yield from sorted(moves, key=lambda move: (_ORDER.index(move.kind), -move.packed, move.path))


def _move(whole: Whole, path: str, fate: Fate, bundles: Sequence[Bundle]) -> LibraryMove:
    pieces = [bundle.pieces[path] for bundle in bundles]
    target = None
    if fate.kind is Kind.REPLACE and fate.provenance:
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
