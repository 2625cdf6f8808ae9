"""The names of libraries that stand in the code and the data of a wheel: whoever has one may open it by its path.

    *.py, *.pth, .data/scripts      libx.so.1, engine.so, libx (code puts the rest behind it); in strings also
                                    demo.libs, .libs (behind a package's name), *.so* (a pattern)
    *.pyc whose *.py is not there   what is sought, wherever it stands: strings have no ends there
    *.json, *.toml, *.cfg, *.txt    libx.so.1, engine.so

Names are looked for in every file once, whatever the wheel's libraries are called: most files have none.
"""

import ast
import re
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from vbuild.elf.records import MAGIC
from vbuild.errors import WheelError
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import is_dist_info
from vbuild.wheel.paths import installed_path
from vbuild.wheel.zip_read import Member

# what names the folder of libraries beside a package
OWN_FOLDER = ".libs"

_PYTHON = (".py", ".pth")
_TEXTS = (".json", ".toml", ".cfg", ".ini", ".conf", ".txt", ".xml", ".yaml", ".yml")
_BYTECODE = ".pyc"
_SCRIPT = re.compile(r"[^/]+\.data/scripts/")
_CACHED = re.compile(r"(?:__pycache__/)?(?P<name>[^/]+?)(?:\.[\w-]+)?\.pyc$")
# bytes: larger ones are data, and nobody's list of libraries
_LARGEST_TEXT = 1 << 20
_LARGEST_SOURCE = 1 << 26
_UNREADABLE = b"("

_SUFFIX = re.compile(rb"\.so(?:\.[\w.+-]{0,250}|(?![\w-]))")
# backwards, from the suffix on
_STEM = re.compile(rb"[\w.+-]*")
_LONGEST = 255
# no name is longer than NAME_MAX, and without that bound a megabyte of digits in a string would take minutes
_START = re.compile(rb"lib[\w.+-]{0,250}\.so[\w.]*|\blib\w{3,}")
_PATTERN = re.compile(rb"[*?\]][\w.-]{0,250}\.so|\.so[\w.]{0,250}[*?\[]|\.so\.[\"'{%]")
_IS_PATTERN = re.compile(r"[*?\]][\w.-]{0,250}\.so|\.so[\w.]{0,250}[*?\[]")
# where code puts a version behind: f"libx.so.{major}" and the like
_OPEN_END = re.compile(r"(?<=\.so\.)(?:%\w|\{[^{}]*\})?$")
_FOLDER = re.compile(r"(?<![\w-])[\w-][\w.-]{0,250}\.libs\b")
# behind a name that is put in: f"{__name__}.libs", "%s.libs", __name__ + ".libs"
_OWN_FOLDER = re.compile(r"(?:^|[^\w./-]|%s)\.libs\b")
# the byte in front is the length of a string
_OWN_FOLDER_IN_BYTECODE = re.compile(rb"(?:\x05|%s|\{\w*\})\.libs")


@dataclass(slots=True)
class Naming:
    """Reads the code and the texts of wheels; what one has that another had before is known by its hash in RECORD."""

    _known: dict[tuple[str, bool], frozenset[str]] = field(default_factory=dict)

    def names(self, wheel: Wheel, sought: Collection[str]) -> dict[str, set[str]]:
        """The names in *wheel*, with the members where each stands; in bytecode only those that are *sought*."""
        found: dict[str, set[str]] = {}
        sources = {member.path for member in wheel.members if member.path.endswith(".py")}
        for member in wheel.members:
            for name in self._in_member(wheel, member, sources, sought):
                found.setdefault(name, set()).add(member.path)
        return found

    def _in_member(
        self, wheel: Wheel, member: Member, sources: Collection[str], sought: Collection[str]
    ) -> Collection[str]:
        path = member.path
        if path.endswith(_PYTHON) or _is_script(wheel, member):
            return self._of_content(wheel, member, is_code=True)
        if path.endswith(_BYTECODE):
            return () if _source_of(path) in sources else [*_in_bytecode(_read(wheel, member), sought)]
        if path.endswith(_TEXTS) and member.size <= _LARGEST_TEXT and not is_dist_info(path):
            return self._of_content(wheel, member, is_code=False)
        return ()

    def _of_content(self, wheel: Wheel, member: Member, *, is_code: bool) -> frozenset[str]:
        known = wheel.row(member).hash or "", is_code
        if not known[0] or known not in self._known:
            text = _read(wheel, member)
            self._known[known] = frozenset((*_in_text(text), *(_in_code(text) if is_code else ())))
        return self._known[known]


def is_meant(pattern: str, path: str, *, by: str) -> bool:
    """Whether code of the member *by* that looks for files by *pattern* finds the library at *path*.

    A pattern that is of no library's name in particular is one for the folders below that code's.
    """
    name = path.rpartition("/")[2]
    if not fnmatchcase(name, pattern):
        return False
    begin = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    folder, slash, _ = (installed_path(by) or "").rpartition("/")
    return begin not in {"", "l", "li", "lib"} or path.startswith(folder + slash)


def is_pattern(name: str) -> bool:
    """Whether *name* stands for several."""
    return not {"*", "?", "["}.isdisjoint(name)


def sought(name: str, *, is_bundled: bool) -> Iterator[str]:
    """What names the library *name*: itself, and the start that code puts the rest behind if it can know that."""
    yield name
    if not is_bundled and (start := re.match(r"lib\w{3,}", name)):
        yield start[0]


def _is_script(wheel: Wheel, member: Member) -> bool:
    is_there = _SCRIPT.match(member.path) is not None and member.size <= _LARGEST_TEXT
    return is_there and wheel.head(member, len(MAGIC)) != MAGIC


def _read(wheel: Wheel, member: Member) -> bytes:
    if member.size > _LARGEST_SOURCE:
        what = f"{wheel.path.name}: {member.path}: {member.size} bytes"
        raise WheelError(f"{what} of Python code, expected {_LARGEST_SOURCE} at most")
    return wheel.read(member)


def _source_of(path: str) -> str:
    """Where the source of the bytecode at *path* would be."""
    return _CACHED.sub(r"\g<name>.py", path)


def _in_text(text: bytes) -> Iterator[str]:
    """The names of files that are libraries."""
    for match in _SUFFIX.finditer(text):
        stem = _STEM.match(text[max(match.start() - _LONGEST, 0) : match.start()][::-1])
        if stem and stem[0]:
            # a full stop may end the sentence
            yield (stem[0][::-1] + match[0].rstrip(b".")).decode(errors="replace")


def _in_code(source: bytes) -> Iterator[str]:
    yield from (match.decode(errors="replace") for match in _START.findall(source))
    if OWN_FOLDER.encode() in source or _PATTERN.search(source):
        for text in _strings(source):
            yield from _FOLDER.findall(text)
            if _OWN_FOLDER.search(text):
                yield OWN_FOLDER
            if _IS_PATTERN.search(text) or _OPEN_END.search(text):
                pattern = _OPEN_END.sub("*", text).rpartition("/")[2]
                yield from (pattern,) if len(pattern) <= _LONGEST else ()


def _strings(source: bytes) -> Iterator[str]:
    """The strings of one line in the code *source*, or its lines; documentation tells of numpy.libs, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # a tree takes more than a hundred times the memory
            tree = ast.parse(source if len(source) <= _LARGEST_TEXT else _UNREADABLE)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            yield from source.decode(errors="replace").splitlines()
            return
    nodes = [*ast.walk(tree)]
    put_behind = {id(each) for node in nodes for each in _behind(node)}
    for node in nodes:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or "\n" in node.value:
            continue
        # alone it is where libtool keeps what it has built: os.path.join(folder, ".libs")
        if not node.value.startswith(OWN_FOLDER) or id(node) in put_behind:
            yield node.value


def _behind(node: ast.AST) -> Iterator[ast.AST]:
    """The strings that *node* puts behind something else."""
    match node:
        case ast.JoinedStr(values=values):
            yield from values[1:]
        case ast.BinOp(op=ast.Add(), right=right):
            yield right


def _in_bytecode(code: bytes, sought: Collection[str]) -> Iterator[str]:
    yield from (name for name in sought if name.encode(errors="replace") in code)
    if _OWN_FOLDER_IN_BYTECODE.search(code):
        yield OWN_FOLDER
