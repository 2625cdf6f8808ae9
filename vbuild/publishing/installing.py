"""Where the files of a wheel are once it is installed, and the files that its installer makes anew.

    demo/_C.so                    lib/python3.11/site-packages/demo/_C.so     without a Python: site-packages/demo/_C.so
    demo-1.0.data/scripts/tool    bin/tool                                    python-scripts/tool
    demo-1.0.data/headers/x.h     include/python3.11/demo/x.h                 include/demo/x.h
    demo-1.0.data/data/share/x    share/x                                     share/x
    [console_scripts] demo = …    bin/demo                                    made by whoever installs it
                                  INSTALLER, and a RECORD of where everything went

As pip has it, but for ``.pyc`` files: they would take the Python that the files are for. What is not true any more is
left out: signatures of the old RECORD, and pip's marks of what was asked for, and from where.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/#installing-a-wheel-distribution-1-0-py32-none-any-whl
https://packaging.python.org/en/latest/specifications/entry-points/

The time that a layout's archives state: SOURCE_DATE_EPOCH, or else the newest METADATA's time of their wheels.
"""

import calendar
import posixpath
import re
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise

from msgspec import Struct

from vbuild.errors import RepackageError, at
from vbuild.files.epoch import OLDEST, source_date_epoch
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import Record, RecordRow, unpadded
from vbuild.wheel.paths import scheme_of
from vbuild.wheel.zip_read import Member

_SHEBANG = re.compile(rb"#!python[^\n]*\n?")
_SCRIPT_NAME = re.compile(r"\w[\w.\- ]*")
_REFERENCE = re.compile(r"(?P<module>\w+(\.\w+)*)\s*:\s*(?P<object>\w+(\.\w+)*)\s*(\[.*\])?")
_DROPPED = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json"})

# as pip has it, without what is for Windows alone
_PROGRAM = """#!{program}
import sys
from {module} import {root}
if __name__ == "__main__":
    sys.exit({object}())
"""


class InstallEnvironment(Struct, frozen=True):
    """What wheels are installed into, by *installer*: *folder* is what its Python's are called, ``python3.11``.

    Without one the client puts the files where its Python has them. *program* is what scripts begin with after ``#!``;
    where it *has_placeholder*, the client puts something else in its place, so that their hashes do not stay.
    """

    installer: str
    program: str
    folder: str | None
    has_placeholder: bool = False

    @property
    def site_packages(self) -> str:
        return f"lib/{self.folder}/site-packages" if self.folder else "site-packages"

    @property
    def scripts(self) -> str:
        return "bin" if self.folder else "python-scripts"

    @property
    def headers(self) -> str:
        return f"include/{self.folder}" if self.folder else "include"


class Script(Struct, frozen=True):
    """A command that a wheel's entry points declare."""

    name: str
    module: str
    object: str

    @property
    def text(self) -> str:
        """The line of entry_points.txt."""
        return f"{self.name} = {self.module}:{self.object}"

    def data(self, program: str) -> bytes:
        """The file that runs it by the Python *program*."""
        root = self.object.partition(".")[0]
        return _PROGRAM.format(program=program, module=self.module, root=root, object=self.object).encode()


class InstalledFile(Struct, frozen=True):
    """A file by its path below the environment's prefix: a member of the wheel as it is, or new bytes."""

    path: str
    content: Member | bytes
    is_executable: bool = False
    has_placeholder: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.size


def installed(wheel: Wheel, environment: InstallEnvironment) -> tuple[InstalledFile, ...]:
    """The files of *wheel* in *environment*, sorted by path.

    `RepackageError` where two would be one, and for what has no place there or is no entry point.
    """
    files = [_placed(wheel, member, environment) for member in wheel.members if not _is_dropped(wheel, member)]
    scripts = scripts_of(wheel)
    if environment.folder:
        files += [_program(script.data(environment.program), f"bin/{script.name}", environment) for script in scripts]
    dist_info = f"{environment.site_packages}/{wheel.dist_info}"
    files.append(InstalledFile(f"{dist_info}/INSTALLER", f"{environment.installer}\n".encode()))
    rows = [_row(wheel, file, environment) for file in files]
    if not environment.folder:
        rows += [RecordRow(_seen(f"bin/{script.name}", environment)) for script in scripts]
    rows = [*sorted(rows, key=lambda row: row.path), RecordRow(f"{wheel.dist_info}/RECORD")]
    files.append(InstalledFile(f"{dist_info}/RECORD", str(Record(tuple(rows))).encode()))
    files.sort(key=lambda file: file.path)
    if twice := next((one.path for one, other in pairwise(files) if one.path == other.path), None):
        raise RepackageError(f"{twice}: two files of this name; expected one")
    return tuple(files)


def scripts_of(wheel: Wheel) -> tuple[Script, ...]:
    """The commands in entry_points.txt of *wheel*, by name; `RepackageError` for what is no object reference."""
    with at(f"{wheel.dist_info}/entry_points.txt"):
        return tuple(_script(name, value) for name, value in sorted(wheel.scripts.references))


def _script(name: str, value: str) -> Script:
    match = _REFERENCE.fullmatch(value.strip())
    if not match or not _SCRIPT_NAME.fullmatch(name):
        raise RepackageError(f"no script {name!r} = {value!r}; expected name = module:object")
    return Script(name, match["module"], match["object"])


def _is_dropped(wheel: Wheel, member: Member) -> bool:
    folder, _, name = member.path.partition("/")
    return folder == wheel.dist_info and name in _DROPPED


def _placed(wheel: Wheel, member: Member, environment: InstallEnvironment) -> InstalledFile:
    """The file that *member* becomes."""
    scheme, rest = scheme_of(member.path)
    match scheme:
        case "purelib":
            return InstalledFile(f"{environment.site_packages}/{rest}", member, member.is_executable)
        case "scripts":
            path = f"{environment.scripts}/{rest}"
            if not _SHEBANG.match(wheel.head(member, len("#!python"))):
                return InstalledFile(path, member, is_executable=True)
            first = f"#!{environment.program}\n".encode()
            return _program(_SHEBANG.sub(lambda _: first, wheel.read(member), count=1), path, environment)
        case "headers":
            return InstalledFile(f"{environment.headers}/{wheel.name.distribution}/{rest}", member)
        case _:  # data: no wheel is opened that has another
            return InstalledFile(rest, member, member.is_executable)


def _program(data: bytes, path: str, environment: InstallEnvironment) -> InstalledFile:
    return InstalledFile(path, data, is_executable=True, has_placeholder=environment.has_placeholder)


def _row(wheel: Wheel, file: InstalledFile, environment: InstallEnvironment) -> RecordRow:
    path = _seen(file.path, environment)
    if file.has_placeholder:
        return RecordRow(path)
    if isinstance(file.content, bytes):
        return RecordRow(path, f"sha256={unpadded(sha256(file.content).digest())}", file.size)
    return RecordRow(path, wheel.row(file.content).hash, file.size)


def _seen(path: str, environment: InstallEnvironment) -> str:
    """Where the file at *path* is, seen from site-packages: three folders below the prefix, whatever the Python."""
    if path.startswith(f"{environment.site_packages}/"):
        return path.removeprefix(f"{environment.site_packages}/")
    if path.startswith("python-scripts/"):
        path = f"bin/{path.removeprefix('python-scripts/')}"
    return posixpath.join("../../..", path)


def moment_of(wheels: Iterable[Wheel]) -> int:
    """Returns the time of what is made of *wheels*, in seconds since 1970; without wheels it is 1980-01-01."""
    epoch = source_date_epoch()
    return max(map(_time, wheels), default=OLDEST) if epoch is None else epoch


def _time(wheel: Wheel) -> int:
    [header] = (member.header for member in wheel.members if member.path == f"{wheel.dist_info}/METADATA")
    date, time = header.date, header.time
    # archives made without a time have month and day 0; zip archives have no time zone
    day = (1980 + (date >> 9), min(max(date >> 5 & 0xF, 1), 12), max(date & 0x1F, 1))
    return calendar.timegm((*day, time >> 11, time >> 5 & 0x3F, (time & 0x1F) * 2))
