"""What is asked of a cut, and edits of a file put together into an edited file over it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from vbuild.binary.image import Pointer, Ranges
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile, Part
from vbuild.files.records import Buffer

_SMALL = 4096


class Strip(StrEnum):
    """How much of what the loader does not need is to go."""

    NOTHING = "nothing"
    DEBUG = "debug"
    UNNEEDED = "unneeded"


class Replacement(Struct, frozen=True):
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


def by_section(
    replacements: Iterable[Replacement], index_of: Callable[[Replacement], int]
) -> dict[int, tuple[Replacement, ...]]:
    """*replacements* in the order of the file, by the index of the section that each is in."""
    found: dict[int, list[Replacement]] = {}
    for each in sorted(replacements, key=lambda each: each.span.start):
        found.setdefault(index_of(each), []).append(each)
    return {index: tuple(each) for index, each in found.items()}


def check_followed(
    replacements: Sequence[Replacement], spans: Sequence[range], found: Iterable[Pointer], exported: Iterable[int]
) -> None:
    """Refuse a file in which more leads to the replaced bytes than the pointers that will follow them.

    *spans* are the addresses of *replacements*, *found* all words of the file that lead into these, and *exported* the
    addresses that other files look for by name. Raises `BinaryError`.
    """
    known = {pointer.place: pointer for each in replacements for pointer in each.pointers}
    for span, each in zip(spans, replacements, strict=True):
        for pointer in each.pointers:
            if pointer.target != span.start:
                raise BinaryError(f"pointer to {pointer.target:#x} for what begins at {span.start:#x}")
    starts = {span.start for span, each in zip(spans, replacements, strict=True) if not each.pointers}
    filled = set()
    for pointer in found:
        filled.add(pointer.place)
        if known.get(pointer.place) != pointer and pointer.target not in starts:
            raise BinaryError(f"the word at {pointer.place:#x} leads to {pointer.target:#x}, which would move away")
    if missing := known.keys() - filled:
        raise BinaryError(f"no relocation fills the pointer at {min(missing):#x}")
    inside = Ranges(spans)
    if moved := [address for address in exported if address in inside]:
        raise BinaryError(f"exported symbol at {min(moved):#x}, in what would move away")


class Edit(Struct, frozen=True):
    """*parts* instead of the bytes at the file offsets *span*, which may lie behind the file's end."""

    span: range
    parts: tuple[Part, ...] = ()


def spliced(source: Buffer, edits: Iterable[Edit]) -> EditedFile:
    """*source* with *edits*; small pieces next to each other are copied together.

    `BinaryError` if two edits want the same bytes.
    """
    view = memoryview(source)
    # where nothing is replaced by nothing may be any place that a header says: no zeros are put up to there
    edits = [edit for edit in edits if edit.span or any(map(len, edit.parts))]
    return EditedFile.of(view, _gathered(view, _parts(len(view), edits)))


def _parts(size: int, edits: Iterable[Edit]) -> Iterator[Part]:
    cursor = 0
    for edit in sorted(edits, key=lambda edit: (edit.span.start, edit.span.stop)):
        if edit.span.start < cursor:
            raise BinaryError(f"two edits of the bytes at {edit.span.start:#x}")
        if cursor < size:
            yield range(cursor, min(edit.span.start, size))
        yield bytes(max(0, edit.span.start - max(cursor, size)))
        yield from edit.parts
        cursor = edit.span.stop
    if cursor < size:
        yield range(cursor, size)


def _gathered(source: memoryview, parts: Iterable[Part]) -> Iterator[Part]:
    """*parts* with the small ones copied together: thousands of words are patched in tables of pointers."""
    small: list[Part] = []
    for part in parts:
        if len(part) < _SMALL:
            small.append(part)
            continue
        yield from _joined(source, small)
        small = []
        yield part
    yield from _joined(source, small)


def _joined(source: memoryview, parts: list[Part]) -> list[Part]:
    if not any(isinstance(part, bytes) and part for part in parts):
        return parts
    return [b"".join(bytes(source[one.start : one.stop]) if isinstance(one, range) else one for one in parts)]
