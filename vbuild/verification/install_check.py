"""Check that the wheels of a split work: install them as users do, load them as the loader does, import them.

wheel -> pip, uv -> fresh environment -> resolve, load, import -> InstallCheck

resolve    every library that a file is loaded with, where the loader itself finds it: through RPATHs only
load       each of these files, by dlopen with RTLD_NOW in a process of its own
import     each top-level package
"""

import os
import posixpath
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, to_builtins

from vbuild.elf.catalogue import PlatformPolicy, by_soname, framework, is_driver, platforms_in
from vbuild.errors import RepackageError, WheelError, at
from vbuild.files.wording import counted
from vbuild.index_client.configuration import Indexes
from vbuild.verification.environments import (
    Installer,
    WheelEnvironment,
    WheelSources,
    is_native,
    make_environment,
    python_for,
)
from vbuild.verification.installed_wheel import InstalledWheel, ProbeResult, probed
from vbuild.wheel.archive import open_wheel, wheels_at
from vbuild.wheel.metadata import is_companion
from vbuild.wheel.name import WheelName

OnProgress = Callable[[str], None]
_SHOWN = 12
_UNREACHED_BEFORE = "which no RPATH led to before either"
# newer than every known list: for wheels whose platform is not known
_NEWEST = "manylinux_2_99"
# of glibc, and of musl's loader, which names only what it does not find
_TRACED = re.compile(r"^\t(?:(?P<name>\S+) => )?(?P<path>/.*?|not found)(?: \(0x[0-9a-f]+\))?$", re.MULTILINE)
_ABSENT = re.compile(r"^Error loading shared library (?P<name>[^:\s]+):", re.MULTILINE)


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

    *resolved* counts the libraries that were found, *loaded* are paths from site-packages, *imported* modules.
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
        done = [counted(self.resolved, "library") + " found"]
        done += [counted(len(self.loaded), "file") + " loaded"] if self.loaded else []
        done += [f"{', '.join(self.imported)} imported"] if self.imported else []
        verdict = counted(len(self.failures), "failure") if self.failures else "works"
        return f"installed with {self.installer}, {verdict}: {', '.join(done)}"


def libraries_of(path: Path) -> dict[str, Path | None]:
    """Where the loader finds each library with which it loads the file at *path*, by name; None for what it lacks."""
    command, clean = ["ldd", str(path)], {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    ran = subprocess.run(command, env=clean, capture_output=True, encoding="utf-8", errors="replace", check=False)
    libraries: dict[str, Path | None] = {match["name"]: None for match in _ABSENT.finditer(ran.stderr)}
    for match in _TRACED.finditer(ran.stdout):
        name = match["name"] or match["path"]
        libraries[name] = None if match["path"] == "not found" else Path(os.path.normpath(match["path"]))
    return libraries


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
    links = tuple(dict.fromkeys(wheel.parent for wheel in wheels))
    results: list[InstallCheck] = []
    for wheel in wheels:
        if _is_companion(wheel):
            continue
        name = WheelName.parse(wheel.name)
        try:
            python = python_for(name)
        except WheelError as error:
            results.append(InstallCheck(wheel.name, None, notes=(InstallFinding(CheckStep.INSTALL, str(error)),)))
            continue
        for installer in using if is_native(name) else (Installer.UV,):
            on_progress(f"{wheel.name}: installing it with {installer}, and trying it")
            with TemporaryDirectory(prefix="vbuild-check-") as text:
                sources = WheelSources(links, indexes(), builds=builds)
                folder = Path(text).resolve()
                try:
                    environment = make_environment(wheel, python, sources=sources, folder=folder, installer=installer)
                except RepackageError as error:
                    failure = InstallFinding(CheckStep.INSTALL, str(error))
                    results.append(InstallCheck(wheel.name, installer, failures=(failure,)))
                else:
                    results.append(_checked(wheel.name, installer, environment, unreached=frozenset(absent)))
    tried = [result for result in results if result.installer]
    if tried and not any(result.is_installed for result in tried):
        raise RepackageError(f"{tried[0].wheel}: cannot be installed: {tried[0].failures[0].what}")
    return tuple(results)


def _is_companion(wheel: Path) -> bool:
    with open_wheel(wheel) as source:
        return is_companion(source.metadata(), source.wheel_file())


def _checked(
    wheel: str, installer: Installer, environment: WheelEnvironment, *, unreached: frozenset[str]
) -> InstallCheck:
    name = WheelName.parse(wheel)
    with at(wheel):
        installed = InstalledWheel.of(environment.packages, name.project)
    platforms = [platform for platform in platforms_in(name.platform) if platform.promises]
    newest = PlatformPolicy.parse(f"{_NEWEST}_{os.uname().machine}")
    steps = _CheckSteps(environment, installed, tuple(platforms or filter(None, [newest])), unreached)
    return InstallCheck(
        wheel,
        installer,
        resolved=steps.resolve(),
        loaded=tuple(steps.load()),
        imported=tuple(steps.import_packages()),
        failures=tuple(steps.failures),
        notes=tuple(steps.notes),
    )


@dataclass(slots=True)
class _CheckSteps:
    """The steps of the check in one environment, and the findings so far.

    *lost* are names that the loader does not find, each with the reason if that is no failure.
    """

    environment: WheelEnvironment
    installed: InstalledWheel
    platforms: tuple[PlatformPolicy, ...]
    unreached: frozenset[str]
    lost: dict[str, str] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    failures: list[InstallFinding] = field(default_factory=list)
    notes: list[InstallFinding] = field(default_factory=list)

    def note(self, step: CheckStep, message: str) -> None:
        self.notes.append(InstallFinding(step, message))

    def resolve(self) -> int:
        """Let the loader find what each root is loaded with; the number of libraries that it finds."""
        packages, libraries = self.environment.packages, set[str]()
        # GPU code stored as ELF files, and libraries for other machines, are not for this loader
        here = [path for path, file in self.installed.files.items() if file.outline.machine == os.uname().machine]
        first = self.installed.roots()
        faults: dict[tuple[str, Path | None], list[str]] = {}
        # a needed file that nothing leads to can only be loaded on its own
        for root in dict.fromkeys((*first, *here)):
            if root not in here or (root not in first and str(packages / root) in libraries):
                continue
            self.roots += (root,)
            for name, path in libraries_of(packages / root).items():
                libraries |= {str(path)} if path else set()
                if not self._is_right(name, path):
                    faults.setdefault((name, path), []).append(root)
        for message in self.installed.damaged:
            self.note(CheckStep.RESOLVE, message)
        self._report(faults)
        return len(libraries)

    def _is_right(self, name: str, path: Path | None) -> bool:
        """Whether *path* is where the library *name* of a user's machine is, or that machine brings it."""
        if path and path.is_relative_to(self.environment.folder):
            return True
        base = posixpath.basename(name)
        return is_driver(base) or any(platform.has(base) for platform in self.platforms)

    def _report(self, faults: Mapping[tuple[str, Path | None], Sequence[str]]) -> None:
        grouped: dict[tuple[str, str, bool], list[str]] = {}
        for (name, path), roots in faults.items():
            consumer = f"{roots[0]} and {len(roots) - 1} more: need" if len(roots) > 1 else f"{roots[0]}: needs"
            fault, excuse = self._fault(name, path)
            if path is None:
                self.lost[name] = excuse
            grouped.setdefault((consumer, excuse or fault, bool(excuse)), []).append(name)
        for (consumer, text, is_excused), names in grouped.items():
            finding = InstallFinding(CheckStep.RESOLVE, f"{consumer} {', '.join(names)}, {text}")
            (self.notes if is_excused else self.failures).append(finding)

    def _fault(self, name: str, path: Path | None) -> tuple[str, str]:
        """What is wrong with where the loader finds *name*, and why the split did not cause that, if it did not."""
        if path:
            return f"and is led out of the environment, to {path}", ""
        if name in self.unreached:
            return "", _UNREACHED_BEFORE
        packages = self.environment.packages
        homes = sorted(file for file in packages.rglob("*.so*") if file.name == name)
        if homes:
            return f"which is at {homes[0].relative_to(packages).as_posix()}, but no RPATH leads there", ""
        known = framework(name)
        if known and known.project in self.installed.projects:
            return "", f"which the {known.project} installed does not have: a build for other hardware?"
        projects = sorted({entry.project for entry in by_soname(name)} or ({known.project} if known else set()))
        part = f"; part of {' or '.join(projects)}" if projects else ""
        return f"which is in none of these wheels{part}", ""

    def load(self) -> Iterator[str]:
        for root in self.roots:
            file = self.installed.files[root]
            if file.is_program:
                continue
            result = probed(self.environment.python, (), self.environment.packages / root)
            if result.lacks_symbol or result.has_crashed or result.absent in self.unreached:
                result = self._load_after_imports(root, result)
            if result.error is None:
                yield root
            elif result.lacks_symbol and not file.modules:
                message = f"{root}: not loaded: {self._error(result)}: the program that opens it has to provide that"
                self.note(CheckStep.LOAD, message)
            else:
                self._add_failed(CheckStep.LOAD, root, result, counts=True)

    def _load_after_imports(self, root: str, before: ProbeResult) -> ProbeResult:
        imports = self.installed.imports
        if not imports:
            return before
        result = probed(self.environment.python, imports, self.environment.packages / root)
        if result.error is not None:
            return before
        message = f"{root}: can be loaded only after `import {', '.join(imports)}`: {self._error(before)}"
        self.note(CheckStep.LOAD, message)
        return result

    def import_packages(self) -> Iterator[str]:
        for name in self.installed.imports:
            result = probed(self.environment.python, [name])
            if result.error is None:
                yield name
            else:
                counts = result.unresolved is not None or result.has_crashed
                self._add_failed(CheckStep.IMPORT, name, result, counts=counts)

    def _add_failed(self, step: CheckStep, subject: str, result: ProbeResult, *, counts: bool) -> None:
        missing, message = result.absent, f"{subject}: not {step}ed: {self._error(result)}"
        if missing and is_driver(missing):
            self.note(step, f"{subject}: not {step}ed: needs {missing}, which comes with the driver")
        elif missing and (excuse := _UNREACHED_BEFORE if missing in self.unreached else self.lost.get(missing)):
            self.note(step, f"{subject}: not {step}ed: needs {missing}, {excuse}")
        elif result.lacks_instructions or not counts:
            self.note(step, message)
        elif step is not CheckStep.LOAD or missing not in self.lost:
            self.failures.append(InstallFinding(step, message))

    def _error(self, result: ProbeResult) -> str:
        return (result.error or "").replace(f"{self.environment.packages}/", "")
