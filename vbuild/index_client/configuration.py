"""Where packages come from: pip's own configuration, read once and passed to everything that fetches.

    pip.conf, PIP_* -> ``pip config list`` -> Indexes -> the sdist's download, uv's environment variables

As in pip, ``[install]`` overrides ``[global]`` and the environment overrides both; a later value replaces the
earlier one, also if it is a list. https://pip.pypa.io/en/stable/topics/configuration/

The commands of uv with which vbuild makes environments and finds Pythons do not read the user's uv.toml.
"""

import ast
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from msgspec import Struct, convert
from msgspec.structs import replace
from uv import find_uv_bin

from vbuild.errors import FetchError, VbuildError
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import key_of
from vbuild.process.python import with_own_packages

_LINE = re.compile(r"(?P<section>global|install|:env:)\.(?P<key>[a-z][a-z0-9-]*)=(?P<value>['\"].*)")
_SECTIONS = ("global", "install", ":env:")
# the settings that are read
_KEYS = frozenset(
    ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "client-cert", "proxy")
) | {"timeout", "default-timeout", "keyring-provider"}
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})

_FILE = re.compile(r"^For variant '\w+', will try loading '(.*)'$", re.MULTILINE)

# how uv says that a project would have to be built
_UNBUILT = re.compile(
    r"Wheels are required for `([^`]+)` because building|Building source distributions(?: for `([^`]+)`)? is disabled"
)

UNBUILT = "no wheel that fits, and building it would run its code; expected a wheel, or --allow-builds"
"""What is wrong with a project that is not built."""

_States = tuple[tuple[int, int] | None, ...]

# what pip printed in this process: it takes a tenth of a second, and more where others work
_LISTINGS: dict[tuple[object, ...], tuple[str, _States]] = {}
_ASKING = threading.Lock()

_UV_OPTIONS = ("--no-config", "--no-progress")

# what changes which settings pip finds begins with one of these
_READ = ("PIP_", "XDG_", "HOME", "PYTHON", "VIRTUAL_ENV")
# with either, pip would not print the settings
_NOT_PASSED = frozenset({"PIP_QUIET", "PIP_LOG"})


class Indexes(Struct, frozen=True):
    """Package indexes and how to reach them; without *index_url*, tools use their own default."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = 15.0
    keyring: str | None = None

    @classmethod
    def configured(cls, env: Mapping[str, str] | None = None) -> Self:
        """The configuration of this interpreter's pip, run with *env*; raises `FetchError` if pip refuses it.

        pip runs once for each folder and environment that it may read, and again after one of its files has changed.
        Later processes find its output in the user's cache, unless it has URLs, which may have passwords.
        """
        env = {name: text for name, text in (os.environ if env is None else env).items() if name not in _NOT_PASSED}
        key = (str(Path.cwd()), *sorted(item for item in env.items() if item[0].startswith(_READ)))
        with _ASKING:
            listing, states = _LISTINGS.get(key) or _stored_listing(key)
            if not listing or _states(listing) != states:
                command = with_own_packages("-m", "pip", "config", "list", "-vvv")
                ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
                if ran.returncode:
                    last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
                    raise FetchError(f"pip config list: exit status {ran.returncode}: {last}")
                listing = ran.stdout
                _store_listing(key, listing)
            _LISTINGS[key] = (listing, _states(listing))
        return cls.parse(listing)

    @classmethod
    def parse(cls, listing: str) -> Self:
        """The indexes in what ``pip config list`` printed; other settings are ignored."""
        sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
        for line in listing.splitlines():
            if match := _LINE.fullmatch(line):
                try:
                    text = str(ast.literal_eval(match["value"])).strip()  # pip printed it with %r
                except (ValueError, SyntaxError) as error:
                    raise FetchError(f"pip config list: {line!r} is not a setting that can be read") from error
                sections[match["section"]][match["key"]] = text
        settings = {key: text for section in _SECTIONS for key, text in sections[section].items()}
        timeout = settings.get("timeout") or settings.get("default-timeout") or "15"
        try:
            seconds = float(timeout)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise FetchError(f"pip config list: timeout {timeout!r} is not a number of seconds")
        return cls(
            index_url=_located(settings["index-url"]) if settings.get("index-url") else None,
            extra_index_urls=tuple(_located(text) for text in settings.get("extra-index-url", "").split()),
            find_links=tuple(_located(text) for text in settings.get("find-links", "").split()),
            no_index=settings.get("no-index", "").lower() in _TRUE,
            trusted_hosts=tuple(settings.get("trusted-host", "").split()),
            cert=settings.get("cert") or None,
            client_cert=settings.get("client-cert") or None,
            proxy=settings.get("proxy") or None,
            timeout=seconds,
            keyring=settings.get("keyring-provider") or None,
        )

    def with_place(self, place: str | os.PathLike[str]) -> Self:
        text = _located(os.fspath(place))
        if text.startswith("file:"):
            return replace(self, find_links=(*self.find_links, text))
        return replace(self, extra_index_urls=(*self.extra_index_urls, text))

    def environment(self) -> dict[str, str]:
        """The same places as environment variables for uv, to be added to those of the process.

        pip takes the best version from all indexes; uv does so only with unsafe-best-match.
        """
        env = {
            "UV_DEFAULT_INDEX": self.index_url or "",
            "UV_INDEX": " ".join(self.extra_index_urls),
            "UV_INDEX_STRATEGY": "unsafe-best-match" if self.extra_index_urls else "",
            "UV_FIND_LINKS": ",".join(link.replace(",", "%2C") for link in self.find_links),
            "UV_NO_INDEX": "1" if self.no_index else "",
            "UV_INSECURE_HOST": " ".join(self.trusted_hosts),
            "UV_HTTP_TIMEOUT": str(round(self.timeout)),
            "UV_KEYRING_PROVIDER": self.keyring if self.keyring == "subprocess" else "",
            "SSL_CERT_FILE": self.cert or "",
            "SSL_CLIENT_CERT": self.client_cert or "",
            "ALL_PROXY": self.proxy or "",
        }
        return {name: text for name, text in env.items() if text}


def _stored_listing(key: tuple[object, ...]) -> tuple[str, _States]:
    with suppress(VbuildError, ValueError, TypeError):
        return convert(json.loads(Cache.of(Part.PROBES).text(_name(key)) or ""), tuple[str, _States])
    return "", ()


def _store_listing(key: tuple[object, ...], listing: str) -> None:
    """Keep the settings that are read for other processes, unless they have a secret."""
    lines = ((line, _LINE.fullmatch(line)) for line in listing.splitlines())
    text = "\n".join(line for line, match in lines if _FILE.fullmatch(line) or (match and match["key"] in _KEYS))
    if "://" not in text and "@" not in text:
        with suppress(VbuildError, OSError):
            Cache.of(Part.PROBES).keep_text(_name(key), json.dumps([text, _states(text)]))


def _name(key: tuple[object, ...]) -> str:
    """The name under which the listing for *key* is kept: of this Python's pip, as it is now."""
    spec = find_spec("pip")
    status = Path(spec.origin).stat() if spec and spec.origin else None
    pip = [spec.origin, status.st_size, status.st_mtime_ns] if spec and status else []
    return f"{key_of(['pip config list', sys.executable, pip, key])}.json"


def _states(listing: str) -> _States:
    """Size and time of each file that pip looked for, None if missing."""
    states: list[tuple[int, int] | None] = []
    for file in _FILE.findall(listing):
        state = None
        with suppress(OSError):
            status = Path(file).stat()
            state = status.st_size, status.st_mtime_ns
        states.append(state)
    return tuple(states)


def _located(text: str) -> str:
    """A URL as it is, a path as a URL, because tools do not agree on where relative paths start."""
    try:
        return text if "://" in text else Path(text).expanduser().absolute().as_uri()
    except RuntimeError as error:  # no such user after ~
        raise FetchError(f"pip config list: {text!r} is not a path: {error}") from error


def venv_command(python: Path | str, folder: Path, *options: str) -> list[str]:
    fixed = ("--no-project", "--no-python-downloads", "--python", str(python))
    return [find_uv_bin(), "venv", *_UV_OPTIONS, *fixed, *options, str(folder)]


def install_command(python: Path | str, *words: str, builds: bool) -> list[str]:
    """What has no wheel is built if *builds*, which runs its code; else the command fails, and `unbuilt` says why."""
    return [find_uv_bin(), "pip", "install", *_UV_OPTIONS, *_building(builds), "--python", str(python), *words]


def compile_command(python: Path | str, files: Iterable[Path], output: Path, *options: str, builds: bool) -> list[str]:
    """Some sdists say only when they are built what they require: *builds* is as for `install_command`."""
    paths = ("--python", str(python), "--output-file", str(output), *map(str, files))
    return [find_uv_bin(), "pip", "compile", *_UV_OPTIONS, *_building(builds), *options, *paths]


def _building(builds: bool) -> tuple[str, ...]:  # noqa: FBT001 - of two callers
    return () if builds else ("--no-build",)


def unbuilt(output: str) -> str | None:
    """The project that a command without builds would have to build, by its *output*; None if it failed otherwise."""
    match = _UNBUILT.search(output)
    return match and next(filter(None, match.groups()), "a requirement")


def export_command(project: Path, output: Path) -> list[str]:
    """The command that writes what the uv.lock in the folder *project* locks to *output*, without the project."""
    words = ("--frozen", "--no-default-groups", "--no-emit-project", "--quiet", "--no-header", "--no-python-downloads")
    paths = ("--project", str(project), "--output-file", str(output))
    return [find_uv_bin(), "export", *_UV_OPTIONS, *words, "--format", "pylock.toml", *paths]


def clean_command(project: str) -> list[str]:
    return [find_uv_bin(), "cache", "clean", *_UV_OPTIONS, project]


def find_python(version: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Ask uv for a process with *environment* where the Python of *version* is; stderr says why there is none.

    pyenv's installed ones count, whichever its shims lead to. A .venv in the working folder does not: uv would run its
    Python, which may be a stranger's.
    """
    version = version if Path(version).name == version else str(Path(version).absolute())
    path = environment.get("PATH", os.defpath).split(os.pathsep)
    root = Path(environment.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = sorted(root.glob("versions/*/bin"), key=lambda folder: _numbers(folder.parent.name), reverse=True)
    # a shim of a version that is not chosen only says so, and ends the search
    beyond = [*(folder for folder in path if Path(folder) != root / "shims"), *map(str, installed)]
    command = [find_uv_bin(), "python", "find", "--no-project", "--no-config", "--no-python-downloads", version]
    # uv would take the environment .venv of the current folder, and pyenv the version that a file there says
    run = partial(subprocess.run, command, cwd=os.sep, capture_output=True, text=True, check=False)
    ran = run(env=environment)
    if ran.returncode and installed:
        again = run(env={**environment, "PATH": os.pathsep.join(beyond)})
        return ran if again.returncode else again
    return ran


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))
