"""The ELF files of one wheel by installed path, which of them loads which, and which of them its code names.

What code and data name may be opened by path:

    *.py, *.pth, .data/scripts      libx.so.1, engine.so, libx (code appends the rest); in strings also
                                    demo.libs, .libs (appended to a package's name), *.so* (a pattern);
                                    lib*.so.1 for f"lib{name}.so.1"
    *.pyc without its *.py          the names that are wanted, anywhere: strings have no ends there
    *.json, *.toml, *.cfg, *.txt    libx.so.1, engine.so

Names that end in .dll or .dylib do not count for a Linux wheel.
"""

import ast
import hashlib
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

from msgspec import Struct

from vbuild.binary.linkage import LinkGraph
from vbuild.elf.catalogue import PlatformPolicy, hashed, is_shared_object, platforms_in
from vbuild.elf.linkage import link_graph, replaced_library
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, WheelError, at
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import in_threads
from vbuild.splitting.official import Provenance, Unproved
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import is_dist_info, recorded_sha256
from vbuild.wheel.paths import installed_path
from vbuild.wheel.zip_read import Member

Origin = Provenance | Unproved | None

# folders that repair tools make
_REPAIRED = re.compile(r"\.(libs|dylibs)$")
# by a library's file name, its headers, its bytes and its SHA-256
OriginFinder = Callable[[str, Loading, memoryview, str], Origin]

# appended to a package's name, it is the folder of its libraries
OWN_FOLDER = ".libs"

_PYTHON = (".py", ".pth")
_TEXTS = (".json", ".toml", ".cfg", ".ini", ".conf", ".txt", ".xml", ".yaml", ".yml")
_BYTECODE = ".pyc"
_SCRIPT = re.compile(r"[^/]+\.data/scripts/")
# the path of bytecode, to be replaced by that of its source
_CACHED = re.compile(r"(?:__pycache__/)?(?P<name>[^/]+?)(?:\.[\w-]+)?\.pyc$")
# bytes; a larger text is data, and no list of libraries
_LARGEST_TEXT = 1 << 20
_LARGEST_SOURCE = 1 << 26

_SUFFIX = re.compile(rb"\.so(?:\.[\w.+-]{0,250}|(?![\w-]))")
# matched backwards from the suffix
_STEM = re.compile(rb"[\w.+-]*")
_LONGEST = 255
# no name is longer than NAME_MAX, and without that bound a megabyte of digits in a string would take minutes
_START = re.compile(
    # a pattern that begins with letters is looked for twice as fast
    rb"lib(?:[\w.+-]{0,250}\.so[\w.]*"
    rb"|(?<=\blib)\w{3,}(?!\w)(?![\w.+*?\[\]{}%-]{0,250}\.(?:dylib|dll|lib|pyd)\b))"
)
# not x.solution, as in much Python
_HAS_SUFFIX = re.compile(rb"\.so(?![a-z])")
_PATTERN = re.compile(rb"[*?\]][\w.-]{0,250}\.so|\.so(?![a-z])[\w.]{0,250}[*?\[]|\.so\.[\"'{%]")
_IS_PATTERN = re.compile(r"[*?\]][\w.-]{0,250}\.so|\.so(?![a-z])[\w.]{0,250}[*?\[]")
# code appends a version here: f"libx.so.{major}" and the like
_OPEN_END = re.compile(r"(?<=\.so\.)(?:%\w|\{[^{}]*\})?$")
# put together: f"lib{name}.so.1", "lib{}.so".format(name), "lib%s.so" % name
_COMPOSED = re.compile(rb"\blib(?:\{[^{}\s]{0,80}\}|%s)[\w.-]{0,80}\.so(?:[\w.]|\{[^{}\s]{0,80}\}|%[sd]){0,80}")
_INSERTED = re.compile(r"\{[^{}]*\}|%[sd]")
_FOLDER = re.compile(r"(?<![\w-])[\w-][\w.-]{0,250}\.libs\b")
# after a name that is inserted: f"{__name__}.libs", "%s.libs", __name__ + ".libs"
_OWN_FOLDER = re.compile(r"(?:^|[^\w./-]|%s)\.libs\b")
# the byte before it is the length of a string
_OWN_FOLDER_IN_BYTECODE = re.compile(rb"(?:\x05|%s|\{\w*\})\.libs")


class SameLibrary(Struct, frozen=True):
    """The library that stays for another build of it, and the bytes in which they differ, by what these are.

    One that *is_published* stays in the wheel that has it.
    """

    sha256: str
    file_name: str
    traces: Mapping[str, int]
    is_published: bool = False


class WheelBinary(Struct, frozen=True, eq=False):
    """An ELF file of a wheel, installed at *path* below site-packages; a split may give it an *own_name*.

    It is another build of the library *same_as*; or *differs* says which one it is not the same as, and why.
    """

    member: Member
    path: str
    loading: Loading
    sha256: str
    origin: Origin = None
    own_name: str | None = None
    same_as: SameLibrary | None = None
    differs: str = ""

    @property
    def name(self) -> str:
        """The name of its file after the split."""
        return self.own_name or (self.same_as.file_name if self.same_as else self.file_name)

    @property
    def new_name(self) -> str | None:
        """Its name after the split, if that is another one."""
        return self.name if self.name != self.file_name else None

    @property
    def contents(self) -> str:
        """The SHA-256 of the library that stays for all builds of it."""
        return self.same_as.sha256 if self.same_as else self.sha256

    @property
    def file_name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def soname(self) -> str:
        """What the loader knows it by, before the split."""
        return self.loading.outline.soname or self.file_name

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def is_library(self) -> bool:
        return self.loading.outline.is_loadable and not (self.loading.modules or self.loading.is_program)

    @property
    def is_bundled(self) -> bool:
        """Whether a repair tool added it, under a name or in a folder that code does not know."""
        return hashed(self.file_name) is not None or _REPAIRED.search(self.folder) is not None

    @property
    def key(self) -> tuple[str, str]:
        """The same for the same library in another wheel."""
        return self.name, self.contents


@dataclass(frozen=True, eq=False)
class Bundle:
    """A wheel, and its ELF files by installed path, *binaries*; *outside* are those not below site-packages, by member.

    *mentions* are names of libraries and of their folders, with the files that have them; *damaged* are ELF files that
    cannot be read, with the reason. *published* are libraries that its release may require, by name, with what
    their -libs wheel is named after.
    """

    wheel: Wheel
    binaries: Mapping[str, WheelBinary]
    outside: Mapping[str, Loading] = field(default_factory=dict)
    mentions: Mapping[str, Collection[str]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def graph(self) -> LinkGraph:
        return link_graph({path: binary.loading for path, binary in self.binaries.items()}, platforms=self.platforms)

    @cached_property
    def platforms(self) -> tuple[PlatformPolicy, ...]:
        return platforms_in(self.wheel.name.platform)

    def new_name(self, path: str | None) -> str | None:
        return self.binaries[path].new_name if path else None

    def namer(self, binary: WheelBinary) -> str | None:
        """A file of the wheel that names *binary* or its folder, and may open it, or None."""
        return min(self.namers(binary), default=None)

    def namers(self, binary: WheelBinary) -> frozenset[str]:
        return self._namers_of[binary.path]

    @cached_property
    def _namers_of(self) -> Mapping[str, frozenset[str]]:
        return {
            path: frozenset(file for _, file in self._mentions_of(binary)) for path, binary in self.binaries.items()
        }

    def texts_naming(self, binary: WheelBinary) -> frozenset[str]:
        """The files that name *binary*, if each is a text in which nothing but its whole name stands for it."""
        whole = {binary.file_name, binary.soname}
        pairs = [*self._mentions_of(binary)]
        is_clear = all(name in whole and file not in self.binaries.keys() | self.outside.keys() for name, file in pairs)
        has_bytecode = any(member.path.endswith(".pyc") for member in self.wheel.members)
        return frozenset(file for _, file in pairs) if is_clear and not has_bytecode else frozenset()

    @cached_property
    def opened_by(self) -> Mapping[str, tuple[WheelBinary, ...]]:
        by_file: dict[str, list[WheelBinary]] = {}
        for binary in self.binaries.values():
            for file in self.namers(binary):
                by_file.setdefault(file, []).append(binary)
        return {file: tuple(binaries) for file, binaries in by_file.items()}

    @cached_property
    def hwcaps_copies(self) -> Mapping[str, str]:
        """By library, the copy that glibc loads instead of it on newer CPUs."""
        return {base: path for path in self.binaries if (base := replaced_library(path)) is not None}

    @cached_property
    def _patterns(self) -> tuple[tuple[str, str], ...]:
        patterns = ((name, files) for name, files in self.mentions.items() if {"*", "?", "["} & {*name})
        return tuple((name, file) for name, files in patterns for file in sorted(files))

    def patterns_of(self, path: str) -> Iterator[tuple[str, str]]:
        """The patterns that find a library at *path*, each with the file that has it."""
        return ((pattern, file) for pattern, file in self._patterns if _matches_pattern(pattern, path, by=file))

    def _mentions_of(self, binary: WheelBinary) -> Iterator[tuple[str, str]]:
        """What stands for *binary* in other files: its name, its folder's, a pattern, or a beginning; and the file."""
        names = {binary.file_name, binary.soname, binary.folder.rpartition("/")[2]}
        if binary.folder.endswith(OWN_FOLDER):
            names.add(OWN_FOLDER)
        if not binary.is_bundled:
            starts = (binary.file_name[:end] for end in range(1, len(binary.file_name) + 1))
            names.update(start for start in starts if ".so" not in start)
        yield from self.patterns_of(binary.path)
        for name in names:
            # libraries often have their own name in their data
            yield from ((name, file) for file in self.mentions.get(name, ()) if file != binary.path)

    @cached_property
    def folders(self) -> frozenset[str]:
        return frozenset(binary.folder for binary in self.binaries.values())

    @cached_property
    def libraries(self) -> tuple[WheelBinary, ...]:
        return tuple(binary for binary in self.binaries.values() if binary.is_library)


def _matches_pattern(pattern: str, path: str, *, by: str) -> bool:
    """Whether code of the member *by* that looks for *pattern* finds the library at *path*.

    A pattern without the beginning of a name is meant for the folders below that code's own.
    """
    name = path.rpartition("/")[2]
    if not fnmatchcase(name, pattern):
        return False
    begin = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    folder, slash, _ = (installed_path(by) or "").rpartition("/")
    return begin not in {"", "l", "li", "lib"} or path.startswith(folder + slash)


def spellings(name: str, *, is_bundled: bool) -> Iterator[str]:
    """What code may say for the library *name*: the name, and its beginning unless a repair tool made it."""
    yield name
    if not is_bundled and (start := re.match(r"lib\w{3,}", name)):
        yield start[0]


def _read(wheel: Wheel, member: Member) -> bytes:
    if member.size > _LARGEST_SOURCE:
        where = f"{wheel.path.name}: {member.path}: {member.size} bytes"
        raise WheelError(f"{where} of Python code, expected {_LARGEST_SOURCE} at most")
    return wheel.read(member)


def _in_text(text: bytes) -> Iterator[str]:
    for match in _SUFFIX.finditer(text):
        stem = _STEM.match(text[max(match.start() - _LONGEST, 0) : match.start()][::-1])
        if stem and stem[0]:
            # a full stop may end a sentence
            yield (stem[0][::-1] + match[0].rstrip(b".")).decode(errors="replace")


def _in_code(source: bytes) -> Iterator[str]:
    yield from (match.decode(errors="replace") for match in _START.findall(source))
    has_suffix = _HAS_SUFFIX.search(source)  # most sources have none, and all that follows takes ten times as long
    if has_suffix:
        yield from (_INSERTED.sub("*", match.decode(errors="replace")) for match in _COMPOSED.findall(source))
    if OWN_FOLDER.encode() in source or (has_suffix and _PATTERN.search(source)):
        for text in _strings(source):
            yield from _FOLDER.findall(text)
            if _OWN_FOLDER.search(text):
                yield OWN_FOLDER
            if _IS_PATTERN.search(text) or _OPEN_END.search(text):
                pattern = _OPEN_END.sub("*", text).rpartition("/")[2]
                yield from (pattern,) if len(pattern) <= _LONGEST else ()


def _strings(source: bytes) -> Iterator[str]:
    tree = None
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        warnings.simplefilter("ignore")  # about escapes that a later Python will refuse
        # a tree takes more than a hundred times the memory of its source
        tree = ast.parse(source) if len(source) <= _LARGEST_TEXT else None
    if tree is None:
        yield from source.decode(errors="replace").splitlines()
        return
    nodes = [*ast.walk(tree)]
    # to something else: f"{x}.libs", x + ".libs"
    appended = {id(text) for node in nodes if isinstance(node, ast.JoinedStr) for text in node.values[1:]}
    appended |= {id(node.right) for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)}
    for node in nodes:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or "\n" in node.value:
            continue
        # alone, it is the folder of libtool's results: os.path.join(folder, ".libs")
        if not node.value.startswith(OWN_FOLDER) or id(node) in appended:
            yield node.value


@dataclass(slots=True)
class WheelReader:
    """Reads wheels, a file that several have once; *room* is the folder for large inflated files."""

    find_origin: OriginFinder
    room: Path | None = None
    on_progress: Callable[[int], None] = lambda _size: None
    _known: dict[tuple[str, int, int], tuple[Loading, str, Origin]] = field(default_factory=dict)
    # by hash in RECORD, and whether it is code
    _texts: dict[tuple[str, bool], frozenset[str]] = field(default_factory=dict)

    def read(self, wheel: Wheel) -> Bundle:
        # also what is named like an ELF file and cannot be inflated: reading it says why
        members = [
            member
            for member in wheel.members
            if (head := wheel.head(member, len(MAGIC))) == MAGIC
            or (not head and member.size > 0 and is_shared_object(member.path))
        ]
        members.sort(key=lambda member: member.size, reverse=True)
        damaged: dict[str, str] = {}
        binaries: dict[str, WheelBinary] = {}
        outside: dict[str, Loading] = {}
        results = in_threads(
            partial(self._read_member, wheel), members, size=lambda member: member.size, threads=available_cores()
        )
        for member, result in zip(members, results, strict=True):
            if isinstance(result, str):
                damaged[member.path] = result
                continue
            loading, sha256, origin = result
            if (path := installed_path(member.path)) is None:
                outside[member.path] = loading
            else:
                binaries[path] = WheelBinary(member, path, loading, sha256, origin)
        ordered = {path: binaries[path] for path in sorted(binaries)}
        names: set[str] = set()
        for binary in (library for library in ordered.values() if library.is_library):
            for name in (binary.file_name, binary.soname):
                names.update(spellings(name, is_bundled=binary.is_bundled))
            if _REPAIRED.search(binary.folder):
                names.add(binary.folder.rpartition("/")[2])
        mentions = self._names(wheel, names)
        for path, loading in (*outside.items(), *((path, binary.loading) for path, binary in ordered.items())):
            for name in loading.mentioned:
                mentions.setdefault(name, set()).add(path)
        return Bundle(wheel, ordered, outside, mentions, damaged)

    def _read_member(self, wheel: Wheel, member: Member) -> tuple[Loading, str, Origin] | str:
        stated = wheel.row(member).hash or ""
        # with a wrong hash in RECORD, the size and the CRC-32 of the archive still tell two files apart
        key = stated, member.size, member.header.crc
        if key not in self._known:
            try:
                with wheel.mapped(member, folder=self.room) as data, at(member.path):
                    loading = wheel.learnt(member, data, Loading.parse)
                    sha256 = recorded_sha256(stated) or hashlib.sha256(data).hexdigest()
                    name = PurePosixPath(member.path).name
                    self._known[key] = loading, sha256, self.find_origin(name, loading, data, sha256)
            except BinaryError as error:
                return str(error).removeprefix(f"{member.path}: ")
        self.on_progress(member.size)
        return self._known[key]

    def _names(self, wheel: Wheel, wanted: Collection[str]) -> dict[str, set[str]]:
        """The names in *wheel*, each with its members; in bytecode only *wanted* names are found."""
        members_of: dict[str, set[str]] = {}
        sources = {member.path for member in wheel.members if member.path.endswith(".py")}
        for member in wheel.members:
            for name in self._in_member(wheel, member, sources, wanted):
                members_of.setdefault(name, set()).add(member.path)
        return members_of

    def _in_member(
        self, wheel: Wheel, member: Member, sources: Collection[str], wanted: Collection[str]
    ) -> Collection[str]:
        path = member.path
        is_script = _SCRIPT.match(path) and member.size <= _LARGEST_TEXT and wheel.head(member, len(MAGIC)) != MAGIC
        if path.endswith(_PYTHON) or is_script:
            return self._of_content(wheel, member, is_code=True)
        if path.endswith(_BYTECODE):
            if _CACHED.sub(r"\g<name>.py", path) in sources:
                return ()
            code = _read(wheel, member)
            names = {name for name in wanted if name.encode(errors="replace") in code}
            return names | {OWN_FOLDER} if _OWN_FOLDER_IN_BYTECODE.search(code) else names
        if path.endswith(_TEXTS) and member.size <= _LARGEST_TEXT and not is_dist_info(path):
            return self._of_content(wheel, member, is_code=False)
        return ()

    def _of_content(self, wheel: Wheel, member: Member, *, is_code: bool) -> frozenset[str]:
        known = wheel.row(member).hash or "", is_code
        if not known[0] or known not in self._texts:
            text = _read(wheel, member)
            self._texts[known] = frozenset((*_in_text(text), *(_in_code(text) if is_code else ())))
        return self._texts[known]
