"""What PyPI refuses, and what judges from outside say of the same files."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.release_folders import (
    PLAIN,
    SDIST,
    plain_release,
    problems_found,
    release_folder,
    release_wheel,
    sdist,
    tarball,
)
from tests.factories.tools import needs_judge
from tests.factories.wheels import wheel
from vbuild.publishing.check import check

MB = 1 << 20


def grown(path: Path, size: int) -> Path:
    """The gzipped file with zeros behind it, which take no room on disk and which no reader minds."""
    os.truncate(path, size)
    return path


@pytest.mark.parametrize(
    ("size", "what"),
    [
        (100 * MB, None),
        (100 * MB + 1, "104857601 bytes; PyPI takes 104857600 (100 MB) at most"),
        (1024 * MB, "1073741824 bytes; PyPI takes 104857600 (100 MB) at most"),
        (1024 * MB + 1, "1073741825 bytes; PyPI takes 1073741824 (1 GB) at most, whatever limit it grants"),
    ],
)
def test_a_file_may_have_what_pypi_takes(size: int, what: str | None, tmp_path: Path) -> None:
    plain_release(tmp_path)
    grown(tmp_path / SDIST, size)
    assert problems_found(tmp_path, pypi=True) == ([f"error size: {SDIST}: {what}"] if what else [])
    assert problems_found(tmp_path) == ([f"warning size: {SDIST}: {what}"] if what else [])


def test_a_limit_that_was_granted_takes_the_place_of_the_default_one(tmp_path: Path) -> None:
    plain_release(tmp_path)
    grown(tmp_path / SDIST, 300 * MB)
    assert not check(tmp_path, pypi=True, limit=300).problems
    [found] = check(tmp_path, pypi=True, limit=299).problems
    assert found.what == "314572800 bytes; the limit that was given is 313524224 (299 MB)"
    grown(tmp_path / SDIST, 1025 * MB)
    assert check(tmp_path, pypi=True, limit=1024).failed


def test_more_than_a_project_may_have_is_a_warning(tmp_path: Path) -> None:
    for number in range(11):
        sdist(tmp_path, f"demo-{number}.tar.gz")
        grown(tmp_path / f"demo-{number}.tar.gz", 1000 * MB)
    [found] = check(tmp_path, pypi=True, limit=1024).problems
    assert (found.severity, found.place) == ("warning", "demo")
    assert found.what.startswith("11534336000 bytes in all; PyPI gives a project 10737418240 (10 GB) by default")
    assert not check(tmp_path, limit=1024).problems


REFUSED = [
    (
        "demo-1.0+cu126-cp311-cp311-manylinux_2_17_x86_64.whl",
        "local-version",
        "version 1.0+cu126 has the local part +cu126, and PyPI takes none (PEP 440)",
        None,
    ),
    (
        "demo-1.0-cp311-cp311-linux_x86_64.whl",
        "platform",
        "platform tag linux_x86_64 says neither which libc it needs nor which version",
        "warning",
    ),
    (
        "demo-1.0-cp311-cp311-emscripten_3_1_58_wasm32.whl",
        "platform",
        "platform tag emscripten_3_1_58_wasm32 is not one that PyPI takes",
        None,
    ),
    (
        "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.linux_x86_64.whl",
        "platform",
        "platform tag linux_x86_64 says neither which libc it needs nor which version",
        "warning",
    ),
    (
        "Demo.X-1.0-py3-none-any.whl",
        "name",
        "begins with 'Demo.X', which is not normalised (PEP 427)",
        "warning",
    ),
]


@pytest.mark.parametrize(("name", "demand", "what", "elsewhere"), REFUSED)
def test_what_pypi_refuses_is_an_error_for_pypi(
    name: str, demand: str, what: str, elsewhere: str | None, tmp_path: Path
) -> None:
    release_wheel(tmp_path, name)
    at_pypi = [f"error {demand}: {name}: {what}"]
    assert [line for line in problems_found(tmp_path, pypi=True) if " sdist: " not in line] == at_pypi
    others = [f"{elsewhere} {demand}: {name}: {what}"] if elsewhere else []
    assert [line for line in problems_found(tmp_path) if " sdist: " not in line] == others


@needs_judge("twine")
def test_twine_uploads_no_variants_json(tmp_path: Path) -> None:
    release_folder(tmp_path)
    twine = [sys.executable, "-m", "twine", "check", str(tmp_path / "demo-1.0-variants.json")]
    result = subprocess.run(twine, capture_output=True, text=True, check=False)
    assert result.returncode
    assert "InvalidDistribution" in result.stdout + result.stderr


UNREAD = "PyPI takes stored and deflated ones, and vbuild does not compare these with RECORD"


def test_an_archive_that_pypi_refuses_is_an_error_for_pypi(tmp_path: Path) -> None:
    def comment(archive: zipfile.ZipFile) -> None:
        archive.comment = b"signed"

    plain_release(tmp_path)
    data = {"a.bin": bytes(70 * MB), "b.bin": b"b" * 999}
    wheel(tmp_path, PLAIN, data, tamper=comment, compressions={"b.bin": zipfile.ZIP_BZIP2})
    size = (tmp_path / PLAIN).stat().st_size
    with zipfile.ZipFile(tmp_path / PLAIN) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    assert problems_found(tmp_path, pypi=True) == [
        f"error archive: {PLAIN}: its archive has a comment, which PyPI refuses",
        f"error archive: {PLAIN}: members are compressed with method 12; {UNREAD}",
        f"error archive: {PLAIN}: unpacks from {size} to {unpacked} bytes; PyPI takes 50 times the size at most",
    ]
    assert problems_found(tmp_path) == [f"warning archive: {PLAIN}: members are compressed with method 12; {UNREAD}"]


def modern(folder: Path, lines: str, files: Mapping[str, bytes | str] | None = None) -> None:
    """A plain wheel whose METADATA, of version 2.4, say *lines* besides, and an sdist that is sound."""
    plain_release(folder)
    sdist(folder, lines="Dynamic: Requires-Dist\n")
    about = f"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n{lines}"
    release_wheel(folder, PLAIN, {"demo-1.0.dist-info/METADATA": about, **(files or {})})


@pytest.mark.parametrize("value", [">", "=3.8", ">=3.8 License: MIT", "three"])
def test_a_python_that_cannot_be_read_is_told_for_every_index(tmp_path: Path, value: str) -> None:
    modern(tmp_path, f"Requires-Python: {value}\n")
    what = f"warning requirement: {PLAIN}: Requires-Python '{value}' cannot be read: Invalid specifier"
    assert [problem for problem in problems_found(tmp_path) if problem.startswith(what)]


def test_requirements_and_licenses_that_pypi_refuses_are_errors_for_pypi(tmp_path: Path) -> None:
    lines = (
        "Requires-Dist: a @ https://example.org/a.whl\n"
        "Requires-Dist: b; variant_label == 'x86_64_v3'\n"
        "License-File: LICENSE\nLicense-File: NOTICE\n"
    )
    modern(tmp_path, lines, {"demo-1.0.dist-info/licenses/LICENSE": "free"})
    unreadable = (
        "Requires-Dist \"b; variant_label == 'x86_64_v3'\" cannot be read: Expected a marker variable or quoted string"
    )
    unlicensed = "License-File 'NOTICE' is not in the wheel's licenses folder, which PyPI refuses (PEP 639)"
    assert problems_found(tmp_path, pypi=True) == [
        f"error license: {PLAIN}: {unlicensed}",
        f"error requirement: {PLAIN}: {unreadable}",
        f"error requirement: {PLAIN}: Requires-Dist 'a @ https://example.org/a.whl' is a URL, which PyPI refuses",
    ]
    assert f"warning requirement: {PLAIN}: {unreadable}" in problems_found(tmp_path)
    assert not check(tmp_path).failed


def test_licenses_are_files_of_the_wheel_from_metadata_2_4_on(tmp_path: Path) -> None:
    """As in wheels of setuptools before that, psutil 7.0.0 or PyYAML 6.0.2."""
    plain_release(tmp_path)
    release_wheel(tmp_path, PLAIN, {"demo-1.0.dist-info/LICENSE": "free"}, metadata="License-File: LICENSE\n")
    sdist(tmp_path, lines="License-File: LICENSE\n")
    assert problems_found(tmp_path, pypi=True) == []
    modern(tmp_path, "License-File: LICENSE\n")
    what = "License-File 'LICENSE' is not in the wheel's licenses folder, which PyPI refuses (PEP 639)"
    assert problems_found(tmp_path, pypi=True) == [f"error license: {PLAIN}: {what}"]


@pytest.mark.parametrize("first", ["A", "PKG-INFO", "Z"])
def test_an_sdist_has_the_licenses_that_it_names(first: str, tmp_path: Path) -> None:
    plain_release(tmp_path)
    names = ["licenses/MIT", "LICENSE", "PKG-INFO"]
    about = "Metadata-Version: 2.4\nName: demo\nVersion: 1.0\nLicense-File: LICENSE\nLicense-File: licenses/MIT\n"
    files = {name: about if name == "PKG-INFO" else "free" for name in sorted(names, key=lambda name: name < first)}
    tarball(tmp_path / SDIST, {f"demo-1.0/{name}": text for name, text in files.items()})
    assert problems_found(tmp_path, pypi=True) == []
    tarball(tmp_path / SDIST, {f"demo-1.0/{name}": text for name, text in files.items() if name != "LICENSE"})
    what = "License-File 'LICENSE' is not in the sdist, which PyPI refuses (PEP 639)"
    assert problems_found(tmp_path, pypi=True) == [f"error license: {SDIST}: {what}"]


def test_an_sdist_has_no_requirements_that_are_urls(tmp_path: Path) -> None:
    plain_release(tmp_path)
    sdist(tmp_path, lines="Requires-Dist: a @ https://example.org/a.whl\nDynamic: Requires-Dist\n")
    assert problems_found(tmp_path, pypi=True) == [
        f"error requirement: {SDIST}: Requires-Dist 'a @ https://example.org/a.whl' is a URL, which PyPI refuses"
    ]
    assert problems_found(tmp_path) == []


def test_who_writes_no_markers_of_variants_is_not_told_of_them(tmp_path: Path) -> None:
    lines = "Requires-Dist: a >> 1\nRequires-Dist: b; variant_label == 'x'\n"
    modern(tmp_path, lines)
    advice = {found.advice for found in check(tmp_path, pypi=True).problems}
    assert advice == {
        "write it as installers read it (PEP 508)",
        "write what every installer knows: none of today knows markers of variants (PEP 825)",
    }
    [odd] = [found for found in check(tmp_path, pypi=True).problems if "'a >> 1'" in found.what]
    assert odd.advice == "write it as installers read it (PEP 508)"


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.parametrize("release", ["psutil==7.0.0", "lxml==6.0.0", "numpy==2.2.6"])
def test_what_pypi_took_has_no_error(release: str, tmp_path: Path) -> None:
    for python in ("3.12", "3.13"):
        tags = [word for tag in ("2014", "_2_28") for word in ("--platform", f"manylinux{tag}_x86_64")]
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *tags]
        subprocess.run(
            [*command, "--python-version", python, "-d", str(tmp_path), release], check=True, capture_output=True
        )
    assert [found.what for found in check(tmp_path, pypi=True).problems if found.is_error] == []
