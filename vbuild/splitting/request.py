"""What to take out of wheels, and how the results require it, as values."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import checked_project
from vbuild.config.table import Table
from vbuild.errors import RepackageError
from vbuild.wheel.metadata import LIBS

# a smaller -libs wheel costs more to publish and to install than it saves
SMALLEST = 1_000_000

_CUDA = re.compile(r"1\d(\.\d{1,2})?", re.ASCII)


class RunEvidence(Struct, frozen=True):
    """What a run has shown about a library."""

    what: str = ""
    is_harmless: bool = False


def cuda_version(text: str) -> tuple[int, ...]:
    """``12`` or ``12.6`` as numbers; `RepackageError` for anything else."""
    if not _CUDA.fullmatch(text):
        raise RepackageError(f"no CUDA version {text!r}; expected a major, or a major and a minor, as in 12 or 12.6")
    return tuple(map(int, text.split(".")))


def project_name(text: str) -> str:
    return canonicalize_name(checked_project(text, RepackageError))


def libs_name(text: str) -> str:
    """``NAME`` or ``NAME==VERSION`` as package indexes spell them; `RepackageError` for anything else."""
    name, pinned, version = text.partition("==")
    try:
        return f"{project_name(name)}=={Version(version)}" if pinned else project_name(name)
    except InvalidVersion as error:
        raise RepackageError(f"no version {version!r} in {text!r}; expected one as PEP 440 writes it") from error


def place_of(text: str) -> str | Path:
    return text if "://" in text else Path(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """What `vbuild split` does to each wheel.

    replace    bundled libraries that are official ones, byte for byte, become requirements
    private    each library that something needs gets a name of its own, after its contents; none leaves its wheel
    share      libraries that several wheels have move to a -libs wheel, called *libs* or after the project,
               if that saves *smallest* bytes or more; *libs* may state its version, as in name==1.0, and is for what
               several projects have if wheels of several are split
    exact      only libraries that are the same byte for byte are shared, and not other builds of them
    against    the URL of an index or a folder: a -libs wheel that is there, and has what is shared, is required
    rpath      libraries of other packages are found by RPATH, and required; RPATHs of the build machine are removed
    cuda       the CUDA version, major or major and minor, of the libraries outside the wheels
    majors     the CUDA major that a wheel is known to be built with, by its file name
    preload    packages load their libraries first where no RPATH leads to them
    keep       globs over file names and paths of libraries that stay
    move       globs of libraries that move whatever code may do with their paths
    tries      shell commands that do the same before and after the split; *try_requires* are their requirements
    evidence   what runs have shown, by the SHA-256 of libraries that may not work from where they move
    allow_builds  what *tries* require is built, which runs its code, where it has no wheel
    """

    replace: bool = True
    share: bool = True
    private: bool = False
    exact: bool = False
    rpath: bool = False
    cuda: tuple[int, ...] = ()
    majors: tuple[tuple[str, int], ...] = ()
    keep: tuple[str, ...] = ()
    move: tuple[str, ...] = ()
    tries: tuple[str, ...] = ()
    try_requires: tuple[str, ...] = ()
    evidence: Mapping[str, RunEvidence] = field(default_factory=dict)
    libs: str | None = None
    against: str | Path | None = None
    smallest: int = SMALLEST
    preload: bool = True
    bill: bool = True
    allow_builds: bool = False

    def __post_init__(self) -> None:
        if self.libs is not None:
            object.__setattr__(self, "libs", libs_name(self.libs))
        for leaving in ("replace", "share"):
            object.__setattr__(self, leaving, getattr(self, leaving) and not self.private)

    @property
    def libs_project(self) -> str | None:
        """What the -libs wheel in *libs* is named after."""
        return self.libs.partition("==")[0].removesuffix(LIBS) if self.libs else None

    @property
    def libs_versions(self) -> dict[str, str]:
        """The version in *libs*, if it states one, by the name of the -libs wheel."""
        version = (self.libs or "").partition("==")[2]
        return {f"{self.libs_project}{LIBS}": version} if version else {}

    @classmethod
    def read(cls, table: Table, *, test: str | None = None, test_requires: tuple[str, ...] = ()) -> Self:
        """Read a recipe's ``[split]`` *table*; *test* is the command that tests wheels."""
        tries_test = table.flag("try-test", default=False)
        if tries_test and test is None:
            raise table.refuse("try-test", "is true; expected test.command, which is what it runs")
        smallest = table.number("min-size", SMALLEST)
        if smallest < 0:
            raise table.refuse("min-size", f"is {smallest}; expected bytes, 0 or more")
        request = cls(
            replace=table.flag("replace", default=True),
            share=table.flag("share", default=True),
            exact=table.flag("exact", default=False),
            rpath=table.flag("rpath", default=False),
            cuda=table.optional_parsed("cuda", cuda_version) or (),
            keep=table.texts("keep", ()),
            move=table.texts("move", ()),
            tries=(*table.texts("try", ()), *([test] if tries_test and test else [])),
            try_requires=test_requires if tries_test else (),
            libs=table.optional_parsed("libs", libs_name),
            against=table.optional_parsed("against", place_of),
            smallest=smallest,
            preload=table.flag("preload", default=True),
            allow_builds=True,  # a recipe is for building
        )
        table.finish()
        return request

    def keeps(self, path: str) -> bool:
        return _matches(path, self.keep)

    def moves(self, path: str) -> bool:
        return _matches(path, self.move)


def unmatched(globs: Iterable[str], paths: Collection[str]) -> tuple[str, ...]:
    return tuple(glob for glob in globs if not any(_matches(path, (glob,)) for path in paths))


def _matches(path: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(path, glob) or fnmatchcase(path.rpartition("/")[2], glob) for glob in globs)
