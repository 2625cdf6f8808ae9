"""`vbuild publish --layout hwcaps` as publishers and users meet it: pip, uv, auditwheel, the commands of its README."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.hwcaps_wheels import (
    MASKS,
    NAME,
    hwcaps_release,
    hwcaps_wheel,
    levels_here,
    module,
    package,
    program_output,
    so,
)
from tests.factories.variants import variant
from tests.factories.workdir import VBUILD
from vbuild.publishing.check import check_layout
from vbuild.publishing.hwcaps.plan import Hwcaps
from vbuild.publishing.publish import publish
from vbuild.variants.stamp import stamped
from vbuild.verification.verify import verify

LEVELS = ("v1", "v3", "v4")
BIN = Path(sys.executable).parent
here = pytest.mark.skipif(levels_here()[0] != "v4", reason="a processor of level v4, and glibc 2.33, are needed")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release for v1, v3 and v4."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    wheels = hwcaps_release(folder, {level: package(level) for level in LEVELS})
    assert len(wheels) == 3
    return folder


@pytest.fixture(scope="module")
def site(dist: Path) -> Path:
    """What `vbuild publish` makes of it."""
    folder = dist.parent / "site"
    wheels = [str(path) for path in sorted(dist.glob("*.whl"))]
    command = [*VBUILD, "publish", *wheels, "--layout", "hwcaps", "-o", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "hwcaps"


def environment(folder: Path) -> tuple[Path, dict[str, str]]:
    """A fresh virtual environment at *folder*, and the variables under which its programs come first."""
    subprocess.run([BIN / "uv", "venv", "--quiet", "--seed", "--python", sys.executable, folder], check=True)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_", "VIRTUAL_ENV"))}
    paths = os.pathsep.join([str(folder / "bin"), str(BIN), os.environ["PATH"]])
    return folder, {**clean, "PATH": paths, "VIRTUAL_ENV": str(folder), "UV_CACHE_DIR": str(folder / "cache")}


def packages(environment_: Path) -> Path:
    return next((environment_ / "lib").glob("python*")) / "site-packages"


def commands(site: Path) -> dict[str, str]:
    """The shell commands of the README, by their first word."""
    text = (site / "README.md").read_text()
    found = [line for block in text.split("```sh\n")[1:] for line in block.split("```")[0].splitlines()]
    return {command.split()[0]: command for command in found}


@pytest.mark.sampled("uv")
@here
@pytest.mark.parametrize("program", ["pip", "uv"])
def test_the_commands_of_the_readme_install_what_the_processor_takes(site: Path, tmp_path: Path, program: str) -> None:
    folder, variables = environment(tmp_path / "an environment")
    subprocess.run(["sh", "-c", commands(site)[program]], cwd=site, env=variables, check=True, capture_output=True)
    assert [program_output(packages(folder), level=level) for level in MASKS] == ["v4", "v3", "v1", "v1"]
    remove = {"pip": ["python", "-m", "pip", "uninstall", "-y", "demo"], "uv": ["uv", "pip", "uninstall", "demo"]}
    subprocess.run(remove[program], env=variables, check=True, capture_output=True)
    assert not [*packages(folder).glob("demo*")]


def test_auditwheel_accepts_it(site: Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "auditwheel", "show", site / NAME]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "is consistent with" in " ".join(run.stdout.split())


@pytest.mark.nightly
@here
def test_auditwheel_leaves_it_a_wheel_of_all_levels(site: Path, tmp_path: Path) -> None:
    folder, variables = environment(tmp_path / "an environment")
    command = [
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        "--disable-isa-ext-check",
        "--plat",
        "manylinux_2_34_x86_64",
    ]
    subprocess.run([*command, "-w", tmp_path / "repaired", site / NAME], env=variables, check=True, capture_output=True)
    [wheel] = (tmp_path / "repaired").glob("*.whl")
    subprocess.run(["uv", "pip", "install", "--no-deps", wheel], env=variables, check=True, capture_output=True)
    assert [program_output(packages(folder), level=level) for level in MASKS] == ["v4", "v3", "v1", "v1"]


def test_vbuild_has_nothing_to_say_of_it(site: Path) -> None:
    assert check_layout(site, "hwcaps").problems == ()
    verdict = verify(site / NAME)
    assert [str(finding) for finding in verdict.findings if finding.severity != "note"] == []


def test_a_variant_that_asks_for_more_is_said_to_be_left(dist: Path, tmp_path: Path) -> None:
    asked = ("x86_64 :: level :: v3", "nvidia :: cuda_version_lower_bound :: 12.6")
    gpu = stamped(dist / NAME, tmp_path, variant=variant("v3_cu126", *asked))
    [laid] = publish([*dist.glob("*.whl"), gpu], None, layouts=[Hwcaps()])
    assert f"{gpu.name} is not in it: its variant is more than an x86-64 level" in laid.plan.notes
    assert [output.target.name for output in laid.plan.outputs][:-1] == [NAME]


@pytest.mark.nightly
def test_a_wheel_that_is_out_is_upgraded_on_the_command_line(dist: Path, tmp_path: Path) -> None:
    other = hwcaps_wheel(
        tmp_path, {"demo/__init__.py": package("v3")["demo/__init__.py"], f"demo/{so('_c')}": module("v3")}
    )
    command: list[str | Path] = [
        *VBUILD,
        "publish",
        dist / NAME,
        "--layout",
        "hwcaps",
        "--add",
        f"v3={other}",
        "-o",
        tmp_path / "site",
    ]
    subprocess.run(command, check=True, capture_output=True)
    wheel = tmp_path / "site" / "hwcaps" / NAME.replace("1.0-", "1.0-1-")
    assert wheel.is_file()
