"""Read a wheel and write one: the only room that opens a zip.

    open_wheel(path) -> Wheel -> Member -> WheelWriter.copy, .write -> one new archive, visible when complete

Members nobody touched pass as compressed bytes. RECORD is never edited: the writer makes it from what passed through.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

import base64
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.errors import WheelError, at
from vbuild.wheel.distinfo import Metadata, Record, Row, WheelFile
from vbuild.wheel.name import WheelName
from vbuild.wheel.zipreader import Member, ZipReader, check_path
from vbuild.wheel.zipwriter import Attributes, Buffer, ZipWriter

__all__ = ["Member", "Wheel", "WheelWriter", "edited", "open_wheel", "peek", "write_wheel"]

T = TypeVar("T")

# PEP 427: SHA-256 or better
_ALGORITHMS = ("sha256", "sha384", "sha512")
# signatures are over RECORD, which can therefore not list them (PEP 427)
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_READ_WHOLE = 1 << 26
_DOS_FIRST, _DOS_LAST = 315532800, 4354819198  # 1980-01-01 and 2107-12-31 in seconds since 1970


class Wheel:
    """A wheel open for reading, whose archive is sound and whose RECORD lists exactly its members."""

    def __init__(self, path: Path, source: ZipReader) -> None:
        self.path = path
        self.source = source
        self.name = WheelName.parse(path.name)
        self.members = source.members
        self.comment = source.comment
        self._by_path = {member.path: member for member in self.members}
        self.dist_info = _dist_info(self._by_path)
        _check_dist_info(self.dist_info, self.name)
        source.check_layout()
        self._unlisted = _unlisted(self.dist_info)
        if not (record := self.find(f"{self.dist_info}/RECORD")):
            raise WheelError(f"no RECORD in {self.dist_info}")
        self.record = _parsed(Record.parse, _whole(source, record), record.path)
        self._rows = {row.path: row for row in self.record.rows}
        self._check_record()

    def find(self, path: str) -> Member | None:
        return self._by_path.get(path)

    def read(self, member: Member | str) -> bytes:
        """What *member*, or the member of that path, holds; `WheelError` as `chunks` has it, or where there is none."""
        return b"".join(self.chunks(member))

    def chunks(self, member: Member | str) -> Iterator[bytes]:
        """The same in chunks of 1 MiB or less; `WheelError` after the last one unless CRC-32 and hash agree."""
        with at(self.path.name):
            found = self.find(member) if isinstance(member, str) else member
            if found is None:
                raise WheelError(f"{member}: no such member")
            expected = self.row(found).hash
            algorithm, _, digest = (expected or "sha256=").partition("=")
            hashing = hashlib.new(algorithm)
            for chunk in self.source.inflated(found):
                hashing.update(chunk)
                yield chunk
            if expected and _base64(hashing.digest()) != digest.rstrip("="):
                raise WheelError(f"{found.path}: does not match its hash in RECORD")

    def row(self, member: Member) -> Row:
        """What RECORD says of *member*, the size filled in; RECORD and its signatures have neither hash nor size."""
        if member.path in self._unlisted:
            return Row(member.path)
        return replace(self._rows[member.path], size=member.size)

    def metadata(self) -> Metadata:
        return self._dist_info_file("METADATA", Metadata.parse)

    def wheel_file(self) -> WheelFile:
        return self._dist_info_file("WHEEL", WheelFile.parse)

    def check(self) -> None:
        """`WheelError` naming the first member that does not match its CRC-32 or its hash in RECORD."""
        for member in self.members:
            for _ in self.chunks(member):
                pass

    def _check_record(self) -> None:
        for path in self._rows:
            if path not in self._by_path:
                raise WheelError(f"RECORD lists {path!r}, which is not in the archive")
        for member in self.members:
            if member.path in self._unlisted:
                continue
            with at(member.path):
                if not (row := self._rows.get(member.path)):
                    raise WheelError("not listed in RECORD")
                if (row.hash or "").partition("=")[0] not in _ALGORITHMS:
                    raise WheelError(f"its hash in RECORD is {row.hash or ''!r}, expected {', '.join(_ALGORITHMS)}")
                if row.size not in {None, member.size}:
                    raise WheelError(f"{member.size} bytes, but {row.size} according to RECORD")

    def _dist_info_file(self, name: str, parse: Callable[[str], T]) -> T:
        path = f"{self.dist_info}/{name}"
        data = self.read(path)
        with at(self.path.name):
            return _parsed(parse, data, path)


@contextmanager
def open_wheel(path: Path, *, check: bool = False) -> Iterator[Wheel]:
    """The wheel at *path*; with *check*, the contents of every member are held against RECORD first.

    `WheelError` where the archive is damaged or ambiguous, or where RECORD does not list exactly its members.
    """
    with _opened(path) as file:
        with at(path.name):
            wheel = Wheel(path, ZipReader(file))
        if check:
            wheel.check()
        yield wheel


def peek(path: Path, name: str) -> bytes | None:
    """The file *name* in the ``.dist-info`` folder of the wheel at *path*, CRC-32 checked; None without one.

    Reads the central directory and that member, nothing else: RECORD is not consulted.
    """
    with _opened(path) as file, at(path.name):
        source = ZipReader(file)
        members = {member.path: member for member in source.members}
        dist_info = _dist_info(members)
        _check_dist_info(dist_info, WheelName.parse(path.name))
        member = members.get(f"{dist_info}/{name}")
        return _whole(source, member) if member else None


class WheelWriter:
    """A wheel in the making: members in the order given, then the ``.dist-info`` folder's, RECORD last."""

    def __init__(self, path: Path, name: WheelName, file: BinaryIO) -> None:
        self.path = path
        self.name = name
        self._zip = ZipWriter(file)
        self._like: Wheel | None = None
        self._dist_info: str | None = None
        self._paths: set[str] = set()
        self._rows: list[Row] = []
        self._last: list[tuple[Row, Callable[[], None]]] = []

    def copy(self, wheel: Wheel, member: Member, *, path: str | None = None) -> None:
        """Pass on *member* of *wheel*, which stays open until the writer is done; its compressed bytes as they are.

        RECORD is passed over: the writer makes its own.
        """
        if wheel is not self._like:
            self.follow(wheel)
        if member.path != f"{wheel.dist_info}/RECORD":
            target = path or member.path
            row = replace(wheel.row(member), path=target)
            self._place(row, partial(self._zip.copy, wheel.source, member, target))

    def write(self, place: Member | str, data: Buffer, *, mode: int = 0o644) -> None:
        """Put *data* in place of a member, keeping its mode and time, or at a new path, with the permissions *mode*."""
        path = place.path if isinstance(place, Member) else place
        kept = data if not _is_dist_info(path) else bytes(data)
        row = Row(path, f"sha256={_base64(hashlib.sha256(kept).digest())}", memoryview(kept).nbytes)
        self._place(row, partial(self._write, place, kept, mode=mode))

    def follow(self, wheel: Wheel) -> None:
        """Take time and compression of new members from *wheel*, if it is the first; refuse to write over it."""
        with at(self.path), _writing():
            if self.path.exists() and self.path.samefile(wheel.path):
                raise WheelError("would overwrite the wheel it is made from; choose another folder")
        self._like = self._like or wheel

    def finish(self) -> None:
        """Write the ``.dist-info`` folder, RECORD and the central directory."""
        if self._dist_info is None:
            raise WheelError("no member is in a .dist-info folder")
        _check_dist_info(self._dist_info, self.name)
        for row, action in self._last:
            self._perform(row, action)
        path = f"{self._dist_info}/RECORD"
        old = self._like and self._like.find(f"{self._like.dist_info}/RECORD")
        rows = (*(row for row in self._rows if row.path not in _unlisted(self._dist_info)), Row(path))
        with _writing():
            self._write(replace(old, path=path) if old else path, str(Record(rows)).encode())
            self._zip.finish(self._like.comment if self._like else b"")

    def _place(self, row: Row, action: Callable[[], None]) -> None:
        """Do *action* now, or with the rest of the ``.dist-info`` folder."""
        with at(row.path):
            check_path(row.path)
            if row.path in self._paths:
                raise WheelError("written twice")
            self._paths.add(row.path)
            if not _is_dist_info(row.path):
                self._perform(row, action)
                return
            dist_info, _, name = row.path.partition("/")
            if name == "RECORD":
                raise WheelError("made from what is written, never given")
            if self._dist_info not in {None, dist_info}:
                raise WheelError(f"a second .dist-info folder besides {self._dist_info}")
        self._dist_info = dist_info
        self._last.append((row, action))

    def _perform(self, row: Row, action: Callable[[], None]) -> None:
        with _writing():
            action()
        self._rows.append(row)

    def _write(self, place: Member | str, data: Buffer, *, mode: int = 0o644) -> None:
        if isinstance(place, Member):
            self._zip.write(place.path, data, place.header)
        else:
            self._zip.write(place, data, self._attributes(mode).header())

    def _attributes(self, mode: int) -> Attributes:
        """What a new member gets: the time of SOURCE_DATE_EPOCH or of the input's METADATA, never the clock."""
        like = self._like
        neighbour = like and (like.find(f"{like.dist_info}/METADATA") or like.find(f"{like.dist_info}/RECORD"))
        if neighbour:
            header = neighbour.header
            attributes = Attributes(mode, header.time, header.date, header.method)
        else:
            attributes = Attributes(mode)
        if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
            moment, day = _dos_time(epoch)
            attributes = replace(attributes, time=moment, date=day)
        return attributes


@contextmanager
def write_wheel(folder: Path, name: WheelName, *, like: Wheel | None = None) -> Iterator[WheelWriter]:
    """A writer of the wheel *name* in *folder*, which is made if missing; the file is there when the block ends well.

    Whatever ends the block otherwise, nothing is left. New members take time and compression from *like*, or else from
    the first wheel copied from.
    """
    target = folder / str(name)
    part = folder / f".{secrets.token_hex(8)}.part"
    with at(target), _writing():
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with at(target), _writing():
            file = part.open("xb")
        with file:
            writer = WheelWriter(target, name, file)
            if like:
                writer.follow(like)
            yield writer
            with at(name):
                writer.finish()
        with at(target), _writing():
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def edited(wheel: Wheel, folder: Path, name: WheelName, *, edits: Mapping[str, Buffer | None]) -> Path:
    """Write into *folder* a copy of *wheel* called *name* in which the members that *edits* names hold those bytes.

    None leaves a member out; a path that *wheel* does not have becomes a new member.
    """
    with write_wheel(folder, name, like=wheel) as writer:
        for member in wheel.members:
            if member.path not in edits:
                writer.copy(wheel, member)
            elif (data := edits[member.path]) is not None:
                writer.write(member, data)
        for path, data in edits.items():
            if data is not None and not wheel.find(path):
                writer.write(path, data)
    return writer.path


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise WheelError(f"{path}: cannot be read: {error.strerror}") from error
    with file:
        yield file


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WheelError(f"cannot be written: {error.strerror}") from error


def _is_dist_info(path: str) -> bool:
    return path.partition("/")[0].endswith(".dist-info")


def _unlisted(dist_info: str) -> frozenset[str]:
    return frozenset(f"{dist_info}/{name}" for name in _UNLISTED)


def _dist_info(paths: Iterable[str]) -> str:
    folders = sorted({path.partition("/")[0] for path in paths if "/" in path and _is_dist_info(path)})
    if len(folders) != 1:
        raise WheelError(f"expected one .dist-info folder, found {', '.join(folders) or 'none'}")
    return folders[0]


def _check_dist_info(dist_info: str, name: WheelName) -> None:
    """`WheelError` unless the folder is called after the same release as the file, both normalised."""
    distribution, _, version = dist_info.removesuffix(".dist-info").rpartition("-")
    try:
        same = Version(version) == Version(name.version)
    except ValueError:
        same = False
    if not same or canonicalize_name(distribution) != name.project:
        raise WheelError(f"{dist_info} is not of {name.distribution} {name.version}, which the file name says")


def _whole(source: ZipReader, member: Member) -> bytes:
    if member.size > _READ_WHOLE:
        raise WheelError(f"{member.path}: {member.size} bytes, expected {_READ_WHOLE} at most")
    return b"".join(source.inflated(member))


def _parsed(parse: Callable[[str], T], data: bytes, path: str) -> T:
    with at(path):
        try:
            return parse(data.decode())
        except UnicodeDecodeError as error:
            raise WheelError("not UTF-8") from error


def _base64(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _dos_time(epoch: str) -> tuple[int, int]:
    """Time and date of a zip archive for SOURCE_DATE_EPOCH, in UTC and steps of two seconds, from 1980 to 2107."""
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= len(str(2**64))):
        raise WheelError(f"SOURCE_DATE_EPOCH is {epoch!r}, expected seconds since 1970")
    moment = time.gmtime(min(max(int(epoch), _DOS_FIRST), _DOS_LAST))
    return (
        moment.tm_hour << 11 | moment.tm_min << 5 | moment.tm_sec // 2,
        moment.tm_year - 1980 << 9 | moment.tm_mon << 5 | moment.tm_mday,
    )
