"""Wheels that `vbuild split` made beside others: who publishes those without these publishes what nobody can install.

Such a requirement is told by its version, a number from a hash of contents, whatever the project is called:
``Requires-Dist: demo-libs==0.187650320598251``.
"""

import re
from collections.abc import Collection, Iterator

from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.publishing.model import Demand, Problem
from vbuild.publishing.releases import Published
from vbuild.publishing.stated import requirement

# as vbuild.splitting.companion.libs_version writes it, from six bytes; one of ten thousand has fewer digits
_OF_CONTENTS = re.compile(r"==(?P<version>0\.[0-9]{11,15})")


def lacking_companions(release: Published, *, known: Collection[Published]) -> Iterator[Problem]:
    """The wheels that *release* requires exactly, which a split made and none of *known* is."""
    for wheel in release.wheels:
        for project, version in _made_by_split(wheel.stated.requires):
            if not any(other.project == project and Version(other.version) == Version(version) for other in known):
                yield Problem(
                    Demand.REQUIREMENT,
                    (wheel.file,),
                    f"requires {project}=={version}, which is not here: a number as vbuild split gives to shared "
                    f"libraries",
                    "publish it first, or with these: nobody can install them without",
                    is_error=False,
                )


def _made_by_split(lines: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The projects and versions among the requirements *lines* that are those of shared libraries."""
    for line in lines:
        try:
            found = requirement(line)
        except InvalidRequirement:
            continue
        if match := _OF_CONTENTS.fullmatch(str(found.specifier)):
            yield canonicalize_name(found.name), match["version"]
