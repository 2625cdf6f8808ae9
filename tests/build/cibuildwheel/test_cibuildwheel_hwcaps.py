"""`plain = "hwcaps"` under cibuildwheel: a real run for each level, in podman, and one plain wheel of them all."""

import os
from pathlib import Path

import pytest

from tests.factories.cibuildwheel_projects import LEVELS, OFFLINE, inside, project
from tests.factories.containers import needs_podman
from vbuild.recipe.model import TrialResult
from vbuild.release.cibuildwheel import cibuildwheel
from vbuild.verification.level_runs import levels_of

pytestmark = [
    pytest.mark.nightly,
    needs_podman,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the levels are those of x86-64"),
]

HWCAPS = LEVELS.replace("cpu =", 'plain = "hwcaps"\ncpu =')


def test_the_plain_wheel_of_each_python_is_joined_of_its_levels(tmp_path: Path) -> None:
    source = project(tmp_path / "project", f"{OFFLINE}test-command = \"python -c 'import demo'\"\n{HWCAPS}")
    with inside(source):
        release = cibuildwheel(tmp_path / "dist")
    assert release.failures == ()
    plain, *variants = release.products
    # v2's registers are v1's, and so is its code
    assert levels_of(plain.wheel) == ("v1", "v3")
    assert [levels_of(product.wheel) for product in variants] == [("v1",), ("v1",)]
    assert plain.verdict.levels == ("v3",)
    assert [product.trial for product in release.products] == [
        TrialResult.NOT_RUN,
        TrialResult.PASSED,
        TrialResult.PASSED,
    ]
    assert release.notes == (f"{plain.wheel.name}: joined, and not tested since",)
