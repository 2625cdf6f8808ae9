"""Wheels timed against each other, with real environments; the modules in them take as long as they are told."""

from pathlib import Path

import pytest

from tests.factories.wheels import wheel
from vbuild.errors import WheelError
from vbuild.index_client.configuration import Indexes
from vbuild.verification.bench import BenchReport, bench

PRINTS = "import demo\nprint('a', demo.MS, 'ms')\nprint('b:', demo.MS * 2, 'ms')\nprint('not a figure')\n"
NOWHERE = Indexes(no_index=True)


def demo(folder: Path, milliseconds: str) -> Path:
    return wheel(folder, files={"demo.py": f"MS = {milliseconds}\n"})


def report(folder: Path, script: str, *milliseconds: str) -> BenchReport:
    (folder / "script.py").write_text(script)
    wheels = [demo(folder / str(number), text) for number, text in enumerate(milliseconds)]
    return bench(wheels, folder / "script.py", rounds=2, indexes=lambda: NOWHERE)


def test_figures_are_compared_with_those_of_the_first_wheel(tmp_path: Path) -> None:
    first, faster, slower = report(tmp_path, PRINTS, "8", "2.0", "1e1").wheels
    assert (first.seconds, first.overall) == ({"a": 0.008, "b": 0.016}, None)
    assert faster.overall
    assert faster.overall.median == pytest.approx(4)
    assert not faster.overall.is_noise
    assert slower.ratios["b"].median == pytest.approx(0.8)


def test_figures_of_which_some_say_faster_and_some_slower_are_noise(tmp_path: Path) -> None:
    state = tmp_path / "state"
    script = (
        "import demo, pathlib\n"
        f"state = pathlib.Path({str(state)!r})\n"
        "count = len(state.read_text()) if state.exists() else 0\n"
        "state.write_text('x' * (count + 1))\n"
        "print('a', [10, 5, 10, 20][count], 'ms')\n"
    )
    _, other = report(tmp_path, script, "1", "1").wheels
    assert other.overall
    assert (other.overall.least, other.overall.greatest, other.overall.is_noise) == (0.5, 2.0, True)
    assert str(other.overall).endswith("(0.50 to 2.00), within the noise")


def test_json_of_pytest_benchmark_and_pyperf_is_read(tmp_path: Path) -> None:
    pyperf = {"metadata": {"name": "a"}, "runs": [{"values": [0.2, 0.4]}, {"values": [0.3]}, {}]}
    stats = {"name": "test_b", "stats": {"median": 0.5}}
    script = (
        "import sys, json\n'''\nimport pyperf\n'''\n"
        f"json.dump({{'benchmarks': [{pyperf!r}, {stats!r}]}}, open(sys.argv[sys.argv.index('-o') + 1], 'w'))\n"
    )
    (tmp_path / "packages").mkdir()
    pyperf_wheel = wheel(tmp_path / "packages", "pyperf-1.0-py3-none-any.whl")
    (tmp_path / "script.py").write_text(script)
    indexes = Indexes(no_index=True, find_links=(pyperf_wheel.parent.as_uri(),))
    wheels = [demo(tmp_path / "0", "1"), demo(tmp_path / "1", "1")]
    found = bench(wheels, tmp_path / "script.py", rounds=2, indexes=lambda: indexes)
    assert found.wheels[0].seconds == {"a": 0.3, "test_b": 0.5}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('nothing')", "script.py printed no figures; expected lines such as 'encrypt 12.5 ms'"),
        ("raise SystemExit('no luck')", "script.py failed with status 1: no luck"),
        ("import demo\nprint('a' if demo.MS == 1 else 'b', 1)", "not the figures of demo-1.0-py3-none-any.whl: a, b"),
        ("print('a 0')", "a: no time at all; expected seconds above 0"),
    ],
)
def test_a_script_that_says_nothing_comparable_is_refused(script: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(WheelError) as refused:
        report(tmp_path, script, "1", "2")
    assert message in str(refused.value)


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="expected a Python script"):
        bench([demo(tmp_path, "1")] * 2, tmp_path / "none.py", indexes=lambda: NOWHERE)
