"""What is known of a wheel before a byte is written: which libraries change, and which are worth a word."""

import re
from pathlib import Path

import pytest
import zstandard

from tests.factories.bundles import GFX942, bundle
from tests.factories.deflate_streams import pieces_of, with_words
from tests.factories.elf import shared_object
from tests.factories.fatbins import PTX, cubin, device_library, entry, fatbin
from tests.factories.pe_files import pe_file
from tests.factories.wheels import wheel
from vbuild.errors import WheelError
from vbuild.slimming.device_files import examine_file, is_alone, worth_reading
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.slim import slim_plan
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.write import edit_wheel

NAME = "Demo_x-1.0-py3-none-manylinux_2_28_x86_64.whl"
FAT = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 13)) for arch in (80, 90, 120))))
HOST = shared_object("int x;")
SHARES = (Share.parse("a=90"), Share.parse("b=80"))
FRAMED = zstandard.compress(bundle({GFX942: b"code"}))


def test_every_byte_is_told_as_read_and_as_cut_first_those_that_are_not_looked_into(
    tmp_path: Path,
) -> None:
    files = {"host.so": HOST, "data.bin": b"x" * 1000, "a.so": FAT, "empty.txt": b""}
    heard: list[int] = []
    with (
        open_wheel(wheel(tmp_path, NAME, files)) as source,
        slim_plan(source, SHARES, Cuts(), on_progress=heard.append),
    ):
        whole = sum(member.size for member in source.members)
    assert heard[0] == 2 * (whole - len(FAT) - len(HOST))
    assert sum(heard) == 2 * whole


@pytest.mark.parametrize(
    ("path", "data", "alone", "read"),
    [
        ("k/a.cubin", cubin(90), True, True),
        ("k/a", cubin(90), True, True),
        ("k/a.ptx", PTX, True, True),
        ("k/a.txt", PTX, False, False),
        ("k/a.bin", fatbin(entry()), True, True),
        ("k/a.hsaco", bundle({GFX942: b"code"}), True, True),
        ("k/a.hsaco.zst", FRAMED, True, True),
        ("k/a.txt.zst", zstandard.compress(b"text"), False, False),
        ("k/a.so", FAT, False, True),
        ("k/a.dll", pe_file(), False, True),
        ("k/a.py", b"x = 1\n", False, False),
    ],
)
def test_what_is_gpu_code_alone_is_known_by_its_first_bytes(path: str, data: bytes, *, alone: bool, read: bool) -> None:
    def head(size: int) -> bytes:
        return data[:size]

    assert (is_alone(path, len(data), head), worth_reading(path, head)) == (alone, read)


@pytest.mark.parametrize(
    ("path", "data", "after", "alone"),
    [
        ("k/a.ptx", PTX, (len(PTX), 0), "ptx for sm_90"),
        ("k/a.hsaco.zst", FRAMED, (len(FRAMED),) * 2, "bundle"),
        ("k/a.bin", fatbin(entry(arch=80), entry(arch=90)), (208, 208), "fatbin"),
        ("k/a.so", FAT[:2000], (2000, 2000), ""),
        ("k/a.py", b"x = 1\n", (6, 6), ""),
    ],
)
def test_a_file_by_itself_is_accounted_for_under_its_path(
    path: str, data: bytes, after: tuple[int, int], alone: str
) -> None:
    plan = examine_file(path, memoryview(data), SHARES, Cuts())
    assert plan.member == path
    assert [(cut.member, cut.before, cut.alone) for cut in plan.cuts] == [(path, len(data), alone)] * 2
    assert tuple(cut.after for cut in plan.cuts) == after
    assert plan.gone == {place for place, size in enumerate(after) if not size}
    assert len(plan.files) == 2


def test_a_large_library_waits_in_its_folder_out_of_memory_and_what_stays_is_copied_as_it_is_compressed(
    tmp_path: Path,
) -> None:
    fat = wheel(tmp_path, NAME, {"a.so": with_words(FAT, tmp_path)})
    (tmp_path / "room").mkdir()
    with (
        open_wheel(fat) as source,
        slim_plan(source, SHARES[:1], Cuts(), room=tmp_path / "room") as plan,
    ):
        rows = Path("/proc/self/smaps").read_text().partition(f"{tmp_path}/room/")[2]
        assert (found := re.search(r"^Rss: +(\d+) kB$", rows, re.MULTILINE))
        assert found[1] == "0"
        out = edit_wheel(source, tmp_path / "out", source.name, edits=plan.files(0))
    pieces, after = pieces_of(fat, "a.so"), out.read_bytes()
    assert len(pieces) > 8
    assert sum(piece in after for piece in pieces) >= len(pieces) - 1  # one may have what was edited
    with (
        open_wheel(fat) as source,
        pytest.raises(WheelError, match="cannot be unpacked"),
        slim_plan(source, SHARES, Cuts(), room=tmp_path / "nowhere"),
    ):
        pytest.fail("it has no place to wait in")
