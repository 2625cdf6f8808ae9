"""Find the names of libraries in the code and the data of a wheel, which may open them by path.

    *.py, *.pth, .data/scripts      libx.so.1, engine.so, libx (code appends the rest); in strings also
                                    demo.libs, .libs (appended to a package's name), *.so* (a pattern);
                                    lib*.so.1 for f"lib{name}.so.1"
    *.pyc without its *.py          the names that are wanted, anywhere: strings have no ends there
    *.json, *.toml, *.cfg, *.txt    libx.so.1, engine.so

Names that end in .dll or .dylib do not count for a Linux wheel.
"""

import ast
import re
import warnings
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from vbuild.elf.records import MAGIC
from vbuild.errors import WheelError
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import is_dist_info
from vbuild.wheel.paths import installed_path
from vbuild.wheel.zip_read import Member

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


@dataclass(slots=True)
class MentionReader:
    """A file that several wheels have is read once, by its hash in RECORD."""

    _known: dict[tuple[str, bool], frozenset[str]] = field(default_factory=dict)

    def names(self, wheel: Wheel, wanted: Collection[str]) -> dict[str, set[str]]:
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
        if not known[0] or known not in self._known:
            text = _read(wheel, member)
            self._known[known] = frozenset((*_in_text(text), *(_in_code(text) if is_code else ())))
        return self._known[known]


def matches_pattern(pattern: str, path: str, *, by: str) -> bool:
    """Whether code of the member *by* that looks for *pattern* finds the library at *path*.

    A pattern without the beginning of a name is meant for the folders below that code's own.
    """
    name = path.rpartition("/")[2]
    if not fnmatchcase(name, pattern):
        return False
    begin = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    folder, slash, _ = (installed_path(by) or "").rpartition("/")
    return begin not in {"", "l", "li", "lib"} or path.startswith(folder + slash)


def is_pattern(name: str) -> bool:
    return not {"*", "?", "["}.isdisjoint(name)


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
