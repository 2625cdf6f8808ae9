"""Inputs that are far smaller than what they claim: the laws hold for what was found to break them, and its like."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial

import pytest
import zstandard
from msgspec import structs

from tests.factories.wheels import everything, record_of
from tests.fuzz.archives import CONDA, INFO, NAME, zipped
from tests.fuzz.bounds import measured
from tests.fuzz.targets import TARGETS
from vbuild.elf.image import ElfImage
from vbuild.elf.records import FileHeader, SectionHeader, SectionType, SymbolEntry
from vbuild.sbom.model import Bill, Gone, Treatment, packed

CASES: dict[str, tuple[str, Callable[[], bytes]]] = {}
HEADERS = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
LONG_NAME = b"\0" + b"a" * 300_000 + b"\0"
BIG = 80_000_000


def reads(target: str) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    """Make the function an input of *target*."""

    def kept(make: Callable[[], bytes]) -> Callable[[], bytes]:
        CASES[make.__name__] = (target, make)
        return make

    return kept


def wheel_with(file: str, data: bytes) -> bytes:
    """A wheel, deflated, that has *data* as *file* of its ``.dist-info``."""
    whole = everything(NAME) | {f"{INFO}/{file}": data}
    whole.setdefault(f"{INFO}/RECORD", record_of(whole, INFO).encode())
    return zipped(whole, zipfile.ZIP_DEFLATED)


@reads("wheel")
def record_of_a_million_rows() -> bytes:
    return wheel_with("RECORD", b"".join(b"a%d,,\n" % number for number in range(1_000_000)))


@reads("wheel")
def record_of_blank_lines() -> bytes:
    return wheel_with("RECORD", b"\n" * 20_000_000)


@reads("wheel")
def record_of_one_field() -> bytes:
    return wheel_with("RECORD", b'"' + b"a" * 20_000_000)


@reads("wheel")
def metadata_of_a_million_fields() -> bytes:
    return wheel_with("METADATA", HEADERS + b"a:\n" * 1_000_000)


@reads("wheel")
def metadata_with_a_body_of_zeros() -> bytes:
    return wheel_with("METADATA", HEADERS + b"\n" + bytes(BIG))


@reads("metadata")
def metadata_with_a_field_of_a_million_lines() -> bytes:
    return HEADERS + b"Summary: x\n" + b" a\n" * 1_000_000


@reads("metadata")
def metadata_that_requires_thousands() -> bytes:
    return HEADERS + b"".join(b"Requires-Dist: a%d>=1\n" % number for number in range(16_000))


@reads("variant")
def variants_of_empty_lists() -> bytes:
    return b'{"a":[' + b"[]," * 690_000 + b"[]]}"


@reads("variant")
def variants_of_keys_of_which_the_last_stands_twice() -> bytes:
    return b"{" + b",".join(b'"k%d":1' % number for number in (*range(100_000), 99_999)) + b"}"


@reads("variant")
def variants_of_four_thousand_labels() -> bytes:
    values = json.loads(next(iter(TARGETS["variant"].seeds())))
    values["variants"] = {f"l{number}": {"x86_64": {"level": [f"v{number}"]}} for number in range(4_000)}
    return json.dumps(values).encode()


@reads("recipe")
def recipe_with_a_key_of_many_dots() -> bytes:
    return b"a" + b".a" * 20_000 + b" = 1"


@reads("recipe")
def recipe_of_tables() -> bytes:
    return b"".join(b"[t%d]\n" % number for number in range(57_000))


@reads("recipe")
def recipe_of_a_million_combinations() -> bytes:
    axes = b"".join(b"[matrix.axes.x%d.a]\n[matrix.axes.x%d.b]\n" % (number, number) for number in range(20))
    return next(iter(TARGETS["recipe"].seeds())).partition(b"[matrix]")[0] + b'[matrix]\ncpu = ["x86-64"]\n' + axes


@reads("index")
def page_of_thousands_of_links() -> bytes:
    return b"<html>" + b"".join(b'<a href="demo-1.%d-py3-none-any.whl">x</a>' % number for number in range(10_000))


@reads("sdist")
def sdist_with_a_pax_header_of_zeros() -> bytes:
    return _header(tarfile.XHDTYPE)


@reads("sdist")
def sdist_with_a_name_of_zeros() -> bytes:
    return _header(tarfile.GNUTYPE_LONGNAME)


@reads("conda")
def package_described_by_zeros() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        info = tarfile.TarInfo("info/index.json")
        info.size = BIG
        archive.addfile(info, io.BytesIO(bytes(BIG)))
    described = zstandard.compress(target.getvalue())
    empty = zstandard.compress(bytes(1024))
    return zipped({"metadata.json": b"{}", f"pkg-{CONDA}.tar.zst": empty, f"info-{CONDA}.tar.zst": described})


@reads("conda")
def package_described_by_a_million_lists() -> bytes:
    data = b'{"a": [' + b"[]," * 1_000_000 + b"[]]}"
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        info = tarfile.TarInfo("info/index.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    described, empty = zstandard.compress(target.getvalue()), zstandard.compress(bytes(1024))
    return zipped({"metadata.json": b"{}", f"pkg-{CONDA}.tar.zst": empty, f"info-{CONDA}.tar.zst": described})


@reads("oci")
def manifest_of_a_million_lists() -> bytes:
    return b'{"a": [' + b"[]," * 1_000_000 + b"[]]}"


@reads("report")
def report_of_objects_in_objects() -> bytes:
    return b'{"a": [' + b",".join([b'{"":' * 400 + b"[]" + b"}" * 400] * 615) + b"]}"


@reads("lock")
def lock_of_a_million_lists() -> bytes:
    return manifest_of_a_million_lists()


@reads("bill")
def bill_of_thousands_of_packages() -> bytes:
    gone = (Gone(f"a{number}", "ab" * 32, "b", Treatment.MOVED, f"pkg:pypi/a{number}@1") for number in range(4_000))
    return packed(Bill("demo", "1.0", "1", gone=tuple(gone)))


@reads("code")
def library_of_thousands_of_sections_of_code_and_functions() -> bytes:
    library = _of_objects(20_000)
    image = ElfImage.parse(library)
    text = image.section(".text")
    assert text
    table = library[image.header.e_shoff :][: image.header.e_shnum * SectionHeader.layout.size]
    start = len(library) + -len(library) % 8
    code = structs.replace(text.header, sh_name=0, sh_size=1, sh_offset=64)
    more = (structs.replace(code, sh_addr=(1 << 24) + 16 * number).pack() for number in range(6_000))
    head = structs.replace(image.header, e_shoff=start, e_shnum=image.header.e_shnum + 6_000).pack()
    return (head + library[len(head) :]).ljust(start, b"\0") + table + b"".join(more)


@reads("elf")
def library_whose_symbols_share_one_long_name() -> bytes:
    library = next(iter(TARGETS["elf"].seeds()))
    image = ElfImage.parse(library)
    text = image.section(".text")
    assert text
    rows = (SymbolEntry(1 + row % 7, 0x12, 0, text.index, text.addresses.start + row % 16, 4) for row in range(2_000))
    return _exchanged(library, {".dynstr": LONG_NAME, ".dynsym": b"".join(row.pack() for row in rows)})


@reads("elf")
def library_whose_sections_share_one_long_name() -> bytes:
    library = next(iter(TARGETS["elf"].seeds()))
    start = len(library) + -len(library) % 8
    table = start + len(LONG_NAME) + -len(LONG_NAME) % 8
    names = SectionHeader(1, SectionType.STRTAB, 0, 0, start, len(LONG_NAME), 0, 0, 1, 0)
    headers = [names, *[SectionHeader(1, SectionType.PROGBITS, 0, 0, 64, 1, 0, 0, 1, 0)] * 2_000]
    head = structs.replace(FileHeader.parse(library), e_shoff=table, e_shnum=len(headers), e_shstrndx=0).pack()
    whole = (head + library[len(head) :]).ljust(start, b"\0") + LONG_NAME
    return whole.ljust(table, b"\0") + b"".join(header.pack() for header in headers)


@reads("name")
def name_of_a_million_tags() -> bytes:
    return (
        b"demo-1.0-"
        + b".".join(b"py%d" % number for number in range(1000))
        + b"-"
        + b".".join(b"a%d" % number for number in range(1000))
        + b"-any.whl"
    )


@reads("elf")
def library_that_relocates_the_same_words_again_and_again() -> bytes:
    library = next(iter(TARGETS["elf"].seeds()))
    image = ElfImage.parse(library)
    text, comment = image.section(".text"), image.section(".comment")
    assert text
    assert comment
    start = text.addresses.start & ~7
    whole = bytearray(_exchanged(library, {".comment": (start.to_bytes(8, "little") + b"\xff" * 8) * 20_000}))
    place = image.header.e_shoff + comment.index * SectionHeader.layout.size
    packed_relocations = structs.replace(SectionHeader.parse(whole, place), sh_type=19, sh_entsize=8).pack()
    whole[place : place + len(packed_relocations)] = packed_relocations
    return bytes(whole)


def _of_objects(count: int) -> bytes:
    """A library that has as many objects without a name, each at an address of its own."""
    library = next(iter(TARGETS["elf"].seeds()))
    text = ElfImage.parse(library).section(".text")
    assert text
    rows = (SymbolEntry(0, 0x11, 0, text.index, text.addresses.start + 16 * row, 4) for row in range(count))
    return _exchanged(library, {".dynsym": b"".join(row.pack() for row in rows)})


def _exchanged(library: bytes, sections: dict[str, bytes]) -> bytes:
    """*library* with other bytes, put at its end, for *sections* by name."""
    image = ElfImage.parse(library)
    whole = bytearray(library)
    for name, data in sections.items():
        section = image.section(name)
        assert section
        whole += bytes(-len(whole) % 8)
        place = image.header.e_shoff + section.index * SectionHeader.layout.size
        header = structs.replace(section.header, sh_offset=len(whole), sh_size=len(data)).pack()
        whole[place : place + len(header)] = header
        whole += data
    return bytes(whole)


def _header(kind: bytes) -> bytes:
    """A gzipped archive whose first header, of *kind*, is zeros."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, BIG
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(BIG) + bytes(1024), 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_an_input_takes_no_more_than_the_laws_allow(case: str) -> None:
    name, make = CASES[case]
    target, data = TARGETS[name], make()
    measured(target, next(iter(target.seeds())))
    outcome = measured(target, data)
    assert outcome.broken is None, f"{case}: {outcome}"


def tiny_members() -> bytes:
    whole = everything(NAME, {f"{number:06x}": "" for number in range(100_000)})
    return zipped({**whole, f"{INFO}/RECORD": record_of(whole, INFO).encode()}, zipfile.ZIP_DEFLATED)


def values_of_sixteen_characters() -> bytes:
    return b'{"a": [' + b",".join([b'{"aaaaaaaaaaaa":' * 400 + b"0" + b"}" * 400] * 700) + b"]}"


def links_of_a_few_characters() -> bytes:
    return b"<html>" + b'<a href="demo-1.0.whl">' * 200_000


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("target", "make", "times"),
    [
        ("wheel", tiny_members, 12),
        ("report", values_of_sixteen_characters, 16),
        ("elf", partial(_of_objects, 120_000), 26),
        ("index", links_of_a_few_characters, 20),
    ],
    ids=["tiny members", "values", "symbols", "links"],
)
def test_what_takes_more_memory_than_the_law_allows_takes_no_more_than_is_told(
    target: str, make: Callable[[], bytes], times: int
) -> None:
    """The exceptions in SECURITY.md."""
    data = make()
    measured(TARGETS[target], next(iter(TARGETS[target].seeds())))
    outcome = measured(TARGETS[target], data)
    assert outcome.broken in {None, "memory"}, str(outcome)
    assert outcome.memory <= times * outcome.size, f"{outcome.memory / outcome.size:.1f} times: {outcome}"
