"""`[bench]` in a recipe: its figures are told, and levels that surely bring too little are left out of the release.

The script says how long its level takes, so that every run says the same.
"""

import json
import os
from pathlib import Path

import pytest

from tests.factories.projects import c_project, tree
from vbuild.cli.render import release_lines, show_release
from vbuild.errors import VbuildError
from vbuild.hardware.machine import cpu_here
from vbuild.release.matrix import matrix
from vbuild.release.model import ReleaseResult

HERE = cpu_here()
WIDTH = 80
SCRIPT = """
import importlib.metadata, json
text = importlib.metadata.distribution("demo").read_text("variant.json")
label = next(iter(json.loads(text)["variants"])) if text else "plain"
print("work", {"plain": 10, "x86_64_v2": 9.9, "x86_64_v3": 5}[label], "ms")
print("rest", {"plain": 10, "x86_64_v2": 9.9, "x86_64_v3": 5}[label], "ms")
"""
RECIPE = """
name = "demo"
[source]
path = "project"
[matrix]
cpu = ["x86-64", "x86-64-v2", "x86-64-v3"]
"""
BENCH = '[bench]\nscript = "speed.py"\n'
V2 = "x86_64_v2"

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(
        os.uname().machine != "x86_64" or not (HERE and HERE.level in {"v3", "v4"}), reason="needs x86-64-v3"
    ),
]


def released(folder: Path, text: str, script: str = SCRIPT) -> ReleaseResult:
    if not (folder / "project").exists():
        c_project(folder / "project")
    tree(folder, {"demo.toml": RECIPE + text, "speed.py": script})
    return matrix(folder / "demo.toml", folder / "dist")


def named(folder: Path, label: str) -> list[str]:
    """The files in the output in *folder* that have *label* in their names or, as indexes and reports, in them."""
    found = [path for path in (folder / "dist").iterdir() if path.suffix in {".whl", ".json"}]
    return [path.name for path in found if label in path.name or label in json.dumps(_listed(path))]


def _listed(path: Path) -> object:
    if path.suffix == ".whl" or path.name == "provenance.json":
        return ""
    data = json.loads(path.read_text())
    return data["variants"] if path.name == "report.json" else data


@pytest.mark.nightly
def test_a_level_that_brings_too_little_is_left_out_and_named(tmp_path: Path) -> None:
    whole = released(tmp_path, BENCH)
    assert [one.title for one in whole.bench[0].wheels] == ["plain", "x86_64_v2", "x86_64_v3"]
    assert len(named(tmp_path, V2)) == 3  # the wheel, the index, the report
    release = released(tmp_path, BENCH + 'min-gain = "3%"\n')
    assert [product.label for product in release.products] == [None, "x86_64_v3"]
    assert not release.failures
    assert named(tmp_path, V2) == []  # not even of the earlier run
    lines = [*release_lines(release)]
    start = lines.index("bench                  speed, against plain in 5 rounds")
    assert lines[start + 1 : start + 8] == [
        "plain                  the measure",
        "x86_64_v2              1.01x (1.01 to 1.01)",
        "  work 1.01x, rest 1.01x",
        "  left out, as it does not reach 3% over plain",
        "x86_64_v3              2.00x (2.00 to 2.00)",
        "  work 2.00x, rest 2.00x",
        "  stays: reaches 3% over plain",
    ]
    assert [line for line in lines if len(line) > WIDTH and " " in line.strip()] == []
    (report,) = json.loads((tmp_path / "dist" / "report.json").read_text())["bench"]
    assert (report["min_gain"], [one["left_out"] for one in report["wheels"]]) == (0.03, [False, True, False])
    assert "left out, as it does not reach 3% over plain" in (tmp_path / "dist" / "report.html").read_text()


@pytest.mark.nightly
def test_what_was_measured_is_kept_with_the_wheels_and_measured_again_with_another_script(tmp_path: Path) -> None:
    script = SCRIPT.replace("work", "counted") + f"open({str(tmp_path / 'runs')!r}, 'a').write('x')\n"
    first = released(tmp_path, BENCH + 'min-gain = "3%"\n', script)
    count = (tmp_path / "runs").stat().st_size
    again = released(tmp_path, BENCH + 'min-gain = "3%"\n', script)
    assert (again.bench, (tmp_path / "runs").stat().st_size) == (first.bench, count)
    assert [product.label for product in again.products] == [product.label for product in first.products]
    assert "bench: measured in an earlier run with the same wheels; matrix --fresh measures again" in again.notes
    other = released(tmp_path, BENCH + 'min-gain = "3%"\n', f"{script}# another\n")
    assert (tmp_path / "runs").stat().st_size > count
    assert not [note for note in other.notes if note.startswith("bench")]


@pytest.mark.nightly
def test_a_bench_that_fails_leaves_nothing_out_and_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = SCRIPT + "if label == 'x86_64_v3': raise SystemExit('no luck')\n"
    release = released(tmp_path, BENCH + 'min-gain = "3%"\n', script)
    assert [product.label for product in release.products] == [None, "x86_64_v2", "x86_64_v3"]
    wheel = release.products[2].wheel.name
    assert release.bench[0].error == f"{wheel}: speed.py failed with status 1: no luck"
    with pytest.raises(VbuildError, match=r"^demo: bench: .*no luck$"):
        show_release(release, as_json=False)
    assert "bench failed, and nothing is left out" in capsys.readouterr().out
    assert "The bench failed" in (tmp_path / "dist" / "report.html").read_text()


@pytest.mark.nightly
def test_the_plain_wheel_is_joined_of_the_levels_that_stay(tmp_path: Path) -> None:
    text = BENCH + 'min-gain = "3%"\n'
    release = released(tmp_path, 'plain = "hwcaps"\n' + text)
    assert not release.failures
    assert release.notes[-1] == f"{release.products[0].wheel.name}: joined of v1, v3"


@pytest.mark.nightly
def test_the_published_wheel_takes_part(tmp_path: Path) -> None:
    first = released(tmp_path, "")
    published = first.products[0].wheel.rename(tmp_path / first.products[0].wheel.name)
    release = released(tmp_path, f'[verify]\nagainst = "{published}"\n{BENCH}')
    assert release.bench[0].wheels[-1].title == "published"


@pytest.mark.nightly
def test_a_release_without_levels_says_that_there_is_nothing_to_compare(tmp_path: Path) -> None:
    tree(tmp_path, {"speed.py": SCRIPT})
    c_project(tmp_path / "project")
    text = RECIPE.replace(', "x86-64-v2", "x86-64-v3"', "") + BENCH
    tree(tmp_path, {"demo.toml": text})
    release = matrix(tmp_path / "demo.toml", tmp_path / "dist")
    assert release.bench == ()
    assert any(note.startswith("bench: not run: expected") for note in release.notes)
