"""Files of strangers: a regular one is read, everything else is refused at once."""

import ast
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import vbuild
from vbuild.files.reading import open_file, read_file, read_text

ROOT = Path(vbuild.__file__).parent

# rooms that read what this machine has, and what vbuild has made itself
OWN_ROOMS = {"build", "elf", "files", "hardware", "process", "toolchain", "workers"}
# files that run without vbuild: in wheels, sdists and processes of their own
ALONE = {
    "publishing/redirect/redirectbackend.py",
    "publishing/redirect/redirecthardware.py",
    "publishing/redirect/redirectinstalled.py",
    "verification/level_runs.py",
}
# files of the system's, which state no size
PROC = {"_CPUINFO.read_text", "(process / 'maps').open", "(process / 'comm').read_text"}


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)  # a socket's path is short
        server.bind(path.name)


def linked_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "a FIFO; expected a regular file"),
        (linked_to("/dev/zero"), "a socket or a device; expected a regular file"),
        (listening, "a socket or a device; expected a regular file"),
        (Path.mkdir, "Is a directory"),
        (linked_to("file"), "Too many levels of symbolic links"),
        (linked_to("gone"), "No such file or directory"),
        (linked_to("/proc/self/mem"), "Input/output error"),
        (linked_to("/proc/self/pagemap"), "Invalid argument"),
        (linked_to("/proc/cpuinfo"), "a file of the system's, which states no size; expected a regular file"),
    ],
)
def test_what_is_no_regular_file_is_refused_by_its_name(
    make: Callable[[Path], object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "file")
    with pytest.raises(OSError, match=f"{reason}: '{tmp_path}/file'$"):
        read_file(tmp_path / "file")


def test_a_regular_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\r\ntwo\xff")
    assert read_file(path) == b"one\r\ntwo\xff"
    assert read_text(path, errors="replace") == "one\ntwo\ufffd"
    with open_file(path) as file:
        assert (os.get_blocking(file.fileno()), os.get_inheritable(file.fileno())) == (True, False)
    path.write_bytes(b"")
    assert read_file(path) == b""


def raw_opens(path: Path) -> Iterator[str]:
    """The calls in the module at *path* that open a file by its path to read it."""
    source = path.read_text(encoding="utf-8")
    if not any(name in source for name in ("read_bytes", "read_text", "open")):
        return
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        is_read = {
            "read_bytes": not node.args,
            # that of a distribution takes a name
            "read_text": not node.args or str(first).startswith("utf"),
            # that of a path takes a mode, others a path
            "open": not (node.args or node.keywords) or str(first).startswith("r"),
        }
        # files() has those of a package
        if (
            is_read.get(node.func.attr)
            and (function := ast.unparse(node.func)) not in PROC
            and "files(" not in function
        ):
            yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}: {ast.unparse(node)}"


def test_rooms_that_read_what_strangers_made_open_it_by_one_function() -> None:
    modules = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in OWN_ROOMS]
    found = [call for path in modules if path.relative_to(ROOT).as_posix() not in ALONE for call in raw_opens(path)]
    assert found == []
