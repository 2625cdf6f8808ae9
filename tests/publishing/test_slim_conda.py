"""Packages for conda that are slimmed: py-rattler solves and installs them, and nothing but the GPU code is another."""

import ctypes
import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.factories.conda_packages import PLACEHOLDER, Content, conda_package, json_in, members_of
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.rattler import Question, rattler_answer, rattler_answers
from tests.factories.tools import needs
from tests.factories.wheels import dist_info_of, everything, record_of
from tests.gpu_code.test_device_file import OLD, elf
from vbuild.binary.edits import Strip
from vbuild.cli.main import main
from vbuild.errors import RepackageError
from vbuild.publishing.conda.channel import index_channel
from vbuild.publishing.conda.slimming import slim_packages
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import Slimmed

pytestmark = needs("gcc")

STEM = "demo-1.0-cuda126_h1a2b3c4_3"
SITE = "lib/python3.11/site-packages"
WHEEL = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
LARGE = 1 << 15
FAT = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, LARGE)) for arch in (80, 90))))
SM_90 = Share.parse("any=90").gpus
INSTALLED = everything(WHEEL, {"demo/_C.so": FAT, "demo/__init__.py": b"label = 1\n"})
RECORD = f"{dist_info_of(WHEEL)}/RECORD"
INSTALLED |= {RECORD: record_of(INSTALLED, dist_info_of(WHEEL)).encode()}
FILES: dict[str, Content] = {
    **{f"{SITE}/{path}": data for path, data in INSTALLED.items()},
    "lib/libdemo.so": ("symlink", "python3.11/site-packages/demo/_C.so"),
    "lib/libtwin.so": ("hardlink", f"{SITE}/demo/_C.so"),
    "bin/demo-tool": f"#!{PLACEHOLDER}/bin/python\n".encode(),
}
LIBRARY = f"{SITE}/demo/_C.so"
FAMILY = (Share.parse("sm80=80,86"), Share.parse("sm90=90,90a"))


def slimmed(
    packages: Path, folder: Path | None, *shares: Share, cuts: Cuts | None = None, **options: Any
) -> list[Slimmed]:
    return list(slim_packages([packages], folder, shares=shares or (Share(SM_90),), cuts=cuts, fast=True, **options))


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
def test_only_the_gpu_code_and_what_lists_it_are_others(tmp_path: Path, ending: str) -> None:
    source = conda_package(tmp_path, STEM, FILES, ending=ending, prefixed={"bin/demo-tool": "text"})
    (result,) = slimmed(source, tmp_path / "out")
    made = tmp_path / "out/linux-64" / f"{STEM}.conda"
    assert (result.path, result.name) == (made, made.name)
    before, after = members_of(source), members_of(made)
    assert sorted(before) == sorted(after)
    changed = {path for path in before if before[path][1] != after[path][1]}
    assert changed == {LIBRARY, f"{SITE}/{RECORD}", "info/paths.json"}
    assert len(after[LIBRARY][1]) < len(FAT) - LARGE // 2
    for path, (entry_before, _) in before.items():
        entry_after = after[path][0]
        for field in ("mode", "mtime", "uid", "gid", "uname", "type", "linkname"):
            assert getattr(entry_before, field) == getattr(entry_after, field), (path, field)
    data = after[LIBRARY][1]
    digest = hashlib.sha256(data).hexdigest()
    stated = {row["_path"]: row for row in json_in(made, "paths.json")["paths"]}
    for path in (LIBRARY, "lib/libdemo.so", "lib/libtwin.so"):
        assert (stated[path]["sha256"], stated[path]["size_in_bytes"]) == (digest, len(data))
    assert (
        stated["bin/demo-tool"]
        == {row["_path"]: row for row in json_in(source, "paths.json")["paths"]}["bin/demo-tool"]
    )
    rows = after[f"{SITE}/{RECORD}"][1].decode()
    assert f",{len(data)}\n" in rows
    assert hashlib.sha256(rows.encode()).hexdigest() == stated[f"{SITE}/{RECORD}"]["sha256"]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name not in {"linux-64", "noarch"}] == []


def test_the_same_package_gives_the_same_bytes(tmp_path: Path) -> None:
    source = conda_package(tmp_path, STEM, FILES)
    made = [slimmed(source, tmp_path / name, *FAMILY) for name in ("one", "two")]
    assert [path.path.read_bytes() for path in made[0] if path.path] == [
        path.path.read_bytes() for path in made[1] if path.path
    ]


def test_a_family_is_preferred_where_it_fits_and_the_whole_package_serves_all_others(tmp_path: Path) -> None:
    source = conda_package(tmp_path, STEM, FILES)
    results = slimmed(source, tmp_path / "out", *FAMILY)
    assert [(result.name, result.depends) for result in results] == [
        ("demo-1.0-cuda126_h1a2b3c4_sm80_203.conda", ("__cuda_arch >=8.0,<9,!=8.7",)),
        ("demo-1.0-cuda126_h1a2b3c4_sm90_303.conda", ("__cuda_arch >=9.0,<10",)),
        (source.name, ()),
    ]
    whole = tmp_path / "out/linux-64" / source.name
    assert whole.read_bytes() == source.read_bytes()
    (made,) = [result.path for result in results if "sm90" in result.name]
    assert made
    index = json_in(made, "index.json")
    assert (index["build"], index["build_number"]) == ("cuda126_h1a2b3c4_sm90_303", 303)
    assert index["depends"] == ["__glibc >=2.17,<3.0.a0", "__cuda_arch >=9.0,<10"]
    kept = json_in(source, "index.json")
    assert {key: index[key] for key in kept.keys() - {"build", "build_number", "depends"}} == {
        key: kept[key] for key in kept.keys() - {"build", "build_number", "depends"}
    }
    machines = {"8.0": "sm80", "8.6": "sm80", "9.0": "sm90", "8.9": "sm80", "10.0": "", "7.5": "", None: ""}
    questions: list[Question] = [
        ("solve", {"channels": [(tmp_path / "out").as_uri()], "specs": [spec], "virtual": virtual_packages(arch)})
        for arch in machines
        for spec in ("demo", "demo * cuda126*")
    ]
    found = [one[0].split()[2] for one in rattler_answers(questions)]
    expected = [label for label in machines.values() for _ in range(2)]
    assert [build.removeprefix("cuda126_h1a2b3c4_").rpartition("_")[0] for build in found] == expected


def virtual_packages(arch: str | None) -> list[list[str]]:
    return [["__glibc", "2.36", "0"], *([["__cuda", "12.8", "0"], ["__cuda_arch", arch, "0"]] if arch else [])]


def test_what_is_installed_is_what_paths_json_says_and_can_be_loaded(tmp_path: Path) -> None:
    text = (
        f'.section .rodata\npath: .asciz "{PLACEHOLDER}/share/demo"\n.text\n.globl answer\nanswer: mov $42, %eax\nret'
    )
    library = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, LARGE)) for arch in (80, 90))), more=text)
    files = FILES | {"lib/libpath.so": library}
    source = conda_package(tmp_path, STEM, files, prefixed={"bin/demo-tool": "text", "lib/libpath.so": "binary"})
    results = slimmed(source, tmp_path / "out", *FAMILY)
    prefix = tmp_path / "environment"
    keys = {"channels": [(tmp_path / "out").as_uri()], "specs": ["demo"], "virtual": virtual_packages("9.0")}
    assert rattler_answer("install", **keys, prefix=str(prefix)) == ["demo 1.0 cuda126_h1a2b3c4_sm90_303"]
    (made,) = [result.path for result in results if "sm90" in result.name]
    assert made
    packed = members_of(made)
    assert (prefix / LIBRARY).read_bytes() == packed[LIBRARY][1] == (prefix / "lib/libdemo.so").read_bytes()
    cut = packed["lib/libpath.so"][1]
    assert len(cut) < len(library) - LARGE // 2
    # what a client does to a file with a placeholder
    here = str(prefix).encode()
    old = f"{PLACEHOLDER}/share/demo".encode() + b"\0"
    new = (here + b"/share/demo").ljust(len(old), b"\0")
    assert cut.count(old) == 1
    assert (prefix / "lib/libpath.so").read_bytes() == cut.replace(old, new)
    assert ctypes.CDLL(str(prefix / "lib/libpath.so")).answer() == 42


def test_a_library_whose_placeholder_a_cut_would_part_from_its_text_stays(tmp_path: Path) -> None:
    # the text goes on into what would be cut out
    code = cubin(90, LARGE)[: -len(PLACEHOLDER)] + PLACEHOLDER.encode()
    library = device_library(fatbin(entry(arch=90, code=code), entry(arch=80, code=cubin(80, LARGE))))
    files: dict[str, Content] = {"lib/libpath.so": library, "lib/libfat.so": FAT}
    source = conda_package(tmp_path, STEM, files, prefixed={"lib/libpath.so": "binary"})
    (result,) = slimmed(source, tmp_path / "out")
    assert result.path
    after = members_of(result.path)
    assert after["lib/libpath.so"][1] == library
    assert len(after["lib/libfat.so"][1]) < len(FAT)
    (account,) = [cut for cut in result.libraries if cut.member == "lib/libpath.so"]
    assert account.why_whole == (
        "clients put the prefix of their environment into it, and after the cut could not do that as before"
    )


@pytest.mark.parametrize(("mode", "cuts"), [("text", Cuts()), ("binary", Cuts(zstd=True))])
def test_a_placeholder_in_what_is_text_or_is_compressed_again_keeps_the_library(
    tmp_path: Path, mode: str, cuts: Cuts
) -> None:
    library = device_library(
        fatbin(*(entry(arch=arch, code=cubin(arch, LARGE)) for arch in (80, 90))),
        more=f'.section .rodata\n.asciz "{PLACEHOLDER}/lib"',
    )
    source = conda_package(tmp_path, STEM, {"lib/libpath.so": library}, prefixed={"lib/libpath.so": mode})
    (result,) = slimmed(source, None, cuts=cuts)
    assert result.libraries[0].why_whole
    assert result.unpacked == len(library)


def test_slimming_twice_is_slimming_once(tmp_path: Path) -> None:
    (first,) = slimmed(conda_package(tmp_path, STEM, FILES), tmp_path / "one")
    assert first.path
    (second,) = slimmed(first.path, tmp_path / "two")
    assert second.path
    assert second.why_untouched == "nothing in it to cut"
    assert second.path.read_bytes() == first.path.read_bytes()


def test_what_pins_the_whole_build_is_named(tmp_path: Path) -> None:
    conda_package(tmp_path / "in", STEM, FILES)
    pinning = {"depends": ["demo 1.0 cuda126_h1a2b3c4_3"]}
    conda_package(tmp_path / "in", "other-1.0-0_0", {"x": b"x"}, index=pinning, ending=".tar.bz2")
    results = slimmed(tmp_path / "in", tmp_path / "out", FAMILY[0])
    assert [result.warnings for result in results if result.why_untouched] == [
        ("other-1.0-0_0.tar.bz2 depends on this very build, and on no other of the family",),
        (),
    ]


def test_files_of_gpu_code_alone_go_with_the_links_to_them(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "share/a.cubin": elf(0x500550, OLD),
        "share/b.cubin": elf(0x5A055A, OLD),
        "share/link.cubin": ("symlink", "a.cubin"),
        "share/twin.cubin": ("hardlink", "share/a.cubin"),
    }
    info = {"info/has_prefix": f'{PLACEHOLDER} binary "share/a.cubin"\n{PLACEHOLDER} text bin/x\n'.encode()}
    (result,) = slimmed(conda_package(tmp_path, STEM, files, info=info), tmp_path / "out")
    assert result.path
    after = members_of(result.path)
    assert [path for path in after if path.startswith("share/")] == ["share/b.cubin"]
    assert [row["_path"] for row in json_in(result.path, "paths.json")["paths"]] == ["share/b.cubin"]
    assert after["info/files"][1] == b"share/b.cubin\n"
    assert after["info/has_prefix"][1] == f"{PLACEHOLDER} text bin/x\n".encode()


def test_a_package_without_gpu_code_is_copied_in_its_format_and_stripped_in_the_newer_one(tmp_path: Path) -> None:
    library = device_library(more=".text\nlocal: ret")
    source = conda_package(tmp_path / "in", STEM, {"lib/x.so": library, "lib/x.a": b"x"}, ending=".tar.bz2")
    (result,) = slimmed(source, tmp_path / "out", *FAMILY)
    assert (result.name, result.why_untouched) == (source.name, "its compiled files have no GPU code")
    assert (tmp_path / "out/linux-64" / source.name).read_bytes() == source.read_bytes()
    cuts = Cuts(strip=Strip.UNNEEDED, drop=("*.a",))
    (result,) = slimmed(source, tmp_path / "stripped", Share(), cuts=cuts)
    assert result.path
    assert result.path.name == f"{STEM}.conda"
    assert len(members_of(result.path)["lib/x.so"][1]) < len(library)
    assert "lib/x.a" not in members_of(result.path)


def test_the_channel_lists_what_is_in_it_as_another_indexer_does(tmp_path: Path) -> None:
    slimmed(conda_package(tmp_path, STEM, FILES), tmp_path / "out", *FAMILY)
    conda_package(tmp_path / "out/linux-64", "old-2.0-0_0", {"x": b"x"}, ending=".tar.bz2")
    result = CliRunner().invoke(main, ["index", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["channel"]
    assert [(item["subdir"], len(item["packages"])) for item in found] == [("linux-64", 4), ("noarch", 0)]
    ours = {item["subdir"]: json.loads(Path(item["path"]).read_text()) for item in found}
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    theirs = rattler_answer("index", folder=str(tmp_path / "copy"))
    for key, count in (("packages", 1), ("packages.conda", 3)):
        mine, others = ours["linux-64"][key], theirs["linux-64"][key]
        assert mine.keys() == others.keys()
        assert len(mine) == count
        for name, record in mine.items():
            for field in ("build", "build_number", "depends", "sha256", "size", "subdir"):
                assert record[field] == others[name][field]


def test_what_a_dry_run_says_is_what_comes_out_and_nothing_is_written(tmp_path: Path) -> None:
    source = conda_package(tmp_path / "in", STEM, FILES)
    command = ["slim", str(tmp_path / "in"), "--gpu", "90"]
    told = [
        CliRunner().invoke(main, [*command, *more, "--json"]) for more in (["--dry-run"], ["-o", str(tmp_path / "out")])
    ]
    dry, real = (json.loads(result.stdout)[0] for result in told)
    assert dry["unpacked"] == real["unpacked"]
    assert dry["packed"]["estimated"]
    assert dry["packed"]["after"] < dry["packed"]["before"] == source.stat().st_size
    assert (dry["path"], real["path"]) == (None, str(tmp_path / "out/linux-64" / source.name))
    assert dry["libraries"] == real["libraries"]
    shown = CliRunner().invoke(main, ["slim", str(source), "--variant", "sm90=90", "--dry-run"])
    assert "  asks for __cuda_arch >=9.0,<10\n" in shown.stdout


SDK = b"You may not copy, sell, rent, modify, or create derivative works of any portion of the SDK.\n"


@pytest.mark.parametrize(
    ("info", "index", "said"),
    [
        ({"info/licenses/LICENSE.txt": SDK}, {}, "info/licenses/LICENSE.txt, line 1: 'may not copy"),
        ({}, {"license": "LicenseRef-NVIDIA-Proprietary"}, "info/index.json: 'LicenseRef-NVIDIA-Proprietary'"),
    ],
)
def test_a_licence_that_forbids_changes_is_asked_for(
    tmp_path: Path, info: Mapping[str, bytes], index: Mapping[str, Any], said: str
) -> None:
    source = conda_package(tmp_path, STEM, {"lib/libdemo.so": FAT}, info=info, index=index)
    with pytest.raises(RepackageError, match="the licence forbids to modify what is in this package") as caught:
        slimmed(source, tmp_path / "out")
    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()
    (result,) = slimmed(source, tmp_path / "out", accept_license=True)
    assert result.warnings[0].startswith(f"accepted for you: {said}")


def test_the_output_is_read_by_zstd_and_unzip(tmp_path: Path) -> None:
    for tool in ("zstd", "unzip"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool}")
    (result,) = slimmed(conda_package(tmp_path, STEM, FILES), tmp_path / "out")
    assert result.path
    subprocess.run(["unzip", "-tq", result.path], check=True, capture_output=True)
    subprocess.run(["unzip", "-q", result.path, "-d", tmp_path / "zip"], check=True)
    frames = sorted((tmp_path / "zip").glob("*.zst"))
    assert len(frames) == 2
    subprocess.run(["zstd", "-tq", *frames], check=True)


def test_a_channel_that_is_wrong_gets_no_repodata(tmp_path: Path) -> None:
    for place, what in (
        (tmp_path / "flat", f"expected in a folder for its platform, {tmp_path / 'flat/linux-64'}"),
        (tmp_path / "other/linux-aarch64", "is for linux-64; expected in the folder of that name"),
    ):
        conda_package(place, STEM, {"x": b"x"})
        folder = tmp_path / place.relative_to(tmp_path).parts[0]
        with pytest.raises(RepackageError, match=what):
            index_channel(folder)
        assert list(folder.rglob("*.json*")) == []


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
def test_a_damaged_package_of_a_channel_is_named_once(tmp_path: Path, ending: str) -> None:
    package = conda_package(tmp_path / "linux-64", STEM, {"x": b"x"}, ending=ending)
    package.write_bytes(package.read_bytes()[:100])
    result = CliRunner().invoke(main, ["index", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"vbuild: linux-64: {package.name}: ")
    assert result.stderr.count(package.name) == 1
