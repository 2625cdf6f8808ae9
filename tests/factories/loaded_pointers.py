"""A library as it is in memory once the loader has filled its pointers, read by pyelftools: a judge from outside.

Made in this process, so it is quick enough for a law, and takes files that nobody would want to load.
"""

import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import iter_unpack, pack_into, unpack_from
from typing import Any

from elftools.elf.elffile import ELFFile

_WRAPPERS = ".nvFatBinSegment"
# GPU code may shrink and move; the rest may slide or follow it, and has a look of its own
_PASSED = {".nv_fatbin", "__nv_relfatbin", _WRAPPERS}
_PASSED_TYPES = {"SHT_GNU_HASH", "SHT_NOTE", "SHT_DYNAMIC", "SHT_RELA", "SHT_RELR"}
_RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027}
_LOADED = 2
_W = 2
Segments = tuple[tuple[int, bytearray], ...]


@dataclass(frozen=True, slots=True)
class LoadedPointers:
    """A library at the base 0: its memory by address, the relocations that are not RELATIVE, its sections."""

    segments: Segments
    rows: tuple[tuple[int, int, int], ...]
    sections: tuple[tuple[str, str | int, int, int], ...]

    @classmethod
    def of(cls, data: bytes) -> "LoadedPointers":
        """What *data* is in memory; an error of any kind where it is damaged."""
        elf = ELFFile(io.BytesIO(data))
        loads = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        segments = tuple((one["p_vaddr"], bytearray(one.data().ljust(one["p_memsz"], b"\0"))) for one in loads)
        loaded = [one for one in elf.iter_sections() if one["sh_flags"] & _LOADED and one["sh_size"]]
        sections = tuple((one.name, one["sh_type"], one["sh_addr"], one["sh_size"]) for one in loaded)
        return cls(segments, tuple(_relocated(elf, segments)), sections)

    def view(self, address: int, size: int) -> bytes:
        memory, place = _memory(self.segments, address, size)
        return bytes(memory[place : place + size])

    def check_holds(self, other: "LoadedPointers") -> None:
        """An `AssertionError` unless everything of *other* but its GPU code is here, at the same addresses."""
        for name, kind, address, size in other.sections:
            if name not in _PASSED and kind not in _PASSED_TYPES:
                assert self.view(address, size) == other.view(address, size), name
        assert self.rows == other.rows

    def containers(self) -> list[list[bytes] | None]:
        """The entries of the fatbin that each wrapper leads to, as a driver finds them; None where it is damaged."""
        return [self._entries(address) for _, _, address, _ in self.wrappers()]

    def wrappers(self) -> Iterator[tuple[int, int, int, int]]:
        """Magic, version, address of the fatbin and extra word of each wrapper."""
        for name, _, address, size in self.sections:
            if name == _WRAPPERS:
                yield from iter_unpack("<IIQQ", self.view(address, size // 24 * 24))

    def _entries(self, address: int) -> list[bytes] | None:
        found = []
        try:
            magic, version, header, size = unpack_from("<IHHQ", self.view(address, 16))
            place, end = address + header, address + header + size
            while place < end:
                _, entry_version, head, payload = unpack_from("<HHIQ", self.view(place, 16))
                found.append(self.view(place, head + payload))
                place += head + payload
                if head < 64 or entry_version != 0x0101:
                    return None
        except LookupError:
            return None
        return found if (magic, version, header, place) == (0xBA55ED50, 1, 16, end) else None


def _relocated(elf: Any, segments: Segments) -> list[tuple[int, int, int]]:
    """Fill the words that RELATIVE relocations name; all other relocations come out."""
    relative = _RELATIVE[elf["e_machine"]]
    writable = [one["p_vaddr"] for one in elf.iter_segments() if one["p_type"] == "PT_LOAD" and one["p_flags"] & _W]
    filled = tuple(one for one in segments if one[0] in writable)
    others = []
    for segment in elf.iter_segments():
        if segment["p_type"] != "PT_DYNAMIC":
            continue
        for kind, table in segment.get_relocation_tables().items():
            # the words that RELR names are filled already
            for row in table.iter_relocations() if kind != "RELR" else ():
                if row["r_info_type"] == relative:
                    memory, place = _memory(filled, row["r_offset"], 8)
                    pack_into("<Q", memory, place, row["r_addend"])
                else:
                    others.append((row["r_offset"], row["r_info"], row["r_addend"]))
    return others


def _memory(segments: Segments, address: int, size: int) -> tuple[bytearray, int]:
    for start, memory in segments:
        if start <= address and address + size <= start + len(memory):
            return memory, address - start
    raise LookupError(f"nothing is loaded at {address:#x}, {size:#x} bytes long")


def load(*libraries: bytes) -> None:
    """Load *libraries* in a process of its own, everything resolved; `CalledProcessError` where one does not load."""
    program = "import ctypes, sys; [ctypes.CDLL(path, 2) for path in sys.argv[1:]]"
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.so" for number in range(len(libraries))]
        for path, data in zip(paths, libraries, strict=True):
            path.write_bytes(data)
        command = [sys.executable, "-S", "-E", "-c", program, *map(str, paths)]
        subprocess.run(command, check=True, timeout=60)
