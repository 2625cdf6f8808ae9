"""Check a static simple index on disk: compare everything it lists with the files.

    simple/index.json, index.html              the projects that have a folder
    simple/{project}/index.json, index.html    URL, SHA-256, size, Requires-Python, METADATA's SHA-256 of every file
    wheels next to the index                   = those in it

https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vbuild.errors import VbuildError
from vbuild.files.hashing import sha256_of
from vbuild.publishing.lint.model import PublishRule
from vbuild.publishing.releases import OfferedWheel
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.simple_index import IndexedFile, project_link

INDEX = "simple"

_AGAIN = "publish the wheels again into an empty folder: vbuild publish"
_LISTED = (".whl", "-variants.json")
_LINK = re.compile(r"<a [^>]*>[^<]*</a>")


def wheels_in(folder: Path, found: list[OfferedWheel]) -> Iterator[Finding]:
    """The wheels in *folder*, by file name, put into *found*; what cannot be read is a problem."""
    for path in sorted(folder.glob("*.whl")):
        try:
            found.append(OfferedWheel.of(path))
        except VbuildError as error:
            what = str(error).removeprefix(f"{path}: ").removeprefix(f"{path.name}: ")
            yield Finding(Severity.ERROR, PublishRule.ARCHIVE, (path.name,), what, _AGAIN)


def index_problems(folder: Path) -> Iterator[Finding]:
    """What is wrong with the index in *folder*/simple of the wheels and variants.json files in *folder*."""
    simple = folder / INDEX
    if not simple.is_dir():
        yield _wrong(simple, "there is no index here")
        return
    beside = {path.name: path for path in folder.iterdir() if _is_listed(path)}
    projects = sorted(path for path in simple.iterdir() if path.is_dir())
    yield from _root(simple, {path.name for path in projects})
    for project in projects:
        yield from _project(project, beside)
    there = {path.name for project in projects for path in project.iterdir()}
    yield from (_wrong(beside[name], f"is not in {INDEX}") for name in sorted(beside.keys() - there))


def _is_listed(path: Path) -> bool:
    return path.name.endswith(_LISTED) and path.is_file()


def _root(simple: Path, projects: set[str]) -> Iterator[Finding]:
    page = simple / "index.json"
    listed = {str(_within(project, "name")) for project in _rows(page, "projects")}
    if listed != projects:
        names = ", ".join(sorted(listed ^ projects))
        yield _wrong(page, f"lists other projects than have a folder: {names}")
    yield from _links(simple / "index.html", {project_link(project) for project in listed})


def _project(folder: Path, beside: dict[str, Path]) -> Iterator[Finding]:
    page = folder / "index.json"
    files = {str(_within(file, "filename")): file for file in _rows(page, "files")}
    there = {path.name for path in folder.iterdir() if _is_listed(path)}
    for name in sorted(files.keys() ^ there):
        what = f"lists {name}, which is not there" if name in files else f"does not list {name}"
        yield _wrong(page, what)
    for name in sorted(files.keys() & there):
        yield from _file(folder / name, files[name], beside.get(name))
    yield from _links(folder / "index.html", {_listed(name, file).link() for name, file in files.items()})


def _file(path: Path, listed: Any, other: Path | None) -> Iterator[Finding]:  # noqa: ANN401 - as JSON has it
    page = path.with_name("index.json")
    digest = sha256_of(path)
    if (listed_digest := _within(listed, "hashes", "sha256")) != digest:
        yield _wrong(page, f"gives {path.name} the SHA-256 {listed_digest}; it is {digest}")
    if (size := _within(listed, "size")) != path.stat().st_size:
        yield _wrong(page, f"gives {path.name} {size} bytes; it has {path.stat().st_size}")
    if other is None:
        yield _wrong(path, "is in the index only")
    elif not other.samefile(path) and sha256_of(other) != digest:
        yield _wrong(path, "is another file than the one of its name beside the index")
    if (url := _within(listed, "url")) != quote(path.name):
        yield _wrong(page, f"gives {path.name} the URL {url}; expected {quote(path.name)}")
    if path.suffix == ".whl":
        metadata = _metadata(path)
        beside = path.with_name(f"{path.name}.metadata")
        listed_digest = _within(listed, "core-metadata", "sha256")
        if not beside.is_file() or sha256_of(beside) != listed_digest or beside.read_bytes() != str(metadata).encode():
            yield _wrong(beside, "is not METADATA of the wheel, or not of the SHA-256 that the index gives")
        if metadata and (asked := _within(listed, "requires-python")) != metadata.requires_python:
            what = f"gives {path.name} Requires-Python {asked}; its METADATA says {metadata.requires_python}"
            yield _wrong(page, what)


def _metadata(path: Path) -> Metadata | None:
    try:
        return OfferedWheel.of(path).metadata
    except VbuildError:
        return None


def _listed(name: str, row: Any) -> IndexedFile:  # noqa: ANN401 - as JSON has it
    """The file *name* as *row* of index.json gives it, as far as a link says that."""
    asked, metadata = _within(row, "requires-python"), _within(row, "core-metadata", "sha256")
    digest = str(_within(row, "hashes", "sha256"))
    return IndexedFile(name, "", 0, digest, str(asked) if asked else None, str(metadata) if metadata else None)


def _links(page: Path, expected: Collection[str]) -> Iterator[Finding]:
    """What is wrong with the *page* of links, of which there should be the *expected*, each once."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    if sorted(_LINK.findall(text)) != sorted(expected):
        yield _wrong(page, "does not say what index.json says")


def _rows(page: Path, key: str) -> list[Any]:
    """What the JSON *page* lists under *key*; nothing where it is none."""
    try:
        rows = _within(json.loads(page.read_bytes()), key)
    except (OSError, ValueError, RecursionError):
        return []
    return rows if isinstance(rows, list) else []


def _within(value: Any, *keys: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What *value* has below *keys*, or None if that is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _wrong(path: Path, what: str) -> Finding:
    """A problem with the file at *path* of an index, called by the last parts of its path."""
    parts = path.parts
    place = "/".join(parts[parts.index(INDEX) :] if INDEX in parts else parts[-1:])
    return Finding(Severity.ERROR, PublishRule.INDEX, (place,), what, _AGAIN)
