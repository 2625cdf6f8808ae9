"""Disassembling real libraries: one core, all cores, and `objdump -d` of the same file; and proving their dispatch."""

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.figure import Figure, Made, Peer, Setting, Wheel
from tests.benchmarks.measuring import Command, inside, printed, shell, timed

REACH, ARM_REACH = 20, 50


def largest_library(folder: Path, wheel: Path) -> None:
    """The largest shared library of *wheel*, as *folder*/library."""
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if ".so" in member.filename]
        (folder / "library").write_bytes(archive.read(max(members, key=lambda member: member.file_size)))


def _library(requirement: str, machine: str = "x86_64") -> Made:
    return Made(largest_library, others=(Wheel(requirement, machine=machine),))


OPENBLAS, POLARS = _library("numpy==2.4.6"), _library("polars-runtime-32==2.1.0")
# what asks the processor much
ASKING = {
    "OpenBLAS of numpy": OPENBLAS,
    "polars": POLARS,
    "cramjam": _library("cramjam==2.14.0"),
    "zstandard": _library("zstandard==0.25.0"),
    "cryptography": _library("cryptography==50.0.2"),
}
ARM = _library("scipy-openblas64==0.3.34.481.3", "aarch64")


def figures() -> Iterator[Figure]:
    for name, library, what in (
        ("objdump", OPENBLAS, "disassemble 20 MB of OpenBLAS"),
        ("objdump-polars", POLARS, "disassemble 111 MB of polars"),
    ):
        yield Figure(
            name=name,
            what=what,
            measure=timed(_of("scanned", library)),
            peer=Peer("`objdump -d`", timed(shell(f'objdump -d "$1/library" > {os.devnull}', library))),
            pairs=1,
            inputs=(library,),
            tools=("objdump",),
        )
    for name, library, reach, what in (
        ("speed", OPENBLAS, REACH, "OpenBLAS for x86-64, code per second and core"),
        ("speed-polars", POLARS, REACH, "polars"),
        ("speed-aarch64", ARM, ARM_REACH, "OpenBLAS for aarch64"),
    ):
        yield Figure(
            name=name,
            what=what,
            measure=printed(_of("scan_speed", library)),
            unit="MB/s",
            limit=reach,
            more_is_better=True,
            pairs=1,
            inputs=(library,),
        )
    for name, library, what in (
        ("cores", OPENBLAS, "all cores, OpenBLAS"),
        ("cores-polars", POLARS, "all cores, polars"),
    ):
        yield Figure(
            name=name,
            what=what,
            measure=printed(_of("scan_clock", library, "all")),
            peer=Peer("one core", printed(_of("scan_clock", library, "one"))),
            pairs=3,
            inputs=(library,),
        )
    for title, library in ASKING.items():
        yield Figure(
            name=f"proof-{title.split()[0].lower()}",
            what=f"prove what runs untested in {title}, disassembly included",
            measure=printed(_of("proof_speed", library)),
            unit="MB/s",
            limit=REACH,
            more_is_better=True,
            pairs=1,
            inputs=(library,),
            note="Code that asks the CPU is run instruction by instruction, in Python.",
        )


def _of(function: str, library: Made, *words: str) -> Command:
    """*function* of inside.py for the file that *library* made."""

    def command(setting: Setting) -> Sequence[str | Path]:
        return inside(function, setting.inputs[library] / "library", *words)(setting)

    return command
