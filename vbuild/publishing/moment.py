"""The time that a layout's archives state: SOURCE_DATE_EPOCH, or else the newest METADATA's time of their wheels."""

import calendar
from collections.abc import Iterable

from vbuild.files.epoch import OLDEST, source_date_epoch
from vbuild.wheel.archive import Wheel


def moment_of(wheels: Iterable[Wheel]) -> int:
    """Returns the time of what is made of *wheels*, in seconds since 1970; without wheels it is 1980-01-01."""
    epoch = source_date_epoch()
    return max(map(_time, wheels), default=OLDEST) if epoch is None else epoch


def _time(wheel: Wheel) -> int:
    [header] = (member.header for member in wheel.members if member.path == f"{wheel.dist_info}/METADATA")
    date, time = header.date, header.time
    # archives made without a time have month and day 0; zip archives have no time zone
    day = (1980 + (date >> 9), min(max(date >> 5 & 0xF, 1), 12), max(date & 0x1F, 1))
    return calendar.timegm((*day, time >> 11, time >> 5 & 0x3F, (time & 0x1F) * 2))
