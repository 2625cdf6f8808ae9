"""The empty wheel under a project's old name, which requires one of those under new names: ``demo`` -> ``demo-cu12``.

demo-1.0-py3-none-any.whl    METADATA as the other has it, extras handed on, licences; nothing to import
"""

from pathlib import PurePosixPath

from packaging.utils import canonicalize_name

from vbuild.layout.model import Copied, Member, NewWheel, Put
from vbuild.layout.offer import Offered
from vbuild.layout.renamed import renaming
from vbuild.wheel.distinfo import Metadata
from vbuild.wheel.name import WheelName
from vbuild.wheel.renaming import dist_info_of

_LICENCES = "licenses/"
_WHEEL = """Wheel-Version: 1.0
Generator: vbuild publish
Root-Is-Purelib: true
Tag: py3-none-any
"""


def metapackage_name(default: Offered) -> WheelName:
    """What the empty wheel under the old name of *default* is called."""
    old = default.name.normalised()
    return WheelName(old.distribution, old.version, None, "py3", "none", "any")


def metapackage(default: Offered, project: str) -> NewWheel:
    """The wheel that is called as *default* was and requires just its release of *project*, which it is called now."""
    name = metapackage_name(default)
    way, dist_info = renaming(default, name), dist_info_of(name)
    metadata = default.metadata.with_requires_dist(requirements(default.metadata, project))
    named = default.metadata.headers.values("License-File")
    texts = {f"{default.dist_info}/{file}" for file in named}
    members: list[Member] = []
    for row in default.rows:
        is_licence = row.path.startswith(f"{default.dist_info}/{_LICENCES}") or row.path in texts
        if is_licence and (path := way.path(row.path)):
            members.append(Copied(default.path, row.path, path))
    members += (
        Put(f"{dist_info}/METADATA", str(metadata).encode()),
        Put(f"{dist_info}/WHEEL", _WHEEL.encode()),
    )
    return NewWheel(PurePosixPath(), name, default.path, tuple(members))


def requirements(metadata: Metadata, project: str) -> tuple[str, ...]:
    """What the empty wheel requires: that release of *project*, and each of its extras for the same extra."""
    extras = dict.fromkeys(map(canonicalize_name, metadata.headers.values("Provides-Extra")))
    pins = (f'{project}[{extra}]=={metadata.version}; extra == "{extra}"' for extra in extras)
    return (f"{project}=={metadata.version}", *pins)
