"""Which proof goes with which layout: what is wrong with a folder that exists, read from the disk alone."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vbuild.errors import PublishError
from vbuild.layout.conda import proof as conda
from vbuild.layout.extras import proof as extras
from vbuild.layout.hwcaps import proof as hwcaps
from vbuild.layout.local import proof as local
from vbuild.layout.oci import proof as oci
from vbuild.layout.redirect import proof as redirect
from vbuild.layout.suffix import proof as suffix
from vbuild.layout.variants import proof as variants
from vbuild.publishing.model import Problem

_PROOFS: Mapping[str, Callable[[Path], Iterator[Problem]]] = {
    "hwcaps": hwcaps.problems,
    "redirect": redirect.problems,
    "local": local.problems,
    "suffix": suffix.problems,
    "extras": extras.problems,
    "oci": oci.problems,
    "conda": conda.problems,
    "variants": variants.problems,
}


def problems(layout: str, folder: Path) -> Iterator[Problem]:
    """What is wrong with *folder* as that *layout*; `PublishError` where vbuild knows no layout of that name."""
    if layout not in _PROOFS:
        raise PublishError(f"no layout {layout!r}; expected one of {', '.join(_PROOFS)}")
    return _PROOFS[layout](folder)
