"""Files that are nothing but GPU code, with the headers that compilers write."""

import json
import struct
from collections.abc import Mapping
from functools import partial

import pytest
import zstandard

from tests.factories.bundles import GFX90A, HOST, bundle
from tests.factories.fatbins import entry, fatbin
from vbuild.errors import BinaryError
from vbuild.gpu_code.device_file import TRITON, DeviceFile, Folders, container_in, is_named, may_be_container
from vbuild.gpu_code.model import Compression, Vendor
from vbuild.hardware.gpu import GpuCodeKind

OLD, NEW, AMD = (0x33, 7), (0x41, 8), (0x40, 3)


def elf(flags: int, abi: tuple[int, int] = NEW, machine: int = 190, *, tables: int = 0, behind: bytes = b"") -> bytes:
    ident = b"\x7fELF\x02\x01\x01" + bytes(abi) + bytes(7)
    return ident + struct.pack("<HHIQQQI6H", 2, machine, 1, 0, 0, 0, flags, 64, 0, 0, 64, tables, 0) + behind


def found(data: bytes, path: str = "demo/kernel.cubin") -> DeviceFile | None:
    return DeviceFile.of(path, len(data), lambda size: data[:size])


def _first(data: bytes, size: int) -> bytes:
    return data[:size]


def shown(data: bytes, path: str = "demo/kernel.cubin") -> tuple[str, str | None] | None:
    file = found(data, path)
    return (str(file.arch), file.trouble) if file else None


# what ptxas 12.3, 12.9 and 13.5 write with -arch, and clang for AMD
@pytest.mark.parametrize(
    ("flags", "abi", "machine", "arch"),
    [
        (0x4B054B, OLD, 190, "sm_75"),
        (0x5A055A, OLD, 190, "sm_90"),
        (0x5A0D5A, OLD, 190, "sm_90a"),
        (0x6006402, NEW, 190, "sm_100"),
        (0x600640A, NEW, 190, "sm_100a"),
        (0x600780A, NEW, 190, "sm_120a"),
        (0x6005A04, NEW, 190, "sm_90"),
        (0x6004B04, NEW, 190, "sm_75"),
        (0x54C, AMD, 224, "gfx942"),
        (0x63F, AMD, 224, "gfx90a:xnack-"),
    ],
)
def test_the_flags_of_a_file_say_for_which_gpu_it_is(flags: int, abi: tuple[int, int], machine: int, arch: str) -> None:
    file = found(elf(flags, abi, machine, tables=1))
    assert file
    assert (str(file.arch), file.trouble, file.code) == (arch, None, GpuCodeKind.MACHINE)
    is_amd = machine == 224
    assert (file.vendor, file.kind) == ((Vendor.AMD, "code-object") if is_amd else (Vendor.NVIDIA, "cubin"))


@pytest.mark.parametrize(
    ("path", "data", "arch"),
    [
        ("demo/Kernel_sm_100f.cubin", elf(0x6006402), "sm_100f"),
        ("demo/kernel_sm_75f.cubin", elf(0x6004B04), "sm_75"),  # no GPU has this family
        ("demo/KERNEL_GFX942.co", elf(0x54C, AMD, 224), "gfx942"),
        ("gfx90a/kernel.co", elf(0x54C, AMD, 224), "gfx942"),  # of a path, the file alone is asked
    ],
)
def test_the_name_of_a_file_may_say_the_same(path: str, data: bytes, arch: str) -> None:
    assert shown(data, path) == (arch, None)


def test_a_note_of_another_architecture_is_not_believed() -> None:
    assert shown(elf(0x6006402, behind=b"-arch sm_90a ")) == ("sm_100", None)


@pytest.mark.parametrize(
    ("data", "path", "why"),
    [
        (elf(0xFF00FF, OLD), "k.cubin", "which say no known GPU"),
        (elf(0x6006402, (0x99, 9)), "k.cubin", "has flags 0x6006402 of ABI 0x99 9, which say no known GPU"),
        (elf(0x6005A04).replace(b"ELF\2\1", b"ELF\2\2"), "k.cubin", "is cut short, or not of 64 bits"),
        (elf(0x54C, (0x41, 3), 224), "k.co", "which say no known GPU"),
        (elf(0x2A, AMD, 224)[:40], "k.co", "is cut short, or not of 64 bits"),
        (elf(0x6005A04, tables=9), "k.cubin", "is cut short"),
        (elf(0x6005A04), "fmha_sm100a.cubin", "its name says sm100"),
        (elf(0x54C, AMD, 224), "kernel_gfx90a.co", "its name says gfx90a"),
        (b"no target in it", "k.ptx", "names no known target"),
        (b".target sm_91\n", "k.ptx", "names no known target"),
    ],
)
def test_what_is_damaged_or_contradicts_itself_offers_nothing_that_could_go(data: bytes, path: str, why: str) -> None:
    file = found(data, path)
    assert file
    assert str(file.trouble).endswith(why)
    assert file.offer.code is GpuCodeKind.OTHER


def test_a_frame_is_opened_where_name_and_contents_say_that_it_is_one() -> None:
    plain = elf(0x4B054B, OLD)
    assert shown(plain, "kernel_sm_75.cubin.zst") == ("sm_75", None)
    assert found(zstandard.compress(plain), "kernel_sm_75.cubin") is None
    framed = found(zstandard.compress(b".target sm_90a\n"), "k.ptx.zst")
    assert framed
    assert (str(framed.arch), framed.compression) == ("sm_90a", Compression.ZSTD)
    container = zstandard.compress(fatbin(entry()))
    assert may_be_container("a.fatbin.zst", partial(_first, container))
    assert not may_be_container("a.fatbin", partial(_first, container))
    assert not may_be_container("a.fatbin.zst", partial(_first, b"\x28\xb5\x2f\xfd damaged".ljust(80)))


@pytest.mark.parametrize("path", ["demo/notes.txt", "demo/x.cubin.zst", "demo/a.so"])
def test_other_files_are_none(path: str) -> None:
    assert found(b"\x28\xb5\x2f\xfd damaged frame and more of it".ljust(80), path) is None
    assert found(elf(0, machine=62), path) is None


def test_a_file_may_be_a_container() -> None:
    plain = fatbin(entry(arch=80), entry(arch=90))
    framed = zstandard.compress(bundle({HOST: b"", GFX90A: bytes(4096)}))
    for data, path, archs in ((plain, "a.fatbin", ["sm_80", "sm_90"]), (framed, "a.fatbin.zst", ["gfx90a:xnack+"])):
        assert may_be_container(path, partial(_first, data))
        container = container_in(memoryview(data))
        assert container
        assert [str(each.arch) for each in container.entries if each.size][-len(archs) :] == archs
        assert container.why_pinned == (None if data is plain else "lies in a zstd frame")
        assert (container.section, container.wrappers) == ("", ())
    assert container_in(memoryview(b"something else")) is None
    assert container_in(memoryview(zstandard.compress(bytes(1 << 24)))) is None


@pytest.mark.parametrize("data", [fatbin(entry())[:40], fatbin(entry()) + b"more", zstandard.compress(bytes(1 << 25))])
def test_a_damaged_container_is_refused_with_what_is_wrong(data: bytes) -> None:
    with pytest.raises(BinaryError):
        container_in(memoryview(data))


@pytest.mark.parametrize(
    ("name", "data", "target", "expected"),
    [
        ("add.v2.cubin", elf(0x6005A04), {"backend": "cuda", "arch": 90}, (Vendor.NVIDIA, "sm_90", None)),
        (
            "add.v2.cubin",
            elf(0x6005A04),
            {"backend": "cuda", "arch": 80},
            (Vendor.NVIDIA, "sm_90", "add.v2.cubin is for sm_90, though add.v2.json says 80"),
        ),
        (
            "add.v2.cubin",
            elf(0x6005A04),
            {"backend": "hip", "arch": 90},
            (Vendor.NVIDIA, "sm_90", "add.v2.cubin is for sm_90, though add.v2.json says 90"),
        ),
        (
            "add.v2.cubin",
            elf(0x6005A04, tables=9),
            {"backend": "cuda", "arch": 90},
            (Vendor.NVIDIA, "sm_90", "is cut short"),
        ),
        (
            "add.v2.hsaco",
            elf(0x54C, AMD, 224),
            {"backend": "hip", "arch": "gfx942:sramecc+"},
            (Vendor.AMD, "gfx942", None),
        ),
    ],
)
def test_an_entry_of_tritons_cache_is_for_what_its_json_says(
    name: str, data: bytes, target: dict[str, object], expected: tuple[Vendor, str, str | None]
) -> None:
    files = {f"cache/{name}": data, "cache/add.v2.json": json.dumps({"target": target}).encode()}
    for path, content in files.items():
        beside = Folders(files, files.__getitem__).of(path)
        file = DeviceFile.of(path, len(content), partial(_first, content), beside)
        assert file
        assert file.kind == TRITON
        assert (file.vendor, str(file.arch), file.trouble) == expected


def beside(files: Mapping[str, bytes], path: str) -> DeviceFile | None:
    """What the file at *path* is, one of *files*."""
    return DeviceFile.of(
        path, len(files[path]), partial(_first, files[path]), Folders(files, files.__getitem__).of(path)
    )


def test_entries_of_tritons_cache_may_lie_at_the_top_and_be_damaged() -> None:
    target = json.dumps({"target": {"backend": "cuda", "arch": 90}}).encode()
    file = beside({"Xadd.cubin": elf(0x6005A04), "Xadd.json": target}, "Xadd.cubin")
    assert file
    assert file.kind == TRITON
    for broken in (b"{", b"{}", b'{"target": 90}', b'{"target": {"arch": 90}}'):
        file = beside({"k/add.cubin": elf(0x6005A04), "k/add.json": broken}, "k/add.cubin")
        assert file
        assert (file.kind, str(file.arch)) == ("cubin", "sm_90")


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b"", None),
        (b"for GFX90A", None),
        (b"sm_80", None),  # another vendor's
        (b"gfx999", None),  # nobody's
        (b"gfx90a and gfx942", None),
        (b"gfx1030, gfx942", "is for gfx90a by its name, but its bytes name gfx1030"),
    ],
)
def test_one_of_several_files_is_for_what_its_name_says_unless_its_bytes_say_otherwise(
    content: bytes, trouble: str | None
) -> None:
    files = {"x_gfx1100/gemm_gfx90a.dat": content, "x_gfx1100/gemm_gfx942.dat": b"", "x_gfx1100/other_gfx803.dat": b""}
    file = beside(files, "x_gfx1100/gemm_gfx90a.dat")
    assert file
    assert (file.vendor, file.kind, str(file.arch), file.trouble) == (Vendor.AMD, "file named", "gfx90a", trouble)
    assert [str(offer.arch) for offer in file.others] == ["gfx942"]
    assert beside(files, "x_gfx1100/other_gfx803.dat") is None


def test_a_name_has_one_architecture_that_there_is() -> None:
    assert is_named("a/x_gfx942/gemm_gfx90a.dat")
    for path in ("gfx90a/gemm.dat", "gemm_gfx999.dat", "gemm_gfx90a.txt", "gemm_gfx90a_gfx942.dat"):
        assert not is_named(path)
