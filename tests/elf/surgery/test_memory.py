"""What is where in memory, as the real loader has it there."""

import itertools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from msgspec import structs

from tests.factories import elf
from tests.factories.devices import library, shortened
from tests.factories.once import once
from vbuild.binary.code import outside
from vbuild.elf.image import ElfImage
from vbuild.elf.records import ElfMachine, ProgramHeader, SegmentFlag
from vbuild.elf.surgery.cut_check import Memory, Stretch, page_sizes
from vbuild.elf.surgery.cutting import cut
from vbuild.errors import BinaryError

PAGE = 0x1000
# prints the base, and the bytes from argv[2] on, argv[3] many, of the library argv[1], as it is loaded
_READER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
  struct link_map *map = dlopen(words[1], RTLD_LAZY);
  if (!map) return 1;
  for (int at = 2; at < count; at += 2)
    fwrite((char *)map->l_addr + strtoul(words[at], 0, 0), 1, strtoul(words[at + 1], 0, 0), stdout);
}
"""
SHAPES = {
    "bfd": library(),
    "one segment": library("-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=2097152"),
    "patchelf": elf.patchelfed(library()),
    "writable": library(writable=True),
}
if shutil.which("ld.lld"):
    SHAPES["lld"] = library("-fuse-ld=lld")


@once
def reader() -> bytes:
    return elf.program(_READER, "-ldl")


def in_memory(data: bytes, spans: list[range]) -> bytes:
    """What is at the addresses *spans* of the library *data* when it is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder) / "reader", Path(folder) / "lib.so"
        program.write_bytes(reader())
        program.chmod(0o755)
        path.write_bytes(data)
        words = [str(number) for span in spans for number in (span.start, len(span))]
        return subprocess.run([program, path, *words], check=True, capture_output=True).stdout.partition(b"end\n")[0]


def bytes_of(image: ElfImage, memory: Memory, spans: list[range]) -> bytes:
    found = []
    for span in spans:
        for stretch in memory.within(span):
            size = len(stretch.addresses)
            found.append(bytes(size) if stretch.offset is None else bytes(image.data[stretch.offset :][:size]))
    return b"".join(found)


def still(image: ElfImage) -> list[range]:
    """The addresses that nothing writes to: what is not writable, and the zeros, but for those of counters."""
    zeros = image.section(".bss")
    assert zeros
    middle = range(zeros.addresses.start + 4096, zeros.addresses.stop - 4096)
    return [*(load.addresses for load in image.loads if not load.p_flags & SegmentFlag.W), middle]


@pytest.mark.parametrize("shape", SHAPES)
def test_memory_has_the_bytes_that_the_loader_puts_there(shape: str) -> None:
    for data in (SHAPES[shape], bytes(cut(image := ElfImage.parse(SHAPES[shape]), shortened(image)).edited)):
        image = ElfImage.parse(data)
        spans = still(image)
        assert in_memory(data, spans) == bytes_of(image, Memory.of(image, page=PAGE), spans)


@pytest.mark.parametrize("shape", SHAPES)
def test_stretches_ascend_and_cover_all_that_is_loaded(shape: str) -> None:
    image = ElfImage.parse(SHAPES[shape])
    memory = Memory.of(image, page=PAGE)
    found = [each.addresses for each in memory.stretches]
    assert all(one.stop <= other.start for one, other in itertools.pairwise(found))
    for load in image.loads:
        assert not list(outside(load.addresses, [each.addresses for each in memory.within(load.addresses)]))


def test_a_later_segment_covers_the_last_page_of_an_earlier_one() -> None:
    image = ElfImage.parse(library())
    first = structs.replace(image.loads[0], p_filesz=0x1100, p_memsz=0x1100, p_flags=4)
    second = structs.replace(first, p_offset=0x5200, p_vaddr=0x1200, p_filesz=0x100, p_memsz=0x300, p_flags=6)
    memory = Memory.of(structs.replace(image, segments=(first, second)), page=PAGE)
    assert memory.stretches == (
        Stretch(range(0x1000), 4, 0),
        Stretch(range(0x1000, 0x1300), 6, 0x5000),
        Stretch(range(0x1300, 0x2000), 6, None),
    )


def test_of_the_last_page_the_file_is_seen_unless_there_have_to_be_zeros() -> None:
    image = ElfImage.parse(library())
    load = structs.replace(image.loads[0], p_filesz=0x1100, p_memsz=0x1100, p_flags=4)

    def stretches(load: ProgramHeader, size: int = 0x9000) -> tuple[Stretch, ...]:
        return Memory.of(structs.replace(image, segments=(load,), size=size), page=PAGE).stretches

    assert stretches(load) == (Stretch(range(0x2000), 4, 0),)
    assert stretches(load, 0x1200) == (Stretch(range(0x1200), 4, 0), Stretch(range(0x1200, 0x2000), 4))
    behind = structs.replace(load, p_offset=0x3200, p_vaddr=0x7200, p_filesz=0x100, p_memsz=0x100)
    assert stretches(behind) == (Stretch(range(0x7000, 0x8000), 4, 0x3000),)
    assert stretches(behind, 0x3400) == (Stretch(range(0x7000, 0x7400), 4, 0x3000), Stretch(range(0x7400, 0x8000), 4))
    more = structs.replace(load, p_memsz=0x1101)
    assert stretches(more) == (Stretch(range(0x1100), 4, 0), Stretch(range(0x1100, 0x2000), 4))
    zeros = structs.replace(load, p_offset=0x200, p_vaddr=0x5200, p_filesz=0, p_memsz=0x1000)
    assert stretches(zeros) == (Stretch(range(0x5000, 0x7000), 4),)
    assert stretches(structs.replace(zeros, p_offset=0, p_vaddr=0x5000, p_memsz=0)) == ()
    assert stretches(structs.replace(load, p_filesz=0x2000, p_memsz=0x2000)) == (Stretch(range(0x2000), 4, 0),)


def test_pages_of_a_file_that_loads_nothing_are_the_smallest() -> None:
    image = ElfImage.parse(library())
    header = structs.replace(image.header, e_machine=ElfMachine.AARCH64)
    load = structs.replace(image.loads[0], p_align=8)
    for segments in ((), (load,)):
        assert page_sizes(structs.replace(image, header=header, segments=segments)) == (0x1000,)


def test_a_segment_that_no_page_can_hold_is_refused() -> None:
    image = ElfImage.parse(library())
    first = structs.replace(image.loads[0], p_vaddr=8)
    with pytest.raises(BinaryError, match=r"^PT_LOAD of 0x8 at 0x0: expected one place in a page of 0x1000$"):
        Memory.of(structs.replace(image, segments=(first,)), page=PAGE)


@pytest.mark.parametrize(
    ("machine", "align", "sizes"),
    [
        (ElfMachine.X86_64, 0x200000, (0x1000,)),
        (ElfMachine.X86_64, 8, (0x1000,)),
        (ElfMachine.AARCH64, 0x1000, (0x1000,)),
        (ElfMachine.AARCH64, 0x10000, (0x1000, 0x4000, 0x10000)),
        (0x1234, 0x4000, (0x1000, 0x4000)),
    ],
)
def test_pages_are_those_of_the_machine_up_to_the_alignment(machine: int, align: int, sizes: tuple[int, ...]) -> None:
    image = ElfImage.parse(library())
    load = structs.replace(image.loads[0], p_align=align)
    header = structs.replace(image.header, e_machine=machine)
    assert page_sizes(structs.replace(image, header=header, segments=(load,))) == sizes
