"""Disassembling real libraries, on one core."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Figure, Made, Wheel
from tests.benchmarks.measuring import Command, inside, printed

REACH = 20


def largest_library(folder: Path, wheel: Path) -> None:
    """The largest shared library of *wheel*, as *folder*/library."""
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if ".so" in member.filename]
        (folder / "library").write_bytes(archive.read(max(members, key=lambda member: member.file_size)))


def figures() -> Iterator[Figure]:
    for name, requirement, what in (
        ("speed", "numpy==2.4.6", "OpenBLAS for x86-64, code per second and core"),
        ("speed-polars", "polars-runtime-32==2.1.0", "polars"),
    ):
        library = Made(largest_library, others=(Wheel(requirement),))
        yield Figure(
            name=name,
            what=what,
            measure=printed(_scanning(library)),
            unit="MB/s",
            limit=REACH,
            more_is_better=True,
            pairs=1,
            inputs=(library,),
        )


def _scanning(library: Made) -> Command:
    return lambda setting: inside("scan_speed", setting.inputs[library] / "library")(setting)
