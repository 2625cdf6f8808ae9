"""DLLs that mingw links around fatbins, and what wine's loader finds when it loads them."""

import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from vbuild.pe.image import PeImage

MINGW = "x86_64-w64-mingw32-gcc"
_WINE = ("/usr/lib/wine/wine64", "/usr/lib/wine/wine", "wine64", "wine")

needs_mingw = pytest.mark.skipif(not shutil.which(MINGW), reason=f"{MINGW} is not installed")


def device_dll(
    *containers: bytes,
    section: str = ".nv_fatb",
    wrapped: Sequence[int] | None = None,
    gap: int = 0,
    more: str = "",
    flags: Sequence[str] = (),
) -> bytes:
    """A DLL with *containers* in *section*, labelled c0, c1 ..., *gap* bytes of zeros behind each, and *more* assembly.

    Wrappers point to the containers numbered in *wrapped*: each once by default. It exports answer(), which gives 42.
    """
    lines = [f'.section {section},"dr"']
    for number, container in enumerate(containers):
        lines += [".balign 8", f"c{number}:", *_bytes(container), *([f".zero {gap}"] if gap else [])]
    lines += ['.section .nvFatBi,"dw"', ".balign 8"]
    for number in range(len(containers)) if wrapped is None else wrapped:
        lines += [".long 0x466243b1", ".long 1", f".quad c{number}", ".quad 0"]
    lines += [
        ".text",
        ".globl answer",
        "answer:",
        "movl $42, %eax",
        "ret",
        ".section .drectve",
        '.ascii " -export:answer"',
    ]
    source = "\n".join([*lines, more, ""])
    folder = Path(mkdtemp(prefix="vbuild-dll-"))
    try:
        (folder / "a.s").write_text(source)
        command = [MINGW, "-shared", "-nostdlib", "-Wl,-e,0,--no-insert-timestamp", *flags, "-o", "a.dll", "a.s"]
        subprocess.run(command, cwd=folder, check=True)
        return (folder / "a.dll").read_bytes()
    finally:
        shutil.rmtree(folder)


def signed(data: bytes) -> bytes:
    """*data* with a certificate table at its end, as signtool appends it."""
    image = PeImage.parse(data)
    data += bytes(-len(data) % 8)
    certificate = struct.pack("<IHH", 24, 0x200, 2).ljust(24, b"\x5a")
    place = image.coff_at + 20 + 112 + 8 * 4
    return data[:place] + struct.pack("<II", len(data), len(certificate)) + data[place + 8 :] + certificate


def walked(data: bytes, folder: Path) -> list[str]:
    """What wine's loader maps of the DLL *data*: a line for each entry of each fatbin that a wrapper leads to."""
    (folder / "walked.dll").write_bytes(data)
    return run_on_wine("walked_fatbins.c", "walked.dll", folder=folder).splitlines()


def run_on_wine(source: str, *arguments: str, folder: Path) -> str:
    """What the program *source*, a file beside this one, prints under wine in *folder*."""
    program, environment = _wine()
    command = [program, str(_compiled(source)), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


@cache
def _wine() -> tuple[str, dict[str, str]]:
    program = next((found for name in _WINE if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("wine is not installed")
    prefix = Path(mkdtemp(prefix="vbuild-wine-"))
    environment = {**os.environ, "WINEPREFIX": str(prefix), "WINEDEBUG": "-all"}
    subprocess.run([program, "wineboot", "-i"], env=environment, check=True, capture_output=True)
    return program, environment


@cache
def _compiled(source: str) -> Path:
    program = Path(mkdtemp(prefix="vbuild-exe-")) / "program.exe"
    subprocess.run([MINGW, "-O2", "-o", program, Path(__file__).parent / source], check=True)
    return program


def _bytes(data: bytes) -> list[str]:
    return [".byte " + ",".join(map(str, data[start : start + 64])) for start in range(0, len(data), 64)]
