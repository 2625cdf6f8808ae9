"""What figures read: published wheels, and what is made for them; each there once, for as long as it is needed.

with Inputs.of(figures, cache=None) as inputs:
    paths = inputs.prepared(figure, vbuild)      # fetched or made, where it is not there
    ...
    inputs.finished(figure)                      # what no figure after it needs is removed
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from tests.benchmarks.figure import Broken, Figure, Input, Installed, Made, Unavailable, Wheel

_NAMES = (*(f"manylinux_2_{minor}" for minor in range(39, 4, -1)), "manylinux2014", "manylinux2010", "manylinux1")
PLATFORMS = [f"{name}_x86_64" for name in _NAMES]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of *figures* in *folder*, wheels in *wheels*; *kept* says whether wheels stay."""

    folder: Path
    wheels: Path
    kept: bool
    left: Counter[Input]
    paths: dict[tuple[Input, Installed | None], Path] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def of(cls, figures: Iterable[Figure], *, cache: Path | None) -> Iterator["Inputs"]:
        """The inputs of *figures*, wheels in *cache* if one is given; all else is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="vbuild-benchmarks-") as name:
            wheels = cache or Path(name) / "wheels"
            wheels.mkdir(parents=True, exist_ok=True)
            left = Counter(one for figure in figures for one in needed(figure))
            yield cls(Path(name), wheels.resolve(), cache is not None, left)

    def prepared(self, figure: Figure, vbuild: Installed, *, with_peer: bool) -> Mapping[Input, Path]:
        """Where the inputs of *figure* are, and of its peer. Raises Unavailable, also for a missing tool, or Broken."""
        if missing := [tool for tool in figure.tools if not shutil.which(tool)]:
            raise Unavailable(f"not installed: {', '.join(missing)}")
        return {one: self._path(one, vbuild) for one in needed(figure, with_peer=with_peer)}

    def finished(self, figure: Figure) -> None:
        """Remove what no figure needs that comes after *figure*."""
        for one in needed(figure):
            self.left[one] -= 1
            if self.left[one] or (self.kept and isinstance(one, Wheel)):
                continue
            for key in [key for key in self.paths if key[0] == one]:
                path = self.paths.pop(key)
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def _path(self, wanted: Input, vbuild: Installed) -> Path:
        key = (wanted, vbuild if isinstance(wanted, Made) and wanted.by_vbuild else None)
        if key not in self.paths:
            self.paths[key] = fetched(wanted, self.wheels) if isinstance(wanted, Wheel) else self._made(wanted, vbuild)
        return self.paths[key]

    def _made(self, wanted: Made, vbuild: Installed) -> Path:
        others = [self._path(other, vbuild) for other in wanted.others]
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        # apart: the peak of a process counts from its fork, with all that its parent has in memory
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as maker:
            first = (vbuild,) if wanted.by_vbuild else ()
            try:
                maker.submit(wanted.make, folder, *first, *wanted.arguments, *others).result()
            except Unavailable:
                raise
            except Exception as error:  # whatever the function raised, in its own process
                raise Broken(f"{wanted.make.__name__}: {last_line(str(error))}") from error
        return folder


def fetched(wheel: Wheel, folder: Path) -> Path:
    """The *wheel* in *folder*, where an earlier run may have left it. Raises Unavailable if pip cannot fetch it."""
    if not (found := _lying_in(folder, wheel)):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        tags = ["--python-version", wheel.python]
        tags += [word for one in PLATFORMS for word in ("--platform", one)]
        command = [*pip, *tags, "--dest", str(folder), wheel.requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (found := _lying_in(folder, wheel)):
            raise Unavailable(f"pip could not fetch {wheel.requirement}: {last_line(done.stderr)}")
    return found


def _lying_in(folder: Path, wheel: Wheel) -> Path | None:
    name, _, version = wheel.requirement.partition("==")
    major, minor = map(int, wheel.python.split("."))
    tags = {
        *cpython_tags((major, minor), platforms=PLATFORMS),
        *compatible_tags((major, minor), f"cp{major}{minor}", PLATFORMS),
    }
    for path in sorted(folder.glob("*.whl")):
        project, found, _, its_tags = parse_wheel_filename(path.name)
        if project == canonicalize_name(name) and str(found) == version and its_tags & tags:
            return path
    return None


def needed(figure: Figure, *, with_peer: bool = True) -> list[Input]:
    """The inputs of *figure* and of its peer, and what these are made of."""
    found: dict[Input, None] = {}
    waiting = [*figure.inputs, *(figure.peer.inputs if figure.peer and with_peer else ())]
    while waiting:
        one = waiting.pop()
        found[one] = None
        waiting += one.others if isinstance(one, Made) else ()
    return list(found)


def ran(*command: str | Path, folder: Path | None = None, **variables: str) -> str:
    """What *command* prints. Raises Broken if it fails."""
    arguments = list(map(str, command))
    done = subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    if done.returncode:
        raise Broken(f"{shown(arguments)}: exit {done.returncode}: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def shown(arguments: Iterable[str]) -> str:
    """A command in a line, without folders and long scripts."""
    short = [one.rpartition("/")[2] if one.startswith("/") else one for one in arguments]
    return " ".join(one if len(one) < 60 and "\n" not in one else "…" for one in short[:6])


def last_line(text: str) -> str:
    """The last line of what a program printed that has something in it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
