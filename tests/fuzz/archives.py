"""Archives: wheels whole, the files in a wheel's ``.dist-info``, conda packages, sdists.

Seeds are made with the standard library's zipfile and tarfile, of METADATA, WHEEL and RECORD of what pip installed
here, cut small. The files of a ``.dist-info`` are put into a sound archive, for no fuzzer gets a CRC-32 right.
"""

import io
import random
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

import zstandard

from tests.factories.channels import package
from tests.factories.elf import shared_object
from tests.factories.wheels import entry, everything, hashed, record_of, wheel
from tests.fuzz.differential import ZIP_WORDS, mutated
from tests.fuzz.target import Target, folder, written
from vbuild.build.source import unpack
from vbuild.errors import VbuildError
from vbuild.files.edited import EditedFile
from vbuild.index_client.located import LocatedFile
from vbuild.publishing.conda.package import open_package
from vbuild.publishing.lint.files import ReadySdist
from vbuild.publishing.lint.metadata import metadata_view
from vbuild.wheel.archive import check_wheels, open_wheel, peek
from vbuild.wheel.metadata import Metadata, WheelFile
from vbuild.wheel.write import edit_wheel

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
CONDA = "demo-1.0-py311_0"
# a member that is written in several pieces
_NEW = EditedFile.of(b"x = 1\n" * 9, [range(18), b"y = 2\n", range(24, 54)])
_ZSTD = 93
_INSTALLED = ("click", "packaging", "pip", "lz4", "zstandard")
_ROWS, _LINES = 12, 40
_RECORD_WORDS = (b",sha256=", b",sha512=", b",md5=", b'"', b",,\n", b"\r\n", INFO.encode() + b"/RECORD", b"demo/_C.so")
_HEADER_WORDS = (
    b"Name: ",
    b"Version: ",
    b"Requires-Dist: ",
    b"Tag: ",
    b"Build: ",
    b"\n ",
    b"\r\n",
    b"\n\n",
    b"; extra == ",
)


def _read_wheel(data: bytes) -> None:
    path = written(NAME, data)
    peek(path, "METADATA")
    with open_wheel(path) as opened:
        opened.metadata()
        opened.wheel_file()
        found = {}
        for member in opened.members:
            head = opened.head(member, 64)
            # inflates it, and holds it against RECORD
            with opened.mapped(member) as view:
                found[member.path] = bytes(view)
            assert found[member.path].startswith(head), "a member begins with something else"
        assert found == _read_by_python(path), "Python's zipfile reads other members"
        with folder() as room:
            copy = edit_wheel(opened, room, opened.name, edits={"demo/new.py": _NEW})
            again = _read_by_python(copy)
            assert again.keys() == {*found, "demo/new.py"}, "other members after it was written"
            assert again["demo/new.py"] == bytes(_NEW), "another new member"
            record = f"{opened.dist_info}/RECORD"
            assert all(again[each] == data for each, data in found.items() if each != record), "another member, too"
            _check_written(copy)


def _check_written(wheel: Path) -> None:
    """What was written can be read again, which is a law here and no refusal."""
    try:
        check_wheels([wheel])
    except VbuildError as error:
        raise AssertionError(f"cannot be read after it was written: {error}") from error


def _read_by_python(path: Path) -> dict[str, bytes]:
    """The members of the archive at *path* that are files, CRC-32 checked, as the standard library finds them."""
    with zipfile.ZipFile(path) as archive:
        return {
            info.filename: zstandard.ZstdDecompressor().decompressobj().decompress(_raw(path, info))
            if info.compress_type == _ZSTD
            else archive.read(info)
            for info in archive.infolist()
            if not info.is_dir()
        }


def _raw(path: Path, info: zipfile.ZipInfo) -> bytes:
    """The bytes of the member *info*, as they are in the archive: before 3.14 zipfile knows no zstd."""
    data = path.read_bytes()[info.header_offset :]
    start = 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")
    return data[start : start + info.compress_size]


def _read_record(data: bytes) -> None:
    """*data* as the RECORD of a wheel of two modules."""
    files = everything(NAME, {"demo/__init__.py": "", "demo/_C.so": b"\x7fELF"})
    _read_wheel(zipped({**files, f"{INFO}/RECORD": data}))


def _read_metadata(data: bytes) -> None:
    """*data* as the METADATA of a wheel, which is then changed as stamp, split and repair do."""
    with suppress(VbuildError):
        metadata_view(data)
    metadata = _described(METADATA=data)[0]
    for changed in (
        metadata.headers.changing("Name", lambda _: "other"),
        metadata.headers.replacing("Version", ["1.0+cu12"]),
        metadata.replacing("Requires-Dist", ["a", "b"]),
    ):
        assert str(changed)


def _read_wheel_file(data: bytes) -> None:
    wheel_file = _described(WHEEL=data)[1]
    assert str(wheel_file.replacing("Tag", ["py3-none-any"]).replacing("Build", ["1"]))


def _described(**files: bytes) -> tuple[Metadata, WheelFile]:
    whole = everything(NAME) | {f"{INFO}/{name}": data for name, data in files.items()}
    whole[f"{INFO}/RECORD"] = record_of(whole, INFO).encode()
    with open_wheel(written(NAME, zipped(whole))) as opened:
        return opened.metadata(), opened.wheel_file()


def _read_conda(data: bytes) -> None:
    with open_package(written(f"{CONDA}.conda", data)) as opened:
        opened.index()
        for _, chunks in opened.entries():
            for _ in chunks:
                pass


def _read_sdist(data: bytes) -> None:
    path = written("demo-1.0.tar.gz", data)
    with suppress(VbuildError):
        ReadySdist.read(LocatedFile(path.name, str(path.parent), path))
    with folder() as room:
        unpack(path, room)


def zipped(files: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in files.items():
            archive.writestr(entry(path, compression=compression), data)
    return target.getvalue()


def _wheels() -> Iterator[bytes]:
    with folder() as room:
        for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            yield wheel(
                room, NAME, {"demo/__init__.py": "x = 1\n" * 9, "demo/é.so": b"\x7fELF"}, compression=compression
            ).read_bytes()
        module = shared_object("int sum(int *a) { return a[0]; }", "-s")
        yield wheel(room, NAME, {"demo/_C.so": module}).read_bytes()


def _records() -> Iterator[bytes]:
    files = everything(NAME, {"demo/__init__.py": "", "demo/_C.so": b"\x7fELF"})
    yield record_of(files, INFO).encode()
    yield (
        "".join(f'"{path}",{hashed(data, "sha512")},\r\n' for path, data in files.items()).encode()
        + f"{INFO}/RECORD,,".encode()
    )
    for name in _INSTALLED:
        yield "\n".join((distribution(name).read_text("RECORD") or "").splitlines()[:_ROWS]).encode()


def _texts(file: str) -> Iterator[bytes]:
    yield everything(NAME)[f"{INFO}/{file}"]
    for name in _INSTALLED:
        yield "\n".join((distribution(name).read_text(file) or "").splitlines()[:_LINES]).encode()


def _metadata_files() -> Iterator[bytes]:
    return _texts("METADATA")


def _wheel_files() -> Iterator[bytes]:
    return _texts("WHEEL")


def _packages() -> Iterator[bytes]:
    name, version, build = CONDA.split("-")
    with folder() as room:
        package(room, name, version, build, "python >=3.11", files={"lib/demo.py": "x = 1\n"})
        yield (room / "linux-64" / f"{CONDA}.conda").read_bytes()


def _other_wheel(_data: bytes, chance: random.Random) -> bytes:
    """A wheel some headers or files of which say something else, with true checksums."""
    return next(mutated(chance))


def _sdists() -> Iterator[bytes]:
    for mode in ("w:", "w:gz", "w:xz"):
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode=mode) as archive:
            for name, text in {"PKG-INFO": "Name: demo\nVersion: 1.0\n", "src/demo.py": "x = 1\n"}.items():
                info = tarfile.TarInfo(f"demo-1.0/{name}")
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
            link = tarfile.TarInfo("demo-1.0/link")
            link.type, link.linkname = tarfile.SYMTYPE, "src/demo.py"
            archive.addfile(link)
        yield target.getvalue()
    yield zipped({"demo-1.0/PKG-INFO": b"Name: demo\n", "demo-1.0/src/demo.py": b"x = 1\n" * 30}, zipfile.ZIP_DEFLATED)


TARGETS = (
    Target("wheel", _read_wheel, _wheels, ZIP_WORDS, _other_wheel, ("vbuild.wheel",)),
    Target("record", _read_record, _records, _RECORD_WORDS, rooms=("vbuild.wheel.metadata", "vbuild.wheel.archive")),
    Target("metadata", _read_metadata, _metadata_files, _HEADER_WORDS),
    Target("wheel-file", _read_wheel_file, _wheel_files, _HEADER_WORDS),
    Target("conda", _read_conda, _packages, ZIP_WORDS),
    Target(
        "sdist",
        _read_sdist,
        _sdists,
        (b"ustar\x0000", b"PaxHeader", b"././@LongLink", b"\x1f\x8b\x08", b"path=", b"size="),
    ),
)
