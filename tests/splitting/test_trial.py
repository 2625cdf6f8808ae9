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
from vbuild.errors import RepackageError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import Split, split

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


def test_what_a_run_proves_harmless_moves_and_the_rest_stays_with_what_went_wrong(tmp_path: Path) -> None:
    assert fates(tried(tmp_path, RUN)) == {
        "libasks.so.1": ("share", f"`{RUN}` does the same with it there"),
        "libreads.so.1": ("keep", f"`{RUN}` does not do the same if it moves: it prints '1 -1 3' instead of '1 42 3'"),
        "libtries.so.1": ("keep", f"`{RUN}` does not do the same if it moves: it no longer opens demo/tries.txt"),
        "libidle.so.1": ("keep", f"`{RUN}` does not load it"),
    }


def test_without_a_run_all_of_them_stay(tmp_path: Path) -> None:
    assert {fate for fate, _ in fates(tried(tmp_path)).values()} == {"keep"}


def test_of_two_runs_both_have_to_do_the_same(tmp_path: Path) -> None:
    commands = [f"python -c 'import demo; demo.call(\"{name}\")'" for name in ("asks", "idle")]
    found = {name: fate for name, (fate, _) in fates(tried(tmp_path, *commands)).items()}
    kept = {"libreads.so.1": "keep", "libtries.so.1": "keep"}
    assert found == {"libasks.so.1": "share", "libidle.so.1": "share", **kept}


MISTAKES: Mapping[str, tuple[str, str]] = {
    "it fails": (
        "python -c 'raise SystemExit(3)'",
        "--try: fails before the split, with status 3: it says nothing; expected a command that works",
    ),
    "it is not there": (
        "no-such-program",
        "--try: no-such-program: cannot be run: [Errno 2] No such file or directory: 'no-such-program'",
    ),
    "it is not closed": ("python -c 'one", "--try: python -c 'one: cannot be run: No closing quotation"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_command_that_shows_nothing_is_refused(tmp_path: Path, what: str) -> None:
    command, message = MISTAKES[what]
    with pytest.raises(RepackageError) as caught:
        tried(tmp_path, command)
    assert str(caught.value) == message
    assert not (tmp_path / "thin").exists()


def test_a_command_that_never_says_the_same_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError, match="when it runs again; expected"):
        tried(tmp_path, "python -c 'import time; print(time.time_ns())'")


def test_wheels_for_other_pythons_cannot_be_tried(tmp_path: Path) -> None:
    names = tuple(f"demo-1.0-cp{number}-cp{number}-{LINUX}.whl" for number in (38, 39))
    with pytest.raises(RepackageError, match="--try: none of the wheels is for this Python"):
        tried(tmp_path, RUN, names=names)


def test_a_run_that_another_library_changes_is_refused(tmp_path: Path) -> None:
    """It moves without a doubt, and still the run is not the same: so the split as a whole is wrong."""
    says = "import os; print(os.path.getsize(os.path.join(os.path.dirname(demo.__file__), 'libplain.so.1')) > 2000)"
    files: Files = {
        "demo/__init__.py": "name = 'libplain.so.1'\n",
        "demo/_c.so": module("libplain.so.1", rpath_="$ORIGIN"),
        "demo/libplain.so.1": library("libplain.so.1"),
    }
    with pytest.raises(RepackageError) as caught:
        tried(tmp_path, f'python -c "import demo; {says}"', files=files)
    assert str(caught.value) == (
        "--try: not the same after the split: it prints 'False' instead of 'True'; --keep leaves libraries out of it"
    )


def test_the_command_line_takes_commands(tmp_path: Path) -> None:
    fat = [str(wheel(tmp_path, name, FILES)) for name in NAMES]
    options = ["--no-replace", "--min-size", "0", "-o", str(tmp_path / "thin"), "--try", RUN]
    ran = CliRunner().invoke(main, ["split", *fat, *options], catch_exceptions=False)
    assert ran.exit_code == 0
    assert "does the same with it there" in " ".join(ran.output.split())
