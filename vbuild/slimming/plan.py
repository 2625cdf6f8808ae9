"""Everything that slimming does to the files of one package, decided before a byte is written.

    every file of GPU code alone, by its first bytes             -> stays or goes
    every ELF or PE member, inflated once, in threads -> GpuLibrary    -> for each share an edited file and an account
        -> SlimPlan

A library that changes stays mapped from its temporary file while the plan is open; others are unmapped at once. What
cannot be read or cut safely stays as it is, byte for byte, and the result says why.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from vbuild.binary.outline import Format
from vbuild.elf.records import MAGIC
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.device_file import HEADER, SUFFIXES, DeviceFile, Folder, Folders, Head, may_be_container
from vbuild.hardware.cpu import available_cores
from vbuild.pe.image import is_64_bit
from vbuild.slimming.device_files import container_plan, file_plan, kept_true, together
from vbuild.slimming.library import GpuLibrary, LibraryPlan, check_served
from vbuild.slimming.package import OpenPackage, PackageFile
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut
from vbuild.slimming.stated import listed_in
from vbuild.wheel.unpacking import forget


class SlimPlan(Struct, frozen=True):
    """The files of a package with what happens to them, and the members that are left out of every share.

    It *has_others* where compiled files are of formats without such code. For each share, *lists* are those in it
    that no longer name what went, and *said* is what to know of others.
    """

    libraries: tuple[LibraryPlan, ...]
    dropped: frozenset[str]
    has_others: bool = False
    lists: tuple[dict[str, EditedFile], ...] = ()
    said: tuple[tuple[str, ...], ...] = ()

    @property
    def has_gpu_code(self) -> bool:
        """Whether any library has code for the GPUs that can be asked for."""
        return any(cut.has_gpu_code for library in self.libraries for cut in library.cuts)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.dropped and not any(library.is_changed for library in self.libraries)

    @property
    def why_idle(self) -> str | None:
        """Why there is nothing to do, or None."""
        if not self.is_idle:
            return None
        if not self.libraries and self.has_others:
            return "its compiled files are for macOS or 32-bit Windows, and slim changes none of these"
        if not self.libraries:
            return "it has no compiled file, and runs on any machine"
        cuts = [cut for library in self.libraries for cut in library.cuts]
        is_left = any(cut.why_whole for cut in cuts)
        if not self.has_gpu_code:
            unread = (
                "no GPU code in what could be read, and files that could not be read are left, for the reasons below"
            )
            return unread if is_left else "its compiled files have no GPU code"
        if is_left or any(cut.surplus for cut in cuts):
            why = "for the reasons below" if is_left else "in code that cannot be cut; vbuild inspect says why"
            return f"what could go of it is left, {why}"
        found = ", ".join(dict.fromkeys(gpu for cut in cuts for gpu in cut.gpus))
        # what another vendor's GPUs run stays whole
        is_of_another = not any(cut.served or cut.zstd for cut in cuts)
        return f"nothing in it to cut: its GPU code is for {found}" if is_of_another else "nothing in it to cut"

    @property
    def needed(self) -> frozenset[str]:
        """The names in NEEDED of all libraries."""
        return frozenset(name for library in self.libraries for name in library.needed)

    def files(self, share: int) -> dict[str, EditedFile]:
        """Return the libraries that change for the share with index *share*, by path."""
        files = {library.member: library.files[share] for library in self.libraries if share not in library.gone}
        return {path: file for path, file in files.items() if not file.is_unchanged} | self.lists[share]

    def gone(self, share: int) -> frozenset[str]:
        """Return the members that the share with index *share* does not have."""
        return self.dropped.union(library.member for library in self.libraries if share in library.gone)

    def cuts(self, share: int) -> tuple[LibraryCut, ...]:
        """Return accounts for the share with index *share*: with GPU code, changed, or unchanged for a reason."""
        cuts = (library.cuts[share] for library in self.libraries)
        told = (cut for cut in cuts if cut.has_gpu_code or cut.after != cut.before or cut.why_whole or cut.notes)
        return tuple(together(told))


@contextmanager
def planned(
    package: OpenPackage,
    shares: Sequence[Share],
    cuts: Cuts,
    *,
    room: Path | None = None,
    on_progress: Callable[[int], None] = lambda _size: None,
    on_change: Callable[[], None] = lambda: None,
) -> Iterator[SlimPlan]:
    """Plan what to do to *package*, inflated in the folder *room*; *on_progress* is called with the bytes examined.

    *on_change* is called as soon as it is known that something changes, and may raise.

    Raises `RepackageError` if nothing serves a GPU asked for, or a glob names what a package needs; `WheelError`
    if it is damaged.
    """
    dropped = cuts.dropped(package)
    if dropped:
        on_change()
    found, members = _sorted_out(package, dropped, shares, cuts)
    on_progress(sum(member.size for member in package.members) - sum(member.size for member in members))
    members.sort(key=lambda member: member.size, reverse=True)
    with ExitStack() as stack, ThreadPoolExecutor(available_cores()) as pool:
        stack.callback(pool.shutdown, cancel_futures=True)
        if any(plan.is_changed for plan in found):
            on_change()
        examine = partial(_examined, package, stack=stack, shares=shares, cuts=cuts, room=room)
        for library in pool.map(examine, members):
            if library.is_changed:
                on_change()
            on_progress(library.cuts[0].before)
            found.append(library)
        order = {member.path: place for place, member in enumerate(package.members)}
        found.sort(key=lambda library: order[library.member])
        if not cuts.unsupported:
            for place in range(len(shares)):
                check_served([library.cuts[place] for library in found])
        plans, lists, said = kept_true(package, found, len(shares))
        known = {library.member for library in plans}
        others = (member for member in package.members if member.path not in known)
        has_others = not plans and any(Format.of(each.path, partial(package.head, each)) for each in others)
        yield SlimPlan(plans, dropped, has_others, lists, said)


def _sorted_out(
    package: OpenPackage, dropped: Collection[str], shares: Sequence[Share], cuts: Cuts
) -> tuple[list[LibraryPlan], list[PackageFile]]:
    """Return what becomes of the files that are GPU code alone, and the members that have to be inflated.

    Threads for thousands of small files would only wait for Python's lock.
    """
    found, members = [], []
    folders = Folders((member.path for member in package.members), package.read)
    for member in package.members:
        if member.path in dropped:
            continue
        start = package.head(member, HEADER)
        head = partial(_head, package, member, start)
        if file := DeviceFile.of(member.path, member.size, head, folders.of(member.path)):
            found.append(file_plan(file, member.path, member.size, shares, cuts))
        elif worth_reading(member.path, head) or (not start and member.size > 0):
            members.append(member)
    return found, members


def _head(package: OpenPackage, member: PackageFile, start: bytes, size: int) -> bytes:
    return start if size <= HEADER else package.head(member, size)


def is_alone(path: str, size: int, head: Head) -> bool:
    """Whether the file at *path* of *size* bytes is nothing but GPU code; *head* gives its first bytes."""
    return bool(DeviceFile.of(path, size, head)) or may_be_container(path, head)


def worth_reading(path: str, head: Head) -> bool:
    """Whether the file at *path* may have GPU code; *head* gives its first bytes."""
    is_elf = head(len(MAGIC))[: len(MAGIC)] == MAGIC
    return is_elf or is_64_bit(head) or may_be_container(path, head) or path.endswith(SUFFIXES)


def examined(
    path: str, data: memoryview, shares: Sequence[Share], cuts: Cuts, folder: Folder | None = None
) -> LibraryPlan:
    """Return what each of *shares* keeps of the file *data* at *path*, which lies in *folder*.

    Raises `RepackageError` if nothing serves a GPU asked for.
    """

    def head(size: int) -> bytes:
        return bytes(data[:size])

    if file := DeviceFile.of(path, len(data), head, folder):
        return file_plan(file, path, len(data), shares, cuts)
    if may_be_container(path, head):
        return container_plan(path, data, shares, cuts)
    if not worth_reading(path, head):
        account = LibraryCut(member=path, before=len(data), after=len(data))
        return LibraryPlan(path, (EditedFile.whole(data),) * len(shares), (account,) * len(shares))
    library = GpuLibrary.of(path, data)
    cores = available_cores()
    cut = partial(library.slimmed, cuts=cuts, threads=max(cores // len(shares), 1))
    with ThreadPoolExecutor(min(len(shares), cores)) as pool:
        results = list(pool.map(cut, shares))
    files, accounts = (tuple(column) for column in zip(*results, strict=True))
    listed = listed_in(library.image) if library.image else frozenset()
    return LibraryPlan(path, files, accounts, library.needed, listed)


def _examined(
    package: OpenPackage,
    member: PackageFile,
    *,
    stack: ExitStack,
    shares: Sequence[Share],
    cuts: Cuts,
    room: Path | None,
) -> LibraryPlan:
    """Examine the library *member*; if it changes, it stays mapped until *stack* closes."""
    with ExitStack() as mapped:
        data = mapped.enter_context(package.mapped(member, folder=room, to_edit=True))
        plan = examined(member.path, data, shares, cuts)
        if plan.is_changed:
            forget(data)
            stack.push(mapped.pop_all())
        return plan
