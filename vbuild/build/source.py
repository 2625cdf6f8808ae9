"""From the source that a recipe names to a tree to build in.

    sdist   index  -> cache/sdists/<sha256>  -> unpacked
    debian  mirror -> cache/sdists/<sha256>  -> unpacked  > a fresh tree for every build -> patched
    git     URL    -> cache/commits/<commit> -> copied   /
    path    the folder itself                -> copied  /

A cache entry is complete or not there, and is checked again each time it is used.

`unpack` takes a source archive, ``.tar.gz`` or ``.zip``, but never writes outside its one top folder (PEP 625, 721).
``tarfile``'s own filter does not exist in every Python 3.11, so the rules are here, and the same for both kinds.

`pack_tree` makes one file of a source tree to send to another machine, `unpack_tree` the tree of it. No rules for
strangers' archives apply: the sender also says which commands to run.
"""

import calendar
import hashlib
import lzma
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from msgspec import Struct

from vbuild.errors import BuildError, at, reason_of
from vbuild.files import zstd
from vbuild.files.atomic import STAGE
from vbuild.files.cache import Cache, Part, cache_folder
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import BoundedInfo, bomb, most_unpacked, open_file, read_file
from vbuild.hardware.cpu import available_cores
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import Wanted
from vbuild.recipe.source import PROJECT_FILES, Debian, Folder, Git, NativeSource, Sdist

# hooks and some tools set them for another repository than git's working folder
_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")

# what a checkout's configuration or hooks would run with our variables
_RUNS_NOTHING = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


# as `vbuild.index_client.bounds` has it for a file: git may write 16 GB into each, in six hours, with 4 GB of memory
_SHELL = ("sh", "-c", 'ulimit -f 31250000 && ulimit -d 4000000 && exec "$@"', "git")  # blocks of 512 bytes, KB
_LONGEST_FETCH = 6 * 3600
# bytes a second over two minutes, fewer than for files: a server sends next to nothing while it counts objects
_BOUNDS = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=120")


def checkout(url: str, commit: str, *, folder: Path) -> None:
    """Fill the empty *folder* with *commit* and its submodules; `BuildError` with git's last line."""
    _git(folder, "init", "--quiet")
    try:
        _fetched(folder, "fetch", "--quiet", "--depth", "1", "--no-tags", "--", url, commit)
    except BuildError:
        # some servers give out no commit by its hash alone
        _fetched(folder, "fetch", "--quiet", "--", url, "+refs/*:refs/remotes/origin/*")
    _git(folder, "checkout", "--quiet", "--detach", commit)
    _fetched(folder, "submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")


def _is_clean(folder: Path, commit: str) -> bool:
    try:
        head = _git(folder, "rev-parse", "--verify", "HEAD").strip()
        # a project may ask for its submodules to be passed over
        if head != commit or _git(folder, "status", "--porcelain", "--ignored", "--ignore-submodules=none"):
            return False
        _git(folder, "fsck", "--no-progress", "--no-dangling")  # each build gets the history, too
    except BuildError:
        return False
    return True


def _tracked(folder: Path) -> list[str] | None:
    """The files that git tracks or would offer to add, or None outside of a checkout."""
    try:
        tracked = _git(folder, "ls-files", "-z", "--cached", "--recurse-submodules").split("\0")
        added = _git(folder, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    except BuildError:
        return None
    # git lists nothing of an ignored folder inside a checkout
    return sorted({path for path in tracked + added if path}) or None


def _clone_history(folder: Path, target: Path) -> None:
    """Give *target* the history of the checkout *folder*: projects take their version from tags."""
    if (folder / ".git").exists() and _has_commit(folder):
        _git(folder, "clone", "--quiet", "--no-checkout", "--no-recurse-submodules", "--", str(folder), str(target))
        _git(target, "reset", "--quiet")


def _history(folder: Path) -> tuple[str, ...]:
    if not (folder / ".git").exists() or not _has_commit(folder):
        return ()
    refs = _git(folder, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")
    return (_git(folder, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD"), refs)


def _has_commit(folder: Path) -> bool:
    try:
        _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    except BuildError:
        return False
    return True


def _fetched(folder: Path, *arguments: str) -> None:
    _git(folder, *_BOUNDS, *arguments, around=_SHELL, seconds=_LONGEST_FETCH)


def _git(
    folder: Path, *arguments: str, ceiling: Path | None = None, around: Iterable[str] = (), seconds: int | None = None
) -> str:
    env = {name: text for name, text in os.environ.items() if name not in _MISLEADING}
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if ceiling:
        env["GIT_CEILING_DIRECTORIES"] = str(ceiling)
    command = [*around, "git", *_RUNS_NOTHING, *arguments]
    verb = next(word for word in arguments if not word.startswith("-") and "=" not in word)
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"git {verb}: not at its end after {seconds} seconds") from error
    except FileNotFoundError as error:
        raise BuildError(
            "git is not installed, and a git source or a patch needs it; install it: apt-get install git"
        ) from error
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]
        raise BuildError(f"git {verb}: {last}")
    return ran.stdout


_LATEST = 1 << 33
# bytes written at a time, and Linux's limit for characters of a path
_CHUNK, _LONGEST = 1 << 20, 1 << 12
# bytes of headers that any tar archive may have, for a hundred thousand members, and that a packed one may stand for
_FEW_HEADERS, _HEADER_RATIO = 1 << 26, 4

# raised for archives that are damaged, encrypted or of an unknown kind
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    OverflowError,
    LookupError,
    struct.error,
)


class _Member(Struct, frozen=True):
    name: str
    kind: int
    mode: int
    time: int
    link: str
    opened: Callable[[], IO[bytes] | None]
    size: int
    """Bytes that it says it has; a hard link says none."""
    headers: int = 0
    """Bytes, uncompressed, that describe it in a tar archive."""


def unpack(archive: Path, folder: Path) -> Path:
    """The top folder of *archive*, unpacked into *folder*.

    `BuildError` if it is damaged, reaches outside, or unpacks to far more than source code does.
    """
    try:
        with open_file(archive) as file:
            packed = file.seek(0, os.SEEK_END)
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as opened:
                    return _written((_of_zip(opened, info) for info in opened.infolist()), folder, packed=packed)
            file.seek(0)
            with tarfile.open(fileobj=file, tarinfo=BoundedInfo) as tar:
                return _written((_of_tar(tar, info) for info in tar), folder, packed=packed)
    except _DAMAGE as error:
        raise BuildError(f"cannot be unpacked: {error}") from error


def _of_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    mode = info.external_attr >> 16
    # zipfile's is_dir() requires a name that is not empty
    kind = stat.S_IFDIR if info.filename.endswith("/") else stat.S_IFMT(mode) or stat.S_IFREG
    link = ""
    if kind == stat.S_IFLNK:
        with archive.open(info) as text:
            link = text.read(_LONGEST + 1).decode()
    data, time = partial(archive.open, info), calendar.timegm(info.date_time)
    return _Member(info.filename, kind, mode, time, link, data, info.file_size)


def _of_tar(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    kinds = {tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK}
    # a hard link is written as a second file
    known = stat.S_IFREG if info.isreg() or info.islnk() else 0
    kind = kinds.get(info.type, known)
    info.pax_headers = {}  # the archive keeps what it knows of all its members
    data, headers = partial(archive.extractfile, info), info.offset_data - info.offset
    return _Member(info.name, kind, info.mode, int(info.mtime), info.linkname, data, info.size, headers)


def _written(members: Iterator[_Member], folder: Path, *, packed: int) -> Path:
    """The one top folder of *members*, which are written into *folder*."""
    top: Path | None = None
    links: list[tuple[Path, str]] = []
    size, most = 0, most_unpacked(packed)
    for member in _bounded(members, packed):
        with at(member.name):
            below = PurePosixPath(member.name)
            if below.is_absolute() or ".." in below.parts or "\\" in member.name:
                raise BuildError("reaches outside the archive; expected a relative path without ..")
            path = folder / below
            if path == folder:
                continue
            mine = folder / path.relative_to(folder).parts[0]
            top = top or mine
            if mine != top:
                raise BuildError(f"found beside {top.name}; expected one top folder with everything in it")
            if member.kind == stat.S_IFLNK:
                links.append((path, member.link))
            else:
                size = _write(member, path, size, most=most)
    if top is None or not top.is_dir():
        raise BuildError("found no top folder; expected one with everything in it")
    # after all files: none was written through a link, and what the links lead to is there
    for path, target in links:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    inside = top.resolve()
    for path, target in links:
        with at(path.relative_to(top.parent)):
            if not path.resolve().is_relative_to(inside):
                raise BuildError(f"links outside the archive, to {target!r}")
    return top


def _bounded(members: Iterator[_Member], packed: int) -> Iterator[_Member]:
    most = left = max(_FEW_HEADERS, _HEADER_RATIO * packed)
    for member in members:
        if (left := left - member.headers) < 0:
            raise BuildError(f"more than {most} bytes of headers; expected {most} at most in an archive of its size")
        if (length := max(len(member.name), len(member.link))) > _LONGEST:
            raise BuildError(f"a path of {length} characters or more; expected {_LONGEST} at most")
        yield member


def _write(member: _Member, path: Path, size: int, *, most: int) -> int:
    """Make *member* at *path*; returns *size*, the bytes written so far, plus its own."""
    if member.kind == stat.S_IFDIR:
        path.mkdir(parents=True, exist_ok=True)
        return size
    if size + member.size > most:
        raise BuildError(bomb(most))
    source = member.opened() if member.kind == stat.S_IFREG else None
    if source is None:
        raise BuildError("is neither a file, a folder nor a link")
    path.parent.mkdir(parents=True, exist_ok=True)
    with source, path.open("wb") as target:
        while chunk := source.read(_CHUNK):
            if (size := size + target.write(chunk)) > most:
                raise BuildError(bomb(most))
    path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    # make and autotools compare the times of what they are given
    time = min(max(member.time, 0), _LATEST)
    os.utime(path, (time, time))
    return size


_NOT_SOURCES = frozenset({".git", ".hg", ".svn", ".bzr", "__pycache__"})


def fetched_source(source: NativeSource, cache: Path | None = None, *, indexes: Indexes | None = None) -> Path:
    """The archive or folder of *source*, fetched once into *cache*, by default the user's."""
    if isinstance(source, Folder):
        if not source.path.is_dir():
            raise BuildError(f"{source.path}: no such folder; expected that of source.path")
        return source.path
    if isinstance(source, Sdist) and source.file:
        return _unchanged(source, source.file)
    part, name = (Part.COMMITS, source.commit) if isinstance(source, Git) else (Part.SDISTS, source.sha256)
    cached = Cache(part, (cache or cache_folder()) / part)
    path = cached.folder / name
    if _is_whole(source, path):
        cached.mark(path)
        return path
    with cached.locked(name):
        if _is_whole(source, path):  # another process fetched it while this one waited
            return path
        with cached.replacing(name) as new:
            match source:
                case Git():
                    with at(source):
                        new.mkdir()
                        checkout(source.url, source.commit, folder=new)
                case Debian():
                    from vbuild.index_client.debian import fetch_debian

                    places = indexes or Indexes.configured()
                    fetch_debian(source.name, source.version, source.sha256, new, indexes=places)
                case Sdist():
                    from vbuild.index_client.packages import download

                    wanted = Wanted(source.name, source.version, source.sha256)
                    download(wanted, new, indexes=indexes or Indexes.configured())
    return path


def _unchanged(source: Sdist, file: Path) -> Path:
    if not file.is_file():
        raise BuildError(f"{file}: no such file; expected the sdist that source.sdist names")
    if not _is_whole(source, file):
        raise BuildError(f"{file}: changed; expected sha256 {source.sha256}: write the new one, or begin again")
    return file


def _is_whole(source: Sdist | Debian | Git, path: Path) -> bool:
    if isinstance(source, Git):
        return _is_clean(path, source.commit)
    return path.is_file() and sha256_of(path) == source.sha256


def unpacked(
    archive: Path,
    folder: Path,
    *,
    subdirectory: str = "",
    patches: Iterable[Path] = (),
    without: Path | None = None,
) -> Path:
    """The project folder of a fresh copy of *archive* in *folder*, as `copied` makes it."""
    project = copied(archive, folder, subdirectory=subdirectory, patches=patches, without=without)
    if not any((project / name).is_file() for name in PROJECT_FILES):
        where = f"subdirectory {subdirectory!r}" if subdirectory else "top folder"
        problem = f"{archive.name}: no project in its {where}; expected {' or '.join(PROJECT_FILES)}"
        raise BuildError(f"{problem}: name the folder that has it, source.subdirectory = '…'")
    return project


def copied(
    archive: Path,
    folder: Path,
    *,
    subdirectory: str = "",
    patches: Iterable[Path] = (),
    without: Path | None = None,
) -> Path:
    """The *subdirectory* of a fresh copy of *archive* in *folder*, with *patches* applied.

    *archive* is a folder, an archive of one, or a packed tree; the folder *without* in it is left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with at(archive.name):
        if archive.is_dir():
            tree = _copied(archive, folder / archive.name, without)
        else:
            tree = (unpack_tree if archive.suffix == TREE_SUFFIX else unpack)(archive, folder)
    for patch in patches:
        with at(patch.name):
            # exactly or not at all; in an enclosing checkout git would take the paths from its top, and skip them all
            _git(tree, "apply", "--whitespace=nowarn", str(patch.resolve()), ceiling=tree.parent)
    return tree / subdirectory


def source_digest(source: NativeSource, *, without: Path | None = None) -> str:
    """The hash that pins *source*, or one of all that a build takes: names, modes, contents, history."""
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
    total = hashlib.sha256("\0".join(_history(folder)).encode(errors="surrogateescape"))
    top = os.fspath(folder)
    for name in _names(folder, without):
        mode, content = _content(f"{top}/{name}")
        total.update(b"%s\0%o\0%d\0" % (os.fsencode(name), mode, len(content)))
        total.update(content)
    return total.hexdigest()


def _names(folder: Path, without: Path | None) -> Iterator[str]:
    """The paths below *folder* that `_copied` copies, in order; some may be gone."""
    if (names := _listed(folder, without)) is not None:
        yield from names
        return
    top = os.fspath(folder)
    left_out = _not_sources(without)
    for parent, folders, files in os.walk(top):
        leave = left_out(parent, [*folders, *files])
        folders[:] = sorted(name for name in folders if name not in leave)
        below = f"{parent}/"[len(top) + 1 :]
        yield from (below + name for name in sorted({*folders, *files} - leave))


def _content(path: str) -> tuple[int, bytes]:
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return mode, os.fsencode(Path(path).readlink())
        if not stat.S_ISREG(mode):
            return mode, b""
        return _settled(mode), read_file(path)
    except FileNotFoundError:
        return 0, b""
    except OSError as error:
        raise BuildError(f"{path}: cannot be read: {error.strerror}") from error


def _copied(source: Path, target: Path, without: Path | None) -> Path:
    """Copy what belongs to the project: of a git checkout what git would take, else all but caches."""
    names = _listed(source, without)
    if names is None:
        ignored = _not_sources(target.parent, without)
        try:
            shutil.copytree(source, target, symlinks=True, ignore=ignored, copy_function=_copy)
        except shutil.Error as error:
            raise BuildError(f"{source}: cannot be copied: {reason_of(error)}") from error
        return target
    target.mkdir()
    _clone_history(source, target)
    for name in names:
        file = source / name
        # tracked and deleted, or a submodule that is not there
        if file.is_symlink() or file.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            _copy(file, target / name)
    return target


def _copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a file or link, with its time and its mode in an archive, which backends hand on to wheels."""
    shutil.copy2(source, target, follow_symlinks=False)
    mode = os.lstat(target).st_mode
    if stat.S_ISREG(mode):
        Path(target).chmod(stat.S_IMODE(_settled(mode)))


def _settled(mode: int) -> int:
    return stat.S_IFREG | (0o755 if mode & stat.S_IXUSR else 0o644)


def _listed(folder: Path, without: Path | None) -> list[str] | None:
    if (names := _tracked(folder)) is None:
        return None
    left_out = (f"{os.path.relpath(without.resolve(), folder.resolve())}/",) if without else ()
    staged = {name for name in names if STAGE in name and any(part.startswith(STAGE) for part in name.split("/"))}
    return [name for name in names if name not in staged and not name.startswith(left_out)]


def _not_sources(*excluded: Path | None) -> Callable[[str, list[str]], set[str]]:
    left_out = {path.resolve() for path in excluded if path}

    def ignored(folder: str, names: list[str]) -> set[str]:
        here = Path(folder).resolve()
        more = {
            name
            for name in names
            if name.startswith(STAGE) or here / name in left_out or (here / name / "pyvenv.cfg").exists()
        }
        return more | _NOT_SOURCES.intersection(names)

    return ignored


TREE_SUFFIX = ".vbuild-tree"

_LEVEL = 3  # at which reading and the network are slower than compressing


def pack_tree(tree: Path, file: Path) -> None:
    try:
        with (
            file.open("wb") as raw,
            zstd.writing(raw, level=_LEVEL, threads=available_cores()) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            _add_tree(tar, tree, tree.name)
    except (OSError, tarfile.TarError) as error:
        raise BuildError(f"{tree.name}: cannot be packed: {error}") from error


def unpack_tree(file: Path, folder: Path) -> Path:
    try:
        with (
            open_file(file) as raw,
            zstd.reading(raw) as packed,
            tarfile.open(fileobj=packed, mode="r|") as tar,
        ):
            tar.extraction_filter = lambda member, _path: member
            tar.extractall(folder)  # noqa: S202 - see above
    except (OSError, tarfile.TarError, zstd.ZstdError, EOFError) as error:
        raise BuildError(f"cannot be unpacked: {error}") from error
    return next(path for path in folder.iterdir() if path.is_dir())


def _add_tree(tar: tarfile.TarFile, path: Path, name: str) -> None:
    if path.is_socket():  # which tarfile has no member for
        return
    info = tar.gettarinfo(path, name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if info.islnk():  # a second name of a file is a file of its own when it is unpacked
        info.type, info.size, info.linkname = tarfile.REGTYPE, path.stat().st_size, ""
    if info.isreg():
        with open_file(path) as file:
            tar.addfile(info, file)
    elif info.isdir() or info.issym():
        tar.addfile(info)
    if info.isdir():
        for child in sorted(os.listdir(path)):  # noqa: PTH208 - names, in an order of their bytes
            _add_tree(tar, path / child, f"{name}/{child}")
