"""Wheels timed against each other, with real environments; the modules in them take as long as they are told."""

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import wheel
from vbuild.errors import RecipeError, WheelError
from vbuild.hardware.machine import cpu_here
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Bench
from vbuild.verification.bench import BenchReport, bench, wheels_to_compare

PRINTS = (
    "import demo\nprint('a', demo.MS, 'ms')\nprint('b:', demo.MS * 2, 'ms')\nprint('none', 3, 'MB/s')\nprint('c', 3)\n"
)
NOWHERE = Indexes(no_index=True)
LEVELS = {"v2": "x86_64 :: level :: v2", "v3": "x86_64 :: level :: v3", "arm": "aarch64 :: version :: 8.2a"}
HERE = cpu_here()
needs_v3 = pytest.mark.skipif(not (HERE and HERE.machine == "x86_64" and HERE.level in {"v3", "v4"}), reason="no v3")


def demo(folder: Path, milliseconds: str, level: str | None = None) -> Path:
    """A wheel of demo whose MS is *milliseconds*, if *level* names one of LEVELS for that."""
    files: dict[str, bytes | str] = {"demo.py": f"MS = {milliseconds}\n"}
    if level:
        files["demo-1.0.dist-info/variant.json"] = document(
            variant(level, LEVELS[level]), metadata=metadata("x86_64", "aarch64")
        ).pack()
    return wheel(folder, "-".join(filter(None, ("demo-1.0-py3-none-any", level))) + ".whl", files=files)


def report(folder: Path, script: str, *milliseconds: str) -> BenchReport:
    wheels = [demo(folder / str(number), text) for number, text in enumerate(milliseconds)]
    return run(folder, script, wheels)


def run(folder: Path, script: str, wheels: list[Path], settings: Bench = Bench(rounds=2)) -> BenchReport:  # noqa: B008 - frozen
    (folder / "script.py").write_text(script)
    return bench(wheels, replace(settings, script=folder / "script.py"), indexes=lambda: NOWHERE)


def counting(folder: Path, figures: str) -> str:
    """A script that prints one of *figures*, a list of milliseconds, in each run; it may use MS of demo."""
    state = folder / "state"
    return (
        "import demo, pathlib\n"
        f"state = pathlib.Path({str(state)!r})\n"
        "count = len(state.read_text()) if state.exists() else 0\n"
        "state.write_text('x' * (count + 1))\n"
        f"print('a', ({figures})[count], 'ms')\n"
    )


def test_figures_of_which_some_say_faster_and_some_slower_are_noise(tmp_path: Path) -> None:
    # the first, the second, the first once more; in each second round the other way
    script = counting(tmp_path, "[10, 5, 10, 10, 20, 10] * 3")
    found = run(tmp_path, script, [demo(tmp_path, "1")] * 2)
    _, other = found.wheels
    assert other.overall
    assert (other.overall.low, other.overall.high, other.overall.is_noise) == (0.5, 2.0, True)
    assert str(other.overall).endswith("(0.50 to 2.00), cannot tell")
    assert found.rounds == 6  # three times those asked for


def test_wheels_between_which_there_is_no_difference_are_within_the_noise(tmp_path: Path) -> None:
    found = run(tmp_path, counting(tmp_path, "[100, 101, 100, 100, 99, 100]"), [demo(tmp_path, "1")] * 2)
    assert found.rounds == 2
    assert str(found.wheels[1].overall) == "1.00x (0.99 to 1.01), within the noise"


@pytest.mark.nightly
def test_of_nine_rounds_one_outlier_on_each_side_says_nothing(tmp_path: Path) -> None:
    # rounds 1 and 3 say 10 and 0.1 times
    script = counting(tmp_path, "[10, 1, 10] + [10, 5, 10] + [10, 100, 10] + [10, 5, 10] * 6")
    _, other = run(tmp_path, script, [demo(tmp_path, "1")] * 2, Bench(rounds=9)).wheels
    assert other.overall
    assert (other.overall.low, other.overall.median, other.overall.high) == (2, 2, 2)


def test_json_of_pytest_benchmark_and_pyperf_is_read(tmp_path: Path) -> None:
    pyperf = {"runs": [{"values": [0.2, 0.4]}, {"values": [0.3]}, {}]}
    stats = {"name": "test_b", "stats": {"median": 0.5}}
    script = (
        "import sys, json\n'''\nimport pyperf\n'''\n"
        f"data = {{'benchmarks': [{pyperf!r}, {stats!r}], 'metadata': {{'name': 'a'}}}}\n"
        "json.dump(data, open(sys.argv[sys.argv.index('-o') + 1], 'w'))\n"
    )
    (tmp_path / "packages").mkdir()
    pyperf_wheel = wheel(tmp_path / "packages", "pyperf-1.0-py3-none-any.whl")
    (tmp_path / "script.py").write_text(script)
    indexes = Indexes(no_index=True, find_links=(pyperf_wheel.parent.as_uri(),))
    wheels = [demo(tmp_path / "0", "1"), demo(tmp_path / "1", "1")]
    found = bench(wheels, Bench(script=tmp_path / "script.py", rounds=2), indexes=lambda: indexes)
    assert found.wheels[0].seconds == {"a": 0.3, "test_b": 0.5}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('nothing')", "script.py printed no figures; expected lines such as 'encrypt 12.5 ms'"),
        ("raise SystemExit('no luck')", "script.py failed with status 1: no luck"),
        ("import os; os.kill(os.getpid(), 11)", "script.py was ended by SIGSEGV and printed nothing"),
        ("print('encrypt 12.5')", "script.py printed no figures"),
        ("print('{nothing}')", "script.py gave JSON that is neither pyperf's nor pytest-benchmark's"),
        ("import numexpr", "numexpr'; add the package that has numexpr to bench.requires, or to the script (PEP 723)"),
        (
            "import demo\nprint('a' if demo.MS == 1 else 'b', 1, 's')",
            "not the figures of demo-1.0-py3-none-any.whl: a",
        ),
        ("print('a 0 s')", "a: no time at all; expected seconds above 0"),
    ],
)
def test_a_script_that_says_nothing_comparable_is_refused(script: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(WheelError) as refused:
        report(tmp_path, script, "1", "2")
    assert message in str(refused.value)


def test_a_script_gets_what_it_states_in_a_comment(tmp_path: Path) -> None:
    helper = wheel(tmp_path / "packages", "helper-1.0-py3-none-any.whl", {"helper.py": "MS = 3"})
    script = tmp_path / "script.py"
    script.write_text("# /// script\n# dependencies = ['helper']\n# ///\nimport helper\nprint('a', helper.MS, 'ms')\n")
    indexes = Indexes(no_index=True, find_links=(helper.parent.as_uri(),))
    wheels = [demo(tmp_path / "0", "1"), demo(tmp_path / "1", "1")]
    assert bench(wheels, Bench(script=script, rounds=2), indexes=lambda: indexes).wheels[0].seconds == {"a": 0.003}
    script.write_text(script.read_text().replace("'helper'", "'./helper'"))
    with pytest.raises(RecipeError, match=r"script.py: dependencies\[0\]: "):
        bench(wheels, Bench(script=script), indexes=lambda: indexes)


def test_a_command_is_run_with_the_programs_of_the_environment(tmp_path: Path) -> None:
    command = "python -c \"import demo; print('all: %d usec' % demo.MS)\" && python -m timeit -n 1 -r 2 'import demo'"
    wheels = [demo(tmp_path / "0", "4"), demo(tmp_path / "1", "2")]
    _, other = bench(wheels, Bench(command=command, rounds=2), indexes=lambda: NOWHERE).wheels
    assert other.seconds.keys() == {"all", "timeit"}
    assert (round(other.seconds["all"] * 1e6, 3), round(other.ratios["all"].median, 3)) == (2, 2)


def test_a_script_beside_the_sources_finds_the_wheel(tmp_path: Path) -> None:
    (tmp_path / "demo.py").write_text("MS = 77\n")
    assert report(tmp_path, PRINTS, "8", "2").wheels[0].seconds["a"] == 0.008


@pytest.mark.nightly
@needs_v3
def test_a_level_is_held_against_the_next_lower_one_that_stays(tmp_path: Path) -> None:
    wheels = [demo(tmp_path, "10"), demo(tmp_path, "9.9", "v2"), demo(tmp_path, "5", "v3")]
    plain, v2, v3 = run(tmp_path, PRINTS, wheels, Bench(min_gain=0.03)).wheels
    assert (plain.gain, plain.is_left_out) == (None, False)
    assert (v2.below, v2.is_left_out, v2.decision(0.03)) == (
        "plain",
        True,
        "left out, as it does not reach 3% over plain",
    )
    assert v3.gain
    assert (v3.below, round(v3.gain.median, 3), v3.is_left_out) == ("plain", 2, False)
    *_, again = run(tmp_path, PRINTS, wheels, Bench(min_gain=0.005)).wheels
    assert again.gain
    assert (again.below, round(again.gain.median, 3)) == ("v2", 1.98)


@pytest.mark.nightly
@needs_v3
def test_a_level_stays_if_the_noise_is_greater_than_the_gain(tmp_path: Path) -> None:
    # v3 is slower in every other round
    script = counting(tmp_path, "[10, 10, 10, 10, 12, 10] * 8")
    found = run(tmp_path, script, [demo(tmp_path, "1"), demo(tmp_path, "1", "v3")], Bench(min_gain=0.03))
    _, v3 = found.wheels
    assert found.rounds == 15  # three times those asked for
    assert v3.gain
    assert (round(v3.gain.low, 3), round(v3.gain.high, 3), v3.is_left_out) == (0.833, 1, False)
    assert v3.decision(0.03) == "stays: the noise hides whether it reaches 3% over plain"


def test_a_level_that_this_machine_cannot_run_stays_and_says_so(tmp_path: Path) -> None:
    level = "arm" if HERE and HERE.machine == "x86_64" else "v3"
    _, other = run(tmp_path, PRINTS, [demo(tmp_path, "1"), demo(tmp_path, "1", level)], Bench(min_gain=0.03)).wheels
    assert other.untried == f"not run: this machine is {HERE}"
    assert (other.is_left_out, other.decision(0.03)) == (False, "stays")


def test_of_a_folder_come_the_plain_wheel_and_the_levels_in_order(tmp_path: Path) -> None:
    wheels = [demo(tmp_path, "1"), demo(tmp_path, "1", "v2"), demo(tmp_path, "1", "v3")]
    wheel(tmp_path, "demo_libs-1.0-py3-none-any.whl")  # one that they require
    assert wheels_to_compare([tmp_path]) == wheels
    (tmp_path / "other").mkdir()
    with pytest.raises(WheelError, match=r"other: found no wheel; expected one project's wheels for one Python"):
        wheels_to_compare([tmp_path / "other"])


def test_one_wheel_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="found 1 to compare; expected two wheels or more"):
        bench([demo(tmp_path, "1")], Bench(command="true"), python=Path(sys.executable))
