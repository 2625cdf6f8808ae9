"""Metadata that PyPI refuses, compared with what twine says of the same file; and what it takes, oddities included."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.release_folders import PLAIN, plain_release, problems_found, sdist
from tests.factories.tools import needs_judge
from tests.factories.wheels import wheel

REFUSED = [
    ("2.9", "", "'2.9' is not a valid metadata version"),
    ("2.1", "Requires-Python: three\n", "'three' is invalid for 'requires-python'"),
    ("2.1", "Summary: a\nSummary: b\n", "'summary' has invalid data"),
    ("2.1", "Dynamic: Summary\n", "dynamic introduced in metadata version 2.2, not 2.1"),
    ("2.1", "Provides-Extra: -x\n", "'-x' is invalid for 'provides-extra'"),
    ("2.4", "License-Expression: mine\n", "'mine' is invalid for 'license-expression'"),
    ("2.3", "License-Expression: MIT\n", "license-expression introduced in metadata version 2.4, not 2.3"),
    (
        "2.1",
        "Description-Content-Type: text/html\n",
        "Description-Content-Type 'text/html', expected text/plain, text/x-rst or text/markdown in UTF-8",
    ),
]
OF_PYPI_ALONE = [
    (
        "2.1",
        "Classifier: Private :: Do Not Upload\n",
        "Classifier 'Private :: Do Not Upload', which says that it is not to be uploaded",
    ),
    ("2.1", f"Summary: {'s' * 513}\n", "Summary of 513 characters, expected 512 at most"),
    (
        "2.1",
        f"Project-URL: {'l' * 33}, https://example.org\n",
        f"Project-URL '{'l' * 33}', expected a label of 32 characters at most",
    ),
    (
        "2.4",
        "License: free\nLicense-Expression: MIT\n",
        "License beside License-Expression, expected the latter alone (PEP 639)",
    ),
]
TAKEN = [
    ("1.0", "Summary: old\n"),
    ("2.1", "License-File: LICENSE\n"),
    ("2.1", f"License: {'free ' * 10000}\nDescription-Content-Type: text/markdown; charset=UTF-8\n"),
    ("2.4", "License-Expression: MIT OR Apache-2.0\nRequires-Python: >=3.9\nDynamic: Requires-Dist\n\n# demo\n"),
]


def released(folder: Path, version: str, lines: str) -> Path:
    plain_release(folder)
    about = f"Metadata-Version: {version}\nName: demo\nVersion: 1.0\n{lines}"
    wheel(folder, PLAIN, {"demo-1.0.dist-info/METADATA": about})
    sdist(folder, lines=lines, version=version)
    return folder


def twine_takes(folder: Path) -> bool:
    command = [sys.executable, "-m", "twine", "check", str(folder / PLAIN)]
    return not subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


def errors(folder: Path, *, pypi: bool) -> list[str]:
    return [line for line in problems_found(folder, pypi=pypi) if line.startswith("error")]


@pytest.mark.parametrize(("version", "lines", "reason"), [*REFUSED, *OF_PYPI_ALONE])
def test_what_pypi_refuses_is_an_error_in_wheels_and_sdists(
    version: str, lines: str, reason: str, tmp_path: Path
) -> None:
    released(tmp_path, version, lines)
    what = f"its metadata say what PyPI refuses: {reason}"
    assert errors(tmp_path, pypi=True) == [f"error metadata: {PLAIN} and 1 more: {what}"]
    assert errors(tmp_path, pypi=False) == []


@pytest.mark.sampled(1)
@needs_judge("twine")
@pytest.mark.parametrize(("version", "lines", "reason"), REFUSED)
def test_twine_refuses_the_same(version: str, lines: str, reason: str, tmp_path: Path) -> None:
    assert reason
    assert not twine_takes(released(tmp_path, version, lines))


@pytest.mark.parametrize("line", ["Description-Content-Type: {0}", "Requires-Dist: a; {0}os_name == 'x'{1}"])
def test_what_is_nested_too_deep_to_be_read_is_an_error(line: str, tmp_path: Path) -> None:
    released(tmp_path, "2.2", f"{line.format('(' * 5000, ')' * 5000)}\nDynamic: Requires-Dist\n")
    found = errors(tmp_path, pypi=True)
    assert found
    # packaging says so itself from 26.4 on
    said = ("brackets in brackets, too deep to be read", "Marker expression is nested more than 200 levels deep")
    assert all(error.endswith(said) and len(error) < 400 for error in found)


@pytest.mark.nightly
@needs_judge("twine")
@pytest.mark.parametrize(("version", "lines"), TAKEN, ids=["old", "license file", "long", "modern"])
def test_twine_takes_what_has_no_error(version: str, lines: str, tmp_path: Path) -> None:
    released(tmp_path, version, lines)
    assert errors(tmp_path, pypi=True) == []
    assert twine_takes(tmp_path)
