"""What a release is compared with, and built against: published wheels.

matrix.requires -> whether an index has these versions
verify.against -> a wheel in a file, or on the index -> `vbuild.verification.published` -> findings
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.version import Version

from vbuild.errors import BuildError, FetchError, RecipeError, at
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import files_of
from vbuild.process.threads import OncePerKey
from vbuild.recipe.model import AGAINST, Recipe
from vbuild.recipe.source import Sdist, same_project
from vbuild.recipe.target import Target
from vbuild.release.builder import interpreter_of
from vbuild.release.model import ReleaseContext
from vbuild.verification.model import Finding, Severity, VerifyRule
from vbuild.verification.published import file_on_index
from vbuild.wheel.name import WheelName

_SHOWN = 5
_FILES: OncePerKey[Path, Path] = OncePerKey(most=64)


def check_against(recipe: Recipe) -> None:
    """`VbuildError` if the plain wheel is to be compared with a file, or a version, that is none of the project's."""
    against = recipe.verify.against
    if against in AGAINST:
        return
    with at(recipe.file), at("verify.against"):
        if isinstance(against, Path):
            if not same_project(WheelName.parse(against.name).distribution, recipe.name):
                raise RecipeError(f"{against.name} is not a wheel of {recipe.name}")
            return
        there = {file.version for file in files_of(recipe.name, indexes=Indexes.configured()) if file.is_wheel}
        if Version(against) not in there:
            newest = ", ".join(map(str, sorted(there, reverse=True)[:_SHOWN])) or "none"
            raise RecipeError(f"no index has a wheel of {recipe.name} {against}; the newest there: {newest}")


def check_offered(recipe: Recipe, targets: Iterable[Target]) -> None:
    """`RecipeError` if no index has a version that one of *targets* is to be built against."""
    for project, value in dict.fromkeys(pair for target in targets for pair in target.requires):
        with at(recipe.file), at(f"matrix.requires.{project}"):
            there = {file.version for file in files_of(project, indexes=Indexes.configured()) if not file.is_yanked}
            if not any(SpecifierSet(f"=={value}.*").filter(there)):
                newest = ", ".join(map(str, sorted(there, reverse=True)[:_SHOWN])) or "none"
                raise RecipeError(f"no index has {project} {value}; the newest there: {newest}")


def published_for(context: ReleaseContext, wheel: Path, target: Target) -> tuple[Path | None, tuple[Finding, ...]]:
    """The published wheel that the *wheel* of *target* is compared with, if any, and what is to be said of that.

    It is the one that the recipe names, or that of an sdist's own version. `FetchError` if the one that is named is not
    there.
    """
    against = context.recipe.verify.against
    if isinstance(against, Path):
        return against, ()
    if against == "none" or (against == "auto" and not isinstance(context.recipe.source, Sdist)):
        return None, ()
    version = "" if against in AGAINST else against
    # one for all variants
    folder = context.place("published", replace(target, label=None))
    fetched = partial(file_on_index, wheel, folder, Indexes.configured, version=version, tag=_tag(target))
    try:
        return _FILES.get(folder, fetched), ()
    except FetchError as error:
        if against != "auto":
            raise
        what = f"not compared with the published wheel: {error}"
        return None, (Finding(Severity.NOTE, VerifyRule.PUBLISHED, (), what),)


def _tag(target: Target) -> Tag | None:
    """The tag of compiled wheels for the Python of *target*; None if this machine does not have it."""
    try:
        python = interpreter_of(target)
    except BuildError:
        return None
    major, minor, *_ = python.version
    name = {"cpython": "cp", "pypy": "pp"}.get(python.implementation, python.implementation)
    return Tag(f"{name}{major}{minor}", f"{name}{major}{minor}", f"linux_{target.cpu.machine}")
