"""AMD's bundles in memory."""

import hashlib
import zlib
from collections.abc import Mapping

import zstandard

from tests.factories.fatbins import device_library
from vbuild.gpu_code.bundle import ALIGNMENT, COMPRESSED_MAGIC, MAGIC, BundleMethod, BundleRow, Count

HOST = "host-x86_64-unknown-linux-gnu-"
GFX90A = "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+"
GFX942 = "hip-amdgcn-amd-amdhsa--gfx942"
SPIRV = "hip-spirv64-amd-amdhsa--amdgcnspirv"


def bundle(codes: Mapping[str, bytes]) -> bytes:
    """The plain bundle of *codes* by id."""
    end = len(MAGIC) + Count.layout.size + sum(BundleRow.layout.size + len(ident) for ident in codes)
    table, body = MAGIC + Count(len(codes)).pack(), b""
    for ident, code in codes.items():
        gap = bytes(-(end + len(body)) % ALIGNMENT)
        table += BundleRow(end + len(body) + len(gap), len(code), len(ident)).pack() + ident.encode()
        body += gap + code if code else b""
    return table + body


def compressed(plain: bytes, *, version: int = 3, method: int = BundleMethod.ZSTD) -> bytes:
    """*plain* compressed as a whole."""
    payload = zlib.compress(plain) if method == BundleMethod.ZLIB else zstandard.ZstdCompressor().compress(plain)
    width = 8 if version == 3 else 4
    size = 8 + 2 * width + 8 + len(payload)
    sizes = b"".join(number.to_bytes(width, "little") for number in (size, len(plain)))
    start = COMPRESSED_MAGIC + version.to_bytes(2, "little") + int(method).to_bytes(2, "little")
    return start + sizes + hashlib.md5(plain, usedforsecurity=False).digest()[:8] + payload


def amd_library(*bundles: bytes) -> bytes:
    """A shared library with *bundles*, and a wrapper for each."""
    return device_library(*bundles, section=".hip_fatbin", wrapper=(".hipFatBinSegment", 0x48495046, 1), align=4096)
