"""Inflating beside other threads: the same bytes, and the same word for what is damaged, as without them."""

import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wheel.test_blocks import PLAIN, chunks, stream, zlibs
from vbuild.errors import WheelError
from vbuild.wheel.inflating import inflated_stream, unlocked_stream

SHORT = PLAIN[:200_000]
WHOLE = zlibs(6)(SHORT)


def unlocked(data: bytes, plain: bytes, *, size: int = 1 << 17) -> bytes:
    return b"".join(unlocked_stream(lambda: chunks(data, size), size=len(plain), crc=zlib.crc32(plain)))


@pytest.mark.parametrize("name", ["zlib 6", "zlib stored", "zlib with flushes", "isal 0"])
def test_it_inflates_what_any_compressor_made(name: str) -> None:
    assert unlocked(stream(name), PLAIN) == PLAIN


@settings(max_examples=60)
@given(
    at=st.integers(0, len(WHOLE) - 1),
    change=st.sampled_from(
        [
            lambda data, at: data[:at],
            lambda data, at: data + data[: at % 50 + 1],
            lambda data, at: data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :],
            lambda data, at: data + bytes(at % 70 + 1),
            lambda data, _: data + zlib.crc32(SHORT).to_bytes(4, "little") + len(SHORT).to_bytes(4, "little"),
        ]
    ),
    size=st.sampled_from([1, 1000, 1 << 20]),
)
def test_what_is_damaged_is_called_what_it_is_called_elsewhere(
    at: int, change: Callable[[bytes, int], bytes], size: int
) -> None:
    damaged = change(WHOLE, at)
    size = max(size, len(damaged) // 500)
    try:
        expected: bytes | str = b"".join(inflated_stream(chunks(damaged, size)))
    except WheelError as error:
        expected = str(error)
    try:
        found: bytes | str = unlocked(damaged, SHORT, size=size)
    except WheelError as error:
        found = str(error)
    assert found == expected


def test_zeros_behind_a_stream_are_no_padding() -> None:
    # four bytes whose CRC-32 is zero, as is the size of 4 GiB in the end of a gzip file
    plain = bytes.fromhex("9d0ad96d")
    assert not zlib.crc32(plain)
    data = zlibs(6)(plain)
    assert b"".join(unlocked_stream(lambda: iter([data]), size=1 << 32, crc=0)) == plain
    with pytest.raises(WheelError, match="bytes after the end of its deflate stream"):
        list(unlocked_stream(lambda: iter([data + bytes(8)]), size=1 << 32, crc=0))


def test_an_error_of_the_file_is_not_taken_for_damage() -> None:
    def broken() -> Iterator[bytes]:
        yield WHOLE[:1000]
        raise WheelError("truncated while it was read")

    with pytest.raises(WheelError, match="truncated while it was read"):
        list(unlocked_stream(broken, size=len(SHORT), crc=zlib.crc32(SHORT)))
