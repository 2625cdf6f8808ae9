"""Renamed wheels as pip and uv install them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.extensions import MODULE, library
from tests.factories.releases import V3, V4, commands, release
from tests.factories.tools import needs, needs_judge
from tests.factories.variants import variant
from tests.factories.virtual_environments import VirtualEnvironment
from tests.factories.wheels import contents, wheel
from vbuild.publishing.check import check_layout
from vbuild.publishing.publish import publish
from vbuild.publishing.suffix import Suffix
from vbuild.variants.stamp import stamped

EXTRAS = (
    "Provides-Extra: all\nRequires-Dist: helper; extra == 'all'\n"
    "Provides-Extra: dev\nRequires-Dist: demo[all]; extra == 'dev'\n"
)
TOOLS = ["uv pip", "pip"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Releases of demo, of vision, which requires it, and of helper, which has no variants."""
    folder = tmp_path_factory.mktemp("suffix") / "dist"
    release(folder, metadata=EXTRAS)
    release(folder, "vision", "2.0", metadata="Requires-Dist: demo==1.0\n")
    release(folder, "helper", labels=[])
    return folder


@pytest.fixture(scope="module")
def site(dist: Path) -> Path:
    publish([dist], dist.parent / "site", layouts=[Suffix()])
    return dist.parent / "site" / "suffix"


def installs(venv: VirtualEnvironment, tool: str, site: Path, *asked: str) -> None:
    places = f"--extra-index-url file://{site}/simple" if tool == "pip" else f"--index file://{site}/simple"
    venv.runs(f"{tool} install {places} {' '.join(asked)}")


def removes(venv: VirtualEnvironment, tool: str, *projects: str) -> None:
    venv.runs(f"{tool} uninstall {'--yes' if tool == 'pip' else ''} {' '.join(projects)}")


@pytest.mark.nightly
@pytest.mark.parametrize("tool", TOOLS)
def test_what_readme_says_installs_uninstalls_and_installs_again(
    site: Path, venv: VirtualEnvironment, tool: str
) -> None:
    command = next(line for line in commands(site, V4) if line.startswith(f"{tool} "))
    for _ in range(2):
        venv.runs(command, folder=site)
        assert venv.installed == {"demo-x86-64-v4": "1.0", "vision-x86-64-v4": "2.0"}
        assert venv.runs("demo-level; demo-tool; vision-level") == f"{V4}\ntool\n{V4}"
        venv.runs("pip check && uv pip check")
        removes(venv, tool, "demo-x86-64-v4", "vision-x86-64-v4")
        assert venv.installed == {}
        assert not [path for path in venv.site.rglob("*") if path.is_file() and "demo" in str(path)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tool", TOOLS)
def test_extras_bring_what_the_renamed_wheel_needs_and_not_the_old_one(
    site: Path, venv: VirtualEnvironment, tool: str
) -> None:
    installs(venv, tool, site, "'demo-x86-64-v3[dev]'")
    assert venv.installed == {"demo-x86-64-v3": "1.0", "helper": "1.0"}


def test_importlib_metadata_knows_the_new_name(site: Path, venv: VirtualEnvironment) -> None:
    installs(venv, "uv pip", site, "demo-x86-64-v3")
    program = (
        "from importlib.metadata import distribution, packages_distributions, requires\n"
        "found = distribution('demo-x86-64-v3')\n"
        "print(found.name, found.version, len(requires('demo-x86-64-v3')), packages_distributions()['demo'])\n"
        "print(*sorted(str(file) for file in found.files if not file.locate().exists()))\n"
    )
    assert venv.python(program) == "demo-x86-64-v3 1.0 2 ['demo-x86-64-v3']"


def test_all_but_metadata_is_as_it_was_byte_for_byte(dist: Path, site: Path) -> None:
    before = contents(dist / "demo-1.0-py3-none-any-x86_64_v3.whl")
    after = contents(site / "demo_x86_64_v3-1.0-py3-none-any.whl")
    renamed = {path.replace("demo-1.0.", "demo_x86_64_v3-1.0."): data for path, data in before.items()}
    del renamed["demo_x86_64_v3-1.0.dist-info/variant.json"]
    assert after.keys() == renamed.keys()
    changed = {path for path in after if after[path] != renamed[path]}
    assert changed == {f"demo_x86_64_v3-1.0.dist-info/{name}" for name in ("METADATA", "RECORD")}


@needs("gcc")
def test_an_extension_module_works_under_the_new_name(tmp_path: Path, venv: VirtualEnvironment) -> None:
    tag = venv.python("import sys; v = sys.version_info; print(f'cp{v[0]}{v[1]}-cp{v[0]}{v[1]}-linux_x86_64')")
    code = library(None, source=MODULE)
    whole = wheel(tmp_path, f"demo-1.0-{tag}.whl", {"demo/__init__.py": "", "demo/_c.so": code})
    stamped(whole, tmp_path / "dist", variant=variant(V3, "x86_64 :: level :: v3"))
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Suffix()])
    installs(venv, "uv pip", tmp_path / "site" / "suffix", "demo-x86-64-v3")
    assert venv.python("import demo._c; print(demo._c.__file__)") == str(venv.site / "demo" / "_c.so")


@pytest.mark.nightly
@needs_judge("twine")
def test_the_index_is_sound_twine_accepts_and_two_runs_give_the_same_bytes(
    dist: Path, site: Path, tmp_path: Path
) -> None:
    assert check_layout(site, "suffix").problems == ()
    wheels = [str(path) for path in site.glob("*.whl")]
    subprocess.run([sys.executable, "-m", "twine", "check", *wheels], check=True, capture_output=True)
    publish([dist], tmp_path / "again", layouts=[Suffix()])
    for path in (path for path in site.rglob("*") if path.is_file()):
        assert (tmp_path / "again" / "suffix" / path.relative_to(site)).read_bytes() == path.read_bytes()
