"""vbuild where iced-x86 is not installed, as on Apple silicon: it has no wheels there, and building it needs Rust."""

import json
import os
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vbuild
from tests.factories.elf import MODULE, SUM, shared_object
from tests.factories.variants import machine
from tests.factories.wheels import wheel

NAME = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
# every import of the disassembler fails as if nothing of it were there
BLOCKED = "import sys; sys.modules['iced_x86'] = None; "
PLATFORMS = ("aarch64-apple-darwin", "x86_64-apple-darwin", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu")


def python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED + program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return python("from vbuild.cli.main import main; main(prog_name='vbuild')", *arguments)


def test_only_what_disassembles_fails_to_be_imported() -> None:
    names = sorted(module.name for module in pkgutil.walk_packages(vbuild.__path__, "vbuild."))
    program = """
import importlib, json
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        failed[name] = error.name
print(json.dumps(failed))
"""
    skipped = ("__main__", "conda_script")
    ran = python(program, json.dumps([name for name in names if not name.endswith(skipped)]))
    failed = {name: missing for name, missing in json.loads(ran.stdout).items() if missing == "iced_x86"}
    users = ("vbuild.elf.", "vbuild.verification.gain", "vbuild.verification.published")
    assert "vbuild.elf.isa" in failed
    assert not [name for name in failed if not name.startswith(users)]


def test_wheels_are_stamped_indexed_selected_and_inspected(tmp_path: Path) -> None:
    plain = wheel(tmp_path / "dist", NAME, {"demo/_demo.so": shared_object(MODULE + SUM)})
    described = tmp_path / "machine.toml"
    described.write_text(str(machine("x86-64-v3", tags=("cp311-cp311-manylinux_2_17_x86_64",))))
    stamp = ["-l", "x86_64_v3", "-p", "x86_64 :: level :: v3"]
    for arguments in (
        ("stamp", plain, "-o", tmp_path / "dist", *stamp),
        ("index", tmp_path / "dist", "--simple", tmp_path / "simple"),
        ("select", "demo", "-f", tmp_path / "dist", "--machine", described),
        ("inspect", plain),
        ("slim", plain, "-o", tmp_path / "slim", "--gpu", "90", "--strip", "unneeded"),
        ("split", plain, "-o", tmp_path / "split"),
        ("publish", tmp_path / "dist", "-o", tmp_path / "out", "--layout", "variants", "--layout", "local"),
    ):
        ran = command(*arguments)
        assert ran.returncode == 0, (arguments, ran.stderr)


@pytest.mark.parametrize(("level", "severity", "status"), [((), "warning", 0), (("--cpu", "x86-64-v3"), "error", 1)])
def test_verify_says_that_it_did_not_check(tmp_path: Path, level: tuple[str, ...], severity: str, status: int) -> None:
    plain = wheel(tmp_path, NAME, {"demo/_demo.so": shared_object(MODULE + SUM, "-march=x86-64-v3")})
    ran = command("verify", plain, *level)
    assert ran.returncode == status
    expected = f"{severity}: demo/_demo.so: instruction sets: not checked: iced-x86, which disassembles x86-64 code"
    assert expected in ran.stdout
    assert "pip install iced-x86" in ran.stdout
    assert "instruction sets: not checked" in ran.stdout.splitlines()[1]


@pytest.mark.network
@pytest.mark.sampled(1)  # what uv resolves depends on the index, and takes it seconds
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_requirement_has_a_wheel(platform: str, tmp_path: Path) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    wanted = tmp_path / "requirements.in"
    wanted.write_text("\n".join(project["dependencies"]))
    resolve = ["uv", "pip", "compile", "--only-binary", ":all:", "--python-version", "3.12", "--python-platform"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [*resolve, platform, str(wanted)], capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    assert ran.returncode == 0, ran.stderr
    assert ("iced-x86==" in ran.stdout) == platform.startswith("x86_64")
