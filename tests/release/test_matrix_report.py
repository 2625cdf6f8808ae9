"""report.json and report.html of real releases: as the schema says, and as the folder is."""

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.factories.gpu_projects import FRESH, LEVELS, TALLY, cuda
from tests.factories.projects import KERNEL, c_project, tree
from tests.factories.tools import needs
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.machine import Machine
from vbuild.release.matrix import matrix
from vbuild.release.model import ReleaseResult
from vbuild.release.publication import STANDARD
from vbuild.release.report import Report, schema
from vbuild.variants.select import select

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc", "g++"),
]

BROKEN = "#ifdef __AVX2__\n#error no AVX2, please\n#endif\n"


def recipe(folder: Path, *, kernel: str = KERNEL) -> Path:
    c_project(folder / "project", kernel=kernel)
    text = '[matrix]\ncpu = ["x86-64", "x86-64-v2", "x86-64-v3"]\n'
    tree(folder, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{text}'})
    return folder / "demo.toml"


def read(folder: Path) -> Report:
    """The report in *folder*, checked with the schema by another's validator."""
    data = json.loads((folder / "report.json").read_text())
    Draft202012Validator(schema()).validate(data)
    return Report.of_data(data)


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReleaseResult]:
    """A CUDA release for two CPU levels and four groups of GPUs."""
    folder = tmp_path_factory.mktemp("gpus")
    release = TALLY.released(folder, f"[matrix]\n{LEVELS}{cuda()}{FRESH}{TALLY.rules}")
    assert not release.failures
    return folder / "dist", release


@pytest.mark.nightly
def test_a_release_for_gpus_is_reported_with_what_each_machine_gets(gpus: tuple[Path, ReleaseResult]) -> None:
    folder, _ = gpus
    report = read(folder)
    assert [index["index"] for index in report.variants] == ["tally-1.0-variants.json"]
    assert {(choice.machine, choice.driver): choice.label for choice in report.choices} == {
        ("any x86-64", None): None,
        ("Nehalem, Bulldozer", None): None,
        ("Haswell, Zen", None): None,
        ("Skylake-SP, Zen 4", None): None,
        ("NVIDIA T4", "13.0"): "x86_64_v3_sm75",
        ("NVIDIA A100", "13.0"): "x86_64_v3_sm80",
        ("NVIDIA A10, RTX 3090", "13.0"): "x86_64_v3_sm80",
        ("NVIDIA L4, RTX 4090", "13.0"): "x86_64_v3_sm80",
        ("NVIDIA H100", "13.0"): "x86_64_v3_sm90",
        ("NVIDIA B200", "13.0"): None,
        ("NVIDIA RTX 5090", "13.0"): "x86_64_v3_sm120",
        ("NVIDIA A100", "12.8"): None,
    }


@pytest.mark.nightly
def test_the_finished_folder_gives_each_machine_what_the_report_says(gpus: tuple[Path, ReleaseResult]) -> None:
    folder, release = gpus
    here = Machine.here()
    for choice in release.choices:
        (standard,) = [one for one in STANDARD if one.name == choice.machine]
        capability = (Dotted(*divmod(standard.gpu.number, 10)),) if standard.gpu else ()
        driver = Dotted.parse(choice.driver) if choice.driver else None
        machine = Machine(here.python, here.tags, standard.cpu, Nvidia(driver, capability))
        assert select("tally", [folder], machine=machine).wheel.name == choice.wheel


@pytest.mark.nightly
def test_a_wheel_of_an_earlier_run_does_not_pass_for_one_of_this(tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    assert matrix(recipe(tmp_path), folder).notes == ()
    recipe(tmp_path, kernel=BROKEN + KERNEL)
    release = matrix(tmp_path / "demo.toml", folder)
    assert release.notes == ("x86_64_v3: failed, and its wheel of an earlier run is still there, and indexed",)
    assert read(folder).notes == release.notes
