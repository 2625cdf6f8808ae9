"""What a machine installs: the files that uv resolves requirements to, or that a lock names.

    requirements.txt, NAME==VERSION -> uv pip compile for its Python and platform -> pylock       (nothing is built)
    uv.lock                         -> uv export, of the project beside it        -> pylock
    pylock.toml                                                                   -> pylock
    pylock -> what its markers and the machine's tags select, a wheel or else the sdist

uv follows a link of a server's page to a file of this machine, and states the hash of what it finds. So files of this
machine are taken only from below the places that the user names for uv:

    pip's and uv's settings     index-url = file:///srv/simple, find-links = /srv/wheels, UV_FIND_LINKS
    requirements.txt            --find-links wheels, also in a file that it includes

https://packaging.python.org/en/latest/specifications/pylock-toml/ (PEP 751)
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.markers import Environment, UndefinedComparison, UndefinedEnvironmentName
from packaging.pylock import (
    PackageSdist,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockUnsupportedVersionError,
    PylockValidationError,
    is_valid_pylock_path,
)
from packaging.tags import parse_tag

from vbuild.build.environment import lock_for, run_uv
from vbuild.config.requirements import is_path, read_requirement, requirement_lines
from vbuild.errors import BuildError, RecipeError, RepackageError, at, reason_of
from vbuild.files.reading import open_file, read_text
from vbuild.hardware.machine import Machine, python_of, uv_platform
from vbuild.index_client.configuration import Indexes, export_command
from vbuild.mirroring.model import FleetMachine, Original, check_name

_UV_LOCK = "uv.lock"
_REQUIREMENTS = re.compile(r".*\.(txt|in)", re.IGNORECASE)
# an option at the start of a line, and its value up to a comment
_OPTION = re.compile(r"\s*(?P<option>-[^\s=]*)[\s=]*(?P<value>.*?)(?:\s+#.*)?\s*")
_INCLUDES = frozenset({"-r", "--requirement", "-c", "--constraint"})
_HARMLESS = frozenset(
    {
        *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--trusted-host"),
        *("--only-binary", "--prefer-binary", "--pre", "--hash", "--require-hashes"),
    }
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PROJECT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def resolved(
    sources: Sequence[str], machine: FleetMachine, stage: Path, *, builds: bool = False
) -> tuple[Original, ...]:
    """The files that *sources*, files or requirements, resolve to on *machine*, by project; *stage* is an empty folder.

    What has no wheel is built to learn what it requires if *builds*, and else refused.
    """
    files: dict[str, Original] = {}
    for source, pylock, check in _pylocks(sources, machine.machine, stage, builds=builds):
        with at(source):
            for original in _selected(pylock, Path(source), machine):
                with at(f"{machine.name}: {original.project}"):
                    check(original.url)
                if files.setdefault(original.project, original) != original:
                    two = f"{files[original.project].file} and {original.file}"
                    raise RepackageError(f"{machine.name}: {two}; expected one of them, as an environment has")
    return tuple(files[project] for project in sorted(files))


def _pylocks(
    sources: Sequence[str], machine: Machine, stage: Path, *, builds: bool
) -> Iterator[tuple[str, Pylock, Callable[[str], None]]]:
    """The locks that *sources* are or resolve to on *machine*, each with its path, and what refuses URLs in it."""
    locks = [source for source in sources if is_valid_pylock_path(Path(source))]
    projects = [source for source in sources if Path(source).name == _UV_LOCK]
    others = [source for source in sources if source not in {*locks, *projects}]
    for source in locks:
        yield source, _read(Path(source)), _taken
    for number, source in enumerate(projects):
        try:  # uv would wait for ever for a FIFO
            open_file(source).close()
        except OSError as error:
            raise RecipeError(f"{source}: cannot be read: {error.strerror}") from error
        exported = stage / f"pylock.exported-{number}.toml"
        run_uv(export_command(Path(source).absolute().parent, exported), stage / "log", name="uv export")
        # paths in it are relative to the project
        yield source, _read(exported), _taken
    if others:
        files = [Path(source).absolute() for source in others if _is_file(source)]
        lines = [source for source in others if not _is_file(source)]
        wanted = stage / "wanted.txt"
        wanted.write_text(requirement_lines(lines, RecipeError), encoding="utf-8")
        for file in () if builds else files:
            _check_options(file)
        lock = lock_for(machine, [wanted, *files], stage, builds=builds)
        yield str(lock), _read(lock), partial(check_local, places=local_places(others))


def _taken(_url: str) -> None:
    """A lock of the user's may name any file."""


def _is_file(source: str) -> bool:
    """Whether *source* is a file of requirements, or else a requirement; `RecipeError` if it is neither."""
    path = Path(source)
    if not path.exists() or path.is_dir():
        if is_path(source) or read_requirement(source) is None:
            fault = "no such file, and no requirement"
            raise RecipeError(f"{source}: {fault}; expected requirements.txt, pylock.toml, uv.lock, or torch==2.9.1")
        return False
    if path.name == "pyproject.toml":
        raise RecipeError(f"{source}: run `uv lock` there, and name its uv.lock")
    if not _REQUIREMENTS.fullmatch(path.name):
        raise RecipeError(f"{source}: expected requirements.txt, pylock.toml, uv.lock, or a requirement")
    try:
        requirement_files(path)
    except OSError as error:
        raise RecipeError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return True


def _check_options(file: Path, including: frozenset[Path] = frozenset()) -> None:
    """Refuse options in *file*, and in what it includes, that could build something even with --no-build.

    uv builds an editable folder to learn its name, and what --no-binary names.
    """
    try:
        lines = read_text(file).removeprefix("\ufeff").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: cannot be read: {reason_of(error)}") from error
    for number, line in enumerate(lines, 1):
        match = _OPTION.fullmatch(line)
        if match is None:
            continue
        with at(f"{file}, line {number}"):
            option, value = match["option"], match["value"].strip("\"'")
            if option not in {*_HARMLESS, *_INCLUDES}:
                fault = "may build something, which runs its code"
                raise RecipeError(f"{option}: {fault}; expected a file without it, or --allow-builds")
            if option in _INCLUDES and "://" in value:
                raise RecipeError(f"{option} {value}: expected a file of this machine, or --allow-builds")
            if option in _INCLUDES and (included := (file.parent / value).resolve()) not in including:
                _check_options(included, including | {file})


def _read(path: Path) -> Pylock:
    try:
        with open_file(path) as file:
            return Pylock.from_dict(tomllib.load(file))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {reason_of(error)}") from error
    except (ValueError, RecursionError, PylockValidationError, PylockUnsupportedVersionError) as error:
        raise RecipeError(f"{path}: no lock as PEP 751 has it: {error or type(error).__name__}") from error


def _selected(pylock: Pylock, lock: Path, machine: FleetMachine) -> Iterator[Original]:
    try:
        tags = [tag for text in machine.machine.tags for tag in parse_tag(text)]
        for package, file in pylock.select(environment=_environment(machine.machine), tags=tags):
            subject = f"{machine.name}: {package.name}"
            if package.version is None or not isinstance(file, PackageWheel | PackageSdist):
                raise RepackageError(
                    f"{subject}: comes from elsewhere than an index; expected a wheel or an sdist there"
                )
            sha256 = file.hashes.get("sha256", "").lower()
            if not _SHA256.fullmatch(sha256) or not _PROJECT.fullmatch(package.name):
                raise RepackageError(f"{subject}: {file.filename}: no SHA-256 is stated; expected one to hold it to")
            url = file.url or ""
            if not url:
                url = (lock.absolute().parent / (file.path or "")).as_uri()
            elif urlsplit(url).scheme not in {"https", "http", "file"}:
                raise RepackageError(f"{subject}: {url}: expected a URL of http or https")
            with at(subject):
                check_name(package.name, file.filename)
            yield Original(
                project=package.name,
                version=str(package.version),
                file=file.filename,
                url=url,
                sha256=sha256,
                size=file.size or 0,
                uploaded=_time(file.upload_time),
            )
    except (PylockSelectError, PylockValidationError) as error:
        raise BuildError(f"{machine.name}: {error}") from error
    except (UndefinedComparison, UndefinedEnvironmentName) as error:
        raise RecipeError(f"a marker that cannot be evaluated: {error}; expected one as PEP 508 has it") from error


def _time(uploaded: datetime | None) -> str | None:
    # a time near the first or the last one that there is has no equal in UTC
    with suppress(OverflowError):
        return uploaded.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if uploaded else None
    return None


def _environment(machine: Machine) -> Environment:
    return Environment(
        implementation_name="cpython",
        implementation_version=machine.python,
        os_name="posix",
        platform_machine=uv_platform(machine).partition("-")[0],
        platform_python_implementation="CPython",
        platform_release="",
        platform_system="Linux",
        platform_version="",
        python_full_version=machine.python,
        python_version=python_of(machine),
        sys_platform="linux",
    )


_VARIABLES = ("UV_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
_OPTIONS = re.compile(r"^\s*(?:--find-links|-f|--index-url|-i|--extra-index-url)[\s=]+(\S+)", re.MULTILINE)
_INCLUDED = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)[ \t=]*(\S+)", re.MULTILINE)


def local_places(sources: Iterable[str]) -> tuple[Path, ...]:
    """The folders and files that pip's and uv's settings, and the files of requirements among *sources*, name."""
    indexes = Indexes.configured()
    # each with the folder to which a path is relative
    texts = [(text, Path()) for text in (indexes.index_url, *indexes.extra_index_urls, *indexes.find_links) if text]
    for name in _VARIABLES:
        words = re.split(r"[\s,]+", os.environ.get(name, ""))
        texts += [(word.rpartition("=")[2], Path()) for word in words if word]
    for source in sources:
        for path, text in requirement_files(Path(source)).items():
            texts += [(option, folder) for option in _OPTIONS.findall(text) for folder in (Path(), path.parent)]
    return tuple(
        path_of(text) if text.lower().startswith("file:") else (folder / text).absolute()
        for text, folder in texts
        if "://" not in text or text.lower().startswith("file:")
    )


def requirement_files(path: Path) -> dict[Path, str]:
    """The text of the file of requirements *path* and of those that it includes, by path, without missing ones.

    `OSError` for one that cannot be read, such as a FIFO, for which uv would wait for ever.
    """
    texts: dict[Path, str] = {}
    unread = [path]
    while unread:
        if (file := unread.pop()) not in texts:
            # uv says what is not there, and knows which variables are in a path
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                texts[file] = read_text(file, errors="replace")
                unread += [file.parent / name for name in _INCLUDED.findall(texts[file]) if "://" not in name]
    return texts


def path_of(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))


def check_local(url: str, places: Iterable[Path]) -> None:
    """`RepackageError` if *url* is of a file of this machine that is in none of *places*."""
    if url.lower().startswith("file:"):
        file = Path(os.path.normpath(path_of(url)))
        if not any(file.is_relative_to(os.path.normpath(folder)) for folder in places):
            fault = "a file of this machine, which the page of an index leads to"
            raise RepackageError(f"{file}: {fault}; expected http or https, or its folder among pip's find-links")
