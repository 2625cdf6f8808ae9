"""Whether the members of joined wheels that no processor runs are the same in each, and which may differ.

*.dist-info/RECORD, WHEEL, variant.json, sboms/*   of one wheel by their nature: the join has its own
*.dist-info/METADATA                               what is required must be the same; the baseline's is taken
*.pyc beside its *.py                              made anew by Python where it does not fit: the baseline's
texts, and strings in Python code                  may differ in flags of a compiler, absolute paths and the name of
                                                   a level, as records of a build do: the baseline's is taken
all else                                           must be the same
"""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from vbuild.layout.hwcaps.build import Build
from vbuild.wheel.distinfo import Metadata, is_dist_info
from vbuild.wheel.installed import installed_path

_OWN = re.compile(r"RECORD(?:\.jws|\.p7s)?|WHEEL|variant\.json|sboms/.*|direct_url\.json|INSTALLER|REQUESTED")
_REQUIRING = ("Requires-Dist", "Requires-Python", "Provides-Extra", "Requires-External")
_TEXTS = (".json", ".txt", ".pc", ".cmake", ".log", ".yaml", ".yml", ".toml", ".cfg", ".ini")
_CACHED = re.compile(r"(?:__pycache__/)?(?P<name>[^/]+?)(?:\.[\w-]+)?\.pyc$")
# bytes: a record of a build is short
_LARGEST = 1 << 20
_BUILD = re.compile(
    r"(?<![\w-])-[mfWODILgz][\w./=+,:-]*"  # flags of a compiler
    r"|(?<![\w.])/[\w./+@-]+"  # absolute paths
    r"|(?<!\w)x86[-_]64(?:[-_]v[1-4])?(?!\w)"
    r"|[\s,]+"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A member that is not the same in two wheels, by its path in the other one, or where that *is_lack* of it."""

    path: str
    what: str
    is_lack: bool = False


def differences(base: Build, other: Build) -> Iterator[Difference]:
    """The members of *other* that are no compiled files, and are not what *base* has, by any of the rules."""
    ours, theirs = _rest(base), _rest(other)
    for place, path in theirs.items():
        if place not in ours:
            yield Difference(path, f"only the wheel for {other.cpu} has it")
        elif not _is_same(base, ours[place], other, path):
            yield Difference(path, _saying(base, other, path))
    for place, path in ours.items():
        if place not in theirs:
            yield Difference(path, f"the wheel for {other.cpu} lacks it", is_lack=True)


def _saying(base: Build, other: Build, path: str) -> str:
    if path.endswith(".dist-info/METADATA"):
        for name in _REQUIRING:
            one, two = (build.offered.metadata.headers.values(name) for build in (base, other))
            if found := sorted({*one} ^ {*two}):
                return f"{name}: {found[0]}: in one of the wheels for {base.cpu} and {other.cpu} only"
    return f"the wheels for {base.cpu} and {other.cpu} differ in it, and no processor's level chooses such a file"


def _rest(build: Build) -> dict[str, str]:
    """The members that are no compiled files by where they are installed, without those that each wheel has its own."""
    compiled = {piece.member.path for piece in build.pieces.values()}
    compiled |= {*build.bundle.elsewhere, *build.bundle.damaged}
    found = {}
    for row in build.offered.rows:
        _, _, name = row.path.partition(".dist-info/")
        if row.path not in compiled and not (is_dist_info(row.path) and _OWN.fullmatch(name)):
            found[_place(row.path)] = row.path
    return found


def _place(path: str) -> str:
    """What tells the member *path* in two wheels to be the same: data folders have the version in their names."""
    installed = installed_path(path)
    return f"*.data{path.partition('.data')[2]}" if installed is None else installed


def _is_same(base: Build, ours: str, other: Build, theirs: str) -> bool:
    one, two = ({row.path: row for row in build.offered.rows} for build in (base, other))
    if one[ours].hash == two[theirs].hash:
        return True
    if is_dist_info(ours) and ours.endswith("/METADATA"):
        return _requires(base.offered.metadata) == _requires(other.offered.metadata)
    if ours.endswith(".pyc"):
        return _CACHED.sub(r"\g<name>.py", ours) in one
    if not ours.endswith((".py", *_TEXTS)) or max(one[ours].size or 0, two[theirs].size or 0) > _LARGEST:
        return False
    return _tells_same(base.bundle.wheel.read(ours), other.bundle.wheel.read(theirs), is_code=ours.endswith(".py"))


def _tells_same(one: bytes, other: bytes, *, is_code: bool) -> bool:
    try:
        if is_code:
            return _tokens(one) == _tokens(other)
        return _of_text(one) == _of_text(other)
    except (UnicodeDecodeError, tokenize.TokenError, SyntaxError):
        return one == other


def _of_text(data: bytes) -> str:
    """The text *data* without what tells of a build, and without the quotes around that."""
    return _BUILD.sub("", data.decode()).replace('"', "").replace("'", "")


def _requires(metadata: Metadata) -> list[tuple[str, ...]]:
    return [tuple(sorted(metadata.headers.values(name))) for name in _REQUIRING]


def _tokens(source: bytes) -> list[tuple[int, str]]:
    """The words of the Python code *source*; its strings without what tells of a build, comments left out."""
    return [
        (token.type, _BUILD.sub("", token.string) if token.type == tokenize.STRING else token.string)
        for token in tokenize.tokenize(io.BytesIO(source).readline)
        if token.type not in {tokenize.COMMENT, tokenize.NL}
    ]
