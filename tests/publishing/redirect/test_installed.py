"""The part of redirecting sdists that goes by what is installed: which build it takes, and how pip and uv take it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from tests.factories.clients import UV
from tests.factories.redirect_installs import against, laid_out, pip, ran, refusal, uv, virtual
from tests.factories.wheels import wheel
from vbuild.publishing.redirect import redirectinstalled as installed

Command = Callable[..., list[str | Path]]

TOOLS = pytest.mark.parametrize("tool", [pip, uv], ids=["pip", "uv"])
SITE = f"lib/python3.{sys.version_info[1]}/site-packages"
_VERSIONS = st.lists(st.integers(0, 3), min_size=2, max_size=3).map(lambda found: ".".join(map(str, found)))
_SPECIFIERS = st.builds("{}{}".format, st.sampled_from(["==", "~=", ">=", ">", "<=", "<"]), _VERSIONS) | _VERSIONS.map(
    "=={}.*".format
)


@given(st.lists(_SPECIFIERS, max_size=3), _VERSIONS)
def test_a_version_is_admitted_as_packaging_admits_it(specifiers: list[str], version: str) -> None:
    text = ",".join(specifiers)
    found = installed._overlap(installed._span(text), installed._span(f"=={version}+cu130"))  # noqa: SLF001 - the rule
    assert found == SpecifierSet(text).contains(version)


@pytest.mark.parametrize(
    ("words", "variables", "place"),
    [
        ("pip install demo", {"VIRTUAL_ENV": "/v"}, f"/v/{SITE}"),
        ("pip install demo", {"CONDA_PREFIX": "/c"}, f"/c/{SITE}"),
        ("pip install -p /w/bin/python demo", {"VIRTUAL_ENV": "/v"}, f"/w/bin/python/{SITE}"),
        ("pip install --python=w demo", {"VIRTUAL_ENV": "/v"}, f"w/{SITE}"),
        ("pip install demo", {"VIRTUAL_ENV": "/v", "UV_PYTHON": "w"}, f"w/{SITE}"),
        ("pip install demo --target there", {"VIRTUAL_ENV": "/v"}, "there"),
        ("pip install demo --prefix p --python w", {}, f"p/{SITE}"),
    ],
)
def test_the_place_that_uv_installs_to(words: str, variables: dict[str, str], place: str, tmp_path: Path) -> None:
    assert list(installed._of_uv(words.split(), variables, tmp_path)) == [place]  # noqa: SLF001 - pure


def test_the_place_that_uv_finds(tmp_path: Path) -> None:
    python, inner = virtual(tmp_path / ".venv"), tmp_path / "inner"
    places = [
        *installed._of_uv(["pip", "install"], {}, inner),  # noqa: SLF001 - pure
        *installed._of_uv(["pip", "install", "-p", str(python)], {}, inner),  # noqa: SLF001
        *installed._of_uv(["pip", "install", "--system"], {"PATH": str(python.parent)}, inner),  # noqa: SLF001
    ]
    assert places == [str(tmp_path / ".venv" / SITE)] * 3


@pytest.fixture
def laid(tmp_path: Path) -> Path:
    return laid_out(
        against(tmp_path / "dist", "1.4", "2.0"), tmp_path / "out", (tmp_path / "out/redirect").as_uri(),
        by_installed=True,
    )  # fmt: skip


def links(laid: Path) -> tuple[str, ...]:
    return "--no-index", "--find-links", str(laid), "--find-links", str(laid.parents[1] / "engines")


def got(python: Path) -> tuple[str, str]:
    """What demo in the environment of *python* was built against, and the engine that is there."""
    site = python.parents[1] / SITE
    [engine] = site.glob("engine-*.dist-info")
    return (site / "demo/__init__.py").read_text().strip("'"), engine.name.removesuffix(".dist-info")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [
        ("engine==1.4.0", "demo", ("1.4", "engine-1.4.0")),
        ("", "engine<2", ("1.4", "engine-1.4.1")),
        ("", "demo", ("2.0", "engine-2.0.1")),
        ("engine==2.0.0", "demo", ("2.0", "engine-2.0.0")),
        ("engine==2.0.0", "engine~=1.4", ("1.4", "engine-1.4.1")),
        ("engine==1.4.1", "Engine==2.*", ("2.0", "engine-2.0.1")),
    ],
)
def test_pip_and_uv_take_the_build_for_what_is_asked_for_or_installed(
    laid: Path, tmp_path: Path, there: str, asked: str, expected: tuple[str, str]
) -> None:
    for tool in (pip, uv):
        python = virtual(tmp_path / f"venv-{tool.__name__}")
        if there:
            ran(uv(python, "install", *links(laid), there), tmp_path)
        ran(tool(python, "install", *links(laid), "demo", asked), tmp_path / tool.__name__)
        assert got(python) == expected


@pytest.mark.nightly
@TOOLS
def test_where_nothing_fits_what_is_installed_the_newest_is_taken_and_said(
    laid: Path, tmp_path: Path, tool: Command
) -> None:
    python = virtual(tmp_path / "venv")
    wheel(laid.parents[1] / "engines", "engine-1.0-py3-none-any.whl", {"engine.py": ""})
    ran(uv(python, "install", *links(laid), "engine==1.0"), tmp_path)
    said = ran(tool(python, "install", "--verbose", *links(laid), "demo"), tmp_path)
    assert got(python) == ("2.0", "engine-2.0.1")
    assert tool is uv or ("chose +engine2.0: engine==1.0 is in " in said and ", for which there is no wheel" in said)


def test_the_requirements_in_files_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.txt").write_text("demo  # the one\n-r inner/b.txt\nengine<2 ; python_version < '4'\n")
    (tmp_path / "inner/b.txt").write_text("--constraint=../c.txt\n-r../a.txt\nother==1 \\\n    --hash=sha256:00\n")
    (tmp_path / "c.txt").write_bytes(b"engine ~= 1.4 # \xff\n")
    (tmp_path / "d.txt").write_text("engine==1.4.1\n")
    (tmp_path / "pyproject.toml").write_text("engine==3\n")
    words = ["install", "-ra.txt", "-r", "pyproject.toml", "-c", "none.txt", "-c", str(tmp_path), "--requirement"]
    found = installed._in_files(words, {"PIP_CONSTRAINT": "d.txt", "UV_CONSTRAINT": "e.txt"}, tmp_path, "PIP")  # noqa: SLF001 - pure
    assert [line for line in found if ";" not in line] == ["demo", "engine==1.4.1", "other==1", "engine ~= 1.4"]


@pytest.mark.nightly
@TOOLS
@pytest.mark.parametrize("option", ["-r", "-c"])
def test_the_build_for_what_a_file_asks_for_is_taken(laid: Path, tmp_path: Path, tool: Command, option: str) -> None:
    python = virtual(tmp_path / "venv")
    (tmp_path / "wanted.txt").write_text("engine==1.4.*\n")
    ran(tool(python, "install", *links(laid), "demo", option, tmp_path / "wanted.txt"), tmp_path / "one")
    assert got(python) == ("1.4", "engine-1.4.1")


@pytest.mark.nightly
@TOOLS
def test_a_requirement_that_the_backend_does_not_see_is_a_conflict_and_no_broken_environment(
    laid: Path, tmp_path: Path, tool: Command
) -> None:
    python = virtual(tmp_path / "venv")
    (tmp_path / "wanted.txt").write_text("demo\nengine==1.4.* ; python_version >= '3'\n")
    command = tool(python, "install", *links(laid), "-r", tmp_path / "wanted.txt")
    said = refusal(command, tmp_path / "one")
    assert "engine==2.0.*" in said
    said = refusal(command, tmp_path / "two", VBUILD_SELECT="+engine3")
    assert "no +engine3 for this Python, as is selected; there are +engine2.0, +engine1.4" in said
    ran(command, tmp_path / "three", VBUILD_SELECT="+engine1.4")
    assert got(python) == ("1.4", "engine-1.4.1")


@pytest.mark.nightly
def test_the_caches_know_no_installed_version_but_they_can_be_passed_by(laid: Path, tmp_path: Path) -> None:
    for tool in (pip, uv):
        old, new = (virtual(tmp_path / f"{tool.__name__}-{one}") for one in ("old", "new"))
        for python, engine in ((new, "engine==2.0.0"), (old, "engine==1.4.0")):
            ran(uv(python, "install", *links(laid), engine), tmp_path)
        ran(tool(new, "install", *links(laid), "demo"), tmp_path)
        if tool is uv:
            ran([UV, "cache", "clean", "demo"], tmp_path)
        ran(tool(old, "install", *links(laid), *["--no-cache-dir"] * (tool is pip), "demo"), tmp_path)
        assert (got(new), got(old)) == (("2.0", "engine-2.0.0"), ("1.4", "engine-1.4.0"))


@pytest.mark.nightly
def test_the_wheel_is_of_the_metadata_that_uv_has_kept(laid: Path, tmp_path: Path) -> None:
    """Or engine 2 would be installed, as METADATA says, with the build for the engine that was there before."""
    (tmp_path / "wanted.in").write_text("demo\n")
    python = virtual(tmp_path / "venv")
    ran(uv(python, "compile", *links(laid), tmp_path / "wanted.in"), tmp_path)
    ran(uv(python, "install", *links(laid), "engine==1.4.0"), tmp_path)
    command = uv(python, "install", *links(laid), "demo")
    said = refusal(command, tmp_path, VBUILD_SELECT="+engine1.4")
    assert "demo-1.0: +engine1.4 is selected, and +engine2.0 is what a cache has; clean that of it" in said
    ran(command, tmp_path)
    assert got(python) == ("2.0", "engine-2.0.1")


@pytest.mark.nightly
def test_uv_sync_takes_the_newest_unless_a_setting_of_the_project_says_otherwise(laid: Path, tmp_path: Path) -> None:
    """What uv.lock says of the sdist is made in one environment, and the wheel in another."""
    text = '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["demo", "engine{}"]\n{}'
    for number, (wanted, setting, expected) in enumerate(
        (
            ("", "", ("2.0", "engine-2.0.1")),
            (
                "==1.4.*",
                '[tool.uv]\nconfig-settings-package = { demo = { select = "+engine1.4" } }\n',
                ("1.4", "engine-1.4.1"),
            ),
        )
    ):
        (project := tmp_path / str(number)).mkdir()
        (project / "pyproject.toml").write_text(text.format(wanted, setting))
        options = ("--project", project, "--python", sys.executable, *links(laid))
        ran([UV, "sync", *map(str, options)], tmp_path, UV_NO_CONFIG="0")
        assert got(project / ".venv/bin/python") == expected
