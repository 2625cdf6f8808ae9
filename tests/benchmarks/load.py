"""What vbuild takes as its work grows: seconds and memory at half of the load and at the whole, and their growth.

    python -m tests.benchmarks.load [SUBJECT ...]

    wheels     a wheelhouse of 5,000 variant wheels, 50 a release, each with a compiled library
    members    a wheel of 100,000 members
    zip64      a wheel of 6 GB (10^9 bytes): one member beyond 4 GiB, and libraries with GPU code beyond that offset
    fatbins    a library with 5,000 fatbins
    variants   a recipe of 2,000 variants, planned

Each command runs as a process of its own. `GROWTH` bounds the time at the whole load over that at half of it, where 2
is linear and the rest for a machine that others use, too; each subject bounds its resident memory. Prints one line for
each command; status 1 where a bound is missed.
"""

import base64
import hashlib
import random
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice, product
from multiprocessing import get_context
from pathlib import Path

from tests.benchmarks import emitting
from tests.benchmarks.ratio import Run, median, timed
from tests.factories.elf import MODULE, shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.projects import setuptools_project
from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import dist_info_of, everything, record_of, wheel
from tests.factories.wheels import entry as zip_entry
from vbuild.variants.metadata import VariantProvider

GROWTH = 2.3
ROUNDS = 3
VBUILD = str(Path(sys.executable).with_name("vbuild"))
MB, GB = 10**6, 10**9
PROJECT = 'name = "demo"\n[source]\npath = "project"\n'
NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"

# from the folder with what was made to the arguments of vbuild, which runs in a new folder
Arguments = Callable[[Path], Sequence[str | Path]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A load of *whole* units that *make* writes into a folder, and what has to cope with it in *memory* bytes."""

    whole: int
    unit: str
    make: Callable[[Path, int], None]
    commands: Mapping[str, Arguments]
    memory: int


@dataclass(frozen=True, slots=True)
class Growth:
    """The median run of a command under half of a load, and under all of it."""

    title: str
    subject: Subject
    half: Run
    whole: Run

    @property
    def factor(self) -> float:
        return self.whole.seconds / self.half.seconds

    @property
    def is_reached(self) -> bool:
        return self.factor <= GROWTH and self.whole.peak <= self.subject.memory

    def __str__(self) -> str:
        return (
            f"{self.title}, {self.subject.whole:,} {self.subject.unit}: {self.whole.seconds:.2f} s, "
            f"{self.factor:.2f} times what half of it takes (reach {GROWTH}), "
            f"{self.whole.peak / MB:.0f} MB of memory (reach {self.subject.memory / MB:.0f} MB): "
            f"{'reached' if self.is_reached else 'MISSED'}"
        )


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


def many_members(folder: Path, members: int) -> None:
    """A wheel of so many files of about 100 bytes, one in a hundred of them a compiled library."""
    library = shared_object(MODULE)
    files: dict[str, bytes | str] = {
        f"demo/p{number // 1000}/m{number}": library if number % 100 == 0 else f"{number} = {number:099}\n"
        for number in range(members)
    }
    wheel(folder, NAME, {path + (".so" if data is library else ".py"): data for path, data in files.items()})


def zip64(folder: Path, gigabytes: int) -> None:
    """A wheel of *gigabytes* GB that deflate would not make smaller, six sevenths of it in one member."""
    block = random.Random(1).randbytes(16 * MB)
    weights, blocks = "demo/weights.bin", gigabytes * GB * 6 // 7 // len(block)
    digest = hashlib.sha256()
    for _ in range(blocks):
        digest.update(block)
    library = device_library(fatbin(*(entry(arch=arch, code=cubin(arch) + block[: 4 * MB]) for arch in (80, 90))))
    copies = range(gigabytes * GB // 7 // len(library))
    files = everything(NAME, {f"demo/lib{number}.so": library for number in copies})
    dist_info = dist_info_of(NAME)
    encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    row = f"{weights},sha256={encoded},{blocks * len(block)}\n"
    files[f"{dist_info}/RECORD"] = (row + record_of(files, dist_info)).encode()
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        with archive.open(zip_entry(weights, compression=zipfile.ZIP_STORED), "w", force_zip64=True) as member:
            for _ in range(blocks):
                member.write(block)
        for path, data in files.items():
            archive.writestr(zip_entry(path, compression=zipfile.ZIP_STORED), data)


def many_fatbins(folder: Path, fatbins: int) -> None:
    """A wheel of one library with so many fatbins, each of which has code for two architectures."""
    containers = (fatbin(entry(arch=80), entry(arch=90, code=cubin(90, 128 + 8 * number))) for number in range(fatbins))
    wheel(folder, NAME, {"demo/_demo.so": device_library(*containers)})


def many_variants(folder: Path, variants: int) -> None:
    """A project in C, and the recipe of so many variants of it."""
    setuptools_project(folder / "project")
    (folder / "demo.toml").write_text(emitting.recipe(variants, source=PROJECT))


def on_wheels(*arguments: str) -> Arguments:
    """`vbuild` with *arguments*, on all wheels in the folder."""
    return lambda folder: [*arguments, folder]


def on_wheel(*arguments: str) -> Arguments:
    """`vbuild` with *arguments*, on the one wheel."""
    return lambda folder: [*arguments, folder / NAME]


SUBJECTS = {
    "wheels": Subject(
        whole=5000,
        unit="wheels",
        make=wheelhouse,
        commands={
            "index": on_wheels("index"),
            "check": on_wheels("check"),
            "verify": lambda folder: ["verify", *sorted(folder.glob("*.whl"))],
            "inspect": lambda folder: ["inspect", *sorted(folder.glob("*.whl"))],
            "split": on_wheels("split", "-o", "out"),
            "slim": on_wheels("slim", "--gpu", "90", "--allow-unsupported", "-o", "out"),
            "publish": on_wheels("publish", "--layout", "local", "--layout", "variants", "-o", "out"),
        },
        memory=500 * MB,
    ),
    "members": Subject(
        whole=100_000,
        unit="members",
        make=many_members,
        commands={
            "inspect": on_wheel("inspect"),
            "verify": on_wheel("verify"),
            "stamp": on_wheel("stamp", "-o", "out", "--label", "v3", "--property", "x86_64 :: level :: v3"),
            "slim": on_wheel("slim", "--strip", "debug", "-o", "out"),
            "split": on_wheel("split", "-o", "out"),
        },
        memory=500 * MB,
    ),
    "zip64": Subject(
        whole=6,
        unit="GB",
        make=zip64,
        commands={
            "inspect": on_wheel("inspect"),
            "verify": on_wheel("verify"),
            "stamp": on_wheel("stamp", "-o", "out", "--label", "v3", "--property", "x86_64 :: level :: v3"),
            "slim": on_wheel("slim", "--gpu", "90", "-o", "out"),
        },
        # libraries that are stored are mapped: their pages count, though the system can take them back at any time
        memory=900 * MB,
    ),
    "fatbins": Subject(
        whole=5000,
        unit="fatbins",
        make=many_fatbins,
        commands={
            "inspect": on_wheel("inspect"),
            "slim": on_wheel("slim", "--gpu", "90", "-o", "out"),
        },
        memory=300 * MB,
    ),
    "variants": Subject(
        whole=2000,
        unit="variants",
        make=many_variants,
        commands={"matrix --dry-run": lambda folder: ["matrix", folder / "demo.toml", "--dry-run"]},
        memory=300 * MB,
    ),
}


def measured(subject: Subject) -> Iterator[Growth]:
    """The growth of each command of *subject*."""
    runs = [_runs(subject, load) for load in (subject.whole // 2, subject.whole)]
    for title in subject.commands:
        half, whole = (each[title] for each in runs)
        yield Growth(title, subject, half, whole)


def _runs(subject: Subject, load: int) -> Mapping[str, Run]:
    """The median run of each command under *load*, which is there only meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        # apart: the peak of a process counts from its fork, with all that its parent has in memory
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as maker:
            maker.submit(subject.make, Path(name), load).result()
        return {title: _run(Path(name), arguments) for title, arguments in subject.commands.items()}


def _run(folder: Path, arguments: Arguments) -> Run:
    return median(timed(lambda _: [VBUILD, *arguments(folder)]) for _ in range(ROUNDS))


def main(names: Sequence[str]) -> int:
    """0 where every bound is kept."""
    reached = True
    for name in names or SUBJECTS:
        for growth in measured(SUBJECTS[name]):
            print(growth, flush=True)
            reached &= growth.is_reached
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
