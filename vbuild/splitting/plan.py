"""Everything that is to be done to all wheels, known before a byte is written.

    bundles -> fates -> orders -> edited files, each proved; a file that cannot be edited keeps what it needs, and the
    fates are decided again

Edited files stay in one temporary file while the plan is open; what is the same in several wheels is edited once.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from pathlib import Path

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.errors import RepackageError, ShortageError, SurgeryError, at
from vbuild.files.edited import EditedFile
from vbuild.files.spool import Spool
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import libs_folder
from vbuild.splitting.decisions import Decision, decided
from vbuild.splitting.neighbours import Neighbours
from vbuild.splitting.orders import Orders, PatchOrder
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.sharing import Pool
from vbuild.wheel.paths import installed_path

# what else is to be done to a library: its path and its bytes in, a rope over them out
Cut = Callable[[str, memoryview], EditedFile]


class DependencyWheel(Struct, frozen=True, eq=False):
    """A file as it will be: what was ordered, its bytes where they are others than before, and their hash."""

    order: PatchOrder
    data: memoryview | None
    sha256: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.order.piece.member.size if self.data is None else len(self.data)


class _Edit(Struct, frozen=True):
    """The hash of an edited file, and its place in the spool if it differs from what it was."""

    sha256: str
    place: range | None


@dataclass(slots=True, eq=False)
class Editor:
    """Carries out orders, those for the same bytes once; what it made lasts until *stack* closes.

    *room* is the folder for temporary files, *cut* what is done to the bytes of every library first.
    """

    stack: ExitStack
    room: Path | None
    cut: Cut | None = None
    _spool: Spool = field(init=False)
    _edits: dict[tuple[str, Relink], _Edit] = field(default_factory=dict)
    _failures: dict[tuple[str, Relink], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._spool = Spool(self.stack, self.room)

    def failure(self, order: PatchOrder) -> str | None:
        """Carry out *order*, and say why the file it asks for cannot be had; None where it is there.

        `ShortageError` or `RepackageError` where that is not the file's fault, and nothing can be edited.
        """
        known = order.piece.sha256, order.relink
        if self._is_idle(order) or known in self._edits or known in self._failures:
            return self._failures.get(known)
        piece, wheel = order.piece, order.bundle.wheel
        with wheel.mapped(piece.member, folder=self.room) as source:
            rope = self.cut(piece.path, source) if self.cut else EditedFile.whole(source)
            with at(wheel.path.name), at(piece.path):
                try:
                    self._edits[known] = self._edited(rope, order)
                except ShortageError:
                    raise
                except SurgeryError as error:
                    self._failures[known] = str(error)
        return self._failures.get(known)

    def made(self, order: PatchOrder) -> DependencyWheel:
        """The file that *order* asks for, which was no failure."""
        piece = order.piece
        edit = _Edit(piece.sha256, None) if self._is_idle(order) else self._edits[piece.sha256, order.relink]
        return DependencyWheel(order, self._spool.view(edit.place) if edit.place else None, edit.sha256)

    def _is_idle(self, order: PatchOrder) -> bool:
        return order.is_idle and not self.cut

    def _edited(self, rope: EditedFile, order: PatchOrder) -> _Edit:
        with relinked(rope, order.relink, folder=self.room) as view:
            digest = hashlib.sha256(view).hexdigest()
            return _Edit(digest, None if digest == order.piece.sha256 else self._spool.put(view))


class SplitPlan(Struct, frozen=True, eq=False):
    """The *decision*, with the files of every wheel and every pool as they will be.

    *frozen* are the files that could not be edited, and why.
    """

    decision: Decision
    homes: Mapping[Pool, str]
    staying: Mapping[Bundle, tuple[DependencyWheel, ...]]
    moving: Mapping[Pool, tuple[DependencyWheel, ...]]
    frozen: Mapping[tuple[Bundle, str], str]


def planned(bundles: Sequence[Bundle], request: SplitRequest, *, neighbours: Neighbours, editor: Editor) -> SplitPlan:
    """The plan for *bundles*; `RepackageError` where it needs a word from the user."""
    frozen: dict[tuple[Bundle, str], str] = {}
    while True:
        decision = decided(bundles, request, frozen=frozen)
        homes = {pool: libs_folder(sharer(pool, request, among=bundles)) for pool in decision.pools}
        _check_together(homes)
        for pool, home in homes.items():
            _check_room(pool, home)
        orders = Orders(decision, homes, neighbours, frozen=frozen.keys(), cleans=request.rpath)
        staying = {bundle: orders.staying(bundle) for bundle in bundles}
        moving = {pool: orders.moving(pool) for pool in decision.pools}
        every = chain.from_iterable((*staying.values(), *moving.values()))
        failed = {order.piece.key: why for order in every if (why := editor.failure(order)) is not None}
        if not failed:
            made_staying = {bundle: tuple(map(editor.made, several)) for bundle, several in staying.items()}
            made_moving = {pool: tuple(map(editor.made, several)) for pool, several in moving.items()}
            return SplitPlan(decision, homes, made_staying, made_moving, frozen)
        # another wheel would only try the same in the next round
        for bundle in bundles:
            copies = {path: piece.key for path, piece in bundle.pieces.items() if piece.key in failed}
            frozen |= {(bundle, path): failed[key] for path, key in copies.items() if (bundle, path) not in frozen}


def sharer(pool: Pool, request: SplitRequest, *, among: Iterable[Bundle]) -> str:
    """After which project the dependency wheel of *pool* is called; `RepackageError` where it is several's.

    The name that is asked for is for what several projects share, if there are several *among* the wheels given: one
    that each project has a version of its own of could not be installed for two of them.
    """
    is_for_all = {bundle.wheel.name.project for bundle in among if bundle.pieces} == set(pool.projects)
    if request.libs and (is_for_all or len(pool.projects) > 1):
        return request.libs.removesuffix("-libs")
    if len(pool.projects) > 1:
        raise RepackageError(
            f"{' and '.join(pool.projects)} have libraries in common, {min(pool.pieces)} first; "
            "say with --libs what their wheel is to be called, or split the projects apart"
        )
    return pool.projects[0]


def _check_together(homes: Mapping[Pool, str]) -> None:
    """`RepackageError` where two projects would require different versions of one dependency wheel in one
    environment.
    """
    for pool, other in combinations(homes, 2):
        for one, two in product(pool.bundles, other.bundles) if homes[pool] == homes[other] else ():
            if one.wheel.name.project != two.wheel.name.project and not _pythons(one).isdisjoint(_pythons(two)):
                raise RepackageError(
                    f"{one.wheel.path.name} and {two.wheel.path.name} share libraries with other wheels, and not the "
                    "same: they could not be installed together; split the projects apart"
                )


def _check_room(pool: Pool, home: str) -> None:
    """`RepackageError` where a wheel has files where its dependency wheel is to have some, or is called like that.

    Installers remove the files of an old wheel after they have installed what the new one requires.
    """
    project = canonicalize_name(home.partition("/")[0])
    for bundle in pool.bundles:
        paths = (installed_path(member.path) or "" for member in bundle.wheel.members)
        taken = next((path for path in paths if path.startswith(f"{home}/")), None)
        if taken or bundle.wheel.name.project == project:
            what = (
                f"{taken} is where its shared libraries would be"
                if taken
                else "its shared libraries would be a wheel of its own name"
            )
            raise RepackageError(
                f"{bundle.wheel.path.name}: {what}; say with --libs what else their wheel is to be called"
            )


def _pythons(bundle: Bundle) -> set[tuple[str, str]]:
    return {(tag.interpreter, tag.abi) for tag in bundle.wheel.name.tags}
