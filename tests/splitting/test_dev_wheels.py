"""What compilers read goes to the same place from a -dev wheel as it did from the whole one, with every installer."""

from pathlib import Path

import pytest

from tests.factories.virtual_environments import VirtualEnvironment
from tests.factories.wheels import wheel
from vbuild.splitting.output_wheels import outputs_of
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.write import write_wheel

PC = "Name: demo\nDescription: a demo\nVersion: 1.0\n"
PATHS = ["demo_dev-1.0.data/data/lib/pkgconfig/demo.pc", "demo/lib/demo.pc"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The -dev wheel of one with a file in its ``.data`` folder."""
    files = {"demo-1.0.data/data/lib/pkgconfig/demo.pc": PC, "demo/lib/demo.pc": PC, "demo/__init__.py": ""}
    with open_wheel(wheel(tmp_path, files={**files})) as source:
        [development] = outputs_of([source])
        assert [part.path for part in development.wheel({}).parts][:2] == PATHS
        with write_wheel(tmp_path / "out", development.companion.name, like=source) as writer:
            for part in development.wheel({}).parts:
                part.write(writer)
    return writer.path


@pytest.mark.parametrize("tool", ["pip", "uv pip"])
def test_files_of_a_data_folder_are_installed_where_they_were(made: Path, tmp_path: Path, tool: str) -> None:
    venv = VirtualEnvironment.at(tmp_path / "home")
    venv.runs(f"{tool} install --no-deps {made}")
    assert (venv.folder / "venv" / "lib" / "pkgconfig" / "demo.pc").read_text() == PC
    assert (venv.site / "demo" / "lib" / "demo.pc").read_text() == PC
