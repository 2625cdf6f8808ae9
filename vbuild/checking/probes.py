"""Try a file, or a package, in a process of its own that knows nothing but where it is.

    opened(path)      dlopen with RTLD_NOW, as for an extension module: every symbol and version has to be there
    imported(name)    import, as a user does it

What the process has in memory afterwards says where the libraries came from, whatever way they were found.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 300.0
_ABSENT = re.compile(r"(?P<name>[^\s:]+): cannot open shared object file")
# what dlopen says of a library that is there, and does not have what was linked against
_UNRESOLVED = re.compile(
    r"undefined symbol: .+|version `.+' not found|cannot open shared object file|symbol .+ not found"
)
_VERSIONED = re.compile(r"undefined symbol: .+, version |version `.+' not found")

_PROBE = """
import json, os, sys

def mapped():
    with open("/proc/self/maps") as lines:
        rows = [line.rstrip().split(None, 5) for line in lines]
    return {row[5] for row in rows if len(row) == 6 and "x" in row[1] and row[5].startswith("/")}

def causes(error):
    found, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (ImportError, OSError)):
            found.append(str(error))
        error = error.__cause__ or error.__context__
    return found

answer, path, *modules = sys.argv[1:]
told = {"error": None, "causes": [], "mapped": []}
try:
    for module in modules:
        __import__(module)
    if path:
        import ctypes
        before = mapped()
        ctypes.CDLL(path, os.RTLD_NOW)
        told["mapped"] = sorted(mapped() - before)
except BaseException as error:
    last = (str(error).strip().splitlines() or [""])[-1]
    told["error"] = last if path else f"{type(error).__name__}: {last}".removesuffix(": ")
    told["causes"] = causes(error)
with open(answer, "w", encoding="utf-8") as file:
    json.dump(told, file)
    file.flush()
    os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it: the last line of the *error*, the loader's own words among its *causes*.

    *mapped* are the files that were loaded for it, as the kernel names them. *killed_by* is the signal that ended the
    process.
    """

    error: str | None = None
    causes: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()
    killed_by: int | None = None

    @property
    def is_unable(self) -> bool:
        """Whether this machine's processor lacks instructions."""
        return self.killed_by == signal.SIGILL

    @property
    def has_crashed(self) -> bool:
        return self.killed_by is not None and not self.is_unable

    @property
    def absent(self) -> str | None:
        """The library that was not found."""
        return next((match["name"] for text in self.causes if (match := _ABSENT.search(text))), None)

    @property
    def unresolved(self) -> str | None:
        """What the loader said, where it found no library, symbol or version; None where something else was wrong."""
        return next((text for text in self.causes if _UNRESOLVED.search(text)), None)

    @property
    def lacks_symbol(self) -> bool:
        """Whether all libraries are there, and one symbol, without a version, is not."""
        said = self.unresolved
        return said is not None and self.absent is None and not _VERSIONED.search(said)


def opened(path: Path, python: Path, *, after: Sequence[str] = ()) -> Answer:
    """What comes of loading the file at *path* into *python*, the modules *after* imported first."""
    return _asked(python, str(path), after)


def imported(name: str, python: Path) -> Answer:
    """What comes of importing *name* in *python*."""
    return _asked(python, "", [name])


def _asked(python: Path, path: str, modules: Sequence[str]) -> Answer:
    clean = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="vbuild-probe-") as folder:
        answer = Path(folder) / "answer"
        command = [str(python), "-I", "-c", _PROBE, str(answer), path, *modules]
        try:
            ran = subprocess.run(
                command,
                env=clean,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer(f"took more than {_SECONDS:g} s")
        if not answer.exists():
            killed = -ran.returncode if ran.returncode < 0 else None
            return Answer(f"the process ended with {_ending(ran.returncode)}", killed_by=killed)
        told = json.loads(answer.read_text(encoding="utf-8"))
    return Answer(told["error"], tuple(told["causes"]), tuple(told["mapped"]))


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"
