"""`vbuild slim` and `vbuild inspect` as a user meets them: what they refuse, and that they leave nothing behind."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.factories.commands import vbuild
from tests.factories.elf import shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.wheels import wheel

WIDTH = 80
NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
CUT, CLOSED, GONE, PURE, SHUT = (f"{name}-1.0-py3-none-any.whl" for name in ("cut", "closed", "gone", "pure", "shut"))
FAT = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 13)) for arch in (80, 90))))
SENTENCE = "You may not modify it, or create derivative works."
FAMILY = ("--variant", "sm80=80", "--variant", "sm90=90")


@pytest.fixture
def fat(tmp_path: Path) -> Path:
    """A folder with a fat wheel, and what else a command line may name by mistake."""
    wheel(tmp_path, NAME, {"demo/_C.so": FAT})
    wheel(tmp_path / "other", NAME, {"demo/_C.so": FAT})
    wheel(tmp_path, CLOSED, {"closed/_C.so": FAT, "closed-1.0.dist-info/LICENSE": SENTENCE})
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / CUT).write_bytes((tmp_path / NAME).read_bytes()[:-1])
    return tmp_path


def test_slim_says_what_is_left(fat: Path) -> None:
    result = vbuild("slim", NAME, "--gpu", "sm_90", "-o", "out", folder=fat)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == NAME
    assert {"    1 of 2 entries kept", "    sm_90: all of its GPU code"} < set(lines)
    assert max(map(len, lines)) <= WIDTH


def test_a_dry_run_needs_no_folder_and_writes_nothing(fat: Path) -> None:
    before = sorted(fat.rglob("*"))
    dry = vbuild("slim", NAME, "--gpu", "90", "--dry-run", "--json", folder=fat)
    (outcome,) = json.loads(dry.stdout)
    assert (dry.returncode, dry.stderr, outcome["path"]) == (0, "", None)
    assert vbuild("slim", NAME, "--gpu", "90", "--dry-run", "-o", "out", folder=fat).returncode == 0
    assert sorted(fat.rglob("*")) == before
    wet = vbuild("slim", NAME, "--gpu", "90", "-o", "out", "--json", folder=fat)
    assert json.loads(wet.stdout)[0]["libraries"] == outcome["libraries"]


def test_names_cannot_talk_to_the_terminal(tmp_path: Path) -> None:
    wheel(tmp_path, NAME, {"demo/\x1b[2J.so": FAT})
    for arguments in (("inspect", NAME), ("slim", NAME, "--dry-run", "--gpu", "90"), ("verify", NAME)):
        result = vbuild(*arguments, folder=tmp_path)
        refusal = f"vbuild: {NAME}: 'demo/\\x1b[2J.so': a path with a character that cannot be printed\n"
        assert (result.returncode, result.stdout, result.stderr) == (1, "", refusal)


NOTHING = "nothing for sm_100 in any of its fatbins (1), which have sm_80, sm_90"
REFUSALS = [
    (("--gpu", "sm_9"), "there is no GPU architecture 'sm_9'; did you mean sm_90?"),
    (
        ("--gpu", "100"),
        f"{NAME}: demo/_C.so: {NOTHING}; choose among those, or let it go with --allow-unsupported",
    ),
    (("other", "--gpu", "90"), f"other/{NAME}: called as {NAME}, and both would become one file; give them apart"),
]


@pytest.mark.parametrize("more", [("--json",), ("--json", "--dry-run")], ids=" ".join)
@pytest.mark.parametrize(("arguments", "said"), REFUSALS)
def test_what_slim_refuses_is_one_line_and_leaves_nothing(
    fat: Path, arguments: tuple[str, ...], said: str, more: tuple[str, ...]
) -> None:
    result = vbuild("slim", NAME, *arguments, "-o", "out", *more, folder=fat)
    # a GPU that there is not is a mistake of the command line, and may be told as one
    if result.returncode == 2:
        assert said in " ".join(result.stderr.split())
    else:
        assert (result.returncode, result.stderr) == (1, f"vbuild: {said}\n")
    assert result.stdout == ""
    assert not list(fat.glob("out/*"))


def test_one_refusal_does_not_hide_the_rest(fat: Path) -> None:
    wheel(fat, PURE, {"pure/__init__.py": ""})
    wheels = (CUT, CLOSED, NAME, GONE, PURE)
    result = vbuild("slim", *wheels, "--gpu", "90", "-o", "out", folder=fat)
    assert (result.returncode, result.stderr) == (1, "vbuild: 3 of 5 wheels refused\n")
    assert sorted(path.name for path in (fat / "out").iterdir()) == sorted([NAME, PURE])
    vbuild("slim", NAME, "--gpu", "90", "-o", "alone", folder=fat)
    assert (fat / "alone" / NAME).read_bytes() == (fat / "out" / NAME).read_bytes()
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= WIDTH
    table = lines[lines.index("") :]
    fates = {line.split()[-1]: line.split()[0] for line in table if line.endswith(".whl")}
    assert fates == {NAME: "cut", PURE: "left", CUT: "refused", CLOSED: "refused", GONE: "refused"}
    why = " ".join(" ".join(table).split())
    for reason in ("truncated", "say so with --accept-license closed", "No such file", "runs on any machine"):
        assert reason in why
    told = json.loads(vbuild("slim", *wheels, "--gpu", "90", "-o", "told", "--json", folder=fat).stdout)
    assert {row["wheel"] for row in told if "refused" in row} == {CUT, CLOSED, GONE}


@pytest.mark.parametrize("pattern", ["closed", "Closed", "clos*"])
def test_a_licence_is_accepted_for_one_package_and_stated_of_that_alone(fat: Path, pattern: str) -> None:
    wheel(fat, SHUT, {"shut/_C.so": FAT, "shut-1.0.dist-info/LICENSE": SENTENCE})
    options = ("--gpu", "90", "-o", "out", "--accept-license", pattern, "--provenance", "--json")
    result = vbuild("slim", CLOSED, SHUT, NAME, *options, folder=fat)
    assert result.returncode == 1
    rows = {row["wheel"]: row for row in json.loads(result.stdout)}
    assert "--accept-license shut" in rows[SHUT]["refused"]
    assert (rows[CLOSED]["accepted"], rows[NAME]["accepted"]) == (["closed"], [])
    stated = {path.name.partition("-")[0]: "accept_license" in path.read_text() for path in fat.glob("out/*.json")}
    assert stated == {"closed": True, "demo": False}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("slim", CUT, "-o", "out", "--gpu", "90"), f"{CUT}: "),
        (("slim", NAME, "-o", "file/out", "--gpu", "90"), ": Not a directory"),
        (("slim", NAME, "-o", ".", "--gpu", "90"), "would overwrite the wheel it is made from; choose another folder"),
        (("inspect", NAME, "--html", "file/page.html"), "file/page.html: cannot be written: Not a directory"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line(fat: Path, arguments: tuple[str, ...], said: str) -> None:
    before = sorted(fat.rglob("*"))
    result = vbuild(*arguments, "--json", folder=fat)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("vbuild: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(path for path in fat.rglob("*") if path != fat / "out") == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("slim", NAME, "--gpu", "90"), "expected --output-dir FOLDER, or --dry-run"),
        (("slim", NAME, "--gpu", "90", "--variant", "a=90", "-o", "out"), "expected --gpu for one wheel, or --variant"),
        (("slim", NAME, "--variant", "90", "-o", "out"), "no variant '90'; expected a label and GPUs"),
        (
            ("slim", "--accept-license", NAME, "--gpu", "90", "-o", "out"),
            "expected the name of a project, or a pattern",
        ),
        (("inspect", NAME, NAME, "--html", "x.html"), "expected one wheel with --html"),
    ],
)
def test_usage_mistakes_are_status_2(fat: Path, arguments: tuple[str, ...], said: str) -> None:
    before = sorted(fat.rglob("*"))
    result = vbuild(*arguments, folder=fat)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())
    assert sorted(fat.rglob("*")) == before


def test_a_usage_mistake_is_a_sentence_and_where_help_is() -> None:
    result = vbuild("slim", "--gpu", "137", "x.whl")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "vbuild slim: Invalid value for '--gpu': there is no GPU architecture '137'; "
        "did you mean sm_107, sm_110, sm_120 or sm_121?\n"
        "'vbuild slim --help' explains its options.\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_wheel_that_may_not_be_read_and_a_folder_that_may_not_be_written(fat: Path) -> None:
    (fat / NAME).chmod(0)
    assert "cannot be read: Permission denied" in vbuild("slim", NAME, "--gpu", "90", "-o", "out", folder=fat).stderr
    (fat / "empty").chmod(0o500)
    assert "Permission denied" in vbuild("slim", f"other/{NAME}", "--gpu", "90", "-o", "empty", folder=fat).stderr


def test_new_members_get_the_time_of_source_date_epoch(fat: Path) -> None:
    for name, epoch in (("a", "1700000000"), ("b", "1700000000"), ("c", "1600000000")):
        assert vbuild("slim", NAME, *FAMILY, "-o", name, folder=fat, SOURCE_DATE_EPOCH=epoch).returncode == 0
    one, same, other = (next((fat / name).glob("*sm80.whl")).read_bytes() for name in "abc")
    assert one == same != other
    assert vbuild("slim", NAME, *FAMILY, "-o", "d", folder=fat, SOURCE_DATE_EPOCH="soon").returncode == 1
    assert not (fat / "d").exists()


def _on_an_index(fat: Path) -> dict[str, str]:
    """A package index with the wheel of *fat*, and the source of another project, as pip's configuration names it."""
    folder = fat / "index"
    for project, file, content in (("demo", NAME, (fat / NAME).read_bytes()), ("src", "src-1.0.tar.gz", b"")):
        (folder / project).mkdir(parents=True)
        (folder / project / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        (folder / project / "index.html").write_text(f'<a href="{file}#sha256={digest}">{file}</a>')
    return {"PIP_INDEX_URL": folder.as_uri(), "PIP_CONFIG_FILE": os.devnull}


def test_a_wheel_named_on_the_index_is_fetched_and_slimmed(fat: Path) -> None:
    result = vbuild("slim", "demo==1.0", "--gpu", "H100", "-o", "out", folder=fat, **_on_an_index(fat))
    assert (result.returncode, result.stderr) == (0, f"fetching {NAME}\n")
    assert [path.name for path in (fat / "out").iterdir()] == [NAME]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("demo==2.0", "demo==2.0: no such version, or yanked; there are wheels of 1.0"),
        ("src", "src: an sdist and no wheel: there is nothing to cut before it is built, as `vbuild matrix src` does"),
        ("gone", "gone: no such file or folder, and no project of this name on the package index"),
    ],
)
def test_a_name_without_a_wheel_says_what_there_is(name: str, message: str, fat: Path) -> None:
    result = vbuild("slim", name, "--gpu", "90", "-o", "out", folder=fat, **_on_an_index(fat))
    assert (result.returncode, result.stderr) == (1, f"vbuild: {message}\n")
    assert not (fat / "out").exists()


def test_slim_says_what_has_nothing_to_cut(fat: Path) -> None:
    (fat / "demo-1.0.tar.gz").write_bytes(b"")
    refused = vbuild("slim", "demo-1.0.tar.gz", "--gpu", "90", "-o", "out", folder=fat)
    assert refused.stderr == (
        "vbuild: demo-1.0.tar.gz: an sdist, the source of a release; expected a wheel, as `vbuild matrix` builds\n"
    )
    wheel(fat / "pure", "pure-1.0-py3-none-any.whl", {"pure/__init__.py": ""})
    wheel(fat / "pure", "host-1.0-py3-none-linux_x86_64.whl", {"host/_C.so": shared_object("int one;")})
    said = vbuild("slim", "pure", "--gpu", "90", "-o", "out", folder=fat).stdout
    assert "unchanged: it has no compiled file, and runs on any machine" in said
    assert "unchanged: its compiled files have no GPU code" in said


def test_hashes_that_record_lacks_are_named_and_written(fat: Path) -> None:
    """Tools that add a file to a finished wheel leave its hash out; pip and uv install such wheels."""
    name, info = "bare-1.0-py3-none-manylinux_2_28_x86_64.whl", "bare-1.0.dist-info"
    rows = [f"{info}/{each},," for each in ("METADATA", "WHEEL", "RECORD")]
    record = "".join(f"{row}\n" for row in ("bare/_C.so,,", *rows))
    wheel(fat / "bare", name, {"bare/_C.so": FAT}, record=record)
    # a process of its own has no other handler of warnings
    command = [sys.executable, "-m", "vbuild", "slim", f"bare/{name}", "--gpu", "90", "-o", "out"]
    said = subprocess.run(command, cwd=fat, capture_output=True, text=True, check=True)
    assert f"{name}: {info}/RECORD: has no hash of bare/_C.so and 2 others; mended in" in said.stderr
    with zipfile.ZipFile(fat / "out" / name) as archive:
        written = archive.read(f"{info}/RECORD").decode().splitlines()
    assert [row for row in written if row.endswith(",,")] == [f"{info}/RECORD,,"]
    for verb in ("inspect", "verify"):
        assert "has no hash of bare/_C.so and 2 others" in vbuild(verb, f"bare/{name}", folder=fat).stdout
