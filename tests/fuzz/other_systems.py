"""Libraries of Windows and macOS, read, and those of Windows slimmed.

Seeds are as small as they can be, and DLLs with GPU code as mingw links them.
"""

import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress

import pefile

from tests.factories.fatbins import cubin, entry, fatbin
from tests.factories.macho_files import ARM64, X86_64, fat, macho
from tests.factories.pe_files import pe_file
from tests.factories.windows import MINGW, device_dll, signed
from tests.fuzz.containers import SHARE
from tests.fuzz.gpu_entries import FATBIN, Entry, check_kept, entries_of
from tests.fuzz.target import Target
from vbuild.binary.edits import Strip
from vbuild.errors import VbuildError
from vbuild.macho import read as macho_reader
from vbuild.macho.code import read_codes
from vbuild.pe import read as pe
from vbuild.pe.code import read_code
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.request import Cuts

_SECURITY, _DEBUG = 4, 6
_CUDA = 0x466243B1
# and those for debuggers
_GPU_SECTIONS = (b".nv_fatb", b".nvFatBi", b"__nv_rel", b".hip", b"/")


def _read_pe(data: bytes) -> None:
    pe.read_loading(data)
    with suppress(VbuildError):
        read_code(data)


def _read_macho(data: bytes) -> None:
    macho_reader.read_loading(data)
    with suppress(VbuildError):
        read_codes(data)


def _slim_pe(data: bytes) -> None:
    """*data* as a DLL that is slimmed: what comes out is the same, or another reader finds it sound and as large."""
    library = GpuLibrary.of("demo/a.dll", memoryview(data))
    for cuts in (
        Cuts(),
        Cuts(zstd=True, unsupported=True, strip=Strip.DEBUG),
    ):
        with suppress(VbuildError):
            file, outcome = library.slimmed(SHARE, cuts)
            assert file.size == outcome.after, "the outcome tells another size than the file has"
            if not file.is_unchanged:
                before, after = (pefile.PE(data=each, fast_load=True) for each in (data, bytes(file)))
                _check_windows_laws(before, after)
                _check_windows_tables(before, after, verbatim=not cuts.zstd)


def _check_windows_laws(before: pefile.PE, after: pefile.PE) -> None:
    """Sections are where they were in memory, with the bytes that they had but for GPU code, and lie in the file."""
    size = len(after.__data__)
    assert after.OPTIONAL_HEADER.SizeOfImage == before.OPTIONAL_HEADER.SizeOfImage, "another size in memory"
    assert size <= len(before.__data__), "a larger file"
    assert len(after.sections) == len(before.sections), "another number of sections"
    end, unit = 0, after.OPTIONAL_HEADER.FileAlignment
    for one, other in zip(before.sections, after.sections, strict=True):
        assert (one.VirtualAddress, one.Misc_VirtualSize) == (other.VirtualAddress, other.Misc_VirtualSize)
        if other.SizeOfRawData:
            assert other.PointerToRawData >= end, "sections overlap"
            assert not (other.PointerToRawData | other.SizeOfRawData) % unit, "a section is not aligned"
            end = other.PointerToRawData + other.SizeOfRawData
        if not one.Name.startswith(_GPU_SECTIONS):
            was, now = (
                each.__data__[part.PointerToRawData :][: part.SizeOfRawData]
                for each, part in ((before, one), (after, other))
            )
            if not _table(before, _DEBUG)[0]:  # its rows have places in the file
                assert was == now, "other bytes in a section without GPU code"
    assert end <= size, "a section past the end"


def _check_windows_tables(before: pefile.PE, after: pefile.PE, *, verbatim: bool) -> None:
    """What has places in the file has the right ones, and each wrapper leads to what it led to, or enough of it."""
    assert _table(after, _SECURITY) == (0, 0), "certificates of another file"
    if before.OPTIONAL_HEADER.CheckSum:
        assert after.OPTIONAL_HEADER.CheckSum == _checksum(after), "another checksum"
    if after.FILE_HEADER.PointerToSymbolTable:
        assert _symbols(before) == _symbols(after), "other symbols"
    for was, now in zip(_debug_data(before), _debug_data(after), strict=True):
        assert not was or was == now, "other debug data"
    for one, other in zip(_gpu_code(before), _gpu_code(after), strict=True):
        if one is not None:
            assert other is not None, "a wrapper leads to nothing"
            check_kept(one, other, verbatim=verbatim)


def _table(image: pefile.PE, number: int) -> tuple[int, int]:
    """Where the header says that table *number* is, and its bytes; nowhere, if it names fewer tables."""
    tables = image.OPTIONAL_HEADER.DATA_DIRECTORY[number : number + 1]
    return (tables[0].VirtualAddress, tables[0].Size) if tables else (0, 0)


def _checksum(image: pefile.PE) -> int:
    """What ImageHlp computes, as pefile does, which collects garbage first and takes a tenth of a second."""
    place = image.OPTIONAL_HEADER.get_file_offset() + 64
    data = bytes(image.__data__)
    plain = data[:place] + bytes(4) + data[place + 4 :] + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"<{len(plain) // 2}H", plain))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total + len(data)


def _symbols(image: pefile.PE) -> bytes:
    start = image.FILE_HEADER.PointerToSymbolTable
    return bytes(image.__data__[start : start + 18 * image.FILE_HEADER.NumberOfSymbols])


def _debug_data(image: pefile.PE) -> Iterator[bytes]:
    """What each row of the debug directory has in the file; nothing where that is in no section that stays as it is."""
    address, room = _table(image, _DEBUG)
    rows = b""
    with suppress(pefile.PEFormatError):
        rows = image.get_data(address, room) if address else b""
    for size, start in struct.iter_unpack("<16xI4xI", rows[: len(rows) // 28 * 28]):
        is_kept = any(
            each.PointerToRawData <= start and start + size <= each.PointerToRawData + each.SizeOfRawData
            for each in image.sections
            if not each.Name.startswith(_GPU_SECTIONS)
        )
        yield bytes(image.__data__[start : start + size]) if start and is_kept else b""


def _gpu_code(image: pefile.PE) -> Iterator[list[Entry] | None]:
    """The entries that each wrapper leads to, or None if it leads to nothing readable."""
    base = image.OPTIONAL_HEADER.ImageBase
    for section in image.sections:
        if section.Name.rstrip(b"\0") == b".nvFatBi":
            rows = bytes(section.get_data()[: min(section.Misc_VirtualSize, section.SizeOfRawData) // 24 * 24])
            for magic, _, address, _ in struct.iter_unpack("<IIQQ", rows):
                yield _fatbin(image, address - base) if magic == _CUDA else None


def _fatbin(image: pefile.PE, rva: int) -> list[Entry] | None:
    with suppress(struct.error, ValueError, LookupError, pefile.PEFormatError):
        header, size = struct.unpack("<6xHQ", image.get_data(rva, 16))
        found = image.get_data(rva, min(header + size, len(image.__data__)))
        return entries_of(found) if found.startswith(FATBIN) else None
    return None


def _windows_libraries() -> Iterator[bytes]:
    yield pe_file(needed=["KERNEL32.dll", "a.dll"], delayed=["b.dll"], exports=["PyInit_demo"], text=b"helper.dll\0")
    yield pe_file(machine=0x14C, needed=["a.dll"], flags=0x22, sections=[(b"UPX0", 512)])


def _device_dlls() -> Iterator[bytes]:
    """DLLs with fatbins and bundles, if mingw is there to link them."""
    yield pe_file(sections=[(b".nv_fatb", 512), (b".nvFatBi", 512)])
    if shutil.which(MINGW):
        code = fatbin(*(entry(arch=arch, code=cubin(arch, 2000)) for arch in (80, 90)))
        yield device_dll(code, code, gap=40)
        yield signed(device_dll(code, code))
        yield device_dll(code, code, flags=["-Wl,--build-id"])
        yield device_dll(code, wrapped=[0, 0], flags=["-g"], more=".data\n.quad c0 + 24\n")


def _mac_libraries() -> Iterator[bytes]:
    thin = macho(needed=["@rpath/libx.dylib"], rpaths=["@loader_path"], exports=["PyInit_demo"], local=["inner"])
    yield thin
    yield fat((X86_64, macho(cpu=X86_64, name="libx.dylib", signature=64)), (ARM64, thin))


TARGETS = (
    Target(
        "pe",
        _read_pe,
        _windows_libraries,
        (b"PE\0\0", b".rdata\0\0", b"/4\0", b".dll\0", b"RSDS"),
        rooms=("vbuild.pe", "vbuild.binary"),
    ),
    Target(
        "macho",
        _read_macho,
        _mac_libraries,
        (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"_PyInit_", b"@rpath/"),
        rooms=("vbuild.macho", "vbuild.binary"),
    ),
    Target(
        "slim-pe",
        _slim_pe,
        _device_dlls,
        (b"PE\0\0", FATBIN, b".nv_fatb", b".nvFatBi", b".reloc\0\0"),
        rooms=("vbuild.pe", "vbuild.binary", "vbuild.slimming", "vbuild.gpu_code"),
    ),
)
