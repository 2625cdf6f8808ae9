"""Members are where the installer puts them."""

import site
import subprocess
import sys
from pathlib import Path

from tests.factories.wheels import wheel
from vbuild.wheel.paths import installed_path


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
