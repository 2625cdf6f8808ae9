"""A wheel's bill of materials, made of the bytes that are written, an earlier bill, and what is changed now.

    earlier bills, changes, RECORD of the new wheel -> Bill

The files in it are those of the new wheel's RECORD, whatever an earlier bill says; from that come only the past:
changes, libraries that were taken out, builds. If a wheel is renamed, its bills get the new name:

    dist-info/sboms/*.cdx.json    metadata.component: name, version, purl and bom-ref, and references to that bom-ref

https://cyclonedx.org/docs/1.4/json/ https://peps.python.org/pep-0770/
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import Struct, field
from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild import __version__
from vbuild.elf.catalogue import is_shared_object
from vbuild.files.reading import parsed_json
from vbuild.files.wording import shown
from vbuild.sbom.model import FILE, Bill, BillChange, BillFile, Gone, GpuCut, Making, packed, read
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import RecordRow, is_dist_info, recorded_sha256
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import WheelWriter

if TYPE_CHECKING:
    from vbuild.wheel.installed import InstalledDistribution

_FOLDER, _SUFFIX = "sboms", ".cdx.json"
# bytes; one of five thousand files takes less
LARGEST = 1 << 22
_PURL, _FILE = "pkg:", "?file_name="
_SLIM = "vbuild slim"


def is_bill(path: str) -> bool:
    """Whether the member at *path* is a bill of materials in CycloneDX's JSON."""
    parts = path.split("/")
    return len(parts) > 2 and parts[0].endswith(".dist-info") and parts[1] == _FOLDER and path.endswith(_SUFFIX)  # noqa: PLR2004 - folders and file


def renamed_bill(data: bytes, old: WheelName, new: WheelName) -> bytes:
    """The bill *data* of the wheel *old* as that of *new*; unchanged if of something else, or unreadable."""
    try:
        text = data.decode()
        bill = parsed_json(text)
        whole = bill["metadata"]["component"]
        reference, name = str(whole["bom-ref"]), str(whole["name"])
        if canonicalize_name(name) != old.project:
            return data
        file = f"{_FILE}{quote(str(new), safe='')}" if _FILE in reference else ""
        purl = f"pkg:pypi/{quote(new.project, safe='')}@{quote(new.version, safe='')}{file}"
        values = {
            "name": new.project,
            "version": new.version,
            "purl": purl,
            # only a purl is a reference that follows the name
            "bom-ref": purl if reference.startswith(_PURL) else reference,
        }
        renamed = _replaced(bill, reference, values)
        lines = json.dumps(renamed, indent=2 if text.startswith("{\n") else None, ensure_ascii=text.isascii())
        return (lines + text[len(text.rstrip("\n")) :]).encode()
    except (ValueError, TypeError, KeyError, RecursionError):  # among them text that is not UTF-8, or cannot become it
        return data


def _replaced(value: Any, reference: str, values: dict[str, str]) -> Any:  # noqa: ANN401 - whatever JSON holds
    """*value* with what *values* has in the component *reference*, wherever that is named."""
    match value:
        case dict():
            items = {key: _replaced(item, reference, values) for key, item in value.items()}
            if value.get("bom-ref") == reference:
                items |= {key: text for key, text in values.items() if key in items}
            return items
        case list():
            return [_replaced(item, reference, values) for item in value]
        case _:
            return values["bom-ref"] if value == reference else value


class Changes(Struct, frozen=True):
    """What is done to a wheel: *edited* files by their new paths, *cuts* of their GPU code, libraries that go, builds.

    What an *edited* file was before counts only where its bytes are others now.
    """

    edited: Mapping[str, BillChange] = field(default_factory=dict)
    cuts: Mapping[str, GpuCut] = field(default_factory=dict)
    gone: tuple[Gone, ...] = ()
    makings: tuple[Making, ...] = ()


def path_of(dist_info: str) -> str:
    return f"{dist_info}/{FILE}"


def bill_of(wheel: Wheel) -> Bill | None:
    """The bill in *wheel*; None if unreadable or missing."""
    member = wheel.find(path_of(wheel.dist_info))
    return read(wheel.read(member)) if member and member.size <= LARGEST else None


def installed_bill(distribution: "InstalledDistribution") -> Bill | None:
    """The bill of an installed *distribution*; None if unreadable or missing."""
    file = None if distribution.is_conda else distribution.find(path_of(distribution.dist_info))
    return read(distribution.read(file.path)) if file and file.size <= LARGEST else None


def cuts_of(bill: Bill | None) -> dict[str, GpuCut]:
    """The last cut of the GPU code of each file in *bill*, by path."""
    return {file.path: file.cut for file in bill.files} if bill else {}


def carries(wheel: Wheel) -> bool:
    """Whether *wheel* has a bill of vbuild's, readable or not."""
    return bool(wheel.find(path_of(wheel.dist_info)))


def put(writer: WheelWriter, wheel: Wheel, *, changes: Changes) -> None:
    """Write the bill into the wheel that *writer* makes of *wheel*."""
    path = path_of(wheel.dist_info)
    earlier = list(filter(None, [bill_of(wheel)]))
    writer.write_after(
        wheel.find(path) or path, lambda rows: revised(writer.name, rows, earlier=earlier, changes=changes)
    )


def revised(
    name: WheelName, rows: Iterable[RecordRow], *, earlier: Sequence[Bill] = (), changes: Changes | None = None
) -> bytes:
    """The bill of the wheel *name* whose members are *rows*, as a file: *earlier* bills after *changes*."""
    changes = changes or Changes()
    past = {file.sha256: file for bill in reversed(earlier) for file in bill.files}
    files = []
    for path, digest in listed(rows, also={*changes.edited}).items():
        change = changes.edited.get(path)
        before = past.get(change.sha256 if change else digest)
        steps = before.before if before else ()
        last = before.cut if before else GpuCut()
        if change and change.sha256 != digest:
            steps = (*steps, replace(change, cut=replace(last, gpus=change.cut.gpus)))
        cut = changes.cuts.get(path, last)
        files.append(
            BillFile(path, digest, steps, replace(cut, cut_to=cut.cut_to or last.cut_to) if steps else GpuCut())
        )
    present = {(file.path, file.sha256) for file in files}
    all_gone = (*(library for bill in earlier for library in bill.gone), *changes.gone)
    gone = {(library.path, library.sha256): library for library in all_gone}
    left = tuple(library for key, library in gone.items() if key not in present)
    makings = dict.fromkeys((*(making for bill in earlier for making in bill.makings), *changes.makings))
    return packed(Bill(name.project, name.version, __version__, tuple(files), left, tuple(makings)))


def rehashed(data: bytes, changes: Mapping[str, str | None], cuts: Mapping[str, GpuCut]) -> bytes:
    """The bill *data* with the SHA-256 of each file in *changes*, without those of None, and their new *cuts*.

    A hash that the file had before its last change takes that change back.
    """
    bill = read(data)
    if bill is None:
        return data
    files = []
    for file in bill.files:
        digest = changes.get(file.path, file.sha256)
        if digest is None:
            continue
        steps, cut = file.before, cuts.get(file.path, file.cut)
        if steps and steps[-1].sha256 == digest:
            steps, cut = steps[:-1], steps[-1].cut
        elif digest != file.sha256:
            steps = (*steps, BillChange(file.sha256, _SLIM, file.cut))
        files.append(replace(file, sha256=digest, before=steps, cut=cut))
    return packed(replace(bill, files=tuple(files)))


def first_bill(
    distribution: "InstalledDistribution", changes: Mapping[str, str | None], cuts: Mapping[str, GpuCut]
) -> bytes:
    """The bill of an installed *distribution* that had none, of those of its files that *changes* names."""
    rows = [row for row in distribution.rows if row.path in changes]
    files = tuple(BillFile(path, digest) for path, digest in listed(rows, also={*changes}).items())
    bill = packed(Bill(distribution.project, distribution.version, __version__, files))
    return rehashed(bill, changes, cuts)


def has_past(data: bytes) -> bool:
    """Whether the bill *data* tells of anything but files as they are; True if it cannot be read."""
    bill = read(data)
    return bill is None or bool(bill.gone or bill.makings or any(file.before for file in bill.files))


def listed(rows: Iterable[RecordRow], *, also: Iterable[str] = ()) -> dict[str, str]:
    """The compiled files among *rows*, and those *also* known to be, by path with their SHA-256."""
    others = {*also}
    return {
        row.path: digest
        for row in rows
        if not is_dist_info(row.path)
        and (is_shared_object(row.path) or row.path in others)
        and (digest := recorded_sha256(row.hash))
    }


def contradictions(wheel: Wheel) -> Iterator[str]:
    """Sentences on what the bill of *wheel* says that is not so."""
    if not carries(wheel):
        return
    bill = bill_of(wheel)
    if bill is None:
        yield "cannot be read; expected CycloneDX 1.6 as vbuild writes it"
        return
    if bill.project != wheel.name.project or not _same(bill.version, wheel.name.version):
        yield f"is of {bill.project} {bill.version}, expected {wheel.name.project} {wheel.name.version}"
    digests = {file.path: file.sha256 for file in bill.files}
    recorded = listed((wheel.row(member) for member in wheel.members), also=digests)
    for sentence, paths in (
        ("lists {}, not in the wheel, or without SHA-256 in RECORD", digests.keys() - recorded.keys()),
        ("does not list {}", recorded.keys() - digests.keys()),
        (
            "has another hash than RECORD for {}",
            {path for path in digests.keys() & recorded.keys() if digests[path] != recorded[path]},
        ),
    ):
        if paths:
            yield sentence.format(shown(sorted(paths), 1))
    for gone in bill.gone:
        if recorded.get(gone.path) == gone.sha256:
            yield f"says that {gone.path} has been {gone.fate}, but it is in the wheel"


def _same(version: str, other: str) -> bool:
    try:
        return Version(version) == Version(other)
    except InvalidVersion:
        return version == other
