"""The parts of a release, as `vbuild matrix --part` and others leave them: folders of wheels, with a report or without.

    folders, at any depth -> wheels and report.json -> each wheel once, with what its report says of it

Nothing that is in a part is trusted before `vbuild.release.collect` has verified it; what contradicts itself is
refused here.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from packaging.utils import canonicalize_name

from vbuild.errors import RecipeError, at
from vbuild.files.hashing import sha256_of
from vbuild.files.staging import LOGS, STAGE
from vbuild.release.report import REPORT, Absence, Report
from vbuild.wheel.name import WheelName


class ReleasePart(Struct, frozen=True):
    """A folder with *wheels*, and the *report* on them, or None if nobody wrote one."""

    folder: Path
    wheels: tuple[Path, ...]
    report: Report | None

    @classmethod
    def at(cls, folder: Path) -> "ReleasePart | None":
        """What is in *folder* itself, or None if that is neither a wheel nor a report.

        `RecipeError` for a report that cannot be read, or that tells of wheels that are not there; `WheelError` for a
        name that no wheel has.
        """
        wheels = tuple(path for path in sorted(folder.glob("*.whl")) if path.is_file())
        for wheel in wheels:
            with at(folder):
                WheelName.parse(wheel.name)
        path = folder / REPORT
        if not (wheels or path.is_file()):
            return None
        report = Report.load(path) if path.is_file() else None
        names = {wheel.name for wheel in wheels}
        for name in report.files if report else ():
            if name not in names:
                raise RecipeError(f"{path}: tells of {name}, which is not beside it")
        return cls(folder, wheels, report)

    @property
    def own(self) -> frozenset[str]:
        """The names of its wheels, but for those that others require, made when they were split."""
        beside = {one.file for one in self.report.shared} if self.report else set()
        return frozenset(wheel.name for wheel in self.wheels) - beside

    def log(self, absence: Absence) -> Path | None:
        """The log of what failed, if it is here."""
        path = self.folder / LOGS / Path(absence.log).name if absence.log else None
        return path if path and path.is_file() else None


class FoundWheel(Struct, frozen=True):
    """A wheel of some part: where it is, and what the report there says of it, *data*, or None if none tells of it.

    *is_beside* where it is one that others require, made when they were split.
    """

    path: Path
    data: Mapping[str, Any] | None
    is_beside: bool = False

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
    """What a report has as the *data* of the wheel *name*, which it has for another *python* as well."""

    name: str
    data: Mapping[str, Any]
    python: str


class Gathered(Struct, frozen=True):
    """The wheels of parts, each once, and those of further Pythons that would overwrite one of them."""

    wheels: tuple[FoundWheel, ...]
    twins: tuple[Twin, ...] = field(default=())


def parts_at(paths: Sequence[Path], *, without: Path) -> tuple[ReleasePart, ...]:
    """The parts at *paths* and below, behind links too; that in *without*, the folder for results, only if it is given.

    `RecipeError` for a path if there is none or that cannot be read, for results that would take a part's place,
    and where nothing was given.
    """
    if not paths:
        raise RecipeError("no parts to collect; expected folders as 'vbuild matrix --part' leaves them")
    found: dict[Path, ReleasePart] = {}
    results: list[ReleasePart] = []
    for path in paths:
        if not _is_folder(path):
            raise RecipeError(f"{path}: no such folder; expected a part as 'vbuild matrix --part' leaves it")
        is_given = _is_same(path, without)
        below = [part for folder in _folders(path) if (part := ReleasePart.at(folder))]
        kept = [part for part in below if is_given or not _is_same(part.folder, without)]
        if not below:
            raise RecipeError(f"{path}: neither wheels nor {REPORT} in it; expected what 'vbuild matrix --part' leaves")
        results += [part for part in below if part not in kept]
        found.update((part.folder.resolve(), part) for part in kept)
    for part in results:
        if part.folder.resolve() not in found:
            _check_results(part, found.values())
    return tuple(found.values())


def _check_results(results: ReleasePart, parts: Iterable[ReleasePart]) -> None:
    """`RecipeError` if *results*, in whose place a release of *parts* would be, is a part of that release itself."""
    parts = tuple(parts)
    names = {name for part in parts for name in part.own}
    releases = {WheelName.parse(name).release for name in names}
    alone = [name for name in sorted(results.own - names) if not names or WheelName.parse(name).release in releases]
    reports = [part.report for part in parts if part.report]
    told = {wheel.stead for report in reports for wheel in report.wheels}
    told |= {absence.key for report in reports for absence in report.failures}
    failures = results.report.failures if results.report else ()
    # an earlier release has no log of what failed there and in no part
    alone += [f"the failed {one.title}" for one in failures if one.log and one.key not in told]
    if alone:
        more = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
        raise RecipeError(f"{results.folder}: no other part has {alone[0]}{more}; expected another folder for results")


def name_of(parts: Iterable[ReleasePart], *, expected: str | None = None) -> str:
    """The project that *parts* are of, which is *expected* if that is given.

    `RecipeError` if they are of several; parts without reports count only where there are no others.
    """
    told = {part.folder / REPORT: part.report.name for part in parts if part.report}
    places: dict[str, tuple[Path, str]] = {}
    for place, said in told.items():
        places.setdefault(canonicalize_name(said), (place, said))
    if expected is not None:
        for project, (place, said) in places.items():
            if project != canonicalize_name(expected):
                raise RecipeError(f"{place}: is of {said!r}; the recipe is of {expected!r}")
        return expected
    if not places:
        projects: list[str] = sorted({WheelName.parse(wheel.name).project for part in parts for wheel in part.wheels})
        if len(projects) > 1:
            raise RecipeError(f"no part has a {REPORT}, and the wheels are of {', '.join(projects)}; give the recipe")
        return projects[0]
    (first, name), *others = places.values()
    for other, said in others:
        raise RecipeError(f"{first}: is of {name!r}, and {other} of {said!r}; expected parts of one release")
    return name


def wheels_of(parts: Iterable[ReleasePart], project: str) -> Gathered:
    """Each wheel of *parts* once; of wheels of one name for several Pythons, the first one's.

    `RecipeError` if two wheels of one name and Python differ, or where those of *project* are of several versions.
    """
    found: dict[str, FoundWheel] = {}
    twins: dict[tuple[str, str], Twin] = {}
    for one in (one for part in parts for one in _told(part)):
        first = found.setdefault(one.path.name, one)
        if first.path != one.path and first.digest != one.digest:
            if not (first.data and one.data and first.data["python"] != one.data["python"]):
                what = "two wheels of one name; expected the same bytes, or one"
                raise RecipeError(f"{first.path} and {one.path}: {what}")
            twin = Twin(one.path.name, one.data, first.data["python"])
            twins.setdefault((twin.name, one.data["python"]), twin)
        elif first.data is None and not first.is_beside:
            found[one.path.name] = one
    _check_versions(found.values(), project)
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


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error


def _is_same(folder: Path, other: Path) -> bool:
    return folder.resolve() == other.resolve()


def _told(part: ReleasePart) -> Iterator[FoundWheel]:
    """The wheels of *part* in the order of its report, then the others."""
    report = part.report
    entries = {str(wheel.name): wheel.data for wheel in report.wheels} if report else {}
    beside = {one.file for one in report.shared} if report else set()
    places = {name: place for place, name in enumerate(entries)}
    for path in sorted(part.wheels, key=lambda path: places.get(path.name, len(places))):
        yield FoundWheel(path, entries.get(path.name), is_beside=path.name in beside)


def _check_versions(wheels: Iterable[FoundWheel], project: str) -> None:
    versions: dict[str, Path] = {}
    for wheel in wheels:
        if wheel.name.project == canonicalize_name(project):
            versions.setdefault(wheel.name.version, wheel.path)
    (first, path), *others = versions.items() or [("", Path())]
    for version, other in others:
        raise RecipeError(f"{path} and {other}: of versions {first} and {version}; expected parts of one release")
