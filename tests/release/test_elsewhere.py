"""A release that is built in two places: what is not the same there, the reports name, and nothing else differs."""

import json
import os
from pathlib import Path

import pytest

from tests.build.test_reproducible_projects import differing
from tests.factories.projects import c_project
from tests.factories.tools import needs
from tests.factories.workdir import Workdir

pytestmark = [needs("gcc"), pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")]

# what a project can write about its build, and what is the same everywhere
FILES = """
import tempfile, time
FILES = {
    "demo/where.txt": os.path.abspath("module.c"),
    "demo/between.txt": os.path.join(tempfile.mkdtemp(), "lib"),
    "demo/when.txt": time.strftime("%Y-%m-%d", time.gmtime()),
    "demo/epoch.txt": time.strftime("%Y-%m-%d", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))),
    "demo/mode.txt": str(os.umask(0o22)),
    "demo-1.0.dist-info/sboms/demo.cyclonedx.json": f'{{"bom-ref": "path+file://{os.getcwd()}#demo@1.0"}}',
}
"""
WHY = {
    "demo/where.txt": "names a folder of its build: ./module.c",
    "demo/between.txt": "names a temporary file of its build: …/lib",
    "demo/when.txt": "has the day of its build",
}
PRINTED = """\
not the same bytes if built elsewhere: 3 files
  demo/between.txt names a temporary file of its build: …/lib (plain)
  demo/when.txt has the day of its build (plain)
  demo/where.txt names a folder of its build: ./module.c (plain)
"""


def released(folder: Path, *, umask: int, **variables: str) -> str:
    """What a release in *folder* says of a project that writes about its build."""
    for name in ("home", "temporary"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    project = c_project(folder / "project")
    backend = (project / "backend.py").read_text()
    entries = "files |= {path: text.encode() for path, text in FILES.items()}"
    backend = backend.replace("    record = ", f"    {entries}\n    record = ", 1)
    (project / "backend.py").write_text(backend.replace("\ndef build_wheel", f"{FILES}\ndef build_wheel", 1))
    (folder / "demo.toml").write_text('name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64"]\n')
    workdir = Workdir(folder, folder / "cache")
    earlier = os.umask(umask)
    try:
        places = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "temporary")}
        ran = workdir.vbuild("matrix", "demo.toml", "-o", "dist", **places, **variables)
    finally:
        os.umask(earlier)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.mark.nightly
def test_what_differs_between_two_places_is_what_the_report_names(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "users" / "somebody else"
    printed = released(one, umask=0o022, TZ="UTC", LC_ALL="C.UTF-8")
    assert PRINTED in printed
    assert PRINTED in released(other, umask=0o077, TZ="Asia/Kolkata", LC_ALL="C", PYTHONHASHSEED="77")
    for place in (one, other):
        [entry] = json.loads((place / "dist/report.json").read_text())["wheels"]
        assert {file["file"]: file["why"] for file in entry["not_reproducible"]} == WHY
    # both were built on one day
    assert differing(one / "dist", other / "dist") == WHY.keys() - {"demo/when.txt"}
    # a wheel that is kept is as reproducible as it was
    kept = released(one, umask=0o022, TZ="UTC", LC_ALL="C.UTF-8")
    assert "kept from an earlier run: 1 of 1 wheels" in kept
    assert PRINTED in kept
    page = (one / "dist/report.html").read_text()
    assert "demo/where.txt names a folder of its build: ./module.c: it would not have the same bytes" in page
