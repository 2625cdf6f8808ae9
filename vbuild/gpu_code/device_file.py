"""GPU code in files of its own: what each is for, by its first bytes.

    cubin          ELF file, e_machine 190    the architecture is in e_flags
    code object    ELF file, e_machine 224    so are processor and modes
    PTX            text                       .target sm_90a
    container      fatbin or bundle           see `vbuild.gpu_code.model.Container`

Each may lie in a zstd frame (``kernel_sm_75.cubin.zst``). Two kinds of files say it by those beside them:

    add.json, add.cubin, add.ttir …   one entry of Triton's cache: its JSON has the target, its cubin or code object too
    *_gfx90a.dat, *.sm_80.bc          one of several for different GPUs; its own bytes name no other

A cubin's e_flags are of one of two layouts:

    EI_OSABI  EI_ABIVERSION  architecture  sm_90a       written by
    0x33      7              bits 0 to 7   bit 11       CUDA 12 and before, for GPUs before 10.0
    0x41      8              bits 8 to 15  bit 3        CUDA 12, for 10.0 and later
    0x41      8              bits 8 to 15  .nv.compat   CUDA 13

No flag tells sm_100f from sm_100, but the compiler's note does: ``-arch sm_100f``.
Checked with ptxas 12.3, 12.9, 13.0 and 13.5, and nvdisasm. https://llvm.org/docs/AMDGPUUsage.html#header
"""

import json
import re
from collections.abc import Callable, Container, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.elf.records import CLASS_64, LITTLE_ENDIAN, MAGIC, FileHeader
from vbuild.errors import BinaryError, VbuildError
from vbuild.files import zstd
from vbuild.files.reading import read_file
from vbuild.gpu_code.bundle import BUNDLES, COMPRESSED_MAGIC
from vbuild.gpu_code.bundle import MAGIC as BUNDLE_MAGIC
from vbuild.gpu_code.fatbin import FATBINS, MAGIC_BYTES
from vbuild.gpu_code.model import Compression, Vendor, oldest_driver
from vbuild.gpu_code.model import Container as CodeContainer
from vbuild.hardware.architectures import GENERIC, PROCESSORS, Arch, Device, GpuTarget
from vbuild.hardware.driver import ANY_DRIVER, Dotted
from vbuild.hardware.gpu import GpuCodeKind, GpuOffer

Head = Callable[[int], bytes]

_CUBIN, _CODE_OBJECT = 190, 224
_NO_GPU, _NO_PROCESSOR = Arch(0), GpuTarget("unknown")
_OLD, _NEW = (0x33, 7), (0x41, 8)
_OLD_SPECIFIC, _NEW_SPECIFIC = 1 << 11, 1 << 3
_AMD_HSA = 0x40
HEADER = FileHeader.layout.size
_NOTES = 1 << 14  # the first bytes, in which the notes of a compiler stand, behind names and symbols
_ARCH_OPTION = re.compile(rb"-arch[ =]sm_(?P<number>\d{2,3})(?P<suffix>[af]?)[ \0]")
_TARGET = re.compile(rb"^\s*\.target\s+sm_(?P<number>\d{2,3})(?P<suffix>[af]?)\b", re.MULTILINE)
_RELEASE = re.compile(rb"Cuda compilation tools, release (?P<major>\d{1,2})\.(?P<minor>\d)\b")
_VERSION = re.compile(rb"^\s*\.version\s+(?P<major>\d{1,2})\.(?P<minor>\d)\b", re.MULTILINE)
_ZSTD, _ZSTD_SUFFIX, _WINDOW_LOG = b"\x28\xb5\x2f\xfd", ".zst", 27
# code in a frame gets smaller by a few times
_PLENTY, _RATIO = 1 << 24, 32
_PTX_SUFFIX = ".ptx"
# names of files that are text or lie in a frame, and may be GPU code
SUFFIXES = (_PTX_SUFFIX, *(f"{name}{_ZSTD_SUFFIX}" for name in (".cubin", ".ptx", ".co", ".hsaco")))
_CONTAINERS = {MAGIC_BYTES: FATBINS, BUNDLE_MAGIC: BUNDLES, COMPRESSED_MAGIC: BUNDLES}
# an architecture in the name of a file: fmhaSm100aKernel, kernel_sm_75, gfx90a
_NAMES = (
    r"sm_?(?P<number>\d{2,3})(?!\d)",
    r"(?P<processor>gfx[0-9a-f]{3,4}(?:-[\d-]*generic)?)(?![0-9a-z])",
)
_NAMED = re.compile("|".join(_NAMES), re.IGNORECASE)
# for small letters, each alone: that takes a tenth of the time
_NAMED_BYTES = tuple(re.compile(pattern.encode()) for pattern in _NAMES)
# files whose name says the architecture; bytes of them that are searched
_BY_NAME, _LOOKED_AT = (".bc", ".dat"), 1 << 22


TRITON = "entry of Triton's cache"


class Folder(Struct, frozen=True):
    """The *names* in the folder of a file; *read* gives the bytes of one of them."""

    names: AbstractSet[str]
    read: Callable[[str], bytes]

    @classmethod
    def on_disk(cls, path: Path) -> Self:
        return cls({file.name for file in path.iterdir()}, lambda name: read_file(path / name))


class Folders:
    """The folders of a package; *read* gives a file's bytes."""

    def __init__(self, paths: Iterable[str], read: Callable[[str], bytes]) -> None:
        self._read = read
        self._names: dict[str, set[str]] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            self._names.setdefault(folder, set()).add(name)

    def of(self, path: str) -> Folder:
        folder = path.rpartition("/")[0]
        return Folder(self._names[folder], lambda name: self._read(f"{folder}/{name}".lstrip("/")))


class DeviceFile(Struct, frozen=True):
    """A file of code for one kind of GPU; *trouble* says why it is not known for which.

    *kind* is the vendor's word ("cubin", "ptx", "code-object"), *version* that of PTX, or the toolkit's.
    """

    vendor: Vendor
    kind: str
    code: GpuCodeKind
    arch: Device
    compression: Compression = Compression.RAW
    trouble: str | None = None
    version: Dotted | None = None
    others: tuple[GpuOffer, ...] = ()

    @classmethod
    def of(cls, path: str, size: int, head: Head, folder: Folder | None = None) -> Self | None:
        """The GPU code in the file at *path*, by its *folder*, else by its *head*; or None."""
        if folder and (file := cls._beside(path, head, folder)):
            return file
        start = head(HEADER)
        if start.startswith(_ZSTD) and path.endswith(_ZSTD_SUFFIX):
            return cls._compressed(path.removesuffix(_ZSTD_SUFFIX), head)
        if start.startswith(MAGIC):
            return cls._elf(path, size, start, head)
        return cls._text(path, head(_NOTES)) if path.endswith(_PTX_SUFFIX) else None

    @classmethod
    def _beside(cls, path: str, head: Head, folder: Folder) -> Self | None:
        name = path.rpartition("/")[2]
        with suppress(VbuildError):
            if machine := _machine_of(name, folder.names):
                return cls._entry(path.removesuffix(name), machine, folder)
            if named := _architecture_in(name):
                return cls._named(name, named, head, folder)
        return None

    @classmethod
    def _entry(cls, prefix: str, machine: str, folder: Folder) -> Self | None:
        """The Triton cache entry with the file *machine*; None if its JSON has no target."""
        description = f"{machine.rpartition('.')[0]}.json"
        try:
            target = json.loads(folder.read(description))["target"]
            stated = str(target["arch"])
            is_nvidia = target["backend"] == "cuda"
        except (ValueError, TypeError, LookupError):
            return None
        data = folder.read(machine)
        file = cls.of(f"{prefix}{machine}", len(data), lambda size: data[:size])
        if file is None:
            return None
        own = str(file.arch.number) if isinstance(file.arch, Arch) else file.arch.processor
        trouble = file.trouble
        if not trouble and (stated.partition(":")[0] != own or is_nvidia is not isinstance(file.arch, Arch)):
            trouble = f"{machine} is for {file.arch}, though {description} says {stated}"
        return cls(file.vendor, TRITON, file.code, file.arch, trouble=trouble, version=file.version)

    @classmethod
    def _named(cls, name: str, named: tuple[str, Device, str], head: Head, folder: Folder) -> Self | None:
        """The file *name* for the GPU in *named*; None unless a file beside it differs in that alone."""
        start, arch, end = named
        beside = (_architecture_in(other) for other in folder.names if other != name)
        others = tuple(
            GpuOffer(GpuCodeKind.MACHINE, other[1]) for other in beside if other and other[::2] == (start, end)
        )
        if not others:
            return None
        text = head(_LOOKED_AT).lower()
        words = {match[0].decode() for pattern in _NAMED_BYTES for match in pattern.finditer(text)}
        devices = {device for word in words if (device := _device(word)) and Vendor.of(device) is Vendor.of(arch)}
        trouble = None
        if devices and arch not in devices:
            trouble = f"is for {arch} by its name, but its bytes name {min(map(str, devices))}"
        return cls(Vendor.of(arch), "file named", GpuCodeKind.MACHINE, arch, trouble=trouble, others=others)

    @classmethod
    def _compressed(cls, path: str, head: Head) -> Self | None:
        try:
            start = zstd.first_bytes(head(_NOTES), _NOTES, window_log=_WINDOW_LOG)
        except zstd.ZstdError:
            return None
        # the start does not say the size
        file = cls.of(path, 1 << 63, lambda size: start[:size])
        return replace(file, compression=Compression.ZSTD) if file else None

    @classmethod
    def _elf(cls, path: str, size: int, start: bytes, head: Head) -> Self | None:
        machine = int.from_bytes(start[18:20], "little")
        if machine not in {_CUBIN, _CODE_OBJECT}:
            return None
        arch: Device | None = None
        trouble = None
        if len(start) < HEADER or (start[4], start[5]) != (CLASS_64, LITTLE_ENDIAN):
            trouble = "is cut short, or not of 64 bits"
        else:
            header = FileHeader.parse(start, 0)
            abi = start[7], start[8]
            if machine == _CUBIN:
                arch = _cubin(header.e_flags, abi, path, head)
            elif abi[0] == _AMD_HSA:
                arch = GpuTarget.of_flags(header.e_flags, abi[1])
            if arch is None:
                trouble = f"has flags {header.e_flags:#x} of ABI {abi[0]:#x} {abi[1]}, which say no known GPU"
            elif header.e_shoff + header.e_shnum * header.e_shentsize > size:
                trouble = "is cut short"
            else:
                trouble = _contradicted(path, arch)
        if machine == _CUBIN:
            # ptxas of CUDA 12.8 and newer says so in a note, for newer GPUs at first; of others it cannot be told
            release = _RELEASE.search(head(_NOTES)) if arch and (start[7], start[8]) == _NEW else None
            version = Dotted(int(release["major"]), int(release["minor"])) if release else None
            kind = GpuCodeKind.MACHINE
            return cls(Vendor.NVIDIA, "cubin", kind, arch or _NO_GPU, trouble=trouble, version=version)
        return cls(Vendor.AMD, "code-object", GpuCodeKind.MACHINE, arch or _NO_PROCESSOR, trouble=trouble)

    @classmethod
    def _text(cls, path: str, start: bytes) -> Self | None:
        match = _TARGET.search(start)
        arch = _checked(int(match["number"]), match["suffix"].decode()) if match else None
        trouble = _contradicted(path, arch) if arch else "names no known target"
        stated = _VERSION.search(start)
        version = Dotted(int(stated["major"]), int(stated["minor"])) if stated else None
        return cls(Vendor.NVIDIA, "ptx", GpuCodeKind.PTX, arch or _NO_GPU, trouble=trouble, version=version)

    @property
    def is_known(self) -> bool:
        """Whether it says, true or not, for which GPU it is."""
        return self.arch not in {_NO_GPU, _NO_PROCESSOR}

    @property
    def offer(self) -> GpuOffer:
        """What it offers the driver: in *trouble*, something that every GPU may need."""
        return GpuOffer(GpuCodeKind.OTHER if self.trouble else self.code, self.arch)

    @property
    def driver(self) -> Dotted | None:
        """The CUDA version of the oldest driver for it; None if that cannot be told, as of a cubin's head."""
        return oldest_driver(self.code, self.version) if self.vendor is Vendor.NVIDIA else ANY_DRIVER


def container_in(data: memoryview) -> CodeContainer | None:
    """The fatbin or bundle that the file *data* is, if any.

    In a zstd frame it is pinned, with offsets in the frame.
    """
    frame = None
    if data[: len(_ZSTD)] == _ZSTD:
        frame, data = data, memoryview(_unframed(data))
    form = next((form for magic, form in _CONTAINERS.items() if data[: len(magic)] == magic), None)
    if form is None:
        return None
    span = form.extent(data, range(len(data)))
    reading = form.read(data, span)
    if len(span) < len(data):
        raise BinaryError(
            f"{form.name} of {len(span):#x} bytes in a file of {len(data):#x}; expected nothing behind it"
        )
    why = "lies in a zstd frame" if frame else reading.why_pinned
    return CodeContainer(form.vendor, "", span, None, reading.entries, (), why, reading.packing or form.packing)


def _unframed(frame: memoryview) -> bytes:
    most = max(_PLENTY, _RATIO * len(frame))
    try:
        data = zstd.first_bytes(frame, most + 1, window_log=_WINDOW_LOG)
    except (zstd.ZstdError, MemoryError) as error:
        raise BinaryError(f"a damaged zstd frame: {error}") from error
    if len(data) > most:
        raise BinaryError(f"a zstd frame of more than {most:#x} bytes in {len(frame):#x}")
    return data


def may_be_container(path: str, head: Head) -> bool:
    start = head(HEADER)
    if start.startswith(_ZSTD) and path.endswith(_ZSTD_SUFFIX):
        with suppress(zstd.ZstdError):
            start = zstd.first_bytes(head(_NOTES), HEADER, window_log=_WINDOW_LOG)
    return start.startswith(tuple(_CONTAINERS))


def is_named(path: str) -> bool:
    return _architecture_in(path.rpartition("/")[2]) is not None


def _machine_of(name: str, names: Container[str]) -> str | None:
    stem = name.removeprefix("__grp__").rpartition(".")[0]
    if not stem or f"{stem}.json" not in names:
        return None
    return next((machine for suffix in (".cubin", ".hsaco") if (machine := f"{stem}{suffix}") in names), None)


def _architecture_in(name: str) -> tuple[str, Device, str] | None:
    """The one architecture in the *name* of a file of data or bitcode, and the text around it."""
    matches = list(_NAMED.finditer(name)) if name.endswith(_BY_NAME) else []
    if len(matches) != 1 or not (arch := _device(matches[0][0])):
        return None
    return name[: matches[0].start()], arch, name[matches[0].end() :]


def _device(word: str) -> Device | None:
    if not (match := _NAMED.fullmatch(word)):
        return None
    if match["number"]:
        return _checked(int(match["number"]), "")
    target = GpuTarget(match["processor"].lower())
    return target if target.processor in PROCESSORS or target.processor in GENERIC else None


def _cubin(flags: int, abi: tuple[int, int], path: str, head: Head) -> Arch | None:
    if abi == _OLD:
        return _checked(flags & 0xFF, "a" if flags & _OLD_SPECIFIC else "")
    if abi != _NEW:
        return None
    number = flags >> 8 & 0xFF
    if flags & _NEW_SPECIFIC:
        return _checked(number, "a")
    # a family in its name spares the search for the note
    if f"sm{number}f" in path.lower().replace("_", "") and (family := _checked(number, "f")):
        return family
    # without a note it counts as code for more GPUs
    match = _ARCH_OPTION.search(head(_NOTES))
    return _checked(number, match["suffix"].decode() if match and int(match["number"]) == number else "")


def _checked(number: int, suffix: str) -> Arch | None:
    arch = Arch(number, suffix)
    return arch if arch.toolkits else None


def _contradicted(path: str, arch: Device) -> str | None:
    named = [match[0] for match in _NAMED.finditer(path.rpartition("/")[2])]
    devices = {re.sub(r"[^0-9a-z-]", "", name.lower()).removeprefix("sm") for name in named}
    own = str(arch.number) if isinstance(arch, Arch) else arch.processor
    return f"is for {arch}, though its name says {named[0]}" if devices and own not in devices else None
