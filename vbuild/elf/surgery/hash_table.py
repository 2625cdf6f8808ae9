"""The bloom filter of ``.gnu.hash``, which can be halved without a look at the names it stands for.

    | u32 nbuckets | u32 symoffset | u32 bloom_size | u32 bloom_shift | u64 bloom[bloom_size] | buckets, chains |

A symbol of hash h sets bits in word (h / 64) mod bloom_size, and bloom_size is a power of two: with half as many words
it sets the same bits in the word of the same number mod bloom_size / 2. So a half is the upper one or-ed onto the
lower. Nothing that was found is lost; a miss costs a look into the chains more often.

https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html, glibc ``elf/dl-lookup.c``
"""

from dataclasses import dataclass
from struct import Struct
from typing import Self

from vbuild.elf.records import ElfRecord
from vbuild.errors import SurgeryError
from vbuild.files.records import U32, Buffer


@dataclass(frozen=True, slots=True)
class _Header(ElfRecord):
    nbuckets: U32
    symoffset: U32
    bloom_size: U32
    bloom_shift: U32


@dataclass(frozen=True, slots=True)
class Bloom:
    """The head of a ``.gnu.hash`` section: its header and its filter."""

    header: _Header
    words: tuple[int, ...]

    @classmethod
    def parse(cls, section: Buffer) -> Self:
        """The head of *section*; `SurgeryError` where it is none that a loader takes."""
        header = _Header.parse(section)
        count = header.bloom_size
        end = header.layout.size + 8 * count + 4 * header.nbuckets
        if not count or count & (count - 1) or end > len(section):
            raise SurgeryError(f".gnu.hash of {len(section):#x} bytes with a filter of {count:#x} words")
        return cls(header, Struct(f"<{count}Q").unpack_from(section, header.layout.size))

    @property
    def size(self) -> int:
        """Bytes; the buckets begin there."""
        return self.header.layout.size + 8 * len(self.words)

    def halved(self) -> Self:
        """The filter of half as many words that lets everything pass which this one does."""
        middle = len(self.words) // 2
        words = tuple(low | high for low, high in zip(self.words[:middle], self.words[middle:], strict=True))
        header = self.header
        return type(self)(_Header(header.nbuckets, header.symoffset, middle, header.bloom_shift), words)

    def shorter_by(self, gain: int) -> Self | None:
        """The largest half, quarter ... that saves *gain* bytes; None where not even one word would."""
        bloom = self
        while self.size - bloom.size < gain:
            if len(bloom.words) == 1:
                return None
            bloom = bloom.halved()
        return bloom

    def pack(self) -> bytes:
        return self.header.pack() + Struct(f"<{len(self.words)}Q").pack(*self.words)
