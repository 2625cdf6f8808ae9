"""`vbuild publish` as a frame: all layouts are planned before one is written, and folders are whole or not there."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from tests.factories import commands
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from tests.factories.workdir import WIDTH
from vbuild.cli.options import LAYOUTS
from vbuild.errors import RepackageError, VbuildError
from vbuild.publishing.check import check_layout
from vbuild.publishing.model import ConsumerUse, Copied, NewWheel, PublishPlan, Text
from vbuild.publishing.publish import publish
from vbuild.publishing.releases import OfferedRelease, OfferedWheel, releases_at
from vbuild.publishing.variants import Variants
from vbuild.variants.stamp import stamped
from vbuild.wheel.name import WheelName

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
LABELLED = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64-x86_64_v3.whl"
V3 = variant("x86_64_v3", "x86_64 :: level :: v3")


@dataclass(frozen=True, slots=True)
class Given:
    """A layout that plans what it was given."""

    own_plan: PublishPlan | None

    @property
    def name(self) -> str:
        return "given"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        if self.own_plan is None:
            raise RepackageError(f"{offers[0]}: has no place here")
        return self.own_plan


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A release of two wheels: a plain one, and one for x86-64-v3."""
    plain = wheel(tmp_path / "dist", NAME, {"demo/__init__.py": "x = 1\n"})
    stamped(plain, tmp_path / "dist", variant=V3)
    return tmp_path / "dist"


def below(folder: Path) -> list[str]:
    """The paths of all files in *folder*."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def text(name: str, data: bytes = b"x") -> Text:
    return Text(PurePosixPath(name), data)


def vbuild(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return commands.vbuild(*arguments, folder=folder, COLUMNS=str(WIDTH))


def test_a_member_that_is_not_there_is_told_and_nothing_stays(dist: Path, tmp_path: Path) -> None:
    [offer] = releases_at([dist])
    path = offer.plain[0].path
    wrong = NewWheel(PurePosixPath(), WheelName.parse(NAME), path, (Copied(path, "demo/none.py", "demo/none.py"),))
    with pytest.raises(RepackageError, match=rf"^given: {NAME}: demo/none.py: no such member$"):
        publish([dist], tmp_path / "site", layouts=[Variants(), Given(PublishPlan("given", (wrong,), ()))])
    assert not (tmp_path / "site").exists()


def test_a_folder_that_is_in_use_is_left_alone(dist: Path, tmp_path: Path) -> None:
    there = tmp_path / "site" / "variants"
    there.mkdir(parents=True)
    (there / "precious").write_text("x")
    with pytest.raises(RepackageError) as refusal:
        publish([dist], tmp_path / "site", layouts=[Variants()])
    assert str(refusal.value) == (
        f"{there}: exists and is not an empty folder; remove it, or choose another output folder"
    )
    assert below(tmp_path / "site") == ["variants/precious"]


def test_an_empty_folder_is_taken(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "site" / "variants").mkdir(parents=True)
    publish([dist], tmp_path / "site", layouts=[Variants()])
    assert NAME in below(tmp_path / "site" / "variants")


def test_without_a_folder_plans_are_given_and_nothing_is_written(dist: Path) -> None:
    before = below(dist)
    [laid] = publish([dist], None, layouts=[Variants()])
    assert [str(output.target) for output in laid.plan.outputs] == [NAME, LABELLED, "demo-1.0-variants.json", "simple"]
    assert laid.files == ()
    assert below(dist) == before


def test_a_readme_says_what_consumers_run(dist: Path, tmp_path: Path) -> None:
    plan = PublishPlan("given", (text("a"),), (ConsumerUse("With pip:", "pip install demo"),), ("Mind the gap.",))
    publish([dist], tmp_path / "site", layouts=[Given(plan)])
    assert (tmp_path / "site/given/README.md").read_text() == (
        "# Layout `given`\n\nWith pip:\n\n```sh\npip install demo\n```\n\nGood to know:\n\n- Mind the gap.\n"
    )


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        (
            NAME,
            {"demo-1.0.dist-info/variant.json": "{}"},
            "in a wheel whose file name has no variant label; expected none (PEP 825)",
        ),
        (
            LABELLED,
            {"demo/x.py": ""},
            "missing; expected it to describe the variant 'x86_64_v3' of the file name (PEP 825)",
        ),
    ],
)
def test_a_wheel_that_contradicts_itself_is_refused(
    tmp_path: Path, name: str, files: dict[str, bytes | str], said: str
) -> None:
    path = wheel(tmp_path, name, files)
    with pytest.raises(VbuildError) as refusal:
        OfferedWheel.of(path)
    assert str(refusal.value) == f"{name}: variant.json: {said}"


def test_the_command_tells_files_and_commands_in_80_columns(dist: Path, tmp_path: Path) -> None:
    ran = vbuild("publish", dist, "--layout", "variants", "-o", "site", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("site/variants: 0.00 MB in ")
    assert f"\n  {LABELLED}\n  {NAME}\n" in ran.stdout
    assert "how to use it: site/variants/README.md" in " ".join(ran.stdout.split())
    assert max(map(len, ran.stdout.splitlines())) <= WIDTH
    checked = vbuild("check", "site/variants", folder=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.startswith("site/variants: ")


def test_the_command_gives_json_and_nothing_else(dist: Path, tmp_path: Path) -> None:
    ran = vbuild("publish", "dist", "--layout", "variants", "-o", "site", "--json", folder=tmp_path)
    [laid] = json.loads(ran.stdout)
    assert (laid["layout"], laid["folder"]) == ("variants", "site/variants")
    assert {"path": NAME, "bytes": (dist / NAME).stat().st_size, "linked": True} in laid["files"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--layout", "variants"), "expected --output-dir FOLDER, or --dry-run"),
        (("-o", "site"), "Missing option '--layout'"),
        (("--layout", "variants", "-o", "site", "--by-hardware"), "--by-hardware goes with --layout redirect only"),
        (("--layout", "hwcaps", "-o", "site", "--add", "v3"), "'v3': expected a CPU level and a wheel, as in v3=other"),
        (("--layout", "hwcaps", "-o", "site", "--add", "v7=x.whl"), "no CPU level 'v7'"),
        (("--layout", "conda", "-o", "site", "--map", "torch"), "'torch': expected two names, as in torch=pytorch"),
        (
            ("--layout", "local", "-o", "site", "--url", "example.org/whl"),
            "'example.org/whl': expected the URL of a folder, https, http or file, as in https://example.org/whl",
        ),
    ],
)
def test_options_that_say_nothing_are_usage_mistakes(
    dist: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = vbuild("publish", dist, *arguments, folder=tmp_path)
    assert ran.returncode == 2
    assert said in " ".join(ran.stderr.split())
    assert not (tmp_path / "site").exists()


@pytest.mark.nightly
def test_pypi_takes_no_layouts(dist: Path, tmp_path: Path) -> None:
    vbuild("publish", dist, "--layout", "local", "-o", "site", folder=tmp_path)
    ran = vbuild("check", "site/local", "--pypi", folder=tmp_path)
    assert ran.returncode == 1
    assert "made by vbuild publish; expected no limits, which are for files uploaded as they are" in ran.stderr


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_that_is_not_there_has_no_layout(tmp_path: Path, layout: str) -> None:
    with pytest.raises(RepackageError) as refusal:
        check_layout(tmp_path / "none", layout)
    assert str(refusal.value) == (
        f"{tmp_path / 'none'}: no such folder; expected one that vbuild publish --layout {layout} made"
    )


def test_a_layout_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError, match=r"^no layout 'tarballs'; expected one of hwcaps, redirect, local,"):
        check_layout(tmp_path, "tarballs")
