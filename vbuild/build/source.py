"""From the source that a recipe names to a tree to build in.

    sdist   index -> cache/sdists/<sha256>  -> unpacked \
    git     URL   -> cache/commits/<commit> -> copied    > a fresh tree for every build -> patched
    path    the folder itself               -> copied   /

A cache entry is complete or not there, and is checked again each time it is used.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from platformdirs import user_cache_path

from vbuild.build import git
from vbuild.build.archive import unpack
from vbuild.build.download import download
from vbuild.build.indexes import Indexes
from vbuild.errors import BuildError, at
from vbuild.recipe.source import Folder, Git, Sdist, Source

STAGE = ".vbuild-"  # how the name of a folder for work in progress starts; one in a project is no part of it

_PROJECT_FILES = ("pyproject.toml", "setup.py")
_NOT_SOURCES = frozenset({".git", ".hg", ".svn", ".bzr", "__pycache__"})


def fetched(source: Source, cache: Path | None = None, *, indexes: Indexes | None = None) -> Path:
    """The archive or folder of *source* on this machine; fetched once into *cache* (the user's, where None).

    *indexes* are where sdists are looked for, pip's configured ones where None. `BuildError` where the source is
    not there, or is not what the recipe pinned; nothing stays in the cache then.
    """
    folder = cache or user_cache_path("vbuild")
    match source:
        case Sdist():
            return _sdist(source, folder / "sdists", indexes)
        case Git():
            return _commit(source, folder / "commits")
        case Folder():
            if not source.path.is_dir():
                raise BuildError(f"{source.path}: no such folder")
            return source.path


def unpacked(archive: Path, folder: Path, *, subdirectory: str = "", patches: Iterable[Path] = ()) -> Path:
    """The project folder of a fresh copy of *archive* (an archive or a folder) in *folder*, with *patches* applied.

    *subdirectory* is where the project is in the copy. `BuildError` where it is damaged, a patch does not apply, or
    there is no project.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with at(archive.name):
        tree = _copied(archive, folder / archive.name) if archive.is_dir() else unpack(archive, folder)
    for patch in patches:
        with at(patch.name):
            git.apply(patch.resolve(), tree)
    project = tree / subdirectory
    if not any((project / name).is_file() for name in _PROJECT_FILES):
        where = f"subdirectory {subdirectory!r}" if subdirectory else "top folder"
        raise BuildError(f"{archive.name}: no project in its {where}; expected {' or '.join(_PROJECT_FILES)}")
    return project


def _sdist(sdist: Sdist, cache: Path, indexes: Indexes | None) -> Path:
    cached = cache / sdist.sha256
    if cached.is_file() and _sha256(cached) == sdist.sha256:
        return cached
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as temporary:
        archive = Path(temporary) / "archive"
        download(sdist, archive, indexes=indexes or Indexes.configured())
        archive.replace(cached)
    return cached


def _commit(source: Git, cache: Path) -> Path:
    cached = cache / source.commit
    if git.is_clean(cached, source.commit):
        return cached
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / "tree"
        folder.mkdir()
        with at(source):
            git.checkout(source.url, source.commit, folder=folder)
        if cached.is_dir():
            cached.rename(Path(temporary) / "damaged")
        folder.rename(cached)
    return cached


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copied(source: Path, target: Path) -> Path:
    """What belongs to the project in *source*: of a git checkout what git would take, else all but caches."""
    names = git.listed(source)
    if names is None:
        shutil.copytree(source, target, symlinks=True, ignore=_not_sources(target.parent.resolve()))
        return target
    target.mkdir()
    git.clone_history(source, target)
    for name in names:
        if any(part.startswith(STAGE) for part in Path(name).parts):
            continue
        file = source / name
        # tracked and deleted, or a submodule that is not there
        if file.is_symlink() or file.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target / name, follow_symlinks=False)
    return target


def _not_sources(target: Path) -> Callable[[str, list[str]], set[str]]:
    """What a copy to *target* leaves out: version control, caches, virtual environments, and the copy itself."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder) / name for name in names}
        more = {
            name
            for name, path in paths.items()
            if name.startswith(STAGE) or (path / "pyvenv.cfg").exists() or path.resolve() == target
        }
        return more | _NOT_SOURCES.intersection(names)

    return left_out
