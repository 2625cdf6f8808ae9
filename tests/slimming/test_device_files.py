"""Wheels with files that are nothing but GPU code: which stay, and what lists of them say afterwards."""

import json
import random
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard

from tests.factories.bundles import GFX90A, GFX942, HOST, bundle, compressed
from tests.factories.fatbins import entry, fatbin
from tests.factories.wheels import wheel
from tests.factories.workdir import file_digests
from tests.gpu_code.test_device_file import AMD, OLD, elf
from vbuild.api.looking import doctor
from vbuild.api.repackaging import slim, slim_environment, undo_slim
from vbuild.errors import RepackageError
from vbuild.hardware.gpu import GpuList
from vbuild.inspection.inspect import inspect
from vbuild.slimming.results import Slimmed

SM_80, SM_86, SM_90, SM_90A = (elf(flags, OLD) for flags in (0x500550, 0x560556, 0x5A055A, 0x5A0D5A))
SM_100 = elf(0x6006402)
PTX = b".version 8.0\n.target sm_80\n"
DEMO = "demo/__init__.py"


def slimmed(folder: Path, files: Mapping[str, bytes | str], gpus: str = "90") -> tuple[dict[str, bytes], Slimmed]:
    """The members of the slimmed wheel of *files*, and the result."""
    source = wheel(folder, files=files)
    (result,) = slim(source, folder / "out", gpus=gpus)
    assert result.path
    with zipfile.ZipFile(result.path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        listed = archive.read("demo-1.0.dist-info/RECORD").decode()
    assert all(name in listed for name in members)
    return members, result


def promised(source: Path, gpus: str) -> int:
    """The bytes by which `inspect` says that slimming makes the files of GPU code in the wheel *source* smaller."""
    (device,) = GpuList.asked(gpus).every
    return sum(gpu.size - gpu.outlook(device).kept for gpu in inspect(source).gpu_codes)


def test_a_file_stays_if_a_gpu_asked_for_can_run_it(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "demo/a.cubin": SM_80,
        "demo/b.cubin": SM_90,
        "demo/c.cubin": SM_90A,
        "demo/d.cubin": SM_100,
        "demo/e.ptx": PTX,
        "demo/f.co": elf(0x54C, AMD, 224),
        "demo/g.cubin.zst": zstandard.compress(SM_80),
    }
    members, result = slimmed(tmp_path, files)
    # AMD's stays: nobody named a GPU of theirs
    assert {*members} == {"demo/b.cubin", "demo/c.cubin", "demo/e.ptx", "demo/f.co"}
    assert {(cut.alone, cut.files, cut.gone) for cut in result.libraries} >= {("cubin for sm_80", 2, 2)}
    assert {*slimmed(tmp_path / "86", files, "86")[0]} == {
        "demo/a.cubin",
        "demo/e.ptx",
        "demo/f.co",
        "demo/g.cubin.zst",
    }
    both = {"demo/f.co": files["demo/f.co"], "demo/h.co": elf(0x53F, AMD, 224)}
    assert {*slimmed(tmp_path / "amd", both, "gfx90a")[0]} == {"demo/h.co"}


def test_a_wheel_that_would_keep_nothing_for_a_gpu_is_refused(tmp_path: Path) -> None:
    files = {"demo/a.cubin": SM_80, "demo/b.cubin": SM_86}
    with pytest.raises(RepackageError, match=r"b\.cubin: nothing for sm_90 in it or .* is for sm_86; choose among"):
        slimmed(tmp_path, files, "80,90")
    source = wheel(tmp_path / "let go", files=files)
    (result,) = slim(source, tmp_path / "let go" / "out", gpus="90", allow_unsupported=True)
    assert result.unpacked < result.unpacked_before


def test_a_file_that_is_a_container_is_cut_or_goes(tmp_path: Path) -> None:
    both = fatbin(entry(arch=80), entry(arch=90))
    files: dict[str, bytes | str] = {
        "demo/a.fatbin": both,
        "demo/b.fatbin": fatbin(entry(arch=80)),
        "demo/c.hsaco": bundle({HOST: b"", GFX90A: bytes(4096), GFX942: bytes(8192)}),
        "demo/d.fatbin": both[:100],
    }
    members, result = slimmed(tmp_path, files)
    assert members["demo/a.fatbin"] == fatbin(entry(arch=90))
    assert "demo/b.fatbin" not in members
    assert members["demo/d.fatbin"] == files["demo/d.fatbin"]
    assert any(cut.member == "demo/d.fatbin" and cut.why_whole for cut in result.libraries)
    amd, _ = slimmed(tmp_path / "amd", {"demo/c.hsaco": files["demo/c.hsaco"]}, "gfx942")
    assert len(amd["demo/c.hsaco"]) < len(files["demo/c.hsaco"])


def test_a_compressed_bundle_that_lies_stays_and_is_named(tmp_path: Path) -> None:
    data = bytearray(compressed(bundle({HOST: b"", GFX90A: bytes(4096), GFX942: bytes(8192)})))
    data[24] ^= 1  # its hash
    sound = compressed(bundle({HOST: b"", GFX90A: random.Random(1).randbytes(9000), GFX942: b"x" * 9000}))
    members, result = slimmed(tmp_path, {"demo/a.hsaco": bytes(data), "demo/b.hsaco": sound}, "gfx942")
    assert members["demo/a.hsaco"] == data
    plain = zstandard.ZstdDecompressor().decompress(members["demo/b.hsaco"][32:])
    assert plain == bundle({HOST: b"", GFX942: b"x" * 9000})
    assert "its hash is" in str(result.libraries[0].why_whole)


def test_what_contradicts_itself_stays_and_is_named(tmp_path: Path) -> None:
    members, result = slimmed(tmp_path, {"demo/kernel_sm90.cubin": SM_80, "demo/bad.cubin": elf(0xFF, OLD)})
    assert len(members) == 2
    assert {"name says sm90" in str(cut.why_whole) for cut in result.libraries} == {True, False}
    assert all(cut.why_whole for cut in result.libraries)


def triton(arch: int, code: bytes, said: object = None) -> dict[str, bytes | str]:
    """The files of an entry of Triton's cache, as Triton 3.5 names them."""
    about = {"target": {"backend": "cuda", "arch": said or arch, "warp_size": 32}, "name": "add"}
    names = ("add.ptx", "add.ttir", "add.ttgir", "add.llir", "add.source")
    texts: dict[str, bytes | str] = dict.fromkeys(names, f".version 8.0\n.target sm_{arch}\n")
    group = json.dumps({"child_paths": {name: f"/root/{arch}/{name}" for name in (*names, "add.cubin")}})
    entry_of = {"add.cubin": code, "add.json": json.dumps(about), "__grp__add.json": group, **texts}
    return {f"demo/cache/{arch}/{name}": data for name, data in entry_of.items()}


def test_an_entry_of_tritons_cache_goes_or_stays_as_a_whole(tmp_path: Path) -> None:
    old, new, lies = triton(80, SM_80), triton(90, SM_90), triton(86, SM_86, said=90)
    members, result = slimmed(tmp_path, old | new | lies)
    assert members.keys() == new.keys() | lies.keys()
    assert any(cut.gone == len(old) for cut in result.libraries)
    assert "add.cubin is for sm_86, though add.json says 90" in {cut.why_whole for cut in result.libraries}
    assert not result.warnings
    assert promised(result.wheel, "90") == result.unpacked_before - result.unpacked > 0
    place = tmp_path / "env"
    zipfile.ZipFile(wheel(tmp_path / "all", files=old | new)).extractall(place)
    assert doctor(place, gpus="90").saves == 0
    (done,) = slim_environment(place, gpus="90").distributions
    assert {Path(left.path).name for left in done.left} == {"add.cubin", "add.ptx"}
    assert all((place / path).exists() for path in old)


NAMED: dict[str, bytes | str] = {
    "demo/lib.sm_80.bc": b"BC\xc0\xde target-cpu sm_80",
    "demo/lib.sm_90.bc": b"BC\xc0\xde target-cpu sm_90",
    "demo/lonely.sm_80.bc": b"BC\xc0\xde",
    "demo/lib.sm_86.bc": b"BC\xc0\xde target-cpu ".ljust(1 << 20) + b"SM_75",
    "demo/Tensile_gfx90a.dat": b"gfx90a",
    "demo/Tensile_gfx942.dat": b"gfx942",
    "demo/Tensile_gfx90a_gfx942.dat": b"both",
    "demo/Tensile_fallback.dat": b"all",
    "demo/gfx90a.py": b"",
}


@pytest.mark.parametrize(
    ("gpus", "gone"),
    [
        ("90", {"lib.sm_80.bc"}),
        ("80", {"lib.sm_90.bc"}),
        ("gfx942", {"Tensile_gfx90a.dat"}),
        # of these none is for it: it may be given any
        ("120", set()),
        ("gfx1100", set()),
    ],
)
def test_a_file_named_by_its_gpu_goes_if_another_is_for_the_one_asked_for(
    tmp_path: Path, gpus: str, gone: set[str]
) -> None:
    members, result = slimmed(tmp_path, NAMED, gpus)
    assert NAMED.keys() - members.keys() == {f"demo/{name}" for name in gone}
    whys = {cut.why_whole for cut in result.libraries} - {None}
    assert whys == {"is for sm_86 by its name, but its bytes name sm_75"}
    went = sum(len(NAMED[f"demo/{name}"]) for name in gone)
    assert promised(result.wheel, gpus) == went
    place = tmp_path / "env"
    zipfile.ZipFile(wheel(tmp_path / "all", files=NAMED)).extractall(place)
    assert doctor(place, gpus=gpus).saves == went
    slim_environment(place, gpus=gpus)
    assert {path for path in NAMED if not (place / path).exists()} == {f"demo/{name}" for name in gone}


def rows(*paths: str) -> str:
    return "".join(f"{sha256(path.encode()).hexdigest()}  {path}\n" for path in paths)


def test_a_list_that_only_others_read_stays_as_it_is(tmp_path: Path) -> None:
    text = rows("a.cubin", "b.cubin")
    members, result = slimmed(tmp_path, {"demo/a.cubin": SM_80, "demo/b.cubin": SM_90, "demo/checksums.txt": text})
    assert members["demo/checksums.txt"].decode() == text
    assert "demo/checksums.txt still lists 1 file" in result.warnings[0]


def test_a_list_that_the_package_reads_is_kept_true(tmp_path: Path) -> None:
    listed = {
        "version": 1,
        "kernels": {"a.cubin": {"arch": 80}, "b.cubin": {"arch": 90}},
        "files": ["a.cubin", "b.cubin"],
    }
    files: dict[str, bytes | str] = {
        "demo/a.cubin": SM_80,
        "demo/b.cubin": SM_90,
        "demo/sums.txt": rows("a.cubin", "b.cubin"),
        "demo/manifest.json": json.dumps(listed, indent=2),
        DEMO: "open('sums.txt'), open('manifest.json')",
    }
    members, _ = slimmed(tmp_path, files)
    assert "demo/a.cubin" not in members
    assert members["demo/sums.txt"].decode() == rows("a.cubin", "b.cubin").splitlines(keepends=True)[1]
    left = json.loads(members["demo/manifest.json"])
    assert left == {"version": 1, "kernels": {"b.cubin": {"arch": 90}}, "files": ["b.cubin"]}
    assert members["demo/manifest.json"].startswith(b'{\n  "version": 1,\n')


@pytest.mark.parametrize(
    "files",
    [
        # a form that nobody can change, a list whose own hash is in the code, a hash of the file in the code
        {"demo/m.yaml": "kernels:\n  - name: a.cubin\n", DEMO: "m.yaml"},
        {"demo/m.txt": "a.cubin\n", DEMO: f"m.txt {sha256(b'a.cubin' + bytes([10])).hexdigest()}"},
        {DEMO: f"SUMS = ['{sha256(SM_80).hexdigest()}']"},
        {"demo/m.json": '{"text": "all of a.cubin and b.cubin"}', DEMO: "m.json"},
    ],
    ids=["form", "own hash", "hash in code", "text"],
)
def test_a_file_stays_if_its_list_cannot_be_kept_true(tmp_path: Path, files: dict[str, bytes | str]) -> None:
    members, result = slimmed(tmp_path, {"demo/a.cubin": SM_80, "demo/b.cubin": SM_90, **files})
    assert members["demo/a.cubin"] == SM_80
    assert any(cut.why_whole and not cut.gone for cut in result.libraries)


def test_a_container_whose_hash_is_listed_is_not_changed(tmp_path: Path) -> None:
    data = fatbin(entry(arch=80), entry(arch=90))
    files: dict[str, bytes | str] = {"demo/a.fatbin": data, "demo/sums.txt": f"{sha256(data).hexdigest()}  a.fatbin\n"}
    members, _ = slimmed(tmp_path, files)
    assert members["demo/a.fatbin"] == data


def test_variants_have_the_files_of_their_gpus(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {"demo/a.cubin": SM_80, "demo/b.cubin": SM_90}
    source = wheel(tmp_path, files=files)
    results = slim(source, tmp_path / "out", variants={"sm80": "80", "sm90": "90"})
    for result, name in zip(results, ("demo/a.cubin", "demo/b.cubin"), strict=True):
        assert result.path
        assert [path for path in zipfile.ZipFile(result.path).namelist() if path.endswith("cubin")] == [name]
    assert [str(prop) for prop in results[0].properties] == ["nvidia :: sm_arch :: 80_real"]


def test_what_is_installed_loses_the_same_files_and_gets_them_back(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "demo/a.cubin": SM_80,
        "demo/b.cubin": SM_90,
        "demo/c.cubin": elf(0x500550, OLD, behind=b"listed"),
        "demo/d.fatbin": fatbin(entry(arch=80), entry(arch=90)),
        "demo/e.fatbin": fatbin(entry(arch=80)) + b"more",
        "demo/checksums.txt": rows("a.cubin"),
        "demo/sums.txt": rows("c.cubin"),
        DEMO: "sums.txt",
    }
    place = tmp_path / "env"
    zipfile.ZipFile(wheel(tmp_path, files=files)).extractall(place)
    before, record = file_digests(place), place / "demo-1.0.dist-info/RECORD"
    lines = sorted(record.read_text().splitlines())
    promised = slim_environment(place, gpus="90", dry_run=True)
    assert file_digests(place) == before
    (done,) = slim_environment(place, gpus="90", backup=tmp_path / "old").distributions
    assert promised.distributions == (done,)
    there = {path.name for path in (place / "demo").iterdir()}
    assert there == {Path(name).name for name in files} - {"a.cubin"}
    assert (place / "demo/d.fatbin").read_bytes() == fatbin(entry(arch=90))
    assert [(Path(left.path).name, left.why) for left in done.left] == [
        ("c.cubin", "demo/sums.txt lists it, which the package reads"),
        ("e.fatbin", "fatbin of 0xd0 bytes in a file of 0xd4; expected nothing behind it"),
    ]
    assert next(line for line in lines if line not in record.read_text().splitlines()).startswith("demo/a.cubin,")
    undo_slim(tmp_path / "old")
    assert sorted(record.read_text().splitlines()) == lines
    assert {**file_digests(place), str(record.relative_to(place)): ""} == {**before, str(record.relative_to(place)): ""}
