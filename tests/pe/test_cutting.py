"""A PE file loses GPU code in the file, and loads as before."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pefile
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.factories.fatbins import cubin, entry, fatbin
from tests.factories.pe_files import windows_library
from tests.factories.windows import device_dll, needs_mingw, signed, walked
from vbuild.binary.edits import Replacement, Strip
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.model import Container
from vbuild.gpu_code.survey import device_code
from vbuild.pe.cutting import cut, prove
from vbuild.pe.image import PeImage, is_64_bit

pytestmark = needs_mingw

_BIG = 6000


def two_fatbins(**options: object) -> bytes:
    """A DLL with fatbins for sm_80 and sm_90, each entry larger than a page."""
    each = fatbin(entry(arch=80, code=cubin(80, _BIG)), entry(arch=90, code=cubin(90, _BIG)))
    return device_dll(each, each, **options)  # type: ignore[arg-type]


def kept_for(data: bytes, arch: str = "sm_90") -> list[Replacement]:
    """What keeps only the code for *arch* of each movable container."""
    return [_keeping(container, arch) for container in device_code(PeImage.parse(data)).containers if container.movable]


def _keeping(container: Container, arch: str) -> Replacement:
    kept = frozenset(each for each in container.entries if str(each.arch) == arch)
    return Replacement(container.span, container.keeping(kept), container.wrappers)


def test_survey_finds_the_fatbins_and_the_wrappers_that_base_relocations_fill() -> None:
    image = PeImage.parse(two_fatbins())
    code = device_code(image)
    assert [container.movable for container in code.containers] == [True, True]
    assert [container.section for container in code.containers] == [".nv_fatb"] * 2
    for container in code.containers:
        (wrapper,) = container.wrappers
        assert (wrapper.target, wrapper.row) == (container.address, None)


@pytest.mark.parametrize("gap", [0, 8, 5000])
def test_cut_shrinks_the_section_and_leaves_memory_as_it_was(gap: int) -> None:
    data = two_fatbins(gap=gap)
    cut_down = bytes(cut(PeImage.parse(data), kept_for(data)))
    assert len(data) - len(cut_down) >= 2 * _BIG // 512 * 512
    before, after = pefile.PE(data=data), pefile.PE(data=cut_down)
    assert after.OPTIONAL_HEADER.SizeOfImage == before.OPTIONAL_HEADER.SizeOfImage
    for one, other in zip(before.sections, after.sections, strict=True):
        assert (one.Name, one.VirtualAddress, one.Misc_VirtualSize) == (
            other.Name,
            other.VirtualAddress,
            other.Misc_VirtualSize,
        )
        if not one.Name.startswith((b".nv_fatb", b".nvFatBi")):
            assert one.get_data() == other.get_data()
    _check_table(after, len(cut_down))
    containers = device_code(PeImage.parse(cut_down)).containers
    assert [[str(each.arch) for each in container.entries] for container in containers] == [["sm_90"]] * 2


def _check_table(file: pefile.PE, size: int) -> None:
    """Sections rise, are aligned, and do not overlap, as Windows' loader wants them."""
    end = file.OPTIONAL_HEADER.SizeOfHeaders
    address = 0
    for section in file.sections:
        assert section.VirtualAddress >= address
        assert section.VirtualAddress % file.OPTIONAL_HEADER.SectionAlignment == 0
        address = section.VirtualAddress + section.Misc_VirtualSize
        if section.SizeOfRawData:
            assert section.PointerToRawData >= end
            assert section.PointerToRawData % file.OPTIONAL_HEADER.FileAlignment == 0
            assert section.SizeOfRawData % file.OPTIONAL_HEADER.FileAlignment == 0
            end = section.PointerToRawData + section.SizeOfRawData
    assert end <= size


def test_checksum_is_that_of_the_new_bytes() -> None:
    data = two_fatbins()
    before, after = pefile.PE(data=data), pefile.PE(data=bytes(cut(PeImage.parse(data), kept_for(data))))
    assert before.OPTIONAL_HEADER.CheckSum == before.generate_checksum()  # as mingw writes it
    assert after.OPTIONAL_HEADER.CheckSum == after.generate_checksum()


def test_symbols_of_debuggers_follow() -> None:
    data = two_fatbins(flags=["-g"])
    after = pefile.PE(data=bytes(cut(PeImage.parse(data), kept_for(data))))
    before = pefile.PE(data=data)
    start, new = before.FILE_HEADER.PointerToSymbolTable, after.FILE_HEADER.PointerToSymbolTable
    assert start > new > 0
    assert before.__data__[start:] == after.__data__[new:]


def test_debug_sections_and_symbols_go_and_nothing_else() -> None:
    data = windows_library("__declspec(dllexport) int answer(void) { return 42; }", "-g", "-nostdlib", "-Wl,-e,0")
    stripped = bytes(cut(PeImage.parse(data), [], strip=Strip.DEBUG))
    before, after = pefile.PE(data=data), pefile.PE(data=stripped)
    assert (after.FILE_HEADER.PointerToSymbolTable, after.FILE_HEADER.NumberOfSymbols) == (0, 0)
    assert after.OPTIONAL_HEADER.SizeOfImage == before.OPTIONAL_HEADER.SizeOfImage
    assert after.OPTIONAL_HEADER.CheckSum == after.generate_checksum()
    gone = [section for section in before.sections if section.Name.startswith(b"/")]
    assert len(gone) > 2
    assert len(stripped) <= len(data) - sum(section.SizeOfRawData for section in gone)
    for one, other in zip(before.sections, after.sections, strict=True):
        assert one.VirtualAddress == other.VirtualAddress
        assert other.get_data() == (b"" if one in gone else one.get_data())
    _check_table(after, len(stripped))
    assert cut(PeImage.parse(stripped), [], strip=Strip.DEBUG).is_unchanged
    with pytest.raises(BinaryError, match="is to have no bytes, or is needed"):
        prove(PeImage.parse(data), EditedFile.whole(stripped), [], {0: b".text".ljust(8, b"\0")})


def test_gpu_code_and_debug_sections_go_at_once() -> None:
    data = two_fatbins(flags=["-g"])
    after = bytes(cut(PeImage.parse(data), kept_for(data), strip=Strip.UNNEEDED))
    assert pefile.PE(data=after).FILE_HEADER.NumberOfSymbols == 0
    assert len(after) < len(bytes(cut(PeImage.parse(data), kept_for(data))))
    assert [str(each.arch) for found in device_code(PeImage.parse(after)).containers for each in found.entries] == [
        "sm_90"
    ] * 2


@pytest.mark.nightly
def test_wine_loads_what_was_kept_and_nothing_else(tmp_path: Path) -> None:
    data = two_fatbins(gap=5000)
    fat, slim = walked(data, tmp_path), walked(bytes(cut(PeImage.parse(data), kept_for(data))), tmp_path)
    assert slim == [line for line in fat if " arch 80 " not in line]
    assert len(slim) == 3  # two entries, and the number of wrappers


def test_container_that_something_else_points_into_stays() -> None:
    data = two_fatbins(more=".data\n.quad c0 + 24\n")
    first, second = device_code(PeImage.parse(data)).containers
    assert (first.why_pinned, second.why_pinned) == ("the loader fills 1 more pointers into it", None)
    order = _keeping(replace(first, why_pinned=None), "sm_90")
    with pytest.raises(BinaryError, match=r"^the word at 0x\w+ leads to 0x\w+, which would move away$"):
        cut(PeImage.parse(data), [order])


def test_exported_symbol_stays() -> None:
    data = two_fatbins(more='.globl c0\n.section .drectve\n.ascii " -export:c0,data"\n')
    with pytest.raises(BinaryError, match=r"^exported symbol at 0x\w+, in what would move away$"):
        cut(PeImage.parse(data), kept_for(data))


def test_a_signed_library_is_not_cut() -> None:
    data = signed(two_fatbins())
    with pytest.raises(BinaryError, match=r"^it has an Authenticode signature, which a cut makes void$"):
        cut(PeImage.parse(data), kept_for(data))


def test_other_bytes_behind_the_last_section_refuse_the_cut() -> None:
    data = two_fatbins() + b"an archive that the program looks for"
    with pytest.raises(BinaryError, match=r"^37 bytes behind the last section, which the code may look for"):
        cut(PeImage.parse(data), kept_for(data))


def test_proof_sees_a_byte_that_is_another_and_a_pointer_that_did_not_follow() -> None:
    data = two_fatbins()
    image, orders = PeImage.parse(data), kept_for(data)
    good = bytearray(bytes(cut(image, orders)))
    after = PeImage.parse(bytes(good))
    (text,) = after.named(".text")
    wrong = bytearray(good)
    wrong[text.span.start] ^= 1
    with pytest.raises(BinaryError, match=r"^all other bytes are loaded as before: "):
        prove(image, EditedFile.whole(bytes(wrong)), orders)
    (wrappers,) = after.named(".nvFatBi")
    wrong = bytearray(good)
    wrong[wrappers.span.start + 8] ^= 8
    with pytest.raises(BinaryError, match=r"^every pointer leads to the bytes ordered: "):
        prove(image, EditedFile.whole(bytes(wrong)), orders)


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[:1024], "runs to"),
    "empty": (lambda data: data[:100], "no PE"),
    "32 bits": (lambda data: data.replace(b"\x0b\x02", b"\x0b\x01", 1), "optional header of magic 0x10b"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_headers_are_refused(case: str) -> None:
    damage, why = DAMAGED[case]
    with pytest.raises(BinaryError, match=why):
        PeImage.parse(damage(two_fatbins()))


def test_only_64_bit_files_are_taken() -> None:
    data = two_fatbins()
    assert is_64_bit(lambda size: data[:size])
    assert not is_64_bit(lambda size: data.replace(b"\x0b\x02", b"\x0b\x01", 1)[:size])
    assert not is_64_bit(lambda size: b"MZ, as any text may begin"[:size])


sample = cache(two_fatbins)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_copies_are_refused_or_load_as_they_did(changes: list[tuple[int, int]]) -> None:
    data = bytearray(sample())
    for place, value in changes:
        data[place % len(data)] = value
    try:
        image = PeImage.parse(bytes(data))
        orders = kept_for(bytes(data))
        edited = cut(image, orders)
    except BinaryError:
        return
    if edited.is_unchanged:
        return
    before, after = pefile.PE(data=bytes(data)), pefile.PE(data=bytes(edited))
    for one, other in zip(before.sections, after.sections, strict=True):
        if not one.Name.startswith((b".nv_fatb", b".nvFatBi")):
            assert (one.VirtualAddress, one.get_data()) == (other.VirtualAddress, other.get_data())
