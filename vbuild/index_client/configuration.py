"""Where packages come from: pip's own configuration, read once and handed to everything that fetches.

    pip.conf, PIP_* -> ``pip config list`` -> Indexes -> the sdist's download, uv's environment variables

As in pip, ``[install]`` overrides ``[global]`` and the environment overrides both; a later value replaces the
earlier one, also where it is a list. https://pip.pypa.io/en/stable/topics/configuration/
"""

import ast
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from msgspec import Struct

from vbuild.errors import FetchError

_LINE = re.compile(r"(?P<section>global|install|:env:)\.(?P<key>[a-z][a-z0-9-]*)=(?P<value>['\"].*)")
_SECTIONS = ("global", "install", ":env:")
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})

_FILE = re.compile(r"^For variant '\w+', will try loading '(.*)'$", re.MULTILINE)

# what pip said in this process: it takes most of a second to say it
_LISTINGS: dict[tuple[object, ...], tuple[str, tuple[tuple[int, int] | None, ...]]] = {}
_ASKING = threading.Lock()

# either would keep the settings, or all there is to read, from being printed
_NOT_PASSED = frozenset({"PIP_QUIET", "PIP_LOG"})


class Indexes(Struct, frozen=True):
    """Package indexes and how to reach them; no *index_url* stands for the tools' own default."""

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
        """The configuration of this interpreter's pip, run with *env*; `FetchError` if pip refuses it.

        pip is asked once, and again when one of its files has changed.
        """
        env = {name: text for name, text in (os.environ if env is None else env).items() if name not in _NOT_PASSED}
        key = (str(Path.cwd()), *sorted(env.items()))
        with _ASKING:
            listing, states = _LISTINGS.get(key, ("", ()))
            if not listing or _states(listing) != states:
                listing = _listing(env)
                _LISTINGS[key] = (listing, _states(listing))
        return cls.parse(listing)

    @classmethod
    def parse(cls, listing: str) -> Self:
        """The indexes in what ``pip config list`` printed; settings of other matters are passed over."""
        settings = _settings(listing)
        return cls(
            index_url=_located(settings["index-url"]) if settings.get("index-url") else None,
            extra_index_urls=tuple(_located(text) for text in settings.get("extra-index-url", "").split()),
            find_links=tuple(_located(text) for text in settings.get("find-links", "").split()),
            no_index=settings.get("no-index", "").lower() in _TRUE,
            trusted_hosts=tuple(settings.get("trusted-host", "").split()),
            cert=settings.get("cert") or None,
            client_cert=settings.get("client-cert") or None,
            proxy=settings.get("proxy") or None,
            timeout=_seconds(settings.get("timeout") or settings.get("default-timeout") or "15"),
            keyring=settings.get("keyring-provider") or None,
        )

    def environment(self) -> dict[str, str]:
        """The same places as environment variables for uv, to be put over those that are there.

        Several indexes are one to pip, the best version of all counts; uv needs to be told.
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


def _listing(env: Mapping[str, str]) -> str:
    """What ``pip config list`` says, its files and their settings."""
    command = [sys.executable, "-P", "-m", "pip", "config", "list", "-vvv"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise FetchError(f"pip config list: exit status {ran.returncode}: {last}")
    return ran.stdout


def _states(listing: str) -> tuple[tuple[int, int] | None, ...]:
    """Size and time of each file that pip looked for, or None if it is not there."""
    return tuple(
        (found.st_size, found.st_mtime_ns) if (found := _stat(file)) else None for file in _FILE.findall(listing)
    )


def _stat(file: str) -> os.stat_result | None:
    with suppress(OSError):
        return Path(file).stat()
    return None


def _settings(listing: str) -> dict[str, str]:
    sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        if match := _LINE.fullmatch(line):
            sections[match["section"]][match["key"]] = _literal(line, match["value"])
    return {key: text for section in _SECTIONS for key, text in sections[section].items()}


def _literal(line: str, text: str) -> str:
    """The value that pip printed with ``%r``."""
    try:
        return str(ast.literal_eval(text)).strip()
    except (ValueError, SyntaxError) as error:
        raise FetchError(f"pip config list: {line!r} is not a setting that can be read") from error


def _located(text: str) -> str:
    """A URL as it is, a path as a URL: tools do not agree on where relative paths start."""
    try:
        return text if "://" in text else Path(text).expanduser().absolute().as_uri()
    except RuntimeError as error:  # no such user after ~
        raise FetchError(f"pip config list: {text!r} is not a path: {error}") from error


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise FetchError(f"pip config list: timeout {text!r} is not a number of seconds")
