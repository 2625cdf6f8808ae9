"""Releases of vbuild as wheels, against each other and against this tree."""

import shutil
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import comparing, main, taken
from tests.benchmarks.registry import named
from tests.benchmarks.releases import ROOT, built, installed

pytestmark = [pytest.mark.nightly, pytest.mark.network]


def test_a_release_that_was_slower_is_found_and_one_that_is_slower_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wheel of this very tree, and one of it that waits for half a second before it does anything."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "vbuild", source / "vbuild", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    plain = built(source, tmp_path / "plain")
    entry = source / "vbuild" / "cli" / "main.py"
    entry.write_text(f"{entry.read_text(encoding='utf-8')}\nimport time\ntime.sleep(0.5)\n", encoding="utf-8")
    slow = built(source, tmp_path / "slow")

    assert main(["--against", str(slow), "starting.help"]) == 0
    assert "SLOWER" not in capsys.readouterr().out
    ours, theirs = installed(slow, tmp_path / "ours"), installed(plain, tmp_path / "theirs")
    assert taken(named(["starting.help"]), comparing(ours, theirs), cache=None) == 1
    assert "SLOWER than 1.15" in capsys.readouterr().out
