"""The parts of a release, as `vbuild matrix --part` and others leave them: folders of wheels, with a report or without.

    folders, at any depth -> wheels and report.json -> each wheel once, with its entry in a report

`vbuild.release.collect` verifies all that is in a part; parts that contradict each other are refused here.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.errors import RecipeError, at
from vbuild.files.atomic import STAGE
from vbuild.files.hashing import sha256_of
from vbuild.files.staging import LOGS
from vbuild.release.report import REPORT, FailureEntry, Report, WheelEntry
from vbuild.wheel.archive import wheels_in
from vbuild.wheel.name import WheelName


class ReleasePart(Struct, frozen=True):
    """A folder with *wheels*, and the *report* on them, or None if nobody wrote one."""

    folder: Path
    wheels: tuple[Path, ...]
    report: Report | None

    @classmethod
    def at(cls, folder: Path) -> "ReleasePart | None":
        """What is in *folder* itself, or None if that is neither a wheel nor a report.

        `RecipeError` for a report that cannot be read, or that lists wheels that are not there; `WheelError` for a
        name that no wheel has.
        """
        wheels = tuple(path for path in wheels_in(folder) if not path.is_dir())
        for wheel in wheels:
            with at(folder):
                WheelName.parse(wheel.name)
        path = folder / REPORT
        if not (wheels or path.exists()):
            return None
        report = Report.load(path) if path.exists() else None
        names = {wheel.name for wheel in wheels}
        for name in report.files if report else ():
            if name not in names:
                raise RecipeError(f"{path}: tells of {name}, which is not beside it")
        return cls(folder, wheels, report)

    @property
    def companions(self) -> frozenset[str]:
        """The names of the wheels that a split made, which others require."""
        return frozenset(companion.file for companion in self.report.companions) if self.report else frozenset()

    def log(self, failure: FailureEntry) -> Path | None:
        """The log of *failure*, if it is here."""
        path = self.folder / LOGS / Path(failure.log).name if failure.log else None
        return path if path and path.is_file() else None


class FoundWheel(Struct, frozen=True):
    """A wheel of some part, and its *entry* in the report there, or None if it has none.

    It *is_companion* if a split made it, and others require it.
    """

    path: Path
    entry: WheelEntry | None
    is_companion: bool = False

    @property
    def name(self) -> WheelName:
        return WheelName.parse(self.path.name)

    @property
    def digest(self) -> str:
        """The SHA-256 of the file; `RecipeError` if it cannot be read."""
        try:
            return sha256_of(self.path)
        except OSError as error:
            raise RecipeError(f"{self.path}: cannot be read: {error.strerror}") from error


class Twin(Struct, frozen=True):
    """The *entry* of a wheel whose file name is that of another wheel, for *python*."""

    entry: WheelEntry
    python: str


class Gathered(Struct, frozen=True):
    """The wheels of parts, each once, and those of further Pythons that would overwrite one of them."""

    wheels: tuple[FoundWheel, ...]
    twins: tuple[Twin, ...]


def parts_at(paths: Sequence[Path], *, output: Path) -> tuple[ReleasePart, ...]:
    """The parts at *paths* and below, behind links too; that in *output*, the folder for results, only if it is given.

    `RecipeError` without paths, for a path that is missing or cannot be read, and if the results would replace a part.
    """
    if not paths:
        raise RecipeError("no parts to collect; expected folders as 'vbuild matrix --part' leaves them")
    found: dict[Path, ReleasePart] = {}
    results: list[ReleasePart] = []
    for path in paths:
        try:
            is_folder = path.is_dir()
        except OSError as error:
            raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
        if not is_folder:
            raise RecipeError(f"{path}: no such folder; expected a part as 'vbuild matrix --part' leaves it")
        below = [part for folder in _folders(path) if (part := ReleasePart.at(folder))]
        if not below:
            raise RecipeError(f"{path}: neither wheels nor {REPORT} in it; expected what 'vbuild matrix --part' leaves")
        for part in below:
            folder = part.folder.resolve()
            if folder == output.resolve() != path.resolve():
                results.append(part)
            else:
                found[folder] = part
    for part in results:
        if part.folder.resolve() not in found:
            _check_results(part, tuple(found.values()))
    return tuple(found.values())


def _check_results(results: ReleasePart, parts: Sequence[ReleasePart]) -> None:
    """`RecipeError` if *results*, which a release of *parts* would overwrite, is a part of that release itself."""
    names = {wheel.name for part in parts for wheel in part.wheels if wheel.name not in part.companions}
    releases = {WheelName.parse(name).release for name in names}
    others = sorted({wheel.name for wheel in results.wheels} - results.companions - names)
    alone = [name for name in others if not names or WheelName.parse(name).release in releases]
    reports = [part.report for part in parts if part.report]
    known = {entry.target_key for report in reports for entry in (*report.wheels, *report.failures)}
    failures = results.report.failures if results.report else ()
    # an earlier release has no log of what failed there and in no part
    alone += [f"the failed {failure.title}" for failure in failures if failure.log and failure.target_key not in known]
    if alone:
        more = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
        raise RecipeError(f"{results.folder}: no other part has {alone[0]}{more}; expected another folder for results")


def name_of(parts: Iterable[ReleasePart], *, expected: str | None = None) -> str:
    """The project that *parts* are of, which is *expected* if that is given.

    `RecipeError` if they are of several; parts without reports count only where there are no others.
    """
    places: dict[str, tuple[Path, str]] = {}
    for part in parts:
        if part.report:
            places.setdefault(part.report.project, (part.folder / REPORT, part.report.name))
    if expected is not None:
        for project, (place, name) in places.items():
            if project != canonicalize_name(expected):
                raise RecipeError(f"{place}: is of {name!r}; the recipe is of {expected!r}")
        return expected
    if not places:
        projects: list[str] = sorted({WheelName.parse(wheel.name).project for part in parts for wheel in part.wheels})
        if len(projects) > 1:
            raise RecipeError(f"no part has a {REPORT}, and the wheels are of {', '.join(projects)}; give the recipe")
        return projects[0]
    (first, name), *others = places.values()
    for other, second in others:
        raise RecipeError(f"{first}: is of {name!r}, and {other} of {second!r}; expected parts of one release")
    return name


def wheels_of(parts: Iterable[ReleasePart], project: str) -> Gathered:
    """Each wheel of *parts* once; of wheels of one name for several Pythons, the first one's.

    `RecipeError` if two wheels of one name and Python differ, or where those of *project* are of several versions.
    """
    found: dict[str, FoundWheel] = {}
    twins: dict[tuple[str, str], Twin] = {}
    for wheel in (wheel for part in parts for wheel in _wheels(part)):
        first = found.setdefault(wheel.path.name, wheel)
        if first.path != wheel.path and first.digest != wheel.digest:
            if not (first.entry and wheel.entry and first.entry.python != wheel.entry.python):
                what = "two wheels of one name; expected the same bytes, or one"
                raise RecipeError(f"{first.path} and {wheel.path}: {what}")
            twin = Twin(wheel.entry, first.entry.python)
            twins.setdefault((wheel.path.name, wheel.entry.python), twin)
        elif first.entry is None and not first.is_companion:
            found[wheel.path.name] = wheel
    versions: dict[str, Path] = {}
    for wheel in found.values():
        if wheel.name.project == canonicalize_name(project):
            versions.setdefault(wheel.name.version, wheel.path)
    (first_version, path), *others = versions.items() or [("", Path())]
    for version, other in others:
        what = f"of versions {first_version} and {version}; expected parts of one release"
        raise RecipeError(f"{path} and {other}: {what}")
    return Gathered(tuple(found.values()), tuple(twins.values()))


def _folders(path: Path) -> Iterator[Path]:
    """*path* and the folders below, each once however it is linked, but for those of work in progress.

    `RecipeError` for one that cannot be read, and for a link that leads nowhere: behind it may have been a part.
    """
    seen: set[Path] = set()
    for parent, folders, files in os.walk(path, onerror=_unreadable, followlinks=True):
        here = Path(parent)
        if (real := here.resolve()) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(STAGE))
        for file in sorted(files):
            if (here / file).is_symlink() and not (here / file).exists():
                raise RecipeError(f"{here / file}: a link that leads nowhere; expected a part, or no link")
        yield here


def _unreadable(error: OSError) -> None:
    raise RecipeError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _wheels(part: ReleasePart) -> Iterator[FoundWheel]:
    """The wheels of *part* in the order of its report, then the others."""
    entries = {entry.wheel: entry for entry in part.report.wheels} if part.report else {}
    places = {name: place for place, name in enumerate(entries)}
    companions = part.companions
    for path in sorted(part.wheels, key=lambda path: places.get(path.name, len(places))):
        yield FoundWheel(path, entries.get(path.name), is_companion=path.name in companions)
