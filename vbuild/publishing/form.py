"""What PyPI refuses of METADATA and PKG-INFO, whose fields are the form that comes with an upload.

    packaging.metadata      unknown versions of the format, fields that came with a later one, values that mean nothing
    PyPI's own              a classifier that begins with Private ::, long summaries and labels, two kinds of licence

Requirements are not judged here: `vbuild.publishing.stated` has each with its line. Nor are fields that nobody knows,
which are not sent, and License-File before version 2.4, which setuptools wrote for years and twine leaves out.
https://packaging.python.org/en/latest/specifications/core-metadata/ and warehouse/forklift/metadata.py of
https://github.com/pypi/warehouse.
"""

from collections.abc import Iterator

from packaging.metadata import InvalidMetadata, Metadata
from packaging.version import InvalidVersion, Version

from vbuild.wheel.headers import Headers

_LICENSE_FILE_SINCE = Version("2.4")
_ELSEWHERE = frozenset({"requires-dist"})
_PRIVATE = "Private ::"
# characters
_SUMMARY = 512
_LABEL = 32
_MOST = 200


def refused(text: str, headers: Headers) -> Iterator[str]:
    """What PyPI refuses of the METADATA *text* with these *headers*, a reason for each field, sorted."""
    found = [*_invalid(text, headers), *_own_rules(headers)]
    yield from sorted(map(shortened, found))


def shortened(text: str) -> str:
    """*text*, which may be anything that somebody wrote, in a few lines."""
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def has_license_files(headers: Headers) -> bool:
    """Whether License-File means a path in the file's licences (PEP 639), as it does from version 2.4 on."""
    try:
        return Version(headers.value("Metadata-Version") or "0") >= _LICENSE_FILE_SINCE
    except InvalidVersion:
        return False


def _invalid(text: str, headers: Headers) -> Iterator[str]:
    try:
        Metadata.from_email(text)
    except ExceptionGroup as group:  # packaging tells all that is wrong at once
        for error in group.exceptions:
            if isinstance(error, InvalidMetadata) and not _is_let_pass(error, headers):
                yield _reason(error, headers)
    except RecursionError:
        yield "brackets in brackets, too deep to be read"


def _is_let_pass(error: InvalidMetadata, headers: Headers) -> bool:
    if error.field in _ELSEWHERE or str(error).startswith("unrecognized field"):
        return True
    return error.field == "license-file" and not has_license_files(headers)


def _reason(error: InvalidMetadata, headers: Headers) -> str:
    if error.field == "description-content-type":
        # packaging lists what is expected in another order each time
        value = headers.value(error.field)
        return f"Description-Content-Type {value!r}, expected text/plain, text/x-rst or text/markdown in UTF-8"
    return str(error)


def _own_rules(headers: Headers) -> Iterator[str]:
    for classifier in headers.values("Classifier"):
        if classifier.startswith(_PRIVATE):
            yield f"Classifier {classifier!r}, which says that it is not to be uploaded"
    if (length := len(headers.value("Summary") or "")) > _SUMMARY:
        yield f"Summary of {length} characters, expected {_SUMMARY} at most"
    for line in headers.values("Project-URL"):
        if len(label := line.partition(",")[0].strip()) > _LABEL:
            yield f"Project-URL {label!r}, expected a label of {_LABEL} characters at most"
    if headers.value("License") and headers.value("License-Expression"):
        yield "License beside License-Expression, expected the latter alone (PEP 639)"
