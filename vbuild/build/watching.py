"""What a build looks for outside of its own folders: files of the system that it reads, and places where none is.

    before   watching.c -> a library, preloaded into every program of the build -> a log of paths and commands
    after    log -> Looked: the state of each file, the programs of each name on PATH, the names in folders
    later    Looked, compared with this machine as it is then: the same build, or another

So a package that is installed changes a build if this build reads one of its files, or looked in vain for one. A folder
whose names are read counts by those names that the project's own files mention. A build with a program that cannot be
watched (static, or started without the library) is not known. https://man7.org/linux/man-pages/man8/ld.so.8.html

The commands show what compilers that no compiler wrapper has started put into a build's libraries:

    x.c -> cc1 -> x.s -> as -> x.o -> ar -> libx.a -> ld -> x.so      by gcc; clang makes an object at once
"""

import os
import re
import shlex
import stat
import subprocess
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Self

from msgspec import Struct

from vbuild.elf.image import ElfImage
from vbuild.elf.records import MAGIC, SectionFlag
from vbuild.errors import BinaryError
from vbuild.files.hashing import key_of, program_digest, program_digests, sha256_of
from vbuild.process.threads import OncePerKey
from vbuild.toolchain import compiler_wrapper
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import remembered
from vbuild.wheel.archive import open_wheel

_FIELD = "\x1f"
_FEWEST_FIELDS = 4
_WRAPPED = "w"
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".C", ".c++", ".f90", ".F90", ".f", ".m", ".mm")
# options before names of messages and other files, which are not read
_NAMES = ("-dumpbase", "-dumpdir", "-auxbase", "-main-file-name")
_NOT_COMPILED = {"-E", "-fsyntax-only", "-M", "-MM"}
_MARCH = "-march="
_BASELINE = "x86-64"  # gcc says so of itself

_COMPILER = re.compile(r"clang.*|cc1.*|f951")
_ASSEMBLER = re.compile(r"(.*-)?as")
_LINKER = re.compile(r"collect2|mold|(.*-)?ld(\.\w+|64)?|ld\.lld-\d+")
_ARCHIVER = re.compile(r"(.*-)?ar(-\d+)?")


class Ingredients(Struct, frozen=True):
    """The *sources* of a file compiled around the wrappers, and the *objects* in it."""

    sources: frozenset[Path] = frozenset()
    objects: frozenset[Path] = frozenset()

    @classmethod
    def joined(cls, parts: Iterable["Ingredients"]) -> Self:
        every = list(parts)
        return cls(*(frozenset().union(*(getattr(part, key) for part in every)) for key in cls.__struct_fields__))


class Compiled(Struct, frozen=True):
    """The sources compiled around the wrappers; *flagged* have an -march of their own."""

    around: frozenset[Path]
    flagged: frozenset[Path]
    linked: dict[Path, Ingredients]

    @classmethod
    def of_log(cls, log: Path) -> Self:
        commands = _Commands()
        if log.is_file():
            # arguments may have what `splitlines` takes for the end of a line
            for line in os.fsdecode(log.read_bytes()).split("\n"):
                fields = line.removesuffix(_FIELD).split(_FIELD)
                if len(fields) >= _FEWEST_FIELDS:  # else a full disk has cut it off
                    mark, parent, folder, program, *words = fields
                    commands.follow(PurePath(program).name, _expanded(words), folder, parent, wrapped=mark == _WRAPPED)
        return cls(frozenset(commands.around), frozenset(commands.flagged), commands.linked)

    def by_code(self) -> dict[bytes, Ingredients]:
        by_digest = (
            (_code(file.read_bytes()), ingredients) for file, ingredients in self.linked.items() if file.is_file()
        )
        return {code: made for code, made in by_digest if code}

    def ingredients_of(self, path: str, data: bytes, by_code: Mapping[bytes, Ingredients]) -> Ingredients:
        """Those of the library *data* at *path* in a wheel, by its code or else its name."""
        if ingredients := by_code.get(_code(data)):
            return ingredients
        return Ingredients.joined(
            ingredients for file, ingredients in self.linked.items() if file.name == PurePath(path).name
        )


class _Commands:
    def __init__(self) -> None:
        self.around: set[Path] = set()
        self.flagged: set[Path] = set()
        self.linked: dict[Path, Ingredients] = {}
        self._ingredients = defaultdict[Path, Ingredients](Ingredients)
        self._piped = defaultdict[str, Ingredients](Ingredients)  # by the process that has started the compiler

    def follow(self, name: str, words: list[str], folder: str, parent: str, *, wrapped: bool) -> None:
        if _COMPILER.fullmatch(name):
            self._compile(words, folder, parent, wrapped=wrapped)
        elif _ASSEMBLER.fullmatch(name):
            output = _path(folder, _output(words) or "a.out")
            inputs = [_path(folder, word) for word in words if word.endswith((".s", ".S"))]
            parts = [self._ingredients[file] for file in inputs] or [self._piped[parent]]
            self._ingredients[output] = Ingredients(Ingredients.joined(parts).sources, frozenset({output}))
        elif _LINKER.fullmatch(name):
            output = _path(folder, _output(words) or "a.out")
            self._ingredients[output] = Ingredients.joined(self._inputs(words, folder))
            if output.suffix != ".o":
                self.linked[output] = self._ingredients[output]
        elif _ARCHIVER.fullmatch(name):
            files = [_path(folder, word) for word in words if word.endswith((".a", ".o"))]
            if files:
                self._ingredients[files[0]] = Ingredients.joined(self._ingredients[file] for file in files)

    def _compile(self, words: list[str], folder: str, parent: str, *, wrapped: bool) -> None:
        pairs = list(zip(["", *words], words, strict=False))
        sources = [
            _path(folder, word)
            for before, word in pairs
            if word.endswith(_SOURCES) and not word.startswith("-") and not before.startswith(_NAMES)
        ]
        if not sources or _NOT_COMPILED.intersection(words):
            return
        march = next((word for word in reversed(words) if word.startswith(_MARCH)), _MARCH + _BASELINE)
        ingredients = Ingredients()
        if not wrapped and march == _MARCH + _BASELINE:
            ingredients = Ingredients(frozenset(sources))
            self.around.update(sources)
        elif not wrapped:
            self.flagged.update(sources)
        self._piped[parent] = ingredients
        output = _output(words) or (f"{sources[-1].stem}.o" if "-c" in words else "")
        if output:
            file = _path(folder, output)
            self._ingredients[file] = Ingredients(ingredients.sources, frozenset({file} if file.suffix != ".s" else ()))

    def _inputs(self, words: list[str], folder: str) -> Iterator[Ingredients]:
        folders = [word[2:] for word in words if word.startswith("-L")]
        for word in words:
            if word.startswith("-l"):
                name = word[3:] if word.startswith("-l:") else f"lib{word[2:]}.a"
                yield from (self._ingredients[_path(folder, f"{parent}/{name}")] for parent in folders)
            elif not word.startswith("-") and (file := _path(folder, word)) not in self.linked:
                yield self._ingredients.get(file, Ingredients(objects=frozenset({file} if file.suffix == ".o" else ())))


def source_files(data: bytes) -> frozenset[str]:
    try:
        return frozenset(ElfImage.read(memoryview(data)).source_files()) if data.startswith(MAGIC) else frozenset()
    except BinaryError:
        return frozenset()


def sources_of(objects: Iterable[Path]) -> frozenset[str]:
    names: frozenset[str] = frozenset()
    for file in objects:
        with suppress(OSError):
            names |= source_files(file.read_bytes())
    return names


def _expanded(words: list[str]) -> list[str]:
    result: list[str] = []
    for word in words:
        with suppress(ValueError):  # a quotation mark that is not closed
            result.extend(shlex.split(word[1:]) if word.startswith("@") else [word])
    return result


def _output(words: list[str]) -> str:
    """The file that a command of *words* makes; "" for a pipe, or if it does not say."""
    for number, word in enumerate(words):
        if word == "-o":
            return "".join(words[number + 1 : number + 2]).removeprefix("-")
        if word.startswith("--output="):
            return word.removeprefix("--output=")
    return ""


@cache
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _path(folder: str, name: str) -> Path:
    file = PurePath(folder, name)
    return Path(_real(str(file.parent)), file.name)


def _code(data: bytes) -> bytes:
    """A digest of the machine code in *data*, which stripping does not change; empty without code.

    Of its sections: some linkers put the headers, which stripping changes, in one segment with the code.
    """
    if not data.startswith(MAGIC):
        return b""
    with suppress(BinaryError):
        image = ElfImage.read(memoryview(data))
        code = [
            image.view(section.span) for section in image.sections if section.header.sh_flags & SectionFlag.EXECINSTR
        ]
        return blake2b(b"".join(code), digest_size=16).digest() if any(code) else b""
    return b""


PRELOAD = "LD_PRELOAD"
MARK = "VBUILD_WRAPPED"
"""What compiler wrappers set for the compilers that they start."""

_SOURCE = Path(compiler_wrapper.__file__).with_name("watching.c")
_LOG, _COMMANDS, _TABLE, _LIBRARY = "log", "commands", "table", "watching.so"
_PLACES = {"LOG": _LOG, "COMMANDS": _COMMANDS, "TABLE": _TABLE, "SELF": _LIBRARY}
# placeholder in the compiled library for the folder of a build, which is at most as long
_FOLDER = "/" + 1023 * "#"
_SIZE = 1 << 18  # places of the table, of 8 bytes: what is logged already
# starts with the library if any program of this machine does
_SHELL = "/bin/sh"
# by compiler; builds that begin at the same time share one
_LIBRARIES: OncePerKey[str, bytes] = OncePerKey()

# where a system's packages have their files; also what variables name, and PATH
_ROOTS = ("/usr/", "/opt/", "/lib", "/bin/", "/sbin/")
# what is made again of other files, which count themselves
_MADE = "/__pycache__/"
_RUST = frozenset({"cargo", "rustc"})
# static programs that read nothing of the system, but start watched ones that do
_STARTERS = frozenset({"maturin", "uv", "ninja"})

# files that name libraries and packages to be found: not sources
_COMPILED = (".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".o", ".a", ".so", ".cu", ".cuh", ".f", ".f90", ".pyc")
_COMPILED_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".c++", ".f", ".f90", ".F90")
_LARGEST = 1 << 20  # bytes of a file of a project that is read for the names in it
_PACKAGE = ".pc"
_NAMING = (".cmake", _PACKAGE, ".m4")
_WORD = re.compile(r"[a-z]+")
_RUNTIME = re.compile(r"\.so\.[\d.]+$")
_ENDING = re.compile(r"(?:-?config)?(?:-?version)?\.[a-z+]+$")


class Watch(Struct, frozen=True):
    """The watch over one build, whose own files are in *folder*."""

    folder: Path

    @classmethod
    def over(cls, folder: Path, compilers: Compilers) -> Self | None:
        """A watch in the new *folder*; None if the compiler does not make its library."""
        watch = cls(folder.absolute())
        library, own = library_of(compilers), os.fsencode(watch.folder)
        if not library or len(own) > len(_FOLDER) or set(own) & set(b" :"):  # which part the libraries of LD_PRELOAD
            return None
        watch.folder.mkdir(parents=True)
        with (watch.folder / _TABLE).open("wb") as table:
            table.truncate(_SIZE * 8)
        for file in _PLACES.values():
            compiled = f"{_FOLDER}/{file}".encode()
            library = library.replace(compiled, (own + f"/{file}".encode()).ljust(len(compiled), b"\0"))
        (watch.folder / _LIBRARY).write_bytes(library)
        return watch

    def variables(self, before: Mapping[str, str]) -> dict[str, str]:
        return {PRELOAD: ":".join(filter(None, [str(self.folder / _LIBRARY), before.get(PRELOAD)]))}

    def looked(
        self, path: str, folders: Iterable[str], *, stage: Path, project: Path, rust: str = ""
    ) -> "Looked | None":
        """What the build of *project* in *stage* looked for on *path* and in *folders*.

        None if a program was not watched, or a file was changed since the build began.
        """
        if not (self.folder / _LOG).is_file():
            return None
        lines = self._lines()
        own = tuple(f"{folder}/" for folder in {str(stage.absolute()), str(stage.resolve())})
        search = set(map(os.path.normpath, path.split(os.pathsep)))
        roots = (*_ROOTS, *(f"{os.path.normpath(folder)}/" for folder in folders))
        if any(kind == "u" and file.rpartition("/")[2] not in _STARTERS for kind, file in lines):
            return None
        outside = [(kind, *file.rpartition("/")) for kind, file in lines if not f"{file}/".startswith(own)]
        names = sorted({name for _, folder, _, name in outside if folder in search})
        paths = [(kind, f"{folder}/{name}") for kind, folder, _, name in outside if folder not in search]
        paths = [entry for entry in paths if entry[1].startswith(roots) and _MADE not in entry[1]]
        files = sorted({file for _, file in paths})
        since = (self.folder / _LIBRARY).stat().st_mtime_ns
        if any(map(partial(_is_later, since), files)):
            return None
        listed = [file for kind, file in paths if kind == "l"]
        naming = [Path(file) for _, file in lines if file.endswith(_NAMING)]
        words = sorted(_words(project, naming)) if listed else []
        looked = Looked(dict.fromkeys(files, ""), dict.fromkeys(names, ()), dict.fromkeys(listed, ""), tuple(words))
        return looked.now(path, rust)

    def in_vain(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names, and the files of pkg-config, that the build looked for and that are nowhere."""
        seen: dict[str, list[str]] = {}
        for _, file in self._lines():
            seen.setdefault(file.rpartition("/")[2], []).append(file)
        absent = [name for name, files in seen.items() if not any(map(os.path.lexists, files))]
        libraries = (name.removesuffix(_PACKAGE) for name in absent if name.endswith(_PACKAGE))
        return tuple(absent), tuple(name for name in libraries if not name.endswith("-uninstalled"))

    def bypassing(self, project: Path, wheel: Path, compiled: Collection[str]) -> dict[str, tuple[str, ...]]:
        """The sources in *project* that were compiled without flags of a level, as no wrapper started the
        compiler.

        They are listed by module of *wheel*, or by ``""`` if unknown. *compiled* are the wrappers' sources.
        """
        seen = Compiled.of_log(self.folder / _COMMANDS)
        within, named = project.resolve(), {Path(source).name for source in compiled}
        named.update(path.name for path in seen.flagged)
        # what configure scripts try out is gone
        past = sorted(path for path in seen.around if path.is_relative_to(within) and path.is_file())
        own = {name for _, _, names in os.walk(project) for name in names if name.endswith(_COMPILED_SOURCES)}
        by_module: dict[str, set[str]] = {}
        inside: dict[str, frozenset[str]] = {}
        linked_by_code = seen.by_code()
        for module, data in _modules_in(wheel):
            parts = seen.ingredients_of(module, data, linked_by_code)
            linked = {path.name for path in parts.sources}
            inside[module] = (source_files(data) or sources_of(parts.objects) or _sources_left(module, project)) & own
            inside[module] |= linked
            if names := linked | (inside[module] - named):
                by_module[module] = names
        elsewhere = [path for path in past if path.name not in set().union(*by_module.values())]
        if all(inside.values()):  # a program that the build itself runs is in none
            elsewhere = [path for path in elsewhere if any(path.name in names for names in inside.values())]
        result = {module: tuple(sorted(names)) for module, names in by_module.items()}
        return result | ({"": tuple(str(path.relative_to(within)) for path in elsewhere)} if elsewhere else {})

    def _lines(self) -> list[tuple[str, str]]:
        file = self.folder / _LOG
        text = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""
        return sorted({(line[:1], os.path.normpath(f"/{line[2:].lstrip('/')}")) for line in text.splitlines()})


class Looked(Struct, frozen=True):
    """What a build has looked for, and what was there.

    *files* have their SHA-256, or a word for what they are. Of *listed* folders, names made of *words* count.
    """

    files: dict[str, str]
    programs: dict[str, tuple[str, ...]]
    listed: dict[str, str]
    words: tuple[str, ...] = ()
    rust: str = ""

    def now(self, path: str, rust: str = "") -> Self:
        words = frozenset(self.words)
        return type(self)(
            {file: _state(file) for file in self.files},
            program_digests(self.programs, path),
            {folder: _mentioned(folder, words) for folder in self.listed},
            self.words,
            rust if _RUST.intersection(self.programs) else "",
        )


def library_of(compilers: Compilers) -> bytes:
    """The library of a watch, or b"" if *compilers* make none that this machine runs."""
    command = dict(compilers.programs).get(compilers.c.split()[0], ())
    if len(command) != 1 or compilers.machine != os.uname().machine:
        return b""
    return _LIBRARIES.get(command[0], partial(_remembered, command[0]))


def _remembered(compiler: str) -> bytes:
    def encoded_library() -> str:
        return b64encode(_library(compiler)).decode()

    question = f"watching {sha256_of(_SOURCE)} {_SIZE} {len(_FOLDER)}"
    return b64decode(
        remembered(question, Path(compiler), environment=os.environ, ask=encoded_library, also=(Path(_SHELL),))
    )


def _library(compiler: str) -> bytes:
    """The library that *compiler* makes for `_FOLDER`; empty if programs do not start with it."""
    words = [f'-D{name}="{_FOLDER}/{file}"' for name, file in _PLACES.items()]
    command = [compiler, "-shared", "-fPIC", "-O2", "-w", "-fno-builtin", f"-DSIZE={_SIZE}ul", *words]
    with TemporaryDirectory() as folder:
        output = Path(folder, _LIBRARY)
        ran = subprocess.run([*command, "-o", output, _SOURCE, "-ldl"], capture_output=True, check=False)
        started = [_SHELL, "-c", ":"]
        if (
            ran.returncode
            or subprocess.run(started, env={PRELOAD: str(output)}, capture_output=True, check=False).returncode
        ):
            return b""
        return output.read_bytes()


def _state(path: str) -> str:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - thousands of times
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(mode):
        return program_digest(Path(path)) or "unreadable"
    return "folder" if stat.S_ISDIR(mode) else "other"


def _modules_in(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with open_wheel(wheel) as source:
        for member in source.members:
            if source.head(member, len(MAGIC)) == MAGIC:
                yield member.path, source.read(member)


def _sources_left(module: str, project: Path) -> frozenset[str]:
    name = PurePath(module).name
    return sources_of(Path(folder, name) for folder, _, names in os.walk(project) if name in names)


def _is_later(since: int, path: str) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of times
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_ctime_ns > since


def _words(project: Path, naming: Iterable[Path]) -> set[str]:
    inside = (Path(folder, name) for folder, _, names in os.walk(project) for name in names)
    result: set[str] = set()
    for file in (*naming, *(path for path in inside if path.suffix not in _COMPILED)):
        with suppress(OSError):
            if file.is_file() and file.stat().st_size <= _LARGEST:
                result.update(_WORD.findall(file.read_text(encoding="utf-8", errors="replace").lower()))
    return result


def _mentioned(folder: str, words: Collection[str]) -> str:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - ten times as fast
    except OSError:
        return ""
    return key_of(sorted(name for name in names if not _RUNTIME.search(name) and _is_made_of(name, words)))


def _is_made_of(name: str, words: Collection[str]) -> bool:
    parts = _WORD.findall(_ENDING.sub("", name.lower()))
    return all(part in words or part.removeprefix("lib") in words or f"lib{part}" in words for part in parts)
