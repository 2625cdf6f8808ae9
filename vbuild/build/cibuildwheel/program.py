"""cibuildwheel as a program: its command line, what it would build, one run, its log, and its containers.

Nothing of it is imported: it promises no Python interface.
https://cibuildwheel.pypa.io/en/stable/options/#command-line

cibuildwheel leaves its container when it is killed, and the containers of other runs must stay. So a wrapper named like
the engine stands first on its PATH, and writes down the name of each container that it makes.

    Building cp312-manylinux_x86_64 wheel                  of a log: an identifier begins
    Testing wheel...                                       a step begins: its test
    ✓ cp312-manylinux_x86_64 finished in 3 seconds         it is done
    cibuildwheel: error: Build failed because …            why it ended
    vbuild: gcc 10 of the image does not know …            why our program in the container ended it

In GitHub Actions steps begin with ``::group::`` and errors with ``::error::``.
"""

import ast
import os
import re
import shlex
import subprocess
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from shutil import which
from typing import Any, Self

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import BuildError
from vbuild.files.reading import open_file, read_text
from vbuild.process.masking import masked_text
from vbuild.process.python import with_own_packages
from vbuild.process.run import run

BEFORE_BUILD = "Running before_build"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_IDENTIFIER = re.compile(
    r"""
    ^ (?:
        Building\ (?P<begins>\S+)\ wheel
      | \S{0,60} (?P<tests>Testing\ wheel\.\.\.)
      | \S*\ ?(?P<ends>\S+)\ finished\ in\ .*
    ) $
    """,
    re.VERBOSE | re.MULTILINE,
)
# an empty line follows each, but not the same words in a build's output
_STEP = re.compile(
    r"""
    ^ (?: ::group:: | \#\#\[group\] )?
    (?P<name>
        Starting\ container\ image\ \S+ | Copying\ project\ into\ container | Running\ before_all
      | Setting\ up\ build\ environment | Running\ before_build | (?:Building|Repairing|Testing)\ wheel
      | Copying\ wheels\ back\ to\ host
    ) \.\.\. \n\n
    """,
    re.VERBOSE | re.MULTILINE,
)
_HAS_TEST = re.compile(r"^  test_command:(?: \S|\s*\n    )", re.MULTILINE)
_ERROR = re.compile(
    r"^(?:::error::cibuildwheel:|cibuildwheel: error:)\s*(?P<text>\S.*?)\s*(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL
)
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?P<frames>(?:(?: .*)?\n)+)(?P<text>\S.*)", re.MULTILINE
)
_ECHO = "\n    + "  # a command follows
_OURS = re.compile(r"^vbuild: (?P<text>.+)$", re.MULTILINE)
_ENGINES = frozenset({"docker", "podman"})
_ENGINE = re.compile(r"^(?:Error(?: response from daemon)?|\S*docker|podman): (?P<text>.+)$", re.MULTILINE)
_COMMAND = re.compile(r"Command (?P<words>\[.*\]) failed with code (?P<code>-?\d+)\b.*", re.DOTALL)
_PATH = re.compile(r"\b(?:Pure)?PosixPath\((?P<text>'[^']*')\)")
_TRAP = re.compile(
    r"trap 'status=\$\?; .*?; exit \$status' EXIT(?: && )?", re.DOTALL
)  # of vbuild.build.cibuildwheel.runs
_LONGEST = 300

# what cibuildwheel, auditwheel or an engine says, with advice
_ADVICE = (
    ("produced multiple wheels", "vbuild makes the variants of that one; let the command leave one in {dest_dir}"),
    ("unsupported ISA extensions", "let the command call auditwheel by its name, or with --disable-isa-ext-check"),
    ("arguments: --disable-isa-ext-check", "auditwheel of the image is too old: choose a newer image"),
    ("executable doesn't exist in image", "choose an image that has it, or leave it out with CIBW_SKIP"),
    ("docker is too old or is not working", "is its daemon running? or name another: CIBW_CONTAINER_ENGINE=podman"),
)
_NOT_THERE = re.compile(
    r"""
      target/release/ .* (?: No\ such\ file | not\ found | not\ exist )
    | (?: cannot | can't | not ) \ (?: find | stat | open ) .* target/release/
    """,
    re.IGNORECASE | re.VERBOSE,
)
_RUST = "vbuild sets CARGO_BUILD_TARGET, with which cargo's results are in target/<target>/release"


class Journal(Struct, frozen=True):
    """A parsed log: the identifier *at_work* at its end, those *tested*, and the *reason* of the end, or "".

    The reason *explains* the end if it says more than which command failed. *step* is the last that began,
    *printed* the output of its last command.
    """

    at_work: str = ""
    tested: frozenset[str] = frozenset()
    reason: str = ""
    has_test: bool = False
    explains: bool = False
    step: str = ""

    @classmethod
    def parse(cls, log: str) -> Self:
        text = _COLOUR.sub("", log)
        at_work, is_tested = "", False
        tested: set[str] = set()
        for step in _IDENTIFIER.finditer(text):
            if step["begins"]:
                at_work, is_tested = step["begins"], False
            elif step["tests"]:
                is_tested = True
            else:
                tested |= {step["ends"]} if is_tested else set()
                at_work = ""
        name, output = "", text
        for step in _STEP.finditer(text):
            name, output = step["name"], text[step.end() :]
        reason, explains = _reason(name, output)
        return cls(at_work, frozenset(tested), reason, bool(_HAS_TEST.search(text)), explains, name)


def _reason(step: str, output: str) -> tuple[str, bool]:
    """Why a *step* ended, with advice, in one line; and whether that is the true cause."""
    if step in {"", BEFORE_BUILD} and (ours := _OURS.findall(output)):
        return str(ours[-1]), True
    error = next((match["text"] for match in reversed([*_ERROR.finditer(output)])), "")
    if not error:
        own = [match["text"].strip() for match in _TRACEBACK.finditer(output) if "/cibuildwheel/" in match["frames"]]
        return (f"cibuildwheel: {own[-1]}", True) if own else ("", False)
    command = _COMMAND.fullmatch(error)
    words = _words(command["words"]) if command else []
    if words and words[0] in _ENGINES and (theirs := _ENGINE.findall(output)):
        reason, explains = f"{words[0]} {words[1]}: {theirs[-1]}", True
    elif words and command:
        reason, explains = f"{_shortened(_shown(words))} failed with code {command['code']}", False
    else:
        reason, explains = " ".join(error.split()).rstrip("."), command is None
    advice = [todo for sign, todo in _ADVICE if sign in output]
    hint = [_RUST] if _NOT_THERE.search(output) else []
    return "; ".join([_shortened(reason), *advice, *hint]), explains or bool(advice)


def _words(text: str) -> list[str]:
    try:
        return [str(word) for word in ast.literal_eval(_PATH.sub(r"\g<text>", text))]
    except (ValueError, SyntaxError):
        return []


def _shown(words: Sequence[str]) -> str:
    match words:
        case ["sh", "-c", command]:
            theirs = " ".join(_TRAP.sub("", command, count=1).split())
            return shlex.join(["sh", "-c", theirs]) if theirs else "before-build"
    return shlex.join(words)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


_TAKES_VALUE = frozenset({"--platform", "--archs", "--enable", "--only", "--output-dir", "--config-file"})
_LINUX = frozenset({"linux", "auto"})
_REFUSED = {
    "--output-dir": "the wheels go into the folder that vbuild is given; leave it out",
    "--print-build-identifiers": "makes no wheels; run cibuildwheel itself, or vbuild with --dry-run",
    "--clean-cache": "makes no wheels; run cibuildwheel itself",
    "--help": "makes no wheels; run cibuildwheel itself",
    "-h": "makes no wheels; run cibuildwheel itself",
}

_DEFAULT = "docker"
_KNOWN = ("docker", "podman")
_VARIABLES = ("CIBW_CONTAINER_ENGINE_LINUX", "CIBW_CONTAINER_ENGINE")
_KEY = "container-engine"
_KEEP = "CIBW_DEBUG_KEEP_CONTAINER"  # cibuildwheel's own

_WRAPPER = """#!/bin/sh
if [ "$1" = create ]; then
    for word; do
        case $word in --name=*) echo "${{word#--name=}}" >> {names} ;; esac
    done
fi
exec {program} "$@"
"""

NEEDED = Version("4.3")  # the first with CIBW_INHERIT
_INSTALL = f"install it: pip install 'cibuildwheel>={NEEDED}'"
_LOOKS = 0.1  # seconds between two looks at a log that is shown as it grows

Echo = Callable[[bytes], None]


class Arguments(Struct, frozen=True):
    words: tuple[str, ...] = ()
    package: Path = Path()
    config_file: str = ""

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """`BuildError` for *words* that make no wheels, or none for Linux."""
        values: dict[str, str] = {}
        positional: list[str] = []
        left = iter(words)
        for word in left:
            name, joined, value = word.partition("=")
            if word == "--":
                positional += left
            elif not word.startswith("-"):
                positional.append(word)
            elif name in _REFUSED:
                raise BuildError(f"{name}: {_REFUSED[name]}")
            else:
                values[name] = value if joined or name not in _TAKES_VALUE else next(left, "")
        check_platform(values.get("--platform", "auto"), "--platform {}")
        package = Path(positional[0]) if positional else Path()
        if package.name.endswith(".tar.gz") or package.is_file():
            raise BuildError(f"{package}: not a folder; expected that of a project: unpack the sdist")
        parsed = cls(tuple(words), package, values.get("--config-file", ""))
        try:  # cibuildwheel would wait for ever for a FIFO
            with suppress(FileNotFoundError, NotADirectoryError):
                open_file(parsed.options).close()
        except OSError as error:
            raise BuildError(f"{parsed.options}: cannot be read: {error.strerror}") from error
        return parsed

    @property
    def options(self) -> Path:
        if self.config_file:
            return Path(self.config_file.replace("{package}", str(self.package)))
        return self.package / "pyproject.toml"

    @property
    def configuration(self) -> Mapping[str, Any]:
        with suppress(OSError, ValueError, AttributeError):
            options = tomllib.loads(read_text(self.options)).get("tool", {}).get("cibuildwheel", {})
            return options if isinstance(options, Mapping) else {}
        return {}

    def check_place(self) -> None:
        if not self.package.resolve().is_relative_to(Path.cwd()):
            raise BuildError(
                f"{self.package}: outside of the working folder, which cibuildwheel copies into the container; "
                f"expected one in it: change into a folder that has all of the project"
            )


def check_platform(platform: str, setting: str) -> None:
    if platform not in _LINUX:
        raise BuildError(
            f"{setting.format(platform)}: only wheels for Linux have variants of CPU levels and GPUs; "
            f"expected linux: run cibuildwheel itself for {platform}"
        )


class Containers(Struct, frozen=True):
    """The containers made by the program *engine*; its wrapper and their names are in *folder*."""

    engine: str
    folder: Path

    @classmethod
    def of(cls, arguments: Arguments, environment: Mapping[str, str], folder: Path) -> Self:
        name = engine_of(arguments, environment)
        if name not in _KNOWN:
            raise BuildError(
                f"{_KEY} {name}: cibuildwheel knows {' and '.join(_KNOWN)} only; expected one of these, as in "
                f"CIBW_CONTAINER_ENGINE=podman"
            )
        if (program := which(name, path=environment.get("PATH"))) is None:
            raise BuildError(
                f"no {name} on PATH, in which cibuildwheel builds wheels for Linux; install it (apt-get install "
                f"{'podman' if name == 'podman' else 'docker.io, or apt-get install podman'}), or name another: "
                f"CIBW_CONTAINER_ENGINE=podman"
            )
        folder.mkdir()
        wrapper = folder / name
        names = shlex.quote(str(folder / "names"))
        wrapper.write_text(_WRAPPER.format(names=names, program=shlex.quote(program)), encoding="utf-8")
        wrapper.chmod(0o755)
        return cls(program, folder.absolute())

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": os.pathsep.join([str(self.folder), environment.get("PATH", os.defpath)])}

    @contextmanager
    def removed(self) -> Iterator[None]:
        """An error or Ctrl-C in the block removes the containers made in it."""
        try:
            yield
        except BaseException:
            file = self.folder / "names"
            is_kept = os.environ.get(_KEEP, "") not in {"", "0"} or not file.exists()
            for name in () if is_kept else file.read_text(encoding="utf-8").split():
                # rm waits ten seconds for a shell that ignores SIGTERM; a missing container is fine
                for command in (["kill", name], ["rm", "--force", "--volumes", name]):
                    subprocess.run([self.engine, *command], capture_output=True, check=False)
            raise


def engine_of(arguments: Arguments, environment: Mapping[str, str]) -> str:
    value: Any = next((text for name in _VARIABLES if (text := environment.get(name)) is not None), None)
    if value is None:
        options = arguments.configuration
        linux = options.get("linux")
        value = (linux if isinstance(linux, Mapping) else {}).get(_KEY, options.get(_KEY, _DEFAULT))
    if isinstance(value, Mapping):
        value = value.get("name", _DEFAULT)
    return str(value).partition(";")[0].removeprefix("name:").strip() or _DEFAULT


class Cibuildwheel(Struct, frozen=True):
    command: tuple[str, ...]
    version: Version

    @classmethod
    def of_environment(cls) -> Self:
        """The cibuildwheel of this Python; `BuildError` without one that is new enough."""
        try:
            program = cls(tuple(with_own_packages("-m", "cibuildwheel")), Version(installed("cibuildwheel")))
        except PackageNotFoundError as error:
            raise BuildError(f"no cibuildwheel in this environment; {_INSTALL}") from error
        if program.version < NEEDED:
            raise BuildError(
                f"cibuildwheel {program.version} is too old: {NEEDED} is the first that can add to a project's own "
                f"options (CIBW_INHERIT); {_INSTALL}"
            )
        return program

    def identifiers(self, arguments: Arguments, environment: Mapping[str, str]) -> tuple[str, ...]:
        command = [*self.command, *arguments.words, "--print-build-identifiers"]
        ran = subprocess.run(command, env=environment, capture_output=True, check=False)
        if ran.returncode:
            text = ran.stderr.decode(errors="replace")
            lines = [line for line in text.splitlines() if line.strip()] or ["failed without a word"]
            last = lines[-1].rpartition("error: ")[2]  # of argparse, which names the program in front
            reason = Journal.parse(text).reason or last.partition(" (choose from")[0].strip()
            raise BuildError(f"cibuildwheel: {masked_text(reason)}")
        return tuple(ran.stdout.decode().split())

    def run(
        self,
        arguments: Arguments,
        output: Path,
        *,
        environment: Mapping[str, str],
        containers: Containers,
        log: Path,
        echo: Echo | None = None,
    ) -> None:
        """Run cibuildwheel into *output*; what it prints goes to *log* and *echo*.

        `BuildError` if it fails. None of its *containers* is left, however it ends.
        """
        command = [*self.command, f"--output-dir={output}", *arguments.words]
        with containers.removed(), _echoed(log, echo):
            run(command, log=log, environment={**environment, **containers.variables(environment)}, name="cibuildwheel")


@contextmanager
def _echoed(log: Path, echo: Echo | None) -> Iterator[None]:
    if echo is None:
        yield
        return
    done = threading.Event()
    start = log.stat().st_size if log.exists() else 0

    def follow() -> None:
        position = start
        while True:
            is_last = done.wait(_LOOKS)
            if log.exists():
                with log.open("rb") as file:
                    file.seek(position)
                    if text := file.read():
                        position += len(text)
                        echo(text)
            if is_last:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def explained_failure(error: BuildError, journal: Journal) -> BuildError:
    """*error* with the reason in *journal*, or else also what the last command printed."""
    first, _, end = str(error).partition(", which ends:\n")
    identifier = f"{journal.at_work}: " if journal.at_work else ""
    reason = journal.reason or first.partition(";")[0]
    _, echo, printed = _ERROR.sub("", _COLOUR.sub("", f"\n{end}")).rpartition(_ECHO)
    last = "" if journal.explains else (printed.partition("\n")[2] if echo else printed).strip("\n")
    return BuildError(f"{identifier}{reason}" + (f"; its last output:\n{last}" if last else ""))
