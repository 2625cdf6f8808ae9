"""When the files of a layout were made, as their archives say it: never by the clock.

SOURCE_DATE_EPOCH, or else the newest METADATA's time of the wheels that they are from
"""

import calendar
import os
from collections.abc import Iterable

from vbuild.errors import LayoutError
from vbuild.wheel.archive import Wheel

FIRST_DAY = 315532800  # 1980-01-01, what a zip archive without times says
# what the eleven octal digits of a tar header hold
_LAST = 8**11 - 1


def moment_of(wheels: Iterable[Wheel]) -> int:
    """The time of what is made of *wheels*, in seconds since 1970; `LayoutError` for a SOURCE_DATE_EPOCH that is none.

    Of no wheel it is the first day that a zip archive can say.
    """
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= len(str(_LAST)) and int(epoch) <= _LAST):
            raise LayoutError(f"SOURCE_DATE_EPOCH is {epoch!r}, expected seconds since 1970")
        return int(epoch)
    return max(map(_time, wheels), default=FIRST_DAY)


def _time(wheel: Wheel) -> int:
    [header] = (member.header for member in wheel.members if member.path == f"{wheel.dist_info}/METADATA")
    date, time = header.date, header.time
    # archives made without a time have month and day 0; none says a zone
    day = (1980 + (date >> 9), min(max(date >> 5 & 0xF, 1), 12), max(date & 0x1F, 1))
    return calendar.timegm((*day, time >> 11, time >> 5 & 0x3F, (time & 0x1F) * 2))
