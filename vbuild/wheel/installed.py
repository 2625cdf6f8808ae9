"""Where an installer puts a wheel's members.

    demo/_C.so                     demo/_C.so
    demo-1.0.data/platlib/_C.so    _C.so
    demo-1.0.data/scripts/tool     not below site-packages

https://packaging.python.org/en/latest/specifications/binary-distribution-format/#the-data-directory
"""

import re

_DATA = re.compile(r"[^/]+-[^/]+\.data/(?P<scheme>[^/]+)/(?P<rest>.+)")


def installed_path(path: str) -> str | None:
    """The place of the member *path* below site-packages; None where it goes elsewhere: scripts, headers, data."""
    if not (match := _DATA.fullmatch(path)):
        return path
    return match["rest"] if match["scheme"] in {"platlib", "purelib"} else None
