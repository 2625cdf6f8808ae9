"""Findings about files to be published, as values.

    PublishFinding    one thing that is wrong with some of the files, what to do, and whether it stops a release
    IndexRules        the index that the files go to: PyPI with its limits, or one of the publisher's own

A finding names its rule, a stable word that a script can look for; the text may change.
"""

from enum import StrEnum
from typing import Any

from msgspec import Struct

from vbuild.errors import RepackageError

# PyPI's MB and GB are 1024 times 1024, and 1024 times that, bytes: MAX_FILESIZE and UPLOAD_LIMIT_CAP of its source
MB = 1 << 20
GB = 1 << 30
# bytes of all files of a project that never asked for more
PROJECT_LIMIT = 10 * GB
DEFAULT_LIMIT = 100
LARGEST_LIMIT = 1024


class PublishRule(StrEnum):
    """What is asked of the files that are published."""

    ARCHIVE = "archive"
    NAME = "name"
    SIZE = "size"
    LOCAL_VERSION = "local-version"
    PLATFORM = "platform"
    VARIANT = "variant"
    INDEX = "index"
    LABELS = "labels"
    PLAIN = "plain"
    METADATA = "metadata"
    REQUIREMENT = "requirement"
    LICENSE = "license"
    SDIST = "sdist"
    SHARED_FILES = "shared-files"
    BLOB = "blob"
    IMAGE = "image"
    LEVELS = "levels"
    CHANNEL = "channel"
    PINS = "pins"


class PublishFinding(Struct, frozen=True):
    """What is wrong with *files*, by name, and what to do; an error where it *is_error*, else a warning."""

    demand: PublishRule
    files: tuple[str, ...]
    what: str
    advice: str
    is_error: bool

    @property
    def severity(self) -> str:
        return "error" if self.is_error else "warning"

    @property
    def place(self) -> str:
        """The files in a few words: the first, and how many more."""
        more = len(self.files) - 1
        return f"{self.files[0]} and {more} more" if more else self.files[0]

    @property
    def order(self) -> tuple[bool, tuple[str, ...], str]:
        """How problems are sorted: errors first, then by file."""
        return not self.is_error, self.files, self.what

    def __str__(self) -> str:
        return f"{self.severity}: {self.place}: {self.what}; {self.advice} [{self.demand}]"

    def data(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "rule": str(self.demand),
            "files": list(self.files),
            "what": self.what,
            "do": self.advice,
        }


class IndexRules(Struct, frozen=True):
    """Where the files go: to PyPI, where one may have *limit* MB, or to an index that takes whatever wheels it gets.

    PyPI's documentation, "Storage limits".
    """

    is_pypi: bool = False
    limit: int = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        if not 0 < self.limit <= LARGEST_LIMIT:
            raise RepackageError(f"a limit of {self.limit} MB a file: expected 1 to {LARGEST_LIMIT}, PyPI's largest")


def merged_findings(problems: list[PublishFinding]) -> tuple[PublishFinding, ...]:
    """The *problems*, errors first; equal findings about several files become one."""
    alike: dict[tuple[PublishRule, str, str, bool], list[str]] = {}
    for problem in problems:
        key = (problem.demand, problem.what, problem.advice, problem.is_error)
        alike.setdefault(key, []).extend(problem.files)
    whole = [
        PublishFinding(demand, tuple(sorted(set(files))), what, advice, is_error)
        for (demand, what, advice, is_error), files in alike.items()
    ]
    return tuple(sorted(whole, key=lambda problem: problem.order))
