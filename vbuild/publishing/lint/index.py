"""What PyPI refuses, by its upload handler, and whether a static simple index on disk is that of its files.

    a file of more than 100 MB, or what the project was granted, 1024 MB at most; 10 GB are the default for a project
    a version with a local part (PEP 440), a name that is not normalised (PEP 427, PEP 625)
    platform tags of one machine only, and those of systems that no specification defines
    a variant label: packaging's parse_wheel_filename does not know PEP 825's file names
    a zip archive with a comment, with members that are not stored or deflated, or that unpacks to 50 times its size
    requirements, also of Python, that cannot be read, or that are URLs; License-File without the file (PEP 639)
    invalid metadata

Other indexes take most of it. All that a static index lists is compared with the files: the pages of projects, with
URL, SHA-256, size, Requires-Python, METADATA's SHA-256; wheels next to the index = those in it.

PyPI's documentation, "Storage limits" and "Archives", and warehouse/forklift/legacy.py and warehouse/utils/wheel.py of
https://github.com/pypi/warehouse.
https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import RepackageError, VbuildError, WheelError
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import json_object, read_file, read_text
from vbuild.publishing.lint.files import LintedRelease, ReadySdist, ReadyWheel
from vbuild.publishing.lint.metadata import REQUIRES_DIST, shortened
from vbuild.publishing.model import PublishRule
from vbuild.publishing.releases import OfferedWheel
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.archive import files_in, open_wheel
from vbuild.wheel.name import VARIANTS_JSON, WheelName, escaped
from vbuild.wheel.sdist import SUFFIX, sdist_metadata
from vbuild.wheel.simple_index import IndexedFile, project_link
from vbuild.wheel.zip_read import ZipMethod

# PyPI's MB and GB are 1024 times 1024, and 1024 times that, bytes: MAX_FILESIZE and UPLOAD_LIMIT_CAP of its source
MB = 1 << 20
GB = 1 << 30
# bytes of all files of a project that never asked for more
PROJECT_LIMIT = 10 * GB
DEFAULT_LIMIT = 100
LARGEST_LIMIT = 1024


class IndexRules(Struct, frozen=True):
    """PyPI, where one file may have *limit* MB (its page "Storage limits"), or an index that takes any wheels."""

    is_pypi: bool = False
    limit: int = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        if not 0 < self.limit <= LARGEST_LIMIT:
            raise RepackageError(f"a limit of {self.limit} MB a file: expected 1 to {LARGEST_LIMIT}, PyPI's largest")

    @property
    def severity(self) -> Severity:
        """The severity of what only PyPI refuses."""
        return Severity.ERROR if self.is_pypi else Severity.WARNING


# warehouse looks at the ratio from 64 MB unpacked on
_BOMB = 64 * MB
_RATIO = 50
_OF_VARIANTS = "variant_"
_TAGS = "https://packaging.python.org/en/latest/specifications/platform-compatibility-tags"
_LIMITS = "PyPI's help has a page on storage limits"


def refusals(release: LintedRelease, terms: IndexRules) -> Iterator[Finding]:
    """What PyPI refuses of *release*; for other indexes only what installers mind as well, as warnings."""
    for file in release.distributions:
        yield from _size(file, terms)
        yield from _requirements(file, terms)
        if terms.is_pypi:
            yield from _metadata(file)
    for wheel in release.wheels:
        yield from _name(wheel, terms)
        if terms.is_pypi or wheel.is_unread:
            yield from _methods(wheel, terms)
        if terms.is_pypi:
            yield from _archive(wheel, terms)
    if terms.is_pypi:
        yield from _kinds(release)


def totals(releases: Iterable[LintedRelease], terms: IndexRules) -> Iterator[Finding]:
    sizes: dict[str, int] = {}
    for release in releases:
        sizes[release.project] = sizes.get(release.project, 0) + sum(file.size for file in release.distributions)
    for project, size in sizes.items():
        if terms.is_pypi and size > PROJECT_LIMIT:
            default = f"{PROJECT_LIMIT} ({PROJECT_LIMIT // GB} GB) by default, earlier releases included"
            fault = f"{size} bytes in all; PyPI gives a project {default}"
            advice = f"ask for more, or remove old releases: {_LIMITS}"
            yield Finding(Severity.WARNING, PublishRule.SIZE, (project,), fault, advice)


def _size(file: ReadyWheel | ReadySdist, terms: IndexRules) -> Iterator[Finding]:
    limit = terms.limit * MB
    if file.size <= limit:
        return
    fault = f"{file.size} bytes; PyPI takes {limit} ({terms.limit} MB) at most"
    advice = f"make it smaller (vbuild slim, vbuild split), or ask for a larger limit and give it: {_LIMITS}"
    if file.size > LARGEST_LIMIT * MB:
        fault = f"{file.size} bytes; PyPI takes {LARGEST_LIMIT * MB} (1 GB) at most, whatever limit it grants"
        advice = "make it smaller (vbuild slim, vbuild split), or serve it from an index of your own"
    elif terms.limit != DEFAULT_LIMIT:
        fault = f"{file.size} bytes; the limit that was given is {limit} ({terms.limit} MB)"
    yield Finding(terms.severity, PublishRule.SIZE, (file.file,), fault, advice)


def _name(wheel: ReadyWheel, terms: IndexRules) -> Iterator[Finding]:
    expected = escaped(wheel.name.distribution)
    if wheel.name.distribution != expected:
        fault = f"begins with {wheel.name.distribution!r}, which is not normalised (PEP 427)"
        advice = f"build it with a backend that writes {expected!r}"
        yield Finding(terms.severity, PublishRule.NAME, (wheel.file,), fault, advice)
    for platform in wheel.name.platform.split("."):
        if is_bare_linux(platform):
            fault = f"platform tag {platform} says neither which libc it needs nor which version"
            advice = "repair the wheel: vbuild repair, or auditwheel"
        elif terms.is_pypi and not is_taken(platform):
            fault = f"platform tag {platform} is not one that PyPI takes"
            advice = f"give it one of {_TAGS}"
        else:
            continue
        yield Finding(terms.severity, PublishRule.PLATFORM, (wheel.file,), fault, advice)


_REWRITE = "write it again as other wheels are: vbuild stamp, or wheel unpack and pack"


def _methods(wheel: ReadyWheel, terms: IndexRules) -> Iterator[Finding]:
    for method in wheel.methods:
        if method == ZipMethod.ZSTD and wheel.name.variant:
            fault = "members are compressed with zstd, which uv reads, and PyPI and pip do not"
            yield Finding(Severity.WARNING, PublishRule.ARCHIVE, (wheel.file,), fault, _REWRITE)
            continue
        fault = f"members are compressed with method {method}; PyPI takes stored and deflated ones"
        unread = ", and vbuild does not compare these with RECORD" if wheel.is_unread else ""
        yield Finding(terms.severity, PublishRule.ARCHIVE, (wheel.file,), fault + unread, _REWRITE)


def _archive(wheel: ReadyWheel, terms: IndexRules) -> Iterator[Finding]:
    for path, quirk in wheel.quirks:
        # PyPI refuses two members of one name, and warns of a RECORD with other paths (its blog, 2025-08-07)
        severity = Severity.WARNING if path.endswith("/RECORD") else terms.severity
        yield Finding(severity, PublishRule.ARCHIVE, (wheel.file,), f"{path}: {quirk}", _REWRITE)
    if wheel.has_comment:
        fault = "its archive has a comment, which PyPI refuses"
        yield Finding(Severity.ERROR, PublishRule.ARCHIVE, (wheel.file,), fault, _REWRITE)
    if wheel.unpacked > max(_BOMB, _RATIO * wheel.size):
        fault = f"unpacks from {wheel.size} to {wheel.unpacked} bytes; PyPI takes {_RATIO} times the size at most"
        advice = "leave out what is only zeros: vbuild slim, strip"
        yield Finding(Severity.ERROR, PublishRule.ARCHIVE, (wheel.file,), fault, advice)


def _requirements(file: ReadyWheel | ReadySdist, terms: IndexRules) -> Iterator[Finding]:
    for field, line, reason in file.metadata.unreadable:
        if terms.is_pypi and field != REQUIRES_DIST:
            continue  # among what PyPI refuses of metadata
        advice = "write it as installers read it (PEP 508)"
        if _OF_VARIANTS in line:
            advice = "write what every installer knows: none of today knows markers of variants (PEP 825)"
        fault = f"{field} {shortened(line)!r} cannot be read: {reason}"
        yield Finding(terms.severity, PublishRule.REQUIREMENT, (file.file,), fault, advice)
    for line in file.metadata.direct if terms.is_pypi else ():
        fault = f"Requires-Dist {shortened(line)!r} is a URL, which PyPI refuses"
        advice = "require a release of it by version"
        yield Finding(Severity.ERROR, PublishRule.REQUIREMENT, (file.file,), fault, advice)


def _metadata(file: ReadyWheel | ReadySdist) -> Iterator[Finding]:
    for reason in file.metadata.refused:
        fault = f"its metadata say what PyPI refuses: {reason}"
        yield Finding(Severity.ERROR, PublishRule.METADATA, (file.file,), fault, "put it right in pyproject.toml")
    for path in file.lacks:
        where = "wheel's licenses folder" if isinstance(file, ReadyWheel) else "sdist"
        fault = f"License-File {path!r} is not in the {where}, which PyPI refuses (PEP 639)"
        yield Finding(Severity.ERROR, PublishRule.LICENSE, (file.file,), fault, "add the file, or take the line out")


def _kinds(release: LintedRelease) -> Iterator[Finding]:
    version = Version(release.version)
    if version.local:
        fault = f"version {version} has the local part +{version.local}, and PyPI takes none (PEP 440)"
        advice = f"publish {version.public}: variants can say what the local part does"
        files = tuple(file.file for file in release.distributions)
        yield Finding(Severity.ERROR, PublishRule.LOCAL_VERSION, files, fault, advice)
    if labelled := tuple(wheel.file for wheel in release.variants):
        fault = "PyPI takes no variant wheels yet, nor variants.json (PEP 825)"
        advice = "upload the other files alone, and serve these from an index of your own: vbuild index --simple"
        yield Finding(Severity.ERROR, PublishRule.VARIANT, labelled, fault, advice)


# PEP 513, 571, 599, 600 (glibc), 656 (musl), 730, 738, 783; macOS counts 10.Y, and from 11 on X.0
_AS_THEY_ARE = frozenset({"any", "win32", "win_amd64", "win_arm64", "win_ia64", "linux_armv6l", "linux_armv7l"})
_JOINT = "x86_64|i686|aarch64|armv7l|ppc64le|s390x|riscv64"
_MAC = "ppc|ppc64|i386|x86_64|arm64|intel|fat|fat3|fat64|universal|universal2"
_TAKEN = re.compile(
    rf"""
    manylinux(1|2010)_(x86_64|i686)
    | manylinux2014_(x86_64|i686|aarch64|armv7l|ppc64|ppc64le|s390x)
    | manylinux_\d+_\d+_({_JOINT}|ppc64) | musllinux_\d+_\d+_({_JOINT})
    | macosx_10_\d+_({_MAC}) | macosx_(1[1-5]|26)_0_({_MAC})
    | ios_\d+_\d+_(arm64|x86_64)_(iphoneos|iphonesimulator)
    | android_\d+_(armeabi_v7a|arm64_v8a|x86|x86_64)
    | pyemscripten_\d+_\d+_wasm32
    """,
    re.VERBOSE | re.ASCII,
)
_BARE_LINUX = "linux_"


def is_taken(platform: str) -> bool:
    return platform in _AS_THEY_ARE or _TAKEN.fullmatch(platform) is not None


def is_uploadable(name: WheelName) -> bool:
    """Whether PyPI takes a wheel of this name."""
    is_public = name.variant is None and Version(name.version).local is None
    return is_public and all(map(is_taken, name.platform.split(".")))


def is_bare_linux(platform: str) -> bool:
    """Whether the tag is of the Linux machine that the wheel was built on, whatever its libc."""
    return platform.startswith(_BARE_LINUX) and platform not in _AS_THEY_ARE


INDEX = "simple"

_AGAIN = "publish the wheels again into an empty folder: vbuild publish"
_LISTED = (".whl", SUFFIX, VARIANTS_JSON)
_LINK = re.compile(r"<a [^>]*>[^<]*</a>")


def layout_problem(layout: str, rule: PublishRule, subject: str, fault: str) -> Finding:
    return Finding(Severity.ERROR, rule, (subject,), fault, f"{_AGAIN} --layout {layout}")


def wheels_in(folder: Path, wheels: list[OfferedWheel]) -> Iterator[Finding]:
    """Adds to *wheels*; yields those that cannot be read."""
    for path in files_in(folder, ".whl"):
        try:
            wheels.append(OfferedWheel.of(path))
        except VbuildError as error:
            fault = str(error).removeprefix(f"{path}: ").removeprefix(f"{path.name}: ")
            yield Finding(Severity.ERROR, PublishRule.ARCHIVE, (path.name,), fault, _AGAIN)


def index_problems(folder: Path) -> Iterator[Finding]:
    simple = folder / INDEX
    if not simple.is_dir():
        yield _wrong(simple, "there is no index here")
        return
    beside = {path.name: path for path in folder.iterdir() if _is_listed(path)}
    projects = sorted(path for path in simple.iterdir() if path.is_dir())
    names = {path.name for path in projects}
    if others := names ^ {str(row.get("name")) for row in _rows(simple / "index.json", "projects")}:
        fault = f"lists other projects than have a folder: {', '.join(sorted(others))}"
        yield _wrong(simple / "index.json", fault)
    yield from _links(simple / "index.html", map(project_link, names))
    for project in projects:
        yield from _project(project, beside)
    listed = {path.name for project in projects for path in project.iterdir()}
    yield from (_wrong(beside[name], f"is not in {INDEX}") for name in sorted(beside.keys() - listed))


def _is_listed(path: Path) -> bool:
    return path.name.endswith(_LISTED) and path.is_file()


def _project(folder: Path, beside: Mapping[str, Path]) -> Iterator[Finding]:
    page = folder / "index.json"
    rows = {str(row.get("filename")): row for row in _rows(page, "files")}
    files = {path.name: path for path in sorted(folder.iterdir()) if _is_listed(path)}
    for name in sorted(rows.keys() ^ files.keys()):
        yield _wrong(page, f"lists {name}, which is not there" if name in rows else f"does not list {name}")
    links = []
    for name, path in files.items():
        indexed, metadata = _indexed(path)
        links.append(indexed.link())
        expected = indexed.data()
        row = rows.get(name, expected)
        for key in sorted(row.keys() | expected.keys()):
            if row.get(key) != expected.get(key):
                fault = f"gives {name} {key} {json.dumps(row.get(key))}; expected {json.dumps(expected.get(key))}"
                yield _wrong(page, fault)
        if name not in beside:
            yield _wrong(path, "is in the index only")
        elif not beside[name].samefile(path) and sha256_of(beside[name]) != indexed.sha256:
            yield _wrong(path, "is another file than the one of its name beside the index")
        file = path.with_name(f"{name}.metadata")
        if metadata is not None and not (file.is_file() and read_file(file) == metadata):
            yield _wrong(file, "is not METADATA of the wheel")
    yield from _links(folder / "index.html", links)


def _indexed(path: Path) -> tuple[IndexedFile, bytes | None]:
    metadata = requires_python = None
    with suppress(VbuildError):
        if path.suffix == ".whl":
            with open_wheel(path) as wheel:
                metadata = wheel.read(f"{wheel.dist_info}/METADATA")
                requires_python = wheel.metadata().requires_python
        elif path.name.endswith(SUFFIX):
            requires_python = sdist_metadata(path).requires_python
    metadata_sha256 = None if metadata is None else sha256(metadata).hexdigest()
    return (
        IndexedFile(path.name, "", path.stat().st_size, sha256_of(path), requires_python, metadata_sha256),
        metadata,
    )


def _links(page: Path, expected: Iterable[str]) -> Iterator[Finding]:
    try:
        text = read_text(page)
    except (OSError, UnicodeDecodeError):
        text = ""
    if sorted(_LINK.findall(text)) != sorted(expected):
        yield _wrong(page, "does not list what is there")


def _rows(page: Path, key: str) -> list[dict[str, Any]]:
    try:
        rows = json_object(read_file(page), WheelError).get(key)
    except (OSError, WheelError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _wrong(path: Path, fault: str) -> Finding:
    parts = path.parts
    shown_path = "/".join(parts[parts.index(INDEX) :] if INDEX in parts else parts[-1:])
    return Finding(Severity.ERROR, PublishRule.INDEX, (shown_path,), fault, _AGAIN)
