import json
import random
import zipfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from installer.sources import WheelFile as InstallerWheel

from tests.factories.elf import patchelfed, shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.wheels import wheel
from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.errors import RepackageError, WheelError
from vbuild.gpu_code.fatbin import FatbinKind
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.gpu import Ptx
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import Slimmed
from vbuild.slimming.slim import slim
from vbuild.variants.document import Document
from vbuild.wheel.archive import open_wheel

NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
LIBRARY = "demo/_C.so"
BIG = 1 << 14
SM_90 = (Share.parse("sm90=90"),)


def code(*archs: int, ptx: Sequence[int] = ()) -> bytes:
    """The fatbin of one translation unit: 16 KiB of machine code for each of *archs*, then PTX."""
    machine = [entry(arch=arch, code=cubin(arch, BIG)) for arch in archs]
    return fatbin(*machine, *(entry(FatbinKind.PTX, arch) for arch in ptx))


FAT = device_library(code(80, 90, 120, ptx=(120,)), code(80, 90, 120))


def fat_wheel(
    folder: Path,
    more: Mapping[str, bytes] | None = None,
    *,
    library: bytes = FAT,
    name: str = NAME,
    metadata: str = "",
) -> Path:
    everything = {"demo/__init__.py": b"x = 1\n", LIBRARY: library, **(more or {})}
    return wheel(folder, name, everything, metadata=metadata)


def plain(gpus: str) -> tuple[Share, ...]:
    share = Share.parse(f"any={gpus}")
    return (Share(share.gpus),)


def one(path: Path, folder: Path, gpus: str = "90", **cuts: object) -> Slimmed:
    (slimmed,) = slim([path], folder, shares=plain(gpus), cuts=Cuts(**cuts))  # type: ignore[arg-type]
    return slimmed


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def architectures(path: Path, member: str = LIBRARY) -> list[list[str]]:
    """What each fatbin in the library of the wheel at *path* has, in the words of nvcc."""
    image = ElfImage.parse(members(path)[member])
    return [
        [("ptx " if entry.kind == "ptx" else "") + str(entry.arch) for entry in container.entries]
        for container in device_code(image).containers
    ]


def test_a_slimmed_wheel_has_the_code_for_its_gpus_and_everything_else(tmp_path: Path) -> None:
    fat = fat_wheel(tmp_path)
    slimmed = one(fat, tmp_path / "out")
    assert slimmed.path == tmp_path / "out" / NAME
    assert architectures(slimmed.path) == [["sm_90"], ["sm_90"]]
    before, after = members(fat), members(slimmed.path)
    assert list(after) == [*list(before)[:-1], "demo-1.0.dist-info/sboms/vbuild.cdx.json", "demo-1.0.dist-info/RECORD"]
    assert {name for name in before if before[name] != after[name]} == {LIBRARY, "demo-1.0.dist-info/RECORD"}
    assert len(before[LIBRARY]) - len(after[LIBRARY]) >= 4 * BIG - 4096
    with InstallerWheel.open(slimmed.path) as source:
        source.validate_record()


def test_the_account_of_it_adds_up(tmp_path: Path) -> None:
    fat = fat_wheel(tmp_path)
    slimmed = one(fat, tmp_path / "out")
    (library,) = slimmed.libraries
    assert (library.kept, library.dropped, library.empty, library.pinned, library.jit_only) == (2, 5, 0, 0, 0)
    assert (slimmed.before, slimmed.packed) == (fat.stat().st_size, (tmp_path / "out" / NAME).stat().st_size)
    # RECORD's own size is that of the input: a digest more or less is no promise
    assert slimmed.unpacked_before - slimmed.unpacked == library.before - library.after
    json.dumps(slimmed.data())


def test_progress_is_of_bytes_within_a_library_too(tmp_path: Path) -> None:
    large = (entry(arch=arch, code=cubin(arch, 1 << 17)) for arch in (80, 90))
    path = wheel(
        tmp_path, NAME, {LIBRARY: device_library(*(fatbin(*large_ones) for large_ones in [tuple(large)] * 16))}
    )
    done = [0.0]
    slim([path], tmp_path / "out", shares=plain("90"), on_progress=lambda _, now, total: done.append(now / total))
    steps = [after - before for before, after in pairwise(done)]
    assert done[-1] == 1
    assert min(steps) >= 0
    assert sorted(steps)[-2] < 0.2  # but for what is inflated at once
    assert len([step for step in steps if step]) > 16


def test_a_wheel_without_gpu_code_passes_byte_for_byte(tmp_path: Path) -> None:
    host = fat_wheel(tmp_path, library=shared_object("int x;"))
    for shares in (plain("90"), SM_90):
        (slimmed,) = slim([host], tmp_path / "out", shares=shares)
        assert slimmed.is_untouched
        assert (tmp_path / "out" / NAME).read_bytes() == host.read_bytes()


def test_dropped_members_are_gone_from_record_too(tmp_path: Path) -> None:
    fat = fat_wheel(tmp_path, {"demo/lib/x.a": b"!<arch>\n", "x.a": b"!<arch>\n"})
    slimmed = one(fat, tmp_path / "out", drop=("**/*.a",))
    assert slimmed.removed == ("demo/lib/x.a", "x.a")
    after = members(tmp_path / "out" / NAME)
    assert not [path for path in after if path.endswith(".a")]
    assert b".a," not in after["demo-1.0.dist-info/RECORD"]


@pytest.mark.parametrize(
    ("glob", "message"),
    [
        ("*.lib", "--drop '*.lib': names no member of any wheel given; * also crosses slashes"),
        (
            "*",
            f"{NAME}: --drop '*' names demo-1.0.dist-info/METADATA, which describes the wheel; expected other members",
        ),
    ],
)
def test_a_glob_that_names_nothing_or_the_wheels_own_files_is_refused(tmp_path: Path, glob: str, message: str) -> None:
    with pytest.raises(RepackageError) as caught:
        one(fat_wheel(tmp_path), tmp_path / "out", drop=(glob,))
    assert str(caught.value) == message
    assert not (tmp_path / "out").exists()


def test_what_is_less_than_a_page_is_not_stripped_and_said_so(tmp_path: Path) -> None:
    # patchelf puts what it makes longer behind the debug data
    moved = patchelfed(shared_object("int seen(void) { return 1; }", "-g"), "--set-rpath", "$ORIGIN/../a/long/folder")
    host = fat_wheel(tmp_path, library=moved)
    (slimmed,) = slim([host], tmp_path / "out", shares=[Share()], cuts=Cuts(strip=Strip.DEBUG))
    assert slimmed.why_untouched == "its compiled files have no GPU code, and less than a page to strip"
    assert [note.partition(" ")[2] for note in slimmed.libraries[0].notes] == [
        "bytes to strip stay: what is loaded behind them moves by whole pages"
    ]
    (stripped,) = slim(
        [fat_wheel(tmp_path / "b", library=shared_object("int seen;", "-s"))],
        tmp_path / "out2",
        shares=[Share()],
        cuts=Cuts(strip=Strip.DEBUG),
    )
    assert stripped.why_untouched == "its compiled files have no GPU code, and nothing to strip"


LICENCE = b"(2) you may\nnot copy, sell, distribute,\nmodify, or create derivative works of any portion of the SDK.\n"


def test_a_licence_that_forbids_changes_needs_an_answer(tmp_path: Path) -> None:
    path = "demo-1.0.dist-info/licenses/License.txt"
    fat = fat_wheel(tmp_path, {path: LICENCE})
    with pytest.raises(RepackageError, match=f"{path}, line 1: 'may not copy, sell"):
        one(fat, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))
    (slimmed,) = slim([fat], tmp_path / "out", shares=plain("90"), accept_license=True)
    assert [path in warning for warning in slimmed.warnings] == [True]


def test_a_licence_that_forbids_changes_lets_a_wheel_pass_as_it_is(tmp_path: Path) -> None:
    host = fat_wheel(tmp_path, {"demo-1.0.dist-info/LICENSE": LICENCE}, library=shared_object("int x;"))
    assert one(host, tmp_path / "out").is_untouched


def test_a_dry_run_writes_nothing_and_says_the_same(tmp_path: Path) -> None:
    fat = fat_wheel(tmp_path)
    # a bill of materials is a kB, and as much as the rest here
    (dry,) = slim([fat], None, shares=plain("90"), cuts=Cuts(bill=False))
    wet = one(fat, tmp_path / "out", bill=False)
    assert dry.path is None
    assert dry.packed == pytest.approx(wet.packed, rel=0.05)
    assert dry.libraries == wet.libraries
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, "out"]


def test_the_cuda_that_is_linked_bounds_the_driver(tmp_path: Path) -> None:
    library = device_library(code(80, 90), flags=["-Wl,--no-as-needed"])
    linked = fat_wheel(tmp_path, library=library, metadata="Requires-Dist: nvidia-cublas-cu12==12.9.*\n")
    (slimmed,) = slim([linked], tmp_path / "out", shares=SM_90)
    assert "nvidia :: cuda_version_lower_bound :: 12.0" in map(str, slimmed.properties)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([Share()], "nothing to do; expected GPUs to keep (--gpu, --variant), or --recompress, --strip or --drop"),
        (
            [Share.parse("a=80"), Share.parse("a=90")],
            "two variants are called a; expected a label for each",
        ),
    ],
)
def test_a_request_for_nothing_or_for_two_of_one_name_is_refused(
    tmp_path: Path, shares: list[Share], message: str
) -> None:
    with pytest.raises(RepackageError) as caught:
        slim([fat_wheel(tmp_path)], tmp_path / "out", shares=shares)
    assert str(caught.value) == message


def test_two_variants_for_the_same_gpus_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RepackageError, match="variants 'a' and 'b' would be for the same GPUs"):
        slim([fat_wheel(tmp_path)], tmp_path / "out", shares=[Share.parse("a=90"), Share.parse("b=90a")])
    assert not list((tmp_path / "out").glob("*"))


def test_two_wheels_of_one_name_and_empty_folders_are_refused(tmp_path: Path) -> None:
    first, second = fat_wheel(tmp_path / "a"), fat_wheel(tmp_path / "b")
    with pytest.raises(WheelError, match="both would become one file"):
        slim([first, second], tmp_path / "out", shares=plain("90"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(WheelError, match="no wheels in this folder"):
        slim([tmp_path / "empty"], tmp_path / "out", shares=plain("90"))


@pytest.mark.parametrize("library", [FAT, shared_object("int x;")], ids=["fat", "host code"])
def test_a_wheel_never_overwrites_itself(tmp_path: Path, library: bytes) -> None:
    fat = fat_wheel(tmp_path, library=library)
    before = fat.read_bytes()
    with pytest.raises(WheelError, match="would overwrite"):
        one(fat, tmp_path)
    assert fat.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize(
    ("needs", "gpus", "expected"),
    [
        ("nvidia-cublas-cu12", "90", "raw"),
        ("nvidia-cublas-cu13", "90", "zstd"),
        ("nvidia-cuda-runtime==13.0.96", "90", "zstd"),
        ("nvidia-cublas-cu12", "120", "zstd"),
        ("nvidia-cublas-cu12", "90,120", "raw"),
    ],
)
def test_variants_that_need_the_driver_anyway_are_compressed_again(
    needs: str, gpus: str, expected: str, tmp_path: Path
) -> None:
    fat = fat_wheel(tmp_path, library=device_library(code(90, 120)), metadata=f"Requires-Dist: {needs}\n")
    (slimmed,) = slim([fat], tmp_path / "out", shares=[Share.parse(f"x={gpus}")], cuts=Cuts(zstd=None))
    assert slimmed.path
    found = device_code(ElfImage.parse(members(slimmed.path)[LIBRARY])).containers[0].entries
    assert {entry.compression for entry in found} == {expected}
    (never,) = slim([fat], tmp_path / "never", shares=[Share.parse(f"x={gpus}")], cuts=Cuts(zstd=False))
    assert not never.libraries[0].is_recompressed


@pytest.mark.parametrize(("driver", "expected"), [("12.0", "raw"), ("12.4", "zstd"), ("13.0", "zstd")])
def test_what_a_variant_claims_already_says_whether_it_is_compressed_again(
    driver: str, expected: str, tmp_path: Path
) -> None:
    fat = fat_wheel(tmp_path, library=device_library(code(90, 120)))
    (first,) = slim([fat], tmp_path / "first", shares=[Share.parse("x=120")])
    assert first.path
    with open_wheel(first.path) as opened:
        text = opened.read(f"{opened.dist_info}/variant.json").decode()
    claimed = json.loads(text)
    claimed["variants"]["x"]["nvidia"]["cuda_version_lower_bound"] = [driver]
    share = msgspec.structs.replace(Share.parse("x=120"), document=Document.parse(json.dumps(claimed).encode()))
    (slimmed,) = slim([fat], tmp_path / "out", shares=[share], cuts=Cuts(zstd=None))
    assert slimmed.path
    found = device_code(ElfImage.parse(members(slimmed.path)[LIBRARY])).containers[0].entries
    assert {entry.compression for entry in found} == {expected}


def test_what_else_would_save_names_the_licence_that_has_to_be_accepted(tmp_path: Path) -> None:
    debug = shared_object('__asm__(".section .debug_x\\n.fill 300000,1,7\\n");')
    files = {"demo-1.0.dist-info/LICENSE": LICENCE, "demo/_D.so": debug}
    host = fat_wheel(tmp_path, files, library=shared_object("int x;"))
    idle = one(host, tmp_path / "out", "120")
    assert idle.is_untouched
    assert [saving.option for saving in idle.more] == ["--strip debug --accept-license demo"]
    with pytest.raises(RepackageError, match="--accept-license demo"):
        one(host, tmp_path / "out", strip=Strip.DEBUG)


def test_what_else_would_save_is_measured(tmp_path: Path) -> None:
    random_code = random.Random(0).randbytes(1 << 18)
    fat = fat_wheel(tmp_path, {"demo/x.a": random_code}, library=device_library(code(80, 90)))
    (slimmed,) = slim([fat], tmp_path / "out", shares=plain("90"))
    assert {saving.option for saving in slimmed.more} == {"--drop '*.a'"}
    assert slimmed.more[0].unpacked == len(random_code)
    debug = device_library(more=".section .debug_x\n.fill 300000,1,7\n")
    big = fat_wheel(tmp_path / "big", {"demo/_D.so": debug}, library=device_library(code(80, 90)))
    (slimmed,) = slim([big], None, shares=plain("90"))
    found = {saving.option: saving for saving in slimmed.more}
    assert found["--strip debug"].unpacked == 300000
    # of which next to nothing is more than debug sections
    assert "--strip unneeded" not in found
    (stripped,) = slim([big], None, shares=plain("90"), cuts=Cuts(strip=Strip.DEBUG))
    assert "--strip debug" not in {saving.option for saving in stripped.more}
    assert slimmed.unpacked - stripped.unpacked >= 300000
    names = "".join(
        f"static int s{number:x} = {number};\nint *p{number}(void) {{ return &s{number:x}; }}\n"
        for number in range(1500)
    )
    named = fat_wheel(tmp_path / "named", {"demo/_N.so": shared_object(names)}, library=device_library(code(80, 90)))
    slimmed, stripped = (one(named, tmp_path / strip, strip=strip) for strip in (Strip.NOTHING, Strip.UNNEEDED))
    (saving,) = (saving for saving in slimmed.more if saving.option == "--strip unneeded")
    assert saving.unpacked == pytest.approx(slimmed.unpacked - stripped.unpacked, rel=0.05)
    assert saving.packed == pytest.approx(slimmed.packed - stripped.packed, rel=0.2)
    assert not [saving for saving in stripped.more if saving.option.startswith("--strip")]


def test_a_wheel_loses_as_little_as_makes_it_fit_under_a_limit(tmp_path: Path) -> None:
    chance = random.Random(1)
    machine = [entry(arch=arch, code=cubin(arch, BIG) + chance.randbytes(BIG // 4) * 3) for arch in (75, 80, 90)]
    symbols = "".join(f"s{chance.getrandbits(64):x}: .byte {number % 256}\n" for number in range(400))
    debug = f".section .debug_x\n.byte {', '.join(map(str, chance.randbytes(BIG)))}\n"
    library = device_library(fatbin(*machine, entry(FatbinKind.PTX, 90)), more=f".data\n{symbols}{debug}")
    fat = fat_wheel(tmp_path, library=library)
    (gpus,) = (share.gpus for share in plain("90"))
    (newer,) = (share.gpus for share in plain("80,90"))
    steps = {
        "--recompress": (None, Strip.NOTHING),
        "--recompress --strip debug": (None, Strip.DEBUG),
        "--recompress --strip unneeded": (None, Strip.UNNEEDED),
        "--recompress --strip unneeded --gpu sm_80,sm_90 --ptx keep": (newer, Strip.UNNEEDED),
        "--recompress --strip unneeded --gpu sm_90": (gpus, Strip.UNNEEDED),
    }
    sizes = {}
    for how, (kept, strip) in steps.items():
        cuts = Cuts(zstd=True, strip=strip, ptx=Ptx.KEEP if how.endswith("keep") else Ptx.AUTO)
        (slimmed,) = slim([fat], tmp_path / how, shares=[Share(kept)], cuts=cuts)
        sizes[how] = slimmed.packed
    assert sorted(sizes.values(), reverse=True) == list(sizes.values())
    assert len(set(sizes.values())) == len(steps)
    for how, size in sizes.items():
        (fitting,) = slim([fat], tmp_path / "out" / str(size), shares=[Share(gpus)], limit=size)
        assert fitting.path
        assert (fitting.how.partition(" by ")[2], fitting.path.stat().st_size) == (how, size)
        assert [path.name for path in fitting.path.parent.iterdir()] == [NAME]
    smallest = min(sizes.values())
    with pytest.raises(RepackageError, match=r"kB is the least that --recompress --strip unneeded --gpu sm_90 leaves$"):
        slim([fat], tmp_path / "none", shares=[Share(gpus)], limit=smallest - 1)
    assert not list((tmp_path / "none").iterdir())
    (same,) = slim([fat], tmp_path / "same", shares=[Share()], limit=fat.stat().st_size)
    assert same.path
    assert same.path.read_bytes() == fat.read_bytes()
