"""README's promises: its commands run as they stand there and print what it shows, numbers aside."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vbuild.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```console\n\$ (.*)\n((?:.*\n)*?)```$", README, re.MULTILINE)

pytestmark = pytest.mark.network


def comparable(text: str) -> str:
    """*text* without what differs between machines: figures, versions, the Python, the platform, the user's folder."""
    text = re.sub(r"^/.*/(?=toolkits/)|^CUDA .* licence agreement .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"cp3\d+|cpython-3\.?\d+", "cp3", text)
    text = re.sub(r"==\d[\w.]*", "==N", text)
    text = re.sub(r"(manylinux\w*|linux)(\.manylinux\w*)*_x86_64", "platform", text)
    return re.sub(r" +\d+\.\d+ ", " N ", text)


@pytest.mark.nightly
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the example builds for x86-64")
def test_every_example_prints_what_readme_shows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")  # locks are written beside them
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for download in re.findall(r"^pip (download .*)$", README, re.MULTILINE):
        subprocess.run([sys.executable, "-m", "pip", *shlex.split(download), "--quiet"], cwd=tmp_path, check=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command, shown in EXAMPLES:
        ran = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        if command.startswith("vbuild select"):  # the ranking is that of the machine it is asked on
            assert len(ran.stdout.splitlines()) == len(shown.splitlines())
        else:
            assert comparable(ran.stdout) == comparable(shown)


def test_every_command_has_an_example() -> None:
    # what cibuildwheel prints is another's, and takes a container: tests/docs/test_readme_ci.py runs it
    assert {"cibuildwheel", *(shlex.split(command)[1] for command, _ in EXAMPLES)} == set(main.commands)


def test_every_option_that_readme_names_exists() -> None:
    known = {
        option
        for command in main.commands.values()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    named = set(re.findall(r"`(--[a-z-]+)", README)) | {
        word for command, _ in EXAMPLES for word in shlex.split(command) if word.startswith("--")
    }
    assert named - known == set()


def test_two_set_up_commands_one_line_each() -> None:
    blocks = re.findall(r"^```sh\n((?:.*\n)*?)```$", README.partition("## One release")[0], re.MULTILINE)
    assert [len(block.splitlines()) for block in blocks] == [1, 1]
    assert all(block.startswith("python3 -m venv .venv && ") for block in blocks)
