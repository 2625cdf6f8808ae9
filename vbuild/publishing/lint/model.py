"""The rules for files to be published: those of any index, and PyPI's with its limits."""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import RepackageError
from vbuild.verification.model import Finding, Severity

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


class IndexRules(Struct, frozen=True):
    """Where the files go: to PyPI, where one may have *limit* MB, or to an index that takes whatever wheels it gets.

    PyPI's documentation, "Storage limits".
    """

    is_pypi: bool = False
    limit: int = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        if not 0 < self.limit <= LARGEST_LIMIT:
            raise RepackageError(f"a limit of {self.limit} MB a file: expected 1 to {LARGEST_LIMIT}, PyPI's largest")

    @property
    def severity(self) -> Severity:
        """The severity of what only PyPI refuses."""
        return Severity.ERROR if self.is_pypi else Severity.WARNING


def merged_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The *findings*, errors first; equal ones about several files become one."""
    alike: dict[Finding, list[str]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, places=()), []).extend(finding.places)
    merged = (replace(finding, places=tuple(sorted(set(files)))) for finding, files in alike.items())
    return tuple(sorted(merged, key=lambda finding: (not finding.is_error, finding.places, finding.what)))
