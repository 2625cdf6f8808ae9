"""What of a wheel would be different elsewhere is found by its bytes; bills of materials lose the build's folders."""

import json
import os
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.factories.fatbins import PTX, device_library, entry, fatbin
from tests.factories.projects import tree
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.build.reproducible import BuildTraces, Unreproducible, not_reproducible, without_folders
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.wheel.archive import open_wheel

TREE, CACHE = Path("/home/me/dist/.vbuild-0123abcd/builds/plain/tree"), Path("/home/me/.cache/vbuild/environments/0a1b")
BELOW = "/scratch/me/"  # what is temporary
TRACES = BuildTraces(((str(TREE), "."), (str(CACHE), "environments")), BELOW.rstrip("/"), ("2026-09-21",))

FOUND = {
    f"-I{TREE}/include": "names a folder of its build: ./include",
    f"{TREE}": "names a folder of its build: .",
    f"a {CACHE}/bin/python": "names a folder of its build: environments/bin/python",
    "/srv/dist/.vbuild-deadbeef/builds/x": "names a folder of a build: …/builds/x",
    f"-L{BELOW}tmp9dnr_if5/wheel/lib -lm": "names a temporary file of its build: …/wheel/lib",
    f"{BELOW}cc1Zx_9Q.o": "names a temporary file of its build: …",
    f"{BELOW}tmp.Xa1b2c3d4e": "names a temporary file of its build: …",
    f"{BELOW}pip-build-env-abcd1234/overlay": "names a temporary file of its build: …/overlay",
    f"{BELOW}build-env-abcd_234/lib": "names a temporary file of its build: …/lib",
    "x tmpxft_00003e97_00000000-6_a.cudafe1.cpp": "has the number of a process of nvcc",
    "built on 2026-09-21T13:00": "has the day of its build",
    "1.0.dev3+d20260921": "has the day of its build",
    "Mon Sep 21 13:00:00 2026": "has the day of its build",
}


@pytest.mark.parametrize("text", FOUND)
def test_a_file_that_gives_its_build_away_is_named_with_the_reason(text: str, tmp_path: Path) -> None:
    made = wheel(tmp_path, files={"demo/a.txt": f"nothing\n{text}\n", "demo/b.txt": "nothing"})
    found = not_reproducible(made, TRACES, tmp_path / "source", has_gpu_code=False)
    assert found == (Unreproducible("demo/a.txt", FOUND[text]),)


def test_a_day_that_the_sources_name_is_not_that_of_the_build(tmp_path: Path) -> None:
    made = wheel(tmp_path, files={"demo/changes.txt": "1.0 (2026-09-21)\n"})
    source = tree(tmp_path / "source", {"docs/changes.txt": "1.0 (2026-09-21)\n"})
    assert not_reproducible(made, TRACES, source, has_gpu_code=False) == ()


@needs("gcc")
def test_gpu_code_is_read_as_the_driver_reads_it(tmp_path: Path) -> None:
    code = PTX.rstrip(b"\0") + f'\t.file\t1 "{TREE}/src/a.cu"\n'.encode() * 9 + b"\0"
    library = device_library(fatbin(entry(FatbinKind.PTX, 90, code=code, flags=FatbinFlag.ZSTD)))
    assert os.fsencode(TREE) not in library
    made = wheel(tmp_path, "demo-1.0-cp311-cp311-linux_x86_64.whl", files={"demo.so": library})
    why = "GPU code names a folder of its build: ./src/a.cu"
    assert not_reproducible(made, TRACES, tmp_path, has_gpu_code=True) == (Unreproducible("demo.so", why),)


BILL = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {
        "component": {
            "type": "library",
            "bom-ref": f"path+file://{TREE}#demo@1.0",
            "name": "demo",
            "version": "1.0",
            "components": [{"type": "library", "bom-ref": f"path+file://{TREE}#demo@1.0 bin-target-0", "name": "demo"}],
        }
    },
    "dependencies": [{"ref": f"path+file://{TREE}#demo@1.0"}],
}


def test_a_bill_of_materials_names_the_sources_without_their_folder(tmp_path: Path) -> None:
    path = "demo-1.0.dist-info/sboms/demo.cyclonedx.json"
    made = wheel(tmp_path, files={path: json.dumps(BILL, indent=2), "demo/kept.txt": str(TREE)})
    neutral = without_folders(made, tmp_path / "without", TRACES)
    with zipfile.ZipFile(neutral) as archive:
        text = archive.read(path).decode()
        assert archive.read("demo/kept.txt").decode() == str(TREE)
    assert json.loads(text) == json.loads(json.dumps(BILL).replace(str(TREE), "."))
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(text) is None
    with open_wheel(neutral) as opened:
        opened.check()
    assert [one.file for one in not_reproducible(neutral, TRACES, tmp_path, has_gpu_code=False)] == ["demo/kept.txt"]


def test_a_wheel_without_such_a_bill_stays_as_it_is(tmp_path: Path) -> None:
    made = wheel(tmp_path, files={"demo-1.0.dist-info/sboms/demo.cyclonedx.json": "{}", "demo/kept.txt": str(TREE)})
    assert without_folders(made, tmp_path / "without", TRACES) == made
