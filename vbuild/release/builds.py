"""What a build is asked for, of what source, and what it leaves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, convert, to_builtins
from packaging.version import Version

from vbuild.build.frontend import Built
from vbuild.build.identity import BuildKeys
from vbuild.build.job import Job
from vbuild.build.reproducible import Unreproducible
from vbuild.build.source import digest, unpacked
from vbuild.build.wrappers import FailedCall, Override
from vbuild.errors import RecipeError, at
from vbuild.files.reading import read_text
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Sdist, same_project
from vbuild.recipe.target import Target
from vbuild.wheel.metadata import Metadata


class PlannedWheel(Struct, frozen=True):
    """A wheel to make from the build that *job* describes; *build* and *product* are the keys of both in the cache.

    *baseline* is the key of the build that its code is compared with, or None. Of *keys*, one is that of the build.
    """

    job: Job
    build: str
    baseline: str | None
    product: str
    keys: BuildKeys | None = None

    @property
    def target(self) -> Target:
        return self.job.target


class RepairedWheel(Struct, frozen=True):
    """The portable wheel of a build, still plain; what the compiler wrappers changed; how long it took, in seconds.

    *lists* are the lists of GPU architectures that were changed in commands of nvcc, *failed* the calls of compilers
    that failed. *notes* on it are for the user, in each run that takes it. It *is_kept* if an earlier run built it.
    The files *not_reproducible* would have other bytes if it were built elsewhere.
    """

    wheel: Path
    overrides: tuple[Override, ...]
    lists: tuple[str, ...]
    seconds: float
    failed: tuple[FailedCall, ...] = ()
    is_kept: bool = False
    notes: tuple[str, ...] = ()
    not_reproducible: tuple[Unreproducible, ...] = ()

    @property
    def record(self) -> dict[str, Any]:
        """What the cache keeps with the wheel."""
        return {
            "seconds": self.seconds,
            "overrides": [to_builtins(override) for override in self.overrides],
            "lists": list(self.lists),
            "failed": to_builtins(self.failed),
            "notes": list(self.notes),
            "not_reproducible": to_builtins(self.not_reproducible),
        }

    @classmethod
    def of_record(cls, wheel: Path, record: Mapping[str, Any]) -> Self:
        overrides = tuple(map(Override.of_data, record["overrides"]))
        failed = convert(record["failed"], tuple[FailedCall, ...])
        return cls(
            wheel,
            overrides,
            tuple(record["lists"]),
            record["seconds"],
            failed,
            is_kept=True,
            notes=tuple(record["notes"]),
            not_reproducible=convert(record["not_reproducible"], tuple[Unreproducible, ...]),
        )


class MadeWheel(Struct, frozen=True):
    """A portable *wheel* of *job*, what it was *built* as, and the tree of the *project* that it was built in."""

    wheel: Path
    built: Built
    project: Path
    job: Job


def tree_of(recipe: Recipe, archive: Path, folder: Path, *, exclude: Path) -> Path:
    """The patched source of *recipe*, unpacked from its *archive* into *folder*, but for the folder *exclude* in it."""
    where, patches = recipe.source.subdirectory, recipe.build.patches
    return unpacked(archive, folder, subdirectory=where, patches=patches, without=exclude)


def digest_of(recipe: Recipe, exclude: Path) -> str:
    """What is built of *recipe* now: its project's name, and its source; the folder *exclude* is not part of it."""
    return f"{recipe.name} {digest(recipe.source, without=exclude)}"


def check_identity(recipe: Recipe, project: Path) -> None:
    """`RecipeError` if an sdist says that it is another release than the recipe names: the hash alone counts."""
    source, stated = recipe.source, project / "PKG-INFO"
    if isinstance(source, Sdist) and stated.is_file():
        with at(recipe.file), at("PKG-INFO"):
            metadata = Metadata.parse(read_text(stated, errors="replace"))
        if not same_project(metadata.name, source.name) or Version(metadata.version) != source.version:
            found = f"{metadata.name}=={metadata.version}"
            if source.file:
                raise RecipeError(f"{source.file}: named {source}, but its PKG-INFO says {found}; expected the same")
            raise RecipeError(f"{recipe.file}: source.sdist: sha256 is of {found}, expected {source}")
