"""python-flint and all that it needs, built for three levels; and the published wheel with libflint of two levels."""

import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.benchmarks import python_flint
from tests.factories.tools import needs
from vbuild.elf.catalogue import plain
from vbuild.elf.read import Loading
from vbuild.hardware.machine import Machine
from vbuild.recipe.model import TrialResult
from vbuild.release.matrix import matrix
from vbuild.release.model import ReleaseResult

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64"),
    needs("gcc", "make", "m4", "autoreconf", "automake", "libtoolize"),
]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> ReleaseResult:
    """The recipe, built: a quarter of an hour on two cores."""
    return matrix(python_flint.RECIPE, tmp_path_factory.mktemp("release") / "dist")


def _libraries(wheel: Path) -> dict[str, bytes]:
    """The libraries bundled in *wheel*, by their names without hashes."""
    with zipfile.ZipFile(wheel) as archive:
        return {plain(name): archive.read(name) for name in archive.namelist() if ".libs/lib" in name}


def test_every_level_is_built_proved_and_passes_its_own_tests(release: ReleaseResult) -> None:
    assert not release.failures
    assert [product.label for product in release.products] == [None, "x86_64_v3", "x86_64_v4"]
    here = Machine.here().cpu
    for product in release.products:
        assert not product.verdict.failed
        runs = here is not None and here.runs(product.target.cpu)
        assert product.trial is (TrialResult.PASSED if runs else TrialResult.NOT_RUN)


def test_libflint_is_of_each_level_and_what_it_needs_is_one_for_all(release: ReleaseResult) -> None:
    found = [_libraries(product.wheel) for product in release.products]
    assert [sorted(libraries) for libraries in found] == [
        ["libflint.so.24.0.0", "libgmp.so.10.5.0", "libmpfr.so.6.2.2"]
    ] * 3
    assert len({libraries["libgmp.so.10.5.0"] for libraries in found}) == 1
    assert len({libraries["libflint.so.24.0.0"] for libraries in found}) == 3
    symbols = [_exported(libraries["libflint.so.24.0.0"]) for libraries in found]
    assert symbols[0] <= symbols[1] == symbols[2]


def _exported(library: bytes) -> set[str]:
    with tempfile.NamedTemporaryFile() as file:  # nm reads no pipe
        file.write(library)
        file.flush()
        command = ["nm", "--dynamic", "--defined-only", "--format=posix", file.name]
        ran = subprocess.run(command, capture_output=True, check=True)
    return {line.split()[0] for line in ran.stdout.decode().splitlines()}


def test_no_wheel_says_where_its_libraries_were_built(release: ReleaseResult) -> None:
    for product in release.products:
        with zipfile.ZipFile(product.wheel) as archive:
            for name in archive.namelist():
                data = archive.read(name)
                assert b"/vbuild/native/" not in data, name
                if data.startswith(b"\x7fELF"):
                    outline = Loading.parse(data).outline
                    assert all(path.startswith("$ORIGIN") for path in (*outline.rpath, *outline.runpath)), name
