"""Write a wheel: members of others, their compressed bytes as they are, and new ones.

    write_wheel(folder, name) -> WheelWriter.copy, .write -> one new archive, visible when complete
    write_wheels(folder, names) -> several, all of them or none

RECORD is never edited: the writer makes it from what passed through. Several writers may share one `Deflater`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from vbuild.errors import WheelError, at
from vbuild.files.atomic import OLDEST, duplicate, settle, settle_names, source_date_epoch, stage_in
from vbuild.files.edited import EditedFile
from vbuild.files.records import Buffer
from vbuild.process.signals import uninterrupted
from vbuild.wheel.archive import Wheel, checked_meanwhile
from vbuild.wheel.deflate import Deflater
from vbuild.wheel.metadata import Record, RecordRow, check_dist_info, is_dist_info, unlisted, unpadded
from vbuild.wheel.name import WheelName
from vbuild.wheel.paths import check_path
from vbuild.wheel.zip_read import CentralHeader, Member, ZipMethod
from vbuild.wheel.zip_write import ZipWriter, new_header

_BUFFER = 1 << 18
_MODE = 0o644
_DOS_LATEST = 4354819198  # 2107-12-31 in seconds since 1970


class WheelWriter:
    """A wheel in the making: members in the order given, then the ``.dist-info`` folder's, RECORD last."""

    def __init__(self, path: Path, name: WheelName, file: BinaryIO, deflater: Deflater) -> None:
        self.path = path
        self.name = name
        self._zip = ZipWriter(file)
        self._deflater = deflater
        self._like: Wheel | None = None
        self._dist_info: str | None = None
        self._paths: set[str] = set()
        self._rows: list[RecordRow] = []
        self._last: list[Callable[[], RecordRow]] = []
        self._anonymous_mode: int | None = None

    def copy(self, wheel: Wheel, member: Member, *, path: str | None = None) -> None:
        """Copy *member* of *wheel*, which stays open until the writer is done; skip RECORD."""
        if self._anonymous_mode is not None:
            header = new_header(mode=self._anonymous_mode)
            attributes = {"time": header.time, "date": header.date, "external_attributes": header.external_attributes}
            member = replace(member, packed=replace(member.header, **attributes).pack())
        elif wheel is not self._like:
            self.follow(wheel)
        if member.path != f"{wheel.dist_info}/RECORD":
            target = path or member.path
            self._write_once(target, partial(self._copy, wheel, member, target))

    def write(self, target: Member | str, data: Buffer | EditedFile, *, mode: int = _MODE) -> None:
        """Put *data* in place of a member, keeping its mode and time, or at a new path with *mode*.

        An edited file may go when this returns.
        """
        path = target.path if isinstance(target, Member) else target
        # the caller's bytes may be others when it is written
        file = data if isinstance(data, EditedFile) else EditedFile.whole(memoryview(data).cast("B"))
        own_copy = EditedFile.whole(bytes(file)) if is_dist_info(path) else file
        self._write_once(path, partial(self._write, target, own_copy, mode=mode))

    def write_after(self, target: Member | str, content: Callable[[tuple[RecordRow, ...]], bytes]) -> None:
        """Put at *target* in the ``.dist-info`` folder what *content* makes of RECORD's rows outside it."""
        path = target.path if isinstance(target, Member) else target
        self._write_once(path, lambda: self._write(target, EditedFile.whole(content(tuple(self._rows)))))

    def follow(self, wheel: Wheel) -> None:
        """Take time and compression of new members from *wheel*, if it is the first; refuse to overwrite it."""
        with at(self.path), _writing():
            _refuse_own(self.path, wheel.path)
        wheel.warn()
        self._like = self._like or wheel

    def anonymise(self, *, mode: int) -> None:
        self._anonymous_mode = mode

    def finish(self) -> None:
        if self._dist_info is None:
            raise WheelError("no member is in a .dist-info folder")
        check_dist_info(self._dist_info, self.name)
        with _writing():
            for action in self._last:
                self._rows.append(action())
        path = f"{self._dist_info}/RECORD"
        old = self._like and self._like.find(f"{self._like.dist_info}/RECORD")
        rows = (*(row for row in self._rows if row.path not in unlisted(self._dist_info)), RecordRow(path))
        with _writing():
            self._write(replace(old, path=path) if old else path, EditedFile.whole(str(Record(rows)).encode()))
            self._zip.finish(self._like.comment if self._like else b"")

    def _write_once(self, path: str, action: Callable[[], RecordRow]) -> None:
        with at(path):
            check_path(path)
            if path in self._paths:
                raise WheelError("written twice")
            self._paths.add(path)
            if not is_dist_info(path):
                with _writing():
                    self._rows.append(action())
                return
            dist_info, _, name = path.partition("/")
            if name == "RECORD":
                raise WheelError("made from what is written, never given")
            if self._dist_info not in {None, dist_info}:
                raise WheelError(f"a second .dist-info folder besides {self._dist_info}")
        self._dist_info = dist_info
        self._last.append(action)

    def _copy(self, wheel: Wheel, member: Member, path: str) -> RecordRow:
        # pip, which installs what has no label, cannot read zstd; readers of metadata need not
        if member.header.method == ZipMethod.ZSTD and (self.name.variant is None or is_dist_info(path)):
            with wheel.mapped(member) as data:
                return self._write(replace(member, path=path), EditedFile.whole(data))
        self._zip.copy(wheel.source, member, path)
        row = wheel.row(member)
        return RecordRow(path, row.hash, row.size)

    def _write(self, target: Member | str, file: EditedFile, *, mode: int = _MODE) -> RecordRow:
        path, header = (target.path, target.header) if isinstance(target, Member) else (target, self._new_header(mode))
        digest = self._zip.write(path, file, header, self._deflater)
        return RecordRow(path, f"sha256={unpadded(digest)}", file.size)

    def _new_header(self, mode: int) -> CentralHeader:
        """A new member's time is SOURCE_DATE_EPOCH, or that of METADATA in the input, never now."""
        if self._anonymous_mode is not None:
            return new_header(mode=self._anonymous_mode)
        header, like = new_header(mode=mode), self._like
        neighbour = like and (like.find(f"{like.dist_info}/METADATA") or like.find(f"{like.dist_info}/RECORD"))
        if neighbour:
            other = neighbour.header
            header = replace(header, time=other.time, date=other.date, method=other.method)
        if (epoch := source_date_epoch()) is not None:
            # in UTC, the nearest that a zip archive can say
            moment = time.gmtime(min(max(epoch, OLDEST), _DOS_LATEST))
            header = replace(
                header,
                time=moment.tm_hour << 11 | moment.tm_min << 5 | moment.tm_sec // 2,
                date=moment.tm_year - 1980 << 9 | moment.tm_mon << 5 | moment.tm_mday,
            )
        return header


@contextmanager
def write_wheel(
    folder: Path, name: WheelName, *, like: Wheel | None = None, deflater: Deflater | None = None
) -> Iterator[WheelWriter]:
    """Yield a writer of the wheel *name* in *folder*; the file is there if the block ends well, else nothing is.

    New members take time and compression from *like*, or from the first wheel copied from.
    """
    with write_wheels(folder, [name], like=like, deflater=deflater) as (writer,):
        yield writer


@contextmanager
def write_wheels(
    folder: Path,
    names: Sequence[WheelName],
    *,
    like: Wheel | None = None,
    deflater: Deflater | None = None,
    passing: Sequence[Path] = (),
    checked: Sequence[Wheel] = (),
) -> Iterator[tuple[WheelWriter, ...]]:
    """Yield writers of the wheels *names*; none of the files is there before all are complete.

    Those *passing* are copied byte for byte; those *checked* are compared with RECORD meanwhile: `WheelError`, and no
    file there, if one is damaged.
    """
    source_date_epoch()
    copies = [folder / path.name for path in passing]
    with _placing([*(folder / str(name) for name in names), *copies], folder) as parts, checked_meanwhile(checked):
        for path, target, part in zip(passing, copies, [*parts.values()][len(names) :], strict=True):
            with at(target), _writing():
                _refuse_own(target, path)
                duplicate(path, part)
        with ExitStack() as stack:
            own = deflater or stack.enter_context(Deflater(remembers=False))
            writers = tuple(
                WheelWriter(target, name, stack.enter_context(_part(part, target)), own)
                for name, (target, part) in zip(names, parts.items(), strict=False)
            )
            if like:
                for writer in writers:
                    writer.follow(like)
            yield writers
            for writer in writers:
                with at(writer.name):
                    writer.finish()
        for target, part in parts.items():  # while the last of those checked are
            with at(target), _writing():
                settle(part)


@contextmanager
def _placing(targets: Sequence[Path], folder: Path) -> Iterator[Mapping[Path, Path]]:
    """Yield a file to write for each of *targets*; all are renamed if the block ends well, else none."""
    if twice := min((target for target, count in Counter(targets).items() if count > 1), default=None):
        raise WheelError(f"{twice}: two wheels of this name would be written; make them apart")
    for target in targets:
        with at(target), _writing():
            if target.is_dir():  # refused before any file is written
                raise WheelError("cannot be written: Is a directory")
    is_new = not folder.exists()
    with at(folder), _writing():
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            with at(folder), _writing():
                stage = stack.enter_context(stage_in(folder))
            parts = {target: stage / target.name for target in targets}
            yield parts
            _put(parts)
            settle_names(folder)
    except BaseException:
        if is_new:
            with uninterrupted(), suppress(OSError):  # others write there, too
                folder.rmdir()
        raise


def _put(parts: Mapping[Path, Path]) -> None:
    try:
        for target, part in parts.items():
            with at(target), _writing():
                part.replace(target)
    except BaseException:
        with uninterrupted():
            # a part that is gone is at its target
            for target in (target for target, part in parts.items() if not part.exists()):
                with suppress(OSError):  # the first error is the one to tell
                    target.unlink(missing_ok=True)
        raise


@contextmanager
def _part(part: Path, target: Path) -> Iterator[BinaryIO]:
    with at(target), _writing():
        file = part.open("xb", buffering=_BUFFER)
    try:
        yield file
    except BaseException:
        # what could not be written cannot be flushed now either, and the first error is the one to tell
        with suppress(OSError):
            file.close()
        raise
    with at(target), _writing():
        file.close()


def edit_wheel(
    wheel: Wheel,
    folder: Path,
    name: WheelName,
    *,
    edits: Mapping[str, Buffer | EditedFile | None],
    verify: bool = False,
) -> Path:
    """Write into *folder* a copy of *wheel* called *name* with the *edits* by path; None leaves a member out.

    *verify* compares all members with RECORD meanwhile.
    """
    checked = [wheel] if verify else []
    with write_wheels(folder, [name], like=wheel, checked=checked) as (writer,):
        for member in wheel.members:
            if member.path not in edits:
                writer.copy(wheel, member)
            elif (data := edits[member.path]) is not None:
                writer.write(member, data)
        for path, data in edits.items():
            if data is not None and not wheel.find(path):
                writer.write(path, data)
    return writer.path


def copy_wheel(wheel: Wheel, folder: Path) -> Path:
    """Write into *folder* the file of *wheel*, compared with RECORD."""
    with write_wheels(folder, (), passing=[wheel.path], checked=[wheel]):
        return folder / wheel.path.name


def _refuse_own(target: Path, made_from: Path) -> None:
    if target.exists() and target.samefile(made_from):
        raise WheelError("would overwrite the wheel it is made from; choose another folder")


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WheelError(f"cannot be written: {error.strerror}") from error
