"""Bills and statements of real builds name what was seen to run and to be installed, whatever else there is."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.factories.projects import maturin_project, tree
from tests.factories.tools import needs
from tests.factories.wheels import contents
from vbuild.files.hashing import sha256_of
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import matrix
from vbuild.sbom.statement import PROVENANCE

SETUPTOOLS = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
MATRIX = '[tool.vbuild.matrix]\ncpu = ["x86-64"]\n'
TINY = {
    "pyproject.toml": f'{SETUPTOOLS}[project]\nname = "tiny"\nversion = "1.0"\n{MATRIX}',
    "setup.py": 'from setuptools import Extension, setup\nsetup(ext_modules=[Extension("tiny", ["tiny.c"])])\n',
    "tiny.c": "#include <Python.h>\nPyObject *PyInit_tiny(void) { return NULL; }\n",
}
# what a build could find, as something with the name: all that it does is to say which release it is
OTHERS = dict.fromkeys(("cargo", "nvcc", "cmake", "ninja", "clang", "clang++", "gcc-9", "gfortran", "flang", "go"), "")
RUSTC = "echo rustc 1.70.0; echo host: x86_64-unknown-linux-gnu; echo release: 1.70.0"

pytestmark = [
    needs("gcc"),
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
]


def made(source: Path, folder: Path, *, store: str = "store") -> tuple[Path, dict[str, dict[str, Any]], dict[str, Any]]:
    """The wheel of *source*, made in *folder*; what its build took, by name; and the predicate of the statement."""
    [product] = matrix(source, folder, store=BuildCache(source.parent / store)).products
    [bill] = [data for name, data in contents(product.wheel).items() if name.endswith("/sboms/vbuild.cdx.json")]
    [formula] = json.loads(bill)["formulation"]
    parts = {part["name"]: part for part in formula["components"]}
    parts["build"] = {one["name"].removeprefix("vbuild:"): one["value"] for one in formula["properties"]}
    predicate = json.loads((folder / PROVENANCE).read_bytes())["predicate"]
    return product.wheel, parts, predicate


@pytest.mark.nightly
def test_what_else_is_on_path_changes_no_byte_and_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {name: f"#!/bin/sh\n{text}\n" for name, text in {**OTHERS, "rustc": RUSTC}.items()}
    others = tree(tmp_path / "bin", scripts)
    for name in scripts:
        (others / name).chmod(0o755)
    project = tree(tmp_path / "tiny", TINY)
    folders = os.environ["PATH"].split(os.pathsep)
    bare = os.pathsep.join(one for one in folders if Path(one, "gcc").exists() or not Path(one, "rustc").exists())
    monkeypatch.setenv("PATH", bare)
    wheel, parts, predicate = made(project, tmp_path / "bare")
    monkeypatch.setenv("PATH", os.pathsep.join([str(others), *folders]))
    for folder, store in (("beside others", "another"), ("of the cache", "store")):
        again, _, stated = made(project, tmp_path / folder, store=store)
        assert again.read_bytes() == wheel.read_bytes()
        assert stated == predicate
    assert {*parts} == {"build", "gcc", "setuptools", "tiny"}
    version = subprocess.check_output(["gcc", "-dumpfullversion"], text=True).strip()
    hashed = [{"alg": "SHA-256", "content": sha256_of(Path(shutil.which("gcc") or ""))}]
    assert (parts["gcc"]["version"], parts["gcc"]["hashes"]) == (version, hashed)
    assert parts["build"]["backend"] == "setuptools.build_meta"
    assert {key for key in parts["build"] if "FLAGS" in key} == {"flags:CFLAGS", "flags:CXXFLAGS"}
    installed, [sha256] = parts["setuptools"], parts["setuptools"]["hashes"]
    assert sha256["content"] in of_the_index(f"setuptools=={installed['version']}")
    stated = {one["name"]: one["digest"]["sha256"] for one in predicate["buildDefinition"]["resolvedDependencies"]}
    assert stated.pop("pyproject.toml")
    assert stated == {
        f"compiler: gcc {version}": hashed[0]["content"],
        f"build requirement: setuptools {installed['version']}": sha256["content"],
    }


def of_the_index(requirement: str) -> list[str]:
    """The SHA-256 of the files of *requirement* that uv finds on the index."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes", "-"]
    return re.findall(r"sha256:(\w+)", subprocess.check_output(command, input=requirement, text=True))


@needs("rustc", "cargo")
def test_rust_is_named_if_it_ran(tmp_path: Path) -> None:
    project = maturin_project(tmp_path / "demo")
    with (project / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(MATRIX)
    _, parts, predicate = made(project, tmp_path / "dist")
    about = subprocess.check_output(["rustc", "-vV"], text=True)
    known = dict(line.split(": ", 1) for line in about.splitlines() if ": " in line)
    assert parts["rustc"]["version"] == known["release"]
    assert parts["build"]["backend"] == "maturin"
    assert {"maturin", "cffi"} <= {*parts}
    stated = {one["name"]: one for one in predicate["buildDefinition"]["resolvedDependencies"]}
    assert stated[f"compiler: rustc {known['release']}"]["digest"] == {"gitCommit": known["commit-hash"]}


def test_a_build_that_ran_no_compiler_names_none_and_no_flags(tmp_path: Path) -> None:
    project = tree(tmp_path / "tiny", {"pyproject.toml": TINY["pyproject.toml"], "tiny.py": ""})
    _, parts, predicate = made(project, tmp_path / "dist")
    assert {*parts} == {"build", "setuptools", "tiny"}
    assert parts["build"] == {"backend": "setuptools.build_meta", "cpu": "x86-64"}
    [about] = predicate["buildDefinition"]["externalParameters"]["wheels"]
    assert about["compilers"] == []
