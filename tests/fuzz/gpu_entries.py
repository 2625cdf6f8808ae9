"""What a fatbin, a bundle or a file of GPU code holds, by a reader of its own: vbuild's is what is judged with it."""

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
# bytes of the shortest header of an entry
_SHORTEST = 64
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
                    return zstandard.ZstdDecompressor().decompress(payload[:size], max_output_size=plain)
                if way == _LZ4 and plain < _MOST:
                    return bytes(lz4.block.decompress(payload[:size], uncompressed_size=plain))
            return payload
        return self.data


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
        version, method = struct.unpack_from("<HH", data, 4)
        payload = data[{1: 20, 2: 24, 3: 32}[version] :]
        codec = zstandard.ZstdDecompressor().decompressobj() if method else zlib.decompressobj()
        data = codec.decompress(payload)
    if data.startswith(BUNDLE):
        found, place = [], 32
        for _ in range(int.from_bytes(data[24:32], "little")):
            start, size, length = struct.unpack_from("<QQQ", data, place)
            place += 24 + length
            found.append(Entry(data[place - length : place].decode(), data[start : start + size] if size else b""))
        return found
    (machine,) = struct.unpack_from("<18xH", data)
    if machine in {190, 224} and data.startswith(b"\x7fELF"):
        (flags,) = struct.unpack_from("<48xI", data)
        if machine == 224:
            # bits 8 and 9 are 2 if xnack has to be off
            return [Entry(f"-gfx{flags & 0xFF:x}{'' if flags >> 8 & 3 != 2 else '-off'}", data)]
        return [Entry(f"2-{flags & 0xFF if data[7] == 0x33 else flags >> 8 & 0xFF}", data)]
    return [Entry("1-90", data)] if re.search(rb"\.target\s+sm_90", data[: 1 << 14]) else []


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


def _seen(entry: Entry, *, verbatim: bool) -> tuple[str, bytes]:
    return entry.target, entry.data if verbatim else entry.code


def halves(entries: Iterable[Entry]) -> list[Entry]:
    """Every second one of *entries*, from the first on."""
    return [*islice(entries, 0, None, 2)]
