"""What vbuild takes as its work grows: seconds and memory at the whole of a load, and the growth from half of it.

    folder     a wheelhouse of 10,000 variant wheels, 50 a release, each with a compiled library
    wheels     the same of 5,000
    zip64      a wheel of 6 GB (10^9 bytes): one member beyond 4 GiB, and libraries with GPU code beyond that offset
    fatbins    a library with 5,000 fatbins
    variants   a recipe of 2,000 variants, planned

`GROWTH` bounds the time at the whole load over that at half of it, where 2 is linear and the rest for a machine that
others use, too; each subject bounds its resident memory.
"""

import base64
import hashlib
import io
import random
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any, BinaryIO

from tests.benchmarks.figure import Figure, Made, Peer, Setting
from tests.benchmarks.measuring import Command, timed
from tests.factories.elf import MODULE, shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.projects import setuptools_project
from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import dist_info_of, everything, record_of, wheel
from tests.factories.wheels import entry as zip_entry
from vbuild.variants.model import VariantProvider

GROWTH = 2.3
PAIRS = 3
MB, GB = 10**6, 10**9
ZEROS = bytes(16 * MB)
PROJECT = 'name = "demo"\n[source]\npath = "project"\n'
NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
WRITTEN = "Seconds of CPU grow 1.8 times; the clock also counts the wait until the disk has the new wheel."

# from the folder with what was made to the arguments of vbuild, which runs in a new folder
Arguments = Callable[[Path], Sequence[str | Path]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A load of *whole* units, in words *what*, that *make* writes into a folder; what copes with it in *memory* MB.

    *growths* are bounds other than `GROWTH`, by command; *notes* say by command what a figure does not.
    """

    whole: int
    what: str
    make: Callable[[Path, int], None]
    commands: Mapping[str, Arguments]
    memory: int
    growths: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def wheelhouse(folder: Path, wheels: int) -> None:
    """*wheels* wheels of 16 kB, 50 a release: a plain one and 49 variants."""
    library = shared_object(MODULE)
    shared = metadata("demo", demo=VariantProvider.static({"a": tuple("01234"), "b": tuple("0123456789")}))
    for number, (a, b) in islice(product(range(wheels), product("01234", "0123456789")), wheels):
        name, files = f"demo{number}-1.0-py3-none-manylinux_2_28_x86_64", {f"demo{number}/_demo.so": library}
        if a + b != "00":
            found = document(variant(f"v{a}{b}", f"demo :: a :: {a}", f"demo :: b :: {b}"), metadata=shared)
            files[f"{dist_info_of(name)}/variant.json"], name = found.pack(), f"{name}-v{a}{b}"
        wheel(folder, f"{name}.whl", files)


def zip64(folder: Path, gigabytes: int) -> None:
    """A wheel of *gigabytes* GB, stored, six sevenths of it in one member of zeros, which take no room on disk."""
    rest = random.Random(1).randbytes(4 * MB)
    weights, size = "demo/weights.bin", gigabytes * GB * 6 // 7
    library = device_library(fatbin(*(entry(arch=arch, code=cubin(arch) + rest) for arch in (80, 90))))
    copies = range(gigabytes * GB // 7 // len(library))
    files = everything(NAME, {f"demo/lib{number}.so": library for number in copies})
    dist_info = dist_info_of(NAME)
    row = f"{weights},sha256={_digest_of_zeros(size)},{size}\n"
    files[f"{dist_info}/RECORD"] = (row + record_of(files, dist_info)).encode()
    with (folder / NAME).open("wb") as file, zipfile.ZipFile(SparseFile(file), "w") as archive:
        with archive.open(zip_entry(weights, compression=zipfile.ZIP_STORED), "w", force_zip64=True) as member:
            for start in range(0, size, len(ZEROS)):
                member.write(ZEROS[: size - start])
        for path, data in files.items():
            archive.writestr(zip_entry(path, compression=zipfile.ZIP_STORED), data)


def _digest_of_zeros(size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, len(ZEROS)):
        digest.update(ZEROS[: size - start])
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


class SparseFile(io.RawIOBase):
    """A *file* in which `ZEROS` are holes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        if data is not ZEROS:
            return self._file.write(data)
        self._file.seek(len(ZEROS), io.SEEK_CUR)
        return len(ZEROS)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True


def many_fatbins(folder: Path, fatbins: int) -> None:
    """A wheel of one library with so many fatbins, each of which has code for two architectures."""
    containers = (fatbin(entry(arch=80), entry(arch=90, code=cubin(90, 128 + 8 * number))) for number in range(fatbins))
    wheel(folder, NAME, {"demo/_demo.so": device_library(*containers)})


def many_variants(folder: Path, variants: int) -> None:
    """A project in C, and the recipe of so many variants of it."""
    setuptools_project(folder / "project")
    (folder / "demo.toml").write_text(_recipe(variants))


def _recipe(variants: int) -> str:
    """Four levels, and axes of 25 values and as many as *variants*, a multiple of 100, need: one is the plain twin."""
    levels = 'cpu = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]\n'
    return f"{PROJECT}[matrix]\n{levels}{_axis('a', variants // 100)}{_axis('b', 25)}"


def _axis(name: str, values: int) -> str:
    rows = "".join(f'{name}{number} = {{ properties = ["x :: {name} :: v{number}"] }}\n' for number in range(values))
    return f"[matrix.axes.{name}]\n{rows}"


def on_wheels(*arguments: str) -> Arguments:
    """`vbuild` with *arguments*, on all wheels in the folder."""
    return lambda folder: [*arguments, folder]


def on_wheel(*arguments: str) -> Arguments:
    """`vbuild` with *arguments*, on the one wheel."""
    return lambda folder: [*arguments, folder / NAME]


SUBJECTS = {
    "folder": Subject(
        whole=10_000,
        what="10,000 wheels",
        make=wheelhouse,
        commands={"index --simple": on_wheels("index", "--simple", "site"), "check": on_wheels("check")},
        memory=500,
    ),
    "wheels": Subject(
        whole=5000,
        what="5,000 wheels",
        make=wheelhouse,
        commands={
            "verify": lambda folder: ["verify", *sorted(folder.glob("*.whl"))],
            "inspect": lambda folder: ["inspect", *sorted(folder.glob("*.whl"))],
            "split": on_wheels("split", "-o", "out"),
            "slim": on_wheels("slim", "--gpu", "90", "--allow-unsupported", "-o", "out"),
            "publish": on_wheels("publish", "--layout", "local", "--layout", "variants", "-o", "out"),
        },
        memory=500,
    ),
    "zip64": Subject(
        whole=6,
        what="a wheel of 6 GB (zip64)",
        make=zip64,
        commands={
            "inspect": on_wheel("inspect"),
            "verify": on_wheel("verify"),
            "stamp": on_wheel("stamp", "-o", "out", "--label", "v3", "--property", "x86_64 :: level :: v3"),
            "slim": on_wheel("slim", "--gpu", "90", "-o", "out"),
        },
        # libraries that are stored are mapped: their pages count, though the system can take them back at any time
        memory=900,
        growths={"slim": 2.1},
        notes=dict.fromkeys(["stamp", "slim"], WRITTEN),
    ),
    "fatbins": Subject(
        whole=5000,
        what="a library with 5,000 fatbins",
        make=many_fatbins,
        commands={
            "inspect": on_wheel("inspect"),
            "slim": on_wheel("slim", "--gpu", "90", "-o", "out"),
        },
        memory=300,
    ),
    "variants": Subject(
        whole=2000,
        what="a recipe of 2,000 variants",
        make=many_variants,
        commands={"matrix --dry-run": lambda folder: ["matrix", folder / "demo.toml", "--dry-run"]},
        memory=300,
    ),
}


def figures() -> Iterator[Figure]:
    for name, subject in SUBJECTS.items():
        half, whole = (Made(subject.make, (load,)) for load in (subject.whole // 2, subject.whole))
        for title, arguments in subject.commands.items():
            yield Figure(
                name=f"{name}-{title.split()[0]}",
                what=f"{title}, {subject.what}",
                measure=timed(_on(whole, arguments)),
                peer=Peer("half of it", timed(_on(half, arguments)), (half,)),
                reach=subject.growths.get(title, GROWTH),
                memory=subject.memory,
                pairs=PAIRS,
                inputs=(whole,),
                note=subject.notes.get(title, ""),
            )


def _on(load: Made, arguments: Arguments) -> Command:
    def command(setting: Setting) -> Sequence[str | Path]:
        return [setting.vbuild.vbuild, *arguments(setting.inputs[load])]

    return command
