"""Fatbins in memory, the smallest that are valid, and libraries that gcc links around them."""

from collections.abc import Sequence

import lz4.block
import zstandard
from msgspec import structs

from tests.factories.elf import shared_object
from vbuild.gpu_code.fatbin import HEADER_SIZE, MAGIC, VERSION, EntryHeader, FatbinFlag, FatbinHeader, FatbinKind

LINUX_64 = FatbinFlag.ADDRESS_64 | FatbinFlag.LINUX
PTX = b".version 7.8\n.target sm_90\n.address_size 64\n\0"
_HEADER = EntryHeader.layout.size


def cubin(arch: int, size: int = 128) -> bytes:
    """The least that passes for code for *arch*: an ELF header of NVIDIA's machine, and zeros."""
    head = b"\x7fELF\x02\x01\x01\x41\x08".ljust(16, b"\0") + (2).to_bytes(2, "little") + (190).to_bytes(2, "little")
    return (head.ljust(48, b"\0") + (arch << 8).to_bytes(4, "little")).ljust(size, b"\0")


def entry(
    kind: int = FatbinKind.CUBIN, arch: int = 90, *, code: bytes | None = None, flags: int = 0, **fields: int
) -> bytes:
    """An entry of *code*, stored as the compression bits of *flags* say; *fields* of its header say otherwise."""
    code = code if code is not None else PTX if kind == FatbinKind.PTX else cubin(arch)
    stored = _stored(code, flags)
    payload = stored or code
    header = EntryHeader(
        kind,
        0x0101,
        _HEADER,
        -(-len(payload) // 8) * 8,
        len(stored),
        0,
        8,
        7 if kind == FatbinKind.PTX else 1,
        arch,
        0,
        0,
        LINUX_64 | flags,
        0,
        len(code) if stored else 0,
    )
    packed = structs.replace(header, **fields).pack()
    return packed + bytes(max(fields.get("header_size", 0) - _HEADER, 0)) + payload + bytes(-len(payload) % 8)


def fatbin(*entries: bytes, **fields: int) -> bytes:
    """The container of *entries*; *fields* of its header say otherwise."""
    body = b"".join(entries)
    header = FatbinHeader(MAGIC, VERSION, HEADER_SIZE, len(body))
    return structs.replace(header, **fields).pack() + body


def device_library(
    *containers: bytes,
    section: str = ".nv_fatbin",
    wrapped: Sequence[int] | None = None,
    wrapper: tuple[str, int, int] = (".nvFatBinSegment", 0x466243B1, 1),
    align: int = 8,
    more: str = "",
    flags: Sequence[str] = (),
    rights: str = "a",
) -> bytes:
    """A shared library with *containers* in *section*, labelled c0, c1 ..., and *more* in assembly.

    The section has the *rights* of an ELF section, to be read alone, as with nvcc.
    Wrappers, of that section, magic and version, point to the containers numbered in *wrapped*: each once by default.
    """
    name, magic, version = wrapper
    # without a name the linker writes that of gcc's temporary file into .symtab, another one each time
    lines = ['.file "device.s"', f'.section {section},"{rights}",@progbits', f".balign {align}"]
    for number, container in enumerate(containers):
        lines += [f".balign {align}", f"c{number}:", *_bytes(container)]
    lines += [f'.section {name},"aw",@progbits', ".balign 8"]
    for number in range(len(containers)) if wrapped is None else wrapped:
        lines += [f".long {magic}", f".long {version}", f".quad c{number}", ".quad 0"]
    source = "\n".join([*lines, more, '.section .note.GNU-stack,"",@progbits', ""])
    return shared_object(source, "-nostdlib", *flags, language="assembler")


def _stored(code: bytes, flags: int) -> bytes:
    """*code* compressed; nothing where it is stored raw."""
    if flags & FatbinFlag.LZ4:
        return bytes(lz4.block.compress(code, store_size=False))
    if flags & FatbinFlag.ZSTD:
        return zstandard.ZstdCompressor().compress(code)
    return b""


def _bytes(data: bytes) -> list[str]:
    return [".byte " + ",".join(map(str, data[start : start + 64])) for start in range(0, len(data), 64)]
