"""`vbuild publish --layout conda`, judged by py-rattler: what it takes on which machine, and what it installs."""

import json
import os
import random
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.factories.channels import described, index, pythons
from tests.factories.published_wheels import Published, PublishedWheels
from tests.factories.rattler import Question, rattler_answer, rattler_answers
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.publishing.conda.channel import problems
from vbuild.publishing.conda.plan import Conda
from vbuild.publishing.publish import publish
from vbuild.variants.providers import metadata_for
from vbuild.variants.stamp import stamped

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
SCRIPTS = "[console_scripts]\nDemo-tool = demo.cli:App.run [extra]\n"
CLI = """
import importlib.metadata, sys

class App:
    @staticmethod
    def run():
        print(importlib.metadata.version("demo"), *sys.argv[1:])
        return 3
"""
FILES = {
    "demo/__init__.py": "label = 'plain'\n",
    "demo/cli.py": CLI,
    "demo-1.0.data/scripts/old-tool": "#!python\nimport demo\nprint('old', demo.__file__)\n",
    "demo-1.0.data/data/share/demo/data.txt": "data\n",
    "demo-1.0.dist-info/entry_points.txt": SCRIPTS,
}
CPUS = {"x86_64": "", "x86_64_v2": "", "haswell": "v3", "zen2": "v3", "zen4": "v4"}
CUDAS = {None: "", "12.4": "cu124", "12.8": "cu128"}
GLIBC = ["__glibc", "2.36", "0"]


def release(folder: Path) -> Path:
    """A release for one Python: a plain wheel, two CPU levels, and two CUDA versions, one of them with a level."""
    metadata = metadata_for(["nvidia", "x86_64"])
    for label, properties in {
        "x86_64_v3": ["x86_64 :: level :: v3"],
        "x86_64_v4": ["x86_64 :: level :: v4"],
        "cu124": ["nvidia :: cuda_version_lower_bound :: 12.4"],
        "cu128": ["nvidia :: cuda_version_lower_bound :: 12.8"],
        "cu128_v4": ["nvidia :: cuda_version_lower_bound :: 12.8", "x86_64 :: level :: v4"],
    }.items():
        plain = wheel(folder / "made" / label, NAME, {**FILES, "demo/__init__.py": f"label = {label!r}\n"})
        stamped(plain, folder / "dist", variant=variant(label, *properties), metadata=metadata)
    wheel(folder / "dist", NAME, FILES)
    shutil.rmtree(folder / "made")
    return folder / "dist"


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Where the release is laid out, and the URLs of that channel and one with Pythons."""
    folder = tmp_path_factory.mktemp("conda")
    wheel(
        folder / "dist", "stable-1.0-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", {"stable.py": "x = 1\n"}
    )
    # more than one of zstd's jobs
    large: dict[str, bytes | str] = {
        "carried/lib.so": "so",
        "carried/large.bin": random.Random(0).randbytes(24_000_000),
    }
    wheel(folder / "dist", "carried-1.0-py3-none-manylinux_2_17_x86_64.whl", large, compression=zipfile.ZIP_STORED)
    scripts = {"pure-1.0.dist-info/entry_points.txt": "[console_scripts]\npure = pure:main\n"}
    wheel(
        folder / "dist",
        "pure-1.0-py3-none-any.whl",
        {
            "pure.py": "def main():\n    print('pure')\n",
            "pure-1.0.data/scripts/old-pure": "#!python\nprint('old')\n",
            **scripts,
        },
        metadata="Requires-Dist: stable>=1,<2; python_version >= '3.12'\n",
    )
    publish([release(folder)], folder / "site", layouts=[Conda()])
    place = folder / "site" / "conda"
    return place, [place.as_uri(), pythons(folder / "pythons")]


def machine(cpu: str, cuda: str | None = None, *more: list[str]) -> list[list[str]]:
    """The virtual packages of a machine."""
    return [["__archspec", "1", cpu], GLIBC, *([["__cuda", cuda, "0"]] if cuda else []), *more]


def test_five_cpus_with_three_drivers_get_the_right_build(channels: tuple[Path, list[str]]) -> None:
    questions: list[Question] = []
    expected = []
    for cpu, level in CPUS.items():
        for cuda, driver in CUDAS.items():
            questions.append(("solve", {"channels": channels[1], "specs": ["demo"], "virtual": machine(cpu, cuda)}))
            label = f"{driver}_v4" if (driver, level) == ("cu128", "v4") else driver or (level and f"x86_64_{level}")
            expected.append((cpu, cuda, f"py311_{label}" if label else "py311"))
    found = [next(one for one in answered if one.startswith("demo ")) for answered in rattler_answers(questions)]
    assert [build.split()[2].rpartition("_")[0] for build in found] == [build for *_, build in expected]
    assert len(found) == 15


def test_a_machine_with_an_older_glibc_gets_nothing(channels: tuple[Path, list[str]]) -> None:
    virtual = [["__archspec", "1", "zen4"], ["__glibc", "2.17", "0"]]
    assert rattler_answer("solve", channels=channels[1], specs=["demo"], virtual=virtual) is None


def test_each_python_gets_what_it_asks_for(channels: tuple[Path, list[str]]) -> None:
    questions: list[Question] = [
        ("solve", {"channels": channels[1], "specs": specs, "virtual": machine("zen2")})
        for specs in (["pure", "python 3.11.*"], ["pure", "python 3.12.*"], ["demo", "python 3.12.*"], ["carried"])
    ]
    old, new, none, carried = rattler_answers(questions)
    assert [one for one in old if one.startswith(("pure", "stable"))] == ["pure 1.0 py_30to311_0"]
    assert [one for one in new if one.startswith(("pure", "stable", "_py"))] == [
        *("_python_abi3_support 1.0 0_any", "pure 1.0 py_312on_0", "stable 1.0 py39abi3_0")
    ]
    assert none is None
    assert "carried 1.0 py3_0" in carried


def test_what_is_installed_is_imported_and_its_commands_run(channels: tuple[Path, list[str]], tmp_path: Path) -> None:
    prefix = tmp_path / "an environment"
    specs = ["demo", "pure", "stable", "carried", "python 3.11.*"]
    rattler_answer("install", channels=channels[1], specs=specs, virtual=machine("zen4", "12.8"), prefix=str(prefix))
    site = prefix / "lib/python3.11/site-packages"

    def told(*command: str) -> str:
        run = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
        return f"{run.stdout}{run.stderr}{run.returncode}"

    assert told(str(prefix / "bin/python"), "-c", "import demo, stable, pure; print(demo.label)") == "cu128_v4\n0"
    assert told(str(prefix / "bin/Demo-tool"), "a", "b") == "1.0 a b\n3"
    assert told(str(prefix / "bin/old-tool")) == f"old {site / 'demo/__init__.py'}\n0"
    assert told(str(prefix / "bin/old-pure")) == "old\n0"
    assert told(str(prefix / "bin/pure")) == "pure\n0"
    assert (prefix / "share/demo/data.txt").read_text() == "data\n"
    assert (site / "carried/lib.so").read_text() == "so"
    for dist_info in site.glob("*.dist-info"):
        assert (dist_info / "INSTALLER").read_text() == "conda\n"
        rows = [line.split(",")[0] for line in (dist_info / "RECORD").read_text().splitlines()]
        assert [row for row in rows if not (site / row).exists()] == []
    listing = "import importlib.metadata as m; print(*sorted(d.metadata['Name'] for d in m.distributions()))"
    assert told(str(prefix / "bin/python"), "-c", listing) == "carried demo pure stable\n0"


@pytest.mark.nightly
@pytest.mark.network
def test_wheels_of_the_package_index_are_installed_and_imported(
    channels: tuple[Path, list[str]], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    published_wheels = PublishedWheels(tmp_path_factory)
    wheels = [
        published_wheels.wheel(Published(name, python="3.11")) for name in ("numpy==2.3.5", "python-flint==0.9.0")
    ]
    publish(wheels, tmp_path / "site", layouts=[Conda()])
    assert list(problems(tmp_path / "site/conda")) == []
    urls = [(tmp_path / "site/conda").as_uri(), channels[1][1]]
    specs = ["numpy", "python-flint", "python 3.11.*"]
    prefix = tmp_path / "environment"
    found = rattler_answer("install", channels=urls, specs=specs, virtual=machine("zen4"), prefix=str(prefix))
    assert {"numpy 2.3.5 py311_0", "python-flint 0.9.0 py310abi3_0"} <= {*found}
    code = "import flint, numpy; print(numpy.__file__, flint.fmpz(3) ** int(numpy.ones(40).sum()))"
    told = subprocess.run([prefix / "bin/python", "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == f"{prefix}/lib/python3.11/site-packages/numpy/__init__.py 12157665459056928801\n"
    version = subprocess.run([prefix / "bin/f2py", "-v"], capture_output=True, text=True, check=True)
    assert version.stdout == "2.3.5\n"


def test_the_channel_is_as_it_should_be(channels: tuple[Path, list[str]]) -> None:
    assert list(problems(channels[0])) == []


def test_what_describes_a_package_is_complete(channels: tuple[Path, list[str]]) -> None:
    path = channels[0] / "linux-64/demo-1.0-py311_x86_64_v3_300.conda"
    assert index(path) == {
        "arch": "x86_64",
        "build": "py311_x86_64_v3_300",
        "build_number": 300,
        "constrains": [],
        "depends": [
            *("python >=3.11,<3.12.0a0", "python_abi 3.11.* *_cp311"),
            *("__glibc >=2.28", "_x86_64-microarch-level >=3"),
        ],
        "name": "demo",
        "platform": "linux",
        "subdir": "linux-64",
        "version": "1.0",
    }
    assert sorted(described(path)) == ["info/about.json", "info/files", "info/index.json", "info/paths.json"]
    noarch = described(channels[0] / "noarch/pure-1.0-py_312on_0.conda")
    assert json.loads(noarch["info/link.json"]) == {
        "noarch": {"entry_points": ["pure = pure:main"], "type": "python"},
        "package_metadata_version": 1,
    }


def test_the_readme_tells_what_each_client_needs(channels: tuple[Path, list[str]]) -> None:
    [laid] = publish([channels[0].parents[1] / "dist"], None, layouts=[Conda(url="https://example.org/site/conda/")])
    conda, pixi = laid.plan.uses
    assert conda.text == (
        "conda create --name carried --override-channels --channel https://example.org/site/conda"
        " --channel conda-forge carried==1.0 demo==1.0 pure==1.0 stable==1.0"
    )
    workspace = tomllib.loads(pixi.text)["workspace"]
    assert workspace["channels"] == ["https://example.org/site/conda", "conda-forge"]
    assert workspace["platforms"][0] == {
        "name": "linux-64-cu128-v4",
        "platform": "linux-64",
        "archspec": "x86_64_v4",
        "cuda": "12.8",
        "glibc": "2.28",
    }
    assert workspace["platforms"][-1] == {"name": "linux-64-plain", "platform": "linux-64", "glibc": "2.28"}
