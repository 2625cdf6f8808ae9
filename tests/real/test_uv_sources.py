"""uv's own tests and providers, from the sdist of the newest uv, as judges of what vbuild reads and answers.

A release of uv that reads more, or carries other providers, fails here first.
"""

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.test_uv_agrees import chosen_by_uv, lay_out, read_by_vbuild
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.index_client.packages import download_best
from vbuild.variants.document import Schema
from vbuild.variants.providers import BUILT_IN

pytestmark = [pytest.mark.network, pytest.mark.nightly]

_DOCUMENT = re.compile(r"json!\((\{\n.*?\n    \})\)", re.DOTALL)
_VERSION = re.compile(r"fn package_version\(&self\) -> Version \{\s*Version::new\(\[([\d, ]+)\]\)")


def _newest_sdist(file: ListedFile) -> int | None:
    major, minor, patch = (*file.version.release, 0, 0)[:3]
    return -(major * 10**6 + minor * 10**3 + patch) if file.file.endswith(".tar.gz") else None


@pytest.fixture(scope="module")
def crates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uv")
    sdist = download_best("uv", _newest_sdist, folder, indexes=Indexes.configured())
    assert sdist
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("uv-*/crates"))


def documents(crates: Path) -> Iterator[dict[str, Any]]:
    """The documents that uv's own tests write as Rust's json! literals."""
    text = (crates / "uv-distribution-types/tests/variants_json.rs").read_text()
    for schema in Schema:
        text = text.replace(f"{schema.name}_SCHEMA", json.dumps(schema.value))
    for literal in _DOCUMENT.findall(text):
        yield json.loads(re.sub(r",(\s*[}\]])", r"\1", literal))


def test_select_reads_the_documents_of_uvs_own_tests_as_uv_does(crates: Path, tmp_path: Path) -> None:
    several = list(documents(crates))
    assert len(several) >= 20
    for number, values in enumerate(several):
        folder = tmp_path / str(number)
        lay_out(folder, values)
        assert read_by_vbuild(folder) == chosen_by_uv(folder, tmp_path / "cache"), values


def test_vbuild_knows_the_providers_that_uv_carries(crates: Path) -> None:
    carried = {}
    for path in (crates / "uv-distribution/src/variant").glob("*.rs"):
        if match := _VERSION.search(path.read_text()):
            carried[path.stem] = ".".join(match[1].split(", "))
    assert carried == {name: known.version for name, known in BUILT_IN.items() if name != "amd"}


def test_uv_knows_no_schema_that_vbuild_does_not(crates: Path) -> None:
    text = (crates / "uv-distribution-types/src/variants_json.rs").read_text()
    urls = re.findall(r'const PEP_\w+: &str = "([^"]+)"', text)
    assert urls == [schema.value for schema in Schema]
