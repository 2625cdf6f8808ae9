"""Local versions as pip and uv take them: from one index or several, files or HTTP, and what is installed then."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.releases import TOOL, V3, V4, commands, companion, release
from tests.factories.tools import needs_judge
from tests.factories.virtual_environments import VirtualEnvironment, serving_folder
from tests.factories.wheels import contents
from vbuild.publishing.local import Local
from vbuild.publishing.publish import publish

THREE, FOUR = "1.0+x86.64.v3", "1.0+x86.64.v4"
NONE = None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of demo as plain wheel and for two levels, and one of vision, which requires it."""
    folder = tmp_path_factory.mktemp("local")
    dist = folder / "dist"
    companion(dist)
    release(dist, metadata="Requires-Dist: demo-libs==0.187650320598251\n")
    release(dist, "vision", "2.0", metadata="Requires-Dist: demo==1.0\n")
    publish([dist], folder / "site", layouts=[Local()])
    return folder / "site" / "local"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serving_folder(site) as url:
        yield url


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> VirtualEnvironment:
    """Somebody who only asks what would be installed."""
    return VirtualEnvironment.at(tmp_path_factory.mktemp("asking") / "home")


# indexes, request, what pip and what uv takes: pip looks into all indexes, uv into the first that has the project
REQUESTS = [
    (("plain", V3, V4), "demo", (FOUR, "1.0")),
    (("plain", V3, V4), "demo==1.0", (FOUR, "1.0")),
    ((V3, V4, "plain"), "demo==1.0", (FOUR, THREE)),
    (("plain", V3, V4), "demo>1.0", (NONE, NONE)),
    ((V3, V4), "demo>1.0", (NONE, NONE)),
    ((V3, V4), "demo>=1.0", (FOUR, THREE)),
    ((V3, V4), "demo==1.0+x86.64.v3", (THREE, THREE)),
    ((V3,), "demo==1.0+x86_64_v3", (THREE, THREE)),
    ((V3,), "demo", (THREE, THREE)),
    ((V3,), "demo==1.0+x86.64.v4", (NONE, NONE)),
    (("plain",), "demo==1.0", ("1.0", "1.0")),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("indexes", "asked", "expected"), REQUESTS)
def test_eleven_requests_are_answered_as_the_notes_say(
    address: str,
    asking: VirtualEnvironment,
    indexes: tuple[str, ...],
    asked: str,
    expected: tuple[str | None, str | None],
) -> None:
    urls = [f"{address}/{index}/simple" for index in indexes]
    taken = taken_by_pip(asking, urls, asked), taken_by_uv(asking, [f"--index {url}" for url in urls], asked)
    assert taken == expected


def test_in_one_folder_uv_takes_the_last_local_version_as_pip_does(site: Path, asking: VirtualEnvironment) -> None:
    links = [f"--find-links {site / index}" for index in ("plain", V3, V4)]
    assert taken_by_uv(asking, links, "demo") == FOUR
    assert taken_by_uv(asking, links, "demo==1.0") == FOUR
    assert taken_by_uv(asking, links, "demo==1.0+x86.64.v3") == THREE


def taken_by_pip(venv: VirtualEnvironment, urls: list[str], request: str) -> str | None:
    extra = " ".join(f"--extra-index-url {url}" for url in urls)
    ran = venv.tries(f"pip install --dry-run --quiet --no-deps --ignore-installed {extra} --report - '{request}'")
    if ran.returncode:
        assert "No matching distribution found" in ran.stderr
        return None
    return str(json.loads(ran.stdout)["install"][0]["metadata"]["version"])


def taken_by_uv(venv: VirtualEnvironment, places: list[str], request: str) -> str | None:
    command = f"echo '{request}' | uv pip compile --quiet --no-deps --no-header --no-annotate {' '.join(places)} -"
    ran = venv.tries(command)
    if ran.returncode:
        assert "No solution found" in ran.stderr or "there is no version" in ran.stderr, ran.stderr
        return None
    return ran.stdout.strip().partition("==")[2]


@pytest.mark.sampled("uv")
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_what_readme_says_installs_the_label_with_siblings_and_companions(
    site: Path, venv: VirtualEnvironment, tool: str
) -> None:
    command = next(line for line in commands(site, V3) if line.startswith(tool))
    venv.runs(command, folder=site)
    assert venv.installed == {"demo": THREE, "vision": "2.0+x86.64.v3", "demo-libs": "0.187650320598251"}
    assert venv.runs("demo-level; demo-tool; vision-level") == f"{V3}\ntool\n{V3}"
    venv.runs("pip check && uv pip check")
    program = "from importlib.metadata import files, version; print(version('demo'), len(files('demo')) > 5)"
    assert venv.python(program) == f"{THREE} True"
    quiet = "--quiet --yes" if tool == "pip" else "--quiet"
    command = f"{tool} {'' if tool == 'pip' else 'pip '}uninstall {quiet} demo vision demo-libs"
    venv.runs(command)
    assert venv.installed == {}
    assert not [path for path in venv.site.rglob("*") if path.is_file() and "demo" in str(path)]


@pytest.mark.nightly
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_another_label_and_the_plain_wheel_take_the_place_of_one(
    site: Path, venv: VirtualEnvironment, tool: str
) -> None:
    for what, level in ((V3, V3), (V4, V4), ("The plain wheel", "plain"), (V3, V3)):
        command = next(line for line in commands(site, what) if line.startswith(tool))
        venv.runs(command, folder=site)
        assert venv.runs("demo-level") == level


def test_uv_locks_each_extra_to_its_index(site: Path, venv: VirtualEnvironment) -> None:
    tables = (site / "README.md").read_text().partition("```toml\n")[2].partition("```")[0]
    project = site / "pyproject.toml"
    project.write_text(f'[project]\nname = "mine"\nversion = "0"\nrequires-python = ">=3.11"\n{tables}')
    try:
        for extra, version in (("x86-64-v3", "v3"), ("x86-64-v4", "v4")):
            venv.runs(f"UV_PROJECT_ENVIRONMENT={venv.folder}/venv uv sync --extra {extra}", folder=site)
            assert venv.installed["demo"] == f"1.0+x86.64.{version}"
            assert venv.runs("vision-level") == f"x86_64_{version}"
    finally:
        for path in (project, site / "uv.lock"):
            path.unlink(missing_ok=True)


def test_all_but_metadata_is_as_it_was_byte_for_byte(site: Path) -> None:
    source = next((site.parent.parent / "dist").glob("vision-2.0-*-x86_64_v3.whl"))
    made = site / V3 / "vision-2.0+x86.64.v3-py3-none-any.whl"
    before, after = contents(source), contents(made)
    renamed = {path.replace("vision-2.0", "vision-2.0+x86.64.v3"): data for path, data in before.items()}
    del renamed["vision-2.0+x86.64.v3.dist-info/variant.json"]
    assert after.keys() == renamed.keys()
    assert {path for path in after if after[path] != renamed[path]} == {
        f"vision-2.0+x86.64.v3.dist-info/{name}" for name in ("METADATA", "RECORD")
    }
    assert after["vision-2.0+x86.64.v3.data/scripts/vision-tool"].decode() == TOOL
    assert b"Requires-Dist: demo==1.0+x86.64.v3\n" in after["vision-2.0+x86.64.v3.dist-info/METADATA"]


@pytest.mark.nightly
@needs_judge("twine")
def test_twine_accepts_the_wheels(site: Path) -> None:
    wheels = [str(path) for path in site.glob("*/*.whl")]
    subprocess.run([sys.executable, "-m", "twine", "check", *wheels], check=True, capture_output=True)


def test_two_runs_give_the_same_bytes(site: Path, tmp_path: Path) -> None:
    publish([site.parent.parent / "dist"], tmp_path / "again", layouts=[Local()])
    for path in (path for path in site.rglob("*") if path.is_file()):
        assert (tmp_path / "again" / "local" / path.relative_to(site)).read_bytes() == path.read_bytes()
