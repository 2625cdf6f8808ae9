"""Change the code of rooms in hundreds of small ways, and name the changes that none of their tests notices.

    python -m tests.mutants [--again] [--least SHARE] [--processes N] [ROOM ...]

``rooms.toml`` has the modules and tests of each room, ``equivalent.toml`` the changes that make no difference, each
with the reason: they do not count. The words of refusals are not changed, nor functions with a decorator (mutmut leaves
them), nor what makes a class, which runs before a mutant is chosen. The exit status is 1 where fewer than *SHARE* of
100 changes of a room are noticed. ``--again`` tries those that were left the last time, after tests were added.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tests.mutants.change import Change, Equivalents

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_ROOMS = tomllib.loads((_HERE / "rooms.toml").read_text())
_PYTEST = ["-n0", "-o", "addopts=--import-mode=importlib", "-m", "not slow and not nightly and not network"]
# mutmut: a test failed, or pytest itself did; the mutant ran for too long
_FAILED = {1, 3}
_NOTICED = _FAILED | {24, -24, 36, 152, 255}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"{', '.join(_ROOMS)}; all where none is named")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--least", type=float, default=95, metavar="SHARE")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.rooms if name not in _ROOMS]:
        parser.error(f"no room {unknown[0]!r}; there are {', '.join(_ROOMS)}")
    shares = [tried(room, asked.processes, again=asked.again) for room in asked.rooms or _ROOMS]
    return int(min(shares) < asked.least)


def tried(room: str, processes: int, *, again: bool) -> float:
    """Run *room*, print what was not noticed, and return how many of 100 changes were."""
    folder = _ROOT / "mutants" / room
    started = time.monotonic()
    if not again:
        shutil.rmtree(folder, ignore_errors=True)
    lay_out(folder, _ROOMS[room])
    run(folder, [*undecided(folder)] if again else [], processes)
    return told(folder, room, (time.monotonic() - started) / 60)


def lay_out(folder: Path, room: dict[str, list[str]]) -> None:
    """Make *folder* a project for mutmut: links to the code and its tests, and settings for *room*."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("vbuild", "tests", "recipes", "docs"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(_ROOT / name)
    lines = [
        "[tool.mutmut]",
        'source_paths = ["vbuild"]',
        'also_copy = ["tests", "recipes", "docs"]',
        "timeout_constant = 60.0",
        "timeout_multiplier = 2.0",
        f"only_mutate = {json.dumps(room['modules'])}",
        r"do_not_mutate_patterns = ['^\s*raise \w+\(', '^\s*cls\.layout = ']",
        f"pytest_add_cli_args_test_selection = {json.dumps(room['tests'])}",
        f"pytest_add_cli_args = {json.dumps(_PYTEST)}",
    ]
    (folder / "pyproject.toml").write_text((_ROOT / "pyproject.toml").read_text() + "\n" + "\n".join(lines) + "\n")


def run(folder: Path, names: list[str], processes: int) -> None:
    mutmut = (sys.executable, _HERE / "quickest_first.py")
    subprocess.run([*mutmut, "run", "--max-children", str(processes), *names], cwd=folder, check=True)


def undecided(folder: Path) -> Iterator[str]:
    """Give the names of the mutants that are not equivalent and that no test failed for.

    On a machine that had other work to do, what took too long may only have waited.
    """
    equivalents = Equivalents.read(_HERE / "equivalent.toml")
    for name, path in others(folder, _FAILED):
        if Change.of(folder, name, path) not in equivalents:
            yield name


def others(folder: Path, known: Collection[int]) -> Iterator[tuple[str, str]]:
    """Give the name of each mutant whose exit code is not one of *known*, and the path of its module."""
    for path, codes in results(folder).items():
        yield from ((name, path) for name, code in codes.items() if code not in known)


def results(folder: Path) -> dict[str, dict[str, int | None]]:
    """Return mutmut's exit codes by mutant, of each module."""
    stated = sorted((folder / "mutants" / "vbuild").rglob("*.py.meta"))
    return {
        str(path.relative_to(folder / "mutants").with_suffix("")): json.loads(path.read_text())["exit_code_by_key"]
        for path in stated
    }


def told(folder: Path, room: str, minutes: float) -> float:
    """Print what was not noticed in *room*, and the figures; gives how many of 100 were."""
    equivalents = Equivalents.read(_HERE / "equivalent.toml")
    all_of_them = Counter({path: len(codes) for path, codes in results(folder).items()})
    left, alike = Counter[str](), Counter[str]()
    for name, path in others(folder, _NOTICED):
        change = Change.of(folder, name, path)
        if change in equivalents:
            alike[path] += 1
        else:
            left[path] += 1
            print(change, end="\n\n")
    for path in sorted(all_of_them):
        print(f"{path}: {all_of_them[path]} mutants, {alike[path]} equivalent, {left[path]} not noticed")
    total = all_of_them.total() - alike.total()
    noticed = total - left.total()
    share = 100 * noticed / total
    print(f"{room}: {noticed} of {total} noticed, {share:.1f} %; {alike.total()} equivalent; {minutes:.0f} minutes")
    return share


if __name__ == "__main__":
    sys.exit(main())
