"""Find what is wrong with a folder in the layout redirect: its sdists, wheels and pins, compared with each other.

demo-1.0.tar.gz: wheels.json   = the wheels in the folder wheels: each exists, as described; no more
demo-1.0.tar.gz: PKG-INFO      = METADATA of each wheel, with the fields that wheels.json has for it (PEP 643)
requirements.txt               = sha256 of the sdists and wheels next to it
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename

from vbuild.errors import RepackageError, VbuildError, WheelError, at
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_text
from vbuild.publishing.lint.index import layout_problem
from vbuild.publishing.lint.metadata import metadata_view
from vbuild.publishing.model import (
    PublishRule,
)
from vbuild.publishing.redirect.plan import PINS, WHEELS
from vbuild.publishing.redirect.sdist import (
    PKG_INFO,
    TABLE,
    left_out,
    release_order,
    row_of,
)
from vbuild.publishing.releases import OfferedRelease, OfferedWheel
from vbuild.verification.model import Finding
from vbuild.wheel.archive import files_in
from vbuild.wheel.name import WheelName
from vbuild.wheel.sdist import reading

_problem = partial(layout_problem, "redirect")
# bytes, as many as are read of a file in the sdist
_LIMIT = 1 << 26
_HASH = re.compile("sha256:([0-9a-f]*)")
# a wheel, perhaps in the folder of what it was built against
_WAY = re.compile(r"([a-z0-9][a-z0-9.]*/)?(?P<name>[^/]*)")


class _Sdist(Struct, frozen=True):
    """An sdist as it is: its PKG-INFO, the rows of its wheels.json by file, and the order of its variants, if any.

    *values* are what its wheels were built against, None where it does not go by what is installed.
    """

    path: Path
    pkg_info: bytes
    rows: dict[str, dict[str, Any]]
    order: list[Any] | None
    values: list[str] | None

    def file(self, wheel: OfferedWheel) -> str:
        """The file of *wheel* as wheels.json has it."""
        return wheel.path.name if self.values is None else f"{wheel.path.parent.name}/{wheel.path.name}"

    @classmethod
    def read(cls, path: Path) -> Self:
        """The sdist at *path*; `RepackageError` if it is damaged, or not of this layout."""
        top = path.name.removesuffix(".tar.gz")
        table_path, pkg_info = f"{top}/{TABLE}", f"{top}/{PKG_INFO}"
        try:
            files = {}
            with reading(path) as archive:
                for entry in archive:
                    if entry.name in {table_path, pkg_info} and (stream := archive.extractfile(entry)):
                        files[entry.name] = stream.read(_LIMIT)
            table = json.loads(files.get(table_path, b"{}"))
        except WheelError as error:
            raise RepackageError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise RepackageError(f"cannot be read: {error}") from error
        try:
            rows = {}
            for row in table["wheels"]:
                way = _WAY.fullmatch(row["file"])
                WheelName.parse(way["name"] if way else row["file"])
                rows[row["file"]] = {"size": row["size"], "sha256": row["sha256"], **row}
            return cls(path, files[pkg_info], rows, table.get("order"), table.get("values"))
        except (KeyError, TypeError, AttributeError, WheelError) as error:
            raise RepackageError(f"has no {PKG_INFO} and {TABLE} as a redirecting sdist has them") from error


def problems(folder: Path) -> Iterator[Finding]:
    """What is wrong with the sdists in *folder*, and with the wheels in its folder ``wheels``."""
    paths = files_in(folder, ".tar.gz")
    if not paths:
        yield _problem(PublishRule.SDIST, folder.name, "has no sdist")
    known: set[str] = set()
    for path in paths:
        try:
            sdist = _Sdist.read(path)
            project, version = parse_sdist_filename(path.name)
        except (RepackageError, InvalidSdistFilename) as error:
            yield _problem(PublishRule.ARCHIVE, path.name, str(error))
            continue
        known |= sdist.rows.keys()
        wheels: list[OfferedWheel] = []
        for file, row in sdist.rows.items():
            yield from _row_problems(folder / WHEELS / file, row, wheels, has_value=sdist.values is not None)
        release = OfferedRelease(canonicalize_name(project), str(version), tuple(wheels))
        yield from _statements(sdist, release)
        yield from _ranking(sdist, release)
    pins = folder / PINS
    pinned = _HASH.findall(read_text(pins, errors="replace")) if pins.is_file() else []
    there = {sha256_of(path) for path in folder.glob("*.*") if path.is_file()} if pinned else set()
    for found in (found for found in pinned if found not in there):
        yield _problem(PublishRule.PINS, pins.name, f"pins sha256 {found}, which no file here has")
    for path in sorted((folder / WHEELS).rglob("*")):
        if path.is_file() and path.relative_to(folder / WHEELS).as_posix() not in known:
            yield _problem(PublishRule.PINS, path.name, f"is in no {TABLE}, so it is never installed")


def _row_problems(path: Path, row: dict[str, Any], wheels: list[OfferedWheel], *, has_value: bool) -> Iterator[Finding]:
    """Where the wheel at *path* is not as *row* pins it; added to *wheels* where it can be read."""
    try:
        size, sha256 = path.stat().st_size, sha256_of(path)
    except OSError as error:
        yield _problem(PublishRule.PINS, path.name, f"is pinned, and cannot be read: {error.strerror}")
        return
    if (size, sha256) != (row["size"], row["sha256"]):
        what = f"{size} bytes of sha256 {sha256}, pinned {row['size']} of {row['sha256']}"
        yield _problem(PublishRule.PINS, path.name, what)
        return
    try:
        wheel = OfferedWheel.of(path)
    except VbuildError as error:
        yield _problem(PublishRule.ARCHIVE, path.name, str(error).removeprefix(f"{path.name}: "))
        return
    wheels.append(wheel)
    expected = {"label": None, **row_of(wheel, has_value=has_value)}
    for key, value in expected.items():
        if row.get(key) != value:
            what = f"{TABLE} says {key} {json.dumps(row.get(key))}, expected {json.dumps(value)}"
            yield _problem(PublishRule.PINS, path.name, what)


def _statements(sdist: _Sdist, release: OfferedRelease) -> Iterator[Finding]:
    """Where PKG-INFO, and what wheels.json adds for a wheel, are not what the wheel says."""
    known_to_lack = {*left_out(release.wheels), "Description", "Description-Content-Type"}
    for wheel in release.wheels:
        fields = sdist.rows[sdist.file(wheel)].get("fields", "")
        try:
            with at(PKG_INFO):
                stated = metadata_view(str(fields).encode() + sdist.pkg_info)
        except VbuildError as error:
            yield _problem(PublishRule.METADATA, sdist.path.name, str(error))
            return
        if (wheel.name.project, canonicalize_name(stated.name)) != (release.project, release.project):
            what = f"hands over {wheel.path.name}, and its {PKG_INFO} is of {stated.name}"
            yield _problem(PublishRule.METADATA, sdist.path.name, what)
        for difference in stated.differences(metadata_view(str(wheel.metadata).encode())):
            if difference.field not in known_to_lack:
                what = f"{wheel.path.name} is not as its {PKG_INFO} says: {difference}"
                yield _problem(PublishRule.METADATA, sdist.path.name, what)


def _ranking(sdist: _Sdist, release: OfferedRelease) -> Iterator[Finding]:
    if sdist.order is None:
        return
    try:
        expected = [choice.data() for choice in release_order(release)]
    except VbuildError as error:
        yield _problem(PublishRule.VARIANT, sdist.path.name, str(error))
        return
    if expected != sdist.order:
        yield _problem(PublishRule.VARIANT, sdist.path.name, "has its variants in another order than their wheels give")
