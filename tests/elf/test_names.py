"""File names of bundled libraries are taken apart as the tools that bundle put them together."""

import pytest

from vbuild.elf.catalogue import Hashed, hashed, plain


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libcufft-f3921c41.so.11.2.1.3", Hashed("libcufft.so.11.2.1.3", "f3921c41")),
        ("demo.libs/libwebp-71252730.so.7.2.0", Hashed("libwebp.so.7.2.0", "71252730")),
        ("libfaiss-6b43fd57.so", Hashed("libfaiss.so", "6b43fd57")),
        ("libnvjpeg.4a0b5c81.so.13", Hashed("libnvjpeg.so.13", "4a0b5c81")),
        # auditwheel puts the hash in front of the first dot
        ("libopenblas-r0-f650aae0.3.3.so", Hashed("libopenblas-r0.3.3.so", "f650aae0")),
        ("libpng16-37856f38.so.16.58.0", Hashed("libpng16.so.16.58.0", "37856f38")),
    ],
)
def test_a_hash_is_taken_out(name: str, expected: Hashed) -> None:
    assert hashed(name) == expected
    assert plain(name) == expected.name


@pytest.mark.parametrize(
    "name",
    [
        "libcufft.so.11",
        "libnvrtc-builtins.so.12.9",
        "libx-1a2b3c4.so",
        "libx-1a2b3c4d5.so",
        "libx-1A2B3C4D.so",
        "libx-1a2b3c4d",
        "libx-1a2b3c4d.dylib",
        "libx.so.1a2b3c4d",
        "libabsl-20240722.so",
        "_C.cpython-311-x86_64-linux-gnu.so",
        "",
    ],
)
def test_other_names_have_none(name: str) -> None:
    assert hashed(name) is None
    assert plain(f"demo/{name}") == name
