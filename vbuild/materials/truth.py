"""Where the bill of materials in a wheel contradicts the wheel: held against its name and RECORD, nothing is inflated.

name, version      those of the wheel
files              each compiled file that is there, with the hash it has, and no other
what went          not there any more
serial number      that of the rest: nobody has edited it
"""

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from vbuild.materials.keeping import bill_of, carries, listed
from vbuild.wheel.archive import Wheel


def contradictions(wheel: Wheel) -> Iterator[str]:
    """What the bill of *wheel* says that is not so, a sentence each; nothing without a bill."""
    if not carries(wheel):
        return
    bill = bill_of(wheel)
    if bill is None:
        yield "cannot be read; expected CycloneDX 1.6 as vbuild writes it"
        return
    if bill.project != wheel.name.project or not _same(bill.version, wheel.name.version):
        yield f"is of {bill.project} {bill.version}, expected {wheel.name.project} {wheel.name.version}"
    said = {file.path: file.sha256 for file in bill.files}
    there = listed((wheel.row(member) for member in wheel.members), also=said)
    for path in sorted(said.keys() | there.keys()):
        if path not in there:
            yield f"lists {path}, which is not in the wheel, or has no SHA-256 in RECORD"
        elif path not in said:
            yield f"does not list {path}"
        elif said[path] != there[path]:
            yield f"has another hash for {path}: {said[path][:16]}…, but RECORD {there[path][:16]}…"
    for gone in bill.gone:
        if there.get(gone.path) == gone.sha256:
            yield f"says that {gone.path} has been {gone.fate}, but it is in the wheel"


def _same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other
