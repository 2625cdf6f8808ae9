"""Where on this machine a mirror may take files from: below the places that the user names for uv, and nowhere else.

    pip's and uv's settings     index-url = file:///srv/simple, find-links = /srv/wheels, UV_FIND_LINKS
    requirements.txt            --find-links wheels

uv follows a link of a server's page to a file of this machine, and states the hash of what it finds.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from vbuild.errors import RepackageError
from vbuild.index_client.configuration import Indexes

_VARIABLES = ("UV_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
_OPTIONS = re.compile(r"^\s*(?:--find-links|-f|--index-url|-i|--extra-index-url)[\s=]+(\S+)", re.MULTILINE)


def local_places(sources: Iterable[str]) -> tuple[Path, ...]:
    """The folders and files that pip's and uv's settings, and the files of requirements among *sources*, name."""
    indexes = Indexes.configured()
    named = [(text, Path()) for text in filter(None, (indexes.index_url, *indexes.extra_index_urls))]
    named += [(text, Path()) for text in indexes.find_links]
    for name in _VARIABLES:
        words = re.split(r"[\s,]+", os.environ.get(name, ""))
        named += [(word.rpartition("=")[2], Path()) for word in words if word]
    for source in map(Path, sources):
        if source.is_file():
            text = source.read_text(encoding="utf-8", errors="replace")
            named += [(found, folder) for found in _OPTIONS.findall(text) for folder in (Path(), source.parent)]
    return tuple(_paths(named))


def _paths(named: Iterable[tuple[str, Path]]) -> Iterator[Path]:
    for text, folder in named:
        if text.lower().startswith("file:"):
            yield path_of(text)
        elif "://" not in text:
            yield (folder / text).absolute()


def path_of(url: str) -> Path:
    """The path in *url*, which begins with file:."""
    return Path(url2pathname(urlsplit(url).path))


def check_local(url: str, places: Iterable[Path]) -> None:
    """`RepackageError` if *url* is of a file of this machine, and that is in none of *places*."""
    if url.lower().startswith("file:"):
        file = Path(os.path.normpath(path_of(url)))
        if not any(file.is_relative_to(os.path.normpath(place)) for place in places):
            what = "a file of this machine, which the page of an index leads to"
            raise RepackageError(f"{file}: {what}; expected http or https, or its folder among pip's find-links")
