"""A wheel of a release under another name, as an output: nothing in it is inflated but METADATA.

renamed(wheel, name, folder=…) -> NewWheel: members copied to their new paths, METADATA put
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from vbuild.publishing.model import Copied, Member, NewWheel, Put
from vbuild.publishing.offer import Offered
from vbuild.sbom.keeping import LARGEST, is_bill, renamed_bill
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName
from vbuild.wheel.rename import Renaming, dist_info_of


def renaming(wheel: Offered, name: WheelName, *, project: str | None = None) -> Renaming:
    """The way from *wheel* to the wheel *name*; *project* as METADATA is to spell it."""
    return Renaming(wheel.name, name, wheel.dist_info, project)


def renamed(
    wheel: Offered,
    name: WheelName,
    *,
    folder: str = "",
    project: str | None = None,
    metadata: Metadata | None = None,
    changed: Mapping[str, Member | None] | None = None,
) -> NewWheel:
    """The wheel called *name*, in *folder* of a layout, with what *wheel* has.

    *metadata* is its METADATA, else the old wheel's under the new name, which *project* spells. *changed* are members
    in place of those at these paths of the new wheel, or further ones at its end; None leaves one out. Members come in
    the old wheel's order with their permissions and times.
    """
    way = renaming(wheel, name, project=project)
    described = f"{dist_info_of(name)}/METADATA"
    text = str(metadata or way.metadata(wheel.metadata)).encode()
    found = ((path, row.path) for row in wheel.rows if (path := way.path(row.path)) is not None)
    members: dict[str, Member | None] = {path: Copied(wheel.path, old, path) for path, old in found}
    members |= {described: Put(described, text), **_bills(wheel, way), **(changed or {})}
    return NewWheel(
        PurePosixPath(folder), name, wheel.path, tuple(member for member in members.values() if member is not None)
    )


def _bills(wheel: Offered, way: Renaming) -> dict[str, Member]:
    """The bills of materials of *wheel* by new path, as they are after the renaming; without those that are endless."""
    paths = [row.path for row in wheel.rows if is_bill(row.path) and (row.size or 0) <= LARGEST]
    if not paths:
        return {}
    with open_wheel(wheel.path) as opened:
        bills = {way.path(path) or path: renamed_bill(opened.read(path), way.old, way.new) for path in paths}
    return {path: Put(path, data) for path, data in bills.items()}
