"""What headers alone say: the same as the whole file, from a map of it, and as readelf has it."""

import re

from tests.factories.elf import SUM, judged_by, rpath, shared_object, stripped
from vbuild.elf.read import Outline

DATA = shared_object(SUM, "-g", "-Wl,-soname,libsum.so.1", *rpath("$ORIGIN/lib"))


def test_sections_have_the_sizes_that_readelf_shows() -> None:
    shown = re.findall(r"\] (\S+)\s+(?!NULL|NOBITS)\S+\s+\w{16} \w+ (\w+)", judged_by("readelf", DATA, "-SW"))
    found = {section.name: section.size for section in Outline.parse(DATA).sections if section.size}
    assert found == {name: int(size, 16) for name, size in shown if int(size, 16)}


def test_symbols_and_debug_information_are_what_strip_takes_away() -> None:
    outline, bare = Outline.parse(DATA), Outline.parse(stripped(DATA))
    assert outline.symbol_size > 0
    assert outline.debug_size > 0
    assert (bare.symbol_size, bare.debug_size) == (0, 0)
