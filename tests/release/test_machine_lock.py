"""Locks of a release with variants, one for each machine; pip and uv install what they say."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.clients import UV
from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import wheel
from vbuild.errors import VariantError
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.release.lock import lock_machines
from vbuild.variants.index import index

V3 = Cpu.parse("x86-64-v3")


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two releases with a plain wheel and a variant each, held to releases of an engine that pip and uv look for."""
    folder, engines = tmp_path / "dist", tmp_path / "engines"
    for engine in ("1.4.0", "2.0.0"):
        wheel(engines, f"engine-{engine}-py3-none-any.whl", {"engine.py": ""})
        name = f"demo-1.0+engine{engine[:3]}-py3-none-any"
        held = f"Requires-Dist: engine=={engine[:3]}.*\n"
        wheel(folder, f"{name}.whl", {"demo.py": "LABEL = None\n"}, metadata=held)
        stamp = document(variant("x86_64_v3", "x86_64 :: level :: v3"))
        stamped = f"demo-1.0+engine{engine[:3]}.dist-info/variant.json"
        files: dict[str, bytes | str] = {"demo.py": "LABEL = 'v3'\n", stamped: stamp.pack()}
        wheel(folder, f"{name}-x86_64_v3.whl", files, metadata=held)
    index(folder)
    monkeypatch.setenv("PIP_FIND_LINKS", str(engines))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


def machine(cpu: Cpu) -> Machine:
    return replace(Machine.here(), cpu=cpu)


def test_each_machine_gets_its_variant_and_pip_and_uv_install_it(release: Path, tmp_path: Path) -> None:
    machines = {"new.toml": machine(V3), "old machine.toml": machine(Cpu.parse("x86-64"))}
    locks = lock_machines("demo", [release], machines, tmp_path / "locks")
    assert [(one.machine, one.file.name, one.wheel, one.packages) for one in locks] == [
        ("new", "pylock.new.toml", "demo-1.0+engine2.0-py3-none-any-x86_64_v3.whl", 1),
        ("old-machine", "pylock.old-machine.toml", "demo-1.0+engine2.0-py3-none-any.whl", 1),
    ]
    for one in locks:
        said = tomllib.loads(one.file.read_text())
        assert {found["name"]: found["version"] for found in said["packages"]} == {
            "demo": "1.0+engine2.0",
            "engine": "2.0.0",
        }
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path / f"pip {one.machine}")]
        uv = [UV, "pip", "install", "-q", "--no-config", "--preview-features", "pylock", "--python", sys.executable]
        uv += ["--target", str(tmp_path / f"uv {one.machine}")]
        for command in (pip, uv):
            subprocess.run([*command, "-r", str(one.file)], check=True, capture_output=True)
            there = Path(command[-1])
            assert {path.name for path in there.glob("*.dist-info")} == {
                "demo-1.0+engine2.0.dist-info",
                "engine-2.0.0.dist-info",
            }
            stamped = there / "demo-1.0+engine2.0.dist-info/variant.json"
            assert stamped.exists() == (one.machine == "new")


def test_a_machine_that_nothing_serves_leaves_no_lock_for_the_others_either(release: Path, tmp_path: Path) -> None:
    other = replace(machine(V3), tags=("cp311-cp311-win_amd64",))
    with pytest.raises(VariantError, match=r"w\.toml: demo: none of 2 wheels fits this machine: .*is not a tag"):
        lock_machines("demo", [release], {"m.toml": machine(V3), "w.toml": other}, tmp_path / "locks")
    assert not (tmp_path / "locks").exists()
    with pytest.raises(VariantError, match="absent: no wheel of it in"):
        lock_machines("absent", [release], {"m": machine(V3)}, tmp_path / "locks")
    with pytest.raises(VariantError, match="two of them give the same name of a lock"):
        lock_machines("demo", [release], {"a b": machine(V3), "a-b": machine(V3)}, tmp_path / "locks")


@pytest.mark.usefixtures("release")
def test_a_variant_is_for_the_release_that_is_installed_along_with_it(tmp_path: Path) -> None:
    for engine in ("1.4", "2.0"):
        built = document(
            variant(f"engine{engine}", f"abi_dependency :: engine :: {engine}"), metadata=metadata("abi_dependency")
        )
        files: dict[str, bytes | str] = {"demo-1.0.dist-info/variant.json": built.pack()}
        held = f"Requires-Dist: engine=={engine}.*\n"
        wheel(tmp_path / "abi", f"demo-1.0-py3-none-any-engine{engine}.whl", files, metadata=held)
    index(tmp_path / "abi")
    for wanted, engine in (("engine==1.4.*", "1.4"), ("engine==2.0.0", "2.0")):
        (lock,) = lock_machines(
            "demo",
            [tmp_path / "abi"],
            {"m": machine(V3)},
            tmp_path / engine,
            requires=["six; python_version < '3'", wanted],
        )
        assert (lock.wheel, lock.packages) == (f"demo-1.0-py3-none-any-engine{engine}.whl", 1)
        assert f'version = "{engine}.0"' in lock.file.read_text()
    with pytest.raises(VariantError, match=r"nor --with, nor \[installed\] in the machine's file has engine"):
        lock_machines("demo", [tmp_path / "abi"], {"m": machine(V3)}, tmp_path / "none", requires=["engine"])


def levels(folder: Path) -> Path:
    """A release that requires something on other machines alone, with a plain wheel and variants for v2 and v3."""
    requires = "Requires-Dist: engine; sys_platform == 'win32'\n"
    wheel(folder, "demo-1.0-py3-none-any.whl", {"demo.py": "LABEL = 'v1'\n"}, metadata=requires)
    for level in ("v2", "v3"):
        stamp = document(variant(f"x86_64_{level}", f"x86_64 :: level :: {level}")).pack()
        files: dict[str, bytes | str] = {"demo.py": f"LABEL = '{level}'\n", "demo-1.0.dist-info/variant.json": stamp}
        wheel(folder, f"demo-1.0-py3-none-any-x86_64_{level}.whl", files, metadata=requires)
    index(folder)
    return folder


@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.nightly)])
def test_one_variant_replaces_another_as_the_lock_says(installer: str, tmp_path: Path) -> None:
    cpus = {level: machine(Cpu.parse(f"x86-64-{level}" if level != "v1" else "x86-64")) for level in ("v1", "v2", "v3")}
    locks = {
        lock.machine: lock for lock in lock_machines("demo", [levels(tmp_path / "dist")], cpus, tmp_path / "locks")
    }
    assert [lock.packages for lock in locks.values()] == [0, 0, 0]
    subprocess.run([UV, "venv", "-q", "--no-config", "--seed", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    for level in ("v1", "v3", "v2", "v1"):
        (command,) = [line.split() for line in locks[level].lines() if line.split()[0] == installer and line[3] == " "]
        program = [UV] if installer == "uv" else [str(python), "-m", "pip"]
        options = ["--no-config", "--python", str(python), "--preview-features", "pylock"] if installer == "uv" else []
        subprocess.run([*program, *command[1:], *options], check=True, capture_output=True)
        ask = subprocess.run(
            [python, "-B", "-c", "import demo; print(demo.LABEL)"], check=True, capture_output=True, text=True
        )
        assert ask.stdout == f"{level}\n"
