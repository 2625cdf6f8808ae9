"""Build environments: a Python and the packages that a backend asked for, made by uv.

Builds with the same Python and requirements share one environment: the first makes it and the others wait. Later runs
take it from the user's cache:

    requirements -> uv pip compile: versions and hashes -> environments/<Python>/<digest of these>/

Large files in it are hard links into uv's cache, all others copies: gigabytes of torch take no room twice. A file that
is not as it was made costs the environment, and uv its package.

`lock_for` resolves requirements for any machine, as a lock (PEP 751). Without builds no stranger's code runs.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name

from vbuild.build.advice import missing_header, missing_source
from vbuild.config.requirements import requirement_lines
from vbuild.errors import BuildError, at
from vbuild.files.cache import Cache, remove
from vbuild.hardware.machine import Machine, python_of, uv_platform
from vbuild.index_client.configuration import (
    UNBUILT,
    Indexes,
    clean_command,
    compile_command,
    install_command,
    unbuilt,
    venv_command,
)
from vbuild.process.run import run
from vbuild.process.threads import OncePerKey
from vbuild.recipe.lock import Lock, hashed
from vbuild.recipe.variables import for_installers, undisturbed
from vbuild.sbom.model import Material, MaterialRole, package_url
from vbuild.toolchain.interpreter import Interpreter

# with which uv installs other versions than asked for; a lock already heeds them
_INSTEAD = frozenset({"UV_OVERRIDE", "UV_CONSTRAINT", "UV_EXCLUDE"})

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_DIGITS = 12  # of a digest: paths of programs must stay short
_LARGE = 1 << 20  # bytes: what people edit is smaller
_STAMP = ".vbuild-environment"
_FILES = "vbuild-files.json"


class BuildEnvironment(Struct, frozen=True):
    python: Path
    scripts: Path

    @property
    def site(self) -> Path:
        sites = (self.scripts.parent / "lib").glob("python*/site-packages")
        return next(sites, self.scripts.parent)

    @property
    def packages(self) -> dict[str, str]:
        return {name: version for name, version, _ in _installed(self.site)}

    @property
    def materials(self) -> tuple[Material, ...]:
        file = self.scripts.parent / _FILES
        files = json.loads(file.read_bytes()) if file.is_file() else {}
        materials = []
        for project, version in self.packages.items():
            name, sha256 = files.get(f"{project}=={version}", (None, None))
            purl = package_url(project, version, file=name) if name else None
            materials.append(Material(MaterialRole.REQUIREMENT, project, version, purl, sha256))
        return tuple(materials)

    @property
    def cuda_headers(self) -> tuple[Path, ...]:
        return tuple(sorted(self.site.glob("nvidia/*/include")))

    def variables(self, before: Mapping[str, str]) -> dict[str, str]:
        return undisturbed(before) | {"PATH": os.pathsep.join([str(self.scripts), before.get("PATH", os.defpath)])}


class Environments:
    """The build environments of one run, in *folder*; *configuration* gives uv's variables.

    With *cache*, other runs share environments: no build may change them.
    """

    def __init__(
        self,
        folder: Path,
        configuration: Callable[[], Mapping[str, str]],
        *,
        logs: Path | None = None,
        asked: Collection[str] = (),
        lock: Lock | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._cache = cache if cache and _is_writable(cache) else None
        self.own = folder.absolute()
        # scripts name their Python by its path: a link may be gone tomorrow
        self.folder = self._cache.folder.resolve() if self._cache else self.own
        self._logs = (logs or folder).absolute()
        self._configuration = configuration
        self._asked = tuple(asked)
        self._lock = lock
        self._resolutions = OncePerKey[Path, tuple[str, ...]](keeps_errors=True)
        self._environments = OncePerKey[Path, BuildEnvironment](keeps_errors=True)

    def folder_of(self, interpreter: Interpreter) -> Path:
        """The folder of the environments of *interpreter*; their names do not depend on its path."""
        return self.folder / _digest([str(interpreter.path)])

    def having(self, requirements: Collection[str], interpreter: Interpreter) -> BuildEnvironment:
        """The environment of *interpreter* with *requirements*, made at the first call."""
        locked = self._lock.packages(requirements, interpreter.kind) if self._lock and requirements else None
        # with a lock, what hooks ask for later is in the first environment already
        wanted = self.folder_of(interpreter) / _digest(requirements if locked is None else locked)
        is_moving = any("@" in line for line in requirements)  # what is at a URL may change
        if self._cache is None or is_moving:
            own = self.own / wanted.relative_to(self.folder)
            return self._environments.get(own, lambda: self._make(own, requirements, interpreter, locked))
        pinned = self._resolutions.get(wanted, lambda: locked or self._resolved(wanted, requirements, interpreter))
        folder = self.folder_of(interpreter) / _digest(pinned)
        return self._environments.get(folder, lambda: self._cached(folder, requirements, interpreter, pinned))

    def settle(self) -> None:
        for folder in self._environments.keys() if self._cache else ():
            if changed := _changed(folder):
                self._give_up(folder, changed)

    def _cached(
        self, folder: Path, requirements: Collection[str], interpreter: Interpreter, pinned: Collection[str]
    ) -> BuildEnvironment:
        assert self._cache is not None  # noqa: S101 - for mypy
        with self._cache.locked(folder.name):
            changed = _changed(folder)
            if changed is None or changed:
                self._give_up(folder, changed or ())
                self._make(folder, requirements, interpreter, pinned)
                _set_apart(folder)
                stamp = {"folder": str(folder), "files": dict(_state(folder))}
                (folder / _STAMP).write_text(json.dumps(stamp), encoding="utf-8")
            self._cache.mark(folder)
        return BuildEnvironment(folder / "bin" / "python", folder / "bin")

    def _give_up(self, folder: Path, changed: Collection[str]) -> None:
        """Remove *folder*, and the packages of *changed* files from uv's cache, which shares these files."""
        for path in (folder / name for name in changed):
            with suppress(OSError):
                if path.stat().st_nlink > 1 and (project := _project_of(path)):
                    run(clean_command(project), log=self._log(folder), environment=self._variables())
        with suppress(OSError):
            remove(folder)

    def _resolved(self, folder: Path, requirements: Collection[str], interpreter: Interpreter) -> tuple[str, ...]:
        log = self._log(folder)
        with at("build environment"), _explained(log):
            return resolved_lines(requirements, interpreter, log=log, environment=self._variables())

    def _log(self, folder: Path) -> Path:
        return self._logs / f"environment-{folder.parent.name}-{folder.name}.log"

    def _variables(self) -> dict[str, str]:
        return {**for_installers(os.environ, self._asked), **self._configuration()}

    def _make(
        self,
        folder: Path,
        requirements: Collection[str],
        interpreter: Interpreter,
        locked: Collection[str] | None,
    ) -> BuildEnvironment:
        environment = BuildEnvironment(folder / "bin" / "python", folder / "bin")
        create = venv_command(interpreter.path, folder)
        # through links, a build would change uv's cache
        link_mode = f"--link-mode={'hardlink' if self._cache else 'copy'}"
        # what the build of a requirement without a wheel takes is in no lock
        builds = locked is None or not (self._lock and self._lock.is_binding)
        fill = install_command(environment.python, link_mode, builds=builds)
        if locked is None:
            fill += requirement_lines(sorted(requirements), BuildError).splitlines()
        else:
            file = folder.with_name(f"{folder.name}.txt")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in locked), encoding="utf-8")
            fill += ["--require-hashes", "--requirements", str(file)]
        log = self._log(folder)
        dropped = _INSTEAD if locked is not None else frozenset()
        variables = {name: text for name, text in self._variables().items() if name not in dropped}
        with at("build environment"):
            for command in (create, *([fill] if requirements else [])):
                with _explained(log):
                    run(command, log=log, environment=variables)
            lines = sorted(requirements) if locked is None else locked
            files = _files(lines, interpreter, environment, log=log, variables=variables) if requirements else {}
            (folder / _FILES).write_text(json.dumps(files), encoding="utf-8")
        log.unlink(missing_ok=True)  # another run, into the same folder, may have been here
        return environment


@contextmanager
def _explained(log: Path) -> Iterator[None]:
    try:
        yield
    except BuildError as error:
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        if advice := missing_header(text) or missing_source(text):
            raise BuildError(f"{error}\nA build requirement without a wheel is compiled: {advice}") from error
        raise


def resolved_lines(
    requirements: Collection[str],
    interpreter: Interpreter,
    *,
    log: Path,
    environment: Mapping[str, str],
    builds: bool = True,
) -> tuple[str, ...]:
    """*requirements*, resolved for *interpreter*, each as a line of a lock, with hashes.

    uv builds packages without a wheel to ask them, unless *builds* is false.
    """
    if not requirements:
        return ()
    options = ("--no-annotate", "--generate-hashes", *(() if builds else ("--no-build",)))
    text = _compiled(requirements, interpreter, *options, output="found.txt", log=log, environment=environment)
    lines = text.replace("\\\n", " ").splitlines()
    return tuple(hashed(" ".join(line.split())) for line in lines if line.strip())


def _compiled(
    requirements: Collection[str],
    interpreter: Interpreter,
    *options: str,
    output: str,
    log: Path,
    environment: Mapping[str, str],
) -> str:
    with tempfile.TemporaryDirectory(prefix="vbuild-requires-") as folder:
        wanted, result = Path(folder, "wanted.txt"), Path(folder, output)
        wanted.write_text(requirement_lines(sorted(requirements), BuildError), encoding="utf-8")
        own = ("--quiet", "--no-header", "--no-python-downloads")
        command = compile_command(interpreter.path, [wanted], result, *own, *options, builds=True)
        run(command, log=log, environment=environment, name="uv pip compile")
        log.unlink(missing_ok=True)
        return result.read_text(encoding="utf-8")


def _files(
    lines: Collection[str],
    interpreter: Interpreter,
    environment: BuildEnvironment,
    *,
    log: Path,
    variables: Mapping[str, str],
) -> dict[str, tuple[str | None, str]]:
    """The files that the packages of *lines* were installed from, with SHA-256, as far as tags tell."""
    try:
        options = ("--format", "pylock.toml")
        bare = [line.partition(" --hash=")[0] for line in lines]
        text = _compiled(bare, interpreter, *options, output="pylock.toml", log=log, environment=variables)
    except BuildError:  # all is installed: only this is not known
        log.unlink(missing_ok=True)
        return {}
    locked = _HASH.findall(" ".join(lines))
    tags = {name: tags for name, _, tags in _installed(environment.site)}
    by_package: dict[str, tuple[str | None, str]] = {}
    for package in tomllib.loads(text).get("packages", ()):
        files = package.get("wheels") or [package[key] for key in ("sdist", "archive") if key in package]
        names = [unquote(str(file.get("url") or file.get("path")).rpartition("/")[2]) for file in files]
        fitting = [
            (None if "archive" in package else name, file.get("hashes", {}).get("sha256"))
            for name, file in zip(names, files, strict=True)
            if "wheels" not in package or _tags(name) == tags.get(package["name"])
        ]
        if len(fitting) == 1 and (fitting[0][1] in locked if locked else fitting[0][1]):
            by_package[f"{package['name']}=={package.get('version')}"] = fitting[0]
    return by_package


def _tags(wheel: str) -> frozenset[str]:
    return frozenset(map(str, parse_tag("-".join(wheel.removesuffix(".whl").split("-")[-3:]))))


def _installed(site: Path) -> Iterator[tuple[str, str, frozenset[str]]]:
    for path in sorted(site.glob("*.dist-info")):
        name, _, version = path.name.removesuffix(".dist-info").partition("-")
        file = path / "WHEEL"
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        tags = frozenset(line.removeprefix("Tag:").strip() for line in lines if line.startswith("Tag:"))
        yield canonicalize_name(name), version, tags


def _is_writable(cache: Cache) -> bool:
    with suppress(OSError):
        cache.make_folder(cache.folder)
        return os.access(cache.folder, os.W_OK)
    return False


def _state(folder: Path) -> Iterator[tuple[str, list[int]]]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name != _STAMP:
                status = os.lstat(path := f"{parent}/{name}")
                yield os.path.relpath(path, folder), [status.st_size, status.st_mtime_ns]


def _changed(folder: Path) -> tuple[str, ...] | None:
    """The changed files in *folder*; None if it is not whole, or was moved."""
    try:
        stamp = json.loads((folder / _STAMP).read_bytes())
        recorded, there = stamp["files"], dict(_state(folder))
    except (OSError, ValueError, KeyError):
        return None
    if stamp["folder"] != str(folder) or _FILES not in recorded:
        return None
    # new files are a package's own cache, as Python's is; another build may use it
    return tuple(path for path, state in recorded.items() if there.get(path) != state)


def _set_apart(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            status = path.lstat()
            if status.st_nlink > 1 and status.st_size < _LARGE:
                copy = path.with_name(f".{path.name}.vbuild")
                shutil.copy2(path, copy)
                copy.replace(path)


def _project_of(file: Path) -> str | None:
    for site in file.parents:
        for record in site.glob("*.dist-info/RECORD"):
            if f"{file.relative_to(site).as_posix()}," in record.read_text(encoding="utf-8", errors="replace"):
                return record.parent.name.partition("-")[0]
        if site.name == "site-packages":
            return None
    return None


def own_environment(interpreter: Interpreter) -> BuildEnvironment:
    return BuildEnvironment(interpreter.path, interpreter.scripts)


def _digest(lines: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:_DIGITS]


def lock_for(machine: Machine, files: Iterable[Path], stage: Path, *, builds: bool) -> Path:
    """The lock of the requirements in *files* for *machine*, in the folder *stage*.

    `BuildError` if nothing fits, or would have to be built without *builds*.
    """
    lock, log = stage / "pylock.toml", stage / "log"
    options = ["--quiet", "--no-header", "--format=pylock.toml", "--no-python-downloads"]
    options += ["--python-version", python_of(machine), "--python-platform", uv_platform(machine)]
    # by default uv runs the Python of a .venv in the working folder, which may be a stranger's
    command = compile_command(sys.executable, files, lock, *options, builds=builds)
    run_uv(command, log, name="uv pip compile")
    return lock


def run_uv(command: Iterable[str], log: Path, *, name: str) -> None:
    environment = {**for_installers(os.environ, ()), **Indexes.configured().environment()}
    try:
        run([*command], log=log, environment=environment, name=name, is_kept=False)
    except BuildError as error:
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        raise BuildError(f"{project}: {UNBUILT}" if (project := unbuilt(text)) else str(error)) from error
