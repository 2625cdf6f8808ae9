"""The metadata of older tools that a wheel may bring beside its own.

demo.egg-info/PKG-INFO, or the file demo.egg-info   a Version, or pip stops after it installed all
"""

from collections.abc import Callable, Iterable

from packaging.version import Version

from vbuild.errors import WheelError
from vbuild.wheel.headers import Headers
from vbuild.wheel.installed import installed_path


def check_eggs(paths: Iterable[str], read: Callable[[str], str]) -> None:
    """`WheelError` unless each ``.egg-info`` that *paths* put beside the package has a version; *read* gives texts."""
    eggs: dict[str, str] = {}
    for path in paths:
        egg, _, rest = (installed_path(path) or "").partition("/")
        if egg.endswith(".egg-info"):
            eggs[egg] = path if rest in {"", "PKG-INFO"} else eggs.get(egg, "")
    for egg, path in eggs.items():
        version = Headers.parse(read(path)).value("Version") if path else None
        try:
            Version(version or "")
        except ValueError as error:
            raise WheelError(f"{egg}: Version {version or ''!r}, expected one that pip can read") from error
