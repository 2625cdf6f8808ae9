"""Statements on what wheels were made of, as in-toto and SLSA have them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.factories.commands import vbuild
from tests.factories.extensions import library, module
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.repaired_wheels import release
from tests.factories.simple_indexes import write_simple
from tests.factories.wheels import wheel
from vbuild import __version__
from vbuild.release.builder import billed
from vbuild.sbom.model import Making, Material, MaterialRole, package_url
from vbuild.sbom.statement import PROVENANCE, dependencies_at, platform_at, statement

NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
ENTRIES = tuple(entry(arch=arch, code=cubin(arch, 1 << 14)) for arch in (80, 90))
SDIST = Material(MaterialRole.SOURCE, "demo", "1.0", package_url("demo", "1.0"), "78" * 32)
COMMIT = Material(MaterialRole.NATIVE, "zlib", url="https://git.example/zlib", commit="a1" * 20)
# a folder, and a toolkit that was installed: nothing pins them
FOLDER, INSTALLED = (
    Material(MaterialRole.SOURCE, "demo"),
    Material(MaterialRole.TOOLKIT, "CUDA Toolkit", "12.6", identity="bc" * 32),
)
GCC = Material(MaterialRole.COMPILER, "gcc", "13.2.0")
BUILD = Making((SDIST, COMMIT, GCC, FOLDER, INSTALLED), (("cpu", "x86-64-v3"),))


def made(folder: Path) -> Path:
    return billed(wheel(folder / "plain", NAME, {"demo/a.so": b"a"}), folder, BUILD)


def told(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    assert isinstance(found, dict)
    return found


def test_a_statement_names_each_file_and_all_that_pins_its_inputs(tmp_path: Path) -> None:
    recipe = tmp_path / "demo.toml"
    recipe.write_text("name = 'demo'", encoding="utf-8")
    path = made(tmp_path)
    assert told(statement([path], inputs=[recipe], asked={"recipe": "demo.toml"}, platform="")) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": NAME, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:vbuild:release:1",
                "externalParameters": {
                    "recipe": "demo.toml",
                    "wheels": [
                        {
                            "name": NAME,
                            "builds": [{"cpu": "x86-64-v3"}],
                            "compilers": ["gcc 13.2.0"],
                            "unpinned": ["source: demo", "toolkit: CUDA Toolkit 12.6"],
                        }
                    ],
                },
                "resolvedDependencies": [
                    {"name": "demo.toml", "digest": {"sha256": hashlib.sha256(recipe.read_bytes()).hexdigest()}},
                    {"name": "native dependency: zlib", "uri": COMMIT.url, "digest": {"gitCommit": "a1" * 20}},
                    {"name": "source: demo 1.0", "uri": "pkg:pypi/demo@1.0", "digest": {"sha256": "78" * 32}},
                ],
            },
            "runDetails": {"builder": {"version": {"vbuild": __version__}}},
        },
    }


def test_compilers_and_packages_that_were_seen_are_dependencies_by_their_hashes(tmp_path: Path) -> None:
    setuptools = package_url("setuptools", "80.9.0", file="setuptools-80.9.0-py3-none-any.whl")
    seen = (
        replace(GCC, sha256="34" * 32),
        Material(MaterialRole.COMPILER, "rustc", "1.95.0", commit="c0" * 20),
        Material(MaterialRole.REQUIREMENT, "setuptools", "80.9.0", setuptools, "56" * 32),
        Material(MaterialRole.REQUIREMENT, "of-a-folder", "1.0"),
    )
    path = billed(wheel(tmp_path / "plain", NAME, {"demo/a.so": b"a"}), tmp_path, Making(seen))
    definition = told(statement([path]))["predicate"]["buildDefinition"]
    [about] = definition["externalParameters"]["wheels"]
    assert about["compilers"] == ["gcc 13.2.0", "rustc 1.95.0"]
    assert about["unpinned"] == ["build requirement: of-a-folder 1.0"]
    assert definition["resolvedDependencies"] == [
        {"name": "build requirement: setuptools 80.9.0", "uri": setuptools, "digest": {"sha256": "56" * 32}},
        {"name": "compiler: gcc 13.2.0", "digest": {"sha256": "34" * 32}},
        {"name": "compiler: rustc 1.95.0", "digest": {"gitCommit": "c0" * 20}},
    ]


GITHUB = {"GITHUB_ACTIONS": "true", "RUNNER_ENVIRONMENT": "github-hosted"}
GITLAB = {"GITLAB_CI": "true", "CI_PROJECT_URL": "https://gitlab.example/me/demo", "CI_RUNNER_ID": "7"}


@pytest.mark.parametrize(
    ("environment", "platform"),
    [
        ({}, ""),
        (GITHUB, "https://github.com/actions/runner/github-hosted"),
        ({**GITHUB, "RUNNER_ENVIRONMENT": "self-hosted"}, "https://github.com/actions/runner/self-hosted"),
        ({"GITHUB_ACTIONS": "true"}, ""),  # others say so, too
        (GITLAB, "https://gitlab.example/me/demo/-/runners/7"),
        ({**GITLAB, "CI_RUNNER_ID": ""}, ""),
        ({"CI": "true"}, ""),
    ],
)
def test_the_builder_is_the_platform_that_says_what_it_is_and_else_nobody(
    environment: dict[str, str], platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {*GITHUB, *GITLAB}:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / PROVENANCE).write_bytes(statement([made(tmp_path)]))
    builder = told((tmp_path / PROVENANCE).read_bytes())["predicate"]["runDetails"]["builder"]
    assert builder == {**({"id": platform} if platform else {}), "version": {"vbuild": __version__}}
    assert platform_at(tmp_path) == platform
    assert platform_at(tmp_path / "nowhere") == ""


def test_slim_states_beside_each_wheel_what_it_was_made_of_where_asked(tmp_path: Path) -> None:
    fat = wheel(tmp_path, NAME, {"demo/__init__.py": "", "demo/a.so": device_library(fatbin(*ENTRIES))})
    words = ("slim", fat, "-o", tmp_path / "out", "--provenance", "--variant", "sm80=80", "--variant", "sm90=90")
    assert vbuild(*words).returncode == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("*.provenance.json")) == [
        f"{NAME.removesuffix('.whl')}-{label}.whl.provenance.json" for label in ("sm80", "sm90")
    ]
    for path in (tmp_path / "out").glob("*.provenance.json"):
        data = path.read_bytes()
        made_here = path.with_name(path.name.removesuffix(".provenance.json"))
        [subject] = told(data)["subject"]
        assert subject == {
            "name": made_here.name,
            "digest": {"sha256": hashlib.sha256(made_here.read_bytes()).hexdigest()},
        }
        definition = told(data)["predicate"]["buildDefinition"]
        assert definition["buildType"] == "urn:vbuild:slim:1"
        assert definition["externalParameters"]["command"] == "vbuild slim"
        assert definition["externalParameters"]["options"]["variants"] == ["sm80=sm_80", "sm90=sm_90"]
        [fat_one] = definition["resolvedDependencies"]
        assert fat_one == {"name": NAME, "digest": {"sha256": hashlib.sha256(fat.read_bytes()).hexdigest()}}
        assert str(tmp_path).encode() not in data


def test_split_states_what_all_its_wheels_were_made_of(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {"demo/_c.so": module("libtop.so.1", source="int top(void);")}
    wheels = release(tmp_path / "fat", files, {"libtop.so.1": library("libtop.so.1")})
    words = ("split", *wheels, "-o", tmp_path / "out", "--no-replace", "--min-size=0", "--provenance")
    assert vbuild(*words).returncode == 0
    stated = sorted((tmp_path / "out").glob("*.provenance.json"))
    assert len(stated) == len([*(tmp_path / "out").glob("*.whl")]) == 3
    for path in stated:
        definition = told(path.read_bytes())["predicate"]["buildDefinition"]
        assert [each["name"] for each in definition["resolvedDependencies"]] == [one.name for one in wheels]
        assert definition["externalParameters"]["options"]["replace"] == "False"


def test_it_is_the_same_in_whatever_folder_and_order_wheels_come(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one"), made(tmp_path / "other")
    pure = wheel(tmp_path, "pure-1.0-py3-none-any.whl", {"pure.py": ""})
    assert statement([one, pure]) == statement([pure, other])
    assert str(tmp_path).encode() not in statement([one, pure])


def test_what_parts_were_made_of_is_kept_and_nothing_else_of_their_files(tmp_path: Path) -> None:
    path = made(tmp_path)
    (tmp_path / PROVENANCE).write_bytes(statement([path]))
    pure = wheel(tmp_path / "pure", "pure-1.0-py3-none-any.whl", {"pure.py": ""})
    kept = told(statement([pure], earlier=dependencies_at(tmp_path)))["predicate"]["buildDefinition"]
    assert [each["name"] for each in kept["resolvedDependencies"]] == ["native dependency: zlib", "source: demo 1.0"]
    foreign = {"resolvedDependencies": [{"name": "x", "annotations": 1}, "y", {"name": "x"}, {"name": 1, "uri": "x:y"}]}
    (tmp_path / PROVENANCE).write_text(json.dumps({"predicate": {"buildDefinition": foreign}}), encoding="utf-8")
    assert dependencies_at(tmp_path) == ()


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"\xff", b"[" * 100_000, b"1"], ids=["torn", "list", "bytes", "deep", "number"]
)
def test_a_part_without_a_statement_that_can_be_read_gives_nothing(tmp_path: Path, data: bytes) -> None:
    assert dependencies_at(tmp_path) == ()
    (tmp_path / PROVENANCE).write_bytes(data)
    assert dependencies_at(tmp_path) == ()


def test_an_index_does_not_list_it(tmp_path: Path) -> None:
    path = made(tmp_path)
    path.with_name(PROVENANCE).write_bytes(statement([path]))
    write_simple(tmp_path, tmp_path / "site")
    assert PROVENANCE not in {found.name for found in (tmp_path / "site").rglob("*")}
    assert not [page for page in (tmp_path / "site").rglob("*.html") if PROVENANCE in page.read_text(encoding="utf-8")]
