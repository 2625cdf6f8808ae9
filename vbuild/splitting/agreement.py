"""One METADATA for all wheels of a release: what any of them requires, each of them does.

    demo-1.0-cp311-…-x86_64    demo-libs==0.1; x86_64, nvidia-…==1; x86_64     what both require together
    demo-1.0-cp311-…-aarch64   demo-libs==0.1; aarch64

uv, Poetry and others that lock read the metadata of one file of a release and take it for that of all. Variants are
another matter: there the metadata of the one that is installed counts, and one without CUDA must not ask for it.
"""

from collections.abc import Iterable, Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Libs, libs_version
from vbuild.splitting.sharing import Pool

_Lines = tuple[str, ...]


def agreed(own: Mapping[Bundle, _Lines]) -> tuple[Mapping[Bundle, _Lines], Mapping[Bundle, str]]:
    """The lines that each wheel gets, of those that each has of its *own*, and a warning where wheels contradict.

    A wheel without any gets none: of what it brings itself the rest is no business.
    """
    lines: dict[Bundle, _Lines] = dict(own)
    warnings: dict[Bundle, str] = {}
    for family in _families(bundle for bundle, its in own.items() if its):
        said: dict[tuple[str, str], dict[str, None]] = {}
        for line in (line for bundle in family for line in own[bundle]):
            said.setdefault(_subject(line), {})[line] = None
        common = [line for several in said.values() if len(several) == 1 for line in several]
        for bundle in family:
            lines[bundle] = tuple(dict.fromkeys([*own[bundle], *common]))
            if several := [*(row for row in said.values() if len(row) > 1)]:
                first, second, *_ = several[0]
                warnings[bundle] = (
                    f"wheels of one release require {first} and {second}; tools that read the metadata of one file "
                    "for all of them, as uv lock does, will take the wrong one for some"
                )
    return lines, warnings


def versions(libs: Mapping[Pool, Libs]) -> Mapping[Pool, str]:
    """The version of the dependency wheel of each pool: one for all that wheels of one release share.

    Where that would be two wheels of one name, each has a version of its own.
    """
    found: dict[Pool, str] = {}
    for several in _joined(libs):
        together = {pool: libs[pool] for pool in several}
        are_apart = len({(one.name, one.platform) for one in together.values()}) == len(together)
        for pool, one in together.items():
            found[pool] = libs_version(together.values() if are_apart else [one])
    return found


def _joined(libs: Mapping[Pool, Libs]) -> Iterable[list[Pool]]:
    """The pools whose dependency wheels have one name, and which have wheels of one release and label among them."""
    groups: list[tuple[set[tuple[str, ...]], list[Pool]]] = []
    for pool, one in libs.items():
        keys = {(one.name, *_family(bundle)) for bundle in pool.bundles}
        members = [pool]
        for group in [group for group in groups if group[0] & keys]:
            groups.remove(group)
            keys |= group[0]
            members = [*group[1], *members]
        groups.append((keys, members))
    return (members for _, members in groups)


def _families(bundles: Iterable[Bundle]) -> Iterable[list[Bundle]]:
    """The wheels that should have one METADATA: of a release, and of a variant of it."""
    found: dict[tuple[str, ...], list[Bundle]] = {}
    for bundle in bundles:
        found.setdefault(_family(bundle), []).append(bundle)
    return found.values()


def _family(bundle: Bundle) -> tuple[str, ...]:
    return bundle.wheel.name.release, bundle.wheel.name.variant or ""


def _subject(line: str) -> tuple[str, str]:
    """What *line* is about: the project, and where it applies."""
    requirement = Requirement(line)
    return canonicalize_name(requirement.name), str(requirement.marker or "")
