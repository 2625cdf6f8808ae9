"""Environments and wheels with GPU code, and which GPUs it serves."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.factories.browser import Tags
from tests.factories.elf import shared_object
from tests.factories.extensions import library
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.pe_files import pe_file
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from tests.factories.windows import device_dll, needs_mingw
from vbuild.api.looking import doctor
from vbuild.api.repackaging import slim_environment
from vbuild.cli.doctor import checkup_lines
from vbuild.cli.main import main
from vbuild.errors import RepackageError
from vbuild.files.wording import sized
from vbuild.gpu_code.coverage import Runs
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.hardware.driver import Dotted

KERNEL = cubin(90, 500) + b".text.kernel"
FAT = device_library(fatbin(*(entry(arch=arch, code=KERNEL) for arch in (80, 90))))
BY_PTX = device_library(fatbin(entry(FatbinKind.PTX, 75, flags=FatbinFlag.ZSTD)))
OWN = "int answer(void); int own(void) { return answer(); }"
STUB = device_library(fatbin(entry(arch=75)))


def environment(folder: Path, files: Mapping[str, bytes | str], name: str = "demo-1.0-py3-none-any.whl") -> Path:
    """The folder of packages *folder* with the wheel of *files* unpacked into it."""
    made = wheel(folder.with_name("wheels"), name, files)
    with zipfile.ZipFile(made) as archive:
        archive.extractall(folder)
    return folder


def test_each_library_is_judged_for_each_gpu(tmp_path: Path) -> None:
    place = environment(tmp_path / "env", {"demo/a.so": FAT, "demo/b.so": BY_PTX, "demo/c.so": shared_object("int a;")})
    found = doctor(place, gpus="90,120,75")
    runs = {one.path: [fit.runs for fit in one.fits] for one in found.examined}
    # lowest first
    assert runs == {
        "demo/a.so": [Runs.NO, Runs.NATIVELY, Runs.NO],
        "demo/b.so": [Runs.JIT, Runs.JIT, Runs.JIT],
    }
    assert [one.path for one in found.unserved] == ["demo/a.so"]
    drivers = {one.path: [fit.oldest_driver for fit in one.fits] for one in found.examined}
    assert drivers["demo/b.so"] == [Dotted(12, 4), Dotted(12, 4), Dotted(12, 8)]
    assert drivers["demo/a.so"] == [None, Dotted(11, 8), None]


def test_two_contents_of_one_name_are_named_where_they_are_installed_together(tmp_path: Path) -> None:
    place = tmp_path / "env"
    for project, answer, soname in (
        *(("pa", 111, "libldap.so.2"), ("pb", 222, "libldap.so.2")),
        *(("pc", 1, "libgrafted-1a2b3c4d.so.2"), ("pd", 2, "libgrafted-1a2b3c4d.so.2")),
        *(("pe", 5, "libsame.so.1"), ("pf", 5, "libsame.so.1")),
        *(("pg", 1, "libcufft.so.11"), ("ph", 2, "libcufft.so.11")),  # whose maker promises that one does for all
    ):
        files = {
            f"{project}/x.so": library(None, (soname,), source=OWN, runpath=f"$ORIGIN/../{project}.libs"),
            f"{project}.libs/{soname}": (copy := library(soname, source=f"int answer(void) {{ return {answer}; }}")),
            f"{project}.libs/{soname}.0": copy,  # a link where it was built
        }
        environment(place, files, f"{project}-1.0-py3-none-any.whl")
    expected = (
        "pa 1.0 and pb 1.0: libldap.so.2 has other contents in each of these: a process has one of them, the first "
        "that is loaded, for both: pa.libs/libldap.so.2 and pb.libs/libldap.so.2; give it a name of its own: "
        "vbuild split --private WHEEL does"
    )
    assert doctor(place, gpus="90").notes == (expected,)
    program = "import ctypes; print([ctypes.CDLL(f'{path}/x.so').own() for path in sys.argv[1:]])"
    loaded = [str(place / project) for project in ("pa", "pb")]
    command = [sys.executable, "-c", f"import sys; {program}", *loaded]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[111, 111]\n"


def test_it_promises_what_slimming_saves(tmp_path: Path) -> None:
    place = environment(tmp_path / "env", {"demo/a.so": FAT})
    (one,) = doctor(place, gpus="90").examined
    assert one.saves == len(entry(arch=80, code=KERNEL))
    assert doctor(place, gpus="80,90").saves == 0
    # with nothing for a GPU it stays whole
    assert doctor(place, gpus="75").saves == 0


def test_a_saving_for_which_a_licence_has_to_be_accepted_is_said_apart(tmp_path: Path) -> None:
    licence = "You may not modify or create derivative works of any portion."
    large = KERNEL + bytes(300_000)
    fat = device_library(fatbin(*(entry(arch=arch, code=large) for arch in (80, 90))))
    place = environment(tmp_path / "env", {"demo/a.so": fat, "demo-1.0.dist-info/licenses/LICENSE": licence})
    found = doctor(place, gpus="90")
    assert (found.saves, found.saves_if_accepted) == (0, len(entry(arch=80, code=large)))
    assert [*checkup_lines(found)][-1] == "0.3 MB with --accept-license, as licences forbid changes: demo"
    refused, accepted = (slim_environment(place, gpus="90", dry_run=True, accept_license=word) for word in ((), "demo"))
    assert refused.before == refused.after
    assert accepted.before - accepted.after == pytest.approx(found.saves_if_accepted, rel=0.1)


@pytest.mark.parametrize("part", ["demo/a.so", "demo"])
def test_a_library_or_a_folder_of_some_is_judged_by_itself(tmp_path: Path, part: str) -> None:
    place = environment(tmp_path / "env", {"demo/a.so": FAT, "demo/b.py": "b = 1\n"})
    ((alone,), (installed,)) = (doctor(path, gpus="90").examined for path in (place / part, place))
    assert (alone.owner, alone.path) == (part.rpartition("/")[2], "a.so")
    assert (alone.size, alone.saves, alone.fits) == (installed.size, installed.saves, installed.fits)
    (note,) = doctor(place / part, gpus="90").notes
    assert note == f"{place / part}: files alone; vbuild slim cuts them in their wheel or environment"


@needs("skopeo", "umoci")
def test_an_image_that_is_packed_is_refused_with_the_command_that_unpacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment(tmp_path / "root/opt/site", {"demo/a.so": FAT})
    for folder in ("etc", "usr"):
        (tmp_path / "root" / folder).mkdir()
    for command in (
        "umoci init --layout made",
        "umoci new --image made:one",
        "umoci insert --rootless --image made:one root /",
        "skopeo copy --quiet oci:made:one docker-archive:saved.tar:demo:1",
        "skopeo copy --quiet oci:made:one oci-archive:podman.tar:demo:1",
        "cp saved.tar zipped.tar",
        "gzip zipped.tar",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    for name in ("saved.tar", "zipped.tar.gz", "podman.tar", "oci:made:one", "oci:made", "made"):
        with pytest.raises(RepackageError, match="an image that is packed; expected its tree") as refused:
            doctor(name, gpus="90")
        command = str(refused.value).rpartition("of: ")[2]
        subprocess.run(command, shell=True, check=True, capture_output=True)  # noqa: S602 - vbuild's own words
        (library,) = doctor("tree/rootfs", gpus="90").examined
        assert (library.owner, library.path) == ("demo 1.0", "demo/a.so")
        shutil.rmtree("tree")


def test_the_page_of_an_environment_says_what_each_command_saves(tmp_path: Path) -> None:
    large = KERNEL + bytes(300_000)
    fat = device_library(
        fatbin(*(entry(arch=arch, code=large) for arch in (80, 90))), more=f".section .debug_x\n.fill {1 << 17}, 1, 7\n"
    )
    place = environment(tmp_path / "env", {"demo/a.so": fat, "demo/again.so": fat})
    environment(place, {"other/a.so": FAT}, "other-1.0-py3-none-any.whl")
    doctor(place, gpus="90", html=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    root = json.loads(Tags(text).scripts[0])["root"]
    assert [package["name"] for package in root["children"]] == ["demo 1.0", "other 1.0"]
    assert root["size"] == sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    rows = re.findall(r"([\d.]+ [kM]?B)</td><td><div class=\"command\"><code>(.*?)</code>", text)
    assert len(rows) == 3
    for saves, words in rows:
        command = re.sub("</?span>", "", words).removeprefix("vbuild ")
        result = CliRunner().invoke(main, [*shlex.split(command), "--dry-run", "--json"])
        sizes = json.loads(result.output)["installed"]
        assert sized(sizes["before"] - sizes["after"]) == saves


def test_the_wheels_of_a_folder_are_examined_for_gpus_and_not_drawn_without_them(tmp_path: Path) -> None:
    wheel(tmp_path / "dist", "demo-1.0-py3-none-any.whl", {"demo/a.so": FAT})
    (library,) = doctor(tmp_path / "dist", gpus="90").examined
    assert (library.owner, library.path) == ("demo 1.0", "demo/a.so")
    place = environment(tmp_path / "env", {"demo/a.so": FAT})
    doctor([place, tmp_path / "dist"], html=tmp_path / "page.html")
    assert f'from <span class="path">{place}</span>' in (tmp_path / "page.html").read_text()
    with pytest.raises(RepackageError, match="html: 2 places; expected one for a page, besides folders of wheels"):
        doctor([place, place], html=tmp_path / "two.html")


def test_what_has_no_kernel_is_not_missed(tmp_path: Path) -> None:
    assert doctor(environment(tmp_path / "env", {"demo/a.so": STUB}), gpus="90").examined == ()


def test_device_files_are_one_row_that_no_gpu_fails_for(tmp_path: Path) -> None:
    ptx = {f"demo/{number}.ptx": ".version 8.0\n.target sm_90a\n" for number in range(3)}
    found = doctor(environment(tmp_path / "env", ptx), gpus="80,90")
    assert [(one.path, [fit.runs for fit in one.fits]) for one in found.examined] == [
        ("3 files of GPU code alone", [Runs.FOR_OTHERS, Runs.JIT])
    ]
    assert found.unserved == ()


def test_what_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    place = environment(tmp_path / "env", {"demo/a.so": FAT, "demo/b.so": FAT[:200], "demo/empty.so": b""})
    (place / "demo" / "gone.so").unlink(missing_ok=True)
    found = doctor(place, gpus="90")
    assert [one.path for one in found.examined] == ["demo/a.so"]
    assert any("demo/b.so" in note for note in found.notes)


def test_a_wheel_is_examined_as_well(tmp_path: Path) -> None:
    made = wheel(tmp_path, files={"demo/a.so": FAT, "demo/k.ptx": ".target sm_80\n".ljust(80)})
    found = doctor(made, gpus="90")
    assert [(one.path, one.fits[0].runs) for one in found.examined] == [
        ("demo/a.so", Runs.NATIVELY),
        ("a file of GPU code alone", Runs.JIT),
    ]


def test_a_folder_that_is_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError, match="not an environment"):
        doctor(tmp_path, gpus="90")


def test_the_command_fails_where_a_library_serves_nothing(tmp_path: Path) -> None:
    place = environment(tmp_path / "env", {"demo/a.so": FAT})
    good = CliRunner().invoke(main, ["doctor", str(place), "--gpu", "H100"])
    assert (good.exit_code, "native" in good.stdout) == (0, True)
    bad = CliRunner().invoke(main, ["doctor", str(place), "--gpu", "sm_75", "--json"])
    assert (bad.exit_code, bad.stderr.splitlines()[0].split(":")[1].strip()) == (1, "demo 1.0")
    (library,) = json.loads(bad.stdout)["libraries"]
    (gpu,) = library["gpus"]
    assert (gpu["gpu"], gpu["runs"], gpu["nothing"], gpu["driver"]) == ("sm_75", "no", 1, None)


@needs_mingw
def test_a_dll_is_examined_where_it_is_installed(tmp_path: Path) -> None:
    codes = [entry(arch=arch, code=KERNEL) for arch in (80, 90)]
    place = environment(tmp_path / "env", {"demo/a.dll": device_dll(fatbin(*codes))})
    (one,) = doctor(place, gpus="75,90").examined
    assert [(str(fit.device), fit.runs) for fit in one.fits] == [("sm_75", Runs.NO), ("sm_90", Runs.NATIVELY)]


def test_what_upx_has_packed_is_said_not_to_be_read(tmp_path: Path) -> None:
    packed = pe_file(sections=[(b"UPX0", 512)])
    place = environment(tmp_path / "env", {"demo/a.dll": packed})
    for examined in (doctor(place, gpus="90"), doctor(wheel(tmp_path, files={"demo/a.dll": packed}), gpus="90")):
        assert examined.examined == ()
        (note,) = examined.notes
        assert note.endswith("demo/a.dll: packed by UPX: what it unpacks is not read")
