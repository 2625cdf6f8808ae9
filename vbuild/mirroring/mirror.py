"""`vbuild mirror`: from requirements and descriptions of machines to an index with what these install.

sources -> for each machine the files that it installs                      (uv resolves; nothing is written yet)
-> each file with the machines that install it, and the cut that serves them
-> what the site has already stays; the rest is fetched by its hash and cut
-> the new site takes the place of the old one in one step
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vbuild import __version__
from vbuild.errors import RepackageError
from vbuild.files.atomic import name_unwritable_folder, source_date_epoch, turn_for
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import Machine, python_of
from vbuild.index_client.pages import Store
from vbuild.mirroring.making import Made, OnProgress, Wanted, make_all
from vbuild.mirroring.model import Cut, FleetMachine, MirroredFile, MirrorRequest, Original, Site, SiteMachine
from vbuild.mirroring.resolution import resolved
from vbuild.mirroring.site import REINSTALLING, install_lines, read_site, write_site
from vbuild.process.run import supervised
from vbuild.variants.select import machine_at


class Mirrored(Struct, frozen=True):
    """What a run made of the mirror in *folder*: the new *site*, and how it differs from the old one.

    *fetched* counts files that came from an index, *kept* those that were there already, *removed* those that went;
    *replaced* are paths whose bytes changed: older locks no longer install these.
    """

    folder: Path | None
    site: Site
    files: tuple[MirroredFile, ...]
    fetched: int = 0
    kept: int = 0
    removed: int = 0
    replaced: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def plain(self) -> tuple[MirroredFile, ...]:
        """The files that are not variants of others."""
        return tuple(file for file in self.files if not file.cut.label)

    def usage(self) -> Iterator[str]:
        """The commands that install on each machine."""
        for machine in self.site.machines if self.folder else ():
            yield f"{machine.name}:"
            yield from install_lines(str(self.folder), machine, url=self.site.url)
        if self.folder and any(file.is_changed for file in self.site.files):
            yield "where wheels as published are installed, what replaces them:"
            yield from REINSTALLING

    def data(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder) if self.folder else None,
            "fetched": self.fetched,
            "kept": self.kept,
            "removed": self.removed,
            "replaced": [*self.replaced],
            "dropped_machines": [*self.dropped],
            # without variants: nobody installs both
            "download_before": sum(file.original.size for file in self.plain),
            "download": sum(file.size for file in self.plain),
            "installed_before": sum(file.installed_before for file in self.plain),
            "installed": sum(file.installed for file in self.plain),
            "site": self.site.data(),
        }


def mirror(
    sources: Sequence[str],
    folder: Path | None,
    machines: Sequence[FleetMachine],
    request: MirrorRequest,
    *,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> Mirrored:
    """Make *folder* a mirror of what *sources*, requirements and locks, resolve to on *machines*.

    Without a folder nothing is written. Files of an older mirror there are kept if they would come out the same.
    `BuildError` if requirements cannot be resolved, `FetchError` for a file that cannot be fetched, `WheelError` for a
    damaged one, `RepackageError` if *folder* has something else: the site is unchanged then, and the next run continues
    with what was fetched.
    """
    source_date_epoch()
    _check(machines)
    run = _Run(tuple(sources), tuple(machines), request, on_progress)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="vbuild-mirror-") as text:
            return run.rehearse(Path(text))
    with turn_for(folder):
        return run.write(folder)


class _Run(Struct, frozen=True):
    sources: tuple[str, ...]
    machines: tuple[FleetMachine, ...]
    request: MirrorRequest
    on_progress: OnProgress

    def rehearse(self, work: Path) -> Mirrored:
        """What a site would become; each file is made in *work* for its size, and removed."""
        wanted, installs = self._resolve()
        files: list[MirroredFile] = []
        for are_variants in (False, True):
            for made_file in self._make(work, self._variants(wanted, files) if are_variants else wanted):
                made_file.path.unlink()
                files.append(made_file.file)
        site = self._site(files, installs)
        return Mirrored(None, site, site.files, fetched=len(files))

    def write(self, folder: Path) -> Mirrored:
        before = read_site(folder)
        work = folder.absolute().with_name(f".{folder.absolute().name}.mirror")
        question = self._question()  # while its sources are there
        wanted, installs = self._resolve()
        files: list[MirroredFile] = []
        made_files: dict[str, Made] = {}
        for are_variants in (False, True):  # these are cut from wheels with GPU code, which are known then
            batch = self._variants(wanted, files) if are_variants else wanted
            kept_files, missing = _kept_files(batch, before, folder)
            files += kept_files
            for made_file in self._make(work, missing):
                files.append(made_file.file)
                made_files[made_file.file.path] = made_file
        paths = {file.path for file in files}
        old_files = {file.path: file for file in before.files}
        unused = [replace(file, machines=()) for path, file in old_files.items() if path not in paths]
        site = self._site(files, installs, unused=() if self.request.prune else unused)
        if made_files or site != before:
            write_site(folder, site, made_files, before=before, question=question)
        shutil.rmtree(work, ignore_errors=True)
        names = {machine.name for machine in self.machines}
        return Mirrored(
            folder,
            site,
            tuple(file for file in site.files if file.path in paths),
            fetched=len(made_files),
            kept=len(files) - len(made_files),
            removed=len(unused) if self.request.prune else 0,
            replaced=tuple(
                path
                for path in made_files
                if path in old_files and old_files[path].sha256 != made_files[path].file.sha256
            ),
            dropped=tuple(machine.name for machine in before.machines if machine.name not in names),
        )

    def _resolve(self) -> tuple[tuple[Wanted, ...], Mapping[str, frozenset[str]]]:
        """The files that the site is to have, and the names of those that each machine installs."""
        with tempfile.TemporaryDirectory(prefix="vbuild-mirror-") as text, supervised():
            resolutions = {}
            for machine in self.machines:
                stage = Path(text, machine.name)
                stage.mkdir()
                resolutions[machine.name] = resolved(self.sources, machine, stage, builds=self.request.allow_builds)
        users: dict[str, list[FleetMachine]] = {}
        originals: dict[str, Original] = {}
        for machine in self.machines:
            for original in resolutions[machine.name]:
                if originals.setdefault(original.file, original).sha256 != original.sha256:
                    raise RepackageError(f"{original.file}: two files of this name; expected one for all machines")
                users.setdefault(original.file, []).append(machine)
        wanted = (
            Wanted(
                original,
                Cut.for_machines(users[file], self.request, project=original.project),
                tuple(user.name for user in users[file]),
            )
            for file, original in sorted(originals.items())
        )
        installs = {name: frozenset(original.file for original in files) for name, files in resolutions.items()}
        return tuple(wanted), installs

    def _variants(self, wanted: Iterable[Wanted], plain: Iterable[MirroredFile]) -> list[Wanted]:
        """The variants of the *plain* files, each for those machines that install one and have the same GPUs."""
        plain_wanted = {file.original.file: file for file in wanted}
        variants = []
        for file in (file for file in plain if self.request.variants and file.is_changed):
            users = [machine for machine in self.machines if machine.name in file.machines]
            for gpus in sorted({machine.gpus for machine in users if machine.gpus}):
                alike = [machine for machine in users if machine.gpus == gpus]
                cut = file.cut.variant(alike)
                if cut.gpus != file.cut.gpus and not {*cut.gpus.split(",")}.isdisjoint(file.served):
                    names = tuple(machine.name for machine in alike)
                    variants.append(replace(plain_wanted[file.original.file], cut=cut, machines=names))
        return variants

    def _make(self, work: Path, wanted: Sequence[Wanted]) -> Iterator[Made]:
        if not wanted:
            return
        originals = self.request.originals
        store = Store(originals) if originals else None  # which is refused before anything is written
        _claim(work)
        store = store or Store(work / "originals")
        # variants are made of the same originals
        keeps = originals is not None or self.request.variants
        for made_file in make_all(work, wanted, store, keeps_originals=keeps, on_progress=self.on_progress):
            # without a property that says what a variant is for there is none, and the plain wheel serves
            if made_file.file.renamed or not made_file.file.cut.label:
                yield made_file

    def _site(
        self,
        files: Iterable[MirroredFile],
        installs: Mapping[str, frozenset[str]],
        *,
        unused: Iterable[MirroredFile] = (),
    ) -> Site:
        all_files = tuple(sorted((*files, *unused), key=lambda file: file.path))
        machines = []
        for machine in self.machines:
            # no installer reads a lock with variants
            plain = (file for file in all_files if machine.name in file.machines and not file.cut.label)
            paths = tuple(file.path for file in plain if file.original.file in installs[machine.name])
            machines.append(SiteMachine(machine.name, machine.gpus, python_of(machine.machine), paths))
        return Site(tuple(machines), all_files, __version__, self.request.url)

    def _question(self) -> dict[str, object]:
        """What the run was called with, without a path of this machine."""
        return {
            "command": "vbuild mirror",
            "sources": [Path(source).name if Path(source).exists() else source for source in self.sources],
            "machines": {machine.name: [*machine.gpus] for machine in self.machines},
        }


def _claim(work: Path) -> None:
    """Make the folder *work*, or take that of an earlier run, into which nobody else can have put anything."""
    try:
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = work.lstat()
    except OSError as error:
        raise RepackageError(f"{work}: cannot be made: {name_unwritable_folder(error).strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):
        raise RepackageError(f"{work}: is a link, or belongs to another user; expected a folder of yours, or none")
    work.chmod(0o700)


def _check(machines: Sequence[FleetMachine]) -> None:
    names = [machine.name for machine in machines]
    if not names:
        raise RepackageError("no machine; expected a description of one (--machine), or its GPUs (--gpu)")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RepackageError(f"two machines are called {twice!r}; expected files of other names")


def _kept_files(wanted: Iterable[Wanted], before: Site, folder: Path) -> tuple[list[MirroredFile], list[Wanted]]:
    """The files of the old site that are as *wanted*, and what is missing."""
    kept, missing = [], []
    old_files: dict[str, list[MirroredFile]] = {}
    for file in before.files:
        path = folder / file.path
        if path.is_file() and path.stat().st_size == file.size:
            old_files.setdefault(file.original.file, []).append(file)
    for want in wanted:
        for old in old_files.get(want.original.file, ()):
            if old.serves(want.original, want.cut):
                original = want.original.public(old.original.size)
                kept.append(replace(old, original=original, cut=want.cut, machines=want.machines))
                break
        else:
            missing.append(want)
    return kept, missing


class Common(Struct, frozen=True):
    """What machines that are named by their GPUs have besides; without a *driver* any CUDA is assumed to run."""

    cpu: Cpu
    driver: str | None = None
    glibc: str | None = None
    pythons: tuple[str, ...] = ()


def fleet_of(files: Iterable[Path], gpus: Iterable[str], common: Common) -> tuple[FleetMachine, ...]:
    """The machines that *files* describe, called as these are, and one for each list of *gpus* on each Python.

    An empty list is a machine without GPUs, called as its CPU.
    """
    described = (FleetMachine(_machine_name(path.stem), machine_at(path)) for path in files)
    return (*described, *(machine for text in gpus for machine in _with(text, common)))


def _with(gpus: str, common: Common) -> Iterator[FleetMachine]:
    gpu_list = GpuList.asked(gpus) if gpus else GpuList()
    capabilities = [Dotted(*divmod(request.device.number, 10)) for request in gpu_list.requests]
    for python in common.pythons or (None,):
        machine = Machine.described(
            common.cpu,
            capabilities,
            driver=common.driver,
            glibc=common.glibc,
            python=python,
            processors=map(str, gpu_list.targets),
        )
        if not common.driver:  # one that runs every CUDA is assumed there
            machine = replace(machine, nvidia=Nvidia(None, machine.nvidia.capabilities))
        words = [gpus or str(common.cpu)]
        if python and len(common.pythons) > 1:
            words.append(f"py{python.replace('.', '')}")
        yield FleetMachine(_machine_name(*words), machine)


def _machine_name(*parts: str) -> str:
    """The name of a machine in file names: no dots, which locks have their own (PEP 751)."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(parts)).strip("-") or "machine"
