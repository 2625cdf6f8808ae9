"""A wheel's bill of materials from the bytes that are written: what an earlier bill knows, and what is changed now.

    earlier bills, changes, RECORD of the new wheel -> Bill

The files in it are those of the new wheel's RECORD, with the hashes there. So it is true of what is written, whatever
an earlier bill said; from that one come only the past: changes, libraries that went, builds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vbuild import __version__
from vbuild.linkage.names import is_shared_object
from vbuild.materials.cyclonedx import FILE, packed, read
from vbuild.materials.model import Bill, Change, File, Gone, Making
from vbuild.wheel.archive import Wheel
from vbuild.wheel.bill import LARGEST
from vbuild.wheel.distinfo import Row, is_dist_info, sha256_said
from vbuild.wheel.name import WheelName
from vbuild.wheel.writing import WheelWriter


@dataclass(frozen=True, slots=True)
class Changes:
    """What is done to a wheel: to files, by their new paths, with the *gpus* that are left; libraries that go; builds.

    What an *edited* file was before counts only where its bytes are others now.
    """

    edited: Mapping[str, Change] = field(default_factory=dict)
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gone: tuple[Gone, ...] = ()
    makings: tuple[Making, ...] = ()


def path_of(dist_info: str) -> str:
    """Where the bill of a wheel with that ``.dist-info`` folder is."""
    return f"{dist_info}/{FILE}"


def bill_of(wheel: Wheel) -> Bill | None:
    """The bill that *wheel* carries; None without one, and for one that cannot be read."""
    member = wheel.find(path_of(wheel.dist_info))
    return read(wheel.read(member)) if member and member.size <= LARGEST else None


def carries(wheel: Wheel) -> bool:
    """Whether *wheel* has a bill of vbuild's, be it readable or not."""
    return wheel.find(path_of(wheel.dist_info)) is not None


def put(writer: WheelWriter, wheel: Wheel, *, changes: Changes | None = None, others: Iterable[Wheel] = ()) -> None:
    """Have *writer* put into its wheel, made of *wheel* and *others*, the bill of what it has written in the end."""
    path = path_of(wheel.dist_info)
    earlier = [bill for each in (wheel, *others) if (bill := bill_of(each))]
    writer.write_after(
        wheel.find(path) or path, lambda rows: revised(writer.name, rows, earlier=earlier, changes=changes)
    )


def revised(
    name: WheelName, rows: Iterable[Row], *, earlier: Sequence[Bill] = (), changes: Changes | None = None
) -> bytes:
    """The bill of the wheel *name* whose members are *rows*, as a file: after *changes* to what had *earlier* bills."""
    changes = changes or Changes()
    past = {file.sha256: file for bill in reversed(earlier) for file in bill.files}
    files = []
    for path, digest in listed(rows, also={*changes.edited}).items():
        change = changes.edited.get(path)
        before = past.get(change.sha256 if change else digest)
        files.append(_file(path, digest, before, change, changes.gpus.get(path)))
    there = {(file.path, file.sha256) for file in files}
    gone = {(one.path, one.sha256): one for one in (*(one for bill in earlier for one in bill.gone), *changes.gone)}
    makings = dict.fromkeys((*(making for bill in earlier for making in bill.makings), *changes.makings))
    return packed(
        replace(
            Bill.of(name, tool=__version__, makings=makings),
            files=tuple(files),
            gone=tuple(one for key, one in gone.items() if key not in there),
        )
    )


def listed(rows: Iterable[Row], *, also: Iterable[str] = ()) -> dict[str, str]:
    """The compiled files among *rows*, and those *also* known to be, by path with their SHA-256."""
    others = {*also}
    return {
        row.path: digest
        for row in rows
        if not is_dist_info(row.path)
        and (is_shared_object(row.path) or row.path in others)
        and (digest := sha256_said(row.hash))
    }


def _file(path: str, digest: str, before: File | None, change: Change | None, gpus: tuple[str, ...] | None) -> File:
    steps = before.before if before else ()
    left = before.gpus if before and gpus is None else gpus or ()
    is_changed = change is not None and change.sha256 != digest
    return File(path, digest, (*steps, change) if change and is_changed else steps, left if steps or is_changed else ())
