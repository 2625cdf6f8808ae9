"""What is to be put in the place of a stretch of a loaded section: the order that a cut carries out."""

from dataclasses import dataclass

from vbuild.binary.image import Pointer
from vbuild.rope import Part


@dataclass(frozen=True, slots=True)
class Replacement:
    """New bytes for the file offsets *span*, a part of one loaded section; they may lie elsewhere in it afterwards.

    *parts* are ranges of the same file and new bytes, together never longer than *span*. *pointers* are the words that
    the loader fills with the address of the span's first byte, all of them; they will follow it. A span to which no
    pointer leads stays where it begins.
    """

    span: range
    parts: tuple[Part, ...]
    pointers: tuple[Pointer, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of what it puts there."""
        return sum(map(len, self.parts))
