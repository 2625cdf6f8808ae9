"""`vbuild repair` on wheels with real libraries in them, as a project that runs cibuildwheel by itself calls it."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from installer.sources import WheelFile

from tests.factories.projects import KERNEL, tree
from tests.factories.tools import needs
from tests.factories.wheels import contents, everything, wheel
from vbuild.build.repair import repair
from vbuild.errors import BuildError, RecipeError, VbuildError, WheelError

LINUX = f"demo-1.0-cp311-cp311-linux_{os.uname().machine}.whl"
MODULE = "demo.cpython-311-x86_64-linux-gnu.so"

pytestmark = [
    pytest.mark.skipif(os.uname().sysname != "Linux", reason="auditwheel is for Linux"),
    needs("gcc"),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder and a folder for temporary files of the test's own."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def compiled(folder: Path, name: str, text: str, *flags: str, compiler: str = "gcc") -> bytes:
    """The shared library *name* that gcc makes of *text* in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", *flags, "-o", name]
    subprocess.run(command, cwd=folder, check=True, input=text.encode())
    return (folder / name).read_bytes()


def built(folder: Path, *needed: str, flags: tuple[str, ...] = ()) -> Path:
    """A wheel as a backend leaves it, whose module needs libraries called *needed*, which are nowhere."""
    work = folder / "work"
    for name in needed:
        compiled(work, name, "int needed;", f"-Wl,-soname,{name}")
    links = [f"-l:{name}" for name in needed]
    module = compiled(work, "demo.so", KERNEL, "-L.", "-Wl,--no-as-needed", *links, *flags)
    for name in needed:
        (work / name).unlink()
    return wheel(folder / "built", LINUX, {MODULE: module})


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


def test_one_portable_wheel_is_left_and_nothing_else(tmp_path: Path) -> None:
    source = built(tmp_path)
    before = source.read_bytes()
    result = repair(source, tmp_path / "out")
    assert left(tmp_path / "out") == [result.wheel.name]
    assert "manylinux_2_" in result.wheel.name or "musllinux_1_" in result.wheel.name
    assert source.read_bytes() == before
    assert left(tmp_path / "temporary") == []
    assert left(tmp_path / "here") == []


def test_a_library_that_is_nowhere_is_an_error_whose_log_is_kept(tmp_path: Path) -> None:
    source = built(tmp_path, "libnowhere.so")
    with pytest.raises(BuildError) as refusal:
        repair(source, tmp_path / "out")
    [log] = (tmp_path / "temporary").iterdir()
    assert str(refusal.value).startswith(f"auditwheel failed with status 1; its log is {log}, which ends:\n")
    assert 'required library "libnowhere.so" could not be located' in str(refusal.value)
    assert left(tmp_path / "out") == []


# a project's own settings, in the current folder or named
COPY = "cp {wheel} {dest_dir}/demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
PROJECT = f'[tool.vbuild.repair]\ncommand = "{COPY}"\n'


def test_a_fault_of_auditwheel_is_told_in_one_line_without_its_traceback(tmp_path: Path) -> None:
    """What auditwheel reads with raises an error of its own, which auditwheel does not expect."""
    whole = built(tmp_path)
    files = contents(whole)
    path, data = next((path, data) for path, data in files.items() if ".so" in path)
    name = "cut-1.0-cp311-cp311-linux_x86_64.whl"
    cut = wheel(tmp_path, name, {path: data[: len(data) // 3]})
    with pytest.raises(BuildError) as caught:
        repair(cut, tmp_path / "out")
    said = str(caught.value)
    assert said.startswith(f"{name}: auditwheel ended with ELFParseError: ")
    assert "repair.skip = true leaves auditwheel out; its log is " in said
    assert "\n" not in said
    assert "File " not in said
    assert "Traceback" in Path(said.rpartition(" ")[2]).read_text()
    assert left(tmp_path / "out") == []


def test_the_project_in_the_current_folder_says_how_but_runs_nothing_unless_it_is_named(tmp_path: Path) -> None:
    tree(tmp_path / "here", {"pyproject.toml": "[tool.vbuild.repair]\nskip = true\n"})
    assert "linux_" in repair(built(tmp_path), tmp_path / "out").wheel.name
    tree(tmp_path / "here", {"pyproject.toml": PROJECT})
    with pytest.raises(RecipeError) as refusal:
        repair(built(tmp_path), tmp_path / "other")
    assert str(refusal.value) == (
        "pyproject.toml: repair.command is a program to run, and nobody named this file; "
        "to run it: --recipe pyproject.toml"
    )
    result = repair(built(tmp_path), tmp_path / "other", recipe=Path("pyproject.toml"))
    assert result.wheel.name == "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text", ["", "[tool.other]\n", "[tool.vbuild.matrix]\ncpu = 1\n", "[project]\nname = 'demo'\n"]
)
def test_a_project_that_says_nothing_of_it_changes_nothing(text: str, tmp_path: Path) -> None:
    tree(tmp_path / "here", {"pyproject.toml": text})
    assert "linux_" in repair(built(tmp_path), tmp_path / "out").wheel.name


@pytest.mark.parametrize("name", ["recipe.toml", "project/pyproject.toml", "project"])
def test_a_recipe_that_is_named_comes_before_the_project(name: str, tmp_path: Path) -> None:
    tree(tmp_path / "here", {"pyproject.toml": '[tool.vbuild.repair]\ncommand = "false"\n'})
    files = {"recipe.toml": PROJECT.replace("tool.vbuild.", ""), "project/pyproject.toml": PROJECT}
    tree(tmp_path / "there", files)
    result = repair(built(tmp_path), tmp_path / "out", recipe=tmp_path / "there" / name)
    assert result.wheel.name == "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"


REFUSED: list[tuple[str, str, type[VbuildError], str]] = [
    (
        "",
        "demo-1.0-cp311-cp311-linux_x86_64-x86_64_v3.whl",
        BuildError,
        (
            "demo-1.0-cp311-cp311-linux_x86_64-x86_64_v3.whl: has the variant label 'x86_64_v3', which auditwheel does "
            "not know; expected the plain wheel: repair it first, then vbuild stamp"
        ),
    ),
    (
        "",
        "demo.tar.gz",
        WheelError,
        "'demo.tar.gz': not a wheel's file name: expected it to end in .whl",
    ),
    (
        "[tool.vbuild.repair]\nplatform = 'x'\n",
        LINUX,
        RecipeError,
        "pyproject.toml: tool.vbuild.repair.platform: no such key; known here: command, exclude, plat, sbom, skip",
    ),
    (
        "[tool.vbuild]\nrepair = 1\n",
        LINUX,
        RecipeError,
        "pyproject.toml: tool.vbuild.repair: expected a table, got 1",
    ),
    (
        "tool = ",
        LINUX,
        RecipeError,
        "pyproject.toml: not TOML: Invalid value (at end of document)",
    ),
    (
        "[tool.vbuild.repair]\ncommand = 'true'\n",
        LINUX,
        BuildError,
        f"repairing {LINUX} left no wheel, expected one wheel: let repair.command leave one; its log is LOG",
    ),
    (
        "[tool.vbuild.repair]\ncommand = 'cp {wheel} {dest_dir}/a-1-py3-none-any.whl; cp {wheel} {dest_dir}'\n",
        LINUX,
        BuildError,
        (
            f"repairing {LINUX} left a-1-py3-none-any.whl, {LINUX}, expected one wheel: let repair.command leave one; "
            f"its log is LOG"
        ),
    ),
]


@pytest.mark.parametrize(("project", "name", "kind", "message"), REFUSED)
def test_what_cannot_be_repaired_is_refused_and_leaves_nothing(
    project: str, name: str, kind: type[VbuildError], message: str, tmp_path: Path
) -> None:
    tree(tmp_path / "here", {"pyproject.toml": project})
    given = wheel(tmp_path / "built", LINUX)
    with pytest.raises(kind) as refusal:
        repair(given.rename(given.with_name(name)), tmp_path / "out", recipe=Path("pyproject.toml"))
    logs = [str(path) for path in (tmp_path / "temporary").iterdir()]
    assert str(refusal.value) == message.replace("LOG", logs[0] if logs else "")
    assert left(tmp_path / "out") == []


def test_a_wheel_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as refusal:
        repair(tmp_path / LINUX, tmp_path / "out")
    assert str(refusal.value) == f"{tmp_path / LINUX}: no such wheel"


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(BuildError) as refusal:
        repair(built(tmp_path), tmp_path / "out")
    assert str(refusal.value) == f"{tmp_path}/out: cannot be written: File exists"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", ["", "-march=x86-64-v3"])
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64")
def test_verify_is_an_audit_command(level: str, tmp_path: Path) -> None:
    """As cibuildwheel runs it: by its exit status, on the repaired wheel, with a level or without."""
    result = repair(built(tmp_path, flags=(level,) if level else ()), tmp_path / "out")
    command = [sys.executable, "-m", "vbuild", "verify", str(result.wheel)]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (audit.returncode, audit.stderr) == (0, "")
    assert ("[isa-above]" in audit.stdout) == bool(level)
    broken = tmp_path / "broken" / result.wheel.name
    broken.parent.mkdir()
    broken.write_bytes(result.wheel.read_bytes()[:-40])
    audit = subprocess.run([*command[:-1], str(broken)], capture_output=True, text=True, check=False)
    assert audit.returncode == 1
    assert audit.stderr.startswith(f"vbuild: {broken.name}: ")


NESTED = """
int call(int (*function)(int)) { return function(2); }
int answer(int x) { int inner(int y) { return x + y; } return call(inner); }
"""
SKIP = "[repair]\nskip = true\n"


def stack_of(data: bytes, folder: Path) -> str:
    (folder / "judged.so").write_bytes(data)
    shown = subprocess.run(["readelf", "-lW", folder / "judged.so"], check=True, capture_output=True, text=True).stdout
    [line] = [line for line in shown.splitlines() if "GNU_STACK" in line]
    return line.split()[-2]


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-Os", "-O2 -fcf-protection=full", "-O3 -march=x86-64-v3"])
@pytest.mark.parametrize(
    ("machine", "compiler"),
    [("x86_64", "gcc"), ("aarch64", "aarch64-linux-gnu-gcc"), ("armv7l", "arm-linux-gnueabihf-gcc")],
)
def test_an_executable_stack_is_cleared_where_no_trampoline_is_written(
    tmp_path: Path, machine: str, compiler: str, level: str
) -> None:
    if not shutil.which(compiler) or (machine != "x86_64" and ("march" in level or "cf-" in level)):
        pytest.skip(f"no {compiler}, or not its flags")
    (tmp_path / "recipe.toml").write_text(SKIP)
    needless, needed = (
        compiled(tmp_path, "x.so", code, *level.split(), "-Wl,-z,execstack", compiler=compiler)
        for code in ("int answer(int x) { return x; }", NESTED)
    )
    files = {"demo/needless.so": needless, "demo/needed.so": needed}
    source = wheel(tmp_path, f"demo-1.0-py3-none-linux_{machine}.whl", files)
    result = repair(source, tmp_path / "out", recipe=tmp_path / "recipe.toml")
    stacks = {path: stack_of(data, tmp_path) for path, data in contents(result.wheel).items() if path in files}
    is_known = machine != "armv7l"
    assert stacks == {"demo/needless.so": "RW" if is_known else "RWE", "demo/needed.so": "RWE"}
    assert [note.partition(", ")[0] for note in result.notes if "needed" in note] == [
        "demo/needed.so: wants an executable stack"
    ]
    assert (
        any("needless.so: executable stack cleared: no code in it writes a trampoline" in note for note in result.notes)
        is is_known
    )
    cleared = contents(result.wheel)["demo/needless.so"]
    changed = [cleared.index(b"\x51\xe5\x74\x64") + 4] if is_known else []
    assert [at for at, pair in enumerate(zip(cleared, needless, strict=True)) if len({*pair}) > 1] == changed
    if machine == "x86_64":
        (tmp_path / "judged.so").write_bytes(contents(result.wheel)["demo/needless.so"])
        assert ctypes.CDLL(str(tmp_path / "judged.so")).answer(7) == 7


def test_auditwheel_gets_a_record_that_is_right(tmp_path: Path) -> None:
    """It ends with FileNotFoundError for a row of what is not there, as wheels of ddtrace 2 have."""
    source = built(tmp_path)
    rows = contents(source)["demo-1.0.dist-info/RECORD"].decode()
    record = f"{rows}demo/gone.c,,\n"
    files = {path: data for path, data in contents(source).items() if "dist-info" not in path}
    result = repair(wheel(tmp_path / "odd", LINUX, files, record=record), tmp_path / "out")
    with WheelFile.open(result.wheel) as judged:
        judged.validate_record()


def test_tags_and_record_become_those_of_the_file(tmp_path: Path) -> None:
    name, other = "demo-1.0-cp311-cp311-win_amd64.whl", "demo-1.0-cp312-cp312-win_arm64.whl"
    files = everything(other, {"demo/a.py": "x = 1"})
    info = "demo-1.0.dist-info"
    source = wheel(tmp_path, name, {"demo/a.py": "x = 1", f"{info}/WHEEL": files[f"{info}/WHEEL"]}, record="")
    result = repair(source, tmp_path / "out")
    assert result.notes == (f"{info}/WHEEL: has the tags of the file name now, instead of cp312-cp312-win_arm64",)
    assert b"Tag: cp311-cp311-win_amd64\n" in contents(result.wheel)[f"{info}/WHEEL"]
    with WheelFile.open(result.wheel) as judged:
        judged.validate_record()
    again = repair(result.wheel, tmp_path / "again")
    assert (again.notes, again.wheel.read_bytes()) == ((), result.wheel.read_bytes())


def test_an_executable_stack_by_default_is_named_and_left(tmp_path: Path) -> None:
    code = compiled(tmp_path, "x.so", "int answer;")
    without = code.replace(b"\x51\xe5\x74\x64", bytes(4))
    assert code != without
    source = wheel(tmp_path, LINUX, {"demo/bare.so": without})
    (tmp_path / "recipe.toml").write_text(SKIP)
    result = repair(source, tmp_path / "out", recipe=tmp_path / "recipe.toml")
    assert result.wheel.read_bytes() == source.read_bytes()
    assert [note for note in result.notes if "it has no PT_GNU_STACK" in note] == list(result.notes)
    assert bool(result.notes) is (os.uname().machine == "x86_64")
