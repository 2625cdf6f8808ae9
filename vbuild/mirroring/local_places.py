"""Where on this machine a mirror may take files from: below the places that the user names for uv, and nowhere else.

    pip's and uv's settings     index-url = file:///srv/simple, find-links = /srv/wheels, UV_FIND_LINKS
    requirements.txt            --find-links wheels, also in a file that it includes

uv follows a link of a server's page to a file of this machine, and states the hash of what it finds.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from vbuild.errors import RepackageError
from vbuild.files.reading import read_text
from vbuild.index_client.configuration import Indexes

_VARIABLES = ("UV_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
_OPTIONS = re.compile(r"^\s*(?:--find-links|-f|--index-url|-i|--extra-index-url)[\s=]+(\S+)", re.MULTILINE)
_INCLUDED = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)[ \t=]*(\S+)", re.MULTILINE)


def local_places(sources: Iterable[str]) -> tuple[Path, ...]:
    """The folders and files that pip's and uv's settings, and the files of requirements among *sources*, name."""
    indexes = Indexes.configured()
    named = [(text, Path()) for text in filter(None, (indexes.index_url, *indexes.extra_index_urls))]
    named += [(text, Path()) for text in indexes.find_links]
    for name in _VARIABLES:
        words = re.split(r"[\s,]+", os.environ.get(name, ""))
        named += [(word.rpartition("=")[2], Path()) for word in words if word]
    for source in sources:
        for path, text in requirement_files(Path(source)).items():
            named += [(found, folder) for found in _OPTIONS.findall(text) for folder in (Path(), path.parent)]
    return tuple(_paths(named))


def requirement_files(path: Path) -> dict[Path, str]:
    """The text of the file of requirements *path* and of those that it includes, by path; of those that are there.

    `OSError` for one that cannot be read, such as a FIFO, for which uv would wait for ever.
    """
    texts: dict[Path, str] = {}
    left = [path]
    while left:
        if (file := left.pop()) not in texts:
            # uv says what is not there, and knows which variables are in a path
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                texts[file] = read_text(file, errors="replace")
                left += [file.parent / name for name in _INCLUDED.findall(texts[file]) if "://" not in name]
    return texts


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
