"""What a library gives and takes, compared with nm; and which libraries are the same code under other names."""

from contextlib import suppress

import pytest

from tests.factories import elf
from tests.factories.hwcaps_wheels import shared
from vbuild.elf.image import ElfImage
from vbuild.elf.interface import Interface, Versioned, digest
from vbuild.errors import BinaryError

SCRIPT = "ONE { global: old; local: *; }; TWO { global: new; } ONE;"
SOURCE = "int old(void) { return 1; } int new(void) { return 2; } int kept(void) { return 3; }"
TEMPLATES = """
#include <vector>
int sum(int n) { std::vector<int> all; for (int i = 0; i < n; i++) all.push_back(i); return all.back(); }
__attribute__((weak)) int replaced() { return 1; }
extern "C" __attribute__((weak)) int promised() { return 1; }
"""


def said(found: frozenset[Versioned]) -> set[str]:
    return {str(symbol) for symbol in found}


def test_what_every_user_of_a_template_has_is_kept_apart() -> None:
    interface = Interface.parse(elf.shared_object(TEMPLATES, language="c++"))
    assert said(interface.exported) == {"_Z3sumi", "promised"}
    assert "_Z8replacedv" in said(interface.vague)


def test_a_version_that_is_asked_for_is_found_and_no_other() -> None:
    interface = Interface.parse(elf.linked(SOURCE, script=SCRIPT))
    asked = (Versioned("old", "ONE"), Versioned("old", "TWO"), Versioned("old"), Versioned("kept"))
    assert [interface.answers(one) for one in asked] == [True, False, True, False]


def test_what_one_lacks_of_another_is_listed() -> None:
    one = Interface.parse(elf.linked(SOURCE, script=SCRIPT))
    other = Interface.parse(elf.linked(SOURCE))
    # what was linked without a version takes the default one
    assert said(frozenset(one.lacking(other))) == {"kept"}
    assert said(frozenset(other.lacking(one))) == {"new@TWO", "old@ONE"}
    assert one.lacking(one) == ()


def test_other_names_of_libraries_are_no_other_code() -> None:
    one = elf.linked(
        "int x(void); int y(void) { return x(); }", libraries=(("libx-1a2b3c4d.so", shared("v1", "libx-1a2b3c4d.so")),)
    )
    for data in (
        elf.patchelfed(one, "--replace-needed", "libx-1a2b3c4d.so", "libx-5e6f7a8b.so"),
        elf.patchelfed(one, "--set-rpath", "$ORIGIN/../a/long/way/to/go"),
        elf.patchelfed(one, "--set-soname", "libother.so"),
        elf.objcopied(one, "--remove-section", ".note.gnu.build-id"),
        elf.stripped(one),
    ):
        assert digest(data) == digest(one)
        assert Interface.parse(data).checksum == Interface.parse(one).checksum


def test_other_code_and_other_data_are_another_digest() -> None:
    sources = ["int x = 1;", "int x = 2;", "int y = 1;", "int x = 1; int y;", "int x(void) { return 1; }"]
    libraries = [elf.linked(source) for source in sources]
    assert len({digest(data) for data in libraries}) == len(sources)
    assert len({Interface.parse(data).checksum for data in libraries}) == len(sources)


def test_a_damaged_library_is_refused_or_read() -> None:
    whole = elf.linked(SOURCE, script=SCRIPT)
    image = ElfImage.parse(whole)
    spans = [section.span for section in image.sections if section.name.startswith((".dynsym", ".gnu.version"))]
    for span in spans:
        for place in range(span.start, span.stop, 2):
            for word in (b"\xff\xff", b"\0\x80"):
                with suppress(BinaryError):
                    Interface.parse(whole[:place] + word + whole[place + 2 :])
    with pytest.raises(BinaryError):
        Interface.parse(whole[:100])
