"""The releases in a folder: which wheels, sdists and variants.json belong together."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from vbuild.publishing.files import INDEX, Found, ReadySdist, ReadyWheel
from vbuild.publishing.model import Demand, Problem
from vbuild.wheel.name import escaped


@dataclass(frozen=True, slots=True)
class Published:
    """The files of one release; *version* as PEP 440 normalises it, *index* its variants.json where there is one.

    *former* are the files that are called as its sdist was in former times.
    """

    project: str
    version: str
    wheels: tuple[ReadyWheel, ...]
    sources: tuple[ReadySdist, ...]
    index: Path | None
    former: tuple[str, ...]

    def __str__(self) -> str:
        return f"{escaped(self.project)}-{self.version}"

    @property
    def variants(self) -> tuple[ReadyWheel, ...]:
        return tuple(wheel for wheel in self.wheels if wheel.name.variant is not None)

    @property
    def plain(self) -> tuple[ReadyWheel, ...]:
        """The wheels that every installer understands."""
        return tuple(wheel for wheel in self.wheels if wheel.name.variant is None)

    @property
    def index_name(self) -> str:
        """What the release's variants.json is called (PEP 825, index-level metadata)."""
        return f"{self}{INDEX}"

    @property
    def distributions(self) -> tuple[ReadyWheel | ReadySdist, ...]:
        return (*self.wheels, *self.sources)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.file for file in self.distributions)

    @property
    def size(self) -> int:
        """The size of its wheels and sdists in bytes."""
        return sum(file.size for file in self.distributions)


def releases(found: Found) -> tuple[Published, ...]:
    """The releases among *found*, by project and version."""
    wheels: dict[tuple[str, str], list[ReadyWheel]] = {}
    sources: dict[tuple[str, str], list[ReadySdist]] = {}
    for wheel in found.wheels:
        wheels.setdefault((wheel.name.project, str(Version(wheel.name.version))), []).append(wheel)
    for source in found.sources:
        sources.setdefault((source.project, str(source.version)), []).append(source)
    indexes = {path.name: path for path in found.indexes}
    return tuple(
        Published(
            project,
            version,
            tuple(wheels.get((project, version), ())),
            tuple(sources.get((project, version), ())),
            indexes.get(f"{escaped(project)}-{version}{INDEX}"),
            tuple(path.name for of, number, path in found.former if (of, number) == (project, Version(version))),
        )
        for project, version in sorted({*wheels, *sources}, key=lambda key: (key[0], Version(key[1]), key[1]))
    )


def strays(found: Found, known: Iterable[Published]) -> Iterator[Problem]:
    """The variants.json files of no release among *known* that has variants."""
    expected = {release.index_name for release in known if release.variants}
    for path in found.indexes:
        if path.name not in expected:
            yield Problem(
                Demand.INDEX,
                (path.name,),
                "is of a release without variant wheels here",
                "remove it, or put the wheels beside it",
                is_error=True,
            )


def twins(known: Iterable[Published]) -> Iterator[Problem]:
    """The releases that are one version in two spellings, such as 1.0 and 1.0.0 (PEP 440, normalization)."""
    spelled: dict[tuple[str, Version], list[str]] = {}
    for release in known:
        spelled.setdefault((release.project, Version(release.version)), []).append(str(release))
    for names in spelled.values():
        if len(names) > 1:
            yield Problem(
                Demand.NAME,
                tuple(names),
                f"{' and '.join(names)} are one version in two spellings",
                "build all files of a release with one spelling: each gets a variants.json of its own",
                is_error=True,
            )
