"""The time that written archives state: SOURCE_DATE_EPOCH, never the clock.

Every command that writes archives takes the same values. A format that cannot hold one stores the nearest it can.
Build backends see the variable as the user set it.
https://reproducible-builds.org/specs/source-date-epoch/
"""

import os

from vbuild.errors import VbuildError

OLDEST = 315532800
"""1980-01-01 in seconds since 1970: the earliest time that a zip archive can hold, and the default."""

LATEST = 253402300799
"""9999-12-31 23:59:59 in seconds since 1970: the latest time that a date with a year of four digits can hold."""


def source_date_epoch() -> int | None:
    """Returns SOURCE_DATE_EPOCH in seconds since 1970, or None if it is not set; `VbuildError` if it is not a time."""
    if not (text := os.environ.get("SOURCE_DATE_EPOCH")):
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LATEST))
    if not (is_number and int(text) <= LATEST):
        raise VbuildError(
            f"SOURCE_DATE_EPOCH is {text!r}; expected seconds since 1970, a whole number from 0 to {LATEST} (year 9999)"
        )
    return int(text)
