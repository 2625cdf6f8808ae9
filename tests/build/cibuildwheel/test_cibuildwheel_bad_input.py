"""What `vbuild cibuildwheel` refuses, and what it keeps where a part of it fails; most of it without a container."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.factories.cibuildwheel_projects import OFFLINE, inside, project
from tests.factories.containers import needs_podman
from vbuild.errors import BuildError, VbuildError
from vbuild.release.cibuildwheel import cibuildwheel
from vbuild.release.model import ReleaseResult

IDENTIFIER = "cp311-manylinux_x86_64"
ONLY_LINUX = "only wheels for Linux have variants of CPU levels and GPUs; expected linux: run cibuildwheel itself for"
TOO_OLD = (
    "cibuildwheel 4.2.1 is too old: 4.3 is the first that can add to a project's own options (CIBW_INHERIT); "
    "install it: pip install 'cibuildwheel>=4.3'\n"
)
TWO_LEVELS = '[tool.vbuild.matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'

pytestmark = [pytest.mark.skipif(os.uname().machine != "x86_64", reason="the levels are those of x86-64")]


def refused(source: Path, *arguments: str, variants: Sequence[str] = (), **variables: str) -> str:
    """Why nothing is built of the project *source*; nothing is left behind either."""
    with inside(source, **variables), pytest.raises(VbuildError) as error:
        cibuildwheel(source.parent / "dist", arguments, variants=variants)
    assert not (source.parent / "dist").exists()
    return str(error.value)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--platform", "macos"],
            f"--platform macos: {ONLY_LINUX} macos",
        ),
        (
            ["--only=cp311-macosx_x86_64"],
            f"cp311-macosx_x86_64: {ONLY_LINUX} macosx_x86_64",
        ),
        (
            ["--output-dir", "wheels"],
            "--output-dir: the wheels go into the folder that vbuild is given; leave it out",
        ),
        (
            ["--print-build-identifiers"],
            "--print-build-identifiers: makes no wheels; run cibuildwheel itself, or vbuild with --dry-run",
        ),
        (
            ["demo-1.0.tar.gz"],
            "demo-1.0.tar.gz: not a folder; expected that of a project: unpack the sdist",
        ),
        (
            ["--only", "cp27-nothing"],
            "cibuildwheel: argument --only: invalid choice: 'cp27-nothing'",
        ),
        (["--only"], "cibuildwheel: argument --only: expected one argument"),
        (["--plaform", "linux"], "cibuildwheel: unrecognized arguments: --plaform"),
        (["--", "setup.py"], "setup.py: not a folder; expected that of a project: unpack the sdist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@needs_podman
def test_arguments_that_give_no_variants_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    assert refused(project(tmp_path / "project", TWO_LEVELS), *arguments) == message


@pytest.mark.nightly
@needs_podman
def test_an_engine_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    source = project(tmp_path / "project", TWO_LEVELS)
    message = (
        "no podman on PATH, in which cibuildwheel builds wheels for Linux; install it (apt-get install podman), or "
        "name another: CIBW_CONTAINER_ENGINE=podman"
    )
    assert refused(source, PATH=str(tmp_path)) == message
    source = project(
        tmp_path / "other", f'{TWO_LEVELS}[tool.cibuildwheel]\ncontainer-engine = "podman; create_args: -q"\n'
    )
    with inside(source, PATH=str(tmp_path)):
        del os.environ["CIBW_CONTAINER_ENGINE"]
        with pytest.raises(BuildError, match=r"^no podman on PATH"):
            cibuildwheel(tmp_path / "dist")
        project(source, f'{TWO_LEVELS}[tool.cibuildwheel.linux]\ncontainer-engine = {{ name = "docker" }}\n')
        with pytest.raises(
            BuildError, match=r"^no docker on PATH.*apt-get install docker.io, or apt-get install podman"
        ):
            cibuildwheel(tmp_path / "dist")


def failures(source: Path, **variables: str) -> ReleaseResult:
    """The release of *source*, of which something fails."""
    with inside(source, **variables):
        return cibuildwheel(source.parent / "dist")


def errors(release: ReleaseResult) -> list[str]:
    """Why each failed, in the first line of it."""
    return [failure.error.splitlines()[0] for failure in release.failures]


BY_PATH = """
import os
from setuptools import Extension, setup
os.environ["CC"] = os.environ["LDSHARED"] = "/usr/bin/gcc"
os.environ["LDSHARED"] += " -shared"
setup(ext_modules=[Extension("demo", ["demo.c", "kernel.c"], extra_compile_args=["-fPIC"])])
"""


@pytest.mark.nightly
@needs_podman
def test_a_level_whose_compiler_is_called_by_its_path_is_no_level(tmp_path: Path) -> None:
    source = project(tmp_path / "project", OFFLINE + TWO_LEVELS, setup=BY_PATH)
    release = failures(source)
    assert [product.label for product in release.products] == [None]
    (error,) = errors(release)
    assert error == (
        "demo-1.0-cp311-cp311-manylinux1_x86_64.manylinux_2_5_x86_64.whl: no compiler was called through a "
        "compiler wrapper, "
        "so nothing shows that its code is for x86-64-v3: the project calls one by its path, or has put another "
        "folder first on PATH"
    )


NOT_PUT = (
    "before-build ended without vbuild's part of it, which puts compiler wrappers before the compilers: the "
    "project's own has "
    "an exec or a trap for EXIT; expected neither: leave the exec out, or put that command into a script"
)


@pytest.mark.nightly
@needs_podman
def test_nothing_is_built_without_wrappers_and_called_a_variant(tmp_path: Path) -> None:
    source = project(tmp_path / "project", OFFLINE + TWO_LEVELS)
    release = failures(source, CIBW_BEFORE_BUILD="exec true")
    assert release.products == ()
    wheel = "demo-1.0-cp311-cp311-manylinux1_x86_64.manylinux_2_5_x86_64.whl"
    assert [failure.error for failure in release.failures] == 2 * [f"{wheel}: {NOT_PUT}"]
    release = failures(source, CIBW_BEFORE_BUILD="trap 'echo bye' EXIT", CIBW_TEST_COMMAND="exit 3")
    assert [failure.error for failure in release.failures] == 2 * [f"{IDENTIFIER}: {NOT_PUT}"]


OLD = """
import sys
from pathlib import Path
from vbuild.release.cibuildwheel import cibuildwheel
from vbuild.errors import BuildError
try:
    cibuildwheel(Path("dist"))
except BuildError as error:
    print(error)
"""


@pytest.mark.nightly
@needs_podman
@pytest.mark.network
def test_a_cibuildwheel_that_cannot_add_to_options_is_refused(tmp_path: Path) -> None:
    source = project(tmp_path / "project", TWO_LEVELS)
    old = tmp_path / "old"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(old), "cibuildwheel==4.2.1"]
    subprocess.run(pip, check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(old), str(Path(__file__).parents[3])])}
    ran = subprocess.run(
        [sys.executable, "-c", OLD], cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.stderr, ran.stdout) == ("", TOO_OLD)
