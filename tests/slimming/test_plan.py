"""What is known of a wheel before a byte is written: which libraries change, and which are worth a word."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from tests.factories.bundles import GFX942, bundle
from tests.factories.elf import shared_object
from tests.factories.fatbins import PTX, cubin, device_library, entry, fatbin
from tests.factories.pe_files import pe_file
from tests.factories.wheels import wheel
from vbuild.errors import RepackageError
from vbuild.slimming.output import slim_outputs
from vbuild.slimming.plan import is_alone, planned, worth_reading
from vbuild.slimming.request import Cuts, Share
from vbuild.wheel.archive import open_wheel

NAME = "Demo_x-1.0-py3-none-manylinux_2_28_x86_64.whl"
FAT = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 13)) for arch in (80, 90, 120))))
HOST = shared_object("int x;")
SHARES = (Share.parse("a=90"), Share.parse("b=80"))


def told(folder: Path, files: Mapping[str, bytes], cuts: Cuts | None = None) -> list[tuple[str, ...]]:
    """The members that change, that are worth a word, that go, and the names of what comes of them."""
    with open_wheel(wheel(folder, NAME, files)) as source, planned(source, SHARES, cuts or Cuts()) as plan:
        names = tuple(str(output.name) for output in slim_outputs(source, plan, SHARES))
        return [tuple(plan.files(0)), tuple(cut.member for cut in plan.cuts(0)), tuple(sorted(plan.dropped)), names]


def test_only_libraries_with_gpu_code_change_or_are_told_of(tmp_path: Path) -> None:
    files = {"z.so": FAT, "host.so": HOST, "a.so": FAT, "data.bin": b"x"}
    assert told(tmp_path, files) == [
        ("z.so", "a.so"),
        ("z.so", "a.so"),
        (),
        (
            "demo_x-1.0-py3-none-manylinux_2_28_x86_64-a.whl",
            "demo_x-1.0-py3-none-manylinux_2_28_x86_64-b.whl",
        ),
    ]


@pytest.mark.parametrize(
    "data",
    [FAT[:2000], device_library(b"x" * 99), device_library(fatbin(entry(version=3)))],
    ids=["cut", "x", "version"],
)
def test_a_library_that_is_left_is_told_of(tmp_path: Path, data: bytes) -> None:
    assert told(tmp_path, {"a.so": data}) == [(), ("a.so",), (), (NAME,)]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_what_is_dropped_is_not_looked_into(tmp_path: Path, order: str) -> None:
    files = {"a": FAT, "b": FAT[:2000]}
    assert told(tmp_path, {f"{name}.so": files[name] for name in order}, Cuts(drop=("b.so",)))[:3] == [
        ("a.so",),
        ("a.so",),
        ("b.so",),
    ]


def test_every_byte_is_told_once(tmp_path: Path) -> None:
    files = {"a.so": FAT, "host.so": HOST, "data.bin": b"x" * 1000}
    heard: list[int] = []
    with open_wheel(wheel(tmp_path, NAME, files)) as source, planned(source, SHARES, Cuts(), on_progress=heard.append):
        assert sum(heard) == sum(member.size for member in source.members)


def test_a_refusal_of_one_library_ends_all(tmp_path: Path) -> None:
    fat = wheel(tmp_path, NAME, {f"{number}.so": FAT for number in range(9)})
    with (
        pytest.raises(RepackageError, match=r"^0\.so: nothing for sm_75"),
        open_wheel(fat) as source,
        planned(source, (Share.parse("a=75"),), Cuts()),
    ):
        pytest.fail("nothing serves sm_75")


@pytest.mark.parametrize(
    ("path", "data", "alone", "read"),
    [
        ("k/a.cubin", cubin(90), True, True),
        ("k/a", cubin(90), True, True),
        ("k/a.ptx", PTX, True, True),
        ("k/a.txt", PTX, False, False),
        ("k/a.bin", fatbin(entry()), True, True),
        ("k/a.hsaco", bundle({GFX942: b"code"}), True, True),
        ("k/a.hsaco.zst", zstandard.compress(bundle({GFX942: b"code"})), True, True),
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
