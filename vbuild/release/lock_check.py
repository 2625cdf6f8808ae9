"""A recipe held to its lock: whether the lock is still of the recipe, and what a run that is bound to it refuses."""

import dataclasses
import hashlib

from msgspec.structs import replace

import vbuild
from vbuild.build.source import digest
from vbuild.errors import RecipeError
from vbuild.files.hashing import sha256_of
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.recipe.lock import Hashes, Lock, lock_file
from vbuild.recipe.model import Recipe
from vbuild.recipe.native import NativeSource
from vbuild.recipe.source import Folder
from vbuild.toolchain.toolkit.model import Toolkit


def held(recipe: Recipe, *, is_locked: bool = False) -> tuple[Recipe, tuple[str, ...]]:
    """*recipe* with its lock, where it has one that is not stale, and in one line why not.

    Where the run *is_locked*, the lock is binding, and a `RecipeError` says why there is none; one that cannot be read
    is refused in any case.
    """
    file = lock_file(recipe.file)
    if not file.exists():
        if is_locked:
            raise RecipeError(f"{file}: no such lock; expected one for --locked: vbuild lock {recipe.file}")
        return recipe, ()
    try:
        lock = Lock.load(file)
    except RecipeError as error:
        raise RecipeError(f"{error}; write it again: vbuild lock {recipe.file}") from error
    if stale := staleness(lock, recipe):
        said = f"{file}: {stale}; write it again: vbuild lock {recipe.file}"
        if is_locked:
            raise RecipeError(said)
        return recipe, (f"{said}; it was not used",)
    return dataclasses.replace(recipe, build=replace(recipe.build, lock=replace(lock, is_binding=is_locked))), ()


def staleness(lock: Lock, recipe: Recipe) -> str | None:
    """Why *lock* is not of *recipe* any more, in a few words; None where it is."""
    if lock.recipe != recipe_hash(recipe):
        return "the recipe, or a patch of it, has changed since"
    if lock.source != pinned(recipe.source):
        return f"is of the source {lock.source!r}, the recipe has {pinned(recipe.source)!r}"
    if dict(lock.natives) != dict(natives(recipe)):
        return "is of other native dependencies"
    if lock.vbuild != vbuild.__version__:
        return f"written by vbuild {lock.vbuild}, this is {vbuild.__version__}"
    return None


def check_pins(lock: Lock | None, spec: ToolkitSpec, toolkit: Toolkit) -> None:
    """`RecipeError` where a binding *lock* has other wheels for *spec* than *toolkit* is made of.

    Nobody knows those of one that is only foreseen.
    """
    if lock is None or not lock.is_binding or not toolkit.identity:
        return
    name, found = name_of(spec), wheels(toolkit)
    stated = dict(lock.toolkits).get(name)
    if stated is None:
        raise RecipeError(f"--locked: CUDA {name}: not in the lock; write it again: vbuild lock")
    if dict(stated) != dict(found):
        others = sorted(dict(set(stated) ^ set(found))) or ["no wheels"]
        raise RecipeError(f"--locked: CUDA {name}: {others[0]} is not as in the lock; write it again: vbuild lock")


def recipe_hash(recipe: Recipe) -> str:
    """The SHA-256 of what *recipe* says: its own file, and its patches, those of native dependencies among them."""
    patches = (*recipe.build.patches, *(patch for native in recipe.natives for patch in native.patches))
    hashes = [sha256_of(file) for file in (recipe.file, *patches)]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def pinned(source: NativeSource) -> str:
    """The hash of *source*, as the lock has it; a folder has none, as nothing of it is fetched."""
    return "folder" if isinstance(source, Folder) else digest(source).strip()


def natives(recipe: Recipe) -> Hashes:
    """The sources of the native dependencies of *recipe* by their names."""
    return tuple((native.name, pinned(native.source)) for native in recipe.natives)


def name_of(spec: ToolkitSpec) -> str:
    """How the lock calls a toolkit: its version and what is asked for besides."""
    return " ".join([str(spec.version), *spec.libraries])


def wheels(toolkit: Toolkit) -> Hashes:
    """The wheels that *toolkit* is made of; one that is installed has none."""
    return tuple((pin.file, pin.sha256) for pin in toolkit.pins)
