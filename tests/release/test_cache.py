"""Finished work kept from run to run: whole or not there, whatever happens to it in between."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from vbuild.build.identity import BuildKeys
from vbuild.build.watching import Looked
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.model import Check, Verify
from vbuild.recipe.target import Target
from vbuild.release.cache import BuildCache, BuildKind, product_key

KEY = "0123456789abcdef" * 4
NAME = "demo-1.0-cp312-cp312-linux_x86_64.whl"
RECORD = {"seconds": 1.5, "overrides": [{"program": "gcc", "removed": ["-march=native"]}], "order": {"b": 1, "a": 2}}


def wheel(folder: Path, text: str = "a wheel") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(text)
    return folder / NAME


@pytest.fixture
def store(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "store")


def entry(store: BuildCache, key: str = KEY) -> Path:
    return store.root / "builds" / key


def test_what_is_kept_comes_back(store: BuildCache, tmp_path: Path) -> None:
    assert store.taken(BuildKind.BUILD, KEY, tmp_path / "into") is None
    assert store.keep(BuildKind.BUILD, KEY, wheel(tmp_path), RECORD) is None
    kept = store.taken(BuildKind.BUILD, KEY, tmp_path / "into")
    assert kept
    assert (kept.wheel, kept.wheel.read_text()) == (tmp_path / "into" / NAME, "a wheel")
    assert kept.record == RECORD
    assert json.dumps(kept.record) == json.dumps(RECORD)  # in its order, too
    assert store.taken(BuildKind.PRODUCT, KEY, tmp_path / "into") is None
    assert not list(store.root.glob("**/.*part"))


def test_a_build_is_an_earlier_one_where_that_finds_what_it_found_then(store: BuildCache, tmp_path: Path) -> None:
    header = tmp_path / "a.h"
    header.write_text("int a;")
    keys = BuildKeys("one", "bare", "")
    assert store.key(keys) == "one"
    looked = Looked({str(header): "", str(tmp_path / "b.h"): ""}, {}, {}).now("")
    store.keep_looked("bare", "one", looked)
    assert store.key(replace(keys, whole="two")) == "one"  # something else is new on this machine
    assert replace(store, fresh=True).key(replace(keys, whole="two")) == "two"
    assert store.key(BuildKeys("two", "other", "")) == "two"
    (tmp_path / "b.h").write_text("")
    assert store.key(replace(keys, whole="two")) == "two"
    other = store.key(keys)  # it has a file that the whole key knows nothing of
    assert other != "one"
    store.keep_looked("bare", other, looked.now(""))
    assert store.key(keys) == other
    (tmp_path / "b.h").unlink()
    assert store.key(keys) == "one"
    (store.root / "looked" / "bare").write_text("{")
    assert store.key(keys) == "one" != store.key(replace(keys, whole="two"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda folder: (folder / NAME).write_text("a whe"),
    "emptied by a power failure": lambda folder: [path.write_text("") for path in folder.iterdir()],
    "no wheel": lambda folder: (folder / NAME).unlink(),
    "no entry": lambda folder: (folder / "entry.json").unlink(),
    "another record": lambda folder: (folder / "entry.json").write_text(
        (folder / "entry.json").read_text().replace("1.5", "2.5")
    ),
    "no object": lambda folder: (folder / "entry.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_dropped_and_can_be_kept_again(
    damage: Callable[[Path], object], store: BuildCache, tmp_path: Path
) -> None:
    store.keep(BuildKind.BUILD, KEY, wheel(tmp_path / "made"), RECORD)
    damage(entry(store))
    assert store.taken(BuildKind.BUILD, KEY, tmp_path / "into") is None
    assert not entry(store).exists()
    assert not (tmp_path / "into" / NAME).exists()
    store.keep(BuildKind.BUILD, KEY, wheel(tmp_path / "again"), RECORD)
    assert store.taken(BuildKind.BUILD, KEY, tmp_path / "into")


def test_what_a_user_does_to_a_wheel_never_comes_back(store: BuildCache, tmp_path: Path) -> None:
    mine = wheel(tmp_path / "dist")
    store.keep(BuildKind.BUILD, KEY, mine, RECORD)
    mine.write_text("edited")
    assert store.taken(BuildKind.BUILD, KEY, tmp_path / "into") is None


def test_fresh_passes_over_what_is_there_and_replaces_it(store: BuildCache, tmp_path: Path) -> None:
    store.keep(BuildKind.BUILD, KEY, wheel(tmp_path / "old", "old"), RECORD)
    fresh = replace(store, fresh=True)
    assert fresh.taken(BuildKind.BUILD, KEY, tmp_path / "into") is None
    fresh.keep(BuildKind.BUILD, KEY, wheel(tmp_path / "new", "new"), RECORD)
    kept = store.taken(BuildKind.BUILD, KEY, tmp_path / "into")
    assert kept
    assert kept.wheel.read_text() == "new"


KEEP = """
import sys
from pathlib import Path
from vbuild.files.cache import Cache, Part
from vbuild.release.cache import BuildCache, BuildKind
store, folder, key = BuildCache(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
for number in range(100):
    wheel = folder / "NAME"
    wheel.unlink(missing_ok=True)
    wheel.write_text("x" * 100_000 + str(number))
    note = store.keep(BuildKind.BUILD, key, wheel, {"number": number})
    kept = store.taken(BuildKind.BUILD, key, folder / "into")
    assert note is None, note
    assert kept is None or kept.wheel.read_text().endswith("x" + str(kept.record["number"])), kept
    if number % 10 == 0:
        Cache(Part.BUILDS, store.root).sweep(most=0)
""".replace("NAME", NAME)


@pytest.mark.nightly
def test_processes_at_work_on_one_key_do_not_disturb_each_other(store: BuildCache, tmp_path: Path) -> None:
    processes = []
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-c", KEEP, str(store.root), str(tmp_path / name), KEY]
        processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, "")
    assert not list(store.root.glob("**/.*part"))


@pytest.mark.nightly
def test_a_killed_run_leaves_a_whole_entry_or_none(store: BuildCache, tmp_path: Path) -> None:
    for pause in (0.15, 0.2, 0.25, 0.3):
        command = [sys.executable, "-c", KEEP, str(store.root), str(tmp_path), KEY]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            time.sleep(pause)
            process.kill()
        kept = store.taken(BuildKind.BUILD, KEY, tmp_path / "look")
        assert kept is None or kept.wheel.read_text().endswith(f"x{kept.record['number']}")


FULL = """
import resource, signal, sys
from pathlib import Path
from vbuild.files.cache import Cache, Part
from vbuild.release.cache import BuildCache, BuildKind
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
note = BuildCache(Path(sys.argv[1])).keep(BuildKind.BUILD, "key", Path(sys.argv[2]), {"a": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(note)
"""


def test_a_disk_that_is_full_is_a_note_and_leaves_nothing(store: BuildCache, tmp_path: Path) -> None:
    command = [sys.executable, "-B", "-c", FULL, str(store.root), str(wheel(tmp_path))]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{NAME}: not kept in {store.root}: File too large\n"
    assert [path for path in store.root.rglob("*") if path.is_file() and path.parent.name != ".locks"] == []


def test_a_store_that_cannot_be_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = BuildCache(tmp_path / "file" / "store")
    note = store.keep(BuildKind.BUILD, KEY, wheel(tmp_path), RECORD)
    assert note == f"{NAME}: not kept in {store.root}: Not a directory"
    assert store.taken(BuildKind.BUILD, KEY, tmp_path / "into") is None


def test_no_room_for_the_wheel_is_no_reason_to_drop_the_entry(store: BuildCache, tmp_path: Path) -> None:
    store.keep(BuildKind.BUILD, KEY, wheel(tmp_path), RECORD)
    (tmp_path / "file").write_text("")
    assert store.taken(BuildKind.BUILD, KEY, tmp_path / "file" / "into") is None
    assert store.taken(BuildKind.BUILD, KEY, tmp_path / "into")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no second file system")  # noqa: S108
def test_a_wheel_on_another_file_system_is_copied(store: BuildCache, tmp_path: Path) -> None:
    folder = Path("/dev/shm") / f"vbuild-test-{os.getpid()}"  # noqa: S108
    try:
        store.keep(BuildKind.BUILD, KEY, wheel(folder), RECORD)
        kept = store.taken(BuildKind.BUILD, KEY, folder / "into")
        assert kept
        assert kept.wheel.read_text() == "a wheel"
    finally:
        shutil.rmtree(folder)
    assert store.taken(BuildKind.BUILD, KEY, tmp_path / "into")


TARGET = Target("x86_64_v3", "3.12", Cpu.parse("x86-64-v3"), ("x86_64 :: level :: v3",))


def key(build: str = KEY, target: Target = TARGET, **changes: object) -> str:
    given = {
        "document": b"{}",
        "verify": Verify(),
        "check": Check("python -c 'import demo'"),
        "baseline": KEY,
        "cpu": Cpu.parse("x86-64-v4"),
        "emulator": None,
    }
    return product_key(build, target, **(given | changes))  # type: ignore[arg-type]


def test_a_product_depends_on_all_that_is_done_to_a_build() -> None:
    keys = [
        key(),
        key("another"),
        key(target=replace(TARGET, label="fast")),
        key(target=replace(TARGET, properties=())),
        key(target=replace(TARGET, gpus=GpuList.parse("80"))),
        key(document=None),
        key(document=b"[]"),
        key(verify=Verify(("kernel",))),
        key(check=Check()),
        key(check=Check("python -c 'import demo'", ("numpy",))),
        key(baseline=None),
        key(emulator="qemu-x86_64 7.2"),
        key(cpu=None),
        key(cpu=Cpu.parse("x86-64")),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == key()
