"""`vbuild split` as a user meets it: a plan to read, JSON, one line where it refuses, and nothing left behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories import commands
from tests.factories.cuda_packages import all_packages, calling_libcufft, libcufft, libnvjitlink, serving_packages
from tests.factories.extensions import library, module
from tests.factories.ranges import Serving
from tests.factories.repaired_wheels import LINUX, hashed, release
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from tests.factories.workdir import file_digests

pytestmark = needs("gcc", "ldd")

WIDTH = 80
VERSION = "cp{}{}".format(*sys.version_info)
NAMES = tuple(f"demo-1.0-{python}-{python}-{LINUX}.whl" for python in (VERSION, "cp39"))
PURE = "pure-1.0-py3-none-any.whl"
COUNT = library("libcount.so.1", source="int count(void) { return 42; }")
SHARED = {"libcount.so.1": COUNT}
FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "from demo import _c\n",
    "demo/_c.so": module("libcount.so.1", source="int count(void); int answer(void) { return count(); }"),
}
CUDA = {"libcufft.so.11": libcufft(), "libnvJitLink.so.12": libnvjitlink()}


@pytest.fixture(scope="module")
def cuda_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("cuda_index")
    with serving_packages(folder, *all_packages(folder / "made")) as server:
        yield server


@pytest.fixture
def fat(tmp_path: Path) -> Path:
    """A folder with wheels that share a library, one that has NVIDIA's, and what else a user may name by mistake."""
    release(tmp_path / "in", FILES, SHARED, names=NAMES)
    wheel(tmp_path / "in", PURE, {"pure.py": "x = 1\n"})
    release(tmp_path / "cuda", {"demo/_c.so": calling_libcufft()}, CUDA, names=NAMES[:1])
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    return tmp_path


def vbuild(*arguments: object, folder: Path, index: Serving | None = None) -> subprocess.CompletedProcess[str]:
    """What comes of ``vbuild split`` with *index* as the only place where packages are."""
    places = {"PIP_INDEX_URL": index.url} if index else {"PIP_NO_INDEX": "1"}
    others: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("PIP_", "UV_"))}
    environment = {**others, "PIP_CONFIG_FILE": os.devnull, **places}
    return commands.vbuild("split", *arguments, folder=folder, **environment)


def plain(text: str) -> list[str]:
    """The lines of *text* without what is other in each run or on each machine: sizes, versions of contents."""
    text = re.sub(r"\d+\.\d+ (MB|->)", r"N \1", text)
    return text.splitlines()


def test_the_account_of_a_release_is_a_plan_to_read(fat: Path) -> None:
    ran = vbuild("in", "-o", "thin", "--min-size", 0, folder=fat)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert max(len(line) for line in ran.stdout.splitlines() if " " in line.strip()) <= WIDTH
    said = plain(ran.stdout)
    assert said[0] == "3 wheels and 1 new wheel: N -> N MB"
    assert "N MB moved to demo-libs==1.0" in said
    assert f"  {hashed('libcount.so.1', COUNT)} in 2 wheels" in said
    assert f"demo_libs-1.0-py3-none-{LINUX}.whl" in said
    for name in NAMES:
        account = said[said.index(name) :]
        assert account[1].startswith("  N -> N MB, unpacked N -> N MB")
        assert account[2] == "  requires demo-libs==1.0"
        assert account[3] == "  demo/_c.so: RPATH $ORIGIN/../demo_libs/lib"
    assert said[said.index(PURE) + 1] == "  unchanged: no library leaves it"
    wheel(fat / "in", "demo-1.0-cp311-cp311-macosx_11_0_arm64.whl", {"demo/x.txt": "x"})
    wheel(fat / "in", "demo-1.0-cp311-cp311-win_amd64.whl", {"demo/x.txt": "x"})
    said = plain(vbuild("in", "--dry-run", "--min-size", 0, folder=fat).stdout)
    assert said[1] == "N MB are 2 wheels for Windows or macOS, whose libraries stay where they are"


def test_what_is_replaced_says_by_what_and_how_it_is_proved(fat: Path, cuda_index: Serving) -> None:
    ran = vbuild("cuda", "-o", "thin", folder=fat, index=cuda_index)
    assert (ran.returncode, ran.stderr) == (0, "")
    said = plain(ran.stdout)
    place = said.index("N MB replaced by nvidia-cufft-cu12==11.2.1.3")
    assert said[place + 1] == f"  {hashed('libcufft.so.11', libcufft())} in 1 wheel (sections)"
    assert "RPATH $ORIGIN/../nvidia/cufft/lib:$ORIGIN/../nvidia/nvjitlink/lib" in " ".join(ran.stdout.split())


def test_a_glob_that_names_no_library_is_told(fat: Path) -> None:
    ran = vbuild("in", "--dry-run", "--keep", "libcount*", "--move", "libcuont*", "--json", folder=fat)
    hint = "no bundled library is called so; --keep and --move take globs, as in 'libfoo*'"
    assert (ran.returncode, ran.stderr) == (0, f"warning: 'libcuont*': {hint}\n")
    assert json.loads(ran.stdout)["libraries"]


def test_json_is_all_there_is_and_a_dry_run_says_the_same(fat: Path) -> None:
    before = file_digests(fat)
    dry = vbuild("in", "--dry-run", "--min-size", 0, "--json", folder=fat)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert file_digests(fat) == before
    wet = vbuild("in", "-o", "thin", "--min-size", 0, "--json", folder=fat)
    told, planned = json.loads(wet.stdout), json.loads(dry.stdout)
    assert told["libraries"] == planned["libraries"]
    assert planned["after"] == {"packed_bytes": None}
    sizes = {path.name: path.stat().st_size for path in (fat / "thin").iterdir()}
    assert {one["wheel"]: one["after"]["packed_bytes"] for one in told["wheels"]}.items() <= sizes.items()
    assert told["after"]["packed_bytes"] == sum(sizes.values())
    assert told["checked"] == []


@pytest.mark.nightly
def test_results_that_do_not_work_are_status_1(tmp_path: Path) -> None:
    broken: dict[str, bytes | str] = {
        "demo/__init__.py": "from demo import _c\n",
        "demo/_c.so": module("libnowhere.so.1"),
    }
    wheel(tmp_path / "in", NAMES[0], broken)
    ran = vbuild("in", "--check", folder=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr == f"vbuild: {NAMES[0]}: does not work after installation\n"
    assert "libnowhere.so.1" in ran.stdout


REFUSALS = [
    (("empty", "-o", "out"), "empty: no wheels in this folder; expected files that end in .whl"),
    (("in", "-o", "in"), "would overwrite the wheel it is made from; choose another folder"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSALS, ids=lambda value: str(value[0]))
def test_what_split_refuses_is_one_line_and_leaves_nothing(fat: Path, arguments: tuple[str, ...], said: str) -> None:
    before = file_digests(fat)
    ran = vbuild(*arguments, folder=fat)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("vbuild: ")
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert file_digests(fat) == before


@pytest.mark.nightly
def test_without_network_there_is_one_line(fat: Path) -> None:
    ran = vbuild("cuda", "-o", "thin", folder=fat, index=Serving(url="http://127.0.0.1:1"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.fullmatch(r"vbuild: .*nvidia-\S+: .*127\.0\.0\.1.*\n", ran.stderr)
    assert not (fat / "thin").exists()


USAGE = [
    (("in",), "expected --output-dir FOLDER, --dry-run or, for wheels that are split, --check"),
    (("in", "-o", "out", "--cuda", "twelve"), "no CUDA version 'twelve'; expected a major, or a major and a minor"),
    (("in", "-o", "out", "--libs", "a/b"), "no project name 'a/b'; expected letters and digits"),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE, ids=lambda value: str(value[-1]))
def test_usage_mistakes_are_status_2(fat: Path, arguments: tuple[str, ...], said: str) -> None:
    before = file_digests(fat)
    ran = vbuild(*arguments, folder=fat)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert said in " ".join(ran.stderr.split())
    assert file_digests(fat) == before
