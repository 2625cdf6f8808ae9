"""Writing the wheels of a slim family from a real one (132 MB, one library of 237 MB), and what it takes.

    python -m tests.benchmarks.pressing [CACHE]

fetches the wheel into CACHE, or into a folder that is removed at the end. Out of its library go the GPU code entries
that a group of GPUs has no use for, as `vbuild slim` would have it but without its care: for the figures of the wheel
room alone. Prints one wheel against `wheel unpack` and `wheel pack`, the fast codec against the other, four wheels
against one, mapping the library against zipfile, and copying the wheel against cp.
"""

import contextlib
import shlex
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from elftools.elf.elffile import ELFFile

from tests.benchmarks.ratio import Command, paired, verdict
from vbuild.files.edited import EditedFile, Part
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.deflate import Codec, Deflater
from vbuild.wheel.write import write_wheel

REQUIREMENT, PATTERN = "xgboost==3.2.0", "xgboost-3.2.0-*.whl"
LIBRARY, LARGEST = "xgboost/lib/libxgboost.so", 236_823_337
GROUPS = ({90}, {80, 86, 89}, {100}, {120})
ROOT = Path(__file__).parents[2]
PEAK = LARGEST * 13 // 10 + 150_000_000
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of the entries
_ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, size of this header, size of what follows it, architecture
_MAGIC, _MACHINE_CODE = 0xBA55ED50, 2


def main(arguments: Sequence[str]) -> int:
    """0 where all figures are reached."""
    with contextlib.ExitStack() as stack:
        cache = Path(arguments[0]) if arguments else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wheel = fetched(cache)
        one, fast, four = (
            calling("family", wheel, groups, codec)
            for groups, codec in ((1, "libdeflate"), (1, "isal"), (len(GROUPS), "libdeflate"))
        )
        reached = [
            verdict(paired("one wheel vs wheel unpack + pack", one, repacking(wheel), rounds=1), reach=0.16, peak=PEAK),
            verdict(paired("the same, fast", fast, repacking(wheel), rounds=1), reach=0.11, peak=PEAK),
            verdict(paired("four wheels vs one", four, one), reach=1.7, peak=PEAK),
            verdict(paired("mapped vs zipfile", calling("mapped", wheel), calling("extracted", wheel)), reach=0.7),
            verdict(paired("a copy vs cp", calling("copied", wheel), lambda folder: ["cp", wheel, folder]), reach=9),
        ]
    return 0 if all(reached) else 1


def family(wheel: str, groups: str, codec: str) -> None:
    """Write into this folder a wheel for each of the first *groups* of GPUs."""
    here = Path()
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(open_wheel(Path(wheel)))
        press = stack.enter_context(Deflater(Codec(codec), folder=here, remembers=groups != "1"))
        wanted = GROUPS[: int(groups)]
        names = [source.name.labelled(f"sm{min(group)}") for group in wanted]
        writers = [stack.enter_context(write_wheel(here, name, deflater=press)) for name in names]
        for member in source.members:
            if member.path != LIBRARY:
                for writer in writers:
                    writer.copy(source, member)
                continue
            with source.mapped(member, folder=here) as view:
                for writer, group in zip(writers, wanted, strict=True):
                    writer.write(member, slimmed(view, group))
            press.forget()


def mapped(wheel: str) -> None:
    with open_wheel(Path(wheel)) as source, source.mapped(LIBRARY, folder=Path()) as view:
        print(len(view))


def extracted(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(LIBRARY)


def copied(wheel: str) -> None:
    with open_wheel(Path(wheel)) as source, write_wheel(Path(), source.name) as writer:
        for member in source.members:
            writer.copy(source, member)


def slimmed(view: memoryview, group: set[int]) -> EditedFile:
    """The library without the machine code that *group* does not name, and without PTX; no longer one that loads."""
    section = ELFFile(cast("IO[bytes]", Stream(view))).get_section_by_name(".nv_fatbin")
    if section is None:
        sys.exit("no GPU code in the library")
    start, end = section["sh_offset"], section["sh_offset"] + section["sh_size"]
    return EditedFile.of(view, [range(start), *containers(view, range(start, end), group), range(end, len(view))])


class Stream:
    """As much of a file as pyelftools asks for, without a copy of the whole."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.place = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.place = offset + (0, self.place, len(self.view))[whence]
        return self.place

    def tell(self) -> int:
        return self.place

    def read(self, size: int = -1) -> bytes:
        data = bytes(self.view[self.place :] if size < 0 else self.view[self.place : self.place + size])
        self.place += len(data)
        return data


def containers(view: memoryview, section: range, group: set[int]) -> Iterator[Part]:
    place = section.start
    while place < section.stop:
        magic, version, header, size = _CONTAINER.unpack_from(view, place)
        if magic != _MAGIC:
            place += 8
            continue
        kept = list(entries(view, range(place + header, place + header + size), group))
        yield _CONTAINER.pack(magic, version, header, sum(map(len, kept)))
        yield from kept
        place += header + size


def entries(view: memoryview, body: range, group: set[int]) -> Iterator[range]:
    place = body.start
    while place < body.stop:
        kind, _, header, size, arch = _ENTRY.unpack_from(view, place)
        if kind == _MACHINE_CODE and arch in group:
            yield range(place, place + header + size)
        place += header + size


def calling(function: str, *arguments: object) -> Command:
    """A Python that calls *function* of this file in a folder of its own."""
    call = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.benchmarks import pressing; pressing.{function}"
    return lambda _: [sys.executable, "-c", f"{call}(*sys.argv[1:])", *map(str, arguments)]


def repacking(wheel: Path) -> Command:
    tool = shlex.join([sys.executable, "-m", "wheel"])
    script = f"{tool} unpack {shlex.quote(str(wheel))} && {tool} pack --dest-dir . xgboost-3.2.0"
    return lambda _: ["sh", "-c", script]


def fetched(cache: Path) -> Path:
    """The wheel in *cache*, downloaded if it is not there."""
    if not list(cache.glob(PATTERN)):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", str(cache), REQUIREMENT], check=True)
    return min(cache.glob(PATTERN)).resolve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
