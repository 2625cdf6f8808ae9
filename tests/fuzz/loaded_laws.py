"""What must hold in memory of a library that was cut, or relinked, by the reader of `tests.fuzz.loaded`."""

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import zstandard

from tests.fuzz.gpu_entries import BUNDLE, CCOB, FATBIN, Entry, check_kept, entries_of
from tests.fuzz.header_laws import check_headers
from tests.fuzz.loaded import PAGE, Loaded, Section, Unreadable, check_memory, check_not_writable, headers, readable
from vbuild.elf.surgery.relink import Relink

_GPU_CODE = (b".nv_fatbin", b"__nv_relfatbin", b".hip_fatbin")
_WRAPPERS = (b".nvFatBinSegment", b".hipFatBinSegment")
_WRAPPER = struct.Struct("<IIQQ")
_HIP = 0x48495046
# of fatbins, of bundles
_ALIGNMENT = (8, 4096)
# what only PT_DYNAMIC leads to: NOTE, HASH, DYNSYM, GNU_HASH, GNU_VERDEF, GNU_VERNEED, GNU_VERSYM
_SLIDING = frozenset({5, 7, 11, 0x6FFFFFF6, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF})
# and what patchelf moves as well: STRTAB, RELA, DYNAMIC, RELR, and .interp
_MOVABLE = _SLIDING | {3, 4, 6, 19}
_LOADED = 2
_SYMBOLS, _RPATH = 11, 15


def check_cut(before: Loaded, after: Loaded, *, verbatim: bool) -> None:
    """The same memory but for GPU code and what leads to it, the same symbols found, and enough GPU code."""
    codes = [section for section in before.sections if section.name in _GPU_CODE and section.flags & _LOADED]
    places = readable(lambda: [place for place, _, _ in _wrappers(before)]) or []
    excused = [*headers(before), *headers(after), *map(_addresses, codes)]
    excused += [range(place, place + 8) for place in places]
    excused += _rows(before, places)
    excused += _moved(before, after)
    check_memory(before, after, excused)
    check_not_writable(before, after, excused)
    _check_symbols(before, after)
    if linkage := readable(lambda: before.linkage):
        assert after.linkage == linkage, f"needs {after.linkage}, expected {linkage}"
    wrappers = readable(lambda: list(_wrappers(before))) or []
    now = list(_wrappers(after)) if wrappers else []
    assert len(wrappers) == len(now), f"{len(now)} wrappers, were {len(wrappers)}"
    for old, new in zip(wrappers, now, strict=True):
        if (code := _code(before, old)) is not None:
            kept = _code(after, new)
            assert kept is not None, "a wrapper leads to nothing"
            check_kept(code, kept, verbatim=verbatim)
            unit = _ALIGNMENT[old[1] == _HIP]
            assert old[2] % unit or not new[2] % unit, f"GPU code at {new[2]:#x}, no multiple of {unit}"
    pairs = [(old, new) for old, new in zip(wrappers, now, strict=True) if old[1] != _HIP]
    _check_freed(before, after, [(old, new) for old, new in pairs if _code(before, old) is not None])
    check_headers(
        before,
        after,
        {old[2]: (_place(before, old), _place(after, new)) for old, new in zip(wrappers, now, strict=True)},
    )


def check_relinked(before: Loaded, after: Loaded, order: Relink) -> None:
    """The same memory but for tables that may move, the same symbols found and relocated, and what was ordered."""
    excused = [*headers(before), *headers(after)]
    for library in (before, after):
        for each in filter(_is_movable, library.sections):
            # patchelf goes by the places in the file, which a damaged header has elsewhere
            excused += [_addresses(each), *library.everywhere(each.offset, each.size)]
    check_memory(before, after, excused)
    _check_symbols(before, after)
    if (rows := readable(lambda: before.relocations)) is not None:
        assert rows == after.relocations, "another relocation"
    names = {old.encode(): new.encode() for old, new in order.renamed}
    if needed := readable(lambda: before.needed):
        wanted = [names.get(name, name) for name in needed]
        wanted += [name.encode() for name in order.added if name.encode() not in wanted]
        assert sorted(after.needed) == sorted(wanted), f"needs {after.needed}, expected {wanted}"
    assert after.run_path == [(_RPATH, ":".join(order.rpath or ()).encode())], f"RPATH {after.run_path}"
    assert after.soname[-1:] == [(order.soname or "").encode()], f"SONAME {after.soname}"
    if required := readable(lambda: before.required):
        expected = [(names.get(library, library), versions) for library, versions in required]
        assert after.required == expected, f"requires {after.required}, expected {expected}"


def _is_movable(section: Section) -> bool:
    is_named = section.name == b".interp" or section.name.startswith(b".gnu.version")
    return bool(section.flags & _LOADED) and (section.kind in _MOVABLE or is_named)


def _addresses(section: Section) -> range:
    return range(section.address, section.address + section.size)


def _wrappers(library: Loaded) -> Iterator[tuple[int, int, int]]:
    """The place of the pointer of each wrapper, its magic number, and where it leads."""
    for section in library.sections:
        # by its address: a damaged header may not say that it is loaded, and relocations fill it all the same
        if section.name in _WRAPPERS and section.address:
            for place in range(section.address, section.address + section.size // 24 * 24, 24):
                magic, _, _, _ = _WRAPPER.unpack(library.read(place, 24))
                if library.is_pointer(place + 8):
                    yield place + 8, magic, library.pointer(place + 8)


def _code(library: Loaded, wrapper: tuple[int, int, int]) -> list[Entry] | None:
    """The entries that *wrapper* leads to, or None if it leads to nothing readable."""
    _, magic, address = wrapper
    with suppress(
        Unreadable, struct.error, ValueError, LookupError, UnicodeDecodeError, zlib.error, zstandard.ZstdError
    ):
        if magic != _HIP:
            found = _fatbin(library, wrapper)
            return entries_of(library.read(found.start, found.stop - found.start))
        (section,) = (each for each in library.sections if each.name in _GPU_CODE and address in _addresses(each))
        bundle = library.read(address, section.address + section.size - address)
        # other bytes may look like code by chance
        return entries_of(bundle) if bundle.startswith((BUNDLE, CCOB)) else None
    return None


def _check_freed(
    before: Loaded, after: Loaded, wrappers: Sequence[tuple[tuple[int, int, int], tuple[int, int, int]]]
) -> None:
    """Where fatbins were cut out, no code is left."""
    kept = [*(readable(partial(_fatbin, after, new)) or range(0) for _, new in wrappers), *headers(after)]
    for old, _ in wrappers:
        span = readable(partial(_fatbin, before, old)) or range(0)
        for page in range(span.start // PAGE * PAGE, span.stop, PAGE):
            left = bytearray(after.pages.get(page, (b"", 0))[0])
            for each in kept:
                if each.start < page + len(left) and page < each.stop:
                    start, stop = max(each.start - page, 0), min(each.stop - page, len(left))
                    left[start:stop] = bytes(stop - start)
            inside = left[max(span.start - page, 0) : max(span.stop - page, 0)]
            assert not any(inside), f"code that is needed no more is left at {page:#x}"


def _place(library: Loaded, wrapper: tuple[int, int, int]) -> range:
    """The addresses of what *wrapper* leads to; none behind its start where they are not known."""
    return readable(partial(_fatbin, library, wrapper)) or range(wrapper[2], wrapper[2])


def _fatbin(library: Loaded, wrapper: tuple[int, int, int]) -> range:
    """The addresses of the fatbin that *wrapper* leads to."""
    magic, header, size = struct.unpack("<4s2xHQ", library.read(wrapper[2], 16))
    if magic != FATBIN:
        raise Unreadable
    return range(wrapper[2], wrapper[2] + header + size)


def _rows(library: Loaded, places: list[int]) -> Iterator[range]:
    """The addends of the relocations of *places*."""
    if not places:
        return
    table = dict(library.dynamic).get(7, 0)
    wanted = frozenset(places)
    yield from (
        range(table + 24 * number + 16, table + 24 * number + 24)
        for number, place in enumerate(library.relocations)
        if place in wanted
    )


def _moved(before: Loaded, after: Loaded) -> Iterator[range]:
    """Where sections were, and are, that gave room for program headers, and the rows of PT_DYNAMIC that lead there."""
    slid = [
        (old, new)
        for old, new in zip(before.sections, after.sections, strict=False)
        if old.kind in _SLIDING and old.flags & _LOADED and (old.address, old.size) != (new.address, new.size)
    ]
    for old, new in slid:
        yield _addresses(old)
        yield _addresses(new)
    starts = {old.address for old, _ in slid}
    for segment in before.segments:
        if segment.kind == 2:
            for number, (_, value) in enumerate(readable(lambda: before.dynamic) or ()):
                if value in starts:
                    yield range(segment.address + 16 * number + 8, segment.address + 16 * number + 16)


def _check_symbols(before: Loaded, after: Loaded) -> None:
    """What the hash table finds of each name it still finds."""
    for name, symbol in readable(lambda: [(each, before.found(each)) for each in _names(before)]) or ():
        if symbol is not None:
            again = after.found(name)
            # where its name is in the table of texts may be another place
            assert again is not None, f"{name!r} is not found any more"
            assert again[4:] == symbol[4:], f"{name!r} is another symbol"


def _names(library: Loaded) -> Iterator[bytes]:
    strings = dict(library.dynamic).get(5, 0)
    for section in library.sections:
        if section.kind == _SYMBOLS:
            for row in range(section.address, section.address + section.size // 24 * 24, 24):
                yield library.text(strings + int.from_bytes(library.read(row, 4), "little"))
