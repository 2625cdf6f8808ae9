"""What holds for every fatbin and every bundle, and for every damage done to a library with GPU code."""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.factories.bundles import GFX90A, GFX942, HOST, bundle, compressed
from tests.factories.fatbins import device_library, entry, fatbin
from vbuild.elf.image import ElfImage
from vbuild.errors import VbuildError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code import bundle as bundles
from vbuild.gpu_code import fatbin as fatbins
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind, decompressed, recompressed
from vbuild.gpu_code.model import ContainerForm, verbatim
from vbuild.gpu_code.survey import device_code

SAMPLES = sorted((Path(__file__).parents[1] / "samples" / "fatbins").glob("*.so"))
_PLAIN = bundle({HOST: b"", GFX90A: bytes(99), GFX942: b"x" * 5000})
LIBRARIES = [
    *(path.read_bytes() for path in SAMPLES),
    device_library(
        _PLAIN, compressed(_PLAIN), section=".hip_fatbin", wrapper=(".hipFatBinSegment", 0x48495046, 1), align=4096
    ),
]
INTERESTING = ("fatbin", "FatBin", ".rela.dyn", ".relr.dyn")

entries = st.builds(
    entry,
    st.sampled_from([FatbinKind.CUBIN, FatbinKind.PTX, FatbinKind.LTO_IR, 3]),
    st.sampled_from([50, 80, 90, 120]),
    code=st.binary(min_size=1, max_size=300),
    flags=st.sampled_from(
        [0, FatbinFlag.LZ4, FatbinFlag.ZSTD, FatbinFlag.ARCH_SPECIFIC, FatbinFlag.ARCH_FAMILY | FatbinFlag.ZSTD]
    ),
)
codes = st.dictionaries(
    st.text("abcxyz-0123456789:+", min_size=1, max_size=60), st.binary(max_size=5000), min_size=1, max_size=8
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A library with bytes of its GPU code, its wrappers or its relocations changed, or with its end cut off."""
    library = bytearray(draw(st.sampled_from(LIBRARIES)))
    sections = ElfImage.parse(bytes(library)).sections
    spans = [each.span for each in sections if any(word in each.name for word in INTERESTING) and len(each.span)]
    for _ in range(draw(st.integers(1, 4))):
        span = draw(st.sampled_from(spans))
        # headers are at the start, and most of what follows is code that nobody reads
        place = draw(st.integers(0, min(len(span) - 1, 400)) | st.integers(0, len(span) - 1))
        library[span.start + place] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        del library[draw(st.integers(0, len(library))) :]
    return bytes(library)


@given(damaged())
def test_a_damaged_library_gives_a_result_or_a_refusal(data: bytes) -> None:
    try:
        image = ElfImage.parse(data)
        code = device_code(image)
    except VbuildError:
        return
    spans = [*(container.span for container in code.containers), *(blob.span for blob in code.blobs)]
    spans.sort(key=lambda span: span.start)
    assert all(one.stop <= after.start for one, after in pairwise(spans))
    for container in code.containers:
        for one in container.entries:
            assert container.span.start <= one.span.start <= one.span.stop <= container.span.stop
            with suppress(VbuildError):
                assert len(decompressed(data, one)) == one.uncompressed_size
                recompressed(data, one)
        if container.movable:
            assert len(container.wrappers) == 1
            assert bytes(EditedFile.of(data, container.keeping(container.entries[:1])))


@given(st.lists(entries, max_size=6), st.data())
def test_a_fatbin_that_was_parsed_is_packed_into_the_same_bytes(packed: list[bytes], data: st.DataObject) -> None:
    whole = fatbin(*packed)
    found = fatbins.read(memoryview(whole), range(len(whole))).entries
    assert bytes(EditedFile.of(whole, fatbins.packed(found, verbatim))) == whole
    kept = data.draw(st.sets(st.integers(0, len(packed) - 1)) if packed else st.just(set[int]()))
    chosen = [found[index] for index in sorted(kept)]
    assert bytes(EditedFile.of(whole, fatbins.packed(chosen, verbatim))) == fatbin(
        *(packed[index] for index in sorted(kept))
    )


@given(st.lists(entries.filter(lambda one: one[:2] != b"\x03\0"), min_size=1, max_size=4))
def test_code_is_the_same_in_zstd(packed: list[bytes]) -> None:
    whole = fatbin(*packed)
    found = fatbins.read(memoryview(whole), range(len(whole))).entries
    smaller = bytes(EditedFile.of(whole, fatbins.packed(found, lambda one: recompressed(whole, one))))
    assert len(smaller) <= len(whole)
    after = fatbins.read(memoryview(smaller), range(len(smaller))).entries
    assert [decompressed(smaller, one).rstrip(b"\0") for one in after] == [
        decompressed(whole, one).rstrip(b"\0") for one in found
    ]


@given(codes)
def test_a_bundle_that_was_parsed_is_packed_into_the_same_bytes(code: dict[str, bytes]) -> None:
    whole = bundle(code)
    view = memoryview(whole)
    span = bundles.extent(view, range(len(whole)))
    found = bundles.read(view, span).entries
    assert bytes(EditedFile.of(whole, bundles.packed(found, verbatim))) == whole
    assert {one.ident: whole[one.span.start : one.span.stop] for one in found if one.size} == {
        ident: data for ident, data in code.items() if data
    }


@pytest.mark.parametrize(
    ("form", "whole"),
    [
        (fatbins.FATBINS, fatbin(entry(FatbinKind.PTX, 80, flags=FatbinFlag.LZ4), entry(arch=90))),
        (bundles.BUNDLES, _PLAIN),
        *(
            (bundles.BUNDLES, compressed(_PLAIN, version=version, method=method))
            for version in (2, 3)
            for method in bundles.BundleMethod
        ),
    ],
)
@settings(max_examples=10)
@given(before=st.integers(0, 600).map(lambda words: 8 * words), behind=st.binary(max_size=5000))
def test_a_container_is_the_same_wherever_it_lies(
    form: ContainerForm, whole: bytes, before: int, behind: bytes
) -> None:
    file = b"\xff" * before + whole + behind
    view = memoryview(file)
    span = form.extent(view, range(before, len(file)))
    assert span == range(before, before + len(whole))
    alone, found = form.read(memoryview(whole), range(len(whole))), form.read(view, span)
    assert found.entries == tuple(
        replace(one, span=_moved(one.span, before), payload=_moved(one.payload, before)) for one in alone.entries
    )
    for kept in range(len(found.entries) + 1):
        parts = (found.packing or form.packing)(found.entries[:kept], verbatim)
        assert bytes(EditedFile.of(file, parts)) == bytes(
            EditedFile.of(whole, (alone.packing or form.packing)(alone.entries[:kept], verbatim))
        )


def _moved(span: range, by: int) -> range:
    return range(span.start + by, span.stop + by)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: bundles.MAGIC + b"\x02" + bytes(7) + tail))
def test_any_bytes_are_a_bundle_or_refused(data: bytes) -> None:
    with suppress(VbuildError):
        bundles.read(memoryview(data), bundles.extent(memoryview(data), range(len(data))))
