"""`vbuild doctor`: whether GPU code that is installed, or in wheels, runs on the GPUs of the machine, or named ones.

    environment -> RECORD, conda-meta -> libraries, mapped; headers alone are read -> GpuCode
    wheel       -> `vbuild.inspection.inspect`                                     -> GpuCode
        -> for each GPU: natively, by JIT, no; and the oldest driver for that

"No kernel image is available for execution on the device" is CUDA's message about a library with neither machine code
nor PTX for the GPU. The driver has to know the GPU, the CUDA that the library links, PTX that it compiles, and zstd
that it unpacks.
"""

import mmap
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.outline import BinaryOutline, Format
from vbuild.elf.catalogue import platforms_in
from vbuild.elf.read import Outline
from vbuild.errors import BinaryError, WheelError, at
from vbuild.files.reading import AT_ONCE, open_file, read_file
from vbuild.gpu_code.coverage import Coverage, Runs, driver_data
from vbuild.gpu_code.device_file import HEADER, TRITON, DeviceFile, Folder, is_named
from vbuild.gpu_code.fatbin import decompressed
from vbuild.gpu_code.model import GpuEntry
from vbuild.gpu_code.survey import DEVICE_SECTIONS, device_code, with_fillers
from vbuild.hardware.architectures import Device
from vbuild.hardware.driver import Dotted
from vbuild.hardware.machine import Machine
from vbuild.inspection.gpu_code import GpuCode
from vbuild.inspection.inspect import IMAGES, inspect
from vbuild.pe.image import PeImage
from vbuild.pe.read import PACKED, UPX
from vbuild.sbom.keeping import cuts_of, installed_bill
from vbuild.sbom.model import GpuCut
from vbuild.variants.doctor import Diagnosis, diagnosed_in
from vbuild.variants.document import Document
from vbuild.verification.promises import clashes, needed_by, taken_by_name
from vbuild.wheel.archive import files_in, wheels_in
from vbuild.wheel.installed import InstalledDistribution, installed_at
from vbuild.wheel.licence import own_prohibition
from vbuild.wheel.name import VARIANTS_JSON
from vbuild.wheel.slots import FileSlot

# what of the system may be any newer one, whatever the machine
_PLATFORMS = platforms_in("manylinux_2_17_x86_64")
_ENVIRONMENT = FileSlot("py3", "none", "any")
_ALONE = (".cubin", ".ptx", ".co", ".hsaco", ".zst")
_FILE = re.compile(r"\.so(\.[\w.]+)?$|\.(cubin|ptx|co|hsaco)(\.zst)?$|\.(pyd|dll)$", re.IGNORECASE)
# bytes at the start and the end of a file with its headers
_HEAD, _TAIL = 1 << 12, 1 << 16
# bytes of a cubin without kernels, and some more
_SMALL = 1 << 13
_SHORT = {
    Runs.NATIVELY: "native",
    Runs.JIT: "by PTX",
    Runs.PARTLY_JIT: "partly PTX",
    Runs.FOR_OTHERS: "for others",
    Runs.NO: "NO",
}


class Examined(Struct, frozen=True):
    """A library with GPU code, or all device files of *owner*; sizes are bytes of GPU code.

    *fits* has how it serves each GPU that doctor checks.
    """

    owner: str
    path: str
    size: int
    saves: int
    fits: tuple[Coverage, ...]
    is_library: bool = True

    def data(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "path": self.path,
            "gpu_bytes": self.size,
            "saves_bytes": self.saves,
            "gpus": [{**fit.data(), "driver": driver_data(fit.oldest_driver)} for fit in self.fits],
        }


class Checkup(Struct, frozen=True):
    """What was examined, the largest first; *notes* say what could not be read.

    *driver* is the CUDA version of this machine's driver; *variants* are installed variant wheels; *forbidden* are
    owners whose licences forbid changes.
    """

    examined: tuple[Examined, ...]
    notes: tuple[str, ...] = ()
    driver: Dotted | None = None
    variants: tuple[Diagnosis, ...] = ()
    forbidden: frozenset[str] = frozenset()

    @property
    def saves(self) -> int:
        """The bytes that slimming saves where no licence has to be accepted."""
        return sum(library.saves for library in self.examined if library.owner not in self.forbidden)

    @property
    def saves_if_accepted(self) -> int:
        """The bytes that slimming saves besides if licences are accepted."""
        return sum(library.saves for library in self.examined) - self.saves

    @property
    def unserved(self) -> tuple[Examined, ...]:
        """The libraries with nothing for one of the GPUs."""
        return tuple(
            library
            for library in self.examined
            if library.is_library and any(fit.runs is Runs.NO for fit in library.fits)
        )

    def data(self) -> dict[str, Any]:
        return {
            "driver": str(self.driver) if self.driver else None,
            "libraries": [library.data() for library in self.examined],
            "saves_bytes": self.saves,
            "saves_if_accepted_bytes": self.saves_if_accepted,
            "forbidden": sorted(self.forbidden),
            "variants": [diagnosis.data() for diagnosis in self.variants],
            "notes": list(self.notes),
        }


class _Library(Struct, frozen=True):
    """A library, or all device files of *owner*."""

    owner: str
    path: str
    size: int
    gpu: GpuCode
    is_library: bool = True
    outline: BinaryOutline | None = None


def checkup(
    places: Sequence[Path], devices: Sequence[Device], *, driver: Dotted | None = None, machine: Machine | None = None
) -> Checkup:
    """Examine the wheels, environments, files and folders at *places* for *devices*; *driver* is this machine's.

    With *machine*, installed variant wheels are compared with it, and with those in folders of wheels at *places*.
    `RepackageError` for a place that is not an environment, `WheelError` for a wheel that cannot be read, and
    `VariantError` for a variants.json.
    """
    wheels = [place for place in places if machine and has_wheels(place)]
    libraries: list[_Library] = []
    notes: list[str] = []
    folders: list[str] = []
    forbidden: set[str] = set()
    for place in places:
        if place.suffix == ".whl":
            libraries += _in_wheel(place, notes, forbidden)
        elif place not in wheels:
            environment, distributions = installed_at(place)
            folders += map(str, environment.folders if environment else ())
            if not environment:
                notes.append(f"{place}: files alone; vbuild slim cuts them in their wheel or environment")
            installed = _files(distributions)
            for _, files in installed:
                _announce(files.values())
            outlines: list[Mapping[str, BinaryOutline]] = []
            for distribution, files in installed:
                every = list(_installed(distribution, files, notes))
                outlines.append({library.path: library.outline for library in every if library.outline})
                own = [library for library in every if library.gpu]
                libraries += own
                with suppress(WheelError):  # slimming names what is wrong with it
                    forbidden |= {str(distribution)} if own and own_prohibition(distribution) else set()
            notes += _clash_notes([distribution for distribution, _ in installed], outlines)
    examined = (_examined(library, devices) for library in libraries if library.gpu)
    largest_first = sorted(examined, key=lambda library: (-library.size, library.owner, library.path))
    python = f"/python{machine.python.rpartition('.')[0]}/" if machine else ""
    if wheels and (other := next((path for path in folders if "/python3" in path and python not in path), None)):
        notes.append(f"{other}: compared with no wheels, which takes vbuild in the same Python")
        wheels = []
    for document in (path for place in wheels for path in files_in(place, VARIANTS_JSON)):
        with at(document):
            Document.parse(read_file(document))
    variants = diagnosed_in(folders, machine, wheels) if machine else ()
    return Checkup(tuple(largest_first), tuple(notes), driver, variants, frozenset(forbidden))


def has_wheels(place: Path) -> bool:
    """Whether it is a folder of wheels, with which an environment is compared."""
    return place.is_dir() and bool(wheels_in(place))


def _clash_notes(
    distributions: Sequence[InstalledDistribution], outlines: Sequence[Mapping[str, BinaryOutline]]
) -> Iterator[str]:
    """Of two distributions that have different libraries of one name; *outlines* are those of each, by path."""
    needed = needed_by(outline for own in outlines for outline in own.values())
    together = []
    for distribution, own in zip(distributions, outlines, strict=True):
        hashes = {row.path: row.hash for row in distribution.rows}
        shared = taken_by_name(own, needed, hash_of=hashes.get, platforms=_PLATFORMS)
        together.append((distribution.project, (_ENVIRONMENT,), shared))
    for number, other, finding in clashes(together):
        if finding.is_error:
            what, places = finding.what.format("each of these"), " and ".join(finding.places)
            yield f"{distributions[number]} and {distributions[other]}: {what}: {places}; {finding.advice}"


def _in_wheel(wheel: Path, notes: list[str], forbidden: set[str]) -> Iterator[_Library]:
    contents = inspect(wheel)
    owner = f"{contents.project} {contents.version}"
    if contents.forbidden:
        forbidden.add(owner)
    notes += (f"{owner}: {damaged.path}: {damaged.why}" for damaged in contents.damaged)
    for library in contents.libraries:
        if PACKED in library.outline.notes:
            notes.append(f"{owner}: {library.path}: {PACKED}")
        yield _Library(owner, library.path, library.size, library.gpu)
    if groups := contents.device_files:
        gpu = GpuCode.together(group.gpu for group in groups)
        yield _of_device_files(owner, sum(group.files for group in groups), gpu)


def _files(distributions: Iterable[InstalledDistribution]) -> list[tuple[InstalledDistribution, dict[str, str]]]:
    """For each of *distributions* the files that may have GPU code: their paths by their names in its listing.

    A file in several listings, RECORD and conda's, is the first one's.
    """
    seen: set[str] = set()
    files = []
    for distribution in distributions:
        rows = (row.path for row in distribution.rows if _FILE.search(row.path) or is_named(row.path))
        paths = {path: str(distribution.path_of(path)) for path in rows}
        files.append((distribution, {listed: path for listed, path in paths.items() if path not in seen}))
        seen.update(paths.values())
    return files


def _announce(paths: Iterable[str]) -> None:
    """Let the system read the ELF headers at the starts and ends of *paths*, all at once."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with suppress(OSError):
            opened = os.open(path, os.O_RDONLY | AT_ONCE)
            try:
                size = os.fstat(opened).st_size
                os.posix_fadvise(opened, 0, _HEAD, os.POSIX_FADV_WILLNEED)
                if not path.endswith(_ALONE):
                    os.posix_fadvise(opened, max(0, size - _TAIL), 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(opened)


def _installed(owner: InstalledDistribution, files: Mapping[str, str], notes: list[str]) -> Iterator[_Library]:
    """What *owner* has in *files*, each read by its headers; *notes* say what cannot be read."""
    if owner.trouble:
        notes.append(f"{owner}: {owner.trouble}")
    cuts = cuts_of(installed_bill(owner))
    alone: list[GpuCode] = []
    folders: dict[str, Folder] = {}
    for listed, path in files.items():
        place = path.rpartition("/")[0]
        try:
            with open_file(path) as file:
                folder = folders.get(place) or folders.setdefault(place, Folder.on_disk(Path(place)))
                size = os.fstat(file.fileno()).st_size
                start = file.read(HEADER)
                if device_file := DeviceFile.of(listed, size, partial(_first, file.fileno(), start), folder):
                    if device_file.kind == TRITON:  # slimming leaves its entries whole where they are installed
                        device_file = replace(device_file, trouble="of use together with others only")
                    alone.append(GpuCode.alone(device_file, size))
                elif (format_ := Format.of(listed, partial(_first, file.fileno(), start))) and format_ in IMAGES:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    yield _read(str(owner), listed, format_, mapped, cuts.get(listed, GpuCut()).fillers)
        except BinaryError as error:
            notes.append(f"{owner}: {listed}: {error}")
        except (OSError, ValueError):
            continue  # what is listed and not there, or empty, runs nowhere
    if alone:
        yield _of_device_files(str(owner), len(alone), GpuCode.together(alone))


def _first(file: int, start: bytes, size: int) -> bytes:
    return start[:size] if size <= len(start) else os.pread(file, size, 0)


def _read(owner: str, path: str, format_: Format, mapped: mmap.mmap, fillers: str) -> _Library:
    data = memoryview(mapped)
    image = IMAGES[format_](data)
    if isinstance(image, PeImage) and image.named(UPX):
        raise BinaryError(PACKED)
    outline = Outline.parse(data) if format_ is Format.ELF else None
    sections = [section.span for name in DEVICE_SECTIONS for section in image.named(name)]
    if not sections:
        return _Library(owner, path, len(data), GpuCode(), outline=outline)
    if hasattr(mmap, "MADV_RANDOM"):
        # only headers are read: by itself the system would read the megabytes between them
        for span in sections:
            start = span.start - span.start % mmap.PAGESIZE
            if start < (stop := min(span.stop, len(mapped))):
                mapped.madvise(mmap.MADV_RANDOM, start, stop - start)
    code = with_fillers(device_code(image, everywhere=False), fillers)
    if not any(_has_kernel(data, entry) for container in code.containers for entry in container.entries):
        # left of sources without kernels; the library's own code may read others elsewhere
        idle = {container.span for container in code.containers}
        code = device_code(image)
        code = replace(code, containers=tuple(other for other in code.containers if other.span not in idle))
    return _Library(owner, path, len(data), GpuCode.of(code), outline=outline)


def _has_kernel(data: memoryview, entry: GpuEntry) -> bool:
    """Whether *entry* may have a kernel: a small cubin without code has none."""
    if entry.kind != "cubin" or entry.size > _SMALL:
        return True
    with suppress(BinaryError):
        return b".text." in decompressed(data, entry)
    return True


def _of_device_files(owner: str, count: int, gpu: GpuCode) -> _Library:
    path = f"{count} files of GPU code alone" if count > 1 else "a file of GPU code alone"
    return _Library(owner, path, 0, gpu, is_library=False)


def _examined(library: _Library, devices: Sequence[Device]) -> Examined:
    fits = tuple(library.gpu.coverage(device) for device in devices)
    size = library.gpu.size
    saves = size - _kept(library.gpu, [device for device in devices if library.gpu.is_cut_for(device)])
    return Examined(library.owner, library.path, size, saves, fits, library.is_library)


def _kept(gpu: GpuCode, devices: Sequence[Device]) -> int:
    total = sum(size for _, size in gpu.loose)
    for stack in gpu.stacks:
        needed = [places for device in devices if (places := stack.places(device)) is not None]
        if not needed:
            total += stack.frame + sum(stack.sizes)
        elif places := frozenset[int]().union(*needed):
            total += stack.frame + sum(stack.sizes[place] for place in places)
        elif not stack.is_alone:
            total += stack.frame + sum(stack.smallest)
    return total


def shortened_runs(fit: Coverage, driver: Dotted | None) -> str:
    if not fit.runs:
        return "-"
    words = _SHORT.get(fit.runs) or f"{fit.served.fatbins} of {fit.total.fatbins}"
    if driver and (oldest := fit.oldest_driver) and driver < oldest:
        return f"{words}, driver too old"
    return words


def merged(examined: Sequence[Examined]) -> tuple[Examined, ...]:
    """One row for all libraries of a distribution with the same result, with the first path and sums of bytes."""
    groups: dict[tuple[object, ...], list[Examined]] = {}
    for library in examined:
        groups.setdefault((library.owner, library.is_library, library.fits), []).append(library)
    return tuple(
        replace(
            group[0],
            path=group[0].path if len(group) == 1 else f"{posixpath.basename(group[0].path)} and {len(group) - 1} more",
            size=sum(library.size for library in group),
            saves=sum(library.saves for library in group),
        )
        for group in groups.values()
    )
