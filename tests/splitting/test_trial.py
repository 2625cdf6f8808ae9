"""``split --try``: what a run proves harmless moves, and what it does not stays, named with what went wrong."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import LINUX
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.cli.main import main
from vbuild.config.table import Table
from vbuild.errors import RecipeError, RepackageError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc")

Files = Mapping[str, bytes | str]
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
NAMES = (f"demo-1.0-{TAG}-{TAG}-{LINUX}.whl", f"demo-1.0-cp39-cp39-{LINUX}.whl")
PLACE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
/* what a file beside this library says, or -1 */
static int beside(const char *name) {
    char path[4096]; Dl_info self; int number = -1;
    dladdr((void *)beside, &self);
    strcpy(path, self.dli_fname); strcpy(strrchr(path, '/') + 1, name);
    FILE *file = fopen(path, "r");
    if (file) { fscanf(file, "%d", &number); fclose(file); }
    return number;
}
"""
ASKS = library("libasks.so.1", source=f'{PLACE} int asks(void) {{ return beside("nothing") ? 1 : 2; }}')
READS = library("libreads.so.1", source=f'{PLACE} int reads(void) {{ return beside("reads.txt"); }}')
TRIES = library("libtries.so.1", source=f'{PLACE} int tries(void) {{ beside("tries.txt"); return 3; }}')
IDLE = library("libidle.so.1", source=f'{PLACE} int idle(void) {{ return beside("nothing"); }}')
LIBRARIES = {"asks": ASKS, "reads": READS, "tries": TRIES, "idle": IDLE}
OPENS = """
import ctypes, os
def call(name):
    return getattr(ctypes.CDLL(os.path.join(os.path.dirname(__file__), f"lib{name}.so.1")), name)()
"""
FILES: Files = {
    "demo/__init__.py": OPENS,
    "demo/_c.so": module(*(f"lib{name}.so.1" for name in LIBRARIES), rpath_="$ORIGIN"),
    "demo/reads.txt": "42",
    "demo/tries.txt": "43",
    **{f"demo/lib{name}.so.1": data for name, data in LIBRARIES.items()},
}
RUN = 'python -c \'print(*map(__import__("demo").call, ("asks", "reads", "tries")))\''


def tried(folder: Path, *commands: str, files: Files = FILES, names: tuple[str, ...] = NAMES) -> Split:
    fat = [wheel(folder, name, files) for name in names]
    request = SplitRequest(smallest=0, tries=commands)
    return split(fat, folder / "thin", request=request, indexes=lambda: Indexes(no_index=True))


def fates(result: Split) -> dict[str, tuple[str, str]]:
    return {move.name: (str(move.kind), move.reason.rpartition("; ")[2]) for move in result.libraries}


@pytest.mark.nightly
def test_what_a_run_proves_harmless_moves_and_the_rest_stays_with_what_went_wrong(tmp_path: Path) -> None:
    assert fates(tried(tmp_path, RUN)) == {
        "libasks.so.1": ("share", f"the same with it there: `{RUN}`"),
        "libreads.so.1": ("keep", f"not the same if it moves: `{RUN}`: it prints '1 -1 3' instead of '1 42 3'"),
        "libtries.so.1": ("keep", f"not the same if it moves: `{RUN}`: it no longer opens demo/tries.txt"),
        "libidle.so.1": ("keep", f"not loaded by `{RUN}`"),
    }


def test_of_two_runs_both_have_to_do_the_same(tmp_path: Path) -> None:
    commands = [f"python -c 'import demo; demo.call(\"{name}\")'" for name in ("asks", "idle")]
    found = {name: fate for name, (fate, _) in fates(tried(tmp_path, *commands)).items()}
    kept = {"libreads.so.1": "keep", "libtries.so.1": "keep"}
    assert found == {"libasks.so.1": "share", "libidle.so.1": "share", **kept}


MISTAKES: Mapping[str, tuple[str, str]] = {
    "it fails": ("python -c 'raise SystemExit(3)'", "with status 3: it says nothing"),
    "it is not there": ("no-such-program", "with status 127: sh: 1: no-such-program: not found"),
    "it is killed": ("kill -9 $$", "with status -9: it says nothing"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_command_that_shows_nothing_is_refused(tmp_path: Path, what: str) -> None:
    command, message = MISTAKES[what]
    with pytest.raises(RepackageError) as caught:
        tried(tmp_path, command)
    assert str(caught.value) == f"{command}: fails before the split, {message}; expected a command that works"
    assert not (tmp_path / "thin").exists()


def test_a_command_that_never_says_the_same_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError, match="when it runs again; expected"):
        tried(tmp_path, "python -c 'import time; print(time.time_ns())'")


def test_wheels_for_other_pythons_cannot_be_tried(tmp_path: Path) -> None:
    names = tuple(f"demo-1.0-cp{number}-cp{number}-{LINUX}.whl" for number in (38, 39))
    with pytest.raises(RepackageError, match="--try: none of the wheels is for this Python"):
        tried(tmp_path, RUN, names=names)


@pytest.mark.nightly
def test_a_run_that_another_library_changes_is_refused(tmp_path: Path) -> None:
    """It moves without a doubt, and still the run is not the same: so the split as a whole is wrong."""
    says = "import os; print(os.path.getsize(os.path.join(os.path.dirname(demo.__file__), 'libplain.so.1')) > 2000)"
    files: Files = {
        "demo/__init__.py": "name = 'libplain.so.1'\n",
        "demo/_c.so": module("libplain.so.1", rpath_="$ORIGIN"),
        "demo/libplain.so.1": library("libplain.so.1"),
    }
    command = f'python -c "import demo; {says}"'
    with pytest.raises(RepackageError) as caught:
        tried(tmp_path, command, files=files)
    what = f"`{command}`: it prints 'False' instead of 'True'"
    assert str(caught.value) == f"not the same after the split: {what}; --keep leaves libraries out of it"


@pytest.mark.nightly
def test_the_command_line_takes_commands(tmp_path: Path) -> None:
    fat = [str(wheel(tmp_path, name, FILES)) for name in NAMES]
    options = ["--no-replace", "--min-size", "0", "-o", str(tmp_path / "thin"), "--try", RUN]
    ran = CliRunner().invoke(main, ["split", *fat, *options], catch_exceptions=False)
    assert ran.exit_code == 0
    assert "the same with it there" in " ".join(ran.output.split())


def test_a_recipes_test_is_a_run_with_its_requirements() -> None:
    request = SplitRequest.read(Table({"try-test": True, "try": ["one"]}), test="two", test_requires=("pytest",))
    assert (request.tries, request.try_requires) == (("one", "two"), ("pytest",))
    request = SplitRequest.read(Table({"try": ["one"]}), test="two", test_requires=("pytest",))
    assert (request.tries, request.try_requires) == (("one",), ())
    with pytest.raises(RecipeError, match=r"try-test: is true; expected test\.command"):
        SplitRequest.read(Table({"try-test": True}))
