"""What is read of AMD's bundles, and what becomes of one when some of its code objects are kept."""

import itertools
import random
import tracemalloc
import zlib
from hashlib import md5

import pytest
import zstandard

from tests.factories.bundles import GFX90A, GFX942, HOST, bundle, compressed
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile, Part
from vbuild.gpu_code.bundle import BundleMethod, extent, packed, read
from vbuild.gpu_code.model import Compression, Reading, Vendor, verbatim
from vbuild.hardware.architectures import GpuTarget
from vbuild.hardware.gpu import GpuCodeKind

CODES = {HOST: b"", GFX90A: b"first" * 9, GFX942: b"second"}
PLAIN = bundle(CODES)


def reading_of(data: bytes) -> Reading:
    return read(memoryview(data), extent(memoryview(data), range(len(data))))


def test_a_bundle_ends_with_its_last_code_object() -> None:
    assert extent(memoryview(PLAIN + bytes(999)), range(len(PLAIN) + 999)) == range(len(PLAIN))
    assert extent(memoryview(bundle({})), range(32)) == range(32)
    assert extent(memoryview(bundle({HOST: b""})), range(86)) == range(86)


def test_an_entry_says_for_whom_it_is_and_where() -> None:
    host, first, second = entries = reading_of(PLAIN).entries
    assert {one.vendor for one in entries} == {Vendor.AMD}
    assert (host.kind, str(host.arch), host.code, host.size) == ("host", "host", GpuCodeKind.OTHER, 0)
    assert (first.kind, first.arch, first.code) == (
        "code-object",
        GpuTarget("gfx90a", ("xnack+",)),
        GpuCodeKind.MACHINE,
    )
    assert (str(first.arch), first.ident, first.uncompressed_size) == ("gfx90a:xnack+", GFX90A, 45)
    assert PLAIN[second.span.start : second.span.stop] == b"second"
    assert [one.span.start % 4096 for one in (first, second)] == [0, 0]


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


def test_keeping_entries_gives_the_bundle_of_those() -> None:
    entries = reading_of(PLAIN).entries
    assert bytes(EditedFile.of(PLAIN, packed(entries, verbatim))) == PLAIN
    assert bytes(EditedFile.of(PLAIN, packed([entries[0], entries[2]], verbatim))) == bundle(
        {HOST: b"", GFX942: b"second"}
    )
    assert bytes(EditedFile.of(PLAIN, packed((), verbatim))) == bundle({})


FORMS = [*itertools.product((2, 3), BundleMethod)]


@pytest.mark.parametrize(("version", "method"), FORMS)
def test_a_compressed_bundle_tells_its_entries_and_their_share_of_it(version: int, method: BundleMethod) -> None:
    data = compressed(PLAIN, version=version, method=method)
    assert extent(memoryview(data + bytes(64)), range(len(data) + 64)) == range(len(data))
    reading = reading_of(data)
    assert reading.why_pinned is None
    assert [(str(one.arch), one.uncompressed_size) for one in reading.entries] == [
        ("host", 0),
        ("gfx90a:xnack+", 45),
        ("gfx942", 6),
    ]
    assert {one.compression for one in reading.entries} == {Compression.ZSTD if method else Compression.ZLIB}
    payload = len(data) - _header(version)
    # an eighth is what they have in common, and stays with the last
    assert [one.size for one in reading.entries] == [(payload - payload // 8) * size // 51 for size in (0, 45, 6)]
    assert {(one.span, one.payload) for one in reading.entries} == {(range(0), range(0))}


def test_of_a_compressed_bundle_only_the_table_is_inflated_to_read_it() -> None:
    data = compressed(bundle({GFX942: bytes(1 << 24)}), method=BundleMethod.ZLIB)
    tracemalloc.start()
    try:
        assert [str(one.arch) for one in reading_of(data).entries] == ["gfx942"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_code_of_one_byte_has_its_share() -> None:
    data = compressed(bundle({GFX942: b"x"}))
    payload = len(data) - _header(3)
    assert [one.size for one in reading_of(data).entries] == [payload - payload // 8]


def test_what_repeats_far_away_is_compressed_once() -> None:
    code = random.Random(1).randbytes(5 << 20)
    data = compressed(bundle({GFX90A: code, GFX942: code, HOST: bytes(100)}))
    (part,) = repacked(data, GFX90A, GFX942)
    assert isinstance(part, bytes)
    assert len(part) < 6 << 20


@pytest.mark.parametrize(("version", "method"), FORMS)
def test_a_compressed_bundle_is_written_again_as_it_was(version: int, method: BundleMethod) -> None:
    codes = {HOST: b"", GFX90A: random.Random(1).randbytes(9000), GFX942: b"second" * 99}
    data = compressed(bundle(codes), version=version, method=method)
    (part,) = repacked(data, HOST, GFX942)
    assert isinstance(part, bytes)
    assert len(part) < len(data) - 8000
    assert bytes(part[:8]) == data[:8]
    (entry,) = (one for one in reading_of(bytes(part)).entries if one.size)
    assert (entry.ident, entry.uncompressed_size) == (GFX942, 6 * 99)
    payload = bytes(part[_header(version) :])
    inside = zstandard.ZstdDecompressor().decompress(payload) if method else zlib.decompress(payload)
    assert method or payload == zlib.compress(inside, 9)
    assert inside == bundle({HOST: b"", GFX942: codes[GFX942]})
    assert part[_header(version) - 8 : _header(version)] == md5(inside, usedforsecurity=False).digest()[:8]


def test_a_compressed_bundle_that_would_not_get_smaller_stays_as_it_is() -> None:
    (part,) = repacked(compressed(PLAIN), HOST, GFX942)
    assert isinstance(part, bytes)
    assert repacked(part, HOST, GFX942) == (range(len(part)),)


def test_what_would_inflate_to_a_gigabyte_is_left_with_its_reason() -> None:
    data = poked(compressed(PLAIN), 16, (1 << 30) + 1)
    why = f"claims that its {len(data) - 32:#x} bytes inflate to 0x40000001, which is not tried"
    assert reading_of(data).why_pinned == why


def test_how_much_may_be_claimed_follows_from_the_size() -> None:
    for code in (b"x", random.Random(1).randbytes(40_000)):
        data = compressed(bundle({GFX942: code}))
        most = max(1 << 24, 512 * (len(data) - _header(3)))
        assert [reading_of(poked(data, 16, size)).why_pinned is None for size in (most, most + 1)] == [True, False]


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


def _header(version: int) -> int:
    return {2: 24, 3: 32}[version]


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


def test_a_bundle_may_end_with_its_table() -> None:
    assert [one.ident for one in reading_of(bundle({"": b""})).entries] == [""]


@pytest.mark.parametrize("offset", [0xC9, 0x2000 - 45])
def test_code_may_touch_the_table_and_other_code(offset: int) -> None:
    assert reading_of(poked(PLAIN, ROW, offset)).entries[1].span == range(offset, offset + 45)


def test_an_entry_of_no_bytes_is_inside_whatever_place_it_says() -> None:
    data = poked(PLAIN, 32, 0x9000)
    span = reading_of(data).entries[0].span
    assert (span.start, span.stop) == (0, 0)


def test_a_table_that_is_cut_short_is_refused_by_who_reads_it_too() -> None:
    with pytest.raises(BinaryError, match=r"^bundle at 0x8 has no room for 3 entries in its first 0x28 bytes$"):
        read(memoryview(bytes(8) + PLAIN), range(8, 48))
