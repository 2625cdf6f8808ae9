import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.elf import shared_object
from vbuild.elf.image import ElfImage
from vbuild.elf.surgery.holes import Bloom
from vbuild.errors import BinaryError


def gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def filtered(names: list[str], count: int, shift: int) -> tuple[int, ...]:
    """The filter of *count* words for *names*, as a linker makes it."""
    words = [0] * count
    for value in map(gnu_hash, names):
        words[value // 64 % count] |= 1 << value % 64 | 1 << (value >> shift) % 64
    return tuple(words)


def table(names: list[str], count: int, shift: int) -> bytes:
    return struct.pack(f"<4I{count}Q", 1, 1, count, shift, *filtered(names, count, shift)) + bytes(4)


@given(st.lists(st.text(max_size=20)), st.integers(1, 7), st.integers(1, 31))
def test_a_half_is_the_filter_that_a_linker_would_have_made(names: list[str], power: int, shift: int) -> None:
    count = 1 << power
    half = Bloom.parse(table(names, count, shift)).halved()
    assert half.words == filtered(names, count // 2, shift)
    assert Bloom.parse(half.pack() + bytes(4)) == half


def test_a_linkers_own_filter_is_that_of_its_names() -> None:
    names = [f"function_{number}" for number in range(500)]
    image = ElfImage.parse(shared_object("".join(f"void {name}(void) {{}}" for name in names)))
    section = image.section(".gnu.hash")
    assert section is not None
    bloom = Bloom.parse(image.view(section.span))
    assert bloom.words == filtered(names, len(bloom.words), bloom.header.bloom_shift)


def test_it_is_halved_until_there_is_room_and_no_further() -> None:
    bloom = Bloom.parse(table(["a"], 16, 6))
    assert [len(found.words) if (found := bloom.shorter_by(gain)) else None for gain in (0, 1, 64, 65, 120, 121)] == [
        16,
        8,
        8,
        4,
        1,
        None,
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<4I", 1, 1, 0, 6) + bytes(64), ".gnu.hash of 0x50 bytes with a filter of 0x0 words"),
        (struct.pack("<4I", 1, 1, 3, 6) + bytes(64), ".gnu.hash of 0x50 bytes with a filter of 0x3 words"),
        (struct.pack("<4I", 1, 1, 16, 6) + bytes(64), ".gnu.hash of 0x50 bytes with a filter of 0x10 words"),
        (
            struct.pack("<4I", 1 << 31, 1, 1 << 31, 6) + bytes(64),
            ".gnu.hash of 0x50 bytes with a filter of 0x80000000 words",
        ),
    ],
)
def test_a_filter_that_no_loader_takes_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BinaryError) as caught:
        Bloom.parse(data)
    assert str(caught.value) == message
