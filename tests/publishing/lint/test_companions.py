"""Releases whose wheels require what a split made, and which is not beside them."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.factories.release_folders import (
    PLAIN,
    V3,
    plain_release,
    problems_found,
    release_folder,
    release_wheel,
    sdist,
)

VERSION = "1.0"


def requiring(folder: Path, lines: Iterable[str]) -> Path:
    metadata = "".join(f"Requires-Dist: {line}\n" for line in lines)
    plain_release(folder)
    release_wheel(folder, PLAIN, metadata=metadata)
    sdist(folder, lines=f"{metadata}Dynamic: Requires-Dist\n")
    return folder


@pytest.mark.parametrize("project", ["demo-libs", "Shared.Libs"])
def test_what_a_split_made_is_published_first_whatever_it_is_called(project: str, tmp_path: Path) -> None:
    requiring(tmp_path, [f"{project}=={VERSION}"])
    known = {"demo-libs": "demo-libs", "Shared.Libs": "shared-libs"}[project]
    what = f"requires {known}=={VERSION}, which is not here: a wheel of shared libraries by its name"
    assert problems_found(tmp_path) == problems_found(tmp_path, pypi=True) == [f"warning requirement: {PLAIN}: {what}"]


def test_variants_miss_it_too(tmp_path: Path) -> None:
    release_folder(tmp_path)
    release_wheel(tmp_path, V3, metadata=f"Requires-Dist: demo-libs=={VERSION}\n")
    assert [line for line in problems_found(tmp_path) if f"{V3}: requires demo-libs" in line]
