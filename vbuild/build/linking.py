"""What compilers that no compiler wrapper has started put into a build's libraries: by its commands, in their order.

    x.c -> cc1 -> x.s -> as -> x.o -> ar -> libx.a -> ld -> x.so      by gcc; clang makes an object at once

`vbuild/toolchain/watching.c` logs these commands. A library may be stripped when it is linked, or put into
the wheel under another name: it is the file that a linker made which has the same code.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Self

from msgspec import Struct

from vbuild.elf.image import ElfImage
from vbuild.elf.records import MAGIC, SectionFlag
from vbuild.errors import BinaryError

_FIELD = "\x1f"
_FEWEST_FIELDS = 4
_WRAPPED = "w"
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".C", ".c++", ".f90", ".F90", ".f", ".m", ".mm")
# what stands before a name that is for messages and other files: nothing is read there
_NAMES = ("-dumpbase", "-dumpdir", "-auxbase", "-main-file-name")
_NOT_COMPILED = {"-E", "-fsyntax-only", "-M", "-MM"}
_MARCH = "-march="
_BASELINE = "x86-64"  # gcc says so of itself

_COMPILER = re.compile(r"clang.*|cc1.*|f951")
_ASSEMBLER = re.compile(r"(.*-)?as")
_LINKER = re.compile(r"collect2|mold|(.*-)?ld(\.\w+|64)?|ld\.lld-\d+")
_ARCHIVER = re.compile(r"(.*-)?ar(-\d+)?")


class Made(Struct, frozen=True):
    """What a file was made of: the *sources* that were compiled around the wrappers, and the *objects* in it."""

    sources: frozenset[Path] = frozenset()
    objects: frozenset[Path] = frozenset()

    @classmethod
    def of(cls, parts: Iterable["Made"]) -> Self:
        """What is made of all *parts*."""
        every = list(parts)
        return cls(*(frozenset().union(*(getattr(one, key) for one in every)) for key in cls.__struct_fields__))


class Compiled(Struct, frozen=True):
    """The sources that a build has compiled around the wrappers; *flagged* are those with an -march of their own.

    *linked* are the files that linkers have made, of these and of others.
    """

    around: frozenset[Path]
    flagged: frozenset[Path]
    linked: dict[Path, Made]

    @classmethod
    def of_log(cls, log: Path) -> Self:
        """What the commands in *log* have compiled and linked; nothing if there is none."""
        commands = _Commands()
        if log.is_file():
            # arguments may have what `splitlines` and text files take for the end of a line, too
            for line in os.fsdecode(log.read_bytes()).split("\n"):
                fields = line.removesuffix(_FIELD).split(_FIELD)
                if len(fields) >= _FEWEST_FIELDS:  # else a full disk has cut it off
                    mark, parent, folder, program, *words = fields
                    commands.follow(PurePath(program).name, _expanded(words), folder, parent, wrapped=mark == _WRAPPED)
        return cls(frozenset(commands.around), frozenset(commands.flagged), commands.linked)

    def by_code(self) -> dict[bytes, Made]:
        """What those *linked* files that are there were made of, by a digest of their machine code."""
        found = ((_code(file.read_bytes()), made) for file, made in self.linked.items() if file.is_file())
        return {code: made for code, made in found if code}

    def made(self, path: str, data: bytes, by_code: Mapping[bytes, Made]) -> Made:
        """What the library *data* at *path* in a wheel was made of: that of the same code, or of the same name."""
        if made := by_code.get(_code(data)):
            return made
        return Made.of(made for file, made in self.linked.items() if file.name == PurePath(path).name)


class _Commands:
    """What the commands of a build so far have made."""

    def __init__(self) -> None:
        self.around: set[Path] = set()
        self.flagged: set[Path] = set()
        self.linked: dict[Path, Made] = {}
        self._made: dict[Path, Made] = {}
        self._piped: dict[str, Made] = {}  # by the process that has started the compiler

    def follow(self, name: str, words: list[str], folder: str, parent: str, *, wrapped: bool) -> None:
        """Add what the program *name* makes with the arguments *words* in *folder*."""
        if _COMPILER.fullmatch(name):
            self._compile(words, folder, parent, wrapped=wrapped)
        elif _ASSEMBLER.fullmatch(name):
            output = _path(folder, _output(words) or "a.out")
            inputs = [_path(folder, word) for word in words if word.endswith((".s", ".S"))]
            parts = [self._made.get(file, Made()) for file in inputs] or [self._piped.get(parent, Made())]
            self._made[output] = Made(Made.of(parts).sources, frozenset({output}))
        elif _LINKER.fullmatch(name):
            output = _path(folder, _output(words) or "a.out")
            self._made[output] = Made.of(self._inputs(words, folder))
            if output.suffix != ".o":
                self.linked[output] = self._made[output]
        elif _ARCHIVER.fullmatch(name):
            files = [_path(folder, word) for word in words if word.endswith((".a", ".o"))]
            if files:
                self._made[files[0]] = Made.of(self._made.get(file, Made()) for file in files)

    def _compile(self, words: list[str], folder: str, parent: str, *, wrapped: bool) -> None:
        pairs = list(zip(["", *words], words, strict=False))
        sources = [_path(folder, word) for before, word in pairs if _is_source(word) and not before.startswith(_NAMES)]
        if not sources or _NOT_COMPILED.intersection(words):
            return
        march = next((word for word in reversed(words) if word.startswith(_MARCH)), _MARCH + _BASELINE)
        made = Made()
        if not wrapped and march == _MARCH + _BASELINE:
            made = Made(frozenset(sources))
            self.around.update(sources)
        elif not wrapped:
            self.flagged.update(sources)
        self._piped[parent] = made
        output = _output(words) or (f"{sources[-1].stem}.o" if "-c" in words else "")
        if output:
            file = _path(folder, output)
            self._made[file] = Made(made.sources, frozenset({file} if file.suffix != ".s" else ()))

    def _inputs(self, words: list[str], folder: str) -> Iterator[Made]:
        """What the files are made of that a linker reads by the arguments *words*."""
        folders = [word[2:] for word in words if word.startswith("-L")]
        for word in words:
            if word.startswith("-l"):
                name = word[3:] if word.startswith("-l:") else f"lib{word[2:]}.a"
                yield from (self._made.get(_path(folder, f"{one}/{name}"), Made()) for one in folders)
            elif not word.startswith("-") and (file := _path(folder, word)) not in self.linked:
                yield self._made.get(file, Made(objects=frozenset({file} if file.suffix == ".o" else ())))


def source_files(data: bytes) -> frozenset[str]:
    """The names of source files in the symbols of the library or object *data*; none if it is stripped."""
    try:
        return frozenset(ElfImage.read(memoryview(data)).source_files()) if data.startswith(MAGIC) else frozenset()
    except BinaryError:
        return frozenset()


def sources_of(objects: Iterable[Path]) -> frozenset[str]:
    """The names of source files in the symbols of those *objects* that are there."""
    found: frozenset[str] = frozenset()
    for file in objects:
        with suppress(OSError):
            found |= source_files(file.read_bytes())
    return found


def _is_source(word: str) -> bool:
    return not word.startswith("-") and word.endswith(_SOURCES)


def _expanded(words: list[str]) -> list[str]:
    """*words* with those of files in the place of these."""
    found: list[str] = []
    for word in words:
        with suppress(ValueError):  # a quotation mark that is not closed
            found.extend(shlex.split(word[1:]) if word.startswith("@") else [word])
    return found


def _output(words: list[str]) -> str:
    """The file that a command of *words* makes; empty if it does not say, or if that is a pipe."""
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
    """The file *name*, that a command in *folder* has spelled so."""
    file = PurePath(folder, name)
    return Path(_real(str(file.parent)), file.name)


def _code(data: bytes) -> bytes:
    """A digest of the machine code in the library *data*, which stripping does not change; empty if it has none.

    Of its sections: some linkers put the headers, which stripping changes, in one segment with the code.
    """
    if not data.startswith(MAGIC):
        return b""
    with suppress(BinaryError):
        image = ElfImage.read(memoryview(data))
        code = [image.view(one.span) for one in image.sections if one.header.sh_flags & SectionFlag.EXECINSTR]
        return blake2b(b"".join(code), digest_size=16).digest() if any(code) else b""
    return b""
