"""Base and plugins as pip and uv install them: with an extra, without, with one that is misspelt, and mixed."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.factories.level_wheels import level_release, level_wheel, needs_level
from tests.factories.published_wheels import Published, PublishedWheels
from tests.factories.tools import needs
from tests.factories.variants import variant
from tests.factories.virtual_environments import VirtualEnvironment, serving_folder
from tests.factories.wheels import contents, record_of, with_entries
from vbuild.publishing.extras import Extras
from vbuild.publishing.model import install_commands
from vbuild.publishing.publish import PublishedLayout, publish
from vbuild.variants.stamp import stamped
from vbuild.wheel.simple_index import write_simple

pytestmark = [needs("gcc"), needs_level("v3")]

ASK = "python -c 'import levels; from levels import _vbuild_backend as x; print(levels.level(), x.backend())'"
ALONE = "python -c 'import levels; print(levels.level())'"
PLUGIN = "levels-x86-64-v3-plugin"
AGAIN = f"pip install --force-reinstall --no-deps levels==1.0 {PLUGIN}==1.0"
BOTH = pytest.mark.parametrize("client", ["pip", "uv pip"])


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> PublishedLayout:
    """Base and plugins of levels 1.0."""
    folder = tmp_path_factory.mktemp("extras")
    [made] = publish([level_release(folder / "dist", "v1", "v2", "v3")], folder / "a site", layouts=[Extras()])
    return made


@pytest.fixture(scope="module")
def site(laid: PublishedLayout) -> Path:
    assert laid.folder
    return laid.folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of levels 1.0 and 1.1."""
    folder = tmp_path_factory.mktemp("both")
    for version in ("1.0", "1.1"):
        publish(
            [level_release(folder / version, "v1", "v3", version=version)],
            folder / f"site-{version}",
            layouts=[Extras()],
        )
    (folder / "links").mkdir()
    for wheel in folder.glob("site-*/extras/*.whl"):
        (folder / "links" / wheel.name).symlink_to(wheel)
    return folder / "links"


@pytest.fixture
def venv(tmp_path: Path) -> VirtualEnvironment:
    return VirtualEnvironment.at(tmp_path / "home")


@pytest.mark.nightly
def test_every_command_of_the_readme_does_what_it_says(
    laid: PublishedLayout, site: Path, venv: VirtualEnvironment
) -> None:
    *installs, ask, otherwise = laid.plan.uses
    for use, expected in zip(installs, ("v3 x86-64-v3", "v2 x86-64-v2", "v1 plain"), strict=True):
        for command in use.text.splitlines():
            removed = f"uv pip uninstall levels {PLUGIN} levels-x86-64-v2-plugin"
            venv.runs(removed)
            venv.runs(command, folder=site)
            assert venv.runs(ASK) == expected
            assert venv.runs(ask.text) == expected.partition(" ")[2]
            assert venv.runs(otherwise.text) == "plain"


@pytest.mark.nightly
def test_commands_with_a_url_work_from_there(laid: PublishedLayout, site: Path, venv: VirtualEnvironment) -> None:
    with serving_folder(site) as address:
        [again] = publish([site.parent.parent / "dist"], None, layouts=[Extras(address)])
        for command in again.plan.uses[0].text.splitlines():
            venv.runs(command)
            assert venv.runs(ASK) == "v3 x86-64-v3"
            venv.runs(f"uv pip uninstall levels {PLUGIN}")
    assert len(again.plan.uses) == len(laid.plan.uses)


@pytest.mark.nightly
@BOTH
def test_an_index_that_has_the_plain_wheel_too_does_not_get_in_the_way(
    client: str, site: Path, venv: VirtualEnvironment
) -> None:
    plain = level_wheel(venv.folder / "plain", "v1")
    write_simple(plain.parent, venv.folder / "simple")
    index = f"PIP_INDEX_URL=file://{venv.folder}/simple UV_DEFAULT_INDEX=file://{venv.folder}/simple"
    for url in (None, f"file://{quote(str(site))}"):
        commands = install_commands("'levels[x86-64-v3]'", url=url).splitlines()
        [command] = [line for line in commands if line.startswith(client)]
        venv.runs(f"{index} {command}", folder=site)
        assert venv.runs(ASK) == "v3 x86-64-v3"
        venv.runs(f"uv pip uninstall levels {PLUGIN}")


@pytest.mark.sampled("uv")
@BOTH
def test_the_plugin_goes_and_comes_without_the_base(client: str, site: Path, venv: VirtualEnvironment) -> None:
    venv.runs(f"{client} install --find-links '{site}' 'levels[x86_64_v3]'")
    assert venv.installed == {"levels": "1.0", PLUGIN: "1.0"}
    yes = "-y" if client == "pip" else ""
    venv.runs(f"{client} uninstall {yes} {PLUGIN}")
    assert venv.runs(ASK) == "v1 plain"
    assert not (venv.site / "levels_x86_64_v3_plugin").exists()
    venv.runs(f"{client} install --find-links '{site}' {PLUGIN}")
    assert venv.runs(ASK) == "v3 x86-64-v3"
    venv.runs(f"{client} uninstall {yes} levels")
    assert "No module named 'levels'" in venv.tries(ASK).stderr


@pytest.mark.nightly
@BOTH
def test_a_misspelt_extra_is_the_base_alone_and_the_loader_tells(
    client: str, site: Path, venv: VirtualEnvironment
) -> None:
    ran = venv.tries(f"{client} install --find-links '{site}' 'levels[x86-v3]==1.0'")
    assert ran.returncode == 0
    assert re.search("WARNING: levels 1.0 does not provide the extra 'x86-v3'|does not have an extra named", ran.stderr)
    assert venv.runs(ASK) == "v1 plain"
    assert "pip install 'levels[x86-64-v3]==1.0'" in venv.tries(f"LEVELS_BACKEND=x86-64-v3 {ASK}").stderr


@pytest.mark.sampled(1)
@BOTH
def test_both_plugins_may_be_installed_and_the_best_is_taken(client: str, site: Path, venv: VirtualEnvironment) -> None:
    venv.runs(f"{client} install --find-links '{site}' 'levels[x86-64-v3,x86-64-v2]'")
    assert venv.runs(ASK) == "v3 x86-64-v3"
    assert venv.runs(f"LEVELS_BACKEND=x86-64-v2 {ASK}") == "v2 x86-64-v2"
    assert venv.runs(f"LEVELS_BACKEND=plain {ASK}") == "v1 plain"


@pytest.mark.nightly
@BOTH
def test_both_are_upgraded_together(client: str, both: Path, venv: VirtualEnvironment) -> None:
    venv.runs(f"{client} install --find-links {both} 'levels[x86-64-v3]==1.0'")
    venv.runs(f"{client} install --find-links {both} --upgrade 'levels[x86-64-v3]'")
    assert venv.installed == {"levels": "1.1", PLUGIN: "1.1"}
    assert venv.runs(ASK) == "v3 x86-64-v3"
    venv.runs(f"{client} install --find-links {both} --upgrade '{PLUGIN}==1.0'")
    assert venv.installed == {"levels": "1.0", PLUGIN: "1.0"}


@pytest.mark.nightly
@BOTH
def test_what_is_upgraded_alone_is_refused_and_the_way_out_works(
    client: str, both: Path, venv: VirtualEnvironment
) -> None:
    venv.runs(f"{client} install --find-links {both} 'levels[x86-64-v3]==1.0'")
    venv.runs(f"{client} install --find-links {both} --no-deps --upgrade {PLUGIN}")
    assert venv.tries(ALONE).stderr.splitlines()[-1] == (
        f"ImportError: levels 1.0: its plugin {PLUGIN} 1.1 is of another build: {AGAIN}, or set LEVELS_BACKEND=plain"
    )
    assert venv.runs(f"LEVELS_BACKEND=plain {ALONE}") == "v1"
    venv.runs(f"PIP_FIND_LINKS={both} {AGAIN}")
    assert venv.runs(ALONE) == "v3"


@pytest.mark.nightly
@BOTH
def test_a_base_that_is_upgraded_alone_is_refused_though_installers_go_on(
    client: str, both: Path, venv: VirtualEnvironment
) -> None:
    venv.runs(f"{client} install --find-links {both} 'levels[x86-64-v3]==1.0'")
    venv.runs(f"{client} install --find-links {both} --upgrade levels")
    assert venv.installed == {"levels": "1.1", PLUGIN: "1.0"}
    assert f"levels 1.1: its plugin {PLUGIN} 1.0 is of another build" in venv.tries(ALONE).stderr
    check = "levels-x86-64-v3-plugin 1.0 (has|requires).*levels==1.0|requires `levels==1.0`"
    ran = venv.tries(f"{client} check")
    assert ran.returncode
    assert re.search(check, ran.stdout + ran.stderr)


def test_plugins_are_found_by_their_entry_points(site: Path, venv: VirtualEnvironment) -> None:
    venv.runs(f"uv pip install --find-links '{site}' 'levels[x86-64-v2,x86-64-v3]'")
    found = "from importlib.metadata import entry_points as e; found = e(group='levels.backends')"
    said = venv.python(f"{found}\nfor one in found: print(one.name, one.load().VERSION)")
    assert sorted(said.splitlines()) == ["x86-64-v2 1.0", "x86-64-v3 1.0"]


def test_the_loader_imports_little(site: Path, venv: VirtualEnvironment) -> None:
    venv.runs(f"uv pip install --find-links '{site}' 'levels[x86-64-v3]'")
    said = venv.tries("python -X importtime -c 'import levels'").stderr
    imported = re.findall(r"\d+ \|\s+\d+ \|\s+(\S+)", said)
    assert "levels._vbuild_backend" in imported
    assert {"importlib.metadata", "email", "re", "json"}.isdisjoint(imported[-6:])


@pytest.mark.nightly
@pytest.mark.network
def test_a_real_wheel_of_forty_modules_takes_one_library_from_the_plugin_and_others_from_the_base(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, venv: VirtualEnvironment
) -> None:
    """The same name for other contents, as projects have it that bundle libraries themselves."""
    plain = PublishedWheels(tmp_path_factory).wheel(Published("python-flint==0.9.0", python="3.11"))
    members = {path: data for path, data in contents(plain).items() if not path.endswith(("/", "/RECORD"))}
    [library] = [path for path in members if "/libflint-" in path]
    members[library] += bytes(16)
    record = record_of(members, "python_flint-0.9.0.dist-info")
    other = with_entries(tmp_path / plain.name, {**members, "python_flint-0.9.0.dist-info/RECORD": record.encode()})
    stamped(other, tmp_path / "dist", variant=variant("x86_64_v3", "x86_64 :: level :: v3"))
    [made] = publish([plain, tmp_path / "dist"], tmp_path / "site", layouts=[Extras()])
    venv.runs("uv pip install --find-links . 'python-flint[x86-64-v3]'", folder=made.folder)
    said = venv.python("import flint; print(flint.fmpz(2) ** 100, *open('/proc/self/maps'))").split()
    assert said[0] == str(2**100)
    mapped = {Path(word) for word in said if word.startswith(str(venv.site))}
    found = {path.relative_to(venv.site) for path in mapped}
    plugin = Path("python_flint_x86_64_v3_plugin")
    assert plugin / "types/fmpz.abi3.so" in found
    libraries = {path.name.partition("-")[0]: path.parent for path in found if path.name.startswith("lib")}
    base = Path("python_flint.libs")
    assert libraries == {"libflint": plugin / "site-packages" / base, "libgmp": base, "libmpfr": base}
