"""Two builds of a real project are one: by two users, at two times, in two folders, with another number of jobs.

The second reads folders from their end. Where two wheels are not the same, the report of both names each file that is
another; diffoscope says in what, if it is there.
"""

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.factories.gpu_projects import COLLATZ, HISTO, TALLY, Project, cuda
from tests.factories.reversed_folders import reversed_order
from tests.factories.tools import needs
from tests.factories.workdir import Workdir, file_digests, wheels

RECIPES = Path(__file__).parents[2] / "recipes"
ALICE = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
BOB = {"TZ": "Asia/Kolkata", "LC_ALL": "C", "PYTHONHASHSEED": "77"}

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    needs("gcc"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
]


def released(folder: Path, text: str, *, jobs: int, umask: int, variables: dict[str, str]) -> dict[str, str]:
    """The files of the release of the recipe *text*, by path; the report without how long builds took."""
    folder.mkdir(parents=True)
    workdir = Workdir.at(folder)
    (folder / "recipe.toml").write_text(text)
    temporary = folder / "temporary"
    temporary.mkdir()
    before = os.umask(umask)
    try:
        command = ("matrix", "recipe.toml", "-o", "dist", "--fresh", "--jobs", jobs)
        ran = workdir.vbuild(*command, TMPDIR=str(temporary), **variables)
    finally:
        os.umask(before)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert wheels(folder / "dist")
    report = (folder / "dist/report.json").read_text()
    assert '"build_seconds"' in report
    timeless = re.sub(r'"build_seconds": [\d.]+', "", report)
    files = {name: digest for name, digest in file_digests(folder / "dist").items() if not name.startswith("report.")}
    return {**files, "report.json": timeless}


def check_twice(folder: Path, text: str, *, named: frozenset[str] = frozenset()) -> None:
    """Build *text* in two places: but for the files *named*, as the report says, all is the same."""
    one, other = folder / "a", folder / "users" / "somebody-else"
    alice = released(one, text, jobs=1, umask=0o022, variables=ALICE)
    bob = released(other, text, jobs=2, umask=0o077, variables={**BOB, **reversed_order()})
    for place in (one, other):
        entries = json.loads((place / "dist/report.json").read_text())["wheels"]
        assert {file["file"] for entry in entries for file in entry["not_reproducible"]} == named
    if named:
        assert differing(one / "dist", other / "dist") == named
    else:
        assert alice == bob, difference(one / "dist", other / "dist")


def differing(one: Path, other: Path) -> frozenset[str]:
    """The files of wheels that are not the same in two folders, but for what has the hashes of others."""
    assert wheels(one).keys() == wheels(other).keys()
    found = set()
    for name in wheels(one):
        with zipfile.ZipFile(one / name) as first, zipfile.ZipFile(other / name) as second:
            assert first.namelist() == second.namelist()
            found |= {path for path in first.namelist() if first.read(path) != second.read(path)}
    return frozenset(path for path in found if not path.endswith((".dist-info/RECORD", "/sboms/vbuild.cdx.json")))


def difference(one: Path, other: Path) -> str:
    """What diffoscope says of two folders, as far as it is on this machine."""
    if not shutil.which("diffoscope"):
        return "diffoscope would say in what they differ: apt-get install diffoscope-minimal"
    command = [
        "diffoscope",
        "--max-report-size=20000",
        "--exclude-directory-metadata=yes",
        "--exclude=report.*",
        str(one),
        str(other),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("name", ["annoy", "levenshtein", "contourpy"])
def test_two_builds_of_a_project_of_the_index_are_the_same(name: str, tmp_path: Path) -> None:
    text = re.sub(r"cpu = \[.*\]", 'cpu = ["x86-64", "x86-64-v3"]', (RECIPES / f"{name}.toml").read_text())
    build = '[build]\ncache = "none"\n'
    check_twice(tmp_path, text.replace("[build]\n", build) if "[build]" in text else f"{text}\n{build}")


@pytest.mark.parametrize("project", [TALLY, COLLATZ, HISTO], ids=str)
@pytest.mark.parametrize("cache", ["none", "ccache"])
def test_two_builds_of_a_project_with_gpu_code_are_the_same(cache: str, project: Project, tmp_path: Path) -> None:
    groups = cuda({"sm80": "80", "sm120": "120+ptx"})
    text = project.recipe(tmp_path, groups + project.rules).read_text()
    check_twice(tmp_path, text.replace("[build.cuda]", f'[build]\ncache = "{cache}"\n[build.cuda]'))


# of no recipe in this repository: a name, a version and the hash of its sdist; what a wheel has of its build; and keys
OTHERS = {
    "in C, with CMake": (
        "spglib==2.8.0 12a224434b5659793353937625fd7eb91c00c8952c18ca729a7a8117b1e29e8f",
        {"spglib/lib/pkgconfig/spglib.pc"},
        "",
    ),
    "in Rust, by maturin": (
        "nh3==0.3.4 96709a379997c1b28c8974146ca660b0dcd3794f4f6d50c1ea549bab39ac6ade",
        set[str](),
        "",
    ),
    "in Rust, by setuptools": (
        "libcst==1.9.0 087b58a9afe076bb08e2d726478e1f16cb928d67ffa9092817e033c335de522a",
        set[str](),
        "",
    ),
    "in Fortran, by f2py": (
        "apexpy==2.1.1 f1f0a555664f75734a02bb48217676b5534e40eb0e8d64e04bf24274be7f7825",
        set[str](),
        "",
    ),
    "in CUDA, with line numbers": (
        "culof==0.2.0 4f2e766fd7293860da32218489b429cb938cc9fd5830fa04c70a638d7709b023",
        set[str](),
        """
[[matrix.cuda]]
toolkit = "13.0"
libraries = ["cublas"]
gpus = { sm80 = "80", sm120 = "120+ptx" }
[build.cuda]
archs = "replace"
lineinfo = true
[repair]
exclude = ["libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13"]
""",
    ),
}
NEEDED = {"in Rust": "rustc", "in Fortran": "gfortran"}


@pytest.mark.parametrize("about", OTHERS)
def test_what_two_builds_of_any_project_differ_in_is_named(about: str, tmp_path: Path) -> None:
    program = NEEDED.get(about.partition(",")[0], "gcc")
    if not shutil.which(program):
        pytest.skip(f"{program} not on this machine")
    release, named, more = OTHERS[about]
    project, _, digest = release.partition(" ")
    name = project.partition("==")[0]
    text = f'name = "{name}"\n[source]\nsdist = "{project}"\nsha256 = "{digest}"\n'
    levels = more or '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
    check_twice(tmp_path, f"{text}{levels}", named=frozenset(named))
