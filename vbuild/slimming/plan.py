"""Everything that is to be done to one wheel, known before a byte is written.

    every ELF member, inflated once, in threads -> Library -> for each share a Rope and a LibraryCut -> Plan

A library that changes stays mapped from its temporary file while the plan is open, all others are let go at once.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from vbuild.elf.outline import MAGIC
from vbuild.files.edited import EditedFile
from vbuild.hardware.cpu import available_cores
from vbuild.slimming.library import CutLibrary
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut
from vbuild.wheel.archive import Wheel
from vbuild.wheel.extract import forget
from vbuild.wheel.zip_read import Member


class Examined(Struct, frozen=True):
    """What becomes of one library: a rope and an account of it for each share, and the libraries that it NEEDs."""

    member: str
    ropes: tuple[EditedFile, ...]
    cuts: tuple[LibraryCut, ...]
    needed: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes before anything is cut."""
        return self.cuts[0].before

    @property
    def is_changed(self) -> bool:
        return not all(rope.is_unchanged for rope in self.ropes)


class SlimPlan(Struct, frozen=True):
    """The libraries of a wheel with what becomes of them, and the members that are left out."""

    libraries: tuple[Examined, ...]
    dropped: frozenset[str]

    @property
    def has_gpu_code(self) -> bool:
        """Whether any library has code for the GPUs that can be asked for."""
        return any(cut.has_gpu_code for library in self.libraries for cut in library.cuts)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done."""
        return not self.dropped and not any(library.is_changed for library in self.libraries)

    @property
    def needed(self) -> frozenset[str]:
        """The libraries that those of the wheel NEED."""
        return frozenset(name for library in self.libraries for name in library.needed)

    def ropes(self, share: int) -> dict[str, EditedFile]:
        """The libraries that change for the share at this place, by path."""
        ropes = {library.member: library.ropes[share] for library in self.libraries}
        return {path: rope for path, rope in ropes.items() if not rope.is_unchanged}

    def cuts(self, share: int) -> tuple[LibraryCut, ...]:
        """The libraries worth a word for the share at this place: with GPU code, changed, or left for a reason."""
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
    """The plan for *wheel*, inflated in the folder *room*; *on_progress* hears the size of what was looked at.

    `SlimError` where a GPU asked for is served by nothing, or a glob names what a wheel needs; `WheelError` where the
    wheel is damaged.
    """
    dropped = cuts.dropped(wheel)
    # thousands of threads' work on small files would only wait for Python's lock
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
    """Whether *member* begins as ELF files do, or cannot be read there: then to read all of it says why."""
    start = wheel.head(member, len(MAGIC))
    return start == MAGIC or (not start and member.size > 0)


def _examined(
    wheel: Wheel, member: Member, *, stack: ExitStack, shares: Sequence[Share], cuts: Cuts, room: Path | None
) -> Examined:
    """The library that *member* is, mapped until *stack* closes if it changes."""
    with ExitStack() as mapped:
        data = mapped.enter_context(wheel.mapped(member, folder=room))
        library = CutLibrary.of(member.path, data)
        results = [library.slimmed(share, cuts) for share in shares]
        ropes, accounts = (tuple(column) for column in zip(*results, strict=True))
        examined = Examined(member.path, ropes, accounts, library.needed)
        if examined.is_changed:
            forget(data)
            stack.push(mapped.pop_all())
        return examined
