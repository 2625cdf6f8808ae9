"""A guard in renamed wheels: on import it says which other distribution has been installed over the same files.

    demo/__init__.py         from . import _vbuild_guard    behind docstring and __future__ imports
    demo/_vbuild_guard.py    lists the .dist-info folders beside, reads RECORD of those called like this one

No installer notices two distributions with the same files, and who uninstalls one breaks the other. A ``.pth`` file
would be run by every start of Python; this is part of the package, costs a listing of one folder, and goes with it.
It is in every wheel that is renamed and in no other: a file name is never given to two contents.
"""

from collections.abc import Iterable

from vbuild.errors import LayoutError, at
from vbuild.layout.model import Member, Put
from vbuild.layout.offer import Offered
from vbuild.layout.renamed import renaming
from vbuild.splitting.preload import hooked, is_namespace, package_of
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.installed import installed_path
from vbuild.wheel.name import WheelName

MODULE = "_vbuild_guard"

_OPTION = "--guard"
_GUARD = '''"""Says on import where another distribution has been installed over {own}. Made by vbuild publish."""

from __future__ import annotations

import os

_OWN = "{own}"
_FAMILY = {family}
_FILE = "{package}/__init__.py"


def _others() -> list[str]:
    """The distributions beside this one that brought the same file, by their RECORDs."""
    site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{up}")
    found = []
    for folder in os.listdir(site):
        release, _, kind = folder.rpartition(".")
        if kind != "dist-info":
            continue
        name = release.rpartition("-")[0].lower().replace("_", "-").replace(".", "-")
        if name != _OWN and (name in _FAMILY or name.startswith(_FAMILY[0] + "-")):
            try:
                with open(os.path.join(site, folder, "RECORD"), encoding="utf-8", errors="replace") as record:
                    if any(line.startswith(_FILE + ",") for line in record):
                        found.append(name)
            except OSError:
                continue
    return sorted(found)


def _check() -> None:
    try:
        others = _others()
    except OSError:  # in an archive, or in no folder that can be listed
        return
    if others:
        import warnings

        warnings.warn(
            f"{{_OWN}} and {{', '.join(others)}} are installed with the same files: uninstall all, then install one",
            RuntimeWarning,
            stacklevel=4,
        )


_check()
'''


def guarded(wheel: Offered, name: WheelName, *, family: Iterable[str]) -> dict[str, Member]:
    """The members that *wheel* gets under *name*, by new path: its packages import a guard that knows the *family*.

    The family are the names that wheels with these files have. `LayoutError` where no package could import it,
    `SplitError` where an ``__init__.py`` is not to be read as Python.
    """
    way = renaming(wheel, name)
    members = {path: row.path for row in wheel.rows if (path := installed_path(row.path))}
    others = sorted({*family} - {wheel.name.project})
    found: dict[str, Member] = {}
    with open_wheel(wheel.path) as opened, at(wheel.path.name):
        inits = {path: opened.read(member) for path, member in members.items() if path.endswith("/__init__.py")}
        shared = {
            path.rpartition("/")[0] for path, data in inits.items() if is_namespace(data.decode(errors="replace"))
        }
        for package in sorted({one for path in members if (one := package_of(path, members, namespaces=shared))}):
            init = members[f"{package}/__init__.py"]
            target = way.path(init) or init
            beside = f"{target.rpartition('/')[0]}/{MODULE}.py"
            with at(init):
                found[target] = Put(target, hooked(inits[f"{package}/__init__.py"], MODULE, option=_OPTION))
            found[beside] = Put(beside, guard(package, name.project, (wheel.name.project, *others)).encode())
        if not found:
            raise LayoutError(f"no package with an __init__.py that could import a guard; leave {_OPTION} out")
    return found


def guard(package: str, own: str, family: Iterable[str]) -> str:
    """The module that guards *package*, a folder, of the distribution *own*, whose project is the first of *family*."""
    names = "".join(f'\n    "{name}",' for name in family)
    up = "/".join([".."] * len(package.split("/")))
    return _GUARD.format(own=own, family=f"({names}\n)", package=package, up=up)
