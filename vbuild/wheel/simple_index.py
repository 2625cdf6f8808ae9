"""A static simple index: folders and files that any web server turns into a package index.

    OUT/index.html, index.json                 the projects
    OUT/{project}/index.html, index.json       its files, with SHA-256 and Requires-Python
    OUT/{project}/{wheel}, {wheel}.metadata    the wheels (hard links where they can be) and their METADATA
    OUT/{project}/{release}-variants.json      listed as an ordinary file (PEP 825, index-level metadata)

https://packaging.python.org/en/latest/specifications/simple-repository-api/ (version 1.1; PEP 503, 658, 691, 700, 714)
"""

import hashlib
import html
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.errors import WheelError
from vbuild.files.atomic import linked
from vbuild.files.hashing import Digests
from vbuild.wheel.archive import open_wheel, wheels_in

_META = {"api-version": "1.1"}
_VARIANTS = "-variants.json"
_PAGE = """<!DOCTYPE html>
<html>
  <head>
    <meta name="pypi:repository-version" content="1.1">
    <title>{title}</title>
  </head>
  <body>
{links}
  </body>
</html>
"""


class IndexedFile(Struct, frozen=True):
    """One file of a project as its page lists it; sizes in bytes, hashes SHA-256 in hex."""

    filename: str
    version: str
    size: int
    sha256: str
    requires_python: str | None = None
    metadata_sha256: str | None = None

    def data(self) -> dict[str, Any]:
        """Returns the file as JSON (PEP 691)."""
        data: dict[str, Any] = {
            "filename": self.filename,
            "url": quote(self.filename),
            "hashes": {"sha256": self.sha256},
            "size": self.size,
        }
        if self.requires_python:
            data["requires-python"] = self.requires_python
        if self.metadata_sha256:
            data["core-metadata"] = {"sha256": self.metadata_sha256}
        return data

    def link(self) -> str:
        """Returns the file as a link of HTML (PEP 503)."""
        attributes = {"href": f"{quote(self.filename)}#sha256={self.sha256}"}
        if self.requires_python:
            attributes["data-requires-python"] = self.requires_python
        if self.metadata_sha256:
            attributes["data-core-metadata"] = f"sha256={self.metadata_sha256}"
        return _link(self.filename, **attributes)


def write_simple(folder: Path, out: Path) -> tuple[str, ...]:
    """Write into *out*, new or empty, the index of the wheels and variants.json files in *folder*; gives the projects.

    `WheelError`, and nothing written, if *out* holds something or a wheel is damaged.
    """
    with Digests() as digests:
        files = [*wheels_in(folder), *sorted(folder.glob(f"*{_VARIANTS}"))]
        return write_index_of(files, out, digests=digests)


def write_index_of(files: Iterable[Path], out: Path, *, digests: Digests) -> tuple[str, ...]:
    """As `write_simple`, for the wheels and variants.json *files* of any folders; *digests* may know them already."""
    check_unused(out)
    projects: dict[str, list[IndexedFile]] = {}
    with _complete(out) as index:
        for path in files:
            add = _add_document if path.name.endswith(_VARIANTS) else _add_wheel
            project, file = add(path, index, digests=digests)
            projects.setdefault(project, []).append(file)
        for project, listings in projects.items():
            listings.sort(key=lambda file: file.filename)
            links = [file.link() for file in listings]
            versions = sorted({file.version for file in listings}, key=Version)
            listed = [file.data() for file in listings]
            _write_pages(index / project, project, links, name=project, versions=versions, files=listed)
        links = [project_link(project) for project in sorted(projects)]
        _write_pages(index, "Simple index", links, projects=[{"name": project} for project in sorted(projects)])
    return tuple(sorted(projects))


def project_link(project: str) -> str:
    """Returns the link to the page of *project* (PEP 503)."""
    return _link(project, href=f"{project}/")


def check_unused(out: Path) -> None:
    """Refuse, as a `WheelError`, a place for an index that holds something already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WheelError(f"{out}: exists and is not an empty folder; choose another one")


def _add_wheel(path: Path, folder: Path, *, digests: Digests) -> tuple[str, IndexedFile]:
    """Put the wheel at *path* and its METADATA below *folder*; its project and how it is listed."""
    with open_wheel(path) as wheel:
        name = wheel.name
        metadata = wheel.metadata()
        packed = wheel.read(f"{wheel.dist_info}/METADATA")
    target = folder / name.project / path.name
    target.parent.mkdir(exist_ok=True)
    linked(path.resolve(), target)
    target.with_name(f"{path.name}.metadata").write_bytes(packed)
    listed = IndexedFile(
        filename=path.name,
        version=str(Version(name.version)),
        size=target.stat().st_size,
        sha256=digests.of(target),
        requires_python=metadata.requires_python,
        metadata_sha256=hashlib.sha256(packed).hexdigest(),
    )
    return name.project, listed


def _add_document(path: Path, folder: Path, *, digests: Digests) -> tuple[str, IndexedFile]:
    """Put the variants.json at *path* below *folder*; its project and how it is listed."""
    distribution, _, version = path.name.removesuffix(_VARIANTS).partition("-")
    try:
        Version(version)
    except ValueError as error:
        raise WheelError(f"{path}: expected a file name like {{name}}-{{version}}{_VARIANTS}") from error
    project = canonicalize_name(distribution)
    target = folder / project / path.name
    target.parent.mkdir(exist_ok=True)
    # a copy: the document in the folder is rewritten when wheels are added
    shutil.copyfile(path, target)
    return project, IndexedFile(path.name, version, target.stat().st_size, digests.of(target))


def _write_pages(folder: Path, title: str, links: list[str], **data: Any) -> None:  # noqa: ANN401 - whatever JSON holds
    """Write index.html of the *links*, and index.json of the *data*."""
    page = _PAGE.format(title=html.escape(title), links="\n".join(f"    {link}<br>" for link in links))
    (folder / "index.html").write_text(page, encoding="utf-8")
    text = json.dumps({"meta": _META, **data}, indent=2)
    (folder / "index.json").write_text(f"{text}\n", encoding="utf-8")


def _link(text: str, **attributes: str) -> str:
    pairs = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<a {pairs}>{html.escape(text)}</a>"


@contextmanager
def _complete(out: Path) -> Iterator[Path]:
    """A folder that becomes *out* when the block ends well, and is gone otherwise."""
    folder = out.parent / f".{secrets.token_hex(8)}.part"
    try:
        folder.mkdir(parents=True)
        yield folder
        if out.exists():
            out.rmdir()
        folder.rename(out)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise WheelError(f"{out}: cannot be written: {error.strerror}") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
