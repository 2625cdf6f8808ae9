"""What pip, installer and uv write or refuse of a wheel, from disk and, for uv, from a server.

installed(folder, wheels) -> wheel -> tool -> Outcome
"""

import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.factories import installers
from tests.factories.ranges import serving

# seconds for one wheel
_PATIENCE = 30

UV = Path(sys.executable).with_name("uv")
# deep enough that what leaves it by a few folders is still found
INSIDE = "one/two/three/target"
# the line of a script that says what it runs
_SCRIPT = re.compile(rb"^from \S+ import \S+", re.MULTILINE)
# what installers write themselves
_OWN = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", ".lock"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one tool made of a wheel: its *refusal*, or the *files* it wrote, with their hashes."""

    refusal: str | None
    files: Mapping[str, str]


def installer_outcomes(folder: Path, wheels: Iterable[Path]) -> dict[Path, dict[str, Outcome]]:
    """What every tool makes of each of *wheels*, which lie alone in folders of their own below *folder*."""
    paths = list(wheels)
    outcomes: dict[Path, dict[str, Outcome]] = defaultdict(dict)
    command = [sys.executable, installers.__file__, INSIDE, *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        with serving(folder) as server, ThreadPoolExecutor(2) as executor:
            places: dict[str, Callable[[Path], str]] = {
                "uv": str,
                "uv by HTTP": lambda path: f"{server.url}/{path.relative_to(folder)}",
            }
            for tool, place in places.items():
                refusals = executor.map(partial(_by_uv, tool=tool, place=place), paths)
                for path, words in zip(paths, refusals, strict=True):
                    outcomes[path][tool] = Outcome(words, _written(path.parent / tool))
        for line in child.stdout or ():
            wheel, tool, words = json.loads(line)
            outcomes[Path(wheel)][tool] = Outcome(words, _written(Path(wheel).parent / tool))
    assert child.returncode == 0
    return outcomes


def _by_uv(path: Path, *, tool: str, place: Callable[[Path], str]) -> str | None:
    """Why uv refused it, or None if it did not."""
    target = path.parent / tool / INSIDE
    source = place(path)
    # a cache, for to ask Python what it is takes longer than the rest; no two wheels have one path, and none is taken
    # from it
    options = ["--no-deps", "--no-index", "--cache-dir", path.parent.parent / "uv", "--no-config"]
    options += ["--target", target, "--python", sys.executable]
    command = [*map(str, (UV, "pip", "install", *options)), f"demo @ {source}" if "://" in source else source]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_PATIENCE)
    return " ".join(done.stderr.split()) if done.returncode else None


def _written(folder: Path) -> dict[str, str]:
    """What lies below *folder*, by path from where it should be, with its hash or, of a link, where it leads."""
    target = folder / INSIDE
    return {
        _from(target, path): _content(path)
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and path.name not in _OWN and "__pycache__" not in path.parts
    }


def _from(target: Path, path: Path) -> str:
    return path.relative_to(target).as_posix() if path.is_relative_to(target) else f"outside: {path.name}"


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    data = path.read_bytes()
    # every installer writes scripts in words of its own
    if data.startswith(b"#!") and (script := _SCRIPT.search(data)):
        return script[0].decode()
    return hashlib.sha256(data).hexdigest()[:16]
