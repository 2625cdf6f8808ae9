"""What a wheel lacks of the wheel that its project published of the same version.

    modules         a compiled module that is missing, or that became Python: an error
    dispatch        CPU features that published code is chosen for at run time, and none of ours: an error
    files, tags     other files that are missing, a newer glibc: warnings

Names of modules are compared without the tag of the ABI: ``_aes.abi3.so`` and ``_aes.cpython-311-….so`` are one.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct
from packaging.tags import Tag
from packaging.version import Version

from vbuild.errors import FetchError, WheelError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import ListedFile, download_best
from vbuild.verification.model import Finding, Severity, Verdict, VerifyRule, is_grafted
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

_ABI_TAG = re.compile(r"\.(abi3|cpython-[\w-]+|pypy[\w-]+)(?=\.so$)")
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_|manylinux(1|2010|2014)_")
_LEGACY = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}
_SHOWN = 5


class _Contents(Struct, frozen=True):
    """The modules of a wheel by their names, each with the features it dispatches to; its other files; its glibc."""

    modules: Mapping[str, frozenset[str]]
    files: frozenset[str]
    glibc: tuple[int, int] | None

    @classmethod
    def of(cls, verdict: Verdict) -> "_Contents":
        """The contents of the wheel of *verdict*; `WheelError` if it cannot be read."""
        dispatched = {library.member: frozenset(library.dispatched) for library in verdict.libraries}
        modules, files = {}, set()
        with open_wheel(verdict.wheel) as source:
            for path in (member.path for member in source.members):
                if is_grafted(path) or path.partition("/")[0].endswith(".dist-info"):
                    continue
                if path in dispatched:
                    modules[_ABI_TAG.sub("", path)] = dispatched[path]
                elif not path.endswith(".so"):
                    files.add(path)
        return cls(modules, frozenset(files), _glibc(WheelName.parse(verdict.wheel.name).tags))


def against_index(verdict: Verdict, folder: Path, indexes: Callable[[], Indexes]) -> tuple[Finding, ...]:
    """What the wheel of *verdict* lacks of the one that the index has of its version, downloaded into *folder*.

    A note if the index has none. `WheelError` if one of the two cannot be read.
    """
    try:
        if published := published_wheel(verdict.wheel, folder, indexes):
            return lost(verdict, published)
        name = WheelName.parse(verdict.wheel.name)
        what = f"not compared: no index has a wheel of {name.project} {name.version} for this Python and platform"
    except FetchError as error:
        what = f"not compared with the published wheel: {error}"
    return (Finding(Severity.NOTE, VerifyRule.PUBLISHED, (), what),)


def published_wheel(wheel: Path, folder: Path, indexes: Callable[[], Indexes]) -> Path | None:
    """The wheel that the index has of the version of *wheel*, for its Python and platform, or None if it has none.

    It is in *folder*, downloaded unless that has it already. `FetchError` if no index can be asked.
    """
    there = next(folder.glob("*.whl"), None)
    name = WheelName.parse(wheel.name)
    return there or download_best(name.project, partial(_fit, name), folder, indexes=indexes())


def _fit(ours: WheelName, listed: ListedFile) -> int | None:
    """How near the file *listed* is to *ours*, from 0 on; None if it is of another version, Python or platform."""
    if not listed.is_wheel or listed.is_yanked or listed.version != Version(ours.version):
        return None
    try:
        theirs = WheelName.parse(listed.file)
    except WheelError:
        return None
    if theirs.variant or not {_platform(tag) for tag in theirs.tags} & {_platform(tag) for tag in ours.tags}:
        return None
    ranks = [_fit_of(one, other) for one in ours.tags for other in theirs.tags]
    return min((rank for rank in ranks if rank is not None), default=None)


def _fit_of(ours: Tag, theirs: Tag) -> int | None:
    if (ours.interpreter, ours.abi) == (theirs.interpreter, theirs.abi):
        return 0
    if "abi3" in {ours.abi, theirs.abi} and ours.interpreter[:2] == theirs.interpreter[:2]:
        return 1
    return None


def _platform(tag: Tag) -> str:
    """The C library and the machine of a tag, as in ``manylinux x86_64``."""
    library = tag.platform.partition("_")[0].rstrip("0123456789")
    machine = next((name for name in ("x86_64", "aarch64") if tag.platform.endswith(name)), tag.platform)
    return f"{'manylinux' if library == 'linux' else library} {machine}"


def lost(verdict: Verdict, published: Path) -> tuple[Finding, ...]:
    """What the wheel of *verdict* lacks that the *published* one has; `WheelError` if one of them cannot be read."""
    return tuple(_lost(_Contents.of(verdict), _Contents.of(verify(published, cpu=verdict.cpu))))


def _lost(ours: _Contents, theirs: _Contents) -> Iterator[Finding]:
    if missing := tuple(sorted(theirs.modules.keys() - ours.modules.keys())):
        python = sum(path.removesuffix(".so") + ".py" in ours.files for path in missing)
        became = f"; {python} of them became Python" if python else ""
        what = f"{len(missing)} of {len(theirs.modules)} compiled modules of the published wheel are missing{became}"
        advice = "the build's log shows why: look for a check of the compiler that failed"
        yield Finding(Severity.ERROR, VerifyRule.PUBLISHED, missing, what, advice)
    for path in sorted(theirs.modules.keys() & ours.modules.keys()):
        if features := sorted(theirs.modules[path] - ours.modules[path]):
            what = f"the published wheel has code for {', '.join(features)} chosen at run time; this wheel has none"
            advice = "the project's own flags were taken out, or a check of the compiler failed: build.keep-flags"
            yield Finding(Severity.ERROR, VerifyRule.PUBLISHED, (path,), what, advice)
    if files := tuple(sorted(theirs.files - ours.files)):
        what = f"{len(files)} files of the published wheel are missing: {', '.join(files[:_SHOWN])}"
        yield Finding(Severity.WARNING, VerifyRule.PUBLISHED, files, what)
    if ours.glibc and theirs.glibc and ours.glibc > theirs.glibc:
        newer, older = (".".join(map(str, one)) for one in (ours.glibc, theirs.glibc))
        what = f"needs glibc {newer}; the published wheel needs {older}"
        yield Finding(Severity.NOTE, VerifyRule.PUBLISHED, (), what, "build in an older manylinux image, or with zig")


def _glibc(tags: frozenset[Tag]) -> tuple[int, int] | None:
    """The oldest glibc that one of *tags* promises to run on; None if none names one."""
    found = [match for tag in tags if (match := _GLIBC.match(tag.platform))]
    return min(
        (_LEGACY[match[3]] if match[3] else (int(match[1]), int(match[2])) for match in found),
        default=None,
    )
