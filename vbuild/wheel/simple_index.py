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
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.errors import WheelError, at
from vbuild.files.atomic import linked, replace_folder, turn_for
from vbuild.files.hashing import Digests
from vbuild.files.reading import read_file, read_text
from vbuild.wheel.archive import Wheel, files_in, open_wheel
from vbuild.wheel.name import VARIANTS_JSON, WheelName
from vbuild.wheel.sdist import SUFFIX, release_of, sdist_metadata

_META = {"api-version": "1.1"}
_PAGE = """<!DOCTYPE html>
<html>
  <head>
    <meta name="pypi:repository-version" content="1.1">
    <meta name="color-scheme" content="light dark">
    <meta name="viewport" content="width=device-width">
    <title>{title}</title>
  </head>
  <body style="overflow-wrap: anywhere">
{links}
  </body>
</html>
"""


Release = tuple[str, str]


class IndexedFile(Struct, frozen=True):
    """One file of a project as its page lists it; sizes in bytes, hashes SHA-256 in hex.

    *uploaded* is its time of upload at the index that it came from, as PEP 700 writes times.
    """

    filename: str
    version: str
    size: int
    sha256: str
    requires_python: str | None = None
    metadata_sha256: str | None = None
    uploaded: str | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """`ValueError`, `LookupError` or `TypeError` if that is not one of ours."""
        name = str(data["filename"])
        if "/" in name or name in {"", ".", ".."}:
            raise ValueError(f"no file name: {name!r}")
        return cls(
            filename=name,
            version=_version_in(name),
            size=int(data["size"]),
            sha256=str(data["hashes"]["sha256"]),
            requires_python=data.get("requires-python"),
            metadata_sha256=data["core-metadata"]["sha256"] if "core-metadata" in data else None,
            uploaded=data.get("upload-time"),
        )

    def data(self) -> dict[str, Any]:
        """As JSON (PEP 691)."""
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
        if self.uploaded:
            data["upload-time"] = self.uploaded
        return data

    def link(self) -> str:
        """As HTML (PEP 503)."""
        attributes = {"href": f"{quote(self.filename)}#sha256={self.sha256}"}
        if self.requires_python:
            attributes["data-requires-python"] = self.requires_python
        if self.metadata_sha256:
            attributes["data-core-metadata"] = f"sha256={self.metadata_sha256}"
        return _link(self.filename, **attributes)


class IndexWriter:
    """*uploaded* has the times of upload by file name."""

    def __init__(self, folder: Path, *, digests: Digests, uploaded: Mapping[str, str] | None = None) -> None:
        self.projects: dict[str, list[IndexedFile]] = {}
        self._folder = folder
        self._digests = digests
        self._uploaded = uploaded or {}

    def add(self, path: Path) -> None:
        """Add the wheel, sdist or variants.json at *path*; `WheelError` if it cannot be read."""
        if path.name.endswith(VARIANTS_JSON):
            self._add_document(path)
        elif path.name.endswith(SUFFIX):
            with at(path.name):
                self._put(path, *release_of(path.name), requires_python=sdist_metadata(path).requires_python)
        else:
            with open_wheel(path) as wheel:
                self.add_wheel(wheel)

    def add_wheel(self, wheel: Wheel) -> None:
        name, metadata = wheel.name, wheel.read(f"{wheel.dist_info}/METADATA")
        self._put(
            wheel.path,
            name.project,
            Version(name.version),
            requires_python=wheel.metadata().requires_python,
            metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        )
        _written(self._folder / name.project / f"{wheel.path.name}.metadata", metadata)

    def _add_document(self, path: Path) -> None:
        distribution, _, version = path.name.removesuffix(VARIANTS_JSON).partition("-")
        try:
            release, data = Version(version), read_file(path)
        except ValueError as error:
            raise WheelError(f"{path}: expected a file name like {{name}}-{{version}}{VARIANTS_JSON}") from error
        except OSError as error:
            raise WheelError(f"{path}: cannot be read: {error.strerror}") from error
        # a copy: the folder's document is rewritten when wheels are added
        self._put(path, canonicalize_name(distribution), release, data=data)

    def _put(
        self,
        path: Path,
        project: str,
        version: Version,
        *,
        data: bytes | None = None,
        requires_python: str | None = None,
        metadata_sha256: str | None = None,
    ) -> None:
        """List and link the file at *path*; *data* are copied."""
        if project not in self.projects:
            (self._folder / project).mkdir(exist_ok=True)
        target = self._folder / project / path.name
        if data is None:
            _linked(path.resolve(), target)
        else:
            _written(target, data)
        size, sha256, uploaded = target.stat().st_size, self._digests.of(target), self._uploaded.get(path.name)
        file = IndexedFile(path.name, str(version), size, sha256, requires_python, metadata_sha256, uploaded)
        self.projects.setdefault(project, []).append(file)


@contextmanager
def updating(out: Path, *, remove: Iterable[str] = ()) -> Iterator[IndexWriter]:
    """Yield a writer of the index *out*, which is new, empty, or an earlier index.

    Releases of files that are added replace those there, those in *remove* go, as ``demo==1.0`` or ``demo`` for all of
    a project, and the rest stays. Readers see the old index or the new one, also after a kill. `WheelError`, and
    nothing written, if *out* holds something else, or has nothing of what is to be removed.
    """
    with Digests() as digests, turn_for(out):
        indexed = read_index(out)
        gone = {release for text in remove for release in _releases(text, indexed, out)}
        with replace_folder(out) as index:
            if indexed:
                shutil.copytree(out, index, symlinks=True, copy_function=_linked, dirs_exist_ok=True)
            writer = IndexWriter(index, digests=digests)
            yield writer
            new = writer.projects
            gone |= {(project, file.version) for project, listings in new.items() for file in listings}
            projects = {project: [*listings] for project, listings in new.items()}
            for project, listings in indexed.items():
                names = {file.filename for file in new.get(project, ())}
                for file in listings:
                    if (project, file.version) not in gone:
                        projects.setdefault(project, []).append(file)
                    elif file.filename not in names:
                        for name in (file.filename, f"{file.filename}.metadata"):
                            (index / project / name).unlink(missing_ok=True)
                if project not in projects:
                    shutil.rmtree(index / project)
            _write_all_pages(index, projects)


def others_in(folder: Path) -> Iterator[Path]:
    """The sdists and variants.json files in *folder*."""
    for path in files_in(folder, SUFFIX):
        with suppress(WheelError):
            release_of(path.name)
            yield path
    yield from files_in(folder, VARIANTS_JSON)


def fill_index(
    files: Iterable[Path], index: Path, *, digests: Digests, uploaded: Mapping[str, str] | None = None
) -> None:
    """Make the new folder *index* an index of *files*; `WheelError` if one cannot be read.

    *digests* may know them, *uploaded* has times of upload by file name.
    """
    index.mkdir()
    writer = IndexWriter(index, digests=digests, uploaded=uploaded)
    for path in files:
        writer.add(path)
    _write_all_pages(index, writer.projects)


def _write_all_pages(index: Path, projects: Mapping[str, list[IndexedFile]]) -> None:
    for project, listings in projects.items():
        listings.sort(key=lambda file: file.filename)
        links = [file.link() for file in listings]
        versions = sorted({file.version for file in listings}, key=Version)
        listed = [file.data() for file in listings]
        _write_pages(index / project, project, links, name=project, versions=versions, files=listed)
    links = [project_link(project) for project in sorted(projects)]
    _write_pages(index, "Simple index", links, projects=[{"name": project} for project in sorted(projects)])


def read_index(out: Path) -> dict[str, list[IndexedFile]]:
    """The projects of the index in *out* and their files; `WheelError` if it holds anything else."""
    if not (out / "index.json").is_file():
        check_unused(out)
        return {}
    try:
        names = [project["name"] for project in json.loads(read_text(out / "index.json"))["projects"]]
        if wrong := [name for name in names if name != canonicalize_name(name) or "/" in name]:
            raise ValueError(f"no project: {wrong[0]!r}")  # noqa: TRY301 - as for what cannot be read
        pages = {name: json.loads(read_text(out / name / "index.json"))["files"] for name in names}
        return {name: [IndexedFile.read(file) for file in files] for name, files in pages.items()}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WheelError(
            f"{out}: exists and is not an index that vbuild wrote ({error}); choose another folder"
        ) from error


def _releases(text: str, indexed: Mapping[str, list[IndexedFile]], out: Path) -> set[Release]:
    name, _, version = (part.strip() for part in text.partition("=="))
    project = canonicalize_name(name)
    indexed_versions = {file.version for file in indexed.get(project, ())}
    versions = {
        candidate
        for candidate in indexed_versions
        if not version or candidate == version or Version(candidate) == _version(text, version)
    }
    if not versions:
        has = ", ".join(
            f"{name}=={number}" for name, files in indexed.items() for number in sorted({f.version for f in files})
        )
        raise WheelError(f"{out}: has no {text} to remove; it has {has or 'nothing'}")
    return {(project, number) for number in versions}


def _version(text: str, version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion as error:
        raise WheelError(f"{text}: no version {version!r}; expected NAME==VERSION, or NAME for all of it") from error


def project_link(project: str) -> str:
    return _link(project, href=f"{project}/")


def check_unused(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WheelError(f"{out}: exists and is not an empty folder; choose another one")


def _version_in(name: str) -> str:
    """As pages list it; `ValueError` if the *name* states none."""
    if name.endswith(".whl"):
        return str(Version(WheelName.parse(name).version))
    if name.endswith(SUFFIX):
        return str(release_of(name)[1])
    return str(Version(name.removesuffix(VARIANTS_JSON).partition("-")[2]))


def _linked(source: str | Path, target: str | Path) -> Path:
    Path(target).unlink(missing_ok=True)
    return linked(Path(source), Path(target))


def _written(path: Path, data: bytes) -> None:
    """Write a new file at *path*: an existing one may be that of the earlier index, too."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _write_pages(folder: Path, title: str, links: list[str], **data: Any) -> None:  # noqa: ANN401 - whatever JSON holds
    page = _PAGE.format(title=html.escape(title), links="\n".join(f"    {link}<br>" for link in links))
    _written(folder / "index.html", page.encode())
    _written(folder / "index.json", f"{json.dumps({'meta': _META, **data}, indent=2)}\n".encode())


def _link(text: str, **attributes: str) -> str:
    pairs = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<a {pairs}>{html.escape(text)}</a>"
