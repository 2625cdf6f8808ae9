"""`vbuild publish`: finished wheels in every way that people can consume today.

    wheels -> Offer, one a release -> Layout.planned -> Plan -> written, each into a folder of its own

All layouts are planned before the first file is written, and become visible together.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import LayoutError, at
from vbuild.files.hashing import Digests
from vbuild.files.staging import staging
from vbuild.publishing.model import PublishLayout, PublishPlan
from vbuild.publishing.offer import offers
from vbuild.publishing.writing import WrittenLayout, written


class Laid(Struct, frozen=True):
    """What came of one layout: its *plan*, and the *files* in *folder*; none where nothing was to be written."""

    plan: PublishPlan
    folder: Path | None
    files: tuple[WrittenLayout, ...]

    @property
    def size(self) -> int:
        """Bytes that were written for it; hard links take none."""
        return sum(file.size for file in self.files if not file.is_linked)

    def data(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        return {
            "layout": self.plan.layout,
            "folder": str(self.folder) if self.folder else None,
            "files": [{"path": str(file.path), "bytes": file.size, "linked": file.is_linked} for file in self.files],
            "outputs": [str(output.target) for output in self.plan.outputs],
            "uses": [{"what": use.what, "text": use.text, "language": use.language} for use in self.plan.uses],
            "notes": list(self.plan.notes),
        }


def publish(paths: Sequence[Path], folder: Path | None, *, layouts: Sequence[PublishLayout]) -> tuple[Laid, ...]:
    """Lay the wheels at *paths*, files or folders of them, out in each of *layouts*: ``folder/<layout>``.

    Without *folder* nothing is written, and the plans are given. A `VbuildError`, and nothing written, where wheels do
    not belong together, a layout has no place for one of them, or a layout's folder is there and not empty.
    """
    found = offers(paths)
    plans = []
    for layout in layouts:
        with at(layout.name):
            plans.append(layout.planned(found))
    if folder is None:
        return tuple(Laid(plan, None, ()) for plan in plans)
    for plan in plans:
        if not _is_free(there := folder / plan.layout):
            raise _taken(there)
    with staging(folder) as stage, Digests() as digests:
        laid = []
        for plan in plans:
            with at(plan.layout):
                laid.append(Laid(plan, folder / plan.layout, written(plan, stage / plan.layout, digests=digests)))
        for one in laid:
            _replace(stage / one.plan.layout, folder / one.plan.layout)
    return tuple(laid)


def _is_free(place: Path) -> bool:
    """Whether a folder can be put at *place*: nothing is there, or an empty folder; a link is something."""
    is_empty = place.is_dir() and not place.is_symlink() and not any(place.iterdir())
    return is_empty or not os.path.lexists(place)


def _replace(made: Path, target: Path) -> None:
    try:
        if target.exists():
            target.rmdir()
        made.rename(target)
    except OSError as error:
        if _is_free(target):
            raise
        raise _taken(target) from error  # by another run, since this one looked


def _taken(place: Path) -> LayoutError:
    return LayoutError(f"{place}: exists and is not an empty folder; remove it, or choose another output folder")
