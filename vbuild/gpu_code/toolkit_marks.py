"""Which CUDA toolkit made something: by what ptxas leaves in cubins, and cudart in the libraries that link it.

    .nv.info.KERNEL of a cubin     records of a format, an attribute, and a size and so many bytes if the format is 4;
                                   attribute 0x37 is the toolkit: 128 is CUDA 12.8
    libcudart.so.12, cudart64_12.dll, libcudart-c3a75b33.so.12.8.90      NEEDED, or imported
    cudaRuntimeGetVersion          in a cudart that is linked statically: code that stores 12080 and returns 0

Checked with ptxas of CUDA 11.7, 12.0, 12.8 and 13.0, with cudart of 11.8 to 13.2 for x86-64, 12.9 and 13.0 for aarch64
and Windows, and with published wheels that were stripped. `cuobjdump -elf` calls the attribute EIATTR_CUDA_API_VERSION.
"""

import re
from collections.abc import Iterable, Iterator

from vbuild.elf.image import ElfImage
from vbuild.elf.read import Dynamic
from vbuild.elf.records import MAGIC, DynamicTag, ElfMachine, FileHeader, SectionHeader
from vbuild.errors import BinaryError
from vbuild.hardware.driver import ANY_DRIVER, Dotted, runs_since
from vbuild.pe.image import Machine, PeImage
from vbuild.pe.read import read_outline

_INFO = 0x7000_0000  # the type of the section
_API_VERSION, _SIZED, _RECORD = 0x37, 4, 4

# those of CUDA 11 have 11.0 and 11.2; Windows's: cudart64_110.dll, cublas64_12.dll, nvrtc64_120_0.dll
_NAMES = (
    re.compile(
        r"lib(?:cudart|nvrtc|cublas|cublasLt)(?:-[0-9a-f]{8})?\.so\.(?P<major>[0-9]{1,2})(?:\.(?P<minor>[0-9]{1,2}))?"
        r"(?:\.[0-9]+)*"
    ),
    re.compile(
        r"(?:cudart|nvrtc|cublas|cublasLt)64_(?P<major>[0-9]{2})(?P<minor>[0-9])?(?:_[0-9])?\.dll", re.IGNORECASE
    ),
)
# mov [place], VERSION; xor eax, eax; ret for the calls of Linux and of Windows; mov w2, VERSION; mov w0, 0; str; ret
_X86_64 = re.compile(rb"\xc7[\x07\x01](....)[\x31\x33]\xc0\xc3", re.DOTALL)
_AARCH64 = re.compile(rb"\x00\x00\x80\x52(?<=(....)\x00\x00\x80\x52)..\x00\xb9\xc0\x03\x5f\xd6", re.DOTALL)
# every cudart has the names of CUDA's errors
_CUDART = b"cudaErrorCudartUnloading\0"
_OLDEST, _NEWEST = 5, 100  # majors of CUDA with a cudart of this kind, and far more than there will be


def cubin_toolkit(cubin: bytes) -> Dotted | None:
    """The toolkit of *cubin*; None if it has no kernel. `BinaryError` if it cannot be read."""
    if not cubin.startswith(MAGIC):
        raise BinaryError(f"a cubin begins with {cubin[:4].hex(' ') or 'nothing'}, expected 7f 45 4c 46")
    header = FileHeader.parse(cubin)
    for number in range(header.e_shnum):
        section = SectionHeader.parse(cubin, header.e_shoff + number * SectionHeader.layout.size)
        if section.sh_type == _INFO and section.sh_info:  # which is the kernel
            for attribute, value in _attributes(cubin[section.sh_offset : section.sh_offset + section.sh_size]):
                if attribute == _API_VERSION:
                    return Dotted(*divmod(int.from_bytes(value, "little"), 10))
    return None


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start + _RECORD <= len(info):
        size = int.from_bytes(info[start + 2 : start + _RECORD], "little") if info[start] == _SIZED else 0
        yield info[start + 1], info[start + _RECORD : start + _RECORD + size]
        start += _RECORD + size


def cuda_named(names: Iterable[str]) -> frozenset[Dotted]:
    """The versions of CUDA whose cudart, nvrtc or cuBLAS is among the *names* of libraries."""
    matches = filter(None, (pattern.fullmatch(name) for name in names for pattern in _NAMES))
    return frozenset(Dotted(int(match["major"]), int(match["minor"] or 0)) for match in matches)


def cudart_driver(image: ElfImage | PeImage) -> Dotted | None:
    """The CUDA version of the oldest driver for the CUDA that *image* links; None for a static one that is not known.

    `BinaryError` if what it needs cannot be read.
    """
    if isinstance(image, PeImage):
        needed, is_arm = read_outline(image.data).needed, image.coff.machine == Machine.ARM64
    else:
        needed = Dynamic.read(image).texts(DynamicTag.NEEDED, errors="backslashreplace")
        is_arm = image.machine == ElfMachine.AARCH64
    if versions := cuda_named(needed):
        return max(map(runs_since, versions))
    constants = (section for name in (".rodata", ".rdata") for section in image.named(name))
    if not any(_CUDART in bytes(image.view(section.span)) for section in constants):
        return ANY_DRIVER
    texts = (image.view(section.span) for section in image.named(".text"))
    stored = {version for text in texts for version in _stored(text, is_arm=is_arm)}
    return runs_since(stored.pop()) if len(stored) == 1 else None


def _stored(text: memoryview, *, is_arm: bool) -> Iterator[Dotted]:
    """The numbers that functions like cudaRuntimeGetVersion store, as far as they are versions of CUDA."""
    for match in (_AARCH64 if is_arm else _X86_64).finditer(text):
        number = int.from_bytes(match[1], "little")
        major, rest = divmod(number >> 5 & 0xFFFF if is_arm else number, 1000)
        if _OLDEST <= major < _NEWEST and rest % 10 == 0:
            yield Dotted(major, rest // 10)
