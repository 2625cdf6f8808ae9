"""Version specifiers as conda's match specifications say them.

    ~=1.4.2     >=1.4.2,1.4.*        ==1.4.*    1.4.*        !=1.4.*    !=1.4.*
    <2          <2a0                 ==1.0      ==1.0        ===1.0     ==1.0
    >=2.dev0    >=2a0

PEP 440 keeps the pre-releases of 2 out of ``<2``; in conda they come before 2, so the bound is put before them. What
conda's ``>1.7`` has besides is 1.7.post1, and its ``==1.0`` passes over 1.0+local, which conda packages do not have.
https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/pkg-specs.html#package-match-specifications
"""

from collections.abc import Iterator

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from vbuild.errors import LayoutError

_ANY = ".*"


def matchspec(specifiers: SpecifierSet) -> str:
    """What *specifiers* ask for, in conda's words; empty where they ask for nothing.

    `LayoutError` for one that has no equivalent: ``===`` with what is no version.
    """
    said = (part for specifier in sorted(specifiers, key=str) for part in _spelled(specifier))
    # lower bounds first, as people write them
    return ",".join(sorted(dict.fromkeys(said), key=lambda part: not part.startswith(">")))


def _spelled(specifier: Specifier) -> Iterator[str]:
    operator, text = specifier.operator, specifier.version
    match operator:
        case "~=":
            version = _version(specifier, text)
            yield f">={_bound(version)}"
            epoch = f"{version.epoch}!" if version.epoch else ""
            yield epoch + ".".join(map(str, version.release[:-1])) + _ANY
        case "==" | "!=" if text.endswith(_ANY):
            prefix = f"{_version(specifier, text.removesuffix(_ANY))}{_ANY}"
            yield prefix if operator == "==" else f"!={prefix}"
        case "<":
            version = _version(specifier, text)
            is_plain = not (version.is_prerelease or version.is_postrelease)
            yield f"<{_first(version) if is_plain else _bound(version)}"
        case ">=":
            yield f">={_bound(_version(specifier, text))}"
        case "===":
            yield f"=={_version(specifier, text)}"
        case _:
            yield f"{operator}{_version(specifier, text)}"


def _bound(version: Version) -> str:
    """Where the versions from *version* on begin: 2.0.dev0 is before all others of 2.0, in conda after its alphas."""
    return _first(version) if version.is_devrelease and version.pre is None else str(version)


def _first(version: Version) -> str:
    """The lowest pre-release of *version* as conda sorts them: 2a0 comes before 2.0a0."""
    release = [*version.release]
    while len(release) > 1 and not release[-1]:
        release.pop()
    epoch = f"{version.epoch}!" if version.epoch else ""
    return f"{epoch}{'.'.join(map(str, release))}a0"


def _version(specifier: Specifier, text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise LayoutError(f"{specifier}: conda has no equivalent; expected a version as PEP 440 writes it") from error
