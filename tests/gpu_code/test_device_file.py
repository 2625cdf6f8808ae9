"""Files that are nothing but GPU code, with the headers that compilers write."""

import struct
from functools import partial

import pytest
import zstandard

from tests.factories.bundles import GFX90A, HOST, bundle
from tests.factories.fatbins import entry, fatbin
from vbuild.errors import BinaryError
from vbuild.gpu_code.device_file import DeviceFile, container_in, may_be_container
from vbuild.gpu_code.model import Compression
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
    assert shown(elf(flags, abi, machine)) == (arch, None)


@pytest.mark.parametrize("suffix", ["a", "f", ""])
def test_the_note_of_the_compiler_says_what_the_flags_of_cuda_13_do_not(suffix: str) -> None:
    note = f"ptxas\0Cuda compilation tools, release 13.5\0-arch sm_100{suffix} \0".encode()
    assert shown(elf(0x6006402, behind=note)) == (f"sm_100{suffix}", None)


def test_a_note_of_another_architecture_is_not_believed() -> None:
    assert shown(elf(0x6006402, behind=b"-arch sm_90a ")) == ("sm_100", None)


@pytest.mark.parametrize(
    ("data", "path", "why"),
    [
        (elf(0xFF00FF, OLD), "k.cubin", "which say no known GPU"),
        (elf(0x6006402, (0x99, 9)), "k.cubin", "which say no known GPU"),
        (elf(0x2A, AMD, 224)[:40], "k.co", "cut short"),
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
    assert why in str(file.trouble)
    assert file.offer.code is GpuCodeKind.OTHER


def test_text_and_what_lies_in_a_frame_are_read_too() -> None:
    ptx = b"//\n.version 8.8\n.target sm_90a\n.address_size 64\n"
    assert shown(ptx, "wp_demo.sm90.ptx") == ("sm_90a", None)
    file = found(zstandard.compress(elf(0x4B054B, OLD)), "kernel_sm_75.cubin.zst")
    assert file
    assert (str(file.arch), file.compression, file.trouble) == ("sm_75", Compression.ZSTD, None)


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
        assert container.movable == (data is plain)
    assert container_in(memoryview(b"something else")) is None


@pytest.mark.parametrize("data", [fatbin(entry())[:40], fatbin(entry()) + b"more", zstandard.compress(bytes(1 << 25))])
def test_a_damaged_container_is_refused_with_what_is_wrong(data: bytes) -> None:
    with pytest.raises(BinaryError):
        container_in(memoryview(data))
