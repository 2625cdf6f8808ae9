"""Where the GPU code of a library is found, and which of it may be moved: libraries linked by gcc."""

import pytest

from tests.factories.bundles import GFX942, HOST, bundle
from tests.factories.elf import shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from vbuild.binary.edits import Replacement
from vbuild.elf.image import ElfImage
from vbuild.elf.surgery.cutting import cut
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.fatbin import FatbinKind
from vbuild.gpu_code.model import Container, DeviceCode, Vendor
from vbuild.gpu_code.survey import device_code

TWO = (fatbin(entry(arch=80), entry(arch=90)), fatbin(entry(FatbinKind.PTX, 90)))
FAR_POINTER = ".data\n.balign 8\n.quad c0 + 24\n"
NEAR_POINTER = ".data\n.balign 8\n.quad c0\n"
# addresses that are not the offsets in the file
ELSEWHERE = ("-Wl,-Ttext-segment=0x400000",)
HIP = (".hipFatBinSegment", 0x48495046, 1)


def surveyed(data: bytes) -> DeviceCode:
    return device_code(ElfImage.parse(data))


def shown(code: DeviceCode) -> list[str]:
    return [f"{one.section} {','.join(str(entry.arch) for entry in one.entries)}" for one in code.containers]


def placed(section: str, data: bytes, *, before: str = "") -> str:
    """Assembler for *data* in *section*."""
    lines = "\n".join(f".byte {byte}" for byte in data)
    return f".section {section}\n{before}{lines}\n"


def reasons(code: DeviceCode) -> list[str | None]:
    return [one.why_pinned for one in code.containers]


@pytest.mark.parametrize(
    ("data", "why", "in_place"),
    [
        (device_library(*TWO, wrapped=[1]), ["no wrapper points to it", None], [False, True]),
        (device_library(*TWO, wrapped=[0, 1, 1]), [None, "2 wrappers point to it"], [True, True]),
        (device_library(*TWO, more=FAR_POINTER), ["the loader fills 1 more pointers into it", None], [False, True]),
        (device_library(*TWO, more=NEAR_POINTER), ["the loader fills 1 more pointers into it", None], [True, True]),
        (
            device_library(*TWO, more=FAR_POINTER.replace("c0", "c1")),
            [None, "the loader fills 1 more pointers into it"],
            [True, False],
        ),
        (
            device_library(fatbin(entry(), entry(0x200)), TWO[1]),
            ["holds an entry of kind 0x200, which is not known", None],
            [False, True],
        ),
        (
            device_library(bundle({HOST: b"", GFX942: b"code"}), section=".hip_fatbin", wrapper=HIP, align=4096),
            [None],
            [False],
        ),
    ],
)  # fmt: skip
def test_a_container_that_others_could_find_or_that_is_not_known_is_pinned_and_some_may_shrink_in_place(
    data: bytes, why: list[str | None], in_place: list[bool]
) -> None:
    code = surveyed(data)
    assert reasons(code) == why
    assert [one.movable for one in code.containers] == [reason is None for reason in why]
    assert code.pinned == tuple(one for one in code.containers if one.why_pinned)
    assert [one.in_place for one in code.containers] == in_place


def test_what_a_link_leaves_without_kernels_is_movable_although_no_wrapper_points_to_it() -> None:
    # nvcc -O3 -shared: gcc takes the wrapper out, which nothing uses
    linked = fatbin(*(entry(arch=arch, code=cubin(arch) + b".shstrtab\0".ljust(16, b"\0")) for arch in (80, 90)))
    kernels = fatbin(entry(code=cubin(90) + b".shstrtab\0.text.scale\0".ljust(24, b"\0")))
    data = device_library(linked, TWO[0], kernels, wrapped=[1])
    assert reasons(surveyed(data)) == [None, None, "no wrapper points to it"]
    assert reasons(surveyed(device_library(linked, wrapped=[], more=NEAR_POINTER))) == ["no wrapper points to it"]
    image = ElfImage.parse(data)
    code = device_code(image)
    replacements = [
        Replacement(one.span, one.keeping(one.entries[:1]), one.wrappers) for one in code.containers if one.movable
    ]
    after = surveyed(bytes(cut(image, replacements).edited))
    assert shown(after) == [".nv_fatbin sm_80", ".nv_fatbin sm_80", ".nv_fatbin sm_90"]


def test_a_pinned_container_can_be_kept_whole_but_not_be_changed() -> None:
    data = device_library(*TWO, wrapped=[1])
    pinned, movable = surveyed(data).containers
    assert bytes(EditedFile.of(data, pinned.keeping(pinned.entries))) == TWO[0]
    assert bytes(EditedFile.of(data, movable.keeping(()))) == fatbin()
    with pytest.raises(BinaryError, match=r"^\.nv_fatbin at 0x\w+ cannot be changed: no wrapper points to it$"):
        pinned.keeping(())


def test_a_wrapper_of_a_version_that_is_not_known_moves_nothing_and_is_named() -> None:
    code = surveyed(device_library(*TWO, wrapper=(".nvFatBinSegment", 0x466243B1, 3)))
    assert reasons(code) == ["no wrapper points to it"] * 2
    assert all("magic 0x466243b1, of version 3, which is not known" in note for note in code.notes)
    assert len(code.notes) == 2


def test_bytes_behind_the_last_wrapper_are_named() -> None:
    code = surveyed(device_library(*TWO, more='.section .nvFatBinSegment,"aw"\n.quad 256\n'))
    assert code.notes == (".nvFatBinSegment has 8 bytes behind its last wrapper",)
    assert reasons(code) == [None, None]


def test_zeros_between_wrappers_are_passed_over() -> None:
    code = surveyed(device_library(*TWO, more='.section .nvFatBinSegment,"aw"\n.quad 0, 0\n'))
    assert not code.notes
    assert reasons(code) == [None, None]


@pytest.mark.parametrize("flags", [(), ELSEWHERE])
def test_a_damaged_container_is_left_alone_and_those_around_it_are_not(flags: tuple[str, ...]) -> None:
    broken = fatbin(entry(version=0x102))
    data = device_library(TWO[0], broken, TWO[1], flags=flags)
    image, code = ElfImage.parse(data), surveyed(data)
    assert reasons(code) == [None, None]
    assert [one.address for one in code.containers] == [image.address(one.span.start) for one in code.containers]
    (blob,) = code.blobs
    assert (blob.section, len(blob.span), blob.what) == (".nv_fatbin", len(broken), "damaged or unknown fatbin")
    (note,) = code.notes
    assert note == (
        f".nv_fatbin: fatbin entry at {blob.span.start + 16:#x} has version 0x102; only 0x101 is known"
    )  # fmt: skip


def test_fatbins_elsewhere_are_found_and_stay() -> None:
    more = placed('.ldata,"aw"', TWO[0], before=".long 7\n.balign 8\n")
    data = device_library(TWO[1], more=more, flags=ELSEWHERE)
    image, code = ElfImage.parse(data), surveyed(data)
    assert sorted(shown(code)) == [".ldata sm_80,sm_90", ".nv_fatbin sm_90"]
    (pinned,) = code.pinned
    assert isinstance(pinned, Container)
    assert pinned.why_pinned == "lies in .ldata, where the library's own code looks for it"
    assert (pinned.vendor, pinned.wrappers) == (Vendor.NVIDIA, ())
    assert pinned.address == image.address(pinned.span.start)
    assert bytes(image.view(pinned.span)) == TWO[0]


@pytest.mark.parametrize(
    ("fields", "notes"),
    [
        (".long 0xBA55ED50\n.long 0xBA55ED50\n", []),  # as code that looks for fatbins has it
        (".long 0xBA55ED50\n.short 1, 16\n.quad 0x6c6c766d6f637564\n", []),
        (".long 0xBA55ED50\n.short 2, 16\n.quad 8, 0\n", [".rodata: not read: 1 place with the header of a fatbin"]),
        (".long 0xBA55ED50\n.short 1, 16\n.quad 1 << 40\n", [".rodata: not read: 1 place with the header of a fatbin"]),
    ],
)
def test_the_magic_alone_is_no_fatbin_and_what_looks_like_one_is_named(fields: str, notes: list[str]) -> None:
    code = surveyed(device_library(TWO[1], more=f'.section .rodata,"a"\n{fields}'))
    assert shown(code) == [".nv_fatbin sm_90"]
    assert [note.partition(", first at 0x")[0] for note in code.notes] == notes


def test_a_cubin_without_a_container_is_counted_and_another_elf_file_is_not() -> None:
    bare = cubin(80, 64)
    host = shared_object("int one;")[:64]
    code = surveyed(device_library(TWO[1], more=placed('.rodata,"a"', bare + host + TWO[0])))
    (blob,) = code.blobs
    assert sorted(shown(code)) == [".nv_fatbin sm_90", ".rodata sm_80,sm_90"]
    assert (blob.section, blob.what) == (".rodata", "bare cubin")


def test_more_pieces_than_a_library_has_are_damage() -> None:
    """Of 2^17 that may be, a wrapper is one, as are a fatbin and each of its entries; what is damaged is 64."""
    broken = [*[fatbin(entry(version=0x102))] * 2016, fatbin(*[entry(code=b"few")] * 15)]
    wrapped = [*range(2017), *[0] * 15]
    assert len(surveyed(device_library(*broken, wrapped=wrapped)).blobs) == 2016
    with pytest.raises(BinaryError, match=r"^more than 131072 pieces of GPU code; no library has so many, so this one"):
        surveyed(device_library(*broken, wrapped=[*wrapped, 0]))


def test_cubins_inside_fatbins_are_not_counted_twice() -> None:
    assert surveyed(device_library(more=placed('.rodata,"a"', TWO[0]))).blobs == ()


def test_a_library_without_gpu_code_has_none() -> None:
    code = surveyed(shared_object("int one;"))
    assert not code
    assert code == DeviceCode()


def test_damaged_relocations_move_nothing() -> None:
    data = bytearray(device_library(*TWO))
    image = ElfImage.parse(bytes(data))
    offset = image.dynamic_offsets()[9]  # DT_RELAENT
    data[offset + 8] = 25
    code = surveyed(bytes(data))
    assert reasons(code) == ["no wrapper points to it"] * 2
    assert code.notes == ("no fatbin can be moved: relocations of 0x19 bytes each, expected 0x18",)


def test_a_bundle_that_another_one_follows_without_a_wrapper_stays() -> None:
    plain = bundle({HOST: b"", GFX942: b"code"})
    data = device_library(plain, plain, plain, section=".hip_fatbin", wrapper=HIP, align=4096, wrapped=[0, 1])
    follows = "another bundle follows, to which no wrapper points"
    assert reasons(surveyed(data)) == [None, follows, "no wrapper points to it"]


def test_the_smallest_entry_is_the_first_of_the_fewest_bytes() -> None:
    first, second = surveyed(device_library(TWO[0], fatbin())).containers
    assert first.smallest is first.entries[0]
    assert second.smallest is None


@pytest.mark.parametrize("strange", [fatbin(), fatbin(entry(0x200))], ids=["empty", "of a kind that is not known"])
def test_what_may_be_a_fatbin_elsewhere_is_only_taken_for_one_that_is_known(strange: bytes) -> None:
    code = surveyed(device_library(TWO[1], more=placed('.rodata,"a"', strange)))
    assert shown(code) == [".nv_fatbin sm_90"]
    assert len(code.notes) == 1


def test_an_elf_header_that_is_cut_short_is_no_cubin() -> None:
    assert surveyed(device_library(TWO[1], more=placed('.rodata,"a"', cubin(80)[:20]))).blobs == ()
