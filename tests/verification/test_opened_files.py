"""Which files of a folder are opened, by any process."""

import subprocess
from pathlib import Path

from vbuild.verification.installed_wheel import opened_files


def test_files_that_a_process_opens_are_told_and_no_others(tmp_path: Path) -> None:
    for name in ("one.txt", "deep/er/two.txt", "three.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    with opened_files(tmp_path) as found:
        subprocess.run(["cat", "one.txt", "deep/er/two.txt"], cwd=tmp_path, check=True, capture_output=True)
    assert found == {"one.txt", "deep/er/two.txt"}
    (tmp_path / "three.txt").read_text()
    assert found == {"one.txt", "deep/er/two.txt"}
