"""What an installation comes to: what the loader finds in it, what can be loaded, what can be imported.

resolve       every NEEDED, from each file that loading begins with, through RPATHs only
load          each of these files, by dlopen with RTLD_NOW in a process of its own
try_imports   each package at the top
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from vbuild.elf.catalogue import by_soname, framework, is_driver
from vbuild.elf.linkage import Via
from vbuild.elf.outline import Outline
from vbuild.elf.policy import PlatformPolicy
from vbuild.errors import BinaryError
from vbuild.verification.environments import TestEnvironment
from vbuild.verification.installation import Answer, InstalledWheel, imported, opened
from vbuild.verification.loader import Loader, LoaderNeed, mapped

_BEFORE = "which no RPATH led to before either"


class TrialStep(StrEnum):
    """What was being done."""

    INSTALL = "install"
    RESOLVE = "resolve"
    LOAD = "load"
    IMPORT = "import"


class LoadFinding(Struct, frozen=True):
    """One thing that was found: at which step, and what, its place in front."""

    step: TrialStep
    what: str

    def data(self) -> dict[str, str]:
        return {"step": self.step.value, "what": self.what}


@dataclass(slots=True)
class LoadTrial:
    """One installation, and what was found so far; *excused* says of missing libraries why that is no failure."""

    environment: TestEnvironment
    installation: InstalledWheel
    platforms: tuple[PlatformPolicy, ...]
    unreached: frozenset[str]
    excused: dict[str, str] = field(default_factory=dict)
    needs: tuple[LoaderNeed, ...] = ()
    roots: tuple[str, ...] = ()
    failures: list[LoadFinding] = field(default_factory=list)
    notes: list[LoadFinding] = field(default_factory=list)

    def resolve(self) -> None:
        """Every NEEDED entry once, as the loader meets it: one that is not found from some root counts as such."""
        loader = Loader(
            self.environment.packages,
            folder=self.environment.folder,
            own=tuple(self.installation.files),
            platforms=self.platforms,
        )
        met: dict[tuple[str, str], tuple[str, LoaderNeed]] = {}
        reached: set[str] = set()
        # what something needs, and nothing leads to, is loaded on its own if at all
        begun, loadable = self.installation.roots(), self._loadable()
        for root in dict.fromkeys((*begun, *loadable)):
            if root not in loadable or (root in reached and root not in begun):
                continue
            self.roots += (root,)
            reached.add(root)
            for need in loader.needs(root):
                key = (need.consumer, need.name)
                if key not in met or _badness(need) > _badness(met[key][1]):
                    met[key] = (root, need)
                if need.is_met and need.provider:
                    reached.add(need.provider)
        self.needs = tuple(need for _, need in met.values())
        self.notes += [LoadFinding(TrialStep.RESOLVE, what) for what in self.installation.damaged]
        self._judge([(_place(root, need), need) for root, need in met.values()], loader)

    def _loadable(self) -> tuple[str, ...]:
        """The files for this machine, without GPU code stored as ELF files, and libraries that go along to others."""
        machines = {platform.machine for platform in self.platforms} or {os.uname().machine}
        return tuple(path for path, file in self.installation.files.items() if file.outline.machine in machines)

    def _judge(self, needs: Sequence[tuple[str, LoaderNeed]], loader: Loader) -> None:
        """Say what is wrong with *needs*, those of a file that are wrong in the same way together."""
        failures: dict[tuple[str, str], list[str]] = {}
        notes: dict[tuple[str, str], list[str]] = {}
        for place, need in needs:
            if need.is_met_by_order:
                what = f", found only since {need.provider} is loaded before"
                notes.setdefault((place, what), []).append(need.name)
            elif not need.is_met and (excuse := self._excuse(need)):
                self.excused[need.name] = excuse
                notes.setdefault((place, f", {excuse}"), []).append(need.name)
            elif not need.is_met:
                what = f", {_lack(need)}; {_search(need, loader.outline(need.consumer))}"
                failures.setdefault((place, what), []).append(need.name)
        self.failures += _grouped(failures)
        self.notes += _grouped(notes)

    def _excuse(self, need: LoaderNeed) -> str | None:
        """Why it is not the split's fault that *need* is not met; None where it may be."""
        if need.name in self.unreached:
            return _BEFORE
        project = known.project if need.via is Via.MISSING and (known := framework(need.name)) else None
        if project in self.installation.projects:
            return f"which the {project} installed does not have: a build for other hardware?"
        return f"part of {project}, which was left out" if project in self.environment.left_out else None

    def load(self) -> Iterator[str]:
        """The roots that can be loaded; none where no Python here takes the wheel."""
        if not (python := self.environment.python):
            return
        for root in self.roots:
            file = self.installation.files[root]
            if file.is_program:
                continue
            answer = opened(self.environment.packages / root, python)
            if answer.lacks_symbol or answer.has_crashed or answer.absent in self.unreached:
                answer = self._opened_later(root, python, answer)
            if answer.error is None:
                yield root
                self.failures += self._strangers(root, answer)
            elif answer.lacks_symbol and not file.modules:
                what = f"{root}: not loaded: {self._said(answer)}, which is for the one that opens it to bring"
                self.notes.append(LoadFinding(TrialStep.LOAD, what))
            else:
                self._failed(TrialStep.LOAD, root, answer, counts=True)

    def _opened_later(self, root: str, python: Path, before: Answer) -> Answer:
        """The file *root* loaded after the packages, which may have loaded what it needs."""
        if not self.installation.imports:
            return before
        answer = opened(self.environment.packages / root, python, after=self.installation.imports)
        if answer.error is not None:
            return before
        what = f"{root}: can be loaded only after `import {', '.join(self.installation.imports)}`: {self._said(before)}"
        self.notes.append(LoadFinding(TrialStep.LOAD, what))
        return answer

    def _strangers(self, root: str, answer: Answer) -> Iterator[LoadFinding]:
        """Libraries in memory that a package of the environment should have brought, and that are from elsewhere."""
        wanted = {need.name for need in self.needs if need.via not in {Via.PLATFORM, Via.DRIVER}} - self.unreached
        for path in map(Path, answer.mapped):
            if path.is_relative_to(self.environment.folder):
                continue
            names = {path.name, _soname(path)} - {""}
            if found := sorted(name for name in names if name in wanted or (by_soname(name) and not is_driver(name))):
                what = f"{root}: {found[0]} was loaded from {path}, which is outside of the environment"
                yield LoadFinding(TrialStep.LOAD, what)

    def try_imports(self) -> Iterator[str]:
        """The packages and modules that can be imported; none where no Python here takes the wheel."""
        if not (python := self.environment.python):
            return
        for name in self.installation.imports:
            answer = imported(name, python)
            if answer.error is None:
                yield name
            else:
                self._failed(TrialStep.IMPORT, name, answer, counts=answer.unresolved is not None or answer.has_crashed)

    def _failed(self, step: TrialStep, place: str, answer: Answer, *, counts: bool) -> None:
        """Note what became of *place*; a failure where it *counts* and this machine is not the reason."""
        lacks, what = answer.absent, f"{place}: not {step}ed: {self._said(answer)}"
        if lacks and is_driver(lacks):
            self.notes.append(LoadFinding(step, f"{place}: not {step}ed: needs {lacks}, which comes with the driver"))
        elif lacks and (excuse := _BEFORE if lacks in self.unreached else self.excused.get(lacks)):
            self.notes.append(LoadFinding(step, f"{place}: not {step}ed: needs {lacks}, {excuse}"))
        elif answer.is_unable or not counts:
            self.notes.append(LoadFinding(step, what))
        elif step is not TrialStep.LOAD or lacks not in {need.name for need in self.needs if not need.is_met}:
            self.failures.append(LoadFinding(step, what))

    def _said(self, answer: Answer) -> str:
        return (answer.error or "").replace(f"{self.environment.packages}/", "")


def _place(root: str, need: LoaderNeed) -> str:
    return need.consumer if need.consumer == root else f"{need.consumer}, which {root} loads"


def _grouped(found: Mapping[tuple[str, str], Sequence[str]]) -> list[LoadFinding]:
    return [
        LoadFinding(TrialStep.RESOLVE, f"{place}: needs {', '.join(names)}{what}")
        for (place, what), names in found.items()
    ]


def _badness(need: LoaderNeed) -> int:
    return 2 * (not need.is_met) + need.is_met_by_order


def _lack(need: LoaderNeed) -> str:
    if need.via is Via.NAME:
        return f"which is at {need.provider}, but no RPATH leads there"
    if need.via is Via.OUTSIDE:
        return f"and is led out of the environment, to {need.provider}"
    if entries := by_soname(need.name):
        return f"which nothing here brings; part of {' or '.join(sorted({entry.project for entry in entries}))}"
    if known := framework(need.name):
        return f"which nothing here brings; part of {known.project}"
    return "which nothing here brings"


def _search(need: LoaderNeed, consumer: Outline | None) -> str:
    if consumer and consumer.runpath:
        asked = ", ".join(need.searched)
        return f"its RUNPATH is {asked}, and keeps the loader from the RPATHs of what loads it"
    return f"searched {', '.join(need.searched)}" if need.searched else "there is no RPATH to search"


def _soname(path: Path) -> str:
    with suppress(BinaryError, OSError), mapped(path) as data:
        return Outline.parse(data).soname or ""
    return ""
