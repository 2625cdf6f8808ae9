"""Libraries that need one another, by gcc, and the extension modules that load them, without Python's headers."""

import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.factories.elf import rpath
from tests.factories.once import once

# PyModuleDef as every CPython with a GIL has it
MODULE = """
struct { long refs; void *type, *init; long index; void *copy; const char *name, *doc; long size; void *rest[6]; }
definition = {1, 0, 0, 0, 0, "_c", 0, 0};
void *PyModuleDef_Init(void *);
void *PyInit__c(void) { return PyModuleDef_Init(&definition); }
"""


@once
def library(
    soname: str | None,
    needs: tuple[str, ...] = (),
    *,
    source: str = "int here;",
    rpath_: str = "",
    runpath: str = "",
    flags: tuple[str, ...] = (),
    stubs: str = "int there;",
    script: str = "",
    stub_script: str = "",
) -> bytes:
    """A library of that SONAME, linked against libraries called *needs*, each made of *stubs*.

    *script* and *stub_script* are version scripts for it and for them.
    """
    paths = rpath(rpath_, new=False) if rpath_ else rpath(runpath) if runpath else ()
    named = () if soname is None else (f"-Wl,-soname,{soname}",)
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/stub{number}.so" for number, _ in enumerate(needs)]
        for need, file in zip(needs, files, strict=True):
            Path(file).write_bytes(_stub(need, stubs, stub_script))
        more = ["-Wl,--no-as-needed", *files, *_script(Path(folder), script)]
        output = Path(folder, "output.so")
        _compiled(source, output, [*named, *paths, *flags, "-Wl,--allow-shlib-undefined", *more])
        return output.read_bytes()


def module(*needs: str, rpath_: str = "", runpath: str = "", source: str = "") -> bytes:
    """An extension module ``_c`` that can be imported, linked against libraries called *needs*."""
    return library(None, needs, source=MODULE + source, rpath_=rpath_, runpath=runpath)


def laid_out(folder: Path, files: Mapping[str, bytes]) -> Path:
    """*folder* with *files* in it."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        (folder / path).chmod(0o755)
    return folder


@once
def _stub(soname: str, source: str, script: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output.so")
        _compiled(source, output, [f"-Wl,-soname,{soname}", *_script(Path(folder), script)])
        return output.read_bytes()


def _script(folder: Path, text: str) -> list[str]:
    if not text:
        return []
    (folder / "versions").write_text(text)
    return [f"-Wl,--version-script={folder}/versions"]


def _compiled(source: str, output: Path, flags: Iterable[str]) -> None:
    command = ["gcc", "-shared", "-fPIC", "-o", str(output), "-x", "c", "-", "-x", "none", *flags]
    subprocess.run(command, input=source.encode(), check=True, capture_output=True)
