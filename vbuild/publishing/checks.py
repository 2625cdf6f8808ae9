"""Which proof goes with which layout: what is wrong with a folder that exists, read from the disk alone."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vbuild.errors import PublishError
from vbuild.publishing import extras_check as extras
from vbuild.publishing import local, suffix, variants
from vbuild.publishing.conda import check as conda
from vbuild.publishing.hwcaps import check as hwcaps
from vbuild.publishing.lint.model import Problem
from vbuild.publishing.oci import check as oci
from vbuild.publishing.redirect import check as redirect

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
