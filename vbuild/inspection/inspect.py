"""`vbuild inspect`: what is in a wheel.

    wheel -> members that are ELF, PE or Mach-O files or static libraries, each inflated once and mapped -> Contents

Members are read once, on all cores, the largest first. An unreadable library is named in the contents; an unreadable
wheel is an error.
"""

import dataclasses
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.binary.outline import BinaryLoading, BinaryOutline, Format
from vbuild.elf.catalogue import platforms_in
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Loading, Outline
from vbuild.errors import BinaryError, RepackageError, VariantError, WheelError, at
from vbuild.files.atomic import replacing
from vbuild.files.edited import EditedFile
from vbuild.files.reading import open_file
from vbuild.files.records import Buffer
from vbuild.gpu_code.device_file import HEADER, DeviceFile, Folder, Folders, container_in, may_be_container
from vbuild.gpu_code.model import Vendor
from vbuild.gpu_code.survey import Image, device_code, with_fillers
from vbuild.hardware.cpu import available_cores
from vbuild.hardware.gpu import arch_order
from vbuild.inspection.closure import Closure, LinkedLibrary, Node
from vbuild.inspection.gpu_code import GpuCode, Sort
from vbuild.inspection.model import (
    OTHERS,
    Advice,
    Archive,
    Contents,
    Damaged,
    DeviceFiles,
    Duplicate,
    LibraryContents,
    Others,
)
from vbuild.inspection.page import page
from vbuild.macho import read as macho
from vbuild.pe import read as pe
from vbuild.pe.image import PeImage
from vbuild.sbom.keeping import bill_of, contradictions, cuts_of, installed_bill, path_of
from vbuild.sbom.model import Bill
from vbuild.variants.document import Document
from vbuild.variants.model import Variant
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.deflate import estimate_packed
from vbuild.wheel.installed import InstalledDistribution, installed_at
from vbuild.wheel.licence import Licence, own_prohibition
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.paths import installed_path
from vbuild.wheel.zip_read import Member

_ARCHIVE, _ARCHIVE_SUFFIX = b"!<arch>\n", ".a"

OUTLINES: Mapping[Format, Callable[[Buffer], BinaryOutline]] = {
    Format.ELF: Outline.parse,
    Format.PE: pe.read_outline,
    Format.MACHO: macho.read_outline,
}
_LOADINGS: Mapping[Format, Callable[[Buffer], BinaryLoading]] = {
    Format.ELF: Loading.parse,
    Format.PE: pe.read_loading,
    Format.MACHO: macho.read_loading,
}
# the formats that GPU code is read from
IMAGES: Mapping[Format, Callable[[memoryview], Image]] = {Format.ELF: ElfImage.parse, Format.PE: PeImage.parse}


class InstalledFile(Struct, frozen=True):
    """A file at *place*, which its distribution knows by *path* and *hash*; it is not packed."""

    path: str
    place: Path
    size: int
    hash: str | None

    @property
    def compressed_size(self) -> int:
        return self.size


class InstalledFiles:
    """The files of *owner*, to be read as those of a wheel are; no links, and none of those *seen* before."""

    def __init__(self, owner: InstalledDistribution, seen: set[Path]) -> None:
        self.owner, self.path = owner, owner.listing
        self._by_path: dict[str, InstalledFile] = {}
        for row in owner.rows:
            place = owner.path_of(row.path)
            if place not in seen and place.is_file() and not place.is_symlink():
                self._by_path[row.path] = InstalledFile(row.path, place, place.stat().st_size, row.hash)
                seen.add(place)
        self.members = tuple(self._by_path.values())

    def head(self, path: str, size: int) -> bytes:
        with suppress(OSError), open_file(self._by_path[path].place) as file:
            return file.read(size)
        return b""

    def read(self, path: str) -> bytes:
        return self.owner.read(path)

    @contextmanager
    def mapped(self, path: str) -> Iterator[memoryview]:
        try:
            with open_file(self._by_path[path].place) as file:
                data = mmap(file.fileno(), 0, access=ACCESS_READ)
        except OSError as error:
            raise WheelError(f"{path}: cannot be read: {error.strerror}") from error
        yield memoryview(data)


Files = Wheel | InstalledFiles
File = Member | InstalledFile
Item = LibraryContents | DeviceFiles | Archive | Damaged
Reader = Callable[[File, memoryview], LibraryContents | DeviceFiles]
Loaded = LinkedLibrary | Damaged | None
"""For the closure: what the loader reads of a library, why that cannot be read, or None if no loader loads it."""

_WHEEL = ".whl"
_UNKNOWN = Licence(None, None, (), ())
_LIBRARY = re.compile(r"\.(so(\.[\w.]+)?|a|dll|pyd|dylib)$")
_SHARED = re.compile(r"\.(?:so\b|dll$|dylib$)")
_SMALLEST = 52  # the header of a 32-bit ELF file
_PYTHON = (".py", ".pth")
# the names of libraries in Python code: "libx", f"libx{major}.so"; no longer than NAME_MAX, as without a bound a
# megabyte of digits would take minutes
_NAME = re.compile(rb"(?<![\w-])(?:lib[\w.+-]{0,250}[{%]?|[\w+-][\w.+-]{0,250}\.(?:so|dll|dylib)\b[\w.]{0,250})")


def inspect(wheel: Path, *, closure: bool = False, densities: bool = False) -> Contents:
    """What *wheel* has; `WheelError` if it is not a wheel.

    With *closure* also which of its libraries loads which, with *densities* how well the parts of each are packed.
    """
    with open_wheel(wheel) as source, at(wheel.name):
        metadata = source.metadata()
        variant, warnings = _variant(source)
        warnings += map(": ".join, source.warnings())
        bill = bill_of(source)
        read = _read_members(source, bill, closure=closure, densities=densities)
        items = [item for item, _ in read]
        linked = []
        for _, loaded in read:
            if isinstance(loaded, Damaged):
                warnings.append(f"{loaded.path}: left out of the closure: {loaded.why}")
            elif loaded:
                linked.append(loaded)
        warnings += (f"{path_of(source.dist_info)}: {text}" for text in contradictions(source))
        return dataclasses.replace(
            _contents(source, items),
            wheel=wheel.name,
            project=metadata.name,
            version=metadata.version,
            tags=tuple(sorted(map(str, source.name.tags))),
            variant=variant,
            packed_size=wheel.stat().st_size,
            licence=Licence.of(source),
            forbidden=own_prohibition(source),
            duplicates=_duplicates((source.row(member).hash, member) for member in source.members),
            warnings=tuple(warnings),
            closure=_closure(source, linked) if closure else None,
            bill=bill,
        )


def _contents(files: Files, items: Sequence[Item]) -> Contents:
    """What *files* have by themselves: these *items*, and others."""
    return Contents(
        wheel="",
        project="",
        version="",
        tags=(),
        variant=None,
        packed_size=0,
        size=sum(member.size for member in files.members),
        files=len(files.members),
        licence=_UNKNOWN,
        libraries=tuple(item for item in items if isinstance(item, LibraryContents)),
        device_files=_grouped(item for item in items if isinstance(item, DeviceFiles)),
        damaged=tuple(item for item in items if isinstance(item, Damaged)),
        archives=tuple(item for item in items if isinstance(item, Archive)),
        others=_others(files, {item.first if isinstance(item, DeviceFiles) else item.path for item in items}),
    )


def contents_at(place: Path) -> Contents:
    """What the wheel, environment, folder or file at *place* has; `RepackageError` if it is none."""
    if place.suffix == _WHEEL:
        return inspect(place, densities=True)
    environment, distributions = installed_at(place)
    slim = "vbuild slim --environment {}" if environment else ""  # of files alone nothing says what else knows them
    return inspect_installed(place, distributions, slim=slim)


def inspect_installed(place: Path, distributions: Iterable[InstalledDistribution], *, slim: str) -> Contents:
    """What *distributions*, installed at *place*, have together, and each; *slim* is the command that cuts them."""
    seen: set[Path] = set()
    packages, members = [], list[InstalledFile]()
    for owner in distributions:
        files = InstalledFiles(owner, seen)
        items = [item for item, _ in _read_members(files, installed_bill(owner), closure=False, densities=False)]
        packages.append(dataclasses.replace(_contents(files, items), project=owner.project, version=owner.version))
        members += files.members
    return Contents(
        wheel=str(place),
        project=place.resolve().name,
        version="",
        tags=(),
        variant=None,
        packed_size=0,
        size=sum(package.size for package in packages),
        files=sum(package.files for package in packages),
        licence=_UNKNOWN,
        libraries=tuple(
            sorted(
                (library for package in packages for library in package.libraries),
                key=lambda library: (-library.size, library.path),
            )
        ),
        device_files=tuple(files for package in packages for files in package.device_files),
        damaged=tuple(damaged for package in packages for damaged in package.damaged),
        archives=tuple(archive for package in packages for archive in package.archives),
        duplicates=_duplicates((member.hash, member) for member in members),
        packages=tuple(package for package in packages if package.files),
        slim=slim,
    )


def save_page(contents: Contents, path: Path, advice: Sequence[Advice] = (), *, before: Contents | None = None) -> None:
    """Write the page of *contents*, with *advice*, to *path*, complete or not at all.

    `RepackageError` if it cannot be written, or if *before*, which it is compared with, is of another project.
    """
    if before and not contents.is_like(before):
        raise RepackageError(f"{contents.wheel}: not of {before.project}; expected two wheels of one project")
    try:
        with replacing(path) as part:
            part.write_text(page(contents, advice, before), encoding="utf-8")
    except OSError as error:
        raise RepackageError(f"{path}: cannot be written: {error.strerror}") from error


def _read_members(
    wheel: Files, bill: Bill | None, *, closure: bool, densities: bool
) -> tuple[tuple[Item, Loaded], ...]:
    """The compiled files of *wheel*, the largest first, then device files; for the *closure*, what is loaded."""
    # one thread finds them: several would wait for Python's lock at thousands of small members
    readers: list[tuple[File, Reader]] = []
    known: list[tuple[Item, Loaded]] = []
    folders = Folders((member.path for member in wheel.members), wheel.read)
    cuts = cuts_of(bill)
    for member in wheel.members:
        fillers = cuts[member.path].fillers if member.path in cuts else ""
        reader = _reader_of(wheel, member, folders.of(member.path), fillers)
        if isinstance(reader, DeviceFiles | Archive):
            known.append((reader, None))
        elif reader:
            readers.append((member, reader))
    readers.sort(key=lambda pair: (-pair[0].size, pair[0].path))
    read = partial(_read, wheel, closure=closure, densities=densities)
    with ThreadPoolExecutor(available_cores()) as threads:
        return (*threads.map(lambda pair: read(*pair), readers), *known)


def _reader_of(wheel: Files, member: File, folder: Folder, fillers: str) -> Reader | DeviceFiles | Archive | None:
    """What reads *member*, which has these *fillers*, by its magic; the result, if that is enough; or None."""
    start = wheel.head(member.path, HEADER)

    def head(size: int) -> bytes:
        return start if size <= HEADER else wheel.head(member.path, size)

    if file := DeviceFile.of(member.path, member.size, head, folder):
        gpu = GpuCode.alone(file, member.size)
        archs = (file.arch,) if file.is_known else ()
        return DeviceFiles(file.kind, archs, 1, member.size, member.compressed_size, member.path, gpu)
    if member.size < _SMALLEST or not start:
        # reading one that cannot be inflated says why
        is_library = member.size >= _SMALLEST and _LIBRARY.search(member.path)
        return partial(_library, Format.ELF, "") if is_library else None
    format_ = Format.of(member.path, head)
    is_static = member.path.endswith(_ARCHIVE_SUFFIX)
    if format_ and not is_static:
        return partial(_library, format_, fillers)
    if may_be_container(member.path, head):
        return _container
    is_archive = is_static and (start.startswith(_ARCHIVE) or format_ is Format.MACHO)
    return Archive(member.path, member.size, member.compressed_size) if is_archive else None


def _container(member: File, data: memoryview) -> DeviceFiles:
    container = container_in(data)
    if container is None:
        raise BinaryError("neither a fatbin nor a bundle, though it begins like one")
    gpu = GpuCode.contained(container, member.size)
    kind = "fatbin" if container.vendor is Vendor.NVIDIA else "bundle"
    archs = tuple(sorted({entry.arch for entry in container.entries if entry.size}, key=arch_order))
    return DeviceFiles(kind, archs, 1, member.size, member.compressed_size, member.path, gpu)


def _grouped(files: Iterable[DeviceFiles]) -> tuple[DeviceFiles, ...]:
    groups: dict[tuple[object, ...], list[DeviceFiles]] = {}
    for file in files:
        whys = tuple(pinned.why for pinned in file.gpu.pinned)
        groups.setdefault((file.kind, file.archs, whys), []).append(file)
    merged = (
        replace(
            min(group, key=lambda file: file.first),
            files=len(group),
            size=sum(file.size for file in group),
            packed_size=sum(file.packed_size for file in group),
            gpu=GpuCode.together(file.gpu for file in group),
        )
        for group in groups.values()
    )
    return tuple(sorted(merged, key=lambda files: (-files.size, files.first)))


def _read(wheel: Files, member: File, reader: Reader, *, closure: bool, densities: bool) -> tuple[Item, Loaded]:
    """What *reader* makes of *member*, or why it cannot; and for a *closure* what the loader reads."""
    try:
        with wheel.mapped(member.path) as data:
            item = reader(member, data)
            if densities and isinstance(item, LibraryContents) and (image := _image(item.outline, data)):
                item = replace(item, densities=dict(_densities(image)))
            if not (closure and isinstance(item, LibraryContents) and item.outline.is_loadable):
                return item, None
            if isinstance(wheel, InstalledFiles) or isinstance(member, InstalledFile):
                return item, None
            try:
                loading = _LOADINGS[item.outline.format](data)
            except BinaryError as error:
                return item, _damaged(wheel, member, error)
            row = wheel.row(member)
            return item, LinkedLibrary(member.path, member.size, member.compressed_size, row.hash, loading)
    except (BinaryError, WheelError) as error:
        return _damaged(wheel, member, error), None


def _damaged(wheel: Files, member: File, error: BinaryError | WheelError) -> Damaged:
    why = str(error).removeprefix(f"{wheel.path.name}: ").removeprefix(f"{member.path}: ")
    return Damaged(member.path, member.size, member.compressed_size, why)


def _library(format_: Format, fillers: str, member: File, data: memoryview) -> LibraryContents:
    outline = OUTLINES[format_](data)
    try:
        image = _image(outline, data)
        gpu = GpuCode.of(with_fillers(device_code(image), fillers)) if image else GpuCode()
    except BinaryError as error:
        gpu = GpuCode(notes=(f"GPU code cannot be read: {error}",))
    return LibraryContents(member.path, member.size, member.compressed_size, outline, gpu)


def _image(outline: BinaryOutline, data: memoryview) -> Image | None:
    """The file for a reader of GPU code, which knows two formats of 64 bits; `BinaryError` if it is damaged."""
    is_read = outline.bits == 64 and outline.byte_order == "little" and outline.format in IMAGES  # noqa: PLR2004 - bits
    return IMAGES[outline.format](data) if is_read else None


def _densities(image: Image) -> Iterator[tuple[str | Sort, float]]:
    """Yield the packed bytes for each byte of sections, of what is no GPU code, and of its sorts, from samples."""
    spans: dict[str | Sort, list[range]] = {}
    for container in device_code(image).containers:
        for entry in container.entries:
            spans.setdefault(Sort.of(entry, container.section), []).append(entry.span)
    of_gpus = {sort.section for sort in spans if isinstance(sort, Sort)}
    for section in image.sections:
        if section.name not in of_gpus:
            spans.setdefault(section.name, []).append(section.span)
            spans.setdefault(OTHERS, []).append(section.span)
    for part, ranges in spans.items():
        if size := sum(map(len, ranges)):
            yield part, estimate_packed(EditedFile.of(image.data, ranges)) / size


def _closure(wheel: Wheel, files: Sequence[LinkedLibrary]) -> Closure:
    dll_folders = {
        posixpath.dirname(installed_path(file.path) or file.path)
        for file in files
        if file.loading.outline.format is Format.PE
    }
    # those whose last part stands in Python code that calls os.add_dll_directory
    added: set[str] = set()
    for member in _python_files(wheel) if dll_folders else ():
        if b"add_dll_directory" in (code := wheel.read(member)):
            added |= {folder for folder in dll_folders if posixpath.basename(folder).encode() in code}
    project = canonicalize_name(wheel.metadata().name)
    closure = Closure.of(files, platforms=platforms_in(wheel.name.platform), added=added, project=project)
    return dataclasses.replace(closure, named=_naming(wheel, closure.unneeded))


def _python_files(wheel: Wheel) -> Iterator[Member]:
    return (member for member in wheel.members if member.path.endswith(_PYTHON))


def _naming(wheel: Wheel, nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """The Python files of *wheel* that name each of the libraries *nodes*, by its path."""
    words = {node.path: frozenset(word for name in node.names for word in _words(name)) for node in nodes}
    naming: dict[str, list[str]] = {}
    for member in _python_files(wheel) if nodes else ():
        words_in_file = {word for match in _NAME.findall(wheel.read(member)) for word in _meanings(match.decode())}
        for path, words_of_library in words.items():
            if not words_of_library.isdisjoint(words_in_file):
                naming.setdefault(path, []).append(member.path)
    return {path: tuple(sorted(files)) for path, files in naming.items()}


def _words(name: str) -> Iterator[str]:
    """How Python code may write the library *name*: whole, without suffix, or with a number filled in later."""
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


def _variant(wheel: Wheel) -> tuple[Variant | None, list[str]]:
    """The variant that *wheel* says it is, and what is wrong with its variant.json."""
    label, data = wheel.name.variant, wheel.variant_json
    try:
        if label is None and data is not None:
            # without its label in the name a wheel is still what its document says
            document = Document.parse(data)
            return document.only(next((variant.label for variant in document.variants), "")), []
        labelled = Document.of_wheel(label, data)
        return labelled.variants[0] if labelled else None, []
    except VariantError as error:
        return None, [f"{wheel.dist_info}/{VARIANT_JSON}: {error}"]


def _others(wheel: Files, compiled: Collection[str]) -> tuple[Others, ...]:
    suffixes: dict[str, list[File]] = {}
    for member in wheel.members:
        if member.path not in compiled:
            suffixes.setdefault(PurePosixPath(member.path).suffix.lower(), []).append(member)
    others = (
        Others(suffix, len(group), sum(file.size for file in group), sum(file.compressed_size for file in group))
        for suffix, group in suffixes.items()
    )
    return tuple(sorted(others, key=lambda others: (-others.size, others.suffix)))


def _duplicates(files: Iterable[tuple[str | None, File]]) -> tuple[Duplicate, ...]:
    groups: dict[tuple[str, int], list[File]] = {}
    for digest, member in files:
        if member.size and digest:
            groups.setdefault((digest, member.size), []).append(member)
    duplicates = []
    for (digest, size), members in groups.items():
        if extra := len(members) - 1:
            paths = tuple(member.path for member in members)
            duplicates.append(Duplicate(digest, size, extra * size, extra * members[0].compressed_size, paths))
    return tuple(sorted(duplicates, key=lambda duplicate: (-duplicate.wasted, duplicate.paths)))
