"""Open a wheel: its archive, compared with RECORD.

    open_wheel(path) -> Wheel -> Member -> .read, .chunks
                                           .mapped -> a view of a large member, to be cut and written

Only this room opens zip archives; `vbuild.wheel.write` makes new ones, and `vbuild.wheel.distant` reads what lies
somewhere else.

https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import BinaryIO, TypeVar, cast

from vbuild.errors import WheelError, at
from vbuild.files.reading import open_file
from vbuild.files.records import Buffer
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.wheel.blocks import Blocks, InflatedFile
from vbuild.wheel.inflating import Stall
from vbuild.wheel.kept import KeptMembers
from vbuild.wheel.metadata import (
    Metadata,
    Record,
    RecordRow,
    WheelFile,
    check_dist_info,
    dist_info_of,
    unlisted,
    unpadded,
    wheel_headers,
)
from vbuild.wheel.name import WheelName
from vbuild.wheel.paths import check_eggs, check_placing, scripts_in
from vbuild.wheel.unpacking import fed, forget, mapped
from vbuild.wheel.zip_format import ZipMethod
from vbuild.wheel.zip_read import CHUNK, Member, ZipReader

T = TypeVar("T")
R = TypeVar("R")

# PEP 427: SHA-256 or better
_ALGORITHMS = ("sha256", "sha384", "sha512")
# as flit 0.8 and uv_build 0.8.12 had it; as many base64 digits are no hash of any of them
_HEXADECIMAL = re.compile(r"[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128}")
# bytes of what is read whole, RECORD excepted: the longest description there is has a hundredth of it
_READ_WHOLE = 1 << 23
# bytes of entry_points.txt: there are projects with a thousand
_LONGEST_POINTS = 1 << 18
# bytes of a row of RECORD besides its path: the longest hash, a size, commas, quotes, a line end; and a few more
_ROW, _BLANK = 160, 1 << 12
_SDISTS = (".tar.gz", ".zip", ".tar.bz2", ".tgz")
# up to here a member is mapped in memory alone, and hashed by the thread that inflates it
_SMALL = 1 << 20
# bytes of members that one thread takes at a time, and what each of them counts at least
_LOT, _SMALLEST = 1 << 23, 1 << 13


class Members:
    """The members of an archive that is open as *source*, by path."""

    def __init__(self, source: ZipReader) -> None:
        self.source = source
        self.members = source.members
        self._by_path = {member.path: member for member in self.members}

    def find(self, path: str) -> Member | None:
        return self._by_path.get(path)

    def known(self, member: Member | str) -> Member:
        """The member itself, or the one of that path; `WheelError` if there is none."""
        found = self.find(member) if isinstance(member, str) else member
        if found is None:
            raise WheelError(f"{member}: no such member")
        return found


class Wheel(Members):
    """A wheel open for reading, whose archive is sound and whose RECORD lists exactly its members."""

    def __init__(
        self, path: Path, source: ZipReader, *, kept: KeptMembers | None = None, sound: set[str] | None = None
    ) -> None:
        super().__init__(source)
        self.path = path
        self._kept = kept
        self._sound = set[str]() if sound is None else sound
        self.name = WheelName.parse(path.name)
        self._metadata: Metadata | None = None
        self._wheel_file: WheelFile | None = None
        self.comment = source.comment
        self.dist_info = _dist_info_in(source)
        check_dist_info(self.dist_info, self.name)
        source.check_layout()
        self._unlisted = unlisted(self.dist_info)
        self.record_path = f"{self.dist_info}/RECORD"
        if not (record := self.find(self.record_path)):
            raise WheelError(f"no RECORD in {self.dist_info}")
        # every character of a path may be written twice
        most = _BLANK + sum(_ROW + 2 * len(member.path.encode()) for member in self.members)
        self.record = parsed(Record.parse, whole(source, record, most=most), record.path)
        for name in ("METADATA", "WHEEL"):
            if not self.find(f"{self.dist_info}/{name}"):
                raise WheelError(f"no {name} in {self.dist_info}")
        self._rows = {row.path: row for row in self.record.rows}
        self._digests: dict[str, str] = {}
        self._learnt: dict[tuple[str, object], object] = {}
        self._check_record()
        # what installers refuse, or do not agree about
        points = f"{self.dist_info}/entry_points.txt"
        self.scripts = self._text(points, scripts_in, most=_LONGEST_POINTS) if self.find(points) else ()
        self._text(f"{self.dist_info}/WHEEL", wheel_headers)
        check_placing(self._by_path, self.dist_info, self.name, scripts=[name for name, _ in self.scripts])
        check_eggs(self._by_path, lambda path: self._text(path, str))

    def read(self, member: Member | str) -> bytes:
        """What *member*, or the member of that path, holds; `WheelError` as `chunks` has it, or if there is none."""
        return b"".join(self.chunks(member))

    def chunks(self, member: Member | str) -> Iterator[Buffer]:
        """The same in chunks of 1 MiB or less; `WheelError` after the last one unless CRC-32 and hash agree."""
        with at(self.path.name):
            found = self.known(member)
            if (view := self._view(found)) is None:
                yield from self._checked(found)
            else:
                yield from (view[start : start + CHUNK] for start in range(0, len(view), CHUNK))
                forget(view)

    def head(self, member: Member | str, size: int) -> bytes:
        """The first *size* bytes of *member*, or all it has, unchecked; none if it cannot be inflated."""
        with at(self.path.name):
            return self.source.head(self.known(member), size)

    @contextmanager
    def mapped(
        self, member: Member | str, *, folder: Path | None = None, to_edit: bool = False
    ) -> Iterator[memoryview]:
        """What *member* holds, read-only and checked as `chunks` does, in an unnamed file in *folder* if it is large.

        Only the pages looked at take memory, and the system may take them back. Views of it should be gone by the end
        of the block: the file takes its room on disk until the last one is. Of one *to_edit*, what stays can be copied
        into another wheel as it lies in this one.
        """
        with ExitStack() as stack:
            with at(self.path.name):
                found = self.known(member)
                if (view := self._view(found)) is None:
                    view = stack.enter_context(self._unpacked(found, folder, to_edit=to_edit))
            yield view
            forget(view)

    def learnt(self, member: Member, data: memoryview, learn: Callable[[memoryview], R]) -> R:
        """What *learn* makes of *data*, which *member* holds; for as long as the wheel is open it is asked once."""
        key = member.path, learn
        if key not in self._learnt:
            self._learnt[key] = learn(data)
        return cast(R, self._learnt[key])

    def packed_digest(self, member: Member) -> str:
        """The SHA-256 of *member* as it lies in the archive, compressed or not, in hexadecimal digits."""
        digest = hashlib.sha256()
        with at(self.path.name):
            for chunk in self.source.raw(self.source.data_offset(member), member.compressed_size):
                digest.update(chunk)
        return digest.hexdigest()

    def row(self, member: Member) -> RecordRow:
        """What RECORD says of *member*, a size or a hash that it lacks filled in; RECORD itself has neither."""
        if member.path in self._unlisted:
            return RecordRow(member.path)
        return RecordRow(member.path, self._rows[member.path].hash or self._digest(member), member.size)

    def metadata(self) -> Metadata:
        if not self._metadata:
            with at(self.path.name):
                self._metadata = self._text(f"{self.dist_info}/METADATA", Metadata.parse)
        return self._metadata

    def wheel_file(self) -> WheelFile:
        if not self._wheel_file:
            with at(self.path.name):
                self._wheel_file = self._text(f"{self.dist_info}/WHEEL", WheelFile.parse)
        return self._wheel_file

    def check(self, *, stop: Event | None = None) -> None:
        """`WheelError` naming a member that does not match its CRC-32 or its hash in RECORD.

        What has been read to its end has been compared, and is not read again. The largest come first, on all cores;
        nothing more is read once *stop* is set.
        """
        left = [member for member in self.members if member.path not in self._sound]
        in_threads(
            partial(self._read_all, stop=stop or Event()), lots_of(left), size=lambda _lot: 1, threads=available_cores()
        )

    def _read_all(self, members: Iterable[Member], *, stop: Event) -> None:
        for member in members:
            for _ in self.chunks(member):
                if stop.is_set():
                    return

    def _digest(self, member: Member) -> str:
        """What RECORD should say of *member* and does not: its hash, by what it holds."""
        if member.path not in self._digests:
            hashing = hashlib.sha256()
            with at(self.path.name):
                for chunk in self.source.inflated(member):
                    hashing.update(chunk)
            self._digests[member.path] = f"sha256={unpadded(hashing.digest())}"
        return self._digests[member.path]

    def _view(self, member: Member) -> memoryview | None:
        """What *member* holds, checked, where that is kept."""
        if self._kept is None:
            return None
        return self._kept.view((self.path, member.path), member.size, partial(self._checked, member))

    @contextmanager
    def _unpacked(self, member: Member, folder: Path | None, *, to_edit: bool) -> Iterator[memoryview]:
        if member.size <= _SMALL:
            yield memoryview(b"".join(self._checked(member)))
            return
        stalls: list[Stall] | None = [] if to_edit else None
        with mapped(self._checked(member, stalls=stalls), folder=folder) as view:
            if stalls and isinstance(view.obj, InflatedFile):
                view.obj.blocks = Blocks(stalls, partial(self.source.packed, member))
            yield view

    def _checked(self, member: Member, *, stalls: list[Stall] | None = None) -> Iterator[bytes]:
        if member.header.method == ZipMethod.ZSTD and not self.name.variant:
            what = "compressed with zstd, which pip cannot read; expected so in variants only"
            raise WheelError(f"{member.path}: {what}")
        expected = None if member.path in self._unlisted else self._rows[member.path].hash
        algorithm, _, digest = (expected or "sha256=").partition("=")
        hashing = hashlib.new(algorithm)
        chunks = self.source.inflated(member, stalls=stalls)
        yield from fed(hashing.update, chunks, in_thread=member.size > _SMALL)
        if expected and unpadded(hashing.digest()) != digest.rstrip("="):
            raise WheelError(f"{member.path}: does not match its hash in RECORD")
        self._sound.add(member.path)

    def _check_record(self) -> None:
        for path, row in self._rows.items():
            if path not in self._by_path:
                raise WheelError(f"RECORD lists {path!r}, which is not in the archive")
            if path in self._unlisted and path != self.record_path:
                raise WheelError(f"RECORD lists {path!r}, which is a signature over it; expected it not to (PEP 427)")
            if path in self._unlisted and (row.hash or row.size is not None):
                raise WheelError("RECORD has a hash or a size of itself; expected neither (PEP 427)")
        for member in self.members:
            if member.path not in self._unlisted and (wrong := _disagreement(member, self._rows.get(member.path))):
                raise WheelError(f"{member.path}: {wrong}")

    def _text(self, path: str, parse: Callable[[str], T], *, most: int = _READ_WHOLE) -> T:
        """What *parse* makes of the member at *path*, compared with RECORD; `WheelError` if it is over *most* bytes."""
        if (member := self.known(path)).size > most:
            raise WheelError(f"{path}: {member.size} bytes, expected {most} at most")
        return parsed(parse, b"".join(self._checked(member)), path)


@contextmanager
def open_wheel(
    path: Path,
    *,
    check: bool = False,
    kept: KeptMembers | None = None,
    sound: set[str] | None = None,
    is_strict: bool = False,
) -> Iterator[Wheel]:
    """The wheel at *path*; with *check*, the contents of every member are checked against RECORD first.

    What its members hold goes to those *kept*, if given; *sound* are the members of it that were compared earlier. It
    *is_strict* where somebody vouches for it, as `ZipReader` has it.
    `WheelError` if the archive is damaged or ambiguous, or if RECORD does not list exactly its members.
    """
    with _opened(path) as file:
        with at(path.name):
            wheel = Wheel(path, ZipReader(file, is_strict=is_strict), kept=kept, sound=sound)
        wheel.metadata()
        if check:
            wheel.check()
        yield wheel


def lots_of(members: Iterable[Member]) -> list[list[Member]]:
    """The *members* as work for threads, the largest first: a large one alone, of others many together."""
    lots: list[list[Member]] = []
    room = 0
    for member in sorted(members, key=lambda member: member.size, reverse=True):
        if room <= 0:
            lots.append([])
            room = _LOT
        lots[-1].append(member)
        # inflating costs something for each, too
        room -= member.size + _SMALLEST
    return lots


@contextmanager
def checked_meanwhile(wheels: Sequence[Wheel]) -> Iterator[None]:
    """Check *wheels* in a thread while the block goes on; after it, `WheelError` as `Wheel.check` has it."""
    stop = Event()
    with ThreadPoolExecutor(1) as executor:
        checking = [executor.submit(wheel.check, stop=stop) for wheel in wheels]
        try:
            yield
            for future in checking:
                future.result()
        finally:
            stop.set()


def check_wheels(paths: Iterable[Path]) -> None:
    """`WheelError` naming a wheel of *paths*, and in it a member, that does not match its CRC-32 or RECORD."""
    for path in paths:
        with open_wheel(path, check=True):
            pass


def peek(path: Path, name: str) -> bytes | None:
    """The file *name* in the ``.dist-info`` folder of the wheel at *path*, CRC-32 checked; None without one.

    Reads the central directory and that member, nothing else: RECORD is not consulted.
    """
    with _opened(path) as file:
        return peek_into(file, path.name, name)


def peek_into(file: BinaryIO, wheel: str, name: str) -> bytes | None:
    """As `peek`, for the wheel with the file name *wheel*, which is open as *file*."""
    with at(wheel):
        source = ZipReader(file)
        members = {member.path: member for member in source.members}
        dist_info = _dist_info_in(source)
        check_dist_info(dist_info, WheelName.parse(wheel))
        member = members.get(f"{dist_info}/{name}")
        return whole(source, member) if member else None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path.name.endswith(_SDISTS) and path.is_file():
        raise WheelError(f"{path.name}: an sdist, the source of a release; expected a wheel, as `vbuild matrix` builds")
    try:
        file = open_file(path)
    except OSError as error:
        raise WheelError(f"{path}: cannot be read: {error.strerror}") from error
    with file:
        yield file


def _dist_info_in(source: ZipReader) -> str:
    """Its ``.dist-info`` folder; installers count one that is empty, or is a file, too."""
    return dist_info_of(f"{member.path}/" for member in (*source.members, *source.folders))


def _disagreement(member: Member, row: RecordRow | None) -> str | None:
    """What is wrong with the *row* of RECORD for *member*."""
    if not row:
        return "not listed in RECORD"
    algorithm, _, digest = (row.hash or "").partition("=")
    if _HEXADECIMAL.fullmatch(digest):
        return "its hash in RECORD is in hexadecimal digits, expected base64url (PEP 427)"
    # without one it is as good as its CRC-32: pip and uv install it, and `Record.warnings` names it
    if row.hash and algorithm not in _ALGORITHMS:
        return f"its hash in RECORD is {row.hash!r}, expected {', '.join(_ALGORITHMS)}"
    if row.size not in {None, member.size}:
        return f"{member.size} bytes, but {row.size} according to RECORD"
    return None


def whole(source: ZipReader, member: Member, *, most: int = _READ_WHOLE) -> bytes:
    """What *member* of *source* holds, CRC-32 checked; `WheelError` if it is over *most* bytes."""
    if member.size > most:
        raise WheelError(f"{member.path}: {member.size} bytes, expected {most} at most")
    return b"".join(source.inflated(member))


def parsed(parse: Callable[[str], T], data: bytes, path: str) -> T:
    """What *parse* makes of the text *data*, which lies at *path*; `WheelError` if it is not UTF-8."""
    with at(path):
        try:
            return parse(data.decode())
        except UnicodeDecodeError as error:
            raise WheelError("not UTF-8") from error


def gathered(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The wheels at *paths* and in the folders there; `WheelError` for an empty folder, or a file name given twice."""
    wheels: dict[str, Path] = {}
    for path in paths:
        found = wheels_in(path) if path.is_dir() else (path,)
        if not found:
            raise WheelError(f"{path}: no wheels in this folder; expected files that end in .whl")
        for wheel in found:
            if (other := wheels.setdefault(wheel.name, wheel)) != wheel:
                raise WheelError(f"{wheel}: called as {other}, and both would become one file; give them apart")
    return tuple(wheels.values())


def wheels_in(folder: Path) -> tuple[Path, ...]:
    """The wheels in *folder*, sorted; `WheelError` if it cannot be read."""
    return files_in(folder, ".whl")


def files_in(folder: Path, ending: str) -> tuple[Path, ...]:
    """What in *folder* has a name with this *ending*, sorted; `WheelError` if it cannot be read, which a glob takes for
    an empty one.
    """
    try:
        return tuple(sorted(path for path in folder.iterdir() if path.name.endswith(ending)))
    except OSError as error:
        raise WheelError(f"{folder}: cannot be read: {error.strerror}") from error
