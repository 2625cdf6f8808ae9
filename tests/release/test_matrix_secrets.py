"""What a hostile project finds in its environment when it is built, repaired and tested; what is left of secrets."""

import dataclasses
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.projects import tree
from tests.factories.tools import needs
from tests.factories.workdir import Workdir
from vbuild.recipe.variables import hashed

WORD = "correct-horse-battery"
SECRETS = {
    "GITHUB_TOKEN": WORD,
    "CI_JOB_TOKEN": WORD,
    "AWS_SECRET_ACCESS_KEY": WORD,
    "TWINE_PASSWORD": WORD,
    "UV_PUBLISH_TOKEN": WORD,
    "UV_INDEX_MINE_PASSWORD": WORD,
    "CARGO_REGISTRIES_MINE_TOKEN": WORD,
    "CMAKE_ARGS": f"-DURL=https://me:{WORD}@host/",
    "DEMO_SWITCH": WORD,
}
# whatever an import of setuptools does: all that the process was started with
TOLD = """
from setuptools import Extension, setup
from pathlib import Path
Path({folder!r}, "setup").write_bytes(Path("/proc/self/environ").read_bytes())
setup(name="demo", version="1.0", ext_modules=[Extension("demo", ["demo.c"])])
"""
MODULE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "demo", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&definition); }
"""
ASKED = ("before-build", "native", "repair", "setup", "test")

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc"),
]


@pytest.fixture
def workdir(tmp_path: Path) -> Workdir:
    """A workdir with a recipe every step of which writes what it sees into the folder seen."""
    seen = tmp_path / "seen"
    seen.mkdir()
    recipe = f"""name = "demo"
[source]
path = "project"
[matrix]
cpu = ["x86-64-v2"]
[build]
before-build = ["cat /proc/self/environ > '{seen}/before-build'"]
[repair]
command = "cat /proc/self/environ > '{seen}/repair' && cp {{wheel}} {{dest_dir}}"
[test]
command = "cat /proc/self/environ > '{seen}/test'"
[[native]]
name = "one"
source = {{ path = "one" }}
build = "script"
script = [
    "cat /proc/self/environ > '{seen}/native'",
    "mkdir -p \\"$DESTDIR$PREFIX/include\\"",
    "touch \\"$DESTDIR$PREFIX/include/one.h\\"",
]
"""
    tree(
        tmp_path,
        {
            "demo.toml": recipe,
            "project/setup.py": TOLD.format(folder=str(seen)),
            "project/demo.c": MODULE,
            "one/readme": "",
        },
    )
    return Workdir.at(tmp_path)


def seen(workdir: Workdir) -> Iterator[tuple[str, dict[str, str]]]:
    """The variables that each step saw."""
    for name in ASKED:
        pairs = (workdir.folder / "seen" / name).read_text().rstrip("\0").split("\0")
        yield name, dict(pair.split("=", 1) for pair in pairs)


def pass_env(workdir: Workdir, pattern: str) -> None:
    """Let the recipe's builds see the variables that *pattern* names."""
    recipe = workdir.folder / "demo.toml"
    recipe.write_text(recipe.read_text().replace("[build]\n", f'[build]\npass-env = ["{pattern}"]\n'))


def spoken(folder: Path) -> list[Path]:
    """The files below *folder* that have the secret word in them."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if WORD.encode() in path.read_bytes()]


@pytest.mark.nightly
def test_no_step_of_a_build_sees_a_secret_and_none_is_left_anywhere(workdir: Workdir) -> None:
    options = ("matrix", "demo.toml", "-o", "dist", "--only", "plain")
    ran = workdir.vbuild(*options, **SECRETS)
    assert ran.returncode == 0, ran.stderr
    for step, variables in seen(workdir):
        assert not SECRETS.keys() & variables.keys() - {"CMAKE_ARGS"}, step  # the plan has one of its own
        assert not [name for name, text in variables.items() if WORD in text], step
        assert {"PATH", "HOME"} <= variables.keys(), step
    assert WORD not in ran.stdout + ran.stderr
    assert not spoken(workdir.folder)
    # a secret that is another next time is no reason to build again; one that is asked for is
    for name in ASKED:
        (workdir.folder / "seen" / name).unlink()
    assert workdir.vbuild(*options, **SECRETS | {"GITHUB_TOKEN": "new"}).returncode == 0
    assert not list((workdir.folder / "seen").iterdir())
    pass_env(workdir, "DEMO_*")
    ran = workdir.vbuild(*options, **SECRETS)
    assert ran.returncode == 0, ran.stderr
    for step, variables in seen(workdir):
        assert SECRETS.keys() & variables.keys() - {"CMAKE_ARGS"} == {"DEMO_SWITCH"}, step
    assert WORD not in ran.stdout + ran.stderr
    assert not [path for path in spoken(workdir.folder) if path.parent.name != "seen"]


def test_a_log_has_neither_what_is_passed_on_nor_what_a_macro_is_set_to(workdir: Workdir) -> None:
    speak = "echo '::add-mask::x'; echo $DEMO_SWITCH, $CFLAGS; echo -n $DEMO_SWITCH; exit 1"
    (workdir.folder / "demo.toml").write_text(
        'name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64"]\n'
        f'[build]\nisolation = false\nbefore-build = ["{speak}"]\npass-env = ["DEMO_*"]\n'
    )
    ran = workdir.vbuild(
        "matrix",
        "demo.toml",
        "-o",
        "dist",
        "--only",
        "plain",
        **{**SECRETS, "DEMO_TOKEN": "me"},
        CFLAGS="-DTOKEN=abc",
    )
    assert ran.returncode == 1
    shown = re.compile(rf"\*{{4}}, .*-DTOKEN={hashed('abc')} .*\n\*{{4}}\n")
    assert shown.search(ran.stdout)
    assert WORD not in ran.stdout + ran.stderr
    assert not re.search(r"^\s*::", ran.stdout + ran.stderr, re.MULTILINE)
    assert any(shown.search(f"{log.read_text()}\n") for log in (workdir.folder / "dist").rglob("*.log"))
    assert not spoken(workdir.folder)
    assert "DEMO_TOKEN: its value is too short to be hidden in logs" in " ".join(ran.stdout.split())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("pattern", "names", "number"),
    [
        ("", "HOME, LC_ALL, PATH, XDG_CACHE_HOME", 9),
        ("DEMO_*", "DEMO_SWITCH, HOME, LC_ALL, PATH, XDG_CACHE_HOME", 8),
        ("*B_TOKEN", "CI_JOB_TOKEN, GITHUB_TOKEN, HOME, LC_ALL, PATH, XDG_CACHE_HOME", 7),
    ],
)
def test_a_dry_run_names_what_is_passed_and_counts_what_is_not(
    workdir: Workdir, pattern: str, names: str, number: int
) -> None:
    known = {name: os.environ[name] for name in ("PATH", "HOME")} | {"XDG_CACHE_HOME": str(workdir.cache)}
    words = [f"{name}={text}" for name, text in {**known, "LC_ALL": "C.UTF-8", **SECRETS}.items()]
    if pattern:
        pass_env(workdir, pattern)
    ran = dataclasses.replace(workdir, inside=("env", "-i", *words)).vbuild("matrix", "demo.toml", "--dry-run")
    said = " ".join(ran.stdout.split())
    assert f"environment variables that builds see: {names}; {number} others are hidden" in said, ran.stderr
    assert WORD not in ran.stdout + ran.stderr


@pytest.mark.nightly
def test_git_runs_nothing_that_the_configuration_of_a_checkout_names(workdir: Workdir) -> None:
    project, ran = workdir.folder / "project", workdir.folder / "seen" / "git"
    tree(project, {".git/hooks/post-index-change": "", ".git/monitor": ""})
    for program in (project / ".git/hooks/post-index-change", project / ".git/monitor"):
        program.write_text(f"#!/bin/sh\ncat /proc/self/environ >> '{ran}'\n")
        program.chmod(0o755)
    author = ("-c", "user.name=x", "-c", "user.email=x@x")
    for words in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "-m", "one")):
        subprocess.run(["git", *words], cwd=project, check=True)
    subprocess.run(["git", "config", "core.fsmonitor", str(project / ".git/monitor")], cwd=project, check=True)
    ran.unlink(missing_ok=True)
    assert workdir.vbuild("matrix", "demo.toml", "--dry-run", **SECRETS).returncode == 0
    assert not ran.exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_dry_run_shows_no_secret(workdir: Workdir, options: tuple[str, ...]) -> None:
    with (workdir.folder / "demo.toml").open("a") as recipe:
        recipe.write(f'[build.env]\nAPI_TOKEN = "it\'s {WORD}"\nDEMO_MODE = "fast"\n')
    ran = workdir.vbuild("matrix", "demo.toml", "--dry-run", *options, CFLAGS=f"-DONE={WORD} -DTWO=abc")
    assert WORD not in ran.stdout + ran.stderr
    assert "DEMO_MODE" in ran.stdout
    assert "****" in ran.stdout
    assert f"-DONE={hashed(WORD)} -DTWO={hashed('abc')}" in ran.stdout


@pytest.mark.nightly
def test_an_index_with_a_login_is_for_the_installer_alone_and_stands_in_no_log(workdir: Workdir) -> None:
    index = f"https://me:{WORD}@127.0.0.1:9/simple"
    ran = workdir.vbuild(
        "matrix", "demo.toml", "-o", "dist", "--only", "plain", PIP_INDEX_URL=index, UV_HTTP_RETRIES="0"
    )
    assert ran.returncode == 1
    assert "127.0.0.1:9" in ran.stdout + ran.stderr
    assert WORD not in ran.stdout + ran.stderr
    assert list((workdir.folder / "dist").rglob("*.log"))
    assert not spoken(workdir.folder)
