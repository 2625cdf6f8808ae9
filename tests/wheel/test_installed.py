"""Members are where the installer puts them."""

import site
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.wheels import wheel
from vbuild.wheel.paths import installed_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("demo/_C.so", "demo/_C.so"),
        ("_C.so", "_C.so"),
        ("demo-1.0.data/platlib/demo/_C.so", "demo/_C.so"),
        ("demo-1.0.data/purelib/_C.so", "_C.so"),
        ("demo-1.0.data/scripts/tool", None),
        ("demo-1.0.data/data/lib/libdemo.so", None),
        ("demo-1.0.data/headers/demo.h", None),
        ("demo-1.0.dist-info/METADATA", "demo-1.0.dist-info/METADATA"),
        ("demo/x-1.0.data/platlib/a.so", "demo/x-1.0.data/platlib/a.so"),
        ("demo.data/platlib/a.so", "demo.data/platlib/a.so"),
    ],
)
def test_the_installed_path_of_a_member(path: str, expected: str | None) -> None:
    assert installed_path(path) == expected


def test_pip_puts_them_there(tmp_path: Path) -> None:
    files = {
        "demo/a.txt": "a",
        "demo-1.0.data/platlib/demo/b.txt": "b",
        "demo-1.0.data/purelib/demo/c.txt": "c",
        "demo-1.0.data/data/demo/d.txt": "d",
    }
    made = wheel(tmp_path, files=files)
    target = tmp_path / "target"
    options: list[str | Path] = ["-q", "--no-deps", "--no-index", "--prefix", target]
    command: list[str | Path] = [sys.executable, "-m", "pip", "install", *options, made]
    subprocess.run(command, check=True, capture_output=True)
    packages = Path(next(iter(site.getsitepackages([str(target)]))))
    found = {path.relative_to(packages).as_posix() for path in packages.rglob("demo/*.txt")}
    assert found == {path for member in files if (path := installed_path(member))}
    assert (target / "demo" / "d.txt").exists()
