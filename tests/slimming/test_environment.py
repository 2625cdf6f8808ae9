"""GPU code cut out of installed packages: what changes, what stays, and that every moment in between is sound."""

import csv
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.factories.channels import indexed, package
from tests.factories.elf import shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.faults import COUNTING, Ended, Fault, Kind, calls, run
from tests.factories.rattler import rattler_answer
from tests.factories.tools import needs
from tests.factories.virtual_environments import VirtualEnvironment
from tests.factories.wheels import wheel
from tests.factories.workdir import file_digests
from vbuild.elf.image import ElfImage
from vbuild.errors import RepackageError
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.environment import slim_environment
from vbuild.slimming.in_place import JOURNAL, undo
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import SlimmedDistribution, SlimmedEnvironment
from vbuild.slimming.slim import slim
from vbuild.wheel.installed import Environment

TAG = "py3-none-manylinux_2_28_x86_64"
FAT = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 15)) for arch in (80, 90))))
OTHER = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 16)) for arch in (80, 90, 100))))
SENTENCE = "You may not modify it, or create derivative works."
SM_90 = Share(GpuList.parse("90"))

pytestmark = needs("gcc")


def installed(folder: Path) -> VirtualEnvironment:
    """Somebody with three packages in a venv, hard links to uv's cache; two of them have GPU code."""
    user = VirtualEnvironment.at(folder)
    wheel(folder, f"demo-1.0-{TAG}.whl", {"demo/__init__.py": b"x = 1\n", "demo/_C.so": FAT, "demo/_D.so": OTHER})
    wheel(folder, f"closed-1.0-{TAG}.whl", {"closed/_C.so": FAT, "closed-1.0.dist-info/LICENSE": SENTENCE.encode()})
    wheel(folder, f"pure-1.0-{TAG}.whl", {"pure/__init__.py": b"x = 1\n"})
    ran = user.tries("uv pip install --link-mode hardlink --offline --no-index -q ./*.whl")
    assert ran.returncode == 0, ran.stderr
    assert (user.site / "demo/_C.so").stat().st_nlink > 1
    return user


@pytest.fixture
def user(tmp_path: Path) -> VirtualEnvironment:
    return installed(tmp_path / "home")


def slimmed(user: VirtualEnvironment, **options: object) -> SlimmedEnvironment:
    return slim_environment(Environment.at(user.folder / "venv"), SM_90, Cuts(), **options)  # type: ignore[arg-type]


def distribution(result: SlimmedEnvironment, name: str) -> SlimmedDistribution:
    return next(one for one in result.distributions if one.project == name)


def why(user: VirtualEnvironment, name: str = "demo") -> dict[str, str]:
    """Why files of the distribution *name* were left, by their names."""
    return {Path(left.path).name: left.why for left in distribution(slimmed(user), name).left}


@contextmanager
def running(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the file at *path* mapped."""
    script = "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=1)"
    script += "; print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        yield process
        process.communicate("\n")


def architectures(path: Path) -> set[str]:
    containers = device_code(ElfImage.parse(path.read_bytes())).containers
    return {str(entry.arch) for container in containers for entry in container.entries}


def lies(folder: Path) -> list[str]:
    """The rows in RECORDs below *folder* that are not as the files are."""
    found = []
    for record in folder.rglob("*.dist-info/RECORD"):
        with record.open(newline="") as lines:
            for path, stated, size in csv.reader(lines):
                file = record.parent.parent / path
                digest = urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
                if stated and (stated, size) != (f"sha256={digest}", str(file.stat().st_size)):
                    found.append(str(file))
    return found


def test_installed_packages_keep_the_code_for_the_gpus_and_every_tool_finds_them_whole(
    user: VirtualEnvironment,
) -> None:
    cache = file_digests(user.folder / "cache")
    before = (user.site / "demo/_D.so").stat()
    result = slimmed(user)
    demo = distribution(result, "demo")
    assert {path.name: architectures(path) for path in (user.site / "demo").glob("*.so")} == {
        "_C.so": {"sm_90"},
        "_D.so": {"sm_90"},
    }
    after = (user.site / "demo/_D.so").stat()
    assert demo.saves > len(FAT) // 4
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert lies(user.folder / "venv") == []
    assert file_digests(user.folder / "cache") == cache
    assert result.linked >= len(FAT) + len(OTHER)
    for command in ("uv pip check", "pip check", "python -c 'import demo'", "pip uninstall -qy demo"):
        ran = user.tries(command)
        assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert not (user.site / "demo").exists()
    assert not any(user.site.glob("demo*"))


def test_lists_of_architectures_that_still_name_what_went_are_told_of(tmp_path: Path) -> None:
    said = shared_object('const char *flags(void) { return "sm_80 sm_90 compute_90"; }')
    texts = {"demo/archs.py": b"ARCHS = ['sm_80', 'sm_90']\n", "demo/one.py": b"ARCH = 'sm_80'\n"}
    wheel(tmp_path, f"demo-1.0-{TAG}.whl", {"demo/_C.so": FAT, "demo/_said.so": said, **texts})
    user = VirtualEnvironment.at(tmp_path)
    assert user.tries("uv pip install --offline --no-index -q ./*.whl").returncode == 0
    (warning,) = distribution(slimmed(user), "demo").warnings
    assert warning.startswith("architectures are listed in ")
    assert " and 1 more file, and still with sm_80: " in warning
    assert distribution(slimmed(user), "demo").warnings == ()


def test_a_dry_run_promises_what_a_run_does_and_writes_nothing(user: VirtualEnvironment) -> None:
    before = file_digests(user.folder / "venv")
    promised = slimmed(user, dry_run=True)
    assert file_digests(user.folder / "venv") == before
    done = slimmed(user)
    assert promised.distributions == done.distributions
    kept = {path.name: path.stat().st_size for path in (user.site / "demo").glob("*.so")}
    cuts = distribution(done, "demo").libraries
    assert {Path(cut.member).name: cut.after for cut in cuts} == kept


@pytest.mark.parametrize("times", [1, 2])
def test_undo_brings_every_byte_back(user: VirtualEnvironment, tmp_path: Path, times: int) -> None:
    before = file_digests(user.folder / "venv")
    everything = slim_environment(
        Environment.at(user.folder / "venv"), Share(GpuList.parse("90,100")), Cuts(), backup=tmp_path / "backup"
    )
    assert everything.after < everything.before
    if times > 1:
        slimmed(user, backup=tmp_path / "backup", accept_license=True)
    undone = undo(tmp_path / "backup")
    assert undone.left == ()
    assert file_digests(user.folder / "venv") == before
    assert not (tmp_path / "backup").exists()


def test_undo_leaves_what_was_installed_again(user: VirtualEnvironment, tmp_path: Path) -> None:
    slimmed(user, backup=tmp_path / "backup")
    (user.site / "demo/_C.so").unlink()
    (user.site / "demo/_C.so").write_bytes(b"new")
    undone = undo(tmp_path / "backup")
    assert [(Path(path).name, reason) for path, reason in undone.left] == [
        ("_C.so", "is not what slimming left there: installed again, or changed")
    ]
    assert (user.site / "demo/_D.so").read_bytes() == OTHER
    assert (tmp_path / "backup").exists()


def test_a_licence_that_forbids_changes_leaves_its_distribution_alone(user: VirtualEnvironment) -> None:
    left = why(user, "closed")
    assert "the licence forbids changes" in left["_C.so"]
    assert "--accept-license" in left["_C.so"]
    assert (user.site / "closed/_C.so").read_bytes() == FAT
    assert distribution(slimmed(user, accept_license=True), "closed").warnings
    assert architectures(user.site / "closed/_C.so") == {"sm_90"}


def test_a_bill_of_materials_says_what_became_of_a_library(user: VirtualEnvironment, tmp_path: Path) -> None:
    fat = wheel(tmp_path, f"billed-1.0-{TAG}.whl", {"billed/_C.so": OTHER})
    slim([fat], tmp_path / "out", shares=(Share(GpuList.parse("80,90")),), cuts=Cuts())
    assert user.tries(f"uv pip install --offline --no-index -q {tmp_path}/out/*.whl").returncode == 0
    place = user.site / "billed-1.0.dist-info/sboms/vbuild.cdx.json"
    before = (place.read_bytes(), (user.site / "billed-1.0.dist-info/RECORD").read_bytes())
    slimmed(user, backup=tmp_path / "backup")
    assert hashlib.sha256((user.site / "billed/_C.so").read_bytes()).hexdigest() in place.read_text()
    assert hashlib.sha256(OTHER).hexdigest() in place.read_text()
    assert lies(user.folder / "venv") == []
    undo(tmp_path / "backup")
    assert (place.read_bytes(), (user.site / "billed-1.0.dist-info/RECORD").read_bytes()) == before


def test_a_variant_keeps_the_gpus_that_it_claims(user: VirtualEnvironment, tmp_path: Path) -> None:
    fat = wheel(tmp_path, f"claimed-1.0-{TAG}.whl", {"claimed/_C.so": FAT})
    (made,) = slim([fat], tmp_path / "out", shares=(Share.parse("both=80,90"),), cuts=Cuts())
    assert made.path
    with zipfile.ZipFile(made.path) as archive:  # as installers that know variants do
        archive.extractall(user.site)
    assert why(user, "claimed") == {"_C.so": "a variant for nvidia GPUs already; install the one for yours"}


def test_a_read_only_file_is_left(user: VirtualEnvironment) -> None:
    (user.site / "demo/_C.so").chmod(0o555)
    assert why(user) == {"_C.so": "read-only; chmod u+w makes it writable"}
    assert (user.site / "demo/_C.so").read_bytes() == FAT


def test_a_file_that_a_process_runs_is_left(user: VirtualEnvironment) -> None:
    path = user.site / "demo/_C.so"
    with running(path) as process:
        found = why(user)
    assert found["_C.so"].startswith(f"in use by process {process.pid} (")
    assert path.read_bytes() == FAT


def test_a_file_that_a_process_runs_by_another_name_is_cut(user: VirtualEnvironment) -> None:
    """One installer, uv, links one file of its cache into many environments."""
    path = user.site / "demo/_C.so"
    linked = user.folder / "other" / "_C.so"
    linked.parent.mkdir()
    linked.hardlink_to(path)
    with running(linked):
        assert why(user) == {}
    assert architectures(path) == {"sm_90"}
    assert linked.read_bytes() == FAT


def test_links_out_of_the_environment_are_left_and_named(user: VirtualEnvironment, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.so").write_bytes(FAT)
    (user.site / "demo/_C.so").unlink()
    (user.site / "demo/_C.so").symlink_to(tmp_path / "elsewhere.so")
    shutil.move(user.site / "closed", tmp_path / "closed")
    (user.site / "closed").symlink_to(tmp_path / "closed")
    assert why(user) == {"_C.so": f"a link to {tmp_path}/elsewhere.so, outside of the environment"}
    assert why(user, "closed") == {"_C.so": "lies outside of the environment"}
    assert (tmp_path / "elsewhere.so").read_bytes() == (tmp_path / "closed/_C.so").read_bytes() == FAT


def test_a_file_that_is_not_what_record_says_is_left(user: VirtualEnvironment) -> None:
    (user.site / "demo/_C.so").unlink()
    (user.site / "demo/_C.so").write_bytes(FAT + b"more")
    assert why(user) == {"_C.so": "not what RECORD of demo 1.0 says; install it again"}


def test_a_file_of_two_distributions_is_left_unless_both_say_the_same(user: VirtualEnvironment) -> None:
    other = user.site / "other-1.0.dist-info"
    shutil.copytree(user.site / "demo-1.0.dist-info", other)
    for name in ("METADATA", "RECORD"):
        text = (other / name).read_text().replace("Name: demo", "Name: other").replace("demo-1.0", "other-1.0")
        (other / name).unlink()
        (other / name).write_text(text)
    before = (other / "RECORD").read_text()
    (row,) = [line for line in before.splitlines() if line.startswith("demo/_C.so")]
    (other / "RECORD").write_text(before.replace(row, "demo/_C.so,sha256=AAAA,3"))
    assert "several distributions own it (demo 1.0, other 1.0)" in why(user)["_C.so"]
    assert (user.site / "demo/_C.so").read_bytes() == FAT
    text = (other / "RECORD").read_text()
    (other / "RECORD").write_text(text.replace("demo/_C.so,sha256=AAAA,3", row))
    slimmed(user)
    after = {line for line in (other / "RECORD").read_text().splitlines() if line.startswith("demo/_")}
    assert after == {
        line for line in (user.site / "demo-1.0.dist-info/RECORD").read_text().splitlines() if "demo/_" in line[:6]
    }
    assert row not in after


def test_rows_of_files_elsewhere_are_passed_over_and_a_damaged_record_is_named(user: VirtualEnvironment) -> None:
    record = user.site / "demo-1.0.dist-info/RECORD"
    data = record.read_bytes() + b"/etc/hostname,,\n../../../../../../etc/passwd,sha256=AA,3\n"
    record.unlink()  # it is uv's, too
    record.write_bytes(data)
    assert distribution(slimmed(user), "demo").saves > len(FAT) // 4
    record.write_bytes(b"a,b,c,d\n")
    expected = "RECORD: line 1: 4 columns, expected path, hash and size"
    assert distribution(slimmed(user), "demo").why_left == expected


def test_what_has_no_record_or_is_editable_is_named(user: VirtualEnvironment) -> None:
    (user.site / "demo-1.0.dist-info/RECORD").unlink()
    source = {"url": "file:///src/pure", "dir_info": {"editable": True}}
    (user.site / "pure-1.0.dist-info/direct_url.json").write_text(json.dumps(source))
    result = slimmed(user)
    assert distribution(result, "demo").why_left == "no RECORD that can be read: No such file or directory"
    assert distribution(result, "pure").why_left == "editable: its code is in file:///src/pure"
    assert (user.site / "demo/_C.so").read_bytes() == FAT


def test_rows_of_record_keep_their_line_ends_and_their_order(user: VirtualEnvironment) -> None:
    record = user.site / "demo-1.0.dist-info/RECORD"
    lines = record.read_bytes().splitlines()
    record.unlink()
    record.write_bytes(b"".join(line + b"\r\n" for line in lines))
    slimmed(user)
    after = record.read_bytes()
    assert after.count(b"\r\n") == len(lines)
    assert [line.partition(b",")[0] for line in after.splitlines()] == [line.partition(b",")[0] for line in lines]
    assert lies(user.folder / "venv") == []


def test_the_tree_of_an_image_has_several_folders_of_packages(user: VirtualEnvironment, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for place in ("usr/lib/python3/dist-packages", "opt/app/packages"):
        shutil.copytree(user.site, tree / place)
    (tree / "usr/link").symlink_to(user.site)
    (tree / "etc").mkdir()
    result = slim_environment(Environment.at(tree), SM_90, Cuts())
    assert [one.saves > 0 for one in result.distributions if one.project == "demo"] == [True, True]
    assert lies(tree) == []
    assert (user.site / "demo/_C.so").read_bytes() == FAT


def test_conda_finds_the_hashes_of_a_prefix_true_and_removes_all_of_a_package(tmp_path: Path) -> None:
    """A package of a Python project has RECORD, too, which conda lists like any other file."""
    made = wheel(tmp_path, f"demo-1.0-{TAG}.whl", {"demo/__init__.py": b"", "demo/_C.so": OTHER})
    with zipfile.ZipFile(made) as demo:
        files = {f"lib/python3.12/site-packages/{name}": demo.read(name) for name in demo.namelist()}
    package(tmp_path / "channel", "demo", "1.0", "0", files={"lib/libdemo.so": FAT, "share/text": "text", **files})
    url = indexed(tmp_path / "channel")
    prefix = tmp_path / "prefix"
    rattler_answer("install", channels=[url], specs=["demo"], virtual=[], prefix=str(prefix))
    cache, before = file_digests(tmp_path / "prefix.cache"), file_digests(prefix)
    slim_environment(Environment.at(prefix), SM_90, Cuts(), backup=tmp_path / "backup")
    libraries = (prefix / "lib/libdemo.so", prefix / "lib/python3.12/site-packages/demo/_C.so")
    assert list(map(architectures, libraries)) == [{"sm_90"}] * 2
    assert (lies(prefix), _conda_lies(prefix)) == ([], [])
    assert file_digests(tmp_path / "prefix.cache") == cache
    after = file_digests(prefix)
    again = slim_environment(Environment.at(prefix), SM_90, Cuts())
    assert (again.before, file_digests(prefix)) == (again.after, after)
    undo(tmp_path / "backup")
    assert _conda_lies(prefix) == []
    meta = "conda-meta/demo-1.0-0.json"
    assert {**file_digests(prefix), meta: ""} == {**before, meta: ""}
    slim_environment(Environment.at(prefix), SM_90, Cuts())
    rattler_answer("install", channels=[url], specs=[], virtual=[], prefix=str(prefix))
    assert [path.name for path in prefix.rglob("*") if path.is_file()] == ["CACHEDIR.TAG", "history"]


def _conda_lies(prefix: Path) -> list[str]:
    """The files of *prefix* that are not as conda-meta says; both hashes are those that conda's doctor compares."""
    (meta,) = (prefix / "conda-meta").glob("*.json")
    entries = {entry["_path"]: entry for entry in json.loads(meta.read_text())["paths_data"]["paths"]}
    there = {str(path.relative_to(prefix)) for name in ("lib", "share") for path in (prefix / name).rglob("*")}
    assert set(entries) == {path for path in there if (prefix / path).is_file()}
    return [
        path
        for path, entry in entries.items()
        if hashlib.sha256((prefix / path).read_bytes()).hexdigest() != entry.get("sha256_in_prefix", entry["sha256"])
        or (prefix / path).stat().st_size != entry["size_in_bytes"]
    ]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nothing", "nothing: not there; expected a venv, a conda prefix, a folder of packages"),
        ("file", "file: a file; expected a venv, a conda prefix, a folder of packages"),
        ("home", "home: not an environment; expected a venv, a conda prefix, a folder of packages"),
    ],
)
def test_what_is_not_an_environment_is_refused(user: VirtualEnvironment, place: str, message: str) -> None:
    (user.folder.parent / "file").write_bytes(b"")
    with pytest.raises(RepackageError, match=message):
        Environment.at(user.folder.parent / place)


def _disturbed(user: VirtualEnvironment, fault: Fault, log: Path, *, is_undo: bool = False) -> Ended:
    place, backup = user.folder / "venv", user.folder / "backup"
    variables = fault.variables(place, log)
    if is_undo:
        return run("slim", "--undo", backup, folder=user.folder, variables=variables)
    arguments = ("slim", "--environment", place, "--gpu", "90", "--backup", backup)
    return run(*arguments, folder=user.folder, variables=variables)


def _check(user: VirtualEnvironment) -> None:
    """Each file is the old or the new one; the next run makes everything true; undo brings everything back."""
    fine = {"_C.so": (FAT, "demo/_C.so"), "_D.so": (OTHER, "demo/_D.so")}
    for old, path in fine.values():
        data = (user.site / path).read_bytes()
        assert data == old or architectures(user.site / path) == {"sm_90"}
    assert user.tries("uv pip check && python -c 'import demo'").returncode == 0
    slimmed(user, backup=user.folder / "backup")
    assert all(architectures(user.site / path) == {"sm_90"} for _, path in fine.values())
    assert lies(user.folder / "venv") == []
    # a stage of a run that was killed before it was known to live is empty, and stays for a day
    assert not [path for name in ("part-*", JOURNAL) for path in (user.folder / "venv").rglob(name)]
    assert undo(user.folder / "backup").left == ()
    assert all((user.site / path).read_bytes() == old for old, path in fine.values())


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many calls a run makes in the environment."""
    folder = tmp_path_factory.mktemp("counted")
    _disturbed(installed(folder / "home"), COUNTING, folder / "log")
    return len(calls(folder / "log"))


@pytest.mark.parametrize("kind", [Kind.SIGKILL, Kind.SIGINT])
@pytest.mark.parametrize("part", range(30))
@pytest.mark.sampled(1)
def test_a_run_that_ends_at_any_moment_leaves_each_file_old_or_new(
    user: VirtualEnvironment, tmp_path: Path, moments: int, kind: Kind, part: int
) -> None:
    # from the end: there the run changes something
    fault = Fault(max(1, moments - (part * 7) % moments), kind)
    ended = _disturbed(user, fault, tmp_path / "log")
    print(fault, ended)
    _check(user)


@pytest.mark.parametrize("part", range(6))
@pytest.mark.sampled(1)
def test_an_undo_that_is_killed_at_any_moment_leaves_what_the_next_run_makes_true(
    user: VirtualEnvironment, tmp_path: Path, part: int
) -> None:
    slimmed(user, backup=user.folder / "backup")
    shutil.copytree(user.folder, tmp_path / "again", symlinks=True)
    _disturbed(user, COUNTING, tmp_path / "count", is_undo=True)
    count = len(calls(tmp_path / "count"))
    shutil.rmtree(user.folder)
    (tmp_path / "again").rename(user.folder)
    # before the middle one file is back; at the end RECORD is written
    ended = _disturbed(user, Fault(count * (part + 3) // 9, Kind.SIGKILL), tmp_path / "log", is_undo=True)
    print(count, ended)
    _check(user)


def test_a_full_disk_leaves_listings_true(user: VirtualEnvironment, tmp_path: Path, moments: int) -> None:
    ended = _disturbed(user, Fault(moments // 2, Kind.ENOSPC, stays=True), tmp_path / "log")
    assert "No space left on device" in ended.refusal
    _check(user)


@pytest.mark.parametrize("kind", [Kind.OUT_GONE, Kind.TMP_GONE])
@pytest.mark.parametrize("part", range(30))
@pytest.mark.sampled(1)
def test_a_folder_that_somebody_removes_meanwhile_costs_no_file(
    user: VirtualEnvironment, tmp_path: Path, kind: Kind, part: int
) -> None:
    """The copies of what a run replaces are in *out*: without them it replaces no more, or says that they are gone."""
    (user.folder / "tmp").mkdir()

    def tried(fault: Fault, log: Path) -> Ended:
        arguments = ("slim", "--environment", user.folder / "venv", "--gpu", "90", "--backup", user.folder / "out")
        variables = {**fault.variables(user.folder, log), "TMPDIR": str(user.folder / "tmp")}
        return run(*arguments, folder=user.folder, variables=variables)

    shutil.copytree(user.folder, tmp_path / "whole", symlinks=True)
    tried(COUNTING, tmp_path / "count")
    count = len(calls(tmp_path / "count"))
    shutil.rmtree(user.folder)
    (tmp_path / "whole").rename(user.folder)
    ended = tried(Fault(max(1, count - (part * 7) % count), kind), tmp_path / "log")
    print(part, count, ended)
    assert ended.status == 0 or ended.refusal
    for old, path in ((FAT, "demo/_C.so"), (OTHER, "demo/_D.so")):
        assert (user.site / path).read_bytes() == old or architectures(user.site / path) == {"sm_90"}
    slimmed(user, backup=user.folder / "next")
    assert all(architectures(user.site / path) == {"sm_90"} for path in ("demo/_C.so", "demo/_D.so"))
    assert lies(user.folder / "venv") == []
