"""FIFOs, devices and files that cannot be read, in each place where a command looks for a file: no command waits."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.factories.conda_packages import conda_package
from tests.factories.layouts import layout, tar
from tests.factories.mirrors import FAT, PLAIN, fat_library, fleet, lock_of, three_wheels
from tests.factories.recipes import SOURCE
from tests.factories.release_folders import SDIST, V3, release_folder
from tests.factories.sources import sdist
from tests.factories.wheels import dist_info_of, everything, record_of, wheel
from vbuild.cli.main import main
from vbuild.mirroring.mirror import mirror
from vbuild.mirroring.model import MirrorRequest

X = "x-1.0-py3-none-any.whl"
OK = "demo-1.0-py3-none-any.whl"
PACKAGES = "env/lib/python3.11/site-packages"
INFO = f"{PACKAGES}/{dist_info_of(FAT)}"
VARIANTS = "dist/demo-1.0-variants.json"
OUT = ("-o", "out")

_NEEDS_ATTESTATIONS = pytest.mark.skipif(find_spec("pypi_attestations") is None, reason="no pypi-attestations")
# the file, and the command that comes across it
REFUSED = [
    *((X, (verb, X)) for verb in ("inspect", "verify")),
    (X, ("split", X, *OUT)),
    (X, ("repair", X, "out")),
    (X, ("slim", X, "--gpu", "90", *OUT)),
    (X, ("stamp", X, "--label", "null", *OUT)),
    (X, ("bench", X, OK, "--script", "script.py")),
    (X, ("doctor", X, "--gpu", "90")),
    (f"dist/{X}", ("index", "dist")),
    (f"dist/{X}", ("check", "dist")),
    (f"dist/{X}", ("slim", "dist", "--gpu", "90", *OUT)),
    (f"dist/{X}", ("publish", "dist", "--layout", "local", *OUT)),
    (f"dist/{V3}", ("collect", "dist", *OUT)),
    (VARIANTS, ("select", "demo", "-f", "dist")),
    (VARIANTS, ("check", "dist")),
    ("dist/other-1.0-variants.json", ("index", "dist", "--simple", "out")),
    (f"dist/{SDIST}", ("check", "dist")),
    (f"dist/{SDIST}", ("index", "dist", "--simple", "out")),
    pytest.param(f"{OK}.provenance", ("verify", OK, "--attestations"), marks=_NEEDS_ATTESTATIONS),
    pytest.param("root.json", ("verify", OK, "--attestations", "--trust-root", "root.json"), marks=_NEEDS_ATTESTATIONS),
    ("demo.toml", ("matrix", "demo.toml", "--dry-run", *OUT)),
    ("demo.toml", ("lock", "demo.toml")),
    ("demo.lock", ("matrix", "demo.toml", "--dry-run", *OUT)),
    ("demo.toml", ("collect", "dist", "--recipe", "demo.toml", *OUT)),
    ("project/pyproject.toml", ("init", "project")),
    ("project/pyproject.toml", ("matrix", "project", "--dry-run", *OUT)),
    ("project/pyproject.toml", ("cibuildwheel", *OUT, "--", "project")),
    ("demo-1.0.tar.gz", ("init", "demo-1.0.tar.gz")),
    ("machine.toml", ("select", "demo", "-f", "dist", "--machine", "machine.toml")),
    ("meta.toml", ("stamp", OK, "-l", "v", "--metadata", "meta.toml", *OUT)),
    ("script.py", ("bench", OK, f"fat/{PLAIN}", "--script", "script.py")),
    ("pylock.toml", ("mirror", "pylock.toml", "--gpu", "90", *OUT)),
    ("requirements.txt", ("mirror", "requirements.txt", "--gpu", "90", *OUT)),
    ("included.txt", ("mirror", "requirements.txt", "--gpu", "90", *OUT)),
    ("uv.lock", ("mirror", "uv.lock", "--gpu", "90", *OUT)),
    ("site/mirror.json", ("mirror", "verify", "site")),
    (f"site/simple/plain/{PLAIN}", ("mirror", "oci", "site", *OUT)),
    ("layout/index.json", ("slim", "oci:layout", "--gpu", "90", *OUT)),
    ("channel/linux-64/x-1.0-h1_0.conda", ("index", "channel")),
]
# named in other words, or passed over: a loader does not open it, and a survey of a project does without it
ENDED = [
    *((f"site/simple/plain/{name}", ("mirror", "verify", "site")) for name in (X, "index.html", f"{PLAIN}.metadata")),
    ("site/provenance.json", ("mirror", "verify", "site")),
    ("project/setup.py", ("init", "project", "-o", "new.toml")),
    ("project/x.pyx", ("init", "project", "-o", "new.toml")),
    ("project/x.c", ("matrix", "project", "--cpu", "v2", "--dry-run", *OUT)),
    *((f"{INFO}/{name}", ("doctor", "env", "--gpu", "90")) for name in ("RECORD", "METADATA")),
    (f"{PACKAGES}/fat/_C.so", ("doctor", "env", "--gpu", "90")),
    (f"{PACKAGES}/fat/_C.so", ("slim", "--environment", "env", "--gpu", "90")),
    (f"{INFO}/RECORD", ("slim", "--environment", "env", "--gpu", "90")),
    ("env/conda-meta/x-1-0.json", ("slim", "--environment", "env", "--gpu", "90")),
]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other files")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything that commands read."""
    folder = tmp_path_factory.mktemp("samples")
    wheel(folder, OK, {"demo.py": "x = 1\n"})
    release_folder(folder / "dist")
    three_wheels(folder / "fat")
    lock = lock_of(folder / "pylock.toml", folder / "fat" / FAT, folder / "fat" / PLAIN)
    mirror([str(lock)], folder / "site", fleet("9.0"), MirrorRequest())
    files = everything(FAT, {"fat/_C.so": fat_library()})
    files[f"{dist_info_of(FAT)}/RECORD"] = record_of(files, dist_info_of(FAT)).encode()
    layout(folder / "layout", tar({f"site-packages/{path}": data for path, data in files.items()}))
    conda_package(folder / "channel/linux-64", "demo-1.0-h1a2b3c4_3", {"lib/x.so": fat_library()})
    texts: dict[str, bytes | str] = {
        "project/pyproject.toml": '[project]\nname = "demo"\nversion = "1.0"\n',
        "project/setup.py": "from setuptools import setup\nsetup()\n",
        "project/demo.c": "int x;\n",
        "demo.toml": f'{SOURCE}[matrix]\ncpu = ["x86-64"]\n',
        "requirements.txt": "-r included.txt\n",
        "script.py": "print('a 1.0 ms')\n",
    }
    for path, data in {**texts, **{f"{PACKAGES}/{path}": data for path, data in files.items()}}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data if isinstance(data, bytes) else data.encode())
    sdist(folder)
    return folder


@pytest.fixture
def place(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the samples, in which commands run."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.chdir(shutil.copytree(samples, tmp_path / "place", symlinks=True))
    return tmp_path / "place"


@contextmanager
def nobody_waiting(fifo: Path) -> Iterator[None]:
    """Hold that nobody waits for somebody to write to *fifo*; who does for ten seconds finds that it is empty."""
    is_done, waiting = threading.Event(), list[str]()

    def watch() -> None:
        while not is_done.wait(10):
            with suppress(OSError):  # nobody has it open
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
                waiting.append(str(fifo))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        is_done.set()
        watching.join()
    assert waiting == []


def ended(words: Sequence[str], path: Path, make: Callable[[Path], object] = os.mkfifo) -> Result:
    """How the command *words* ends where *make* has made something at *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)
    with nobody_waiting(path):
        result = CliRunner().invoke(main, words)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.stderr.count("\n") <= 1
    return result


@pytest.mark.parametrize(("path", "words"), REFUSED, ids=str)
def test_a_fifo_is_refused_by_its_name(place: Path, path: str, words: tuple[str, ...]) -> None:
    result = ended(words, place / path)
    output = " ".join(result.output.split())
    assert result.exit_code == 1
    assert Path(path).name in output
    assert "a FIFO; expected a regular file" in output


@pytest.mark.parametrize(("path", "words"), ENDED, ids=str)
def test_no_command_waits_for_a_fifo(place: Path, path: str, words: tuple[str, ...]) -> None:
    ended(words, place / path)


@pytest.mark.parametrize(
    ("target", "reason"), [("/dev/zero", "a socket or a device"), ("/proc/self/mem", "output error")]
)
@pytest.mark.parametrize(
    ("path", "words"),
    [(X, ("inspect", X)), (X, ("slim", X, "--gpu", "90", *OUT)), ("demo.toml", ("matrix", "demo.toml", "--dry-run"))],
)
def test_so_is_what_has_no_end_or_cannot_be_read(
    place: Path, path: str, words: tuple[str, ...], target: str, reason: str
) -> None:
    result = ended(words, place / path, lambda there: there.symlink_to(target))
    assert (result.exit_code, reason in result.stderr) == (1, True)
