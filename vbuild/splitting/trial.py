"""Try whether libraries may move that nothing else lets move, with commands that use the wheels.

    wheels for this Python -> an environment -> each command, twice       has to succeed, and to print the same
    split with all doubtful libraries moved -> an environment -> each     the same: what was loaded from its new place
                                                                          may move; what was not loaded stays
    not the same: each after the others that may                          one with which it is not stays

A run is compared by its exit status, what it prints, and which data files of the packages it opens: a library that
finds its data beside itself no longer opens them. ``LD_DEBUG=files`` shows what is loaded, inotify what is opened.
https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from vbuild.elf.catalogue import is_shared_object
from vbuild.errors import RepackageError, at
from vbuild.files.reading import read_text
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import RunEvidence, SplitRequest
from vbuild.splitting.results import Split
from vbuild.verification.environments import WheelSources, is_native, make_environment, variables
from vbuild.verification.installed_wheel import opened_files
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName
from vbuild.wheel.paths import installed_path

# seconds
_PATIENCE = 600.0
_LOADED = re.compile(r"calling init: (?P<path>/.*?)(?: \[\w+\])?$", re.MULTILINE)
_CODE = (".py", ".pyc", ".pth")
_ENVIRONMENT = "<environment>"

# splits as a request says, and writes to a folder, or only says what would be
Splitter = Callable[[SplitRequest, Path | None], Split]


class Run(Struct, frozen=True):
    command: str
    status: int
    output: str
    opened: frozenset[str]
    loaded: frozenset[str] = frozenset()

    def difference(self, before: "Run") -> str | None:
        if self.status != before.status:
            return f"it ends with status {self.status}, not {before.status}: {_last_line(self.output)}"
        if self.output != before.output:
            return f"it prints {_first_change(self.output, before.output)}"
        if missed := sorted(before.opened - self.opened):
            return f"it no longer opens {missed[0]}"
        return None


@dataclass(slots=True)
class _Trial:
    """The runs of the commands with *wheels*, in groups that can be installed together."""

    groups: Sequence[Sequence[Path]]
    request: SplitRequest
    splitter: Splitter
    indexes: Callable[[], Indexes]
    on_progress: Callable[[str], None]
    refused: dict[str, str] = field(default_factory=dict)
    loaded: frozenset[str] = frozenset()
    _before: list[Run] = field(default_factory=list)

    def run_before(self) -> None:
        """Run all commands with the wheels as they are; `RepackageError` if that shows nothing."""
        for first, second in zip(self._runs({}), self._runs({}), strict=True):
            with at(first.command):
                if first.status:
                    raise RepackageError(
                        f"fails before the split, with status {first.status}: {_last_line(first.output)}; expected a "
                        "command that works"
                    )
                if first.output != second.output:
                    raise RepackageError(
                        f"prints {_first_change(second.output, first.output)} when it runs again; expected a command "
                        "that prints the same each time"
                    )
            # a cache is filled by the first run
            self._before.append(second)

    def find_harmless(self, doubtful: Sequence[str]) -> None:
        """Find out which of the libraries *doubtful* may move; `RepackageError` if runs differ without them."""
        if (change := self._change(doubtful)) is None:
            return
        if not doubtful or (change := self._change(())) is not None:
            raise RepackageError(f"not the same after the split: {change}; --keep leaves libraries out of it")
        proved: list[str] = []
        for digest in doubtful:
            if (change := self._change([*proved, digest])) is None:
                proved.append(digest)
            else:
                self.refused[digest] = change

    def _change(self, moved: Sequence[str]) -> str | None:
        trusted = {digest: RunEvidence(is_harmless=True) for digest in moved}
        with TemporaryDirectory(prefix="vbuild-try-") as folder:
            result = self.splitter(replace(self.request, tries=(), evidence=trusted), Path(folder))
            thin = {wheel.wheel: wheel.path for wheel in result.wheels if wheel.path}
            runs = self._runs(thin, links=(Path(folder),))
            pairs = zip(runs, self._before, strict=True)
            changes = (f"`{run.command}`: {change}" for run, before in pairs if (change := run.difference(before)))
            first_change = next(changes, None)
        if first_change is None:
            self.loaded = frozenset().union(*(run.loaded for run in runs))
        return first_change

    def _runs(self, thin: Mapping[Path, Path], *, links: tuple[Path, ...] = ()) -> list[Run]:
        runs = []
        for group in self.groups:
            first, *others = (thin.get(wheel, wheel) for wheel in group)
            self.on_progress(f"trying {first.name}")
            with TemporaryDirectory(prefix="vbuild-try-") as folder:
                sources = WheelSources(links, self.indexes(), builds=self.request.allow_builds)
                environment = make_environment(
                    first,
                    Path(sys.executable),
                    requires=[*map(str, others), *self.request.try_requires],
                    sources=sources,
                    folder=Path(folder),
                )
                runs += [_run(command, environment.folder, environment.packages) for command in self.request.tries]
        return runs


def with_evidence(
    wheels: Sequence[Path],
    request: SplitRequest,
    splitter: Splitter,
    *,
    indexes: Callable[[], Indexes],
    on_progress: Callable[[str], None],
) -> SplitRequest:
    """*request* with what its commands show about libraries of *wheels*; `RepackageError` if they show nothing."""
    names = {wheel: WheelName.parse(wheel.name) for wheel in wheels}
    native = [wheel for wheel, name in names.items() if is_native(name)]
    # not every machine runs a variant, but the plain wheel of its release
    plain = {name.release for wheel, name in names.items() if wheel in native and name.variant is None}
    native = [wheel for wheel in native if names[wheel].variant is None or names[wheel].release not in plain]
    if not native:
        version = ".".join(map(str, sys.version_info[:2]))
        raise RepackageError(f"--try: none of the wheels is for this Python, {version}, on this machine; expected one")
    doubtful: dict[str, str] = {}
    for move in splitter(replace(request, tries=()), None).libraries:
        doubtful |= dict.fromkeys(move.to_try, move.name)
    trial = _Trial(_groups(native), request, splitter, indexes, on_progress)
    trial.run_before()
    all_runs = " and ".join(f"`{command}`" for command in request.tries)
    trial.find_harmless([*doubtful])
    evidence = {}
    for digest, name in doubtful.items():
        if digest in trial.refused:
            evidence[digest] = RunEvidence(f"not the same if it moves: {trial.refused[digest]}")
        elif name not in trial.loaded:
            evidence[digest] = RunEvidence(f"not loaded by {all_runs}")
        else:
            evidence[digest] = RunEvidence(f"the same with it there: {all_runs}", is_harmless=True)
    return replace(request, tries=(), evidence=evidence)


def _groups(wheels: Sequence[Path]) -> list[list[Path]]:
    files: dict[Path, frozenset[str]] = {}
    for wheel in wheels:
        with open_wheel(wheel) as source:
            files[wheel] = frozenset(filter(None, (installed_path(member.path) for member in source.members)))
    groups: list[list[Path]] = []
    for wheel in wheels:
        free = (group for group in groups if all(files[wheel].isdisjoint(files[other]) for other in group))
        if (group := next(free, None)) is None:
            groups.append(group := [])
        group.append(wheel)
    return groups


def _run(command: str, root: Path, packages: Path) -> Run:
    with TemporaryDirectory(prefix="vbuild-try-") as folder:
        clean = variables()
        environment = {
            **clean,
            "PATH": os.pathsep.join([str(root / "bin"), clean.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_DEBUG": "files",
            "LD_DEBUG_OUTPUT": f"{folder}/loader",
        }
        here = Path(folder, "here")
        here.mkdir()
        try:
            with opened_files(packages) as opened:
                ran = subprocess.run(
                    ["sh", "-c", command],
                    cwd=here,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    encoding="utf-8",
                    errors="replace",
                    timeout=_PATIENCE,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            raise RepackageError(f"{command}: took more than {_PATIENCE:g} s") from error
        logs = [read_text(log, errors="replace") for log in Path(folder).glob("loader.*")]
        output = ran.stdout.replace(str(root), _ENVIRONMENT).replace(folder, _ENVIRONMENT)
    loaded = {match["path"].rpartition("/")[2] for log in logs for match in _LOADED.finditer(log)}
    others = (path for path in opened if not path.endswith(_CODE) and not is_shared_object(path))
    data = frozenset(path for path in others if ".dist-info/" not in path)
    return Run(command, ran.returncode, output, data, frozenset(loaded))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it says nothing")


def _first_change(now: str, before: str) -> str:
    pairs = zip_longest(now.splitlines(), before.splitlines())
    pair = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
    return " instead of ".join("nothing" if line is None else repr(line) for line in pair)
