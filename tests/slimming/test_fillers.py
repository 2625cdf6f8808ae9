"""A fatbin must have an entry: one that slimming leaves for no GPU never counts as support, whatever follows."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import vbuild
from tests.factories.extensions import library, module
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.repaired_wheels import release as repaired_release
from tests.factories.variants import variant
from tests.factories.wheels import contents, wheel
from vbuild.elf.image import ElfImage
from vbuild.errors import RepackageError
from vbuild.gpu_code.coverage import Runs
from vbuild.gpu_code.fatbin import FatbinKind
from vbuild.gpu_code.survey import device_code, with_fillers
from vbuild.index_client.configuration import Indexes
from vbuild.mirroring.model import Cut
from vbuild.slimming.environment import slim_environment
from vbuild.slimming.in_place import undo
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.slim import slim
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import split
from vbuild.variants.stamp import stamped
from vbuild.verification.verify import verify
from vbuild.wheel.installed import Environment

NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
BIG = 1 << 14


def code(*archs: int) -> bytes:
    return fatbin(*(entry(arch=arch, code=cubin(arch, BIG)) for arch in archs))


# 60 has code in one of three, the others keep their smallest entry
FAT = device_library(code(75, 90), code(60, 75, 90), fatbin(entry(arch=75), entry(FatbinKind.PTX, 90)))
IN_PART = Cuts(unsupported=True)
COUNTS = "int count(void); int answer(void) { return count(); }"


def cut_to_60(folder: Path, cuts: Cuts = IN_PART) -> Path:
    fat = wheel(folder / "fat", NAME, {"demo/__init__.py": b"", "demo/_C.so": FAT})
    (slimmed,) = slim([fat], folder / "slim", shares=[Share.parse("b60=60")], cuts=cuts)
    assert slimmed.path
    return slimmed.path


def runs(place: Path, gpus: str) -> list[Runs | None]:
    (examined,) = vbuild.doctor([place], gpus=gpus).examined
    return [fit.runs for fit in examined.fits]


def test_a_mirror_takes_a_variant_as_good_as_the_original(tmp_path: Path) -> None:
    """What machines of a fleet get serves them as the published wheel does; nothing at all is refused as ever."""
    (library,) = vbuild.doctor([cut_to_60(tmp_path, Cut(gpus="60", label="b60").cuts)], gpus="60").examined
    assert library.fits[0].runs is Runs.IN_PART
    with pytest.raises(RepackageError, match="nothing for sm_50"):
        slim([tmp_path / "fat" / NAME], tmp_path / "none", shares=[Share.parse("b50=50")], cuts=Cut().cuts)


def test_what_is_no_variant_is_cut_and_says_how_much_serves_the_gpu(tmp_path: Path) -> None:
    fat = wheel(tmp_path, NAME, {"demo/_C.so": FAT})
    plain = (Share(Share.parse("x=60").gpus),)
    (slimmed,) = slim([fat], tmp_path / "out", shares=plain)
    assert [str(served) for served in slimmed.libraries[0].served] == ["1 of 3 fatbins"]
    with pytest.raises(RepackageError, match="only 1 of 3 fatbins"):
        slim([fat], tmp_path / "strict", shares=plain, cuts=Cuts(strict=True))


def test_ptx_that_serves_some_fatbins_only_is_not_claimed_for_all(tmp_path: Path) -> None:
    fat = wheel(tmp_path, NAME, {"demo/_C.so": FAT})
    with pytest.raises(RepackageError, match="only 1 of 3 fatbins have code for sm_120"):
        slim([fat], tmp_path / "out", shares=[Share.parse("b120=120")])


def again(path: Path, folder: Path) -> Path:
    (slimmed,) = slim([path], folder, shares=[Share()], cuts=Cuts(zstd=True))
    assert slimmed.path
    return slimmed.path


def with_other_label(path: Path, folder: Path) -> Path:
    return stamped(path, folder, variant=variant("other", "x86_64 :: level :: v3"))


def installed(path: Path, folder: Path) -> Path:
    plain = folder / NAME
    folder.mkdir()
    plain.write_bytes(path.read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(folder / "env"),
    ]
    subprocess.run([*command, str(plain)], check=True)
    return folder / "env"


def cut_again(path: Path, folder: Path) -> Path:
    (slimmed,) = slim([path], folder, shares=[Share.parse("b60=60")], cuts=replace(IN_PART, zstd=True))
    assert slimmed.path
    return slimmed.path


def test_a_library_that_split_edits_keeps_its_fillers(tmp_path: Path) -> None:
    top = library("libtop.so.1", source="int count(void) { return 41; }")
    (tmp_path / "libtop.so.1").write_bytes(top)
    linked = ("-Wl,--no-as-needed", str(tmp_path / "libtop.so.1"), "-fPIC")
    gpu = device_library(code(75, 90), code(60, 75, 90), flags=linked)
    files: dict[str, bytes | str] = {"demo/_c.so": module("libtop.so.1", source=COUNTS), "demo/_gpu.so": gpu}
    share = (Share(Share.parse("x=60").gpus),)
    wheels = repaired_release(tmp_path, files, {"libtop.so.1": top})
    cut = [slim([each], tmp_path / "slim", shares=share)[0].path for each in wheels]
    request = SplitRequest(smallest=0)
    made = split([*filter(None, cut)], tmp_path / "thin", request=request, indexes=lambda: Indexes(no_index=True))
    thin = made.wheels[0].path
    assert cut[0]
    assert thin
    assert contents(thin)["demo/_gpu.so"] != contents(cut[0])["demo/_gpu.so"]
    assert runs(thin, "60,75,90") == [Runs.IN_PART, Runs.NO, Runs.NO]


@pytest.mark.parametrize("step", [None, again, with_other_label, installed, cut_again])
def test_fillers_serve_no_gpu_whatever_is_done_to_the_wheel(
    step: Callable[[Path, Path], Path] | None, tmp_path: Path
) -> None:
    place = cut_to_60(tmp_path)
    place = step(place, tmp_path / "step") if step else place
    assert runs(place, "60,75,90,120") == [Runs.IN_PART, Runs.NO, Runs.NO, Runs.NO]


def test_what_is_slimmed_where_it_is_installed_says_so_until_it_is_undone(tmp_path: Path) -> None:
    env = installed(wheel(tmp_path, NAME, {"demo/__init__.py": b"", "demo/_C.so": FAT}), tmp_path / "step")
    before = {path: path.read_bytes() for path in env.rglob("*") if path.is_file()}
    share = Share(Share.parse("x=60").gpus)
    for _ in range(2):  # the second finds nothing to do, and forgets nothing
        slim_environment(Environment.at(env), share, Cuts(), backup=tmp_path / "backup")
        assert runs(env, "60,75,90,120") == [Runs.IN_PART, Runs.NO, Runs.NO, Runs.NO]
    record = (env / "demo-1.0.dist-info/RECORD").read_text()
    assert record.count("demo-1.0.dist-info/sboms/vbuild.cdx.json,sha256=") == 1
    undo(tmp_path / "backup")
    assert {path: path.read_bytes() for path in env.rglob("*") if path.is_file()} == before
    assert runs(env, "60,75,90") == [Runs.IN_PART, Runs.NATIVELY, Runs.PARTLY_JIT]


def test_a_cut_of_what_is_installed_adds_to_the_bill_of_its_wheel(tmp_path: Path) -> None:
    files = {"demo/a.so": device_library(code(60, 75, 90)), "demo/b.so": device_library(code(75, 90), code(75, 80))}
    fat = wheel(tmp_path, NAME, files)
    (slimmed,) = slim([fat], tmp_path / "slim", shares=(Share(Share.parse("x=75,80,90").gpus),))
    assert slimmed.path
    env = installed(slimmed.path, tmp_path / "step")
    before = {path: path.read_bytes() for path in env.rglob("*") if path.is_file()}
    slim_environment(Environment.at(env), Share(Share.parse("x=90").gpus), Cuts(), backup=tmp_path / "backup")
    fits = {library.path: library.fits for library in vbuild.doctor([env], gpus="75,90").examined}
    assert [fit.runs for fit in fits["demo/b.so"]] == [Runs.NO, Runs.IN_PART]
    undo(tmp_path / "backup")
    assert {path: path.read_bytes() for path in env.rglob("*") if path.is_file()} == before


def test_verify_names_the_gpu_that_was_asked_for_and_no_other(tmp_path: Path) -> None:
    verdict = verify(cut_to_60(tmp_path))
    assert [(str(served.device), served.runs) for library in verdict.gpus for served in library.served] == [
        ("sm_60", Runs.IN_PART)
    ]
    assert verdict.gpu == "in part, for 60_real"


@pytest.mark.parametrize(
    "text",
    [
        "1 of 2: 0",
        "1 of 3: 7",
        "2 of 3: 0",
        "1 of 3: 1",
        "all",
        "1 of 9999999: 0-9999999",
        "2 of 3: 0 0",
        "0 of 3: 2-0",
    ],
)
def test_a_bill_that_is_not_of_this_file_changes_nothing_and_is_named(text: str) -> None:
    code_ = device_code(ElfImage.parse(memoryview(FAT)))
    marked = with_fillers(code_, text)
    assert marked.containers == code_.containers
    assert marked.notes == (f"the bill of materials says {text!r} of fillers, not of this file",)
