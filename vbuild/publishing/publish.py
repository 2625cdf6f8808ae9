"""`vbuild publish`: write finished wheels in the layouts that people can consume today.

    wheels -> releases -> Layout.plan -> PublishPlan -> files and a README, each layout in a folder of its own

All layouts are planned before the first file is written, and become visible together.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from vbuild.elf.catalogue import is_shared_object
from vbuild.elf.surgery.relink import relinked
from vbuild.errors import RepackageError, at
from vbuild.files.atomic import linked, settle, settle_names, staging, turn
from vbuild.files.edited import EditedFile
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.publishing.model import (
    Copied,
    LinkedFile,
    Member,
    NewWheel,
    Output,
    PublishLayout,
    PublishPlan,
    Put,
    Relinked,
    SimpleIndex,
    Text,
)
from vbuild.publishing.releases import releases_at
from vbuild.sbom.keeping import Changes, bill_of, carries, listed, path_of, revised
from vbuild.sbom.model import BillChange
from vbuild.wheel.archive import SharedWheels, Wheel, room_for
from vbuild.wheel.blocks import as_edit
from vbuild.wheel.deflate import Deflater
from vbuild.wheel.metadata import is_dist_info
from vbuild.wheel.simple_index import fill_index
from vbuild.wheel.write import WheelWriter, write_wheel

README = "README.md"


def readme(plan: PublishPlan) -> str:
    lines = [f"# Layout `{plan.layout}`"]
    for use in plan.uses:
        lines += ["", use.what, "", f"```{use.language}", use.text.rstrip("\n"), "```"]
    if plan.notes:
        lines += ["", "Good to know:", "", *(f"- {note}" for note in plan.notes)]
    return "\n".join([*lines, ""])


_HOW = "vbuild publish: led to other libraries"


class WrittenFile(Struct, frozen=True):
    """A file by its path in the layout's folder; *is_linked* if it shares its bytes with another file."""

    path: PurePosixPath
    size: int
    is_linked: bool


def written(
    plan: PublishPlan,
    folder: Path,
    *,
    wheels: SharedWheels | None = None,
    stop: Event | None = None,
) -> tuple[WrittenFile, ...]:
    """Carry out *plan* in *folder*, which is new and on the file system of the results; returns its files, by path.

    Plans that share *wheels* hash common files and inflate members once. `VbuildError` if an output cannot be made, or
    *stop* is set; the caller then removes *folder*.
    """
    folder.mkdir(parents=True)
    seen: set[tuple[int, int]] = set()
    whole = (LinkedFile, Text, NewWheel)
    indexed = {file for output in plan.outputs if not isinstance(output, whole) for file in output.files}
    with ExitStack() as stack:
        press = stack.enter_context(Deflater(remembers=True))
        shared = wheels or stack.enter_context(SharedWheels(keeps=False))
        for output in plan.outputs:
            if stop and stop.is_set():
                raise RepackageError("interrupted")
            with at(output.target):
                _make(output, folder, press, shared)
            if output.target in indexed:
                shared.digests.begin(folder / output.target)
            if isinstance(output, LinkedFile):
                seen.add(_file(output.source))
    (folder / README).write_text(readme(plan), encoding="utf-8")
    written_files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        file = _file(path)
        # links to sources, and to files before them, took no room
        written_files.append(WrittenFile(PurePosixPath(path.relative_to(folder)), path.stat().st_size, file in seen))
        seen.add(file)
    return tuple(written_files)


def _file(path: Path) -> tuple[int, int]:
    """What two hard links of one file have in common."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _make(output: Output, folder: Path, press: Deflater, shared: SharedWheels) -> None:
    target = folder / output.target
    target.parent.mkdir(parents=True, exist_ok=True)
    match output:
        case LinkedFile(source=source):
            linked(source.resolve(), target)
        case Text(data=data):
            target.write_bytes(data)
        case NewWheel():
            _write_wheel(output, target.parent, press, shared)
        case SimpleIndex(files=files):
            fill_index([folder / file for file in files], target, digests=shared.digests)
        case _:
            output.write(folder, wheels=shared)


def _write_wheel(output: NewWheel, folder: Path, press: Deflater, shared: SharedWheels) -> None:
    dist_info = next((member.path.partition("/")[0] for member in output.members if is_dist_info(member.path)), "")
    bill = path_of(dist_info)
    with ExitStack() as stack:
        wheels: dict[Path, Wheel] = {}

        def opened(path: Path) -> Wheel:
            if path not in wheels:
                wheels[path] = stack.enter_context(shared.open(path))
            return wheels[path]

        with write_wheel(folder, output.name, like=opened(output.like), deflater=press) as writer:
            for member in output.members:
                wheel = None if isinstance(member, Put) else opened(member.wheel)
                if member.path != bill:
                    _write_member(member, wheel, writer, folder)
            has_one = any(member.path == bill for member in output.members)
            has_compiled = any(is_shared_object(member.path) for member in output.members)
            if has_one or (has_compiled and any(map(carries, wheels.values()))):
                _write_bill(bill, output, wheels, writer)


def _write_bill(path: str, output: NewWheel, wheels: Mapping[Path, Wheel], writer: WheelWriter) -> None:
    """Write the bill of *output* to *path*, with what the bills of *wheels* say.

    A wheel that has files of another, and no bill of its own, never had the libraries that went from there.
    """
    edited: dict[str, BillChange] = {}
    for member in output.members:
        if isinstance(member, Relinked) and (library := wheels[member.wheel].find(member.member)):
            before = listed([wheels[member.wheel].row(library)], also=[library.path])
            edited.update((member.path, BillChange(digest, _HOW)) for digest in before.values())
    bills = [bill for wheel in wheels.values() if (bill := bill_of(wheel))]
    if not any(member.path == path for member in output.members):
        bills = [replace(bill, gone=()) for bill in bills]
    writer.write_after(path, lambda rows: revised(output.name, rows, earlier=bills, changes=Changes(edited)))


def _write_member(member: Member, wheel: Wheel | None, writer: WheelWriter, folder: Path) -> None:
    match member, wheel:
        case Put(path=path, data=data, mode=mode), None:
            writer.write(path, data, mode=mode)
        case Copied(member=name, path=path), Wheel():
            if (old_member := wheel.find(name)) is None:
                raise RepackageError(f"{wheel.path.name}: {name}: no such member")
            writer.copy(wheel, old_member, path=path)
        case Relinked(member=name, path=path, order=order), Wheel():
            with wheel.mapped(name, folder=folder, to_edit=True) as view, at(name):
                before = EditedFile.whole(view)
                with relinked(before, order) as after:
                    writer.write(path, as_edit(after, before), mode=0o755)
        case _:
            raise TypeError(member)


class PublishedLayout(Struct, frozen=True):
    plan: PublishPlan
    folder: Path | None
    files: tuple[WrittenFile, ...]

    @property
    def size(self) -> int:
        """Bytes that were written for it; hard links take none."""
        return sum(file.size for file in self.files if not file.is_linked)

    def data(self) -> dict[str, Any]:
        return {
            "layout": self.plan.layout,
            "folder": str(self.folder) if self.folder else None,
            "files": [{"path": str(file.path), "bytes": file.size, "linked": file.is_linked} for file in self.files],
            "outputs": [str(output.target) for output in self.plan.outputs],
            "uses": [asdict(use) for use in self.plan.uses],
            "notes": list(self.plan.notes),
        }


def publish(
    paths: Sequence[Path], folder: Path | None, *, layouts: Sequence[PublishLayout]
) -> tuple[PublishedLayout, ...]:
    """Lay the wheels at *paths*, files or folders of them, out in each of *layouts*: ``folder/<layout>``.

    Without *folder* only the plans are made. `VbuildError`, and nothing written, if a wheel differs from its RECORD,
    wheels do not belong together or fit a layout, or a layout's folder is not empty.
    """
    # with one layout there is nobody to keep for what members hold
    with SharedWheels(room_for(folder), keeps=len(layouts) > 1) as wheels:
        offers = releases_at(paths, shared=wheels)
        plans = []
        for layout in layouts:
            with at(layout.name):
                plan = layout.plan(offers)
            targets = {output.target.name for output in plan.outputs if isinstance(output, LinkedFile)}
            lost = (offer.sdist.name for offer in offers if offer.sdist and offer.sdist.name not in targets)
            notes = (f"{name}: the project's own sdist, which this layout leaves out." for name in lost)
            plans.append(replace(plan, notes=(*plan.notes, *notes)))
        if folder is None:
            return tuple(PublishedLayout(plan, None, ()) for plan in plans)
        for plan in plans:
            if not _is_free(target := folder / plan.layout):
                raise _taken(target)
        checked = {wheel.path for release in offers for wheel in release.wheels} | {*_passed_on(plans)}
        return _laid(plans, folder, wheels=wheels, checked=checked)


def _laid(
    plans: Sequence[PublishPlan], folder: Path, *, wheels: SharedWheels, checked: Iterable[Path]
) -> tuple[PublishedLayout, ...]:
    """Carry out *plans*, several at once; at the end *checked* wheels that nobody has read are compared with RECORD."""
    with staging(folder) as stage, turn(folder):
        for target in (folder / plan.layout for plan in plans):
            if not _is_free(target):  # any more: another run had its turn before
                raise _taken(target)

        stop = Event()

        def lay(plan: PublishPlan) -> PublishedLayout:
            with at(plan.layout):
                files = written(plan, stage / plan.layout, wheels=wheels, stop=stop)
            return PublishedLayout(plan, folder / plan.layout, files)

        layouts = in_threads(lay, plans, size=lambda _plan: 1, threads=available_cores(), stop=stop)
        wheels.check(checked)
        settle(*(stage / plan.layout for plan in plans))
        for layout in layouts:
            _replace(stage / layout.plan.layout, folder / layout.plan.layout)
        settle_names(folder)
    return tuple(layouts)


def _passed_on(plans: Iterable[PublishPlan]) -> Iterator[Path]:
    """The wheels from which *plans* copy; an option may name others than those laid out."""
    for output in (output for plan in plans for output in plan.outputs):
        if isinstance(output, NewWheel):
            yield from (member.wheel for member in output.members if not isinstance(member, Put))


def _is_free(path: Path) -> bool:
    is_empty = path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    return is_empty or not os.path.lexists(path)


def _replace(staged: Path, target: Path) -> None:
    try:
        if target.exists():
            target.rmdir()
        staged.rename(target)
    except OSError as error:
        if _is_free(target):
            raise
        raise _taken(target) from error  # by another run, since this one looked


def _taken(path: Path) -> RepackageError:
    return RepackageError(f"{path}: exists and is not an empty folder; remove it, or choose another output folder")
