"""Libraries that pretend to be official, damaged official wheels, and servers that mean ill.

Each case is one seed, so that it can be run again.
"""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct

import pytest

from tests.factories.damage import NEW_BYTES, in_time
from tests.factories.official_wheels import PATH, cufft, digest, name_of, official_wheel, officials_of, origin_of
from tests.factories.official_wheels import bundled_copy as bundled
from tests.factories.tools import needs
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Dynamic, Loading
from vbuild.errors import BinaryError, VbuildError
from vbuild.splitting.official import OfficialEvidence, Provenance, Unproved

pytestmark = needs("gcc")

ROW = Struct("<QQ")
OFFICIAL = cufft(1)
BUNDLED = bundled(OFFICIAL)


def with_row(tag: int, value: int, *, over: int | None = None) -> bytes:
    """The bundled library with a row more in .dynamic, or another in place of that with the tag *over*."""
    rows = Dynamic.of(ElfImage.parse(BUNDLED)).rows
    place = next((row.offset for row in rows if row.tag == over), rows[-1].offset + ROW.size)
    return BUNDLED[:place] + ROW.pack(tag, value) + BUNDLED[place + ROW.size :]


def with_byte(section_name: str) -> bytes:
    """The bundled library with another byte in the middle of a section."""
    section = ElfImage.parse(BUNDLED).section(section_name)
    assert section
    place = section.span[len(section.span) // 2]
    return BUNDLED[:place] + bytes([BUNDLED[place] ^ 1]) + BUNDLED[place + 1 :]


def with_load(number: int) -> bytes:
    """The bundled library with the bytes behind its PT_LOAD of that number taken from elsewhere in the file."""
    image = ElfImage.parse(BUNDLED)
    loads = [place for place, one in enumerate(image.segments) if one.p_type == 1]
    place = image.header.e_phoff + 56 * loads[number] + 8
    start = int.from_bytes(BUNDLED[place : place + 8], "little") - 0x1000
    return BUNDLED[:place] + start.to_bytes(8, "little") + BUNDLED[place + 8 :]


PRETENDERS: Mapping[str, Callable[[], bytes]] = {
    "DT_AUDIT": lambda: with_row(0x6FFFFEFC, 1),
    "DT_DEPAUDIT": lambda: with_row(0x6FFFFEFB, 1),
    "DT_FILTER": lambda: with_row(0x7FFFFFFF, 1),
    "DT_NEEDED": lambda: with_row(1, 1),
    "DT_INIT elsewhere": lambda: with_row(12, 0x1234, over=12),
    "DT_INIT_ARRAY elsewhere": lambda: with_row(25, 0x3000, over=25),
    "DT_SYMTAB elsewhere": lambda: with_row(6, 0x200, over=6),
    "DT_GNU_HASH elsewhere": lambda: with_row(0x6FFFFEF5, 0x200, over=0x6FFFFEF5),
    "symbols": lambda: with_byte(".dynsym"),
    "names": lambda: with_byte(".dynstr"),
    "build-id": lambda: with_byte(".note.gnu.build-id"),
    "code": lambda: with_byte(".text"),
    "relocations": lambda: with_byte(".rela.dyn"),
    "the last byte of its data": lambda: with_byte(".data"),
    "code mapped from elsewhere": lambda: with_load(1),
    "data mapped from elsewhere": lambda: with_load(2),
}


def test_a_library_whose_names_are_elsewhere_is_not_read() -> None:
    with pytest.raises(BinaryError, match=r"string at 0x\w+ has no end in 0x\w+ bytes"):
        Loading.parse(with_row(5, 0x200, over=5))


@pytest.mark.nightly
def test_whatever_pretends_to_be_official_is_not_believed(tmp_path: Path) -> None:
    """The right name, with the first digits of the right hash; one thing is other than it was, also to the loader."""
    with officials_of(tmp_path, official_wheel(tmp_path)) as (officials, _):
        for what, make in PRETENDERS.items():
            found = origin_of(officials, name_of(OFFICIAL), make())
            assert isinstance(found, Unproved), what
        proved = origin_of(officials, name_of(OFFICIAL), BUNDLED)
        assert isinstance(proved, Provenance)
        assert proved.evidence is OfficialEvidence.SECTIONS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("marker", ['os_name ~= "posix"', 'python_version > "zz"', 'platform_release >= "$"'])
def test_a_marker_that_cannot_be_evaluated_holds_nowhere(tmp_path: Path, marker: str) -> None:
    with officials_of(tmp_path, official_wheel(tmp_path, requires=[f"nvidia-x; {marker}"])) as (officials, _):
        found = origin_of(officials, name_of(OFFICIAL), BUNDLED)
        assert isinstance(found, Provenance)
        assert [one.project for one in officials.closure(found.wheel)] == [found.wheel.project]


@pytest.mark.nightly
def test_damaged_official_wheels_prove_what_is_true_or_nothing(tmp_path: Path) -> None:
    data = official_wheel(tmp_path).read_bytes()
    for seed in range(25):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        copy = official_wheel(folder)
        whole = bytearray(data)
        for _ in range(dice.choice((1, 3))):
            at = dice.randrange(dice.choice((0, len(whole) - 900)), len(whole))
            whole[at : at + 1] = dice.choice(NEW_BYTES)
        copy.write_bytes(whole)
        with officials_of(folder, copy) as (officials, _), suppress(VbuildError), in_time():
            found = origin_of(officials, name_of(OFFICIAL), BUNDLED)
            if isinstance(found, Provenance):
                assert (found.library.path, found.library.sha256) == (PATH, digest(OFFICIAL))
