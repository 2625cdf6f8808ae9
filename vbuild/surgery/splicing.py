"""Edits of a file put together into a rope over it: ranges where nothing changed, new bytes where something did."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vbuild.errors import SurgeryError
from vbuild.packed import Buffer
from vbuild.rope import Part, Rope

_SMALL = 4096


@dataclass(frozen=True, slots=True)
class Edit:
    """*parts* instead of the bytes at the file offsets *span*, which may lie behind the file's end."""

    span: range
    parts: tuple[Part, ...] = ()


def spliced(source: Buffer, edits: Iterable[Edit]) -> Rope:
    """*source* with *edits*; small pieces next to each other are copied together.

    `SurgeryError` where two edits want the same bytes.
    """
    view = memoryview(source)
    return Rope.of(view, _gathered(view, _parts(len(view), edits)))


def _parts(size: int, edits: Iterable[Edit]) -> Iterator[Part]:
    cursor = 0
    for edit in sorted(edits, key=lambda edit: (edit.span.start, edit.span.stop)):
        if edit.span.start < cursor:
            raise SurgeryError(f"two edits of the bytes at {edit.span.start:#x}")
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
