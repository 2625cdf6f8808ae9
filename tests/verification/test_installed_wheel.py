"""What of an environment belongs to a wheel, and what to do with strange ones."""

import sys
from pathlib import Path

import pytest

from tests.factories.extensions import laid_out, library
from vbuild.errors import RepackageError
from vbuild.verification import installed_wheel as probes
from vbuild.verification.installed_wheel import InstalledWheel, probed

METADATA = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"


def test_files_that_are_gone_and_packages_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    packages = laid_out(
        tmp_path,
        {
            "demo-1.0.dist-info/METADATA": METADATA,
            "demo-1.0.dist-info/RECORD": b"demo/liba.so,,\ndemo/gone.so,,\n",
            "demo/liba.so": library("liba.so"),
            "old-1.0.egg-info/PKG-INFO": b"Metadata-Version: 1.0\n",
            "odd-1.0.dist-info/METADATA": METADATA.replace(b"demo", b"odd"),
        },
    )
    assert list(InstalledWheel.of(packages, "demo").files) == ["demo/liba.so"]


def test_a_wheel_that_is_not_where_it_was_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError) as caught:
        InstalledWheel.of(laid_out(tmp_path / "packages", {"other.py": b""}), "demo")
    assert str(caught.value) == "demo: not in packages after it was installed there, expected its .dist-info"


@pytest.mark.nightly
def test_a_library_that_takes_too_long_to_load_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_SECONDS", 0.5)
    waits = "int sleep(unsigned); __attribute__((constructor)) static void start(void) { sleep(60); }"
    folder = laid_out(tmp_path, {"liba.so": library("liba.so", source=waits)})
    assert probed(Path(sys.executable), (), folder / "liba.so").error == "took more than 0.5 s"
