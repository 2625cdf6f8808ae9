"""`vbuild doctor`: whether the GPU code that is installed, or in wheels, runs on the GPUs that are there or named.

    environment -> RECORD, conda-meta -> libraries, mapped; headers alone are read -> GpuCode
    wheel       -> `vbuild.inspection.inspect`                                     -> GpuCode
        -> for each GPU: natively, by JIT, no; and the oldest driver for that

"No kernel image is available for execution on the device" is what CUDA says of a library that has neither machine code
nor PTX for the GPU. The driver has to know the GPU, the CUDA that the library links, the version of PTX if it compiles
that, and zstd if code is compressed so.
"""

import mmap
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.image import Image
from vbuild.binary.outline import BinaryOutline, Format
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Outline
from vbuild.errors import BinaryError
from vbuild.files.reading import AT_ONCE, open_file
from vbuild.gpu_code.device_file import HEADER, TRITON, DeviceFile, DiskFolder, is_named
from vbuild.gpu_code.fatbin import decompressed
from vbuild.gpu_code.model import Compression, GpuEntry, Vendor
from vbuild.gpu_code.survey import FORMS, device_code
from vbuild.hardware.architectures import Arch, Device
from vbuild.hardware.driver import ZSTD_SINCE, Dotted, compiles_since
from vbuild.hardware.gpu import Service
from vbuild.hardware.machine import Machine
from vbuild.inspection.gpu_code import GpuCode, Outlook, Runs
from vbuild.inspection.inspect import inspect
from vbuild.pe.image import PeImage
from vbuild.pe.read import PACKED, UPX, read_outline
from vbuild.variants.doctor import Diagnosis, diagnosed_in
from vbuild.wheel.installed import Environment, InstalledDistribution

_ALONE = (".cubin", ".ptx", ".co", ".hsaco", ".zst")
_FILE = re.compile(r"\.so(\.[\w.]+)?$|\.(cubin|ptx|co|hsaco)(\.zst)?$|\.(pyd|dll)$", re.IGNORECASE)
# bytes of a file in which its headers are: those of its sections are at its end
_HEAD, _TAIL = 1 << 12, 1 << 16
# libraries of CUDA by the name that the loader knows, as repair tools leave it: libcudart-1a2b3c4d.so.12
_CUDA = re.compile(
    r"(?P<name>lib(?:cudart|cublas(?:Lt)?|cufft|curand|cusolver(?:Mg)?|cusparse(?:Lt)?|cudnn\w*?|nvrtc|nvJitLink|nccl|cupti"
    r"|cufile|cutensor\w*?|nvshmem_host))(?:-[0-9a-f]{8,16})?\.so(?:\.(?P<major>\d+))?[\d.]*"
)
# as Linux and as Windows call them: cudart64_12.dll, and cudart64_110.dll before
_RUNTIME = re.compile(
    r"lib(?:cudart|nvrtc|cublas|cublasLt)\.so\.(\d+)[\d.]*|(?:cudart|cublas|cublasLt)64_(\d\d)0?\.dll", re.IGNORECASE
)
# bytes of a cubin without kernels, and some more
_SMALL = 1 << 13
# GPU code is in files of these formats
_IMAGES: Mapping[Format, Callable[[memoryview], Image]] = {Format.ELF: ElfImage.parse, Format.PE: PeImage.parse}
_OUTLINES: Mapping[Format, Callable[[memoryview], BinaryOutline]] = {Format.ELF: Outline.parse, Format.PE: read_outline}
_SECTIONS = tuple(name for form in FORMS for name in form.sections)


class Fitness(Struct, frozen=True):
    """How code *runs* on *device*, and the CUDA version of the oldest *driver* for that; None if it is not known."""

    device: Device
    runs: Runs | None
    driver: Dotted | None = None

    def data(self) -> dict[str, Any]:
        return {
            "gpu": str(self.device),
            "runs": str(self.runs) if self.runs else None,
            "driver": str(self.driver) if self.driver else None,
        }


class Examined(Struct, frozen=True):
    """A library with GPU code, or all device files of *owner*: bytes of GPU code, and what slimming would save of it.

    *fits* has an item for each GPU that was asked about; one of another vendor than the code's says nothing.
    """

    owner: str
    path: str
    size: int
    saves: int
    fits: tuple[Fitness, ...]
    is_library: bool = True

    @property
    def serves_nothing(self) -> bool:
        """Whether it is a library that a GPU asked about cannot run anything of."""
        return self.is_library and any(fit.runs is Runs.NO for fit in self.fits)

    def data(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "path": self.path,
            "gpu_bytes": self.size,
            "saves_bytes": self.saves,
            "gpus": [fit.data() for fit in self.fits],
        }


class Copies(Struct, frozen=True):
    """A library of CUDA that is there several times: the *owners* of its files, and their bytes together."""

    name: str
    owners: tuple[str, ...]
    size: int

    def data(self) -> dict[str, Any]:
        return {"name": self.name, "owners": list(self.owners), "bytes": self.size}


class Checkup(Struct, frozen=True):
    """What was examined, the largest first, with the CUDA libraries that are there twice, and what could not be read.

    *driver* is the CUDA version of this machine's driver, or None; *variants* are the installed variant wheels, if the
    machine was asked about them.
    """

    examined: tuple[Examined, ...]
    copies: tuple[Copies, ...]
    notes: tuple[str, ...] = ()
    driver: Dotted | None = None
    variants: tuple[Diagnosis, ...] = ()

    @property
    def saves(self) -> int:
        return sum(one.saves for one in self.examined)

    @property
    def unserved(self) -> tuple[Examined, ...]:
        """The libraries of which nothing runs on some GPU that was asked about."""
        return tuple(one for one in self.examined if one.serves_nothing)

    def data(self) -> dict[str, Any]:
        """The result for JSON."""
        return {
            "driver": str(self.driver) if self.driver else None,
            "libraries": [one.data() for one in self.examined],
            "copies": [one.data() for one in self.copies],
            "saves_bytes": self.saves,
            "variants": [one.data() for one in self.variants],
            "notes": list(self.notes),
        }


class _Library(Struct, frozen=True):
    """A library as it was found: its GPU code, and the names of those it needs."""

    owner: str
    path: str
    size: int
    gpu: GpuCode
    needed: tuple[str, ...] = ()
    is_library: bool = True


def checkup(
    places: Sequence[Path], devices: Sequence[Device], *, driver: Dotted | None = None, machine: Machine | None = None
) -> Checkup:
    """Examine the wheels and the environments at *places* for *devices*; *driver* is what this machine has.

    With *machine*, installed variant wheels are compared with it, too.
    `RepackageError` for a place that is not an environment, `WheelError` for a wheel that cannot be read.
    """
    found: list[_Library] = []
    notes: list[str] = []
    folders: list[str] = []
    for place in places:
        if place.suffix == ".whl":
            found += _in_wheel(place, notes)
        else:
            environment = Environment.at(place)
            folders += map(str, environment.folders)
            installed = _files(environment.distributions())
            for _, files in installed:
                _announce(files.values())
            for one, files in installed:
                found += _installed(one, files, notes)
    examined = (_examined(library, devices) for library in found if library.gpu)
    order = sorted(examined, key=lambda one: (-one.size, one.owner, one.path))
    variants = diagnosed_in(folders, machine) if machine else ()
    return Checkup(tuple(order), tuple(_copies(found)), tuple(notes), driver, variants)


def _in_wheel(wheel: Path, notes: list[str]) -> Iterator[_Library]:
    contents = inspect(wheel)
    owner = f"{contents.project} {contents.version}"
    notes += (f"{owner}: {damaged.path}: {damaged.why}" for damaged in contents.damaged)
    for library in contents.libraries:
        if PACKED in library.outline.notes:
            notes.append(f"{owner}: {library.path}: {PACKED}")
        yield _Library(owner, library.path, library.size, library.gpu, library.outline.needed)
    if groups := contents.device_files:
        gpu = GpuCode.together(group.gpu for group in groups)
        yield _Library(owner, _device_files(sum(group.files for group in groups)), 0, gpu, is_library=False)


def _files(distributions: Iterable[InstalledDistribution]) -> list[tuple[InstalledDistribution, dict[str, str]]]:
    """For each of *distributions* its files that may have GPU code: by what its listing calls each, where it is.

    A file that several list, as RECORD and conda do, is the first one's.
    """
    seen: set[str] = set()
    found = []
    for one in distributions:
        rows = (row.path for row in one.rows if _FILE.search(row.path) or is_named(row.path))
        paths = {path: str(one.place(path)) for path in rows}
        found.append((one, {listed: path for listed, path in paths.items() if path not in seen}))
        seen.update(paths.values())
    return found


def _announce(paths: Iterable[str]) -> None:
    """Have the system read the beginnings and the ends of the files at *paths*, where ELF headers are, all at once."""
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


def _installed(one: InstalledDistribution, files: Mapping[str, str], notes: list[str]) -> Iterator[_Library]:
    """What *one* has in *files*, each read by its headers; what cannot be read goes into *notes*."""
    if one.trouble:
        notes.append(f"{one}: {one.trouble}")
    alone: list[GpuCode] = []
    folders: dict[str, DiskFolder] = {}
    for listed, path in files.items():
        place = path.rpartition("/")[0]
        folder = folders.get(place) or folders.setdefault(place, DiskFolder(Path(place)))
        try:
            with open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                start = file.read(HEADER)
                if device_file := DeviceFile.of(listed, size, partial(_first, file.fileno(), start), folder):
                    if device_file.kind == TRITON:  # slimming leaves its entries whole where they are installed
                        device_file = replace(device_file, trouble="of use together with others only")
                    alone.append(GpuCode.alone(device_file, size))
                elif (form := Format.of(listed, partial(_first, file.fileno(), start))) and form in _IMAGES:
                    yield _read(str(one), listed, form, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except BinaryError as error:
            notes.append(f"{one}: {listed}: {error}")
        except (OSError, ValueError):
            continue  # what is listed and not there, or empty, runs nowhere
    if alone:
        yield _Library(str(one), _device_files(len(alone)), 0, GpuCode.together(alone), is_library=False)


def _first(file: int, start: bytes, size: int) -> bytes:
    return start[:size] if size <= len(start) else os.pread(file, size, 0)


def _read(owner: str, path: str, form: Format, mapped: mmap.mmap) -> _Library:
    data = memoryview(mapped)
    image = _IMAGES[form](data)
    if isinstance(image, PeImage) and image.named(UPX):
        raise BinaryError(PACKED)
    sections = [section.span for name in _SECTIONS for section in image.named(name)]
    if not sections:
        return _Library(owner, path, len(data), GpuCode())
    # headers alone are read: by itself the system would read the megabytes of code between them as well
    _advise(mapped, "MADV_RANDOM", sections)
    needed: tuple[str, ...] = ()
    with suppress(BinaryError):
        needed = _OUTLINES[form](data).needed
    code = device_code(image, everywhere=False)
    if not any(_has_kernel(data, entry) for container in code.containers for entry in container.entries):
        # what the compiler leaves of sources without kernels; the library's own code may read others elsewhere
        idle = {container.span for container in code.containers}
        code = device_code(image)
        code = replace(code, containers=tuple(one for one in code.containers if one.span not in idle))
    return _Library(owner, path, len(data), GpuCode.of(code), needed)


def _advise(mapped: mmap.mmap, name: str, spans: Iterable[range]) -> None:
    """Tell the system how *spans* of *mapped* are going to be read, by the advice called *name*, if it takes one."""
    if (advice := getattr(mmap, name, None)) is None:
        return
    for span in spans:
        start = span.start - span.start % mmap.PAGESIZE
        if start < (stop := min(span.stop, len(mapped))):
            mapped.madvise(advice, start, stop - start)


def _has_kernel(data: memoryview, entry: GpuEntry) -> bool:
    """Whether there may be a kernel in *entry*: a section of code, in a cubin small enough to look at."""
    if entry.kind != "cubin" or entry.size > _SMALL:
        return True
    with suppress(BinaryError):
        return b".text." in decompressed(data, entry)
    return True


def _device_files(count: int) -> str:
    return f"{count} files of GPU code alone" if count > 1 else "a file of GPU code alone"


def _examined(library: _Library, devices: Sequence[Device]) -> Examined:
    gpu = library.gpu
    fits = tuple(_fitness(library, device) for device in devices)
    served = [fit.device for fit in fits if fit.runs]
    kept = _kept(gpu, served) if served else gpu.size
    return Examined(library.owner, library.path, gpu.size, gpu.size - kept, fits, library.is_library)


def _kept(gpu: GpuCode, devices: Sequence[Device]) -> int:
    """The bytes of *gpu* that slimming to all of *devices* leaves."""
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


def _fitness(library: _Library, device: Device) -> Fitness:
    vendor = Vendor.of(device)
    mine = [stack for stack in library.gpu.stacks if any(sort.vendor is vendor for sort in stack.sorts)]
    if not any(stack.is_for(type(device)) for stack in mine):
        return Fitness(device, None)
    runs = sum((stack.outlook(device) for stack in mine), Outlook(device)).runs
    is_nvidia = isinstance(device, Arch)
    return Fitness(device, runs, _driver(library, device) if is_nvidia and runs is not Runs.NO else None)


def _driver(library: _Library, device: Device) -> Dotted | None:
    """The CUDA version of the oldest driver that knows *device* and reads what it is given of *library*."""
    runtimes = filter(None, map(_RUNTIME.fullmatch, library.needed))
    wanted = [Dotted(int(match[1] or match[2]), 0) for match in runtimes]
    if isinstance(device, Arch) and (toolkits := device.toolkits):
        wanted.append(toolkits[0])
    given = (sort for stack in library.gpu.stacks for sort, size in stack.kept(device).items() if size)
    if any(sort.compression is Compression.ZSTD and sort.section for sort in given):
        wanted.append(ZSTD_SINCE)
    compiled = (stack.ptx for stack in library.gpu.stacks if stack.ptx and stack.service(device) is Service.JIT)
    wanted += filter(None, map(compiles_since, compiled))
    return max(wanted, default=None)


def _copies(found: Iterable[_Library]) -> Iterator[Copies]:
    by_name: dict[str, list[_Library]] = defaultdict(list)
    for library in found:
        if match := _CUDA.fullmatch(posixpath.basename(library.path)):
            by_name[".so.".join(filter(None, match.group("name", "major")))].append(library)
    for name, libraries in sorted(by_name.items()):
        # what one distribution has twice under two names is a link, or as it wants it
        owners = tuple(sorted({library.owner for library in libraries}))
        if len(owners) > 1:
            yield Copies(name, owners, sum(library.size for library in libraries))


def shortened_runs(fit: Fitness, driver: Dotted | None) -> str:
    """How code runs, in a few words for a table."""
    if fit.runs is None:
        return "-"
    if fit.runs is Runs.NO:
        return "NO"
    words = {Runs.NATIVELY: "native", Runs.JIT: "by PTX", Runs.PARTLY_JIT: "partly PTX"}[fit.runs]
    if driver and fit.driver and driver < fit.driver:
        return f"{words}, driver too old"
    return words


def merged(examined: Sequence[Examined]) -> tuple[Examined, ...]:
    """One row for the libraries of a distribution that fare alike: the first stands for them, bytes are added up."""
    groups: dict[tuple[object, ...], list[Examined]] = {}
    for one in examined:
        groups.setdefault((one.owner, one.is_library, one.fits), []).append(one)
    return tuple(
        replace(
            group[0],
            path=group[0].path if len(group) == 1 else f"{posixpath.basename(group[0].path)} and {len(group) - 1} more",
            size=sum(one.size for one in group),
            saves=sum(one.saves for one in group),
        )
        for group in groups.values()
    )
