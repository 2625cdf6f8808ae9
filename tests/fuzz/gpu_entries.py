"""What a fatbin, a bundle or a file of GPU code holds, by a reader of its own: vbuild's is what is judged with it."""

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import lz4.block
import zstandard

FATBIN, BUNDLE, CCOB, ZSTD = b"\x50\xed\x55\xba", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB", b"\x28\xb5\x2f\xfd"
_LZ4, _COMPRESSED_BY_ZSTD, _COMPRESSIONS = 1 << 13, 1 << 15, 0xF << 12
# bytes of the shortest header of an entry, and where in it is what is told besides sizes, flags and the target
_SHORTEST = 64
_TOLD = (slice(2, 8), slice(20, 28), slice(32, 40), slice(48, 56))
# the sizes and the hash in a compressed bundle, by its version, after 8 bytes
_CCOB = {2: "<IIQ", 3: "<QQQ"}
# what clang aligns code objects to
_PAGE = 4096
# bytes that nothing here inflates to
_MOST = 1 << 26


class Entry(NamedTuple):
    """What an entry is for, as ``2-90`` (kind and architecture) or a bundle's target; its bytes with its header."""

    target: str
    data: bytes

    @property
    def code(self) -> bytes:
        """What its compressed payload was made of, if it is an entry of a fatbin with one that can be read."""
        is_entry = re.fullmatch(r"\d+-\d+", self.target) and not self.data.startswith(b"\x7fELF")
        if is_entry and len(self.data) >= _SHORTEST:
            header, size, flags, plain = struct.unpack_from("<4xI8xI20xQ8xQ", self.data)
            payload, way = self.data[header:], flags & _COMPRESSIONS
            with suppress(zstandard.ZstdError, lz4.block.LZ4BlockError):
                if way == _COMPRESSED_BY_ZSTD and plain < _MOST:
                    codec = zstandard.ZstdDecompressor().decompressobj()
                    code = codec.decompress(payload[:size])
                    return code if codec.eof and not codec.unused_data and len(code) == plain else payload
                if way == _LZ4 and plain < _MOST:
                    return bytes(lz4.block.decompress(payload[:size], uncompressed_size=plain))
            return payload
        return self.data

    @property
    def told(self) -> tuple[bytes, ...]:
        """What an entry of a fatbin says of itself whatever its compression is, its name and its options among it."""
        header = int.from_bytes(self.data[4:8], "little")
        return (*(self.data[part] for part in _TOLD), self.data[_SHORTEST:header])


def entries_of(data: bytes) -> list[Entry]:
    """What each entry of *data* is for, with its bytes; `ValueError`, or what Python raises, where it is damaged."""
    if data.startswith(ZSTD):
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if data.startswith(FATBIN):
        header, size = struct.unpack_from("<6xHQ", data)
        found, place = [], header
        while place < header + size:
            kind, length, payload, number = struct.unpack_from("<H2xIQ12xI", data, place)
            if length < _SHORTEST:
                raise ValueError(place)
            found.append(Entry(f"{kind}-{number}", data[place : place + length + payload]))
            place += length + payload
        return found
    if data.startswith(CCOB):
        data = _plain(data)
    if data.startswith(BUNDLE):
        found, place = [], 32
        for _ in range(int.from_bytes(data[24:32], "little")):
            start, size, length = struct.unpack_from("<QQQ", data, place)
            place += 24 + length
            found.append(Entry(data[place - length : place].decode(), _part(data, start, size)))
        return found
    (machine,) = struct.unpack_from("<18xH", data)
    if machine in {190, 224} and data.startswith(b"\x7fELF"):
        (flags,) = struct.unpack_from("<48xI", data)
        if machine == 224:
            # bits 8 and 9 are 2 if xnack has to be off
            return [Entry(f"-gfx{flags & 0xFF:x}{'' if flags >> 8 & 3 != 2 else '-off'}", data)]
        return [Entry(f"2-{flags & 0xFF if data[7] == 0x33 else flags >> 8 & 0xFF}", data)]
    return [Entry("1-90", data)] if re.search(rb"\.target\s+sm_90", data[: 1 << 14]) else []


def _part(data: bytes, start: int, size: int) -> bytes:
    if size and start + size > len(data):
        raise ValueError(start)
    return data[start : start + size] if size else b""


def _plain(bundle: bytes) -> bytes:
    """What a compressed *bundle* was made of, if that is what its header says."""
    version, method = struct.unpack_from("<HH", bundle, 4)
    *total, size, told = struct.unpack_from(_CCOB[version], bundle, 8)
    start = 8 + struct.calcsize(_CCOB[version])
    codec = zstandard.ZstdDecompressor().decompressobj() if method else zlib.decompressobj()
    plain = codec.decompress(bundle[start : total[0] if total else None])
    found = int.from_bytes(hashlib.md5(plain, usedforsecurity=False).digest()[:8], "little")
    if not codec.eof or (len(plain), found) != (size, told):
        raise ValueError(size)
    return plain


def check_aligned(bundle: bytes) -> None:
    """Code objects of a plain *bundle* are where the runtime maps pages."""
    place = 32
    for _ in range(int.from_bytes(bundle[24:32], "little")):
        start, size, length = struct.unpack_from("<QQQ", bundle, place)
        place += 24 + length
        assert not size or not start % _PAGE, f"a code object at {start:#x} of its bundle"


def is_needed(entry: Entry) -> bool:
    """Whether an sm_90, or a gfx90a with xnack on, has to have *entry*."""
    processor, *modes = entry.target.rpartition("-")[2].split(":")
    is_amd = entry.target.startswith(("hip-", "hipv4-")) and entry.target.count("-") >= 5 and processor == "gfx90a"
    fits = is_amd and {*modes} <= {"xnack+", "sramecc+", "sramecc-"}
    return bool(entry.data) and (entry.target in {"2-90", "-gfx3f"} or fits)


def check_kept(before: Sequence[Entry], after: Sequence[Entry], *, verbatim: bool = True) -> None:
    """*after* is some of *before*, in its order, and all that is needed; if not *verbatim*, compressed in any way."""
    was, now = ([_seen(entry, verbatim=verbatim) for entry in each] for each in (before, after))
    left = iter(was)
    assert all(entry in left for entry in now), "an entry is another one now, or their order is"
    needed = [_seen(entry, verbatim=verbatim) for entry in before if is_needed(entry)]
    kept = iter(now)
    assert all(entry in kept for entry in needed), "an entry went that a GPU could run"


def _seen(entry: Entry, *, verbatim: bool) -> tuple[str, bytes, tuple[bytes, ...]]:
    is_told = re.fullmatch(r"\d+-\d+", entry.target) and not verbatim
    return entry.target, entry.data if verbatim else entry.code, entry.told if is_told else ()


def halves(entries: Iterable[Entry]) -> list[Entry]:
    """Every second one of *entries*, from the first on."""
    return [*islice(entries, 0, None, 2)]
