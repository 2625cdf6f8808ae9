"""Where installers put the members of a wheel, which is not where all of them lie in it.

    demo/a.py                       -> demo/a.py
    demo-1.0.data/purelib/demo/a.py -> demo/a.py
    demo-1.0.data/scripts/run       -> bin/run

https://packaging.python.org/en/latest/specifications/binary-distribution-format/#the-data-directory
"""

from collections.abc import Collection, Iterable

from vbuild.errors import WheelError, at
from vbuild.wheel.memberpath import check_places, folded
from vbuild.wheel.name import WheelName

_SCHEMES = ("data", "headers", "platlib", "purelib", "scripts")
_SITE = ("platlib", "purelib")
# file systems of others tell apart what differs in case or Unicode form alone
_EXACT = ("linux", "manylinux", "musllinux")


def check_placing(paths: Iterable[str], dist_info: str, name: WheelName, *, scripts: Collection[str] = ()) -> None:
    """`WheelError` where installers would put two files at one place, or do not agree on where to put one.

    The files are those at *paths*, and the *scripts* that installers make.
    """
    data = dist_info.removesuffix("dist-info") + "data"
    placed = _placed(paths, data)
    for script in scripts:
        place = f"{data}/data/bin/{script}"
        if other := placed.get(place):
            raise WheelError(f"entry point {script!r}: installed at the place of {other}")
        placed[place] = f"entry point {script!r}"
    check_places(placed)
    if all(platform.startswith(_EXACT) for platform in name.platform.split(".")):
        return
    seen: dict[str, str] = {}
    for place in placed:
        if (other := seen.setdefault(folded(place), place)) != place:
            raise WheelError(f"{place}: the same file as {other} on Windows or macOS, for which the wheel also is")
    with at("on Windows or macOS, for which the wheel also is"):
        check_places(seen)


def _placed(paths: Iterable[str], data: str) -> dict[str, str]:
    """Each place, with the path of what is put there."""
    placed: dict[str, str] = {}
    for path in paths:
        with at(path):
            place = _place(path, data)
            if other := placed.get(place):
                raise WheelError(f"installed at the place of {other}")
        placed[place] = path
    return placed


def _place(path: str, data: str) -> str:
    top, _, rest = path.partition("/")
    if not top.endswith(".data"):
        return path
    scheme, _, place = rest.partition("/")
    if top != data:
        raise WheelError(f"in a .data folder that is not {data}: some installers put it elsewhere")
    if scheme not in _SCHEMES or not place:
        raise WheelError(f"expected one of the folders {', '.join(_SCHEMES)} in {data}, and the file below it")
    if scheme == "scripts":
        if "/" in place:
            raise WheelError("a folder among scripts")
        return f"{data}/data/bin/{place}"
    return place if scheme in _SITE else path
