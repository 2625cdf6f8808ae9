"""Two builds of a real project are one: by two users, at two times, in two folders, with another number of jobs.

The second reads folders from their end. Where two wheels are not the same, diffoscope says in what, if it is there.
"""

import os
import re
import shutil
import subprocess
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


def check_twice(folder: Path, text: str) -> None:
    alice = released(folder / "a", text, jobs=1, umask=0o022, variables=ALICE)
    bob = released(folder / "users" / "somebody-else", text, jobs=2, umask=0o077, variables={**BOB, **reversed_order()})
    assert alice == bob, difference(folder / "a/dist", folder / "users/somebody-else/dist")


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
