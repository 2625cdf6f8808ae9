"""What of a file is where in memory: the pages that kernel and loader map, and where the bytes of each come from.

    PT_LOAD -> all pages of the file that it touches, over what an earlier one has mapped there
            -> zeros behind its last byte of the file, up to the last page that it has in memory

Linux ``fs/binfmt_elf.c``, glibc ``elf/dl-map-segments.h``
"""

from collections.abc import Iterator, Sequence
from typing import Self

from msgspec import Struct

from vbuild.binary.edits import up
from vbuild.elf.layout import ElfLayout
from vbuild.elf.records import ElfMachine, ProgramHeader
from vbuild.errors import BinaryError

_PAGES: dict[int, tuple[int, ...]] = {ElfMachine.X86_64: (0x1000,)}
_ANY_PAGES = (0x1000, 0x4000, 0x10000)


class Stretch(Struct, frozen=True):
    """Addresses that come from the file, from *offset* on, or are zeros where that is None; *flags* are a PT_LOAD's."""

    addresses: range
    flags: int
    offset: int | None = None

    def within(self, addresses: range) -> "Stretch":
        """What of it lies in *addresses*; its addresses are empty if nothing does."""
        start = max(self.addresses.start, addresses.start)
        stop = max(start, min(self.addresses.stop, addresses.stop))
        offset = None if self.offset is None else self.offset + start - self.addresses.start
        return Stretch(range(start, stop), self.flags, offset)


class Memory(Struct, frozen=True):
    """The *stretches* of memory that a loaded file has, ascending and apart."""

    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, layout: ElfLayout, *, page: int) -> Self:
        """The memory of *layout* on a machine whose pages have so many bytes; `BinaryError` if it cannot be mapped."""
        found: list[Stretch] = []
        for load in layout.loads:
            if (load.p_offset - load.p_vaddr) % page:
                raise BinaryError(
                    f"PT_LOAD of {load.p_vaddr:#x} at {load.p_offset:#x}: expected one place in a page of {page:#x}"
                )
            for new in _mapped(load, layout.size, page):
                found = [*(part for each in found for part in _beside(each, new.addresses)), new]
        return cls(tuple(sorted(found, key=lambda each: each.addresses.start)))

    def within(self, addresses: range) -> Iterator[Stretch]:
        """What of it lies in *addresses*, ascending; what is not mapped is left out."""
        return (part for each in self.stretches if (part := each.within(addresses)).addresses)


def page_sizes(layout: ElfLayout) -> tuple[int, ...]:
    """The bytes that pages may have where *layout* is loaded: no more than its PT_LOADs are aligned to."""
    sizes = _PAGES.get(layout.machine, _ANY_PAGES)
    least = min((load.p_align for load in layout.loads), default=0)
    return tuple(size for size in sizes if size <= least) or sizes[:1]


def without(span: range, taken: Sequence[range]) -> Iterator[range]:
    """What of *span* is in none of *taken*, ascending."""
    start = span.start
    for each in sorted((each for each in taken if each), key=lambda each: each.start):
        if start < min(each.start, span.stop):
            yield range(start, min(each.start, span.stop))
        start = max(start, each.stop)
    if start < span.stop:
        yield range(start, span.stop)


def _mapped(load: ProgramHeader, size: int, page: int) -> Iterator[Stretch]:
    """The pages of *load*, of a file of *size* bytes."""
    start, end = load.p_vaddr // page * page, load.p_vaddr + load.p_filesz
    first = load.p_offset - (load.p_vaddr - start)
    # what lies behind it in its last page of the file is seen, too, unless there have to be zeros
    last = end if load.p_memsz > load.p_filesz else min(up(end, page), start + size - first)
    last = last if load.p_filesz else start
    if start < last:
        yield Stretch(range(start, last), load.p_flags, first)
    if last < (stop := up(load.addresses.stop, page)):
        yield Stretch(range(last, stop), load.p_flags)


def _beside(stretch: Stretch, taken: range) -> Iterator[Stretch]:
    """What of *stretch* is not in the addresses *taken*."""
    for rest in (range(taken.start), range(taken.stop, stretch.addresses.stop)):
        if rest and (part := stretch.within(rest)).addresses:
            yield part
