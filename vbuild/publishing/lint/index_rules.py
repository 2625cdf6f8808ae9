"""What PyPI refuses, by its upload handler; other indexes take most of it.

    a file of more than 100 MB, or what the project was granted, 1024 MB at most; 10 GB are the default for a project
    a version with a local part (PEP 440), a name that is not normalised (PEP 427, PEP 625)
    platform tags of one machine only, and those of systems that no specification defines
    a variant label: packaging's parse_wheel_filename does not know PEP 825's file names, and PyPI uses it
    a zip archive with a comment, with members that are not stored or deflated, or that unpacks to 50 times its size
    requirements that are URLs or cannot be read, License-File without the file (PEP 639), metadata that are invalid

Whether the description renders is left to `twine check`.
PyPI's documentation, "Storage limits" and "Archives", and file_upload in warehouse/forklift/legacy.py of
https://github.com/pypi/warehouse.
"""

from collections.abc import Iterable, Iterator

from packaging.version import Version

from vbuild.publishing.lint.files import LintedRelease, ReadySdist, ReadyWheel
from vbuild.publishing.lint.model import DEFAULT_LIMIT, GB, LARGEST_LIMIT, MB, PROJECT_LIMIT, IndexRules, PublishRule
from vbuild.publishing.lint.names import is_bare_linux, is_taken, shortened
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.name import escaped

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
        yield from _names(wheel, terms)
        yield from _platforms(wheel, terms)
        yield from _archive(wheel, terms)
    if terms.is_pypi:
        yield from _local(release)
        yield from _variants(release)


def totals(releases: Iterable[LintedRelease], terms: IndexRules) -> Iterator[Finding]:
    """The projects whose files here are alone more than PyPI gives a project."""
    sizes: dict[str, int] = {}
    for release in releases:
        sizes[release.project] = sizes.get(release.project, 0) + release.size
    for project, size in sizes.items():
        if terms.is_pypi and size > PROJECT_LIMIT:
            yield Finding(
                Severity.WARNING,
                PublishRule.SIZE,
                (project,),
                f"{size} bytes in all; PyPI gives a project {PROJECT_LIMIT} ({PROJECT_LIMIT // GB} GB) by default, "
                f"earlier releases included",
                f"ask for more, or remove old releases: {_LIMITS}",
            )


def _size(file: ReadyWheel | ReadySdist, terms: IndexRules) -> Iterator[Finding]:
    limit = terms.limit * MB
    if file.size <= limit:
        return
    what = f"{file.size} bytes; PyPI takes {limit} ({terms.limit} MB) at most"
    advice = f"make it smaller (vbuild slim, vbuild split), or ask for a larger limit and give it: {_LIMITS}"
    if file.size > LARGEST_LIMIT * MB:
        what = f"{file.size} bytes; PyPI takes {LARGEST_LIMIT * MB} (1 GB) at most, whatever limit it grants"
        advice = "make it smaller (vbuild slim, vbuild split), or serve it from an index of your own"
    elif terms.limit != DEFAULT_LIMIT:
        what = f"{file.size} bytes; the limit that was given is {limit} ({terms.limit} MB)"
    yield Finding(terms.severity, PublishRule.SIZE, (file.file,), what, advice)


def _names(wheel: ReadyWheel, terms: IndexRules) -> Iterator[Finding]:
    expected = escaped(wheel.name.distribution)
    if wheel.name.distribution != expected:
        yield Finding(
            terms.severity,
            PublishRule.NAME,
            (wheel.file,),
            f"begins with {wheel.name.distribution!r}, which is not normalised (PEP 427)",
            f"build it with a backend that writes {expected!r}",
        )


def _platforms(wheel: ReadyWheel, terms: IndexRules) -> Iterator[Finding]:
    for platform in wheel.name.platform.split("."):
        if is_bare_linux(platform):
            what = f"platform tag {platform} says neither which libc it needs nor which version"
            advice = "repair the wheel: vbuild repair, or auditwheel"
        elif terms.is_pypi and not is_taken(platform):
            what = f"platform tag {platform} is not one that PyPI takes"
            advice = f"give it one of {_TAGS}"
        else:
            continue
        yield Finding(terms.severity, PublishRule.PLATFORM, (wheel.file,), what, advice)


def _archive(wheel: ReadyWheel, terms: IndexRules) -> Iterator[Finding]:
    if not terms.is_pypi:
        return
    advice = "write it again as other wheels are: vbuild stamp, or wheel unpack and pack"
    if wheel.has_comment:
        what = "its archive has a comment, which PyPI refuses"
        yield Finding(Severity.ERROR, PublishRule.ARCHIVE, (wheel.file,), what, advice)
    for method in wheel.methods:
        what = f"members are compressed with method {method}; PyPI takes stored and deflated ones"
        yield Finding(Severity.ERROR, PublishRule.ARCHIVE, (wheel.file,), what, advice)
    if wheel.unpacked > max(_BOMB, _RATIO * wheel.size):
        yield Finding(
            Severity.ERROR,
            PublishRule.ARCHIVE,
            (wheel.file,),
            f"unpacks from {wheel.size} to {wheel.unpacked} bytes; PyPI takes {_RATIO} times the size at most",
            "leave out what is only zeros: vbuild slim, strip",
        )


def _requirements(file: ReadyWheel | ReadySdist, terms: IndexRules) -> Iterator[Finding]:
    for line, reason in file.metadata.unreadable:
        advice = "write it as installers read it (PEP 508)"
        if _OF_VARIANTS in line:
            advice = "write what every installer knows: none of today knows markers of variants (PEP 825)"
        what = f"Requires-Dist {shortened(line)!r} cannot be read: {reason}"
        yield Finding(terms.severity, PublishRule.REQUIREMENT, (file.file,), what, advice)
    for line in file.metadata.direct if terms.is_pypi else ():
        yield Finding(
            Severity.ERROR,
            PublishRule.REQUIREMENT,
            (file.file,),
            f"Requires-Dist {shortened(line)!r} is a URL, which PyPI refuses",
            "require a release of it by version",
        )


def _metadata(file: ReadyWheel | ReadySdist) -> Iterator[Finding]:
    for reason in file.metadata.refused:
        what = f"its metadata say what PyPI refuses: {reason}"
        yield Finding(Severity.ERROR, PublishRule.METADATA, (file.file,), what, "put it right in pyproject.toml")
    for path in file.lacks:
        where = "wheel's licenses folder" if isinstance(file, ReadyWheel) else "sdist"
        what = f"License-File {path!r} is not in the {where}, which PyPI refuses (PEP 639)"
        yield Finding(Severity.ERROR, PublishRule.LICENSE, (file.file,), what, "add the file, or take the line out")


def _local(release: LintedRelease) -> Iterator[Finding]:
    version = Version(release.version)
    if version.local:
        yield Finding(
            Severity.ERROR,
            PublishRule.LOCAL_VERSION,
            release.files,
            f"version {version} has the local part +{version.local}, and PyPI takes none (PEP 440)",
            f"publish {version.public}: variants can say what the local part does",
        )


def _variants(release: LintedRelease) -> Iterator[Finding]:
    if labelled := tuple(wheel.file for wheel in release.variants):
        yield Finding(
            Severity.ERROR,
            PublishRule.VARIANT,
            labelled,
            "PyPI takes no variant wheels yet, nor variants.json (PEP 825)",
            "upload the other files alone, and serve these from an index of your own: vbuild index --simple",
        )
