"""`vbuild slim --environment`: GPU code cut out of what is installed, file by file, where it lies.

    environment -> distributions -> InstalledFiles: regular files that may have GPU code, each once
                -> what a cut keeps of each, as in a wheel
                -> a reason to leave it: a licence, a link, another owner, a process, RECORD that says something else
                -> a new file beside it, and a rename; then RECORD and conda-meta

A file loses only its names that are in the environment: uv's cache keeps its own.
"""

import hashlib
import os
import re
import stat
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Strip
from vbuild.errors import RepackageError, VariantError, VbuildError
from vbuild.files.edited import EditedFile
from vbuild.files.reading import open_file
from vbuild.gpu_code.device_file import TRITON, Folder, is_named, may_be_container
from vbuild.hardware.cpu import available_cores
from vbuild.hardware.gpu import GpuList
from vbuild.process.signals import uninterrupted
from vbuild.process.threads import stoppable_pool
from vbuild.sbom.keeping import cuts_of, installed_bill
from vbuild.sbom.model import GpuCut
from vbuild.slimming.device_files import OwnLists, examine_file, stale_list_warnings, worth_reading
from vbuild.slimming.in_place import Backup, FileChange, Journal, Listings, alike, change_in_turn, completed
from vbuild.slimming.library import Archs
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import FileLeft, LibraryCut, Saving, SlimmedDistribution, SlimmedEnvironment
from vbuild.slimming.slim import slim
from vbuild.variants.document import Document
from vbuild.wheel.installed import Environment, FileRow, InstalledDistribution
from vbuild.wheel.licence import Accepted, is_accepted, prohibitions
from vbuild.wheel.metadata import VARIANT_JSON, RecordRow, recorded_sha256, unpadded

_SHOWN_OWNERS = 3
_PRIVATE = "private use may be allowed where redistribution is not: then say so with --accept-license"
OnProgress = Callable[[str, int, int], None]


# a line of /proc/PID/maps: addresses, permissions, offset, device, inode, path
_MAPPED = re.compile(r"(?:\S+\s+){4}(?P<inode>\d+)\s+(?P<path>/.*)\n?")


class Owner(Struct, frozen=True):
    distribution: InstalledDistribution
    row: RecordRow


class InstalledFile(Struct, frozen=True):
    """A regular file of an environment: its *paths* from the root, and who owns it."""

    paths: tuple[str, ...]
    status: os.stat_result
    owners: tuple[Owner, ...]
    why_left: str | None = None

    @property
    def path(self) -> str:
        return self.paths[0]


class _Done(Struct, frozen=True):
    """What a cut of *file* came to: the new file *part* if it changes.

    Without a SHA-256 of the *new* file the old one is removed. *listed* are lists of architectures in it.
    """

    file: InstalledFile
    cut: LibraryCut | None = None
    part: Path | None = None
    old: str = ""
    new: str | None = None
    why_left: str | None = None
    listed: frozenset[Archs] = frozenset()

    @property
    def saves(self) -> int:
        return self.cut.before - self.cut.after if self.cut else 0


def slim_environment(
    environment: Environment,
    share: Share,
    cuts: Cuts,
    *,
    dry_run: bool = False,
    backup: Path | None = None,
    accept_license: Accepted = False,
    unread: Collection[Path] = (),
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> SlimmedEnvironment:
    """Cut what is installed in *environment* down to what *share* keeps; with *dry_run* nothing changes.

    *backup* is a folder for the old files, for `undo`. Files that cannot be changed safely stay, with the reason in the
    result; so do files of GPU code alone of distributions whose listings are *unread*. *on_progress* is called with the
    distribution at work, and bytes done and in total.

    Raises `RepackageError` if the environment cannot be written to or another run changes it, `RecipeError` if the disk
    is full: every file is then the old or the new one, and listings say which.
    """
    if share.gpus is None and not cuts.more:
        raise RepackageError("nothing to do; expected GPUs to keep (--gpu), or --recompress or --strip")
    if cuts.drop:
        raise RepackageError("--drop goes with wheels; expected none for what is installed")
    new_run = partial(
        _Run, environment, share, cuts, accept_license=accept_license, unread=unread, on_progress=on_progress
    )
    run = new_run()
    if dry_run:
        return replace(run.result(run.examined(None)), is_dry_run=True)
    with change_in_turn(environment) as (stage, journal):
        interrupted = journal.left()
        count = completed(environment, run.listings, interrupted)
        journal.finish()
        if interrupted:  # rows may be others now
            run = new_run()
        old_files = Backup(backup.resolve(), environment.root) if backup else None
        results = run.change(stage, journal, old_files)
        return replace(run.result(results), completed=count, backup=backup)


def savings(place: Path, gpus: GpuList | None) -> Iterator[Saving]:
    """What options of slim alone would save of the wheel or environment at *place*, each by a dry run; none if nothing.

    GPU code goes for all but *gpus*. What is refused, by a licence or as nothing is for a GPU, is left out.
    """
    trials = [(f"--gpu {gpus}", Share(gpus), Cuts())] if gpus else []
    trials += [(f"--strip {strip}", Share(), Cuts(strip=strip)) for strip in (Strip.DEBUG, Strip.UNNEEDED)]
    for option, share, cuts in trials:
        saving = Saving(option, 0, 0)
        with suppress(RepackageError):
            if place.suffix == ".whl":
                (slimmed,) = slim([place], None, shares=[share], cuts=cuts)
                unpacked = slimmed.unpacked_before - slimmed.unpacked
                saving = Saving(option, slimmed.before - slimmed.packed, unpacked)
            else:
                cut = slim_environment(Environment.at(place), share, cuts, dry_run=True)
                saving = Saving(option, 0, cut.before - cut.after)
        if saving.unpacked > 0:
            yield saving


class _Run:
    def __init__(
        self,
        environment: Environment,
        share: Share,
        cuts: Cuts,
        *,
        accept_license: Accepted,
        unread: Collection[Path],
        on_progress: OnProgress,
    ) -> None:
        self._environment = environment
        self._root = environment.root
        self._share, self._cuts = share, cuts
        self._accept_license, self._unread = accept_license, frozenset(unread)
        self._on_progress = on_progress
        self._distributions = environment.distributions()
        self.listings = Listings(environment, self._distributions)
        self._refused: dict[str, tuple[str | None, tuple[str, ...]]] = {}
        self._listed: dict[str, OwnLists] = {}
        self._bills: dict[str, dict[str, GpuCut]] = {}
        self._cut_to = tuple(map(str, share.gpus.every)) if share.gpus else ()
        # listed once: some have ten thousands of files
        self._folders: dict[Path, Folder] = {}
        self._files = InstalledFiles(environment.root, self._distributions)

    def examined(self, stage: Path | None) -> Generator[_Done]:
        """Yield what a cut makes of each file, in order, on all cores; new files are in *stage*, if there is one."""
        total, done = sum(file.status.st_size for file in self._files.files), 0
        with stoppable_pool(available_cores()) as (pool, check_stopped):
            left = deque(enumerate(self._files.files))
            sent: deque[Future[_Done]] = deque()
            while left or sent:
                # not for too many, or the disk has all of them twice
                while left and len(sent) < 2 * available_cores():
                    number, file = left.popleft()
                    part = stage / f"part-{number}" if stage else None
                    sent.append(pool.submit(self._cut, file, part, check_stopped))
                result = sent.popleft().result()
                done += result.file.status.st_size
                self._on_progress(str(result.file.owners[0].distribution), done, total)
                yield result

    def change(self, stage: Path, journal: Journal, backup: Backup | None) -> list[_Done]:
        results: list[_Done] = []
        rows: dict[str, FileRow | None] = {}
        listing = None
        try:
            with closing(self.examined(stage)) as cuts:
                for done in cuts:
                    if (next_listing := done.file.owners[0].distribution.listing) != listing:
                        self.listings.update(rows)
                        rows.clear()
                        listing = next_listing
                    results.append(self._renamed(done, stage, journal, backup, rows))
        finally:
            with uninterrupted():
                for part in stage.glob("part-*"):  # they may have filled the disk
                    part.unlink()
                self.listings.update(rows)
                journal.finish()
        return results

    def _renamed(
        self, done: _Done, stage: Path, journal: Journal, backup: Backup | None, rows: dict[str, FileRow | None]
    ) -> _Done:
        if done.part is None or done.cut is None:
            return done
        for number, path in enumerate(done.file.paths):
            target, part = self._root / path, done.part
            if number and done.new:
                part = stage / f"{done.part.name}-{number}"
                part.hardlink_to(self._root / done.file.path)
            if not _is_still(target, done.file.status):
                return replace(done, why_left="something else changed it meanwhile; run again")
            listed = () if done.new else self.listings.that_list(path)
            cut = GpuCut(done.cut.gpus, self._cut_to, done.cut.fillers) if done.cut.fillers else None
            change = FileChange(path, done.old, done.cut.before, done.new, done.cut.after, listed=listed, cut=cut)
            if backup:
                backup.keep(target, change)
            journal.write(change)
            with uninterrupted():  # a change that is made has to be recorded
                try:
                    if done.new:
                        part.replace(target)
                    else:
                        target.unlink()
                except PermissionError:  # Windows, of a file that a process uses
                    return replace(done, why_left="in use by a process; end it first")
                self.listings.note(change)
                rows[path] = FileRow(path, done.new, done.cut.after) if done.new else None
        return done

    def result(self, results: Iterable[_Done]) -> SlimmedEnvironment:
        by_listing: dict[str, list[_Done]] = {}
        for done in results:
            by_listing.setdefault(str(done.file.owners[0].distribution.listing), []).append(done)
        distributions = []
        linked = 0
        for distribution in self._distributions:
            key = str(distribution.listing)
            own = by_listing.get(key, [])
            changed = [done for done in own if done.cut and not done.why_left and done.saves]
            left = [FileLeft(done.file.path, done.why_left, done.saves) for done in own if done.why_left]
            listed = {done.file.path: done.listed for done in own if done.listed}
            cuts = [done.cut for done in changed if done.cut]
            warnings = (*self._refused.get(key, (None, ()))[1], *stale_list_warnings(distribution, cuts, listed))
            linked += sum(
                done.file.status.st_size for done in changed if done.file.status.st_nlink > len(done.file.paths)
            )
            distributions.append(
                SlimmedDistribution(
                    project=distribution.project,
                    version=distribution.version,
                    before=self._files.sizes[key],
                    after=self._files.sizes[key] - sum(done.saves for done in changed),
                    libraries=tuple(
                        done.cut for done in own if done.cut and not done.why_left and done.cut.has_gpu_code
                    ),
                    left=(*left, *self._files.outside.get(key, ())),
                    why_left=distribution.trouble
                    or (f"editable: its code is in {distribution.source}" if distribution.source else None),
                    is_editable=distribution.source is not None,
                    warnings=warnings if changed else (),
                )
            )
        return SlimmedEnvironment(root=self._root, distributions=tuple(distributions), linked=linked)

    def _cut(self, file: InstalledFile, part: Path | None, check_stopped: Callable[[], None]) -> _Done:
        try:
            with open_file(self._root / file.path) as opened:
                data = memoryview(mmap(opened.fileno(), 0, access=ACCESS_READ))
            parent = (self._root / file.path).parent
            if parent not in self._folders:
                self._folders[parent] = Folder.on_disk(parent)
            plan = examine_file(
                file.path,
                data,
                (self._share,),
                self._cuts,
                self._folders[parent],
                fillers=self._fillers(file),
                on_progress=lambda _size: check_stopped(),
            )
        except (VbuildError, OSError) as error:
            damage = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            return _Done(file, why_left=damage.removeprefix(f"{file.path}: "))
        cut = plan.cuts[0]
        if not plan.is_changed or cut.after >= cut.before:
            # zeros where code was save nothing on a disk
            notes = cut.notes if cut.dropped else ()
            is_meant = cut.has_gpu_code or may_be_container(file.path, lambda size: bytes(data[:size]))
            whys = (cut.why_whole, *cut.lacks.values(), *notes) if is_meant else ()
            why = next(filter(None, whys), None)
            return _Done(file, replace(cut, after=cut.before), why_left=why, listed=plan.listed)
        refusals = (self._refusal(owner.distribution) for owner in file.owners)
        why, old = file.why_left or next(filter(None, refusals), None), ""
        if cut.alone.startswith(TRITON):
            why = why or "one of the files of an entry of Triton's cache, which are of use together only"
        if cut.alone and any(owner.distribution.listing in self._unread for owner in file.owners):
            why = why or "a file of GPU code alone, and its package's code or lists, which may name it, are links"
        if why is None:
            old = hashlib.sha256(data).hexdigest()
            why = _why_not_theirs(file.owners, data, old) or (self._why_listed(file, old) if cut.alone else None)
        if why or part is None:
            return _Done(file, cut, old=old, why_left=why, listed=plan.listed)
        if plan.gone:
            return _Done(file, cut, part, old)
        new = _written(plan.files[0], part)
        try:
            alike(part, self._root / file.path)
        except OSError as error:
            return _Done(file, cut, why_left=f"its owner and mode cannot be kept: {error.strerror}")
        return _Done(file, cut, part, old, new, listed=plan.listed)

    def _fillers(self, file: InstalledFile) -> str:
        """What the bill of materials of its first owner says of the fillers in *file*."""
        owner = file.owners[0]
        key = str(owner.distribution.listing)
        if key not in self._bills:
            self._bills[key] = cuts_of(installed_bill(owner.distribution))
        return self._bills[key].get(owner.row.path, GpuCut()).fillers

    def _why_listed(self, file: InstalledFile, digest: str) -> str | None:
        """Why its package would miss a *file* of GPU code alone."""
        for owner in file.owners:
            key = str(owner.distribution.listing)
            if key not in self._listed:
                self._listed[key] = OwnLists.of(owner.distribution)
            if why := self._listed[key].why_whole(file.path, digest):
                return why
        return None

    def _refusal(self, distribution: InstalledDistribution) -> str | None:
        key = str(distribution.listing)
        if key not in self._refused:
            why, warnings = _why_claimed(distribution, self._share), tuple[str, ...]()
            if why is None:
                own = [prohibition for prohibition in prohibitions(distribution) if prohibition.is_own]
                warnings = tuple(f"accepted for you: {prohibition}" for prohibition in own)
                if own and not is_accepted(self._accept_license, distribution.project):
                    why, warnings = f"the licence forbids changes ({own[0]}); {_PRIVATE} {distribution.project}", ()
            self._refused[key] = why, warnings
        return self._refused[key][0]


def _written(edited: EditedFile, part: Path) -> str:
    digest = hashlib.sha256()
    with part.open("xb") as stream:
        for buffer in edited.buffers():
            stream.write(buffer)
            digest.update(buffer)
    return digest.hexdigest()


def _is_still(path: Path, status: os.stat_result) -> bool:
    with suppress(OSError):
        now = path.lstat()
        return (now.st_ino, now.st_size, now.st_mtime_ns) == (status.st_ino, status.st_size, status.st_mtime_ns)
    return False


def _why_claimed(distribution: InstalledDistribution, share: Share) -> str | None:
    """What *distribution* claims of its GPUs, so that it cannot be narrowed to *share*; or None."""
    path = f"{distribution.dist_info}/{VARIANT_JSON}"
    if distribution.is_conda or not distribution.find(path):
        return None
    with suppress(VariantError):
        if vendors := share.vendors.intersection(Document.parse(distribution.read(path)).metadata.namespaces):
            return f"a variant for {', '.join(sorted(vendors))} GPUs already; install the one for yours"
    return None


def _why_not_theirs(owners: Sequence[Owner], data: memoryview, digest: str) -> str | None:
    """Why the file *data*, with SHA-256 *digest*, does not match its listings, or None.

    conda changes files after pip has written RECORD, so its own hash decides.
    """
    deciding = [owner for owner in owners if owner.distribution.is_conda] or owners
    wrong = [owner for owner in deciding if not _agrees(owner.row, data, digest)]
    if not wrong:
        return None
    names = ", ".join(sorted({str(owner.distribution) for owner in owners})[:_SHOWN_OWNERS])
    if len(wrong) < len(deciding):
        return f"several distributions own it ({names}), and it is not as {wrong[0].distribution} says; install one"
    return f"not what {wrong[0].distribution.listing.name} of {names} says; install it again"


def _agrees(row: RecordRow, data: memoryview, digest: str) -> bool:
    algorithm, _, expected = (row.hash or "").partition("=")
    if row.size not in {None, len(data)}:
        return False
    if not row.hash or algorithm == "sha256":
        return not row.hash or recorded_sha256(row.hash) == digest
    is_known = algorithm in hashlib.algorithms_guaranteed
    return is_known and unpadded(hashlib.new(algorithm, data).digest()) == expected.rstrip("=")


class InstalledFiles:
    """The files of *distributions* below *root* that may have GPU code.

    *sizes* are the bytes of each distribution, by its listing, *outside* the files of each that lie elsewhere.
    """

    def __init__(self, root: Path, distributions: Iterable[InstalledDistribution]) -> None:
        self._root = root
        self._inside: dict[str, bool] = {}
        self.sizes: Counter[str] = Counter()
        self.outside: dict[str, list[FileLeft]] = {}
        self.files = tuple(self._find(distributions))

    def _find(self, distributions: Iterable[InstalledDistribution]) -> Iterator[InstalledFile]:
        by_path: dict[str, list[Owner]] = {}
        for distribution in distributions:
            for row in distribution.rows:
                by_path.setdefault(str(distribution.path_of(row.path)), []).append(Owner(distribution, row))
        names: dict[tuple[int, int], list[tuple[str, os.stat_result, list[Owner]]]] = {}
        for path, owners in by_path.items():
            with suppress(OSError):  # what is listed need not be there
                status = os.lstat(path)
                key = str(owners[0].distribution.listing)
                if stat.S_ISLNK(status.st_mode):
                    target = os.path.realpath(path)
                    if not Path(target).is_relative_to(self._root):
                        self._leave(path, key, f"a link to {target}, outside of the environment")
                elif stat.S_ISREG(status.st_mode) and self._is_inside(path):
                    names.setdefault((status.st_dev, status.st_ino), []).append((path, status, owners))
                elif stat.S_ISREG(status.st_mode):
                    self._leave(path, key, "lies outside of the environment")
        running = _running(path for names_of_file in names.values() for path, _, _ in names_of_file)
        for names_of_file in names.values():
            path, status, owners = names_of_file[0]
            self.sizes[str(owners[0].distribution.listing)] += status.st_size
            if _is_worth_reading(path):
                everyone = tuple(owner for _, _, several in names_of_file for owner in several)
                paths = tuple(_from(self._root, os.path.realpath(name)) for name, _, _ in names_of_file)
                yield InstalledFile(paths, status, everyone, _why_left(path, status, running))

    def _is_inside(self, path: str) -> bool:
        """Whether no link in *path* leads out of the environment."""
        folder = path.rpartition(os.sep)[0]
        if folder not in self._inside:
            self._inside[folder] = Path(os.path.realpath(folder)).is_relative_to(self._root)
        return self._inside[folder]

    def _leave(self, path: str, key: str, why: str) -> None:
        if _is_worth_reading(path):
            self.outside.setdefault(key, []).append(FileLeft(_from(self._root, path), why))


def _why_left(path: str, status: os.stat_result, running: Mapping[tuple[str, int], str]) -> str | None:
    if process := running.get((path, 0)) or running.get((path.rpartition(os.sep)[2], status.st_ino)):
        return f"in use by {process}; end it first"
    if not status.st_mode & stat.S_IWUSR:
        return "read-only; chmod u+w makes it writable"
    if hasattr(os, "geteuid") and os.geteuid() not in {0, status.st_uid}:
        return f"belongs to another user, {status.st_uid}"
    if not os.access(path.rpartition(os.sep)[0], os.W_OK | os.X_OK):
        return "its folder cannot be written to"
    return None


def _from(root: Path, path: str) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


def _is_worth_reading(path: str) -> bool:
    if is_named(path):
        return True
    try:
        with open_file(path) as file:
            return worth_reading(path, lambda size: _head(file, size))
    except OSError:
        return True  # whoever reads all of it says why that fails


def _head(file: BinaryIO, size: int) -> bytes:
    file.seek(0)
    return file.read(size)


def _running(paths: Iterable[str]) -> dict[tuple[str, int], str]:
    """The process that has a file mapped: by path and 0, or by name and inode.

    A process that has the file by another name keeps the old file.
    """
    wanted = {path.rpartition(os.sep)[2] for path in paths}
    processes: dict[tuple[str, int], str] = {}
    if sys.platform != "linux":  # Windows replaces no mapped file, and the result names it
        return processes
    here = _seen(Path("/proc/self"))
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        # processes of others, and those that have ended meanwhile
        with suppress(OSError), (process / "maps").open() as lines:
            rows = {match.group("path", "inode") for line in lines if (match := _MAPPED.fullmatch(line))}
            for path, inode in rows:
                if (name := path.rpartition("/")[2]) in wanted:
                    who = f"process {process.name} ({(process / 'comm').read_text().strip()})"
                    processes[path, 0] = who
                    if _seen(process) != here:
                        processes[name, int(inode)] = who
    return processes


def _seen(process: Path) -> tuple[str, str]:
    return str((process / "root").readlink()), str((process / "ns/mnt").readlink())
