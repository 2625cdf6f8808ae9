"""Two layouts of one release in one environment, in either order: what installers make of it, and who says so.

The commands are those that each layout tells its consumers. What pip and uv do is the same:

    replaces    the second one is asked for by a version that the first one is not: all as if it were alone
    stays       the first one is what was asked for, by name and version: nothing is installed, without a word
    collides    two names, the same files: the second one's are used; when it goes, they go, and the first is broken
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import pytest

from tests.factories.level_wheels import level_files, level_wheel, needs_level
from tests.factories.tools import needs
from tests.factories.virtual_environments import VirtualEnvironment
from vbuild.publishing.check import check
from vbuild.publishing.hwcaps.plan import Hwcaps
from vbuild.publishing.local import Local
from vbuild.publishing.model import PublishLayout, PublishRule
from vbuild.publishing.publish import publish
from vbuild.publishing.redirect.plan import Redirect
from vbuild.publishing.suffix import Suffix
from vbuild.publishing.variants import Variants

pytestmark = [needs("gcc"), needs_level("v3")]

TABLE = """
second, over the first   suffix     local      redirect   variants   hwcaps
suffix                   -          collides   collides   collides   collides
local                    collides   -          replaces   replaces   replaces
redirect                 collides   stays      -          stays      stays
variants                 collides   stays      stays      -          stays
hwcaps                   collides   stays      stays      stays      -
"""
LAYOUTS: tuple[PublishLayout, ...] = (
    Suffix(),
    Local(),
    Redirect(url="https://example.org/redirect"),
    Variants(),
    Hwcaps(),
)
SUFFIXED = "levels-x86-64-v3"
# what is removed when a layout goes
PROJECTS = {"suffix": SUFFIXED}
# the level that is used on a machine of v3; the plain wheel where a client or a layout chooses by tags alone
LEVELS = {("pip", "variants"): "v1", ("pip", "redirect"): "v1", ("uv", "redirect"): "v1"}
# where the wheels are that a consumer gets
WHEELS = {"suffix": "levels_x86_64_v3-*.whl", "local": "x86_64_v3/*.whl", "redirect": "wheels/*.whl"}
PROBE = """
import importlib.metadata, warnings
warnings.simplefilter("ignore")
found = importlib.metadata.distributions()
owners = [one.name for one in found if "levels/__init__.py," in (one.read_text("RECORD") or "")]
try:
    import levels
    print(levels.level())
except (ImportError, AttributeError):
    print("broken" if owners else "gone")
"""
NAMES = [layout.name for layout in LAYOUTS]
PAIRS = list(permutations(NAMES, 2))
CLIENTS = pytest.mark.parametrize("client", [pytest.param("pip", marks=pytest.mark.slow), "uv"])


@dataclass(frozen=True, slots=True)
class Laid:
    """A layout in *folder*, and the command by which each client's users get its best wheel."""

    folder: Path
    commands: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment of one venv, who uses *client*."""

    venv: VirtualEnvironment
    client: str

    def install(self, laid: Laid, *, again: bool = False) -> None:
        """Do as the layout's README says; or with the client's option for what is there already."""
        command = laid.commands[self.client]
        if again:
            command = command.replace("install ", f"install --{'force-' * (self.client == 'pip')}reinstall ", 1)
        self.venv.runs(command, folder=laid.folder)

    def uninstall(self, layout: str) -> None:
        projects = PROJECTS.get(layout, "levels")
        client = "pip uninstall --yes" if self.client == "pip" else "uv pip uninstall"
        self.venv.runs(f"{client} {projects}")

    @property
    def state(self) -> str:
        """What level() says; gone where nothing of it is left, broken where a distribution says that it is there."""
        return self.venv.python(PROBE)


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Laid]:
    """The project in each layout, built anew for each: what level() says begins with the layout's name."""
    folder = tmp_path_factory.mktemp("pairs")
    return {layout.name: _laid(layout, folder / layout.name) for layout in LAYOUTS}


def _laid(layout: PublishLayout, folder: Path) -> Laid:
    for level in ("v1", "v3"):
        level_wheel(folder / "dist", level, level_files(level, answer=f"{layout.name} {level}"))
    [made] = publish([folder / "dist"], folder / "site", layouts=[layout])
    lines = [line for use in made.plan.uses if use.language == "sh" for line in use.text.splitlines()]
    if layout.name == "redirect":  # its first command takes the wheels from where they are served
        lines = [line for line in lines if line.startswith("VBUILD_FIND_LINKS")]
    found = {client: next(line for line in lines if _is_by(client, line)) for client in ("pip", "uv")}
    return Laid(folder / "site" / layout.name, found)


def _is_by(client: str, line: str) -> bool:
    return " install " in line and (re.search(r"\buv pip\b", line) is not None) is (client == "uv")


def expected() -> Iterator[tuple[str, str, str]]:
    head, *rows = TABLE.strip().splitlines()
    for row in rows:
        second, *outcomes = row.split()
        yield from ((second, first, said) for first, said in zip(head.split()[4:], outcomes, strict=True))


def test_the_table_is_of_all_pairs() -> None:
    assert [(second, first) for second, first, outcome in expected() if outcome != "-"] == PAIRS


@pytest.mark.sampled(2)
@CLIENTS
@pytest.mark.parametrize("row", [row for row in expected() if row[2] != "-"], ids="-".join)
def test_a_layout_over_another_is_as_the_table_says(
    laid: Mapping[str, Laid], tmp_path: Path, client: str, row: tuple[str, str, str]
) -> None:
    second, first, outcome = row

    def said(layout: str) -> str:
        return f"{layout} {LEVELS.get((client, layout), 'v3')}"

    here = Environment(VirtualEnvironment.at(tmp_path / "home"), client)
    here.install(laid[first])
    assert here.state == said(first)
    here.install(laid[second])
    assert here.state == said(first if outcome == "stays" else second)
    here.install(laid[second], again=True)
    assert here.state == said(second)
    here.uninstall(second)
    assert here.state == ("broken" if outcome == "collides" else "gone")
    here.install(laid[first], again=True)
    assert here.state == said(first)


@pytest.mark.parametrize(("second", "first"), PAIRS)
def test_a_check_of_both_names_those_that_collide(
    laid: Mapping[str, Laid], tmp_path: Path, second: str, first: str
) -> None:
    for layout in (second, first):
        for wheel in laid[layout].folder.glob(WHEELS.get(layout, "*.whl")):
            if not (tmp_path / wheel.name).exists():
                (tmp_path / wheel.name).symlink_to(wheel)
    problems = [problem for problem in check(tmp_path).problems if problem.rule is PublishRule.SHARED_FILES]
    assert bool(problems) is ("suffix" in {second, first})
    for problem in problems:
        assert problem.what.startswith(f"levels has files shared with {SUFFIXED}: levels/__init__.py, ")
