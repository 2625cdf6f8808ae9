"""The commands by which pip and uv install from a layout's folder, or from the URL where it is served.

    https://example.org/whl/local    pip install --extra-index-url …/x86_64_v3/simple    uv pip install --index …
    the folder                       pip install --find-links x86_64_v3                  uv pip install --index ./…
      if others have such wheels     pip install --extra-index-url "file://$PWD/…"

Without a URL the commands work in the layout's folder, even if its path contains blanks: uv ends a URL at a blank, and
pip does not accept relative URLs.
"""

import re
from pathlib import PurePosixPath
from shlex import quote
from urllib.parse import urlsplit

from vbuild.errors import RepackageError

# what a consumer is told where other indexes may have wheels of that name and version
RIVALS = " (pip takes another index's where that is for a newer platform tag)"
_INDEX = "simple"
_SCHEMES = ("https", "http", "file")
# RFC 3986, section 2; nothing of it ends a string in TOML
_URL = re.compile(r"[A-Za-z0-9._~:/\[\]@!$&'()*+,;=%-]+")


def folder_url(text: str) -> str:
    """The URL *text* of a folder, without a slash at its end; `RepackageError` if it is none, or holds a secret.

    What is published says it to everyone.
    """
    try:
        parts = urlsplit(text)
        is_named = bool(parts.path if parts.scheme == "file" else parts.hostname)
        is_sound = parts.scheme in _SCHEMES and is_named and parts.port != 0  # above 65535 it raises
    except ValueError:
        is_sound = False
    if not (is_sound and _URL.fullmatch(text)):
        raise RepackageError(
            f"{text!r}: expected the URL of a folder, https, http or file, as in https://example.org/whl"
        )
    if parts.username is not None:
        raise RepackageError(f"{parts.hostname}: a URL with a login, which everyone could read; leave that out")
    return text.rstrip("/")


def place_below(url: str | None, place: PurePosixPath | str) -> str:
    """Where *place* of a layout's folder is, which is served at *url*; without one, relative to the folder."""
    return f"{url.rstrip('/') if url else '.'}/{place}"


def install_commands(wanted: str, *, url: str | None, folder: str = ".", has_rivals: bool = False) -> str:
    """The commands by which pip and uv install *wanted* from *folder*, where wheels are and their index, ``simple``.

    With *has_rivals* other indexes may have wheels of that name and version, too: of such that differ in nothing that
    pip looks at it takes that of the last index, and a folder's after those of all indexes.
    """
    if url:
        of_pip = f"--extra-index-url {_index(url, folder)}"
    elif has_rivals:
        of_pip = f'--extra-index-url "file://$PWD/{PurePosixPath(folder, _INDEX)}"'
    else:
        of_pip = f"--find-links {folder}"
    return f"pip install {of_pip} {wanted}\nuv pip install {uv_index_option(url, folder)} {wanted}"


def uv_index_option(url: str | None, folder: str = ".") -> str:
    """The option that tells uv of the index in *folder*, which it asks before others."""
    return f"--index {_index(url, folder)}"


def _index(url: str | None, folder: str) -> str:
    return quote(place_below(url, PurePosixPath(folder, _INDEX)))
