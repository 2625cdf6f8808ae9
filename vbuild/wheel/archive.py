"""Open a wheel: its archive, compared with RECORD.

    open_wheel(path) -> Wheel -> Member -> .read, .chunks
                                           .mapped -> a view of a large member, to be cut and written
    SharedWheels.open(path) -> the same Wheel for several readers, whose members are inflated once
    Distant(file, name)     -> a wheel on a server: its directory, METADATA, RECORD, and what somebody reads of the rest

https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

import hashlib
import logging
import mmap
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property, partial
from operator import eq
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from threading import Event, Lock
from types import TracebackType
from typing import BinaryIO, Self, TypeVar, cast

from msgspec import Struct

from vbuild.errors import WheelError, at
from vbuild.files.hashing import Digests
from vbuild.files.reading import open_file
from vbuild.files.records import Buffer
from vbuild.files.wording import counted
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import OncePerKey, in_threads
from vbuild.wheel.blocks import Blocks, InflatedFile, Stall
from vbuild.wheel.metadata import (
    VARIANT_JSON,
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
from vbuild.wheel.paths import check_eggs, check_path, check_placing, scripts_in
from vbuild.wheel.zip_read import CHUNK, Member, ZipMethod, ZipReader

T = TypeVar("T")
R = TypeVar("R")
Chunk = TypeVar("Chunk", bound=Buffer)
_Key = tuple[Path, str]
# packed members by what is stated of them
_Known = dict[tuple[object, ...], tuple[ZipReader, Member]]

_LOG = logging.getLogger("vbuild")
# bytes read whole, except of RECORD
_READ_WHOLE = 1 << 23
# bytes of entry_points.txt
_LONGEST_POINTS = 1 << 18
# bytes of a row of RECORD besides its path: the longest hash, a size, commas, quotes, a line end
_ROW, _BLANK = 160, 1 << 12
_SDISTS = (".tar.gz", ".zip", ".tar.bz2", ".tgz")
# up to here a member is kept in memory, and hashed by the thread that inflates it
_SMALL = 1 << 20
# bytes of members that one thread takes at a time, and of each at least
_LOT, _SMALLEST = 1 << 23, 1 << 13
# lots of chunks that wait for a thread, and bytes of one: with a single lot the two threads would wait for each other,
# and to hand over each chunk by itself takes as long as to hash it
_AHEAD, _FED = 4, 1 << 20
# bytes on the disk at most, and the part of the free ones; bytes in memory
_MOST, _FREE = 1 << 34, 4
_MOST_IN_MEMORY = 1 << 26
# NVIDIA's METADATA has a licence in it, the largest RECORDs ten thousand lines
_LARGEST = 1 << 24
# wheels open for later readers
_IDLE, _IDLE_MEMBERS = 100, 100_000


def feed(work: Callable[[Chunk], object], chunks: Iterable[Chunk], *, in_thread: bool = False) -> Iterator[Chunk]:
    """Yield the *chunks*, each after *work* on it, perhaps *in_thread*."""
    if not in_thread:
        for chunk in chunks:
            work(chunk)
            yield chunk
        return
    with ThreadPoolExecutor(1) as executor:
        pending = deque[Future[object]]()
        lot: list[Chunk] = []
        size = 0
        for chunk in chunks:
            lot.append(chunk)
            size += len(chunk)
            if size >= _FED:
                if len(pending) == _AHEAD:
                    pending.popleft().result()
                pending.append(executor.submit(deque, map(work, lot), 0))
                lot, size = [], 0
            yield chunk
        pending.append(executor.submit(deque, map(work, lot), 0))
        for future in pending:
            future.result()


@contextmanager
def mapped(chunks: Iterable[bytes], *, folder: Path | None) -> Iterator[memoryview]:
    """Map the *chunks* from an unnamed file in *folder*; `WheelError` if there is no room."""
    try:
        with TemporaryFile(dir=folder) as file:
            for _ in feed(file.write, chunks, in_thread=True):
                pass
            file.flush()
            mapping = InflatedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise WheelError(f"cannot be unpacked: {error.strerror}") from error
    try:
        yield memoryview(mapping)
    finally:
        # the last view left closes it
        with suppress(BufferError):
            mapping.close()


def forget(data: Buffer) -> None:
    """Let go of the pages of *data* that were read, if mapped."""
    if isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        data.obj.madvise(mmap.MADV_DONTNEED)


def room_for(folder: Path | None) -> Path | None:
    """Where to unpack what goes to *folder*: the system's own may be in memory."""
    return next((parent for parent in (folder, *folder.parents) if parent.is_dir()), None) if folder else None


class KeptMembers:
    """The contents of members, by wheel and path, in *folder* or in memory, as long as there is room."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._views = OncePerKey[_Key, memoryview | None]()
        self._lock = Lock()
        free = shutil.disk_usage(folder or gettempdir()).free if hasattr(shutil, "disk_usage") else _MOST
        self._room = min(free // _FREE, _MOST)
        self._room_in_memory = _MOST_IN_MEMORY

    def view(self, key: _Key, size: int, chunks: Callable[[], Iterator[bytes]]) -> memoryview | None:
        """The contents of *key*, taken from *chunks* the first time; None without room."""
        return self._views.get(key, lambda: self._view(size, chunks) if self._has_room(size) else None)

    def close(self) -> None:
        self._stack.close()

    def _has_room(self, size: int) -> bool:
        with self._lock:
            if size <= _SMALL:
                self._room_in_memory -= size
                return self._room_in_memory >= 0
            self._room -= size
            return self._room >= 0

    def _view(self, size: int, chunks: Callable[[], Iterator[bytes]]) -> memoryview:
        if size <= _SMALL:
            return memoryview(b"".join(chunks()))
        with ExitStack() as stack:
            view = stack.enter_context(mapped(chunks(), folder=self._folder))
            with self._lock:
                self._stack.push(stack.pop_all())
        return view


class Members:
    def __init__(self, source: ZipReader) -> None:
        self.source = source
        self.members = source.members
        self._by_path = {member.path: member for member in self.members}

    def find(self, path: str) -> Member | None:
        return self._by_path.get(path)

    def member_at(self, member: Member | str) -> Member:
        entry = self.find(member) if isinstance(member, str) else member
        if entry is None:
            raise WheelError(f"{member}: no such member")
        return entry


class Wheel(Members):
    """A wheel open for reading, which is `verified`."""

    def __init__(
        self,
        path: Path,
        source: ZipReader,
        name: WheelName,
        dist_info: str,
        record: Record,
        *,
        kept: KeptMembers | None = None,
        sound: set[str] | None = None,
    ) -> None:
        super().__init__(source)
        self.path, self.name, self.dist_info, self.record = path, name, dist_info, record
        self.record_path = f"{dist_info}/RECORD"
        self.comment = source.comment
        self._kept = kept
        self._sound = set[str]() if sound is None else sound
        self._unlisted = unlisted(dist_info)
        self._rows = {row.path: row for row in record.rows}
        self._metadata: Metadata | None = None
        self._wheel_file: WheelFile | None = None
        # METADATA and its like
        self._texts: dict[str, bytes] = {}
        self._digests: dict[str, str] = {}
        self._learnt: dict[tuple[str, object], object] = {}
        self._is_warned = False

    @classmethod
    def verified(
        cls, path: Path, source: ZipReader, *, kept: KeptMembers | None = None, sound: set[str] | None = None
    ) -> Self:
        """The wheel in *source*; `WheelError` if installers refuse it, or do not agree about it."""
        name = WheelName.parse(path.name)
        dist_info = _dist_info_in(source)
        check_dist_info(dist_info, name)
        source.check_layout()
        source.check_twins()
        wheel = cls(path, source, name, dist_info, _record_in(source, dist_info), kept=kept, sound=sound)
        wheel._sound.add(wheel.record_path)
        for file in ("METADATA", "WHEEL"):
            if not wheel.find(f"{dist_info}/{file}"):
                raise WheelError(f"no {file} in {dist_info}")
        wheel._check_record()
        scripts = [script for script, _ in wheel.scripts]
        wheel._text(f"{dist_info}/WHEEL", wheel_headers)
        check_placing(wheel._by_path, dist_info, name, scripts=scripts)
        check_eggs(wheel._by_path, lambda path: wheel._text(path, str))
        return wheel

    @cached_property
    def scripts(self) -> tuple[tuple[str, str], ...]:
        points = f"{self.dist_info}/entry_points.txt"
        return self._text(points, scripts_in, most=_LONGEST_POINTS) if self.find(points) else ()

    def read(self, member: Member | str) -> bytes:
        """The contents of *member*; `WheelError` as of `chunks`, or if there is none of that path."""
        return b"".join(self.chunks(member))

    def chunks(self, member: Member | str) -> Iterator[Buffer]:
        """The same in chunks of 1 MiB or less; `WheelError` after the last one unless CRC-32 and hash agree."""
        with at(self.path.name):
            entry = self.member_at(member)
            if (view := self._view(entry)) is None:
                yield from self._checked(entry)
            else:
                yield from (view[start : start + CHUNK] for start in range(0, len(view), CHUNK))
                forget(view)

    def head(self, member: Member | str, size: int) -> bytes:
        """The first *size* bytes of *member*, unchecked; none if it cannot be inflated."""
        with at(self.path.name):
            return self.source.head(self.member_at(member), size)

    @contextmanager
    def mapped(
        self, member: Member | str, *, folder: Path | None = None, to_edit: bool = False
    ) -> Iterator[memoryview]:
        """Map *member*, checked as by `chunks`, from an unnamed file in *folder* if it is large.

        Only pages looked at take memory. Of one *to_edit*, what stays can be copied into another wheel as it lies here.
        """
        with ExitStack() as stack:
            with at(self.path.name):
                entry = self.member_at(member)
                if (view := self._view(entry)) is None:
                    view = stack.enter_context(self._unpacked(entry, folder, to_edit=to_edit))
            yield view
            forget(view)

    def learnt(self, member: Member, data: memoryview, learn: Callable[[memoryview], R]) -> R:
        """The result of *learn* for *data*, the contents of *member*; called once for each."""
        key = member.path, learn
        if key not in self._learnt:
            self._learnt[key] = learn(data)
        return cast(R, self._learnt[key])

    def row(self, member: Member) -> RecordRow:
        """The row of *member* in RECORD, with a missing size or hash filled in."""
        if member.path in self._unlisted:
            return RecordRow(member.path)
        row = self._rows.get(member.path)
        stated = row.hash if row and not row.is_weak else None
        return RecordRow(member.path, stated or self._digest(member), member.size)

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield paths and what is wrong with them in the archive or RECORD, and leaves no doubt about contents."""
        for fault in self.record.warnings(self.record_path, self._by_path):
            yield self.record_path, fault
        if twins := [member.path for member in self.source.twins if not member.path.endswith("/")]:
            yield twins[0], f"first of {counted(len(twins), 'file')} twice in the archive, with the same contents"

    def warn(self) -> None:
        """Log the warnings once, however many wheels are made from this one."""
        for path, fault in self.warnings() if not self._is_warned else ():
            _LOG.warning("vbuild: %s: %s: %s; mended in what is made from it", self.path.name, path, fault)
        self._is_warned = True

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

    @property
    def variant_json(self) -> bytes | None:
        path = f"{self.dist_info}/{VARIANT_JSON}"
        return self.read(path) if self.find(path) else None

    def check(self, *, stop: Event | None = None, known: _Known | None = None) -> None:
        """`WheelError` naming a member that does not match CRC-32 or RECORD; reads on all cores until *stop* is set.

        *known* gets all members; what has the packed bytes of one there is as sound as that, and not inflated again.
        """
        left = [member for member in self.members if member.path not in self._sound]
        in_threads(
            partial(self._read_all, stop=stop or Event(), known=known or {}),
            lots_of(left),
            size=lambda _lot: 1,
            threads=available_cores(),
        )
        if known is not None:
            known.update((self._stated(member), (self.source, member)) for member in self.members)

    def _read_all(self, members: Iterable[Member], *, stop: Event, known: _Known) -> None:
        for member in members:
            if known and (same := known.get(self._stated(member))):
                source, other = same
                if all(map(eq, self.source.raw(member), source.raw(other))):
                    continue
            for _ in self.chunks(member):
                if stop.is_set():
                    return

    def _stated(self, member: Member) -> tuple[object, ...]:
        """What the archive and RECORD say of the contents of *member*, and whether these may be zstd."""
        header, row = member.header, self._row(member)
        sizes = member.size, member.compressed_size
        return *sizes, header.method, header.crc, row and row.hash, self.name.variant is None

    def _row(self, member: Member) -> RecordRow | None:
        return None if member.path in self._unlisted else self._rows.get(member.path)

    def _digest(self, member: Member) -> str:
        if member.path not in self._digests:
            hashing = hashlib.sha256()
            with at(self.path.name):
                for chunk in self._checked(member):
                    hashing.update(chunk)
            self._digests[member.path] = f"sha256={unpadded(hashing.digest())}"
        return self._digests[member.path]

    def _view(self, member: Member) -> memoryview | None:
        if member.path in self._texts:
            return memoryview(self._texts[member.path])
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
            why = "compressed with zstd, which pip cannot read; expected so in variants only"
            raise WheelError(f"{member.path}: {why}")
        row = self._row(member)
        expected = row.hash if row else None
        algorithm, _, digest = (expected or "sha256=").partition("=")
        hashing = hashlib.new(algorithm, usedforsecurity=False)
        chunks = self.source.inflated(member, stalls=stalls)
        yield from feed(hashing.update, chunks, in_thread=member.size > _SMALL)
        if expected and unpadded(hashing.digest()) != digest:
            raise WheelError(f"{member.path}: does not match its hash in RECORD")
        self._sound.add(member.path)

    def _check_record(self) -> None:
        """Of a path that leads elsewhere, uninstalling would take a file that is not the wheel's."""
        for path in self._rows:
            if path not in self._by_path:
                with at(f"RECORD lists {path!r}"):
                    check_path(path)
        for member in self.members:
            row = self._row(member)
            if row and (wrong := _disagreement(member, row)):
                raise WheelError(f"{member.path}: {wrong}")

    def _text(self, path: str, parse: Callable[[str], T], *, most: int = _READ_WHOLE) -> T:
        if (member := self.member_at(path)).size > most:
            raise WheelError(f"{path}: {member.size} bytes, expected {most} at most")
        if path not in self._texts:
            self._texts[path] = b"".join(self._checked(member))
        return parsed(parse, self._texts[path], path)


@contextmanager
def open_wheel(
    path: Path,
    *,
    check: bool = False,
    kept: KeptMembers | None = None,
    sound: set[str] | None = None,
    is_strict: bool = False,
) -> Iterator[Wheel]:
    """Open the wheel at *path*; with *check*, all members but the *sound* ones are compared with RECORD first.

    Contents go to *kept*. `WheelError` if the archive is damaged or ambiguous, or RECORD lists other members.
    """
    with _opened(path) as file:
        with at(path.name):
            wheel = Wheel.verified(path, ZipReader(file, is_strict=is_strict), kept=kept, sound=sound)
        wheel.metadata()
        if check:
            wheel.check()
        yield wheel


def lots_of(members: Iterable[Member]) -> list[list[Member]]:
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
    """Check *wheels* in a thread while the block goes on; `WheelError` after it."""
    stop = Event()
    with ThreadPoolExecutor(1) as executor:
        known: _Known | None = {} if len(wheels) > 1 else None
        checking = [executor.submit(wheel.check, stop=stop, known=known) for wheel in wheels]
        try:
            yield
            for future in checking:
                future.result()
        finally:
            stop.set()


def check_wheels(paths: Iterable[Path]) -> None:
    for path in paths:
        with open_wheel(path, check=True):
            pass


def peek(path: Path, name: str) -> bytes | None:
    """The file *name* in the ``.dist-info`` folder of the wheel at *path*, CRC-32 checked; or None."""
    with _opened(path) as file:
        return peek_into(file, path.name, name)


def peek_into(file: BinaryIO, wheel: str, name: str) -> bytes | None:
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
    """Installers count a folder that is empty, or is a file, too."""
    return dist_info_of(f"{member.path}/" for member in (*source.members, *source.folders))


def _record_in(source: ZipReader, dist_info: str) -> Record:
    path = f"{dist_info}/RECORD"
    if not (record := next((member for member in source.members if member.path == path), None)):
        raise WheelError(f"no RECORD in {dist_info}")
    most = _BLANK + sum(_ROW + 2 * len(member.path.encode()) for member in source.members)
    return parsed(Record.parse, whole(source, record, most=most), path)


def _disagreement(member: Member, row: RecordRow) -> str | None:
    if row.hash and not row.algorithm:
        return f"its hash in RECORD is {row.hash!r}, of an unknown algorithm; expected sha256, sha384 or sha512"
    if row.size not in {None, member.size}:
        return f"{member.size} bytes, but {row.size} according to RECORD"
    return None


def whole(source: ZipReader, member: Member, *, most: int = _READ_WHOLE) -> bytes:
    if member.size > most:
        raise WheelError(f"{member.path}: {member.size} bytes, expected {most} at most")
    return b"".join(source.inflated(member))


def parsed(parse: Callable[[str], T], data: bytes, path: str) -> T:
    with at(path):
        try:
            return parse(data.decode())
        except UnicodeDecodeError as error:
            raise WheelError("not UTF-8") from error


def wheels_among(paths: Iterable[Path]) -> Iterator[Path]:
    """The wheels at *paths*, and in the folders there; `WheelError` for a folder without any."""
    for path in paths:
        wheels = wheels_in(path) if path.is_dir() else (path,)
        if not wheels:
            raise WheelError(f"{path}: no wheels in this folder; expected files that end in .whl")
        yield from wheels


def wheels_at(paths: Iterable[Path]) -> tuple[Path, ...]:
    """As `wheels_among`; `WheelError` for a name given twice, too."""
    wheels: dict[str, Path] = {}
    for wheel in wheels_among(paths):
        if (other := wheels.setdefault(wheel.name, wheel)) != wheel:
            raise WheelError(f"{wheel}: called as {other}, and both would become one file; give them apart")
    return tuple(wheels.values())


def wheels_in(folder: Path) -> tuple[Path, ...]:
    return files_in(folder, ".whl")


def files_in(folder: Path, ending: str) -> tuple[Path, ...]:
    """The files in *folder* with this *ending*, sorted; `WheelError` if it cannot be read, which a glob ignores."""
    try:
        return tuple(sorted(path for path in folder.iterdir() if path.name.endswith(ending)))
    except OSError as error:
        raise WheelError(f"{folder}: cannot be read: {error.strerror}") from error


class Distant(Members):
    """The wheel *name* in *file*; its members are checked by CRC-32 only, so callers compare them with RECORD."""

    def __init__(self, file: BinaryIO, name: WheelName) -> None:
        self.name = name
        with at(name):
            super().__init__(ZipReader(file, largest=_LARGEST))
            self._dist_info = dist_info_of(self._by_path)
            check_dist_info(self._dist_info, name)
            self.metadata = self._text("METADATA", Metadata.parse)
            self.record = self._text("RECORD", Record.parse)

    def head(self, path: str, size: int) -> bytes:
        with at(self.name):
            member = self.member_at(path)
            wanted = min(size, member.size)
            head = self.source.head(member, wanted) if wanted else b""
            if len(head) < wanted:
                raise WheelError(f"{path}: damaged: its first {wanted} bytes cannot be inflated")
            return head

    def chunks(self, path: str) -> Iterator[bytes]:
        """`WheelError` unless size and CRC-32 agree."""
        with at(self.name):
            yield from self.source.inflated(self.member_at(path))

    def _text(self, file: str, parse: Callable[[str], T]) -> T:
        member = self.member_at(f"{self._dist_info}/{file}")
        return parsed(parse, whole(self.source, member, most=_LARGEST), member.path)


class _Open(Struct, eq=False):
    wheel: Wheel
    stack: ExitStack
    readers: int = 0


class SharedWheels:
    """The wheels of one run; it *keeps* contents of members in *folder* if several readers are expected.

    *digests* has the SHA-256 of files.
    """

    def __init__(self, folder: Path | None = None, *, keeps: bool) -> None:
        self._stack = ExitStack()
        self.digests = self._stack.enter_context(Digests())
        self._kept = self._stack.enter_context(closing(KeptMembers(folder))) if keeps else None
        self._open: dict[Path, _Open] = {}
        self._sound: dict[Path, set[str]] = {}
        # wheels that nobody reads, with the number of their members, and the sum of these
        self._idle_paths: dict[Path, int] = {}
        self._idle = 0
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in self._open.values():
            opened.stack.close()
        self._stack.close()

    @contextmanager
    def open(self, path: Path) -> Iterator[Wheel]:
        with self._lock:
            if path not in self._open:
                self._open[path] = self._opened(path)
            opened = self._open[path]
            opened.readers += 1
            self._idle -= self._idle_paths.pop(path, 0)
        try:
            yield opened.wheel
        finally:
            with self._lock:
                opened.readers -= 1
                if not opened.readers:
                    self._leave(path, len(opened.wheel.members))

    def check(self, paths: Iterable[Path], *, stop: Event | None = None) -> None:
        """`WheelError` naming a wheel of *paths*, and its member, that does not match CRC-32 or RECORD."""
        until = stop or Event()

        def check(path: Path) -> None:
            with self.open(path) as wheel:
                wheel.check(stop=until)

        in_threads(check, sorted(paths), size=lambda path: path.stat().st_size, threads=available_cores(), stop=until)

    def _opened(self, path: Path) -> _Open:
        with ExitStack() as stack:
            wheel = stack.enter_context(open_wheel(path, kept=self._kept, sound=self._sound.setdefault(path, set())))
            return _Open(wheel, stack.pop_all())

    def _leave(self, path: Path, members: int) -> None:
        self._idle_paths[path] = members
        self._idle += members
        while len(self._idle_paths) > _IDLE or self._idle > _IDLE_MEMBERS:
            oldest = next(iter(self._idle_paths))
            self._idle -= self._idle_paths.pop(oldest)
            self._open.pop(oldest).stack.close()
