"""Variant wheels from their index: uv takes the best for the machine, pip the plain one, and companions come along."""

from pathlib import Path

import pytest

from tests.factories.clients import masked
from tests.factories.releases import V3, commands, companion, release
from tests.factories.virtual_environments import VirtualEnvironment, serving_folder
from vbuild.publishing.local import Local
from vbuild.publishing.model import PublishLayout
from vbuild.publishing.publish import publish
from vbuild.publishing.suffix import Suffix
from vbuild.publishing.variants import Variants


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """Two releases of demo, the last of which requires a companion."""
    release(tmp_path / "dist", version="0.9")
    release(tmp_path / "dist", metadata="Requires-Dist: demo-libs==0.187650320598251\n", labels=[V3])
    companion(tmp_path / "dist")
    return tmp_path / "dist"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("level", "expected"), [("x86-64-v3", V3), ("x86-64", "plain")])
def test_uv_takes_what_the_machine_can_run(
    dist: Path, tmp_path: Path, venv: VirtualEnvironment, level: str, expected: str
) -> None:
    publish([dist], tmp_path / "site", layouts=[Variants()])
    site = tmp_path / "site" / "variants"
    inside = " ".join(f"'{word}'" for word in masked(level, tmp_path))
    venv.runs(f"{inside} {commands(site)[0]}", folder=site)
    assert venv.installed == {"demo": "1.0", "demo-libs": "0.187650320598251"}
    assert venv.runs("demo-level; demo-tool") == f"{expected}\ntool"
    venv.runs("pip check && uv pip check && uv pip uninstall demo demo-libs")
    assert venv.installed == {}


@pytest.mark.nightly
def test_who_knows_no_variants_takes_the_plain_wheel_over_http(
    dist: Path, tmp_path: Path, venv: VirtualEnvironment
) -> None:
    with serving_folder(tmp_path) as url:
        publish([dist], tmp_path, layouts=[Variants(url=f"{url}/variants/")])
        for command in commands(tmp_path / "variants")[1:]:
            venv.runs(f"uv pip uninstall demo demo-libs; {command}")
            assert venv.installed == {"demo": "1.0", "demo-libs": "0.187650320598251"}
            assert venv.runs("demo-level") == "plain"


@pytest.mark.nightly
@pytest.mark.parametrize("layout", [Local(), Suffix(), Variants()], ids=lambda layout: str(layout.name))
def test_the_plain_wheel_is_taken_before_one_of_its_name_that_the_index_has(
    dist: Path, tmp_path: Path, venv: VirtualEnvironment, layout: PublishLayout
) -> None:
    release(tmp_path / "rival", labels=[], files={"demo/level.py": "LEVEL = 'rival'\n"})
    publish([tmp_path / "rival"], tmp_path / "rivals", layouts=[Variants()])
    publish([dist], tmp_path / "a site", layouts=[layout])
    index = f"file://{tmp_path}/rivals/variants/simple"
    there = tmp_path / "a site" / layout.name
    known = f"PIP_INDEX_URL={index} UV_DEFAULT_INDEX={index}"
    for command in commands(there)[-2:]:
        venv.runs(f"uv pip uninstall demo demo-libs; {known} {command}", folder=there)
        assert venv.runs("demo-level") == "plain"
