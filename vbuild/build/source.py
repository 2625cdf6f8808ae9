"""From the source that a recipe names to a tree to build in.

    sdist   index  -> cache/sdists/<sha256>  -> unpacked \
    debian  mirror -> cache/sdists/<sha256>  -> unpacked  > a fresh tree for every build -> patched
    git     URL    -> cache/commits/<commit> -> copied   /
    path    the folder itself                -> copied  /

A cache entry is complete or not there, and is checked again each time it is used.
"""

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from platformdirs import user_cache_path

from vbuild.build import git, packing
from vbuild.build.archive import unpack
from vbuild.build.stage import STAGE
from vbuild.digest import sha256_of
from vbuild.errors import BuildError, at, reason_of
from vbuild.fetching.debian import fetch_debian
from vbuild.fetching.download import Wanted, download
from vbuild.fetching.indexes import Indexes
from vbuild.recipe.native import Debian, NativeSource
from vbuild.recipe.source import Folder, Git, Sdist

_PROJECT_FILES = ("pyproject.toml", "setup.py")
_NOT_SOURCES = frozenset({".git", ".hg", ".svn", ".bzr", "__pycache__"})


def fetched(source: NativeSource, cache: Path | None = None, *, indexes: Indexes | None = None) -> Path:
    """The archive or folder of *source* on this machine; fetched once into *cache* (the user's, where None).

    *indexes* are where sdists are looked for, and how mirrors are reached; pip's configured ones where None.
    `FetchError` or `BuildError` where the source is not there, or is not what the recipe pinned; nothing stays in the
    cache then.
    """
    folder = cache or user_cache_path("vbuild")
    match source:
        case Sdist() | Debian():
            return _archive(source, folder / "sdists", indexes)
        case Git():
            return _commit(source, folder / "commits")
        case Folder():
            if not source.path.is_dir():
                raise BuildError(f"{source.path}: no such folder")
            return source.path


def unpacked(
    archive: Path,
    folder: Path,
    *,
    subdirectory: str = "",
    patches: Iterable[Path] = (),
    without: Path | None = None,
) -> Path:
    """The project folder of a fresh copy of *archive* in *folder*, as `copied` makes it.

    `BuildError` where there is no project.
    """
    project = copied(archive, folder, subdirectory=subdirectory, patches=patches, without=without)
    if not any((project / name).is_file() for name in _PROJECT_FILES):
        where = f"subdirectory {subdirectory!r}" if subdirectory else "top folder"
        raise BuildError(f"{archive.name}: no project in its {where}; expected {' or '.join(_PROJECT_FILES)}")
    return project


def copied(
    archive: Path,
    folder: Path,
    *,
    subdirectory: str = "",
    patches: Iterable[Path] = (),
    without: Path | None = None,
) -> Path:
    """The *subdirectory* of a fresh copy of *archive* in *folder*, with *patches* applied, whatever is in it.

    *archive* is a folder, an archive of one, or a packed tree. *without* is a folder in *archive* that is no part of
    it, such as that for finished wheels. `BuildError` where it is damaged, or a patch does not apply.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with at(archive.name):
        if archive.is_dir():
            tree = _copied(archive, folder / archive.name, without)
        else:
            tree = (packing.unpack if archive.suffix == packing.SUFFIX else unpack)(archive, folder)
    for patch in patches:
        with at(patch.name):
            git.apply(patch.resolve(), tree)
    return tree / subdirectory


def digest(source: NativeSource, *, without: Path | None = None) -> str:
    """A SHA-256, or the hash that pins *source*, of all that a build takes from it.

    Of a folder that is what `unpacked` copies: names, modes, contents, and the history that versions come from; not
    times. *without* is a folder that is left out, as there. `BuildError` where a file cannot be read.
    """
    match source:
        case Sdist():
            return f"sdist {source.sha256} {source.subdirectory}"
        case Debian():
            return f"debian {source.sha256} {source.subdirectory}"
        case Git():
            return f"git {source.commit} {source.subdirectory}"
        case Folder():
            return f"folder {_folder_digest(source.path, without)} {source.subdirectory}"


def _folder_digest(folder: Path, without: Path | None) -> str:
    total = hashlib.sha256("\0".join(git.history(folder)).encode(errors="surrogateescape"))
    top = os.fspath(folder)
    for name in _names(folder, without):
        with at(name):
            mode, content = _content(f"{top}/{name}")
        total.update(b"%s\0%o\0%d\0" % (os.fsencode(name), mode, len(content)))
        total.update(content)
    return total.hexdigest()


def _names(folder: Path, without: Path | None) -> Iterator[str]:
    """The paths below *folder* of what `_copied` copies, always in the same order; those that are gone, too."""
    if (names := _listed(folder, without)) is not None:
        yield from names
        return
    top = os.fspath(folder)
    left_out = _not_sources(without)
    for place, folders, files in os.walk(top):
        leave = left_out(place, [*folders, *files])
        folders[:] = sorted(name for name in folders if name not in leave)
        below = f"{place}/"[len(top) + 1 :]
        yield from (below + name for name in sorted({*folders, *files} - leave))


def _content(path: str) -> tuple[int, bytes]:
    """The mode of the file or link at *path*, and what is in it; of others, and where there is none, the mode alone."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return mode, os.fsencode(Path(path).readlink())
        if not stat.S_ISREG(mode):
            return mode, b""
        return _settled(mode), Path(path).read_bytes()
    except FileNotFoundError:
        return 0, b""
    except OSError as error:
        raise BuildError(f"cannot be read: {error.strerror}") from error


def _archive(source: Sdist | Debian, cache: Path, indexes: Indexes | None) -> Path:
    cached = cache / source.sha256
    if cached.is_file() and sha256_of(cached) == source.sha256:
        return cached
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as temporary:
        archive = Path(temporary) / "archive"
        indexes = indexes or Indexes.configured()
        if isinstance(source, Debian):
            fetch_debian(source.name, source.version, source.sha256, archive, indexes=indexes)
        else:
            download(Wanted(source.name, source.version, source.sha256), archive, indexes=indexes)
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


def _copied(source: Path, target: Path, without: Path | None) -> Path:
    """What belongs to the project in *source*: of a git checkout what git would take, else all but caches."""
    names = _listed(source, without)
    if names is None:
        ignored = _not_sources(target.parent, without)
        try:
            shutil.copytree(source, target, symlinks=True, ignore=ignored, copy_function=_copy)
        except shutil.Error as error:
            raise BuildError(f"{source}: cannot be copied: {reason_of(error)}") from error
        return target
    target.mkdir()
    git.clone_history(source, target)
    for name in names:
        file = source / name
        # tracked and deleted, or a submodule that is not there
        if file.is_symlink() or file.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            _copy(file, target / name)
    return target


def _copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a file or link, with its time, and the mode that it has in an archive: backends hand it on to wheels."""
    shutil.copy2(source, target, follow_symlinks=False)
    mode = os.lstat(target).st_mode
    if stat.S_ISREG(mode):
        Path(target).chmod(stat.S_IMODE(_settled(mode)))


def _settled(mode: int) -> int:
    """The *mode* of a file as every build has it: the umask of who checked it out is no part of what it is."""
    return stat.S_IFREG | (0o755 if mode & stat.S_IXUSR else 0o644)


def _listed(folder: Path, without: Path | None) -> list[str] | None:
    """What git would take of *folder*; None where it is no checkout."""
    if (names := git.listed(folder)) is None:
        return None
    left_out = (f"{os.path.relpath(without.resolve(), folder.resolve())}/",) if without else ()
    return [name for name in names if not (_is_staged(name) or name.startswith(left_out))]


def _is_staged(name: str) -> bool:
    return STAGE in name and any(part.startswith(STAGE) for part in name.split("/"))


def _not_sources(*besides: Path | None) -> Callable[[str, list[str]], set[str]]:
    """What is no part of a project: version control, caches, virtual environments; and the folders *besides*."""
    left_out = {path.resolve() for path in besides if path}

    def found(folder: str, names: list[str]) -> set[str]:
        here = Path(folder).resolve()
        more = {
            name
            for name in names
            if name.startswith(STAGE) or here / name in left_out or (here / name / "pyvenv.cfg").exists()
        }
        return more | _NOT_SOURCES.intersection(names)

    return found
