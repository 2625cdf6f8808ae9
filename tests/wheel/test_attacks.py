"""What pip, uv or installer refuse, or read in two ways, vbuild refuses too, with one line.

``attacks.json`` has the message for each wheel of `tests.factories`, null if it is opened.
"""

import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from installer.sources import WheelFile

from tests.factories.archive_attacks import ENDS, HEADERS
from tests.factories.hostile_zips import (
    INFO,
    NAME,
    Entry,
    archive,
    basics,
    loosely_coded,
    overlapping,
    quoted_overlap,
    wheel_of,
)
from tests.factories.installer_outcomes import Outcome, installer_outcomes
from tests.factories.member_attacks import LISTED, MEMBERS, PATHS
from tests.factories.metadata_attacks import METADATA_ATTACKS
from vbuild.errors import WheelError
from vbuild.publishing.check import check
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.write import edit_wheel

ATTACKS = HEADERS | ENDS | MEMBERS | PATHS | LISTED | METADATA_ATTACKS
MESSAGES = json.loads(Path(__file__).with_name("attacks.json").read_text())
# what leaves no doubt: pip and uv install it, `vbuild verify` names it, and every rewriting mends it
_RECORD = f"{INFO}/RECORD: "
QUIRKS = {
    # zeroconf 0.47.1 for Windows
    "name twice, same content": "demo/a.py: first of 1 file twice in the archive, with the same contents",
    "folder entry in RECORD": f"{_RECORD}lists what is not in the archive: demo/",
    "RECORD lists twice": f"{_RECORD}lists twice: demo/a.py",
    "RECORD lists gone": f"{_RECORD}lists what is not in the archive: demo/gone.py",
    "RECORD lists backslash for slash": f"{_RECORD}has backslashes in the path of demo/a.py",
    # tools that add a file to a finished wheel leave its row or its hash out
    "RECORD lacks one": f"{_RECORD}does not list demo/a.py",
    "RECORD empty": f"{_RECORD}does not list demo/a.py and 3 others",
    # those of whey's first releases (github.com/repo-helper/whey/issues/14)
    "RECORD lacks itself": f"{_RECORD}does not list {INFO}/RECORD",
    "RECORD hashes itself": f"{_RECORD}has a hash or a size of itself, {INFO}/RECORD",
    "RECORD without hash": f"{_RECORD}has no hash of demo/a.py",
    # the specification of RECORD: "size is either the empty string, or file's size in bytes"
    "RECORD without size": f"{_RECORD}has no size of demo/a.py",
    "RECORD md5": f"{_RECORD}has a hash that is weaker than SHA-256, of demo/a.py",
    # all wheels of catboost 1.1 (github.com/catboost/catboost/issues/2282)
    "RECORD hash padded": f"{_RECORD}has hashes that are not unpadded base64url, of demo/a.py",
    "RECORD hash in hex": f"{_RECORD}has hashes that are not unpadded base64url, of demo/a.py",
    "RECORD with BOM": f"{_RECORD}begins with a byte order mark, before demo/a.py",
    "RECORD.jws listed": f"{_RECORD}lists the signature over it, {INFO}/RECORD.jws",
    "RECORD.p7s listed": f"{_RECORD}lists the signature over it, {INFO}/RECORD.p7s",
    "RECORD.jws listed without hash": f"{_RECORD}lists the signature over it, {INFO}/RECORD.jws",
    "RECORD.jws of the package": f"{_RECORD}does not list demo/RECORD.jws",
    "RECORD with size only": f"{_RECORD}has a hash or a size of itself, {INFO}/RECORD",
}
# pip and uv hold METADATA against the file name, and resolve what it asks for: so does `vbuild check`, and says this
_ANOTHER = "which the file name does not say; build it again; do not rename files by hand [metadata]"
CHECKED = {
    "METADATA name of another": f"error: {NAME}: its metadata is of other 1.0, {_ANOTHER}",
    "METADATA name twice, other first": f"error: {NAME}: its metadata is of other 1.0, {_ANOTHER}",
    "METADATA version of another": f"error: {NAME}: its metadata is of demo 2.0, {_ANOTHER}",
    "METADATA version missing": f"error: {NAME}: its metadata is of demo 2.1, {_ANOTHER}",
    "METADATA version of nothing": f"error: {NAME}: its metadata is of demo one, {_ANOTHER}",
    "METADATA requirement broken": (
        f"warning: {NAME}: Requires-Dist '!!' cannot be read: Expected package name at the start of dependency "
        "specifier; write it as installers read it (PEP 508) [requirement]"
    ),
}
MEMORY = 1 << 30
SECONDS = 10


def read(path: Path) -> dict[str, str]:
    """What vbuild reads in the wheel at *path*: the hash of each member."""
    with open_wheel(path, check=True) as source:
        return {member.path: hashlib.sha256(source.read(member)).hexdigest()[:16] for member in source.members}


def test_every_attack_has_its_answer() -> None:
    assert list(MESSAGES) == list(ATTACKS)


@pytest.mark.sampled(323)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_wheel_is_refused_in_one_line_or_opened(tmp_path: Path, attack: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(ATTACKS[attack])
    message = None
    try:
        read(path)
    except WheelError as refusal:
        message = str(refusal)
    assert message == (MESSAGES[attack] and f"{NAME}: {MESSAGES[attack]}")
    assert message is None or len(message.splitlines()) == 1


@pytest.mark.slow
def test_what_installers_refuse_or_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    """Two minutes: pip, installer, and uv from disk and by HTTP, on every one of them."""
    paths = {}
    for number, (attack, data) in enumerate(ATTACKS.items()):
        path = tmp_path / str(number) / NAME
        path.parent.mkdir()
        path.write_bytes(data)
        paths[path] = attack
    outcomes = {paths[path]: found for path, found in installer_outcomes(tmp_path, paths).items()}
    assert len(outcomes) == len(ATTACKS)
    for attack, found in outcomes.items():
        print(
            f"{attack:45}", *(f"{tool}: {'no' if found[tool].refusal else 'yes':4}" for tool in found), MESSAGES[attack]
        )
    doubtful = {attack for attack, found in outcomes.items() if _is_doubtful(found)}
    assert doubtful - QUIRKS.keys() - CHECKED.keys() <= {attack for attack in ATTACKS if MESSAGES[attack]}
    assert CHECKED.keys() <= doubtful
    for attack in QUIRKS:
        assert not any(outcomes[attack][tool].refusal for tool in ("pip", "uv", "uv by HTTP"))


@pytest.mark.parametrize("attack", QUIRKS)
def test_what_leaves_no_doubt_is_named_and_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attack: str
) -> None:
    path = tmp_path / NAME
    path.write_bytes(ATTACKS[attack])
    assert [str(finding) for finding in verify(path, jobs=1).findings] == [f"warning: {QUIRKS[attack]} [archive]"]
    with open_wheel(path) as source:
        copies = [edit_wheel(source, tmp_path / out, source.name, edits={}, verify=True) for out in ("out", "again")]
    assert caplog.messages == [f"vbuild: {NAME}: {QUIRKS[attack]}; mended in what is made from it"]
    assert read(copies[0]) == read(path) | {f"{INFO}/RECORD": read(copies[0])[f"{INFO}/RECORD"]}
    assert not verify(copies[0], jobs=1).findings
    with WheelFile.open(copies[0]) as judged:
        judged.validate_record()


@pytest.mark.parametrize("attack", CHECKED)
def test_metadata_that_contradicts_is_told_of_before_publishing(tmp_path: Path, attack: str) -> None:
    (tmp_path / NAME).write_bytes(ATTACKS[attack])
    assert CHECKED[attack] in [str(problem) for problem in check(tmp_path).problems]


def test_codes_that_zlib_refuses_are_not_vouched_for(tmp_path: Path) -> None:
    """In a member of a size that is inflated by isal elsewhere, which takes them."""
    code = b"x = 1\n" * 200_000
    path = tmp_path / NAME
    path.write_bytes(archive(wheel_of(Entry("demo/a.py", code, raw=loosely_coded(code)))))
    assert read(path)
    [found] = [finding for finding in verify(path).findings if finding.is_error]
    assert found.what.endswith("demo/a.py: damaged: its deflate stream is broken")
    assert "damaged: its deflate stream is broken" in "".join(map(str, check(tmp_path).problems))


def _is_doubtful(found: Mapping[str, Outcome]) -> bool:
    """Whether a tool refused, or two installed different files, or one a file outside of its folder."""
    first, *others = found.values()
    return (
        any(outcome.refusal for outcome in found.values())
        or any(outcome.files != first.files for outcome in others)
        or any(path.startswith("outside") for path in first.files)
    )


def bombs() -> dict[str, tuple[bytes, str | None]]:
    """Wheels of some kilobytes that claim to hold gigabytes, or that do, and the message for each."""
    names = [f"demo/{number}" for number in range(200)]
    quoted = overlapping(quoted_overlap(names, bytes(1 << 20)))
    huge = {"size": 0xFFFFFFFE}
    return {
        "quoted overlap": (archive([*quoted, *basics({})]), "demo/1: overlaps demo/0"),
        "true sizes": (archive(wheel_of(Entry("demo/a.bin", bytes(1 << 27)))), None),
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


@pytest.mark.nightly
@pytest.mark.parametrize("bomb", ["quoted overlap", "true sizes", "a declared size", "more than declared"])
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
    command = [sys.executable, "-B", "-c", script, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=limited)
    shown = f"{NAME}: {message}\n" if message else ""
    assert (done.stdout, done.stderr, done.returncode) == (shown, "", 0)
