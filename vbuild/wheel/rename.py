"""A wheel under another name or version: what that changes inside, and what stays letter for letter.

    demo-1.0-…-cu126.whl                 demo_cu126-1.0-….whl                   demo-1.0+cu126-….whl
    demo-1.0.dist-info/METADATA          demo_cu126-1.0.dist-info/METADATA      Name, Version, demo[all] of its extras
    demo-1.0.dist-info/variant.json      only where the new name has a label
    demo-1.0.data/scripts/tool           demo_cu126-1.0.data/scripts/tool
    demo/__init__.py                     demo/__init__.py                       as all that is imported

WHEEL, entry points and licences stay too. RECORD is made again by whoever writes the wheel, and signatures over the old
one (PEP 427) are left out.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
https://packaging.python.org/en/latest/specifications/dependency-specifiers/
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.wheel.metadata import VARIANT_JSON, Metadata, unlisted
from vbuild.wheel.name import WheelName

_DATA = ".data"
# at the start of a requirement (PEP 508)
_PROJECT = re.compile(r"\s*(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)", re.ASCII)


class Renaming(Struct, frozen=True):
    """The way from the wheel *old*, whose ``.dist-info`` folder is *dist_info*, to the wheel *new*.

    *project* is what METADATA says as Name then; None keeps what it says where the project stays the same, and else is
    the name as package indexes spell it.
    """

    old: WheelName
    new: WheelName
    dist_info: str
    project: str | None = None

    def path(self, path: str) -> str | None:
        """Where the member *path* is in the new wheel, or None if it has no place there."""
        folder, slash, rest = path.partition("/")
        if folder == self.dist_info and slash:
            is_stale = path in unlisted(self.dist_info) or (rest == VARIANT_JSON and self.new.variant is None)
            return None if is_stale else f"{dist_info_of(self.new)}/{rest}"
        if slash and self._is_data(folder):
            return f"{data_of(self.new)}/{rest}"
        return path

    def metadata(self, metadata: Metadata, *, requirement: Callable[[str], str] | None = None) -> Metadata:
        """The METADATA of the new wheel, where the old one's is *metadata*.

        Lines of Requires-Dist that name the project itself, for an extra of its, follow the name; what *requirement*
        makes of any line comes first. A version is spelled again only where it is another one.
        """
        stays = self.new.project == self.old.project
        name = self.project or (metadata.name if stays else self.new.project)
        version = metadata.version if _same(metadata.version, self.new.version) else self.new.version
        own = {} if stays else {self.old.project: name}

        def changed(line: str) -> str:
            return requirement_of(requirement(line) if requirement else line, own)

        return metadata.renamed(name, version).requiring(changed)

    def _is_data(self, folder: str) -> bool:
        """Whether the top-level *folder* is the wheel's own ``.data``, however it is spelled."""
        if not folder.endswith(_DATA):
            return False
        distribution, dash, version = folder.removesuffix(_DATA).rpartition("-")
        return bool(dash) and canonicalize_name(distribution) == self.old.project and _same(version, self.old.version)


def dist_info_of(name: WheelName) -> str:
    """The ``.dist-info`` folder of a new wheel called *name*, spelled as the file: installers refuse another."""
    return f"{name.distribution}-{name.version}.dist-info"


def data_of(name: WheelName) -> str:
    """The ``.data`` folder of a new wheel called *name*."""
    return f"{name.distribution}-{name.version}{_DATA}"


def requirement_of(line: str, projects: Mapping[str, str]) -> str:
    """The requirement *line* with the project's name replaced as *projects* has it; the rest as it was written."""
    match = _PROJECT.match(line)
    if match and (new := projects.get(canonicalize_name(match["name"]))):
        return f"{line[: match.start('name')]}{new}{line[match.end('name') :]}"
    return line


def _same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except ValueError:
        return False
