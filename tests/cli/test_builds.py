"""No command that is not for building runs the code of an sdist, a folder or a repository, unless it is asked for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.mirrors import fleet
from tests.factories.sources import index, sdist, sha256
from tests.factories.wheels import wheel
from vbuild.errors import VbuildError
from vbuild.mirroring.resolution import resolved

# says when it is built what it requires, and leaves a mark then
_BACKEND = """
import os, zipfile
open(os.environ["VBUILD_MARK"], "w").close()

def prepare_metadata_for_build_wheel(folder, settings=None):
    os.makedirs(f"{folder}/marked-1.0.dist-info")
    with open(f"{folder}/marked-1.0.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\nName: marked\\nVersion: 1.0\\n")
    return "marked-1.0.dist-info"

def build_wheel(folder, settings=None, metadata=None):
    file = "marked-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{file}", "w") as archive:
        info = "marked-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: marked\\nVersion: 1.0\\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", f"{info}/METADATA,,\\n{info}/WHEEL,,\\n{info}/RECORD,,\\n")
    return file

prepare_metadata_for_build_editable, build_editable = prepare_metadata_for_build_wheel, build_wheel
"""
_SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
_DYNAMIC = f'{_SYSTEM}[project]\nname = "marked"\ndynamic = ["version", "dependencies"]\n'


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an index that has `marked` as an sdist, and with wheels that require it; nothing is cached."""
    files = {"pyproject.toml": _DYNAMIC, "backend.py": _BACKEND}
    archive = sdist(tmp_path / "sdists", files, top="marked-1.0")
    # its name, too, is known when it is built
    for name, text in (("unnamed", _SYSTEM), ("named", _DYNAMIC)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backend.py").write_text(_BACKEND)
        (tmp_path / name / "pyproject.toml").write_text(text)
    for name, required in (("needs", "marked"), ("links", f"marked @ {archive.as_uri()}")):
        wheel(tmp_path, f"{name}-1.0-py3-none-any.whl", {f"{name}.py": ""}, metadata=f"Requires-Dist: {required}\n")
    (tmp_path / "time.py").write_text("print('x 1 ms')")
    (tmp_path / "machine.toml").write_text('cpu = "x86-64-v3"\npython = "3.11"\nglibc = "2.28"\n')
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index(tmp_path / "index", archive).as_uri(),
        "PIP_NO_CACHE_DIR": "1",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "VBUILD_MARK": str(tmp_path / "mark"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    # the command that users have: `python -m` imports from the working folder
    vbuild = Path(sys.executable).with_name("vbuild")
    return subprocess.run([vbuild, *words], capture_output=True, text=True, check=False)


def is_marked(room: Path) -> bool:
    """Whether a backend has run since the last time."""
    is_there = (room / "mark").exists()
    (room / "mark").unlink(missing_ok=True)
    return is_there


_MIRROR = ("mirror", "--gpu", "90", "--dry-run")
_TIMED = ("bench", "--script", "time.py")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "words",
    [
        ("lock", "needs", "-f", ".", "-o", "locks", "--machine", "machine.toml"),
        (*_MIRROR, "marked"),
        ("verify", "--run", "links-1.0-py3-none-any.whl"),
        ("lock", "links", "-f", ".", "-o", "locks", "--machine", "machine.toml"),
        ("split", "--check", "links-1.0-py3-none-any.whl"),
        ("split", "--check", "needs-1.0-py3-none-any.whl"),
        ("split", "--dry-run", "--try", "true", "needs-1.0-py3-none-any.whl"),
        ("verify", "--run", "needs-1.0-py3-none-any.whl"),
        (*_TIMED, "needs-1.0-py3-none-any.whl", "needs-1.0-py3-none-any.whl"),
        (*_TIMED, "links-1.0-py3-none-any.whl", "links-1.0-py3-none-any.whl"),
    ],
    ids=" ".join,
)
def test_what_has_no_wheel_is_built_only_if_that_is_allowed(room: Path, words: tuple[str, ...]) -> None:
    refused = run(*words)
    assert refused.returncode == 1
    assert "--allow-builds" in refused.stderr
    assert not is_marked(room)
    allowed = run(*words, "--allow-builds")
    assert (allowed.returncode, allowed.stderr) == (0, "")
    assert is_marked(room)


@pytest.mark.nightly
def test_the_refusal_names_the_project(room: Path) -> None:
    assert run(*_MIRROR, "marked").stderr == (
        "vbuild: marked: no wheel that fits, and building it would run its code; expected a wheel, or --allow-builds\n"
    )
    for words in (("mirror", "marked"), ("verify", "needs-1.0-py3-none-any.whl"), ("split", "--dry-run", ".")):
        misused = run(*words, "--allow-builds")
        assert misused.returncode == 2, words
    assert not is_marked(room)


_BUILDS = {
    "-e ./unnamed": "requirements.txt, line 1: -e: may build something",
    "\n\t--editable=unnamed": "requirements.txt, line 2: --editable: may build something",
    "--no-binary marked\nmarked": "requirements.txt, line 1: --no-binary: may build something",
    "-r 'more.txt' # more": "more.txt, line 1: -e: may build something",
    "--constraint more.txt\nmarked": "more.txt, line 1: -e: may build something",
    "-r gone.txt": "gone.txt: cannot be read",
    "-r https://example.org/more.txt": "-r https://example.org/more.txt: expected a file of this machine",
    "./unnamed": "no wheel that fits",
    "marked @ {unnamed}": "marked: no wheel that fits",
    "./named": "marked: no wheel that fits",
    "--only-binary :none:\nmarked": "marked: no wheel that fits",
}


@pytest.mark.parametrize("lines", _BUILDS)
def test_no_line_of_a_file_of_requirements_builds_anything(room: Path, lines: str) -> None:
    (room / "more.txt").write_text("-e ./unnamed\n")
    text = lines.format(unnamed=(room / "unnamed").as_uri())
    for encoding, why in (("utf-8-sig", _BUILDS[lines]), ("utf-16", "cannot be read: not UTF-8")):
        (room / "requirements.txt").write_text(text, encoding=encoding)
        stage = room / encoding
        stage.mkdir()
        with pytest.raises(VbuildError, match=re.escape(why)):
            resolved(["requirements.txt"], fleet("")[0], stage)
        assert not is_marked(room)


def test_a_file_of_requirements_that_builds_nothing_is_followed(room: Path) -> None:
    plain = wheel(room / "wheels", "plain-1.0-py3-none-any.whl", {"plain.py": ""})
    (room / "requirements.txt").write_text("--find-links wheels\n--pre\n-r more.txt\n")
    (room / "more.txt").write_text(f"-r requirements.txt\nplain==1.0 \\\n    --hash=sha256:{sha256(plain)}\n")
    [file] = resolved(["requirements.txt"], fleet("")[0], room)
    assert file.project == "plain"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [("init", "--check"), ("init", "--cuda", "90", "-o", "recipe.toml")], ids=" ".join)
def test_the_look_at_a_project_builds_none_of_its_requirements(room: Path, words: tuple[str, ...]) -> None:
    (room / "module.cu").write_text("")
    (room / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["marked"]\nbuild-backend = "b"\n[project]\nname = "demo"\nversion = "1"\n'
    )
    looked = run(*words, ".")
    assert "Traceback" not in looked.stderr
    if "--check" in words:
        assert "build-system.requires: marked has no wheel for this Python" in " ".join(looked.stdout.split())
    assert not is_marked(room)


def test_a_build_requirement_that_is_an_option_of_installers_is_named(room: Path) -> None:
    (room / "module.c").write_text("")
    (room / "pyproject.toml").write_text('[build-system]\nrequires = ["-e ./unnamed"]\n[project]\nname = "demo"\n')
    assert "'-e ./unnamed' is not a requirement" in " ".join(run("init", "--check", ".").stdout.split())
    assert not is_marked(room)


def test_no_line_of_metadata_is_an_option_of_uv(room: Path) -> None:
    wheel(room, "opts-1.0-py3-none-any.whl", {"opts.py": ""}, metadata="Requires-Dist: -e ./unnamed\n")
    refused = run("lock", "opts", "-f", ".", "-o", "locks", "--machine", "machine.toml", "--allow-builds")
    assert "opts-1.0-py3-none-any.whl: '-e ./unnamed' is not a requirement" in refused.stderr
    assert not is_marked(room)
