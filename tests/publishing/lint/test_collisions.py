"""Distributions of a folder that install the same files."""

from pathlib import Path

import pytest

from tests.factories.release_folders import LINUX
from tests.factories.wheels import wheel
from vbuild.publishing.check import check
from vbuild.publishing.model import PublishRule
from vbuild.verification.model import Finding

INIT = {"demo/__init__.py": "from demo import _c\n", "demo/_c.so": "code"}
CP311, CP312 = (f"cp{version}-cp{version}-{LINUX}" for version in ("311", "312"))


def found(folder: Path) -> list[Finding]:
    return [problem for problem in check(folder).problems if problem.rule is PublishRule.SHARED_FILES]


def said(folder: Path) -> list[str]:
    return [problem.what for problem in found(folder)]


def test_two_projects_with_the_same_files_are_named_with_them(tmp_path: Path) -> None:
    wheel(tmp_path, f"demo-1.0-{CP311}.whl", INIT)
    wheel(tmp_path, f"demo_cu12-1.0-{CP311}.whl", {**INIT, "demo/_gpu.so": "more"})
    [problem] = found(tmp_path)
    assert problem.places == (f"demo-1.0-{CP311}.whl", f"demo_cu12-1.0-{CP311}.whl")
    assert str(problem) == (
        f"warning: demo-1.0-{CP311}.whl and 1 more: "
        "demo has files shared with demo-cu12: demo/__init__.py, demo/_c.so; "
        "say that one excludes the others: no installer notices, the last one's files win, and go with any of them "
        "[shared-files]"
    )


def test_those_that_only_a_third_links_are_named_with_it(tmp_path: Path) -> None:
    for project, names in (("a", "xy"), ("b", "yz"), ("c", "zw"), ("d", "w"), ("e", "v")):
        wheel(tmp_path, f"{project}-1.0-py3-none-any.whl", {f"{name}.py": project for name in names})
    assert said(tmp_path) == ["a has files shared with b, c, d: w.py, y.py, z.py"]


@pytest.mark.parametrize(
    ("one", "other", "meets"),
    [
        (CP311, CP312, False),
        (CP311, "py3-none-any", True),
        (f"cp39-abi3-{LINUX}", CP312, True),
        (CP311, "cp311-cp311-musllinux_1_2_x86_64", False),
        (CP311, "cp311-cp311-manylinux_2_28_aarch64", False),
        (CP311, "cp311-cp311-manylinux_2_28_x86_64", True),
    ],
)
def test_only_wheels_that_one_environment_takes_collide(one: str, other: str, tmp_path: Path, *, meets: bool) -> None:
    wheel(tmp_path, f"demo-1.0-{one}.whl", INIT)
    wheel(tmp_path, f"demo_cu12-1.0-{other}.whl", INIT)
    assert bool(said(tmp_path)) is meets


def test_an_init_of_many_distributions_is_no_collision_while_it_is_the_same(tmp_path: Path) -> None:
    old = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
    wheel(tmp_path, "space_a-1.0-py3-none-any.whl", {"space/__init__.py": old, "space/a.py": ""})
    wheel(tmp_path, "space_b-1.0-py3-none-any.whl", {"space/__init__.py": old, "space/b.py": ""})
    assert said(tmp_path) == []
    wheel(tmp_path, "space_c-1.0-py3-none-any.whl", {"space/__init__.py": "", "space/c.py": ""})
    assert said(tmp_path) == ["space-a has files shared with space-b, space-c: space/__init__.py"]
