"""What vbuild adds to options of cibuildwheel takes the place of nothing, as cibuildwheel's own code has it."""

import os
from itertools import product
from pathlib import Path

import pytest

from tests.factories.cibuildwheel_runs import (
    ALL,
    LEVELS,
    OURS,
    assigned,
    described,
    evaluated,
    identifiers_of,
    options_of,
    runs_of,
    with_vbuild,
)
from vbuild.build.cibuildwheel import runs as places
from vbuild.errors import BuildError

# what the project, the tables for single identifiers, and the user may say of an option
PROJECTS = {
    "nothing": "",
    "options": """
[tool.cibuildwheel]
environment = { CFLAGS = "-O2", FOO = "1" }
config-settings = { a = "1", b = ["2", "3"] }
before-build = ["pip install cython", "cython *.pyx"]
repair-wheel-command = "auditwheel repair --strip -w {dest_dir} {wheel}"
""",
    "options for Linux, in other spellings": '''
[tool.cibuildwheel]
environment = "CFLAGS='-O1'"
before-build = "false"
[tool.cibuildwheel.linux]
inherit = { environment = "append" }
environment = { FOO = "$CFLAGS" }
config-settings = "a=1 a=2"
before-build = """
echo begin
echo end  # so that a build begins
"""
''',
}
OVERRIDES = {
    "none": "",
    "added": """
[[tool.cibuildwheel.overrides]]
select = "cp311-*"
inherit = { environment = "append", before-build = "prepend", config-settings = "append" }
environment = { BAR = "2" }
config-settings = { c = "9", a = "0" }
before-build = "echo first"
""",
    "new": """
[[tool.cibuildwheel.overrides]]
select = "*-manylinux*"
environment = { BAR = "3" }
before-build = ""
config-settings = {}
""",
}
RULES = (None, "none", "append", "prepend")


def environments() -> list[dict[str, str]]:
    """Every way in which a user may set the variables of an option, with the rules for them."""
    values = {
        "ENVIRONMENT": ('USERS="$CFLAGS user"', 'MORE="1" CFLAGS="-g"'),
        "CONFIG_SETTINGS": ("a=user e=5", "b=7 b=8"),
        "BEFORE_BUILD": ("echo user", "echo more"),
    }
    found = []
    for has_first, has_second, first, second in product((False, True), (False, True), RULES, RULES):
        environment: dict[str, str] = {}
        for name, (one, two) in values.items():
            environment |= {f"CIBW_{name}": one} if has_first else {}
            environment |= {f"CIBW_{name}_LINUX": two} if has_second else {}
        options = ("environment", "config-settings", "before-build")
        rules = [f"{option}: {first}" for option in options if first] + ["test-command"]
        rules += [f"{option}-linux:{second}" for option in options if second]
        found.append({**environment, "CIBW_INHERIT": "; ".join(rules)})
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("override", OVERRIDES)
@pytest.mark.parametrize("project", PROJECTS)
def test_whatever_project_and_user_say_is_still_said(project: str, override: str, tmp_path: Path) -> None:
    described(tmp_path, PROJECTS[project] + OVERRIDES[override] + LEVELS + OURS)
    for environment in [{}, *environments()]:
        run, added = with_vbuild(tmp_path, environment)
        assert run.plan is not None
        before, after = options_of(tmp_path, environment), options_of(tmp_path, added)
        assert after.assignments == before.assignments + assigned(run.plan.environment), environment
        assert after.settings == {**before.settings, "b": ("new",), "d": ("x y", "z")}, environment
        trap, joined, theirs = after.before_build.partition(" EXIT && ")
        assert trap.startswith("trap 'status=$?; "), environment
        assert (theirs if joined else "") == before.before_build, environment
        assert (after.repair, after.is_tested) == (before.repair, before.is_tested), environment


def test_a_users_variable_that_ends_with_a_newline_does_not_end_what_is_added(tmp_path: Path) -> None:
    described(tmp_path, LEVELS)
    environment = {
        "CIBW_ENVIRONMENT": 'A="1"\n',
        "CIBW_ENVIRONMENT_LINUX": '\nB="2"\n',
        "CIBW_INHERIT": "environment-linux",
    }
    _, added = with_vbuild(tmp_path, environment)
    found = evaluated(tmp_path, added, {"PATH": os.environ["PATH"]})
    assert (found["A"], found["B"]) == ("1", "2")
    assert found["PATH"].startswith(str(places.WRAPPERS))


def test_a_users_rule_for_the_list_of_builds_does_not_add_to_it(tmp_path: Path) -> None:
    described(tmp_path, '[tool.cibuildwheel]\nbuild = "cp3*"\nskip = "cp313*"\n' + LEVELS)
    environment = {"CIBW_BUILD": "cp311-*", "CIBW_INHERIT": "build: append"}
    run = runs_of(tmp_path, *ALL, environment=environment)[-1]
    assert identifiers_of(tmp_path, {**environment, **dict(run.variables)}, *ALL) == list(run.identifiers)


def test_config_settings_of_a_user_that_are_none_are_refused(tmp_path: Path) -> None:
    described(tmp_path, LEVELS + OURS)
    environment = {"CIBW_CONFIG_SETTINGS": "--quiet", "CIBW_INHERIT": "config-settings"}
    with pytest.raises(BuildError, match=r"^CIBW_CONFIG_SETTINGS: found '--quiet', expected KEY=VALUE$"):
        runs_of(tmp_path, environment=environment)


@pytest.mark.parametrize("text", ["environment: add", "environment: append append"])
def test_rules_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    described(tmp_path, LEVELS)
    with pytest.raises(BuildError) as refused:
        runs_of(tmp_path, environment={"CIBW_INHERIT": text})
    assert str(refused.value) == f"CIBW_INHERIT={text}: expected as in 'environment: append; before-build: prepend'"
