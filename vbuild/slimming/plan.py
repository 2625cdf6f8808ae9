"""Everything that slimming does to one wheel, decided before a byte is written.

    every ELF member, inflated once, in threads -> GpuLibrary
        -> for each share an EditedFile and a LibraryCut -> SlimPlan

A library that changes stays mapped from its temporary file while the plan is open; others are unmapped at once.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from vbuild.elf.records import MAGIC
from vbuild.files.edited import EditedFile
from vbuild.hardware.cpu import available_cores
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut
from vbuild.wheel.archive import Wheel, forget
from vbuild.wheel.zip_read import Member


class LibraryPlan(Struct, frozen=True):
    """What happens to one library: an edited file and an account for each share, and the libraries in its NEEDED."""

    member: str
    files: tuple[EditedFile, ...]
    cuts: tuple[LibraryCut, ...]
    needed: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes before the cut."""
        return self.cuts[0].before

    @property
    def is_changed(self) -> bool:
        return not all(file.is_unchanged for file in self.files)


class SlimPlan(Struct, frozen=True):
    """The libraries of a wheel with what happens to them, and the members that are left out."""

    libraries: tuple[LibraryPlan, ...]
    dropped: frozenset[str]

    @property
    def has_gpu_code(self) -> bool:
        """Whether any library has code for the GPUs that can be asked for."""
        return any(cut.has_gpu_code for library in self.libraries for cut in library.cuts)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.dropped and not any(library.is_changed for library in self.libraries)

    @property
    def needed(self) -> frozenset[str]:
        """The names in NEEDED of all libraries."""
        return frozenset(name for library in self.libraries for name in library.needed)

    def files(self, share: int) -> dict[str, EditedFile]:
        """Return the libraries that change for the share with index *share*, by path."""
        files = {library.member: library.files[share] for library in self.libraries}
        return {path: file for path, file in files.items() if not file.is_unchanged}

    def cuts(self, share: int) -> tuple[LibraryCut, ...]:
        """Return accounts for the share with index *share*: with GPU code, changed, or unchanged for a reason."""
        cuts = (library.cuts[share] for library in self.libraries)
        return tuple(cut for cut in cuts if cut.has_gpu_code or cut.after != cut.before or cut.why_whole or cut.notes)


@contextmanager
def planned(
    wheel: Wheel,
    shares: Sequence[Share],
    cuts: Cuts,
    *,
    room: Path | None = None,
    on_progress: Callable[[int], None] = lambda _size: None,
) -> Iterator[SlimPlan]:
    """Plan what to do to *wheel*, inflated in the folder *room*; *on_progress* is called with the bytes examined.

    Raises `RepackageError` if nothing serves a GPU asked for, or a glob names what a wheel needs; `WheelError` if
    the wheel is damaged.
    """
    dropped = cuts.dropped(wheel)
    # threads for thousands of small files would only wait for Python's lock
    members = [member for member in wheel.members if member.path not in dropped and _may_be_elf(wheel, member)]
    on_progress(sum(member.size for member in wheel.members) - sum(member.size for member in members))
    members.sort(key=lambda member: member.size, reverse=True)
    with ExitStack() as stack, ThreadPoolExecutor(available_cores()) as pool:
        stack.callback(pool.shutdown, cancel_futures=True)
        found = []
        examine = partial(_examined, wheel, stack=stack, shares=shares, cuts=cuts, room=room)
        for library in pool.map(examine, members):
            on_progress(library.size)
            found.append(library)
        order = {member.path: place for place, member in enumerate(wheel.members)}
        yield SlimPlan(tuple(sorted(found, key=lambda library: order[library.member])), dropped)


def _may_be_elf(wheel: Wheel, member: Member) -> bool:
    """Whether *member* begins like an ELF file, or its head cannot be read: reading all of it then says why."""
    start = wheel.head(member, len(MAGIC))
    return start == MAGIC or (not start and member.size > 0)


def _examined(
    wheel: Wheel, member: Member, *, stack: ExitStack, shares: Sequence[Share], cuts: Cuts, room: Path | None
) -> LibraryPlan:
    """Examine the library *member*; if it changes, it stays mapped until *stack* closes."""
    with ExitStack() as mapped:
        data = mapped.enter_context(wheel.mapped(member, folder=room))
        library = GpuLibrary.of(member.path, data)
        results = [library.slimmed(share, cuts) for share in shares]
        files, accounts = (tuple(column) for column in zip(*results, strict=True))
        examined = LibraryPlan(member.path, files, accounts, library.needed)
        if examined.is_changed:
            forget(data)
            stack.push(mapped.pop_all())
        return examined
