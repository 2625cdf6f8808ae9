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
from vbuild.files.archives import source_date_epoch
from vbuild.files.atomic import unmade
from vbuild.files.replaced import turn_for
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import Machine
from vbuild.hardware.uv_platform import python_of
from vbuild.index_client.pages import Store
from vbuild.mirroring.making import Made, OnProgress, Wanted, made_in
from vbuild.mirroring.model import Cut, FleetMachine, MirroredFile, MirrorRequest, Original, Site, SiteMachine
from vbuild.mirroring.resolution import resolved
from vbuild.mirroring.site import install_lines, read_site, write_site
from vbuild.process.run import supervised
from vbuild.variants.select import machine_at

_Key = tuple[str, str]
"""The index that a file is in, and its name."""


class Mirrored(Struct, frozen=True):
    """What a run made of the mirror in *folder*: the *site*, and how much it was before.

    *fetched* counts the files that came from an index, *kept* those that were there, *removed* those that went, and
    *replaced* has the names of those that are other bytes now: locks of before do not install them any more.
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
        """The files that are no variants of others."""
        return tuple(file for file in self.files if not file.cut.label)

    def usage(self) -> Iterator[str]:
        """For each machine a line with its name and the commands that install from the site there."""
        indexes = {file.index for file in self.files}
        for machine in self.site.machines if self.folder else ():
            yield f"{machine.name}:"
            index = machine.name if machine.name in indexes else ""
            yield from install_lines(str(self.folder), machine, index=index, url=self.site.url)

    def data(self) -> dict[str, Any]:
        """The result as JSON holds it."""
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
    """Make *folder* a mirror of what *sources*, requirements and locks, come to on *machines*.

    Without a folder nothing is written, and what is fetched is thrown away. What a mirror there has already is kept
    where it is what would come out. `BuildError` if a machine's requirements cannot be resolved, `FetchError` for a
    file that cannot be had, `WheelError` for one that is damaged, `RepackageError` if *folder* has something else: the
    site is then as it was, and what has come is found by the next run.
    """
    source_date_epoch()
    _check(machines, request)
    run = _Run(tuple(sources), tuple(machines), request, on_progress)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="vbuild-mirror-") as text:
            return run.rehearsed(Path(text))
    with turn_for(folder):
        return run.written(folder)


class _Run(Struct, frozen=True):
    """One run: what it was asked for, and what it makes of that."""

    sources: tuple[str, ...]
    machines: tuple[FleetMachine, ...]
    request: MirrorRequest
    on_progress: OnProgress

    def rehearsed(self, work: Path) -> Mirrored:
        """What a site would become; each file is made in *work*, and its size is all that stays."""
        wanted, installs = self._planned()
        files = self._sized(work, wanted)
        files += self._sized(work, self._variants(wanted, files))
        site = self._site(files, installs)
        return Mirrored(None, site, site.files, fetched=len(files))

    def _sized(self, work: Path, wanted: Sequence[Wanted]) -> list[MirroredFile]:
        """All that is *wanted*, made in *work* and removed."""
        files = []
        for one in self._made(work, wanted):
            one.path.unlink()
            files.append(one.file)
        return files

    def written(self, folder: Path) -> Mirrored:
        """What became of the site in *folder*, which no other run writes."""
        before = read_site(folder)
        work = folder.absolute().with_name(f".{folder.absolute().name}.mirror")
        asked = self._asked()  # as long as its sources are there
        wanted, installs = self._planned()
        kept, made = self._both(wanted, before, work, folder)
        plain = (*kept, *(one.file for one in made.values()))
        more_kept, more_made = self._both(self._variants(wanted, plain), before, work, folder)
        kept += more_kept
        made |= more_made
        there = {file.path: file for file in before.files}
        own = (*kept, *(one.file for one in made.values()))
        mine = {file.path for file in own}
        others = [replace(file, machines=()) for path, file in there.items() if path not in mine]
        site = self._site(own, installs, others=() if self.request.prune else others)
        if made or site != before:
            write_site(folder, site, made, before=before, asked=asked)
        shutil.rmtree(work, ignore_errors=True)
        names = {one.name for one in self.machines}
        return Mirrored(
            folder,
            site,
            tuple(file for file in site.files if file.path in mine),
            fetched=len(made),
            kept=len(kept),
            removed=len(others) if self.request.prune else 0,
            replaced=tuple(
                path for path, one in made.items() if path in there and there[path].sha256 != one.file.sha256
            ),
            dropped=tuple(one.name for one in before.machines if one.name not in names),
        )

    def _both(
        self, wanted: Sequence[Wanted], before: Site, work: Path, folder: Path
    ) -> tuple[list[MirroredFile], dict[str, Made]]:
        """What of *wanted* the site in *folder* has, as *before* says, and the rest, made in *work*, by its path."""
        kept, missing = _compared(wanted, before, folder)
        return kept, {one.file.path: one for one in self._made(work, missing)}

    def _variants(self, wanted: Iterable[Wanted], plain: Iterable[MirroredFile]) -> list[Wanted]:
        """The variants that there are to be of the *plain* files, each for some of the machines that install one."""
        known = {(one.index, one.original.file): one for one in wanted}
        found = []
        for file in plain if self.request.variants else ():
            users = [one for one in self.machines if one.name in file.machines]
            kinds = {one.gpus for one in users if one.gpus}
            for gpus in sorted(kinds) if file.is_changed else ():
                cut = file.cut.variant(one for one in users if one.gpus == gpus)
                if cut.gpus != file.cut.gpus and not {*cut.gpus.split(",")}.isdisjoint(file.served):
                    one = known[file.index, file.original.file]
                    names = tuple(each.name for each in users if each.gpus == gpus)
                    found.append(replace(one, cut=cut, machines=names))
        return found

    def _planned(self) -> tuple[tuple[Wanted, ...], Mapping[str, frozenset[str]]]:
        """What the site is to have, and the names of the files that each machine installs of it."""
        with tempfile.TemporaryDirectory(prefix="vbuild-mirror-") as text, supervised():
            resolutions = {}
            for one in self.machines:
                stage = Path(text, one.name)
                stage.mkdir()
                resolutions[one.name] = resolved(self.sources, one, stage, builds=self.request.allow_builds)
        users: dict[_Key, list[FleetMachine]] = {}
        originals: dict[_Key, Original] = {}
        for one in self.machines:
            for original in resolutions[one.name]:
                key = (one.name if self.request.per_machine else "", original.file)
                if originals.setdefault(key, original).sha256 != original.sha256:
                    raise RepackageError(f"{original.file}: two files of this name; expected one for all machines")
                users.setdefault(key, []).append(one)
        wanted = (
            Wanted(original, Cut.for_machines(users[key], self.request), key[0], tuple(one.name for one in users[key]))
            for key, original in sorted(originals.items())
        )
        installs = {name: frozenset(one.file for one in found) for name, found in resolutions.items()}
        return tuple(wanted), installs

    def _made(self, work: Path, wanted: Sequence[Wanted]) -> Iterator[Made]:
        """All that is *wanted*, made in *work* or kept there by an earlier run."""
        if wanted:
            asked = Store(self.request.originals) if self.request.originals else None
            _claim(work)
            # variants are made of them, too, when it is known which wheels have GPU code
            keeps = self.request.originals is not None or self.request.variants
            store = asked or Store(work / "originals")
            for one in made_in(work, wanted, store, keeps_originals=keeps, on_progress=self.on_progress):
                # where no property can say what a variant is for, there is none, and the plain wheel serves
                if one.file.renamed or not one.file.cut.label:
                    yield one

    def _site(
        self,
        own: Iterable[MirroredFile],
        installs: Mapping[str, frozenset[str]],
        *,
        others: Iterable[MirroredFile] = (),
    ) -> Site:
        """The site of the files *own*, of which machines install those that *installs* names, and of *others*."""
        files = tuple(sorted((*own, *others), key=lambda file: file.path))
        machines = []
        for one in self.machines:
            names = installs[one.name]
            # no installer reads a lock with variants
            mine = [file for file in files if file.original.file in names and not file.cut.label]
            paths = tuple(file.path for file in mine if one.name in file.machines)
            machines.append(SiteMachine(one.name, one.gpus, python_of(one.machine), paths))
        return Site(tuple(machines), files, __version__, self.request.url)

    def _asked(self) -> dict[str, object]:
        """What the run was asked for, without a path of this machine."""
        names = [Path(source).name if Path(source).exists() else source for source in self.sources]
        return {
            "command": "vbuild mirror",
            "sources": names,
            "machines": {one.name: [*one.gpus] for one in self.machines},
        }


def _claim(work: Path) -> None:
    """Make the folder *work*, or take that of an earlier run, in which nobody else can have put anything."""
    try:
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = work.lstat()
    except OSError as error:
        raise RepackageError(f"{work}: cannot be made: {unmade(error).strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):
        raise RepackageError(f"{work}: is a link, or belongs to another user; expected a folder of yours, or none")
    work.chmod(0o700)


def _check(machines: Sequence[FleetMachine], request: MirrorRequest) -> None:
    names = [one.name for one in machines]
    if not names:
        raise RepackageError(
            "no machine; expected a description of one (--machine), its GPUs (--gpu) or its CPU (--cpu)"
        )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RepackageError(f"two machines are called {twice!r}; expected files of other names")
    if request.variants and (request.local or request.per_machine):
        raise RepackageError("variants have names of their own; expected them without --local and --per-machine")
    if request.per_machine and "simple" in names:
        raise RepackageError("a machine is called 'simple', as the folder of an index is; expected another name")


def _compared(wanted: Iterable[Wanted], before: Site, folder: Path) -> tuple[list[MirroredFile], list[Wanted]]:
    """What of *wanted* the site in *folder* has already, as *before* says, as files of it, and the rest."""
    kept, missing = [], []
    known: dict[_Key, list[MirroredFile]] = {}
    for file in before.files:
        known.setdefault((file.index, file.original.file), []).append(file)
    for one in wanted:
        several = known.get((one.index, one.original.file), ())
        fitting = (
            old for old in several if old.serves(one.original, one.cut) and _is_there(folder / old.path, old.size)
        )
        if old := next(fitting, None):
            kept.append(
                replace(old, original=one.original.public(old.original.size), cut=one.cut, machines=one.machines)
            )
        else:
            missing.append(one)
    return kept, missing


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


class Common(Struct, frozen=True):
    """What machines that are named by their GPUs have besides: the CPU, NVIDIA's *driver*, the *glibc*, and *pythons*.

    They are texts as `Machine.described` reads them. A driver that is not named is not known.
    """

    cpu: Cpu
    driver: str | None = None
    glibc: str | None = None
    pythons: tuple[str, ...] = ()


def fleet_of(files: Iterable[Path], gpus: Iterable[str], common: Common) -> tuple[FleetMachine, ...]:
    """The machines that *files* describe, called as these are, and one for each list of *gpus* on each Python.

    An empty list is a machine without GPUs, called as its CPU. `HardwareError` for a file, a GPU or a version that is
    not known.
    """
    described = (FleetMachine(_machine_name(path.stem), machine_at(path)) for path in files)
    return (*described, *(machine for text in gpus for machine in _with(text, common)))


def _with(gpus: str, common: Common) -> Iterator[FleetMachine]:
    asked = GpuList.asked(gpus) if gpus else GpuList()
    capabilities = [Dotted(*divmod(request.device.number, 10)) for request in asked.requests]
    for python in common.pythons or (None,):
        machine = Machine.described(
            common.cpu,
            capabilities,
            driver=common.driver,
            glibc=common.glibc,
            python=python,
            processors=map(str, asked.targets),
        )
        if not common.driver:  # one that runs every CUDA is assumed there
            machine = replace(machine, nvidia=Nvidia(None, machine.nvidia.capabilities))
        yield FleetMachine(_machine_name(gpus or str(common.cpu), *_told(python, common.pythons)), machine)


def _told(python: str | None, pythons: Sequence[str]) -> tuple[str, ...]:
    return (f"py{python.replace('.', '')}",) if python and len(pythons) > 1 else ()


def _machine_name(*parts: str) -> str:
    """What a machine of *parts* is called in the names of files: no dots, which locks have their own (PEP 751)."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(parts)).strip("-") or "machine"
