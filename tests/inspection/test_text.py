"""What the terminal shows."""

from pathlib import Path

import pytest

from tests.factories.elf import MODULE, shared_object, stripped
from tests.factories.fatbins import device_library, entry, fatbin
from tests.factories.wheels import wheel
from vbuild.files.wording import WIDTH, sized
from vbuild.gpu_code.fatbin import FatbinKind
from vbuild.inspection.inspect import inspect
from vbuild.inspection.model import Contents
from vbuild.inspection.text import change_lines, details, summary

NAME = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
FATBIN = fatbin(entry(arch=80, code=bytes(300_000)), entry(arch=90, code=bytes(600_000)), entry(FatbinKind.PTX, 90))


def contents(folder: Path) -> Contents:
    host = stripped(shared_object(MODULE, "-Wl,-soname,libhost.so.1"))
    files = {
        "demo/gpu.so": stripped(device_library(FATBIN)),
        "demo/libhost.so": host,
        "demo.libs/libhost-1a2b3c4d.so.1": host,
        "demo/bad.so": host[:100],
    }
    return inspect(wheel(folder, NAME, files, metadata="License-Expression: MIT\n"))


def test_the_summary_says_where_the_bytes_are_and_for_which_gpus(tmp_path: Path) -> None:
    lines = list(summary(contents(tmp_path)))
    assert lines[0] == "demo 1.0 cp311-cp311-manylinux_2_17_x86_64"
    assert lines[1].endswith(" installed, 7 files, 3 libraries")
    assert lines[2].startswith("0.9 MB GPU code: ")
    assert lines[2].endswith(" of it, in 1 library")
    assert lines[3] == "licence MIT"
    table = lines[5:]
    assert [" ".join(line.split()) for line in table[:4]] == [
        "GPU code for size share entries stored as",
        "sm_80 cubin 0.3 MB 33 % 1 raw ██████",
        "sm_90 cubin 0.6 MB 67 % 1 raw ████████████",
        f"sm_90 ptx {len(entry(FatbinKind.PTX, 90))} B <1 % 1 raw",
    ]
    assert " ".join(table[5].split()) == "GPU code runs needs slimming saves"
    assert table[6].startswith("sm_80 86 88 89             natively          0.3 MB ")
    assert table[8].startswith("sm_100 101 103 107 110 120 by JIT ")
    assert table[9] == "121"
    assert [line.split()[0] for line in table if line.startswith("demo")] == [
        "demo/gpu.so",
        "demo.libs/libhost-1a2b3c4d.so.1",
        "demo/libhost.so",
    ]
    assert any(line.startswith("damaged  demo/bad.so: program header table at 0x40, ") for line in table)
    assert any(line.startswith("bundled  libhost-1a2b3c4d.so.1") for line in table)


def test_what_is_so_of_many_files_is_said_once(tmp_path: Path) -> None:
    cut = shared_object(MODULE)[:100]
    found = inspect(wheel(tmp_path, NAME, {f"demo/bad{number}.so": cut for number in range(58)}))
    assert len(found.damaged) == 58
    (line, *rest) = [line for line in summary(found) if "program header table" in line]
    assert line.startswith("damaged  demo/bad0.so and 57 more: ")
    assert not rest


def test_no_line_is_wider_than_the_terminal(tmp_path: Path) -> None:
    found = contents(tmp_path)
    lines = [*summary(found), *(line for library in found.libraries for line in [*details(library, found.devices)][1:])]
    assert max(map(len, lines)) <= WIDTH


def test_many_architectures_stay_on_one_screen(tmp_path: Path) -> None:
    archs = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 107, 110, 120, 121)
    codes = fatbin(*(entry(arch=arch, code=bytes(8 * (arch + number))) for number, arch in enumerate(archs)))
    lines = list(summary(inspect(wheel(tmp_path, NAME, {"demo/gpu.so": device_library(codes)}))))
    assert len(lines) < 50
    assert any(line.startswith("… and 6 more ") for line in lines)
    assert any(line == "… and 6 GPUs more" for line in lines)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_999, "100.0 kB"),
        (100_000, "0.1 MB"),
        (1_144_500_000, "1144.5 MB"),
        (12_345_678_901, "12.3 GB"),
    ],
)
def test_sizes_are_decimal_and_comparable(size: int, text: str) -> None:
    assert sized(size) == text


def test_a_later_wheel_is_compared_by_file_without_hashes_and_tags_in_names(tmp_path: Path) -> None:
    """libhost.so.1 became libhost.so.2, of another hash; gpu.so lost sm_80 and has sm_100."""
    host = shared_object(MODULE)
    (tmp_path / "old").mkdir()
    files: dict[str, bytes | str] = {
        "demo/gpu.cpython-311-x86_64-linux-gnu.so": device_library(FATBIN),
        "demo.libs/libhost-1a2b3c4d.so.1": host,
        "demo/gone.so": host,
    }
    old = inspect(wheel(tmp_path / "old", NAME, files))
    codes = (entry(arch=90, code=bytes(600_000)), entry(arch=100, code=bytes(300_000)), entry(FatbinKind.PTX, 90))
    files = {
        "demo/gpu.abi3.so": device_library(fatbin(*codes)),
        "demo.libs/libhost-2b3c4d5e.so.2": host,
        "demo/new.txt": "new",
    }
    new = inspect(wheel(tmp_path, NAME, files))
    changes = {change.path: change for change in new.changes_from(old)}
    assert changes.keys() == {"demo/gone.so", "demo/gpu.so", "*.txt", "no suffix"}  # RECORD has no suffix
    assert (changes["demo/gone.so"].after, changes["*.txt"].before) == (None, None)
    assert (changes["demo/gpu.so"].gained, changes["demo/gpu.so"].lost) == (("sm_100",), ("sm_80",))
    lines = list(change_lines(old, new))
    assert lines[-2:] == ["  also for    sm_100", "  not for     sm_80"]
    assert max(map(len, lines)) <= WIDTH
