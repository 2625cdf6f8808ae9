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
from vbuild.elf.records import SegmentFlag
from vbuild.elf.surgery.cut_check import Memory
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


def test_a_segment_that_no_page_can_hold_is_refused() -> None:
    image = ElfImage.parse(library())
    first = structs.replace(image.loads[0], p_vaddr=8)
    with pytest.raises(BinaryError, match=r"^PT_LOAD of 0x8 at 0x0: expected one place in a page of 0x1000$"):
        Memory.of(structs.replace(image, segments=(first,)), page=PAGE)
