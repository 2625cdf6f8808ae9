import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.factories.texts import CHARACTERS
from vbuild.elf.surgery.holes import Bloom


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


@given(st.lists(st.text(CHARACTERS, max_size=20)), st.integers(1, 7), st.integers(1, 31))
def test_a_half_is_the_filter_that_a_linker_would_have_made(names: list[str], power: int, shift: int) -> None:
    count = 1 << power
    half = Bloom.parse(table(names, count, shift)).halved()
    assert half.words == filtered(names, count // 2, shift)
    assert Bloom.parse(half.pack() + bytes(4)) == half
