"""Redirecting sdists in the hands of pip and uv: what they install, what they fetch for it, what caches do to it."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.factories.clients import UV, masked
from tests.factories.redirect_installs import (
    COMPANION,
    METADATA,
    NAME,
    environment,
    interpreters,
    label,
    laid_out,
    pip,
    ran,
    refusal,
    release,
    served,
    uv,
    virtual,
)
from tests.factories.tools import needs_judge
from tests.factories.variants import machine
from tests.factories.wheels import wheel
from vbuild.variants.doctor import diagnosed_in

Command = Callable[..., list[str | Path]]

NEWER = "demo-1.1-py3-none-any.whl"
TOOLS = pytest.mark.parametrize("tool", [pip, uv], ids=["pip", "uv"])


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return virtual(tmp_path / "venv")


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[list[tuple[str, str]]]:
    """A release of demo laid out in ``out/redirect``, which is where its wheels are served; what was asked for."""
    release(tmp_path / "dist", "v3", "v4")
    (tmp_path / "out").mkdir()
    with served(tmp_path / "out") as (url, asked):
        laid_out(tmp_path / "dist", tmp_path / "out", f"{url}/redirect")
        yield asked


def links(tmp_path: Path) -> tuple[str, ...]:
    return "--no-index", "--find-links", (tmp_path / "out" / "redirect").as_uri()


@pytest.mark.nightly
@TOOLS
def test_the_wheel_is_fetched_once(tmp_path: Path, python: Path, asked: list[tuple[str, str]], tool: Command) -> None:
    ran(tool(python, "install", *links(tmp_path), "demo"), tmp_path)
    assert label(python) == "plain"
    assert asked == [(f"/redirect/wheels/{NAME}", "")]
    # the cache has it from now on
    ran(tool(python, "uninstall", *(["--yes"] if tool is pip else []), "demo"), tmp_path)
    ran(tool(python, "install", *links(tmp_path), "demo"), tmp_path)
    assert len(asked) == 1


@pytest.mark.nightly
@TOOLS
def test_resolving_fetches_no_wheel(tmp_path: Path, python: Path, asked: list[tuple[str, str]], tool: Command) -> None:
    said = ran(tool(python, "install", "--dry-run", *links(tmp_path), "demo"), tmp_path)
    assert "demo" in said
    assert asked == []


def test_uv_compiles_and_locks_without_a_wheel(tmp_path: Path, python: Path, asked: list[tuple[str, str]]) -> None:
    (tmp_path / "requirements.in").write_text("demo\n")
    words = ("--generate-hashes", "--universal", *links(tmp_path), str(tmp_path / "requirements.in"))
    said = ran(uv(python, "compile", *words), tmp_path)
    pins = (tmp_path / "out" / "redirect" / "requirements.txt").read_text().split("--hash=")[1].strip()
    assert f"demo==1.0 \\\n    --hash={pins}" in said
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = ["demo[test]"]\n'
    )
    wheel(tmp_path / "out" / "redirect", "packaging-26.0-py3-none-any.whl")
    ran([UV, "lock", "--project", project, "--python", python, *links(tmp_path)], tmp_path)
    assert "redirect/demo-1.0.tar.gz" in (project / "uv.lock").read_text()
    assert asked == []


@pytest.mark.nightly
@TOOLS
def test_hashes_pin_the_newest_of_several_releases_and_its_companion(
    tmp_path: Path, python: Path, tool: Command
) -> None:
    requires = METADATA.replace("Requires-Dist", "Requires-Dist: demo-libs\nRequires-Dist")
    for name in (NAME, NEWER):
        wheel(tmp_path / "dist", name, {"demo/__init__.py": ""}, metadata=requires)
    wheel(tmp_path / "dist", "demo_libs-1.0-py3-none-any.whl", {"demo_libs-1.0.dist-info/WHEEL": COMPANION})
    laid = laid_out(tmp_path / "dist", tmp_path / "out")
    words = ("--require-hashes", *links(tmp_path), "-r", laid / "requirements.txt")
    ran(tool(python, "install", *words), tmp_path, VBUILD_FIND_LINKS=str(laid / "wheels"))
    found = {path.name for path in python.parents[1].glob("lib/*/site-packages/demo*.dist-info")}
    assert found == {"demo-1.1.dist-info", "demo_libs-1.0.dist-info"}


@pytest.mark.nightly
@TOOLS
def test_an_index_may_have_the_sdist_and_wheels_for_other_systems(tmp_path: Path, python: Path, tool: Command) -> None:
    release(tmp_path / "dist")
    other = wheel(tmp_path / "dist", "demo-1.0-py3-none-win_amd64.whl", metadata=METADATA).name
    (tmp_path / "out" / "simple" / "demo").mkdir(parents=True)
    with served(tmp_path / "out") as (url, asked):
        laid_out(tmp_path / "dist", tmp_path / "out", f"{url}/redirect")
        pages = (f'<a href="/redirect/{name}">{name}</a>\n' for name in ("demo-1.0.tar.gz", other))
        (tmp_path / "out" / "simple" / "demo" / "index.html").write_text("<!DOCTYPE html>\n" + "".join(pages))
        ran(tool(python, "install", "--no-build-isolation", "--index-url", f"{url}/simple", "demo"), tmp_path)
    assert label(python) == "plain"
    fetched = [path for path, _ in asked if not path.startswith("/simple")]
    # uv reads the metadata of any wheel there is
    assert fetched[-2:] == ["/redirect/demo-1.0.tar.gz", f"/redirect/wheels/{NAME}"]


@pytest.mark.nightly
@TOOLS
def test_a_wheel_that_was_tampered_with_is_not_installed(
    tmp_path: Path, python: Path, asked: list[tuple[str, str]], tool: Command
) -> None:
    served_wheel = tmp_path / "out" / "redirect" / "wheels" / NAME
    served_wheel.unlink()
    served_wheel.write_bytes((tmp_path / "dist" / NAME).read_bytes()[::-1])
    said = refusal(tool(python, "install", *links(tmp_path), "demo"), tmp_path)
    assert f"{NAME}: not found as pinned, see above" in said
    assert " bytes of sha256 " in said
    assert "Traceback" not in said
    assert len(asked) == 1
    # a folder with the right one helps
    ran(tool(python, "install", *links(tmp_path), "demo"), tmp_path, VBUILD_FIND_LINKS=str(tmp_path / "dist"))
    assert label(python) == "plain"
    assert len(asked) == 1


@pytest.mark.nightly
@TOOLS
@pytest.mark.usefixtures("asked")
def test_every_command_of_the_readme_works_as_it_stands(tmp_path: Path, python: Path, tool: Command) -> None:
    """Those that call *tool*, in a copy of the folder whose path is not part of a URL as it stands."""
    text = (tmp_path / "out" / "redirect" / "README.md").read_text()
    lines = [line for block in text.split("```sh\n")[1:] for line in block.partition("```")[0].splitlines()]
    mine = [line for line in lines if ("uv pip" in line) == (tool is uv)]
    assert len(mine) == (6 if tool is uv else 7)
    folder = tmp_path / "with blank, 20%20 #1"
    (tmp_path / "out" / "redirect").rename(folder)
    (tmp_path / "out" / "redirect").symlink_to(folder)
    words = f"{UV} pip " if tool is uv else f"{sys.executable} -m pip --python {python} "
    for number, line in enumerate(mine):
        script = line.replace("uv pip " if tool is uv else "pip ", words)
        run = environment(tmp_path / str(number), UV_PYTHON=str(python))
        subprocess.run(["sh", "-ec", script], cwd=folder, env=run, check=True, capture_output=True)
        if "pip wheel" not in line:
            assert label(python) == ("x86_64_v3" if "VBUILD_SELECT" in line else "plain")
            ran(pip(python, "uninstall", "--yes", "demo"), tmp_path)
    assert tool is uv or (folder / "mirror" / NAME).is_file()


@pytest.mark.nightly
@TOOLS
def test_a_folder_of_files_serves_a_release_of_any_version(tmp_path: Path, python: Path, tool: Command) -> None:
    name = "demo-1!2.0+cu.12-3-py3-none-any.whl"
    wheel(tmp_path / "dist", name, {"demo/__init__.py": ""})
    laid_out(tmp_path / "dist", tmp_path / "out", (tmp_path / "out" / "redirect").as_uri())
    text = (tmp_path / "out" / "redirect" / "README.md").read_text()
    words = next(line for line in text.splitlines() if line.startswith("pip install 'demo @ file:"))
    ran(tool(python, *shlex.split(words)[1:]), tmp_path)
    (found,) = python.parents[1].glob("lib/*/site-packages/demo-*")
    assert found.name == "demo-1!2.0+cu.12.dist-info"


@pytest.mark.nightly
def test_pip_download_saves_the_sdist_alone(tmp_path: Path, python: Path, asked: list[tuple[str, str]]) -> None:
    ran(pip(python, "download", *links(tmp_path), "--dest", tmp_path / "got", "demo"), tmp_path)
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["demo-1.0.tar.gz"]
    assert asked == []


@pytest.mark.nightly
@TOOLS
def test_it_is_an_sdist_to_those_who_want_none(
    tmp_path: Path, python: Path, asked: list[tuple[str, str]], tool: Command
) -> None:
    refusal(tool(python, "install", *links(tmp_path), "--only-binary", ":all:", "demo"), tmp_path)
    assert asked == []
    ran(tool(python, "install", *links(tmp_path), "--no-binary", "demo", "demo"), tmp_path)
    assert label(python) == "plain"


@pytest.mark.nightly
@TOOLS
def test_editable_installs_are_refused_in_a_line(
    tmp_path: Path, python: Path, asked: list[tuple[str, str]], tool: Command
) -> None:
    subprocess.run(["tar", "xzf", tmp_path / "out" / "redirect" / "demo-1.0.tar.gz"], cwd=tmp_path, check=True)
    said = refusal(tool(python, "install", "--no-index", "--editable", tmp_path / "demo-1.0"), tmp_path)
    assert "no source here: this sdist only hands over finished wheels" in said
    assert "Traceback" not in said
    assert asked == []


@pytest.mark.nightly
@TOOLS
def test_the_second_machine_gets_the_firsts_wheel_from_the_cache_and_the_doctor_finds_it(
    tmp_path: Path, python: Path, tool: Command
) -> None:
    laid = laid_out(release(tmp_path / "dist", "v3", "v4"), tmp_path / "out", by_hardware=True)
    command = tool(python, "install", *links(tmp_path), "demo")
    first, second = masked("x86-64-v3", tmp_path), masked("x86-64", tmp_path)
    found = {"VBUILD_FIND_LINKS": str(laid / "wheels")}
    ran(command, tmp_path, first, **found)
    assert label(python) == "x86_64_v3"
    [site] = map(str, python.parents[1].glob("lib/python3*/site-packages"))
    assert diagnosed_in([site], machine("x86-64-v3"))[0].is_supported
    ran(tool(python, "uninstall", *(["--yes"] if tool is pip else []), "demo"), tmp_path)
    ran(command, tmp_path, second, **found)
    assert label(python) == "x86_64_v3"
    (diagnosis,) = diagnosed_in([site], machine("x86-64"))
    assert str(diagnosis) == (
        "demo 1.0 (x86_64_v3) is NOT for this machine: x86_64 :: level :: v3 is not supported: the machine has v1"
    )
    # what the doctor says, but for where the sdist is
    words = (
        ["--force-reinstall", "--no-deps", "--no-cache-dir"]
        if tool is pip
        else ["--reinstall", "--no-deps", "--no-cache"]
    )
    assert any(" ".join(words) in command for command in diagnosis.commands)
    ran(tool(python, "install", *words, *links(tmp_path), "demo==1.0"), tmp_path, second, **found)
    assert label(python) == "plain"
    assert diagnosed_in([site], machine("x86-64")) == ()


@pytest.mark.nightly
def test_a_mirror_gets_no_variant_under_the_name_of_the_plain_wheel(tmp_path: Path, python: Path) -> None:
    laid = laid_out(release(tmp_path / "dist", "v1"), tmp_path / "out", by_hardware=True)
    line = next(line for line in (laid / "README.md").read_text().splitlines() if "pip wheel" in line)
    script = line.replace("pip", f"{sys.executable} -m pip --python {python}", 1)
    run = environment(tmp_path, VBUILD_FIND_LINKS=str(laid / "wheels"))
    subprocess.run(["sh", "-ec", script], cwd=laid, env=run, check=True, capture_output=True)
    assert (laid / "mirror" / NAME).read_bytes() == (tmp_path / "dist" / NAME).read_bytes()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tag", interpreters())
def test_every_python_gets_its_wheel(tmp_path: Path, tag: str) -> None:
    for each in interpreters():
        wheel(tmp_path / "dist", f"demo-1.0-{each}-{each}-manylinux_2_17_x86_64.whl", {"demo/__init__.py": f"{each!r}"})
    laid = laid_out(tmp_path / "dist", tmp_path / "out")
    words = ("install", "--target", str(tmp_path / "site"), *links(tmp_path), "demo")
    ran(uv(interpreters()[tag], *words), tmp_path, VBUILD_FIND_LINKS=str(laid / "wheels"))
    assert (tmp_path / "site" / "demo" / "__init__.py").read_text() == f"'{tag}'"


@pytest.mark.nightly
@needs_judge("twine")
def test_twine_and_vbuild_check_take_the_sdist(tmp_path: Path, asked: list[tuple[str, str]]) -> None:
    sdist = tmp_path / "out" / "redirect" / "demo-1.0.tar.gz"
    said = ran([sys.executable, "-m", "twine", "check", "--strict", sdist], tmp_path)
    assert "PASSED" in said
    command = [sys.executable, "-m", "vbuild", "check", str(sdist.parent), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout)["findings"] == []
    assert asked == []
