"""A file to be written, as ranges of one that exists and new bytes between them: what an edit of a large file is.

rope = Rope.of(source, [range(0, 64), b"patched", range(128, 4096)])
rope.buffers() -> the pieces in order, none of them copied
"""

from collections.abc import Iterable, Iterator
from typing import Self

from msgspec import Struct

from vbuild.files.records import Buffer

Part = range | bytes


class EditedFile(Struct, frozen=True, eq=False):
    """The bytes of *parts* one after the other; a range is that of *source*, in bytes."""

    source: memoryview
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, source: Buffer, parts: Iterable[Part]) -> Self:
        """The rope of *parts* without the empty ones, neighbours in *source* and new bytes joined."""
        return cls(memoryview(source), tuple(_joined(part for part in parts if len(part))))

    @classmethod
    def whole(cls, source: Buffer) -> Self:
        """*source* as it is."""
        return cls.of(source, [range(len(source))])

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self.parts))

    @property
    def is_unchanged(self) -> bool:
        """Whether it is its source, byte for byte, without a look at them."""
        return self.parts == (range(len(self.source)),) or (not self.parts and not len(self.source))

    def buffers(self) -> Iterator[memoryview]:
        """The bytes, piece by piece."""
        for part in self.parts:
            yield self.source[part.start : part.stop] if isinstance(part, range) else memoryview(part)

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers())


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    last: Part | None = None
    for part in parts:
        if isinstance(last, range) and isinstance(part, range) and last.stop == part.start:
            last = range(last.start, part.stop)
        elif isinstance(last, bytes) and isinstance(part, bytes):
            last += part
        else:
            if last is not None:
                yield last
            last = part
    if last is not None:
        yield last
