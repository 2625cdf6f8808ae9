"""The limits of PyPI that a report holds sizes against, in bytes.

    file_bytes               a file of a project that never asked for more
    file_bytes_on_request    a file of a project that did, at most
    project_bytes            all files of a project that never asked for more

PyPI's documentation, "Storage limits"
"""

from vbuild.publishing.lint.model import DEFAULT_LIMIT, LARGEST_LIMIT, MB, PROJECT_LIMIT


def limits() -> dict[str, int]:
    """The limits as ``report.json`` has them."""
    return {
        "file_bytes": DEFAULT_LIMIT * MB,
        "file_bytes_on_request": LARGEST_LIMIT * MB,
        "project_bytes": PROJECT_LIMIT,
    }
