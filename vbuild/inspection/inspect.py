"""`vbuild inspect`: what is in a wheel.

    wheel -> members that are ELF, PE or Mach-O files or static libraries, each inflated once and mapped -> Contents

Members are looked into on all cores, the largest first, and none is held longer than it takes: what the closure wants
to know of a library is read from the same mapping. A library that cannot be read is named in the contents; a wheel
that cannot be read is an error.
"""

import dataclasses
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.binary.image import Image
from vbuild.binary.outline import BinaryLoading, BinaryOutline, Format
from vbuild.elf.catalogue import PlatformPolicy
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Loading, Outline
from vbuild.errors import BinaryError, RepackageError, VariantError, WheelError, at
from vbuild.files.atomic import replacing
from vbuild.files.records import Buffer
from vbuild.gpu_code.device_file import HEADER, DeviceFile, Folder, Folders, container_in, may_be_container
from vbuild.gpu_code.model import Vendor
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.cpu import available_cores
from vbuild.hardware.gpu import arch_order
from vbuild.inspection.closure import Closure, LinkedLibrary, Node, repeats
from vbuild.inspection.gpu_code import GpuCode
from vbuild.inspection.model import Archive, Contents, Damaged, DeviceFiles, Duplicate, LibraryContents, Others
from vbuild.inspection.page import page
from vbuild.macho import read as macho
from vbuild.pe import read as pe
from vbuild.pe.image import PeImage
from vbuild.sbom.keeping import bill_of, contradictions, path_of
from vbuild.variants.document import Document
from vbuild.variants.model import Variant
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.licence import Licence
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.paths import installed_path
from vbuild.wheel.zip_read import Member

ARCHIVE_MAGIC = b"!<arch>\n"
_ARCHIVE_SUFFIX = ".a"
_AR_HEADER = 60
_AR_END = b"`\n"
_NO_OBJECTS = (b"/ ", b"// ", b"/SYM64/", b"__.SYMDEF")

_OUTLINES: Mapping[Format, Callable[[Buffer], BinaryOutline]] = {
    Format.ELF: Outline.parse,
    Format.PE: pe.read_outline,
    Format.MACHO: macho.read_outline,
}
_LOADINGS: Mapping[Format, Callable[[Buffer], BinaryLoading]] = {
    Format.ELF: Loading.parse,
    Format.PE: pe.read_loading,
    Format.MACHO: macho.read_loading,
}
# those whose GPU code is known
_IMAGES: Mapping[Format, Callable[[memoryview], Image]] = {Format.ELF: ElfImage.parse, Format.PE: PeImage.parse}

Found = LibraryContents | DeviceFiles | Archive | Damaged
Seeing = Callable[[Member, memoryview], Found]
# for the closure: what the loader asks of a library, or why that cannot be read
Followed = LinkedLibrary | Damaged

_LIBRARY = re.compile(r"\.(so(\.[\w.]+)?|a|dll|pyd|dylib)$")
_SHARED = re.compile(r"\.(?:so\b|dll$|dylib$)")
_SMALLEST = 52  # the header of a 32-bit ELF file
# who may open a library by name without being compiled, and the names as they stand there: "libx", f"libx{major}.so"
_PYTHON = (".py", ".pth")
# none is longer than a file name may be (NAME_MAX): without that bound a megabyte of digits would take minutes
_NAME = re.compile(rb"(?<![\w-])(?:lib[\w.+-]{0,250}[{%]?|[\w+-][\w.+-]{0,250}\.(?:so|dll|dylib)\b[\w.]{0,250})")


def inspect(wheel: Path, *, jobs: int | None = None, closure: bool = False) -> Contents:
    """What is in *wheel*; `WheelError` if it is none. *jobs* threads look, as many as there are cores for None.

    With *closure* also which of its libraries loads which.
    """
    with open_wheel(wheel) as source, at(wheel.name):
        metadata = source.metadata()
        variant, warnings = _variant(source)
        seen = _looked_into(source, jobs or available_cores(), closure=closure)
        found = tuple(item for item, _ in seen)
        followed = tuple(loading for _, loading in seen if loading)
        return Contents(
            wheel=wheel.name,
            project=metadata.name,
            version=metadata.version,
            tags=tuple(sorted(map(str, source.name.tags))),
            variant=variant,
            packed_size=wheel.stat().st_size,
            size=sum(member.size for member in source.members),
            files=len(source.members),
            licence=Licence.of(source),
            libraries=tuple(item for item in found if isinstance(item, LibraryContents)),
            device_files=tuple(_grouped(item for item in found if isinstance(item, DeviceFiles))),
            damaged=tuple(item for item in found if isinstance(item, Damaged)),
            archives=tuple(item for item in found if isinstance(item, Archive)),
            duplicates=_duplicates(source),
            others=_others(source, {_path(item) for item in found}),
            warnings=(
                *warnings,
                *(f"{source.record_path}: {what}" for what in (source.record.unhashed(source.record_path),) if what),
                *(
                    f"{item.path}: left out of the closure: {item.why}"
                    for item in followed
                    if isinstance(item, Damaged)
                ),
                *(f"{path_of(source.dist_info)}: {what}" for what in contradictions(source)),
            ),
            closure=_closure(source, [item for item in followed if isinstance(item, LinkedLibrary)])
            if closure
            else None,
            bill=bill_of(source),
        )


def compared(several: Sequence[Contents]) -> tuple[Contents, ...]:
    """The same contents, inspected with their closures, that say of each library which other wheels have it, too."""
    found = repeats((contents.wheel, contents.closure) for contents in several if contents.closure)
    return tuple(
        dataclasses.replace(contents, closure=contents.closure.with_repeats(found, contents.wheel))
        if contents.closure
        else contents
        for contents in several
    )


def save_page(contents: Contents, path: Path) -> None:
    """Write the page that shows *contents* to *path*, complete or not at all; `RepackageError` if that cannot be."""
    try:
        with replacing(path) as part:
            part.write_text(page(contents), encoding="utf-8")
    except OSError as error:
        raise RepackageError(f"{path}: cannot be written: {error.strerror}") from error


def _looked_into(wheel: Wheel, jobs: int, *, closure: bool) -> tuple[tuple[Found, Followed | None], ...]:
    """The compiled files of *wheel*, the largest first, with what their *closure* is made of if that is asked for."""
    # one thread finds them: with others at work, each of thousands of small members would wait for Python's lock
    seen: list[tuple[Member, Seeing]] = []
    known: list[tuple[Found, None]] = []
    folders = Folders((member.path for member in wheel.members), wheel.read)
    for member in wheel.members:
        see = _way_of_seeing(wheel, member, folders.of(member.path))
        if isinstance(see, DeviceFiles):
            known.append((see, None))
        elif see:
            seen.append((member, see))
    seen.sort(key=lambda item: (-item[0].size, item[0].path))
    with ThreadPoolExecutor(jobs) as threads:
        return (*threads.map(lambda item: _seen(wheel, *item, closure=closure), seen), *known)


def _way_of_seeing(wheel: Wheel, member: Member, folder: Folder) -> Seeing | DeviceFiles | None:
    """What looks into *member*, by the magic it begins with, or what it is; None if it is not a compiled file."""
    start = wheel.head(member, HEADER)

    def head(size: int) -> bytes:
        return start if size <= HEADER else wheel.head(member, size)

    if file := DeviceFile.of(member.path, member.size, head, folder):
        gpu = GpuCode.alone(file, member.size)
        archs = (file.arch,) if file.is_known else ()
        return DeviceFiles(file.kind, archs, 1, member.size, member.compressed_size, member.path, gpu)
    if member.size < _SMALLEST:
        return None
    if not start:
        # cannot be inflated: looking into it says why
        return partial(_library, Format.ELF) if _LIBRARY.search(member.path) else None
    if (found := Format.of(member.path, head)) and not member.path.endswith(_ARCHIVE_SUFFIX):
        return partial(_library, found)
    if may_be_container(member.path, head):
        return _container
    is_archive = start.startswith(ARCHIVE_MAGIC) or found is Format.MACHO
    return _archive if member.path.endswith(_ARCHIVE_SUFFIX) and is_archive else None


def _container(member: Member, data: memoryview) -> DeviceFiles:
    container = container_in(data)
    if container is None:
        raise BinaryError("neither a fatbin nor a bundle, though it begins like one")
    gpu = GpuCode.contained(container, member.size)
    kind = "fatbin" if container.vendor is Vendor.NVIDIA else "bundle"
    archs = tuple(sorted({entry.arch for entry in container.entries if entry.size}, key=arch_order))
    return DeviceFiles(kind, archs, 1, member.size, member.compressed_size, member.path, gpu)


def _grouped(files: Iterable[DeviceFiles]) -> Iterator[DeviceFiles]:
    """The *files* of a kind for the same GPUs together, what takes most first."""
    groups: dict[tuple[object, ...], list[DeviceFiles]] = {}
    for file in files:
        whys = tuple(pinned.why for pinned in file.gpu.pinned)
        groups.setdefault((file.kind, file.archs, whys), []).append(file)
    found = [
        replace(
            min(group, key=lambda file: file.first),
            files=len(group),
            size=sum(file.size for file in group),
            packed_size=sum(file.packed_size for file in group),
            gpu=GpuCode.together(file.gpu for file in group),
        )
        for group in groups.values()
    ]
    return iter(sorted(found, key=lambda files: (-files.size, files.first)))


def _path(item: Found) -> str:
    return item.first if isinstance(item, DeviceFiles) else item.path


def _seen(wheel: Wheel, member: Member, see: Seeing, *, closure: bool) -> tuple[Found, Followed | None]:
    """What *see* makes of *member*, or why it can make nothing of it; and what a *closure* has to know of it."""
    try:
        with wheel.mapped(member) as data:
            found = see(member, data)
            if not (closure and isinstance(found, LibraryContents)):
                return found, None
            return found, _followed(wheel, member, data, found.outline) if found.outline.is_loadable else None
    except (BinaryError, WheelError) as error:
        return _damaged(wheel, member, error), None


def _followed(wheel: Wheel, member: Member, data: memoryview, outline: BinaryOutline) -> Followed:
    try:
        loading = _LOADINGS[outline.format](data)
    except BinaryError as error:
        return _damaged(wheel, member, error)
    return LinkedLibrary(member.path, member.size, member.compressed_size, wheel.row(member).hash, loading)


def _damaged(wheel: Wheel, member: Member, error: BinaryError | WheelError) -> Damaged:
    why = str(error).removeprefix(f"{wheel.path.name}: ").removeprefix(f"{member.path}: ")
    return Damaged(member.path, member.size, member.compressed_size, why)


def _archive(member: Member, data: memoryview) -> Archive:
    # that of a universal2 wheel has one for each machine
    objects = sum(object_count(data[span.start : span.stop]) for span in macho.halves(data))
    return Archive(member.path, member.size, member.compressed_size, objects)


def _library(format_: Format, member: Member, data: memoryview) -> LibraryContents:
    outline = _OUTLINES[format_](data)
    if outline.bits == 64 and outline.byte_order == "little" and format_ in _IMAGES:  # noqa: PLR2004 - bits
        try:
            gpu = GpuCode.of(device_code(_IMAGES[format_](data)))
        except BinaryError as error:
            gpu = GpuCode(notes=(f"GPU code cannot be read: {error}",))
    else:
        gpu = GpuCode()
    return LibraryContents(member.path, member.size, member.compressed_size, outline, gpu)


def _closure(wheel: Wheel, files: Iterable[LinkedLibrary]) -> Closure:
    """The closure of *files*, which are all that *wheel* has to load."""
    found = (PlatformPolicy.parse(tag) for tag in sorted({tag.platform for tag in wheel.name.tags}))
    platforms = [platform for platform in found if platform]
    files = tuple(files)
    added = _added(
        wheel,
        {
            posixpath.dirname(installed_path(file.path) or file.path)
            for file in files
            if file.loading.outline.format is Format.PE
        },
    )
    project = canonicalize_name(wheel.metadata().name)
    closure = Closure.of(files, platforms=platforms, added=added, project=project)
    return dataclasses.replace(closure, named=_naming(wheel, closure.unneeded))


def _added(wheel: Wheel, folders: Collection[str]) -> frozenset[str]:
    """Those of *folders* whose last part stands in Python code that calls os.add_dll_directory."""
    found: set[str] = set()
    for member in wheel.members if folders else ():
        if member.path.endswith(_PYTHON) and b"add_dll_directory" in (code := wheel.read(member)):
            found |= {folder for folder in folders if posixpath.basename(folder).encode() in code}
    return frozenset(found)


def _naming(wheel: Wheel, nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """The Python files of *wheel* that have the names of the libraries *nodes* in them, by the paths of these."""
    sought = {node.path: frozenset(word for name in node.names for word in _words(name)) for node in nodes}
    found: dict[str, list[str]] = {}
    for member in wheel.members if sought else ():
        if member.path.endswith(_PYTHON):
            words_in_file = {word for match in _NAME.findall(wheel.read(member)) for word in _meanings(match.decode())}
            for path in (path for path, words in sought.items() if not words.isdisjoint(words_in_file)):
                found.setdefault(path, []).append(member.path)
    return {path: tuple(sorted(files)) for path, files in found.items()}


def _words(name: str) -> Iterator[str]:
    """What Python code has of the library *name*: all of it, without its suffix, or with a number to be filled in."""
    yield name
    stem = _SHARED.split(name)[0]
    if stem.startswith("lib"):
        yield stem
        yield f"{stem.rstrip('0123456789')}{{"


def _meanings(word: str) -> Iterator[str]:
    """The names that *word* may mean: ``libx.so.1`` is libx, libx.so and libx.so.1, and ``libx%`` is ``libx{``."""
    parts = word.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts)))
    yield f"{word[:-1]}{{" if word.endswith("%") else word


def _variant(wheel: Wheel) -> tuple[Variant | None, tuple[str, ...]]:
    """The variant that *wheel* says it is, and what is wrong with the way it does."""
    path, label = f"{wheel.dist_info}/{VARIANT_JSON}", wheel.name.variant
    data = wheel.read(path) if wheel.find(path) else None
    try:
        if label is None and data is not None:
            # a wheel whose label was taken off its name is still what its document says
            document = Document.parse(data)
            return document.only(next((variant.label for variant in document.variants), "")), ()
        found = Document.of_wheel(label, data)
        return found.variants[0] if found else None, ()
    except VariantError as error:
        return None, (f"{path}: {error}",)


def _others(wheel: Wheel, compiled: Collection[str]) -> tuple[Others, ...]:
    """What is in *wheel* besides the *compiled* files, by the suffix of the names, what takes most first."""
    suffixes: dict[str, list[Member]] = {}
    for member in wheel.members:
        if member.path not in compiled:
            suffixes.setdefault(PurePosixPath(member.path).suffix.lower(), []).append(member)
    found = (
        Others(suffix, len(group), sum(one.size for one in group), sum(one.compressed_size for one in group))
        for suffix, group in suffixes.items()
    )
    return tuple(sorted(found, key=lambda others: (-others.size, others.suffix)))


def _duplicates(wheel: Wheel) -> tuple[Duplicate, ...]:
    """The groups of byte-identical files, what wastes most first."""
    groups: dict[tuple[str, int], list[Member]] = {}
    for member in wheel.members:
        if member.size and (hashed := wheel.row(member).hash):
            groups.setdefault((hashed, member.size), []).append(member)
    found = (
        Duplicate(
            hashed,
            size,
            size * (len(members) - 1),
            members[0].compressed_size * (len(members) - 1),
            tuple(member.path for member in members),
        )
        for (hashed, size), members in groups.items()
        if len(members) > 1
    )
    return tuple(sorted(found, key=lambda duplicate: (-duplicate.wasted, duplicate.paths)))


def object_count(data: Buffer) -> int:
    """The number of object files in the static library *data*; `BinaryError` if it is damaged.

    Behind the magic is a header of 60 bytes for each file: name 16, time 12, owner 6, group 6, mode 8, size in decimal
    digits 10, end 2; then the file, padded to an even number. The files called /, // and /SYM64/ (BSD: __.SYMDEF) are
    the index and the long names. https://man.freebsd.org/cgi/man.cgi?query=ar&sektion=5
    """
    if bytes(data[: len(ARCHIVE_MAGIC)]) != ARCHIVE_MAGIC:
        raise BinaryError("not a static library")
    place, count = len(ARCHIVE_MAGIC), 0
    while place < len(data):
        header = bytes(data[place : place + _AR_HEADER])
        size = header[48:58].strip()
        if len(header) < _AR_HEADER or header[58:] != _AR_END or not size.isdigit():
            raise BinaryError(f"damaged static library: no header of a file at {place:#x}")
        count += not header.startswith(_NO_OBJECTS)
        place += _AR_HEADER + int(size) + int(size) % 2
    if place > len(data) + 1:
        raise BinaryError(f"damaged static library: its last file ends at {place:#x}, past the end, {len(data):#x}")
    return count
