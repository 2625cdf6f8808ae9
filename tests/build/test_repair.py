"""auditwheel's command on wheels with real libraries in them."""

import ctypes
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.factories.wheels import contents, wheel
from vbuild.build.repair import repaired
from vbuild.recipe.model import Repair

INFO = "demo-1.0.dist-info"
LINUX = f"demo-1.0-cp311-cp311-linux_{os.uname().machine}.whl"

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="auditwheel is for Linux")


def library(folder: Path, text: str, *flags: str, name: str = "demo.so") -> bytes:
    (folder / "demo.c").write_text(text, encoding="utf-8")
    command = ["gcc", "-shared", "-fPIC", "demo.c", *flags, "-o", name]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / name).read_bytes()


def built(folder: Path, text: str = "int f(void) { return 1; }", *flags: str) -> Path:
    """A wheel as a backend leaves it, with one extension compiled from *text*."""
    work = folder / "built"
    work.mkdir()
    files = {"demo.cpython-311-x86_64-linux-gnu.so": library(work, text, *flags)}
    return wheel(work, LINUX, files)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_wheel_gets_the_tag_of_the_oldest_machine_it_runs_on(tmp_path: Path) -> None:
    result = repaired(built(tmp_path), tmp_path / "out", log=tmp_path / "log")
    assert result.parent == tmp_path / "out"
    assert "manylinux_2_" in result.name or "musllinux_1_" in result.name
    assert leftovers(tmp_path / "out") == [result.name]
    with zipfile.ZipFile(result) as archive:
        assert all(member.date_time[0] == 1980 for member in archive.infolist())


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_module_that_needs_no_c_library_is_repaired_too(tmp_path: Path, *, is_mixed: bool) -> None:
    work = tmp_path / "built"
    work.mkdir()
    alone = library(work, "int PyInit_demo(void) { return 1; }", "-nostdlib")
    files = {"demo.cpython-311-x86_64-linux-gnu.so": alone}
    if is_mixed:
        text = "#define _GNU_SOURCE\n#include <time.h>\nlong f(void) { return clock(); }"
        files["zlater.so"] = library(work, text, name="zlater.so")
    found = repaired(wheel(work, LINUX, files), tmp_path / "out", log=tmp_path / "log")
    assert "manylinux_2_" in found.name or "musllinux_1_" in found.name


def test_shared_libraries_come_along(tmp_path: Path) -> None:
    library(tmp_path, "int g(void) { return 2; }", "-Wl,-soname,libother.so", name="libother.so")
    flags = [f"-L{tmp_path}", "-lother", f"-Wl,-rpath,{tmp_path}"]
    source = built(tmp_path, "int g(void); int f(void) { return g(); }", *flags)
    results = [repaired(source, tmp_path / name, log=tmp_path / "log") for name in ("one", "another")]
    with zipfile.ZipFile(results[0]) as archive:
        grafted = [name for name in archive.namelist() if name.startswith("demo.libs/libother-")]
        assert len(grafted) == 1
        assert not any(str(tmp_path).encode() in archive.read(name) for name in archive.namelist())
    assert results[0].read_bytes() == results[1].read_bytes()


def test_debug_information_is_left_out_of_own_and_grafted_libraries_if_asked(tmp_path: Path) -> None:
    text = "#include <stdio.h>\n#include <math.h>\nint g(void);"
    text += "static int own(void) { return g(); } int f(void) { return own(); }"
    library(
        tmp_path,
        text.replace("g(", "h(").replace("f(", "g(").replace("return h()", "return 2"),
        "-g3",
        "-Wl,-soname,libother.so",
        name="libother.so",
    )
    flags = ["-g3", "-Wl,-z,execstack", f"-L{tmp_path}", "-lother", f"-Wl,-rpath,{tmp_path}"]
    source = built(tmp_path, text, *flags)
    sizes: list[tuple[int, int]] = []
    sections = {}
    for strips in (False, True):
        out = tmp_path / f"{strips}"
        on_stripped = (lambda *pair: sizes.append(pair)) if strips else None
        result = repaired(source, out, log=tmp_path / "log", on_stripped=on_stripped)
        with zipfile.ZipFile(result) as archive:
            archive.extractall(out)
        files = [out / "demo.cpython-311-x86_64-linux-gnu.so", *out.glob("demo.libs/*")]
        texts = [subprocess.check_output(["readelf", "-SlsW", file], text=True) for file in files]
        sections[strips] = [(".debug_macro" in text, " own" in text, " RWE " in text) for text in texts]
        assert ctypes.CDLL(str(files[0])).f() == 2
    assert sections == {False: [(True, True, False)] * 2, True: [(False, True, False)] * 2}
    before, after = (
        sum(file.stat().st_size for file in (tmp_path / f"{strips}").rglob("*.so*")) for strips in (False, True)
    )
    assert sizes == [(before - after, before)]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("demo-1.0-py3-none-any.whl", Repair()),
        ("demo-1.0-cp311-cp311-macosx_11_0_arm64.whl", Repair()),
        (LINUX, Repair(skip=True)),
    ],
)
def test_a_wheel_with_nothing_to_repair_is_taken_over_as_it_is(name: str, settings: Repair, tmp_path: Path) -> None:
    source = wheel(tmp_path, name, {"demo.py": "x = 1\n"})
    result = repaired(source, tmp_path / "out", log=tmp_path / "log", settings=settings)
    assert result == tmp_path / "out" / name
    assert result.read_bytes() == source.read_bytes()
    assert leftovers(tmp_path / "out") == [name]
    assert not (tmp_path / "log").exists()


def test_a_recipe_has_a_command_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    source = wheel(tmp_path / "a b", LINUX, {"demo.py": "x = 1\n"})
    settings = Repair(command="cp {wheel} {dest_dir}/demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl")
    result = repaired(source, tmp_path / "o u t", log=tmp_path / "log", settings=settings)
    assert result.name == "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    before, after = contents(source), contents(result)
    assert {path for path in after if after[path] != before[path]} == {f"{INFO}/WHEEL", f"{INFO}/RECORD"}
    assert after[f"{INFO}/WHEEL"].endswith(b"Tag: cp311-cp311-manylinux_2_17_x86_64\n")
