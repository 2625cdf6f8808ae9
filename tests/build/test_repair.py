"""auditwheel's command on wheels with real libraries in them."""

import ctypes
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.factories.wheels import wheel
from vbuild.build.repair import repaired

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
