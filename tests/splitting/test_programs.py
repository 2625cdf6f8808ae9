"""Programs that only people start go to a -bin wheel, and still find their libraries there."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.once import once
from tests.factories.repaired_wheels import NAME, release
from tests.factories.tools import needs
from tests.factories.virtual_environments import VirtualEnvironment
from tests.factories.wheels import contents
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc")

DEEP = library("libdeep.so.2", source="int deep(void) { return 41; }")
LIBRARIES = {"libdeep.so.2": DEEP}
RUNNER = "demo/tools/runner"
STATUS = 41


@once
def program() -> bytes:
    """A program that ends with what a function of libdeep.so.2 gives."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "libdeep.so.2").write_bytes(DEEP)
        source = "int deep(void); int main(void) { return deep(); }"
        command = ["gcc", "-x", "c", "-", "-x", "none", f"{folder}/libdeep.so.2", "-o", f"{folder}/runner"]
        subprocess.run(command, input=source, text=True, check=True)
        return Path(folder, "runner").read_bytes()


def thin(folder: Path, **files: bytes | str) -> Split:
    whole = {"demo/_c.so": module("libdeep.so.2"), RUNNER: program(), "demo/__init__.py": "", **files}
    fat = release(folder / "fat", whole, LIBRARIES)
    request = SplitRequest(smallest=0, outputs=True)
    return split(fat, folder / "thin", request=request, indexes=lambda: Indexes(no_index=True))


def apart(result: Split) -> list[str]:
    return [path for one in result.companions if one.name.startswith("demo_bin-") for path in one.files]


@pytest.mark.nightly
def test_a_program_runs_from_the_wheel_of_programs_with_the_library_that_moved(tmp_path: Path) -> None:
    result = thin(tmp_path)
    assert apart(result) == [RUNNER]
    thin_wheel = tmp_path / "thin" / NAME
    assert RUNNER not in contents(thin_wheel)
    (made,) = (path for path in result.companion_paths if path.name.startswith("demo_bin-"))
    metadata = next(data for name, data in contents(made).items() if name.endswith("/METADATA")).decode()
    assert "\nRequires-Dist: demo==1.0\n" in metadata
    venv = VirtualEnvironment.at(tmp_path / "home")
    libs = next(path for path in result.companion_paths if path.name.startswith("demo_libs-"))
    for path in (libs, made):
        venv.runs(f"pip install --no-deps {path}")
    # the wheel that it is made of gave it no permission either
    (venv.site / RUNNER).chmod(0o755)
    assert subprocess.run([venv.site / RUNNER], check=False).returncode == STATUS


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("demo/run.py", "PROGRAM = 'runner'"),
        ("demo/run.py", "from pathlib import Path\nhere = Path(__file__).parent / 'tools'"),
        ("demo/run.py", "def name(kind): return f'run{kind}'"),
        ("demo/run.py", "this is no Python: runner"),
        ("demo/run.sh", "#!/bin/sh\nexec tools/runner"),
        ("demo/config.json", '{"start": "runner"}'),
        ("demo/_d.so", ""),
    ],
)
def test_a_program_stays_that_a_file_of_the_wheel_may_start(tmp_path: Path, path: str, text: str) -> None:
    files = {path: text or module("libdeep.so.2", source='const char *start(void) { return "tools/runner"; }')}
    assert apart(thin(tmp_path, **files)) == []


@pytest.mark.parametrize(("folder", "goes"), [("modules-1.0", False), ("other", True)])
def test_what_a_program_of_the_wheel_reads_itself_stays(tmp_path: Path, folder: str, *, goes: bool) -> None:
    source = 'int main(void) { const volatile char *where = "share/modules-1.0"; return !where[0]; }'
    path = f"demo/{folder}/find.cmake"
    files: dict[str, bytes | str] = {"demo-1.0.data/scripts/tool": started(source), path: "# a module"}
    made = [file for one in thin(tmp_path, **files).companions for file in one.files]
    assert (path in made) == goes


def started(source: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "tool")
        subprocess.run(["gcc", "-x", "c", "-", "-o", output], input=source, text=True, check=True)
        return output.read_bytes()


def test_a_command_stays(tmp_path: Path) -> None:
    assert apart(thin(tmp_path, **{"demo-1.0.data/scripts/tool": program()})) == [RUNNER]
