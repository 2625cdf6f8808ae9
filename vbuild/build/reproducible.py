"""What of a wheel would have other bytes if it were built elsewhere, by somebody else, or on another day.

Compilers leave the build's folders out (`vbuild.build.wrappers`). What a build writes is found by its bytes: a folder,
a made-up name of a temporary file, the number of a process, the day. GPU code is decompressed. One build does not show
random order. https://reproducible-builds.org/docs/build-path/
"""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from msgspec import Struct

from vbuild.elf.image import ElfImage
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError
from vbuild.files.atomic import STAGE
from vbuild.files.records import Buffer
from vbuild.gpu_code.fatbin import decompressed
from vbuild.gpu_code.model import Compression, Vendor
from vbuild.gpu_code.survey import device_code
from vbuild.sbom.keeping import LARGEST
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.write import edit_wheel

# names that Python's tempfile, mktemp, gcc and pip make up
_MADE_UP = rb"(?:tmp[a-z0-9_]{8}|tmp\.\w{10}|cc(?!XXXXXX)\w{6}\.\w+|(?:pip|build|vbuild)-[\w-]+-[a-z0-9_]{8})(?![\w.-])"
_REST = rb"(?P<rest>(?:/[\w.+@-]+){0,8})"
_PROCESS = re.compile(rb"tmpxft_[0-9a-f]{8}_")  # a file in between of nvcc
_BILL = re.compile(r"[^/]+\.dist-info/sboms/.+\.json")  # PEP 770
# paths that other machines have, too
_COMMON = frozenset({"/", "/usr", "/usr/local"})


class Unreproducible(Struct, frozen=True):
    """A *file* of a wheel that would have other bytes elsewhere, and *why*."""

    file: str
    why: str


class BuildTraces(Struct, frozen=True):
    """What gives a build away: its *folders*, each with its replacement in binaries, and the *days* it took.

    The first folder that holds a path counts. Names below *temporary* are always new.
    """

    folders: tuple[tuple[str, str], ...] = ()
    temporary: str = "/tmp"  # noqa: S108 - the default of all programs
    days: tuple[str, ...] = ()

    @classmethod
    def of(cls, folders: Iterable[tuple[Path | None, str]], temporary: str | None, start: float) -> Self:
        there = [(path, name) for path, name in folders if path and path.parts]
        paths = {str(form): name for path, name in there for form in (path.absolute(), path.resolve())}
        moments = (time.gmtime(start), time.localtime(start), time.gmtime(), time.localtime())
        days = dict.fromkeys(time.strftime("%Y-%m-%d", moment) for moment in moments)
        telling = tuple((path, name) for path, name in paths.items() if path not in _COMMON)
        return cls(telling, temporary or cls().temporary, tuple(days))

    def patterns(self) -> Iterator[tuple[re.Pattern[bytes], str]]:
        """What is searched for, and what is said of it; ``{}`` stands for where a path leads."""
        for path, name in self.folders:
            yield (
                re.compile(re.escape(os.fsencode(path)) + rb"(?![\w.-])" + _REST),
                f"names a folder of its build: {name}{{}}",
            )
        # which a compiler cache may have of an earlier run
        yield re.compile(b"/" + re.escape(STAGE.encode()) + rb"[0-9a-f]{8}" + _REST), "names a folder of a build: …{}"
        temporary = re.escape(os.fsencode(self.temporary)) + b"/" + _MADE_UP
        yield re.compile(temporary + _REST), "names a temporary file of its build: …{}"
        yield _PROCESS, "has the number of a process of nvcc"
        for day in self.days:
            moment = time.strptime(day, "%Y-%m-%d")
            year, month, number = day.encode().split(b"-")
            # what is not part of a longer number, with the year in front, for which `re` looks fast
            forms = rb"%b%b(?<!\d.{8})|-%b-%b(?<!\d.{10})" % (month, number, month, number)
            yield re.compile(rb"%b(?:%b)(?!\d)" % (year, forms)), _DAY
            spoken = time.strftime("%b %d", moment).replace(" 0", "  ")  # as in ctime
            yield re.compile(rb"%b \d\d:\d\d:\d\d %d" % (spoken.encode(), moment.tm_year)), _DAY


_DAY = "has the day of its build"


def without_folders(wheel: Path, folder: Path, traces: BuildTraces) -> Path:
    """*wheel*, in *folder*, with names instead of folders in bills of materials such as maturin's."""
    with open_wheel(wheel) as source:
        edits: dict[str, bytes] = {}
        for member in source.members:
            if _BILL.fullmatch(member.path) and member.size <= LARGEST:
                data = text = source.read(member)
                for path, name in traces.folders:
                    for form in dict.fromkeys((json.dumps(path)[1:-1], path, quote(path))):
                        text = text.replace(os.fsencode(form), name.encode())
                if text != data:
                    edits[member.path] = text
        return edit_wheel(source, folder, source.name, edits=edits) if edits else wheel


def not_reproducible(
    wheel: Path, traces: BuildTraces, source: Path, *, has_gpu_code: bool
) -> tuple[Unreproducible, ...]:
    """The files of *wheel* that have one of *traces*, with the first reason; a day that *source* has is none."""
    patterns = tuple(traces.patterns())
    with open_wheel(wheel) as opened:
        record = f"{opened.dist_info}/RECORD"
        reasons = (
            (member.path, _trace(opened, member.path, patterns, source, has_gpu_code=has_gpu_code))
            for member in opened.members
            if member.path != record
        )
        return tuple(Unreproducible(path, why) for path, why in reasons if why)


def _trace(
    wheel: Wheel, path: str, patterns: tuple[tuple[re.Pattern[bytes], str], ...], source: Path, *, has_gpu_code: bool
) -> str:
    with wheel.mapped(path) as data:
        if why := _why(data, patterns, source):
            return why
        if has_gpu_code and bytes(data[: len(MAGIC)]) == MAGIC:
            codes = _gpu_code(data)
            return next((f"GPU code {why}" for code in codes if (why := _why(code, patterns, source))), "")
    return ""


def _why(data: Buffer, patterns: Iterable[tuple[re.Pattern[bytes], str]], source: Path) -> str:
    for pattern, why in patterns:
        for match in pattern.finditer(data):
            if why != _DAY:
                return why.format(os.fsdecode(match["rest"]) if "rest" in pattern.groupindex else "")
            if not _is_in(source, match[0]):
                return why
            break
    return ""


def _gpu_code(library: memoryview) -> Iterator[bytes]:
    try:
        entries = [
            entry for container in device_code(ElfImage.parse(library)).containers for entry in container.entries
        ]
    except BinaryError:
        return
    for entry in entries:
        if entry.vendor is Vendor.NVIDIA and entry.compression is not Compression.RAW:
            with suppress(BinaryError):
                yield decompressed(library, entry)


def _is_in(source: Path, text: bytes) -> bool:
    files = (Path(folder, name) for folder, _, names in os.walk(source) for name in names)
    return any(text in file.read_bytes() for file in files if file.is_file())
