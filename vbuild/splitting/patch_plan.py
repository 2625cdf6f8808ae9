"""The decisions about all libraries of one kind of machine, and every patched file, before a byte is written.

    bundles -> decisions -> patches -> patched files, each checked; if a file cannot be edited, what it needs stays, and
    the decisions are made again

Patched files are kept while the plan is open: in one temporary file, or, if much can be copied from the wheel, as edits
of what that holds. A file that several wheels have is patched once.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from pathlib import Path
from threading import Lock

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.errors import BinaryError, RepackageError, at
from vbuild.files.edited import EditedFile, Spool
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import libs_folder
from vbuild.splitting.decisions import Decisions, decide
from vbuild.splitting.other_packages import PackageFinder
from vbuild.splitting.patches import FilePatch, PatchMaker, rpath_to
from vbuild.splitting.pools import Pool, are_rivals
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.stubs import second_name, second_stub, stub
from vbuild.wheel.blocks import as_edit
from vbuild.wheel.paths import installed_path
from vbuild.wheel.unpacking import forget

# applied to every library first: takes its path and its bytes, returns the edited file
LibraryCutter = Callable[[str, memoryview], EditedFile]

_Key = tuple[str, Relink]

# files that stay mapped until they are written, so that what is the same in them can be copied: each takes a descriptor
_MOST_MAPPED = 200


class PatchedFile(Struct, frozen=True, eq=False):
    """A file after its *patch*: its bytes, or None if they are unchanged, and their hash."""

    patch: FilePatch
    data: EditedFile | None
    sha256: str


class _KeptFile(Struct, frozen=True):
    """The hash of a patched file, and where it is kept: its *place* in the spool, or its *data*; none if unchanged."""

    sha256: str
    place: range | None = None
    data: EditedFile | None = None


@dataclass(slots=True, eq=False)
class Patcher:
    """Patches files, equal ones once; the results last until *stack* closes.

    *room* is the folder for temporary files, *cut* is applied to the bytes of every library first.
    """

    stack: ExitStack
    room: Path | None
    cut: LibraryCutter | None = None
    _spool: Spool = field(init=False)
    _lock: Lock = field(default_factory=Lock)
    _left: int = _MOST_MAPPED
    _kept: dict[_Key, _KeptFile] = field(default_factory=dict)
    _failures: dict[_Key, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._spool = Spool(self.stack, self.room)

    def failures(self, patches: Iterable[FilePatch]) -> Iterator[tuple[FilePatch, str]]:
        """Apply *patches*, and yield those for which that is impossible, and why.

        Raises `BuildError` or `RepackageError` if the file is not to blame, and nothing can be edited.
        """
        wanted = [(_key(patch), patch) for patch in patches if not self._is_empty(patch)]
        left: dict[_Key, FilePatch] = {}
        for key, patch in wanted:
            if key not in self._failures and key not in self._kept:
                left.setdefault(key, patch)
        # what cuts a library takes all cores, and memory, for one
        threads = 1 if self.cut else available_cores()
        in_threads(self._apply, [*left.values()], size=lambda patch: patch.binary.member.size, threads=threads)
        yield from ((patch, self._failures[key]) for key, patch in wanted if key in self._failures)

    def _apply(self, patch: FilePatch) -> None:
        binary, wheel = patch.binary, patch.bundle.wheel
        with ExitStack() as mapped:
            source = mapped.enter_context(wheel.mapped(binary.member, folder=self.room, to_edit=True))
            edited = self.cut(binary.path, source) if self.cut else EditedFile.whole(source)
            with at(wheel.path.name), at(binary.path):
                try:
                    with relinked(edited, patch.relink, folder=self.room) as view:
                        digest = hashlib.sha256(view).hexdigest()
                        is_new = digest != binary.sha256
                        self._kept[_key(patch)] = (
                            self._keep(edited, view, digest, mapped) if is_new else _KeptFile(digest)
                        )
                except BinaryError as error:
                    self._failures[_key(patch)] = str(error)

    def _keep(self, before: EditedFile, view: memoryview, sha256: str, mapped: ExitStack) -> _KeptFile:
        """Keep *view*, made of *before*, whose source is *mapped* until then, for as long as the plan is open."""
        after = as_edit(view, before)
        with self._lock:
            if after.source.obj is not before.source.obj or not self._left:
                return _KeptFile(sha256, self._spool.put(view))
            self._left -= 1
            self.stack.push(mapped.pop_all())
        forget(after.source)
        return _KeptFile(sha256, data=after)

    def patched(self, patch: FilePatch) -> PatchedFile:
        """Return the file after *patch*, which has not failed."""
        if self._is_empty(patch):
            return PatchedFile(patch, None, patch.binary.sha256)
        kept = self._kept[_key(patch)]
        data = EditedFile.whole(self._spool.view(kept.place)) if kept.place else kept.data
        return PatchedFile(patch, data, kept.sha256)

    def _is_empty(self, patch: FilePatch) -> bool:
        return patch.is_empty and not self.cut


def _key(patch: FilePatch) -> _Key:
    """What the patched file depends on: a file that several wheels have is patched once."""
    return patch.binary.sha256, patch.relink


class PatchPlan(Struct, frozen=True, eq=False):
    """The *decisions*, with the files of every wheel and every pool after their patches.

    *owners* are the projects after which the -libs wheels of pools are named, and *libs_folders* the folders of their
    libraries; *uneditable* are the files that could not be patched, and
    why.
    """

    decisions: Decisions
    owners: Mapping[Pool, str]
    libs_folders: Mapping[Pool, str]
    staying: Mapping[Bundle, tuple[PatchedFile, ...]]
    moving: Mapping[Pool, tuple[PatchedFile, ...]]
    uneditable: Mapping[tuple[Bundle, str], str]

    def stubs(self, bundle: Bundle) -> dict[str, bytes]:
        """Return the stubs that stay in the wheel of *bundle*, by member."""
        found = {}
        for path, decision in self.decisions.by_bundle[bundle].items():
            if decision.pool and decision.leaves_stub:
                library = bundle.binaries[path]
                found[library.member.path] = stub(library, rpath_to(path, self.libs_folders[decision.pool]))
        return found

    def second_stubs(self, pool: Pool) -> dict[str, bytes]:
        """Return what stubs lead to in the -libs wheel of *pool*, by path."""
        found = {}
        for library in pool.libraries.values():
            copies = (
                (bundle, one.path) for bundle in pool.bundles for one in bundle.libraries if one.key == library.key
            )
            if any(self.decisions.of(bundle, path).leaves_stub for bundle, path in copies):
                found[f"{self.libs_folders[pool]}/{second_name(library)}"] = second_stub(library)
        return found


def plan_patches(
    bundles: Sequence[Bundle], request: SplitRequest, *, packages: PackageFinder, patcher: Patcher
) -> PatchPlan:
    """Plan the patches of *bundles*; raises `RepackageError` if *request* leaves a choice open."""
    uneditable: dict[tuple[Bundle, str], str] = {}
    while True:
        decisions = decide(bundles, request, uneditable=uneditable)
        owners = libs_owners(decisions.pools, request, among=bundles)
        folders = {pool: libs_folder(owner) for pool, owner in owners.items()}
        _check_versions(folders)
        for pool, folder in folders.items():
            _check_folder_is_free(pool, folder)
        maker = PatchMaker(decisions, folders, packages, uneditable=uneditable.keys(), cleans=request.rpath)
        staying = {bundle: maker.for_bundle(bundle) for bundle in bundles}
        moving = {pool: maker.for_pool(pool) for pool in decisions.pools}
        every = chain.from_iterable((*staying.values(), *moving.values()))
        failed = {patch.binary.key: why for patch, why in patcher.failures(every)}
        if not failed:
            return PatchPlan(
                decisions,
                owners,
                folders,
                {bundle: tuple(map(patcher.patched, patches)) for bundle, patches in staying.items()},
                {pool: tuple(map(patcher.patched, patches)) for pool, patches in moving.items()},
                uneditable,
            )
        # mark the same file in all wheels, or another wheel would try it in the next round
        for bundle in bundles:
            copies = {path: binary.key for path, binary in bundle.binaries.items() if binary.key in failed}
            for path, key in copies.items():
                uneditable.setdefault((bundle, path), failed[key])


def libs_owners(pools: Sequence[Pool], request: SplitRequest, *, among: Sequence[Bundle]) -> Mapping[Pool, str]:
    """Return the project after which the -libs wheel of each pool is named; errors as in `libs_owner`.

    If variants of a release have other libraries than its plain wheels, theirs are called after their label: two
    versions of one project could not be in the order of releases.
    """
    owners = {pool: libs_owner(pool, request, among=among) for pool in pools}
    found: dict[Pool, str] = {}
    for pool, owner in owners.items():
        rivals = [one for one in pools if owners[one] == owner and one.platform == pool.platform]
        labels = {one: min(bundle.wheel.name.variant or "" for bundle in one.bundles) for one in rivals}
        is_first = pool is min(rivals, key=lambda one: (labels[one], pools.index(one)))
        found[pool] = owner if is_first or not labels[pool] else f"{owner}-{canonicalize_name(labels[pool])}"
    return found


def libs_owner(pool: Pool, request: SplitRequest, *, among: Iterable[Bundle]) -> str:
    """Return the project after which the -libs wheel of *pool* is named.

    The requested name is for libraries that several projects share, if the wheels *among* which the pool is are of
    several: if each project had a version of its own, two of them could not be installed together. Raises
    `RepackageError` if several projects share the pool and no name is requested.
    """
    is_for_all = {bundle.wheel.name.project for bundle in among if bundle.binaries} == set(pool.projects)
    if request.libs_project and (is_for_all or len(pool.projects) > 1):
        return request.libs_project.removesuffix("-libs")
    if len(pool.projects) > 1:
        raise RepackageError(
            f"{' and '.join(pool.projects)} have libraries in common, {min(pool.libraries)} first; "
            "say with --libs what their wheel is to be called, or split the projects apart"
        )
    return pool.projects[0]


def _check_versions(folders: Mapping[Pool, str]) -> None:
    """Raise `RepackageError` if two projects would require different versions of one -libs wheel in one environment."""
    for pool, other in combinations(folders, 2):
        is_shared = folders[pool] == folders[other] and are_rivals(pool, other)
        for one, two in product(pool.bundles, other.bundles) if is_shared else ():
            if one.wheel.name.project != two.wheel.name.project and not _pythons(one).isdisjoint(_pythons(two)):
                raise RepackageError(
                    f"{one.wheel.path.name} and {two.wheel.path.name} share libraries with other wheels, and not the "
                    "same: they could not be installed together; split the projects apart"
                )


def _check_folder_is_free(pool: Pool, folder: str) -> None:
    """Raise `RepackageError` if a wheel has files in the *folder* of its -libs wheel, or has the name of that wheel.

    Installers remove the files of an old wheel after they have installed what the new one requires.
    """
    project = canonicalize_name(folder.partition("/")[0])
    for bundle in pool.bundles:
        paths = (installed_path(member.path) or "" for member in bundle.wheel.members)
        taken = next((path for path in paths if path.startswith(f"{folder}/")), None)
        if taken or bundle.wheel.name.project == project:
            what = (
                f"{taken} is where its shared libraries would be"
                if taken
                else "its shared libraries would be a wheel of its own name"
            )
            raise RepackageError(
                f"{bundle.wheel.path.name}: {what}; say with --libs what else their wheel is to be called"
            )


def _pythons(bundle: Bundle) -> set[tuple[str, str]]:
    return {(tag.interpreter, tag.abi) for tag in bundle.wheel.name.tags}
