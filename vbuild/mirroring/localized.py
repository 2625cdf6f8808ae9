"""Wheels that say in their version what they were cut for: torch 2.9.1 for sm_90 becomes 2.9.1+sm90.

An installer that also sees the original takes the local version, which comes after it (PEP 440), and a requirement of
``==2.9.1`` admits both. https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers
"""

import re
from pathlib import Path

from msgspec.structs import replace

from vbuild.mirroring.model import Cut
from vbuild.publishing.local import local_version
from vbuild.publishing.model import PublishPlan, renamed
from vbuild.publishing.publish import written
from vbuild.publishing.releases import OfferedWheel

_WITHOUT_GPUS = "slim"
_STAGE = "local"


def localized(wheel: Path, cut: Cut) -> Path:
    """The *wheel*, which was *cut*, under its local version instead; its new path, in the same folder.

    `RepackageError` if it has a version that takes none.
    """
    offered = OfferedWheel.of(wheel)
    label = ".".join(re.findall(r"[a-z0-9]+", cut.gpus.replace("_", ""))) or _WITHOUT_GPUS
    plain = offered.name.normalised()
    output = renamed(offered, replace(plain, version=local_version(plain.version, label)))
    stage = wheel.parent / _STAGE
    written(PublishPlan(_STAGE, (output,), ()), stage)
    return (stage / output.target).replace(wheel.parent / output.target.name)
