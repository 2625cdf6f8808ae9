"""What is read of AMD's bundles, and what becomes of one when some of its code objects are kept."""

import pytest

from tests.factories.bundles import GFX90A, GFX942, HOST, bundle, compressed
from vbuild.errors import BinaryError
from vbuild.files.edited import Part
from vbuild.gpu_code.bundle import BundleMethod, extent, read
from vbuild.gpu_code.model import Reading, verbatim

CODES = {HOST: b"", GFX90A: b"first" * 9, GFX942: b"second"}
PLAIN = bundle(CODES)


def reading_of(data: bytes) -> Reading:
    return read(memoryview(data), extent(memoryview(data), range(len(data))))


@pytest.mark.parametrize(
    ("ident", "shown"),
    [
        ("host-x86_64-unknown-linux", "host host"),
        ("host-x86_64-unknown-linux--", "host host"),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-", "code-object gfx90a:xnack-"),
        ("hip-amdgcn-amd-amdhsa--gfx9-4-generic", "code-object gfx9-4-generic"),
        ("hip-spirv64-amd-amdhsa--amdgcnspirv", "spirv amdgcnspirv"),
        ("hip-spirv64-amd-amdhsa-unknown-amdgcnspirv", "spirv amdgcnspirv"),
        ("openmp-amdgcn-amd-amdhsa--gfx90a", "unknown gfx90a"),
        ("something", "unknown something"),
        ("hipv4-amdgcn-amd-amdhsa-gfx90a", "unknown hipv4-amdgcn-amd-amdhsa-gfx90a"),
    ],
)
def test_ids_are_read_in_every_spelling(ident: str, shown: str) -> None:
    (found,) = reading_of(bundle({ident: b"x"})).entries
    assert f"{found.kind} {found.arch}" == shown
    assert found.ident == ident


def test_what_would_inflate_to_a_gigabyte_is_left_with_its_reason() -> None:
    data = poked(compressed(PLAIN), 16, (1 << 30) + 1)
    why = f"claims that its {len(data) - 32:#x} bytes inflate to 0x40000001, which is not tried"
    assert reading_of(data).why_pinned == why


def test_a_zlib_stream_that_is_shorter_than_claimed_is_not_written_again() -> None:
    data = poked(compressed(PLAIN, method=BundleMethod.ZLIB), 16, 0x2007)
    message = "^compressed bundle at 0x0 inflates to 0x2006 bytes, but claims 0x2007$"
    with pytest.raises(BinaryError, match=message):
        repacked(data, GFX942)


@pytest.mark.parametrize(
    ("offset", "message"),
    [(24, "compressed bundle at 0x0 is damaged: its hash is"), (16, "compressed bundle at 0x0 is damaged: a frame of")],
)
def test_a_compressed_bundle_that_lies_about_itself_is_not_written_again(offset: int, message: str) -> None:
    data = poked(compressed(PLAIN), offset, 0x3000)
    with pytest.raises(BinaryError, match=f"^{message}"):
        repacked(data, GFX942)


def test_a_stream_that_lacks_its_end_is_not_written_again() -> None:
    """All that it holds can be read, and AMD's runtime refuses it."""
    whole = compressed(PLAIN, method=BundleMethod.ZLIB)
    data = poked(whole, 8, len(whole) - 4)[:-4]
    with pytest.raises(BinaryError, match=r"^compressed bundle at 0x0 is damaged: cut short$"):
        repacked(data, GFX942)


def repacked(data: bytes, *idents: str) -> tuple[Part, ...]:
    """What becomes of the compressed bundle *data* if only the entries of these ids are kept."""
    reading = reading_of(data)
    assert reading.packing
    return reading.packing([entry for entry in reading.entries if entry.ident in idents], verbatim)


def poked(data: bytes, offset: int, value: int, width: int = 8) -> bytes:
    return data[:offset] + value.to_bytes(width, "little") + data[offset + width :]


V3 = compressed(PLAIN)
ROW = 32 + 24 + len(HOST)
REFUSED = {
    b"": "no bundle at 0x0: begins with b'', expected __CLANG_OFFLOAD_BUNDLE__ or CCOB",
    PLAIN[:24]: "bundle at 0x0 is cut short",
    PLAIN[:40]: "bundle at 0x0 has no room for 3 entries in its first 0x28 bytes",
    PLAIN[:-1]: "bundle at 0x0 ends at 0x2006, past the end of its section, 0x2005",
    poked(PLAIN, 24, 1 << 60): (
        "bundle at 0x0 has no room for 1152921504606846976 entries in its first 0x1000 bytes"
    ),
    poked(PLAIN, 48, 5000): "bundle at 0x0 has an id of 0x1388 bytes for entry 0",
    poked(PLAIN, 48, 4041): "bundle at 0x0 has an id of 0xfc9 bytes for entry 0",
    poked(PLAIN, 56, 0xFF, 1): (
        "bundle at 0x0 has an id that is not ASCII: b'\\xffost-x86_64-unknown-linux-gnu-'"
    ),
    poked(PLAIN, ROW, 64): "bundle at 0x0 has code at 0x40, inside its table of 0xc9 bytes",
    poked(PLAIN, ROW, 200): "bundle at 0x0 has code at 0xc8, inside its table of 0xc9 bytes",
    poked(PLAIN, ROW + 8, 0x1006): "bundle at 0x0 has code objects that overlap",
    poked(PLAIN, ROW, 1 << 63): (
        "bundle at 0x0 ends at 0x800000000000002d, past the end of its section, 0x2006"
    ),
    b"CCOB": "CompressedStart at 0x0 runs past the end, 0x4",
    V3[:16]: "Sizes3 at 0x8 runs past the end, 0x10",
    poked(V3, 4, 4, 2): "compressed bundle at 0x0 has version 4; only 2 and 3 are known",
    poked(V3, 4, 1, 2): "compressed bundle at 0x0 has version 1; only 2 and 3 are known",
    compressed(poked(PLAIN, ROW + 8, 0x1006)): "bundle at 0x0 has code objects that overlap",
    compressed(poked(PLAIN, 24, 1 << 60)): (
        "bundle at 0x0 has no room for 1152921504606846976 entries in its first 0x1000 bytes"
    ),
    V3[:-1]: f"bundle at 0x0 ends at {len(V3):#x}, past the end of its section, {len(V3) - 1:#x}",
    poked(V3, 6, 2, 2): "compressed bundle at 0x0 has method 2; only 0 (zlib) and 1 (zstd) are known",
    poked(V3, 8, 32): "no bundle at 0x0: begins with b''",
    poked(V3, 8, 31): "compressed bundle at 0x0 is 0x1f bytes long, less than its header",
    poked(V3, 8, 1 << 40): f"bundle at 0x0 ends at 0x10000000000, past the end of its section, {len(V3):#x}",
    poked(V3, 16, 100): "compressed bundle at 0x0 has code behind its end, 0x64",
    poked(V3, 16, 0x2005): "compressed bundle at 0x0 has code behind its end, 0x2005",
    poked(V3, 32, 0): (
        "compressed bundle at 0x0 is damaged: Unable to decompress Zstandard data: Unknown frame descriptor"
    ),
    poked(compressed(PLAIN, method=BundleMethod.ZLIB), 32, 0): (
        "compressed bundle at 0x0 is damaged: Error -3 while decompressing data: unknown compression method"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), REFUSED.items(), ids=list(map(str, range(len(REFUSED)))))
def test_what_is_damaged_or_not_known_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(BinaryError) as refusal:
        reading_of(data)
    assert str(refusal.value).startswith(message)


def test_a_table_that_is_cut_short_is_refused_by_who_reads_it_too() -> None:
    with pytest.raises(BinaryError, match=r"^bundle at 0x8 has no room for 3 entries in its first 0x28 bytes$"):
        read(memoryview(bytes(8) + PLAIN), range(8, 48))
