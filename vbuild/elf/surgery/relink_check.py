"""What must hold of a library that was relinked, each invariant a function: read back from the new bytes.

patchelf puts tables that have grown behind the end of the file, and those that its longer program headers push away.
Only the loader knows where these are, from PT_DYNAMIC and PT_NOTE; nothing else may move, and nothing else may differ.
https://github.com/NixOS/patchelf/issues, https://gabi.xinuos.com/elf/08-dynamic.html, glibc ``elf/dl-load.c``
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from vbuild.elf.dynamic import Dynamic, Relink
from vbuild.elf.image import DynamicRow, ElfImage
from vbuild.elf.records import ADDRESS_TAGS, PATH_TAGS, STRING_TAGS, DynamicTag
from vbuild.elf.surgery.relink_places import (
    Case,
    differs,
    loads_lie_apart,
    nothing_leads_to_moved,
    offsets_agree,
    same_bytes,
    same_memory,
    same_notes,
    same_sections,
    same_segments,
    table_is_mapped,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

_ORDERED = PATH_TAGS | {DynamicTag.NEEDED}


def prove_relinked(before: ElfImage, after: Buffer, order: Relink) -> None:
    """Nothing, if *after* is *before* with *order* carried out; else a `BinaryError`.

    The message begins with the name of the invariant that does not hold.
    """
    with _named("the new file can be read"):
        image = ElfImage.parse(after)
        case = Case(before, image, Dynamic.of(before), Dynamic.of(image), order)
    for name, invariant in INVARIANTS.items():
        with _named(name):
            invariant(case)


@contextmanager
def _named(invariant: str) -> Iterator[None]:
    try:
        yield
    except BinaryError as error:
        raise BinaryError(f"{invariant}: {error}") from error


def _same_header(case: Case) -> None:
    old, new = case.before.header, case.after.header
    same = replace(new, e_phoff=old.e_phoff, e_phnum=old.e_phnum, e_shoff=old.e_shoff)
    if same != old:
        raise BinaryError(f"{new} was {old}")


def _needed_as_ordered(case: Case) -> None:
    names = dict(case.order.renamed)
    kept = tuple(names.get(name, name) for name in case.old.texts(DynamicTag.NEEDED))
    found = case.new.texts(DynamicTag.NEEDED)
    added = {name for name in case.order.added if name not in kept}
    front = len(found) - len(kept)
    if found[front:] != kept or front != len(added) or set(found[:front]) != added:
        raise BinaryError(f"{', '.join(found)}, expected {', '.join([*sorted(added), *kept])}")


def _paths_as_ordered(case: Case) -> None:
    found = [(row.tag, case.new.text(row.value)) for row in case.new.paths]
    expected = [(row.tag, case.old.text(row.value)) for row in case.old.paths]
    if case.order.rpath is not None:
        expected = [(case.order.path_tag, ":".join(case.order.rpath))] if case.order.rpath else []
    if found != expected:
        raise BinaryError(f"{found}, expected {expected}")


def _soname_as_ordered(case: Case) -> None:
    found = case.new.texts(DynamicTag.SONAME)
    expected = case.old.texts(DynamicTag.SONAME) if case.order.soname is None else (case.order.soname,)
    if found != expected:
        raise BinaryError(f"{', '.join(found) or 'none'}, expected {', '.join(expected) or 'none'}")


def _same_entries(case: Case) -> None:
    moved, size = case.moved, len(case.old.strings)
    ordered = _ORDERED if case.order.soname is None else _ORDERED | {DynamicTag.SONAME}
    expected = [
        (row.tag, case.old.raw(row.value) if row.tag in STRING_TAGS else _followed(row, moved))
        for row in case.old.rows
        if row.tag not in ordered
    ]
    found = [
        # the string table may be longer
        (
            row.tag,
            case.new.raw(row.value)
            if row.tag in STRING_TAGS
            else min(row.value, size)
            if row.tag == DynamicTag.STRSZ
            else row.value,
        )
        for row in case.new.rows
        if row.tag not in ordered
    ]
    for one, other in itertools.zip_longest(expected, found):
        if one != other:
            raise BinaryError(f"{_entry(other)}, expected {_entry(one)}")


def _followed(row: DynamicRow, moved: dict[int, int]) -> int:
    return moved.get(row.value, row.value) if row.tag in ADDRESS_TAGS else row.value


def _entry(row: tuple[int, bytes | int] | None) -> str:
    if row is None:
        return "no entry"
    return f"tag {row[0]:#x} of {row[1]:#x}" if isinstance(row[1], int) else f"tag {row[0]:#x} of {row[1]!r}"


def _same_requirements(case: Case) -> None:
    names = dict(case.order.renamed)
    expected = [(names.get(each.library, each.library), each.versions) for each in case.old.required()]
    found = [(each.library, each.versions) for each in case.new.required()]
    for one, other in itertools.zip_longest(expected, found):
        if one != other:
            raise BinaryError(f"{other}, expected {one}")


def _same_strings(case: Case) -> None:
    """Every string in use but the RPATH is the one it was; older patchelf fills that with X, even if it is shared."""
    old, new = case.old, case.new
    first = differs(case, old.strings, new.strings.start)
    if first is None:
        return
    # strings in front of the first difference are whole; the one that it is in may have begun long before
    begin = bytes(case.before.data[old.strings.start : first]).rfind(b"\0") + 1
    users = Counter(offset for offset in old.used_strings() if offset >= begin)
    for offset in sorted(users - Counter(row.value for row in old.paths)):
        if old.raw(offset) != new.raw(offset):
            raise BinaryError(f"{new.text(offset)!r} at {offset:#x}, was {old.text(offset)!r}")


INVARIANTS: dict[str, Callable[[Case], None]] = {
    "the file header is the same": _same_header,
    "PT_LOADs ascend and lie apart": loads_lie_apart,
    "offset and address agree modulo the alignment": offsets_agree,
    "the program headers are mapped and overlap nothing": table_is_mapped,
    "NEEDED is as ordered": _needed_as_ordered,
    "RPATH and RUNPATH are as ordered": _paths_as_ordered,
    "SONAME is as ordered": _soname_as_ordered,
    "the sections are the same": same_sections,
    "the other dynamic entries are the same": _same_entries,
    "the version requirements are the same but for their libraries": _same_requirements,
    "every name is the same": _same_strings,
    "what moved has its bytes": same_bytes,
    "nothing leads to what moved": nothing_leads_to_moved,
    "everything else in memory is the same": same_memory,
    "the other segments are the same": same_segments,
    "the notes are found": same_notes,
}
