"""What pip, uv or installer refuse, or read in two ways, vbuild refuses too, with one line.

``attacks.json`` has what is said of each wheel of `tests.factories`, null where it is opened.
"""

import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.archiveattacks import ENDS, HEADERS
from tests.factories.hostilezips import NAME, Entry, archive, basics, overlapping, quoted_overlap, wheel_of
from tests.factories.installing import Outcome, installed
from tests.factories.memberattacks import LISTED, MEMBERS, PATHS
from vbuild.errors import WheelError
from vbuild.wheel.archive import open_wheel

ATTACKS = HEADERS | ENDS | MEMBERS | PATHS | LISTED
SAID = json.loads(Path(__file__).with_name("attacks.json").read_text())
# what installer or pip alone refuses of how RECORD is written, and what every rewriting of vbuild mends
MENDED = {
    "RECORD hash padded",
    "RECORD hashes itself",
    "RECORD lacks itself",
    "RECORD lists blank line",
    "RECORD without size",
}
# pip reads it after it installed all, and wants a version in it
BESIDE = {"egg-info"}
MEMORY = 1 << 30
SECONDS = 10


def read(path: Path) -> dict[str, str]:
    """What vbuild reads in the wheel at *path*: the hash of each member."""
    with open_wheel(path, check=True) as source:
        return {member.path: hashlib.sha256(source.read(member)).hexdigest()[:16] for member in source.members}


def test_every_attack_has_its_answer() -> None:
    assert list(SAID) == list(ATTACKS)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_wheel_is_refused_in_one_line_or_opened(tmp_path: Path, attack: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(ATTACKS[attack])
    said = None
    try:
        read(path)
    except WheelError as refusal:
        said = str(refusal)
    assert said == (SAID[attack] and f"{NAME}: {SAID[attack]}")
    assert said is None or len(said.splitlines()) == 1


@pytest.mark.slow
def test_what_installers_refuse_or_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    """Three minutes: pip, installer, and uv from disk and by HTTP, on every one of them."""
    paths = {}
    for number, (attack, data) in enumerate(ATTACKS.items()):
        path = tmp_path / str(number) / NAME
        path.parent.mkdir()
        path.write_bytes(data)
        paths[path] = attack
    outcomes = {paths[path]: found for path, found in installed(tmp_path, paths).items()}
    assert len(outcomes) == len(ATTACKS)
    for attack, found in outcomes.items():
        print(f"{attack:45}", *(f"{tool}: {'no' if found[tool].said else 'yes':4}" for tool in found), SAID[attack])
    doubtful = {attack for attack, found in outcomes.items() if _is_doubtful(found)}
    assert doubtful - MENDED - BESIDE <= {attack for attack in ATTACKS if SAID[attack]}


def _is_doubtful(found: Mapping[str, Outcome]) -> bool:
    """Whether a tool refused, or two installed different files, or one a file outside of its folder."""
    first, *others = found.values()
    return (
        any(outcome.said for outcome in found.values())
        or any(outcome.files != first.files for outcome in others)
        or any(path.startswith("outside") for path in first.files)
    )


def bombs() -> dict[str, tuple[bytes, str]]:
    """Wheels of some kilobytes that claim to hold gigabytes, or that do, with what is said of each."""
    names = [f"demo/{number}" for number in range(200)]
    quoted = overlapping(quoted_overlap(names, bytes(1 << 20)))
    huge = {"size": 0xFFFFFFFE}
    return {
        "quoted overlap": (archive([*quoted, *basics({})]), "demo/1: overlaps demo/0"),
        "a declared size": (
            archive(wheel_of(Entry("demo/a.py", b"", local=huge, central=huge))),
            "demo/a.py: declares 4294967294 bytes, more than 2 can inflate to",
        ),
        "more than declared": (
            archive(
                wheel_of(
                    Entry("demo/a.py", bytes(1 << 26), local={"size": 9}, central={"size": 9}),
                    files={"demo/a.py": bytes(9)},
                )
            ),
            "demo/a.py: inflates to more than the 9 bytes it declares",
        ),
    }


@pytest.mark.parametrize("bomb", ["quoted overlap", "a declared size", "more than declared"])
def test_a_small_wheel_takes_neither_memory_nor_time(tmp_path: Path, bomb: str) -> None:
    data, message = bombs()[bomb]
    path = tmp_path / NAME
    path.write_bytes(data)
    assert len(data) < 200_000

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    script = (
        "import sys, pathlib; from vbuild.errors import VbuildError; from vbuild.wheel.archive import open_wheel\n"
        "try:\n with open_wheel(pathlib.Path(sys.argv[1]), check=True): pass\n"
        "except VbuildError as error: print(error)"
    )
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=limited)
    assert (done.stdout, done.stderr, done.returncode) == (f"{NAME}: {message}\n", "", 0)
