"""Mutated wheels through the readers of pip, uv and installer: what one refuses, or two read differently, vbuild tells.

    python -m tests.fuzz.differential [--wheels N] [--seed N] [--findings FOLDER]

    bytes       flipped, cut, doubled, moved, or replaced by words of the format, as `tests.fuzz.mutated` does
    fields      of a header of the archive, of its end, their comments and extra fields: another number, other bytes
    files       METADATA, WHEEL, RECORD, entry_points.txt mutated, in a sound archive with a RECORD that is true of them

A mutant that vbuild refuses is done with. One that it opens goes through all installers; if one of them refuses it, or
two install different files, `vbuild verify` or `vbuild check` has to say something that it does not say of a sound one.
Others are findings: they are written to FOLDER and told, and the exit status is 1. The same seed gives the same wheels.
"""

import argparse
import hashlib
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tests.factories.hostile_zips import INFO, NAME, Entry, archive
from tests.factories.installer_outcomes import Outcome, installer_outcomes
from tests.factories.wheels import everything, record_of
from tests.fuzz.byte_changes import WAYS, mutant
from vbuild.errors import VbuildError
from vbuild.publishing.check import check
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel

_WHEELS = 5000
# wheels that go through the installers together
_BATCH = 60
# characters of a refusal
_SHOWN = 200
_CODE = b"x = 1\n" * 30
_POINTS = b"[console_scripts]\ndemo = demo.a:main\n"
_METADATA = (
    b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nSummary: a demo\nRequires-Python: >=3.8\nLicense: MIT\n"
    b"Classifier: Programming Language :: Python\nRequires-Dist: numpy (>=1.0)\nProvides-Extra: more\n\nText.\n"
)
_FILES = {"demo/a.py": _CODE, "demo/__init__.py": b"", f"{INFO}/entry_points.txt": _POINTS}
ZIP_WORDS = (
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"PK\x06\x07",
    b"PK\x07\x08",
    b"\x01\0\x10\0",
    b"up",
)
_TEXTS = ("METADATA", "WHEEL", "RECORD", "entry_points.txt")
_TEXT_WORDS = (
    *(b"Name: ", b"Version: ", b"Requires-Dist: ", b"Requires-Python: ", b"Tag: ", b"Wheel-Version: ", b"Dynamic: "),
    *(
        b"Root-Is-Purelib: ",
        b"true",
        b"false",
        b"demo",
        b"../",
        b"/",
        b"\\",
        b":",
        b"=",
        b",",
        b'"',
        b"\n",
        b"\r\n",
        b" ",
    ),
    *(b"\n ", b"\n\n", b"[gui_scripts]\n", b"sha256=", b"\xff", "é".encode(), b"\0", b">=3", b"py3-none-any", b"2.4"),
)
_NUMBERS = (0, 1, 7, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
_IN_FRONT = ("needed", "flags", "method", "time", "date", "crc", "packed", "size", "name_length", "extra_length")
_IN_DIRECTORY = (*_IN_FRONT, "made_by", "comment_length", "disk", "internal", "external", "offset")
_AT_END = ("disk", "start_disk", "here", "entries", "size", "offset", "comment_length")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.differential", description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=int, default=_WHEELS, metavar="N")
    parser.add_argument("--seed", type=int, default=random.getrandbits(32), metavar="N")
    parser.add_argument("--findings", type=Path, default=Path("findings"), metavar="FOLDER")
    asked = parser.parse_args(words)
    print(f"seed {asked.seed}", flush=True)
    mutants = islice(mutated(random.Random(asked.seed)), asked.wheels)
    opened = found = 0
    while batch := [*islice(mutants, _BATCH)]:
        with tempfile.TemporaryDirectory() as folder:
            for data, why in differing(Path(folder), batch):
                if why:
                    found += 1
                    asked.findings.mkdir(parents=True, exist_ok=True)
                    path = asked.findings / f"{hashlib.sha256(data).hexdigest()}.whl"
                    path.write_bytes(data)
                    print(f"{path}: {why}", flush=True)
                opened += 1
    print(f"{asked.wheels} wheels, {opened} of them opened: {found} findings")
    return int(found > 0)


def mutated(chance: random.Random) -> Iterator[bytes]:
    """Wheels without end, each changed in one of the three ways."""
    ways: tuple[Callable[[random.Random], bytes], ...] = (_other_bytes, _other_fields, _other_files)
    while True:
        yield chance.choice(ways)(chance)


def differing(folder: Path, wheels: Sequence[bytes]) -> Iterator[tuple[bytes, str]]:
    """Those of *wheels* that vbuild opens, each with what installers do with it of which vbuild says nothing."""
    paths = {}
    for number, data in enumerate(wheels):
        path = folder / str(number) / NAME
        path.parent.mkdir()
        path.write_bytes(data)
        if _is_opened(path):
            paths[path] = data
        else:
            path.unlink()
    for path, outcomes in installer_outcomes(folder, paths).items():
        why = doubt(outcomes)
        yield paths[path], "" if not why or _is_told(path) else why


def doubt(outcomes: dict[str, Outcome]) -> str:
    """Which tool refused, which two installed different files, or which a file outside its folder; empty if none."""
    # uv says last why
    refusals = [
        f"{tool} refuses it: …{outcome.refusal[-_SHOWN:]}" for tool, outcome in outcomes.items() if outcome.refusal
    ]
    if refusals:
        return "; ".join(refusals)
    (first, files), *others = ((tool, outcome.files) for tool, outcome in outcomes.items())
    if different := [tool for tool, theirs in others if theirs != files]:
        return f"{first} and {', '.join(different)} install different files"
    outside = [path for path in files if path.startswith("outside")]
    return f"installed {', '.join(outside)}" if outside else ""


def _is_opened(path: Path) -> bool:
    try:
        with open_wheel(path, check=True):
            return True
    except VbuildError:
        return False


def _is_told(path: Path) -> bool:
    """Whether `verify` or `check` has something to say of the wheel at *path*."""
    try:
        if verify(path, jobs=1).findings:
            return True
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            copy = Path(folder, NAME)
            copy.write_bytes(path.read_bytes())
            return any(str(problem) not in _of_sound() for problem in check(Path(folder)).problems)
    except VbuildError:
        return True


def _of_sound(_said: set[str] = set()) -> set[str]:  # noqa: B006 - kept on purpose
    """What `check` says of a sound wheel."""
    if not _said:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, NAME).write_bytes(archive(_entries()))
            _said.update(map(str, check(Path(folder)).problems), {""})
    return _said


def _entries(changed: dict[str, bytes] | None = None) -> list[Entry]:
    """The members of a sound wheel, or of one with *changed* files and a RECORD that is true of them."""
    files = _FILES | {f"{INFO}/METADATA": _METADATA} | (changed or {})
    whole = everything(NAME, files)
    whole.setdefault(f"{INFO}/RECORD", record_of(whole, INFO).encode())
    return [Entry(path, data) for path, data in whole.items()]


def _other_bytes(chance: random.Random) -> bytes:
    return _changed(archive(_entries()), ZIP_WORDS, chance)


def _changed(data: bytes, words: Sequence[bytes], chance: random.Random) -> bytes:
    changes = [
        (chance.choice(WAYS), chance.random(), chance.random(), chance.choice((*words, chance.randbytes(2))))
        for _ in range(chance.randint(1, 3))
    ]
    return mutant(data, changes)


def _other_fields(chance: random.Random) -> bytes:
    """A wheel some of whose headers say something else, or have more in their comments and extra fields."""
    entries = _entries()
    end: dict[str, int] = {}
    comment = b""
    for _ in range(chance.randint(1, 2)):
        place = chance.randrange(len(entries))
        entry = entries[place]
        number = chance.choice((*_NUMBERS, chance.getrandbits(16)))
        match chance.randrange(6):
            case 0:
                entries[place] = replace(entry, local={**entry.local, **_lie(chance, _IN_FRONT, number)})
            case 1:
                entries[place] = replace(entry, central={**entry.central, **_lie(chance, _IN_DIRECTORY, number)})
            case 2:
                entries[place] = replace(entry, central={**entry.central, "comment": _piece(chance)})
            case 3:
                extra = number.to_bytes(4, "little")[:2] + chance.choice((b"\4\0", b"\0\0")) + _piece(chance)
                if chance.random() < 0.5:
                    entries[place] = replace(entry, local={**entry.local, "extra": extra})
                else:
                    entries[place] = replace(entry, central={**entry.central, "extra": extra})
            case 4:
                comment = _piece(chance)
            case _:
                end = _lie(chance, _AT_END, number)
    return archive(entries, end=end, comment=comment)


def _lie(chance: random.Random, names: Sequence[str], number: int) -> dict[str, int]:
    name = chance.choice(names)
    is_wide = name in {"crc", "packed", "size", "external", "offset"}
    return {name: number & (0xFFFFFFFF if is_wide else 0xFFFF)}


def _piece(chance: random.Random) -> bytes:
    return b"".join(chance.choice((*ZIP_WORDS, b"text", chance.randbytes(4))) for _ in range(chance.randint(1, 4)))


def _other_files(chance: random.Random) -> bytes:
    """A sound archive, one text of which is another."""
    name = chance.choice(_TEXTS)
    path = f"{INFO}/{name}"
    sound = {entry.name: entry.data for entry in _entries()}
    return archive(_entries({path: _changed(sound[path], _TEXT_WORDS, chance)}))


if __name__ == "__main__":
    sys.exit(main())
