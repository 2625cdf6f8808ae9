"""Check that the wheels of a split work: install them as users do, load them as the loader does, import them.

    wheel -> pip, uv -> fresh environment -> resolve, load, import -> InstallCheck

    resolve    every NEEDED, from each file with which loading begins, through RPATHs only
    load       each of these files, by dlopen with RTLD_NOW in a process of its own
    import     each top-level package

A wheel for another Python or machine is installed and resolved only. It may lack requirements: a future Python has few
wheels.

glibc's loader loads breadth-first from a root. A name that is loaded already, as SONAME or as it was asked for, needs
no search. glibc-hwcaps folders are left out: a library there replaces one elsewhere.
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from vbuild.binary.linkage import Via
from vbuild.elf.catalogue import PlatformPolicy, by_soname, framework, is_driver, platforms_in
from vbuild.elf.linkage import expand_origin, fits, rpath_files
from vbuild.elf.read import Outline
from vbuild.errors import BinaryError, RepackageError, at
from vbuild.files.wording import counted
from vbuild.index_client.configuration import Indexes
from vbuild.verification.environments import Installer, WheelEnvironment, WheelSources, install, installers
from vbuild.verification.installed_wheel import InstalledWheel, ProbeResult, mapped, try_import, try_load
from vbuild.wheel.archive import open_wheel, wheels_at
from vbuild.wheel.metadata import is_companion
from vbuild.wheel.name import WheelName

OnProgress = Callable[[str], None]
_SHOWN = 12
_UNMET = frozenset({Via.NAME, Via.OUTSIDE, Via.MISSING})
_UNREACHED_BEFORE = "which no RPATH led to before either"
# newer than every known list: for packages whose platform is not known
_NEWEST = "manylinux_2_99"


class CheckStep(StrEnum):
    INSTALL = "install"
    RESOLVE = "resolve"
    LOAD = "load"
    IMPORT = "import"


class InstallFinding(Struct, frozen=True):
    step: CheckStep
    what: str


class InstallCheck(Struct, frozen=True):
    """The result for one wheel and one installer, or None if none here can install it.

    *resolved* counts the NEEDED entries that were found, *loaded* are paths from site-packages, *imported* modules.
    """

    wheel: str
    installer: Installer | None
    resolved: int = 0
    loaded: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()
    failures: tuple[InstallFinding, ...] = ()
    notes: tuple[InstallFinding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed; what could not be tried is in the notes."""
        return not self.failures

    @property
    def is_installed(self) -> bool:
        return not any(failure.step is CheckStep.INSTALL for failure in self.failures)

    def data(self) -> dict[str, Any]:
        return {"wheel": self.wheel, "installer": self.installer, "ok": self.ok, **to_builtins(self)}

    def lines(self) -> Iterator[str]:
        yield f"{self.wheel}: {self._summary()}"
        yield from _first([f"    {finding.step} failed: {finding.what}" for finding in self.failures])
        yield from _first([f"    {finding.step}: {finding.what}" for finding in self.notes])

    def _summary(self) -> str:
        if self.installer is None:
            return "not checked"
        if not self.is_installed:
            return f"{self.installer} cannot install it"
        done = [f"{self.resolved} NEEDED resolved"]
        done += [counted(len(self.loaded), "file") + " loaded"] if self.loaded else []
        done += [f"{', '.join(self.imported)} imported"] if self.imported else []
        verdict = counted(len(self.failures), "failure") if self.failures else "works"
        return f"installed with {self.installer}, {verdict}: {', '.join(done)}"


class LoaderNeed(Struct, frozen=True):
    """A NEEDED name as the loader meets it; *via* is how RPATHs find it, even if it *is_loaded*.

    *provider* is the file, relative to site-packages, or absolute if outside the environment; None for a library of the
    platform or the driver. *searched* are the entries of the RPATHs that the loader reads.
    """

    consumer: str
    name: str
    via: Via
    provider: str | None
    is_loaded: bool
    searched: tuple[str, ...]

    @property
    def is_met(self) -> bool:
        return self.is_loaded or self.via not in _UNMET

    @property
    def is_met_by_order(self) -> bool:
        """Whether only what was loaded before lets the loader continue."""
        return self.is_loaded and self.via in _UNMET


class Loader:
    """The loader in the environment in *folder*; paths are relative to *packages*.

    *own* are the wheels under test, which may use what *platforms* promise; others what any does.
    """

    def __init__(
        self, packages: Path, *, folder: Path, own: Sequence[str], platforms: Sequence[PlatformPolicy]
    ) -> None:
        self._packages = packages
        self._folder = os.path.normpath(folder)
        self._own = frozenset(own)
        self._platforms = tuple(platform for platform in platforms if platform.promises)
        self._outlines: dict[str, Outline | None] = {}
        self._places: dict[str, str] | None = None

    def needs(self, root: str) -> Iterator[LoaderNeed]:
        if not (outline := self.outline(root)):
            return
        loaded, loaders = {root: outline}, dict[str, tuple[str, ...]]()
        names: dict[str, str | None] = {outline.soname: root} if outline.soname else {}
        queue = deque([root])  # breadth-first
        while queue:
            consumer = queue.popleft()
            files = tuple(rpath_files(consumer, loaded.__getitem__, loaders))
            entries = [(file, entry) for file in files for entry in loaded[file].search_path]
            for name in loaded[consumer].needed:
                need = self._need(consumer, loaded[consumer], name, entries)
                if name in names:
                    yield replace(need, provider=names[name], is_loaded=True)
                    continue
                yield need
                if not need.is_met:
                    continue
                path = names[name] = need.provider
                if path is not None and path not in loaded and (outline := self.outline(path)):
                    loaded[path], loaders[path] = outline, (consumer,)
                    queue.append(path)
                    names.setdefault(outline.soname or name, path)

    def outline(self, path: str) -> Outline | None:
        if path not in self._outlines:
            try:
                with mapped(self._packages / path) as data:
                    self._outlines[path] = Outline.parse(data)
            except (BinaryError, OSError):
                self._outlines[path] = None
        return self._outlines[path]

    def _need(self, consumer: str, outline: Outline, name: str, entries: Sequence[tuple[str, str]]) -> LoaderNeed:
        searched = tuple(entry if file == consumer else f"{entry} of {file}" for file, entry in entries)
        need = LoaderNeed(consumer, name, Via.MISSING, None, is_loaded=False, searched=searched)
        candidates = [(consumer, name)] if "/" in name else [(file, f"{entry}/{name}") for file, entry in entries]
        outside: str | None = None
        for file, entry in candidates:
            path = self._placed(file, entry)
            if path and (library := self.outline(path)) and fits(library, outline):
                if not path.startswith("/"):
                    return replace(need, via=Via.OWN if file == consumer else Via.INHERITED, provider=path)
                outside = path
                break
        if is_driver(name):
            return replace(need, via=Via.DRIVER)
        if any(platform.has(name) for platform in self._promised(consumer, outline.machine)):
            return replace(need, via=Via.PLATFORM)
        if outside:
            return replace(need, via=Via.OUTSIDE, provider=outside)
        if provider := self._anywhere(name):
            return replace(need, via=Via.NAME, provider=provider)
        return need

    def _placed(self, file: str, entry: str) -> str | None:
        path = expand_origin(file, entry)
        if path is None or "$" in path:  # $LIB and $PLATFORM
            return None
        whole = os.path.normpath(self._packages / path)
        is_inside = whole.startswith(f"{self._folder}/")
        return Path(os.path.relpath(whole, self._packages)).as_posix() if is_inside else whole

    def _promised(self, path: str, machine: str) -> Sequence[PlatformPolicy]:
        if self._platforms and path in self._own:
            return self._platforms
        newest = PlatformPolicy.parse(f"{_NEWEST}_{machine}")
        return (*self._platforms, newest) if newest else self._platforms

    def _anywhere(self, name: str) -> str | None:
        if self._places is None:
            files = sorted(path for path in self._packages.rglob("*.so*") if path.is_file())
            self._places = {path.name: path.relative_to(self._packages).as_posix() for path in reversed(files)}
        return self._places.get(name)


def _first(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"    and {len(lines) - _SHOWN} more"


def check(
    paths: Sequence[Path],
    *,
    absent: Collection[str] = (),
    builds: bool = False,
    using: Collection[Installer] = tuple(Installer),
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: OnProgress = lambda _: None,
) -> tuple[InstallCheck, ...]:
    """Install the wheels at *paths*, files or folders of them, with pip and with uv, and try them.

    They are the results of one split, whose companions come with those that need them. *absent* are SONAMEs that no
    RPATH led to before: they are notes. *using* are the installers for wheels of this Python; they build what has no
    wheel if *builds* says so. `RepackageError` if no wheel can be installed.
    """
    wheels = wheels_at(paths)
    companions = {wheel for wheel in wheels if _is_companion(wheel)}
    projects = frozenset(WheelName.parse(wheel.name).project for wheel in companions)
    links = tuple(dict.fromkeys(wheel.parent for wheel in wheels))
    results: list[InstallCheck] = []
    for wheel in (wheel for wheel in wheels if wheel not in companions):
        name = WheelName.parse(wheel.name)
        if not (suitable := installers(name)):
            message = f"for {name.platform}, expected a Linux wheel"
            results.append(InstallCheck(wheel.name, None, notes=(InstallFinding(CheckStep.INSTALL, message),)))
        for installer in suitable:
            if installer not in using and len(suitable) > 1:
                continue
            on_progress(f"{wheel.name}: installing it with {installer}, and trying it")
            with TemporaryDirectory(prefix="vbuild-check-") as text:
                sources = WheelSources(links, indexes(), projects, builds)
                root = Path(text).resolve()
                results.append(_checked(wheel, installer, sources, folder=root, unreached=frozenset(absent)))
    tried = [result for result in results if result.installer]
    if tried and not any(result.is_installed for result in tried):
        raise RepackageError(f"{tried[0].wheel}: cannot be installed: {tried[0].failures[0].what}")
    return tuple(results)


def _is_companion(wheel: Path) -> bool:
    with open_wheel(wheel) as source:
        return is_companion(source.metadata(), source.wheel_file())


def _checked(
    wheel: Path, installer: Installer, sources: WheelSources, *, folder: Path, unreached: frozenset[str]
) -> InstallCheck:
    name = WheelName.parse(wheel.name)
    try:
        environment = install(wheel, installer, sources, folder=folder)
    except RepackageError as error:
        return InstallCheck(wheel.name, installer, failures=(InstallFinding(CheckStep.INSTALL, str(error)),))
    with at(wheel.name):
        installed = InstalledWheel.of(environment.packages, name.project)
    steps = _CheckSteps(environment, installed, platforms_in(name.platform), unreached)
    if environment.left_out:
        message = f"{', '.join(environment.left_out)} left out, which the loader does not need: {environment.reason}"
        steps.note(CheckStep.INSTALL, message)
    steps.resolve()
    return InstallCheck(
        wheel.name,
        installer,
        resolved=sum(need.is_met for need in steps.needs),
        loaded=tuple(steps.load()),
        imported=tuple(steps.import_packages()),
        failures=tuple(steps.failures),
        notes=tuple(steps.notes),
    )


@dataclass(slots=True)
class _CheckSteps:
    """The steps of the check in one environment, and the findings so far.

    *excused* has, for each missing library that is no failure, the reason.
    """

    environment: WheelEnvironment
    installed: InstalledWheel
    platforms: tuple[PlatformPolicy, ...]
    unreached: frozenset[str]
    excused: dict[str, str] = field(default_factory=dict)
    needs: tuple[LoaderNeed, ...] = ()
    roots: tuple[str, ...] = ()
    failures: list[InstallFinding] = field(default_factory=list)
    notes: list[InstallFinding] = field(default_factory=list)

    def note(self, step: CheckStep, message: str) -> None:
        self.notes.append(InstallFinding(step, message))

    def resolve(self) -> None:
        """Resolve every NEEDED entry as the loader does; each root has to find it."""
        environment = self.environment
        loader = Loader(
            environment.packages, folder=environment.folder, own=tuple(self.installed.files), platforms=self.platforms
        )
        worst: dict[tuple[str, str], tuple[int, str, LoaderNeed]] = {}
        reached: set[str] = set()
        # GPU code stored as ELF files, and libraries for other machines, are not for this loader
        machines = {platform.machine for platform in self.platforms} or {os.uname().machine}
        loadable = tuple(path for path, file in self.installed.files.items() if file.outline.machine in machines)
        first = self.installed.roots()
        # a needed file that nothing leads to can only be loaded on its own
        for root in dict.fromkeys((*first, *loadable)):
            if root not in loadable or (root in reached and root not in first):
                continue
            self.roots += (root,)
            reached.add(root)
            for need in loader.needs(root):
                key = (need.consumer, need.name)
                badness = 2 * (not need.is_met) + need.is_met_by_order
                if key not in worst or badness > worst[key][0]:
                    worst[key] = badness, root, need
                if need.is_met and need.provider:
                    reached.add(need.provider)
        self.needs = tuple(need for *_, need in worst.values())
        for message in self.installed.damaged:
            self.note(CheckStep.RESOLVE, message)
        self._report([(root, need) for _, root, need in worst.values()], loader)

    def _report(self, needs: Collection[tuple[str, LoaderNeed]], loader: Loader) -> None:
        failures: dict[tuple[str, str], list[str]] = {}
        notes: dict[tuple[str, str], list[str]] = {}
        for root, need in needs:
            consumer = need.consumer if need.consumer == root else f"{need.consumer}, which {root} loads"
            if need.is_met_by_order:
                message = f", found only since {need.provider} is loaded before"
                notes.setdefault((consumer, message), []).append(need.name)
            elif not need.is_met and (excuse := self._excuse(need)):
                self.excused[need.name] = excuse
                notes.setdefault((consumer, f", {excuse}"), []).append(need.name)
            elif not need.is_met:
                message = f", {_lack(need)}; {_search(need, loader.outline(need.consumer))}"
                failures.setdefault((consumer, message), []).append(need.name)
        self.failures += _grouped(failures)
        self.notes += _grouped(notes)

    def _excuse(self, need: LoaderNeed) -> str | None:
        """Why the split did not cause the unmet *need*, or None if it may have."""
        if need.name in self.unreached:
            return _UNREACHED_BEFORE
        project = known.project if need.via is Via.MISSING and (known := framework(need.name)) else None
        if project in self.installed.projects:
            return f"which the {project} installed does not have: a build for other hardware?"
        return f"part of {project}, which was left out" if project in self.environment.left_out else None

    def load(self) -> Iterator[str]:
        if not (python := self.environment.python):
            return
        for root in self.roots:
            file = self.installed.files[root]
            if file.is_program:
                continue
            result = try_load(self.environment.packages / root, python)
            if result.lacks_symbol or result.has_crashed or result.absent in self.unreached:
                result = self._load_after_imports(root, python, result)
            if result.error is None:
                yield root
                self.failures += self._foreign_libraries(root, result)
            elif result.lacks_symbol and not file.modules:
                message = f"{root}: not loaded: {self._error(result)}: the program that opens it has to provide that"
                self.note(CheckStep.LOAD, message)
            else:
                self._add_failed(CheckStep.LOAD, root, result, counts=True)

    def _load_after_imports(self, root: str, python: Path, before: ProbeResult) -> ProbeResult:
        imports = self.installed.imports
        if not imports:
            return before
        result = try_load(self.environment.packages / root, python, after=imports)
        if result.error is not None:
            return before
        message = f"{root}: can be loaded only after `import {', '.join(imports)}`: {self._error(before)}"
        self.note(CheckStep.LOAD, message)
        return result

    def _foreign_libraries(self, root: str, result: ProbeResult) -> Iterator[InstallFinding]:
        wanted = {need.name for need in self.needs if need.via not in {Via.PLATFORM, Via.DRIVER}} - self.unreached
        for path in map(Path, result.mapped):
            if path.is_relative_to(self.environment.folder):
                continue
            names = {path.name, _soname(path)} - {""}
            if foreign := sorted(name for name in names if name in wanted or (by_soname(name) and not is_driver(name))):
                message = f"{root}: {foreign[0]} was loaded from {path}, which is outside of the environment"
                yield InstallFinding(CheckStep.LOAD, message)

    def import_packages(self) -> Iterator[str]:
        if not (python := self.environment.python):
            return
        for name in self.installed.imports:
            result = try_import(name, python)
            if result.error is None:
                yield name
            else:
                counts = result.unresolved is not None or result.has_crashed
                self._add_failed(CheckStep.IMPORT, name, result, counts=counts)

    def _add_failed(self, step: CheckStep, subject: str, result: ProbeResult, *, counts: bool) -> None:
        missing, message = result.absent, f"{subject}: not {step}ed: {self._error(result)}"
        if missing and is_driver(missing):
            self.note(step, f"{subject}: not {step}ed: needs {missing}, which comes with the driver")
        elif missing and (excuse := _UNREACHED_BEFORE if missing in self.unreached else self.excused.get(missing)):
            self.note(step, f"{subject}: not {step}ed: needs {missing}, {excuse}")
        elif result.lacks_instructions or not counts:
            self.note(step, message)
        elif step is not CheckStep.LOAD or missing not in {need.name for need in self.needs if not need.is_met}:
            self.failures.append(InstallFinding(step, message))

    def _error(self, result: ProbeResult) -> str:
        return (result.error or "").replace(f"{self.environment.packages}/", "")


def _grouped(needs: Mapping[tuple[str, str], Sequence[str]]) -> list[InstallFinding]:
    return [
        InstallFinding(CheckStep.RESOLVE, f"{consumer}: needs {', '.join(names)}{message}")
        for (consumer, message), names in needs.items()
    ]


def _lack(need: LoaderNeed) -> str:
    if need.via is Via.NAME:
        return f"which is at {need.provider}, but no RPATH leads there"
    if need.via is Via.OUTSIDE:
        return f"and is led out of the environment, to {need.provider}"
    if entries := by_soname(need.name):
        return f"which is in none of these wheels; part of {' or '.join(sorted({entry.project for entry in entries}))}"
    if known := framework(need.name):
        return f"which is in none of these wheels; part of {known.project}"
    return "which is in none of these wheels"


def _search(need: LoaderNeed, consumer: Outline | None) -> str:
    if consumer and consumer.runpath:
        searched = ", ".join(need.searched)
        return f"its RUNPATH is {searched}, and keeps the loader from the RPATHs of what loads it"
    return f"searched {', '.join(need.searched)}" if need.searched else "there is no RPATH to search"


def _soname(path: Path) -> str:
    with suppress(BinaryError, OSError), mapped(path) as data:
        return Outline.parse(data).soname or ""
    return ""
