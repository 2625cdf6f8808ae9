"""Wheels with one damaged file, which no command passes on, lists or vouches for."""

import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.factories.wheels import wheel
from vbuild.cli.main import main
from vbuild.variants.index import index
from vbuild.variants.model import Property, Variant
from vbuild.variants.stamp import stamped

PLAIN = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
NAME = PLAIN.replace(".whl", "-x86_64_v3.whl")
DAMAGED = "demo/table.py"
CONTENT = {DAMAGED: f"TABLE = {[*range(5000)]}\n", "demo/__init__.py": "VERSION = 1\n"}
COMMANDS = {
    "stamp": "stamp in/%s -o out -l other -p x86_64::level::v2",
    "unstamp": "stamp in/%s -o out --remove",
    "slim": "slim in -o out --gpu 90",
    "drop": "slim in -o out --drop demo/__init__.py",
    "split": "split in -o out",
    "index": "index in",
    "simple": "index in --simple out",
    "check": "check in",
    "verify": "verify in/%s",
    **{
        layout: f"publish in -o out --layout {layout} --url https://wheels.example.org"
        for layout in ("redirect", "local", "suffix", "variants", "oci", "conda")
    },
}


def _at(path: Path, member: str) -> tuple[zipfile.ZipInfo, int]:
    """The *member* of the wheel at *path*, and where its bytes begin."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    head = path.read_bytes()[info.header_offset :][:30]
    return info, info.header_offset + 30 + sum(struct.unpack_from("<HH", head, 26))


def _flipped(path: Path) -> None:
    """A bit of the compressed bytes is another one."""
    info, start = _at(path, DAMAGED)
    data = bytearray(path.read_bytes())
    data[start + info.compress_size // 2] ^= 16
    path.write_bytes(data)


def _other_crc(path: Path) -> None:
    """Both headers state another CRC-32."""
    info, _ = _at(path, DAMAGED)
    data = bytearray(path.read_bytes())
    for crc in (info.header_offset + 14, data.rindex(b"PK\1\2", 0, data.rindex(DAMAGED.encode())) + 16):
        data[crc] ^= 16
    path.write_bytes(data)


def _other_bytes(path: Path) -> None:
    """The bytes are others, and all but RECORD agree on them."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"0", b"1") if name == DAMAGED else data)


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder ``in`` of a plain wheel and a variant of it, beside which commands run."""
    monkeypatch.chdir(tmp_path)
    v3 = Variant.of("x86_64_v3", [Property.parse("x86_64 :: level :: v3")])
    stamped(wheel(tmp_path / "in", PLAIN, CONTENT), tmp_path / "in", variant=v3)
    wheel(tmp_path / "in", PLAIN, {**CONTENT, DAMAGED: "TABLE = []\n"})
    index(tmp_path / "in")
    return tmp_path / "in"


@pytest.mark.sampled(15)
@pytest.mark.parametrize("damage", [_flipped, _other_crc, _other_bytes], ids=["bit", "crc", "bytes"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_file_is_named_and_nothing_written(
    release: Path, command: str, damage: Callable[[Path], None]
) -> None:
    words = COMMANDS[command].replace("%s", NAME).split()
    sound = CliRunner().invoke(main, words)
    assert sound.exit_code == 0, sound.output
    shutil.rmtree(release.parent / "out", ignore_errors=True)
    damage(release / NAME)
    before = sorted(release.parent.rglob("*"))
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 1
    said = " ".join(told.output.split())
    if command in {"slim", "drop"}:  # which go on with the other wheels
        assert f"{NAME} {DAMAGED}: " in said
        assert [*release.parent.rglob(NAME)] == [release / NAME]
    else:
        assert f"{NAME}: {DAMAGED}: " in said
        assert sorted(release.parent.rglob("*")) == before
