"""What is in an image: files where pip would put them, with a RECORD that says so."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.images import TAG, levelled
from tests.factories.tools import needs
from tests.factories.wheels import everything, record_of, wheel
from vbuild.errors import VbuildError
from vbuild.publishing.oci.model import File, NewFile
from vbuild.publishing.oci.plan import files_of, python_for
from vbuild.publishing.releases import OfferedWheel

MINOR = sys.version_info.minor
SITE = f"usr/local/lib/python3.{MINOR}/site-packages"


def files(path: Path) -> dict[str, File]:
    offered = OfferedWheel.of(path)
    python = python_for(offered, None)
    assert python
    return {file.path: file for file in files_of((offered,), python)}


def rows(found: dict[str, File], dist_info: str = "demo-1.0.dist-info") -> list[list[str]]:
    record = found[f"{SITE}/{dist_info}/RECORD"]
    assert isinstance(record, NewFile)
    return list(csv.reader(io.StringIO(record.data.decode())))


def target(path: Path) -> str:
    """Where pip installs below the prefix *path*; Debian's own Python has a folder of its own."""
    return next(path.rglob("*-packages")).relative_to(path).as_posix()


@needs("gcc")
def test_the_files_are_those_that_pip_installs(tmp_path: Path) -> None:
    path = levelled(tmp_path)
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--ignore-installed"]
    subprocess.run([*command, "--prefix", tmp_path / "pip", path], check=True, capture_output=True)
    there = {file.relative_to(tmp_path / "pip").as_posix() for file in (tmp_path / "pip").rglob("*") if file.is_file()}
    site = target(tmp_path / "pip")
    by_pip = {name.replace(site, SITE.removeprefix("usr/local/")) for name in there}
    mine = {file.removeprefix("usr/local/") for file in files(path)}
    # pip's own marks of what was asked for, and from where; headers go where its virtual environment has them
    passed = {name for name in by_pip if name.endswith(("REQUESTED", "direct_url.json"))}
    header = {f"include/python3.{MINOR}/demo/demo.h"}
    assert {name for name in by_pip - passed if not name.endswith("demo.h")} == mine - header
    assert header <= mine


@needs("gcc")
def test_record_lists_every_file_of_the_image_from_site_packages_on(tmp_path: Path) -> None:
    found = files(levelled(tmp_path))
    listed = rows(found)
    places = {(Path("/") / SITE / row[0]).as_posix() for row in listed}
    assert {str(Path(place).parent.resolve() / Path(place).name).lstrip("/") for place in places} == set(found)
    assert ["../../../bin/demo", found["usr/local/bin/demo"].digest, "115"] in listed
    assert listed[-1] == ["demo-1.0.dist-info/RECORD", "", ""]
    assert all(row[1] and row[2] for row in listed[:-1])


@needs("gcc")
def test_scripts_begin_with_the_python_of_the_image_wherever_it_is(tmp_path: Path) -> None:
    found = files(levelled(tmp_path))
    program, script = found["usr/local/bin/demo"], found["usr/local/bin/demo-script"]
    assert isinstance(program, NewFile)
    assert isinstance(script, NewFile)
    first = f"#!/usr/bin/env python3.{MINOR}\n".encode()
    assert program.data == first + (
        b'import sys\nfrom demo.program import main\nif __name__ == "__main__":\n    sys.exit(main())\n'
    )
    assert script.data == first + b"import demo.program\ndemo.program.main()\n"
    assert (program.mode, script.mode) == (0o755, 0o755)


def test_an_installer_of_before_and_signatures_of_the_old_record_do_not_deceive(tmp_path: Path) -> None:
    name, signature = f"demo-1.0-{TAG}.whl", "demo-1.0.dist-info/RECORD.jws"
    listed = {"demo-1.0.dist-info/INSTALLER": "pip"}
    record = record_of(everything(name, listed), "demo-1.0.dist-info")
    path = wheel(tmp_path, name, {**listed, signature: "{}"}, record=record)
    found = files(path)
    installer = found[f"{SITE}/demo-1.0.dist-info/INSTALLER"]
    assert isinstance(installer, NewFile)
    assert installer.data == b"vbuild\n"
    assert [row[0] for row in rows(found)].count("demo-1.0.dist-info/INSTALLER") == 1


@pytest.mark.parametrize(
    ("files_", "message"),
    [
        (
            {
                "demo-1.0.data/scripts/x": "#!python",
                "demo-1.0.dist-info/entry_points.txt": "[console_scripts]\nx = a:b\n",
            },
            "entry point 'x': installed at the place of demo-1.0.data/scripts/x",
        ),
        (
            {"demo-1.0.data/data/share/.wh.doc/x": "x"},
            "share/.wh.doc/x: deletes a file in an image; expected no name with .wh. in front",
        ),
        (
            {"demo-1.0.dist-info/entry_points.txt": "nonsense"},
            "demo-1.0.dist-info/entry_points.txt: line 1: expected [group], or below one name = value",
        ),
        (
            {"demo-1.0.dist-info/entry_points.txt": b"\xff"},
            "demo-1.0.dist-info/entry_points.txt: not UTF-8",
        ),
        (
            {"demo-1.0.dist-info/entry_points.txt": "[console_scripts]\n../x = a:b\n"},
            (
                "demo-1.0.dist-info/entry_points.txt: [console_scripts] '../x': "
                "expected the name of a file in the folder of scripts"
            ),
        ),
        (
            {"demo-1.0.dist-info/entry_points.txt": "[gui_scripts]\nx = a\n"},
            "demo-1.0.dist-info/entry_points.txt: [gui_scripts] 'x': runs 'a', expected 'module:function'",
        ),
    ],
    ids=["script", "whiteout", "no group", "not UTF-8", "name", "reference"],
)
def test_what_cannot_be_installed_is_refused(tmp_path: Path, files_: dict[str, bytes | str], message: str) -> None:
    path = wheel(tmp_path, f"demo-1.0-{TAG}.whl", files_)
    with pytest.raises(VbuildError) as refusal:
        files(path)
    assert str(refusal.value) == f"{path.name}: {message}"
