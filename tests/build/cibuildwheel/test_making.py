"""Which identifier a wheel was built for, as its name tells; which variables containers see."""

from pathlib import Path

import pytest

from tests.factories.projects import tree
from vbuild.build.cibuildwheel.making import passed_on, wheels_by_identifier
from vbuild.build.cibuildwheel.program import Arguments
from vbuild.errors import BuildError

MANYLINUX = "manylinux_2_17_x86_64.manylinux2014_x86_64"
IDENTIFIERS = (
    *("cp39-manylinux_x86_64", "cp310-manylinux_x86_64", "cp314-manylinux_x86_64", "cp314t-manylinux_x86_64"),
    *("pp311-manylinux_x86_64", "gp312_250-manylinux_x86_64", "cp310-musllinux_x86_64", "cp310-manylinux_i686"),
)


def of(*tags: str, among: tuple[str, ...] = IDENTIFIERS) -> dict[str, str]:
    """The tags of wheels by identifier."""
    wheels = [Path(f"demo-1.0-{tag}.whl") for tag in tags]
    found = wheels_by_identifier(wheels, among)
    return {identifier: wheel.stem.removeprefix("demo-1.0-") for identifier, wheel in found.items()}


@pytest.mark.parametrize(
    ("tag", "identifier"),
    [
        (f"cp39-cp39-{MANYLINUX}", "cp39-manylinux_x86_64"),
        (f"cp314-cp314-{MANYLINUX}", "cp314-manylinux_x86_64"),
        (f"cp314-cp314t-{MANYLINUX}", "cp314t-manylinux_x86_64"),
        (f"pp311-pypy311_pp73-{MANYLINUX}", "pp311-manylinux_x86_64"),
        (f"graalpy312-graalpy250_312_native-{MANYLINUX}", "gp312_250-manylinux_x86_64"),
        ("cp310-cp310-musllinux_1_2_x86_64", "cp310-musllinux_x86_64"),
        ("cp310-cp310-manylinux_2_17_i686", "cp310-manylinux_i686"),
        (f"cp39-abi3-{MANYLINUX}", "cp39-manylinux_x86_64"),
        (f"cp310-abi3-{MANYLINUX}", "cp310-manylinux_x86_64"),
        (f"cp311-abi3-{MANYLINUX}", "cp314-manylinux_x86_64"),
        (f"py3-none-{MANYLINUX}", "cp39-manylinux_x86_64"),
        ("py2.py3-none-musllinux_1_2_x86_64", "cp310-musllinux_x86_64"),
        ("cp310-cp310-linux_x86_64", "cp310-manylinux_x86_64"),
    ],
)
def test_a_wheel_belongs_to_the_first_identifier_that_it_fits(tag: str, identifier: str) -> None:
    assert of(tag) == {identifier: tag}


def test_a_wheel_for_the_stable_abi_leaves_others_to_the_pythons_before_it() -> None:
    wheels = (f"cp310-abi3-{MANYLINUX}", f"cp39-cp39-{MANYLINUX}", f"cp314-cp314t-{MANYLINUX}")
    assert list(of(*wheels)) == ["cp39-manylinux_x86_64", "cp310-manylinux_x86_64", "cp314t-manylinux_x86_64"]


@pytest.mark.parametrize("tag", [f"cp313-cp313-{MANYLINUX}", f"cp315-abi3-{MANYLINUX}", "cp39-cp39-win_amd64"])
def test_a_wheel_that_was_not_asked_for_is_refused(tag: str) -> None:
    with pytest.raises(BuildError) as error:
        of(tag, among=("cp39-manylinux_x86_64", "cp314t-manylinux_x86_64"))
    assert str(error.value) == (
        f"cibuildwheel made demo-1.0-{tag}.whl, which is for none of cp39-manylinux_x86_64, cp314t-manylinux_x86_64; "
        "expected one wheel for each: look at repair-wheel-command"
    )


def test_what_is_no_wheel_is_refused() -> None:
    with pytest.raises(BuildError, match=r"^cibuildwheel made 'demo\.whl': not a wheel's file name: 1 parts"):
        wheels_by_identifier([Path("demo.whl")], IDENTIFIERS)


def test_what_options_pass_on_into_containers_counts_wherever_they_say_so(tmp_path: Path) -> None:
    linux = '[tool.cibuildwheel.linux]\nenvironment-pass = ["ASKED", "TOO"]\n'
    override = '[[tool.cibuildwheel.overrides]]\nselect = "*"\nenvironment-pass = "ONCE"\n'
    project = tree(tmp_path, {"pyproject.toml": linux + override})
    environment = {"CIBW_ENVIRONMENT_PASS_LINUX": "MINE", "OTHER": "1"}
    assert passed_on(Arguments.parse([str(project)]), environment) == {"ASKED", "TOO", "ONCE", "MINE"}
