"""One library: what is said of it, and why it stays as it was."""

import pytest

from tests.factories.elf import shared_object, without_sections
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from vbuild.errors import RepackageError
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.hardware.gpu import Ptx
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.request import Cuts, Empty, Share
from vbuild.slimming.results import LibraryCut

BIG = 1 << 13


def code(*archs: int, ptx: tuple[int, ...] = ()) -> bytes:
    machine = (entry(arch=arch, code=cubin(arch, BIG)) for arch in archs)
    return fatbin(*machine, *(entry(FatbinKind.PTX, arch, code=bytes(BIG)) for arch in ptx))


def cut(data: bytes, gpus: str = "90", cuts: Cuts | None = None) -> LibraryCut:
    share = Share(Share.parse(f"any={gpus}").gpus)
    rope, account = GpuLibrary.of("demo/_C.so", memoryview(data)).slimmed(share, cuts or Cuts())
    assert rope.size == account.after
    return account


def test_a_library_without_gpu_code_has_nothing_to_account_for() -> None:
    account = cut(shared_object("int x;"))
    assert not account.has_gpu_code
    assert (account.served, account.why_whole, account.notes) == ((), None, ())


def test_what_saves_no_page_goes_all_the_same() -> None:
    account = cut(device_library(fatbin(entry(arch=80), entry(arch=90))))
    assert (account.kept, account.dropped, account.after) == (1, 1, account.before)
    assert account.gpus == ("sm_90",)


@pytest.mark.parametrize(
    "data",
    [
        device_library(fatbin()),
        device_library(fatbin(entry(FatbinKind.LTO_IR, 80))),
        device_library(fatbin(entry(0x200, 80))),
        device_library(b"damaged!" * 8),
    ],
    ids=["empty", "lto", "unknown", "damaged"],
)
def test_code_that_no_driver_chooses_from_is_for_any_gpu_and_none(data: bytes) -> None:
    assert cut(data).after == len(data)


def test_a_gpu_that_nothing_was_for_is_refused_with_what_there_is() -> None:
    with pytest.raises(RepackageError) as caught:
        cut(device_library(code(80, 120), fatbin(entry(FatbinKind.LTO_IR, 90))), "90", cuts=Cuts(strict=True))
    assert str(caught.value) == (
        "demo/_C.so: nothing for sm_90 in any of its fatbins (1), which have sm_80, sm_120; choose among those, or let "
        "it go with --allow-unsupported"
    )


def test_ptx_that_may_not_stay_is_named_as_such_in_the_refusal() -> None:
    both = code(80, 120, ptx=(80, 90))
    assert cut(device_library(both), cuts=Cuts()).jit_only == 1
    with pytest.raises(
        RepackageError, match=r"\(1\), which have sm_80, sm_120, PTX for sm_80, PTX for sm_90; choose among"
    ):
        cut(device_library(both), cuts=Cuts(ptx=Ptx.NONE, strict=True))


@pytest.mark.parametrize(("empty", "kept"), [(Empty.SMALLEST, 2), (Empty.NOTHING, 1)])
def test_a_fatbin_for_other_gpus_is_counted_as_empty(empty: Empty, kept: int) -> None:
    account = cut(device_library(code(80, 90), code(80, 86)), cuts=Cuts(empty=empty))
    assert (account.kept, account.dropped, account.empty) == (kept, 4 - kept, 1)


def test_ptx_is_claimed_for_gpus_that_there_are() -> None:
    account = cut(device_library(code(80, ptx=(0, 90)), code(80, ptx=(90, 130))), "90,100")
    assert list(map(str, account.virtual)) == ["sm_90", "sm_100"]
    assert account.jit_only == 2


def test_code_that_cannot_be_compressed_again_leaves_the_library() -> None:
    lies = fatbin(entry(arch=90, code=bytes(BIG), flags=FatbinFlag.LZ4, uncompressed_size=1 << 32))
    account = cut(device_library(code(80, 90), lies), cuts=Cuts(zstd=True))
    assert (account.after, account.dropped) == (account.before, 0)
    assert account.why_whole
    assert account.why_whole.endswith("claims to inflate to 0x100000000 bytes; more than 0x40000000 is refused")


def test_a_library_without_section_headers_is_named() -> None:
    assert (
        cut(without_sections(shared_object("int x;"))).why_whole
        == "no section headers, by which GPU code is found; expected a file that has them"
    )
