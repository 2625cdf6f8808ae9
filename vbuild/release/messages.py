"""What goes to a worker and what comes back: values, pickled behind the check that both sides are one vbuild.

    RunMessage     what all jobs of a run have in common: recipe, family, digest of the source
    Task           the targets that one job is about, by their place in the run
    RemoteBuild    a build: its job as it was on the worker, and its key there; its wheel's bytes go with it
    RemoteFailure  why there is none, and the logs
    RemoteWheels   of each target of a build the product or the failure; the wheels' bytes go with it

Paths in them are of the machine that they come from, and mean nothing on another.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.job import Job
from vbuild.recipe.matrix import Matrix
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.bill import patches_of
from vbuild.release.builds import RepairedWheel
from vbuild.release.model import Product, ReleaseContext, ReleaseFamily
from vbuild.sbom.model import Material

LOGS_HERE = "\0logs\0"  # stands for the folder of logs in the text of an error


class PythonHome(Struct, frozen=True):
    """The Python that runs vbuild, as another machine can find one like it: its path here, and what it is."""

    path: str
    version: str

    @classmethod
    def of_this(cls) -> Self:
        """The Python that runs now."""
        kind, (major, minor, *_) = sys.implementation.name, sys.version_info
        free = "t" if "t" in sys.abiflags else ""
        return cls(sys.executable, f"{kind}@{major}.{minor}{free}")

    def local(self, target: Target) -> Target:
        """*target* as it is meant here: of the Python that runs vbuild there, one of the same version here."""
        if target.python != self.path:
            return target
        here = self.of_this()
        return replace(target, python=here.path if here.version == self.version else self.version)


class RunMessage(Struct, frozen=True):
    """What all jobs of a run have in common; *source* is the digest of what is built, *name* the run's own.

    *patches* are those that are in the source.
    """

    name: str
    recipe: Recipe
    source: str
    patches: tuple[Material, ...]
    family: ReleaseFamily
    is_part: bool
    fresh: bool
    home: PythonHome

    @classmethod
    def of(cls, name: str, context: ReleaseContext, *, source: str) -> Self:
        """The message of the run *name* for *context*; the patches are in the source that goes out with it."""
        recipe = context.recipe
        build = replace(recipe.build, patches=())
        sent = dataclasses.replace(recipe, build=build, matrix=Matrix(), drafts=(), variant=None, split=None)
        is_fresh = bool(context.cache and context.cache.fresh)
        home = PythonHome.of_this()
        return cls(name, sent, source, patches_of(recipe), context.family, context.is_part, is_fresh, home)


class Task(Struct, frozen=True):
    """The *targets* that a job is about, and the *places* of these in the run."""

    places: tuple[int, ...]
    targets: tuple[Target, ...]


class RemoteFailure(Struct, frozen=True):
    """Why there is no wheel, and what was logged: by name of the file, of which *log* is the target's own."""

    error: str
    log: str | None = None
    logs: tuple[tuple[str, bytes], ...] = ()


class RemoteBuild(Struct, frozen=True):
    """A build as a worker made it: its *job* and its *key* there."""

    job: Job
    key: str
    repaired: RepairedWheel
    notes: tuple[str, ...]


class RemoteWheels(Struct, frozen=True):
    """What came of each target of a build, in their order."""

    outcomes: tuple[Product | RemoteFailure, ...]
    notes: tuple[str, ...] = ()


def written(folder: Path, name: str, data: bytes) -> Path:
    """The file *name* with *data* in *folder*, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path
